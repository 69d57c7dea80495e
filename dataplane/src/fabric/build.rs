//! A fabric made from its plan: what switches are configured to, links and their room, and which lcore has what.
//!
//! The switches of an lcore are one [`Fabric`], with one order of events. A cable between two of them is a queue of times; one
//! to a switch of another lcore is a [`FabricLink`], as to a NIC: the sender's line has its rate and delay, and frames that are due go on the link. What does
//! not fit into the switch there waits on it, since the time of one thread says nothing of that of the other.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use roceline_engine::fabric::switch::{PortConfig, Red, Switch, SwitchConfig, SwitchError};

use super::depths::Depths;
use super::frame::mac_number;
use super::line::Line;
use super::plan::{Beyond, LinkPlan, Plan, Routing, SwitchPlan};
use super::port::{FabricPort, LinkEnd, NEVER, PAUSES, Peer};
use super::{Fabric, tapped};
use crate::port::{FabricEnd, FabricLink, FabricLinkConfig, Mempool, PortError, RX_BURST};

/// Bytes of a cell: a compromise between what a small frame takes and how many mbufs a full buffer can be.
const CELL: u32 = 512;
/// Pause quanta are times of a rate; a link without one is taken for this.
const NOMINAL_RATE: u64 = 100_000_000_000;
/// Bytes that a NIC may have on its link to a switch of a chosen rate: enough to go on while nobody looks, too few to be a
/// queue of its own.
const UPLINK_BYTES: u64 = 64 << 10;
/// Packets likewise.
const UPLINK_PACKETS: usize = 64;
/// Packets on any other link.
const LINK_PACKETS: usize = 256;
/// Bytes likewise.
const LINK_BYTES: u64 = 512 << 10;
/// Longest frame beside its IP packet: Ethernet header and tag.
const AROUND_IP: u32 = 18;
/// Its checksum, which a switch counts.
pub(super) const FCS: u32 = 4;
/// Frames on a cable between switches that has neither rate nor delay. All of them may be sent before the other end looks at
/// one, so they must fit into its headroom: few.
const CABLE_PACKETS: usize = 32;
/// One more for each of these times of delay, which does not make such a cable slower than 80 Gb/s with frames of 1 kB.
const CABLE_PACKET_NS: u64 = 100;

/// Why there is no fabric.
#[derive(Debug, thiserror::Error)]
pub enum FabricError {
    /// A switch that cannot be.
    #[error("[[fabric.switch]] {name:?}: {source}")]
    Switch {
        /// Its name.
        name: String,
        /// Why.
        source: SwitchError,
    },
    /// A link.
    #[error(transparent)]
    Port(#[from] PortError),
}

/// Whether a fabric can be made of a plan.
///
/// # Errors
/// What cannot be, and what would do.
pub fn check(plan: &Plan) -> Result<(), FabricError> {
    for (n, routing) in plan.routing().iter().enumerate() {
        let config = switch_config(plan, n, &routing.ports);
        config.validate().map_err(|source| FabricError::Switch {
            name: plan.switches[n].name.clone(),
            source,
        })?;
    }
    Ok(())
}

/// What of a switch's configuration follows from its plan.
fn switch_config(plan: &Plan, number: usize, ports: &[Beyond]) -> SwitchConfig {
    let switch = &plan.switches[number];
    let port = |beyond: &Beyond| {
        let mtu = match *beyond {
            Beyond::Station(n) => plan.stations[n].mtu,
            Beyond::Switch(..) => plan.longest(),
        };
        let line = plan.link(number, beyond);
        let rate = line.rate.unwrap_or(NOMINAL_RATE);
        let metres = u32::try_from(line.delay.0 / 5).unwrap_or(u32::MAX);
        let mut port = PortConfig::new(rate, mtu, metres, CELL);
        if switch.marks_by_rate {
            port.red = switch.red().map(|red| Red {
                pmax: red.pmax,
                ..Red::at_rate(rate)
            });
        }
        if let Some(bytes) = switch.headroom {
            port.headroom_bytes = bytes;
        } else if let Beyond::Station(_) = beyond {
            // A NIC here is software: what it has on its link comes, too, and what was taken from there before.
            let frames = UPLINK_PACKETS as u32 + RX_BURST as u32;
            let bytes = uplink_bytes(&line, mtu) as u32 + RX_BURST as u32 * (mtu + AROUND_IP);
            let built = bytes + frames * CELL;
            port.headroom_bytes = port.headroom_bytes.saturating_add(built);
        } else if line.rate.is_none() && !plan.is_apart(number, beyond) {
            // No rate limits what comes after a pause: what is on the cable by then, and as much again until the pause is
            // at the other end.
            let frame = (mtu + AROUND_IP + FCS).next_multiple_of(CELL);
            let coming = 2 * plan.flight(number, beyond) as u32 * frame;
            port.headroom_bytes = port.headroom_bytes.max(coming);
        }
        port
    };
    let mut config = SwitchConfig {
        ports: ports.iter().map(port).collect(),
        buffer_bytes: 0,
        cell_bytes: CELL,
        classes: switch.classes,
        pause: switch.pause,
        quanta: switch.quanta,
        watchdog: switch.watchdog,
        seed: plan.seed.wrapping_add(number as u64),
    };
    config.buffer_bytes = config.buffer_for(switch.buffer);
    config
}

/// Bytes that a NIC's link to a switch holds.
fn uplink_bytes(link: &LinkPlan, mtu: u32) -> u64 {
    match link.rate {
        Some(_) => UPLINK_BYTES.max(4 * u64::from(mtu + AROUND_IP)),
        None => LINK_BYTES,
    }
}

impl Fabric {
    /// Mbufs that a fabric can hold when all of its buffers are full.
    pub fn mbufs(plan: &Plan) -> u64 {
        let routing = plan.routing();
        let mut all = 0;
        for (n, routing) in routing.iter().enumerate() {
            let config = switch_config(plan, n, &routing.ports);
            all += config.buffer_bytes / u64::from(CELL);
            let flights = routing.ports.iter().map(|beyond| plan.flight(n, beyond));
            all += flights.map(|flight| 2 * flight as u64).sum::<u64>();
            let across = routing
                .ports
                .iter()
                .filter(|beyond| plan.is_apart(n, beyond));
            all += (across.count() * LINK_PACKETS) as u64;
        }
        all + (plan.stations.len() * 2 * LINK_PACKETS) as u64
    }

    /// Megabytes for packet buffers of a daemon with this fabric.
    pub fn memory_mb(plan: &Plan) -> u32 {
        // With its header and what lies between, an mbuf takes 4.7 kB; the rest is for NICs.
        u32::try_from(Fabric::mbufs(plan) * 4_800 / 1_000_000 + 100).unwrap_or(u32::MAX)
    }

    /// A fabric with all switches, whatever lcores the plan has for them, and for each of its stations the end of the link that is its NIC's.
    ///
    /// # Errors
    /// When a switch cannot be what it is to be, or the process has no file descriptors left.
    pub fn new(plan: &Plan, pool: Arc<Mempool>) -> Result<(Fabric, Vec<FabricEnd>), FabricError> {
        let mut plan = plan.clone();
        plan.switches.iter_mut().for_each(|switch| switch.lcore = 0);
        let mut builder = Builder::new(&plan);
        let fabric = builder.fabric(0, pool)?;
        Ok((fabric, builder.nic_ends()))
    }

    /// The fabrics of all lcores that have switches, by lcore, and the ends of links as of [`Fabric::new`]. `pool` gives an lcore's.
    ///
    /// # Errors
    /// As of [`Fabric::new`].
    pub fn split(
        plan: &Plan,
        pool: impl Fn(usize) -> Arc<Mempool>,
    ) -> Result<(BTreeMap<usize, Fabric>, Vec<FabricEnd>), FabricError> {
        let mut builder = Builder::new(plan);
        let mut fabrics = BTreeMap::new();
        for lcore in plan.switches.iter().map(|switch| switch.lcore) {
            if let Entry::Vacant(free) = fabrics.entry(lcore) {
                free.insert(builder.fabric(lcore, pool(lcore))?);
            }
        }
        Ok((fabrics, builder.nic_ends()))
    }
}

/// Makes the fabrics of a plan, one lcore after the other.
struct Builder<'a> {
    plan: &'a Plan,
    routing: Vec<Routing>,
    /// By station.
    nic_ends: BTreeMap<usize, FabricEnd>,
    /// By cable: the other end of those between lcores of which one end is made.
    open: BTreeMap<usize, FabricEnd>,
}

impl<'a> Builder<'a> {
    fn new(plan: &'a Plan) -> Builder<'a> {
        Builder {
            plan,
            routing: plan.routing(),
            nic_ends: BTreeMap::new(),
            open: BTreeMap::new(),
        }
    }

    fn nic_ends(self) -> Vec<FabricEnd> {
        self.nic_ends.into_values().collect()
    }

    /// The fabric of an lcore.
    fn fabric(&mut self, lcore: usize, pool: Arc<Mempool>) -> Result<Fabric, FabricError> {
        let plan = self.plan;
        let numbers: Vec<usize> = (0..plan.switches.len())
            .filter(|n| plan.switches[*n].lcore == lcore)
            .collect();
        let mut at: Vec<Vec<usize>> = Vec::new();
        let mut places = 0;
        for &n in &numbers {
            let ports = self.routing[n].ports.len();
            at.push((places..places + ports).collect());
            places += ports;
        }
        let mut switches = Vec::new();
        let mut ports = Vec::with_capacity(places);
        for (own, &n) in numbers.iter().enumerate() {
            let failed = |source| FabricError::Switch {
                name: plan.switches[n].name.clone(),
                source,
            };
            let routing = &self.routing[n];
            let config = switch_config(plan, n, &routing.ports);
            let mut switch = Switch::new(&config).map_err(failed)?;
            for (dst, ways) in (0..).zip(&routing.routes) {
                switch.set_route(dst, ways).map_err(failed)?;
            }
            switches.push(switch);
            for (number, beyond) in (0..).zip(routing.ports.clone()) {
                let peer = match beyond {
                    Beyond::Switch(other, port, _) if !plan.is_apart(n, &beyond) => {
                        let other = numbers.iter().position(|n| *n == other).unwrap_or(own);
                        Peer::Port(at[other][usize::from(port)])
                    }
                    _ => Peer::Link(Box::new(self.link_end(n, &beyond)?)),
                };
                let line = plan.link(n, &beyond);
                let flight = plan.flight(n, &beyond);
                ports.push(FabricPort {
                    switch: own,
                    number,
                    interface: plan.interface(n, number),
                    mac: plan.port_mac(n, number),
                    beyond,
                    peer,
                    out: Line::new(line.rate, line.delay.0),
                    arriving: VecDeque::with_capacity(flight + PAUSES),
                    flight,
                    blocked: false,
                    stalled: false,
                    no_mbuf: 0,
                    depths: Depths::new(plan.switches[n].watched()),
                });
            }
        }
        Ok(Fabric {
            plan: plan.clone(),
            flood: numbers
                .iter()
                .map(|n| self.routing[*n].flood.clone())
                .collect(),
            numbers,
            times: vec![NEVER; 2 * ports.len() + switches.len()],
            switches,
            ports,
            at,
            macs: plan.stations.iter().map(|s| mac_number(&s.mac)).collect(),
            pool,
            ear: tapped::Ear::new(),
            last: 0,
        })
    }

    /// Our end of the link at a port: to a NIC, or to a switch of another lcore.
    fn link_end(&mut self, n: usize, beyond: &Beyond) -> Result<LinkEnd, PortError> {
        let plan = self.plan;
        let line = plan.link(n, beyond);
        let flight = plan.flight(n, beyond);
        let link = |mtu, capacity_packets, capacity_bytes| FabricLinkConfig {
            mtu,
            capacity_packets,
            capacity_bytes,
        };
        match *beyond {
            Beyond::Station(station) => {
                let mtu = plan.stations[station].mtu;
                let down = link(mtu, LINK_PACKETS, LINK_BYTES);
                let packets = line.rate.map_or(LINK_PACKETS, |_| UPLINK_PACKETS);
                let up = link(mtu, packets, uplink_bytes(&line, mtu));
                let (ours, theirs) = FabricLink::joined(&down, &up)?;
                self.nic_ends.insert(station, theirs);
                let uplink = Line::new(line.rate, line.delay.0);
                Ok(LinkEnd::new(ours, uplink, flight, false))
            }
            Beyond::Switch(_, _, cable) => {
                let ours = match self.open.remove(&cable) {
                    Some(ours) => ours,
                    None => {
                        let both = link(plan.longest(), LINK_PACKETS, LINK_BYTES);
                        let (ours, theirs) = FabricLink::joined(&both, &both)?;
                        self.open.insert(cable, theirs);
                        ours
                    }
                };
                // Rate and delay are the sender's.
                Ok(LinkEnd::new(ours, Line::new(None, 0), flight, true))
            }
        }
    }
}

impl Plan {
    /// Frames on their way over the link at a port of switch `number` at most, in one direction.
    fn flight(&self, number: usize, beyond: &Beyond) -> usize {
        let line = self.link(number, beyond);
        match (beyond, line.rate) {
            // Frames can wait at its end, so any number may be on it.
            (Beyond::Switch(..), None) if self.is_apart(number, beyond) => LINK_PACKETS,
            (Beyond::Switch(..), None) => {
                let more = line.delay.0 / CABLE_PACKET_NS;
                more.saturating_add(CABLE_PACKETS as u64)
                    .min(LINK_PACKETS as u64) as usize
            }
            _ => line.flight(),
        }
    }

    /// Bytes of the longest IP packet of a NIC.
    fn longest(&self) -> u32 {
        self.stations.iter().map(|s| s.mtu).max().unwrap_or(1500)
    }
}

impl LinkPlan {
    /// Frames that are on their way over it at most, in one direction: of 1 kB, as many as its delay takes.
    fn flight(&self) -> usize {
        let bits = u128::from(self.rate.unwrap_or(0)) * u128::from(self.delay.0) / 1_000_000_000;
        (bits / 8 / 1_024).min(16_384) as usize + 256
    }
}

impl SwitchPlan {
    /// Priorities whose depths are counted: those that mark or pause.
    fn watched(&self) -> u8 {
        let watched = self.classes.iter().zip(0..);
        watched.fold(0, |mask, (c, p)| {
            mask | u8::from(c.lossless || c.red.is_some()) << p
        })
    }
}
