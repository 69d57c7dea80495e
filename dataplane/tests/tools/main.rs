//! Every tool of the distribution with every option that changes something, on every transport that it can use: perftest, the
//! examples of libibverbs, qperf, UCX.
//!
//! `ROCELINE_MATRIX=full` runs all of it (`scripts/matrix`), else few cases run that hold every pair of tool and transport and
//! every option that matters to the NIC. `ROCELINE_MATRIX_FILTER=TEXT` keeps those whose name contains the text.

mod qperf;
#[path = "../support/mod.rs"]
mod support;
mod table;
mod ucx;

use std::env;
use std::fmt::Display;
use std::time::Instant;

use support::daemon::Daemon;
use support::pair::{End, Pair, endless, rows, wait_for_traffic};
use support::process::Process;
use support::{PATIENCE, alone, free_port, listening, wait_for};
use table::Case;

/// Those to be run of all cases.
fn chosen(cases: Vec<Case>) -> Vec<Case> {
    let mut cases = match env::var("ROCELINE_MATRIX").as_deref() {
        Ok("full") => cases,
        _ => table::few(cases),
    };
    filter(&mut cases);
    cases
}

/// Keeps those that were asked for.
fn filter<C: Display>(cases: &mut Vec<C>) {
    let filter = env::var("ROCELINE_MATRIX_FILTER").unwrap_or_default();
    cases.retain(|case| case.to_string().contains(&filter));
}

/// Runs all cases, whatever becomes of each, and fails with the reports of those that failed.
#[track_caller]
fn run_all<C: Display>(
    daemon: &mut Daemon,
    cases: &[C],
    run: impl Fn(&Daemon, &C) -> Result<(), String>,
) {
    let mut failures = Vec::new();
    for (i, case) in cases.iter().enumerate() {
        let begin = Instant::now();
        let result = run(daemon, case);
        let (number, all) = (i + 1, cases.len());
        let took = begin.elapsed().as_secs_f64();
        match result {
            Ok(()) => println!("{number:3} of {all}: {case}: {took:.1} s"),
            Err(report) => {
                println!("{number:3} of {all}: {case}: FAILED");
                failures.push(format!("==== {case}\n{report}"));
            }
        }
        if !daemon.process().is_running() {
            failures.push("==== and the daemon has ended".into());
            break;
        }
    }
    assert!(
        failures.is_empty(),
        "{}\n{}",
        failures.join("\n"),
        daemon.log()
    );
    daemon.expect_empty();
}

/// Server on `roce0`, client on the other device or the same.
fn run_pair(daemon: &Daemon, case: &Case) -> Pair {
    let end = |device| End { daemon, device };
    let client = if case.loopback { "roce0" } else { "roce1" };
    let arguments: Vec<&str> = case.arguments.split(' ').collect();
    Pair::run(
        end("roce0"),
        end(client),
        case.tool,
        &arguments,
        2 * PATIENCE,
    )
}

#[test]
fn perftest_on_every_transport() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    daemon.quicken();
    let cases = chosen(table::perftest());
    run_all(&mut daemon, &cases, |daemon, case| {
        let run = run_pair(daemon, case);
        if !run.ok() {
            return Err(run.report());
        }
        let rows = rows(&run.client.stdout).len();
        let expected = if case.option.contains("-a") { 23 } else { 1 };
        // With -U come all latencies.
        if rows < expected {
            return Err(format!("{rows} rows of results\n{}", run.report()));
        }
        Ok(())
    });
}

#[test]
fn pingpongs_on_every_transport() {
    let _alone = alone();
    let mut daemon = Daemon::pair();
    let cases = chosen(table::pingpong());
    run_all(&mut daemon, &cases, |daemon, case| {
        let run = run_pair(daemon, case);
        if !run.ok() || !run.client.stdout.contains("iters in") {
            return Err(run.report());
        }
        Ok(())
    });
}

/// Ctrl-C in the middle, at either end.
#[test]
fn interrupted_runs_leave_nothing_behind() {
    let _alone = alone();
    let daemon = Daemon::pair();
    let tools = [
        ("ib_write_bw", &["-q", "4"][..]),
        ("ib_send_bw", &["-b"]),
        ("ib_read_bw", &[]),
        ("ib_send_bw", &["-e"]),
    ];
    // Each tool at one of its ends, and at both in the full product.
    let ends = [true, false];
    let full = env::var("ROCELINE_MATRIX").is_ok_and(|which| which == "full");
    for (i, (tool, options)) in tools.into_iter().enumerate() {
        let which = if full { &ends[..] } else { &ends[i % 2..][..1] };
        for &server_first in which {
            let (server, client) = endless(&daemon, tool, options);
            wait_for_traffic(&daemon);
            let (first, second) = match server_first {
                true => (server, client),
                false => (client, server),
            };
            for process in [first, second] {
                process.signal(libc::SIGINT);
                let ended = process.finish(PATIENCE);
                assert!(ended.failed(), "{}", ended.report());
            }
            daemon.expect_empty();
        }
    }
}
