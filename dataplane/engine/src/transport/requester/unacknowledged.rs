//! A requester whose packets nobody acknowledges (UC): a request is done when the payload of its last packet is fetched,
//! since nothing more will be known of it (IBTA 9.8.1, 10.3.1). So that stands where the ACK stands in RC, packet by packet,
//! and the same marks move. And SQE, the state in which the send queue stands still after an error.

use super::Requester;
use super::response::acknowledge;
use crate::transport::env::Env;
use crate::transport::qp::Qp;

/// The oldest packet that was emitted has its payload, and is on its way or lost.
pub(super) fn packet_fetched(qp: &mut Qp, env: &mut Env<'_>) {
    if qp.req.una != qp.req.max {
        acknowledge(qp, qp.req.una.add(1), env);
    }
}

impl Requester {
    /// From SQE back to RTS. What was posted before still completes with a flush error; what is posted from now on is
    /// sent, with PSNs that no packet has had.
    pub(crate) fn resume(&mut self) {
        self.una = self.alloc;
        self.snd = self.alloc;
        self.max = self.alloc;
        // With nothing left to flush, the request that failed must not stop emission any more either.
        let flushes = self.head != self.tail;
        self.flush_end = flushes.then_some(self.tail);
        // Nothing behind this mark is emitted.
        self.stop = flushes.then_some(self.head);
        self.started = self.head;
        self.cur = self.head;
        self.una_wqe = self.head;
    }

    /// Whether requests of before SQE are still to be flushed.
    pub(crate) fn is_flushing(&self) -> bool {
        self.flush_end.is_some()
    }
}
