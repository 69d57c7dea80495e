//! Placements that are no plain copy of a payload: datagrams, atomics, their answers, ATOMIC WRITE.
//!
//! In flow placements and their packets; out flows what is to be copied, or done to one word of memory ([`prepare`]). The
//! operands are taken from the packet, whose headers were checked when it was parsed.

use roceline_engine::wire::{Opcode, atomic_eth, bth, grh};
use roceline_engine::{MemSlice, Outcome, PlaceKind};

use super::context::{Context, Mr, OpEnd, Then};
use crate::memory::AtomicOp;
use crate::memory::helper::{Direction, Piece};

/// What a placement is about to do.
#[derive(Clone, Copy, Debug)]
pub enum Deed {
    /// Copy the packet's bytes from here on.
    Copy(usize),
    /// This to a word.
    Word(AtomicOp),
}

/// What is to be done for a packet whose payload begins at `at`. `None` if the packet is not of that kind, which cannot be.
#[inline]
pub fn prepare(kind: PlaceKind, frame: &mut [u8], at: usize) -> Option<Deed> {
    match kind {
        PlaceKind::Payload => Some(Deed::Copy(at)),
        _ => special(kind, frame, at),
    }
}

fn special(kind: PlaceKind, frame: &mut [u8], at: usize) -> Option<Deed> {
    match kind {
        PlaceKind::Datagram => grh::put_before(frame, at).map(Deed::Copy),
        PlaceKind::AtomicAck => {
            // From the order of the network to the host's.
            let start = at.checked_sub(atomic_eth::ACK_LEN)?;
            let value = frame.get_mut(start..)?.first_chunk_mut()?;
            *value = u64::from_be_bytes(*value).to_ne_bytes();
            Some(Deed::Copy(start))
        }
        PlaceKind::AtomicWrite => {
            let value = frame.get(at..)?.first_chunk()?;
            Some(Deed::Word(AtomicOp::Store(u64::from_ne_bytes(*value))))
        }
        _ => {
            let start = at.checked_sub(atomic_eth::LEN)?;
            let opcode = *frame.get(start.checked_sub(bth::LEN)?)?;
            let eth = atomic_eth::Repr::parse(frame.get(start..)?.first_chunk()?);
            Some(Deed::Word(if opcode == Opcode::RC_CMP_SWAP.raw() {
                AtomicOp::CompareSwap {
                    compare: eth.compare,
                    swap: eth.swap_add,
                }
            } else {
                AtomicOp::FetchAdd(eth.swap_add)
            }))
        }
    }
}

/// Does it at once, if the word is mapped here.
pub fn execute_now(mrs: &[Option<Mr>], slices: &[MemSlice], op: AtomicOp) -> Option<Outcome> {
    let slice = slices.first()?;
    let mr = mrs.get(slice.mr as usize)?.as_ref()?;
    let before = mr.reach.at(slice.addr, slice.len)?.execute(op)?;
    Some(match op {
        AtomicOp::Store(_) => Outcome::Done,
        _ => Outcome::Value(before),
    })
}

/// Hands an atomic to the memory thread. The operands take the place of the packet's AtomicETH; what was there before
/// will, too. True if the thread was not to be kicked already.
pub fn begin(
    context: &mut Context,
    mrs: &mut [Option<Mr>],
    slices: &[MemSlice],
    op: AtomicOp,
    at: usize,
    mut end: OpEnd,
) -> bool {
    let (direction, operands) = match op {
        AtomicOp::CompareSwap { compare, swap } => (Direction::CompareSwap, [compare, swap]),
        AtomicOp::FetchAdd(add) | AtomicOp::Store(add) => (Direction::FetchAdd, [add, 0]),
    };
    let frame = end.mbuf.data_mut();
    let room = frame.get_mut(at..).and_then(|f| f.first_chunk_mut::<16>());
    let handed_over = match (slices.first(), room) {
        (Some(slice), Some(room)) => {
            room[..8].copy_from_slice(&operands[0].to_ne_bytes());
            room[8..].copy_from_slice(&operands[1].to_ne_bytes());
            let piece = Piece {
                direction,
                len: slice.len,
                addr: slice.addr,
                buf: room.as_mut_ptr(),
            };
            context.hand_over(mrs, slice.mr, piece)
        }
        _ => false,
    };
    end.then = Then::Executed { at };
    match context.ops.back_mut() {
        Some(op) if handed_over => op.end = Some(end),
        _ => context.refuse(end),
    }
    !std::mem::replace(&mut context.kick, true)
}

/// What was there before, from the packet of an atomic that was executed by the memory thread.
pub fn value(end: &OpEnd, at: usize) -> u64 {
    let bytes = end.mbuf.data().get(at..).and_then(|f| f.first_chunk());
    bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}
