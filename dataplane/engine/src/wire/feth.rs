//! FLUSH extended transport header (IBTA annex A19.4): what a FLUSH is about. The RETH behind it has the range.

use super::be::{put_u32, u32_at};

/// Bytes of the header.
pub const LEN: usize = 4;

/// Lower 4 bits: placement type.
const PLACEMENT: u32 = 0xf;
/// The 2 bits above: selectivity level.
const SELECTIVITY_SHIFT: u32 = 4;
const SELECTIVITY: u32 = 3;

/// The fields, with the numbers of `enum ib_placement_type` and `enum ib_selectivity_level`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// [`Feth::GLOBAL`], [`Feth::PERSISTENT`], or both.
    pub placement: u8,
    /// [`Feth::RANGE`] or [`Feth::REGION`].
    pub selectivity: u8,
}

impl Feth {
    /// Visible to every other access, from this machine or another.
    pub const GLOBAL: u8 = 1;
    /// Still there after a power failure.
    pub const PERSISTENT: u8 = 2;
    /// The range in the RETH.
    pub const RANGE: u8 = 0;
    /// The whole region that the RETH's key names.
    pub const REGION: u8 = 1;

    /// From the header as a number; reserved bits are not looked at.
    pub const fn from_raw(raw: u32) -> Feth {
        Feth {
            placement: (raw & PLACEMENT) as u8,
            selectivity: (raw >> SELECTIVITY_SHIFT & SELECTIVITY) as u8,
        }
    }

    /// The header as a number; bits of values that do not exist are cut off.
    pub const fn raw(self) -> u32 {
        self.placement as u32 & PLACEMENT
            | (self.selectivity as u32 & SELECTIVITY) << SELECTIVITY_SHIFT
    }

    /// Whether both values exist.
    pub const fn is_valid(self) -> bool {
        matches!(self.placement, 1..=3) && self.selectivity <= Feth::REGION
    }
}

/// Reads it as a number.
#[inline]
pub fn parse(b: &[u8; LEN]) -> u32 {
    u32_at(b, 0)
}

/// Writes it.
#[inline]
pub fn emit(raw: u32, out: &mut [u8; LEN]) {
    put_u32(out, 0, raw);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        for raw in 0..64 {
            let feth = Feth::from_raw(raw);
            assert_eq!(feth.raw(), raw);
            let mut bytes = [0; LEN];
            emit(raw, &mut bytes);
            assert_eq!(parse(&bytes), raw);
        }
        let both = Feth {
            placement: Feth::GLOBAL | Feth::PERSISTENT,
            selectivity: Feth::REGION,
        };
        assert_eq!(both.raw(), 0x13);
        assert!(both.is_valid());
    }

    #[test]
    fn values_that_do_not_exist_are_told() {
        for raw in [0, 4, 8, 0x10, 0x21, 0x31] {
            assert!(!Feth::from_raw(raw).is_valid(), "{raw:#x}");
        }
        assert!(Feth::from_raw(0xffff_ff01).is_valid(), "reserved bits");
    }
}
