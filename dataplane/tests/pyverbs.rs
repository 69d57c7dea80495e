//! rdma-core's own Python tests (Debian's python3-pyverbs), unmodified, over a real daemon: each ends as
//! `pyverbs/expected.txt` says.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::daemon::Daemon;
use support::{PATIENCE, alone};

/// Debian's: the package's modules are for this one, whatever else is called `python3`.
const PYTHON: &str = "/usr/bin/python3";

/// Tests that look at once for what takes a while: the one that resizes a CQ posts sends and counts on their completions being there. A
/// daemon that had no CPU meanwhile has not written them, so a module of which nothing else is wrong is run again.
const IN_A_HURRY: [&str; 1] = ["tests.test_cq.CQTest.test_resize_cq"];
/// Runs of such a module.
const RUNS: usize = 5;

/// How a test may end.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Expected {
    Pass,
    /// For our reason, and one of the texts is in the test's own.
    Skip(String, Vec<String>),
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pyverbs")
}

/// `expected.txt`, whose head explains its form.
fn expected() -> BTreeMap<String, Expected> {
    let path = directory().join("expected.txt");
    let text = fs::read_to_string(&path).expect("the file is in the repository");
    let mut section = None;
    let mut tests = BTreeMap::new();
    for line in text.lines() {
        let wrong = || -> ! { panic!("{}: what is {line:?}?", path.display()) };
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(head) = line
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
        {
            section = Some(match head.split_once(' ') {
                None if head == "pass" => Expected::Pass,
                Some(("skip", reason)) => Expected::Skip(reason.into(), Vec::new()),
                _ => wrong(),
            });
            continue;
        }
        match (line.strip_prefix("says "), &mut section) {
            (Some(text), Some(Expected::Skip(_, texts))) => texts.push(text.into()),
            (None, Some(section)) => {
                let twice = tests.insert(line.to_owned(), section.clone());
                assert!(twice.is_none(), "{line} is there twice");
            }
            _ => wrong(),
        }
    }
    tests
}

/// What the runner said of each test: `PASS`, `SKIP` or `FAIL`, and why.
fn results(output: &str) -> BTreeMap<String, (String, String)> {
    output
        .lines()
        .filter_map(|line| {
            let (result, why) = line.split_once("  # ").unwrap_or((line, ""));
            let (verdict, name) = result.split_once(' ')?;
            ["PASS", "SKIP", "FAIL"]
                .contains(&verdict)
                .then(|| (name.into(), (verdict.into(), why.into())))
        })
        .collect()
}

/// What is wrong with how a test ended, if something is.
fn judge(expected: &Expected, result: Option<&(String, String)>) -> Option<String> {
    let Some((verdict, why)) = result else {
        return Some("has not said how it ended".into());
    };
    match (expected, verdict.as_str()) {
        (Expected::Pass, "PASS") => None,
        (Expected::Skip(_, texts), "SKIP") if texts.iter().any(|text| why.contains(text)) => None,
        (Expected::Skip(..), "PASS") => {
            Some("passes now: its place in expected.txt is under [pass]".into())
        }
        (Expected::Skip(reason, _), _) => Some(format!(
            "{verdict} ({why}), where it should be skipped because {reason}"
        )),
        _ => Some(format!("{verdict} ({why})")),
    }
}

/// Runs these modules, each in a process of its own, with that entry of the GID table.
fn run(modules: impl Fn(&str) -> bool, gid: &str) {
    let _alone = alone();
    let daemon = Daemon::pair();
    let script = directory().join("run.py");
    let script = script.to_str().expect("a plain path");
    let sources = daemon.dir().join("tests");
    let sources = sources.to_str().expect("a plain path");
    let unpacked = Command::new(PYTHON)
        .args([script, "--unpack", sources])
        .status();
    assert!(
        unpacked.is_ok_and(|status| status.success()),
        "no tests to run: is Debian's python3-pyverbs installed, with its documentation?"
    );

    let expected = expected();
    let module = |test: &str| test.split('.').nth(1).map(str::to_owned);
    let mut names: Vec<String> = expected.keys().filter_map(|test| module(test)).collect();
    names.dedup();
    names.retain(|name| modules(name));
    let mut wrong = Vec::new();
    for name in &names {
        let arguments = [script, sources, name, "--dev", "roce0", "--gid", gid];
        let (mut ended, mut faults) = (None, Vec::new());
        for _ in 0..RUNS {
            let run = daemon
                .start_program(name, PYTHON, &arguments)
                .finish(PATIENCE);
            let results = results(&run.stdout);
            ended = Some(run);
            faults.clear();
            let mut hurried = true;
            for (test, expected) in &expected {
                if module(test).as_ref() == Some(name) {
                    if let Some(fault) = judge(expected, results.get(test)) {
                        faults.push(format!("{test}: {fault}"));
                        hurried &= IN_A_HURRY.contains(&test.as_str());
                    }
                }
            }
            for test in results.keys().filter(|test| !expected.contains_key(*test)) {
                faults.push(format!("{test}: not in expected.txt"));
                hurried = false;
            }
            if faults.is_empty() || !hurried {
                break;
            }
        }
        if !faults.is_empty() {
            let report = ended.map_or_else(String::new, |run| run.report());
            wrong.push(format!("{}\n{report}", faults.join("\n")));
        }
    }
    assert!(
        wrong.is_empty(),
        "--gid {gid}\n{}\n{}",
        wrong.join("\n"),
        daemon.log()
    );
    daemon.expect_empty();
}

#[test]
fn every_test_ends_as_expected() {
    run(|_| true, "0");
}

#[test]
fn those_with_traffic_do_so_over_ipv6_too() {
    let with_traffic = [
        "test_atomic",
        "test_cq_events",
        "test_cqex",
        "test_mr",
        "test_qpex",
        "test_relaxed_ordering",
    ];
    run(|module| with_traffic.contains(&module), "1");
}

#[test]
fn every_reason_for_a_skip_is_in_the_documents() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/conformance.md");
    let text = fs::read_to_string(path).expect("the document is in the repository");
    let mut count = BTreeMap::new();
    for expected in expected().into_values() {
        if let Expected::Skip(reason, _) = expected {
            *count.entry(reason).or_insert(0) += 1;
        }
    }
    for (reason, count) in count {
        let row = format!("| {count} | {reason} |");
        assert!(text.contains(&row), "no row `{row}`");
    }
}
