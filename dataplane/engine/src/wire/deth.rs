//! Datagram extended transport header (IBTA section 9.3.2).

use super::be::{put_u24, put_u32, u24_at, u32_at};

mod field {
    pub const QKEY: usize = 0;
    pub const RESERVED: usize = 4;
    pub const SRC_QPN: usize = 5;
}

/// Bytes of the header.
pub const LEN: usize = 8;

/// The header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Must equal the receiving QP's.
    pub qkey: u32,
    /// The sender.
    pub src_qpn: u32,
}

impl Repr {
    /// Reads it.
    #[inline]
    pub fn parse(b: &[u8; LEN]) -> Repr {
        Repr {
            qkey: u32_at(b, field::QKEY),
            src_qpn: u24_at(b, field::SRC_QPN),
        }
    }

    /// Writes it.
    #[inline]
    pub fn emit(&self, out: &mut [u8; LEN]) {
        put_u32(out, field::QKEY, self.qkey);
        out[field::RESERVED] = 0;
        put_u24(out, field::SRC_QPN, self.src_qpn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let bytes = [0x80, 0x01, 0, 0, 0, 0, 0, 1];
        let repr = Repr::parse(&bytes);
        assert_eq!(
            repr,
            Repr {
                qkey: 0x8001_0000,
                src_qpn: 1
            }
        );
        let mut out = [0xaa; LEN];
        repr.emit(&mut out);
        assert_eq!(out, bytes);
    }
}
