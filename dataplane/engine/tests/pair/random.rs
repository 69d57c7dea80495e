//! Many seeded runs. `ROCELINE_SEED=n` repeats one, `ROCELINE_RUNS=n` makes so many of each kind.

use crate::link::Faults;
use crate::node::MemoryFaults;
use crate::workload::{Plan, run};

fn runs(kind: u64, usual: u64, plan: impl Fn(u64) -> Plan) {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    if let Some(seed) = number("ROCELINE_SEED") {
        if seed / 1_000_000 == kind {
            run(plan(seed));
        }
        return;
    }
    for n in 0..number("ROCELINE_RUNS").unwrap_or(usual) {
        run(plan(kind * 1_000_000 + n));
    }
}

const CALM: Plan = Plan {
    seed: 0,
    qps: 2,
    messages: 12,
    faults: Faults {
        loss: 0,
        duplicate: 0,
        reorder: 0,
        corrupt: 0,
    },
    memory: MemoryFaults {
        pending: 0,
        pending_ns: 0,
        fault: 0,
    },
    late_receives: false,
    few_retries: false,
    max_packets: 6,
};
const SLOW: MemoryFaults = MemoryFaults {
    pending: 200,
    pending_ns: 20_000,
    fault: 0,
};
const BAD_LINK: Faults = Faults {
    loss: 20,
    duplicate: 20,
    reorder: 30,
    corrupt: 5,
};

#[test]
fn without_faults_everything_arrives() {
    runs(1, 60, |seed| Plan { seed, ..CALM });
}

#[test]
fn slow_memory_changes_nothing() {
    runs(2, 60, |seed| Plan {
        seed,
        memory: SLOW,
        ..CALM
    });
}

#[test]
fn late_receives_only_delay() {
    runs(3, 60, |seed| Plan {
        seed,
        late_receives: true,
        ..CALM
    });
}

#[test]
fn a_bad_link_only_delays() {
    runs(4, 150, |seed| Plan {
        seed,
        faults: BAD_LINK,
        ..CALM
    });
}

#[test]
fn everything_slow_and_bad_only_delays() {
    runs(5, 150, |seed| Plan {
        seed,
        qps: 3,
        faults: BAD_LINK,
        memory: SLOW,
        late_receives: true,
        ..CALM
    });
}

#[test]
fn with_few_retries_a_qp_fails_rightly_or_delivers() {
    runs(6, 100, |seed| Plan {
        seed,
        faults: Faults {
            loss: 60,
            ..BAD_LINK
        },
        memory: SLOW,
        late_receives: true,
        few_retries: true,
        ..CALM
    });
}

#[test]
fn unreachable_memory_fails_the_qp_and_nothing_else() {
    runs(7, 100, |seed| Plan {
        seed,
        faults: BAD_LINK,
        memory: MemoryFaults { fault: 5, ..SLOW },
        ..CALM
    });
}

#[test]
fn long_messages_pass_a_bad_link() {
    runs(8, 15, |seed| Plan {
        seed,
        qps: 1,
        messages: 4,
        faults: Faults {
            loss: 5,
            ..BAD_LINK
        },
        memory: SLOW,
        max_packets: 300,
        ..CALM
    });
}
