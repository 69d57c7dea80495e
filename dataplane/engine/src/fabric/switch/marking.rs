//! Congestion marks: random early detection on the depth of an egress queue at this moment, without an average, as DCQCN
//! has it (Zhu et al., "Congestion control for large-scale RDMA deployments", SIGCOMM 2015, section 3.1): none below
//! Kmin, with a probability that rises to Pmax at Kmax, all above.

use crate::fabric::impair::{Probability, Random};

/// Where marking begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Red {
    /// Bytes in a queue up to which nothing is marked.
    pub kmin: u32,
    /// Bytes from which on all is marked.
    pub kmax: u32,
    /// Probability just below Kmax.
    pub pmax: Probability,
}

impl Red {
    /// As the ns-3 model of HPCC is configured, in proportion to the rate: 4 kB and 16 kB for each Gb/s, 20 %.
    pub const fn at_rate(bits_per_s: u64) -> Red {
        let kmin = bits_per_s / 1_000_000 * 4;
        let kmax = bits_per_s / 1_000_000 * 16;
        Red {
            kmin: if kmin > u32::MAX as u64 {
                u32::MAX
            } else {
                kmin as u32
            },
            kmax: if kmax > u32::MAX as u64 {
                u32::MAX
            } else {
                kmax as u32
            },
            pmax: Probability::ratio(1, 5),
        }
    }

    /// Chance, in parts of 2^32, at a depth in bytes.
    #[inline]
    pub fn chance(&self, depth: u64) -> u64 {
        let (kmin, kmax) = (u64::from(self.kmin), u64::from(self.kmax));
        if depth <= kmin {
            0
        } else if depth >= kmax {
            1 << 32
        } else {
            // Both factors have at most 32 and 33 bits.
            let rise = u128::from(depth - kmin) * u128::from(self.pmax.parts());
            (rise / u128::from(kmax - kmin)) as u64
        }
    }

    /// Whether a packet is hit. A number is drawn only where chance decides.
    #[inline]
    pub(super) fn hits(&self, depth: u64, random: &mut Random) -> bool {
        match self.chance(depth) {
            0 => false,
            chance if chance >= 1 << 32 => true,
            chance => u64::from(random.next_u32()) < chance,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RED: Red = Red {
        kmin: 5_000,
        kmax: 200_000,
        pmax: Probability::ratio(1, 100),
    };

    #[test]
    fn the_chance_is_zero_then_rises_then_is_one() {
        assert_eq!(RED.chance(0), 0);
        assert_eq!(RED.chance(5_000), 0);
        let middle = RED.chance(102_500);
        assert_eq!(middle, RED.pmax.parts() / 2);
        let last = RED.chance(199_999);
        assert!(last < RED.pmax.parts() && last > RED.pmax.parts() - 1_000);
        assert_eq!(RED.chance(200_000), 1 << 32);
        assert_eq!(RED.chance(u64::MAX), 1 << 32);
        let step = Red {
            kmin: 1_000,
            kmax: 1_000,
            ..RED
        };
        assert_eq!((step.chance(1_000), step.chance(1_001)), (0, 1 << 32));
    }

    #[test]
    fn as_many_are_hit_as_the_chance_says() {
        let mut random = Random::new(1);
        let red = Red {
            pmax: Probability::ratio(1, 2),
            ..RED
        };
        let hits = (0..100_000)
            .filter(|_| red.hits(102_500, &mut random))
            .count();
        // Binomial, p 1/4: the standard deviation is 137.
        assert!((24_300..25_700).contains(&hits), "{hits}");
    }
}
