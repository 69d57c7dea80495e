//! The text of a configuration as serde reads it. Values that need more than a type keep their place in the
//! text ([`Spanned`]), so that `check` can name the line.

use serde::Deserialize;
use toml::Spanned;

use super::error::nearest;
use super::{ConfigError, Hugepages, Idle};

/// The whole text.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    #[serde(default)]
    pub eal: Eal,
    #[serde(default)]
    pub lcore: Vec<Spanned<Lcore>>,
    #[serde(default)]
    pub nic: Vec<Spanned<Nic>>,
    #[serde(default)]
    pub control: Control,
    #[serde(default)]
    pub log: Log,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Eal {
    pub hugepages: Option<Hugepages>,
    pub memory_mb: Option<Spanned<i64>>,
    #[serde(default)]
    pub args: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Lcore {
    pub cpu: Option<Spanned<NumberOrWord>>,
    pub idle: Option<Idle>,
}

/// A CPU or a user: by number or by word.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a number or a word in quotes")]
pub(super) enum NumberOrWord {
    Number(i64),
    Word(String),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nic {
    pub name: Spanned<String>,
    pub addresses: Spanned<Vec<Spanned<String>>>,
    pub mac: Option<Spanned<String>>,
    pub mtu: Option<Spanned<i64>>,
    pub port: Spanned<String>,
    pub ack_policy: Option<AckPolicy>,
    pub retransmission: Option<Retransmission>,
    pub lcore: Option<Spanned<i64>>,
    #[serde(default)]
    pub neighbor: Vec<Neighbour>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum AckPolicy {
    PerMessage,
    Coalesced,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Retransmission {
    Spec,
    Adaptive,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Neighbour {
    pub ip: Spanned<String>,
    pub mac: Spanned<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Control {
    pub socket: Option<Spanned<String>>,
    pub mode: Option<Spanned<String>>,
    pub users: Option<Vec<Spanned<NumberOrWord>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Log {
    pub level: Option<String>,
}

/// Reads a text.
pub(super) fn parse(label: &str, text: &str) -> Result<File, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let line = line_of(text, error.span().map_or(0, |span| span.start));
        explain(label, line, error.message())
    })
}

/// The line, from 1, of a byte.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    1 + text
        .as_bytes()
        .iter()
        .take(at)
        .filter(|&&byte| byte == b'\n')
        .count()
}

/// serde names the stranger and all that it knows, each in backquotes; what it cannot say is which is near.
fn explain(label: &str, line: usize, message: &str) -> ConfigError {
    let kind = if message.starts_with("unknown field ") {
        "key"
    } else if message.starts_with("unknown variant ") {
        "value"
    } else {
        return ConfigError::Syntax {
            file: label.into(),
            line,
            message: message.into(),
        };
    };
    let mut quoted = message.split('`').skip(1).step_by(2);
    let word = quoted.next().unwrap_or_default();
    let known: Vec<&str> = quoted.collect();
    ConfigError::Unknown {
        file: label.into(),
        line,
        kind,
        word: word.into(),
        nearest: nearest(word, &known).map(String::from),
        known: known.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        parse("f.toml", text)
            .expect_err("must be refused")
            .to_string()
    }

    #[test]
    fn an_unknown_key_is_named_with_its_line_and_the_nearest_one() {
        let text = "[[lcore]]\ncpu = 1\n\n[[nic]]\nname = \"roce0\"\nadresses = []\n";
        assert_eq!(
            error(text),
            "f.toml:6: unknown key `adresses`, did you mean `addresses`?; known are \
             name, addresses, mac, mtu, port, ack_policy, retransmission, lcore, neighbor"
        );
    }

    #[test]
    fn an_unknown_section_is_an_unknown_key() {
        let message = error("[eal]\n[contrl]\n");
        assert!(message.starts_with("f.toml:2: unknown key `contrl`, did you mean `control`?"));
    }

    #[test]
    fn an_unknown_word_is_named_with_those_that_exist() {
        let message = error("[[lcore]]\nidle = \"spinn\"\n");
        assert_eq!(
            message,
            "f.toml:2: unknown value `spinn`, did you mean `spin`?; known are spin, adaptive"
        );
    }

    #[test]
    fn wrong_types_and_broken_syntax_have_a_line() {
        assert!(error("[eal]\nmemory_mb = \"much\"\n").starts_with("f.toml:2: "));
        assert!(error("[eal\n").starts_with("f.toml:1: "));
    }
}
