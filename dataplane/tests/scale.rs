//! Many of everything: queue pairs, processes, threads, and as much as the device says that it can do.
//!
//! `ROCELINE_SCALE=full` makes as many objects of each kind as are reported, instead of 1024; it takes minutes.

mod support;

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use support::daemon::{Daemon, Objects};
use support::process::{Ended, Process};
use support::{PATIENCE, alone, free_port, listening, wait_for};

/// Compiles one of the programs in `scale/`, each of which says at its head what it does, and runs it.
#[track_caller]
fn run(daemon: &Daemon, name: &str, arguments: &[&str], patience: Duration) -> Ended {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/scale/{name}.c"));
    let program = daemon.dir().join(name);
    let compiled = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-o"])
        .args([&program, &source])
        .args(["-libverbs", "-lpthread"])
        .status()
        .expect("a C compiler is installed");
    assert!(compiled.success(), "{name}.c does not compile");
    let program = program.to_str().expect("a plain path");
    let ended = daemon
        .start_program(name, program, arguments)
        .finish(patience);
    assert!(ended.ok(), "{}{}", ended.report(), daemon.log());
    println!("{}", ended.stdout.trim_end());
    ended
}

/// The most memory that a process ever had, in bytes: its own and shared files together.
fn peak_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB"));
    let kib: u64 = kib.and_then(|kib| kib.parse().ok()).expect("a size in kB");
    kib << 10
}

#[test]
fn ten_thousand_queue_pairs_connect_and_pass_traffic() {
    const PAIRS: u64 = 5000;
    let _alone = alone();
    let mut daemon = Daemon::pair();
    let worker = daemon.worker();
    let before = peak_memory(worker);
    let pairs = PAIRS.to_string();
    let arguments = ["roce0", "roce1", &pairs, "16", "3"];
    run(&daemon, "many_qps", &arguments, 4 * PATIENCE);
    let each = (peak_memory(worker) - before) / (2 * PAIRS);
    println!("{each} bytes of the daemon's memory for a queue pair");
    // Its queues, shared with the program, are four pages: 32 send requests of 256 bytes and 32 receive requests of 64.
    assert!(each < 40 << 10, "{each} bytes for a queue pair");
    daemon.expect_empty();
}

#[test]
fn one_process_opens_a_device_more_often_than_most_need() {
    let _alone = alone();
    let daemon = Daemon::pair();
    run(&daemon, "contexts", &["roce0", "600"], 2 * PATIENCE);
    daemon.expect_empty();
}

/// 2 GiB with `ROCELINE_SCALE=full`.
#[test]
fn the_longest_message_arrives() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let mut arguments = vec!["roce0", "roce1"];
    if env::var_os("ROCELINE_SCALE").is_none_or(|scale| scale != "full") {
        arguments.push("67108865");
    }
    run(&daemon, "longest", &arguments, 4 * PATIENCE);
    daemon.expect_empty();
}

#[test]
fn sixty_four_processes_wait_for_events_at_once() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let start = |name: String, device: &str, port: u16, rest: &[&str]| -> Process {
        let port = port.to_string();
        let mut arguments = vec![
            "-e", "-c", "-g", "0", "-n", "200", "-d", device, "-p", &port,
        ];
        arguments.extend(rest);
        daemon.start_program(&name, "ibv_rc_pingpong", &arguments)
    };
    let mut processes = Vec::new();
    for i in 0..32 {
        let (own, peer) = match i % 2 {
            0 => ("roce0", "roce1"),
            _ => ("roce1", "roce0"),
        };
        let port = free_port();
        let mut server = start(format!("server-{i}"), own, port, &[]);
        wait_for("listening server", PATIENCE, || {
            listening(port) || !server.is_running()
        });
        processes.push(server);
        processes.push(start(format!("client-{i}"), peer, port, &["127.0.0.1"]));
    }
    for process in processes {
        let ended = process.finish(2 * PATIENCE);
        assert!(ended.ok(), "{}{}", ended.report(), daemon.log());
    }
    daemon.expect_empty();
}

#[test]
fn threads_share_queue_pairs_and_completion_queues() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let ended = run(
        &daemon,
        "threads",
        &["roce0", "roce1", "8", "4", "1000"],
        2 * PATIENCE,
    );
    assert_eq!(ended.stdout, "8000 messages\n");
    assert_eq!(daemon.objects(), Objects::default());
}

#[test]
fn what_the_device_reports_is_what_works() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let (most, patience) = match env::var("ROCELINE_SCALE").as_deref() {
        Ok("full") => (None, 60 * PATIENCE),
        _ => (Some("1024"), 4 * PATIENCE),
    };
    let arguments: Vec<&str> = [Some("roce0"), most].into_iter().flatten().collect();
    run(&daemon, "limits", &arguments, patience);
    daemon.expect_empty();
}
