//! The transport. [`Engine`] is the whole of it from outside.
//!
//! `requester` turns work requests into packets and responses into completions; `responder` turns
//! requests into placements, responses and receive completions. Both work on one `Qp`, through an `Env` that
//! holds all else they may touch during a call. UC shares both with RC: packets that are handed over count as acknowledged
//! (`requester::unacknowledged`), and what RC would refuse is dropped (`responder::unreliable`). UD uses the rings and FIFOs of both, and
//! no more (`requester::datagram`, `responder::datagram`); where its packets go, address handles say (`ah`).

mod ah;
mod config;
mod env;
pub mod journal;
mod lists;
mod marks;
mod notify;
mod objects;
pub(crate) mod prefetch;
mod qp;
mod qp_table;
mod reaction;
mod requester;
mod responder;
mod schedule;
mod sge;
mod state;
mod transmit;
mod waiting;

use crate::congestion::priority::PriorityMap;
use crate::counters::Counters;
use crate::descriptor::{Outcome, Outputs, Side};
use crate::memory::MrTable;
use crate::time::Nanos;
use crate::timers::TimerWheel;
use crate::verbs::{Mtu, QpId, QpState, RecvQueues, SendWr, Sge};
use crate::wire::{Packet, Psn, Transport};
use ah::AhTable;
use config::MAX_WINDOW;
use env::{Env, Nic, env};
use journal::PostMortems;
use lists::Lists;
use notify::Notifier;
use qp::Qp;
use qp_table::QpTable;
use reaction::Reaction;

pub use ah::{AhError, AhInfo};
pub use config::{AckPolicy, EngineConfig, Retransmission};
pub use waiting::Waiting;

/// The queue of send requests is full; the caller keeps the request and tries again after completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the send queue is full")]
pub struct SqFull;

/// Placements that one side of a QP may have pending; a packet beyond is dropped and sent again by the peer.
pub const MAX_PENDING: u32 = 512;
/// Timers that an `advance` call fires at most.
const TIMERS_PER_CALL: usize = 64;
/// QPs with work left over that an `advance` call goes on with at most.
const WORK_PER_CALL: u32 = 64;
/// QPs in ERR whose receive queues an `advance` call looks at.
const ERRORED_PER_CALL: u32 = 4;

/// The transport of one NIC on one lcore.
pub struct Engine {
    qps: QpTable,
    nic: Nic,
    /// Longest datagram.
    datagram_mtu: Mtu,
    /// Of QPs, by the DSCP of their address vectors.
    priorities: PriorityMap,
    notifier: Notifier,
    retransmission: Retransmission,
}

impl Engine {
    /// An engine without objects.
    pub fn new(config: EngineConfig) -> Engine {
        Engine {
            qps: QpTable::new(config.max_qps, config.owner, config.owner_bits, config.seed),
            nic: Nic {
                mrs: MrTable::new(config.max_mrs, config.seed),
                ahs: AhTable::new(),
                timers: TimerWheel::new(0),
                lists: Lists::new(),
                reaction: Reaction::new(&config.congestion),
                counters: Counters::default(),
                post_mortems: PostMortems::new(),
                window: config.window.clamp(1, MAX_WINDOW),
                coalesce: config.ack_policy == AckPolicy::Coalesced,
            },
            datagram_mtu: Mtu::M4096,
            priorities: PriorityMap::default(),
            notifier: Notifier::new(&config.congestion),
            retransmission: config.retransmission,
        }
    }

    /// What was counted so far.
    pub fn counters(&self) -> &Counters {
        &self.nic.counters
    }

    /// For the counts that the caller makes: packets, bytes, malformed.
    pub fn counters_mut(&mut self) -> &mut Counters {
        &mut self.nic.counters
    }

    /// What was counted for one QP since it was created: the transport's counts, not the caller's. `None` for
    /// a QP that does not exist.
    pub fn qp_counters(&self, qp: QpId) -> Option<&Counters> {
        self.qps.get(qp).map(|qp| &qp.counters)
    }

    /// May the caller hand over send requests now? (RTS, SQD: yes while there is room; SQE, ERR: yes, they are flushed; else no)
    #[inline]
    pub fn wants_sends(&self, qp: QpId) -> bool {
        self.qps.get(qp).is_some_and(takes_sends)
    }

    /// Takes a send request over.
    #[inline]
    pub fn post_send(&mut self, qp: QpId, wr: &SendWr, sges: &[Sge]) -> Result<(), SqFull> {
        let qp = self
            .qps
            .get_mut(qp)
            .filter(|qp| takes_sends(qp))
            .ok_or(SqFull)?;
        qp.req.post(wr, sges)?;
        match qp.state {
            QpState::Err | QpState::Sqe => self.nic.lists.work.push(qp.slot),
            _ => self.nic.lists.ready.push(qp.slot),
        }
        Ok(())
    }

    /// One packet whose ICRC was good and whose destination address is ours. `tag` comes back in
    /// [`crate::Place::packet`].
    #[inline]
    pub fn rx<Q: RecvQueues>(
        &mut self,
        packet: &Packet,
        tag: u32,
        now: Nanos,
        queues: &mut Q,
        out: &mut Outputs,
    ) {
        let info = packet.opcode.info();
        match info.transport {
            Transport::Rc | Transport::Uc => {}
            Transport::Ud => return self.rx_datagram(packet, tag, now, queues, out),
            Transport::Cnp => return self.rx_cnp(packet, now),
        }
        let qp = match self.qps.get_mut(QpId(packet.dest_qpn)) {
            Some(qp) if qp.can_receive() => qp,
            _ => {
                self.nic.counters.rx_unknown_qp += 1;
                return;
            }
        };
        // A stranger's packets are the NIC's to count: they do not reach the QP.
        if !belongs(qp, packet) || !out.has_room() {
            self.nic.counters.rx_dropped += 1;
            if packet.dst != qp.sgid || packet.src != qp.dgid {
                qp.journal.foreign(packet.src, packet.dst);
            }
            return;
        }
        let is_request = info.is_request();
        qp.journal.received(now, packet, is_request);
        if packet.ce {
            let counters = &mut self.nic.counters;
            marks::note(
                qp,
                packet,
                now,
                &mut self.notifier,
                &self.priorities,
                counters,
            );
        }
        let mut env = env!(self, now, out);
        if !qp.reliable {
            responder::on_unreliable(qp, packet, tag, queues, &mut env);
        } else if is_request {
            responder::on_request(qp, packet, tag, queues, &mut env);
        } else {
            requester::on_response(qp, packet, tag, &mut env);
        }
    }

    /// The same for a datagram, which may come from anywhere: its Q_Key says whether it is welcome.
    fn rx_datagram<Q: RecvQueues>(
        &mut self,
        packet: &Packet,
        tag: u32,
        now: Nanos,
        queues: &mut Q,
        out: &mut Outputs,
    ) {
        let qp = match self.qps.get_mut(QpId(packet.dest_qpn)) {
            Some(qp) if qp.can_receive() => qp,
            _ => {
                self.nic.counters.rx_unknown_qp += 1;
                return;
            }
        };
        if qp.transport != Transport::Ud || !of_partition(packet) || !out.has_room() {
            self.nic.counters.rx_dropped += 1;
            return;
        }
        qp.journal.received(now, packet, true);
        // Of one that is not welcome nobody hears, its sender included.
        // Of one to a group nobody knows by which of its members it was sent a mark too many.
        if packet.ce && packet.ext.qkey == qp.qkey && !packet.dst.to_ip().is_multicast() {
            let counters = &mut self.nic.counters;
            marks::note(
                qp,
                packet,
                now,
                &mut self.notifier,
                &self.priorities,
                counters,
            );
        }
        let mut env = env!(self, now, out);
        responder::on_datagram(qp, packet, tag, queues, &mut env);
    }

    /// End of a receive burst: CNPs and coalesced ACKs come out.
    #[inline]
    pub fn rx_end(&mut self, now: Nanos, out: &mut Outputs) {
        let tx_end = out.tx.len() + Outputs::TX_PER_CALL;
        self.cnps(now, out, tx_end);
        self.owed_acks(now, out, tx_end);
    }

    /// How the oldest unreported placement of that QP and side ended.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    pub fn placed<Q: RecvQueues>(
        &mut self,
        qp: QpId,
        epoch: u32,
        side: Side,
        outcome: Outcome,
        now: Nanos,
        _queues: &mut Q,
        out: &mut Outputs,
    ) {
        let Some(qp) = self.qps.get_mut(qp).filter(|qp| qp.place_epoch == epoch) else {
            return;
        };
        let mut env = env!(self, now, out);
        match side {
            Side::Requester => requester::placed(qp, outcome, &mut env),
            Side::Responder => responder::placed(qp, outcome, &mut env),
        }
    }

    /// The `count` oldest unreported placements of that QP and side are done, as if [`Engine::placed`] had said so of each.
    /// What comes of all of them comes out in one call.
    #[inline]
    pub fn all_placed(
        &mut self,
        qp: QpId,
        epoch: u32,
        side: Side,
        count: u32,
        now: Nanos,
        out: &mut Outputs,
    ) {
        let Some(qp) = self.qps.get_mut(qp).filter(|qp| qp.place_epoch == epoch) else {
            return;
        };
        let mut env = env!(self, now, out);
        match side {
            Side::Requester => requester::all_placed(qp, count, &mut env),
            Side::Responder => responder::all_placed(qp, count, &mut env),
        }
    }

    /// The payload of a descriptor could not be read. The caller has dropped it and those behind it with the
    /// same QP and epoch.
    pub fn fetch_fault(
        &mut self,
        qp: QpId,
        epoch: u32,
        side: Side,
        psn: Psn,
        now: Nanos,
        out: &mut Outputs,
    ) {
        let Some(qp) = self.qps.get_mut(qp).filter(|qp| qp.tx_epoch == epoch) else {
            return;
        };
        let mut env = env!(self, now, out);
        match side {
            Side::Requester if qp.can_send() => requester::fetch_fault(qp, psn, &mut env),
            Side::Requester => {}
            Side::Responder => responder::fetch_fault(qp, psn, &mut env),
        }
    }

    /// What a descriptor with [`crate::TxDesc::tell_fetched`] asked for has happened.
    #[inline]
    pub fn fetched(&mut self, qp: QpId, epoch: u32, now: Nanos, out: &mut Outputs) {
        let live = |qp: &&mut Qp| qp.tx_epoch == epoch && qp.can_send();
        if let Some(qp) = self.qps.get_mut(qp).filter(live) {
            requester::fetched(qp, &mut env!(self, now, out));
        }
    }

    /// Where the parts of a QPN are: bits of the owner at the bottom, then bits of the index.
    pub fn qpn_layout(&self) -> (u32, u32) {
        self.qps.layout()
    }

    /// Whether a descriptor that had to wait, with this QP, epoch and side, may still be sent. Requests of a QP that has failed meanwhile may
    /// not: their completions are out, so their buffers and queue slots may hold something else by now. Nor may
    /// anything of a QP that was reset or destroyed.
    #[inline]
    pub fn is_current(&self, qp: QpId, epoch: u32, side: Side) -> bool {
        self.qps
            .get(qp)
            .is_some_and(|qp| qp.tx_epoch == epoch && (side == Side::Responder || qp.can_send()))
    }

    /// Fires due timers and goes on with flushes (send and receive queues of QPs in ERR). True if more is due now.
    pub fn advance<Q: RecvQueues>(
        &mut self,
        now: Nanos,
        queues: &mut Q,
        out: &mut Outputs,
    ) -> bool {
        self.held_are_ready(now);
        let tx_end = out.tx.len() + Outputs::TX_PER_CALL;
        self.cnps(now, out, tx_end);
        let mut env = env!(self, now, out, tx_end);
        let mut fired = 0;
        while fired < TIMERS_PER_CALL && env.event_room() {
            let Some(slot) = env.nic.timers.pop_due(now) else {
                break;
            };
            if let Some(qp) = self.qps.at_mut(slot) {
                requester::on_timer(qp, &mut env);
            }
            fired += 1;
        }
        for _ in 0..WORK_PER_CALL.min(env.nic.lists.work.len()) {
            if !env.event_room() {
                break;
            }
            let Some(slot) = env.nic.lists.work.pop() else {
                break;
            };
            let Some(qp) = self.qps.at_mut(slot) else {
                continue;
            };
            let finished = match qp.state {
                QpState::Err => flush(qp, queues, &mut env),
                _ if qp.flushes_sends() => {
                    let finished = requester::flush(qp, &mut env);
                    if finished && qp.req.has_unsent() {
                        env.nic.lists.ready.push(slot);
                    }
                    finished
                }
                _ => {
                    requester::complete(qp, &mut env);
                    if qp.req.has_unsent() {
                        env.nic.lists.ready.push(slot);
                    }
                    true
                }
            };
            if !finished {
                env.nic.lists.work.push(slot);
            }
        }
        for _ in 0..ERRORED_PER_CALL.min(env.nic.lists.errored.len()) {
            let Some(slot) = env.nic.lists.errored.pop() else {
                break;
            };
            let Some(qp) = self.qps.at_mut(slot) else {
                continue;
            };
            if qp.state == QpState::Err {
                if env.event_room() && !flush(qp, queues, &mut env) {
                    env.nic.lists.work.push(slot);
                }
                env.nic.lists.errored.push(slot);
            }
        }
        if self.nic.post_mortems.is_fresh() {
            self.nic.post_mortems.look_around(&self.qps);
        }
        let due = self.nic.timers.next_deadline().is_some_and(|t| t <= now);
        due || !self.nic.lists.work.is_empty()
    }

    /// The next time at which [`Engine::advance`] has something to do, or [`Engine::tx`] something to emit that has waited for
    /// its time; zero if `advance` has now.
    #[inline]
    pub fn next_deadline(&self) -> Option<Nanos> {
        earlier(self.next_timer(), self.nic.reaction.next_deadline())
    }

    /// As [`Engine::next_deadline`], without what [`Engine::tx`] sees to as well: packets that wait for their time.
    #[inline]
    pub fn next_timer(&self) -> Option<Nanos> {
        if !self.nic.lists.work.is_empty() {
            return Some(Nanos::ZERO);
        }
        earlier(self.nic.timers.next_deadline(), self.next_cnp())
    }

    /// Whether no call has anything to do before `until` unless it is given something. QPs in ERR are not looked at:
    /// [`Engine::has_errored_qps`].
    #[inline]
    pub fn is_idle(&self, until: Nanos) -> bool {
        let lists = &self.nic.lists;
        lists.ready.is_empty()
            && lists.acks.is_empty()
            && self.next_deadline().is_none_or(|at| at > until)
    }

    /// QPs in ERR whose receive queues must be looked at from time to time (receives have no doorbell).
    #[inline]
    pub fn has_errored_qps(&self) -> bool {
        !self.nic.lists.errored.is_empty()
    }
}

#[inline]
fn earlier(a: Option<Nanos>, b: Option<Nanos>) -> Option<Nanos> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        _ => a.or(b),
    }
}

#[inline]
fn takes_sends(qp: &Qp) -> bool {
    matches!(
        qp.state,
        QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err
    ) && qp.req.has_room()
}

/// Whether a packet is of this connection: its transport, between the two addresses, with the P_Key of the default
/// partition (IBTA 9.6, packet validation). Anybody can write a QPN into a packet.
#[inline]
fn belongs(qp: &Qp, packet: &Packet) -> bool {
    packet.opcode.info().transport == qp.transport
        && packet.src == qp.dgid
        && packet.dst == qp.sgid
        && of_partition(packet)
}

/// Whether a packet has the P_Key of the default partition, as a full or a limited member.
#[inline]
fn of_partition(packet: &Packet) -> bool {
    const DEFAULT_PARTITION: u16 = 0x7fff;
    packet.pkey & 0x7fff == DEFAULT_PARTITION
}

/// Empties the queues of a QP in ERR; false if it has to go on in another call.
fn flush<Q: RecvQueues>(qp: &mut Qp, queues: &mut Q, env: &mut Env<'_>) -> bool {
    requester::flush(qp, env) && responder::flush(qp, queues, env)
}
