//! Rules that impair packets, at the places of a NIC where packets pass: what it sends, what of that enters its link, and
//! what it receives.
//!
//! A NIC without rules has two flags that are false, and pays a branch for each burst. With rules, finished packets
//! wait in [`NicImpair::staged`] until the transmit stage takes them through the rules to the port's queue or to the
//! NIC itself; received ones pass the rules between the port and the parser. What rules hold back waits in a
//! [`Line`] of the place; all lines of an lcore together hold no more than half of the packet buffers.
//!
//! Places are made and taken down between bursts, by messages; only that allocates.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use roceline_engine::Nanos;
use roceline_engine::fabric::impair::{
    Direction, Line, Note, PacketView, Pushed, Rule, RuleId, RuleSet, Verdict,
};

use super::Lcore;
use super::dropped::DroppedPackets;
use super::message::{ImpairCommand, PlaceReport, Reply};
use super::multicast;
use super::nic::{LOOPBACK_LIMIT, Nic, Shared, TX_LIMIT};
use super::notes;
use super::tap::Packet;
use crate::impair::{Place, Point};
use crate::port::{Mbuf, Mempool, RX_BURST};

/// Packets that one place may hold back.
const LINE_CAPACITY: usize = 2048;
/// Received packets, with their copies, that may wait for the parser.
const READY_LIMIT: usize = 1024;

/// The places of one NIC.
#[derive(Default)]
pub struct NicImpair {
    /// What the NIC sends, or what enters its link, has rules.
    pub sending: bool,
    /// What it receives has rules.
    pub receiving: bool,
    /// Finished packets in front of the rules, in their order.
    pub staged: VecDeque<Mbuf>,
    /// Packets that rules dropped, for captures: there are some only while one listens to the NIC.
    pub dropped: DroppedPackets,
    tx: Option<Box<Station>>,
    link: Option<Box<Station>>,
    rx: Option<Box<Station>>,
    /// Received packets behind the rules.
    ready: VecDeque<Mbuf>,
}

/// A place with rules.
struct Station {
    direction: Direction,
    rules: RuleSet,
    line: Line<Mbuf>,
    overflow: u64,
    no_buffer: u64,
}

/// What packets that are held back, and copies, may take of the lcore's buffers.
struct Budget<'a> {
    pool: &'a Mempool,
    /// Packets that may still be held back.
    left: Cell<usize>,
    /// Packets that find room behind the rules. What was held back waits for it; what arrives does not.
    room: Cell<usize>,
}

impl Budget<'_> {
    /// While `left` packets more may be held back.
    fn of(pool: &Mempool, left: usize, room: usize) -> Budget<'_> {
        Budget {
            pool,
            left: Cell::new(left),
            room: Cell::new(room),
        }
    }

    /// A packet goes on.
    fn gone(&self) {
        self.room.set(self.room.get().saturating_sub(1));
    }
}

impl Station {
    fn new(direction: Direction) -> Box<Station> {
        Box::new(Station {
            direction,
            rules: RuleSet::new(),
            line: Line::new(LINE_CAPACITY),
            overflow: 0,
            no_buffer: 0,
        })
    }

    /// Passes a packet through the rules; what goes on now, it and its copies, goes to `next`. `seen` gets the packet as it
    /// came, with the rules that hit it here and the one that drops it; `dropped` gets it then, with its notes.
    fn pass(
        &mut self,
        mut mbuf: Mbuf,
        now: Nanos,
        budget: &Budget<'_>,
        seen: impl FnOnce(&[u8], &[Note], Option<RuleId>),
        dropped: impl FnOnce(Mbuf, RuleId),
        next: &mut impl FnMut(Mbuf),
    ) {
        let view = PacketView::parse(self.direction, mbuf.data());
        let verdict = self.rules.offer(&view, now);
        let dropper = verdict.notes().last().filter(|_| verdict.drop);
        seen(mbuf.data(), verdict.notes(), dropper.map(|note| note.rule));
        if verdict.hits > 0 {
            notes::append(&mut mbuf, verdict.notes());
        }
        if verdict.drop {
            if let Some(note) = dropper {
                dropped(mbuf, note.rule);
            }
            return;
        }
        if verdict.changes() {
            let len = verdict.apply(mbuf.data_mut());
            // Changes never make a frame longer, so this is always done.
            let _ = mbuf.set_len(len);
        }
        let late = |verdict: &Verdict| verdict.hold.is_some() || verdict.delay > Nanos::ZERO;
        let of_copy = verdict.of_copy();
        for _ in 0..verdict.copies {
            let Some(copy) = copy(&mbuf, budget.pool) else {
                self.no_buffer += 1;
                break;
            };
            // They are alike, or the copies wait, so it does not matter which is given first.
            self.push(copy, &of_copy, late(&of_copy), now, budget, next);
        }
        self.push(mbuf, &verdict, late(&verdict), now, budget, next);
    }

    fn push(
        &mut self,
        mbuf: Mbuf,
        verdict: &Verdict,
        late: bool,
        now: Nanos,
        budget: &Budget<'_>,
        next: &mut impl FnMut(Mbuf),
    ) {
        if late && budget.left.get() == 0 {
            self.overflow += 1;
            return;
        }
        match self.line.push(mbuf, verdict, now) {
            Pushed::Pass(mbuf) => {
                budget.gone();
                next(mbuf);
            }
            Pushed::Kept => budget.left.set(budget.left.get().saturating_sub(1)),
            Pushed::Full(mbuf) => {
                self.overflow += 1;
                drop(mbuf);
            }
        }
        // Those that waited for this one to pass go right behind it.
        self.release(now, budget, next);
    }

    /// Lets go what has waited long enough; everything, once there are no rules any more. What finds no room now goes in
    /// a later poll.
    fn release(&mut self, now: Nanos, budget: &Budget<'_>, next: &mut impl FnMut(Mbuf)) {
        let now = match self.rules.is_empty() {
            true => Nanos(u64::MAX),
            false => now,
        };
        while budget.room.get() > 0 {
            let Some(mbuf) = self.line.release(now) else {
                break;
            };
            budget.gone();
            next(mbuf);
        }
    }

    fn report(&self, place: Place) -> PlaceReport {
        PlaceReport {
            place,
            held: self.line.len() as u64,
            overflow: self.overflow,
            no_buffer: self.no_buffer,
            rules: self
                .rules
                .rules()
                .map(|(rule, counts)| (rule.id.0, *counts))
                .collect(),
        }
    }

    fn is_idle(&self) -> bool {
        self.rules.is_empty() && self.line.is_empty()
    }
}

/// Another packet of the same bytes.
fn copy(mbuf: &Mbuf, pool: &Mempool) -> Option<Mbuf> {
    let mut copy = pool.alloc()?;
    copy.set_len(mbuf.len())?.copy_from_slice(mbuf.data());
    notes::copy(mbuf, &mut copy);
    copy.set_tci(mbuf.tci());
    Some(copy)
}

impl NicImpair {
    fn slot(&mut self, point: Point) -> &mut Option<Box<Station>> {
        match point {
            Point::Tx => &mut self.tx,
            Point::Link => &mut self.link,
            Point::Rx => &mut self.rx,
        }
    }

    fn stations(&self) -> impl Iterator<Item = (Point, &Station)> {
        let all = [
            (Point::Tx, &self.tx),
            (Point::Link, &self.link),
            (Point::Rx, &self.rx),
        ];
        all.into_iter()
            .filter_map(|(point, slot)| slot.as_deref().map(|station| (point, station)))
    }

    /// Packets that rules hold back.
    fn held(&self) -> usize {
        self.stations().map(|(_, station)| station.line.len()).sum()
    }

    /// When a packet that is held back goes on.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.stations()
            .filter_map(|(_, station)| station.line.next_deadline())
            .min()
    }

    /// Whether packets wait for the next poll.
    pub fn has_work(&self) -> bool {
        !self.staged.is_empty() || !self.ready.is_empty()
    }

    /// Takes down what is no longer used, and sees which paths have rules.
    fn settle(&mut self) {
        for point in [Point::Tx, Point::Link, Point::Rx] {
            let slot = self.slot(point);
            if slot.as_ref().is_some_and(|station| station.is_idle()) {
                *slot = None;
            }
        }
        self.sending = self.tx.is_some() || self.link.is_some() || !self.staged.is_empty();
        self.receiving = self.rx.is_some() || !self.ready.is_empty();
    }

    fn add(&mut self, point: Point, rule: Rule) -> Result<(), (i32, String)> {
        let direction = match point {
            Point::Tx | Point::Link => Direction::Tx,
            Point::Rx => Direction::Rx,
        };
        let slot = self.slot(point);
        let station = slot.get_or_insert_with(|| Station::new(direction));
        let added = station
            .rules
            .add(rule)
            .map_err(|error| (libc::EINVAL, error.to_string()));
        // Whatever the loop needs from now on.
        match point {
            Point::Tx | Point::Link => {
                self.staged.reserve(TX_LIMIT + RX_BURST);
                self.dropped.reserve();
            }
            Point::Rx => self.ready.reserve(READY_LIMIT),
        }
        self.settle();
        added
    }
}

/// Takes finished packets through the rules to the port's queue, or back to the NIC itself. Gives the number of packets
/// that came or went.
pub fn transmit(nic: &mut Nic, shared: &mut Shared, now: Nanos) -> usize {
    let held = nic.impair.held();
    let room = LOOPBACK_LIMIT.saturating_sub(nic.loopback.len());
    let room = room.min(TX_LIMIT.saturating_sub(nic.tx.len()));
    let Shared { pool, taps, .. } = shared;
    let left = shared.held_most.saturating_sub(shared.held);
    let budget = Budget::of(pool, left, room);
    let Nic {
        info,
        impair,
        loopback,
        groups,
        part,
        tx: queue,
        tapped,
        ..
    } = nic;
    let NicImpair {
        staged,
        tx,
        link,
        dropped,
        ..
    } = impair;
    let mut count = staged.len();
    let lost = Cell::new(0);
    let passed = Cell::new(0);
    let queued = Cell::new(queue.len());
    let for_captures = RefCell::new((dropped, taps));
    let drop_by = |mbuf: Mbuf, rule: RuleId| {
        if !*tapped {
            return;
        }
        // Never borrowed: no rule is asked while another one drops.
        if let Ok(mut both) = for_captures.try_borrow_mut() {
            let (dropped, taps) = &mut *both;
            dropped.add(mbuf, rule, queued.get(), info.index as usize, taps);
        }
    };
    let put = |queue: &mut VecDeque<Mbuf>, limit: usize, mbuf: Mbuf| match queue.len() < limit {
        true => {
            passed.set(passed.get() + 1);
            queue.push_back(mbuf);
        }
        false => lost.set(lost.get() + 1),
    };
    let mut to_port = |mbuf: Mbuf| {
        put(queue, TX_LIMIT, mbuf);
        queued.set(queue.len());
    };
    if let Some(link) = link {
        link.release(now, &budget, &mut to_port);
    }
    let mut out = |mbuf: Mbuf| {
        if mbuf.data().get(..6) == Some(&info.mac[..]) {
            match part.is_own(mbuf.data()) {
                true => put(loopback, LOOPBACK_LIMIT, mbuf),
                // To another part of the NIC, which is no way over the link.
                false => to_port(mbuf),
            }
            return;
        }
        if multicast::is_for_group(&mbuf) {
            multicast::loop_back(groups, loopback, pool, &mbuf);
        }
        match link {
            Some(link) => link.pass(mbuf, now, &budget, |_, _, _| {}, drop_by, &mut to_port),
            None => to_port(mbuf),
        }
    };
    if let Some(tx) = tx {
        tx.release(now, &budget, &mut out);
    }
    for mut mbuf in staged.drain(..) {
        notes::clear(&mut mbuf);
        match tx {
            Some(tx) => tx.pass(mbuf, now, &budget, |_, _, _| {}, drop_by, &mut out),
            None => out(mbuf),
        }
    }
    count += passed.get();
    nic.counts.tx_queue_full += lost.get();
    settle(nic, shared, held);
    count
}

/// Takes a received burst through the rules; what may be parsed now is in the burst afterwards. Gives the number of packets
/// that had come.
pub fn receive(nic: &mut Nic, shared: &mut Shared, now: Nanos) -> usize {
    let held = nic.impair.held();
    let Shared { pool, taps, .. } = shared;
    let room = READY_LIMIT.saturating_sub(nic.impair.ready.len());
    let left = shared.held_most.saturating_sub(shared.held);
    let budget = Budget::of(pool, left, room);
    let Nic {
        info,
        impair,
        rx_burst,
        tapped,
        ..
    } = nic;
    let NicImpair { rx, ready, .. } = impair;
    let arrived = rx_burst.len();
    let mut lost = 0;
    let mut to_parser = |mbuf: Mbuf| match ready.len() < READY_LIMIT {
        true => ready.push_back(mbuf),
        false => lost += 1,
    };
    match rx {
        Some(rx) => {
            rx.release(now, &budget, &mut to_parser);
            for mbuf in rx_burst.drain() {
                let seen = |frame: &[u8], notes: &[Note], dropped_by: Option<RuleId>| {
                    if *tapped {
                        let packet = Packet {
                            outbound: false,
                            frame,
                            notes,
                            dropped_by,
                        };
                        taps.record_one(info.index as usize, &packet);
                    }
                };
                rx.pass(mbuf, now, &budget, seen, |_, _| {}, &mut to_parser);
            }
        }
        // Packets that a place which is gone let go are still in front of these.
        None => rx_burst.drain().for_each(|mbuf| {
            if *tapped {
                taps.record(info.index as usize, false, [mbuf.data()].into_iter());
            }
            to_parser(mbuf);
        }),
    }
    if let Some(rx) = rx {
        rx.overflow += lost;
    }
    rx_burst.refill(ready);
    settle(nic, shared, held);
    arrived
}

/// Accounts for what is held now instead of `held`, and takes down places that have nothing left.
fn settle(nic: &mut Nic, shared: &mut Shared, held: usize) {
    let impair = &mut nic.impair;
    shared.held = (shared.held + impair.held()).saturating_sub(held);
    impair.settle();
}

/// Serves a message about rules.
pub fn serve(lcore: &mut Lcore, command: ImpairCommand) -> Result<Reply, (i32, String)> {
    match command {
        ImpairCommand::Add { place, rule } => {
            let nic = of_place(lcore, place)?;
            if !nic.impair.sending {
                // What waits for the port has passed no rule, and has had no notes taken off it.
                let waiting = nic.tx.iter_mut().chain(&mut nic.loopback);
                waiting
                    .chain(nic.tx_burst.as_mut_slice())
                    .for_each(notes::clear);
            }
            nic.impair.add(place.point, *rule)?;
            Ok(Reply::Done)
        }
        ImpairCommand::Remove { place, id } => {
            let nic = of_place(lcore, place)?;
            if let Some(station) = nic.impair.slot(place.point) {
                station.rules.remove(RuleId(id));
            }
            // What it holds goes on, and the place goes, in the next poll.
            Ok(Reply::Done)
        }
        ImpairCommand::Report => Ok(Reply::Impair(
            lcore
                .nics
                .iter()
                .flat_map(|n| n.impair.stations().map(move |s| (n.info.index, s)))
                .map(|(nic, (point, station))| station.report(Place { nic, point }))
                .collect(),
        )),
    }
}

fn of_place(lcore: &mut Lcore, place: Place) -> Result<&mut Nic, (i32, String)> {
    lcore
        .nic(place.nic)
        .ok_or_else(|| (libc::ENODEV, format!("NIC {} does not exist", place.nic)))
}
