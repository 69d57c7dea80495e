//! The whole of a request as one JSON object. Transfers and series are in the CSV files.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::scenario::Document;
use crate::scenario::expect::unit_of;
use crate::scenario::runs::Run;
use crate::scenario::verdict::Verdict;

/// Runs and verdicts.
pub fn json(document: &Document, runs: &[Run], verdicts: &[Verdict]) -> Value {
    let scenario = runs.first().map(|run| &run.job.scenario);
    json!({
        "scenario": document.name,
        "title": scenario.map_or("", |scenario| &scenario.title),
        "runs": runs.iter().map(run_json).collect::<Vec<_>>(),
        "expectations": verdicts.iter().map(verdict_json).collect::<Vec<_>>(),
        "held": verdicts.iter().all(|verdict| verdict.holds),
    })
}

fn run_json(run: &Run) -> Value {
    let scenario = &run.job.scenario;
    let metrics: BTreeMap<&str, Value> = run
        .results
        .metrics
        .iter()
        .map(|(name, &value)| {
            let unit = unit_of(name).map_or("", |unit| unit.name());
            (name.as_str(), json!({ "value": value, "unit": unit }))
        })
        .collect();
    let groups = run.results.groups.iter().map(|group| {
        json!({
            "name": group.name,
            "transfers": group.transfers,
            "finished": group.finished,
        })
    });
    let sizes = run.results.sizes.iter().map(|bin| {
        let [p50, p95, p99] = bin.percentiles;
        json!({ "up_to": bin.up_to, "count": bin.count, "p50": p50, "p95": p95, "p99": p99 })
    });
    let queues = run.outcome.queues.iter().map(|queue| {
        json!({
            "name": queue.name,
            "p50": queue.p50,
            "p99": queue.p99,
            "max": queue.max,
            "marks": queue.marks,
            "drops": queue.drops,
        })
    });
    json!({
        "variant": run.job.variant,
        "settings": run.job.point.iter().cloned().collect::<BTreeMap<_, _>>(),
        "seed": scenario.seed,
        "duration_ns": scenario.duration.0,
        "warmup_ns": scenario.warmup.0,
        "metrics": metrics,
        "groups": groups.collect::<Vec<_>>(),
        "slowdown_by_size": sizes.collect::<Vec<_>>(),
        "queues": queues.collect::<Vec<_>>(),
    })
}

fn verdict_json(verdict: &Verdict) -> Value {
    json!({
        "run": verdict.run,
        "what": verdict.expect.what(),
        "unit": verdict.expect.unit.name(),
        "min": verdict.expect.min,
        "max": verdict.expect.max,
        "value": verdict.value,
        "holds": verdict.holds,
        "why": verdict.expect.why,
    })
}
