//! What an engine is told at its start.

use crate::congestion::CongestionConfig;

/// When a responder acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckPolicy {
    /// One ACK for each packet that asks for one, as soft-RoCE does.
    PerMessage,
    /// At most one ACK per QP and burst, unless the rules force more.
    Coalesced,
}

/// How long a requester waits for an acknowledgement before it sends again, and when it gives up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retransmission {
    /// The QP's ACK timeout each time, `retry_cnt` times (IBTA 9.7.6.1).
    #[default]
    Spec,
    /// As ConnectX NICs do with adaptive retransmission: shorter waits first, each twice the one before, up to
    /// the ACK timeout; the QP fails once it has waited in vain for `retry_cnt` ACK timeouts.
    Adaptive,
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
    /// How requesters time their retries.
    pub retransmission: Retransmission,
    /// This lcore's number, in the low `owner_bits` of every QPN.
    pub owner: u32,
    /// Bits of the owner in a QPN.
    pub owner_bits: u32,
    /// Congestion control, until [`crate::Engine::set_congestion`] says otherwise.
    pub congestion: CongestionConfig,
    /// Seeds QPN and key generations; the same seed gives the same numbers.
    pub seed: u64,
}

/// Largest [`EngineConfig::window`].
pub(super) const MAX_WINDOW: u32 = 256;
