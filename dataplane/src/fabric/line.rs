//! A line that sends one frame after another: at a chosen rate, exact over time, or at once.

/// Picoseconds of a second.
const PS_PER_S: u128 = 1_000_000_000_000;
/// Fraction bits of a byte's time.
const FRACTION: u32 = 16;

/// One direction of a link, as its sender sees it. All times are in picoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    /// Time of a byte, in 1/65536 ps; 0: none.
    byte: u64,
    /// What is left of the time of frames so far, so that nothing is lost over time.
    rest: u64,
    /// When it was, or will be, free.
    free: u64,
    /// From the last bit at this end to the last bit at the other.
    delay: u64,
}

impl Line {
    /// Of so many bits per second, or without limit.
    pub(super) fn new(rate: Option<u64>, delay_ns: u64) -> Line {
        let byte = rate.map_or(0, |rate| {
            let time = ((8 * PS_PER_S) << FRACTION) / u128::from(rate.max(1));
            // A frame has fewer than 2^16 bytes, and its time must fit.
            u64::try_from(time).unwrap_or(u64::MAX).min(1 << 46)
        });
        Line {
            byte,
            rest: 0,
            free: 0,
            delay: delay_ns.saturating_mul(1_000),
        }
    }

    /// When it is free.
    #[inline]
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// Whether frames take no time.
    #[inline]
    pub(super) fn is_free(&self) -> bool {
        self.byte == 0
    }

    /// Sends a frame at `at`, or when it is free: when its last bit is at the other end.
    #[inline]
    pub(super) fn send(&mut self, at: u64, bytes: u32) -> u64 {
        let time = self.rest + self.byte.wrapping_mul(u64::from(bytes));
        self.rest = time & ((1 << FRACTION) - 1);
        self.free = self.free.max(at) + (time >> FRACTION);
        self.free + self.delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_take_their_time_and_nothing_is_lost_over_many() {
        let mut line = Line::new(Some(1_000_000_000), 5);
        assert_eq!(line.send(100, 125), 100 + 1_000_000 + 5_000);
        assert_eq!(line.free(), 1_000_100);
        assert_eq!(line.send(0, 125), 2_000_100 + 5_000, "it waits");
        // A third of a picosecond is left over by each frame.
        let mut line = Line::new(Some(3_000_000_000), 0);
        for _ in 0..300_000 {
            line.send(0, 125);
        }
        let expected = 300_000 * 125 * 8 * 1_000 / 3;
        assert!(line.free().abs_diff(expected) < 2_000, "{}", line.free());
    }

    #[test]
    fn without_a_rate_all_leave_at_once() {
        let mut line = Line::new(None, 0);
        assert_eq!(line.send(7, 9_000), 7);
        assert_eq!(line.send(7, 9_000), 7);
        let mut slow = Line::new(Some(1), 0);
        assert!(slow.send(0, 65_535) > 0, "no overflow");
    }
}
