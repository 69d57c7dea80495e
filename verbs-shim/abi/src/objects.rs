//! What a context has, written into its file by the daemon so that it can be read when the daemon is dead: one record
//! for each QP and each CQ. While the daemon lives nobody reads them; the daemon itself never does. The program can
//! write them as it can write everything in the file, so a reader checks every value, and what a program writes there
//! can hurt its own queues only.

use core::sync::atomic::Ordering;

use crate::layout::{CLOSED_OFFSET, MAX_CQS, MAX_QPS, QUEUE_FLOOR};
use crate::view::View;

/// Offset of the lock (u32) that whoever flushes a dead context holds: 0 is free.
pub const END_LOCK: u64 = 3 << 20;
/// Offset of a u32: QP records in use lie below this index.
pub const QP_LIMIT: u64 = END_LOCK + 64;
/// Offset of a u32: CQ records in use lie below this index.
pub const CQ_LIMIT: u64 = END_LOCK + 68;
/// Offset of the QP records.
pub const QP_RECORDS: u64 = 4 << 20;
/// Bytes of a QP record.
pub const QP_STRIDE: u64 = 64;
/// Offset of the CQ records.
pub const CQ_RECORDS: u64 = 8 << 20;
/// Bytes of a CQ record.
pub const CQ_STRIDE: u64 = 32;
/// [`CqRecord::channel`] of a CQ without a completion channel.
pub const NO_CHANNEL: u32 = u32::MAX;

const _: () = assert!(QP_RECORDS + QP_STRIDE * MAX_QPS as u64 <= CQ_RECORDS);
const _: () = assert!(CQ_RECORDS + CQ_STRIDE * MAX_CQS as u64 <= QUEUE_FLOOR);

/// Where a queue lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Offset of its header in the file.
    pub offset: u64,
    /// log2 of an element's size.
    pub log2_elem: u32,
    /// Number of elements minus one.
    pub mask: u32,
}

impl Place {
    fn words(self) -> [u64; 2] {
        [
            self.offset,
            u64::from(self.log2_elem) | u64::from(self.mask) << 32,
        ]
    }

    fn from_words(words: [u64; 2]) -> Place {
        Place {
            offset: words[0],
            log2_elem: words[1] as u32,
            mask: (words[1] >> 32) as u32,
        }
    }
}

/// A QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpRecord {
    /// Its number.
    pub qpn: u32,
    /// Handle of the CQ of its send queue.
    pub send_cq: u32,
    /// Handle of the CQ of its receive queue.
    pub recv_cq: u32,
    /// Send queue.
    pub sq: Place,
    /// Receive queue.
    pub rq: Place,
}

/// A CQ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqRecord {
    /// Handle of its completion channel, or [`NO_CHANNEL`].
    pub channel: u32,
    /// What events name it by.
    pub user_handle: u64,
    /// The queue.
    pub queue: Place,
}

/// Set in a record's first word while the object exists.
const LIVE: u64 = 1;

impl QpRecord {
    /// Writes it as number `index`, the QP's doorbell index.
    pub fn publish(&self, view: &View<'_>, index: u32) {
        let [sq0, sq1] = self.sq.words();
        let [rq0, rq1] = self.rq.words();
        let cqs = u64::from(self.send_cq) | u64::from(self.recv_cq) << 32;
        let first = LIVE | u64::from(self.qpn) << 32;
        let rest = [cqs, sq0, sq1, rq0, rq1];
        put(
            view,
            QP_RECORDS + QP_STRIDE * u64::from(index),
            first,
            &rest,
        );
        raise(view, QP_LIMIT, index);
    }

    /// Takes number `index` out, before its queues are given back.
    pub fn withdraw(view: &View<'_>, index: u32) {
        take_out(view, QP_RECORDS + QP_STRIDE * u64::from(index));
    }

    /// Number `index`, if there is such a QP.
    pub fn read(view: &View<'_>, index: u32) -> Option<QpRecord> {
        let at = QP_RECORDS + QP_STRIDE * u64::from(index);
        if index as usize >= MAX_QPS {
            return None;
        }
        let (first, [cqs, sq0, sq1, rq0, rq1]) = get(view, at)?;
        Some(QpRecord {
            qpn: (first >> 32) as u32,
            send_cq: cqs as u32,
            recv_cq: (cqs >> 32) as u32,
            sq: Place::from_words([sq0, sq1]),
            rq: Place::from_words([rq0, rq1]),
        })
    }

    /// Records in use have indices below this.
    pub fn limit(view: &View<'_>) -> u32 {
        limit(view, QP_LIMIT, MAX_QPS)
    }
}

/// Notes that the QP with this doorbell index takes no send requests, or does from now on.
pub fn close_sends(view: &View<'_>, index: u32, closed: bool) {
    let bit = 1u64 << (index % 64);
    if let Some(word) = view.u64(CLOSED_OFFSET + 8 * u64::from(index / 64)) {
        if closed {
            word.fetch_or(bit, Ordering::Release);
        } else {
            word.fetch_and(!bit, Ordering::Release);
        }
    }
}

impl CqRecord {
    /// Writes it as number `handle`, the CQ's handle.
    pub fn publish(&self, view: &View<'_>, handle: u32) {
        let [q0, q1] = self.queue.words();
        let first = LIVE | u64::from(self.channel) << 32;
        let rest = [self.user_handle, q0, q1];
        put(
            view,
            CQ_RECORDS + CQ_STRIDE * u64::from(handle),
            first,
            &rest,
        );
        raise(view, CQ_LIMIT, handle);
    }

    /// Takes number `handle` out, before its queue is given back.
    pub fn withdraw(view: &View<'_>, handle: u32) {
        take_out(view, CQ_RECORDS + CQ_STRIDE * u64::from(handle));
    }

    /// Number `handle`, if there is such a CQ.
    pub fn read(view: &View<'_>, handle: u32) -> Option<CqRecord> {
        let at = CQ_RECORDS + CQ_STRIDE * u64::from(handle);
        if handle as usize >= MAX_CQS {
            return None;
        }
        let (first, [user_handle, q0, q1]) = get(view, at)?;
        Some(CqRecord {
            channel: (first >> 32) as u32,
            user_handle,
            queue: Place::from_words([q0, q1]),
        })
    }

    /// Records in use have handles below this.
    pub fn limit(view: &View<'_>) -> u32 {
        limit(view, CQ_LIMIT, MAX_CQS)
    }
}

/// Writes the rest, then the first word, which makes it count.
fn put(view: &View<'_>, at: u64, first: u64, rest: &[u64]) {
    for (i, word) in rest.iter().enumerate() {
        if let Some(place) = view.u64(at + 8 * (i as u64 + 1)) {
            place.store(*word, Ordering::Relaxed);
        }
    }
    if let Some(place) = view.u64(at) {
        place.store(first, Ordering::Release);
    }
}

fn get<const N: usize>(view: &View<'_>, at: u64) -> Option<(u64, [u64; N])> {
    let first = view.u64(at)?.load(Ordering::Acquire);
    if first & LIVE == 0 {
        return None;
    }
    let mut rest = [0; N];
    for (i, word) in rest.iter_mut().enumerate() {
        *word = view.u64(at + 8 * (i as u64 + 1))?.load(Ordering::Relaxed);
    }
    Some((first, rest))
}

fn take_out(view: &View<'_>, at: u64) {
    if let Some(place) = view.u64(at) {
        place.store(0, Ordering::Release);
    }
}

fn raise(view: &View<'_>, at: u64, index: u32) {
    if let Some(place) = view.u32(at) {
        place.fetch_max(index.saturating_add(1), Ordering::AcqRel);
    }
}

fn limit(view: &View<'_>, at: u64, most: usize) -> u32 {
    let written = view
        .u32(at)
        .map_or(0, |place| place.load(Ordering::Acquire));
    written.min(most as u32)
}
