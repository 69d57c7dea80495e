//! How long a requester waits for an acknowledgement, by profile.
//!
//! `Spec` waits the QP's ACK timeout T each time and `retry_cnt` counts the retries. `Adaptive` imitates
//! ConnectX NICs with adaptive retransmission, after two sources: NVIDIA's "Adaptive Retransmission: Parameters
//! Control" (waits double; T caps them; the QP fails when nothing was acknowledged for T times `retry_cnt`; progress
//! goes back to the first wait), and linux-rdma/perftest issue 251, where a ConnectX-5 with T of 1 s was
//! seen to send again after 2, 4, 8 and 16 ms. `docs/conformance.md` has the rules one by one.

use super::Requester;
use crate::time::Nanos;
use crate::transport::Retransmission;

/// The first wait of [`Retransmission::Adaptive`]: ACK timeout code 9, the 2 ms that were seen. Far above the 4 us
/// that NVIDIA's firmware takes as the least, so that floor never shows.
const FIRST_WAIT: Nanos = Nanos(4096 << 9);
/// Doublings after which every ACK timeout (code 31 at most) is reached.
const MAX_DOUBLINGS: u32 = 31 - 9;

/// What the end of a wait means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expiry {
    /// One of `retry_cnt` retries, if one is left.
    RetryCount,
    /// Adaptive: a retry before the ACK timeout.
    Early,
    /// Adaptive: a retry after a wait of the whole ACK timeout.
    Full,
    /// Adaptive: the time for everything is up.
    Total,
}

impl Requester {
    /// How long to wait now for an acknowledgement. Only where there is an ACK timeout.
    #[inline]
    pub(super) fn ack_wait(&self) -> Nanos {
        match self.profile {
            Retransmission::Spec => self.timeout,
            Retransmission::Adaptive => {
                let doubled = FIRST_WAIT.0 << self.expired.min(MAX_DOUBLINGS);
                Nanos(doubled.min(self.timeout.0))
            }
        }
    }

    /// A wait for an acknowledgement has ended without one.
    pub(super) fn ack_wait_expired(&mut self) -> Expiry {
        if self.profile == Retransmission::Spec {
            return Expiry::RetryCount;
        }
        let wait = self.ack_wait();
        if self.expired == 0 {
            self.stalled = Nanos::ZERO;
        }
        self.expired = self.expired.saturating_add(1);
        // Not the time since the first of them began: that may hold RNR waits, in which the peer lives, and pauses
        // of our own ([`crate::Engine::pause_tx`]).
        self.stalled = self.stalled + wait;
        // A `retry_cnt` of 0 would leave no time at all; it means one ACK timeout, as with the other profile.
        let total = self.timeout.0 * u64::from(self.retry_cnt.max(1));
        if self.stalled.0 >= total {
            Expiry::Total
        } else if wait < self.timeout {
            Expiry::Early
        } else {
            Expiry::Full
        }
    }
}
