//! CSV files in the long form that spreadsheets, R and pandas take: a row is one value, and its first columns say of which run.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use crate::scenario::ScenarioError;
use crate::scenario::expect::unit_of;
use crate::scenario::runs::Run;

/// Names of the files.
pub const FILES: [&str; 5] = [
    "metrics.csv",
    "flows.csv",
    "series.csv",
    "queues.csv",
    "slowdown.csv",
];

/// Writes all files into a directory, which is made if it is not there.
pub fn write(directory: &Path, runs: &[Run]) -> Result<(), ScenarioError> {
    fs::create_dir_all(directory).map_err(|source| ScenarioError::File {
        file: directory.display().to_string(),
        source,
    })?;
    let keys: Vec<&str> = runs
        .first()
        .map(|run| run.job.point.iter().map(|(key, _)| key.as_str()).collect())
        .unwrap_or_default();
    let heads = [
        "metric,value,unit",
        "flow,group,from,to,priority,bytes,start_ns,end_ns,acknowledged,slowdown,failed",
        "time_ns,quantity,name,value",
        "queue,p50,p99,max,marks,drops",
        "up_to_bytes,count,p50,p95,p99",
    ];
    let bodies = [metrics, flows, series, queues, slowdown];
    for ((name, head), body) in FILES.into_iter().zip(heads).zip(bodies) {
        let path = directory.join(name);
        let wrong = |source| ScenarioError::File {
            file: path.display().to_string(),
            source,
        };
        let mut file = BufWriter::new(File::create(&path).map_err(wrong)?);
        let mut text = String::from("variant,");
        for key in &keys {
            text.push_str(&quoted(key));
            text.push(',');
        }
        text.push_str("seed,");
        text.push_str(head);
        text.push('\n');
        for run in runs {
            let mut prefix = quoted(&run.job.variant) + ",";
            for (_, value) in &run.job.point {
                prefix.push_str(&quoted(value));
                prefix.push(',');
            }
            prefix.push_str(&run.job.scenario.seed.to_string());
            body(run, &mut |row: String| {
                text.push_str(&prefix);
                text.push(',');
                text.push_str(&row);
                text.push('\n');
            });
            file.write_all(text.as_bytes()).map_err(wrong)?;
            text.clear();
        }
        file.write_all(text.as_bytes()).map_err(wrong)?;
        file.flush().map_err(wrong)?;
    }
    Ok(())
}

type Rows<'a> = &'a mut dyn FnMut(String);

fn metrics(run: &Run, row: Rows<'_>) {
    for (name, value) in &run.results.metrics {
        let unit = unit_of(name).map_or("", |unit| unit.name());
        row(format!("{},{value},{unit}", quoted(name)));
    }
}

fn flows(run: &Run, row: Rows<'_>) {
    let done = run.outcome.transfers.iter().zip(&run.results.slowdowns);
    for (number, (transfer, (done, slowdown))) in run.plan.transfers.iter().zip(done).enumerate() {
        let optional = |value: Option<u64>| value.map_or_else(String::new, |v| v.to_string());
        row(format!(
            "{number},{},{},{},{},{},{},{},{},{},{}",
            quoted(&run.plan.groups[transfer.group]),
            transfer.from,
            transfer.to,
            transfer.manner.priority,
            optional(transfer.bytes),
            optional(done.start.map(|at| at.0)),
            optional(done.end.map(|at| at.0)),
            done.bytes,
            slowdown.map_or_else(String::new, |slowdown| slowdown.to_string()),
            quoted(done.failed.as_deref().unwrap_or_default()),
        ));
    }
}

fn series(run: &Run, row: Rows<'_>) {
    for series in &run.outcome.series {
        let name = quoted(&series.name);
        for (time, value) in run.outcome.times.iter().zip(&series.values) {
            row(format!(
                "{},{},{name},{value}",
                time.0,
                series.quantity.name()
            ));
        }
    }
}

fn queues(run: &Run, row: Rows<'_>) {
    for queue in &run.outcome.queues {
        row(format!(
            "{},{},{},{},{},{}",
            quoted(&queue.name),
            queue.p50,
            queue.p99,
            queue.max,
            queue.marks,
            queue.drops
        ));
    }
}

fn slowdown(run: &Run, row: Rows<'_>) {
    for bin in &run.results.sizes {
        let [p50, p95, p99] = bin.percentiles;
        row(format!("{},{},{p50},{p95},{p99}", bin.up_to, bin.count));
    }
}

/// A field as RFC 4180 wants it.
fn quoted(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        assert_eq!(quoted("a b"), "a b");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
