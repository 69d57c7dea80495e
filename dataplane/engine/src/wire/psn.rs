//! Packet sequence numbers: 24 bits, compared by signed distance (IBTA 9.7.2).

/// A packet sequence number, always below 2^24.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `v`.
    pub const fn new(v: u32) -> Psn {
        Psn(v & 0xff_ffff)
    }
    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
    /// `n` packets later.
    pub const fn add(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_add(n))
    }
    /// `n` packets earlier.
    pub const fn sub(self, n: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(n))
    }
    /// Signed distance from `other` to `self`: negative if `self` is before, in -2^23 .. 2^23.
    pub const fn distance(self, other: Psn) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }
    /// Whether `self` comes before `other`.
    pub const fn before(self, other: Psn) -> bool {
        self.distance(other) < 0
    }
}

impl core::fmt::Debug for Psn {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "psn:{:06x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_wraps_at_24_bits() {
        assert_eq!(Psn::new(0xff_ffff).add(1), Psn::new(0));
        assert_eq!(Psn::new(0).sub(1), Psn::new(0xff_ffff));
        assert_eq!(Psn::new(0x1234_5678).get(), 0x34_5678);
    }

    /// IBTA 9.7.2: of the 2^24 numbers, half lie before and half after any one.
    #[test]
    fn distance_is_signed_over_half_the_circle() {
        for base in [0, 1, 0x7f_ffff, 0x80_0000, 0xff_ffff] {
            let base = Psn::new(base);
            for n in [0, 1, 2, 0x7f_fffe, 0x7f_ffff] {
                assert_eq!(base.add(n).distance(base), n as i32);
                assert_eq!(base.sub(n).distance(base), -(n as i32));
            }
            assert_eq!(base.add(0x80_0000).distance(base), -0x80_0000);
            assert!(base.sub(1).before(base) && !base.before(base) && !base.add(1).before(base));
        }
    }
}
