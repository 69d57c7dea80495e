//! A rule as it was written: keys and values, not yet understood. The command line makes one of its options, the
//! configuration of a `[[impair]]` section, and the control socket carries it as a JSON object, so that all three have the
//! same keys, units and errors.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use super::trace;

/// Keys with their values as text. `{"nic": "roce0", "side": "tx", "drop": "true"}`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Spec(BTreeMap<String, Text>);

/// Why a rule is none: the key, what stands there, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A value makes no sense.
    #[error("{key} = {value}: {problem}")]
    Value {
        /// The key.
        key: &'static str,
        /// What was written.
        value: String,
        /// What is wrong with it and how to mend it.
        problem: String,
    },
    /// A key that does not exist.
    #[error("unknown key `{0}`", key.escape_debug())]
    Unknown {
        /// The key.
        key: String,
    },
    /// Something is missing or does not fit together.
    #[error("{0}")]
    Whole(String),
}

impl SpecError {
    /// The key that it is about, if it is about one.
    pub fn key(&self) -> Option<&str> {
        match self {
            SpecError::Value { key, .. } => Some(key),
            SpecError::Unknown { key } => Some(key),
            SpecError::Whole(_) => None,
        }
    }
}

impl Spec {
    /// Of keys and values.
    pub fn new(pairs: impl IntoIterator<Item = (String, Text)>) -> Spec {
        Spec(pairs.into_iter().collect())
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Without name and place: what it is about, and what it does.
    #[must_use]
    pub fn effect(&self) -> Spec {
        let mut effect = self.clone();
        let named = ["name", "nic", "side", "link", "from"];
        effect.0.retain(|key, _| !named.contains(&key.as_str()));
        effect
    }

    /// What stands at a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(|text| text.0.as_str())
    }

    /// Puts another value at a key.
    pub fn set(&mut self, key: &str, value: impl Into<String>) {
        self.0.insert(key.into(), Text(value.into()));
    }

    /// Whether a flag is set.
    pub fn flag(&self, key: &'static str) -> Result<bool, SpecError> {
        self.parse(key, |text| match text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err("must be true or false".into()),
        })
        .map(|flag| flag.unwrap_or(false))
    }

    /// The value at a key, read by `read`; `None` if the key is not there.
    pub fn parse<T>(
        &self,
        key: &'static str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, SpecError> {
        let Some(text) = self.get(key) else {
            return Ok(None);
        };
        read(text)
            .map(Some)
            .map_err(|problem| self.bad(key, problem))
    }

    /// The error about the value at a key.
    pub fn bad(&self, key: &'static str, problem: impl Into<String>) -> SpecError {
        SpecError::Value {
            key,
            value: format!("{:?}", shortened(self.get(key).unwrap_or_default())),
            problem: problem.into(),
        }
    }
}

/// Names that are taken.
#[derive(Clone, Debug, Default)]
pub struct Names(BTreeSet<String>);

impl Names {
    /// Takes the name of a rule, if it has one.
    ///
    /// # Errors
    /// When it is no name, or another rule has it.
    pub fn take(&mut self, rule: &Spec) -> Result<(), SpecError> {
        let Some(name) = rule.get("name") else {
            return Ok(());
        };
        let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic());
        if !begins || !name.chars().all(letters) || name.len() > 63 {
            let problem =
                "a name begins with a letter and has letters, digits, `_`, `-` and `.`, 63 at most";
            return Err(rule.bad("name", problem));
        }
        if let Some(number) = name.strip_prefix("rule") {
            if number.bytes().all(|b| b.is_ascii_digit()) {
                let problem = "rules without a name are called so: choose another";
                return Err(rule.bad("name", problem));
            }
        }
        if !self.0.insert(name.into()) {
            return Err(rule.bad("name", "there is a rule of this name: choose another"));
        }
        Ok(())
    }

    /// The rule is gone; its name may be taken again.
    pub fn give_back(&mut self, rule: &Spec) {
        if let Some(name) = rule.get("name") {
            self.0.remove(name);
        }
    }
}

/// A rule in one line, as the configuration would have it; lists of delays and long values are shortened.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut gap = "";
        for (key, value) in &self.0 {
            match value.0.as_str() {
                "true" => write!(f, "{gap}{key}")?,
                value => match trace::described(value).filter(|_| key == "delay") {
                    Some(list) => write!(f, "{gap}{key}={list}")?,
                    None => write!(f, "{gap}{key}={}", shortened(value))?,
                },
            }
            gap = " ";
        }
        Ok(())
    }
}

/// A long value (a list of delays, say) cut off for people.
pub fn shortened(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text.into(),
    }
}

/// A value: text; numbers and truth values of TOML and JSON count as what they look like.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Text(pub String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        struct Scalar;

        impl Visitor<'_> for Scalar {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, a number, true or false")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.into()))
            }

            fn visit_bool<E: de::Error>(self, value: bool) -> Result<Text, E> {
                Ok(Text(value.to_string()))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Text, E> {
                Ok(Text(value.to_string()))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Text, E> {
                Ok(Text(value.to_string()))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Text, E> {
                Ok(Text(value.to_string()))
            }
        }

        deserializer.deserialize_any(Scalar)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_truth_values_are_what_they_look_like() {
        let toml: Spec =
            toml::from_str("drop = true\nqpn = 0x11\nprobability = 0.01\nnic = \"roce0\"").unwrap();
        let json: Spec =
            serde_json::from_str(r#"{"drop":"true","qpn":17,"probability":"0.01","nic":"roce0"}"#)
                .unwrap();
        assert_eq!(toml, json);
        assert_eq!(
            serde_json::to_string(&toml).unwrap(),
            r#"{"drop":"true","nic":"roce0","probability":"0.01","qpn":"17"}"#
        );
        assert_eq!(toml.to_string(), "drop nic=roce0 probability=0.01 qpn=17");
        assert!(serde_json::from_str::<Spec>(r#"{"qpn":[1]}"#).is_err());
        assert!(serde_json::from_str::<Spec>(r#"{"qpn":null}"#).is_err());
    }

    #[test]
    fn names_are_words_and_taken_once() {
        let rule = |name: &str| Spec::new([("name".to_string(), Text(name.into()))]);
        let mut names = Names::default();
        for name in ["lossy", "a", "x-1_2.y", "ruler"] {
            names.take(&rule(name)).unwrap();
            assert!(names.take(&rule(name)).is_err(), "{name} twice");
            names.give_back(&rule(name));
            names.take(&rule(name)).unwrap();
        }
        for name in ["", "7", "a b", "rule7", "rule", "-a", &"a".repeat(64)] {
            assert!(names.take(&rule(name)).is_err(), "{name}");
        }
        names.take(&Spec::default()).unwrap();
        names.take(&Spec::default()).unwrap();
    }

    #[test]
    fn errors_name_key_value_and_remedy() {
        let mut spec = Spec::default();
        spec.set("drop", "yes");
        spec.set("delay", "9".repeat(1000));
        let error = spec.flag("drop").unwrap_err();
        assert_eq!(error.to_string(), "drop = \"yes\": must be true or false");
        assert_eq!(error.key(), Some("drop"));
        assert!(!spec.flag("mark_ce").unwrap());
        assert!(spec.bad("delay", "no").to_string().len() < 100);
    }
}
