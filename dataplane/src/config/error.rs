//! What can be wrong with a configuration. Every message names the place, the value and the remedy.

use std::io;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// Why.
        source: io::Error,
    },
    /// A value of the wrong type.
    #[error("{file}:{line}: `{key}` {problem}")]
    Type {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: String,
        /// What it is, and what it must be.
        problem: String,
    },
    /// Not TOML, or something is missing.
    #[error("{file}:{line}: {message}")]
    Syntax {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// A key or a word that does not exist.
    #[error("{file}:{line}: unknown {kind} `{word}`{of}{hint}; known are {known}", of = belonging(.of), hint = hint(.nearest))]
    Unknown {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// `key` or `value`.
        kind: &'static str,
        /// What was written.
        word: String,
        /// The key of a value.
        of: Option<Box<str>>,
        /// The nearest one that exists, if any is near.
        nearest: Option<Box<str>>,
        /// All that exist there.
        known: Box<str>,
    },
    /// A value that makes no sense.
    #[error("{file}:{line}: {key} = {value}: {problem}")]
    Value {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// The key.
        key: &'static str,
        /// What was written.
        value: String,
        /// What is wrong with it and how to mend it.
        problem: String,
    },
    /// A section that makes no sense as a whole.
    #[error("{file}:{line}: [[{section}]]: {problem}")]
    Section {
        /// The file.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Name of the section.
        section: &'static str,
        /// What is wrong with it and how to mend it.
        problem: String,
    },
    /// Something is missing or does not fit together.
    #[error("{file}: {problem}")]
    Whole {
        /// The file.
        file: String,
        /// What, and how to mend it.
        problem: String,
    },
}

fn belonging(key: &Option<Box<str>>) -> String {
    key.as_ref()
        .map_or_else(String::new, |key| format!(" of `{key}`"))
}

fn hint(nearest: &Option<Box<str>>) -> String {
    nearest
        .as_ref()
        .map_or_else(String::new, |near| format!(", did you mean `{near}`?"))
}

/// The candidate that differs least from `word`, if it differs little enough to be a slip of the pen.
pub(crate) fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let length = |text: &str| text.chars().count();
    candidates
        .iter()
        .map(|&candidate| (edit_distance(word, candidate), candidate))
        .filter(|&(distance, candidate)| {
            distance <= (length(word).max(length(candidate)) / 3).max(1)
        })
        .min()
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, substitutions and swaps of neighbours between two words (optimal string alignment).
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0usize; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            if i == 0 || j == 0 {
                rows[i][j] = i + j;
                continue;
            }
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1)
                .min(rows[i][j - 1] + 1)
                .min(rows[i - 1][j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_slips() {
        assert_eq!(edit_distance("cpu", "cpu"), 0);
        assert_eq!(edit_distance("cup", "cpu"), 1, "a swap is one slip");
        assert_eq!(edit_distance("adress", "address"), 1);
        assert_eq!(edit_distance("", "mtu"), 3);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
    }

    #[test]
    fn only_a_near_word_is_offered() {
        let known = ["name", "addresses", "mtu", "port"];
        assert_eq!(nearest("adresses", &known), Some("addresses"));
        assert_eq!(nearest("adress", &known), Some("addresses"));
        assert_eq!(nearest("nmae", &known), Some("name"));
        assert_eq!(nearest("speed", &known), None);
    }
}
