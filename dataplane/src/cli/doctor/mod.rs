//! `roceline doctor`: what is missing on this machine, what is off, and how to mend it. It changes nothing.

mod checks;
mod congestion;
mod icrc;
mod limits;
mod memory;
mod polling;

use std::io::{self, Write};
use std::path::Path;

use clap::Parser;
use serde::Serialize;

use super::CliError;
use super::show::write_json;

const ABOUT_STATES: &str = "\
Each line says
  ok        it is as it should be
  off       something is slower, or not available; nothing else suffers
  missing   programs cannot run until it is mended (exit code 1)";

/// Say what is missing, off or misconfigured on this machine, and how to mend it
#[derive(Debug, Parser)]
#[command(after_help = ABOUT_STATES)]
pub(super) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Off,
    Missing,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    state: State,
    /// What was looked at.
    what: &'static str,
    /// What was found.
    found: String,
    /// How to mend it.
    remedy: Option<String>,
}

impl Finding {
    fn ok(what: &'static str, found: impl Into<String>) -> Finding {
        Finding {
            state: State::Ok,
            what,
            found: found.into(),
            remedy: None,
        }
    }

    fn off(what: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding {
            state: State::Off,
            what,
            found: found.into(),
            remedy: Some(remedy.into()),
        }
    }

    fn missing(what: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding {
            state: State::Missing,
            what,
            found: found.into(),
            remedy: Some(remedy.into()),
        }
    }
}

pub(super) fn run(args: Args, socket: &Path) -> Result<(), CliError> {
    let findings = checks::all(socket);
    let mut out = io::stdout().lock();
    if args.json {
        let report =
            serde_json::json!({ "findings": findings, "unsupported": limits::UNSUPPORTED });
        write_json(&mut out, &report)?;
    } else {
        for finding in &findings {
            write_finding(&mut out, finding)?;
        }
        writeln!(out, "\nWhat this version does not do:")?;
        for limit in limits::UNSUPPORTED {
            write_finding(
                &mut out,
                &Finding::off(limit.what, limit.why, limit.instead),
            )?;
        }
    }
    match findings
        .iter()
        .filter(|finding| finding.state == State::Missing)
        .count()
    {
        0 => Ok(()),
        missing => Err(CliError::Unhealthy(missing)),
    }
}

fn write_finding(out: &mut impl Write, finding: &Finding) -> io::Result<()> {
    let state = match finding.state {
        State::Ok => "ok",
        State::Off => "off",
        State::Missing => "missing",
    };
    writeln!(out, "{state:<8} {:<22} {}", finding.what, finding.found)?;
    match &finding.remedy {
        Some(remedy) if !remedy.is_empty() => writeln!(out, "{:<31} -> {remedy}", ""),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line_and_its_remedy_another() {
        let mut out = Vec::new();
        write_finding(&mut out, &Finding::ok("CPUs", "2")).unwrap();
        write_finding(&mut out, &Finding::missing("daemon", "none", "start it")).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "ok       CPUs                   2\n\
             missing  daemon                 none\n                                -> start it\n"
        );
    }
}
