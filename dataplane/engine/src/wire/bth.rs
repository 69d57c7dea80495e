//! Base transport header (IBTA volume 1, section 9.2).

use super::Psn;
use super::be::{put_u16, put_u24, u16_at, u24_at};

mod field {
    pub const OPCODE: usize = 0;
    /// SE, M, pad count (2 bits), TVer (4 bits).
    pub const FLAGS: usize = 1;
    pub const PKEY: usize = 2;
    /// FECN, BECN, 6 reserved bits: not under the ICRC.
    pub const ECN: usize = 4;
    pub const DEST_QPN: usize = 5;
    /// AckReq, 7 reserved bits.
    pub const ACK_REQ: usize = 8;
    pub const PSN: usize = 9;
}

const SOLICITED: u8 = 0x80;
const MIG_REQ: u8 = 0x40;
const BECN: u8 = 0x40;
const FECN: u8 = 0x80;
const ACK_REQ: u8 = 0x80;

/// Bytes of the header.
pub const LEN: usize = 12;

/// A view of a header; no accessor can panic.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a>(&'a [u8; LEN]);

impl<'a> Header<'a> {
    /// `None` if there are fewer than 12 bytes.
    #[inline]
    pub fn new_checked(bytes: &'a [u8]) -> Option<Header<'a>> {
        bytes.first_chunk::<LEN>().map(Header)
    }

    /// Opcode, which may be unknown.
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.0[field::OPCODE]
    }

    /// Solicited event.
    #[inline]
    pub fn solicited(&self) -> bool {
        self.0[field::FLAGS] & SOLICITED != 0
    }

    /// Migration request (M). Its meaning here is none: path migration does not exist on RoCE.
    #[inline]
    pub fn mig_req(&self) -> bool {
        self.0[field::FLAGS] & MIG_REQ != 0
    }

    /// Bytes that pad the payload to a multiple of four, 0 to 3.
    #[inline]
    pub fn pad(&self) -> usize {
        usize::from(self.0[field::FLAGS] >> 4 & 3)
    }

    /// Version of the transport headers; must be 0.
    #[inline]
    pub fn tver(&self) -> u8 {
        self.0[field::FLAGS] & 15
    }

    /// P_Key.
    #[inline]
    pub fn pkey(&self) -> u16 {
        u16_at(self.0, field::PKEY)
    }

    /// Forward congestion notification.
    #[inline]
    pub fn fecn(&self) -> bool {
        self.0[field::ECN] & FECN != 0
    }

    /// Backward congestion notification.
    #[inline]
    pub fn becn(&self) -> bool {
        self.0[field::ECN] & BECN != 0
    }

    /// Destination QPN.
    #[inline]
    pub fn dest_qpn(&self) -> u32 {
        u24_at(self.0, field::DEST_QPN)
    }

    /// The responder is asked for an acknowledgement.
    #[inline]
    pub fn ack_req(&self) -> bool {
        self.0[field::ACK_REQ] & ACK_REQ != 0
    }

    /// Packet sequence number.
    #[inline]
    pub fn psn(&self) -> Psn {
        Psn::new(u24_at(self.0, field::PSN))
    }
}

/// Writes the part that all packets to one QP share: the M bit is 0, as soft-RoCE has it.
pub(super) fn emit(out: &mut [u8; LEN], pkey: u16, dest_qpn: u32) {
    *out = [0; LEN];
    put_u16(out, field::PKEY, pkey);
    put_u24(out, field::DEST_QPN, dest_qpn);
}

/// What differs from packet to packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variable {
    /// Opcode.
    pub opcode: u8,
    /// Solicited event.
    pub solicited: bool,
    /// 0 to 3.
    pub pad: u8,
    /// Backward congestion notification.
    pub becn: bool,
    /// AckReq.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

/// Fills in what differs from packet to packet, in the header at `at`.
#[inline(always)]
pub(super) fn set_variable<const N: usize>(out: &mut [u8; N], at: usize, v: &Variable) {
    out[at + field::OPCODE] = v.opcode;
    out[at + field::FLAGS] = (u8::from(v.solicited) * SOLICITED) | (v.pad << 4);
    out[at + field::ECN] = u8::from(v.becn) * BECN;
    out[at + field::ACK_REQ] = u8::from(v.ack_req) * ACK_REQ;
    put_u24(out, at + field::PSN, v.psn.get());
}

/// Names another destination QP.
#[inline]
pub(super) fn set_dest_qpn(out: &mut [u8; LEN], dest_qpn: u32) {
    put_u24(out, field::DEST_QPN, dest_qpn);
}

/// Sets to ones what switches may change (IBTA section 7.8.1 and annex A17) in the header at `at`.
#[inline(always)]
pub(super) const fn mask_for_icrc<const N: usize>(bytes: &mut [u8; N], at: usize) {
    bytes[at + field::ECN] = 0xff;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let mut out = [0xaa; LEN];
        emit(&mut out, 0xffff, 0x12_3456);
        let v = Variable {
            opcode: 4,
            solicited: true,
            pad: 3,
            becn: true,
            ack_req: true,
            psn: Psn::new(0xabcdef),
        };
        set_variable(&mut out, 0, &v);
        assert_eq!(
            out,
            [
                4, 0xb0, 0xff, 0xff, 0x40, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef
            ]
        );
        let h = Header::new_checked(&out).expect("12 bytes");
        assert_eq!((h.opcode(), h.pad(), h.tver(), h.pkey()), (4, 3, 0, 0xffff));
        assert!(h.solicited() && !h.mig_req() && h.becn() && !h.fecn() && h.ack_req());
        assert_eq!((h.dest_qpn(), h.psn()), (0x12_3456, v.psn));
        assert!(Header::new_checked(&out[..11]).is_none());
    }
}
