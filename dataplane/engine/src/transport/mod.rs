//! The RC transport. [`Engine`] is the whole of it from outside.
//!
//! `requester` turns work requests into packets and responses into completions; `responder` turns
//! requests into placements, responses and receive completions. Both work on one [`qp::Qp`].

use crate::counters::Counters;
use crate::descriptor::{Outcome, Outputs, Side, TxDesc};
use crate::memory::{AccessError, MrAttr, MrInfo};
use crate::time::Nanos;
use crate::verbs::{QpAttr, QpError, QpId, QpInit, RecvQueues, SendWr, Sge};
use crate::wire::Packet;

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

// SIGNATURES (the contract; bodies belong to the transport work)
//
// impl Engine {
//   pub fn new(config: EngineConfig) -> Engine;
//   pub fn counters(&self) -> &Counters;  pub fn counters_mut(&mut self) -> &mut Counters;
//
//   // objects; called between bursts
//   pub fn register(&mut self, attr: MrAttr) -> Result<MrInfo, AccessError>;
//   pub fn deregister(&mut self, lkey: u32) -> Result<MrInfo, AccessError>;
//   pub fn create_qp(&mut self, init: &QpInit) -> Result<QpId, QpError>;
//   pub fn modify_qp(&mut self, qp: QpId, attr: &QpAttr, mask: u32, now: Nanos, out: &mut Outputs) -> Result<(), QpError>;
//   pub fn query_qp(&self, qp: QpId) -> Result<(QpAttr, QpInit), QpError>;
//   pub fn destroy_qp(&mut self, qp: QpId) -> Result<(), QpError>;
//   /// An error that the caller found (CQ overflow ...): the QP goes to ERR.
//   pub fn fail_qp(&mut self, qp: QpId, now: Nanos, out: &mut Outputs);
//
//   // datapath; allocates nothing
//   /// May the caller hand over send requests now? (RTS, SQD: yes while there is room; ERR: yes, they are flushed; else no)
//   pub fn wants_sends(&self, qp: QpId) -> bool;
//   pub fn post_send(&mut self, qp: QpId, wr: &SendWr, sges: &[Sge]) -> Result<(), SqFull>;
//   /// One packet whose ICRC was good and whose destination address is ours. `tag` comes back in `Place::packet`.
//   pub fn rx<Q: RecvQueues>(&mut self, packet: &Packet, tag: u32, now: Nanos, queues: &mut Q, out: &mut Outputs);
//   /// End of a receive burst: coalesced ACKs come out.
//   pub fn rx_end(&mut self, now: Nanos, out: &mut Outputs);
//   pub fn placed<Q: RecvQueues>(&mut self, qp: QpId, epoch: u32, side: Side, outcome: Outcome, now: Nanos, queues: &mut Q, out: &mut Outputs);
//   pub fn fetch_fault(&mut self, qp: QpId, epoch: u32, side: Side, psn: Psn, now: Nanos, out: &mut Outputs);
//   /// Emits at most `budget` packets, fairly over the QPs that have some. True if more are ready now.
//   pub fn tx(&mut self, budget: usize, now: Nanos, out: &mut Outputs) -> bool;
//   /// Fires due timers and goes on with flushes (send and receive queues of QPs in ERR). True if more is due now.
//   pub fn advance<Q: RecvQueues>(&mut self, now: Nanos, queues: &mut Q, out: &mut Outputs) -> bool;
//   /// The next time at which `advance` has something to do.
//   pub fn next_deadline(&self) -> Option<Nanos>;
//   /// QPs in ERR whose receive queues must be looked at from time to time (receives have no doorbell).
//   pub fn has_errored_qps(&self) -> bool;
// }
