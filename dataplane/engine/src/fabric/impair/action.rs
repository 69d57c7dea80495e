//! What a rule does to a packet that it hits.

use crate::Nanos;

use super::field::{Field, FieldChange};
use super::{Delay, MAX_COPIES, MAX_DELAY, RateLimit, RuleError};

/// What a rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing but count.
    Count,
    /// The packet is lost; later rules do not see it.
    Drop,
    /// Copies are sent behind it.
    Duplicate {
        /// How many, 1 to [`MAX_COPIES`].
        copies: u8,
        /// How much later than the packet; `None`: at once.
        after: Option<Delay>,
    },
    /// Others overtake it.
    Reorder(Reorder),
    /// It is late, as are those behind it: packets that the rule hits stay in their order.
    Delay(Delay),
    /// Its bytes change.
    Corrupt(Corruption),
    /// Its end is cut off.
    Truncate {
        /// Bytes of the frame that stay, at least the 14 of the Ethernet header.
        len: u32,
        /// A well-formed packet with less payload is made of it: lengths, pad, checksum and ICRC are set anew. Such a
        /// rule matches only packets that have payload to lose. Otherwise the lengths in its headers stay.
        reseal: bool,
    },
    /// Its ECN field says congestion experienced, also if the sender said it is not capable of ECN. Such a
    /// rule matches only IP packets.
    MarkCe,
    /// It passes at a rate. Hit, and counted, are those packets that have to wait or are dropped.
    Rate(RateLimit),
}

/// How a packet comes to be overtaken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reorder {
    /// It is held back until so many packets of its flow (direction, destination address and QPN) have gone by.
    /// Packets held back themselves do not count. Open Traffic Generator's `reorder_count` is then the rule's count,
    /// and its `hold_count` the number here.
    Packets {
        /// At least 1.
        count: u16,
        /// It goes on after this time even if fewer have gone by.
        within: Nanos,
    },
    /// It is late by itself; unlike with [`Action::Delay`], packets may overtake one another.
    Delay(Delay),
}

/// How bytes change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption {
    /// Which, and how.
    pub change: Change,
    /// IPv4 checksum and ICRC are set anew afterwards, so that only what the transport checks is wrong.
    pub reseal: bool,
}

/// A change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// One bit is flipped. An offset counts bits, of each byte the highest first.
    Bit(Where),
    /// One byte becomes another one.
    Byte(Where),
    /// One bit of the ICRC is flipped.
    Icrc,
    /// A field of a header. Such a rule matches only packets that have the header.
    Field(Field, FieldChange),
}

/// Where a bit or byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Where {
    /// In which part of the frame. A rule matches only packets that have the part, and the offset in it.
    pub region: Region,
    /// Bits or bytes from its beginning; `None`: any.
    pub offset: Option<u32>,
}

/// A part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// All of it.
    Frame,
    /// From the IP header to the end of the datagram.
    Packet,
    /// From the base transport header to the ICRC, which belongs to it.
    Transport,
    /// Payload and pad; the ICRC where a packet has no payload. A change here makes the ICRC wrong and nothing else.
    Payload,
}

/// An action without its numbers: for notes and displays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActionKind {
    /// [`Action::Count`].
    Count,
    /// [`Action::Drop`].
    Drop,
    /// [`Action::Duplicate`].
    Duplicate,
    /// [`Action::Reorder`].
    Reorder,
    /// [`Action::Delay`].
    Delay,
    /// [`Action::Corrupt`].
    Corrupt,
    /// [`Action::Truncate`].
    Truncate,
    /// [`Action::MarkCe`].
    MarkCe,
    /// [`Action::Rate`].
    Rate,
}

impl ActionKind {
    /// All of them.
    pub const ALL: [ActionKind; 9] = [
        ActionKind::Count,
        ActionKind::Drop,
        ActionKind::Duplicate,
        ActionKind::Reorder,
        ActionKind::Delay,
        ActionKind::Corrupt,
        ActionKind::Truncate,
        ActionKind::MarkCe,
        ActionKind::Rate,
    ];

    /// Its name in configuration, on the command line and in captures.
    pub const fn name(self) -> &'static str {
        match self {
            ActionKind::Count => "observe",
            ActionKind::Drop => "drop",
            ActionKind::Duplicate => "duplicate",
            ActionKind::Reorder => "reorder",
            ActionKind::Delay => "delay",
            ActionKind::Corrupt => "corrupt",
            ActionKind::Truncate => "truncate",
            ActionKind::MarkCe => "mark-ce",
            ActionKind::Rate => "rate",
        }
    }
}

impl Action {
    /// Which it is.
    pub const fn kind(&self) -> ActionKind {
        match self {
            Action::Count => ActionKind::Count,
            Action::Drop => ActionKind::Drop,
            Action::Duplicate { .. } => ActionKind::Duplicate,
            Action::Reorder(_) => ActionKind::Reorder,
            Action::Delay(_) => ActionKind::Delay,
            Action::Corrupt(_) => ActionKind::Corrupt,
            Action::Truncate { .. } => ActionKind::Truncate,
            Action::MarkCe => ActionKind::MarkCe,
            Action::Rate(_) => ActionKind::Rate,
        }
    }

    pub(super) fn check(&self) -> Result<(), RuleError> {
        match self {
            Action::Duplicate { copies, .. } if !(1..=MAX_COPIES).contains(copies) => {
                Err(RuleError::Copies(*copies))
            }
            Action::Duplicate {
                after: Some(delay), ..
            } => delay.check(),
            Action::Reorder(Reorder::Packets { count: 0, .. }) => Err(RuleError::NoHold),
            Action::Reorder(Reorder::Packets { within, .. }) if *within > MAX_DELAY => {
                Err(RuleError::TooLong(within.0))
            }
            Action::Reorder(Reorder::Delay(delay)) | Action::Delay(delay) => delay.check(),
            Action::Corrupt(c) => c.check(),
            Action::Rate(limit) => limit.check(),
            _ => Ok(()),
        }
    }
}

impl Corruption {
    fn check(&self) -> Result<(), RuleError> {
        match self.change {
            // A new ICRC would undo it.
            Change::Icrc if self.reseal => Err(RuleError::NoChange),
            Change::Field(field, change) => field.check(change),
            _ => Ok(()),
        }
    }
}
