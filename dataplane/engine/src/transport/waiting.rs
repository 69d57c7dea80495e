//! What a queue pair waits for, for whoever looks from outside. Nothing of the transport goes by it.

use super::Engine;
use super::qp::Qp;
use super::requester::Wait;

/// What keeps a queue pair from sending more at a moment. The first that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The peer has nothing posted to receive into: the end of an RNR wait.
    Receiver,
    /// The caller, which cannot fetch its payload fast enough ([`Engine::pause_tx`]).
    Memory,
    /// The other end of the link has paused its priority.
    Pause,
    /// The rate that congestion control allows it.
    Rate,
    /// Its turn in [`Engine::tx`].
    Turn,
    /// The peer: all that window and order of requests allow is on its way.
    Peer,
    /// Its program: nothing is posted, and no answer is owed.
    Program,
}

impl Waiting {
    /// All, in this order.
    pub const ALL: [Waiting; 7] = [
        Waiting::Receiver,
        Waiting::Memory,
        Waiting::Pause,
        Waiting::Rate,
        Waiting::Turn,
        Waiting::Peer,
        Waiting::Program,
    ];

    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Waiting::Receiver => "receiver",
            Waiting::Memory => "memory",
            Waiting::Pause => "pause",
            Waiting::Rate => "rate",
            Waiting::Turn => "turn",
            Waiting::Peer => "peer",
            Waiting::Program => "program",
        }
    }
}

impl Engine {
    /// Places of queue pairs, some of which may be empty: for [`Engine::waiting`].
    pub fn qp_slots(&self) -> usize {
        self.qps.slots()
    }

    /// What the queue pair in a place waits for; `None` if there is none, or it does not send in its state.
    pub fn waiting(&self, slot: u32) -> Option<Waiting> {
        let qp = self.qps.at(slot).filter(|qp| qp.can_send())?;
        Some(self.waiting_of(qp))
    }

    fn waiting_of(&self, qp: &Qp) -> Waiting {
        if qp.req.waits() == Wait::Rnr {
            return Waiting::Receiver;
        }
        let ready = &self.nic.lists.ready;
        if qp.answers || qp.req.has_unsent() {
            let has_turn = ready.has(qp.slot);
            if qp.tx_paused {
                return Waiting::Memory;
            }
            if has_turn && ready.paused() & 1 << qp.priority != 0 {
                return Waiting::Pause;
            }
            if qp.limited && self.nic.reaction.holds(qp.slot) {
                return Waiting::Rate;
            }
            if has_turn {
                return Waiting::Turn;
            }
        }
        match qp.req.open() {
            0 => Waiting::Program,
            _ => Waiting::Peer,
        }
    }
}
