//! Commands that run to their end and need no daemon.

use std::process::{Command, Output};

/// `roceline COMMAND ARGUMENTS`, away from whatever daemon the machine has.
pub fn run(command: &[&str], arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_roceline"))
        .args(command)
        .args(arguments)
        .env_remove("ROCELINE_SOCKET")
        .env_remove("ROCELINE_LOG")
        .output()
        .expect("the program runs")
}

/// What it prints if it succeeds, as it must.
#[track_caller]
pub fn succeeds(output: &Output) -> String {
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| text(bytes));
    assert!(output.status.success(), "{stderr}\n{stdout}");
    stdout
}

/// What a command has printed.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
