//! Medians and spreads of rounds.

use serde::Serialize;

/// Median, quartiles, least and most of several rounds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Spread {
    /// Median.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Most.
    pub max: f64,
    /// The first quartile.
    pub low: f64,
    /// The third.
    pub high: f64,
}

impl Spread {
    /// Of these rounds.
    pub fn of(rounds: impl IntoIterator<Item = f64>) -> Spread {
        let mut rounds: Vec<f64> = rounds.into_iter().collect();
        let median = median(&mut rounds);
        Spread {
            median,
            min: rounds.first().copied().unwrap_or(0.0),
            max: rounds.last().copied().unwrap_or(0.0),
            low: rounds.get(rounds.len() / 4).copied().unwrap_or(0.0),
            high: rounds.get(rounds.len() * 3 / 4).copied().unwrap_or(0.0),
        }
    }

    /// Of each round's value put through a monotonic function.
    pub fn map(self, f: impl Fn(f64) -> f64) -> Spread {
        let (x, y) = (f(self.min), f(self.max));
        let (low, high) = (f(self.low), f(self.high));
        Spread {
            median: f(self.median),
            min: x.min(y),
            max: x.max(y),
            low: low.min(high),
            high: low.max(high),
        }
    }

    /// What the middle half of the rounds spans.
    pub fn middle_half(&self) -> f64 {
        self.high - self.low
    }
}

/// The median; sorts. 0 of none.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_that_of_the_sorted_values() {
        assert_eq!(median(&mut []), 0.0);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn a_spread_put_through_a_falling_function_keeps_its_order() {
        let spread = Spread::of([4.0, 1.0, 2.0]).map(|x| 8.0 / x);
        assert_eq!((spread.min, spread.median, spread.max), (2.0, 4.0, 8.0));
        assert_eq!((spread.low, spread.high), (2.0, 8.0));
        assert_eq!(spread.middle_half(), 6.0);
    }
}
