//! Enhanced transmission selection (ETS, IEEE 802.1Q clause 37, once 802.1Qaz): which of the priorities that wait at a port is sent next.
//!
//! A priority is strict, or has a share of the bandwidth that strict ones leave. Plain data, for NICs and switches alike; whoever has
//! turns to give makes them of it.

use thiserror::Error;

use super::priority::{PriorityMask, each};
use crate::wire::pause::PRIORITIES;

/// The selection of a port. By default nothing is said: nothing is strict, and all share alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ets {
    /// Priorities that go before all others, the highest first.
    pub strict: PriorityMask,
    /// Percent of what is left for the others, by priority; 0: an equal part of what nobody has.
    pub bandwidth: [u8; PRIORITIES],
}

/// A selection that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EtsError {
    /// Strict, and with a share.
    #[error(
        "priority {0} is strict and has a share of the bandwidth; take it out of `strict` or out of `bandwidth`"
    )]
    StrictShare(usize),
    /// More than there is.
    #[error("the shares add up to {0} %; {1}")]
    Sum(u32, &'static str),
}

impl Ets {
    /// Whether it is another than that all share alike.
    pub fn is_on(&self) -> bool {
        *self != Ets::default()
    }

    /// Whether it can be.
    ///
    /// # Errors
    /// What cannot, and what to change.
    pub fn validate(&self) -> Result<(), EtsError> {
        if let Some(p) = each(self.strict).find(|p| self.bandwidth[*p] > 0) {
            return Err(EtsError::StrictShare(p));
        }
        let sum = self.bandwidth.iter().map(|share| u32::from(*share)).sum();
        let rest = self.unnamed().count() as u32;
        match (sum, rest) {
            (0, _) => Ok(()),
            (100, 0) => Ok(()),
            (_, 0) => Err(EtsError::Sum(
                sum,
                "they must be 100 % where each priority that is not strict has one",
            )),
            (_, rest) if sum + rest > 100 => Err(EtsError::Sum(
                sum,
                "leave at least 1 % for each priority that is neither strict nor named",
            )),
            _ => Ok(()),
        }
    }

    /// Priorities that are not strict and have no share of their own.
    fn unnamed(&self) -> impl Iterator<Item = usize> {
        let ets = *self;
        each(!self.strict).filter(move |p| ets.bandwidth[*p] == 0)
    }

    /// How the bandwidth is shared, as the smallest whole numbers that say so; strict priorities have 1. Of settings that were checked.
    pub fn weights(&self) -> [u8; PRIORITIES] {
        let sum: u32 = self.bandwidth.iter().map(|share| u32::from(*share)).sum();
        if sum == 0 {
            return [1; PRIORITIES];
        }
        // In parts of as many as share the rest, so that these are whole.
        let rest = self.unnamed().count().max(1) as u32;
        let mut parts = self.bandwidth.map(|share| u32::from(share) * rest);
        for p in self.unnamed() {
            parts[p] = 100u32.saturating_sub(sum).max(1);
        }
        let divisor = each(!self.strict).fold(0, |d, p| gcd(d, parts[p])).max(1);
        let parts = parts.map(|part| part / divisor);
        let most = parts.into_iter().max().unwrap_or(0);
        if most <= MOST {
            return parts.map(|part| part.max(1) as u8);
        }
        // A few odd ratios need greater numbers. They are rounded, to the nearest, rather than that one turn lasts so long: no share
        // is more than 1.1 points off.
        parts.map(|part| ((part * MOST + most / 2) / most).max(1) as u8)
    }
}

/// The greatest weight.
const MOST: u32 = u8::MAX as u32;

fn gcd(a: u32, b: u32) -> u32 {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ets(strict: u8, shares: &[(usize, u8)]) -> Ets {
        let mut ets = Ets {
            strict,
            ..Ets::default()
        };
        for &(p, share) in shares {
            ets.bandwidth[p] = share;
        }
        ets
    }

    #[test]
    fn shares_become_small_weights() {
        assert_eq!(Ets::default().weights(), [1; 8]);
        assert_eq!(ets(1 << 6, &[]).weights(), [1; 8]);
        // Half for priority 3, and the six others that are not strict share the other half.
        let half = ets(1 << 6, &[(3, 50)]);
        assert_eq!(half.validate(), Ok(()));
        assert_eq!(half.weights(), [1, 1, 1, 6, 1, 1, 1, 1]);
        let all = ets(0xfc, &[(0, 25), (1, 75)]);
        assert_eq!(all.weights()[..2], [1, 3]);
        // 50 to 3 and 4, and 0 to 2 and 5 to 7 have 50/6 each.
        let weights = ets(0, &[(3, 30), (4, 20)]).weights();
        assert_eq!(weights, [5, 5, 5, 18, 12, 5, 5, 5]);
        // 534 to 3 and 5 would be exact, and 552 to 6 and 7.
        let odd = ets(0, &[(0, 1), (1, 89)]).weights();
        assert_eq!(odd, [3, 255, 5, 5, 5, 5, 5, 5]);
        let odd = ets(0, &[(0, 1), (1, 92)]).weights();
        assert_eq!(odd, [3, 255, 3, 3, 3, 3, 3, 3]);
    }

    /// Of all that one or two priorities can be given, with any number of strict ones.
    #[test]
    fn weights_are_as_the_shares_to_about_a_point() {
        let mut worst: f64 = 0.0;
        for strict in [0, 0x80, 0xc0, 0xe0, 0xf0, 0xf8, 0xfc] {
            for (a, b) in (1..100).flat_map(|a| (0..100).map(move |b| (a, b))) {
                let ets = ets(strict, &[(0, a), (1, b)]);
                if ets.validate().is_err() {
                    continue;
                }
                let sum: f64 = each(!strict).map(|p| f64::from(ets.weights()[p])).sum();
                let nobodys = f64::from(100 - a - b) / ets.unnamed().count().max(1) as f64;
                for p in each(!strict) {
                    let share = match ets.bandwidth[p] {
                        0 => nobodys,
                        share => f64::from(share),
                    };
                    let off = f64::from(ets.weights()[p]) / sum * 100.0 - share;
                    worst = worst.max(off.abs());
                }
            }
        }
        assert!(worst < 1.1, "{worst}");
    }

    #[test]
    fn what_cannot_be_is_named() {
        assert_eq!(ets(8, &[(3, 5)]).validate(), Err(EtsError::StrictShare(3)));
        for bad in [
            ets(0, &[(0, 100)]),
            ets(0, &[(0, 94)]),
            ets(0xfc, &[(0, 50), (1, 49)]),
        ] {
            assert!(matches!(bad.validate(), Err(EtsError::Sum(..))), "{bad:?}");
        }
        assert_eq!(ets(0, &[(0, 93)]).validate(), Ok(()));
        assert_eq!(ets(0xff, &[]).validate(), Ok(()));
        assert!(ets(0xff, &[]).is_on() && !Ets::default().is_on());
    }
}
