//! Fuzz bodies are ordinary functions over bytes. Here is what runs them: over the corpus of the repository
//! (`dataplane/tests/corpus/NAME`, found cases among it), and over mutations of it, a few in every test run and for long in
//! `scripts/fuzz`. A case that fails says its seed, and leaves its bytes in a file for the corpus.
//!
//! `ROCELINE_SEED` repeats one case; `ROCELINE_SECONDS` and `ROCELINE_ROUND` are the long run's.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// xorshift64*: the same numbers for the same seed.
pub struct Random(u64);

impl Random {
    /// From a seed, of which similar ones give other numbers.
    pub fn new(seed: u64) -> Random {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        random.next();
        random
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// One below `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// Saves the bytes of a case that fails, and says how to repeat it.
struct Case<'a> {
    name: &'a str,
    seed: u64,
    bytes: &'a [u8],
}

impl Drop for Case<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let file = std::env::temp_dir().join(format!("roceline-{}-{}", self.name, self.seed));
        let saved = std::fs::write(&file, self.bytes).is_ok();
        eprintln!("failed with ROCELINE_SEED={}", self.seed);
        if saved {
            eprintln!("its bytes are in {}", file.display());
        }
    }
}

/// Files of a corpus, sorted.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/corpus")
        .join(name);
    let entries = std::fs::read_dir(&folder).expect("the corpus is in the repository");
    let mut paths: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    paths.sort();
    let read = |path: &PathBuf| std::fs::read(path).expect("a file of the corpus");
    let all: Vec<Vec<u8>> = paths.iter().map(read).collect();
    assert!(!all.is_empty(), "{} is empty", folder.display());
    all
}

/// A mutation of a file of the corpus: bytes changed, numbers made strange, parts cut out, doubled and mixed with others.
fn mutated(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = corpus[random.below(corpus.len())].clone();
    for _ in 0..=random.below(8) {
        let at = random.below(bytes.len() + 1);
        let rest = bytes.len() - at;
        let len = random.below(rest.min(64) + 1);
        match random.below(8) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..at + len)),
            2 => {
                let part = bytes[at..at + len].to_vec();
                let to = random.below(bytes.len() + 1);
                bytes.splice(to..to, part);
            }
            3 => {
                let other = &corpus[random.below(corpus.len())];
                let from = random.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
            4 => {
                let strange = [0, 1, u32::MAX, 1 << 31, 1 << 16, random.next() as u32];
                let value = strange[random.below(strange.len())].to_ne_bytes();
                for (to, from) in bytes[at..].iter_mut().zip(value) {
                    *to = from;
                }
            }
            _ => {
                for byte in &mut bytes[at..at + len] {
                    *byte = random.next() as u8;
                }
            }
        }
    }
    bytes.truncate(1 << 16);
    bytes
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn one(name: &str, corpus: &[Vec<u8>], seed: u64, body: &mut dyn FnMut(&[u8])) {
    let bytes = mutated(corpus, &mut Random::new(seed));
    let _case = Case {
        name,
        seed,
        bytes: &bytes,
    };
    body(&bytes);
}

/// The corpus as it is, and `mutations` of it.
pub fn run(name: &str, mutations: u64, mut body: impl FnMut(&[u8])) {
    let corpus = corpus(name);
    if let Some(seed) = number("ROCELINE_SEED") {
        return one(name, &corpus, seed, &mut body);
    }
    for (seed, bytes) in (0..).zip(&corpus) {
        let _case = Case { name, seed, bytes };
        body(bytes);
    }
    for seed in 0..mutations {
        one(name, &corpus, seed, &mut body);
    }
}

/// Mutations of the corpus for `ROCELINE_SECONDS`.
pub fn run_long(name: &str, mut body: impl FnMut(&[u8])) {
    let corpus = corpus(name);
    let seconds = Duration::from_secs(number("ROCELINE_SECONDS").unwrap_or(10));
    let first = number("ROCELINE_ROUND").unwrap_or(1) << 32;
    let (begin, mut runs) = (Instant::now(), 0);
    while begin.elapsed() < seconds {
        one(name, &corpus, first + runs, &mut body);
        runs += 1;
    }
    println!("{runs} runs of {name}");
}
