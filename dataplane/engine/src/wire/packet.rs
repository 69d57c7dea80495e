//! A parsed RoCE packet.

use super::{Gid, Opcode, Psn};

/// Fields of the extended headers. Which of them are on the wire follows from the opcode
/// ([`super::OpcodeInfo::headers`]); the others are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtHeaders {
    /// RETH or AtomicETH: remote virtual address.
    pub va: u64,
    /// RETH or AtomicETH: remote key.
    pub rkey: u32,
    /// RETH: length of the message.
    pub dma_len: u32,
    /// AETH: syndrome in the high byte, MSN in the low 24 bits.
    pub aeth: u32,
    /// ImmDt (wire bytes in memory order), or IETH rkey.
    pub imm_or_rkey: u32,
    /// DETH: Q_Key.
    pub qkey: u32,
    /// DETH: source QPN.
    pub src_qpn: u32,
    /// AtomicETH: swap value or number to add.
    pub swap_add: u64,
    /// AtomicETH: compare value. AtomicAckETH: original value.
    pub compare: u64,
}

/// A received packet after `wire::parse`: every field was length-checked; the payload itself stays where it was.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// Operation and transport.
    pub opcode: Opcode,
    /// BTH SE bit.
    pub solicited: bool,
    /// BTH A bit.
    pub ack_req: bool,
    /// BTH BECN bit.
    pub becn: bool,
    /// IP ECN field was CE.
    pub ce: bool,
    /// P_Key.
    pub pkey: u16,
    /// Destination QPN.
    pub dest_qpn: u32,
    /// Packet sequence number.
    pub psn: Psn,
    /// Extended headers.
    pub ext: ExtHeaders,
    /// Payload bytes, without pad.
    pub payload_len: u32,
    /// Offset of the payload in the frame.
    pub payload_offset: u32,
    /// DSCP and ECN as received.
    pub traffic_class: u8,
}
