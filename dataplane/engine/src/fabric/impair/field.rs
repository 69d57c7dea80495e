//! Header fields by name: where each one is in a frame, down to the bit.

use core::str::FromStr;

use crate::wire::HeaderSet;

use super::{PacketView, Random, RuleError};

/// How a field changes; what does not fit its width is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldChange {
    /// To this value, which may be the one it has.
    Set(u64),
    /// By so much more, modulo its width.
    Add(u64),
    /// These bits are flipped.
    Flip(u64),
    /// To any other value.
    Random,
}

/// Bits of a frame, counted from its first byte's highest bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first.
    pub bit: u32,
    /// How many, 1 to 64.
    pub bits: u8,
}

impl Span {
    /// The largest value that fits.
    pub const fn max(self) -> u64 {
        u64::MAX >> (64 - self.bits as u32)
    }

    /// The number they hold, the first bit being the most significant; `None` beyond the end of the frame.
    pub fn get(self, frame: &[u8]) -> Option<u64> {
        let mut value = 0;
        for bit in self.range() {
            let byte = *frame.get(bit / 8)?;
            value = value << 1 | u64::from(byte >> (7 - bit % 8) & 1);
        }
        Some(value)
    }

    /// Writes the low bits of `value`; nothing where the frame has ended.
    pub fn set(self, frame: &mut [u8], value: u64) {
        for (i, bit) in self.range().enumerate() {
            let Some(byte) = frame.get_mut(bit / 8) else {
                return;
            };
            let mask = 1 << (7 - bit % 8);
            let one = value >> (usize::from(self.bits) - 1 - i) & 1 == 1;
            *byte = if one { *byte | mask } else { *byte & !mask };
        }
    }

    fn range(self) -> core::ops::Range<usize> {
        let first = self.bit as usize;
        first..first + usize::from(self.bits)
    }
}

/// The header that a field is in.
#[derive(Clone, Copy)]
enum Header {
    Ethernet,
    /// Bits in IPv4, bits in IPv6.
    Ip(u16),
    Udp,
    Bth,
    /// Any of these extended headers has it, at the same place.
    Ext(HeaderSet),
}

use Header::{Bth, Ethernet, Ext, Ip, Udp};

const RETH_OR_ATOMIC: HeaderSet = HeaderSet::RETH.with(HeaderSet::ATOMIC_ETH);

macro_rules! fields {
    ($($variant:ident $name:literal $header:expr, $bit:literal, $bits:literal, $doc:literal;)*) => {
        /// A header field. The header's layout is that of IEEE 802.3, RFC 791, RFC 8200, RFC 768 and IBTA volume 1,
        /// chapter 9.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Field {
            $(#[doc = $doc] $variant,)*
        }

        impl Field {
            /// All of them.
            pub const ALL: &[Field] = &[$(Field::$variant),*];

            /// Its name in configuration and on the command line.
            pub const fn name(self) -> &'static str {
                match self { $(Field::$variant => $name),* }
            }

            /// What it is, in a few words.
            pub const fn meaning(self) -> &'static str {
                match self { $(Field::$variant => $doc),* }
            }

            /// Header, first bit in it (in IPv4), and width.
            const fn place(self) -> (Header, u32, u8) {
                match self { $(Field::$variant => ($header, $bit, $bits)),* }
            }
        }
    };
}

fields! {
    EthDst "eth-dst" Ethernet, 0, 48, "Destination MAC address";
    EthSrc "eth-src" Ethernet, 48, 48, "Source MAC address";
    Dscp "dscp" Ip(4), 8, 6, "IP differentiated services code point";
    Ecn "ecn" Ip(10), 14, 2, "IP ECN field";
    IpLength "ip-length" Ip(32), 16, 16, "IPv4 total length or IPv6 payload length";
    Ttl "ttl" Ip(56), 64, 8, "IPv4 time to live or IPv6 hop limit";
    IpSrc "ip-src" Ip(160), 96, 32, "Last 32 bits of the source address";
    IpDst "ip-dst" Ip(288), 128, 32, "Last 32 bits of the destination address";
    UdpSrcPort "udp-src-port" Udp, 0, 16, "UDP source port";
    UdpDstPort "udp-dst-port" Udp, 16, 16, "UDP destination port";
    UdpLength "udp-length" Udp, 32, 16, "UDP length";
    Opcode "opcode" Bth, 0, 8, "BTH opcode";
    Solicited "solicited" Bth, 8, 1, "BTH solicited event bit";
    MigReq "mig-req" Bth, 9, 1, "BTH migration request bit";
    Pad "pad" Bth, 10, 2, "BTH pad count";
    Version "version" Bth, 12, 4, "BTH transport header version";
    PKey "pkey" Bth, 16, 16, "BTH partition key";
    Fecn "fecn" Bth, 32, 1, "BTH forward congestion notification; the ICRC does not cover it";
    Becn "becn" Bth, 33, 1, "BTH backward congestion notification; the ICRC does not cover it";
    DestQpn "dest-qpn" Bth, 40, 24, "BTH destination QP number";
    AckReq "ack-req" Bth, 64, 1, "BTH acknowledge request bit";
    Psn "psn" Bth, 72, 24, "BTH packet sequence number";
    QKey "qkey" Ext(HeaderSet::DETH), 0, 32, "DETH queue key";
    SrcQpn "src-qpn" Ext(HeaderSet::DETH), 40, 24, "DETH source QP number";
    Flush "flush" Ext(HeaderSet::FETH), 26, 6, "FETH selectivity and placement type";
    Va "va" Ext(RETH_OR_ATOMIC), 0, 64, "RETH or AtomicETH remote address";
    RKey "rkey" Ext(RETH_OR_ATOMIC), 64, 32, "RETH or AtomicETH remote key";
    DmaLength "dma-length" Ext(HeaderSet::RETH), 96, 32, "RETH length of the message";
    Syndrome "syndrome" Ext(HeaderSet::AETH), 0, 8, "AETH syndrome";
    Msn "msn" Ext(HeaderSet::AETH), 8, 24, "AETH message sequence number";
    SwapAdd "swap-add" Ext(HeaderSet::ATOMIC_ETH), 96, 64, "AtomicETH swap or add data";
    Compare "compare" Ext(HeaderSet::ATOMIC_ETH), 160, 64, "AtomicETH compare data";
    Original "original" Ext(HeaderSet::ATOMIC_ACK_ETH), 0, 64, "AtomicAckETH original data";
    Immediate "immediate" Ext(HeaderSet::IMM), 0, 32, "Immediate data";
    InvalidateKey "invalidate-key" Ext(HeaderSet::IETH), 0, 32, "IETH remote key to invalidate";
}

/// No field has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no header field is named `{0}`; there are {names}", names = names())]
pub struct UnknownField(pub String);

fn names() -> String {
    let all: Vec<&str> = Field::ALL.iter().map(|f| f.name()).collect();
    all.join(", ")
}

impl FromStr for Field {
    type Err = UnknownField;

    fn from_str(s: &str) -> Result<Field, UnknownField> {
        let found = Field::ALL.iter().find(|f| f.name() == s);
        found.copied().ok_or_else(|| UnknownField(s.to_owned()))
    }
}

impl Field {
    /// The largest value that it can have.
    pub const fn max(self) -> u64 {
        u64::MAX >> (64 - self.place().2 as u32)
    }

    pub(super) fn check(self, change: FieldChange) -> Result<(), RuleError> {
        let (value, may_be_zero) = match change {
            FieldChange::Set(v) => (v, true),
            FieldChange::Add(v) | FieldChange::Flip(v) => (v, false),
            FieldChange::Random => return Ok(()),
        };
        if value > self.max() {
            return Err(RuleError::TooLarge {
                field: self.name(),
                value,
                max: self.max(),
            });
        }
        match value == 0 && !may_be_zero {
            true => Err(RuleError::NoChange),
            false => Ok(()),
        }
    }

    /// Where it is in the frame of this packet; `None` if the packet does not have it.
    pub fn span(self, view: &PacketView) -> Option<Span> {
        let (header, bit, bits) = self.place();
        let layout = &view.layout;
        let bth_len = crate::wire::bth::LEN as u32;
        let (start, bit) = match header {
            Ethernet => (0, bit),
            Ip(v6_bit) if layout.ipv6 => (layout.l3, u32::from(v6_bit)),
            Ip(_) => (layout.l3, bit),
            Udp => (layout.udp, bit),
            Bth => (layout.bth, bit),
            Ext(any_of) => {
                let present = view.opcode()?.info().headers;
                let one = present.0 & any_of.0;
                // Headers are on the wire in the order of their bits.
                let before = HeaderSet(present.0 & one.wrapping_sub(1));
                if one == 0 {
                    return None;
                }
                (layout.bth + bth_len + before.len() as u32, bit)
            }
        };
        let span = Span {
            bit: start * 8 + bit,
            bits,
        };
        (span.bit + u32::from(bits) <= layout.end * 8).then_some(span)
    }
}

impl FieldChange {
    /// The same without chance.
    pub(super) fn settled(self, field: Field, random: &mut Random) -> FieldChange {
        match self {
            FieldChange::Random => {
                // Below the largest and one more: never nothing.
                FieldChange::Flip(1 + random.below(field.max()))
            }
            other => other,
        }
    }
}
