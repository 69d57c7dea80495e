//! Shared receive queues and unreliable connections, as programs use them: `srq_check.c` and the distribution's own.

mod support;

use support::daemon::{Daemon, PAIR};
use support::pair::{End, Pair};
use support::{PATIENCE, alone, compile, wait_for};

/// Compiles `srq_check.c`.
fn check_program(daemon: &Daemon) -> String {
    compile(daemon.dir(), "srq_check", &["srq_check.c"])
}

#[test]
fn shared_receive_queues_keep_their_rules() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let program = check_program(&daemon);
    for devices in [["roce0", "roce1"], ["roce0", "roce0"]] {
        let checked = daemon.run_program("check", &program, &devices);
        assert!(checked.ok(), "{}{}", checked.report(), daemon.log());
        assert!(checked.stdout.ends_with("all checked\n"));
    }
    daemon.expect_empty();
}

#[test]
fn receives_in_a_shared_queue_are_not_flushed_when_the_daemon_dies() {
    let _alone = alone();
    let mut daemon = Daemon::start(PAIR);
    let program = check_program(&daemon);
    let waiting = daemon.start_program("death", &program, &["--death", "roce1"]);
    wait_for("the program to be ready", PATIENCE, || {
        waiting.output().0.contains("ready")
    });
    daemon.kill_worker(libc::SIGKILL);
    let ended = waiting.finish(PATIENCE);
    assert!(ended.ok(), "{}{}", ended.report(), daemon.log());
}

/// Between two devices, and with one as its own peer.
const BOTH: &[&str] = &["roce1", "roce0"];
/// perftest takes seconds to measure the CPU's frequency: it runs between two devices only.
const TWO: &[&str] = &["roce1"];

/// Runs a program of the distribution.
#[track_caller]
fn runs(daemon: &Daemon, clients: &[&str], program: &str, options: &[&str]) {
    for client in clients {
        let end = |device| End { daemon, device };
        let run = Pair::run(end("roce0"), end(client), program, options, PATIENCE);
        assert!(run.ok(), "{options:?}\n{}{}", run.report(), daemon.log());
    }
}

#[test]
fn the_distributions_programs_share_receive_queues() {
    let _alone = alone();
    let daemon = Daemon::pair();
    for options in [
        &["-g", "0", "-n", "500"][..],
        &["-g", "1", "-n", "300", "-q", "50", "-s", "9000"],
        &["-g", "0", "-n", "300", "-q", "8", "-e"],
    ] {
        runs(&daemon, BOTH, "ibv_srq_pingpong", options);
    }
    let shared = ["-F", "-n", "500", "--use-srq"];
    runs(
        &daemon,
        TWO,
        "ib_send_bw",
        &[&shared[..], &["-q", "4"]].concat(),
    );
    runs(&daemon, TWO, "ib_send_lat", &shared);
    runs(
        &daemon,
        TWO,
        "ib_send_bw",
        &[&shared[..], &["-c", "UC"]].concat(),
    );
    let datagrams = ["-F", "-n", "500", "-c", "UD", "--use-srq"];
    runs(&daemon, TWO, "ib_send_lat", &datagrams);
    daemon.expect_empty();
}

#[test]
fn the_distributions_programs_use_unreliable_connections() {
    let _alone = alone();
    let daemon = Daemon::pair();
    for options in [
        &["-g", "0", "-n", "500"][..],
        &["-g", "1", "-n", "200", "-s", "100000", "-m", "256"],
        &["-g", "0", "-n", "200", "-s", "9000", "-e"],
    ] {
        runs(&daemon, BOTH, "ibv_uc_pingpong", options);
    }
    let unreliable = ["-F", "-n", "500", "-c", "UC"];
    for tool in ["ib_send_lat", "ib_write_lat", "ib_send_bw", "ib_write_bw"] {
        runs(&daemon, TWO, tool, &unreliable);
    }
    daemon.expect_empty();
}
