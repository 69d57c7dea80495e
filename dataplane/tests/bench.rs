//! `roceline bench` as its user meets it: every operation goes through, figures are JSON, goals are judged, wrong usage is told. No figure
//! is looked at: what else runs on the machine is not known.

#[path = "support/command.rs"]
#[allow(dead_code)] // Each test binary uses its own part of it.
mod command;

use std::fs;
use std::path::Path;
use std::process::Output;

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
    let figures = json(&[&["datapath", "--op=write,send", "--bytes=64"], &short[..]].concat());
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
fn cases_that_cannot_be_are_refused() {
    for (arguments, says) in [
        (
            &["datapath", "--op=write-inline", "--bytes=64"][..],
            "48 bytes at most",
        ),
        (
            &["datapath", "--mtu=1500", "--messages=1"],
            "no path MTU 1500",
        ),
        (&["latency", "--bytes=12"], "multiple of 8"),
    ] {
        let output = bench(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(says), "{said}");
    }
}
