//! Cycles, and what many of their samples say.

use serde_json::{Value, json};

/// The time stamp counter.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub fn cycles() -> u64 {
    // SAFETY: reads a counter; every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Without a cycle counter in user space: nanoseconds.
#[cfg(not(target_arch = "x86_64"))]
pub fn cycles() -> u64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START
        .get_or_init(std::time::Instant::now)
        .elapsed()
        .as_nanos() as u64
}

/// What the reading of the counter itself adds to a measured span.
pub fn overhead() -> u64 {
    (0..1000)
        .map(|_| {
            let start = cycles();
            cycles() - start
        })
        .min()
        .unwrap_or(0)
}

/// Median, and the tenth and ninetieth percentile.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spread {
    pub p10: f64,
    pub median: f64,
    pub p90: f64,
}

impl Spread {
    pub fn of(mut samples: Vec<f64>) -> Spread {
        samples.sort_by(f64::total_cmp);
        let at = |share: usize| samples[(samples.len() - 1) * share / 100];
        Spread {
            p10: at(10),
            median: at(50),
            p90: at(90),
        }
    }

    pub fn json(&self) -> Value {
        let round = |v: f64| (v * 10.0).round() / 10.0;
        json!({ "median": round(self.median), "p10": round(self.p10), "p90": round(self.p90) })
    }
}
