//! The simulated network of a scenario, and its counters.

use roceline_engine::Counters;
use roceline_engine::wire::pause::PRIORITIES;

use crate::scenario::topology::Shape;
use crate::scenario::{Scenario, ScenarioError};
use crate::sim::topology::Fabric;
use crate::sim::{LinkConfig, NodeConfig, Sim};

/// Bytes that may wait at a NIC: nothing is asked of an engine before the link is free, so few do.
const NIC_QUEUE: u64 = 1 << 24;

/// NICs and what joins them.
pub(super) struct Network {
    pub sim: Sim,
}

impl Network {
    pub fn new(scenario: &Scenario) -> Result<Network, ScenarioError> {
        let fabric = fabric(scenario);
        let sim = match scenario.topology.shape {
            Shape::Pair => Ok(fabric.pair()),
            Shape::Star { nodes } => fabric.star(nodes),
            Shape::Dumbbell { left, right } => fabric.dumbbell(left, right),
            Shape::ParkingLot { switches, nodes } => fabric.parking_lot(switches, nodes),
            Shape::LeafSpine {
                leaves,
                spines,
                nodes,
            } => fabric.leaf_spine(leaves, spines, nodes),
            Shape::FatTree { k } => fabric.fat_tree(k),
        };
        let failed = |problem| ScenarioError::Run {
            scenario: scenario.name.clone(),
            problem,
        };
        let mut sim =
            sim.map_err(|error| failed(format!("a switch cannot be as [switch] says: {error}")))?;
        for node in 0..scenario.topology.nodes() {
            if let Some(rule) = scenario.links.rule(node, scenario.seed) {
                let added = sim.link(node).rules().add(rule);
                added.map_err(|error| failed(format!("[link] cannot be: {error}")))?;
            }
        }
        Ok(Network { sim })
    }

    /// Metrics that are sums of counters, always in the same order.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let now = self.sim.now();
        let mut all = Counters::default();
        let (mut paused_nics, mut pauses_nics, mut drops_nics) = (0, 0, 0);
        for node in self.sim.nodes() {
            all.add(node.counters());
            paused_nics += node.all_pauses(now).duration.0;
            pauses_nics += node.asked_pauses(now).frames;
            drops_nics += node.received().1;
        }
        let (mut marks, mut drops, mut pauses, mut paused_switches) = (0, 0, 0, 0);
        for switch in self.sim.switches() {
            marks += switch.sum(|queue| queue.ce_marked);
            drops += switch.dropped();
            pauses += switch.pauses_sent(now);
            for port in 0..switch.ports() as u16 {
                let asked =
                    (0..PRIORITIES as u8).map(|p| switch.pauses(port, p, now)[1].duration.0);
                paused_switches += asked.sum::<u64>();
                paused_switches += switch.global_pauses(port, now)[1].duration.0;
            }
        }
        let sum = |count: fn(&crate::sim::Link) -> u64| self.sim.links().iter().map(count).sum();
        vec![
            ("marks", marks),
            ("drops", drops),
            ("drops.nics", drops_nics),
            ("pauses", pauses),
            ("pauses.nics", pauses_nics),
            ("paused.nics", paused_nics),
            ("paused.switches", paused_switches),
            ("lost", sum(|link| link.lost)),
            ("overflowed", sum(|link| link.overflowed)),
            ("cnps.sent", all.np_cnp_sent),
            ("cnps.handled", all.rp_cnp_handled),
            ("cnps.ignored", all.rp_cnp_ignored),
            ("naks", all.packet_seq_err),
            ("timeouts", all.local_ack_timeout_err),
            ("out_of_sequence", all.out_of_sequence),
            ("duplicates", all.duplicate_request),
            ("congested", all.np_ecn_marked_roce_packets),
        ]
    }

    /// Bytes of link time so far, of all directions of links.
    pub fn link_bytes(&self) -> Vec<u64> {
        self.sim.links().iter().map(|link| link.bytes).collect()
    }

    /// The fullest direction of a link.
    pub fn utilization(&self, before: &[u64], after: &[u64], scenario: &Scenario) -> f64 {
        let seconds = scenario.measured_seconds();
        let links = self.sim.links().iter().zip(before.iter().zip(after));
        let parts = links.map(|(link, (before, after))| {
            (after - before) as f64 * 8.0 / seconds / link.config().bits_per_s as f64
        });
        parts.fold(0.0, f64::max)
    }
}

fn fabric(scenario: &Scenario) -> Fabric {
    let topology = &scenario.topology;
    let switches = &scenario.switches;
    let mut fabric = Fabric::new(topology.rate);
    fabric.host = LinkConfig {
        bits_per_s: topology.rate,
        delay: topology.delay,
        queue_bytes: NIC_QUEUE,
    };
    fabric.trunk = LinkConfig {
        bits_per_s: topology.trunk_rate,
        delay: topology.trunk_delay,
        queue_bytes: NIC_QUEUE,
    };
    fabric.node = NodeConfig {
        window: scenario.nic.window,
        ack_policy: scenario.nic.ack_policy,
        retransmission: scenario.nic.retransmission,
        congestion: scenario.nic.congestion,
        pfc: scenario.nic.pfc,
        receive_bits_per_s: scenario.nic.receive_rate,
        seed: scenario.seed,
    };
    fabric.slow.clone_from(&scenario.nic.receivers);
    fabric.switch.pause = switches.pause;
    fabric.shared_bytes = switches.buffer;
    fabric.red = switches.red;
    fabric.switch.seed = scenario.seed;
    // Of the class that comes with marking, only its thresholds are of use.
    let red = fabric.switch.classes.iter().find_map(|class| class.red);
    for (priority, class) in fabric.switch.classes.iter_mut().enumerate() {
        class.lossless = switches.lossless >> priority & 1 == 1;
        class.alpha = match class.lossless {
            true => switches.alpha,
            false => switches.lossy_alpha,
        };
        class.red = red.filter(|_| switches.marked >> priority & 1 == 1);
    }
    fabric
}
