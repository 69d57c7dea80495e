//! What the wire code costs: the ICRC kernels against memcpy and `crc32fast`, and parsing, verifying and
//! building whole packets.
//!
//! `cargo bench -p roceline-engine --bench icrc` prints tables, `-- --json` one JSON object, and `-- --output FILE` writes that to a file
//! besides; `-- --set KIB` takes another working set than 256 KiB for what is copied; `-- --guard` prints nothing but how many times
//! faster the 512-bit kernel is than the 256-bit one at fixed loads. Figures are time-stamp counter cycles per packet on
//! x86-64 (at the counter's constant rate, which is near the base clock), nanoseconds elsewhere: the median of 61 rounds, and the 10th
//! percentile, as a busy machine only ever adds. In a round each way runs once, so all see the same machine.

#[path = "icrc/guard.rs"]
mod guard;
#[path = "icrc/report.rs"]
mod report;
#[path = "icrc/ways.rs"]
mod ways;

use std::time::Instant;

use report::{Figure, Machine, Report};
use roceline_engine::wire::icrc;

const ROUNDS: usize = 61;
const LENGTHS: [usize; 4] = [64, 256, 1024, 4096];

#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: RDTSC is part of x86-64; it reads a counter and touches no memory.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

const UNIT: &str = if cfg!(target_arch = "x86_64") {
    "TSC cycles"
} else {
    "ns"
};

/// One way to do something to `packets` packets.
struct Way {
    name: String,
    packets: usize,
    work: Box<dyn FnMut()>,
}

impl Way {
    fn new(name: impl Into<String>, packets: usize, work: impl FnMut() + 'static) -> Way {
        Way {
            name: name.into(),
            packets,
            work: Box::new(work),
        }
    }
}

/// All ways in turns.
fn measure(mut ways: Vec<Way>) -> Vec<Figure> {
    let mut runs = vec![Vec::with_capacity(ROUNDS); ways.len()];
    for round in 0..=ROUNDS {
        for (way, runs) in ways.iter_mut().zip(&mut runs) {
            // What the way before left in the caches is not its fault.
            (way.work)();
            let start = ticks();
            (way.work)();
            let each = (ticks() - start) as f64 / way.packets as f64;
            if round > 0 {
                runs.push(each);
            }
        }
    }
    let figures = ways.iter().zip(runs);
    figures
        .map(|(way, runs)| Figure::of(&way.name, runs))
        .collect()
}

/// Microseconds, least of several, of trying out the kernel that is used, as each start of the daemon does.
fn proof() -> f64 {
    let kernel = icrc::current();
    let once = || {
        let start = Instant::now();
        assert!(kernel.agrees(), "{kernel:?} is wrong on this CPU");
        start.elapsed().as_secs_f64() * 1e6
    };
    (0..9).map(|_| once()).fold(f64::INFINITY, f64::min)
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|arg| arg == "--guard") {
        match guard::lines() {
            Ok(lines) => println!("{}", lines.join("\n")),
            Err(why) => println!("skipped: {why}"),
        }
        return;
    }
    let set = args.iter().position(|arg| arg == "--set");
    let set = set
        .and_then(|at| args.get(at + 1)?.parse().ok())
        .unwrap_or(256);
    let mut report = Report::new(Machine::here(set), proof());
    for len in LENGTHS {
        report.kernels(len, measure(ways::kernels(set << 10, len)));
    }
    for family in ["v4", "v6"] {
        for len in LENGTHS {
            report.packets(family, len, measure(ways::packets(family, len)));
        }
    }
    if args.iter().any(|arg| arg == "--json") {
        println!("{}", report.json());
    } else {
        print!("{}", report.table());
    }
    let output = args.iter().position(|arg| arg == "--output");
    if let Some(file) = output.and_then(|at| args.get(at + 1)) {
        if let Err(error) = std::fs::write(file, report.json() + "\n") {
            eprintln!("{file}: {error}");
            std::process::exit(1);
        }
    }
}
