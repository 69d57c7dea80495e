//! Atomics, memory windows and regions of all kinds with a program of our own, `tests/atomic_probe.c`, and perftest's atomics.

mod support;

use support::daemon::Daemon;
use support::pair::{End, Pair, rows};
use support::process::Process;
use support::{PATIENCE, alone, compile};

/// Runs the probe, with this for `ROCELINE_MEMORY`.
fn probe(daemon: &Daemon, mode: &str, memory: &str) {
    let sources = ["atomic_probe.c", "../../verbs-shim/tests/verbs_end.c"];
    let program = compile(daemon.dir(), "atomic_probe", &sources);
    let mut command = daemon.program(&program, &[mode]);
    command.env("ROCELINE_MEMORY", memory);
    let name = format!("{mode}-{memory}");
    let ended = Process::start(daemon.dir(), &name, &mut command).finish(PATIENCE);
    assert!(ended.ok(), "{name}: {}{}", ended.report(), daemon.log());
    daemon.expect_empty();
}

/// In mapped memory atomics of peers are the CPU's own, so those of the program fit in between.
#[test]
fn the_programs_atomics_and_those_of_peers_interleave_in_mapped_memory() {
    let _alone = alone();
    let daemon = Daemon::pair();
    probe(&daemon, "shared", "auto");
}

/// Mapped or not, by whichever queue pair and open device.
#[test]
fn atomics_of_all_peers_exclude_each_other() {
    let _alone = alone();
    let daemon = Daemon::pair();
    for memory in ["auto", "never"] {
        probe(&daemon, "peers", memory);
    }
}

#[test]
fn windows_follow_their_rules_and_go_with_their_program() {
    let _alone = alone();
    let daemon = Daemon::pair();
    probe(&daemon, "windows", "auto");
}

#[test]
fn regions_of_all_kinds_are_registered() {
    let _alone = alone();
    let daemon = Daemon::pair();
    probe(&daemon, "regions", "auto");
}

#[test]
fn perftest_of_both_atomics() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let end = |device| End {
        daemon: &daemon,
        device,
    };
    for (tool, more) in [
        ("ib_atomic_bw", &["-b", "-q", "4"][..]),
        ("ib_atomic_lat", &[]),
    ] {
        for which in ["CMP_AND_SWAP", "FETCH_AND_ADD"] {
            let mut arguments = vec!["-F", "-n", "200", "-A", which];
            arguments.extend(more);
            for client in ["roce0", "roce1"] {
                let run = Pair::run(end("roce0"), end(client), tool, &arguments, 4 * PATIENCE);
                assert!(run.ok(), "{tool} {which}: {}{}", run.report(), daemon.log());
                let sizes: Vec<f64> = rows(&run.client.stdout).iter().map(|r| r[0]).collect();
                assert_eq!(sizes, [8.0], "{}", run.report());
            }
        }
    }
    daemon.expect_empty();
}
