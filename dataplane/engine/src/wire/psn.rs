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
