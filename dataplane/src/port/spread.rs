//! A port that several lcores share: each has a part of it, and receives what is for the queue pairs that it owns.
//!
//! In flow frames of the port's queues, out they go to the part whose number is in the low bits of their destination QPN. Where the
//! port has a queue for each part, the hardware spreads frames as it likes (RSS), and each part passes on what is not its own;
//! where it has one, the first part polls it for all. Frames cross by queues between one producer and one consumer. What is
//! for no queue pair (ARP, say) is the first part's; what is for a group goes to each.
//!
//! Where pauses are on, what the port received is not lost between parts either, copies for groups aside: a part that does not look holds up
//! what is behind, so that the other end of the port is told to stop ([`super::board`]). What the NIC sends to itself could only hold up the
//! part that sends it, and two parts that send to each other would wait for each other: it is lost as ever.
//!
//! A part without a queue sends through the first one. What a NIC sends to itself, to a queue pair of another part, crosses
//! without having seen the port, and what it sends to a group also goes to the other parts, as members may be there.

mod owner;
mod ways;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use roceline_engine::congestion::pfc::{PfcSettings, Threshold};
use roceline_engine::congestion::priority::{PriorityMap, PriorityMask};

use super::board::{Board, PausePart};
use super::fabric_link::{have_membarrier, membarrier};
use super::spsc::{self, Consumer};
use super::{Burst, Counters, Driver, LinkStatus, Mbuf, Mempool, Port, RX_BURST};
pub use owner::{Owner, PartOf};
pub(super) use ways::Door;
use ways::{Outlet, either};

/// Frames on their way from one part to another.
const LANE: usize = 512;
/// Parts at most: what three bits of a QPN tell apart.
pub const MAX_PARTS: usize = 8;

/// Kept by the lcore of the part.
#[derive(Debug, Default)]
struct Count {
    crossed: u64,
    lost: u64,
    nobody: u64,
    backpressure: u64,
}

/// One lcore's part of a port.
pub struct Spread {
    part: PartOf,
    mac: [u8; 6],
    pool: Arc<Mempool>,
    /// A queue of the port; the first part always has one.
    queue: Option<Port>,
    /// Received, and not handed out yet.
    received: Burst,
    /// To the other parts, by number: what they are to receive.
    to: Vec<Option<Outlet>>,
    /// From the others, to receive.
    from: Vec<Consumer<Mbuf>>,
    /// Whose turn it is among them.
    next: usize,
    /// To the first part, to be sent there, from one without a queue.
    send: Option<Outlet>,
    /// From such parts.
    sends: Vec<Consumer<Mbuf>>,
    /// Being sent for them.
    sending: Burst,
    /// One of them that has to wait for the end of a pause, by lane.
    waiting: Vec<Option<Mbuf>>,
    /// Frames at the front of the burst to be sent that other parts have copies of already.
    copied: usize,
    door: Arc<Door>,
    pauses: PausePart,
    /// By which priority packets are paused; none while pauses are off, and parts that do not keep up lose packets.
    lossless: Option<PriorityMap>,
    /// An epoll of the door and, if the queue has one, its event; none without `membarrier`.
    event: Option<OwnedFd>,
    /// Whether the link is up, as the first part sees it.
    up: Arc<AtomicBool>,
    count: Count,
}

/// Makes a part for each pool. `queues` are queues of one port, the first part's first; parts beyond them share that one.
///
/// # Errors
/// When the process has no file descriptors left.
pub fn spread(
    queues: impl Iterator<Item = Port>,
    mac: [u8; 6],
    pools: &[Arc<Mempool>],
) -> io::Result<Vec<Port>> {
    let parts = pools.len();
    let mut doors = Vec::new();
    for _ in 0..parts {
        doors.push(Arc::new(Door::new()?));
    }
    let board = Board::new(&doors);
    let mut queues = queues.peekable();
    let up = queues.peek().is_some_and(|port| port.link().up);
    let up = Arc::new(AtomicBool::new(up));
    let mut made = Vec::new();
    for (number, pool) in pools.iter().enumerate() {
        let queue = queues.next();
        let port_event = queue.as_ref().and_then(Port::rx_event);
        let event = match have_membarrier() {
            true => Some(either(doors[number].event(), port_event)?),
            false => None,
        };
        made.push(Spread {
            part: PartOf::new(number, parts),
            mac,
            pool: Arc::clone(pool),
            queue,
            received: Burst::new(),
            to: Vec::new(),
            from: Vec::new(),
            next: 0,
            send: None,
            sends: Vec::new(),
            sending: Burst::new(),
            copied: 0,
            waiting: Vec::new(),
            door: Arc::clone(&doors[number]),
            pauses: PausePart::new(&board, number as u32),
            lossless: None,
            event,
            up: Arc::clone(&up),
            count: Count::default(),
        });
    }
    for from in 0..parts {
        for to in 0..parts {
            let mut way = None;
            if from != to {
                let (producer, consumer) = spsc::channel(LANE);
                way = Some(Outlet::new(producer, &doors[to]));
                made[to].from.push(consumer);
            }
            made[from].to.push(way);
        }
        if made[from].queue.is_none() {
            let (producer, consumer) = spsc::channel(LANE);
            made[from].send = Some(Outlet::new(producer, &doors[0]));
            made[0].sends.push(consumer);
            made[0].waiting.push(None);
        }
    }
    Ok(made.into_iter().map(Port::new).collect())
}

impl Spread {
    /// Hands on what the queue brought: to `burst` what is ours, as long as there is room.
    #[inline]
    fn hand_on(&mut self, burst: &mut Burst, most: usize) {
        let Spread {
            part,
            pool,
            received,
            to,
            count,
            lossless,
            ..
        } = self;
        received.send_front(|mbuf| match part.owner(mbuf.data()) {
            Owner::Part(owner) if owner == part.number => {
                if burst.len() >= most {
                    return Some(mbuf);
                }
                burst.push(mbuf).err()
            }
            Owner::Part(owner) => {
                if lossless.is_some() && !has_room(to, owner) {
                    return Some(mbuf);
                }
                cross(to, owner, mbuf, count);
                None
            }
            Owner::All => {
                if burst.len() >= most {
                    return Some(mbuf);
                }
                copy_to_all(to, &mbuf, pool, count);
                burst.push(mbuf).err()
            }
        });
    }

    /// Sends for parts without a queue.
    fn send_for_others(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        let (held, map) = (self.pauses.held(), self.lossless);
        let is_held = |mbuf: &Mbuf| is_held(map.as_ref(), held, mbuf);
        if self.sending.iter().any(is_held) {
            return;
        }
        for (from, waiting) in self.sends.iter_mut().zip(&mut self.waiting) {
            while self.sending.len() < RX_BURST {
                // In their order: what one waits for, those behind it wait for, too.
                let Some(mbuf) = waiting.take().or_else(|| from.pop()) else {
                    break;
                };
                if is_held(&mbuf) {
                    *waiting = Some(mbuf);
                    break;
                }
                if self.sending.push(mbuf).is_err() {
                    break;
                }
            }
            from.flush();
            if self.sending.is_empty() {
                continue;
            }
            queue.tx_burst(&mut self.sending);
            if !self.sending.is_empty() {
                // The port is full: these first, next time.
                return;
            }
        }
    }

    /// Takes from a burst to be sent what is for queue pairs of the NIC itself, and gives other parts copies of what is for
    /// groups. What is behind the first `copied` frames is new.
    #[cold]
    fn divert(&mut self, burst: &mut Burst) {
        let mut at = self.copied;
        while let Some(mbuf) = burst.get(at) {
            let frame = mbuf.data();
            let owner = self.part.owner(frame);
            if owner == Owner::All {
                copy_to_all(&mut self.to, mbuf, &self.pool, &mut self.count);
            } else if frame.get(..6) == Some(&self.mac[..]) {
                if let (Owner::Part(owner), Some(mbuf)) = (owner, burst.take(at)) {
                    cross(&mut self.to, owner, mbuf, &mut self.count);
                }
                continue;
            }
            at += 1;
        }
    }

    /// Shows the others what they have got.
    #[inline]
    fn show(&mut self) {
        for outlet in self.to.iter_mut().flatten() {
            outlet.show();
        }
    }

    fn is_quiet(&mut self) -> bool {
        let (held, map) = (self.pauses.held(), self.lossless);
        let is_held = |mbuf: &Mbuf| is_held(map.as_ref(), held, mbuf);
        // What the end of a pause is waited for is no work, nor is what waits behind it (`send_for_others`).
        let stopped = self.sending.iter().any(is_held);
        let mut lanes = self.sends.iter_mut().zip(&self.waiting);
        let nothing_to_send = stopped
            || lanes.all(|(from, waiting)| match waiting {
                Some(mbuf) => is_held(mbuf),
                None => from.is_empty(),
            });
        nothing_to_send
            && self.from.iter_mut().all(Consumer::is_empty)
            && self.received.is_empty()
            && (self.sending.is_empty() || stopped)
            && self.pauses.is_quiet()
    }
}

/// Whether a frame is of a priority that is `held`.
#[inline]
fn is_held(map: Option<&PriorityMap>, held: PriorityMask, mbuf: &Mbuf) -> bool {
    match map {
        Some(map) if held != 0 => held >> (map.of_frame(mbuf.data()) & 7) & 1 == 1,
        _ => false,
    }
}

/// Whether another part takes a frame more; also if there is no such part, as that takes all.
#[inline]
fn has_room(to: &mut [Option<Outlet>], owner: u32) -> bool {
    let to = to.get_mut(owner as usize).and_then(Option::as_mut);
    to.is_none_or(Outlet::has_room)
}

/// Puts a frame on its way to another part. A part that does not keep up loses frames, as a queue of a NIC does.
#[inline]
fn cross(to: &mut [Option<Outlet>], owner: u32, mbuf: Mbuf, count: &mut Count) {
    match to
        .get_mut(owner as usize)
        .and_then(Option::as_mut)
        .map(|to| to.push(mbuf))
    {
        Some(Ok(())) => count.crossed += 1,
        // A queue pair that cannot exist.
        None => count.nobody += 1,
        Some(Err(_)) => count.lost += 1,
    }
}

/// A copy for each other part.
#[cold]
fn copy_to_all(to: &mut [Option<Outlet>], mbuf: &Mbuf, pool: &Mempool, count: &mut Count) {
    for owner in 0..to.len() {
        if to[owner].is_none() {
            continue;
        }
        let copy = pool.alloc().and_then(|mut copy| {
            copy.set_len(mbuf.len())?.copy_from_slice(mbuf.data());
            Some(copy)
        });
        match copy {
            Some(copy) => cross(to, owner as u32, copy, count),
            None => count.lost += 1,
        }
    }
}

impl Driver for Spread {
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let before = burst.len();
        let most = before + burst.room().min(burst.wanted());
        // What others received for us may take half of the room, so that neither starves.
        let half = match self.queue {
            Some(_) => most - (most - before) / 2,
            None => most,
        };
        let others = self.from.len();
        for _ in 0..others {
            let from = &mut self.from[self.next];
            self.next = (self.next + 1) % others;
            let had = burst.len();
            while burst.len() < half {
                let Some(mbuf) = from.pop() else { break };
                if burst.push(mbuf).is_err() {
                    break;
                }
            }
            if burst.len() > had {
                from.flush();
            }
        }
        if let Some(queue) = &mut self.queue {
            if self.received.is_empty() {
                queue.rx_burst(&mut self.received);
            }
            if !self.received.is_empty() {
                self.hand_on(burst, most);
                self.show();
            }
            if self.lossless.is_some() && !self.received.is_empty() {
                // Behind what waits for another part nobody would hear the other end's pauses.
                self.rx_control(burst);
            }
            if !self.sends.is_empty() {
                self.send_for_others();
            }
        }
        burst.len() - before
    }

    /// Only the first part hears the other end. One that receives nothing else sends for the others all the same.
    fn rx_control(&mut self, burst: &mut Burst) -> usize {
        if !self.sends.is_empty() {
            self.send_for_others();
        }
        match &mut self.queue {
            Some(queue) if self.pauses.is_first() => queue.rx_control(burst),
            _ => 0,
        }
    }

    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let offered = burst.len();
        let is_special = |mbuf: &Mbuf| {
            let frame = mbuf.data();
            frame.first().is_some_and(|first| first & 1 != 0)
                || frame.get(..6) == Some(&self.mac[..])
        };
        if burst.iter().skip(self.copied).any(is_special) {
            self.divert(burst);
            self.show();
        }
        match (&mut self.queue, &mut self.send) {
            (Some(queue), _) => {
                queue.tx_burst(burst);
            }
            (None, Some(send)) => {
                burst.send_front(|mbuf| send.push(mbuf).err());
                send.show();
                self.count.backpressure += u64::from(!burst.is_empty());
            }
            (None, None) => burst.clear(),
        }
        self.copied = burst.len();
        offered - burst.len()
    }

    fn offered_before(&mut self, count: usize) {
        self.copied = count;
    }

    fn counters(&self) -> Counters {
        let mut all = match &self.queue {
            Some(queue) => queue.counters(),
            None => vec![("tx_backpressure", self.count.backpressure)],
        };
        all.push(("lcore_crossed", self.count.crossed));
        all.push(("lcore_lost", self.count.lost));
        all.push(("lcore_nobody", self.count.nobody));
        all
    }

    fn link(&self) -> LinkStatus {
        match &self.queue {
            Some(queue) if self.part.number == 0 => {
                let link = queue.link();
                self.up.store(link.up, Ordering::Relaxed);
                link
            }
            _ => LinkStatus {
                up: self.up.load(Ordering::Relaxed),
                speed_mbps: None,
            },
        }
    }

    /// The first part's order is the port's; each part keeps its own frames back.
    fn set_link(&mut self, up: bool) {
        // What waits to be sent is lost while the link is down.
        self.copied = 0;
        if self.part.number == 0 {
            if let Some(queue) = &mut self.queue {
                queue.set_link(up);
            }
        }
    }

    /// By the parts, as not the hardware's rings are what fills.
    fn set_pause(&mut self, settings: &PfcSettings, _threshold: Threshold) -> bool {
        self.lossless = settings.is_on().then_some(settings.map);
        false
    }

    fn pause_part(&self) -> Option<PausePart> {
        Some(self.pauses.clone())
    }

    fn mac(&self) -> Option<[u8; 6]> {
        self.queue.as_ref().and_then(Port::mac)
    }

    fn rx_event(&self) -> Option<BorrowedFd<'_>> {
        self.event.as_ref().map(AsFd::as_fd)
    }

    fn is_polled(&self) -> bool {
        self.event.is_none() || self.queue.as_ref().is_some_and(Port::is_polled)
    }

    fn arm_rx(&mut self) -> bool {
        if self.event.is_none() {
            return false;
        }
        self.door.arm();
        let queue = self.queue.as_mut();
        let queue = queue.filter(|queue| queue.rx_event().is_some());
        let quiet = membarrier() && queue.is_none_or(Port::arm_rx) && self.is_quiet();
        if !quiet {
            self.disarm_rx();
        }
        quiet
    }

    fn disarm_rx(&mut self) {
        self.door.clear();
        let queue = self.queue.as_mut();
        if let Some(queue) = queue.filter(|queue| queue.rx_event().is_some()) {
            queue.disarm_rx();
        }
    }

    fn maintain(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.maintain();
        }
    }

    fn describe(&self) -> String {
        let (part, parts) = (self.part.number + 1, self.to.len());
        match &self.queue {
            Some(queue) => format!("{}, part {part} of {parts}", queue.describe()),
            None => format!("part {part} of {parts}, by the queue of part 1"),
        }
    }
}
