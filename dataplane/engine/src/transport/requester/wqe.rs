//! A send request as it lies in the ring of the requester.

use crate::transport::journal::FailedRequest;
use crate::verbs::{Sge, WcStatus, WrOpcode};
use crate::wire::Psn;

/// A send request in the ring: one cache line, with the first entry of its list.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct SendWqe {
    pub wr_id: u64,
    pub remote_addr: u64,
    /// The entry of a list that has one. Longer ones lie in [`super::Requester::sges`].
    pub(super) sge: Sge,
    pub len: u32,
    /// First PSN, valid once started.
    pub first: Psn,
    /// PSNs it takes; 0 for a request that failed before it started.
    pub psns: u32,
    pub rkey: u32,
    pub imm: u32,
    pub slot: u32,
    /// Answered requests: the placements that must be done, as a value of `Requester::place_issued`.
    pub place_end: u32,
    pub op: WrOpcode,
    pub(super) num_sge: u8,
    pub(super) flags: u8,
    /// A [`WcStatus`], or [`SOUND`].
    pub(super) error: u8,
}

const _: () = assert!(size_of::<SendWqe>() == 64);

/// No [`WcStatus`].
pub(super) const SOUND: u8 = u8::MAX;

pub(super) const SIGNALED: u8 = 1;
pub(super) const SOLICITED: u8 = 1 << 1;
pub(super) const FENCE: u8 = 1 << 2;
pub(super) const INLINE: u8 = 1 << 3;

impl SendWqe {
    pub(super) const EMPTY: SendWqe = SendWqe {
        wr_id: 0,
        remote_addr: 0,
        sge: Sge {
            addr: 0,
            length: 0,
            lkey: 0,
        },
        len: 0,
        first: Psn::new(0),
        psns: 0,
        rkey: 0,
        imm: 0,
        slot: 0,
        place_end: 0,
        op: WrOpcode::Send,
        num_sge: 0,
        flags: 0,
        error: SOUND,
    };

    #[inline]
    pub fn signaled(&self) -> bool {
        self.flags & SIGNALED != 0
    }

    #[inline]
    pub fn solicited(&self) -> bool {
        self.flags & SOLICITED != 0
    }

    #[inline]
    pub fn fence(&self) -> bool {
        self.flags & FENCE != 0
    }

    #[inline]
    pub fn inline(&self) -> bool {
        self.flags & INLINE != 0
    }

    /// What is wrong with it.
    #[inline]
    pub fn error(&self) -> Option<WcStatus> {
        match self.error {
            SOUND => None,
            raw => Some(WcStatus::from_raw(raw.into()).unwrap_or(WcStatus::GeneralErr)),
        }
    }

    pub(super) fn set_error(&mut self, status: WcStatus) {
        self.error = status as u8;
    }

    #[inline]
    pub fn is_read(&self) -> bool {
        matches!(self.op, WrOpcode::Read)
    }

    /// Bytes that its answer brings in packets of the path MTU; only a READ's has such.
    #[inline]
    pub fn read_len(&self) -> u32 {
        if self.is_read() { self.len } else { 0 }
    }

    /// Destination QPN and Q_Key of a datagram, which has no remote address.
    pub(super) const fn pack(dest_qpn: u32, qkey: u32) -> u64 {
        dest_qpn as u64 | (qkey as u64) << 32
    }

    /// Datagram: destination QPN.
    pub(super) fn dest_qpn(&self) -> u32 {
        self.remote_addr as u32 & 0xff_ffff
    }

    /// Datagram: Q_Key as the request has it.
    pub(super) fn qkey(&self) -> u32 {
        (self.remote_addr >> 32) as u32
    }

    /// Datagram: number of the address handle.
    pub(super) fn ah(&self) -> u32 {
        self.rkey
    }

    /// One past its last PSN.
    #[inline]
    pub fn end(&self) -> Psn {
        self.first.add(self.psns)
    }

    /// For the record of a QP that fails with it.
    pub fn failed(&self, status: WcStatus) -> FailedRequest {
        FailedRequest {
            wr_id: self.wr_id,
            op: Some(self.op),
            len: self.len.into(),
            status,
            first: self.first,
            packets: self.psns,
            remote_addr: self.remote_addr,
            rkey: self.rkey,
        }
    }
}

/// The list of the request at a place in the ring.
#[inline]
pub(super) fn entries<'a>(
    ring: &'a [SendWqe],
    sges: &'a [Sge],
    at: usize,
    stride: u8,
) -> &'a [Sge] {
    let w = &ring[at];
    match w.num_sge {
        0 => &[],
        1 => core::slice::from_ref(&w.sge),
        count => &sges[at * usize::from(stride)..][..usize::from(count)],
    }
}
