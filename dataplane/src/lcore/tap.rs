//! Taps: copies of what crosses the port of a NIC or of an emulated switch, for captures.
//!
//! In flow bursts at the port boundary: what the NIC sends, after its impairments and just before the port takes it, and
//! what it receives, as it arrived. Out flow records into memory that the tap brought along; [`crate::capture`] says how they
//! go on. A NIC that no tap listens to pays one branch per burst ([`super::nic::Nic::tapped`]). With a tap, each packet costs a
//! copy; nothing allocates, waits or calls the kernel but for the time of day, which the vDSO answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use roceline_engine::fabric::impair::{Note, RuleId};
use roceline_engine::verbs::{QpId, WcStatus};

use super::Lcore;
use super::message::Reply;
use super::nic::Nic;
use crate::capture::Record;
use crate::capture::chunks::Filler;
use crate::capture::filter::Filter;
use crate::capture::last::LastPackets;
use crate::capture::request::Counts;

/// Taps that an lcore has at most.
pub const MAX_TAPS: usize = 4;

/// Names a tap for the life of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapId(pub u64);

/// Wall-clock time that never steps: read once, and counted on from there by the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    wall: u64,
    instant: Instant,
}

impl Clock {
    /// The time from now on.
    pub fn start() -> Clock {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH);
        Clock {
            // A clock before 1970 counts from there.
            wall: wall.map_or(0, |since| since.as_nanos() as u64),
            instant: Instant::now(),
        }
    }

    /// Nanoseconds since 1970-01-01 UTC at `instant`.
    fn at(&self, instant: Instant) -> u64 {
        // What a late poll finds may have happened before.
        match instant.checked_duration_since(self.instant) {
            Some(since) => self.wall.saturating_add(since.as_nanos() as u64),
            None => {
                let before = self.instant.saturating_duration_since(instant);
                self.wall.saturating_sub(before.as_nanos() as u64)
            }
        }
    }
}

/// Where records go.
#[derive(Debug)]
pub enum Store {
    /// To a reader, as they come.
    Stream(Filler),
    /// Into a ring that keeps the last ones until a QP fails.
    Last(LastPackets),
}

/// What the session sees of a tap that works.
#[derive(Debug, Default)]
pub struct TapState {
    /// See [`TapState::failed`].
    failed: AtomicU64,
}

impl TapState {
    /// The QP whose failure stopped the tap: NIC, number, and the status of [`WcStatus`], 0 for an asynchronous event.
    pub fn failed(&self) -> Option<(u16, u32, u8)> {
        let word = self.failed.load(Ordering::Acquire);
        (word != 0).then_some(((word >> 32) as u16, word as u32, (word >> 48) as u8))
    }

    /// Set once, by the lcore. Bit 63 tells it from nothing.
    fn fail(&self, nic: u16, qp: QpId, status: u8) {
        let word = 1 << 63 | u64::from(status) << 48 | u64::from(nic) << 32 | u64::from(qp.0);
        self.failed.store(word, Ordering::Release);
    }
}

/// A packet at a port.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Sent, or else received.
    pub outbound: bool,
    /// From the Ethernet header on.
    pub frame: &'a [u8],
    /// Impairments that hit it.
    pub notes: &'a [Note],
    /// The rule that drops it.
    pub dropped_by: Option<RuleId>,
}

/// One capture's ear on an lcore. Made by a session, owned by the lcore while it is in place, and then handed back.
#[derive(Debug)]
pub struct Tap {
    /// Its name.
    pub id: TapId,
    /// By NIC index, and behind the NICs ports of switches ([`crate::fabric::plan::Plan::interface`]): is it recorded?
    pub nics: Box<[bool]>,
    /// Packets that these receive.
    pub inbound: bool,
    /// Packets that these send.
    pub outbound: bool,
    /// Bytes of a frame that are kept.
    pub snaplen: usize,
    /// Which packets; none: all.
    pub filter: Option<Filter>,
    /// Where records go.
    pub store: Store,
    /// As `nics`.
    pub counts: Box<[Counts]>,
    /// Its time.
    pub clock: Clock,
    /// For the session.
    pub state: Arc<TapState>,
}

impl Tap {
    fn hears(&self, nic: usize) -> bool {
        let stopped = matches!(self.store, Store::Last(_)) && self.state.failed().is_some();
        !stopped && self.nics.get(nic).copied().unwrap_or(false)
    }

    #[inline]
    fn packet(&mut self, nic: usize, packet: &Packet<'_>, now: Instant) {
        let Packet {
            outbound,
            frame,
            notes,
            dropped_by,
        } = *packet;
        let Some(counts) = self.counts.get_mut(nic) else {
            return;
        };
        counts.seen += 1;
        if let Some(filter) = &mut self.filter {
            if !filter.accepts(nic, outbound, frame) {
                return;
            }
        }
        counts.accepted += 1;
        let record = Record {
            stamp: self.clock.at(now),
            nic: nic as u16,
            outbound,
            original_len: frame.len() as u32,
            notes,
            dropped_by,
            data: &frame[..frame.len().min(self.snaplen)],
        };
        let stored = match &mut self.store {
            Store::Stream(filler) => filler.write(&record),
            Store::Last(ring) => ring.write(&record),
        };
        counts.lost += u64::from(!stored);
    }
}

/// The taps of an lcore.
#[derive(Debug, Default)]
pub struct Taps {
    // Boxed: they come and go by message, and are few.
    #[allow(clippy::vec_box)]
    all: Vec<Box<Tap>>,
}

impl Taps {
    /// None.
    pub fn new() -> Taps {
        Taps {
            all: Vec::with_capacity(MAX_TAPS),
        }
    }

    /// Puts a tap in place, or hands it back if there are [`MAX_TAPS`] already.
    pub fn add(&mut self, tap: Box<Tap>) -> Result<(), Box<Tap>> {
        if self.all.len() >= MAX_TAPS {
            return Err(tap);
        }
        self.all.push(tap);
        Ok(())
    }

    /// Takes a tap out; its reader gets what is left.
    pub fn remove(&mut self, id: TapId) -> Option<Box<Tap>> {
        let at = self.all.iter().position(|tap| tap.id == id)?;
        let mut tap = self.all.swap_remove(at);
        if let Store::Stream(filler) = &mut tap.store {
            filler.finish();
        }
        Some(tap)
    }

    /// Whether a tap listens to a NIC: what [`Nic::tapped`] must say.
    pub fn hears(&self, nic: usize) -> bool {
        self.all.iter().any(|tap| tap.hears(nic))
    }

    /// Records packets of a NIC on which [`Taps::hears`] something and that no rule hit.
    pub fn record<'a>(
        &mut self,
        nic: usize,
        outbound: bool,
        frames: impl Iterator<Item = &'a [u8]>,
    ) {
        let now = Instant::now();
        for frame in frames {
            let packet = Packet {
                outbound,
                frame,
                notes: &[],
                dropped_by: None,
            };
            self.record_at(nic, &packet, now);
        }
    }

    /// Records one packet that rules had a look at.
    pub fn record_one(&mut self, nic: usize, packet: &Packet<'_>) {
        self.record_at(nic, packet, Instant::now());
    }

    /// Records one packet that crossed the port at that time.
    pub fn record_at(&mut self, nic: usize, packet: &Packet<'_>, now: Instant) {
        for tap in &mut self.all {
            let wanted = if packet.outbound {
                tap.outbound
            } else {
                tap.inbound
            };
            if wanted && tap.hears(nic) {
                tap.packet(nic, packet, now);
            }
        }
    }

    /// A QP failed: rings of last packets that listen to its NIC stop here. `status` is that of its first completion in
    /// error, or success for an asynchronous event without one.
    pub fn qp_failed(&mut self, nic: &mut Nic, qp: QpId, status: WcStatus) {
        let index = nic.info.index as usize;
        for tap in &mut self.all {
            if matches!(tap.store, Store::Last(_)) && tap.hears(index) {
                tap.state.fail(index as u16, qp, status as u32 as u8);
            }
        }
        nic.tapped = self.hears(index);
        if !nic.tapped {
            nic.impair.dropped.clear();
        }
    }

    /// The end of a poll: readers that wait get what there is.
    #[inline]
    pub fn settle(&mut self) {
        for tap in &mut self.all {
            if let Store::Stream(filler) = &mut tap.store {
                filler.settle();
            }
        }
    }
}

/// Serves [`super::message::Command::AddTap`].
pub fn add(lcore: &mut Lcore, tap: Box<Tap>) -> Result<Reply, (i32, String)> {
    if lcore.shared.taps.add(tap).is_err() {
        let reason =
            format!("{MAX_TAPS} captures are running already, which is the most: end one of them");
        return Err((libc::EBUSY, reason));
    }
    refresh(lcore);
    Ok(Reply::Done)
}

/// Serves [`super::message::Command::RemoveTap`].
pub fn remove(lcore: &mut Lcore, id: TapId) -> Result<Reply, (i32, String)> {
    let Some(tap) = lcore.shared.taps.remove(id) else {
        return Err((libc::EINVAL, format!("capture {} does not exist", id.0)));
    };
    refresh(lcore);
    Ok(Reply::Tap(tap))
}

fn refresh(lcore: &mut Lcore) {
    for nic in &mut lcore.nics {
        nic.tapped = lcore.shared.taps.hears(nic.info.index as usize);
        if !nic.tapped {
            nic.impair.dropped.clear();
        }
    }
    if let Some(fabric) = &mut lcore.fabric {
        fabric.listen(&lcore.shared.taps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::chunks::{Drainer, stream};
    use crate::capture::record::decode;

    fn tap(id: u64, store: Store) -> Box<Tap> {
        Box::new(Tap {
            id: TapId(id),
            nics: [false, true].into(),
            inbound: true,
            outbound: true,
            snaplen: 8,
            filter: None,
            store,
            counts: [Counts::default(); 2].into(),
            clock: Clock::start(),
            state: Arc::default(),
        })
    }

    fn frames(drainer: &mut Drainer) -> Vec<(bool, u32, Vec<u8>)> {
        let mut bytes = Vec::new();
        while drainer.read(&mut bytes) {}
        let mut rest = bytes.as_slice();
        let mut all = Vec::new();
        while let Some(r) = decode(&mut rest) {
            assert_eq!(r.nic, 1);
            all.push((r.outbound, r.original_len, r.data.to_vec()));
        }
        all
    }

    #[test]
    fn each_tap_gets_its_nics_and_directions_cut_to_its_length() {
        let mut taps = Taps::new();
        let (filler, mut both) = stream(1);
        taps.add(tap(1, Store::Stream(filler))).unwrap();
        let (filler, mut sent_only) = stream(1);
        let mut second = tap(2, Store::Stream(filler));
        second.inbound = false;
        taps.add(second).unwrap();
        assert!(taps.hears(1) && !taps.hears(0) && !taps.hears(7));

        for nic in 0..2 {
            taps.record(nic, true, [&[1u8; 10][..]].into_iter());
            taps.record(nic, false, [&[2u8; 3][..]].into_iter());
        }
        taps.settle();
        let sent = (true, 10, vec![1; 8]);
        assert_eq!(frames(&mut both), [sent.clone(), (false, 3, vec![2; 3])]);
        assert_eq!(frames(&mut sent_only), [sent]);
        let removed = taps.remove(TapId(1)).unwrap();
        assert_eq!(
            removed.counts[1],
            Counts {
                seen: 2,
                accepted: 2,
                lost: 0
            }
        );
        assert_eq!(removed.counts[0], Counts::default());
        assert!(taps.remove(TapId(1)).is_none());
    }

    #[test]
    fn a_filter_chooses_and_the_counts_say_so() {
        let mut taps = Taps::new();
        let (filler, mut drainer) = stream(1);
        let mut chosen = tap(1, Store::Stream(filler));
        let args = crate::impair::MatchArgs {
            length: Some("5".into()),
            ..Default::default()
        };
        chosen.filter = Filter::new(&args.spec(), 2).unwrap();
        taps.add(chosen).unwrap();
        for len in 1..9 {
            taps.record(1, false, [&[3u8; 9][..len]].into_iter());
        }
        let counts = taps.remove(TapId(1)).unwrap().counts[1];
        assert_eq!((counts.seen, counts.accepted, counts.lost), (8, 1, 0));
        assert_eq!(frames(&mut drainer), [(false, 5, vec![3; 5])]);
    }

    #[test]
    fn what_finds_no_room_is_counted_as_lost() {
        let mut taps = Taps::new();
        let (filler, mut drainer) = stream(1);
        taps.add(tap(1, Store::Stream(filler))).unwrap();
        for _ in 0..10_000 {
            taps.record(1, true, [&[5u8; 8][..]].into_iter());
            taps.settle();
        }
        let counts = taps.remove(TapId(1)).unwrap().counts[1];
        assert_eq!(counts.seen, 10_000);
        assert!(counts.lost > 0);
        let kept = frames(&mut drainer).len() as u64;
        assert_eq!(kept, counts.accepted - counts.lost);
    }

    #[test]
    fn there_are_four_at_most() {
        let mut taps = Taps::new();
        let ring = || Store::Last(LastPackets::new(1, 8));
        for id in 0..MAX_TAPS as u64 {
            taps.add(tap(id, ring())).unwrap();
        }
        assert_eq!(taps.add(tap(9, ring())).unwrap_err().id, TapId(9));
        taps.remove(TapId(2)).unwrap();
        taps.add(tap(9, ring())).unwrap();
    }

    #[test]
    fn the_clock_counts_on_from_the_wall() {
        let clock = Clock::start();
        let later = clock.instant + std::time::Duration::from_nanos(1_234_567);
        assert_eq!(clock.at(later), clock.wall + 1_234_567);
        let before = Clock {
            instant: later,
            ..clock
        };
        assert_eq!(before.at(clock.instant), clock.wall - 1_234_567);
        assert_eq!(clock.at(clock.instant), clock.wall);
    }
}
