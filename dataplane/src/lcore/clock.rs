//! The time of an lcore: that of the machine, less what the kernel gave to others.
//!
//! A NIC of hardware is never descheduled. If ours went by the machine's clock, then on a machine with more busy threads than CPUs
//! it would wake up to find that ACK timeouts have passed whose answers it had no chance to look at, and send everything
//! again, for which it has even less time: connections would fail for nothing but load. So time stands still for it
//! while it does not run: a poll that comes later than it was expected counts as one that came [`LONGEST_STEP`] later.
//!
//! Every poll asks for the time, also the one that finds nothing, so it is read from the time stamp counter where that runs at
//! a constant rate ([`Ticks`]).

use std::time::Instant;

use roceline_engine::Nanos;

use super::probe::tsc;

/// What may lie between two polls for other reasons: a poll itself can take as long.
pub(super) const LONGEST_STEP: u64 = 1_000_000;

/// A clock that stands still while its lcore is kept from running.
#[derive(Debug)]
pub struct Clock {
    ticks: Ticks,
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
            ticks: Ticks::new(),
            last: 0,
            lost: 0,
            asleep: 0,
        }
    }

    /// The present time. Called once a poll.
    #[inline]
    pub fn now(&mut self) -> Nanos {
        let machine = self.ticks.now();
        self.at(machine)
    }

    /// Nanoseconds from the start by the machine, whoever had them.
    pub fn machine(&mut self) -> u64 {
        self.ticks.now()
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

/// The clock of the machine, by the time stamp counter in between.
#[derive(Debug)]
struct Ticks {
    start: Instant,
    /// The counter has a constant rate.
    constant: bool,
    /// The counter, and nanoseconds from the start by the machine's clock, when that was looked at last.
    tsc: u64,
    machine: u64,
    /// What was given then.
    nanos: u64,
    /// Nanoseconds a tick, in units of 2^-32.
    rate: u64,
    /// Ticks for which that holds; 0: the machine's clock is looked at each time.
    span: u64,
    /// What was given last.
    given: u64,
}

/// Ticks between two looks at the machine's clock: some milliseconds.
const SPAN: u64 = 1 << 23;
/// Ticks after which the rate is known well enough: looking at both clocks takes 50 ns, which is one part in ten thousand.
const ENOUGH: u64 = 1 << 21;
/// Ticks within which both clocks must have been looked at to be of the same moment. A thread that loses its CPU in between has
/// two readings that tell nothing of each other, and a rate from them would be wrong by any factor.
const TOGETHER: u64 = 1 << 12;
/// How often a clock that begins tries to look at both together.
const TRIES: usize = 1000;

impl Ticks {
    fn new() -> Ticks {
        let look = || {
            let before = tsc();
            (before, Instant::now(), tsc())
        };
        let together =
            |&(before, _, after): &(u64, Instant, u64)| after.wrapping_sub(before) < TOGETHER;
        let found = (0..TRIES).map(|_| look()).find(together);
        let (tsc, start, _) = found.unwrap_or_else(look);
        Ticks {
            start,
            constant: is_constant() && found.is_some(),
            tsc,
            machine: 0,
            nanos: 0,
            rate: 0,
            span: 0,
            given: 0,
        }
    }

    /// Nanoseconds from the start; never less than before.
    #[inline]
    fn now(&mut self) -> u64 {
        let ticks = tsc().wrapping_sub(self.tsc);
        if ticks >= self.span {
            return self.look();
        }
        self.after(ticks)
    }

    /// So many ticks after the last look. Counters of two CPUs may differ: what was given once is not taken back.
    #[inline]
    fn after(&mut self, ticks: u64) -> u64 {
        self.given = self.given.max(self.nanos + ((ticks * self.rate) >> 32));
        self.given
    }

    #[cold]
    fn look(&mut self) -> u64 {
        let before = tsc();
        let machine = self.start.elapsed().as_nanos() as u64;
        self.seen(before, machine, tsc())
    }

    /// The machine's clock was looked at between two looks at the counter.
    fn seen(&mut self, before: u64, machine: u64, after: u64) -> u64 {
        self.given = self.given.max(machine);
        let ticks = before.wrapping_sub(self.tsc);
        if ticks >= 1 << 40 {
            // Nobody has asked for minutes, or the counter is another CPU's.
            self.span = 0;
            (self.tsc, self.machine, self.nanos) = (before, machine, self.given);
        } else if after.wrapping_sub(before) >= TOGETHER {
            // The next call looks again.
            self.span = 0;
        } else if self.constant && ticks >= ENOUGH {
            let rate = (u128::from(machine - self.machine) << 32) / u128::from(ticks);
            // What was given too much is made up for until the next look.
            let next = ((u128::from(SPAN) * rate) >> 32) as u64;
            let ahead = (self.given - machine).min(next / 2);
            self.rate = ((u128::from(next - ahead) << 32) / u128::from(SPAN)) as u64;
            self.span = SPAN;
            (self.tsc, self.machine, self.nanos) = (before, machine, self.given);
        }
        self.given
    }
}

/// Whether the time stamp counter has a constant rate, also in sleep (AMD APM volume 3, CPUID Fn8000_0007; Intel SDM volume 3,
/// "Invariant TSC").
fn is_constant() -> bool {
    use core::arch::x86_64::__cpuid;
    const POWER: u32 = 0x8000_0007;
    // Safe to call from Rust 1.92 on.
    #[allow(unused_unsafe)]
    // SAFETY: every x86-64 CPU has CPUID and its extended functions.
    let (last, of_power) = unsafe { (__cpuid(0x8000_0000).eax, __cpuid(POWER).edx) };
    last >= POWER && of_power & 1 << 8 != 0
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
    fn the_counter_goes_with_the_clock_and_never_back() {
        let mut ticks = Ticks::new();
        let (mut last, mut worst) = (0, 0);
        while last < 60 * MS {
            let before = ticks.start.elapsed().as_nanos() as u64;
            let now = ticks.now();
            let after = ticks.start.elapsed().as_nanos() as u64;
            assert!(now >= last, "{now} after {last}");
            last = now;
            // A thread that loses its CPU in between tells nothing.
            if after - before < 5_000 {
                worst = worst.max(now.saturating_sub(after).max(before.saturating_sub(now)));
            }
        }
        assert!(worst < 100_000, "{worst} ns off");
        assert_eq!(ticks.span, if is_constant() { SPAN } else { 0 });
    }

    /// A clock whose counter was 0 at the start, and of which so many ticks are a nanosecond.
    fn begun(ticks: u64) -> Ticks {
        let mut clock = Ticks::new();
        (clock.constant, clock.tsc) = (true, 0);
        assert_eq!(
            clock.seen(2 * ENOUGH, 2 * ENOUGH / ticks, 2 * ENOUGH + 50),
            2 * ENOUGH / ticks
        );
        assert_eq!(clock.span, SPAN);
        clock
    }

    #[test]
    fn two_looks_with_a_pause_between_them_set_no_rate() {
        const TICKS: u64 = 4;
        let mut clock = begun(TICKS);
        let rate = clock.rate;
        let tick = 2 * ENOUGH + SPAN;
        // 50 ms elsewhere, right before the machine's clock is read: by these two readings time runs twenty times as fast.
        let late = tick / TICKS + 50 * MS;
        assert_eq!(clock.seen(tick, late, tick + 50 * MS * TICKS), late);
        assert_eq!((clock.rate, clock.span), (rate, 0));
        let tick = tick + 51 * MS * TICKS;
        assert_eq!(clock.seen(tick, tick / TICKS, tick + 50), tick / TICKS);
        assert_eq!((clock.rate, clock.span), (rate, SPAN));
    }

    #[test]
    fn a_counter_that_is_behind_takes_no_time_back() {
        let mut clock = begun(4);
        let given = clock.after(1000);
        assert_eq!(clock.after(10), given);
        assert!(clock.after(2000) > given);
    }

    #[test]
    fn what_was_given_too_much_is_made_up_for() {
        let mut ticks = Ticks::new();
        while ticks.now() < 10 * MS {}
        let off = |ticks: &mut Ticks| {
            let now = ticks.now();
            now as i64 - ticks.start.elapsed().as_nanos() as i64
        };
        ticks.nanos += MS;
        assert!(off(&mut ticks) > MS as i64 / 2);
        while off(&mut ticks) > MS as i64 / 10 {}
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
