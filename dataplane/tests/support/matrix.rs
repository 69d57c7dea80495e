//! The combinations of perftest's tools and options: all of them, or few that hold every pair of values.

use std::collections::BTreeSet;
use std::fmt;

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    pub tool: &'static str,
    pub mtu: u32,
    /// `-a`, all sizes from 2 bytes to 8 MiB, instead of the tool's own size.
    pub all_sizes: bool,
    pub bidirectional: bool,
    pub many_qps: bool,
    pub events: bool,
    pub inline: bool,
    pub loopback: bool,
}

/// The tools, and whether each takes `-b` and `-q`, `-e`, `-I`.
const TOOLS: [(&str, bool, bool, bool); 6] = [
    ("ib_send_bw", true, true, true),
    ("ib_send_lat", false, true, true),
    ("ib_write_bw", true, false, true),
    ("ib_write_lat", false, false, true),
    ("ib_read_bw", true, true, false),
    ("ib_read_lat", false, true, false),
];

impl Case {
    /// The tool's arguments.
    pub fn arguments(&self) -> Vec<String> {
        let mut all: Vec<String> = ["-F", "-n", "100", "-m"].map(String::from).into();
        all.push(self.mtu.to_string());
        let mut option = |wanted: bool, words: &[&str]| {
            if wanted {
                all.extend(words.iter().map(|&word| String::from(word)));
            }
        };
        option(self.all_sizes, &["-a"]);
        option(self.bidirectional, &["-b"]);
        option(self.many_qps, &["-q", "8"]);
        option(self.events, &["-e"]);
        option(self.inline, &["-I", "64"]);
        all
    }

    /// The values, each with its factor's number.
    fn values(&self) -> [(usize, u32); 8] {
        let tool = TOOLS
            .iter()
            .position(|tool| tool.0 == self.tool)
            .unwrap_or_default();
        [
            (0, tool as u32),
            (1, self.mtu),
            (2, u32::from(self.bidirectional)),
            (3, u32::from(self.many_qps)),
            (4, u32::from(self.events)),
            (5, u32::from(self.inline)),
            (6, u32::from(self.loopback)),
            (7, u32::from(self.all_sizes)),
        ]
    }

    fn pairs(&self) -> impl Iterator<Item = [(usize, u32); 2]> + use<> {
        let values = self.values();
        (0..values.len()).flat_map(move |i| (0..i).map(move |j| [values[j], values[i]]))
    }
}

impl Case {
    /// Does the tool take these options, and does it end?
    fn is_possible(&self) -> bool {
        let taken = |&(tool, many, events, inline): &(&str, bool, bool, bool)| {
            tool == self.tool
                && (many || !self.bidirectional && !self.many_qps)
                && (events || !self.events)
                && (inline || !self.inline)
        };
        // perftest before 23.07 (Debian 12 has 4.5-0.17) polls 100 of the up to 800 receives that one event may stand
        // for, and then waits for the next event for ever (its commit 14955fe).
        let stuck = self.tool == "ib_send_bw" && self.bidirectional && self.many_qps && self.events;
        TOOLS.iter().any(taken) && !stuck
    }

    /// What it takes of time, in halves of a second or so: starting, and what it moves, by byte and by packet. With all
    /// sizes, perftest itself takes half a second a size: it measures the CPU's frequency anew for each.
    fn cost(&self) -> u64 {
        let factor = |on: bool, by: u64| if on { by } else { 1 };
        let moved = factor(self.many_qps, 8)
            * factor(self.bidirectional, 2)
            * u64::from(1 + 2048 / self.mtu);
        if self.all_sizes {
            20 + 2 * moved
        } else {
            2 + moved
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = if self.loopback {
            "on one device"
        } else {
            "between two devices"
        };
        write!(f, "{} {} {place}", self.tool, self.arguments().join(" "))
    }
}

/// Every combination that the tools take and end, over all sizes.
pub fn product() -> Vec<Case> {
    combinations(&[true])
}

/// The same, also with each tool's own size: what [`pairwise`] chooses from.
pub fn space() -> Vec<Case> {
    combinations(&[true, false])
}

fn combinations(sizes: &[bool]) -> Vec<Case> {
    let mut cases: Vec<Case> = TOOLS
        .iter()
        .map(|&(tool, ..)| Case {
            tool,
            mtu: 0,
            all_sizes: false,
            bidirectional: false,
            many_qps: false,
            events: false,
            inline: false,
            loopback: false,
        })
        .collect();
    vary(&mut cases, &[256, 512, 1024, 2048, 4096], |case, mtu| {
        case.mtu = mtu
    });
    vary(&mut cases, sizes, |case, on| case.all_sizes = on);
    let both = &[false, true];
    vary(&mut cases, both, |case, on| case.bidirectional = on);
    vary(&mut cases, both, |case, on| case.many_qps = on);
    vary(&mut cases, both, |case, on| case.events = on);
    vary(&mut cases, both, |case, on| case.inline = on);
    vary(&mut cases, both, |case, on| case.loopback = on);
    cases.retain(Case::is_possible);
    cases
}

/// Replaces each case by one for each value.
fn vary<T: Copy>(cases: &mut Vec<Case>, values: &[T], set: impl Fn(&mut Case, T)) {
    let with = |case: &Case, value: T| {
        let mut case = *case;
        set(&mut case, value);
        case
    };
    *cases = cases
        .iter()
        .flat_map(|case| values.iter().map(|&value| with(case, value)))
        .collect();
}

/// Few combinations that together hold every pair of values that any combination holds. Greedy: always the one that
/// adds the most new pairs for its time; of equals the first.
pub fn pairwise() -> Vec<Case> {
    let all = space();
    let mut open: BTreeSet<[(usize, u32); 2]> = all.iter().flat_map(Case::pairs).collect();
    let mut chosen = Vec::new();
    while !open.is_empty() {
        let gain = |case: &Case| case.pairs().filter(|pair| open.contains(pair)).count() as u64;
        // Pairs for a unit of time, in 1/1000. `min_by_key` takes the first of equals.
        let Some(best) = all
            .iter()
            .min_by_key(|case| u64::MAX - gain(case) * 1000 / case.cost())
        else {
            break;
        };
        for pair in best.pairs() {
            open.remove(&pair);
        }
        chosen.push(*best);
    }
    chosen
}
