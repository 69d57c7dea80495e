//! Atomic extended transport header (IBTA section 9.3.4) and the header of its answer, AtomicAckETH
//! (section 9.5.3).

use super::be::{put_u32, put_u64, u32_at, u64_at};

mod field {
    pub const VA: usize = 0;
    pub const RKEY: usize = 8;
    pub const SWAP_ADD: usize = 12;
    pub const COMPARE: usize = 20;
}

/// Bytes of AtomicETH.
pub const LEN: usize = 28;
/// Bytes of AtomicAckETH: the original value at the address.
pub const ACK_LEN: usize = 8;

/// The fields of AtomicETH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Address in the responder's region, a multiple of 8.
    pub va: u64,
    /// Key of the region.
    pub rkey: u32,
    /// Value to store, or to add.
    pub swap_add: u64,
    /// Value to compare with; not used by fetch and add.
    pub compare: u64,
}

impl Repr {
    /// Reads it.
    #[inline]
    pub fn parse(b: &[u8; LEN]) -> Repr {
        Repr {
            va: u64_at(b, field::VA),
            rkey: u32_at(b, field::RKEY),
            swap_add: u64_at(b, field::SWAP_ADD),
            compare: u64_at(b, field::COMPARE),
        }
    }

    /// Writes it.
    #[inline]
    pub fn emit(&self, out: &mut [u8; LEN]) {
        put_u64(out, field::VA, self.va);
        put_u32(out, field::RKEY, self.rkey);
        put_u64(out, field::SWAP_ADD, self.swap_add);
        put_u64(out, field::COMPARE, self.compare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let bytes: [u8; LEN] = core::array::from_fn(|i| i as u8);
        let repr = Repr::parse(&bytes);
        assert_eq!(repr.va, 0x0001_0203_0405_0607);
        assert_eq!(repr.rkey, 0x0809_0a0b);
        assert_eq!(repr.swap_add, 0x0c0d_0e0f_1011_1213);
        assert_eq!(repr.compare, 0x1415_1617_1819_1a1b);
        let mut out = [0; LEN];
        repr.emit(&mut out);
        assert_eq!(out, bytes);
    }
}
