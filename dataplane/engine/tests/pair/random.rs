//! Many seeded runs. `ROCELINE_SEED=n` repeats one, `ROCELINE_RUNS=n` makes so many of each kind.
//! `scripts/fuzz` runs the random kinds for long, with new seeds each time.

use std::time::{Duration, Instant};

use crate::link::Faults;
use crate::node::MemoryFaults;
use crate::workload::{Plan, Seen, run};

/// Seeds of a kind within a round; rounds beyond the first belong to `scripts/fuzz`.
const KIND: u64 = 1_000_000;
const ROUND: u64 = 100 * KIND;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

/// Runs so many of a kind; what there was to see, unless someone asked for other runs.
fn runs(kind: u64, usual: u64, plan: impl Fn(u64) -> Plan) -> Option<Seen> {
    let mut seen = Seen::default();
    if let Some(seed) = number("ROCELINE_SEED") {
        if seed % ROUND / KIND == kind {
            run(plan(seed), &mut seen);
        }
        return None;
    }
    let asked = number("ROCELINE_RUNS");
    for n in 0..asked.unwrap_or(usual) {
        run(plan(kind * KIND + n), &mut seen);
    }
    asked.is_none().then_some(seen)
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
    rules: 0,
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

/// Rules of all kinds in both directions; the seed decides how many, and how many QPs.
fn any_rules(seed: u64) -> Plan {
    Plan {
        seed,
        qps: 1 + (seed % 3) as usize,
        messages: 8,
        rules: 1 + (seed / 3 % 4) as u32,
        ..CALM
    }
}

/// The same with everything else that may go wrong.
fn any_rules_and_all(seed: u64) -> Plan {
    Plan {
        memory: MemoryFaults {
            fault: if seed % 5 == 0 { 5 } else { 0 },
            ..SLOW
        },
        late_receives: seed % 2 == 0,
        few_retries: seed % 7 == 0,
        ..any_rules(seed)
    }
}

/// Longer messages, so that windows fill and whole bursts are resent.
fn any_rules_long(seed: u64) -> Plan {
    Plan {
        qps: 1,
        messages: 4,
        max_packets: 60,
        ..any_rules(seed)
    }
}

#[test]
fn any_rules_deliver_or_fail_rightly() {
    let Some(seen) = runs(10, 1_000, any_rules) else {
        return;
    };
    // Every action had its turn, on links that were bad and not hopeless.
    assert!(
        seen.hits.len() == 9 && seen.hits.values().all(|n| *n > 100),
        "{seen:?}"
    );
    assert!(
        seen.delivered > 500 && seen.failed["retries"] > 50,
        "{seen:?}"
    );
}

#[test]
fn any_rules_on_slow_memory_deliver_or_fail_rightly() {
    runs(11, 1_000, any_rules_and_all);
}

#[test]
fn any_rules_on_long_messages_deliver_or_fail_rightly() {
    runs(12, 60, any_rules_long);
}

fn run_seed(seed: u64, seen: &mut Seen) {
    match seed % ROUND / KIND {
        10 => run(any_rules(seed), seen),
        11 => run(any_rules_and_all(seed), seen),
        12 => run(any_rules_long(seed), seen),
        kind => panic!("seed {seed} is of kind {kind}, which `scripts/fuzz` does not run"),
    }
}

/// Cases that once failed in `scripts/fuzz`.
const FOUND: &[u64] = &[
    // A READ asked for again met memory that was gone, when its first answer had arrived.
    60_477_725_611_000_090,
];

#[test]
fn what_was_found_before() {
    for &seed in FOUND {
        run_seed(seed, &mut Seen::default());
    }
}

/// For `ROCELINE_SECONDS` seconds, from the round `ROCELINE_ROUND` on.
#[test]
#[ignore = "scripts/fuzz runs it"]
fn long_any_rules() {
    let time = Duration::from_secs(number("ROCELINE_SECONDS").unwrap_or(10));
    let first = number("ROCELINE_ROUND").unwrap_or(1).max(1) * ROUND;
    let start = Instant::now();
    let (mut runs, mut seen) = (0u64, Seen::default());
    while start.elapsed() < time {
        let n = first + runs / KIND * ROUND + runs % KIND;
        run_seed(n + 10 * KIND, &mut seen);
        run_seed(n + 11 * KIND, &mut seen);
        if runs % 16 == 0 {
            run_seed(n + 12 * KIND, &mut seen);
        }
        runs += 1;
    }
    println!(
        "{} runs of engine pairs: {seen:?}",
        2 * runs + runs.div_ceil(16)
    );
}
