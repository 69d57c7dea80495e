//! What the engine asks its caller to do: packets to build and payload to place.
//!
//! Reaching an application's memory can be immediate (`Done`), can finish later on another thread
//! (`Pending`), or can fail (`Fault`). The engine never waits for it. The rules:
//!
//! * **Fetch** (payload of a [`TxDesc`]). The caller sends the packets of one QP in the order of their
//!   descriptors, so a descriptor whose payload is pending holds back the later ones of that QP and of no
//!   other. A fault is reported: [`crate::Engine::fetch_fault`]; the packet is then not sent, nor are
//!   the descriptors behind it with the same QP and epoch. That all is well is reported only where the
//!   descriptor asks for it ([`TxDesc::tell_fetched`]): a request that nobody acknowledges completes then.
//! * **Place** ([`Place`]). The caller executes the placements of one QP and [`Side`] in order and reports each
//!   one, in that order, by [`crate::Engine::placed`]. What depends on it (ACK, completion) comes out then.

use crate::verbs::{Event, QpId};
use crate::wire::{ExtHeaders, Gid, Opcode, Psn};

/// Which half of a QP speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// Sends requests, receives responses.
    Requester,
    /// Receives requests, sends responses.
    Responder,
}

/// A piece of a program's memory that was checked against its memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemSlice {
    /// Index of the memory region ([`crate::memory::MrInfo::index`]).
    pub mr: u32,
    /// Bytes.
    pub len: u32,
    /// Address in the program (not the iova).
    pub addr: u64,
}

/// Where a packet's payload comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The packet has none.
    None,
    /// Inline data of the send WQE in queue slot `slot`, from byte `offset` of it.
    Inline {
        /// [`crate::verbs::SendWr::slot`] of the request.
        slot: u32,
        /// First byte within the inline data.
        offset: u32,
    },
    /// `count` slices from `first` in [`Outputs::slices`], one after the other.
    Memory {
        /// Index into [`Outputs::slices`].
        first: u32,
        /// Number of slices.
        count: u8,
    },
}

/// [`TxDesc::ah`] of the packets of connected QPs.
pub const NO_AH: u32 = u32::MAX;

/// A packet to build and send.
#[derive(Clone, Copy, Debug)]
pub struct TxDesc {
    /// The QP: it selects the header template, if there is no address handle.
    pub qp: QpId,
    /// UD: index of the address handle ([`crate::Engine::ah_index`]), which then selects the header template. Else
    /// [`NO_AH`].
    pub ah: u32,
    /// UD: destination QPN. The template of a connected QP has its own.
    pub dest_qpn: u32,
    /// Counts resets of the QP; hand it back unchanged.
    pub epoch: u32,
    /// Requests come from the requester, ACKs and READ responses from the responder.
    pub side: Side,
    /// Decides which of `ext` go on the wire.
    pub opcode: Opcode,
    /// BTH A bit.
    pub ack_req: bool,
    /// BTH SE bit.
    pub solicited: bool,
    /// Packet sequence number.
    pub psn: Psn,
    /// Extended header fields.
    pub ext: ExtHeaders,
    /// Bytes of payload, without pad.
    pub len: u32,
    /// Where they come from.
    pub payload: Payload,
    /// Call [`crate::Engine::fetched`] once the payload has been read and the packet is on its way, or was given
    /// up since no buffer was left for it: the memory and the queue slot are the program's again then.
    pub tell_fetched: bool,
}

impl TxDesc {
    /// Makes this CNP one for the sender of a datagram, whose address and QPN are none of a QP's or address handle's.
    pub fn address_cnp(&mut self, gid: Gid, qpn: u32) {
        let number = u128::from_be_bytes(gid.0);
        self.dest_qpn = qpn;
        // Of a CNP, no extended header goes on the wire.
        self.ext.va = (number >> 64) as u64;
        self.ext.compare = number as u64;
    }

    /// Where this CNP goes if it answers a datagram: address and QPN. Nobody but the caller knows the way there: the one that the
    /// datagram came by, backwards.
    pub fn cnp_address(&self) -> Option<(Gid, u32)> {
        if self.opcode != Opcode::CNP || self.dest_qpn == 0 {
            return None;
        }
        let number = u128::from(self.ext.va) << 64 | u128::from(self.ext.compare);
        Some((Gid(number.to_be_bytes()), self.dest_qpn))
    }
}

impl Default for TxDesc {
    /// An RC SEND ONLY without payload.
    #[inline]
    fn default() -> TxDesc {
        TxDesc {
            qp: QpId(0),
            ah: NO_AH,
            dest_qpn: 0,
            epoch: 0,
            side: Side::Requester,
            opcode: Opcode::RC_SEND_ONLY,
            ack_req: false,
            solicited: false,
            psn: Psn::new(0),
            ext: ExtHeaders::default(),
            len: 0,
            payload: Payload::None,
            tell_fetched: false,
        }
    }
}

/// Appends to one of [`Outputs`]'s arrays, which have room: whoever writes to them has made sure of it.
#[inline(always)]
pub(crate) fn put<T: Copy>(array: &mut Vec<T>, value: T) {
    // No call has the value's address, so that it need not lie in memory before it is in the array: what is built of small fields
    // and copied in large pieces waits for each of its stores.
    if array.len() == array.capacity() {
        grow(array);
    }
    // SAFETY: there is room for one more, and it is written before it is counted.
    unsafe {
        array.as_mut_ptr().add(array.len()).write(value);
        array.set_len(array.len() + 1);
    }
}

/// Appends a blank element, to be filled in where it is.
#[inline(always)]
pub(crate) fn add<T: Copy + Default>(array: &mut Vec<T>) -> &mut T {
    put(array, T::default());
    let last = array.len() - 1;
    &mut array[last]
}

#[cold]
#[inline(never)]
fn grow<T>(array: &mut Vec<T>) {
    array.reserve(1);
}

/// What is to be done to the memory of a [`Place`]. Operands are taken from the packet, so that a `Place` stays small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceKind {
    /// The packet's payload is written.
    Payload,
    /// A datagram: the 40 bytes of the GRH area as RoCE v2 lays it out, which the caller makes of the packet's IP header,
    /// then the payload. [`Place::len`] includes the 40.
    Datagram,
    /// The packet's AtomicETH is executed on the 8 bytes of the one slice, whose address is a multiple of 8; the outcome is
    /// [`Outcome::Value`] with what was there before.
    Atomic,
    /// The value of the packet's AtomicAckETH is written, in the byte order of the host.
    AtomicAck,
    /// The packet's payload, 8 bytes, is stored at once in the one slice, whose address is a multiple of 8.
    AtomicWrite,
}

/// Something that a received packet does to a program's memory.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// What.
    pub kind: PlaceKind,
    /// The QP.
    pub qp: QpId,
    /// Counts resets of the QP; hand it back unchanged.
    pub epoch: u32,
    /// Which half of the QP.
    pub side: Side,
    /// The caller's tag of the packet, as given to [`crate::Engine::rx`].
    pub packet: u32,
    /// Bytes: of a payload, from its start.
    pub len: u32,
    /// First slice in [`Outputs::slices`]; the bytes fill the slices one after the other.
    pub first: u32,
    /// Number of slices; at least 1 (nothing is placed for empty payloads).
    pub count: u8,
}

/// How a memory operation ended, or did not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// An atomic operation is done; this was there before.
    Value(u64),
    /// It goes on elsewhere; the outcome will be reported.
    Pending,
    /// The memory could not be reached.
    Fault,
}

/// The arrays that the engine fills. The caller empties them after each call, or when
/// [`Outputs::has_room`] says no; their capacity never grows.
#[derive(Debug)]
pub struct Outputs {
    /// Packets to send, in order.
    pub tx: Vec<TxDesc>,
    /// Memory pieces that `tx` and `place` point into.
    pub slices: Vec<MemSlice>,
    /// Placements to make, in order.
    pub place: Vec<Place>,
    /// Completions and events, in order.
    pub events: Vec<Event>,
}

impl Outputs {
    /// Capacity of `tx`.
    pub const TX: usize = 128;
    /// Capacity of `slices`.
    pub const SLICES: usize = 64 * 32;
    /// Capacity of `place`.
    pub const PLACE: usize = 64;
    /// Capacity of `events`.
    pub const EVENTS: usize = 2048;
    /// The most that one engine call adds to `events`; work beyond it is left for the next call.
    pub const EVENTS_PER_CALL: usize = 512;
    /// The most that one call other than `tx` adds to `tx`.
    pub const TX_PER_CALL: usize = 32;

    /// Arrays with room for a burst.
    pub fn new() -> Outputs {
        Outputs {
            tx: Vec::with_capacity(Self::TX),
            slices: Vec::with_capacity(Self::SLICES),
            place: Vec::with_capacity(Self::PLACE),
            events: Vec::with_capacity(Self::EVENTS),
        }
    }

    /// Arrays without room, which cost no allocation: what stands in while a caller works the real ones off.
    pub const fn hollow() -> Outputs {
        Outputs {
            tx: Vec::new(),
            slices: Vec::new(),
            place: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Whether any engine call can be made without emptying the arrays first.
    pub fn has_room(&self) -> bool {
        self.tx.len() + Self::TX_PER_CALL <= Self::TX
            && self.slices.len() + 32 <= Self::SLICES
            && self.place.len() < Self::PLACE
            && self.events.len() + Self::EVENTS_PER_CALL <= Self::EVENTS
    }

    /// Whether nothing is to be done.
    pub fn is_empty(&self) -> bool {
        self.tx.is_empty() && self.place.is_empty() && self.events.is_empty()
    }

    /// Empties all arrays.
    pub fn clear(&mut self) {
        self.tx.clear();
        self.slices.clear();
        self.place.clear();
        self.events.clear();
    }
}

impl Default for Outputs {
    fn default() -> Outputs {
        Outputs::new()
    }
}
