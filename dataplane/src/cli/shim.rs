//! Where the preloaded library is.

use std::env;
use std::path::{Path, PathBuf};

/// Its file name.
pub(super) const NAME: &str = "libroceline_shim.so";
/// The environment variable that names it outright.
const VARIABLE: &str = "ROCELINE_SHIM";

/// The library is nowhere.
#[derive(Debug, thiserror::Error)]
pub(super) enum ShimError {
    #[error("{VARIABLE} names {0}, which is not a file: correct or unset it")]
    Named(PathBuf),
    #[error(
        "{NAME} is in none of {0}: build it with `cargo build --workspace`, or name it with {VARIABLE}"
    )]
    Nowhere(String),
    #[error(
        "the path {0} has a blank or a colon, which LD_PRELOAD takes for a separator: move the library"
    )]
    Separator(PathBuf),
}

/// Finds the library: where `ROCELINE_SHIM` says, else beside this program, else in `../lib` of that.
pub(super) fn find() -> Result<PathBuf, ShimError> {
    let named = env::var_os(VARIABLE)
        .filter(|name| !name.is_empty())
        .map(PathBuf::from);
    let own = env::current_exe().ok();
    search(named, own.as_deref().and_then(Path::parent)).and_then(without_separator)
}

fn without_separator(path: PathBuf) -> Result<PathBuf, ShimError> {
    let bytes = path.as_os_str().as_encoded_bytes();
    if bytes.iter().any(|byte| b" :".contains(byte)) {
        return Err(ShimError::Separator(path));
    }
    Ok(path)
}

fn search(named: Option<PathBuf>, own_dir: Option<&Path>) -> Result<PathBuf, ShimError> {
    if let Some(named) = named {
        // The loader takes a path with a slash as it is; a program may change its directory.
        return match named.canonicalize() {
            Ok(path) if path.is_file() => Ok(path),
            _ => Err(ShimError::Named(named)),
        };
    }
    let places: Vec<PathBuf> = own_dir
        .map(|dir| vec![dir.join(NAME), dir.join("../lib").join(NAME)])
        .unwrap_or_default();
    places
        .iter()
        .find_map(|place| place.canonicalize().ok().filter(|path| path.is_file()))
        .ok_or_else(|| {
            let list: Vec<String> = places
                .iter()
                .map(|place| place.display().to_string())
                .collect();
            ShimError::Nowhere(list.join(", "))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn places_are_searched_in_order() {
        let root = env::temp_dir().join(format!("roceline-shim-{}", std::process::id()));
        let (bin, lib) = (root.join("bin"), root.join("lib"));
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(&lib).unwrap();
        let error = search(None, Some(&bin)).unwrap_err().to_string();
        assert!(error.contains(bin.join(NAME).to_str().unwrap()), "{error}");

        fs::write(lib.join(NAME), "").unwrap();
        assert_eq!(
            search(None, Some(&bin)).unwrap(),
            lib.join(NAME).canonicalize().unwrap()
        );
        fs::write(bin.join(NAME), "").unwrap();
        assert_eq!(
            search(None, Some(&bin)).unwrap(),
            bin.join(NAME).canonicalize().unwrap()
        );

        let error = search(Some("/no/such.so".into()), Some(&bin))
            .unwrap_err()
            .to_string();
        assert!(error.contains("/no/such.so"), "{error}");
        fs::remove_dir_all(root).unwrap();

        assert!(without_separator("/a/b.so".into()).is_ok());
        assert!(without_separator("/a b/c.so".into()).is_err());
        assert!(without_separator("/a:b/c.so".into()).is_err());
    }
}
