//! Kinds of packets that a rule can ask for. A packet has several at once (a WRITE middle is `write`,
//! `middle`, `data` and `request`); a rule names those that it must have all.

use core::fmt;
use core::str::FromStr;

use crate::wire::{HeaderSet, Opcode, Operation, Position, Syndrome};

/// A set of [`Class`]es.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ClassSet(u32);

impl ClassSet {
    /// No class: as what a rule asks for, any packet.
    pub const NONE: ClassSet = ClassSet(0);

    /// Just this one.
    pub const fn of(class: Class) -> ClassSet {
        ClassSet(1 << class as u32)
    }

    /// With one more.
    #[must_use]
    pub const fn with(self, class: Class) -> ClassSet {
        ClassSet(self.0 | 1 << class as u32)
    }

    /// Whether all of `other` are in it.
    #[inline]
    pub const fn has_all(self, other: ClassSet) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether it has this one.
    #[inline]
    pub const fn has(self, class: Class) -> bool {
        self.0 & 1 << class as u32 != 0
    }

    /// Its classes, in the order of [`Class::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Class> {
        Class::ALL.iter().copied().filter(move |c| self.has(*c))
    }

    /// What a packet with this opcode is, and this AETH syndrome if it has an AETH.
    #[inline]
    pub fn of_packet(opcode: Option<Opcode>, syndrome: Option<u8>) -> ClassSet {
        let set = ClassSet::of(Class::Roce);
        let Some(opcode) = opcode else {
            return set;
        };
        let fixed = BY_OPCODE[opcode.raw() as usize];
        match opcode.info().operation {
            Operation::Ack => match syndrome.and_then(Syndrome::from_raw) {
                Some(Syndrome::Ack { .. }) => fixed.with(Class::Ack),
                Some(Syndrome::Rnr { .. }) => fixed.with(Class::RnrNak),
                Some(Syndrome::Nak(_)) => fixed.with(Class::Nak),
                // Reserved, or cut off: it says nothing.
                None => fixed,
            },
            _ => fixed,
        }
    }
}

impl FromIterator<Class> for ClassSet {
    fn from_iter<I: IntoIterator<Item = Class>>(classes: I) -> ClassSet {
        classes.into_iter().fold(ClassSet::NONE, ClassSet::with)
    }
}

impl fmt::Debug for ClassSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// What follows from the opcode alone.
static BY_OPCODE: [ClassSet; 256] = {
    let mut table = [ClassSet::NONE; 256];
    let mut i = 0;
    while i < Opcode::ALL.len() {
        table[Opcode::ALL[i].raw() as usize] = fixed(Opcode::ALL[i]);
        i += 1;
    }
    table
};

const fn fixed(opcode: Opcode) -> ClassSet {
    let info = opcode.info();
    let mut set = ClassSet::of(Class::Roce);
    set = match info.operation {
        Operation::Send => set.with(Class::Send),
        Operation::Write => set.with(Class::Write),
        Operation::ReadRequest => set.with(Class::ReadRequest),
        Operation::ReadResponse => set.with(Class::ReadResponse),
        Operation::CompareSwap | Operation::FetchAdd => set.with(Class::Atomic),
        Operation::AtomicAck => set.with(Class::AtomicAck),
        Operation::AtomicWrite => set.with(Class::AtomicWrite),
        Operation::Flush => set.with(Class::Flush),
        Operation::Cnp => set.with(Class::Cnp),
        Operation::Ack => set,
    };
    if info.payload {
        set = set.with(Class::Data);
    }
    if info.is_request() {
        set = set.with(Class::Request);
    }
    if info.is_response() {
        set = set.with(Class::Response);
    }
    if info.headers.has(HeaderSet::IMM) {
        set = set.with(Class::Immediate);
    }
    if info.is_request() || matches!(info.operation, Operation::ReadResponse) {
        set = set.with(match info.position {
            Position::First => Class::First,
            Position::Middle => Class::Middle,
            Position::Last => Class::Last,
            Position::Only => Class::Only,
        });
    }
    set
}

macro_rules! classes {
    ($($variant:ident $name:literal $doc:literal;)*) => {
        /// A kind of packet.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Class {
            $(#[doc = $doc] $variant,)*
        }

        impl Class {
            /// All of them.
            pub const ALL: &[Class] = &[$(Class::$variant),*];

            /// Its name in configuration and on the command line.
            pub const fn name(self) -> &'static str {
                match self { $(Class::$variant => $name),* }
            }

            /// What it means, in a few words.
            pub const fn meaning(self) -> &'static str {
                match self { $(Class::$variant => $doc),* }
            }
        }
    };
}

classes! {
    First "first" "The first of several packets of a message";
    Middle "middle" "Neither the first nor the last packet of a message";
    Last "last" "The last of several packets of a message";
    Only "only" "A request or READ response that is one packet";
    Send "send" "SEND, with or without immediate";
    Write "write" "RDMA WRITE, with or without immediate";
    ReadRequest "read-request" "RDMA READ request";
    ReadResponse "read-response" "RDMA READ response";
    Ack "ack" "Acknowledgement that says all is well";
    Nak "nak" "Negative acknowledgement, other than RNR";
    RnrNak "rnr-nak" "Negative acknowledgement for want of a receive request";
    Atomic "atomic" "Compare and swap, or fetch and add";
    AtomicAck "atomic-ack" "Answer to an atomic";
    AtomicWrite "atomic-write" "Write of 8 bytes at once";
    Flush "flush" "Request for an answer when what was written before is visible";
    Cnp "cnp" "Congestion notification packet";
    Data "data" "Packet that carries a message's bytes: SEND, WRITE, READ response";
    Request "request" "Any packet from requester to responder";
    Response "response" "Any packet from responder to requester";
    Immediate "immediate" "Packet with immediate data";
    Roce "roce" "Any RoCE v2 packet";
    Other "other" "Not RoCE v2";
}

/// No class has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no packet class is named `{0}`; there are {names}", names = names())]
pub struct UnknownClass(pub String);

fn names() -> String {
    let all: Vec<&str> = Class::ALL.iter().map(|c| c.name()).collect();
    all.join(", ")
}

impl FromStr for Class {
    type Err = UnknownClass;

    fn from_str(s: &str) -> Result<Class, UnknownClass> {
        let found = Class::ALL.iter().find(|c| c.name() == s);
        found.copied().ok_or_else(|| UnknownClass(s.to_owned()))
    }
}
