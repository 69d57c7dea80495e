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

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use super::CliError;
use crate::bench::machine::{Distance, Machine, pin};
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

/// A word about where two CPUs were before and after.
pub(super) fn moved(before: Option<&Distance>, after: Option<&Distance>) -> Option<String> {
    let (before, after) = (before?, after?);
    (before.near != after.near).then(|| {
        format!("The CPUs are {after} now: figures of two cores from this run are of no use.")
    })
}

/// The machine after a run, when it was like `before` at its beginning.
pub(super) fn look_again(before: &Machine) -> Option<Distance> {
    let distance = before.distance.as_ref()?;
    Distance::between(distance.a, distance.b)
}

pub(super) fn run(args: Args) -> Result<(), CliError> {
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
