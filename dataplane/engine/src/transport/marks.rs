//! Where marks and CNPs meet the rest of the engine: counted, given to the notification point ([`super::notify`]), sent when due,
//! and handed to the reaction point ([`super::reaction`]) of the QP that they are for.

use super::Engine;
use super::env::count;
use super::notify::{self, Marked, Notifier};
use super::qp::Qp;
use crate::congestion::NpParams;
use crate::congestion::priority::PriorityMap;
use crate::counters::Counters;
use crate::descriptor::Outputs;
use crate::time::Nanos;
use crate::verbs::QpId;
use crate::wire::{Packet, Transport};

/// A packet with a CE mark arrived at its QP.
#[cold]
pub(super) fn note(
    qp: &mut Qp,
    packet: &Packet,
    now: Nanos,
    notifier: &mut Notifier,
    priorities: &PriorityMap,
    counters: &mut Counters,
) {
    qp.counters.np_ecn_marked_roce_packets += 1;
    counters.np_ecn_marked_roce_packets += 1;
    // Where tags tell priorities, its own: a connection has one service level.
    let sl = qp.cold.attr.path.sl;
    let priority = priorities.of_ip(packet.traffic_class >> 2, Some(sl));
    if notifier.marked(qp, packet, priority, now) == Marked::NoRoom {
        counters.np_cnp_dropped += 1;
    }
}

impl Engine {
    /// What CNPs look like: those who build packets set DSCP and priority.
    pub fn np_params(&self) -> &NpParams {
        self.notifier.params()
    }

    /// DSCP and ECN of the packets of a path for which `traffic_class` and service level `sl` were asked: where congestion control heeds marks they can be
    /// marked (ECT(0), RFC 3168 section 5), whatever the ECN bits that were asked for, as NICs have it that take DSCP from the
    /// program and ECN from their configuration. Without it they are as the program says.
    pub fn ecn_of(&self, traffic_class: u8, sl: u8) -> u8 {
        const ECT_0: u8 = 2;
        let priority = self.priorities.of_ip(traffic_class >> 2, Some(sl));
        match self.nic.reaction.heeds_marks(priority) {
            true => traffic_class & !3 | ECT_0,
            false => traffic_class,
        }
    }

    /// A CNP. It is the peer's word, or it does not count; a UD QP has no peer, so anybody's does there.
    #[cold]
    pub(super) fn rx_cnp(&mut self, packet: &Packet, now: Nanos) {
        let Some(qp) = self.qps.get_mut(QpId(packet.dest_qpn)) else {
            self.nic.counters.rp_cnp_ignored += 1;
            return;
        };
        let from_peer = packet.src == qp.dgid && packet.dst == qp.sgid;
        let welcome = from_peer || qp.transport == Transport::Ud;
        if !qp.can_receive() {
            count!(qp, self, rp_cnp_ignored);
        } else if !welcome || !super::of_partition(packet) {
            self.nic.counters.rx_dropped += 1;
            qp.journal.foreign(packet.src, packet.dst);
        } else if self.nic.reaction.on_cnp(qp, now) {
            count!(qp, self, rp_cnp_handled);
        } else {
            count!(qp, self, rp_cnp_ignored);
        }
    }

    /// The priority of the next CNP is paused.
    #[inline]
    fn cnps_are_paused(&self) -> bool {
        let np = self.notifier.params();
        let pcp = match np.cnp_prio_of_qp {
            false => np.cnp_802p_prio,
            true => {
                let next = self.notifier.next_qp().and_then(|id| self.qps.get(id));
                next.map_or(np.cnp_802p_prio, |qp| qp.priority)
            }
        };
        let priority = self.priorities.of_ip(np.cnp_dscp, Some(pcp));
        self.nic.lists.ready.paused() >> priority & 1 != 0
    }

    /// When the next CNP is to be sent.
    #[inline]
    pub(super) fn next_cnp(&self) -> Option<Nanos> {
        let next = self.notifier.next_deadline()?;
        (!self.cnps_are_paused()).then_some(next)
    }

    /// CNPs that are due, as many as there is room for; the others are sent later.
    #[inline]
    pub(super) fn cnps(&mut self, now: Nanos, out: &mut Outputs, tx_end: usize) {
        if self.next_cnp().is_none_or(|at| at > now) {
            return;
        }
        let tx_end = tx_end.min(Outputs::TX);
        while out.tx.len() < tx_end && !self.cnps_are_paused() {
            let Some((id, to)) = self.notifier.pop_due(now) else {
                break;
            };
            // Its QP may be gone by now.
            let Some(qp) = self.qps.get_mut(id).filter(|qp| qp.can_receive()) else {
                continue;
            };
            out.tx.push(notify::cnp(qp, to));
            count!(qp, self, np_cnp_sent);
        }
    }
}
