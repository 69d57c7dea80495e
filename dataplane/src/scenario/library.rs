//! The scenarios of the repository's `scenarios/`, which the build puts into the program.

/// A scenario that needs no file.
#[derive(Clone, Copy, Debug)]
pub struct BuiltIn {
    /// Its name: that of its file, without `.toml`.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// All of them, by name.
pub const BUILT_IN: &[BuiltIn] = include!(concat!(env!("OUT_DIR"), "/scenarios.rs"));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Document;

    #[test]
    fn each_can_be_read_and_says_what_it_shows_and_whence_it_comes() {
        for built_in in BUILT_IN {
            let document = Document::load(built_in.name).unwrap();
            assert_eq!(document.name, built_in.name);
            for variant in &document.variants {
                let scenario = document.scenario(&variant.settings).unwrap();
                let told = [&scenario.title, &scenario.shows, &scenario.source];
                assert!(
                    told.iter().all(|text| !text.is_empty()),
                    "{}",
                    scenario.name
                );
                assert!(!scenario.expects.is_empty(), "{}", scenario.name);
            }
        }
    }
}
