//! The combinations of perftest's tools and options: all of them, or few that hold every pair of values.

use std::collections::BTreeSet;
use std::fmt;

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    pub tool: &'static str,
    pub mtu: u32,
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
        let mut all: Vec<String> = ["-F", "-a", "-n", "100", "-m"].map(String::from).into();
        all.push(self.mtu.to_string());
        let mut option = |wanted: bool, words: &[&str]| {
            if wanted {
                all.extend(words.iter().map(|&word| String::from(word)));
            }
        };
        option(self.bidirectional, &["-b"]);
        option(self.many_qps, &["-q", "8"]);
        option(self.events, &["-e"]);
        option(self.inline, &["-I", "64"]);
        all
    }

    /// The values, each with its factor's number.
    fn values(&self) -> [(usize, u32); 7] {
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
        ]
    }

    fn pairs(&self) -> impl Iterator<Item = [(usize, u32); 2]> + use<> {
        let values = self.values();
        (0..values.len()).flat_map(move |i| (0..i).map(move |j| [values[j], values[i]]))
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

/// Every combination that the tools take.
pub fn product() -> Vec<Case> {
    let choices = |possible: bool| {
        if possible {
            vec![false, true]
        } else {
            vec![false]
        }
    };
    let mut all = Vec::new();
    for (tool, many, event, inlined) in TOOLS {
        for mtu in [256, 512, 1024, 2048, 4096] {
            for &bidirectional in &choices(many) {
                for &many_qps in &choices(many) {
                    for &events in &choices(event) {
                        for &inline in &choices(inlined) {
                            for loopback in [false, true] {
                                all.push(Case {
                                    tool,
                                    mtu,
                                    bidirectional,
                                    many_qps,
                                    events,
                                    inline,
                                    loopback,
                                });
                            }
                        }
                    }
                }
            }
        }
    }
    all
}

/// Few combinations that together hold every pair of values that any combination holds. Greedy: always the one that
/// adds the most new pairs, of equals the one that moves the fewest bytes, of those the first.
pub fn pairwise() -> Vec<Case> {
    let all = product();
    let mut open: BTreeSet<[(usize, u32); 2]> = all.iter().flat_map(Case::pairs).collect();
    let mut chosen = Vec::new();
    while !open.is_empty() {
        let gain = |case: &Case| case.pairs().filter(|pair| open.contains(pair)).count();
        let cost = |case: &Case| u32::from(case.many_qps) * 8 + u32::from(case.bidirectional);
        let Some(best) = all
            .iter()
            .min_by_key(|case| (usize::MAX - gain(case), cost(case)))
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
