//! What the daemon and the command line say about themselves. Log lines go to stderr; only warnings and errors
//! unless more is asked for.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// The environment variable that outranks everything else.
pub const LOG_VARIABLE: &str = "ROCELINE_LOG";

/// A log filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "log filter {filter:?} from {origin}: {source}; write a level (warn, info, debug) or \"module=level,...\""
)]
pub struct FilterError {
    filter: String,
    origin: &'static str,
    source: tracing_subscriber::filter::ParseError,
}

/// Starts logging. The filter is the first of: `ROCELINE_LOG`, `-v` (info) or `-vv` (debug), the
/// configuration's `[log] level`, warnings. Does nothing when logging has already been started.
pub fn init(verbosity: u8, configured: Option<&str>) -> Result<(), FilterError> {
    let variable = std::env::var(LOG_VARIABLE)
        .ok()
        .filter(|filter| !filter.is_empty());
    let (filter, origin) = choose(variable.as_deref(), verbosity, configured);
    let filter = EnvFilter::try_new(filter).map_err(|source| FilterError {
        filter: filter.into(),
        origin,
        source,
    })?;
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(filter)
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
}
