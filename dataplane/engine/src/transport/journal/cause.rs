//! Why a queue pair went to ERR, as the state machine that found out knows it.

use super::Kind;
use crate::memory::{Access, AccessError, WindowError};
use crate::verbs::Fault;
use crate::wire::Opcode;
use crate::wire::aeth::NakCode;

/// What used up the last retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The ACK timer.
    Timeout,
    /// A NAK "PSN sequence error".
    SequenceNak,
    /// A gap in the responses.
    ImpliedNak,
}

impl Retry {
    pub(crate) const fn kind(self) -> Kind {
        match self {
            Retry::Timeout => Kind::Timeout,
            Retry::SequenceNak => Kind::SequenceNak,
            Retry::ImpliedNak => Kind::ImpliedNak,
        }
    }
}

/// The first cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The program moved the QP to ERR.
    Modified,
    /// The program's connection to the daemon ended while the QP was in use.
    Closed,
    /// A completion queue of the QP was full.
    CqOverflow,

    /// Requester: `retry_cnt` retries were used up.
    RetriesExceeded(Retry),
    /// Requester: `rnr_retry` retries were used up.
    RnrExceeded,
    /// Requester: the peer refused a request.
    Refused(NakCode),
    /// Requester: a request names local memory that it may not use.
    LocalKey(AccessError),
    /// Requester: the program's memory could not be reached.
    LocalMemory,
    /// Requester: an opcode that is not supported, or more entries than the QP allows.
    BadRequest,
    /// Requester: longer than a message, or inline data, may be; an atomic without room for 8 bytes.
    TooLong,
    /// Requester: a READ, or the like, while `max_rd_atomic` is 0.
    NoReadCredits,
    /// Requester: a memory window cannot be bound so.
    Bind(WindowError),
    /// Requester: a key cannot be invalidated.
    LocalInvalidate(WindowError),
    /// Requester: a datagram with an address handle that does not exist, or not in its protection domain.
    AddressHandle(u32),
    /// Requester: a datagram that does not fit one packet.
    DatagramTooLong {
        /// Its bytes.
        len: u32,
        /// The port's active MTU.
        mtu: u32,
    },

    /// Responder: a packet that does not go on with the peer's message.
    PeerOrder(Opcode),
    /// Responder: an operation that this version does not have.
    PeerOperation(Opcode),
    /// Responder: a packet whose payload does not have the length that the path MTU gives it.
    PacketLength {
        /// Opcode of the packet.
        opcode: Opcode,
        /// Payload bytes.
        got: u32,
        /// Path MTU of this QP.
        mtu: u32,
    },
    /// Responder: a WRITE that does not bring as many bytes as it announced.
    MessageLength {
        /// Bytes that were still to come.
        left: u32,
        /// Payload bytes.
        got: u32,
    },
    /// Responder: more READs and atomics at once than `max_dest_rd_atomic`.
    TooManyReads {
        /// `max_dest_rd_atomic`.
        limit: u8,
    },
    /// Responder: an atomic, or ATOMIC WRITE, at an address that is no multiple of 8.
    Misaligned(u64),
    /// Responder: a FLUSH of a kind that does not exist; the FETH.
    FlushKind(u32),
    /// Responder: the QP's access flags lack this right.
    QpRight(Access),
    /// Responder: key, range, protection domain or right of a region.
    RemoteKey {
        /// The key.
        rkey: u32,
        /// First byte.
        addr: u64,
        /// Bytes.
        len: u32,
        /// The right that it takes.
        right: Access,
        /// What is wrong.
        error: AccessError,
    },
    /// Responder: a SEND longer than its receive request.
    ReceiveTooShort {
        /// Bytes so far, with this packet.
        got: u64,
        /// Bytes of the receive request.
        space: u64,
    },
    /// Responder: the key of a SEND with invalidate cannot be invalidated.
    RemoteInvalidate(WindowError),
    /// Responder: a receive request names memory that it may not use.
    ReceiveKey(AccessError),
    /// Responder: a receive request with more entries than one may have.
    ReceiveEntries(u32),
    /// Responder: the memory of a receive request could not be reached.
    ReceiveMemory,
    /// Responder: the memory of a WRITE or READ could not be reached.
    ResponderMemory,
}

impl Cause {
    /// Its row in the table of faults, which says what follows from it.
    pub const fn fault(&self) -> Fault {
        match self {
            Cause::Modified | Cause::Closed => Fault::Flushed,
            Cause::CqOverflow => Fault::CqOverflow,
            Cause::RetriesExceeded(_) => Fault::RetriesExceeded,
            Cause::RnrExceeded => Fault::RnrExceeded,
            Cause::Refused(code) => Fault::answered(*code),
            Cause::LocalKey(_) => Fault::LocalKey,
            Cause::LocalMemory => Fault::LocalMemory,
            Cause::BadRequest | Cause::AddressHandle(_) => Fault::BadRequest,
            Cause::TooLong | Cause::DatagramTooLong { .. } => Fault::TooLong,
            Cause::NoReadCredits => Fault::NoReadCredits,
            Cause::Bind(_) => Fault::WindowBind,
            Cause::LocalInvalidate(_) => Fault::LocalInvalidate,
            Cause::PeerOrder(_)
            | Cause::PeerOperation(_)
            | Cause::PacketLength { .. }
            | Cause::MessageLength { .. }
            | Cause::TooManyReads { .. }
            | Cause::Misaligned(_)
            | Cause::FlushKind(_)
            | Cause::QpRight(_) => Fault::InvalidRequest,
            Cause::RemoteKey { .. } => Fault::RemoteAccess,
            Cause::RemoteInvalidate(_) => Fault::RemoteInvalidate,
            Cause::ReceiveTooShort { .. } => Fault::SendTooLong,
            Cause::ReceiveKey(_) => Fault::ReceiveKey,
            Cause::ReceiveEntries(_) => Fault::ReceiveEntries,
            Cause::ReceiveMemory => Fault::ReceiveMemory,
            Cause::ResponderMemory => Fault::TargetMemory,
        }
    }

    /// Whether this is how connections end when nothing is wrong: the program itself did it.
    pub const fn is_orderly(&self) -> bool {
        matches!(self, Cause::Modified | Cause::Closed)
    }
}
