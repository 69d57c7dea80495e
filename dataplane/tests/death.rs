//! The end of the daemon, seen by programs: the worker's, the supervisor's, and both at once.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use support::daemon::{Daemon, Objects};
use support::process::{Ended, Process};
use support::{PATIENCE, alone, wait_for};

/// Compiles the program that outlives its NIC; `tests/death_probe.c` says what it does.
fn probe(daemon: &Daemon) -> String {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let program = daemon.dir().join("death_probe");
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-pthread", "-o"])
        .arg(&program)
        .arg(tests.join("death_probe.c"))
        .arg(tests.join("../../verbs-shim/tests/verbs_end.c"))
        .arg("-libverbs")
        .status()
        .expect("a C compiler is installed");
    assert!(compiled.success(), "death_probe.c does not compile");
    let program = program.to_str().expect("a plain path");
    program.to_owned()
}

/// Starts the program and waits until its work is posted.
fn posted(daemon: &Daemon, name: &str, arguments: &[&str], policy: &str) -> Process {
    let mut command = daemon.program(&probe(daemon), arguments);
    command.env("ROCELINE_YIELD", policy);
    let mut program = Process::start(daemon.dir(), name, &mut command);
    wait_for("posted work", PATIENCE, || {
        program.output().0.contains("posted") || !program.is_running()
    });
    program
}

fn expect_ok(daemon: &Daemon, ended: &Ended) {
    assert!(ended.ok(), "{}{}", ended.report(), daemon.log());
}

/// Milliseconds on the machine's monotonic clock, as the program prints them.
fn now_ms() -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: fills in a live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec * 1000 + time.tv_nsec / 1_000_000
}

fn time_of(ended: &Ended, what: &str) -> i64 {
    let line = ended.stdout.lines().find_map(|l| l.strip_prefix(what));
    line.and_then(|number| number.trim().parse().ok())
        .unwrap_or_else(|| panic!("no time of {what}: {}", ended.report()))
}

/// That the worker has been started again so often.
fn expect_told(daemon: &Daemon, deaths: usize) {
    let show = daemon.roceline("show", &["show"]);
    assert!(show.stdout.contains("started again"), "{}", show.report());
    let doctor = daemon.roceline("doctor", &["doctor"]);
    let told = match deaths {
        1 => String::from("again once"),
        _ => format!("again {deaths} times"),
    };
    assert!(doctor.stdout.contains(&told), "{}", doctor.report());
    assert!(doctor.stdout.contains("SIGKILL"), "{}", doctor.report());
}

#[test]
fn the_workers_death_is_told_and_another_takes_over() {
    let _alone = alone();
    for (mode, policy) in [("poll", "always"), ("poll", "never"), ("event", "auto")] {
        let mut daemon = Daemon::pair();
        // On a machine that is busy with other things once may take longer; it does not do so every time. A supervisor gives up
        // after six deaths in a row, so there are fewer.
        let within_a_second = (1..=4).any(|deaths| {
            let worker = daemon.worker();
            let name = format!("{mode}-{policy}-{deaths}");
            let program = posted(&daemon, &name, &[mode, "again"], policy);
            let killed = now_ms();
            daemon.kill_worker(libc::SIGKILL);
            let ended = program.finish(2 * PATIENCE);
            expect_ok(&daemon, &ended);
            let [flushed, told, again] =
                ["flushed", "told", "again"].map(|what| time_of(&ended, what) - killed);
            eprintln!("{mode} {policy}: flushed after {flushed} ms, DEVICE_FATAL after {told} ms, open again after {again} ms");
            daemon.expect_ready();
            assert_ne!(daemon.worker(), worker);
            assert_eq!(daemon.objects(), Objects::default());
            expect_told(&daemon, deaths);
            flushed.max(told) < 1000
        });
        assert!(within_a_second, "{mode} {policy}: never within 1 s");
        assert!(daemon.log().contains("DEVICE_FATAL"), "{}", daemon.log());
    }
}

#[test]
fn a_worker_that_crashes_is_the_same() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    let program = posted(&daemon, "poll", &["poll", "again"], "auto");
    daemon.kill_worker(libc::SIGABRT);
    expect_ok(&daemon, &program.finish(2 * PATIENCE));
}

#[test]
fn sigterm_tells_the_programs_and_ends_everything() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    // The one that polls comes last: it leaves little of a small machine to others.
    let waiting = posted(&daemon, "event", &["event"], "auto");
    let polling = posted(&daemon, "poll", &["poll"], "auto");
    let worker = daemon.worker();
    let ended = daemon.stop();
    expect_ok(&daemon, &ended);
    for program in [polling, waiting] {
        let ended = program.finish(2 * PATIENCE);
        expect_ok(&daemon, &ended);
        let said = ended.stderr.matches("the daemon has ended").count();
        assert_eq!(said, 1, "{}", ended.report());
    }
    assert!(!daemon.socket().exists());
    assert!(!Path::new(&format!("/proc/{worker}")).exists());
}

/// Nobody is left: a program that polls flushes its queues itself, one that waits sees the end of its pipes.
#[test]
fn without_supervisor_and_worker_polling_programs_see_the_end() {
    let _alone = alone();
    for policy in ["always", "never"] {
        let mut daemon = Daemon::pair();
        // The one that polls comes last: it leaves little of a small machine to others.
        let waiting = posted(&daemon, "event", &["event"], policy);
        let polling = posted(&daemon, "cut", &["cut"], policy);
        daemon.kill_both();
        expect_ok(&daemon, &polling.finish(2 * PATIENCE));
        let waiting = waiting.finish(2 * PATIENCE);
        assert_eq!(waiting.status.code(), Some(1), "{}", waiting.report());
        assert!(
            waiting.stderr.contains("FAILED: ibv_get_"),
            "{}",
            waiting.report()
        );
    }
}

/// The kernel tells the worker, which tells the programs and goes.
#[test]
fn the_supervisors_death_takes_the_worker_with_it() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    // The one that polls comes last: it leaves little of a small machine to others.
    let waiting = posted(&daemon, "event", &["event"], "auto");
    let polling = posted(&daemon, "poll", &["poll"], "auto");
    let worker = daemon.worker();
    daemon.process().signal(libc::SIGKILL);
    expect_ok(&daemon, &polling.finish(2 * PATIENCE));
    expect_ok(&daemon, &waiting.finish(2 * PATIENCE));
    wait_for("end of the worker", PATIENCE, || {
        !Path::new(&format!("/proc/{worker}")).exists()
    });
    // And the place is free at once.
    daemon.launch();
    daemon.expect_ready();
}

#[test]
fn a_worker_that_dies_again_and_again_is_given_up() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    let mut last = 0;
    for _ in 0..6 {
        wait_for("new worker", PATIENCE, || {
            daemon.find_worker().is_some_and(|worker| worker != last)
                || !daemon.process().is_running()
        });
        if let Some(worker) = daemon.find_worker() {
            last = worker;
            daemon.kill_worker(libc::SIGKILL);
        }
    }
    wait_for("end of the supervisor", PATIENCE, || {
        !daemon.process().is_running()
    });
    let log = daemon.log();
    assert!(log.contains("died 6 times in a row"), "{log}");
    assert!(!daemon.socket().exists());
    let wait = daemon.roceline("wait", &["wait", "--timeout", "0.1"]);
    assert!(
        wait.failed() && wait.stderr.contains("no daemon answers"),
        "{}",
        wait.report()
    );
}

/// By raw system call, which the shim does not see: the same end, and nothing stays in the daemon.
#[test]
fn a_program_that_closes_hidden_descriptors_sees_the_end() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let program = posted(&daemon, "closed", &["closed", "again"], "auto");
    expect_ok(&daemon, &program.finish(2 * PATIENCE));
    daemon.expect_empty();
}

/// Opens that come while there is no worker wait for the next one.
#[test]
fn opens_during_the_restart_wait() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    daemon.kill_worker(libc::SIGKILL);
    let listed = daemon.run_program("info", "ibv_devinfo", &["-d", "roce1"]);
    expect_ok(&daemon, &listed);
    let mut tree = daemon.socket().as_os_str().to_owned();
    tree.push(".d");
    assert!(fs::metadata(tree).is_ok());
}

/// Real programs in mid-traffic: none hangs.
#[test]
fn perftest_ends_when_the_worker_dies() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    daemon.quicken();
    for (tool, options) in [
        ("ib_write_bw", &[][..]),
        ("ib_send_lat", &["-e"]),
        ("ib_read_lat", &[]),
    ] {
        let (server, client) = support::pair::endless(&daemon, tool, options);
        support::pair::wait_for_traffic(&daemon);
        daemon.kill_worker(libc::SIGKILL);
        for program in [client, server] {
            let ended = program.finish(Duration::from_secs(20));
            assert!(ended.status.code().is_some(), "{}", ended.report());
        }
        daemon.expect_ready();
    }
}
