//! How fast virtual time is: packet events (a packet that leaves or arrives at a node or switch) for each second of processor
//! time of one core. A run is one thread, so that is what a core of a sweep does. At the end it says whether each reaches [`GOAL`], and
//! fails if one does not.
//!
//! `cargo bench -p roceline --bench sim`

use std::process::ExitCode;

use roceline::sim::topology::Fabric;
use roceline::sim::{FlowConfig, LinkConfig, NodeConfig, Sim};
use roceline_engine::Nanos;

const RUNS: usize = 5;
/// Millions of packet events per second and core at least, of the median run.
const GOAL: f64 = 1.0;

/// Processor time of this thread, seconds: others on the machine do not count.
fn processor_time() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a timespec of our own, and the clock exists on every Linux.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Prints a line; gives the median.
fn measure(name: &str, length: Nanos, build: impl Fn() -> Sim) -> f64 {
    let mut rates = Vec::new();
    let mut events = 0;
    for _ in 0..RUNS {
        let mut sim = build();
        let start = processor_time();
        sim.run_until(length);
        events = sim.packet_events();
        rates.push(events as f64 / (processor_time() - start) / 1e6);
    }
    rates.sort_by(f64::total_cmp);
    println!(
        "{name:<44} {events:>9} {:>6.2} ({:.2})",
        rates[RUNS - 1],
        rates[RUNS / 2]
    );
    rates[RUNS / 2]
}

fn link() -> LinkConfig {
    LinkConfig {
        bits_per_s: 100_000_000_000,
        delay: Nanos::from_micros(2),
        queue_bytes: 1 << 20,
    }
}

fn pairs(count: usize, flows: usize, config: FlowConfig) -> Sim {
    let mut sim = Sim::new();
    for _ in 0..count {
        let ends = [0, 1].map(|_| sim.add_node(&NodeConfig::default()));
        sim.join(ends[0], ends[1], &link());
        for _ in 0..flows {
            sim.add_flow(&FlowConfig {
                from: ends[0],
                to: ends[1],
                ..config
            });
        }
    }
    sim
}

/// Every NIC writes to the one that is `step` further.
fn everybody(mut sim: Sim, step: usize) -> Sim {
    let nodes = sim.nodes().len();
    for from in 0..nodes {
        sim.add_flow(&FlowConfig::new(from, (from + step) % nodes));
    }
    sim
}

fn main() -> ExitCode {
    println!("millions of packet events per second: best (median) of {RUNS} runs\n");
    let write = FlowConfig::new(0, 1);
    let small = FlowConfig {
        message: 64,
        depth: 64,
        ..write
    };
    let (ms, us) = (Nanos::from_millis, Nanos::from_micros);
    let fabric = Fabric::new(100_000_000_000);
    let mut fast = Fabric::new(800_000_000_000);
    fast.host.delay = Nanos(200);
    fast.trunk.delay = Nanos(200);
    let medians = [
        measure("a pair, 1 flow of 64 KiB WRITEs", ms(50), || {
            pairs(1, 1, write)
        }),
        measure("a pair, 64 flows", ms(50), || pairs(1, 64, write)),
        measure("a pair, 8 flows of 64-byte WRITEs", ms(5), || {
            pairs(1, 8, small)
        }),
        measure("512 pairs, 2 flows each", us(100), || pairs(512, 2, write)),
        measure("star, 8 to 1, PFC", ms(2), || {
            let mut sim = fabric.star(9).expect("a switch");
            for from in 1..9 {
                sim.add_flow(&FlowConfig::new(from, 0));
            }
            sim
        }),
        measure("leaf-spine, 64 NICs, each to the next", us(200), || {
            everybody(fabric.leaf_spine(8, 4, 8).expect("switches"), 9)
        }),
        measure("fat tree, 1024 NICs, each to another pod", us(20), || {
            everybody(fabric.fat_tree(16).expect("switches"), 129)
        }),
        measure("the same at 800 Gb/s", us(4), || {
            everybody(fast.fat_tree(16).expect("switches"), 129)
        }),
    ];
    let least = medians.into_iter().fold(f64::MAX, f64::min);
    let reached = least >= GOAL;
    println!(
        "\ngoal: {GOAL:.0} M packet events per second and core: {} (the slowest has {least:.2})",
        if reached { "reached" } else { "MISSED" }
    );
    match reached {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
