//! `roceline tune` as its user meets it: it ends, what it writes is a configuration, what exists is not overwritten, wrong usage is told. No
//! figure is looked at: what else runs on the machine is not known. Its statistics and its search have tests of their own.

#[path = "support/command.rs"]
#[allow(dead_code)] // Each test binary uses its own part of it.
mod command;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use roceline::config::{Config, allowed_cpus};
use serde_json::Value;

fn tune(arguments: &[&str]) -> Output {
    command::run(&["tune"], arguments)
}

#[track_caller]
fn succeeds(arguments: &[&str]) -> String {
    command::succeeds(&tune(arguments))
}

#[track_caller]
fn fails(arguments: &[&str], code: i32, says: &str) {
    let output = tune(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    assert!(stderr.contains(says), "{arguments:?}: {stderr}");
}

/// An empty directory.
fn directory(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).expect("cargo made the directory above");
    directory
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain letters")
}

const SHORT: [&str; 3] = [
    "--time=1s",
    "--workload=write:64",
    "--only=rx_burst,tx_ring",
];

#[test]
fn what_it_writes_is_a_configuration_and_nothing_is_overwritten() {
    let output = directory("tune-output").join("tuned.toml");
    let arguments = [&SHORT[..], &["--output", text(&output)]].concat();
    let said = succeeds(&arguments);
    for expected in [
        "machine: ",
        "tuned for write:64",
        "The default against itself",
        "written: ",
    ] {
        assert!(said.contains(expected), "{said}");
    }
    let (config, written) = Config::load(&output).expect("a good configuration");
    assert_eq!(config.nics.len(), 2);
    assert!(
        written.contains("# Two NICs joined by an emulated link"),
        "comments stay"
    );
    fails(&arguments, 1, "is not overwritten");
    assert_eq!(fs::read_to_string(&output).expect("still there"), written);
    // The daemon takes it, too.
    command::succeeds(&command::run(
        &["nic"],
        &["--print-config", "--config", text(&output)],
    ));
}

#[test]
fn a_configuration_is_changed_in_place_or_left() {
    let file = directory("tune-write").join("my.toml");
    let before = "# mine\n[[nic]]\nname = \"a\" # the first\naddresses = [\"10.0.0.1/24\"]\nport = \"vdev:net_null0\"\n";
    fs::write(&file, before).expect("a new file");
    let arguments = [&SHORT[..], &["--json", "--config", text(&file), "--write"]].concat();
    let figures: Value =
        serde_json::from_str(&succeeds(&arguments)).expect("JSON and nothing else");
    let found = &figures["found"];
    let better = found["better"].as_bool().expect("a verdict");
    let after = fs::read_to_string(&file).expect("still there");
    assert_eq!(after != before, better, "{found}");
    assert_eq!(
        !found["changes"].as_array().expect("a list").is_empty(),
        better
    );
    assert!(after.starts_with("# mine\n") && after.contains("# the first\n"));
    Config::load(&file).expect("a good configuration");
    assert_eq!(figures["left"][0][0], "tx_ring", "it has no emulated link");
    assert!(found["figures"][0].as_f64() > Some(0.0));
    assert!(found["noise"]["turns"].as_u64() > Some(0));
    let others = fs::read_dir(file.parent().expect("a directory")).expect("is there");
    assert_eq!(others.count(), 1, "nothing else is left");
}

#[test]
fn latencies_and_every_operation_are_measured() {
    let rates = "write-inline,send:4K,read:64K:3,fetch-add";
    succeeds(&["--time=1s", "--only=ack_policy", "--workload", rates]);
    let latencies = [
        "--time=1s",
        "--only=idle",
        "--workload=send-lat:100,write-lat:4K",
    ];
    match allowed_cpus().len() {
        1 => fails(&latencies, 1, "takes two CPUs"),
        _ => drop(succeeds(&latencies)),
    }
}

#[test]
fn an_interrupted_search_shows_what_it_has_and_writes_nothing() {
    let output = directory("tune-interrupted").join("tuned.toml");
    let mut tune = Command::new(env!("CARGO_BIN_EXE_roceline"))
        .args(["tune", "--time=10m", "--workload=write:64", "--output"])
        .arg(&output)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program is built");
    let mut lines = BufReader::new(tune.stdout.take().expect("piped")).lines();
    let mut next = || lines.next().expect("more to say").expect("text");
    // What follows is measured.
    while !next().contains("tuned for write:64") {}
    // SAFETY: a signal to a process takes no memory of ours.
    let sent = unsafe { libc::kill(tune.id() as i32, libc::SIGINT) };
    assert_eq!(sent, 0, "it runs");
    while next() != "interrupted" {}
    let ended = tune.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("nothing is written"), "{said}");
    assert!(!output.exists());
}

#[test]
fn wrong_usage_is_told() {
    fails(&["--workload=wriet"], 2, "known are write");
    fails(&["--time=1ms"], 2, "must be from 1s to 24h");
    fails(&["--time=25h"], 2, "must be from 1s to 24h");
    fails(&["--write"], 2, "--config");
    fails(&["--only=mtuu"], 2, "mtu");
    fails(
        &["--output=/does/not/exist/tuned.toml"],
        1,
        "/does/not/exist/tuned.toml: cannot be written",
    );
    fails(
        &["--config=/does/not/exist.toml"],
        1,
        "/does/not/exist.toml",
    );
}
