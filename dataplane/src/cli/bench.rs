//! `roceline bench`: what this machine makes of the datapath, with programs inside the process. No daemon is needed. In flow what is
//! to be measured; out flow tables, or JSON.

mod datapath;
mod goals;
mod latency;
mod machine;
mod plot;
mod scale;
mod top;
mod two_cores;

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};
use roceline_engine::wire::icrc::Kernel;

use super::CliError;
use crate::bench::machine::{Distance, Machine, Seen, pin};
use crate::config::allowed_cpus;

const EXAMPLES: &str = "\
Examples:
  roceline bench datapath                                # all operations and sizes, cycles by NIC and stage
  roceline bench datapath --op write --bytes 64 --qps 1,64,1000,10000
  roceline bench datapath --cores 2 --port vhost --op write --bytes 1048576
  roceline bench latency --json > latency.json

Run it on a machine that does nothing else. docs/performance.md says what the columns mean; `benches/run` runs these and the
benchmarks of whole programs.";

/// Measure the datapath on this machine: rates of a core, cycles by stage
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Datapath(datapath::Args),
    Latency(latency::Args),
    Scale(scale::Args),
    Top(top::Args),
    Machine(machine::Args),
    Goals(goals::Args),
    Plot(plot::Args),
    #[command(hide = true)]
    Far(two_cores::FarArgs),
}

impl What {
    fn output(&self) -> Option<&Output> {
        match self {
            What::Datapath(args) => Some(&args.output),
            What::Latency(args) => Some(&args.output),
            What::Scale(args) => Some(&args.output),
            What::Top(args) => Some(&args.output),
            What::Machine(args) => Some(&args.output),
            What::Goals(args) => Some(&args.output),
            What::Plot(_) | What::Far(_) => None,
        }
    }
}

/// Where figures go.
#[derive(Debug, Parser)]
struct Output {
    /// JSON instead of tables
    #[arg(long)]
    json: bool,

    /// Write JSON to this file, too
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Output {
    /// Prints `text`, unless JSON is wanted.
    fn say(&self, text: impl std::fmt::Display) -> io::Result<()> {
        match self.json {
            true => Ok(()),
            false => writeln!(io::stdout().lock(), "{text}"),
        }
    }

    /// Finds out before anything is measured whether the file can be written. One that is there stays as it is until then.
    fn check(&self) -> Result<(), CliError> {
        let Some(path) = &self.output else {
            return Ok(());
        };
        let new = !path.exists();
        let opened = OpenOptions::new().append(true).create(true).open(path);
        opened.map_err(|source| unwritable(path, &source))?;
        if new {
            // Whoever removed it meanwhile was as quick.
            let _ = fs::remove_file(path);
        }
        Ok(())
    }

    /// Ends a benchmark with its figures.
    fn finish(&self, figures: &serde_json::Value) -> Result<(), CliError> {
        if self.json {
            writeln!(io::stdout().lock(), "{figures:#}")?;
        }
        if let Some(path) = &self.output {
            let written = fs::write(path, format!("{figures:#}\n"));
            written.map_err(|source| CliError::File {
                path: path.clone(),
                source,
            })?;
        }
        Ok(())
    }
}

/// A file that figures, or a configuration, cannot be written to.
pub(super) fn unwritable(path: &Path, source: &io::Error) -> CliError {
    let problem = format!(
        "cannot be written: {source}; name a file in a directory that is there and may be written to"
    );
    CliError::File {
        path: path.to_owned(),
        source: io::Error::new(source.kind(), problem),
    }
}

/// A word about where two CPUs were before and after.
pub(super) fn moved(before: &Seen, after: &Seen) -> Option<String> {
    match (&before.0, &after.0) {
        (Ok(_), Ok(now)) => before.moved(after).then(|| {
            format!("The CPUs are {now} now: figures of two cores from this run are of no use.")
        }),
        (Ok(_), Err(unknown)) => Some(format!(
            "Whether the CPUs are near or far now is unknown ({unknown}): they may have moved meanwhile."
        )),
        // The beginning has said so.
        (Err(_), _) => None,
    }
}

/// A word about cases of which it is not known where their CPUs were.
fn unknown<'a>(seen: impl IntoIterator<Item = &'a Seen>) -> Option<String> {
    let reason = seen.into_iter().find_map(|seen| seen.0.as_ref().err())?;
    Some(format!("CPUs near or far: unknown where {reason}"))
}

/// The machine after a run, when it was like `before` at its beginning.
pub(super) fn look_again(before: &Machine) -> Seen {
    match &before.distance.0 {
        Ok(distance) => Distance::between(distance.a, distance.b),
        Err(unknown) => Seen(Err(*unknown)),
    }
}

pub(super) fn run(args: Args) -> Result<(), CliError> {
    if !matches!(args.what, What::Goals(_) | What::Plot(_)) {
        // As a daemon does: what it could not compute ICRCs by is not measured with others instead.
        Kernel::choose()?.kernel.make_current();
    }
    if let Some(output) = args.what.output() {
        output.check()?;
    }
    match args.what {
        What::Datapath(args) => datapath::run(args),
        What::Latency(args) => latency::run(args),
        What::Scale(args) => scale::run(args),
        What::Top(args) => top::run(args),
        What::Machine(args) => machine::run(&args),
        What::Goals(args) => goals::run(&args),
        What::Plot(args) => plot::run(&args),
        What::Far(args) => two_cores::far(&args),
    }
}

/// Pins this thread to the last CPU that it may use: the first has the machine's interrupts, and whoever moves starts with cold caches.
fn stay_put() {
    if let Some(&last) = allowed_cpus().last() {
        // Where it may not be pinned the figures vary more, and say so.
        pin(last);
    }
}

fn failed(error: io::Error) -> CliError {
    CliError::Bench(error)
}
