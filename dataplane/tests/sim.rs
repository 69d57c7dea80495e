//! `roceline sim` as its user meets it: files, bands and exit codes, errors that name place and remedy, and the same bytes
//! for the same seed on any number of threads.

#[path = "support/command.rs"]
#[allow(dead_code)] // Each test binary uses its own part of it.
mod command;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use command::text;

fn sim(arguments: &[&str]) -> Output {
    command::run(&["sim"], arguments)
}

/// A directory of a test's own, empty.
fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("cargo made the directory above");
    path
}

fn file(directory: &Path, content: &str) -> String {
    let path = directory.join("scenario.toml");
    fs::write(&path, content).expect("a directory of our own");
    path.to_str().expect("an ordinary name").into()
}

#[track_caller]
fn succeeds(arguments: &[&str]) -> String {
    let output = sim(arguments);
    let stderr = text(&output.stderr);
    assert!(
        output.status.success(),
        "{arguments:?}: {stderr}{}",
        text(&output.stdout)
    );
    text(&output.stdout)
}

#[track_caller]
fn fails(arguments: &[&str], code: i32, says: &[&str]) {
    let output = sim(arguments);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    for part in says {
        assert!(stderr.contains(part), "no {part:?} in {stderr}");
    }
}

const POISSON: &str = "\
name = 'small'
duration = '2ms'
[topology]
kind = 'pair'
rate = '100Gb/s'
[[traffic]]
kind = 'poisson'
load = 0.3
sizes = 'hadoop'
[[expect]]
metric = 'failed'
max = 0
";

/// All files of a directory with their contents, by name.
fn files(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(directory).expect("it was made");
    let mut files: Vec<_> = entries
        .map(|entry| {
            let path = entry.expect("it can be read").path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            (name, fs::read(&path).expect("it can be read"))
        })
        .collect();
    files.sort();
    files
}

#[test]
fn the_same_seed_gives_the_same_bytes_of_every_output_on_any_number_of_threads() {
    let directory = directory("sim-bytes");
    let scenario = file(&directory, POISSON);
    let outputs = |threads: &str, seed: &str| {
        let folder = directory.join(format!("{threads}-{seed}"));
        let _ = fs::remove_dir_all(&folder);
        let folder = folder.to_str().expect("an ordinary name");
        let arguments = [
            &scenario,
            "--threads",
            threads,
            "--seed",
            seed,
            "--seeds",
            "3",
            "--sweep",
            "nic.window=32,256",
            "--csv",
            folder,
            "--plots",
            folder,
        ];
        let table = succeeds(&arguments);
        let json = succeeds(&[&arguments[..], &["--json"]].concat());
        (table, json, files(Path::new(folder)))
    };
    let one = outputs("1", "7");
    assert!(one.2.len() >= 7, "CSV files and plots: {:?}", one.2.len());
    assert!(one == outputs("1", "7"), "again on one thread");
    assert!(one == outputs("4", "7"), "on four threads");
    assert!(one.2 != outputs("4", "8").2, "another seed is another run");
}

#[test]
fn bands_decide_the_exit_code() {
    let directory = directory("sim-bands");
    let held = file(&directory, POISSON);
    assert!(succeeds(&[&held]).contains("held"));
    let broken = POISSON.replace("max = 0", "min = 1\nwhy = 'because of the test'");
    let missed = file(&directory, &broken);
    let output = sim(&[&missed]);
    assert_eq!(output.status.code(), Some(1));
    let table = text(&output.stdout);
    assert!(
        table.contains("MISSED") && table.contains("because of the test"),
        "{table}"
    );
    fails(&[&missed], 1, &["1 of 1 bands", "--no-check"]);
    assert!(!succeeds(&[&missed, "--no-check"]).contains("MISSED"));
    // The bands are about the values of the file.
    succeeds(&[&missed, "--set", "nic.window=64"]);
    fails(
        &[&missed, "--set", "nic.window=64", "--check"],
        1,
        &["1 of 1"],
    );
}

#[test]
fn variants_stand_side_by_side_and_are_compared() {
    let directory = directory("sim-variants");
    let text = format!(
        "{POISSON}[[expect]]\nmetric = 'far:fct.p50'\nper = 'near:fct.p50'\nmin = 2\n\
         [[variant]]\nname = 'near'\n[[variant]]\nname = 'far'\nset = ['topology.delay=10us']\n"
    );
    let scenario = file(&directory, &text);
    let table = succeeds(&[&scenario]);
    assert!(
        table.contains("near") && table.contains("far:fct.p50 / near:fct.p50"),
        "{table}"
    );
    let json: serde_json::Value = serde_json::from_str(&succeeds(&[&scenario, "--json"])).unwrap();
    assert_eq!(json["runs"].as_array().map(Vec::len), Some(2));
    assert_eq!(json["held"], true);
    assert_eq!(json["expectations"].as_array().map(Vec::len), Some(3));
    let one = succeeds(&[&scenario, "--variant", "near"]);
    assert!(!one.contains("far"), "{one}");
}

#[test]
fn metrics_that_are_asked_for_are_shown_and_must_exist() {
    let directory = directory("sim-metrics");
    let scenario = file(&directory, POISSON);
    let json: serde_json::Value = serde_json::from_str(&succeeds(&[&scenario, "--json"])).unwrap();
    let metrics = json["runs"][0]["metrics"].as_object().expect("metrics");
    // Whatever was measured can be asked for, and none is left out where runs stand below one another.
    let mut arguments = vec![scenario.as_str(), "--seeds", "6"];
    for name in metrics.keys() {
        arguments.extend(["--metric", name]);
    }
    let table = succeeds(&arguments);
    assert!(metrics.len() > 20);
    for name in metrics.keys() {
        assert!(table.contains(name), "no {name} in\n{table}");
    }
    fails(
        &[&scenario, "--metric", "goodput.totl"],
        2,
        &["--metric goodput.totl", "did you mean `goodput.total`?"],
    );
}

#[test]
fn quotients_of_nothing_are_numbers_or_not_measured() {
    let directory = directory("sim-quotients");
    let band = |over: &str| format!("[[expect]]\nmetric = '{over}'\nper = 'drops'\nmin = 100\n");
    let text = format!("{POISSON}{}{}", band("packets"), band("marks"));
    let output = sim(&[&file(&directory, &text), "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let [infinite, none] = [1, 2].map(|at| &json["expectations"][at]);
    assert_eq!(
        (&infinite["value"], &infinite["holds"]),
        (&1e12.into(), &true.into())
    );
    assert_eq!(
        (&none["value"], &none["holds"]),
        (&().into(), &false.into())
    );
}

#[test]
fn slips_are_told_with_place_and_remedy() {
    let directory = directory("sim-slips");
    let misspelt = file(&directory, &POISSON.replace("load", "laod"));
    fails(
        &[&misspelt],
        1,
        &["scenario.toml:8", "`laod`", "did you mean `load`?"],
    );
    let scenario = file(&directory, POISSON);
    fails(&["no-such"], 1, &["no-such", "--list"]);
    fails(&["no/such.toml"], 1, &["no/such.toml", "No such file"]);
    fails(&[], 2, &["SCENARIO"]);
    fails(
        &[&scenario, "--set", "nic.windw=3"],
        1,
        &["--set nic.windw=3", "`window`"],
    );
    fails(
        &[&scenario, "--set", "nic.window=0"],
        1,
        &["--set nic.window=0", "from 1"],
    );
    fails(
        &[&scenario, "--sweep", "traffic.3.load=1"],
        1,
        &["there are 1 [[traffic]]"],
    );
    fails(
        &[&scenario, "--variant", "x"],
        1,
        &["--variant x", "has no variants"],
    );
    fails(&[&scenario, "--seeds", "0"], 2, &["--seeds", "from 1"]);
}

/// The beginning of a pcapng file: a section header with the byte-order magic (draft-ietf-opsawg-pcapng, 4.1).
#[test]
fn links_are_recorded() {
    let directory = directory("sim-pcap");
    let scenario = file(&directory, POISSON);
    let capture = directory.join("node1.pcapng");
    let option = format!("node1={}", capture.to_str().expect("an ordinary name"));
    succeeds(&[&scenario, "--pcap", &option]);
    let first = fs::read(&capture).expect("it was written");
    assert_eq!(first[..4], 0x0a0d_0d0a_u32.to_le_bytes());
    assert!(first.len() > 100_000, "{}", first.len());
    succeeds(&[&scenario, "--pcap", &option]);
    assert!(
        first == fs::read(&capture).expect("again"),
        "the same seed, the same bytes"
    );
    fails(
        &[&scenario, "--pcap", "node2=x"],
        1,
        &["--pcap node2=x", "0 to 1"],
    );
    fails(&[&scenario, "--pcap", "switch0.port0=x"], 1, &["no switch"]);
    fails(
        &[&scenario, "--pcap", &option, "--seeds", "2"],
        1,
        &["2 runs"],
    );
    fails(
        &[&scenario, "--pcap", &option, "--pcap", "node1=x"],
        1,
        &["--pcap node1=x: the link is recorded already", &option],
    );
    // The file that is told is the one that could not be written.
    fails(
        &[&scenario, "--pcap", &option, "--pcap", "node0=/dev/full"],
        1,
        &["/dev/full: "],
    );
    fails(
        &[&scenario, "--pcap", "node1=/no/such/x"],
        1,
        &["/no/such/x", "No such file"],
    );
}

#[test]
fn help_and_lists_teach() {
    let help = succeeds(&["--help"]);
    for part in [
        "--sweep",
        "--list",
        "two-flows",
        "docs/simulator.md",
        "Exit status",
    ] {
        assert!(help.contains(part), "no {part:?} in\n{help}");
    }
    assert!(succeeds(&["--list"]).contains("two-flows"));
    assert!(succeeds(&["--metrics"]).contains("slowdown"));
    // What is shown can be run.
    let directory = directory("sim-show");
    let shown = file(&directory, &succeeds(&["two-flows", "--show"]));
    assert_eq!(succeeds(&[&shown]), succeeds(&["two-flows"]));
}
