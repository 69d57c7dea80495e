//! One queue pair: what requester and responder share.

use core::mem::offset_of;

use super::env::Env;
use super::journal::{Cause, Journal};
use super::prefetch::{self, Half};
use super::requester::Requester;
use super::responder::Responder;
use crate::congestion::priority::PriorityMap;
use crate::counters::Counters;
use crate::memory::Access;
use crate::time::Nanos;
use crate::verbs::{AsyncKind, QpAttr, QpId, QpInit, QpState, QpType};
use crate::wire::{Gid, Transport};

/// A queue pair, laid out by cache lines: what each packet looks at, the addresses with the counters that packets count, then
/// responder, requester and journal. What only `modify_qp` and `query_qp` look at is behind a pointer.
#[repr(C, align(64))]
pub(crate) struct Qp {
    /// Its number.
    pub id: QpId,
    /// Its place in the table; timers and lists go by it.
    pub slot: u32,
    pub state: QpState,
    /// log2 of the path MTU in bytes.
    pub mtu_shift: u8,
    /// The caller holds its packets back.
    pub tx_paused: bool,
    /// Its packets are of this transport.
    pub transport: Transport,
    /// Requests are acknowledged: RC.
    pub reliable: bool,
    /// Receive requests come from a shared receive queue.
    pub shared_receives: bool,
    /// Its packets are IPv6 packets.
    pub ipv6: bool,
    /// Of its packets, 0 to 7.
    pub priority: u8,
    /// Congestion control holds it back.
    pub limited: bool,
    /// The responder may have something to send: [`Responder::has_unsent`], without a look at it.
    pub answers: bool,
    /// Congestion control wants to hear of acknowledgements.
    pub hears_acks: bool,
    /// Rights of peers.
    pub access: Access,
    pub pd: u32,
    /// That of receive requests' keys: a shared receive queue has one of its own.
    pub recv_pd: u32,
    /// Marks descriptors of packets; steps at a reset, at a fetch fault and in SQE, after which the caller drops the
    /// descriptors it still has.
    pub tx_epoch: u32,
    /// Marks placements; steps at a reset only, since placements under way go on after a fault.
    pub place_epoch: u32,
    pub send_cq: u32,
    pub recv_cq: u32,
    /// UD: what arriving datagrams must name.
    pub qkey: u32,
    pub cold: Box<Cold>,
    /// Own address and the peer's; packets of others are not for this connection.
    pub sgid: Gid,
    pub dgid: Gid,
    /// What was counted for this QP since it was created.
    pub counters: Counters,
    pub resp: Responder,
    pub req: Requester,
    pub journal: Journal,
    /// Makes it an odd number of lines, so that the same line of many QPs is not in the same set of the cache.
    _apart: [u8; 64],
}

const _: () = {
    assert!(offset_of!(Qp, sgid) == 64);
    assert!(offset_of!(Qp, counters) == 96);
    assert!(size_of::<Responder>() == 4 * 64);
    assert!(size_of::<Qp>() % 128 == 64);
};

/// What the hot loop does not need.
pub(crate) struct Cold {
    /// When its peer may be sent the next CNP.
    pub next_cnp: Nanos,
    pub init: QpInit,
    pub attr: QpAttr,
}

impl Qp {
    /// A QP in RESET.
    pub fn new(id: QpId, slot: u32, init: &QpInit) -> Qp {
        Qp {
            id,
            slot,
            tx_paused: false,
            state: QpState::Reset,
            mtu_shift: 10,
            transport: match init.qp_type {
                QpType::Rc => Transport::Rc,
                QpType::Uc => Transport::Uc,
                QpType::Ud => Transport::Ud,
            },
            reliable: init.qp_type == QpType::Rc,
            shared_receives: init.srq.is_some(),
            ipv6: false,
            priority: 0,
            limited: false,
            answers: false,
            hears_acks: false,
            access: Access(0),
            pd: init.pd,
            recv_pd: init.srq.map_or(init.pd, |srq| srq.pd),
            tx_epoch: 0,
            place_epoch: 0,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            sgid: Gid::default(),
            dgid: Gid::default(),
            qkey: 0,
            req: Requester::new(init),
            resp: Responder::new(),
            counters: Counters::default(),
            journal: Journal::new(),
            _apart: [0; 64],
            cold: Box::new(Cold {
                next_cnp: Nanos::ZERO,
                init: *init,
                attr: QpAttr::default(),
            }),
        }
    }

    /// Asks for the cache lines that a packet of this half touches.
    #[inline]
    pub fn prefetch(qp: *const Qp, half: Half) {
        let at = |offset: usize| qp.cast::<u8>().wrapping_add(offset);
        // With the addresses the counters that packets count.
        prefetch::lines(qp, 2);
        prefetch::line(at(offset_of!(Qp, journal)));
        match half {
            Half::Requester => prefetch::lines(at(offset_of!(Qp, req)), 3),
            // All of it: of what a packet needs not, the compiler takes some along rather than ask whether it does.
            Half::Responder => prefetch::lines(at(offset_of!(Qp, resp)), 4),
        }
    }

    /// Asks for the cache lines that a send request touches.
    #[inline]
    pub fn prefetch_post(qp: *const Qp) {
        prefetch::line(qp);
        let req = qp.cast::<u8>().wrapping_add(offset_of!(Qp, req));
        prefetch::lines(req, 2);
    }

    /// The priority that the map gives to packets on its path.
    pub fn priority_by(&self, map: &PriorityMap) -> u8 {
        let path = &self.cold.attr.path;
        map.of_ip(path.traffic_class >> 2, Some(path.sl))
    }

    /// Bytes of a full packet.
    #[inline]
    pub fn mtu(&self) -> u32 {
        1 << self.mtu_shift
    }

    /// Packets of a message of `len` bytes; an empty one has one.
    #[inline]
    pub fn packets(&self, len: u32) -> u32 {
        ((u64::from(len) + u64::from(self.mtu()) - 1) >> self.mtu_shift).max(1) as u32
    }

    /// Whether requests are taken. In SQE only the send queue stands still (IBTA 10.3.1).
    #[inline]
    pub fn can_receive(&self) -> bool {
        matches!(
            self.state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        )
    }

    /// Whether requests may be sent and responses are taken.
    #[inline]
    pub fn can_send(&self) -> bool {
        matches!(self.state, QpState::Rts | QpState::Sqd)
    }

    /// Whether the send queue, and no other, is to be flushed: in SQE, or left over from it.
    #[inline]
    pub fn flushes_sends(&self) -> bool {
        self.state == QpState::Sqe || self.req.is_flushing()
    }

    /// To RESET: everything is dropped silently.
    pub fn reset(&mut self) {
        self.state = QpState::Reset;
        self.tx_epoch = self.tx_epoch.wrapping_add(1);
        self.place_epoch = self.place_epoch.wrapping_add(1);
        self.access = Access(0);
        self.req.reset();
        self.resp.reset();
        self.answers = false;
        let mtu = self.cold.attr.path_mtu;
        self.cold.attr = QpAttr::default();
        if self.transport == Transport::Ud {
            // It is the port's, not a path's.
            self.cold.attr.path_mtu = mtu;
        }
        self.journal.reset();
    }

    /// To ERR. Nothing is sent or accepted from now on; `flush` empties the queues.
    pub fn fail(&mut self, cause: Cause, env: &mut Env<'_>) {
        if self.state == QpState::Err {
            return;
        }
        // Who gives up a QP that was never connected has nothing to explain.
        if self.can_receive() || !cause.is_orderly() {
            env.nic
                .post_mortems
                .record(self, QpState::Err, cause, env.now, &env.nic.counters);
        }
        self.state = QpState::Err;
        self.req.quiet(&mut env.nic.timers, self.slot);
        env.nic.lists.work.push(self.slot);
        // A shared receive queue is not flushed with the QP.
        if !self.shared_receives {
            env.nic.lists.errored.push(self.slot);
        }
    }

    /// A send request failed: RC goes to ERR; without acknowledgements only the send queue stops, in SQE, and is
    /// flushed, and receiving goes on (IBTA 10.3.1).
    pub fn fail_sending(&mut self, cause: Cause, env: &mut Env<'_>) {
        if self.reliable {
            return self.fail(cause, env);
        }
        env.nic
            .post_mortems
            .record(self, QpState::Sqe, cause, env.now, &env.nic.counters);
        self.journal.recorded();
        self.state = QpState::Sqe;
        // Packets that still wait here must not count, or go out, as some of those after the way back to RTS. All are
        // requests: nobody answers these transports.
        self.tx_epoch = self.tx_epoch.wrapping_add(1);
        env.nic.lists.work.push(self.slot);
    }

    /// To ERR, with an asynchronous event.
    pub fn fail_with(&mut self, kind: AsyncKind, cause: Cause, env: &mut Env<'_>) {
        if self.state != QpState::Err {
            self.fail(cause, env);
            env.event(self, kind);
        }
    }

    /// Copies what the hot loop needs out of the attributes.
    pub fn take_attributes(&mut self) {
        let attr = &self.cold.attr;
        self.mtu_shift = 7 + attr.path_mtu as u8;
        self.access = attr.access;
        self.sgid = attr.path.sgid;
        self.dgid = attr.path.dgid;
        // As header templates have it. Datagrams go where their address handles say: what they take of the link is counted
        // as that of IPv4 packets, which is 20 bytes less at most.
        self.ipv6 = self.transport != Transport::Ud
            && (self.sgid.ipv4().is_none() || self.dgid.ipv4().is_none());
        self.qkey = attr.qkey;
        self.req.take_attributes(attr);
        self.resp.take_attributes(attr);
    }
}
