//! `[[impair]]`: rules to begin with. What a rule may say is the business of [`crate::impair`]; here errors get their line.

use std::collections::BTreeMap;

use roceline_engine::fabric::impair::MAX_RULES;
use toml::Spanned;

use super::check::Checker;
use super::error::nearest;
use super::file::{self, line_of};
use super::{ConfigError, NicConfig, wiring};
use crate::impair::{KEYS, Names, Place, Spec, SpecError};

impl Checker<'_> {
    /// Checks all rules: each by itself, against the NICs and links that there are, and whether they have room. What they
    /// read of files replaces the files' names in the text.
    pub(super) fn impair(
        &self,
        sections: Vec<Spanned<file::Impair>>,
        nics: &[NicConfig],
    ) -> Result<Vec<Spec>, ConfigError> {
        let wiring = wiring(nics);
        let mut names = Names::default();
        let mut standing: BTreeMap<Place, usize> = BTreeMap::new();
        let mut rules = Vec::new();
        for section in sections {
            let at = section.span().start;
            let keys = section.into_inner();
            let pairs = keys.iter().map(|(key, value)| {
                let text = value.as_ref().clone();
                (key.as_ref().clone(), text)
            });
            let mut rule = Spec::new(pairs);
            let checked = rule
                .read_files(self.base())
                .and_then(|()| rule.compile(0).map(drop))
                .and_then(|()| names.take(&rule))
                .and_then(|()| wiring.places(&rule));
            let places = checked.map_err(|error| self.impair_error(error, &keys, at))?;
            for place in places {
                let rules = standing.entry(place).or_default();
                *rules += 1;
                if *rules > MAX_RULES {
                    return Err(ConfigError::Section {
                        file: self.label().into(),
                        line: line_of(self.text(), at),
                        section: "impair",
                        problem: format!(
                            "there are {MAX_RULES} rules at {} already, and one place has no more: leave one out",
                            wiring.describe(place)
                        ),
                    });
                }
            }
            for (key, value) in &keys {
                let now = rule.get(key.as_ref()).unwrap_or_default();
                if now != value.as_ref().0 {
                    self.replace(value.span(), now);
                }
            }
            rules.push(rule);
        }
        Ok(rules)
    }

    fn impair_error(&self, error: SpecError, keys: &file::Impair, section: usize) -> ConfigError {
        let at = |key: &str| keys.iter().find(|(name, _)| name.as_ref() == key);
        let file = self.label().to_string();
        let line = |at: usize| line_of(self.text(), at);
        match error {
            SpecError::Unknown { key } => ConfigError::Unknown {
                file,
                line: line(at(&key).map_or(section, |(name, _)| name.span().start)),
                kind: "key",
                of: None,
                nearest: nearest(&key, KEYS).map(Box::from),
                word: key,
                known: KEYS.join(", ").into(),
            },
            SpecError::Value {
                key,
                value,
                problem,
            } => ConfigError::Value {
                file,
                line: line(at(key).map_or(section, |(_, text)| text.span().start)),
                key,
                value,
                problem,
            },
            SpecError::Whole(problem) => ConfigError::Section {
                file,
                line: line(section),
                section: "impair",
                problem,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;

    const NICS: &str =
        "[[nic]]\nname = \"roce0\"\naddresses = [\"10.0.0.1/24\"]\nport = \"vdev:net_null0\"\n";

    fn parse(rules: &str) -> Result<Config, String> {
        Config::parse("f.toml", &format!("{NICS}{rules}")).map_err(|error| error.to_string())
    }

    #[test]
    fn rules_are_read() {
        let config = parse(
            "[[impair]]\nname = \"lossy\"\nnic = \"roce0\"\nside = \"tx\"\ndrop = true\nprobability = 0.01\n\
             [[impair]]\nnic = \"roce0\"\nside = \"rx\"\nqpn = 0x11\nmark_ce = true\n",
        )
        .unwrap();
        assert_eq!(config.impair.len(), 2);
        assert_eq!(config.impair[1].get("qpn"), Some("17"));
    }

    #[test]
    fn a_text_that_names_a_file_is_whole_without_it() {
        let dir = std::env::temp_dir().join(format!("roceline-whole-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("delays"), "10us\n20us\n").unwrap();
        let side = "nic = \"roce0\"\nside = \"tx\"\n";
        let text = format!(
            "{NICS}[[impair]]\n{side}delay = \"trace:delays\" # as measured\n[[impair]]\n{side}drop = true\n\
             [[impair]]\ndelay = 'trace:delays'\n{side}"
        );
        let path = dir.join("f.toml");
        std::fs::write(&path, &text).unwrap();
        let (config, read) = Config::load(&path).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(read, text);
        let list = "\"list:10000,20000 # trace:delays\"";
        let whole = text.replace("\"trace:delays\"", list);
        assert_eq!(config.text, whole.replace("'trace:delays'", list));
        let again = Config::parse("elsewhere", &config.text).unwrap();
        assert_eq!(again.impair, config.impair);
        assert_eq!(again.text, config.text);
    }

    /// A file beside the configuration, whatever its name and the directory that the process is in.
    #[test]
    fn a_file_is_found_and_named_whatever_its_directory_and_name() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt;
        let mut name = format!("roceline-odd-{}-", std::process::id()).into_bytes();
        name.push(0xff);
        let dir = std::env::temp_dir().join(OsStr::from_bytes(&name));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("a \"b\" #\\c"), "10us\n").unwrap();
        let text = format!(
            "{NICS}[[impair]]\nnic = \"roce0\"\nside = \"tx\"\ndelay = 'trace:a \"b\" #\\c'\n"
        );
        let path = dir.join("f.toml");
        std::fs::write(&path, &text).unwrap();
        let loaded = Config::load(&path);
        std::fs::remove_dir_all(&dir).unwrap();
        let config = loaded.unwrap().0;
        let again = Config::parse("elsewhere", &config.text).unwrap();
        assert_eq!(again.impair, config.impair);
        assert_eq!(again.text, config.text);
        let shown = config.impair[0].effect().to_string();
        assert!(shown.contains("(1 value)"), "{shown}");
    }

    #[test]
    fn rules_beyond_what_a_place_has_room_for_are_told_with_line_and_place() {
        let tx = "[[impair]]\nnic = \"roce0\"\nside = \"tx\"\ndrop = true\n";
        let rx = tx.replace("tx", "rx");
        parse(&(tx.repeat(64) + &rx.repeat(64))).unwrap();
        assert_eq!(
            parse(&(rx + &tx.repeat(66))).unwrap_err(),
            "f.toml:265: [[impair]]: there are 64 rules at roce0 tx already, and one place has no more: leave one out"
        );
    }

    #[test]
    fn errors_name_line_key_value_and_remedy() {
        let side = "nic = \"roce0\"\nside = \"tx\"\n";
        for (rule, begins, contains) in [
            (
                format!("[[impair]]\n{side}dorp = true\n"),
                "f.toml:8: unknown key `dorp`, did you mean `drop`?; known are ",
                "probability",
            ),
            (
                format!("[[impair]]\n{side}drop = true\nprobability = \"often\"\n"),
                "f.toml:9: probability = \"often\": ",
                "1%",
            ),
            (
                format!("[[impair]]\n{side}delay = \"10\"\n"),
                "f.toml:8: delay = \"10\": ",
                "us",
            ),
            (
                "[[impair]]\nnic = \"roce9\"\nside = \"tx\"\ndrop = true\n".into(),
                "f.toml:6: nic = \"roce9\": ",
                "roce0",
            ),
            (
                format!("[[impair]]\n{side}"),
                "f.toml:5: [[impair]]: a rule has to do something: ",
                "drop",
            ),
            (
                format!(
                    "[[impair]]\nname = \"a\"\n{side}drop = true\n[[impair]]\nname = \"a\"\n{side}drop = true\n"
                ),
                "f.toml:11: name = \"a\": ",
                "another",
            ),
            (
                format!("[[impair]]\n{side}delay = \"trace:/nonexistent\"\n"),
                "f.toml:8: delay = \"trace:/nonexistent\": ",
                "No such file",
            ),
        ] {
            let error = parse(&rule).unwrap_err();
            assert!(
                error.starts_with(begins) && error.contains(contains),
                "{rule}{error}"
            );
        }
    }
}
