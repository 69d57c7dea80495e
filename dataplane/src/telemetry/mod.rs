//! What the daemon and the command line say about themselves. Log lines go to stderr; only warnings and errors
//! unless more is asked for.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// The environment variable that outranks everything else.
pub const LOG_VARIABLE: &str = "ROCELINE_LOG";

/// The levels of a filter, from silence to everything.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// A log filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("log filter {filter:?} from {origin}: {problem}")]
pub struct FilterError {
    filter: String,
    origin: &'static str,
    problem: String,
}

/// What is wrong with a log filter, and what to write instead.
///
/// A word alone is a level. `EnvFilter` would take any other for the name of a module, of which it then shows
/// everything: a misspelt level would be silence.
pub fn check_filter(filter: &str) -> Result<(), String> {
    let known = LEVELS.join(", ");
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    // A directive for spans, `[span{field=value}]=level`, has no bare word.
    let words = filter.split(',').map(str::trim);
    for word in words.filter(|word| !word.contains(['=', '[', ']', '{', '}'])) {
        if !is_level(word) {
            return Err(format!(
                "{word:?} is no level; write one of {known}, or \"module=level,...\""
            ));
        }
    }
    match EnvFilter::try_new(filter) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!(
            "{error}; write one of {known}, or \"module=level,...\""
        )),
    }
}

/// Starts logging. The filter is the first of: `ROCELINE_LOG`, `-v` (info) or `-vv` (debug), the
/// configuration's `[log] level`, warnings. Does nothing when logging has already been started.
pub fn init(verbosity: u8, configured: Option<&str>) -> Result<(), FilterError> {
    let variable = std::env::var(LOG_VARIABLE)
        .ok()
        .filter(|filter| !filter.is_empty());
    let (filter, origin) = choose(variable.as_deref(), verbosity, configured);
    check_filter(filter).map_err(|problem| FilterError {
        filter: filter.into(),
        origin,
        problem,
    })?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .finish();
    // An error says that somebody was first, as happens when tests share a process.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok(())
}

fn choose<'a>(
    variable: Option<&'a str>,
    verbosity: u8,
    configured: Option<&'a str>,
) -> (&'a str, &'static str) {
    match (variable, verbosity, configured) {
        (Some(filter), _, _) => (filter, LOG_VARIABLE),
        (None, 1, _) => ("info", "-v"),
        (None, 2.., _) => ("debug", "-vv"),
        (None, 0, Some(filter)) => (filter, "[log] level"),
        (None, 0, None) => ("warn", "the default"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_wish_wins() {
        assert_eq!(choose(None, 0, None).0, "warn");
        assert_eq!(choose(None, 0, Some("error")).0, "error");
        assert_eq!(choose(None, 1, Some("error")).0, "info");
        assert_eq!(choose(None, 3, None).0, "debug");
        assert_eq!(choose(Some("trace"), 1, Some("error")).0, "trace");
    }

    #[test]
    fn a_bad_filter_is_named_with_its_origin() {
        let error = init(0, Some("roceline=loud")).unwrap_err().to_string();
        assert!(
            error.contains("roceline=loud") && error.contains("[log] level"),
            "{error}"
        );
    }

    #[test]
    fn a_word_alone_must_be_a_level() {
        for good in [
            "warn",
            "INFO",
            "off",
            "roceline=debug",
            "warn,roceline::lcore=trace",
            "[s{a=1}]=info",
        ] {
            assert_eq!(check_filter(good), Ok(()), "{good}");
        }
        for bad in ["verbose", "warning", "info,louder", "roceline"] {
            let problem = check_filter(bad).unwrap_err();
            assert!(problem.contains("is no level"), "{problem}");
            assert!(
                problem.contains("error, warn, info, debug, trace"),
                "{problem}"
            );
        }
    }
}
