//! How often something may happen.

use roceline_engine::Nanos;

/// So much in a time.
pub struct Rate {
    /// On average one in this time.
    pub interval: Nanos,
    /// So many at once.
    pub burst: u64,
}

/// What was used of a [`Rate`]: the time at which the next one would be due if they came evenly (GCRA).
#[derive(Debug, Default)]
pub struct Bucket(Nanos);

impl Bucket {
    /// Whether one more may come.
    pub fn allows(&self, now: Nanos) -> bool {
        self.0 <= now
    }

    /// One came.
    pub fn take(&mut self, rate: &Rate, now: Nanos) {
        let earliest = now.saturating_sub(Nanos(rate.interval.0 * (rate.burst - 1)));
        self.0 = self.0.max(earliest) + rate.interval;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_one_in_each_interval() {
        let rate = Rate {
            interval: Nanos(10),
            burst: 3,
        };
        let mut bucket = Bucket::default();
        let mut came = |now| {
            let mut count = 0;
            while bucket.allows(Nanos(now)) {
                bucket.take(&rate, Nanos(now));
                count += 1;
            }
            count
        };
        assert_eq!(
            [came(1000), came(1009), came(1010), came(1035)],
            [3, 0, 1, 2]
        );
        assert_eq!(came(9000), 3, "no more than a burst is saved up");
    }
}
