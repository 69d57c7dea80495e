//! The fabric of the daemon in real time: switches ([`roceline_engine::fabric::switch`]) whose frames are mbufs, cables
//! between them, and links to NICs ([`crate::port::FabricLink`]).
//!
//! In flow frames that NICs put on their links, out flow frames on the links to NICs, no byte of them copied but for
//! groups; an lcore owns it all and polls it. Between two polls a NIC's frames have come at some time, and lines have become
//! free at exact times: each poll works through all that in the order of those times, to the picosecond, so a port that is
//! shaped to a rate has that rate, however late a poll comes, and queues are as deep as they would have been.
//!
//! A frame waits in three places: on the link from its NIC, as long as the NIC's line is busy; in a queue of a switch; and on the
//! link to its NIC, when that does not keep up. The last two are bounded by the mbufs that [`Fabric::mbufs`] asks for, so
//! that no full buffer leaves NICs without.

pub mod depths;
mod frame;
mod line;
pub mod plan;
mod port;
pub mod report;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use roceline_engine::Nanos;
use roceline_engine::fabric::impair::mark_ce;
use roceline_engine::fabric::switch::{
    FrameInfo, PortConfig, Red, Switch, SwitchConfig, SwitchError,
};
use roceline_engine::wire::PauseFrame;
use roceline_engine::wire::pause;

use crate::port::{FabricEnd, FabricLink, FabricLinkConfig, Mbuf, Mempool, PortError, RX_BURST};
use depths::Depths;
use frame::{Kind, link_bytes, look, mac_number};
use line::Line;
use plan::{Beyond, LinkPlan, Plan, SwitchPlan};
use port::{Carried, FabricPort, NEVER, NicEnd, PAUSES, Peer};

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
const FCS: u32 = 4;
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

/// All switches of a daemon.
pub struct Fabric {
    plan: Plan,
    /// By number.
    switches: Vec<Switch<Mbuf>>,
    /// Ports of all switches.
    ports: Vec<FabricPort>,
    /// By switch and port number: place in `ports`.
    at: Vec<Vec<usize>>,
    /// By switch: ports to which frames for everybody go.
    flood: Vec<Vec<u16>>,
    /// When the next thing happens. By place in `ports`, two each: when the next frame is here, and when the line is to be given one; then by
    /// switch: when a pause runs out, or is to be told again.
    times: Vec<u64>,
    /// MAC addresses of NICs, by destination.
    macs: Vec<u64>,
    pool: Arc<Mempool>,
    /// The last look, in picoseconds.
    last: u64,
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
        } else if line.rate.is_none() {
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
        }
        all + (plan.stations.len() * 2 * LINK_PACKETS) as u64
    }

    /// Megabytes for packet buffers of a daemon with this fabric.
    pub fn memory_mb(plan: &Plan) -> u32 {
        // With its header and what lies between, an mbuf takes 4.7 kB; the rest is for NICs.
        u32::try_from(Fabric::mbufs(plan) * 4_800 / 1_000_000 + 100).unwrap_or(u32::MAX)
    }

    /// A fabric, and for each of its stations the end of the link that is its NIC's.
    ///
    /// # Errors
    /// When a switch cannot be what it is to be, or the process has no file descriptors left.
    pub fn new(plan: &Plan, pool: Arc<Mempool>) -> Result<(Fabric, Vec<FabricEnd>), FabricError> {
        let routing = plan.routing();
        let mut fabric = Fabric {
            plan: plan.clone(),
            switches: Vec::new(),
            ports: Vec::new(),
            at: Vec::new(),
            flood: Vec::new(),
            times: Vec::new(),
            macs: plan.stations.iter().map(|s| mac_number(&s.mac)).collect(),
            pool,
            last: 0,
        };
        let mut first = 0;
        for routing in &routing {
            let ports = first..first + routing.ports.len();
            first = ports.end;
            fabric.at.push(ports.collect());
            fabric.flood.push(routing.flood.clone());
        }
        fabric.times = vec![NEVER; 2 * first + routing.len()];
        let mut nic_ends = Vec::new();
        for (n, routing) in routing.iter().enumerate() {
            let own = &plan.switches[n];
            let failed = |source| FabricError::Switch {
                name: own.name.clone(),
                source,
            };
            let config = switch_config(plan, n, &routing.ports);
            let mut switch = Switch::new(&config).map_err(failed)?;
            for (dst, ways) in (0..).zip(&routing.routes) {
                switch.set_route(dst, ways).map_err(failed)?;
            }
            fabric.switches.push(switch);
            for (number, beyond) in (0..).zip(&routing.ports) {
                let line = plan.link(n, beyond);
                let flight = plan.flight(n, beyond);
                let peer = match *beyond {
                    Beyond::Station(station) => {
                        let mtu = plan.stations[station].mtu;
                        let link = |capacity_packets, capacity_bytes| FabricLinkConfig {
                            mtu,
                            capacity_packets,
                            capacity_bytes,
                        };
                        let down = link(LINK_PACKETS, LINK_BYTES);
                        let packets = line.rate.map_or(LINK_PACKETS, |_| UPLINK_PACKETS);
                        let up = link(packets, uplink_bytes(&line, mtu));
                        let (ours, theirs) = FabricLink::joined(&down, &up)?;
                        nic_ends.push((station, theirs));
                        let uplink = Line::new(line.rate, line.delay.0);
                        Peer::Nic(Box::new(NicEnd::new(ours, uplink, flight)))
                    }
                    Beyond::Switch(other, port, _) => {
                        let place = fabric.at[other][usize::from(port)];
                        Peer::Port(place)
                    }
                };
                fabric.ports.push(FabricPort {
                    switch: n,
                    number,
                    mac: [0x02, 0x52, 0x4c, 0xff, n as u8, number as u8],
                    beyond: *beyond,
                    peer,
                    out: Line::new(line.rate, line.delay.0),
                    arriving: VecDeque::with_capacity(flight + PAUSES),
                    flight,
                    blocked: false,
                    stalled: false,
                    no_mbuf: 0,
                    depths: Depths::new(own.watched()),
                });
            }
        }
        nic_ends.sort_by_key(|(station, _)| *station);
        let nic_ends = nic_ends.into_iter().map(|(_, end)| end).collect();
        Ok((fabric, nic_ends))
    }

    /// Of the NIC at station `n`: it is on another lcore, so what it sends comes also while this one sleeps.
    pub fn apart(&mut self, n: usize) {
        let there = |port: &&mut FabricPort| port.beyond == Beyond::Station(n);
        if let Some(port) = self.ports.iter_mut().find(there) {
            port.apart();
        }
    }

    /// Become readable when NICs on other lcores send, once [`Fabric::arm`] has asked for it.
    pub fn rx_events(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ports.iter().filter_map(FabricPort::rx_event)
    }

    /// Whether NICs on other lcores send without a word: somebody has to look.
    pub fn is_polled(&self) -> bool {
        self.ports.iter().any(FabricPort::is_polled)
    }

    /// Asks for these events. False if there is something to be done already.
    pub fn arm(&mut self) -> bool {
        // All of them: what was not asked for would not come.
        let mut quiet = true;
        for port in &mut self.ports {
            quiet &= port.arm();
        }
        quiet
    }

    /// Ends what [`Fabric::arm`] began.
    pub fn disarm(&mut self) {
        self.ports.iter_mut().for_each(FabricPort::disarm);
    }

    /// Does all that has happened until `now`; gives the number of things done.
    pub fn poll(&mut self, now: Nanos) -> usize {
        let now_ps = now.0.saturating_mul(1_000);
        let mut work = 0;
        for place in 0..self.ports.len() {
            let port = &mut self.ports[place];
            work += port.take(self.last, now_ps);
            port.stalled = false;
            self.times[2 * place] = port.next_arrival();
        }
        let (places, mut reached) = (2 * self.ports.len(), self.last);
        while let Some((event, at)) = self.first_event().filter(|(_, at)| *at <= now_ps) {
            // A pause that is owed is due since ever.
            reached = reached.max(at);
            work += 1;
            match (event.checked_sub(places), event % 2) {
                (Some(switch), _) => self.pause_time(switch, reached),
                (None, 0) => self.arrive(event / 2, reached),
                (None, _) => self.send(event / 2, reached),
            }
        }
        for place in 0..self.ports.len() {
            let port = &mut self.ports[place];
            let given = port.deliver(now_ps);
            work += given;
            if port.blocked && given > 0 {
                port.blocked = false;
                self.times[2 * place + 1] = port.out.free().max(now_ps);
            }
        }
        self.last = now_ps;
        work
    }

    /// The earliest event, and when.
    #[inline]
    fn first_event(&self) -> Option<(usize, u64)> {
        let first = self.times.iter().enumerate().min_by_key(|(_, at)| **at);
        first
            .map(|(event, at)| (event, *at))
            .filter(|(_, at)| *at != NEVER)
    }

    /// When [`Fabric::poll`] has something to do, if no NIC sends before.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let events = self.times.iter().copied();
        let at_nics = self.ports.iter().map(FabricPort::next_at_nic);
        let first = events.chain(at_nics).min().unwrap_or(NEVER);
        (first != NEVER).then(|| Nanos(first.div_ceil(1_000)))
    }

    /// A pause of a switch runs out, or is to be told again.
    #[cold]
    fn pause_time(&mut self, switch: usize, at: u64) {
        let (places, times, ports) = (&self.at[switch], &mut self.times, &self.ports);
        self.switches[switch].advance(Nanos(at / 1_000), |port| {
            let place = places[usize::from(port)];
            times[2 * place + 1] = ports[place].out.free().max(at);
        });
        self.pauses(switch, at);
    }

    /// What is next at the end of a cable is here.
    fn arrive(&mut self, place: usize, at: u64) {
        let port = &mut self.ports[place];
        let told = port.take_told(at).map(Carried::Frame);
        let carried = told.or_else(|| port.arriving.pop_front().map(|(_, carried)| carried));
        self.times[2 * place] = port.next_arrival();
        let (switch, number) = (port.switch, port.number);
        match carried {
            None => {}
            Some(Carried::Pause(frame)) => self.paused(place, &frame, at),
            Some(Carried::Frame(mbuf)) => {
                let seen = look(mbuf.data(), &self.plan.switches[switch].map);
                match seen.kind {
                    Kind::Link => {
                        if let Some(frame) = PauseFrame::parse(mbuf.data(), &port.mac) {
                            self.paused(place, &frame, at);
                        }
                    }
                    Kind::Group => self.everybody(place, mbuf, &seen, at),
                    Kind::Station => match self.macs.iter().position(|mac| *mac == seen.dst) {
                        None => self.everybody(place, mbuf, &seen, at),
                        Some(dst) => {
                            let info = info(&mbuf, &seen, dst as u32);
                            match self.switches[switch].route(info.dst, info.flow_hash) {
                                Some(to) if to != number => {
                                    if self.ports[place].can_wait()
                                        && self.switches[switch].should_wait(number, to, &info)
                                    {
                                        let port = &mut self.ports[place];
                                        port.arriving.push_front((at, Carried::Frame(mbuf)));
                                        port.stalled = true;
                                        self.times[2 * place] = port.next_arrival();
                                        return;
                                    }
                                    self.take_in(place, to, &info, mbuf, at);
                                }
                                _ => self.switches[switch].refuse(number, &info),
                            }
                        }
                    },
                }
            }
        }
        self.pauses(switch, at);
    }

    /// A frame for everybody, or for somebody unknown: a copy for each port of the tree.
    fn everybody(&mut self, place: usize, mbuf: Mbuf, seen: &frame::Look, at: u64) {
        let (switch, number) = (self.ports[place].switch, self.ports[place].number);
        if !self.flood[switch].contains(&number) {
            // It came by a cable that is not in the tree: somebody unknown, sent there by nobody of ours.
            return;
        }
        let info = info(&mbuf, seen, u32::MAX);
        for n in 0..self.flood[switch].len() {
            let to = self.flood[switch][n];
            if to == number {
                continue;
            }
            let copy = self.pool.alloc().and_then(|mut copy| {
                copy.set_len(mbuf.len())?.copy_from_slice(mbuf.data());
                Some(copy)
            });
            let Some(copy) = copy else {
                self.ports[place].no_mbuf += 1;
                continue;
            };
            self.take_in(place, to, &info, copy, at);
        }
    }

    /// A frame that came at a place is to leave at port `to` of the same switch.
    fn take_in(&mut self, place: usize, to: u16, info: &FrameInfo, mbuf: Mbuf, at: u64) {
        let (switch, number) = (self.ports[place].switch, self.ports[place].number);
        let depth = self.switches[switch].depth(to, info.priority);
        self.ports[self.at[switch][usize::from(to)]]
            .depths
            .note(info.priority, depth);
        let now = Nanos(at / 1_000);
        let kept = self.switches[switch].receive_for(number, to, info, mbuf, now);
        if kept.is_ok() {
            self.wants_turn(switch, to, at);
        }
    }

    /// A port has something to send.
    #[inline]
    fn wants_turn(&mut self, switch: usize, to: u16, at: u64) {
        let place = self.at[switch][usize::from(to)];
        let turn = &mut self.times[2 * place + 1];
        let port = &self.ports[place];
        if *turn == NEVER && !port.blocked {
            *turn = port.out.free().max(at);
        }
    }

    /// The station beyond a port asks for a pause, or for its end.
    fn paused(&mut self, place: usize, frame: &PauseFrame, at: u64) {
        let (switch, number) = (self.ports[place].switch, self.ports[place].number);
        self.switches[switch].on_pause(number, frame, Nanos(at / 1_000));
        if self.switches[switch].has_waiting(number) {
            self.wants_turn(switch, number, at);
        }
    }

    /// The line of a port is free.
    fn send(&mut self, place: usize, at: u64) {
        self.times[2 * place + 1] = NEVER;
        let port = &self.ports[place];
        if !port.has_room() {
            self.ports[place].blocked = true;
            return;
        }
        let (switch, number) = (port.switch, port.number);
        if let Peer::Port(other) = port.peer {
            let there = &self.ports[other].arriving;
            if let Some((due, _)) = there.front().filter(|_| there.len() >= port.flight) {
                // The cable is as full as we can hold: again when something has arrived.
                self.times[2 * place + 1] = (*due).max(at + 1);
                return;
            }
        }
        let now = Nanos(at / 1_000);
        let Some(departure) = self.switches[switch].transmit(number, now) else {
            return;
        };
        let mut mbuf = departure.frame;
        if departure.mark_ce {
            mark_ce(mbuf.data_mut());
        }
        let port = &mut self.ports[place];
        let due = port.out.send(at, link_bytes(mbuf.len()));
        let free = port.out.free();
        match port.peer {
            Peer::Nic(_) => port.fly(due, mbuf),
            Peer::Port(other) => {
                let there = &mut self.ports[other];
                there.arriving.push_back((due, Carried::Frame(mbuf)));
                self.times[2 * other] = there.next_arrival();
            }
        }
        if self.switches[switch].has_waiting(number) {
            self.times[2 * place + 1] = free;
        }
        self.pauses(switch, at);
    }

    /// Sends the pause frames of a switch.
    #[inline]
    fn pauses(&mut self, switch: usize, at: u64) {
        while let Some((number, frame)) = self.switches[switch].next_pause(Nanos(at / 1_000)) {
            let place = self.at[switch][usize::from(number)];
            let port = &mut self.ports[place];
            match port.peer {
                Peer::Nic(_) => port.pause_nic(&frame, at, &self.pool),
                Peer::Port(other) => {
                    let due = port.out.send(at, link_bytes(pause::LEN));
                    let there = &mut self.ports[other];
                    there.arriving.push_back((due, Carried::Pause(frame)));
                    self.times[2 * other] = there.next_arrival();
                }
            }
        }
        let next = self.switches[switch].next_deadline();
        self.times[2 * self.ports.len() + switch] = next.map_or(NEVER, |at| at.0 * 1_000);
    }
}

fn info(mbuf: &Mbuf, seen: &frame::Look, dst: u32) -> FrameInfo {
    FrameInfo {
        // With its FCS.
        bytes: mbuf.len() as u32 + FCS,
        priority: seen.priority,
        ecn_capable: seen.ecn_capable,
        dst,
        flow_hash: seen.flow_hash,
    }
}

impl Plan {
    /// Frames on their way over the link at a port of switch `number` at most, in one direction.
    fn flight(&self, number: usize, beyond: &Beyond) -> usize {
        let line = self.link(number, beyond);
        match (beyond, line.rate) {
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
