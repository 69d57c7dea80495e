//! Fetching into the cache what packets are about to touch. With thousands of queue pairs each packet meets one that was not
//! looked at for long, and a dozen cache lines of it, one after the other, would cost more than all the work on them.
//!
//! In two steps, since some of the lines lie behind pointers in others: the first is for well ahead of the packet, the second
//! for when the lines of the first have arrived. Neither changes anything, nor needs the queue pair to exist.

use super::Engine;
use super::qp::Qp;
use crate::verbs::QpId;
use crate::wire::{Operation, Packet};

/// Asks for the cache line at an address.
#[inline(always)]
pub(crate) fn line<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint; it never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Asks for so many cache lines.
#[inline(always)]
pub(crate) fn lines<T>(at: *const T, count: usize) {
    for n in 0..count {
        line(at.cast::<u8>().wrapping_add(64 * n));
    }
}

/// QPs whose turn to send comes that are fetched at once: twice as many, with the headers that are made of them, are far from
/// filling the nearest cache.
const BATCH: usize = 8;

/// Which half of a QP is going to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Requester,
    Responder,
}

impl Half {
    #[inline]
    fn of(packet: &Packet) -> Half {
        match packet.opcode.info().is_request() {
            true => Half::Responder,
            false => Half::Requester,
        }
    }
}

impl Engine {
    /// First step for a packet that will be given to [`Engine::rx`]: some packets ahead of it.
    #[inline]
    pub fn prefetch_rx(&self, packet: &Packet) {
        if let Some(qp) = self.qps.address(QpId(packet.dest_qpn)) {
            Qp::prefetch(qp, Half::of(packet));
        }
    }

    /// Second step: a packet or two ahead.
    #[inline]
    pub fn prefetch_rx_behind(&self, packet: &Packet) {
        let Some(qp) = self.qps.get(QpId(packet.dest_qpn)) else {
            return;
        };
        qp.journal.prefetch();
        match Half::of(packet) {
            Half::Requester => qp.req.prefetch_acknowledged(),
            Half::Responder => {
                if packet.opcode.info().operation == Operation::Send {
                    qp.resp.prefetch_receive();
                }
            }
        }
    }

    /// For a packet that names a region or window.
    #[inline]
    pub fn prefetch_region(&self, key: u32) {
        self.nic.mrs.prefetch(key);
    }

    /// First step for a send request that will be given to [`Engine::post_send`].
    #[inline]
    pub fn prefetch_send(&self, qp: QpId) {
        if let Some(qp) = self.qps.address(qp) {
            Qp::prefetch_post(qp);
        }
    }

    /// Second step.
    #[inline]
    pub fn prefetch_send_behind(&self, qp: QpId) {
        if let Some(qp) = self.qps.get(qp) {
            qp.req.prefetch_posted();
        }
    }

    /// Both steps for QPs whose turn to send comes soon, when so many turns of a call have been given.
    ///
    /// For a batch of them now and then, not for one in each turn: where it misses the TLB, a prefetch holds up what comes behind it
    /// until page tables are walked, and the CPU walks for several at once only if they are close together.
    #[inline]
    pub(super) fn prefetch_turns(&self, given: usize) {
        if given % BATCH != 0 {
            return;
        }
        let mut slots = [0; 2 * BATCH];
        let coming = self.nic.lists.ready.coming(&mut slots);
        let (near, far) = slots[..coming].split_at(BATCH.min(coming));
        // The near ones were the far ones of the batch before, if there was one.
        let begin = if given == 0 { near } else { &[] };
        for &slot in begin.iter().chain(far) {
            if let Some(qp) = self.qps.address_at(slot) {
                Qp::prefetch(qp, Half::Requester);
            }
        }
        for &slot in near {
            if let Some(qp) = self.qps.at(slot) {
                qp.req.prefetch_next();
                qp.journal.prefetch();
            }
        }
    }
}
