//! `roceline bench` as its user meets it: every operation goes through, figures are JSON, goals are judged, wrong usage is told. No figure
//! is looked at: what else runs on the machine is not known.

#[path = "support/command.rs"]
#[allow(dead_code)] // Each test binary uses its own part of it.
mod command;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use roceline::config::allowed_cpus;
use serde_json::Value;

fn bench(arguments: &[&str]) -> Output {
    command::run(&["bench"], arguments)
}

#[track_caller]
fn succeeds(arguments: &[&str]) -> String {
    command::succeeds(&bench(arguments))
}

#[track_caller]
fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&succeeds(arguments)).expect("JSON and nothing else")
}

#[test]
fn every_operation_moves_exactly_as_many_messages_as_asked() {
    let bytes = "--bytes=8,64,5000,65536";
    succeeds(&["datapath", bytes, "--messages", "300"]);
    succeeds(&[
        "datapath",
        bytes,
        "--messages",
        "300",
        "--qps=70",
        "--kernel-memory",
    ]);
    succeeds(&[
        "datapath",
        bytes,
        "--messages=50",
        "--mtu=256",
        "--ack-per-message",
    ]);
}

#[test]
fn figures_are_json_with_machine_and_stages() {
    let short = ["--json", "--rounds=1", "--round=1"];
    let twice = ["datapath", "--op=write,send,write", "--bytes=64"];
    let figures = json(&[&twice, &short[..]].concat());
    let cases = figures["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 2);
    for case in cases {
        for side in ["requester", "responder"] {
            assert!(
                case[side]["cycles"]["median"].as_f64() > Some(0.0),
                "{case}"
            );
            assert!(!case[side]["stages"].as_array().expect("stages").is_empty());
        }
    }
    assert!(figures["machine"]["tsc_hz"].as_f64() > Some(1e6));
    let figures = json(&[&["scale", "--qps=1,20", "--mrs=1,30"], &short[..]].concat());
    assert_eq!(figures["qps"][1]["qps"], 20);
    assert_eq!(figures["mrs"][1]["mrs"], 30);
}

#[test]
fn goals_are_judged_from_results_in_a_directory() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-goals");
    fs::create_dir_all(&directory).expect("cargo made the directory above");
    let results =
        r#"{"rounds_moved": [], "samples": [{"name": "first_packet", "value": 300, "round": 1}]}"#;
    fs::write(directory.join("start.json"), results).expect("a directory of our own");
    let path = directory.to_str().expect("an ordinary name");
    let table = succeeds(&["goals", path]);
    let start = table.lines().find(|line| line.starts_with("start to"));
    assert!(start.is_some_and(|line| line.ends_with("met")), "{table}");
    assert!(table.contains("not measured"), "{table}");
    assert_eq!(succeeds(&["plot", path]), "", "there is nothing to draw");
    fs::write(directory.join("start.json"), "{").expect("a directory of our own");
    let broken = bench(&["goals", path]);
    let said = String::from_utf8_lossy(&broken.stderr).into_owned();
    assert!(
        !broken.status.success() && said.contains("start.json"),
        "{said}"
    );
}

#[test]
fn figures_show_what_there_is() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-figures");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).expect("cargo made the directory above");
    let path = directory.to_str().expect("an ordinary name");
    let sample = |name: &str, value: f64, round: u32| {
        format!(r#"{{"name":"{name}","value":{value},"round":{round}}}"#)
    };
    let write = |name: &str, text: &str| {
        fs::write(directory.join(name), text).expect("a directory of our own");
    };
    // TCP's best of a round is 20, then 10, which is 2 and 3 times as slow; of two rounds the median is the larger.
    let apps = [
        sample("write_bw_64k", 40.0, 1),
        sample("tcp_1_core_veth", 20.0, 1),
        sample("tcp_1_core_lo", 10.0, 1),
        sample("write_bw_64k", 30.0, 2),
        sample("tcp_1_core_lo", 10.0, 2),
        sample("write_bw_64k", 9999.0, 3),
        sample("tcp_1_core_lo", 1.0, 3),
    ];
    let file = |samples: &[String]| {
        let samples = samples.join(",");
        format!(r#"{{"rounds_moved":[3],"samples":[{samples}]}}"#)
    };
    write("apps.json", &file(&apps));
    let memory = [
        sample("qp-100-own", 5000.0, 1),
        sample("qp-1000-own", 4000.0, 1),
        sample("daemon_rss", 50.0, 1),
    ];
    write("memory.json", &file(&memory));
    let way = r#"{"name":"kernel","median":10.5,"p10":10}"#;
    write(
        "icrc.json",
        &format!(r#"{{"copy_and_crc":[{{"bytes":64,"ways":[{way}]}}]}}"#),
    );
    let drawn = succeeds(&["plot", path]);
    let names: Vec<_> = drawn
        .lines()
        .filter_map(|line| line.rsplit('/').next())
        .collect();
    assert_eq!(names, ["icrc.svg", "memory.svg", "apps.svg"]);
    let shows = |figure: &str, text: &str| {
        let svg = fs::read_to_string(directory.join(figure)).expect("it was drawn");
        assert!(svg.contains(text), "{text} in {svg}");
    };
    shows("apps.svg", "best on one core: 3.00");
    shows("memory.svg", "queue pair, the daemon");
    shows("icrc.svg", "kernel");
}

/// The process that is the other half of a benchmark.
fn other_half(bench: u32) -> u32 {
    let children = fs::read_to_string(format!("/proc/{bench}/task/{bench}/children"));
    let children = children.expect("it runs");
    let children = children.split_ascii_whitespace();
    let is_half = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).nth(2) == Some(b"far")
    };
    let mut numbers = children.filter_map(|pid| pid.parse().ok());
    numbers.find(is_half).expect("it measures with another")
}

#[test]
fn a_process_that_dies_meanwhile_is_told() {
    if allowed_cpus().len() < 2 {
        eprintln!("skipped: two halves that poll need two CPUs");
        return;
    }
    for arguments in [
        &["datapath", "--op=write", "--rounds=1000", "--round=20"][..],
        &["latency", "--trips=100000000"],
    ] {
        let mut bench = Command::new(env!("CARGO_BIN_EXE_roceline"))
            .arg("bench")
            .args(arguments)
            .args(["--port=memif", "--bytes=64"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program is built");
        let out = bench.stdout.take().expect("piped");
        // What follows is measured.
        let started = BufReader::new(out).lines().map_while(Result::ok);
        let mut lines = started.skip_while(|line| !line.starts_with("lcores: "));
        assert!(lines.next().is_some(), "it ended before it measured");
        let half = other_half(bench.id());
        // SAFETY: a signal to a process takes no memory of ours.
        let killed = unsafe { libc::kill(half as i32, libc::SIGKILL) };
        assert_eq!(killed, 0, "it runs");
        let ended = bench.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{said}");
        let expected = "the other process ended (signal 9): the case has no figure";
        assert!(said.contains(expected), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[test]
fn icrcs_by_what_is_not_known_end_it_as_they_do_a_daemon() {
    for command in [&["bench", "datapath"][..], &["bench", "machine"], &["tune"]] {
        let output = Command::new(env!("CARGO_BIN_EXE_roceline"))
            .args(command)
            .env("ROCELINE_ICRC", "abacus")
            .output()
            .expect("the program runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("ROCELINE_ICRC: "), "{said}");
    }
}

#[test]
fn cases_that_cannot_be_are_refused() {
    for (arguments, says) in [
        (
            &["datapath", "--op=write-inline", "--bytes=64"][..],
            "no case is left of --op write-inline with --bytes 64: write-inline has 48 bytes at most",
        ),
        (
            &["datapath", "--mtu=1500", "--messages=1"],
            "must be 256, 512,",
        ),
        (&["latency", "--bytes=12"], "multiple of 8"),
        (&["latency", "--trips=100", "--rounds=3"], "--rounds"),
        (&["datapath", "--bytes=4G"], "such as 64, 4K or 1M"),
        (
            &["machine", "--output=/does/not/exist/m.json"],
            "/does/not/exist/m.json: cannot be written",
        ),
        (&["goals", "/does/not/exist"], "/does/not/exist: "),
        (&["plot", "/does/not/exist"], "/does/not/exist: "),
    ] {
        let output = bench(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(says), "{said}");
    }
}
