//! Finding rung doorbells of a context. The layout and the protocol are in `roceline_abi::layout`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use roceline_abi::layout::{
    DB_BELLS, DB_SLEEPING, DB_SUMMARY, DB_SUMMARY_WORDS, DOORBELL_OFFSET, DOORBELL_STRIDE, MAX_QPS,
};

use crate::memory::ContextFile;

/// The doorbell area of one context on one lcore.
#[derive(Debug)]
pub struct Doorbells {
    file: Arc<ContextFile>,
    base: u64,
    /// The word of bells to begin with.
    first: usize,
}

/// Words of bells that one call looks at: 1,024 bells.
const WORDS_PER_CALL: usize = 16;

/// Words of bells that are looked at by themselves. The summary's bit then stays set from the first ring on: a summary that is
/// cleared for each ring is a second cache line that goes to and fro between program and lcore, one way after the other.
const ONE_WORD: usize = 1;

/// Words of bells of which `limit` indices exist.
#[inline]
fn words(limit: u32) -> usize {
    (limit as usize).div_ceil(64).min(MAX_QPS / 64)
}

/// Calls `rung` with the index of each bit of word `word` that exists.
#[inline]
fn each(mut bits: u64, word: u32, limit: u32, rung: &mut impl FnMut(u32)) {
    while bits != 0 {
        let index = word * 64 + bits.trailing_zeros();
        bits &= bits - 1;
        if index < limit {
            rung(index);
        }
    }
}

impl Doorbells {
    /// The area of lcore slot `slot`.
    pub fn new(file: Arc<ContextFile>, slot: u32) -> Doorbells {
        Doorbells {
            file,
            base: DOORBELL_OFFSET + u64::from(slot) * DOORBELL_STRIDE,
            first: 0,
        }
    }

    /// Calls `rung` with each doorbell index that was rung since the last call. Only the first `limit`
    /// indices exist; a program that rings others is ignored. Of one that rings very many some wait for the next call, which
    /// goes on behind them.
    pub fn collect(&mut self, limit: u32, mut rung: impl FnMut(u32)) {
        let words = words(limit);
        if words <= ONE_WORD {
            if self.first_word().load(Ordering::Relaxed) != 0 {
                each(
                    self.first_word().swap(0, Ordering::SeqCst),
                    0,
                    limit,
                    &mut rung,
                );
            }
            return;
        }
        let summaries = words.div_ceil(64).min(DB_SUMMARY_WORDS);
        // Nearly all contexts have one summary, and in nearly all polls nothing was rung.
        if summaries <= 1 && !self.is_rung(0) {
            return;
        }
        let (begin, bit) = match self.first < words {
            true => (self.first / 64, self.first % 64),
            false => (0, 0),
        };
        let mut left = WORDS_PER_CALL;
        // Round once: the bits before the first one come last.
        for turn in 0..=summaries {
            let from_first = u64::MAX << bit;
            let mask = match turn {
                0 => from_first,
                _ if turn == summaries => !from_first,
                _ => u64::MAX,
            };
            let s = (begin + turn) % summaries.max(1);
            let summary = self.file.atomic_u64(self.base + DB_SUMMARY + 8 * s as u64);
            if summary.load(Ordering::Relaxed) & mask == 0 {
                continue;
            }
            // The locked operation comes before the loads of the bells: see the protocol.
            let mut set = summary.fetch_and(!mask, Ordering::SeqCst) & mask;
            while set != 0 {
                let word = s * 64 + set.trailing_zeros() as usize;
                if left == 0 {
                    // As the one who rings: the bells are set already.
                    summary.fetch_or(set, Ordering::SeqCst);
                    self.first = word;
                    return;
                }
                left -= 1;
                set &= set - 1;
                let bells = self.file.atomic_u64(self.base + DB_BELLS + 8 * word as u64);
                each(
                    bells.swap(0, Ordering::SeqCst),
                    word as u32,
                    limit,
                    &mut rung,
                );
            }
        }
    }

    /// Whether any bell may be rung.
    #[inline]
    pub fn any(&self, limit: u32) -> bool {
        let words = words(limit);
        if words <= ONE_WORD {
            return self.first_word().load(Ordering::Acquire) != 0;
        }
        (0..words.div_ceil(64).min(DB_SUMMARY_WORDS)).any(|s| self.is_rung(s))
    }

    /// A bell that the next [`Doorbells::collect`] will call out, where it is known without touching what the program writes:
    /// there is time to fetch what it stands for while the bells change hands.
    #[inline]
    pub fn foresee(&self, limit: u32) -> Option<u32> {
        if words(limit) > ONE_WORD {
            return None;
        }
        let index = self.first_word().load(Ordering::Relaxed).trailing_zeros();
        (index < limit).then_some(index)
    }

    #[inline]
    fn first_word(&self) -> &AtomicU64 {
        self.file.atomic_u64(self.base + DB_BELLS)
    }

    #[inline]
    fn is_rung(&self, summary: usize) -> bool {
        let at = self.base + DB_SUMMARY + 8 * summary as u64;
        self.file.atomic_u64(at).load(Ordering::Acquire) != 0
    }

    /// Says that the lcore sleeps (or does not). The caller fences before it looks at the bells again.
    pub fn set_sleeping(&self, sleeping: bool) {
        self.file
            .atomic_u32(self.base + DB_SLEEPING)
            .store(u32::from(sleeping), Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(file: &ContextFile, index: u32) {
        let word = u64::from(index / 64);
        file.atomic_u64(DOORBELL_OFFSET + DB_BELLS + 8 * word)
            .fetch_or(1 << (index % 64), Ordering::SeqCst);
        file.atomic_u64(DOORBELL_OFFSET + DB_SUMMARY + 8 * (word / 64))
            .fetch_or(1 << (word % 64), Ordering::SeqCst);
    }

    #[test]
    fn every_ring_is_collected_once_and_those_beyond_the_limit_never() {
        let file = Arc::new(ContextFile::create().unwrap());
        let mut bells = Doorbells::new(Arc::clone(&file), 0);
        for index in [0, 63, 64, 4095, 4096, 65535] {
            ring(&file, index);
        }
        assert!(bells.any(1));
        let mut got = Vec::new();
        bells.collect(5000, |i| got.push(i));
        assert_eq!(got, [0, 63, 64, 4095, 4096]);
        bells.collect(5000, |i| panic!("{i} twice"));
    }

    #[test]
    fn few_bells_leave_the_summary_alone_and_none_is_lost_when_they_become_many() {
        let file = Arc::new(ContextFile::create().unwrap());
        let mut bells = Doorbells::new(Arc::clone(&file), 0);
        assert!(!bells.any(3) && bells.foresee(3).is_none());
        for round in 0..2 {
            ring(&file, 2);
            // One that does not exist.
            ring(&file, 5);
            assert!(bells.any(3));
            assert_eq!(bells.foresee(3), Some(2));
            let mut got = Vec::new();
            bells.collect(3, |i| got.push(i));
            assert_eq!(got, [2], "round {round}");
            assert!(!bells.any(3));
            assert!(bells.is_rung(0));
        }
        ring(&file, 7);
        ring(&file, 70);
        let mut got = Vec::new();
        bells.collect(71, |i| got.push(i));
        assert_eq!(got, [7, 70]);
        assert!(!bells.any(71));
    }

    #[test]
    fn very_many_rings_are_collected_in_turns_and_none_waits_for_ever() {
        let file = Arc::new(ContextFile::create().unwrap());
        let mut bells = Doorbells::new(Arc::clone(&file), 0);
        let limit = 4 * 1024;
        let mut seen = vec![0; limit as usize];
        for call in 1..=8 {
            // Those that were collected are rung again before the next call.
            for index in 0..limit {
                ring(&file, index);
            }
            let mut count = 0;
            bells.collect(limit, |index| {
                seen[index as usize] += 1;
                count += 1;
            });
            assert_eq!(count, 64 * WORDS_PER_CALL, "call {call}");
        }
        assert!(seen.iter().all(|times| *times == 2));
        // What is left is still rung, and comes.
        let mut rest = 0;
        while bells.any(limit) {
            bells.collect(limit, |_| rest += 1);
        }
        assert_eq!(rest, limit as usize - 64 * WORDS_PER_CALL);
    }
}
