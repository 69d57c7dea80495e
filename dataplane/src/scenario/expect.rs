//! What must come out of a scenario: `[[expect]]` with bands, and the names and units of what can be measured.

use std::fmt;

use super::document::Section;
use super::error::ScenarioError;
use super::{Document, nearest_hint, units};

/// What a metric is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bits per second.
    Rate,
    /// Nanoseconds.
    Time,
    /// Bytes.
    Bytes,
    /// How many.
    Count,
    /// A number without a unit.
    Ratio,
}

impl Unit {
    /// Its name in CSV and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Rate => "bit/s",
            Unit::Time => "ns",
            Unit::Bytes => "B",
            Unit::Count => "",
            Unit::Ratio => "1",
        }
    }

    /// A value for people.
    pub fn written(self, value: f64) -> String {
        match self {
            Unit::Rate if value >= 1e9 => format!("{} Gb/s", units::digits(value / 1e9)),
            Unit::Rate => format!("{} Mb/s", units::digits(value / 1e6)),
            Unit::Time => units::written_time(value),
            Unit::Bytes => units::written_bytes(value),
            Unit::Count | Unit::Ratio if value >= 1e12 => "infinite".into(),
            Unit::Count | Unit::Ratio => units::digits(value),
        }
    }

    fn read(self, text: &str) -> Result<f64, String> {
        let zero = text == "0";
        match self {
            _ if zero => Ok(0.0),
            Unit::Rate => units::rate(text).map(|rate| rate as f64),
            Unit::Time => units::time(text).map(|time| time.0 as f64),
            Unit::Bytes => units::bytes(text).map(|bytes| bytes as f64),
            Unit::Count => units::whole(0, 1 << 53)(text).map(|count| count as f64),
            Unit::Ratio => units::fraction(0.0, 1e12)(text),
        }
    }
}

/// Families of metrics, by the first part of their names, with units and meanings.
pub const FAMILIES: [(&str, Unit, &str); 22] = [
    (
        "goodput",
        Unit::Rate,
        "acknowledged payload in the measured time: .total, of the transfers .min .max .mean, of a group .NAME",
    ),
    (
        "fairness",
        Unit::Ratio,
        "goodputs of the transfers: .jain (index), .max_min (largest to smallest), .deviation (largest distance from the mean, as a part of it); with .NAME of one group",
    ),
    (
        "utilization",
        Unit::Ratio,
        ".max: use of the fullest link, as a part of its rate",
    ),
    (
        "fct",
        Unit::Time,
        "flow completion times: .p50 .p95 .p99 .max .mean; with .NAME of one group",
    ),
    (
        "slowdown",
        Unit::Ratio,
        "completion times over those of the same flows alone: .p50 .p95 .p99 .max .mean; with .NAME of one group",
    ),
    (
        "done",
        Unit::Time,
        ".NAME: from the first beginning to the last end of a group, all of whose transfers have ended",
    ),
    (
        "finished",
        Unit::Count,
        "transfers that ended: .total, or .NAME of a group",
    ),
    ("failed", Unit::Count, "queue pairs that failed"),
    (
        "queue",
        Unit::Bytes,
        "depth of the switch queue that was deepest: .p50 .p99 of the samples in the measured time, .max of the whole run",
    ),
    ("marks", Unit::Count, "packets that switches marked CE"),
    (
        "congested",
        Unit::Count,
        "marked packets that NICs received (np_ecn_marked_roce_packets)",
    ),
    ("cnps", Unit::Count, "CNPs: .sent .handled .ignored"),
    (
        "pauses",
        Unit::Count,
        "pause frames that switches sent, those that say go on included; .nics: that NICs sent",
    ),
    (
        "paused",
        Unit::Time,
        ".nics, .switches: time that ports could not send because of PFC, added up over ports and priorities",
    ),
    (
        "drops",
        Unit::Count,
        "packets that switches dropped; .nics: for which NICs that take them in too slowly had no room",
    ),
    (
        "lost",
        Unit::Count,
        "packets that impairments of links dropped",
    ),
    (
        "overflowed",
        Unit::Count,
        "packets that NICs had no room for in front of their links",
    ),
    (
        "naks",
        Unit::Count,
        "NAKs for gaps that requesters received (packet_seq_err)",
    ),
    (
        "timeouts",
        Unit::Count,
        "ACK timeouts (local_ack_timeout_err)",
    ),
    (
        "out_of_sequence",
        Unit::Count,
        "packets that came too early for their receiver",
    ),
    ("duplicates", Unit::Count, "requests that came twice"),
    ("packets", Unit::Count, "packet events of the simulation"),
];

/// A metric, perhaps of a certain variant: `goodput.total`, `pfc-only:pauses`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The variant, if it is not the one at hand.
    pub variant: Option<String>,
    /// Its name.
    pub name: String,
}

impl Metric {
    fn parse(text: &str, document: &Document, groups: &[String]) -> Result<Metric, String> {
        let (variant, name) = match text.split_once(':') {
            Some((variant, name)) => (Some(variant.to_string()), name),
            None => (None, text),
        };
        if let Some(variant) = &variant {
            known_variant(variant, document)?;
        }
        known(name, groups)?;
        Ok(Metric {
            variant,
            name: name.into(),
        })
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.variant {
            Some(variant) => write!(f, "{variant}:{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// The unit of a metric.
///
/// # Errors
/// If there are no metrics of such a name.
pub fn unit_of(name: &str) -> Result<Unit, String> {
    let first = name.split('.').next().unwrap_or_default();
    let family = FAMILIES.iter().find(|(family, ..)| *family == first);
    family.map(|&(_, unit, _)| unit).ok_or_else(|| {
        let names = FAMILIES.map(|(name, ..)| name).join(", ");
        format!("is no metric: their names begin with {names}")
    })
}

/// What stands behind the first part of a name: of all transfers or of the network, and behind the name of a group.
fn parts(family: &str) -> (&'static [&'static str], &'static [&'static str]) {
    const TIMES: [&str; 5] = [".p50", ".p95", ".p99", ".max", ".mean"];
    const SHARES: [&str; 3] = [".jain", ".max_min", ".deviation"];
    match family {
        "goodput" => (
            &[".total", ".min", ".max", ".mean"],
            &["", ".min", ".max", ".mean"],
        ),
        "fairness" => (&SHARES, &SHARES),
        "utilization" => (&[".max"], &[]),
        "fct" | "slowdown" => (&TIMES, &TIMES),
        "done" => (&[], &[""]),
        "finished" => (&[".total"], &[""]),
        "queue" => (&[".p50", ".p99", ".max"], &[]),
        "cnps" => (&[".sent", ".handled", ".ignored"], &[]),
        "paused" => (&[".nics", ".switches"], &[]),
        "pauses" | "drops" => (&["", ".nics"], &[]),
        _ => (&[""], &[]),
    }
}

/// Whether there can be a metric of that name where the transfers are in `groups`. Not each run has each: completion times need
/// transfers that end.
///
/// # Errors
/// If there cannot; what it says goes on behind the name.
pub fn known(name: &str, groups: &[String]) -> Result<(), String> {
    let mut names = Vec::new();
    for (family, ..) in FAMILIES {
        let (all, group) = parts(family);
        names.extend(all.iter().map(|part| format!("{family}{part}")));
        for own in groups {
            names.extend(group.iter().map(|part| format!("{family}.{own}{part}")));
        }
    }
    match names.iter().any(|other| other == name) {
        true => Ok(()),
        false => Err(format!(
            "is no metric of this scenario{}; `roceline sim --metrics` lists what there is",
            nearest_hint(name, &names)
        )),
    }
}

fn known_variant(name: &str, document: &Document) -> Result<(), String> {
    let names = || {
        document
            .variants
            .iter()
            .map(|variant| variant.name.as_str())
    };
    match names().any(|other| other == name) && !name.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "there is no variant `{name}`: there are [{}]",
            names().collect::<Vec<_>>().join(", ")
        )),
    }
}

/// `[[expect]]`: a band for a metric, or for the quotient of two.
#[derive(Clone, Debug, PartialEq)]
pub struct Expect {
    /// What is measured.
    pub metric: Metric,
    /// What it is divided by.
    pub per: Option<Metric>,
    /// The variant that it is about; `None`: each, or those that the metrics name.
    pub variant: Option<String>,
    /// At least.
    pub min: Option<f64>,
    /// At most.
    pub max: Option<f64>,
    /// Unit of the bounds.
    pub unit: Unit,
    /// Why it must be so, or where the figure comes from.
    pub why: String,
}

impl Expect {
    fn read(
        section: &Section,
        document: &Document,
        groups: &[String],
    ) -> Result<Expect, ScenarioError> {
        let metric = |text: &str| Metric::parse(text, document, groups);
        let of = section.needed("metric", metric)?;
        let per = section.value("per", metric)?;
        let unit = match per {
            Some(_) => Unit::Ratio,
            None => unit_of(&of.name).map_err(|problem| section.bad("metric", problem))?,
        };
        let expect = Expect {
            metric: of,
            per,
            variant: section.value("variant", |text| {
                known_variant(text, document).map(|()| text.to_string())
            })?,
            min: section.value("min", |text| unit.read(text))?,
            max: section.value("max", |text| unit.read(text))?,
            unit,
            why: section.text("why")?.unwrap_or_default(),
        };
        section.end()?;
        match (expect.min, expect.max) {
            (None, None) => Err(section.whole("it needs `min`, `max` or both")),
            (Some(min), Some(max)) if min > max => {
                Err(section.bad("min", "must not be above `max`"))
            }
            _ => Ok(expect),
        }
    }

    /// Whether a value is in the band.
    pub fn holds(&self, value: f64) -> bool {
        self.min.is_none_or(|min| value >= min) && self.max.is_none_or(|max| value <= max)
    }

    /// What is measured, in words.
    pub fn what(&self) -> String {
        match &self.per {
            Some(per) => format!("{} / {per}", self.metric),
            None => self.metric.to_string(),
        }
    }

    /// The band, for people.
    pub fn band(&self) -> String {
        let written = |bound| self.unit.written(bound);
        match (self.min, self.max) {
            (Some(min), Some(max)) if min == max => format!("= {}", written(min)),
            (Some(min), Some(max)) => format!("{} to {}", written(min), written(max)),
            (Some(min), None) => format!(">= {}", written(min)),
            (None, Some(max)) => format!("<= {}", written(max)),
            (None, None) => String::new(),
        }
    }
}

/// All `[[expect]]` of a file whose transfers are in `groups`, in one variant or another.
pub(super) fn read(
    root: &Section,
    document: &Document,
    groups: &[String],
) -> Result<Vec<Expect>, ScenarioError> {
    let sections = root.sections("expect")?;
    sections
        .iter()
        .map(|section| Expect::read(section, document, groups))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expect(text: &str) -> Result<Expect, String> {
        let file = format!(
            "name = 'x'\n[[variant]]\nname = 'a'\n[[variant]]\nname = 'b'\n[[expect]]\n{text}\n"
        );
        let document = Document::parse("f.toml", &file).unwrap();
        let groups = [String::from("senders")];
        let mut all =
            read(&document.root, &document, &groups).map_err(|error| error.to_string())?;
        Ok(all.remove(0))
    }

    #[test]
    fn bands_are_in_the_unit_of_their_metric() {
        let rate = expect("metric = 'goodput.total'\nmin = '38Gb/s'").unwrap();
        assert_eq!((rate.min, rate.unit), (Some(38e9), Unit::Rate));
        assert!(rate.holds(38e9) && !rate.holds(37e9));
        assert_eq!(
            (rate.what().as_str(), rate.band().as_str()),
            ("goodput.total", ">= 38 Gb/s")
        );
        let queue = expect("metric = 'queue.p99'\nmax = '100KB'\nvariant = 'b'").unwrap();
        assert_eq!(queue.band(), "<= 100 KB");
        let none = expect("metric = 'drops'\nmax = 0").unwrap();
        assert!(none.holds(0.0) && !none.holds(1.0));
        let ratio = expect("metric = 'a:pauses'\nper = 'b:pauses'\nmin = 100").unwrap();
        assert_eq!(ratio.what(), "a:pauses / b:pauses");
        assert_eq!(ratio.unit, Unit::Ratio);
    }

    #[test]
    fn slips_are_told() {
        for (text, says) in [
            ("metric = 'goodputs'\nmin = 1", "is no metric"),
            (
                "metric = 'goodput.sendrs'\nmin = '1Gb/s'",
                "f.toml:7: expect.0.metric = \"goodput.sendrs\": is no metric of this scenario, did you mean `goodput.senders`?",
            ),
            ("metric = 'a:fct.maen'\nmax = '1ms'", "`fct.mean`?"),
            (
                "metric = 'drops'\nper = 'pauses.total'\nmax = 1",
                "expect.0.per",
            ),
            ("metric = 'goodput.total'\nmin = 1", "rate with its unit"),
            ("metric = 'goodput.total'", "`min`, `max` or both"),
            ("metric = 'c:drops'\nmax = 0", "no variant `c`"),
            ("metric = 'drops'\nmax = 0\nvariant = 'c'", "no variant `c`"),
            ("metric = 'drops'\nmax = 1\nmin = 2", "above `max`"),
            (
                "metric = 'drops'\nmax = 1\nbecause = 'x'",
                "unknown key `because`",
            ),
        ] {
            let error = expect(text).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
