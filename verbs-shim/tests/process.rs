//! The shim in programs that fork, spawn, clone, and close descriptors behind its back, against the stub daemon
//! (`process_probe.c` looks from inside).

mod support;

use std::process::Command;

use support::{Manner, Scratch, Seen, Stub, compile, library, shimmed, text};

struct Bench {
    scratch: Scratch,
    stub: Stub,
}

impl Bench {
    fn new(case: &str) -> Bench {
        let scratch = Scratch::new(&format!("process-{case}"));
        let stub = Stub::start(&scratch.socket(), Manner::default());
        Bench { scratch, stub }
    }

    fn probe(&self, case: &str) -> Command {
        let program = compile(&self.scratch, "probe", &["process_probe.c"], &[]);
        let mut command = shimmed(program, &self.scratch.socket());
        command.arg(case);
        command
    }
}

/// What the probe said on stderr.
#[track_caller]
fn passes(case: &str) -> String {
    let bench = Bench::new(case);
    let output = bench.probe(case).output().expect("the probe");
    assert!(output.status.success(), "{}", text(&output));
    let seen: Vec<Seen> = bench.stub.seen.try_iter().collect();
    let opened = seen.iter().filter(|s| **s != Seen::Closed).count();
    assert!(opened > 0, "{seen:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn numbers_that_were_closed_by_system_call_are_the_programs_again() {
    passes("raw");
}

#[test]
fn a_device_whose_hidden_descriptors_are_gone_fails_and_harms_nobody() {
    passes("hidden-gone");
}

#[test]
fn ranges_of_descriptors_are_closed_around_the_hidden_ones() {
    passes("ranges");
}

#[test]
fn a_program_that_becomes_a_daemon_opens_the_device_again() {
    let said = passes("daemon");
    let lines: Vec<_> = said.lines().collect();
    assert!(
        lines.len() == 1 && lines[0].contains("open the device here, after the fork"),
        "{said}"
    );
}

#[test]
fn children_of_a_bare_clone_leave_the_parent_alone() {
    passes("clones");
}

#[test]
fn children_that_close_what_they_inherit_leave_the_parent_alone() {
    passes("children");
}

/// Handlers of the program may use the shim while it holds its locks for the fork.
#[test]
fn handlers_of_pthread_atfork_may_close_and_advise() {
    let bench = Bench::new("atfork");
    let flags = ["-shared", "-fPIC"];
    let early = compile(&bench.scratch, "libearly.so", &["atfork_early.c"], &flags);
    let preload = format!("{}:{}", library().display(), early.display());
    let mut probe = bench.probe("atfork");
    let output = probe
        .env("LD_PRELOAD", preload)
        .output()
        .expect("the probe");
    assert!(output.status.success(), "{}", text(&output));
}
