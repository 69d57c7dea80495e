//! What an engine sends by itself: each QP in its turn ([`super::schedule`]), at the rate that it may have.

use super::Engine;
use super::env::{Env, Meter, env};
use super::reaction::Allowance;
use super::{requester, responder};
use crate::congestion::ets::Ets;
use crate::congestion::priority::PriorityMap;
use crate::congestion::{CongestionConfig, Rate};
use crate::descriptor::Outputs;
use crate::time::Nanos;
use crate::verbs::QpId;
use crate::wire::Transport;

/// Packets that a QP emits before the next one has its turn, however short they are.
const BURST: usize = 16;
/// Turns that a `tx` call gives at most, so that QPs which turn out to have nothing cost little.
const TURNS_PER_CALL: usize = 64;

impl Engine {
    /// Emits at most `budget` packets, fairly by bytes of link time over the groups, their priorities, and in those over the
    /// QPs that have some. True if more are ready now.
    pub fn tx(&mut self, budget: usize, now: Nanos, out: &mut Outputs) -> bool {
        let tx_end = Outputs::TX.min(out.tx.len() + budget);
        self.held_are_ready(now);
        self.cnps(now, out, tx_end);
        self.owed_acks(now, out, tx_end);
        for given in 0..TURNS_PER_CALL {
            let Some(turn) = self.nic.lists.ready.next() else {
                break;
            };
            self.prefetch_turns(given);
            let Some(qp) = self.qps.at_mut(turn.slot) else {
                self.nic.lists.ready.end(turn, 0, false);
                continue;
            };
            let mut env = env!(self, now, out, tx_end);
            if qp.tx_paused {
                env.nic.lists.ready.end(turn, 0, false);
                continue;
            }
            if !env.tx_room() || !env.event_room() {
                env.nic.lists.ready.end(turn, 0, true);
                break;
            }
            let mut credit = turn.credit.map(i64::from);
            if qp.limited {
                match env.nic.reaction.allowance(qp, now) {
                    Allowance::Free => {}
                    Allowance::Bytes(bytes) => {
                        credit = Some(credit.map_or(bytes, |credit| credit.min(bytes)));
                    }
                    // ACKs are not held back, unless a READ is to be answered first.
                    Allowance::Wait => credit = Some(0),
                }
            }
            if let Some(credit) = credit {
                env.meter = Meter::new(credit, env.out.tx.len());
            }
            let responses = match qp.answers {
                true => responder::emit(qp, BURST, &mut env),
                false => 0,
            };
            let requests = match qp.transport {
                Transport::Ud => requester::emit_datagrams(qp, BURST, &mut env),
                _ => requester::emit(qp, BURST - responses, &mut env),
            };
            // Whoever had nothing to say, or was held back, comes again when that changes.
            let idle = responses + requests == 0 && credit != Some(0);
            let mut more = !idle && (qp.answers || qp.req.has_unsent());
            let bytes = env.meter.bytes();
            if qp.limited {
                more = env.nic.reaction.sent(qp, bytes, more, now);
                qp.limited = env.nic.reaction.is_limited(qp.slot);
            }
            env.nic.lists.ready.end(turn, bytes as i32, more);
        }
        !self.nic.lists.ready.is_empty() || !self.nic.lists.acks.is_empty()
    }

    /// While paused, [`Engine::tx`] emits nothing for this QP: its program's memory cannot keep up. Nor does
    /// an ACK timeout then call for a retry, since packets may still be here. Unpaused, the QP is ready again.
    pub fn pause_tx(&mut self, qp: QpId, paused: bool) {
        if let Some(qp) = self.qps.get_mut(qp) {
            qp.tx_paused = paused;
            if !paused {
                self.nic.lists.ready.push(qp.slot);
            }
        }
    }

    /// Bit p of `priorities`: the peer at the other end of the link has paused priority p (IEEE 802.1Qbb), so [`Engine::tx`] emits
    /// neither requests nor READ responses of QPs of that priority, until another call says otherwise. ACKs that are due come
    /// out all the same: whoever holds the frames of a link back holds those back, too. Call [`Engine::tx`] when a priority is
    /// no longer paused.
    pub fn set_paused(&mut self, priorities: u8) {
        self.nic.lists.ready.set_paused(priorities);
    }

    /// Which of the priorities that wait is sent next; by default programs share alike, and in each of them its priorities. Only
    /// between calls of [`Engine::tx`].
    pub fn set_transmission_selection(&mut self, ets: &Ets) {
        self.nic.lists.ready.select(ets);
    }

    /// Which priority a QP has follows from the DSCP of its address vector by this map (the class selector unless said
    /// otherwise), or is its service level, where the map goes by PCP. Those that exist have it from their next turn on.
    pub fn set_priority_map(&mut self, map: PriorityMap, now: Nanos) {
        self.priorities = map;
        for qp in self.qps.iter_mut() {
            qp.priority = qp.priority_by(&map);
            self.nic.lists.ready.set_priority(qp.slot, qp.priority);
            self.nic.reaction.configure(qp, now);
        }
    }

    /// Says that packets of a QP have this priority (0 to 7): [`Engine::set_paused`] goes by it, and QPs share the link with those
    /// of their group and priority. Each change of the address vector, or of the map, sets it back to that of the DSCP.
    pub fn set_priority(&mut self, qp: QpId, priority: u8, now: Nanos) {
        if let Some(qp) = self.qps.get_mut(qp) {
            qp.priority = priority & 7;
            self.nic.lists.ready.set_priority(qp.slot, priority);
            self.nic.reaction.configure(qp, now);
        }
    }

    /// The priority of a QP's packets.
    pub fn priority(&self, qp: QpId) -> Option<u8> {
        self.qps.get(qp).map(|qp| qp.priority)
    }

    /// Goes by another configuration of congestion control from `now` on. Algorithms that stay the same keep their state.
    pub fn set_congestion(&mut self, config: &CongestionConfig, now: Nanos) {
        self.notifier.configure(config);
        self.nic.reaction.set_config(config);
        for qp in self.qps.iter_mut() {
            self.nic.reaction.configure(qp, now);
            // It may wait for a time that does not hold any more.
            self.nic.lists.ready.push(qp.slot);
        }
    }

    /// What congestion control allows a QP at `now`, which must not be before the last call with a time; `None` if there is no
    /// such QP.
    pub fn qp_rate(&self, qp: QpId, now: Nanos) -> Option<Rate> {
        let qp = self.qps.get(qp)?;
        Some(self.nic.reaction.rate(qp.slot, now))
    }

    /// QPs whose time to send has come wait for their turn from now on.
    #[inline]
    pub(super) fn held_are_ready(&mut self, now: Nanos) {
        while let Some(slot) = self.nic.reaction.pop_due(now) {
            self.nic.lists.ready.push(slot);
        }
    }

    /// Coalesced ACKs, as many as there is room for.
    #[inline]
    pub(super) fn owed_acks(&mut self, now: Nanos, out: &mut Outputs, tx_end: usize) {
        while !self.nic.lists.acks.is_empty() {
            let mut env = env!(self, now, out, tx_end);
            if !env.tx_room() {
                break;
            }
            let Some(slot) = env.nic.lists.acks.pop() else {
                break;
            };
            if let Some(qp) = self.qps.at_mut(slot) {
                responder::emit_owed_ack(qp, &mut env);
            }
        }
    }
}
