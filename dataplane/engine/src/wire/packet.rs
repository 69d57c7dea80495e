//! A parsed RoCE packet and its extended headers.

use super::be::{put_u64, u64_at};
use super::{Gid, HeaderSet, Opcode, Psn};
use super::{aeth, atomic_eth, deth, feth, ieth, imm_dt, reth};

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
    /// DETH: Q_Key. FETH: the header as a number ([`feth::Feth::from_raw`]).
    pub qkey: u32,
    /// DETH: source QPN.
    pub src_qpn: u32,
    /// AtomicETH: swap value or number to add.
    pub swap_add: u64,
    /// AtomicETH: compare value. AtomicAckETH: original value.
    pub compare: u64,
}

/// A received packet after `wire::parse`: every field was length-checked; the payload itself stays where it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl ExtHeaders {
    /// Reads the headers in `set` from the start of `bytes`; `None` if they are cut short.
    #[inline]
    pub fn parse(set: HeaderSet, bytes: &[u8]) -> Option<ExtHeaders> {
        let mut ext = ExtHeaders::default();
        let mut rest = bytes;
        if set.is_empty() {
            return Some(ext);
        }
        if set.has(HeaderSet::DETH) {
            let deth = deth::Repr::parse(take(&mut rest)?);
            ext.qkey = deth.qkey;
            ext.src_qpn = deth.src_qpn;
        }
        if set.has(HeaderSet::FETH) {
            ext.qkey = feth::parse(take(&mut rest)?);
        }
        if set.has(HeaderSet::RETH) {
            let reth = reth::Repr::parse(take(&mut rest)?);
            ext.va = reth.va;
            ext.rkey = reth.rkey;
            ext.dma_len = reth.dma_len;
        }
        if set.has(HeaderSet::AETH) {
            ext.aeth = aeth::parse(take(&mut rest)?);
        }
        if set.has(HeaderSet::ATOMIC_ETH) {
            let atomic = atomic_eth::Repr::parse(take(&mut rest)?);
            ext.va = atomic.va;
            ext.rkey = atomic.rkey;
            ext.swap_add = atomic.swap_add;
            ext.compare = atomic.compare;
        }
        if set.has(HeaderSet::ATOMIC_ACK_ETH) {
            ext.compare = u64_at(take::<{ atomic_eth::ACK_LEN }>(&mut rest)?, 0);
        }
        if set.has(HeaderSet::IMM) {
            ext.imm_or_rkey = imm_dt::parse(take(&mut rest)?);
        }
        if set.has(HeaderSet::IETH) {
            ext.imm_or_rkey = ieth::parse(take(&mut rest)?);
        }
        Some(ext)
    }

    #[inline]
    fn reth(&self) -> reth::Repr {
        reth::Repr {
            va: self.va,
            rkey: self.rkey,
            dma_len: self.dma_len,
        }
    }

    /// Writes the headers in `set` to the start of `out`; `None`, with part of them written, if there is no room.
    #[inline]
    pub fn emit(&self, set: HeaderSet, out: &mut [u8]) -> Option<()> {
        let mut rest = out;
        // What nearly all packets have, before the questions one by one.
        match set {
            HeaderSet::NONE => return Some(()),
            HeaderSet::AETH => {
                aeth::emit(self.aeth, take_mut(&mut rest)?);
                return Some(());
            }
            HeaderSet::RETH => {
                self.reth().emit(take_mut(&mut rest)?);
                return Some(());
            }
            _ => {}
        }
        if set.has(HeaderSet::DETH) {
            let deth = deth::Repr {
                qkey: self.qkey,
                src_qpn: self.src_qpn,
            };
            deth.emit(take_mut(&mut rest)?);
        }
        if set.has(HeaderSet::FETH) {
            feth::emit(self.qkey, take_mut(&mut rest)?);
        }
        if set.has(HeaderSet::RETH) {
            self.reth().emit(take_mut(&mut rest)?);
        }
        if set.has(HeaderSet::AETH) {
            aeth::emit(self.aeth, take_mut(&mut rest)?);
        }
        if set.has(HeaderSet::ATOMIC_ETH) {
            let atomic = atomic_eth::Repr {
                va: self.va,
                rkey: self.rkey,
                swap_add: self.swap_add,
                compare: self.compare,
            };
            atomic.emit(take_mut(&mut rest)?);
        }
        if set.has(HeaderSet::ATOMIC_ACK_ETH) {
            put_u64(
                take_mut::<{ atomic_eth::ACK_LEN }>(&mut rest)?,
                0,
                self.compare,
            );
        }
        if set.has(HeaderSet::IMM) {
            imm_dt::emit(self.imm_or_rkey, take_mut(&mut rest)?);
        }
        if set.has(HeaderSet::IETH) {
            ieth::emit(self.imm_or_rkey, take_mut(&mut rest)?);
        }
        if set.has(HeaderSet::CNP_RESERVED) {
            *take_mut::<16>(&mut rest)? = [0; 16];
        }
        Some(())
    }
}

#[inline(always)]
fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(head)
}

#[inline(always)]
fn take_mut<'a, const N: usize>(rest: &mut &'a mut [u8]) -> Option<&'a mut [u8; N]> {
    let (head, tail) = core::mem::take(rest).split_first_chunk_mut::<N>()?;
    *rest = tail;
    Some(head)
}
