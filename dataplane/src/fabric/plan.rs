//! Which switches there are, what is joined to what, and by which ports a frame gets to each NIC. Plain data, made from the
//! configuration before anything runs; a fabric is built from it.

use std::collections::VecDeque;

use roceline_engine::Nanos;
use roceline_engine::congestion::pfc::{PauseMode, Watchdog};
use roceline_engine::congestion::priority::PriorityMap;
use roceline_engine::fabric::switch::{ClassConfig, Red};
use roceline_engine::wire::pause::PRIORITIES;

/// What the switches of a fabric are like.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchPlan {
    /// Its name.
    pub name: String,
    /// The lcore that polls it.
    pub lcore: usize,
    /// Its links, those that `ports` does not name.
    pub link: LinkPlan,
    /// Links that are otherwise.
    pub ports: Vec<PortPlan>,
    /// Ways that are written by hand, instead of the shortest.
    pub routes: Vec<RoutePlan>,
    /// Bytes of buffer that its queues share, besides headroom.
    pub buffer: u64,
    /// Bytes of headroom of each port and lossless priority; none: worked out.
    pub headroom: Option<u32>,
    /// By priority.
    pub classes: [ClassConfig; PRIORITIES],
    /// Marks go by the rate of each port, as nobody said where they begin and end.
    pub marks_by_rate: bool,
    /// Which priority a frame has.
    pub map: PriorityMap,
    /// Kind of pause frames that lossless classes use.
    pub pause: PauseMode,
    /// Time that a pause frame asks for, in quanta of 512 bit times.
    pub quanta: u16,
    /// Limits to pauses that do not end.
    pub watchdog: Watchdog,
}

/// What a link is like, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkPlan {
    /// Bits per second; none: as fast as it goes.
    pub rate: Option<u64>,
    /// From one end to the other.
    pub delay: Nanos,
}

/// A link of a switch that is not as the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortPlan {
    /// The NIC or switch beyond.
    pub to: String,
    /// What it is like.
    pub link: LinkPlan,
}

/// A way that is written by hand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutePlan {
    /// NICs.
    pub to: Vec<String>,
    /// Switches that are next, among which flows are spread; none: there is no way.
    pub via: Vec<String>,
}

impl SwitchPlan {
    /// The link to the NIC or switch of this name, as this switch has it.
    pub fn link_to(&self, name: &str) -> LinkPlan {
        let own = self.ports.iter().find(|port| port.to == name);
        own.map_or(self.link, |port| port.link)
    }

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

/// A cable between two switches, by their numbers. It is as the first one has its links, unless one of the two has a [`PortPlan`] for it.
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
    /// NICs of the daemon, those included that are on no switch.
    pub nics: usize,
}

/// A port of a switch, as captures name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortName {
    /// Its switch.
    pub switch: String,
    /// Its number there.
    pub number: u16,
    /// The NIC or switch beyond.
    pub peer: String,
    /// Source of its pause frames.
    pub mac: [u8; 6],
    /// The lcore that polls its switch.
    pub lcore: usize,
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
        let neighbours = self.neighbours();
        let distances: Vec<_> = (0..all.len()).map(|s| distances(&neighbours, s)).collect();
        let tree = self.tree();
        for (s, routing) in all.iter_mut().enumerate() {
            let port = |n: usize| n as u16;
            for (n, station) in self.stations.iter().enumerate() {
                let to = &distances[station.switch];
                let mut by_hand = self.switches[s].routes.iter();
                let by_hand = by_hand.find(|route| route.to.contains(&station.name));
                let ways = routing.ports.iter().enumerate().filter(|(_, beyond)| {
                    match (**beyond, by_hand) {
                        (Beyond::Station(other), _) => other == n,
                        (Beyond::Switch(..), _) if station.switch == s => false,
                        (Beyond::Switch(next, ..), Some(route)) => {
                            route.via.contains(&self.switches[next].name)
                        }
                        (Beyond::Switch(next, ..), None) => {
                            to[next].is_some_and(|d| to[s] == Some(d + 1))
                        }
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

    /// The ports of all switches, in the order of [`Plan::interface`].
    pub fn ports(&self) -> Vec<PortName> {
        let mut all = Vec::new();
        for (n, (routing, switch)) in self.routing().iter().zip(&self.switches).enumerate() {
            all.extend((0..).zip(&routing.ports).map(|(number, beyond)| PortName {
                switch: switch.name.clone(),
                number,
                peer: self.peer(beyond).into(),
                mac: self.port_mac(n, number),
                lcore: switch.lcore,
            }));
        }
        all
    }

    /// The number of a port among all that can be captured: NICs of the daemon, then ports, switch by switch.
    pub fn interface(&self, switch: usize, port: u16) -> usize {
        let ports = |s| {
            let nics = self.stations.iter().filter(|station| station.switch == s);
            let cables = self.cables.iter().filter(|(a, b)| *a == s || *b == s);
            nics.count() + cables.count()
        };
        self.nics + (0..switch).map(ports).sum::<usize>() + usize::from(port)
    }

    /// The MAC address of a port of a switch.
    pub fn port_mac(&self, switch: usize, port: u16) -> [u8; 6] {
        [0x02, 0x52, 0x4c, 0xff, switch as u8, port as u8]
    }

    /// The name of what is beyond a port.
    pub fn peer(&self, beyond: &Beyond) -> &str {
        match *beyond {
            Beyond::Station(station) => &self.stations[station].name,
            Beyond::Switch(other, ..) => &self.switches[other].name,
        }
    }

    /// Whether beyond a port of switch `number` there is a switch of another lcore.
    pub fn is_apart(&self, number: usize, beyond: &Beyond) -> bool {
        match *beyond {
            Beyond::Station(_) => false,
            Beyond::Switch(other, ..) => self.switches[other].lcore != self.switches[number].lcore,
        }
    }

    /// By switch: those that it has a cable to.
    fn neighbours(&self) -> Vec<Vec<usize>> {
        let mut all = vec![Vec::new(); self.switches.len()];
        for &(a, b) in &self.cables {
            all[a].push(b);
            all[b].push(a);
        }
        all
    }

    /// A way that comes back to where it was, by the names of its switches, and for whom it is. Frames have no count of hops, so they would
    /// never leave it.
    pub fn round(&self) -> Option<(String, Vec<String>)> {
        let routing = self.routing();
        for (n, station) in self.stations.iter().enumerate() {
            for start in 0..self.switches.len() {
                let mut way = vec![start];
                if let Some(round) = follow(&routing, n, &mut way, &mut vec![false; routing.len()])
                {
                    let names = way[round..].iter().map(|s| self.switches[*s].name.clone());
                    return Some((station.name.clone(), names.collect()));
                }
            }
        }
        None
    }

    /// What the link at a port of switch `number` is like.
    pub fn link(&self, number: usize, beyond: &Beyond) -> LinkPlan {
        let here = &self.switches[number];
        match *beyond {
            Beyond::Station(n) => here.link_to(&self.stations[n].name),
            Beyond::Switch(_, _, cable) => {
                let (a, b) = self.cables[cable];
                let [a, b] = [a, b].map(|s| &self.switches[s]);
                let named = |from: &SwitchPlan, to: &str| from.ports.iter().any(|p| p.to == to);
                match named(b, &a.name) && !named(a, &b.name) {
                    true => b.link_to(&a.name),
                    false => a.link_to(&b.name),
                }
            }
        }
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
        distances(&self.neighbours(), a)
            .get(b)
            .is_some_and(Option::is_some)
    }

    /// Whether both are names of switches, and frames get from one to the other.
    pub fn reaches(&self, a: &str, b: &str) -> bool {
        match (self.switch(a), self.switch(b)) {
            (Some(a), Some(b)) => self.joined(a, b),
            _ => false,
        }
    }

    /// Two switches with NICs on them between which there is no way, by their names.
    pub fn apart(&self) -> Option<(&str, &str)> {
        let first = self.stations.first()?.switch;
        let mut others = self.stations.iter().map(|station| station.switch);
        let other = others.find(|&other| !self.joined(first, other))?;
        Some((&self.switches[first].name, &self.switches[other].name))
    }

    /// The switch of a name.
    pub fn switch(&self, name: &str) -> Option<usize> {
        self.switches.iter().position(|s| s.name == name)
    }
}

/// Goes on from the last switch of `way` by all ways to a station; gives where in `way` it came back to. Switches that are `done` lead
/// nowhere round.
fn follow(
    routing: &[Routing],
    station: usize,
    way: &mut Vec<usize>,
    done: &mut [bool],
) -> Option<usize> {
    let at = *way.last()?;
    for port in &routing[at].routes[station] {
        let Beyond::Switch(next, ..) = routing[at].ports[usize::from(*port)] else {
            continue;
        };
        if let Some(round) = way.iter().position(|s| *s == next) {
            way.push(next);
            return Some(round);
        }
        if !done[next] {
            way.push(next);
            if let Some(round) = follow(routing, station, way, done) {
                return Some(round);
            }
            way.pop();
        }
    }
    done[at] = true;
    None
}

/// How many links lie between `home` and each switch from which ways lead there; `neighbours` are by switch.
pub fn distances(neighbours: &[Vec<usize>], home: usize) -> Vec<Option<u32>> {
    let mut distance = vec![None; neighbours.len()];
    distance[home] = Some(0);
    let mut next = VecDeque::from([(home, 0)]);
    while let Some((switch, d)) = next.pop_front() {
        for &other in &neighbours[switch] {
            if distance[other].is_none() {
                distance[other] = Some(d + 1);
                next.push_back((other, d + 1));
            }
        }
    }
    distance
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(switches: usize, cables: &[Cable], stations: &[usize]) -> Plan {
        let switch = |n: usize| SwitchPlan {
            name: format!("s{n}"),
            lcore: 0,
            link: LinkPlan {
                rate: None,
                delay: Nanos::ZERO,
            },
            ports: Vec::new(),
            routes: Vec::new(),
            buffer: 1 << 20,
            headroom: None,
            classes: [ClassConfig::lossy(); PRIORITIES],
            marks_by_rate: true,
            map: PriorityMap::default(),
            pause: PauseMode::Pfc,
            quanta: u16::MAX,
            watchdog: Watchdog::default(),
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
            nics: stations.len(),
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
        // Names of ports, and their numbers behind those of the NICs.
        let names = plan.ports();
        let name = |at: usize| {
            (
                names[at].switch.as_str(),
                names[at].number,
                names[at].peer.as_str(),
            )
        };
        assert_eq!(
            (names.len(), name(2), name(9)),
            (10, ("s0", 2, "s3"), ("s3", 1, "s1"))
        );
        for (at, port) in names.iter().enumerate() {
            let switch = plan.switch(&port.switch).unwrap();
            assert_eq!(plan.interface(switch, port.number), 2 + at);
            assert_eq!(plan.port_mac(switch, port.number), port.mac);
        }
    }

    #[test]
    fn ways_by_hand_win_and_must_not_go_round() {
        // A triangle, a NIC at each corner.
        let mut plan = plan(3, &[(0, 1), (1, 2), (2, 0)], &[0, 1, 2]);
        assert_eq!(plan.round(), None);
        let by = |to: &str, via: &[&str]| RoutePlan {
            to: vec![to.into()],
            via: via.iter().map(|v| v.to_string()).collect(),
        };
        // From corner 0 to the NIC at 1 by way of 2, or by both, or not at all.
        plan.switches[0].routes = vec![by("roce1", &["s2"])];
        assert_eq!(plan.routing()[0].routes, [[0], [2], [2]]);
        plan.switches[0].routes = vec![by("roce1", &["s2", "s1"]), by("roce2", &[])];
        assert_eq!(plan.routing()[0].routes, [vec![0], vec![1, 2], vec![]]);
        assert_eq!(plan.round(), None);
        // 2 sends it back.
        plan.switches[2].routes = vec![by("roce1", &["s0"])];
        let (to, names) = plan.round().unwrap();
        assert_eq!((to.as_str(), names.join(" ")), ("roce1", "s0 s2 s0".into()));
    }

    #[test]
    fn a_cable_is_as_the_end_has_it_that_names_it() {
        let mut plan = plan(2, &[(0, 1)], &[0, 1]);
        let link = |gbps: u64| LinkPlan {
            rate: Some(gbps * 1_000_000_000),
            delay: Nanos(gbps),
        };
        plan.switches[0].link = link(1);
        plan.switches[1].link = link(2);
        let cable = [Beyond::Switch(1, 1, 0), Beyond::Switch(0, 1, 0)];
        let both = |plan: &Plan| [plan.link(0, &cable[0]), plan.link(1, &cable[1])];
        assert_eq!(both(&plan), [link(1); 2]);
        let port = |to: &str, gbps| PortPlan {
            to: to.into(),
            link: link(gbps),
        };
        plan.switches[1].ports = vec![port("s0", 3), port("roce1", 4)];
        assert_eq!(both(&plan), [link(3); 2]);
        plan.switches[0].ports = vec![port("s1", 5)];
        assert_eq!(both(&plan), [link(5); 2]);
        let stations = [Beyond::Station(0), Beyond::Station(1)];
        assert_eq!(plan.link(0, &stations[0]), link(1));
        assert_eq!(plan.link(1, &stations[1]), link(4));
    }

    #[test]
    fn what_is_not_joined_has_no_way() {
        let plan = plan(2, &[], &[0, 1]);
        assert!(plan.routing()[0].routes[1].is_empty());
        assert!(!plan.joined(0, 1));
        assert_eq!(plan.switch("s1"), Some(1));
    }
}
