//! Fixed loads, of which `scripts/instructions` counts the instructions: the same work in each run.

use roceline_engine::AckPolicy;
use roceline_engine::verbs::WrOpcode;

use crate::load::{Load, Run};

/// Rounds that are counted; before them come a tenth as many.
const ROUNDS: u32 = 200;

const BASE: Load = Load {
    op: WrOpcode::Write,
    len: 64,
    ack_policy: AckPolicy::Coalesced,
    qps: 1,
    random: false,
    prefetch: false,
};

const LOADS: &[(&str, Load)] = &[
    (
        "write-64-ack-each",
        Load {
            ack_policy: AckPolicy::PerMessage,
            ..BASE
        },
    ),
    ("write-64", BASE),
    (
        "send-64",
        Load {
            op: WrOpcode::Send,
            ..BASE
        },
    ),
    (
        "read-4k",
        Load {
            op: WrOpcode::Read,
            len: 4096,
            ..BASE
        },
    ),
    (
        "fetch-add",
        Load {
            op: WrOpcode::FetchAdd,
            len: 8,
            ..BASE
        },
    ),
    (
        "write-1m",
        Load {
            len: 1 << 20,
            ..BASE
        },
    ),
    (
        "write-64-1000-qps",
        Load {
            qps: 1000,
            random: true,
            prefetch: true,
            ..BASE
        },
    ),
];

/// `--fixed` alone lists the loads and the packets of payload that are counted of each; `--fixed NAME` runs one.
pub fn main(args: &[String]) {
    let Some(name) = args.first() else {
        for (name, load) in LOADS {
            println!("{name} {}", ROUNDS * load.payload_packets());
        }
        return;
    };
    let Some((_, load)) = LOADS.iter().find(|(n, _)| n == name) else {
        eprintln!("no load is called {name}; `--fixed` alone lists them");
        std::process::exit(2);
    };
    let mut run = Run::new(*load);
    for _ in 0..ROUNDS / 10 {
        run.round();
    }
    roceline_counted(&mut run, ROUNDS);
}

/// What is counted.
#[inline(never)]
#[unsafe(no_mangle)]
extern "Rust" fn roceline_counted(run: &mut Run, rounds: u32) {
    for _ in 0..rounds {
        run.round();
    }
}
