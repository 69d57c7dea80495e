//! Fabrics from a few numbers: who is joined to whom, with equal NICs, links and switches. In each, the NICs of a switch are at its
//! first ports in the order of their numbers, and the links to other switches at the ports behind them; buffers and headroom
//! follow from rates and delays.

use roceline_engine::Nanos;
use roceline_engine::congestion::pfc::PauseMode;
use roceline_engine::fabric::switch::{PortConfig, Red, SwitchConfig, SwitchError};

use super::{LinkConfig, NodeConfig, NodeId, Sim};

/// Light in fibre: 5 ns for a metre.
const NS_PER_M: u64 = 5;

/// What a fabric is made of.
#[derive(Clone, Debug)]
pub struct Fabric {
    /// All NICs; the seed of each differs by its number, and the length of cable that PFC reckons with is that of `host`.
    pub node: NodeConfig,
    /// The NICs to which the receive rate of `node` applies; `None`: all.
    pub slow: Option<Vec<NodeId>>,
    /// Links between NICs and switches.
    pub host: LinkConfig,
    /// Links between switches.
    pub trunk: LinkConfig,
    /// All switches: classes, cells and kind of pauses. Ports and buffer are made for the place of each, and the seed differs by
    /// the number.
    pub switch: SwitchConfig,
    /// Bytes of buffer of a switch that its queues share, beside headroom and what is reserved.
    pub shared_bytes: u64,
    /// Marking at all ports, in classes that mark; `None`: in proportion to the rate of each ([`Red::at_rate`]).
    pub red: Option<Red>,
    /// Longest IP packet, for the headroom.
    pub mtu: u32,
}

impl Fabric {
    /// NICs and switches as RoCE is deployed ([`SwitchConfig::roce`]): priority 3 lossless by PFC and marked, links of one rate and
    /// 1 us, 4 MiB of shared buffer.
    pub fn new(bits_per_s: u64) -> Fabric {
        let link = LinkConfig {
            bits_per_s,
            delay: Nanos::from_micros(1),
            queue_bytes: 1 << 20,
        };
        let mut node = NodeConfig::default();
        node.pfc.mode = PauseMode::Pfc;
        Fabric {
            node,
            slow: None,
            host: link,
            trunk: link,
            switch: SwitchConfig::roce(Vec::new(), 0),
            shared_bytes: 4 << 20,
            red: None,
            mtu: 4200,
        }
    }

    /// The same without PFC: what finds no room is dropped, in all classes.
    pub fn lossy(mut self) -> Fabric {
        for class in &mut self.switch.classes {
            class.lossless = false;
        }
        self.node.pfc.mode = PauseMode::Off;
        self
    }

    /// `nodes` NICs at one switch; NIC n is at port n.
    ///
    /// # Errors
    /// If the switches cannot be as they are to be; so for the other fabrics.
    pub fn star(&self, nodes: usize) -> Result<Sim, SwitchError> {
        self.build(1, &vec![0; nodes], &[])
    }

    /// Two switches with one link between them: NICs 0 to `left - 1` at the first, `right` more at the second.
    ///
    /// # Errors
    /// As [`Fabric::star`].
    pub fn dumbbell(&self, left: usize, right: usize) -> Result<Sim, SwitchError> {
        let homes: Vec<usize> = (0..left + right).map(|n| usize::from(n >= left)).collect();
        self.build(2, &homes, &[(0, 1)])
    }

    /// A row of switches with `per_switch` NICs at each; NIC n is at switch n / `per_switch`. Flows of all to the last one meet one after
    /// the other.
    ///
    /// # Errors
    /// As [`Fabric::star`].
    pub fn parking_lot(&self, switches: usize, per_switch: usize) -> Result<Sim, SwitchError> {
        let homes: Vec<usize> = (0..switches * per_switch).map(|n| n / per_switch).collect();
        let row: Vec<_> = (1..switches).map(|n| (n - 1, n)).collect();
        self.build(switches, &homes, &row)
    }

    /// Two tiers: each of `leaves` switches has `per_leaf` NICs and a link to each of `spines` switches, which have the numbers
    /// from `leaves` on. NIC n is at leaf n / `per_leaf`.
    ///
    /// # Errors
    /// As [`Fabric::star`].
    pub fn leaf_spine(
        &self,
        leaves: usize,
        spines: usize,
        per_leaf: usize,
    ) -> Result<Sim, SwitchError> {
        let homes: Vec<usize> = (0..leaves * per_leaf).map(|n| n / per_leaf).collect();
        let all = (0..leaves).flat_map(|leaf| (0..spines).map(move |s| (leaf, leaves + s)));
        self.build(leaves + spines, &homes, &all.collect::<Vec<_>>())
    }

    /// Three tiers of switches with `k` ports, an even number: `k` pods of `k / 2` edge and `k / 2` aggregation switches, and a
    /// quarter of `k` squared core switches, for a quarter of `k` cubed NICs (Al-Fares et al., SIGCOMM 2008). Edge switches have
    /// the first numbers, pod by pod, then come those of aggregation, then the core.
    ///
    /// # Errors
    /// As [`Fabric::star`].
    pub fn fat_tree(&self, k: usize) -> Result<Sim, SwitchError> {
        let half = k / 2;
        let homes: Vec<usize> = (0..k * half * half).map(|n| n / half).collect();
        let mut trunks = Vec::new();
        for pod in 0..k {
            for edge in 0..half {
                for agg in 0..half {
                    trunks.push((pod * half + edge, (k + pod) * half + agg));
                }
            }
            for agg in 0..half {
                for core in 0..half {
                    trunks.push(((k + pod) * half + agg, 2 * k * half + agg * half + core));
                }
            }
        }
        self.build(2 * k * half + half * half, &homes, &trunks)
    }

    /// `switches` switches, a NIC for each entry of `homes` at the switch with that number, and links between pairs of switches.
    ///
    /// # Errors
    /// As [`Fabric::star`].
    pub fn build(
        &self,
        switches: usize,
        homes: &[usize],
        trunks: &[(usize, usize)],
    ) -> Result<Sim, SwitchError> {
        let mut ports: Vec<Vec<&LinkConfig>> = vec![Vec::new(); switches];
        // Which ports a link has is known by how many there are before it.
        let mut port = |switch: usize, link| {
            ports[switch].push(link);
            (switch, ports[switch].len() as u16 - 1)
        };
        let hosts: Vec<_> = homes.iter().map(|&home| port(home, &self.host)).collect();
        let trunks: Vec<_> = trunks
            .iter()
            .map(|&(a, b)| (port(a, &self.trunk), port(b, &self.trunk)))
            .collect();
        let mut sim = Sim::new();
        for (number, links) in ports.iter().enumerate() {
            sim.add_switch(&self.switch_config(number, links))?;
        }
        for (number, &at) in hosts.iter().enumerate() {
            let node = sim.add_node(&self.node_config(number));
            sim.join(node, at, &self.host);
        }
        for &(a, b) in &trunks {
            sim.join(a, b, &self.trunk);
        }
        sim.set_routes()?;
        Ok(sim)
    }

    /// Two NICs with a link between them, and no switch.
    pub fn pair(&self) -> Sim {
        let mut sim = Sim::new();
        let ends = [0, 1].map(|number| sim.add_node(&self.node_config(number)));
        sim.join(ends[0], ends[1], &self.host);
        sim
    }

    fn node_config(&self, number: NodeId) -> NodeConfig {
        let mut node = self.node;
        node.pfc.cable_m = cable(self.host.delay);
        if self
            .slow
            .as_ref()
            .is_some_and(|slow| !slow.contains(&number))
        {
            node.receive_bits_per_s = None;
        }
        node
    }

    fn switch_config(&self, number: usize, links: &[&LinkConfig]) -> SwitchConfig {
        let mut config = self.switch.clone();
        let ports = links.iter().map(|link| {
            let rate = link.bits_per_s;
            PortConfig {
                red: Some(self.red.unwrap_or(Red::at_rate(rate))),
                ..PortConfig::new(rate, self.mtu, cable(link.delay), config.cell_bytes)
            }
        });
        config.ports = ports.collect();
        config.seed = config.seed.wrapping_add(number as u64);
        config.buffer_bytes = config.buffer_for(self.shared_bytes);
        config
    }
}

/// How long a cable is that delays so much, metres.
pub fn cable(delay: Nanos) -> u32 {
    (delay.0 / NS_PER_M).min(u32::MAX.into()) as u32
}
