//! Results that `benches/run` has written: their cases, samples and rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use serde_json::Value;

use super::stats::Spread;

/// Names of results, without `.json`.
pub const NAMES: [&str; 10] = [
    "icrc",
    "datapath",
    "datapath-2-cores",
    "datapath-vhost",
    "datapath-memif",
    "latency",
    "scale",
    "apps",
    "start",
    "memory",
];

/// Results of all benchmarks, as far as they are there.
#[derive(Debug, Default)]
pub struct Results {
    pub(super) files: Vec<(&'static str, Value)>,
}

impl Results {
    /// Reads those that are in a directory.
    ///
    /// # Errors
    /// When one is there that cannot be read, or none at all.
    pub fn read(directory: &Path) -> io::Result<Results> {
        let named = |problem: String| {
            io::Error::other(format!(
                "{}: {problem}; benches/run writes results to benches/results",
                directory.display()
            ))
        };
        let mut files = fs::read_dir(directory).map_err(|error| named(error.to_string()))?;
        // Goals are made of results.
        let is_result = |file: io::Result<fs::DirEntry>| {
            file.is_ok_and(|file| {
                let path = file.path();
                path.extension() == Some("json".as_ref()) && !path.ends_with("goals.json")
            })
        };
        if !files.any(is_result) {
            return Err(named("there are no results".into()));
        }
        let mut results = Results::default();
        for name in NAMES {
            let path = directory.join(format!("{name}.json"));
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let value = serde_json::from_str(&text)
                .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
            results.files.push((name, value));
        }
        Ok(results)
    }

    /// One of them.
    pub fn get(&self, name: &str) -> Option<&Value> {
        let found = self.files.iter().find(|(has, _)| *has == name)?;
        Some(&found.1)
    }

    /// A value of the case with this operation and size, with one QP.
    pub(super) fn case(&self, name: &str, op: &str, bytes: u64, pointer: &str) -> Option<f64> {
        self.of_case(name, op, bytes, pointer)?.as_f64()
    }

    /// What such a value spreads.
    pub(super) fn case_spread(
        &self,
        name: &str,
        op: &str,
        bytes: u64,
        pointer: &str,
    ) -> Option<f64> {
        let spread = self.of_case(name, op, bytes, pointer)?;
        let of = |what: &str| spread[what].as_f64();
        Some((of("high")? - of("low")?) / of("median").filter(|median| *median > 0.0)?)
    }

    fn of_case(&self, name: &str, op: &str, bytes: u64, pointer: &str) -> Option<&Value> {
        let is = |case: &&Value| {
            case["op"] == op && case["bytes"] == bytes && case["qps"].as_u64().unwrap_or(1) == 1
        };
        let cases = self.get(name)?["cases"].as_array()?;
        cases.iter().find(is)?.pointer(pointer)
    }

    /// The median of samples of programs, without rounds in which the CPUs moved unless they did in all.
    pub fn samples(&self, name: &str, of: &str) -> Option<f64> {
        Some(self.samples_of(name, of)?.median)
    }

    /// What these spread.
    pub(super) fn samples_spread(&self, name: &str, of: &str) -> Option<f64> {
        let spread = self.samples_of(name, of)?;
        (spread.median > 0.0).then(|| spread.middle_half() / spread.median)
    }

    fn samples_of(&self, name: &str, of: &str) -> Option<Spread> {
        let values: Vec<f64> = self.rounds(name, of).iter().map(|round| round.1).collect();
        (!values.is_empty()).then(|| Spread::of(values))
    }

    /// Rounds that count, with what was measured in each.
    fn rounds(&self, name: &str, of: &str) -> Vec<(u64, f64)> {
        let Some(file) = self.get(name) else {
            return Vec::new();
        };
        let moved = file["rounds_moved"].as_array();
        let all = file["samples"].as_array().into_iter().flatten();
        let named: Vec<&Value> = all.filter(|sample| sample["name"] == of).collect();
        let counts = |sample: &&&Value| moved.is_none_or(|moved| !moved.contains(&sample["round"]));
        let mut still: Vec<&Value> = named.iter().filter(counts).copied().collect();
        if still.is_empty() {
            still = named;
        }
        let value = |sample: &&Value| Some((sample["round"].as_u64()?, sample["value"].as_f64()?));
        still.iter().filter_map(value).collect()
    }

    /// Names of all samples, each once.
    pub(super) fn sample_names(&self, name: &str) -> Vec<String> {
        let samples = self.get(name).and_then(|file| file["samples"].as_array());
        let names = samples
            .into_iter()
            .flatten()
            .filter_map(|s| s["name"].as_str());
        let names: BTreeSet<&str> = names.collect();
        names.into_iter().map(str::to_owned).collect()
    }

    /// The ratio of two samples in each round that counts; of several, the largest of the round.
    pub(super) fn ratio_of_samples(
        &self,
        name: &str,
        over: &[&str],
        under: &[&str],
    ) -> Option<Spread> {
        let of = |names: &[&str]| {
            let mut largest = BTreeMap::<u64, f64>::new();
            for (round, value) in names.iter().flat_map(|of| self.rounds(name, of)) {
                let has = largest.entry(round).or_insert(value);
                *has = has.max(value);
            }
            largest
        };
        let under = of(under);
        let ratio = |(round, value): (u64, f64)| {
            let by = under.get(&round).filter(|by| **by > 0.0)?;
            Some(value / by)
        };
        let ratios: Vec<f64> = of(over).into_iter().filter_map(ratio).collect();
        (!ratios.is_empty()).then(|| Spread::of(ratios))
    }
}
