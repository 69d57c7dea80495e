//! A rate limit: a token bucket with a queue of bounded length in front of it. The bucket is kept as the time that
//! it owes, in 2^-16 ns, so nothing is queued here: a packet is told how long it waits.

use crate::Nanos;

use super::{MAX_DELAY, RuleError};

/// The limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Bits of frames (without FCS) a second.
    pub bits_per_sec: u64,
    /// Bytes that may pass at once after a pause.
    pub burst: u32,
    /// Bytes that may wait; a packet that would wait behind more, or longer than [`MAX_DELAY`], is dropped. 0: what
    /// exceeds the rate is dropped.
    pub queue: u32,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Passage {
    Now,
    After(Nanos),
    QueueFull,
}

/// The bucket.
#[derive(Clone, Debug, Default)]
pub(super) struct Bucket {
    /// Time at the rate for which packets were let in beyond what time has paid for.
    owed: u128,
    last: Nanos,
}

const UNIT: u32 = 16;

impl RateLimit {
    pub(super) fn check(&self) -> Result<(), RuleError> {
        match self.bits_per_sec {
            0 => Err(RuleError::NoRate),
            _ => Ok(()),
        }
    }

    /// Time that bytes take, in 2^-16 ns.
    #[inline]
    fn time(&self, bytes: u32) -> u128 {
        ((u128::from(bytes) * 8_000_000_000) << UNIT) / u128::from(self.bits_per_sec.max(1))
    }
}

impl Bucket {
    /// A packet of `bytes` arrives.
    #[inline]
    pub fn pass(&mut self, limit: &RateLimit, bytes: u32, now: Nanos) -> Passage {
        let paid = u128::from(now.saturating_sub(self.last).0) << UNIT;
        self.last = self.last.max(now);
        self.owed = self.owed.saturating_sub(paid);
        let owed = self.owed + limit.time(bytes);
        let wait = owed.saturating_sub(limit.time(limit.burst));
        if wait == 0 {
            self.owed = owed;
            return Passage::Now;
        }
        let nanos = wait.div_ceil(1 << UNIT);
        if wait > limit.time(limit.queue) || nanos > u128::from(MAX_DELAY.0) {
            return Passage::QueueFull;
        }
        self.owed = owed;
        Passage::After(Nanos(nanos as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGABIT: RateLimit = RateLimit {
        bits_per_sec: 1_000_000_000,
        burst: 1_000,
        queue: 10_000,
    };

    #[test]
    fn burst_passes_then_packets_wait_their_turn() {
        let mut b = Bucket::default();
        let at = Nanos(5);
        assert_eq!(b.pass(&GIGABIT, 1_000, at), Passage::Now);
        // 1000 bytes take 8 us at 1 Gb/s.
        for i in 1..=10 {
            let want = Passage::After(Nanos(8_000 * i));
            assert_eq!(b.pass(&GIGABIT, 1_000, at), want);
        }
        assert_eq!(b.pass(&GIGABIT, 1_000, at), Passage::QueueFull);
        // One packet's time later there is room for one.
        let later = Nanos(5 + 8_000);
        let want = Passage::After(Nanos(80_000));
        assert_eq!(b.pass(&GIGABIT, 1_000, later), want);
        assert_eq!(b.pass(&GIGABIT, 1_000, later), Passage::QueueFull);
        // After a pause the bucket is full again.
        let much_later = Nanos(10_000_000);
        assert_eq!(b.pass(&GIGABIT, 1_000, much_later), Passage::Now);
    }

    /// 64 bytes at 400 Gb/s take 1.28 ns: no fraction is lost.
    #[test]
    fn fractions_of_a_nanosecond_add_up() {
        let limit = RateLimit {
            bits_per_sec: 400_000_000_000,
            burst: 64,
            queue: u32::MAX,
        };
        let mut b = Bucket::default();
        let mut last = Passage::Now;
        for _ in 0..=1_000_000 {
            last = b.pass(&limit, 64, Nanos(0));
        }
        let Passage::After(Nanos(wait)) = last else {
            panic!("{last:?}");
        };
        assert!((1_279_990..=1_280_001).contains(&wait), "{wait}");
    }

    #[test]
    fn without_queue_the_excess_is_dropped() {
        let limit = RateLimit {
            queue: 0,
            ..GIGABIT
        };
        let mut b = Bucket::default();
        let mut passed = 0;
        // Twice the rate for 8 ms.
        for i in 0..2_000 {
            passed += u32::from(b.pass(&limit, 1_000, Nanos(i * 4_000)) == Passage::Now);
        }
        assert!((999..=1_001).contains(&passed), "{passed}");
    }

    /// At 1 kb/s a byte takes 8 ms, so 450,000 an hour.
    #[test]
    fn nothing_waits_longer_than_the_longest_delay() {
        let limit = RateLimit {
            bits_per_sec: 1_000,
            burst: 0,
            queue: u32::MAX,
        };
        let mut b = Bucket::default();
        let all = (0..1_000).map(|_| b.pass(&limit, 1_000, Nanos(0)));
        let waiting = all.filter(|p| *p != Passage::QueueFull).count();
        assert_eq!(waiting, 450);
    }

    #[test]
    fn extremes_do_not_overflow() {
        let limit = RateLimit {
            bits_per_sec: 1,
            burst: 0,
            queue: u32::MAX,
        };
        let mut b = Bucket::default();
        for _ in 0..100 {
            assert_eq!(
                b.pass(&limit, u32::MAX, Nanos(u64::MAX)),
                Passage::QueueFull
            );
        }
        assert!(
            RateLimit {
                bits_per_sec: 0,
                ..limit
            }
            .check()
            .is_err()
        );
    }
}
