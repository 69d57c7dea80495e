//! IPv4 header without options (RFC 791): the only form RoCE v2 uses (IBTA annex A17).

use core::net::Ipv4Addr;

use super::be::{put_u16, put_u32, u16_at, u32_at};

mod field {
    pub const VERSION_IHL: usize = 0;
    pub const TOS: usize = 1;
    pub const TOTAL_LEN: usize = 2;
    pub const ID: usize = 4;
    pub const FRAGMENT: usize = 6;
    pub const TTL: usize = 8;
    pub const PROTOCOL: usize = 9;
    pub const CHECKSUM: usize = 10;
    pub const SRC: usize = 12;
    pub const DST: usize = 16;
}

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET_MASK: u16 = 0x1fff;

/// Bytes of a header without options.
pub const LEN: usize = 20;
/// Protocol number of UDP, here and as IPv6 next header.
pub const PROTOCOL_UDP: u8 = 17;

/// A view of a header; no accessor can panic.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a>(&'a [u8; LEN]);

impl<'a> Header<'a> {
    /// `None` if there are fewer than 20 bytes.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Option<Header<'a>> {
        bytes.first_chunk::<LEN>().map(Header)
    }

    /// IP version; must be 4.
    #[inline]
    pub fn version(&self) -> u8 {
        self.0[field::VERSION_IHL] >> 4
    }

    /// Header length in bytes; 20 without options.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.0[field::VERSION_IHL] & 15) * 4
    }

    /// DSCP and ECN.
    #[inline]
    pub fn tos(&self) -> u8 {
        self.0[field::TOS]
    }

    /// Bytes of header and payload.
    #[inline]
    pub fn total_len(&self) -> usize {
        usize::from(u16_at(self.0, field::TOTAL_LEN))
    }

    /// Identification.
    #[inline]
    pub fn id(&self) -> u16 {
        u16_at(self.0, field::ID)
    }

    /// DF.
    #[inline]
    pub fn dont_fragment(&self) -> bool {
        u16_at(self.0, field::FRAGMENT) & DONT_FRAGMENT != 0
    }

    /// It is a piece of a packet, not all of it.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        u16_at(self.0, field::FRAGMENT) & (MORE_FRAGMENTS | OFFSET_MASK) != 0
    }

    /// It is a piece without the packet's beginning, so without a UDP header.
    #[inline]
    pub fn is_later_fragment(&self) -> bool {
        u16_at(self.0, field::FRAGMENT) & OFFSET_MASK != 0
    }

    /// TTL.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.0[field::TTL]
    }

    /// Protocol of the payload.
    #[inline]
    pub fn protocol(&self) -> u8 {
        self.0[field::PROTOCOL]
    }

    /// Source address.
    #[inline]
    pub fn src(&self) -> Ipv4Addr {
        u32_at(self.0, field::SRC).into()
    }

    /// Destination address.
    #[inline]
    pub fn dst(&self) -> Ipv4Addr {
        u32_at(self.0, field::DST).into()
    }

    /// Whether the header checksum is right. It alone protects TOS and TTL, which the ICRC leaves out.
    #[inline]
    pub fn checksum_ok(&self) -> bool {
        fold(sum(self.0)) == 0xffff
    }
}

/// A header to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// DSCP and ECN.
    pub tos: u8,
    /// TTL.
    pub ttl: u8,
}

impl Repr {
    /// Writes the header of a UDP packet with DF set; total length, id and checksum are left zero for
    /// `set_variable`.
    pub fn emit(&self, out: &mut [u8; LEN]) {
        *out = [0; LEN];
        out[field::VERSION_IHL] = 0x45;
        out[field::TOS] = self.tos;
        put_u16(out, field::FRAGMENT, DONT_FRAGMENT);
        out[field::TTL] = self.ttl;
        out[field::PROTOCOL] = PROTOCOL_UDP;
        put_u32(out, field::SRC, self.src.into());
        put_u32(out, field::DST, self.dst.into());
    }
}

/// Fills in what differs from packet to packet, in the header at `at`. `base` is [`sum`] of the header as
/// [`Repr::emit`] left it.
#[inline(always)]
pub(super) fn set_variable<const N: usize>(
    out: &mut [u8; N],
    at: usize,
    total_len: u16,
    id: u16,
    base: u32,
) {
    put_u16(out, at + field::TOTAL_LEN, total_len);
    put_u16(out, at + field::ID, id);
    let checksum = !fold(base + u32::from(total_len) + u32::from(id));
    put_u16(out, at + field::CHECKSUM, checksum);
}

/// Gives the header at `at`, as [`Repr::emit`] left it, another TOS; its new [`sum`].
pub(super) fn set_tos<const N: usize>(out: &mut [u8; N], at: usize, tos: u8) -> u32 {
    out[at + field::TOS] = tos;
    out[at..].first_chunk().map_or(0, sum)
}

/// Sum of the ten 16-bit words (RFC 1071); it cannot overflow.
#[inline]
pub(super) fn sum(header: &[u8; LEN]) -> u32 {
    (0..LEN / 2).map(|i| u32::from(u16_at(header, 2 * i))).sum()
}

#[inline]
fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

/// Writes the checksum that the header at the start of `l3` should have; nothing if there is none.
pub fn set_checksum(l3: &mut [u8]) {
    if let Some(header) = l3.first_chunk_mut::<LEN>() {
        put_u16(header, field::CHECKSUM, 0);
        let checksum = !fold(sum(header));
        put_u16(header, field::CHECKSUM, checksum);
    }
}

/// Brings the checksum of the header at the start of `l3` along with one 16-bit word that changed, so that a
/// wrong one stays wrong (RFC 1624, equation 3).
pub fn update_checksum(l3: &mut [u8], before: u16, after: u16) {
    if let Some(header) = l3.first_chunk_mut::<LEN>() {
        let old = u16_at(header, field::CHECKSUM);
        let new = !fold(u32::from(!old) + u32::from(!before) + u32::from(after));
        put_u16(header, field::CHECKSUM, new);
    }
}

/// Sets to ones what routers may change (IBTA annex A17, ICRC of RoCE v2 packets) in the header at `at`.
#[inline(always)]
pub(super) const fn mask_for_icrc<const N: usize>(bytes: &mut [u8; N], at: usize) {
    bytes[at + field::TOS] = 0xff;
    bytes[at + field::TTL] = 0xff;
    put_u16(bytes, at + field::CHECKSUM, 0xffff);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of the ConnectX-4 Lx notification packet (see `icrc`), captured, checksum included.
    const CAPTURED: [u8; LEN] = [
        0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 10, 0, 17, 1, 10,
        0, 18, 1,
    ];

    #[test]
    fn fields_of_a_captured_header() {
        let h = Header::new_checked(&CAPTURED).expect("20 bytes");
        assert_eq!((h.version(), h.header_len(), h.total_len()), (4, 20, 60));
        assert_eq!(
            (h.tos(), h.id(), h.ttl(), h.protocol()),
            (0xc2, 0x718c, 64, 17)
        );
        assert!(h.dont_fragment() && !h.is_fragment() && h.checksum_ok());
        assert_eq!(h.src(), Ipv4Addr::new(10, 0, 17, 1));
        assert!(Header::new_checked(&CAPTURED[..19]).is_none());
    }

    #[test]
    fn every_flipped_bit_fails_the_checksum() {
        for bit in 0..LEN * 8 {
            let mut bad = CAPTURED;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!Header(&bad).checksum_ok(), "bit {bit}");
        }
    }

    #[test]
    fn emitted_header_equals_the_captured_one() {
        let repr = Repr {
            src: Ipv4Addr::new(10, 0, 17, 1),
            dst: Ipv4Addr::new(10, 0, 18, 1),
            tos: 0xc2,
            ttl: 64,
        };
        let mut out = [0xaa; LEN];
        repr.emit(&mut out);
        let base = sum(&out);
        set_variable(&mut out, 0, 60, 0x718c, base);
        assert_eq!(out, CAPTURED);
    }

    #[test]
    fn fragments() {
        let mut h = CAPTURED;
        h[6] = 0x20;
        assert!(Header(&h).is_fragment() && !Header(&h).is_later_fragment());
        h[6] = 0x00;
        h[7] = 0x01;
        assert!(Header(&h).is_later_fragment());
    }
}
