//! What can be wrong with a scenario or with what was asked of it. Every message names the place, the value and the remedy.

use std::fmt;
use std::io;

use super::nearest_hint;

/// Where a value stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A line of a file, from 1.
    Line {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
    },
    /// An option of the command line, or a variant of the file: `--set nic.window=64`.
    Setting(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line { file, line } => write!(f, "{file}:{line}"),
            Place::Setting(setting) => f.write_str(setting),
        }
    }
}

/// A scenario that cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// A file could not be read or written.
    #[error("{file}: {source}")]
    File {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// Not TOML.
    #[error("{place}: {message}")]
    Syntax {
        /// Where.
        place: Place,
        /// What the parser says.
        message: String,
    },
    /// A key that does not exist there.
    #[error("{place}: unknown key `{key}` in {section}{}; known are {}", nearest_hint(.key, .known), .known.join(", "))]
    Unknown {
        /// Where.
        place: Place,
        /// The section.
        section: String,
        /// What was written.
        key: String,
        /// All that exist there.
        known: Vec<String>,
    },
    /// A value that makes no sense.
    #[error("{place}: {key} = {value}: {problem}")]
    Value {
        /// Where.
        place: Place,
        /// The key with its section, as `--set` takes it.
        key: String,
        /// What was written.
        value: String,
        /// What is wrong with it and how to mend it.
        problem: String,
    },
    /// Something is missing, or does not fit together.
    #[error("{place}: {section}: {problem}")]
    Section {
        /// Where the section begins.
        place: Place,
        /// The section.
        section: String,
        /// What, and how to mend it.
        problem: String,
    },
    /// Neither a file nor a built-in scenario.
    #[error(
        "there is neither a file nor a built-in scenario `{name}`{}; `roceline sim --list` shows those that are built in",
        nearest_hint(.name, .known)
    )]
    NoScenario {
        /// What was asked for.
        name: String,
        /// Those that are built in.
        known: Vec<String>,
    },
    /// A `--set` or `--sweep` that names no place of the file.
    #[error("{setting}: {problem}")]
    Setting {
        /// The option as it was given.
        setting: String,
        /// What is wrong with it and how to mend it.
        problem: String,
    },
    /// The simulation itself could not be set up.
    #[error("{scenario}: {problem}")]
    Run {
        /// The scenario.
        scenario: String,
        /// What, and how to mend it.
        problem: String,
    },
}
