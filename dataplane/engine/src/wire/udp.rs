//! UDP header (RFC 768). RoCE v2 goes to port 4791; its checksum is sent as zero and not looked at
//! when received, since the ICRC covers more.

use super::be::{put_u16, u16_at};

mod field {
    pub const SRC_PORT: usize = 0;
    pub const DST_PORT: usize = 2;
    pub const LEN: usize = 4;
    pub const CHECKSUM: usize = 6;
}

/// Bytes of the header.
pub const LEN: usize = 8;
/// Destination port of RoCE v2.
pub const PORT_ROCE: u16 = 4791;
/// Source port of congestion notification packets, as captures of a ConnectX have it.
pub const CNP_SRC_PORT: u16 = 0;

/// A view of a header; no accessor can panic.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a>(&'a [u8; LEN]);

impl<'a> Header<'a> {
    /// `None` if there are fewer than 8 bytes.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Option<Header<'a>> {
        bytes.first_chunk::<LEN>().map(Header)
    }

    /// Source port.
    #[inline]
    pub fn src_port(&self) -> u16 {
        u16_at(self.0, field::SRC_PORT)
    }

    /// Destination port.
    #[inline]
    pub fn dst_port(&self) -> u16 {
        u16_at(self.0, field::DST_PORT)
    }

    /// Bytes of header and payload.
    #[inline]
    pub fn datagram_len(&self) -> usize {
        usize::from(u16_at(self.0, field::LEN))
    }
}

/// Writes the header of a RoCE packet without checksum; the length is left zero for `set_variable`.
pub(super) fn emit(out: &mut [u8; LEN], src_port: u16) {
    *out = [0; LEN];
    put_u16(out, field::SRC_PORT, src_port);
    put_u16(out, field::DST_PORT, PORT_ROCE);
}

/// Fills in what differs from packet to packet, in the header at `at`.
#[inline(always)]
pub(super) fn set_variable<const N: usize>(out: &mut [u8; N], at: usize, len: u16) {
    put_u16(out, at + field::LEN, len);
}

/// Gives the header at `at` another source port.
pub(super) fn set_src_port<const N: usize>(out: &mut [u8; N], at: usize, port: u16) {
    put_u16(out, at + field::SRC_PORT, port);
}

/// Sets the checksum to ones (IBTA annex A17) in the header at `at`.
#[inline(always)]
pub(super) const fn mask_for_icrc<const N: usize>(bytes: &mut [u8; N], at: usize) {
    put_u16(bytes, at + field::CHECKSUM, 0xffff);
}

/// UDP source port of a flow: equal for all packets of a QP, different between QPs so that routers
/// spread them. A flow label of the path decides it; without one it follows from the QPNs. The folding is
/// that of `rdma_flow_label_to_udp_sport` and `rdma_calc_flow_label` in Linux.
pub fn udp_sport(flow_label: u32, local_qpn: u32, remote_qpn: u32) -> u16 {
    let label = match flow_label & 0xf_ffff {
        0 => {
            let mut v = u64::from(local_qpn) * u64::from(remote_qpn);
            v ^= v >> 20;
            v ^= v >> 40;
            (v & 0xf_ffff) as u32
        }
        label => label,
    };
    (label & 0x3fff) as u16 ^ (label >> 14) as u16 | 0xc000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let mut out = [0xaa; LEN];
        emit(&mut out, 0xc4c9);
        set_variable(&mut out, 0, 40);
        assert_eq!(out, [0xc4, 0xc9, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00]);
        let h = Header::new_checked(&out).expect("8 bytes");
        assert_eq!(
            (h.src_port(), h.dst_port(), h.datagram_len()),
            (0xc4c9, PORT_ROCE, 40)
        );
        assert!(Header::new_checked(&out[..7]).is_none());
    }

    #[test]
    fn source_port_folds_the_flow_label() {
        assert_eq!(udp_sport(0x1_2345, 1, 2), 0xe341);
        // the label wins over the QPNs, and only 20 bits of it count
        assert_eq!(udp_sport(0x1_2345, 3, 4), udp_sport(0xff1_2345, 5, 6));
        // without label: the product of the QPNs is 0x7336bf94116, which folds to the label 0xa77ae
        assert_eq!(udp_sport(0, 0x12_3456, 0x65_4321), 0xf787);
        assert_eq!(udp_sport(0, 0x65_4321, 0x12_3456), 0xf787);
        assert!((0..64).all(|q| udp_sport(0, q, q + 1) >= 0xc000));
    }
}
