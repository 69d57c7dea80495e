//! How much better one setting is than another, and how sure that is.
//!
//! The two are measured in turns, each time with fresh NICs, and each turn gives a ratio. What disturbs both of a turn alike, as a CPU that
//! slows down for a second does, is not in it. The gain is the median of the ratios. Its interval is that of order
//! statistics (the one that belongs to the sign test: W. J. Conover, Practical Nonparametric Statistics, 3.2): it assumes that turns
//! are independent of each other, and nothing of how their ratios are distributed, which on a shared machine is not normally.

use serde::Serialize;

/// How often an interval misses what it is for, at most: 1 in 20.
pub const CONFIDENCE: f64 = 0.95;

/// The median of ratios, and between which bounds the median of all that could be measured lies.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// The median.
    pub ratio: f64,
    /// The lower bound; 0 when there were too few turns for one.
    pub low: f64,
    /// The upper bound; infinite when there were too few.
    pub high: f64,
    /// Turns.
    pub turns: usize,
}

impl Gain {
    /// Of these ratios.
    pub fn of(ratios: impl IntoIterator<Item = f64>) -> Gain {
        let mut ratios: Vec<f64> = ratios.into_iter().collect();
        ratios.sort_by(f64::total_cmp);
        let turns = ratios.len();
        let (low, high) = match rank(turns) {
            Some(rank) => (ratios[rank], ratios[turns - 1 - rank]),
            None => (0.0, f64::INFINITY),
        };
        Gain {
            ratio: middle(&ratios),
            low,
            high,
            turns,
        }
    }

    /// Whether it is surely more than nothing, and at least `least` as a ratio.
    pub fn is_at_least(&self, least: f64) -> bool {
        self.low > 1.0 && self.ratio >= least
    }

    /// Whether it is surely a loss.
    pub fn is_loss(&self) -> bool {
        self.high < 1.0
    }
}

/// The median of what is sorted; 1 of nothing.
fn middle(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 1.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// The value of `n` sorted ones that is the lower bound of their median, counted from 0; the upper bound is as far from the other end. The
/// largest k for which at most k of n fair coins show heads in no more than half of what may go wrong.
fn rank(n: usize) -> Option<usize> {
    let half = (1.0 - CONFIDENCE) / 2.0;
    // Of n over i, divided by 2^n, in logarithms: 2^n is too much for a number of 64 bits soon.
    let mut term = -(n as f64) * std::f64::consts::LN_2;
    let mut sum = 0.0;
    let mut rank = None;
    for i in 0..n {
        sum += term.exp();
        if sum > half {
            break;
        }
        rank = Some(i);
        term += ((n - i) as f64 / (i + 1) as f64).ln();
    }
    rank
}

/// The geometric mean; 1 of nothing.
pub fn mean(ratios: &[f64]) -> f64 {
    let sum: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    (sum / ratios.len().max(1) as f64).exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::search::Random;

    #[test]
    fn ranks_are_those_of_the_tables() {
        // Counted from 1, as tables of the sign test have them.
        let ranks = [5, 6, 8, 9, 12, 20, 25, 50, 100].map(|n| rank(n).map(|rank| rank + 1));
        let expected = [
            None,
            Some(1),
            Some(1),
            Some(2),
            Some(3),
            Some(6),
            Some(8),
            Some(18),
            Some(40),
        ];
        assert_eq!(ranks, expected);
        // Far beyond what 2^-n can be written as.
        let many = rank(10_000).unwrap();
        assert!((4890..4910).contains(&many), "{many}");
    }

    #[test]
    fn the_bounds_are_values_that_were_measured() {
        let gain = Gain::of((1..=25).rev().map(f64::from));
        assert_eq!((gain.low, gain.ratio, gain.high), (8.0, 13.0, 18.0));
        assert_eq!(gain.turns, 25);
        assert!(gain.is_at_least(1.01) && !gain.is_at_least(14.0));
        let few = Gain::of([2.0, 3.0]);
        assert_eq!((few.low, few.ratio, few.high), (0.0, 2.5, f64::INFINITY));
        assert!(!few.is_at_least(1.0), "two turns prove nothing");
        assert!(Gain::of((0..9).map(|n| 0.9 + 0.01 * f64::from(n))).is_loss());
    }

    #[test]
    fn an_interval_misses_as_rarely_as_it_says_whatever_the_distribution() {
        let mut random = Random::new(7);
        // A ratio that is 1 in the median, with a tail as of a thread that loses its CPU.
        let draw = |random: &mut Random| {
            let x = random.unit() - 0.5;
            let tail = if random.unit() < 0.1 { 20.0 } else { 1.0 };
            (x * tail * 0.1).exp()
        };
        for turns in [9, 25, 101] {
            let trials = 2000;
            let missed = (0..trials)
                .filter(|_| {
                    let gain = Gain::of((0..turns).map(|_| draw(&mut random)));
                    gain.low > 1.0 || gain.high < 1.0
                })
                .count();
            assert!(
                missed <= trials / 20 + 40,
                "{missed} of {trials} at {turns}"
            );
        }
    }

    #[test]
    fn the_mean_of_ratios_is_geometric() {
        assert!((mean(&[2.0, 0.5]) - 1.0).abs() < 1e-12);
        assert_eq!(mean(&[]), 1.0);
    }
}
