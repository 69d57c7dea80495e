//! The 512-bit kernel against the 256-bit one, as a guard: valgrind, which counts the instructions of everything else, has no
//! AVX-512. Only frames are verified, as copying would measure the caches, too.

use std::hint::black_box;

use roceline_engine::wire::icrc::{Check, Kernel};

use super::report::{Machine, NARROW, WIDE};
use super::{LENGTHS, ROUNDS, ticks, ways};

/// How many times the first kernel's time the second takes for the same work: rounds of both in turns, and their median.
fn ratio(mut work: impl FnMut(&Kernel), kernels: [&Kernel; 2]) -> f64 {
    let mut ratios = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let [wide, narrow] = kernels.map(|kernel| {
            // What the kernel before left in the caches is not its fault.
            work(kernel);
            let start = ticks();
            for _ in 0..16 {
                work(kernel);
            }
            (ticks() - start) as f64
        });
        ratios.push(narrow / wide);
    }
    ratios.sort_by(f64::total_cmp);
    ratios[ROUNDS / 2]
}

/// The CPU, and a line for each fixed load, `WHAT RATIO`; or why there is none.
pub fn lines() -> Result<Vec<String>, String> {
    let named = |name| Kernel::named(name).map_err(|why| why.to_string());
    let kernels = [named(WIDE)?, named(NARROW)?];
    let mut lines = vec![format!("cpu {}", Machine::here(0).model())];
    for len in LENGTHS {
        let received = ways::received("v4", len);
        let checks: Vec<Check<'_>> = received
            .iter()
            .map(|(frame, parsed)| Check::new(frame, parsed).expect("as parsed"))
            .collect();
        let good = u64::MAX >> (64 - checks.len());
        let check = |kernel: &Kernel| {
            assert_eq!(kernel.verify_burst(black_box(&checks)), good, "{kernel:?}");
        };
        lines.push(format!("check-{len} {:.2}", ratio(check, kernels)));
    }
    Ok(lines)
}
