//! When to start a worker again: at once after a long life, later and later after short ones, and not for ever.

use std::time::Duration;

/// A worker that lived this long was fine.
pub const LONG: Duration = Duration::from_secs(10);
/// Short lives in a row after which there is no other.
pub const SHORT_LIVES: u32 = 6;
/// Pause after the second short life in a row; it doubles with each.
const PAUSE: Duration = Duration::from_millis(200);

/// The lives so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Restarts {
    short: u32,
}

impl Restarts {
    /// A worker died after `lived`. How long to wait with the next; `None`: there shall be none.
    pub fn after(&mut self, lived: Duration) -> Option<Duration> {
        if lived >= LONG {
            self.short = 0;
            return Some(Duration::ZERO);
        }
        self.short += 1;
        match self.short {
            1 => Some(Duration::ZERO),
            n if n < SHORT_LIVES => Some(PAUSE * (1 << (n - 2))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_lives_are_paused_between_and_then_end() {
        let mut restarts = Restarts::default();
        let ms = |ms| Some(Duration::from_millis(ms));
        let short = Duration::from_millis(50);
        let waits: Vec<_> = (0..6).map(|_| restarts.after(short)).collect();
        assert_eq!(waits, [ms(0), ms(200), ms(400), ms(800), ms(1600), None]);
    }

    #[test]
    fn a_long_life_is_a_new_beginning() {
        let mut restarts = Restarts::default();
        for _ in 0..20 {
            assert!(restarts.after(Duration::from_secs(1)).is_some());
            assert!(restarts.after(Duration::from_secs(1)).is_some());
            assert_eq!(restarts.after(LONG), Some(Duration::ZERO));
        }
    }
}
