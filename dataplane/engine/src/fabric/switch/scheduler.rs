//! Whose turn it is at an egress port: strict priorities first, then deficit round robin (Shreedhar and Varghese,
//! "Efficient fair queueing using deficit round robin", SIGCOMM 1995) by weights.

use super::config::{ClassConfig, Turn};
use crate::wire::pause::PRIORITIES;

/// Bytes that a weight of one brings each round.
const QUANTUM: u32 = 1_536;

/// What all ports of a switch have in common.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    /// Bit per priority.
    strict: u8,
    quantum: [u32; PRIORITIES],
}

/// One port's place in the round.
#[derive(Clone, Debug, Default)]
pub(super) struct Round {
    deficit: [u32; PRIORITIES],
    at: u8,
    /// The queue that has its turn got its quantum for it.
    granted: bool,
}

impl Turns {
    pub(super) fn new(classes: &[ClassConfig; PRIORITIES]) -> Turns {
        let mut turns = Turns {
            strict: 0,
            quantum: [QUANTUM; PRIORITIES],
        };
        for (p, class) in classes.iter().enumerate() {
            match class.turn {
                Turn::Strict => turns.strict |= 1 << p,
                Turn::Weighted(weight) => {
                    turns.quantum[p] = QUANTUM * u32::from(weight.max(1));
                }
            }
        }
        turns
    }

    /// The priority whose first frame goes next, of those that have one and may send; `head` is the length of a
    /// queue's first frame.
    #[inline]
    pub(super) fn pick(
        &self,
        round: &mut Round,
        ready: u8,
        head: impl Fn(usize) -> u32,
    ) -> Option<usize> {
        let strict = ready & self.strict;
        if strict != 0 {
            return Some(7 - strict.leading_zeros() as usize);
        }
        if ready & ready.wrapping_sub(1) == 0 {
            // One at most: no round is needed.
            return (ready != 0).then(|| ready.trailing_zeros() as usize);
        }
        loop {
            let at = usize::from(round.at);
            if ready >> at & 1 == 1 {
                if !round.granted {
                    round.granted = true;
                    round.deficit[at] += self.quantum[at];
                }
                let len = head(at);
                if len <= round.deficit[at] {
                    round.deficit[at] -= len;
                    return Some(at);
                }
            }
            // The next one behind, around the end; the queues that are ready come by turns, and each turn brings at least
            // a quantum, so this ends.
            let later = ready.rotate_right(at as u32 + 1);
            round.at = (round.at + 1 + later.trailing_zeros() as u8) % PRIORITIES as u8;
            round.granted = false;
        }
    }
}

impl Round {
    /// A queue that is empty saves nothing for later.
    #[inline]
    pub(super) fn emptied(&mut self, priority: usize) {
        self.deficit[priority] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(weights: [Turn; 3]) -> Turns {
        let mut classes = [ClassConfig::lossy(); PRIORITIES];
        for (class, turn) in classes.iter_mut().zip(weights) {
            class.turn = turn;
        }
        Turns::new(&classes)
    }

    #[test]
    fn the_strict_go_first_the_highest_before_others() {
        let turns = turns([Turn::Strict, Turn::Weighted(9), Turn::Strict]);
        let mut round = Round::default();
        for (ready, expected) in [
            (0b111, Some(2)),
            (0b011, Some(0)),
            (0b010, Some(1)),
            (0, None),
        ] {
            assert_eq!(turns.pick(&mut round, ready, |_| 100), expected);
        }
    }

    #[test]
    fn bytes_go_by_weight_whatever_the_lengths() {
        let turns = turns([Turn::Weighted(1), Turn::Weighted(2), Turn::Weighted(5)]);
        let mut round = Round::default();
        let lengths = [9_000, 64, 1_500];
        let mut bytes = [0u64; 3];
        while bytes.iter().sum::<u64>() < 100_000_000 {
            let at = turns.pick(&mut round, 0b111, |p| lengths[p]).unwrap();
            bytes[at] += u64::from(lengths[at]);
        }
        let all: u64 = bytes.iter().sum();
        for (sent, weight) in bytes.iter().zip([1.0, 2.0, 5.0]) {
            let share = *sent as f64 / all as f64 * 8.0;
            assert!((share / weight - 1.0).abs() < 0.01, "{bytes:?}");
        }
    }

    #[test]
    fn a_queue_that_was_away_has_saved_nothing() {
        let turns = turns([Turn::Weighted(1); 3]);
        let mut round = Round::default();
        for _ in 0..100 {
            let at = turns.pick(&mut round, 0b11, |_| 1_000).unwrap();
            if at == 0 {
                round.emptied(0);
            }
        }
        assert!(round.deficit.iter().all(|d| *d <= QUANTUM), "{round:?}");
    }
}
