//! Which switches there are, what is joined to what, and by which ports a frame gets to each NIC. Plain data, made from the
//! configuration before anything runs; a fabric is built from it.

use std::collections::VecDeque;

use roceline_engine::Nanos;
use roceline_engine::fabric::switch::{ClassConfig, Red};
use roceline_engine::wire::pause::PRIORITIES;

/// What the switches of a fabric are like.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchPlan {
    /// Its name.
    pub name: String,
    /// Rate of its links in bits per second; none: as fast as it goes.
    pub rate: Option<u64>,
    /// From one end of its links to the other.
    pub delay: Nanos,
    /// Bytes of buffer that its queues share, besides headroom.
    pub buffer: u64,
    /// By priority.
    pub classes: [ClassConfig; PRIORITIES],
}

impl SwitchPlan {
    /// Where marking begins and ends, if any class marks.
    pub fn red(&self) -> Option<Red> {
        self.classes.iter().find_map(|class| class.red)
    }

    /// The priorities that lose nothing.
    pub fn lossless(&self) -> u8 {
        let bits = self.classes.iter().zip(0..);
        bits.fold(0, |mask, (class, p)| mask | u8::from(class.lossless) << p)
    }
}

/// A cable between two switches, by their numbers. Its rate and delay are those of the first one.
pub type Cable = (usize, usize);

/// A NIC on a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Station {
    /// Index of the NIC.
    pub nic: u32,
    /// Its name.
    pub name: String,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Number of its switch.
    pub switch: usize,
    /// Bytes of its longest IP packet.
    pub mtu: u32,
}

/// A fabric.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Its switches.
    pub switches: Vec<SwitchPlan>,
    /// What joins them.
    pub cables: Vec<Cable>,
    /// NICs on them.
    pub stations: Vec<Station>,
    /// Of marks and of the choice among equal paths.
    pub seed: u64,
}

/// What a port of a switch is joined to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beyond {
    /// A NIC, by its place in [`Plan::stations`].
    Station(usize),
    /// A port of another switch: number of the switch and of the port there, and of the cable.
    Switch(usize, u16, usize),
}

/// Ports and routes of one switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routing {
    /// By port number: what is there.
    pub ports: Vec<Beyond>,
    /// By place in [`Plan::stations`]: the ports of all shortest ways.
    pub routes: Vec<Vec<u16>>,
    /// Ports to which frames for everybody go: those of a tree, so that no frame goes round.
    pub flood: Vec<u16>,
}

impl Plan {
    /// Ports and routes of each switch: NICs have the first ports, in their order, then cables in theirs.
    pub fn routing(&self) -> Vec<Routing> {
        let mut all: Vec<Routing> = vec![Routing::default(); self.switches.len()];
        for (n, station) in self.stations.iter().enumerate() {
            all[station.switch].ports.push(Beyond::Station(n));
        }
        for (n, &(a, b)) in self.cables.iter().enumerate() {
            let ports = [a, b].map(|s| all[s].ports.len() as u16);
            all[a].ports.push(Beyond::Switch(b, ports[1], n));
            all[b].ports.push(Beyond::Switch(a, ports[0], n));
        }
        let distances: Vec<Vec<u32>> = (0..all.len()).map(|s| self.distances(s)).collect();
        let tree = self.tree();
        for (s, routing) in all.iter_mut().enumerate() {
            let port = |n: usize| n as u16;
            for (n, station) in self.stations.iter().enumerate() {
                let to = &distances[station.switch];
                let ways = routing
                    .ports
                    .iter()
                    .enumerate()
                    .filter(|(_, beyond)| match **beyond {
                        Beyond::Station(other) => other == n,
                        Beyond::Switch(next, ..) => {
                            to[next] != u32::MAX && to[next].saturating_add(1) == to[s]
                        }
                    });
                routing.routes.push(ways.map(|(p, _)| port(p)).collect());
            }
            let in_tree = |beyond: &Beyond| match *beyond {
                Beyond::Station(_) => true,
                Beyond::Switch(_, _, cable) => tree[cable],
            };
            let flooded = routing.ports.iter().enumerate();
            let flooded = flooded.filter(|(_, beyond)| in_tree(beyond));
            routing.flood = flooded.map(|(p, _)| port(p)).collect();
        }
        all
    }

    /// Cables from a switch to each other one.
    fn distances(&self, from: usize) -> Vec<u32> {
        let mut distance = vec![u32::MAX; self.switches.len()];
        distance[from] = 0;
        let mut next = VecDeque::from([from]);
        while let Some(at) = next.pop_front() {
            for &(a, b) in &self.cables {
                for (here, there) in [(a, b), (b, a)] {
                    if here == at && distance[there] == u32::MAX {
                        distance[there] = distance[at] + 1;
                        next.push_back(there);
                    }
                }
            }
        }
        distance
    }

    /// By cable: whether it belongs to a tree of all that hangs together.
    fn tree(&self) -> Vec<bool> {
        // The group of a switch is that of the lowest number it is joined to so far.
        let mut group: Vec<usize> = (0..self.switches.len()).collect();
        self.cables
            .iter()
            .map(|&(a, b)| {
                let (from, to) = (group[a].max(group[b]), group[a].min(group[b]));
                for g in &mut group {
                    if *g == from {
                        *g = to;
                    }
                }
                from != to
            })
            .collect()
    }

    /// Whether frames get from a switch to another.
    pub fn joined(&self, a: usize, b: usize) -> bool {
        self.distances(a).get(b).is_some_and(|d| *d != u32::MAX)
    }

    /// Whether both are names of switches, and frames get from one to the other.
    pub fn reaches(&self, a: &str, b: &str) -> bool {
        match (self.switch(a), self.switch(b)) {
            (Some(a), Some(b)) => self.joined(a, b),
            _ => false,
        }
    }

    /// The switch of a name.
    pub fn switch(&self, name: &str) -> Option<usize> {
        self.switches.iter().position(|s| s.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(switches: usize, cables: &[Cable], stations: &[usize]) -> Plan {
        let switch = |n: usize| SwitchPlan {
            name: format!("s{n}"),
            rate: None,
            delay: Nanos::ZERO,
            buffer: 1 << 20,
            classes: [ClassConfig::lossy(); PRIORITIES],
        };
        let station = |(n, &switch): (usize, &usize)| Station {
            nic: n as u32,
            name: format!("roce{n}"),
            mac: [2, 0, 0, 0, 0, n as u8],
            switch,
            mtu: 1500,
        };
        Plan {
            switches: (0..switches).map(switch).collect(),
            cables: cables.to_vec(),
            stations: stations.iter().enumerate().map(station).collect(),
            seed: 0,
        }
    }

    #[test]
    fn a_star_has_a_port_for_each_nic() {
        let routing = plan(1, &[], &[0, 0, 0]).routing();
        assert_eq!(routing[0].routes, [[0], [1], [2]]);
        assert_eq!(routing[0].flood, [0, 1, 2]);
    }

    #[test]
    fn leaves_and_spines_have_all_equal_ways_and_a_tree_to_flood() {
        // Leaves 0 and 1, spines 2 and 3; a NIC on each leaf.
        let plan = plan(4, &[(0, 2), (0, 3), (1, 2), (1, 3)], &[0, 1]);
        let routing = plan.routing();
        assert_eq!(routing[0].routes, [vec![0], vec![1, 2]]);
        assert_eq!(routing[1].routes, [vec![1, 2], vec![0]]);
        assert_eq!(routing[2].routes, [[0], [1]]);
        assert_eq!(
            routing[3].ports,
            [Beyond::Switch(0, 2, 1), Beyond::Switch(1, 2, 3)]
        );
        // The second cable of spine 3 would close the round.
        assert_eq!(routing[1].flood, [0, 1]);
        assert_eq!(routing[3].flood, [0]);
        assert!(plan.joined(0, 1));
    }

    #[test]
    fn what_is_not_joined_has_no_way() {
        let plan = plan(2, &[], &[0, 1]);
        assert!(plan.routing()[0].routes[1].is_empty());
        assert!(!plan.joined(0, 1));
        assert_eq!(plan.switch("s1"), Some(1));
    }
}
