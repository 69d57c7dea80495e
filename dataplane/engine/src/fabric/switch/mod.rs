//! A shared-buffer switch: what stands between NICs in a data centre, as a state machine without clock or bytes.
//!
//! **In** flow frames ([`Switch::receive`]), pause frames of the stations beyond the ports ([`Switch::on_pause`]), and the
//! time. **Out** come frames whose turn it is ([`Switch::transmit`], whenever a port's line is free), pause frames for the
//! stations ([`Switch::next_pause`]) and the next time at which something changes by itself ([`Switch::next_deadline`]).
//! A frame is an `F`: an mbuf in the daemon, a descriptor under virtual time. A switch belongs to one thread; nothing is
//! allocated after it is made.
//!
//! Frames wait in one queue for each egress port and priority, in memory that all queues share: an
//! account may have a share of what is free. In a lossy class the egress queue has the account, and what does not fit is
//! dropped; in a lossless one the ingress port has it, and its upstream is paused in time, so what still comes fits into the
//! headroom. Marks ([`Red`]) are set when a frame leaves, by what waits behind it, so the news is not delayed by the queue.

mod buffer;
mod config;
mod counters;
mod marking;
mod pause;
mod routes;
mod scheduler;
mod slots;
#[cfg(test)]
mod tests;

pub use config::{
    Alpha, ClassConfig, MAX_FRAME, MAX_PORTS, PortConfig, SwitchConfig, SwitchError, Turn,
};
pub use counters::{IngressCounters, QueueCounters};
pub use marking::Red;
pub use routes::Destination;

use crate::congestion::pfc::PauseCounts;
use crate::fabric::impair::Random;
use crate::time::Nanos;
use crate::wire::pause::{PRIORITIES, PauseFrame};
use buffer::{Account, Pool};
use pause::Pauses;
use routes::Routes;
use scheduler::{Round, Turns};
use slots::{Chain, Slots, Waiting};

/// Accounts of paused upstreams that are looked at, besides its own, when a frame leaves.
const LOOK_AT: usize = 4;

/// What a switch needs to know of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameInfo {
    /// Bytes that it takes, up to [`MAX_FRAME`].
    pub bytes: u32,
    /// 0 to 7; higher bits are not looked at.
    pub priority: u8,
    /// Its IP header says ECT(0), ECT(1) or CE (RFC 3168).
    pub ecn_capable: bool,
    /// Where it is to go.
    pub dst: Destination,
    /// The same for all frames of a flow.
    pub flow_hash: u32,
}

/// Why a frame goes no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// No route, or one back to where it came from.
    NoRoute,
    /// No room in the buffer for its class.
    NoRoom,
    /// It is not ECN-capable and would have been marked.
    NotEct,
    /// The station beyond its egress port has paused its priority for so long that the watchdog drops what is for it.
    Storm,
}

/// A frame that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure<F> {
    /// The frame.
    pub frame: F,
    /// Its bytes.
    pub bytes: u32,
    /// Its priority.
    pub priority: u8,
    /// Port that it came from.
    pub ingress: u16,
    /// Its IP header is to say CE.
    pub mark_ce: bool,
}

/// Frames of one priority that wait at one egress port.
struct Queue {
    chain: Chain,
    depth: u64,
    frames: u32,
    /// Of a lossy class.
    account: Account,
    red: Option<Red>,
    counters: QueueCounters,
}

/// Frames of one priority that came from one port.
struct Ingress {
    /// Of a lossless class.
    account: Account,
    paused: bool,
    counters: IngressCounters,
}

/// An egress port's turn-taking.
struct Egress {
    /// Bit per priority with a frame.
    waiting: u8,
    round: Round,
}

/// A switch whose frames are `F`.
pub struct Switch<F> {
    classes: [ClassConfig; PRIORITIES],
    cell: u32,
    turns: Turns,
    routes: Routes,
    random: Random,
    pool: Pool,
    slots: Slots<F>,
    /// By port times [`PRIORITIES`] and priority, as `ingress`.
    queues: Vec<Queue>,
    ingress: Vec<Ingress>,
    ports: Vec<Egress>,
    pauses: Pauses,
    /// Accounts, as indices into `ingress`, whose upstream is paused.
    paused: Vec<u32>,
    /// Where to go on looking at them.
    look_at: usize,
}

/// Index of a port's priority.
#[inline(always)]
fn of(port: usize, priority: usize) -> usize {
    port * PRIORITIES + priority
}

impl<F> Switch<F> {
    /// A switch without routes.
    ///
    /// # Errors
    /// If the configuration makes no sense.
    pub fn new(config: &SwitchConfig) -> Result<Switch<F>, SwitchError> {
        config.validate()?;
        let ports = config.ports.len();
        let shared = config.buffer_bytes - config.set_aside();
        let classes = config.classes;
        let account = |priority: usize, lossless: bool, headroom: u32| match classes[priority] {
            class if class.lossless == lossless => Account {
                reserved_limit: class.reserved_bytes,
                headroom_limit: headroom,
                ..Account::default()
            },
            _ => Account::default(),
        };
        let places = || (0..ports).flat_map(|port| (0..PRIORITIES).map(move |p| (port, p)));
        Ok(Switch {
            classes,
            cell: config.cell_bytes,
            turns: Turns::new(&classes),
            routes: Routes::new(ports, config.seed),
            random: Random::new(config.seed),
            pool: Pool::new(shared),
            slots: Slots::new(config.frames() as usize),
            queues: places()
                .map(|(port, priority)| Queue {
                    chain: Chain::EMPTY,
                    depth: 0,
                    frames: 0,
                    account: account(priority, false, 0),
                    red: classes[priority]
                        .red
                        .map(|of_class| config.ports[port].red.unwrap_or(of_class)),
                    counters: QueueCounters::default(),
                })
                .collect(),
            ingress: places()
                .map(|(port, priority)| Ingress {
                    account: account(priority, true, config.ports[port].headroom_bytes),
                    paused: false,
                    counters: IngressCounters::default(),
                })
                .collect(),
            ports: (0..ports)
                .map(|_| Egress {
                    waiting: 0,
                    round: Round::default(),
                })
                .collect(),
            pauses: Pauses::new(config),
            paused: Vec::with_capacity(ports * PRIORITIES),
            look_at: 0,
        })
    }

    /// Sets the equal paths to a destination; none: it cannot be reached. Not for the hot loop.
    ///
    /// # Errors
    /// If there is no such port.
    pub fn set_route(&mut self, dst: Destination, ports: &[u16]) -> Result<(), SwitchError> {
        self.routes.set(dst, ports)
    }

    /// The port by which a flow leaves for a destination.
    #[inline]
    pub fn route(&self, dst: Destination, flow_hash: u32) -> Option<u16> {
        self.routes.find(dst, flow_hash)
    }

    /// Whether a frame that comes by `port` and is to leave at port `to` had better wait outside, where it can: its class is lossless, and
    /// there will be room for it, but is none now. What would be dropped whenever it comes need not wait: what a storm
    /// discards, and what not even an idle switch takes.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn should_wait(&self, port: u16, to: u16, info: &FrameInfo) -> bool {
        let priority = usize::from(info.priority & 7);
        let class = &self.classes[priority];
        let account = &self.ingress[of(port.into(), priority)].account;
        let charge = self.charge(info);
        class.lossless
            && self.pool.fits(account, class.alpha, charge).is_none()
            && self.pauses.discarding(to.into()) >> priority & 1 == 0
            && self.pool.can_ever_fit(account, class.alpha, charge)
    }

    /// Bytes that a frame takes of the buffer: of whole cells.
    #[inline(always)]
    fn charge(&self, info: &FrameInfo) -> u32 {
        let cells = info.bytes.max(1).div_ceil(self.cell);
        cells.saturating_mul(self.cell)
    }

    /// A frame has arrived at `port`. It waits for its turn at the port that is given back, or comes back with the reason.
    ///
    /// # Panics
    /// If there is no such port.
    #[inline]
    pub fn receive(
        &mut self,
        port: u16,
        info: &FrameInfo,
        frame: F,
        now: Nanos,
    ) -> Result<u16, (F, DropReason)> {
        match self.route(info.dst, info.flow_hash) {
            Some(to) if to != port => self.receive_for(port, to, info, frame, now).map(|()| to),
            _ => {
                self.refuse(port, info);
                Err((frame, DropReason::NoRoute))
            }
        }
    }

    /// Counts a frame that arrived at `port` and has no way on: none is known, or it is the way back.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn refuse(&mut self, port: u16, info: &FrameInfo) {
        let at = of(port.into(), usize::from(info.priority & 7));
        let counters = &mut self.ingress[at].counters;
        counters.rx_frames += 1;
        counters.rx_bytes += u64::from(info.bytes);
        counters.unroutable += 1;
    }

    /// As [`Switch::receive`], for a frame that is to leave at port `to` whatever the routes say: one of the copies of a
    /// frame for everybody.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn receive_for(
        &mut self,
        port: u16,
        to: u16,
        info: &FrameInfo,
        frame: F,
        now: Nanos,
    ) -> Result<(), (F, DropReason)> {
        let priority = usize::from(info.priority & 7);
        let charge = self.charge(info);
        let class = &self.classes[priority];
        let from = of(port.into(), priority);
        let ingress = &mut self.ingress[from];
        let queue = &mut self.queues[of(to.into(), priority)];
        let bytes = u64::from(info.bytes);
        ingress.counters.rx_frames += 1;
        ingress.counters.rx_bytes += bytes;
        if let Some(red) = queue.red {
            let early = class.drop_not_ect && !class.lossless && !info.ecn_capable;
            if early && red.hits(queue.depth, &mut self.random) {
                queue.counters.dropped_not_ect += 1;
                queue.counters.dropped_bytes += bytes;
                return Err((frame, DropReason::NotEct));
            }
        }
        if self.pauses.discarding(to.into()) >> priority & 1 == 1 {
            queue.counters.dropped_storm += 1;
            queue.counters.dropped_bytes += bytes;
            return Err((frame, DropReason::Storm));
        }
        let account = match class.lossless {
            true => &mut ingress.account,
            false => &mut queue.account,
        };
        let waiting = Waiting {
            bytes: info.bytes,
            charge,
            ingress: port,
            ecn_capable: info.ecn_capable,
        };
        let kept = if info.bytes > MAX_FRAME || !self.pool.take(account, class.alpha, charge) {
            Err(frame)
        } else {
            // Each frame has taken a cell at least, and there are as many slots as cells.
            let pushed = self.slots.push(&mut queue.chain, frame, waiting);
            if pushed.is_err() {
                self.pool.give_back(account, charge);
            }
            pushed
        };
        if let Err(frame) = kept {
            let (dropped, dropped_bytes) = match class.lossless {
                true => {
                    let c = &mut ingress.counters;
                    (&mut c.dropped, &mut c.dropped_bytes)
                }
                false => {
                    let c = &mut queue.counters;
                    (&mut c.dropped, &mut c.dropped_bytes)
                }
            };
            *dropped += 1;
            *dropped_bytes += bytes;
            return Err((frame, DropReason::NoRoom));
        }
        queue.frames += 1;
        queue.depth += bytes;
        queue.counters.max_depth = queue.counters.max_depth.max(queue.depth);
        self.ports[usize::from(to)].waiting |= 1 << priority;
        if class.lossless {
            let headroom = ingress.account.headroom;
            ingress.counters.max_headroom = ingress.counters.max_headroom.max(headroom);
            if !ingress.paused && self.pool.is_over(&ingress.account, class.alpha) {
                ingress.paused = true;
                self.paused.push(from as u32);
                self.pauses.set_over(port.into(), priority, true, now);
            }
        }
        Ok(())
    }

    /// The line of `port` is free: the frame that goes next, if one may.
    ///
    /// # Panics
    /// If there is no such port.
    #[inline]
    pub fn transmit(&mut self, port: u16, now: Nanos) -> Option<Departure<F>> {
        let egress = &mut self.ports[usize::from(port)];
        if egress.waiting == 0 {
            return None;
        }
        let ready = egress.waiting & !self.pauses.stopped(port.into(), now);
        let (queues, slots) = (&self.queues, &self.slots);
        let head = |p| {
            let queue = &queues[of(port.into(), p)];
            slots.head(&queue.chain).map_or(0, |w| w.bytes)
        };
        let priority = self.turns.pick(&mut egress.round, ready, head)?;
        let queue = &mut self.queues[of(port.into(), priority)];
        let (frame, waiting) = self.slots.pop(&mut queue.chain)?;
        let Waiting {
            bytes,
            charge,
            ingress,
            ecn_capable,
        } = waiting;
        queue.depth -= u64::from(bytes);
        queue.frames -= 1;
        queue.counters.tx_frames += 1;
        queue.counters.tx_bytes += u64::from(bytes);
        if queue.chain.is_empty() {
            egress.waiting &= !(1 << priority);
            egress.round.emptied(priority);
        }
        let class = &self.classes[priority];
        let red = queue.red.filter(|_| ecn_capable);
        let mark_ce = red.is_some_and(|red| red.hits(queue.depth, &mut self.random));
        queue.counters.ce_marked += u64::from(mark_ce);
        if class.lossless {
            let at = of(ingress.into(), priority);
            self.pool.give_back(&mut self.ingress[at].account, charge);
            if self.ingress[at].paused {
                self.resume_if_under(at, now);
            }
        } else {
            self.pool.give_back(&mut queue.account, charge);
        }
        if !self.paused.is_empty() {
            self.look_at_paused(now);
        }
        Some(Departure {
            frame,
            bytes,
            priority: priority as u8,
            ingress,
            mark_ce,
        })
    }

    /// Lets an upstream go on, if its account is small enough.
    fn resume_if_under(&mut self, at: usize, now: Nanos) -> bool {
        let priority = at % PRIORITIES;
        let class = &self.classes[priority];
        let ingress = &mut self.ingress[at];
        let under = self
            .pool
            .is_under(&ingress.account, class.alpha, class.xon_offset_bytes);
        if under {
            ingress.paused = false;
            if let Some(n) = self.paused.iter().position(|p| *p as usize == at) {
                self.paused.swap_remove(n);
            }
            self.pauses.set_over(at / PRIORITIES, priority, false, now);
        }
        under
    }

    /// What leaves makes room for all: thresholds rise. So accounts whose own frames wait behind another pause are
    /// looked at, too, a few at a time.
    #[cold]
    fn look_at_paused(&mut self, now: Nanos) {
        for _ in 0..LOOK_AT.min(self.paused.len()) {
            if self.look_at >= self.paused.len() {
                self.look_at = 0;
            }
            let Some(&at) = self.paused.get(self.look_at) else {
                return;
            };
            if !self.resume_if_under(at as usize, now) {
                self.look_at += 1;
            }
        }
    }

    /// The station beyond `port` asks for a pause, or for its end. Try [`Switch::transmit`] afterwards if the line is free.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn on_pause(&mut self, port: u16, frame: &PauseFrame, now: Nanos) {
        self.pauses.receive(port.into(), frame, now);
    }

    /// A pause frame to send, and the port. It goes before all frames that wait. Ask until there is none.
    #[inline]
    pub fn next_pause(&mut self, now: Nanos) -> Option<(u16, PauseFrame)> {
        self.pauses.next(now)
    }

    /// When to call [`Switch::advance`].
    #[inline]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.pauses.next_deadline()
    }

    /// Does what is due: pauses that are to last are told again ([`Switch::next_pause`]), and `ended` gets each port at which a
    /// pause has run out, whose turn it may be again.
    pub fn advance(&mut self, now: Nanos, ended: impl FnMut(u16)) {
        self.pauses.advance(now, ended);
    }

    /// Whether something waits at a port, paused or not.
    #[inline]
    pub fn has_waiting(&self, port: u16) -> bool {
        self.ports[usize::from(port)].waiting != 0
    }

    /// Number of ports.
    pub fn ports(&self) -> usize {
        self.ports.len()
    }

    /// Bytes of frames that wait at an egress port in one priority.
    #[inline]
    pub fn depth(&self, port: u16, priority: u8) -> u64 {
        self.queues[of(port.into(), usize::from(priority & 7))].depth
    }

    /// Frames that wait there.
    pub fn frames(&self, port: u16, priority: u8) -> u32 {
        self.queues[of(port.into(), usize::from(priority & 7))].frames
    }

    /// Bytes of buffer that frames from a port have in a lossless priority, in whole cells.
    pub fn held(&self, port: u16, priority: u8) -> u64 {
        self.ingress[of(port.into(), usize::from(priority & 7))]
            .account
            .bytes()
    }

    /// Bytes of the shared part of the buffer in use, and the most that were.
    pub fn shared(&self) -> (u64, u64) {
        (self.pool.used(), self.pool.most())
    }

    /// Pauses of a priority at a port: those that the switch asked for, and those that it was asked for.
    pub fn pause_counts(&self, port: u16, priority: u8, now: Nanos) -> [PauseCounts; 2] {
        let priority = usize::from(priority & 7);
        self.pauses.counts(port.into(), priority, now)
    }

    /// The same of PAUSE (802.3x), which has no priorities.
    pub fn global_pause_counts(&self, port: u16, now: Nanos) -> [PauseCounts; 2] {
        self.pauses.global_counts(port.into(), now)
    }

    /// Pauses at a port that its watchdog ended: of those that the switch asked for, and of those that it was asked for.
    pub fn storms(&self, port: u16) -> [u64; 2] {
        self.pauses.storms(port.into())
    }

    /// Counters of an egress queue.
    pub fn queue_counters(&self, port: u16, priority: u8) -> &QueueCounters {
        &self.queues[of(port.into(), usize::from(priority & 7))].counters
    }

    /// Counters of a priority of an ingress port.
    pub fn ingress_counters(&self, port: u16, priority: u8) -> &IngressCounters {
        &self.ingress[of(port.into(), usize::from(priority & 7))].counters
    }
}
