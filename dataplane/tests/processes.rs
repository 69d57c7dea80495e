//! Programs that make children, become daemons, close descriptors and execute others while a peer writes to their registered
//! memory (`process_check.c` has the cases).

mod support;

use support::daemon::{Daemon, PAIR};
use support::process::Process;
use support::{PATIENCE, alone, compile};

#[track_caller]
fn pass(policy: &str, options: &[&str], cases: &[&str]) {
    let _alone = alone();
    let daemon = Daemon::start(PAIR);
    let program = compile(daemon.dir(), "process_check", &support::PROCESS_CHECK);
    let arguments = [options, &["roce0", "roce1"], cases].concat();
    let mut command = daemon.program(&program, &arguments);
    command.env("ROCELINE_MEMORY", policy);
    let checked = Process::start(daemon.dir(), "check", &mut command).finish(2 * PATIENCE);
    assert!(checked.ok(), "{}{}", checked.report(), daemon.log());
    eprint!("{}", checked.stdout);
    daemon.expect_empty();
}

#[test]
fn children_daemons_and_new_images_leave_memory_alone_that_is_mapped() {
    pass("auto", &[], &[]);
    pass("always", &[], &["children", "daemon", "exec"]);
}

#[test]
fn children_daemons_and_new_images_leave_memory_alone_that_is_not() {
    pass("never", &["-n"], &[]);
}
