//! How long a packet is delayed. All distributions are computed in whole numbers, so that a seed gives the same
//! nanoseconds on every machine.

use std::sync::Arc;

use crate::Nanos;

use super::{Random, RuleError};

/// No delay is longer: one hour.
pub const MAX_DELAY: Nanos = Nanos(3_600_000_000_000);

/// A distribution of delays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delay {
    /// Always the same.
    Constant(Nanos),
    /// Any from `min` to `max`, both included, each as likely.
    Uniform {
        /// The shortest.
        min: Nanos,
        /// The longest.
        max: Nanos,
    },
    /// Bell-shaped, the sum of twelve uniform numbers; never below zero, nor further from the mean than six standard
    /// deviations.
    Normal {
        /// Mean.
        mean: Nanos,
        /// Standard deviation.
        std_dev: Nanos,
    },
    /// Heavy tail: longer than x with probability `(min / x)^shape`, cut off at `max`.
    Pareto {
        /// The shortest; above zero.
        min: Nanos,
        /// Shape (alpha) in thousandths: 1500 is 1.5. The smaller, the heavier the tail.
        shape_milli: u32,
        /// The longest.
        max: Nanos,
    },
    /// One after the other from a list, which starts over at its end.
    Trace(Arc<[Nanos]>),
}

impl Delay {
    pub(super) fn check(&self) -> Result<(), RuleError> {
        let longest = match self {
            Delay::Constant(d) => *d,
            Delay::Uniform { min, max } | Delay::Pareto { min, max, .. } if min > max => {
                return Err(RuleError::EmptyRange {
                    field: "delay in ns",
                    first: min.0,
                    last: max.0,
                });
            }
            Delay::Pareto { shape_milli: 0, .. } => return Err(RuleError::Shape),
            Delay::Pareto { min: Nanos(0), .. } => return Err(RuleError::Scale),
            Delay::Uniform { max, .. } | Delay::Pareto { max, .. } => *max,
            Delay::Normal { mean, std_dev } => *mean.max(std_dev),
            Delay::Trace(list) => *list.iter().max().ok_or(RuleError::EmptyTrace)?,
        };
        match longest > MAX_DELAY {
            true => Err(RuleError::TooLong(longest.0)),
            false => Ok(()),
        }
    }

    /// The next delay; `turn` counts how many were taken from a list.
    pub(super) fn sample(&self, random: &mut Random, turn: &mut usize) -> Nanos {
        let delay = match self {
            Delay::Constant(d) => *d,
            Delay::Uniform { min, max } => {
                Nanos(min.0 + random.below(max.0.saturating_sub(min.0).saturating_add(1)))
            }
            Delay::Normal { mean, std_dev } => normal(*mean, *std_dev, random),
            Delay::Pareto {
                min,
                shape_milli,
                max,
            } => Nanos(pareto(min.0, *shape_milli, max.0, random.next_u32())),
            Delay::Trace(list) => {
                let at = *turn;
                *turn = if at + 1 < list.len() { at + 1 } else { 0 };
                list.get(at).copied().unwrap_or_default()
            }
        };
        delay.min(MAX_DELAY)
    }
}

/// The sum of twelve numbers uniform in 0..1 has variance 1 and mean 6 (Irwin-Hall).
fn normal(mean: Nanos, std_dev: Nanos, random: &mut Random) -> Nanos {
    let mut sum = 0i128;
    for _ in 0..6 {
        let two = random.next_u64();
        sum += i128::from(two >> 32) + i128::from(two & 0xffff_ffff);
    }
    // Each of the twelve is half a part too small on average.
    let deviation = ((2 * (sum - (6 << 32)) + 12) * i128::from(std_dev.0)) >> 33;
    let value = i128::from(mean.0) + deviation;
    Nanos(u64::try_from(value.max(0)).unwrap_or(u64::MAX))
}

/// Bits behind the binary point of logarithms.
const FRACTION: u32 = 24;

/// `min * u^(-1 / shape)` for `u = (uniform + 1) / 2^32`: the inverse of the distribution function.
fn pareto(min: u64, shape_milli: u32, max: u64, uniform: u32) -> u64 {
    let minus_log = (32 << FRACTION) - log2(u64::from(uniform) + 1);
    let exponent = minus_log * 1000 / u64::from(shape_milli.max(1));
    times_exp2(min, exponent, max)
}

/// Logarithm to base 2 of `n`, which is at least 1, with [`FRACTION`] bits, rounded down: one bit for each time
/// that the square of the mantissa reaches 2.
fn log2(n: u64) -> u64 {
    let whole = n.max(1).ilog2();
    let mut mantissa = if whole >= 31 {
        n >> (whole - 31)
    } else {
        n << (31 - whole)
    };
    let mut log = u64::from(whole);
    for _ in 0..FRACTION {
        mantissa = (mantissa * mantissa) >> 31;
        let bit = mantissa >> 32;
        mantissa >>= bit;
        log = log << 1 | bit;
    }
    log
}

/// `2^(2^-i)` for i from 1, with 62 bits behind the point: square roots of square roots of 2.
const ROOTS: [u64; FRACTION as usize] = {
    let mut roots = [0; FRACTION as usize];
    let mut square = 2u128 << 62;
    let mut i = 0;
    while i < roots.len() {
        square = (square << 62).isqrt();
        roots[i] = square as u64;
        i += 1;
    }
    roots
};

/// `n * 2^exponent`, where the exponent has [`FRACTION`] bits behind the point; `max` if that is less.
fn times_exp2(n: u64, exponent: u64, max: u64) -> u64 {
    let mut power = 1u128 << 62;
    for (i, root) in ROOTS.iter().enumerate() {
        if exponent >> (FRACTION as usize - 1 - i) & 1 == 1 {
            power = (power * u128::from(*root)) >> 62;
        }
    }
    let value = (u128::from(n) * power) >> 62;
    let whole = exponent >> FRACTION;
    if whole >= u64::from(value.leading_zeros()) {
        return max;
    }
    u64::try_from(value << whole).unwrap_or(u64::MAX).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(delay: &Delay, seed: u64, n: usize) -> Vec<f64> {
        delay.check().expect("valid");
        let (mut random, mut turn) = (Random::new(seed), 0);
        let mut next = || delay.sample(&mut random, &mut turn).0 as f64;
        (0..n).map(|_| next()).collect()
    }

    fn mean_and_dev(samples: &[f64]) -> (f64, f64) {
        let n = samples.len() as f64;
        let mean = samples.iter().sum::<f64>() / n;
        let var = samples.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / n;
        (mean, var.sqrt())
    }

    #[test]
    fn constant_and_list() {
        assert_eq!(samples(&Delay::Constant(Nanos(5)), 1, 3), [5.0, 5.0, 5.0]);
        let list = Delay::Trace([Nanos(3), Nanos(0), Nanos(9)].into());
        assert_eq!(samples(&list, 1, 7), [3.0, 0.0, 9.0, 3.0, 0.0, 9.0, 3.0]);
    }

    /// Mean (a+b)/2, deviation (b-a)/sqrt(12), both ends reached.
    #[test]
    fn uniform() {
        let (min, max) = (Nanos(1_000), Nanos(3_000));
        let s = samples(&Delay::Uniform { min, max }, 2, 100_000);
        let (mean, dev) = mean_and_dev(&s);
        assert!((mean - 2_000.0).abs() < 10.0, "{mean}");
        assert!((dev - 2_000.0 / 12f64.sqrt()).abs() < 6.0, "{dev}");
        assert!(s.contains(&1_000.0) && s.contains(&3_000.0));
        assert!(s.iter().all(|v| (1_000.0..=3_000.0).contains(v)));
        let point = Delay::Uniform { min, max: min };
        assert_eq!(samples(&point, 1, 2), [1_000.0, 1_000.0]);
    }

    #[test]
    fn normal_has_its_moments_and_shape() {
        let delay = Delay::Normal {
            mean: Nanos(100_000),
            std_dev: Nanos(10_000),
        };
        let s = samples(&delay, 3, 100_000);
        let (mean, dev) = mean_and_dev(&s);
        assert!((mean - 100_000.0).abs() < 150.0, "{mean}");
        assert!((dev - 10_000.0).abs() < 100.0, "{dev}");
        let within = |k: f64| {
            let n = s.iter().filter(|v| (**v - 100_000.0).abs() < k * 10_000.0);
            n.count() as f64 / s.len() as f64
        };
        assert!((within(1.0) - 0.683).abs() < 0.01);
        assert!((within(2.0) - 0.954).abs() < 0.01);
        // Clipped at zero.
        let wide = Delay::Normal {
            mean: Nanos(10),
            std_dev: Nanos(1_000),
        };
        assert!(samples(&wide, 3, 1_000).contains(&0.0));
    }

    /// Mean shape * min / (shape - 1); the share beyond x is (min / x)^shape.
    #[test]
    fn pareto_has_its_tail() {
        let delay = Delay::Pareto {
            min: Nanos(1_000),
            shape_milli: 2_500,
            max: MAX_DELAY,
        };
        let s = samples(&delay, 4, 200_000);
        let (mean, _) = mean_and_dev(&s);
        assert!((mean - 2_500.0 / 1.5).abs() < 25.0, "{mean}");
        for x in [2_000.0f64, 5_000.0, 20_000.0] {
            let want = (1_000.0 / x).powf(2.5);
            let got = s.iter().filter(|v| **v > x).count() as f64 / s.len() as f64;
            let dev = (want / s.len() as f64).sqrt();
            assert!((got - want).abs() < 5.0 * dev, "{x}: {got} for {want}");
        }
        assert!(s.iter().all(|v| *v >= 1_000.0));
        let cut = Delay::Pareto {
            min: Nanos(1_000),
            shape_milli: 100,
            max: Nanos(50_000),
        };
        let s = samples(&cut, 4, 10_000);
        assert!(s.contains(&50_000.0) && s.iter().all(|v| *v <= 50_000.0));
    }

    /// Fixed-point logarithm and power against those of floating point.
    #[test]
    fn logarithm_and_power_are_exact_to_their_last_bits() {
        for n in [
            1u64,
            2,
            3,
            1000,
            0x7fff_ffff,
            0x8000_0001,
            0xffff_ffff,
            1 << 32,
        ] {
            let got = log2(n) as f64 / (1 << FRACTION) as f64;
            let want = (n as f64).log2();
            assert!((got - want).abs() < 2e-6, "{n}: {got}, not {want}");
        }
        for exponent in [0.0f64, 0.3, 0.5, 1.0, 7.77, 20.001] {
            let fixed = (exponent * (1 << FRACTION) as f64) as u64;
            let got = times_exp2(1_000_000, fixed, u64::MAX) as f64;
            let want = 1e6 * exponent.exp2();
            assert!(
                (got / want - 1.0).abs() < 3e-6,
                "{exponent}: {got}, not {want}"
            );
        }
        assert_eq!(times_exp2(u64::MAX, u64::MAX, 77), 77);
        assert_eq!(times_exp2(1, 63 << FRACTION, u64::MAX), 1 << 63);
    }

    /// The same numbers everywhere: these follow from the formulas, rounded down.
    #[test]
    fn a_seed_gives_these_delays() {
        let pareto = Delay::Pareto {
            min: Nanos(1_000),
            shape_milli: 1_500,
            max: Nanos(1_000_000),
        };
        let normal = Delay::Normal {
            mean: Nanos(10_000),
            std_dev: Nanos(1_000),
        };
        let first = |d: &Delay| samples(d, 42, 4);
        assert_eq!(first(&pareto), PARETO_42);
        assert_eq!(first(&normal), NORMAL_42);
    }

    const PARETO_42: [f64; 4] = [1_220.0, 3_394.0, 2_344.0, 2_036.0];
    const NORMAL_42: [f64; 4] = [7_822.0, 8_507.0, 9_506.0, 8_351.0];

    #[test]
    fn senseless_distributions_are_refused() {
        let (n, max) = (Nanos, MAX_DELAY);
        let pareto = |min, shape_milli, max| Delay::Pareto {
            min,
            shape_milli,
            max,
        };
        for (delay, want) in [
            (Delay::Constant(n(max.0 + 1)), RuleError::TooLong(max.0 + 1)),
            (Delay::Trace([].into()), RuleError::EmptyTrace),
            (pareto(n(1), 0, n(2)), RuleError::Shape),
            (pareto(n(0), 1, n(2)), RuleError::Scale),
        ] {
            assert_eq!(delay.check(), Err(want));
        }
        let (min, max) = (n(2), n(1));
        for delay in [Delay::Uniform { min, max }, pareto(min, 1, max)] {
            assert!(matches!(delay.check(), Err(RuleError::EmptyRange { .. })));
        }
    }
}
