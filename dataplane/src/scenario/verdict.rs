//! Bands against figures. In flow the runs of a request; out flows a verdict for each band of each point and seed.

use super::expect::{Expect, Metric};
use super::runs::Run;

/// Whether a band holds.
#[derive(Clone, Debug)]
pub struct Verdict {
    /// The run that it is about, as its label says.
    pub run: String,
    /// The band.
    pub expect: Expect,
    /// What was measured; `None`: nothing.
    pub value: Option<f64>,
    /// Whether it is in the band.
    pub holds: bool,
}

/// All verdicts. Bands that compare variants are judged where all of these were run, once for each point and seed.
pub fn verdicts(runs: &[Run], several_seeds: bool) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for run in runs {
        let scenario = &run.job.scenario;
        for expect in &scenario.expects {
            let named = [Some(&expect.metric), expect.per.as_ref()];
            let named: Vec<&str> = named
                .into_iter()
                .flatten()
                .filter_map(|metric| metric.variant.as_deref())
                .collect();
            // A band is about its variant, else the first that it names, else all.
            let own = expect.variant.as_deref().or(named.first().copied());
            if own.is_some_and(|own| own != run.job.variant) {
                continue;
            }
            let peer = |variant: &str| {
                runs.iter().find(|other| {
                    other.job.variant == variant
                        && other.job.point == run.job.point
                        && other.job.scenario.seed == scenario.seed
                })
            };
            if named.iter().any(|name| peer(name).is_none()) {
                continue;
            }
            let get = |metric: &Metric| {
                let run = metric.variant.as_deref().map_or(Some(run), peer)?;
                run.results.metrics.get(&metric.name).copied()
            };
            let value = match &expect.per {
                None => get(&expect.metric),
                Some(per) => get(&expect.metric)
                    .zip(get(per))
                    // More than nothing over nothing is as much as a number can say, nothing over nothing is no figure.
                    .map(|(over, under)| over / under)
                    .filter(|quotient| !quotient.is_nan())
                    .map(|quotient| quotient.min(1e12)),
            };
            verdicts.push(Verdict {
                run: run.job.label(several_seeds),
                expect: expect.clone(),
                value,
                holds: value.is_some_and(|value| expect.holds(value)),
            });
        }
    }
    verdicts
}
