//! The fabric of the daemon in real time: switches ([`roceline_engine::fabric::switch`]) whose frames are mbufs, cables
//! between them, and links to NICs ([`crate::port::FabricLink`]).
//!
//! In flow frames that NICs put on their links, out flow frames on the links to NICs, no byte of them copied but for
//! groups. Each switch is owned and polled by one lcore. Between two polls a NIC's frames have come at some time, and lines have become
//! free at exact times: each poll works through all that in the order of those times, to the picosecond, so a port that is
//! shaped to a rate has that rate, however late a poll comes, and queues are as deep as they would have been.
//!
//! A frame waits in three places: on the link from its NIC, as long as the NIC's line is busy; in a queue of a switch; and on the
//! link to its NIC, when that does not keep up. The last two are bounded by the mbufs that [`Fabric::mbufs`] asks for, so
//! that no full buffer leaves NICs without.

mod build;
pub mod depths;
mod frame;
mod line;
pub mod plan;
mod port;
pub mod report;
mod tapped;

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use roceline_engine::Nanos;
use roceline_engine::fabric::impair::mark_ce;
use roceline_engine::fabric::switch::{FrameInfo, Switch};
use roceline_engine::wire::PauseFrame;
use roceline_engine::wire::pause;

use crate::lcore::tap::Taps;
use crate::port::{Mbuf, Mempool};
use build::FCS;
pub use build::{FabricError, check};
use frame::{Kind, link_bytes, look};
use plan::{Beyond, Plan};
use port::{Carried, FabricPort, NEVER, Peer};

/// All switches of an lcore.
pub struct Fabric {
    /// All switches of the daemon, and what joins them.
    plan: Plan,
    /// By our numbers, as all that follows: the switch's number in the plan.
    numbers: Vec<usize>,
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
    /// Captures that listen at ports.
    ear: tapped::Ear,
    /// The last look, in picoseconds.
    last: u64,
}

/// Where a frame goes.
enum Way {
    /// No farther: it is for the switch itself.
    Here,
    /// To everybody.
    All,
    /// To a port.
    Port(u16, FrameInfo),
    /// There is none.
    None(FrameInfo),
    /// Nowhere yet: there is no room, and it can wait.
    Full,
}

impl Fabric {
    /// Of the NIC at station `n`: it is on another lcore, so what it sends comes also while this one sleeps.
    pub fn apart(&mut self, n: usize) {
        let there = |port: &&mut FabricPort| port.beyond == Beyond::Station(n);
        if let Some(port) = self.ports.iter_mut().find(there) {
            port.apart();
        }
    }

    /// Become readable when NICs and switches on other lcores send, once [`Fabric::arm`] has asked for it.
    pub fn rx_events(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.ports.iter().filter_map(FabricPort::rx_event)
    }

    /// Whether NICs or switches on other lcores send, or make room, without a word: somebody has to look.
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

    /// Does all that has happened until `now`; gives the number of things done, without those of pauses, which are told again and again while
    /// nothing else happens. `taps` hear of it.
    pub fn poll(&mut self, now: Nanos, taps: &mut Taps) -> usize {
        let now_ps = now.0.saturating_mul(1_000);
        self.ear.look(now_ps);
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
            let done = match (event.checked_sub(places), event % 2) {
                (Some(switch), _) => self.pause_time(switch, reached, taps),
                (None, 0) => self.arrive(event / 2, reached, taps),
                (None, _) => self.send(event / 2, reached, taps),
            };
            work += usize::from(done);
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

    /// A pause of a switch runs out, or is to be told again. What may be sent then is another event.
    #[cold]
    fn pause_time(&mut self, switch: usize, at: u64, taps: &mut Taps) -> bool {
        let (places, times, ports) = (&self.at[switch], &mut self.times, &self.ports);
        self.switches[switch].advance(Nanos(at / 1_000), |port| {
            let place = places[usize::from(port)];
            times[2 * place + 1] = ports[place].out.free().max(at);
        });
        self.pauses(switch, at, taps);
        false
    }

    /// What is next at the end of a cable is here. False if it waits on, or is a pause frame.
    fn arrive(&mut self, place: usize, at: u64, taps: &mut Taps) -> bool {
        let port = &mut self.ports[place];
        let told = port.take_told(at).map(Carried::Frame);
        let carried = told.or_else(|| port.arriving.pop_front().map(|(_, carried)| carried));
        self.times[2 * place] = port.next_arrival();
        let (switch, number) = (port.switch, port.number);
        let mut done = true;
        match carried {
            None => {}
            Some(Carried::Pause(frame)) => {
                done = false;
                self.hear_pause(taps, place, false, &frame, at);
                self.paused(place, &frame, at);
            }
            Some(Carried::Frame(mbuf)) => {
                let plan = &self.plan.switches[self.numbers[switch]];
                let seen = look(mbuf.data(), &plan.map);
                let way = self.way(place, &mbuf, &seen);
                if let Way::Full = way {
                    let port = &mut self.ports[place];
                    port.arriving.push_front((at, Carried::Frame(mbuf)));
                    port.stalled = true;
                    self.times[2 * place] = port.next_arrival();
                    return false;
                }
                self.hear(taps, place, false, mbuf.data(), at);
                match way {
                    Way::Here => {
                        done = false;
                        if let Some(frame) = PauseFrame::parse(mbuf.data(), &self.ports[place].mac)
                        {
                            self.paused(place, &frame, at);
                        }
                    }
                    Way::All => self.everybody(place, mbuf, &seen, at),
                    Way::Port(to, info) => self.take_in(place, to, &info, mbuf, at),
                    Way::None(info) => self.switches[switch].refuse(number, &info),
                    Way::Full => {}
                }
            }
        }
        self.pauses(switch, at, taps);
        done
    }

    /// Where a frame goes that is here.
    #[inline]
    fn way(&self, place: usize, mbuf: &Mbuf, seen: &frame::Look) -> Way {
        let port = &self.ports[place];
        let (switch, number) = (&self.switches[port.switch], port.number);
        let dst = match seen.kind {
            Kind::Link => return Way::Here,
            Kind::Group => return Way::All,
            Kind::Station => self.macs.iter().position(|mac| *mac == seen.dst),
        };
        let Some(dst) = dst else { return Way::All };
        let info = info(mbuf, seen, dst as u32);
        match switch.route(info.dst, info.flow_hash) {
            Some(to) if to != number => {
                match port.can_wait() && switch.should_wait(number, to, &info) {
                    true => Way::Full,
                    false => Way::Port(to, info),
                }
            }
            _ => Way::None(info),
        }
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

    /// The line of a port is free. False if nothing could be sent.
    fn send(&mut self, place: usize, at: u64, taps: &mut Taps) -> bool {
        self.times[2 * place + 1] = NEVER;
        let port = &self.ports[place];
        if !port.has_room() {
            self.ports[place].blocked = true;
            return false;
        }
        let (switch, number) = (port.switch, port.number);
        if let Peer::Port(other) = port.peer {
            let there = &self.ports[other].arriving;
            if let Some((due, _)) = there.front().filter(|_| there.len() >= port.flight) {
                // The cable is as full as we can hold: again when something has arrived.
                self.times[2 * place + 1] = (*due).max(at + 1);
                return false;
            }
        }
        let now = Nanos(at / 1_000);
        let Some(departure) = self.switches[switch].transmit(number, now) else {
            return false;
        };
        let mut mbuf = departure.frame;
        if departure.mark_ce {
            mark_ce(mbuf.data_mut());
        }
        self.hear(taps, place, true, mbuf.data(), at);
        let port = &mut self.ports[place];
        let due = port.out.send(at, link_bytes(mbuf.len()));
        let free = port.out.free();
        match port.peer {
            Peer::Link(_) => port.fly(due, mbuf),
            Peer::Port(other) => {
                let there = &mut self.ports[other];
                there.arriving.push_back((due, Carried::Frame(mbuf)));
                self.times[2 * other] = there.next_arrival();
            }
        }
        if self.switches[switch].has_waiting(number) {
            self.times[2 * place + 1] = free;
        }
        self.pauses(switch, at, taps);
        true
    }

    /// Sends the pause frames of a switch.
    #[inline]
    fn pauses(&mut self, switch: usize, at: u64, taps: &mut Taps) {
        while let Some((number, frame)) = self.switches[switch].next_pause(Nanos(at / 1_000)) {
            let place = self.at[switch][usize::from(number)];
            self.hear_pause(taps, place, true, &frame, at);
            let port = &mut self.ports[place];
            match port.peer {
                Peer::Link(_) => port.pause_nic(&frame, at, &self.pool),
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
