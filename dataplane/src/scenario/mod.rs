//! Scenarios for the simulator: a TOML text goes in, figures and judgements come out.
//!
//! ```text
//! file, --set, --sweep ─► Document ─► Scenario ─► Plan ─► drive: Sim ─► Outcome ─► Results ─► Verdicts, reports
//! ```
//!
//! [`Document`] is the text with its variants; [`Scenario`] one checked point of it; [`traffic::Plan`] what programs will
//! send; `drive` the only place that knows the simulator. A run is one thread and depends on nothing but its scenario and seed;
//! [`runs`] spreads many over the cores. `docs/simulator.md` is the reference for people.

mod document;
pub mod drive;
mod error;
pub mod expect;
mod library;
pub mod links;
pub mod nic;
mod nodes;
pub mod outcome;
pub mod report;
pub mod results;
pub mod runs;
pub mod switches;
pub mod topology;
pub mod traffic;
mod units;
pub mod verdict;

use std::path::Path;

use roceline_engine::Nanos;
use roceline_engine::congestion::AlgorithmKind;

pub use document::Setting;
pub use error::{Place, ScenarioError};
pub use library::{BUILT_IN, BuiltIn};

use crate::config::error::nearest;
use crate::congestion::DCTCP_NEEDS;
use document::Section;
use expect::Expect;
use links::Links;
use nic::Nic;
use switches::Switches;
use topology::Topology;
use traffic::Traffic;

/// The text of a scenario, and its variants.
#[derive(Clone, Debug)]
pub struct Document {
    /// What errors call it: a path, or the name of a built-in one.
    pub label: String,
    /// Its name.
    pub name: String,
    /// Variants, in their order; one without a name if the file has none.
    pub variants: Vec<Variant>,
    root: Section,
}

/// One of several runs that a scenario compares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its name; empty for the only one.
    pub name: String,
    /// What is different in it.
    pub settings: Vec<Setting>,
}

/// One checked point of a document.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// One line about it.
    pub title: String,
    /// What it shows.
    pub shows: String,
    /// Where its setup or its bands come from.
    pub source: String,
    /// Simulated time.
    pub duration: Nanos,
    /// When measuring begins: rates, queues and counters of what happens earlier do not count.
    pub warmup: Nanos,
    /// Time between two points of a series.
    pub sample: Nanos,
    /// Of chance.
    pub seed: u64,
    /// The network.
    pub topology: Topology,
    /// The switches.
    pub switches: Switches,
    /// The links that nodes send on.
    pub links: Links,
    /// The NICs.
    pub nic: Nic,
    /// What is sent.
    pub traffic: Traffic,
    /// What must come out.
    pub expects: Vec<Expect>,
}

impl Document {
    /// Loads a file, or the built-in scenario of that name where there is no such file.
    pub fn load(name: &str) -> Result<Document, ScenarioError> {
        let text = Document::text(name)?;
        Document::parse(name, &text)
    }

    /// The text of a file, or of the built-in scenario of that name where there is no such file.
    pub fn text(name: &str) -> Result<String, ScenarioError> {
        let path = Path::new(name);
        let built_in = BUILT_IN.iter().find(|scenario| scenario.name == name);
        if let (Some(built_in), false) = (built_in, path.is_file()) {
            return Ok(built_in.text.into());
        }
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(text),
            Err(error)
                if error.kind() == std::io::ErrorKind::NotFound && !name.contains(['/', '.']) =>
            {
                Err(ScenarioError::NoScenario {
                    name: name.into(),
                    known: BUILT_IN.iter().map(|s| s.name.to_string()).collect(),
                })
            }
            Err(source) => Err(ScenarioError::File {
                file: name.into(),
                source,
            }),
        }
    }

    /// Reads a text; `label` names it in errors.
    pub fn parse(label: &str, text: &str) -> Result<Document, ScenarioError> {
        let root = Section::parse(label, text)?;
        let name = root.needed("name", word)?;
        let mut variants: Vec<Variant> = Vec::new();
        for section in root.sections("variant")? {
            let name = section.needed("name", word)?;
            if variants.iter().any(|other| other.name == name) {
                return Err(section.bad("name", "is taken by another variant"));
            }
            let by = format!("variant {name}:");
            let settings = section.list("set")?;
            let settings = settings.iter().map(|text| Setting::parse(&by, text));
            variants.push(Variant {
                name,
                settings: settings.collect::<Result<_, _>>()?,
            });
            section.end()?;
        }
        if variants.is_empty() {
            variants.push(Variant {
                name: String::new(),
                settings: Vec::new(),
            });
        }
        Ok(Document {
            label: label.into(),
            name,
            variants,
            root,
        })
    }

    /// The scenario with these settings; later ones win.
    pub fn scenario(&self, settings: &[Setting]) -> Result<Scenario, ScenarioError> {
        let mut root = self.root.clone();
        for setting in settings {
            root.set(setting)?;
        }
        let scenario = Scenario::read(&root, self)?;
        root.end()?;
        Ok(scenario)
    }

    /// Names of the groups of transfers in any variant: a band may be about one that only another variant has.
    fn groups(&self, root: &Section) -> Vec<String> {
        let mut groups = traffic::groups(root);
        for variant in &self.variants {
            let mut root = self.root.clone();
            if variant.settings.iter().all(|set| root.set(set).is_ok()) {
                groups.extend(traffic::groups(&root));
            }
        }
        groups
    }
}

impl Scenario {
    fn read(root: &Section, document: &Document) -> Result<Scenario, ScenarioError> {
        root.sections("variant")?;
        let text = |key| Ok::<_, ScenarioError>(root.text(key)?.unwrap_or_default());
        let topology = Topology::read(&root.section("topology")?)?;
        let duration = root.needed("duration", units::span)?;
        let switches = Switches::read(&root.section("switch")?)?;
        let scenario = Scenario {
            name: root.needed("name", word)?,
            title: text("title")?,
            shows: text("shows")?.trim().to_string(),
            source: text("source")?.trim().to_string(),
            duration,
            warmup: root.or("warmup", Nanos::ZERO, units::time)?,
            sample: root.or("sample", Nanos((duration.0 / 1000).max(1000)), units::span)?,
            seed: root.or("seed", 1, units::whole(0, u64::MAX))?,
            traffic: Traffic::read(root, &topology)?,
            links: Links::read(&root.section("link")?)?,
            nic: Nic::read(&root.section("nic")?, &topology, &switches)?,
            switches,
            expects: expect::read(root, document, &document.groups(root))?,
            topology,
        };
        if scenario.warmup >= scenario.duration {
            return Err(root.bad("warmup", "must be shorter than `duration`"));
        }
        if scenario.duration.0 / scenario.sample.0 > 1_000_000 {
            return Err(root.bad(
                "sample",
                "makes more than a million points: take a longer time",
            ));
        }
        Ok(scenario)
    }

    /// What it may say and yet hardly means, with the remedy.
    pub fn warnings(&self) -> Vec<String> {
        let over = units::written_time(self.duration.0 as f64);
        let late = self.traffic.late(self.duration);
        let late = late.map(|name| {
            format!("`{name}` sends nothing: its `start` is not before the end, {over}; take a longer `duration`")
        });
        let mut all: Vec<String> = late.collect();
        let nic = &self.nic.congestion;
        if nic.algorithm == AlgorithmKind::Dctcp && nic.np.min_time_between_cnps != 0 {
            all.push(DCTCP_NEEDS.into());
        }
        all
    }

    /// Measured time, in seconds.
    pub fn measured_seconds(&self) -> f64 {
        self.duration.saturating_sub(self.warmup).0 as f64 / 1e9
    }
}

/// A name: it becomes part of file names and of the names of metrics.
fn word(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    match !text.is_empty() && text.len() <= 64 && text.chars().all(fits) {
        true => Ok(text.into()),
        false => Err("must be a name of letters, digits, - and _".into()),
    }
}

fn nearest_hint(word: &str, known: &[String]) -> String {
    let known: Vec<&str> = known.iter().map(String::as_str).collect();
    nearest(word, &known).map_or_else(String::new, |near| format!(", did you mean `{near}`?"))
}
