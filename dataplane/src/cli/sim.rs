//! `roceline sim`: scenarios in virtual time. In flow a scenario's name or file and what is to be different; out flow figures as a
//! table, JSON, CSV files and plots, and an exit status that says whether all bands held.

mod table;

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::num::NonZero;
use std::path::PathBuf;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use roceline_engine::Nanos;

use super::table::Table;
use super::{CliError, number_in};
use crate::scenario::drive::Record;
use crate::scenario::report::{csv, json, plots, several_seeds};
use crate::scenario::runs::{Job, Request, Sweep, jobs, run_all};
use crate::scenario::verdict::verdicts;
use crate::scenario::{BUILT_IN, Document, ScenarioError, Setting, expect};

const EXAMPLES: &str = "\
Examples:
  roceline sim --list                                # scenarios that are built in
  roceline sim --show two-flows > mine.toml          # one of them as a file to change
  roceline sim mine.toml                             # run it; is each band held?
  roceline sim mine.toml --plots plots/ --csv data/  # curves as SVG, every value as CSV

  roceline sim mine.toml --set nic.window=64 --set 'topology.delay=5us'
  roceline sim mine.toml --sweep topology.rate=25Gb/s,100Gb/s,400Gb/s --sweep nic.window=64,256
  roceline sim mine.toml --seeds 10                  # the same with ten seeds
  roceline sim mine.toml --pcap node3=n3.pcapng      # what passes node 3's link, for Wireshark
  roceline sim mine.toml --json | jq '.runs[].metrics[\"goodput.total\"]'

The engine of the NIC runs under a clock of events: no packet is sent, no daemon is needed, and a link may have
any rate. The same scenario and seed give the same bytes of every output, on any machine and number of threads.

A key of --set and --sweep is the path of a key in the file: nic.window, flow.0.bytes (the first [[flow]]), or
flow.NAME.bytes. Bands ([[expect]]) belong to the file's own values: with --set or --sweep they are not checked unless
--check asks for it. Exit status: 0 all bands held (or none was checked), 1 not so, 2 wrong usage.

docs/simulator.md has all keys and generators; `--metrics` lists what can be measured.";

/// Simulate a network of NICs: congestion, flow control, loss, in virtual time
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A scenario: a TOML file, or the name of a built-in one
    #[arg(required_unless_present_any = ["list", "metrics"])]
    scenario: Option<String>,

    /// List the built-in scenarios
    #[arg(long, conflicts_with_all = ["scenario", "metrics"])]
    list: bool,

    /// Print the scenario's file instead of running it
    #[arg(long)]
    show: bool,

    /// List what can be measured
    #[arg(long, conflicts_with = "scenario")]
    metrics: bool,

    /// Another value for a key, again for another
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Run for each of these values of a key; again for another key: all combinations
    #[arg(long, value_name = "KEY=A,B,C")]
    sweep: Vec<String>,

    /// Only this variant, again for another
    #[arg(long, value_name = "NAME")]
    variant: Vec<String>,

    /// Seed of all chance, instead of the scenario's
    #[arg(long, value_name = "N", value_parser = number_in(0..=u64::MAX))]
    seed: Option<u64>,

    /// Run with so many seeds, one after another
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number_in(1..=100_000))]
    seeds: u64,

    /// Threads; each makes one run at a time [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = number_in(1..=4096))]
    threads: Option<u64>,

    /// Show these metrics, again for others [default: a selection]
    #[arg(long, value_name = "NAME")]
    metric: Vec<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Write every value into CSV files here
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,

    /// Draw the curves as SVG files here
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,

    /// Record a link into a pcapng file, again for another; a link is that of a node, node3, or of a port, switch0.port2
    #[arg(long, value_name = "LINK=FILE")]
    pcap: Vec<String>,

    /// Bytes of each packet to record: headers are real, payload is zero
    #[arg(long, value_name = "BYTES", default_value_t = 128, value_parser = clap::value_parser!(u32).range(64..=65_535))]
    snaplen: u32,

    /// Check the bands even where --set or --sweep change the scenario
    #[arg(long, conflicts_with = "no_check")]
    check: bool,

    /// Do not check the bands
    #[arg(long)]
    no_check: bool,
}

/// Why a simulation failed.
#[allow(missing_docs)]
#[derive(Debug, thiserror::Error)]
pub(super) enum SimError {
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error("{missed} of {all} bands were missed: see them above (--no-check ignores them)")]
    Missed { missed: usize, all: usize },
    #[error("--metric {name}: {problem}")]
    NoMetric { name: String, problem: String },
}

impl SimError {
    /// As the help says: 2 for wrong usage.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            SimError::NoMetric { .. } => 2,
            _ => 1,
        }
    }
}

pub(super) fn run(args: Args) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    if args.list {
        return Ok(list(&mut out)?);
    }
    if args.metrics {
        return Ok(metrics(&mut out)?);
    }
    let name = args.scenario.as_deref().unwrap_or_default();
    if args.show {
        let text = Document::text(name).map_err(SimError::from)?;
        return Ok(out.write_all(text.as_bytes())?);
    }
    let document = Document::load(name).map_err(SimError::from)?;
    let request = request(&args)?;
    let jobs = jobs(&document, &request).map_err(SimError::from)?;
    let warnings: BTreeSet<String> = jobs
        .iter()
        .flat_map(|job| job.scenario.warnings())
        .collect();
    for warning in warnings {
        eprintln!("warning: {warning}");
    }
    let mut groups: Vec<String> = Vec::new();
    for name in jobs.iter().flat_map(|job| job.scenario.traffic.names()) {
        if !groups.iter().any(|group| group == name) {
            groups.push(name.into());
        }
    }
    for name in &args.metric {
        expect::known(name, &groups).map_err(|problem| SimError::NoMetric {
            name: name.clone(),
            problem,
        })?;
    }
    let threads = args.threads.map_or_else(cpus, |threads| threads as usize);
    let bar = bar(&jobs);
    let advance = |time: Nanos| bar.inc(time.0);
    let runs = run_all(jobs, threads, &advance);
    bar.finish_and_clear();
    let runs = runs.map_err(SimError::from)?;
    let as_written = request.settings.is_empty() && request.sweeps.is_empty();
    let verdicts = match args.check || as_written && !args.no_check {
        true => verdicts(&runs, several_seeds(&runs)),
        false => Vec::new(),
    };
    if let Some(directory) = &args.csv {
        csv::write(directory, &runs).map_err(SimError::from)?;
    }
    if let Some(directory) = &args.plots {
        for file in plots::write(directory, &runs).map_err(SimError::from)? {
            eprintln!("drawn: {}", file.display());
        }
    }
    if args.json {
        writeln!(out, "{:#}", json::json(&document, &runs, &verdicts))?;
    } else {
        table::write(&mut out, &runs, &verdicts, &args.metric)?;
    }
    let missed = verdicts.iter().filter(|verdict| !verdict.holds).count();
    match missed {
        0 => Ok(()),
        missed => Err(SimError::Missed {
            missed,
            all: verdicts.len(),
        }
        .into()),
    }
}

fn request(args: &Args) -> Result<Request, CliError> {
    let settings = args.set.iter().map(|text| Setting::parse("--set", text));
    let sweeps = args.sweep.iter().map(|text| Sweep::parse(text));
    let records = args
        .pcap
        .iter()
        .map(|text| Record::parse(text, args.snaplen));
    Ok(Request {
        settings: settings.collect::<Result<_, _>>().map_err(SimError::from)?,
        sweeps: sweeps.collect::<Result<_, _>>().map_err(SimError::from)?,
        variants: args.variant.clone(),
        seed: args.seed,
        seeds: args.seeds,
        records: records.collect::<Result<_, _>>().map_err(SimError::from)?,
    })
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

/// A bar on a terminal, of simulated time; elsewhere nothing.
fn bar(jobs: &[Job]) -> ProgressBar {
    let all: u64 = jobs.iter().map(|job| job.scenario.duration.0).sum();
    let style =
        ProgressStyle::with_template("{bar:40} {percent:>3} % of simulated time, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
    // Drawn on stderr, and only where that is a terminal.
    ProgressBar::new(all).with_style(style)
}

fn list(out: &mut impl Write) -> io::Result<()> {
    let mut table = Table::new(&["scenario", "what it shows", ">simulated"]);
    for built_in in BUILT_IN {
        let document = Document::load(built_in.name);
        let scenario = document.and_then(|document| document.scenario(&[]));
        let (title, time) = match scenario {
            Ok(scenario) => (
                scenario.title,
                crate::impair::units::written(scenario.duration),
            ),
            Err(error) => (error.to_string(), String::new()),
        };
        table.row(vec![built_in.name.into(), title, time]);
    }
    table.write(out, "no scenario is built in")
}

fn metrics(out: &mut impl Write) -> io::Result<()> {
    let mut table = Table::new(&["metric", "unit", "what it is"]);
    for (name, unit, meaning) in expect::FAMILIES {
        table.row(vec![name.into(), unit.name().into(), meaning.into()]);
    }
    table.write(out, "")
}
