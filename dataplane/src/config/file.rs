//! The text of a configuration as serde reads it. Values that need more than a type keep their place in the
//! text ([`Spanned`]), so that `check` can name the line.

use std::collections::BTreeMap;

use serde::Deserialize;
use toml::Spanned;

use super::error::nearest;
use super::{ConfigError, Hugepages, Idle, unquoted};
use crate::impair::Text;

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
    pub fabric: Option<Fabric>,
    #[serde(default)]
    pub impair: Vec<Spanned<Impair>>,
    #[serde(default)]
    pub limits: Limits,
    #[serde(default)]
    pub control: Control,
    #[serde(default)]
    pub log: Log,
}

/// A rule: its keys are those of the command line, which knows them better than serde.
pub(super) type Impair = BTreeMap<Spanned<String>, Spanned<Text>>;

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
    pub watchdog_s: Option<Spanned<i64>>,
    pub rx_burst: Option<Spanned<i64>>,
    pub tx_burst: Option<Spanned<i64>>,
    pub rx_prefetch: Option<Spanned<i64>>,
    pub tx_prefetch: Option<Spanned<i64>>,
}

/// A CPU or a user: by number or by word. `expecting` is the whole message of an untagged enum: put as serde's others,
/// for [`wrong_type`].
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "invalid type: of another type, expected a number or a word in quotes"
)]
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
    pub rx_ring: Option<Spanned<i64>>,
    pub tx_ring: Option<Spanned<i64>>,
    pub ack_policy: Option<AckPolicy>,
    pub retransmission: Option<Retransmission>,
    pub memory: Option<Memory>,
    pub lids: Option<Spanned<bool>>,
    pub lcore: Option<Spanned<Numbers>>,
    pub gateway: Option<Spanned<OneOrMore>>,
    #[serde(default)]
    pub neighbor: Vec<Neighbour>,
    pub congestion: Option<Spanned<String>>,
    pub line_rate: Option<Spanned<String>>,
    pub fixed_rate: Option<Spanned<String>>,
    #[serde(default)]
    pub dcqcn: Keys,
    #[serde(default)]
    pub np: Keys,
    #[serde(default)]
    pub pfc: Keys,
    #[serde(default)]
    pub ets: Keys,
    #[serde(default)]
    pub dctcp: Keys,
    #[serde(default)]
    pub timely: Keys,
    #[serde(default)]
    pub swift: Keys,
}

/// Keys that are known elsewhere: `crate::congestion` has them, with what they may be.
pub(super) type Keys = BTreeMap<Spanned<String>, Spanned<Words>>;

/// A word, a number, a truth value, or a list of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "invalid type: of another type, expected a number, a text in quotes, true or false, or a list of these"
)]
pub(super) enum Words {
    One(Text),
    More(Vec<Text>),
}

impl Words {
    /// As one text, with commas between the parts of a list.
    pub fn text(&self) -> String {
        match self {
            Words::One(Text(one)) => one.clone(),
            Words::More(more) => {
                let parts: Vec<&str> = more.iter().map(|text| text.0.as_str()).collect();
                parts.join(",")
            }
        }
    }
}

/// `[fabric]` with its words for all switches, and `[[fabric.switch]]` with the same words for some.
macro_rules! switches {
    ($($(#[$meta:meta])* $name:ident { $($(#[$on:meta])* $field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$meta])*
            #[derive(Debug, Deserialize)]
            #[serde(deny_unknown_fields)]
            pub(super) struct $name {
                $($(#[$on])* pub $field: $kind,)*
                pub lcore: Option<Spanned<i64>>,
                pub rate: Option<Spanned<String>>,
                pub delay: Option<Spanned<String>>,
                pub buffer: Option<Spanned<String>>,
                pub headroom: Option<Spanned<String>>,
                pub alpha: Option<Spanned<String>>,
                pub lossy_alpha: Option<Spanned<String>>,
                pub kmin: Option<Spanned<String>>,
                pub kmax: Option<Spanned<String>>,
                pub pmax: Option<Spanned<String>>,
                pub lossless: Option<Spanned<Vec<Spanned<i64>>>>,
                pub ecn: Option<Spanned<Vec<Spanned<i64>>>>,
                pub strict: Option<Spanned<Vec<Spanned<i64>>>>,
                pub bandwidth: Option<Spanned<Words>>,
                pub trust: Option<Spanned<Words>>,
                pub dscp: Option<Spanned<Words>>,
                pub pause: Option<Spanned<Words>>,
                pub quanta: Option<Spanned<Words>>,
                pub watchdog_rx_limit: Option<Spanned<Words>>,
                pub watchdog_rx_restore: Option<Spanned<Words>>,
                pub watchdog_rx_action: Option<Spanned<Words>>,
                pub watchdog_tx_limit: Option<Spanned<Words>>,
            }
        )*
    };
}

switches! {
    Fabric {
        seed: Option<Spanned<i64>>,
        #[serde(default)]
        switch: Vec<Spanned<Switch>>,
    }
    Switch {
        name: Spanned<OneOrMore>,
        uplinks: Option<Spanned<OneOrMore>>,
        #[serde(default)]
        port: Vec<FabricPort>,
        #[serde(default)]
        route: Vec<FabricRoute>,
    }
}

/// `[[fabric.switch.port]]`: links that are not as the others of the switch.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FabricPort {
    pub to: Spanned<OneOrMore>,
    pub rate: Option<Spanned<String>>,
    pub delay: Option<Spanned<String>>,
}

/// `[[fabric.switch.route]]`: ways instead of the shortest.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FabricRoute {
    pub to: Spanned<OneOrMore>,
    pub via: Spanned<OneOrMore>,
}

/// A text, or a list of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "invalid type: of another type, expected text in quotes or a list of it"
)]
pub(super) enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl OneOrMore {
    pub fn as_slice(&self) -> &[String] {
        match self {
            OneOrMore::One(one) => std::slice::from_ref(one),
            OneOrMore::More(more) => more,
        }
    }
}

/// A number, or a list of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "invalid type: of another type, expected a number or a list of numbers"
)]
pub(super) enum Numbers {
    One(i64),
    More(Vec<i64>),
}

impl Numbers {
    pub fn as_slice(&self) -> &[i64] {
        match self {
            Numbers::One(one) => std::slice::from_ref(one),
            Numbers::More(more) => more,
        }
    }
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

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Memory {
    Auto,
    Never,
    Always,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Neighbour {
    pub ip: Spanned<String>,
    pub mac: Spanned<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limits {
    pub requests_per_poll: Option<Spanned<i64>>,
    #[serde(default)]
    pub program: Amounts,
    #[serde(default)]
    pub user: Amounts,
    #[serde(default)]
    pub device: Amounts,
}

/// A number for each [`Resource`](crate::control::quota::Resource), under its key.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Amounts {
    pub contexts: Option<Spanned<NumberOrWord>>,
    pub pds: Option<Spanned<NumberOrWord>>,
    pub mrs: Option<Spanned<NumberOrWord>>,
    pub registered: Option<Spanned<NumberOrWord>>,
    pub cqs: Option<Spanned<NumberOrWord>>,
    pub cqes: Option<Spanned<NumberOrWord>>,
    pub qps: Option<Spanned<NumberOrWord>>,
    pub srqs: Option<Spanned<NumberOrWord>>,
    pub ahs: Option<Spanned<NumberOrWord>>,
    pub mws: Option<Spanned<NumberOrWord>>,
    pub channels: Option<Spanned<NumberOrWord>>,
    pub memory_objects: Option<Spanned<NumberOrWord>>,
    pub mappings: Option<Spanned<NumberOrWord>>,
    pub queue_memory: Option<Spanned<NumberOrWord>>,
    pub mcasts: Option<Spanned<NumberOrWord>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Control {
    pub socket: Option<Spanned<String>>,
    pub mode: Option<Spanned<String>>,
    pub users: Option<Vec<Spanned<NumberOrWord>>>,
    #[serde(default)]
    pub operators: Vec<Spanned<NumberOrWord>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Log {
    pub level: Option<Spanned<String>>,
}

/// Reads a text.
pub(super) fn parse(label: &str, text: &str) -> Result<File, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        explain(label, text, at, error.message())
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

/// The key whose value, or a part of it, is at a byte: the last one with a `=` before it, or that of the section's
/// header where the whole section is meant.
fn key_at(text: &str, at: usize) -> Option<&str> {
    let is_key = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '"');
    let header = text[at..].lines().next()?.trim_start();
    if let Some(inside) = header.strip_prefix("[[").or(header.strip_prefix('[')) {
        let name = inside.split(']').next().map(str::trim).filter(|name| {
            // A list as a value begins like a header; its line has a key before it.
            !name.is_empty() && name.chars().all(is_key) && starts_line(text, at)
        });
        if name.is_some() {
            return name;
        }
    }
    text[..at]
        .lines()
        .rev()
        .filter(|line| !line.trim_start().starts_with('#'))
        .find_map(|line| {
            let before = &line[..line.rfind('=')?];
            let key = before.trim_end().rsplit(|c| !is_key(c)).next()?;
            (!key.is_empty()).then_some(key)
        })
}

fn starts_line(text: &str, at: usize) -> bool {
    let before = text[..at].rsplit('\n').next();
    before.is_none_or(|before| before.trim().is_empty())
}

/// serde's words for what it found and wanted, in those of the file's author.
fn wrong_type(message: &str) -> Option<String> {
    let (found, wanted) = message
        .strip_prefix("invalid type: ")?
        .rsplit_once(", expected ")?;
    let wanted = match wanted {
        "a string" => "text in quotes",
        "i64" | "u64" | "u32" | "integer" => "a whole number",
        "a boolean" => "true or false",
        "a sequence" => "a list in [ ], or [[sections]]",
        _ if wanted.starts_with("struct ") => "a section of its own",
        other => other.strip_prefix("expected ").unwrap_or(other),
    };
    let found = found
        .replace("string ", "the text ")
        .replace("integer ", "the number ")
        .replace("floating point ", "the number ")
        .replace("sequence", "a list")
        .replace("map", "a section");
    Some(format!("is {found}, but must be {wanted}"))
}

/// serde names the stranger and all that it knows, each in backquotes; what it cannot say is which is near.
fn explain(label: &str, text: &str, at: usize, message: &str) -> ConfigError {
    let line = line_of(text, at);
    if let Some(problem) = wrong_type(message) {
        return ConfigError::Type {
            file: label.into(),
            line,
            key: key_at(text, at).unwrap_or("a value").into(),
            problem,
        };
    }
    let kind = if message.starts_with("unknown field ") {
        "key"
    } else if message.starts_with("unknown variant ") {
        "value"
    } else if let Some(value) = unquoted::value_at(text, at) {
        return ConfigError::Type {
            file: label.into(),
            line,
            key: key_at(text, at).unwrap_or("a value").into(),
            problem: unquoted::problem(value),
        };
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
        of: (kind == "value")
            .then(|| key_at(text, at).map(Box::from))
            .flatten(),
        nearest: nearest(word, &known).map(Box::from),
        known: known.join(", ").into(),
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
             name, addresses, mac, mtu, port, rx_ring, tx_ring, ack_policy, retransmission, memory, lids, lcore, gateway, neighbor, \
             congestion, line_rate, fixed_rate, dcqcn, np, pfc, ets, dctcp, timely, swift"
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
            "f.toml:2: unknown value `spinn` of `idle`, did you mean `spin`?; known are spin, adaptive"
        );
    }

    #[test]
    fn wrong_types_and_broken_syntax_have_a_line() {
        assert!(error("[eal]\nmemory_mb = \"much\"\n").starts_with("f.toml:2: "));
        assert!(error("[eal\n").starts_with("f.toml:1: "));
    }

    #[test]
    fn a_value_of_the_wrong_type_is_told_with_its_key_and_what_it_must_be() {
        for (text, says) in [
            (
                "[eal]\nmemory_mb = \"much\"\n",
                "f.toml:2: `memory_mb` is the text \"much\", but must be a whole number",
            ),
            (
                "[[nic]]\nname = 7\n",
                "f.toml:2: `name` is the number `7`, but must be text in quotes",
            ),
            (
                "[[nic]]\nname = \"a\"\nport = \"x\"\naddresses = [\n  \"10.0.0.1/24\",\n  7,\n]\n",
                "f.toml:6: `addresses` is the number `7`, but must be text in quotes",
            ),
            (
                "[[nic]]\nname = \"a\"\nport = \"x\"\naddresses = \"10.0.0.1/24\"\n",
                "f.toml:4: `addresses` is the text \"10.0.0.1/24\", but must be a list",
            ),
            (
                "# eal = 1\nlog = { level = 3 }\n",
                "f.toml:2: `level` is the number `3`",
            ),
            (
                "[lcore]\ncpu = 1\n",
                "f.toml:1: `lcore` is a section, but must be a list in [ ], or [[sections]]",
            ),
            (
                "[[lcore]]\ncpu = 1.5\n",
                "f.toml:2: `cpu` is of another type, but must be a number or a word in quotes",
            ),
            (
                "eal = 3\n",
                "f.toml:1: `eal` is the number `3`, but must be a section",
            ),
        ] {
            let message = error(text);
            assert!(message.starts_with(says), "{message}\nnot {says}");
        }
    }
}
