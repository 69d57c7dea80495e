//! BTH opcodes (IBTA volume 1, table "OpCode field"; congestion notification from annex A17): one
//! table says all that depends on an opcode, so no code elsewhere asks twice.
//!
//! The table knows RC with the extensions FLUSH and ATOMIC WRITE (IBTA annex A19), UC, UD and CNP. RD and XRC do not
//! exist here: a packet with such an opcode is malformed to this NIC.

use core::fmt;

/// A BTH opcode that the table knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(u8);

/// Transport service of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification packet.
    Cnp,
}

/// What a packet does, whatever its place in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// SEND, with or without immediate or invalidate.
    Send,
    /// RDMA WRITE, with or without immediate.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// ACK, NAK or RNR NAK.
    Ack,
    /// Answer to an atomic.
    AtomicAck,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// Write of 8 bytes at once.
    AtomicWrite,
    /// Request for an answer when what was written before is visible, or persistent.
    Flush,
    /// Congestion notification.
    Cnp,
}

/// A packet's place in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// First or only: a message begins here.
    pub const fn starts(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// Last or only: a message ends here.
    pub const fn ends(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }
}

/// Extended headers that follow the BTH, a set of bits.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct HeaderSet(pub u16);

impl HeaderSet {
    /// None.
    pub const NONE: HeaderSet = HeaderSet(0);
    /// Datagram extended transport header, 8 bytes.
    pub const DETH: HeaderSet = HeaderSet(1 << 0);
    /// FLUSH extended transport header, 4 bytes.
    pub const FETH: HeaderSet = HeaderSet(1 << 1);
    /// RDMA extended transport header, 16 bytes.
    pub const RETH: HeaderSet = HeaderSet(1 << 2);
    /// ACK extended transport header, 4 bytes.
    pub const AETH: HeaderSet = HeaderSet(1 << 3);
    /// Atomic extended transport header, 28 bytes.
    pub const ATOMIC_ETH: HeaderSet = HeaderSet(1 << 4);
    /// Atomic ACK extended transport header, 8 bytes.
    pub const ATOMIC_ACK_ETH: HeaderSet = HeaderSet(1 << 5);
    /// Immediate data, 4 bytes.
    pub const IMM: HeaderSet = HeaderSet(1 << 6);
    /// Invalidate extended transport header, 4 bytes.
    pub const IETH: HeaderSet = HeaderSet(1 << 7);
    /// The 16 reserved bytes of a congestion notification packet.
    pub const CNP_RESERVED: HeaderSet = HeaderSet(1 << 8);

    /// Each header with its name and length, in wire order.
    const ALL: [(HeaderSet, &'static str, u8); 9] = [
        (Self::DETH, "DETH", 8),
        (Self::FETH, "FETH", 4),
        (Self::RETH, "RETH", 16),
        (Self::AETH, "AETH", 4),
        (Self::ATOMIC_ETH, "AtomicETH", 28),
        (Self::ATOMIC_ACK_ETH, "AtomicAckETH", 8),
        (Self::IMM, "ImmDt", 4),
        (Self::IETH, "IETH", 4),
        (Self::CNP_RESERVED, "CNP reserved", 16),
    ];

    /// Whether all of `other` is in the set.
    #[inline]
    pub const fn has(self, other: HeaderSet) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets.
    pub const fn with(self, other: HeaderSet) -> HeaderSet {
        HeaderSet(self.0 | other.0)
    }

    /// Bytes of the headers in the set.
    pub const fn len(self) -> usize {
        let mut sum = 0;
        let mut i = 0;
        while i < Self::ALL.len() {
            if self.has(Self::ALL[i].0) {
                sum += Self::ALL[i].2 as usize;
            }
            i += 1;
        }
        sum
    }

    /// Whether no header follows the BTH.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for HeaderSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::ALL.iter().filter(|h| self.has(h.0)).map(|h| h.1);
        f.debug_set().entries(names).finish()
    }
}

/// What the table says of an opcode.
#[derive(Clone, Copy, Debug)]
pub struct OpcodeInfo {
    /// Name, such as `RC_SEND_FIRST`; empty where the table knows no such opcode.
    pub name: &'static str,
    /// Transport service.
    pub transport: Transport,
    /// What it does.
    pub operation: Operation,
    /// Place in the message.
    pub position: Position,
    /// Extended headers.
    pub headers: HeaderSet,
    /// Bytes of the extended headers.
    pub ext_len: u8,
    /// Whether payload may follow the headers.
    pub payload: bool,
}

impl OpcodeInfo {
    /// For the responder: SEND, WRITE, READ request, atomic, atomic write, flush.
    #[inline]
    pub const fn is_request(&self) -> bool {
        !self.is_response() && !matches!(self.operation, Operation::Cnp)
    }

    /// For the requester: ACK, READ response, ATOMIC ACK.
    #[inline]
    pub const fn is_response(&self) -> bool {
        use Operation::*;
        matches!(self.operation, ReadResponse | Ack | AtomicAck)
    }

    /// Compare and swap or fetch and add.
    #[inline]
    pub const fn is_atomic_request(&self) -> bool {
        matches!(self.operation, Operation::CompareSwap | Operation::FetchAdd)
    }

    /// Whether it takes a receive request from the responder's queue: every SEND once, at its start, and a
    /// WRITE with immediate at its end.
    pub const fn consumes_receive(&self) -> bool {
        match self.operation {
            Operation::Send => self.position.starts(),
            Operation::Write => self.headers.has(HeaderSet::IMM),
            _ => false,
        }
    }
}

const UNKNOWN: OpcodeInfo = OpcodeInfo {
    name: "",
    transport: Transport::Rc,
    operation: Operation::Send,
    position: Position::Only,
    headers: HeaderSet::NONE,
    ext_len: 0,
    payload: false,
};

const fn union(sets: &[HeaderSet]) -> HeaderSet {
    let mut all = HeaderSet::NONE;
    let mut i = 0;
    while i < sets.len() {
        all = all.with(sets[i]);
        i += 1;
    }
    all
}

macro_rules! opcodes {
    ($($raw:literal $name:ident $transport:ident $operation:ident $position:ident $payload:literal [$($header:ident)*];)*) => {
        #[allow(missing_docs)] // the names are the standard's
        impl Opcode {
            $(pub const $name: Opcode = Opcode($raw);)*

            /// Every opcode of the table, in the order of their numbers.
            pub const ALL: &[Opcode] = &[$(Opcode::$name),*];
        }

        static TABLE: [OpcodeInfo; 256] = {
            let mut table = [UNKNOWN; 256];
            $(
                let headers = union(&[$(HeaderSet::$header),*]);
                table[$raw] = OpcodeInfo {
                    name: stringify!($name),
                    transport: Transport::$transport,
                    operation: Operation::$operation,
                    position: Position::$position,
                    headers,
                    ext_len: headers.len() as u8,
                    payload: $payload,
                };
            )*
            table
        };
    };
}

opcodes! {
    0x00 RC_SEND_FIRST         Rc Send         First  true  [];
    0x01 RC_SEND_MIDDLE        Rc Send         Middle true  [];
    0x02 RC_SEND_LAST          Rc Send         Last   true  [];
    0x03 RC_SEND_LAST_IMM      Rc Send         Last   true  [IMM];
    0x04 RC_SEND_ONLY          Rc Send         Only   true  [];
    0x05 RC_SEND_ONLY_IMM      Rc Send         Only   true  [IMM];
    0x06 RC_WRITE_FIRST        Rc Write        First  true  [RETH];
    0x07 RC_WRITE_MIDDLE       Rc Write        Middle true  [];
    0x08 RC_WRITE_LAST         Rc Write        Last   true  [];
    0x09 RC_WRITE_LAST_IMM     Rc Write        Last   true  [IMM];
    0x0a RC_WRITE_ONLY         Rc Write        Only   true  [RETH];
    0x0b RC_WRITE_ONLY_IMM     Rc Write        Only   true  [RETH IMM];
    0x0c RC_READ_REQUEST       Rc ReadRequest  Only   false [RETH];
    0x0d RC_READ_RESP_FIRST    Rc ReadResponse First  true  [AETH];
    0x0e RC_READ_RESP_MIDDLE   Rc ReadResponse Middle true  [];
    0x0f RC_READ_RESP_LAST     Rc ReadResponse Last   true  [AETH];
    0x10 RC_READ_RESP_ONLY     Rc ReadResponse Only   true  [AETH];
    0x11 RC_ACK                Rc Ack          Only   false [AETH];
    0x12 RC_ATOMIC_ACK         Rc AtomicAck    Only   false [AETH ATOMIC_ACK_ETH];
    0x13 RC_CMP_SWAP           Rc CompareSwap  Only   false [ATOMIC_ETH];
    0x14 RC_FETCH_ADD          Rc FetchAdd     Only   false [ATOMIC_ETH];
    0x16 RC_SEND_LAST_INV      Rc Send         Last   true  [IETH];
    0x17 RC_SEND_ONLY_INV      Rc Send         Only   true  [IETH];
    0x1c RC_FLUSH              Rc Flush        Only   false [FETH RETH];
    0x1d RC_ATOMIC_WRITE       Rc AtomicWrite  Only   true  [RETH];
    0x20 UC_SEND_FIRST         Uc Send         First  true  [];
    0x21 UC_SEND_MIDDLE        Uc Send         Middle true  [];
    0x22 UC_SEND_LAST          Uc Send         Last   true  [];
    0x23 UC_SEND_LAST_IMM      Uc Send         Last   true  [IMM];
    0x24 UC_SEND_ONLY          Uc Send         Only   true  [];
    0x25 UC_SEND_ONLY_IMM      Uc Send         Only   true  [IMM];
    0x26 UC_WRITE_FIRST        Uc Write        First  true  [RETH];
    0x27 UC_WRITE_MIDDLE       Uc Write        Middle true  [];
    0x28 UC_WRITE_LAST         Uc Write        Last   true  [];
    0x29 UC_WRITE_LAST_IMM     Uc Write        Last   true  [IMM];
    0x2a UC_WRITE_ONLY         Uc Write        Only   true  [RETH];
    0x2b UC_WRITE_ONLY_IMM     Uc Write        Only   true  [RETH IMM];
    0x64 UD_SEND_ONLY          Ud Send         Only   true  [DETH];
    0x65 UD_SEND_ONLY_IMM      Ud Send         Only   true  [DETH IMM];
    0x81 CNP                   Cnp Cnp         Only   false [CNP_RESERVED];
}

impl Opcode {
    /// The opcode with this number, if the table knows it.
    #[inline]
    pub fn from_raw(raw: u8) -> Option<Opcode> {
        if TABLE[raw as usize].name.is_empty() {
            None
        } else {
            Some(Opcode(raw))
        }
    }

    /// The same operation of another transport, for those that both have.
    #[inline]
    pub(crate) const fn of_transport(self, bits: u8) -> Opcode {
        Opcode(self.0 & 0x1f | bits)
    }

    /// Its number.
    #[inline]
    pub const fn raw(self) -> u8 {
        self.0
    }

    /// What the table says of it.
    #[inline]
    pub const fn info(self) -> &'static OpcodeInfo {
        &TABLE[self.0 as usize]
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.info().name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_round_trip_and_the_rest_is_unknown() {
        let mut known = 0;
        for raw in 0..=255u8 {
            if let Some(op) = Opcode::from_raw(raw) {
                known += 1;
                assert_eq!(op.raw(), raw);
                assert_eq!(format!("{op:?}"), op.info().name);
            }
        }
        assert_eq!(known, Opcode::ALL.len());
        // reserved, XRC, RD
        for raw in [
            0x15, 0x18, 0x1b, 0x1e, 0x2c, 0x40, 0x60, 0x66, 0x80, 0x82, 0xa0, 0xff,
        ] {
            assert_eq!(Opcode::from_raw(raw), None, "{raw:#x}");
        }
    }

    /// IBTA table "OpCode field": the transport is in bits 7 to 5, and UC has RC's operations 0 to 11.
    #[test]
    fn transports_follow_the_high_bits() {
        for op in Opcode::ALL.iter().filter(|op| **op != Opcode::CNP) {
            let want = match op.raw() >> 5 {
                0 => Transport::Rc,
                1 => Transport::Uc,
                3 => Transport::Ud,
                other => panic!("{op:?} has transport bits {other}"),
            };
            assert_eq!(op.info().transport, want, "{op:?}");
        }
        for raw in 0..=0x0bu8 {
            let rc = Opcode::from_raw(raw).expect("RC opcode").info();
            let uc = Opcode::from_raw(raw | 0x20).expect("UC opcode").info();
            assert_eq!(rc.headers, uc.headers);
            assert_eq!((rc.operation, rc.position), (uc.operation, uc.position));
            assert_eq!(rc.name[2..], uc.name[2..]);
        }
    }

    /// IBTA "Packet headers": lengths of RETH 16, AtomicETH 28, AETH 4, AtomicAckETH 8, ImmDt 4, IETH 4, DETH 8.
    #[test]
    fn header_lengths() {
        for (op, len) in [
            (Opcode::RC_SEND_MIDDLE, 0),
            (Opcode::RC_SEND_ONLY_IMM, 4),
            (Opcode::RC_SEND_LAST_INV, 4),
            (Opcode::RC_WRITE_ONLY, 16),
            (Opcode::RC_WRITE_ONLY_IMM, 20),
            (Opcode::RC_READ_RESP_MIDDLE, 0),
            (Opcode::RC_READ_RESP_LAST, 4),
            (Opcode::RC_ATOMIC_ACK, 12),
            (Opcode::RC_CMP_SWAP, 28),
            (Opcode::RC_FLUSH, 20),
            (Opcode::RC_ATOMIC_WRITE, 16),
            (Opcode::UD_SEND_ONLY_IMM, 12),
            (Opcode::CNP, 16),
        ] {
            assert_eq!(op.info().ext_len, len, "{op:?}");
            assert_eq!(op.info().headers.len(), usize::from(len), "{op:?}");
        }
    }

    #[test]
    fn requests_responses_and_receives() {
        assert!(Opcode::RC_READ_REQUEST.info().is_request());
        assert!(Opcode::RC_ACK.info().is_response());
        assert!(!Opcode::CNP.info().is_request() && !Opcode::CNP.info().is_response());
        assert!(Opcode::RC_SEND_FIRST.info().consumes_receive());
        assert!(!Opcode::RC_SEND_LAST_IMM.info().consumes_receive());
        assert!(Opcode::RC_WRITE_LAST_IMM.info().consumes_receive());
        assert!(!Opcode::RC_WRITE_ONLY.info().consumes_receive());
    }

    #[test]
    fn header_set_prints_its_names() {
        let set = HeaderSet::RETH.with(HeaderSet::IMM);
        assert_eq!(format!("{set:?}"), r#"{"RETH", "ImmDt"}"#);
    }
}
