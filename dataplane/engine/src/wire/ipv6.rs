//! IPv6 header (RFC 8200). Extension headers do not occur before RoCE.

use core::net::Ipv6Addr;

use super::be::{put_u16, put_u32, u16_at, u32_at};
use super::ipv4::PROTOCOL_UDP;

mod field {
    /// Version (4 bits), traffic class (8), flow label (20).
    pub const VTF: usize = 0;
    pub const PAYLOAD_LEN: usize = 4;
    pub const NEXT_HEADER: usize = 6;
    pub const HOP_LIMIT: usize = 7;
    pub const SRC: usize = 8;
    pub const DST: usize = 24;
}

/// Bytes of the header.
pub const LEN: usize = 40;

/// A view of a header; no accessor can panic.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a>(&'a [u8; LEN]);

impl<'a> Header<'a> {
    /// `None` if there are fewer than 40 bytes.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Option<Header<'a>> {
        bytes.first_chunk::<LEN>().map(Header)
    }

    /// IP version; must be 6.
    #[inline]
    pub fn version(&self) -> u8 {
        self.0[field::VTF] >> 4
    }

    /// DSCP and ECN.
    #[inline]
    pub fn traffic_class(&self) -> u8 {
        (u32_at(self.0, field::VTF) >> 20) as u8
    }

    /// Flow label.
    #[inline]
    pub fn flow_label(&self) -> u32 {
        u32_at(self.0, field::VTF) & 0xf_ffff
    }

    /// Bytes after the header.
    #[inline]
    pub fn payload_len(&self) -> usize {
        usize::from(u16_at(self.0, field::PAYLOAD_LEN))
    }

    /// Protocol of the payload.
    #[inline]
    pub fn next_header(&self) -> u8 {
        self.0[field::NEXT_HEADER]
    }

    /// Hop limit.
    #[inline]
    pub fn hop_limit(&self) -> u8 {
        self.0[field::HOP_LIMIT]
    }

    /// Source address in wire order.
    #[inline]
    pub fn src(&self) -> [u8; 16] {
        addr_at(self.0, field::SRC)
    }

    /// Destination address in wire order.
    #[inline]
    pub fn dst(&self) -> [u8; 16] {
        addr_at(self.0, field::DST)
    }
}

#[inline(always)]
fn addr_at(h: &[u8; LEN], at: usize) -> [u8; 16] {
    let mut addr = [0; 16];
    addr.copy_from_slice(&h[at..at + 16]);
    addr
}

/// A header to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Source address.
    pub src: Ipv6Addr,
    /// Destination address.
    pub dst: Ipv6Addr,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label; the low 20 bits are used.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
}

impl Repr {
    /// Writes the header of a UDP packet; the payload length is left zero for `set_variable`.
    pub fn emit(&self, out: &mut [u8; LEN]) {
        self.emit_of(PROTOCOL_UDP, 0, out);
    }

    /// Writes the header of a packet with `payload_len` bytes of another protocol.
    pub(super) fn emit_of(&self, next_header: u8, payload_len: u16, out: &mut [u8; LEN]) {
        let vtf = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        put_u32(out, field::VTF, vtf);
        put_u16(out, field::PAYLOAD_LEN, payload_len);
        out[field::NEXT_HEADER] = next_header;
        out[field::HOP_LIMIT] = self.hop_limit;
        out[field::SRC..field::DST].copy_from_slice(&self.src.octets());
        out[field::DST..].copy_from_slice(&self.dst.octets());
    }
}

/// Gives the header at `at` another traffic class.
pub(super) fn set_traffic_class<const N: usize>(out: &mut [u8; N], at: usize, class: u8) {
    out[at] = 6 << 4 | class >> 4;
    out[at + 1] = class << 4 | (out[at + 1] & 0x0f);
}

/// Fills in what differs from packet to packet, in the header at `at`.
#[inline(always)]
pub(super) fn set_variable<const N: usize>(out: &mut [u8; N], at: usize, payload_len: u16) {
    put_u16(out, at + field::PAYLOAD_LEN, payload_len);
}

/// Sets to ones what routers may change (IBTA annex A17) in the header at `at`: traffic class, flow label
/// and hop limit.
#[inline(always)]
pub(super) const fn mask_for_icrc<const N: usize>(bytes: &mut [u8; N], at: usize) {
    bytes[at + field::VTF] |= 0x0f;
    bytes[at + field::VTF + 1] = 0xff;
    put_u16(bytes, at + field::VTF + 2, 0xffff);
    bytes[at + field::HOP_LIMIT] = 0xff;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let repr = Repr {
            src: "fd00::1".parse().expect("address"),
            dst: "fd00::2".parse().expect("address"),
            traffic_class: 0x6a,
            flow_label: 0x1_2345,
            hop_limit: 63,
        };
        let mut out = [0xaa; LEN];
        repr.emit(&mut out);
        set_variable(&mut out, 0, 40);
        let h = Header::new_checked(&out).expect("40 bytes");
        assert_eq!(
            (h.version(), h.traffic_class(), h.flow_label()),
            (6, 0x6a, 0x1_2345)
        );
        assert_eq!(
            (h.payload_len(), h.next_header(), h.hop_limit()),
            (40, 17, 63)
        );
        assert_eq!((h.src(), h.dst()), (repr.src.octets(), repr.dst.octets()));
        assert!(Header::new_checked(&out[..39]).is_none());
    }

    #[test]
    fn mask_leaves_version_length_and_addresses() {
        let mut h = [0; LEN];
        h[0] = 0x60;
        mask_for_icrc(&mut h, 0);
        let mut want = [0; LEN];
        want[0] = 0x6f;
        want[1..4].fill(0xff);
        want[7] = 0xff;
        assert_eq!(h, want);
    }
}
