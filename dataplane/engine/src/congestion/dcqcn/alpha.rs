//! DCQCN's alpha: the estimate of congestion that CNPs raise and quiet time lowers.
//!
//! The value is kept as of the last event that was not time; each quiet period since multiplies it by `dce_tcp_g` /
//! 1024, and the power is worked out when somebody asks, always from the same start. So the value does not depend on
//! how often it is looked at.

use super::super::DcqcnParams;
use crate::time::Nanos;

/// One, in units of 2^-30.
pub const ONE: u32 = 1 << 30;

#[derive(Clone, Debug)]
pub(super) struct Alpha {
    /// The value at `since`.
    base: u32,
    since: Nanos,
    /// A CNP came in the period that begins at `since`.
    flagged: bool,
    /// Weight of the old value.
    keep: u32,
    /// Nanoseconds of a period.
    period: u64,
    initial: u32,
}

impl Alpha {
    pub(super) fn new(params: &DcqcnParams) -> Alpha {
        let initial = (params.initial_alpha_value << 20).min(ONE);
        Alpha {
            base: initial,
            since: Nanos::ZERO,
            flagged: false,
            keep: (params.dce_tcp_g << 20).min(ONE),
            period: Nanos::from_micros(u64::from(params.dce_tcp_rtt)).0.max(1),
            initial,
        }
    }

    /// Takes over changed parameters, keeping the value.
    pub(super) fn configure(&mut self, params: &DcqcnParams, now: Nanos) {
        let base = self.at(now);
        let flagged = self.flagged && now.saturating_sub(self.since).0 < self.period;
        *self = Alpha {
            base,
            since: now,
            flagged,
            ..Alpha::new(params)
        };
    }

    /// The first CNP: the initial value, and periods are counted from here.
    pub(super) fn start(&mut self, now: Nanos) {
        self.base = self.initial;
        self.since = now;
        self.flagged = false;
    }

    /// The value at `now`.
    pub(super) fn at(&self, now: Nanos) -> u32 {
        self.after(self.periods(now))
    }

    /// Raises the value at once; the next period begins here (the paper).
    pub(super) fn raise(&mut self, now: Nanos) {
        self.base = self.at(now);
        self.base = self.raised();
        self.since = now;
    }

    /// Notes that the period around `now` had a CNP, which raises the value at its end (ConnectX).
    pub(super) fn flag(&mut self, now: Nanos) {
        let periods = self.periods(now);
        self.base = self.after(periods);
        self.since = self.since + Nanos(periods * self.period);
        self.flagged = true;
    }

    /// Whole periods since `since`.
    fn periods(&self, now: Nanos) -> u64 {
        now.saturating_sub(self.since).0 / self.period
    }

    fn after(&self, periods: u64) -> u32 {
        match (periods, self.flagged) {
            (0, _) => self.base,
            (_, true) => times(self.raised(), power(self.keep, periods - 1)),
            (_, false) => times(self.base, power(self.keep, periods)),
        }
    }

    fn raised(&self) -> u32 {
        times(self.base, self.keep) + (ONE - self.keep)
    }
}

/// The product of two values of at most [`ONE`], rounded down.
fn times(a: u32, b: u32) -> u32 {
    ((u64::from(a) * u64::from(b)) >> 30) as u32
}

/// `base` to the power of `exponent`, by squaring: 2 * 64 products at most.
fn power(mut base: u32, mut exponent: u64) -> u32 {
    let mut result = ONE;
    while exponent > 0 && result > 0 {
        if exponent & 1 != 0 {
            result = times(result, base);
        }
        base = times(base, base);
        exponent >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_agree_with_repeated_products_to_the_rounding() {
        for keep in [0, 1, 512, 1019, 1020, 1023].map(|keep| keep << 20) {
            let mut product = f64::from(ONE);
            for exponent in 0..2000 {
                let power = f64::from(power(keep, exponent));
                assert!(
                    (power - product).abs() < 64.0,
                    "{keep}^{exponent}: {power} {product}"
                );
                product *= f64::from(keep) / f64::from(ONE);
            }
        }
        assert_eq!(power(1023 << 20, u64::MAX), 0);
    }
}
