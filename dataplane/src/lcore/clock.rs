//! The time of an lcore: that of the machine, less what the kernel gave to others.
//!
//! A NIC of hardware is never descheduled. If ours went by the machine's clock, then on a machine with more busy threads than CPUs
//! it would wake up to find that ACK timeouts have passed whose answers it had no chance to look at, and send everything
//! again, for which it has even less time: connections would fail for nothing but load. So time stands still for it
//! while it does not run: a poll that comes later than it was expected counts as one that came [`LONGEST_STEP`] later.

use std::time::Instant;

use roceline_engine::Nanos;

/// What may lie between two polls for other reasons: a poll itself can take as long.
const LONGEST_STEP: u64 = 1_000_000;

/// A clock that stands still while its lcore is kept from running.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    /// Nanoseconds from the start, by the machine, at the last look.
    last: u64,
    /// Of these, those that do not count.
    lost: u64,
    /// How long the lcore has gone to sleep since the last look, at most.
    asleep: u64,
}

impl Clock {
    /// A clock that starts at zero now.
    pub fn new() -> Clock {
        Clock {
            start: Instant::now(),
            last: 0,
            lost: 0,
            asleep: 0,
        }
    }

    /// The present time. Called once a poll.
    #[inline]
    pub fn now(&mut self) -> Nanos {
        self.at(self.start.elapsed().as_nanos() as u64)
    }

    /// The lcore is about to sleep for so long, or shorter if it is woken: that time counts.
    pub fn will_sleep(&mut self, longest: Nanos) {
        self.asleep = longest.0;
    }

    /// Time during which the lcore was kept from running.
    pub fn lost(&self) -> Nanos {
        Nanos(self.lost)
    }

    #[inline]
    fn at(&mut self, machine: u64) -> Nanos {
        let step = machine - self.last;
        let expected = LONGEST_STEP + std::mem::take(&mut self.asleep);
        self.lost += step.saturating_sub(expected);
        self.last = machine;
        Nanos(machine - self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn time_that_was_given_to_others_does_not_count() {
        let mut clock = Clock::new();
        assert_eq!(clock.at(MS / 2), Nanos(MS / 2));
        assert_eq!(clock.at(MS), Nanos(MS));
        assert_eq!(clock.at(71 * MS), Nanos(2 * MS));
        assert_eq!(clock.lost(), Nanos(69 * MS));
        assert_eq!(clock.at(71 * MS + 5), Nanos(2 * MS + 5));
    }

    #[test]
    fn sleep_counts_as_far_as_it_was_meant() {
        let mut clock = Clock::new();
        clock.will_sleep(Nanos::from_millis(100));
        assert_eq!(clock.at(40 * MS), Nanos(40 * MS));
        // It was woken; what comes now is no sleep.
        assert_eq!(clock.at(140 * MS), Nanos(41 * MS));
        clock.will_sleep(Nanos::from_millis(10));
        assert_eq!(clock.at(200 * MS), Nanos(52 * MS));
        assert_eq!(clock.lost(), Nanos(148 * MS));
    }
}
