//! The notification point: packets with a CE mark (RFC 3168) make congestion notification packets (IBTA annex A17, CNP), at
//! most one for each flow and [`NpParams::min_time_between_cnps`].
//!
//! In flow marked packets that belong to a QP; out flow CNPs, when their processing delay is over and there is room for them. A
//! flow is a QP or, with [`CnpModeration::PerIp`], a peer's address. A datagram's flow is its sender's QP: whoever sends to one
//! UD QP, each hears for itself.

use std::collections::VecDeque;

use super::qp::Qp;
use crate::congestion::{CnpModeration, CongestionConfig, NpParams};
use crate::descriptor::{Side, TxDesc};
use crate::time::Nanos;
use crate::verbs::QpId;
use crate::wire::{Gid, Opcode, Packet, Transport};

/// CNPs that may wait.
const WAITING: usize = 1024;
/// Places for flows that are not QPs of this engine: a power of two.
const PLACES: usize = 4096;

/// A CNP that waits.
#[derive(Clone, Copy)]
struct Notice {
    due: Nanos,
    qp: QpId,
    /// UD: the sender's address and QPN.
    to: Option<(Gid, u32)>,
}

/// What became of a marked packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marked {
    /// A CNP waits to be sent for it, or its flow was notified not long ago, or nobody is to be.
    Noted,
    /// There was no room for a CNP. The next mark of the flow makes one.
    NoRoom,
}

/// The notification point of an engine.
pub(crate) struct Notifier {
    np: NpParams,
    enabled: u8,
    waiting: VecDeque<Notice>,
    /// When flows that are no QP of this engine may be notified again; those of one place count as one.
    next: Box<[Nanos]>,
}

impl Notifier {
    pub fn new(config: &CongestionConfig) -> Notifier {
        Notifier {
            np: config.np,
            enabled: config.np_enable,
            waiting: VecDeque::with_capacity(WAITING),
            next: vec![Nanos::ZERO; PLACES].into_boxed_slice(),
        }
    }

    /// Goes by another configuration from now on; what waits leaves as it was to.
    pub fn configure(&mut self, config: &CongestionConfig) {
        self.np = config.np;
        self.enabled = config.np_enable;
    }

    /// What CNPs look like.
    pub fn params(&self) -> &NpParams {
        &self.np
    }

    /// A packet with a CE mark arrived at its QP; `priority` is the packet's.
    #[cold]
    pub fn marked(&mut self, qp: &mut Qp, packet: &Packet, priority: u8, now: Nanos) -> Marked {
        if self.enabled >> (priority & 7) & 1 == 0 {
            return Marked::Noted;
        }
        let interval = Nanos::from_micros(self.np.min_time_between_cnps.into());
        let datagram = qp.transport == Transport::Ud;
        // No queue pair sent that, so none can be told.
        if datagram && packet.ext.src_qpn == 0 {
            return Marked::Noted;
        }
        let to = datagram.then_some((packet.src, packet.ext.src_qpn));
        let per_ip = self.np.cnp_moderation == CnpModeration::PerIp;
        // Flows that share a place are notified less often than they might be, and none more often.
        let next = match (per_ip, datagram) {
            (true, _) => &mut self.next[place_of(packet.src, 0)],
            (_, true) => &mut self.next[place_of(packet.src, packet.ext.src_qpn)],
            _ => &mut qp.cold.next_cnp,
        };
        if now < *next {
            return Marked::Noted;
        }
        if self.waiting.len() >= WAITING {
            return Marked::NoRoom;
        }
        *next = now + interval;
        self.waiting.push_back(Notice {
            due: now + Nanos(self.np.cnp_delay.into()),
            qp: qp.id,
            to,
        });
        Marked::Noted
    }

    /// When the next CNP is to be sent.
    #[inline]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.waiting.front().map(|notice| notice.due)
    }

    /// The QP that the next CNP is of.
    #[inline]
    pub fn next_qp(&self) -> Option<QpId> {
        self.waiting.front().map(|notice| notice.qp)
    }

    /// The QP, and what [`cnp`] wants to know, of the next CNP that is due.
    #[inline]
    pub fn pop_due(&mut self, now: Nanos) -> Option<(QpId, Option<(Gid, u32)>)> {
        let due = self.waiting.front().is_some_and(|notice| notice.due <= now);
        if !due {
            return None;
        }
        self.waiting
            .pop_front()
            .map(|notice| (notice.qp, notice.to))
    }
}

/// Where a source is noted.
fn place_of(source: Gid, qpn: u32) -> usize {
    (source.mix(qpn) >> 8) as usize & (PLACES - 1)
}

/// A CNP of a QP. Whoever builds it sets what [`NpParams`] says of it.
pub(crate) fn cnp(qp: &Qp, to: Option<(Gid, u32)>) -> TxDesc {
    let mut desc = TxDesc {
        qp: qp.id,
        epoch: qp.tx_epoch,
        side: Side::Responder,
        opcode: Opcode::CNP,
        ..TxDesc::default()
    };
    if let Some((gid, qpn)) = to {
        desc.address_cnp(gid, qpn);
    }
    desc
}
