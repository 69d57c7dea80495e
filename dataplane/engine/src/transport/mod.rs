//! The RC transport. [`Engine`] is the whole of it from outside.
//!
//! `requester` turns work requests into packets and responses into completions; `responder` turns
//! requests into placements, responses and receive completions. Both work on one [`qp::Qp`].

use crate::counters::Counters;
use crate::descriptor::{Outcome, Outputs, Side};
use crate::memory::{AccessError, MrAttr, MrInfo, MrTable};
use crate::time::Nanos;
use crate::timers::TimerWheel;
use crate::verbs::{QpAttr, QpError, QpId, QpInit, RecvQueues, SendWr, Sge};
use crate::wire::{Packet, Psn};

/// When a responder acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckPolicy {
    /// One ACK for each packet that asks for one, as soft-RoCE does.
    PerMessage,
    /// At most one ACK per QP and burst, unless the rules force more.
    Coalesced,
}

/// What an engine needs to know at its start.
#[derive(Clone, Copy, Debug)]
pub struct EngineConfig {
    /// QPs at most.
    pub max_qps: u32,
    /// Memory regions at most.
    pub max_mrs: u32,
    /// Packets that a requester may have unacknowledged: at most 256 in this version.
    pub window: u32,
    /// When responders acknowledge.
    pub ack_policy: AckPolicy,
    /// This lcore's number, in the low `owner_bits` of every QPN.
    pub owner: u32,
    /// Bits of the owner in a QPN.
    pub owner_bits: u32,
    /// Seeds QPN and key generations; the same seed gives the same numbers.
    pub seed: u64,
}

/// The queue of send requests is full; the caller keeps the request and tries again after completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the send queue is full")]
pub struct SqFull;

/// The transport of one NIC on one lcore.
pub struct Engine {
    counters: Counters,
    mrs: MrTable,
    timers: TimerWheel,
}

impl Engine {
    /// An engine without objects.
    pub fn new(config: EngineConfig) -> Engine {
        Engine {
            counters: Counters::default(),
            mrs: MrTable::new(config.max_mrs, config.seed),
            timers: TimerWheel::new(config.max_qps),
        }
    }

    /// What was counted so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// For the counts that the caller makes: packets, bytes, malformed.
    pub fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// Registers a memory region.
    pub fn register(&mut self, attr: MrAttr) -> Result<MrInfo, AccessError> {
        self.mrs.register(attr)
    }

    /// Takes a memory region out; operations in flight keep their slices.
    pub fn deregister(&mut self, lkey: u32) -> Result<MrInfo, AccessError> {
        self.mrs.deregister(lkey)
    }

    /// Creates a QP in RESET.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<QpId, QpError> {
        let _ = init;
        Err(QpError::Unsupported("a queue pair"))
    }

    /// Changes state and attributes.
    pub fn modify_qp(
        &mut self,
        qp: QpId,
        attr: &QpAttr,
        mask: u32,
        now: Nanos,
        out: &mut Outputs,
    ) -> Result<(), QpError> {
        let _ = (attr, mask, now, out);
        Err(QpError::Unknown(qp.0))
    }

    /// What was set, with the live PSNs and state.
    pub fn query_qp(&self, qp: QpId) -> Result<(QpAttr, QpInit), QpError> {
        Err(QpError::Unknown(qp.0))
    }

    /// Drops a QP and all it has.
    pub fn destroy_qp(&mut self, qp: QpId) -> Result<(), QpError> {
        Err(QpError::Unknown(qp.0))
    }

    /// An error that the caller found (CQ overflow ...): the QP goes to ERR.
    pub fn fail_qp(&mut self, qp: QpId, now: Nanos, out: &mut Outputs) {
        let _ = (qp, now, out);
    }

    /// May the caller hand over send requests now? (RTS, SQD: yes while there is room; ERR: yes, they are flushed; else no)
    pub fn wants_sends(&self, qp: QpId) -> bool {
        let _ = qp;
        false
    }

    /// Takes a send request over.
    pub fn post_send(&mut self, qp: QpId, wr: &SendWr, sges: &[Sge]) -> Result<(), SqFull> {
        let _ = (qp, wr, sges);
        Err(SqFull)
    }

    /// One packet whose ICRC was good and whose destination address is ours. `tag` comes back in
    /// [`crate::Place::packet`].
    pub fn rx<Q: RecvQueues>(
        &mut self,
        packet: &Packet,
        tag: u32,
        now: Nanos,
        queues: &mut Q,
        out: &mut Outputs,
    ) {
        let _ = (packet, tag, now, queues, out);
    }

    /// End of a receive burst: coalesced ACKs come out.
    pub fn rx_end(&mut self, now: Nanos, out: &mut Outputs) {
        let _ = (now, out);
    }

    /// How the oldest unreported placement of that QP and side ended.
    #[allow(clippy::too_many_arguments)]
    pub fn placed<Q: RecvQueues>(
        &mut self,
        qp: QpId,
        epoch: u32,
        side: Side,
        outcome: Outcome,
        now: Nanos,
        queues: &mut Q,
        out: &mut Outputs,
    ) {
        let _ = (qp, epoch, side, outcome, now, queues, out);
    }

    /// The payload of a descriptor could not be read.
    pub fn fetch_fault(
        &mut self,
        qp: QpId,
        epoch: u32,
        side: Side,
        psn: Psn,
        now: Nanos,
        out: &mut Outputs,
    ) {
        let _ = (qp, epoch, side, psn, now, out);
    }

    /// Emits at most `budget` packets, fairly over the QPs that have some. True if more are ready now.
    pub fn tx(&mut self, budget: usize, now: Nanos, out: &mut Outputs) -> bool {
        let _ = (budget, now, out);
        false
    }

    /// While paused, [`Engine::tx`] emits nothing for this QP (its program's memory cannot keep up); unpausing makes it
    /// ready again if it has something to send. Timers go on. Added by the poll loop's needs.
    pub fn pause_tx(&mut self, qp: QpId, paused: bool) {
        let _ = (qp, paused);
    }

    /// Fires due timers and goes on with flushes (send and receive queues of QPs in ERR). True if more is due now.
    pub fn advance<Q: RecvQueues>(
        &mut self,
        now: Nanos,
        queues: &mut Q,
        out: &mut Outputs,
    ) -> bool {
        let _ = (now, queues, out);
        false
    }

    /// The next time at which [`Engine::advance`] has something to do.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.timers.next_deadline()
    }

    /// QPs in ERR whose receive queues must be looked at from time to time (receives have no doorbell).
    pub fn has_errored_qps(&self) -> bool {
        false
    }
}
