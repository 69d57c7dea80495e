//! `roceline top` beside real programs, and what it costs.

mod support;

use std::process::Command;

use serde_json::Value;
use support::daemon::Daemon;
use support::process::Process;
use support::{PATIENCE, alone, free_port, listening, roceline, wait_for};

#[test]
fn busy_threads_rates_and_a_bottleneck_are_told() {
    let _alone = alone();
    let daemon = Daemon::pair();
    // Of a daemon that nobody uses.
    let idle = daemon.roceline("idle", &["top", "--once", "--interval", "0.2"]);
    assert!(idle.ok(), "{}", idle.report());
    for part in ["lcore", "cycles/pkt", "device", "roce1", "* no traffic"] {
        assert!(idle.stdout.contains(part), "{part}: {}", idle.stdout);
    }
    assert!(
        !idle.stdout.contains('\u{1b}'),
        "no terminal: {}",
        idle.stdout
    );

    let port = free_port();
    let number = port.to_string();
    let start = |name: &str, more: &[&str]| {
        let mut all = vec!["-F", "-s", "65536", "-D", "300", "-p", &number];
        all.extend(more);
        daemon.start_program(name, "ib_write_bw", &all)
    };
    let mut server = start("server", &["-d", "roce0"]);
    wait_for("listening server", PATIENCE, || {
        listening(port) || !server.is_running()
    });
    let _client = start("client", &["-d", "roce1", "127.0.0.1"]);
    let mut seen = Value::Null;
    wait_for("a look at traffic", PATIENCE, || {
        seen = daemon.json(&["top", "--once", "--interval", "0.5"]);
        // Of a look at the first packets some may not have been timed yet.
        let devices = [(0, "received"), (1, "sent")];
        devices.iter().all(|(device, side)| {
            let device = &seen["devices"][device];
            let measured = |name: &str| device[name][side].as_f64() > Some(0.0);
            measured("cycles_per_packet") && measured("messages_per_s")
        })
    });
    let lcore = &seen["lcores"][0];
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{seen:#}"));
    let shares = ["busy", "polling", "away", "lost"].map(|name| number(&lcore[name]));
    let sum: f64 = shares.iter().sum();
    assert!((0.99..1.01).contains(&sum) && shares[0] > 0.0, "{seen:#}");
    assert!(
        number(&lcore["cycles_per_packet"]["receive"]) > 0.0,
        "{seen:#}"
    );
    let devices = &seen["devices"];
    assert_eq!(devices[1]["name"], "roce1");
    for (device, side) in [(0, "received"), (1, "sent")] {
        let device = &devices[device];
        assert!(number(&device["gbps"][side]) > 0.0, "{seen:#}");
        assert!(number(&device["messages_per_s"][side]) > 0.0, "{seen:#}");
        assert!(number(&device["cycles_per_packet"][side]) > 0.0, "{seen:#}");
    }
    assert!(seen["bottlenecks"].is_array(), "{seen:#}");
}

/// A line of JSON for each look, over the end of a worker too; and the end of the daemon is the end.
#[test]
fn it_goes_on_with_the_next_worker() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    let mut command = Command::new(roceline());
    command.args(["top", "--json", "--interval", "0.1", "--socket"]);
    command.arg(daemon.socket());
    let mut top = Process::start(daemon.dir(), "top", &mut command);
    let printed = daemon.dir().join("top.out");
    let looks = || {
        let text = std::fs::read_to_string(&printed).unwrap_or_default();
        text.matches('\n').count()
    };
    wait_for("a look", PATIENCE, || looks() > 0 || !top.is_running());
    daemon.kill_worker(libc::SIGKILL);
    daemon.expect_ready();
    let before = looks();
    wait_for("a look at the next worker", PATIENCE, || {
        looks() > before + 1 || !top.is_running()
    });
    assert!(top.is_running(), "{}", daemon.log());
    daemon.stop().expect_ok();
    let ended = top.finish(PATIENCE);
    assert!(
        !ended.ok() && ended.stderr.contains("daemon"),
        "{}",
        ended.report()
    );
}

/// Instructions that moving messages between two NICs takes, all of the poll loops.
fn instructions(watched: bool) -> u64 {
    let mut command = Command::new("valgrind");
    command.args([
        "--tool=callgrind",
        "--collect-atstart=no",
        "--toggle-collect=*OneCore*exactly*",
        "--callgrind-out-file=/dev/null",
    ]);
    command.arg(roceline());
    let case = ["bench", "datapath", "--op=write", "--bytes=64"];
    command.args(case).arg("--messages=5000");
    command.args(watched.then_some("--watched"));
    let output = command.output().expect("valgrind runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let counted = said.lines().find_map(|line| line.split_once("Collected :"));
    let (_, count) = counted.unwrap_or_else(|| panic!("no count: {said}"));
    count.trim().parse().expect("a number")
}

/// Counted on valgrind's CPU, so the same in every run; `roceline bench top` measures it in cycles.
#[test]
fn to_look_costs_the_loop_less_than_2_percent() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: valgrind is not installed");
        return;
    }
    let [plain, watched] = [false, true].map(instructions);
    let more = watched as f64 / plain as f64 - 1.0;
    println!(
        "{plain} instructions, watched {watched}: {:+.2} %",
        more * 100.0
    );
    assert!(plain > 1_000_000, "{plain}");
    assert!(more < 0.02, "{plain} instructions, watched {watched}");
}
