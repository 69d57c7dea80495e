//! Runs as a table for people: few runs side by side, many below one another, then the bands.

use std::io::{self, Write};

use crate::cli::table::Table;
use crate::impair::units::written;
use crate::scenario::expect::unit_of;
use crate::scenario::report::several_seeds;
use crate::scenario::runs::Run;
use crate::scenario::verdict::Verdict;

/// Runs that stand side by side.
const SIDE_BY_SIDE: usize = 5;
/// Groups that have lines of their own.
const MOST_GROUPS: usize = 12;
/// What is shown unless something is asked for, where it is not nothing.
const SELECTION: [&str; 26] = [
    "goodput.total",
    "goodput.min",
    "goodput.max",
    "fairness.jain",
    "fairness.max_min",
    "utilization.max",
    "fct.p50",
    "fct.p99",
    "slowdown.p50",
    "slowdown.p95",
    "slowdown.p99",
    "finished.total",
    "queue.p50",
    "queue.p99",
    "queue.max",
    "marks",
    "cnps.sent",
    "cnps.handled",
    "pauses",
    "paused.nics",
    "paused.switches",
    "drops",
    "naks",
    "timeouts",
    "failed",
    "packets",
];

/// Writes it all.
pub(super) fn write(
    out: &mut impl Write,
    runs: &[Run],
    verdicts: &[Verdict],
    asked: &[String],
) -> io::Result<()> {
    let Some(first) = runs.first() else {
        return writeln!(out, "nothing was run");
    };
    let scenario = &first.job.scenario;
    match scenario.title.as_str() {
        "" => writeln!(out, "{}", scenario.name)?,
        title => writeln!(out, "{}: {title}", scenario.name)?,
    }
    let seeds = match several_seeds(runs) {
        true => String::new(),
        false => format!(", seed {}", scenario.seed),
    };
    writeln!(
        out,
        "{}; {}, measured from {}{seeds}\n",
        scenario.topology.words(),
        written(scenario.duration),
        written(scenario.warmup),
    )?;
    let names = chosen(runs, asked);
    match runs.len() <= SIDE_BY_SIDE {
        true => side_by_side(out, runs, &names)?,
        false => {
            // Below one another there is room for few, unless they were asked for.
            let most = if asked.is_empty() { 8 } else { names.len() };
            below(out, runs, &names[..names.len().min(most)])?;
        }
    }
    sizes(out, runs)?;
    bands(out, verdicts)
}

fn chosen(runs: &[Run], asked: &[String]) -> Vec<String> {
    if !asked.is_empty() {
        return asked.to_vec();
    }
    let anywhere = |name: &str| {
        let value = |run: &Run| run.results.metrics.get(name).copied();
        runs.iter().filter_map(value).any(|value| value != 0.0)
    };
    // Shares of transfers that come and go say little.
    let endless = runs
        .iter()
        .flat_map(|run| &run.plan.transfers)
        .any(|t| t.bytes.is_none());
    let shares = [
        "goodput.min",
        "goodput.max",
        "fairness.jain",
        "fairness.max_min",
    ];
    let mut names: Vec<String> = SELECTION
        .into_iter()
        .filter(|name| anywhere(name) && (endless || !shares.contains(name)))
        .map(String::from)
        .collect();
    let groups = runs.first().map_or(&[][..], |run| &run.results.groups);
    if (2..=MOST_GROUPS).contains(&groups.len()) {
        let own = groups.iter().map(|group| format!("goodput.{}", group.name));
        let at = names
            .iter()
            .position(|name| !name.starts_with("goodput"))
            .unwrap_or(0);
        names.splice(at..at, own);
    }
    names
}

fn value(run: &Run, name: &str) -> String {
    let value = run.results.metrics.get(name);
    match (value, unit_of(name)) {
        (Some(&value), Ok(unit)) => unit.written(value),
        _ => "-".into(),
    }
}

fn side_by_side(out: &mut impl Write, runs: &[Run], names: &[String]) -> io::Result<()> {
    let several = several_seeds(runs);
    let mut titles = vec![String::from("metric")];
    titles.extend(
        runs.iter()
            .map(|run| format!(">{}", run.job.label(several))),
    );
    let mut table = Table::new(&titles);
    for name in names {
        let mut row = vec![name.clone()];
        row.extend(runs.iter().map(|run| value(run, name)));
        table.row(row);
    }
    table.write(out, "nothing was measured")
}

fn below(out: &mut impl Write, runs: &[Run], names: &[String]) -> io::Result<()> {
    let several = several_seeds(runs);
    let first = &runs[0].job;
    let mut titles = Vec::new();
    if !first.variant.is_empty() {
        titles.push(String::from("variant"));
    }
    titles.extend(first.point.iter().map(|(key, _)| format!(">{key}")));
    if several {
        titles.push(">seed".into());
    }
    titles.extend(names.iter().map(|name| format!(">{name}")));
    let mut table = Table::new(&titles);
    for run in runs {
        let mut row = Vec::new();
        if !first.variant.is_empty() {
            row.push(run.job.variant.clone());
        }
        row.extend(run.job.point.iter().map(|(_, value)| value.clone()));
        if several {
            row.push(run.job.scenario.seed.to_string());
        }
        row.extend(names.iter().map(|name| value(run, name)));
        table.row(row);
    }
    table.write(out, "nothing was run")
}

/// Slowdowns by size, where sizes differ.
fn sizes(out: &mut impl Write, runs: &[Run]) -> io::Result<()> {
    if runs.len() > SIDE_BY_SIDE {
        return Ok(());
    }
    let several = several_seeds(runs);
    for run in runs.iter().filter(|run| run.results.sizes.len() > 1) {
        writeln!(out, "\nslowdown by size, {}", run.job.label(several))?;
        let mut table = Table::new(&[">up to", ">flows", ">p50", ">p95", ">p99"]);
        for bin in &run.results.sizes {
            let size = crate::scenario::expect::Unit::Bytes.written(bin.up_to as f64);
            let mut row = vec![size, bin.count.to_string()];
            row.extend(bin.percentiles.iter().map(|p| format!("{p:.2}")));
            table.row(row);
        }
        table.write(out, "")?;
    }
    Ok(())
}

fn bands(out: &mut impl Write, verdicts: &[Verdict]) -> io::Result<()> {
    if verdicts.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    let mut table = Table::new(&["", "run", "expected", "band", ">found"]);
    for verdict in verdicts {
        let found = match verdict.value {
            Some(value) => verdict.expect.unit.written(value),
            None => "not measured".into(),
        };
        let held = if verdict.holds { "held" } else { "MISSED" };
        table.row(vec![
            held.into(),
            verdict.run.clone(),
            verdict.expect.what(),
            verdict.expect.band(),
            found,
        ]);
    }
    table.write(out, "")?;
    let missed = verdicts
        .iter()
        .filter(|v| !v.holds && !v.expect.why.is_empty());
    for verdict in missed {
        writeln!(out, "  {}: {}", verdict.expect.what(), verdict.expect.why)?;
    }
    Ok(())
}
