//! Completion queues, asynchronous events, states and faults, seen by a program. `events/*.c` say what each case checks.

mod support;

use std::path::Path;
use std::process::Command;

use support::daemon::Daemon;
use support::process::{Ended, Process};
use support::{PATIENCE, alone, wait_for};

/// Compiles the program.
fn probe(daemon: &Daemon) -> String {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let (own, shared) = (tests.join("events"), tests.join("../../verbs-shim/tests"));
    let program = daemon.dir().join("probe");
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-I"])
        .arg(&shared)
        .arg("-o")
        .arg(&program)
        .args(
            ["probe.c", "cq.c", "async.c", "gid.c", "faults.c", "qp.c"]
                .map(|source| own.join(source)),
        )
        .arg(shared.join("verbs_end.c"))
        .arg("-libverbs")
        .status()
        .expect("a C compiler is installed");
    assert!(compiled.success(), "the probe does not compile");
    let program = program.to_str().expect("a plain path");
    program.to_owned()
}

#[track_caller]
fn expect_ok(daemon: &Daemon, ended: &Ended) {
    assert!(ended.ok(), "{}{}", ended.report(), daemon.log());
}

/// Runs cases one after the other, on a daemon of their own; what the daemon said meanwhile.
#[track_caller]
fn cases(names: &[&str]) -> String {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    let program = probe(&daemon);
    let mut command = daemon.program(&program, names);
    let ended = Process::start(daemon.dir(), "probe", &mut command).finish(2 * PATIENCE);
    expect_ok(&daemon, &ended);
    let said = ended.stdout.lines().filter(|line| line.ends_with(" ok"));
    assert_eq!(said.count(), names.len(), "{}", ended.report());
    daemon.expect_empty();
    let log = daemon.log();
    assert!(daemon.stop().ok());
    log
}

#[test]
fn completion_queues_are_resized_under_traffic() {
    cases(&["resize", "resize-traffic"]);
}

#[test]
fn a_resized_completion_queue_is_flushed_when_the_daemon_dies() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    let program = probe(&daemon);
    let mut running = daemon.start_program("probe", &program, &["resize-death"]);
    wait_for("posted work", PATIENCE, || {
        running.output().0.contains("posted") || !running.is_running()
    });
    daemon.kill_worker(libc::SIGKILL);
    expect_ok(&daemon, &running.finish(PATIENCE));
}

#[test]
fn completion_queues_overflow_as_they_were_told_to() {
    cases(&["overflow", "overrun", "extended"]);
}

#[test]
fn each_event_comes_once_and_is_acknowledged() {
    cases(&["events", "acknowledge"]);
}

#[test]
fn every_fault_shows_to_both_programs_what_its_row_says() {
    cases(&["faults", "threads"]);
}

#[test]
fn requests_and_attributes_are_refused_and_shown_rightly() {
    let log = cases(&["post", "builder", "modify", "query"]);
    // The program gets an errno, the log the reason.
    for reason in [
        "takes IBV_QP_PORT, not given",
        "takes no IBV_QP_QKEY",
        "a queue pair cannot go from Reset to Rts",
        "max_dest_rd_atomic = 17 is out of range: 16 at most",
        "is drained",
        "qp_access_flags 0x402 have bits that mean nothing (0x400)",
        "rq_psn 0x1000005 has more than 24 bits, and 0x5 is taken",
        "sq_psn 0xff000007 has more than 24 bits, and 0x7 is taken",
    ] {
        assert!(log.contains(reason), "no {reason:?} in {log}");
    }
}

/// Waits until a program has said something.
#[track_caller]
fn says(running: &mut Process, what: &str) {
    let said = |text: &str| text.lines().any(|line| line == what);
    wait_for(what, PATIENCE, || {
        said(&running.output().0) || !running.is_running()
    });
}

/// Gives an order, which must be carried out.
#[track_caller]
fn order(daemon: &Daemon, words: &[&str]) -> String {
    let ended = daemon.roceline("order", words);
    expect_ok(daemon, &ended);
    ended.stdout
}

#[test]
fn addresses_come_and_go_under_programs() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let program = probe(&daemon);
    let mut running = daemon.start_program("probe", &program, &["gid"]);
    says(&mut running, "ready");
    let added = order(&daemon, &["address", "add", "roce0", "10.77.0.9"]);
    assert!(added.starts_with("roce0: 10.77.0.9/24 is GID 3"), "{added}");
    says(&mut running, "connected");
    let removed = order(&daemon, &["address", "remove", "roce0", "10.77.0.9/24"]);
    assert!(removed.contains("GID 3 is empty"), "{removed}");
    says(&mut running, "failed");
    let drops = daemon.json(&["stat"])["devices"][0]["port"]["rx_not_ours"].as_u64();
    assert!(drops > Some(0), "{drops:?}");
    let qps = daemon.json(&["show", "qps"]);
    let failed = qps["qps"].as_array().expect("a list").iter();
    let failed = failed.filter(|qp| qp["state"] == "ERR" && qp["device"] == "roce0");
    let qpn = failed.map(|qp| qp["qpn"].to_string()).next();
    let qpn = qpn.unwrap_or_else(|| panic!("no QP of roce0 in {qps}"));
    let why = order(&daemon, &["show", "qp", "--post-mortem", &qpn]);
    assert!(
        why.contains("10.77.0.9 is no address of roce0 any more"),
        "{why}"
    );
    let remedy = "use another GID index (`roceline address list roce0`)";
    assert!(why.contains(remedy), "{why}");
    order(&daemon, &["address", "add", "roce0", "10.77.0.8/24"]);
    says(&mut running, "free");
    order(&daemon, &["address", "add", "roce0", "10.77.0.7/24"]);
    expect_ok(&daemon, &running.finish(PATIENCE));
}

#[test]
fn events_of_addresses_and_links_come_in_order_to_each_open_device() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let program = probe(&daemon);
    let mut running = daemon.start_program("probe", &program, &["gid-order"]);
    says(&mut running, "ready");
    order(&daemon, &["address", "add", "roce0", "10.77.0.9"]);
    order(&daemon, &["link", "down", "roce0"]);
    order(&daemon, &["address", "remove", "roce0", "10.77.0.9"]);
    order(&daemon, &["link", "up", "roce0"]);
    expect_ok(&daemon, &running.finish(PATIENCE));
}

#[test]
fn a_link_goes_down_and_up_by_order() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let program = probe(&daemon);
    let mut running = daemon.start_program("probe", &program, &["link"]);
    says(&mut running, "ready");
    let down = daemon.roceline("link", &["link", "down", "roce0"]);
    expect_ok(&daemon, &down);
    assert_eq!(down.stdout, "roce0: DOWN, by order\nroce1: DOWN\n");
    says(&mut running, "down");
    let ports = daemon.json(&["show", "ports"]);
    assert_eq!(ports["ports"][0]["ordered_down"], true);
    assert_eq!(ports["ports"][1]["ordered_down"], false);
    assert_eq!(ports["ports"][1]["state"], "DOWN");
    // Twice is as good as once.
    expect_ok(
        &daemon,
        &daemon.roceline("link", &["link", "down", "roce0"]),
    );
    let up = daemon.json(&["link", "up", "roce0"]);
    assert_eq!(up["ports"][0]["state"], "ACTIVE");
    assert_eq!(up["ports"][1]["state"], "ACTIVE");
    expect_ok(&daemon, &running.finish(PATIENCE));
    let stat = daemon.json(&["stat"]);
    for device in 0..2 {
        assert_eq!(
            stat["devices"][device]["counters"]["link_downed"], 1,
            "{stat}"
        );
    }
    assert!(
        stat["devices"][0]["port"]["tx_link_down"].as_u64() > Some(0),
        "{stat}"
    );
    let unknown = daemon.roceline("link", &["link", "down", "roce7"]);
    assert!(
        unknown.failed() && unknown.stderr.contains("roce7"),
        "{}",
        unknown.report()
    );
}
