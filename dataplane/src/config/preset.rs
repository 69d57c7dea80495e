//! Configurations that are built in. They are texts like any other, so that a user can print one, change it
//! and run the result.

use std::fmt;

/// A built-in configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Preset {
    /// Two NICs, roce0 and roce1, joined by a link
    Pair,
}

impl Preset {
    /// Its TOML text.
    pub fn text(self) -> &'static str {
        match self {
            Preset::Pair => include_str!("pair.toml"),
        }
    }

    /// What it is called in messages.
    pub fn label(self) -> String {
        format!("preset {self}")
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Preset::Pair => "pair",
        })
    }
}
