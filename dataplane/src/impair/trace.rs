//! Delays from a file: a time a line, with its unit, or a bare number of nanoseconds. `#` begins a comment.
//!
//! The file is read by whoever knows where it is, the command line or the loader of the configuration, and becomes a
//! `list:` in the rule, with the file's name as a comment, so that a rule in the daemon never depends on a file.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use roceline_engine::Nanos;

use super::spec::{Spec, SpecError};
use super::units;

/// Delays that a list may have: with ten digits each they fit one message of the control socket.
pub const MAX_DELAYS: usize = 4096;
/// A file longer than this is none of ours.
const MAX_FILE: u64 = 1 << 20;

impl Spec {
    /// Puts the delays of a trace file in the place of its name. Names are relative to `base`.
    ///
    /// # Errors
    /// When the file cannot be read, or a line of it is no time.
    pub fn read_files(&mut self, base: &Path) -> Result<(), SpecError> {
        let Some(name) = self.get("delay").and_then(|d| d.strip_prefix("trace:")) else {
            return Ok(());
        };
        let delays = read(&base.join(name)).map_err(|problem| self.bad("delay", problem))?;
        let numbers: Vec<String> = delays.iter().map(|delay| delay.0.to_string()).collect();
        let name = super::shortened(name);
        self.set(
            "delay",
            format!("list:{} # trace:{}", numbers.join(","), name.escape_debug()),
        );
        Ok(())
    }
}

/// A list of delays for people: where it is from, or how it begins, and how long it is. `None` for any other delay.
pub fn described(delay: &str) -> Option<String> {
    let rest = delay.strip_prefix("list:")?;
    let delays = list(rest).ok()?;
    let of = match delays.len() {
        1 => String::from("1 value"),
        n => format!("{n} values"),
    };
    let source = match rest.split_once('#') {
        Some((_, comment)) => super::shortened(comment.trim()),
        None => {
            const FIRST: usize = 4;
            let first: Vec<String> = delays
                .iter()
                .take(FIRST)
                .map(|d| units::written(*d))
                .collect();
            let more = if delays.len() > FIRST { ",…" } else { "" };
            format!("list:{}{more}", first.join(","))
        }
    };
    Some(format!("{source} ({of})"))
}

fn read(path: &Path) -> Result<Vec<Nanos>, String> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text))
        .map_err(|error| format!("{}: {error}", path.display()))?;
    if text.len() as u64 > MAX_FILE {
        return Err("the file is longer than 1 MiB, so it cannot be a list of delays".into());
    }
    let mut delays = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let delay = one(line).map_err(|problem| {
            let line = super::shortened(line);
            format!("line {number} of the file, {line:?}: {problem}")
        })?;
        delays.push(delay);
    }
    bounded(delays)
}

/// What is behind `list:`: `10us,20us,1500`, and perhaps a comment.
pub fn list(text: &str) -> Result<Vec<Nanos>, String> {
    let text = text.split('#').next().unwrap_or_default();
    bounded(
        text.split(',')
            .map(|t| one(t.trim()))
            .collect::<Result<_, _>>()?,
    )
}

fn one(text: &str) -> Result<Nanos, String> {
    match text.bytes().all(|b| b.is_ascii_digit()) {
        true => units::time(&format!("{text}ns")),
        false => units::time(text),
    }
}

fn bounded(delays: Vec<Nanos>) -> Result<Vec<Nanos>, String> {
    match delays.len() {
        0 => Err("there are no delays in it: give one a line".into()),
        n if n > MAX_DELAYS => Err(format!("{n} delays: {MAX_DELAYS} at most")),
        _ => Ok(delays),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_becomes_a_list() {
        let path = std::env::temp_dir().join(format!("roceline-trace-{}", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let mut spec = Spec::default();
            let name = path.file_name().unwrap().to_str().unwrap();
            spec.set("delay", format!("trace:{name}"));
            let result = spec.read_files(&std::env::temp_dir());
            result.map(|()| {
                let delay = spec.get("delay").unwrap();
                let (list, comment) = delay.split_once(" # ").unwrap();
                assert_eq!(comment, format!("trace:{name}"));
                list.to_string()
            })
        };
        assert_eq!(
            read("# measured\n10us\n\n1500 # ns\n0.5ms\n").unwrap(),
            "list:10000,1500,500000"
        );
        let error = read("10us\nsoon\n").unwrap_err().to_string();
        assert!(
            error.contains("line 2 of the file, \"soon\": must be a time"),
            "{error}"
        );
        assert!(
            read("# nothing\n")
                .unwrap_err()
                .to_string()
                .contains("no delays")
        );
        assert!(read(&"1\n".repeat(MAX_DELAYS)).is_ok());
        assert!(read(&"1\n".repeat(MAX_DELAYS + 1)).is_err());
        assert!(
            read(&"1\n".repeat(1 << 20))
                .unwrap_err()
                .to_string()
                .contains("1 MiB")
        );
        std::fs::remove_file(&path).unwrap();
        assert!(read_missing().contains("No such file"));
    }

    fn read_missing() -> String {
        let mut spec = Spec::default();
        spec.set("delay", "trace:/nonexistent/delays");
        spec.read_files(Path::new(".")).unwrap_err().to_string()
    }

    #[test]
    fn the_longest_list_fits_a_message() {
        // With a name of sixty letters, each written as an escape.
        let longest = "60000000000,".repeat(MAX_DELAYS) + &"\\u{10ffff}".repeat(61);
        assert!(longest.len() < roceline_abi::control::MAX_PAYLOAD - 8 * 1024);
        assert_eq!(
            list("10us, 20us,1500").unwrap(),
            [Nanos(10_000), Nanos(20_000), Nanos(1_500)]
        );
        assert!(list("").is_err() && list("1,,2").is_err());
        assert_eq!(list("1us # as measured").unwrap(), [Nanos(1_000)]);
    }

    #[test]
    fn lists_are_shown_with_units_or_by_their_file() {
        for (delay, shown) in [
            (
                "list:20000,50us,1500,0,9",
                Some("list:20us,50us,1500ns,0ns,… (5 values)"),
            ),
            ("list:2000000", Some("list:2ms (1 value)")),
            (
                "list:1,2,3 # trace:a/b.txt",
                Some("trace:a/b.txt (3 values)"),
            ),
            ("list:soon", None),
            ("20us", None),
        ] {
            assert_eq!(described(delay).as_deref(), shown, "{delay}");
        }
    }
}
