//! Many runs of a document: each variant, each point of the sweeps, each seed, spread over threads. Who runs what when changes
//! nothing: results come in the order of the jobs.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use roceline_engine::Nanos;

use super::drive::Record;
use super::outcome::Outcome;
use super::results::{Results, results};
use super::traffic::Plan;
use super::{Document, Scenario, ScenarioError, Setting, drive};

/// A key with the values that it takes one after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// Path of the key.
    pub key: String,
    /// Its values.
    pub values: Vec<String>,
}

impl Sweep {
    /// Parses `KEY=A,B,C`.
    pub fn parse(text: &str) -> Result<Sweep, ScenarioError> {
        let all = Setting::parse("--sweep", text)?;
        let values: Vec<String> = all.value.split(',').map(|v| v.trim().to_string()).collect();
        match values.iter().any(String::is_empty) {
            true => Err(ScenarioError::Setting {
                setting: format!("--sweep {text}"),
                problem: "a value is empty: write KEY=A,B,C".into(),
            }),
            false => Ok(Sweep {
                key: all.key,
                values,
            }),
        }
    }
}

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// `--set`.
    pub settings: Vec<Setting>,
    /// `--sweep`: all combinations; the last one changes fastest.
    pub sweeps: Vec<Sweep>,
    /// Only these variants; empty: all.
    pub variants: Vec<String>,
    /// The first seed, instead of the scenario's.
    pub seed: Option<u64>,
    /// How many seeds, one after another.
    pub seeds: u64,
    /// Links to record, where it is one run.
    pub records: Vec<Record>,
}

/// One run to make.
#[derive(Clone, Debug)]
pub struct Job {
    /// The variant; empty if there are none.
    pub variant: String,
    /// What the sweeps set, in their order.
    pub point: Vec<(String, String)>,
    /// The scenario with all that.
    pub scenario: Scenario,
    /// Links to record.
    pub records: Vec<Record>,
}

impl Job {
    /// What distinguishes it from others: variant, swept values, seed if there are several.
    pub fn label(&self, several_seeds: bool) -> String {
        let mut parts: Vec<String> = Vec::new();
        if !self.variant.is_empty() {
            parts.push(self.variant.clone());
        }
        for (key, value) in &self.point {
            let short = key.rsplit('.').next().unwrap_or(key);
            parts.push(format!("{short}={value}"));
        }
        if several_seeds || parts.is_empty() {
            parts.push(format!("seed={}", self.scenario.seed));
        }
        parts.join(" ")
    }
}

/// A run that was made.
#[derive(Clone, Debug)]
pub struct Run {
    /// What was run.
    pub job: Job,
    /// What programs were to send.
    pub plan: Plan,
    /// What it gave.
    pub outcome: Outcome,
    /// Its figures.
    pub results: Results,
}

/// The jobs of a request: seeds within variants within points.
pub fn jobs(document: &Document, request: &Request) -> Result<Vec<Job>, ScenarioError> {
    for name in &request.variants {
        if !document
            .variants
            .iter()
            .any(|variant| variant.name == *name)
        {
            let names: Vec<&str> = document.variants.iter().map(|v| v.name.as_str()).collect();
            return Err(ScenarioError::Setting {
                setting: format!("--variant {name}"),
                problem: match document.variants.iter().all(|v| v.name.is_empty()) {
                    true => "the scenario has no variants: leave it out".into(),
                    false => format!("the scenario has [{}]", names.join(", ")),
                },
            });
        }
    }
    Record::distinct(&request.records)?;
    let points = request
        .sweeps
        .iter()
        .fold(vec![Vec::new()], |points, sweep| {
            let longer = |point: &Vec<(String, String)>| {
                let point = point.clone();
                sweep.values.iter().map(move |value| {
                    let mut point = point.clone();
                    point.push((sweep.key.clone(), value.clone()));
                    point
                })
            };
            points.iter().flat_map(longer).collect()
        });
    let mut jobs = Vec::new();
    for point in points {
        for variant in &document.variants {
            if !request.variants.is_empty() && !request.variants.contains(&variant.name) {
                continue;
            }
            let mut settings = variant.settings.clone();
            settings.extend(request.settings.iter().cloned());
            settings.extend(point.iter().map(|(key, value)| Setting {
                key: key.clone(),
                value: value.clone(),
                by: "--sweep".into(),
            }));
            let scenario = document.scenario(&settings)?;
            let first = request.seed.unwrap_or(scenario.seed);
            for number in 0..request.seeds.max(1) {
                let mut scenario = scenario.clone();
                scenario.seed = first.wrapping_add(number);
                jobs.push(Job {
                    variant: variant.name.clone(),
                    point: point.clone(),
                    scenario,
                    records: request.records.clone(),
                });
            }
        }
    }
    if jobs.len() > 1 && !request.records.is_empty() {
        return Err(ScenarioError::Setting {
            setting: "--pcap".into(),
            problem: format!(
                "there would be {} runs, which would write the same files: choose one --variant, without --sweep and --seeds",
                jobs.len()
            ),
        });
    }
    Ok(jobs)
}

/// Makes all runs on so many threads. `progress` is told simulated time as it passes, by any thread.
pub fn run_all(
    jobs: Vec<Job>,
    threads: usize,
    progress: &(dyn Fn(Nanos) + Sync),
) -> Result<Vec<Run>, ScenarioError> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let done: Vec<Mutex<Option<Result<Run, ScenarioError>>>> =
        jobs.iter().map(|_| Mutex::new(None)).collect();
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(at) else { break };
            let run = run(job, progress);
            failed.fetch_or(run.is_err(), Ordering::Relaxed);
            *done[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(run);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, jobs.len().max(1)) {
            scope.spawn(work);
        }
        work();
    });
    // After a failure, jobs that nobody began are missing; the first failure is told.
    done.into_iter()
        .filter_map(|run| run.into_inner().unwrap_or_else(PoisonError::into_inner))
        .collect()
}

fn run(job: &Job, progress: &dyn Fn(Nanos)) -> Result<Run, ScenarioError> {
    let scenario = &job.scenario;
    let plan = scenario
        .traffic
        .plan(&scenario.topology, scenario.duration, scenario.seed)
        .map_err(|problem| ScenarioError::Run {
            scenario: scenario.name.clone(),
            problem,
        })?;
    let outcome = drive::drive(scenario, &plan, &job.records, progress)?;
    let results = results(scenario, &plan, &outcome);
    Ok(Run {
        job: job.clone(),
        plan,
        outcome,
        results,
    })
}
