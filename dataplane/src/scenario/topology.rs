//! The network of a scenario: which nodes there are and how far they are from one another.
//!
//! Nodes are numbered from 0, switch by switch.

use roceline_engine::Nanos;

use super::document::Section;
use super::error::ScenarioError;
use super::units;

/// The most nodes of a scenario.
pub const MOST_NODES: u64 = 1024;

/// A network of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Two nodes and a link.
    Pair,
    /// Nodes around a switch.
    Star {
        /// Nodes.
        nodes: usize,
    },
    /// Two switches with a trunk.
    Dumbbell {
        /// Nodes of the first switch.
        left: usize,
        /// Nodes of the second.
        right: usize,
    },
    /// Switches in a row.
    ParkingLot {
        /// Switches.
        switches: usize,
        /// Nodes of each.
        nodes: usize,
    },
    /// Each leaf has a link to each spine.
    LeafSpine {
        /// Leaves.
        leaves: usize,
        /// Spines.
        spines: usize,
        /// Nodes of a leaf.
        nodes: usize,
    },
    /// Al-Fares, Loukissas, Vahdat (SIGCOMM 2008): pods of `k` switches, `k`³/4 nodes.
    FatTree {
        /// Ports of a switch.
        k: usize,
    },
}

/// A network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Its shape.
    pub shape: Shape,
    /// Bits per second of the nodes' links.
    pub rate: u64,
    /// Delay of the nodes' links.
    pub delay: Nanos,
    /// Bits per second of the links between switches.
    pub trunk_rate: u64,
    /// Delay of the links between switches.
    pub trunk_delay: Nanos,
}

const SHAPES: &str = "pair, star, dumbbell, parking-lot, leaf-spine or fat-tree";

impl Topology {
    pub(super) fn read(section: &Section) -> Result<Topology, ScenarioError> {
        let count = |key: &str| {
            let count = section.needed(key, units::whole(1, MOST_NODES))?;
            Ok::<_, ScenarioError>(count as usize)
        };
        let kind = section.needed("kind", |text| Ok(text.to_string()))?;
        let shape = match kind.as_str() {
            "pair" => Shape::Pair,
            "star" => Shape::Star {
                nodes: count("nodes")?,
            },
            "dumbbell" => Shape::Dumbbell {
                left: count("left")?,
                right: count("right")?,
            },
            "parking-lot" => Shape::ParkingLot {
                switches: count("switches")?,
                nodes: count("nodes")?,
            },
            "leaf-spine" => Shape::LeafSpine {
                leaves: count("leaves")?,
                spines: count("spines")?,
                nodes: count("nodes")?,
            },
            "fat-tree" => Shape::FatTree { k: count("k")? },
            _ => return Err(section.bad("kind", format!("must be {SHAPES}"))),
        };
        if matches!(shape, Shape::FatTree { k } if k % 2 == 1) {
            return Err(section.bad("k", "must be even: half of the ports of a switch go up"));
        }
        let rate = section.needed("rate", units::rate)?;
        let delay = section.or("delay", Nanos::from_micros(1), units::time)?;
        let has_trunks = !matches!(shape, Shape::Pair | Shape::Star { .. });
        let (mut trunk_rate, mut trunk_delay) = (rate, delay);
        if has_trunks {
            trunk_rate = section.or("trunk_rate", rate, units::rate)?;
            trunk_delay = section.or("trunk_delay", delay, units::time)?;
        }
        section.end()?;
        let topology = Topology {
            shape,
            rate,
            delay,
            trunk_rate,
            trunk_delay,
        };
        match topology.nodes() {
            2..=1024 => Ok(topology),
            nodes => Err(section.whole(format!(
                "it has {nodes} nodes, but there must be 2 to {MOST_NODES}"
            ))),
        }
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        match self.shape {
            Shape::Pair => 2,
            Shape::Star { nodes } => nodes,
            Shape::Dumbbell { left, right } => left + right,
            Shape::ParkingLot { switches, nodes } => switches * nodes,
            Shape::LeafSpine { leaves, nodes, .. } => leaves * nodes,
            Shape::FatTree { k } => k * k * k / 4,
        }
    }

    /// Links between switches on the way from one node to another, and whether there is a switch at all.
    fn trunks(&self, from: usize, to: usize) -> usize {
        match self.shape {
            Shape::Pair | Shape::Star { .. } => 0,
            Shape::Dumbbell { left, .. } => usize::from((from < left) != (to < left)),
            Shape::ParkingLot { nodes, .. } => (from / nodes).abs_diff(to / nodes),
            Shape::LeafSpine { nodes, .. } => 2 * usize::from(from / nodes != to / nodes),
            Shape::FatTree { k } => {
                let (edge, pod) = (k / 2, k * k / 4);
                if from / pod != to / pod {
                    4
                } else {
                    2 * usize::from(from / edge != to / edge)
                }
            }
        }
    }

    /// The links between two nodes, in the order of the way: rate and delay of each.
    pub fn path(&self, from: usize, to: usize) -> Vec<(u64, Nanos)> {
        let node = (self.rate, self.delay);
        if self.shape == Shape::Pair {
            return vec![node];
        }
        let mut path = vec![(self.trunk_rate, self.trunk_delay); self.trunks(from, to) + 2];
        path[0] = node;
        if let Some(last) = path.last_mut() {
            *last = node;
        }
        path
    }

    /// The shape in words.
    pub fn words(&self) -> String {
        match self.shape {
            Shape::Pair => "two nodes and a link".into(),
            Shape::Star { nodes } => format!("star of {nodes} nodes"),
            Shape::Dumbbell { left, right } => format!("dumbbell, {left} and {right} nodes"),
            Shape::ParkingLot { switches, nodes } => {
                format!("row of {switches} switches, {nodes} nodes each")
            }
            Shape::LeafSpine {
                leaves,
                spines,
                nodes,
            } => format!("{leaves} leaves with {nodes} nodes each, {spines} spines"),
            Shape::FatTree { k } => format!("fat-tree, k = {k}, {} nodes", self.nodes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Topology, String> {
        let file = Section::parse("f.toml", text).unwrap();
        Topology::read(&file).map_err(|error| error.to_string())
    }

    #[test]
    fn nodes_and_ways() {
        for (text, nodes, ways) in [
            ("kind = 'pair'", 2, &[(0, 1, 1)][..]),
            ("kind = 'star'\nnodes = 9", 9, &[(0, 8, 2)]),
            (
                "kind = 'dumbbell'\nleft = 4\nright = 2",
                6,
                &[(0, 3, 2), (3, 4, 3)],
            ),
            (
                "kind = 'parking-lot'\nswitches = 3\nnodes = 2",
                6,
                &[(0, 1, 2), (1, 2, 3), (0, 5, 4)],
            ),
            (
                "kind = 'leaf-spine'\nleaves = 2\nspines = 2\nnodes = 4",
                8,
                &[(0, 3, 2), (3, 4, 4)],
            ),
            (
                "kind = 'fat-tree'\nk = 4",
                16,
                &[(0, 1, 2), (0, 2, 4), (0, 4, 6), (15, 0, 6)],
            ),
        ] {
            let topology = read(&format!("{text}\nrate = '10Gb/s'")).unwrap();
            assert_eq!(topology.nodes(), nodes, "{text}");
            for &(from, to, links) in ways {
                assert_eq!(topology.path(from, to).len(), links, "{text}: {from} {to}");
            }
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (text, says) in [
            ("rate = '10Gb/s'", "`kind` is missing"),
            ("kind = 'ring'\nrate = '1Gb/s'", "must be pair, star"),
            ("kind = 'star'\nnodes = 1\nrate = '1Gb/s'", "2 to 1024"),
            ("kind = 'fat-tree'\nk = 5\nrate = '1Gb/s'", "even"),
            (
                "kind = 'star'\nnodes = 4\nrate = '1Gb/s'\ntrunk_rate = '1Gb/s'",
                "unknown key `trunk_rate`",
            ),
            ("kind = 'pair'\nrate = 5", "rate with its unit"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
