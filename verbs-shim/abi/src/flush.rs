//! The queues of a context whose daemon is dead: what is posted and not completed completes with a flush error, in order,
//! as IBTA 10.3.1 demands of a QP in the error state.
//!
//! In goes a context file, nothing else: the records of [`crate::objects`] say which queues there are, and how far the
//! daemon came stands in the queues. So this runs wherever the file is: in the supervisor, and in the program itself
//! where even the supervisor died. A pass leaves the queues as a living daemon would; more passes may follow, by anybody,
//! and flush what was posted since. One at a time is busy with a context ([`END_LOCK`]).
//!
//! The program can write every byte of all this. Every index is masked, every place checked against the file, and the
//! work of a pass is bounded.

use core::sync::atomic::{Ordering, fence};

use crate::control::Plain;
use crate::layout::{ARM_NONE, ARM_OFFSET, MAX_CQS, MAX_QPS, QUEUE_FLOOR};
use crate::objects::{CqRecord, END_LOCK, NO_CHANNEL, Place, QpRecord};
use crate::queue::{CQE_LOG2, CQE_NUMBER, CQE_ORIGIN, Cqe, Origin, Q_CONSUMER, Q_DATA, Q_PRODUCER};
use crate::view::View;

/// `IBV_WC_WR_FLUSH_ERR`.
pub const WR_FLUSH_ERR: u32 = 5;
/// `vendor_err` of a flushed request, as users see it from mlx5.
pub const FLUSH_VENDOR_ERR: u32 = 0xf9;
/// `struct ib_uverbs_async_event_desc` of `IBV_EVENT_DEVICE_FATAL` (8): element (u64), event type (u32), reserved (u32).
pub const DEVICE_FATAL_RECORD: [u8; 16] = {
    let kind = 8u32.to_ne_bytes();
    let [a, b, c, d] = kind;
    [0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d, 0, 0, 0, 0]
};
/// `IBV_WC_RECV`.
const WC_RECV: u32 = 128;
/// Offset of the opcode in a send request.
const SEND_OPCODE: u64 = 12;
/// Requests that one pass flushes at most. A pass that is cut short goes on with the next.
pub const PASS_LIMIT: u32 = 1 << 20;

/// How a pass went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Completions written.
    pub flushed: u32,
    /// Some work is left because of [`PASS_LIMIT`].
    pub cut: bool,
}

/// How far the round of a context has come that is made in parts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Round {
    stage: Stage,
    next: u32,
}

#[derive(Clone, Copy, Debug, Default)]
enum Stage {
    /// CQs say what the daemon had written.
    #[default]
    Settle,
    /// Queues of QPs.
    Flush,
    /// Events for all CQs.
    Wake,
}

/// Flushes what is posted. `notify` writes an event to completion channel `.0` for the CQ that events name by `.1`; false
/// if it could not: then the CQ stays armed and a later pass tries again. With `wake_all` every CQ with a channel gets an
/// event, armed or not, as the daemon may have died with one in its hands; not before all is flushed.
///
/// `None` if somebody else is at it.
pub fn pass(
    view: &View<'_>,
    wake_all: bool,
    notify: &mut dyn FnMut(u32, u64) -> bool,
) -> Option<Pass> {
    let (mut round, mut flushed) = (Round::default(), 0);
    // Records that are looked at cost nothing here: there are so many at most.
    let mut left = PASS_LIMIT + 2 * MAX_CQS as u32 + MAX_QPS as u32;
    let whole = locked(view, || {
        go_on(view, &mut round, wake_all, &mut left, &mut flushed, notify)
    })?;
    Some(Pass {
        flushed,
        cut: !whole,
    })
}

/// The same in parts, for who has many contexts to look at: goes on with `round` as far as `left` allows, which counts records
/// looked at and completions written. True at the end of the round; then the next one begins.
pub fn part(
    view: &View<'_>,
    round: &mut Round,
    wake_all: bool,
    left: &mut u32,
    notify: &mut dyn FnMut(u32, u64) -> bool,
) -> Option<bool> {
    locked(view, || go_on(view, round, wake_all, left, &mut 0, notify))
}

fn locked<T>(view: &View<'_>, work: impl FnOnce() -> T) -> Option<T> {
    let lock = view.u32(END_LOCK)?;
    let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
    if lock.compare_exchange(0, 1, acquire, relaxed).is_err() {
        return None;
    }
    let done = work();
    lock.store(0, Ordering::Release);
    Some(done)
}

/// Takes the lock away from a holder that is believed dead.
pub fn break_lock(view: &View<'_>) {
    if let Some(lock) = view.u32(END_LOCK) {
        lock.store(0, Ordering::Release);
    }
}

fn go_on(
    view: &View<'_>,
    round: &mut Round,
    wake_all: bool,
    left: &mut u32,
    flushed: &mut u32,
    notify: &mut dyn FnMut(u32, u64) -> bool,
) -> bool {
    // The limits are the program's to change, but never beyond the tables: a round ends.
    loop {
        let (end, then) = match round.stage {
            Stage::Settle => (CqRecord::limit(view), Stage::Flush),
            Stage::Flush => (QpRecord::limit(view), Stage::Wake),
            Stage::Wake if wake_all => (CqRecord::limit(view), Stage::Settle),
            Stage::Wake => (0, Stage::Settle),
        };
        while round.next < end {
            if *left == 0 {
                return false;
            }
            *left -= 1;
            match round.stage {
                Stage::Settle => {
                    let cq = Cq::find(view, round.next);
                    if cq.is_some_and(|cq| !cq.settle(left)) {
                        return false;
                    }
                }
                Stage::Flush => {
                    let before = *left;
                    let whole = flush_qp(view, round.next, left, notify);
                    *flushed += before - *left;
                    if !whole {
                        return false;
                    }
                }
                Stage::Wake => {
                    if let Some(cq) = Cq::find(view, round.next) {
                        cq.event(true, notify);
                    }
                }
            }
            round.next += 1;
        }
        *round = Round {
            stage: then,
            next: 0,
        };
        if matches!(then, Stage::Settle) {
            return true;
        }
    }
}

/// False if there was not time for all of it.
fn flush_qp(
    view: &View<'_>,
    index: u32,
    left: &mut u32,
    notify: &mut dyn FnMut(u32, u64) -> bool,
) -> bool {
    let Some(qp) = QpRecord::read(view, index) else {
        return true;
    };
    for (recv, place, cq) in [(false, qp.sq, qp.send_cq), (true, qp.rq, qp.recv_cq)] {
        let work = Work::find(view, place, index, recv);
        if let (Some(work), Some(mut cq)) = (work, Cq::find(view, cq)) {
            work.flush(&mut cq, qp.qpn, left, notify);
        }
        if *left == 0 {
            return false;
        }
    }
    true
}

/// A queue that lies in the file.
#[derive(Clone, Copy)]
struct Ring<'a> {
    view: View<'a>,
    place: Place,
}

impl<'a> Ring<'a> {
    fn find(view: &View<'a>, place: Place) -> Option<Ring<'a>> {
        let slots = u64::from(place.mask) + 1;
        if !slots.is_power_of_two() || !(CQE_LOG2..=16).contains(&place.log2_elem) {
            return None;
        }
        let bytes = (slots << place.log2_elem) + Q_DATA;
        let fits = place.offset >= QUEUE_FLOOR
            && place.offset % 64 == 0
            && place.offset.checked_add(bytes)? <= view.bytes();
        fits.then_some(Ring { view: *view, place })
    }

    fn slot(&self, index: u32) -> u64 {
        self.place.offset + Q_DATA + (u64::from(index & self.place.mask) << self.place.log2_elem)
    }

    fn next(&self, index: u32, by: u32) -> u32 {
        index.wrapping_add(by) & self.place.mask
    }

    /// Index and count of a header's word; the index is masked.
    fn word(&self, at: u64) -> (u32, u32) {
        let word = self.load(self.place.offset + at);
        (word as u32 & self.place.mask, (word >> 32) as u32)
    }

    fn store_word(&self, at: u64, index: u32, count: u32) {
        let word = u64::from(index) | u64::from(count) << 32;
        if let Some(place) = self.view.u64(self.place.offset + at) {
            place.store(word, Ordering::Release);
        }
    }

    fn load(&self, at: u64) -> u64 {
        // `find` made sure that all of the queue is inside.
        self.view.u64(at).map_or(0, |w| w.load(Ordering::Acquire))
    }
}

/// A CQ.
struct Cq<'a> {
    ring: Ring<'a>,
    record: CqRecord,
    handle: u32,
}

impl<'a> Cq<'a> {
    fn find(view: &View<'a>, handle: u32) -> Option<Cq<'a>> {
        let record = CqRecord::read(view, handle)?;
        let ring = Ring::find(view, record.queue).filter(|r| r.place.log2_elem == CQE_LOG2)?;
        Some(Cq {
            ring,
            record,
            handle,
        })
    }

    /// Says what the daemon had written and not yet published when it died: it publishes several at once. False if there
    /// was not time for all of it.
    fn settle(&self, left: &mut u32) -> bool {
        // Once round at most, whatever the program does to the queue meanwhile.
        for n in 0..self.ring.place.mask {
            // The first one goes with the record.
            if n > 0 {
                if *left == 0 {
                    return false;
                }
                *left -= 1;
            }
            if !self.settle_next() {
                break;
            }
        }
        true
    }

    /// False if there is none.
    fn settle_next(&self) -> bool {
        let (producer, published) = self.ring.word(Q_PRODUCER);
        let slot = self.ring.slot(producer);
        let number = published.wrapping_add(1);
        if self.ring.load(slot + CQE_NUMBER) as u32 != number || self.is_full(producer) {
            return false;
        }
        let origin = Origin::from_word(self.ring.load(slot + CQE_ORIGIN));
        if let Some(qp) = QpRecord::read(&self.ring.view, origin.qp) {
            let place = if origin.recv { qp.rq } else { qp.sq };
            if let Some(work) = Work::find(&self.ring.view, place, origin.qp, origin.recv) {
                // Whether the request was taken off already or not, it is not to be flushed as well.
                work.advance_to(origin.retired);
            }
        }
        self.ring
            .store_word(Q_PRODUCER, self.ring.next(producer, 1), number);
        true
    }

    fn is_full(&self, producer: u32) -> bool {
        self.ring.next(producer, 1) == self.ring.word(Q_CONSUMER).0
    }

    /// Writes a completion; false if there is no room.
    fn push(&mut self, cqe: &Cqe, origin: Origin) -> bool {
        let (producer, published) = self.ring.word(Q_PRODUCER);
        if self.is_full(producer) {
            return false;
        }
        let number = published.wrapping_add(1);
        let slot = self.ring.slot(producer);
        let store = |at: u64, word: u64| {
            if let Some(place) = self.ring.view.u64(slot + at) {
                place.store(word, Ordering::Relaxed);
            }
        };
        for (i, bytes) in cqe.as_bytes().chunks_exact(8).enumerate() {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            store(8 * i as u64, u64::from_ne_bytes(word));
        }
        store(CQE_ORIGIN, origin.to_word());
        store(CQE_NUMBER, number.into());
        self.ring
            .store_word(Q_PRODUCER, self.ring.next(producer, 1), number);
        true
    }

    /// Writes an event if one is wanted; disarms if so. After the producer index: the program arms first and then looks
    /// at the index, so one of the two sees the other.
    fn event(&self, always: bool, notify: &mut dyn FnMut(u32, u64) -> bool) {
        let arm = self.ring.view.u32(ARM_OFFSET + 4 * u64::from(self.handle));
        let (Some(arm), true) = (arm, self.record.channel != NO_CHANNEL) else {
            return;
        };
        fence(Ordering::SeqCst);
        if arm.load(Ordering::Relaxed) == ARM_NONE && !always {
            return;
        }
        let was = arm.swap(ARM_NONE, Ordering::SeqCst);
        if (was != ARM_NONE || always) && !notify(self.record.channel, self.record.user_handle) {
            let (set, not) = (Ordering::SeqCst, Ordering::Relaxed);
            // Unless the program armed it anew meanwhile.
            let _ = arm.compare_exchange(ARM_NONE, was, set, not);
        }
    }
}

/// A send or receive queue.
struct Work<'a> {
    ring: Ring<'a>,
    qp: u32,
    recv: bool,
}

impl<'a> Work<'a> {
    fn find(view: &View<'a>, place: Place, qp: u32, recv: bool) -> Option<Work<'a>> {
        let ring = Ring::find(view, place)?;
        Some(Work { ring, qp, recv })
    }

    /// Takes requests off until `retired` have been in all; nothing if that is behind or impossibly far ahead.
    fn advance_to(&self, retired: u32) {
        let (tail, was) = self.ring.word(Q_CONSUMER);
        let ahead = retired.wrapping_sub(was);
        if ahead <= self.ring.place.mask {
            self.ring
                .store_word(Q_CONSUMER, self.ring.next(tail, ahead), retired);
        }
    }

    fn flush(
        &self,
        cq: &mut Cq<'a>,
        qpn: u32,
        left: &mut u32,
        notify: &mut dyn FnMut(u32, u64) -> bool,
    ) {
        let (mut tail, mut retired) = self.ring.word(Q_CONSUMER);
        // Once round at most, whatever the program does to the index meanwhile.
        let end = self.ring.word(Q_PRODUCER).0;
        let mut any = false;
        while tail != end && *left > 0 {
            let slot = self.ring.slot(tail);
            retired = retired.wrapping_add(1);
            let cqe = Cqe {
                wr_id: self.ring.load(slot),
                status: WR_FLUSH_ERR,
                opcode: self.opcode(slot),
                vendor_err: FLUSH_VENDOR_ERR,
                qp_num: qpn,
                ..Cqe::default()
            };
            let origin = Origin {
                qp: self.qp,
                recv: self.recv,
                retired,
            };
            if !cq.push(&cqe, origin) {
                // The program has not polled yet; what does not fit waits for a later pass.
                break;
            }
            tail = self.ring.next(tail, 1);
            self.ring.store_word(Q_CONSUMER, tail, retired);
            *left -= 1;
            any = true;
        }
        if any {
            cq.event(false, notify);
        }
    }

    /// `enum ibv_wc_opcode` for the request in `slot`.
    fn opcode(&self, slot: u64) -> u32 {
        if self.recv {
            return WC_RECV;
        }
        // `enum ibv_wr_opcode`: the word at 8 has the opcode in its upper half.
        let opcode = (self.ring.load(slot + SEND_OPCODE - 4) >> 32) as u32;
        match opcode {
            // RDMA_WRITE, RDMA_WRITE_WITH_IMM.
            0 | 1 => 1,
            // RDMA_READ.
            4 => 2,
            // ATOMIC_CMP_AND_SWP.
            5 => 3,
            // ATOMIC_FETCH_AND_ADD.
            6 => 4,
            // LOCAL_INV.
            7 => 6,
            // BIND_MW.
            8 => 5,
            // SEND in its forms, and what does not exist.
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests;
