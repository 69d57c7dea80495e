//! The command line as a user meets it: exit codes, and errors that name value and remedy. No daemon needed.

#[path = "support/command.rs"]
#[allow(dead_code)] // Each test binary uses its own part of it.
mod command;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use command::text;

fn roceline(arguments: &[&str]) -> Output {
    command::run(&[], arguments)
}

/// A file in the tests' own temporary directory.
fn file(name: &str, content: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, content).expect("cargo made the directory");
    path
}

#[track_caller]
fn fails(arguments: &[&str], code: i32, says: &[&str]) {
    let output = roceline(arguments);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    if code == 1 {
        assert!(stderr.starts_with("roceline: "), "{stderr}");
    }
    for part in says {
        assert!(stderr.contains(part), "no {part:?} in {stderr}");
    }
    assert_eq!(text(&output.stdout), "", "errors go to stderr");
}

#[test]
fn wrong_usage_is_exit_code_2() {
    fails(&["nik"], 2, &["nik", "nic"]);
    fails(&["run"], 2, &["CMD"]);
    fails(&["show", "qpp"], 2, &["qps"]);
    fails(&["nic", "--preset", "triple"], 2, &["pair"]);
    fails(
        &["nic", "--config", "x", "--preset", "pair"],
        2,
        &["--preset"],
    );
    fails(&["wait", "--timeout", "soon"], 2, &["soon"]);
}

#[test]
fn an_empty_socket_variable_is_as_good_as_none() {
    let status = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_roceline"))
            .args(arguments)
            .env("ROCELINE_SOCKET", "")
            .output()
            .expect("the program runs");
        (output.status.code(), text(&output.stderr))
    };
    let (code, stderr) = status(&["sim", "--list"]);
    assert_eq!(code, Some(0), "{stderr}");
    let (code, stderr) = status(&["--socket", "/nowhere/r.sock", "show"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("/nowhere/r.sock"), "{stderr}");
}

#[test]
fn an_unknown_icrc_kernel_is_refused_at_the_start() {
    let output = Command::new(env!("CARGO_BIN_EXE_roceline"))
        .args(["nic", "--preset", "pair"])
        .env("ROCELINE_ICRC", "fast")
        .output()
        .expect("the program runs");
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    for part in ["ROCELINE_ICRC", "`fast`", "vpclmulqdq-256", "portable"] {
        assert!(stderr.contains(part), "no {part:?} in {stderr}");
    }
}

#[test]
fn help_teaches() {
    for (arguments, says) in [
        (
            &["--help"][..],
            &["roceline run -- ibv_devinfo", "doctor", "ROCELINE_SOCKET"][..],
        ),
        (&["nic", "--help"], &["--print-config", "--cpu", "SIGTERM"]),
        (
            &["run", "--help"],
            &["LD_PRELOAD", "--device", "roceline run ibv_devices", "127"],
        ),
        (&["wait", "--help"], &["--timeout", "[default: 30]"]),
        (&["show", "--help"], &["qps", "--json"]),
        (&["stat", "--help"], &["--watch", "--json"]),
        (&["address", "--help"], &["IBV_EVENT_GID_CHANGE", "remove"]),
        (&["doctor", "--help"], &["missing"]),
    ] {
        let output = roceline(arguments);
        assert!(output.status.success());
        let help = text(&output.stdout);
        for part in says {
            assert!(help.contains(part), "{arguments:?}: no {part:?} in\n{help}");
        }
    }
}

#[test]
fn the_printed_configuration_can_be_read_back() {
    let printed = roceline(&["nic", "--print-config"]);
    assert!(printed.status.success());
    let config = file("printed.toml", &text(&printed.stdout));
    let again = roceline(&[
        "nic",
        "--config",
        config.to_str().unwrap(),
        "--print-config",
    ]);
    assert!(again.status.success(), "{}", text(&again.stderr));
    assert_eq!(printed.stdout, again.stdout);
}

#[test]
fn a_bad_configuration_is_told_with_its_line() {
    let config = file("bad.toml", "[[nic]]\nname = \"roce0\"\nadress = []\n");
    let config = config.to_str().unwrap();
    fails(
        &["nic", "--config", config],
        1,
        &["bad.toml:3", "`adress`", "did you mean `addresses`?"],
    );
    fails(
        &["nic", "--config", "/no/such.toml"],
        1,
        &["/no/such.toml", "No such file"],
    );
    let config = file("type.toml", "[eal]\nmemory_mb = \"256M\"\n");
    fails(
        &["nic", "--config", config.to_str().unwrap()],
        1,
        &["type.toml:2: `memory_mb`", "\"256M\"", "a whole number"],
    );
    fails(&["nic", "--cpu", "99999"], 1, &["--cpu 99999", "CPUs"]);
}

#[test]
fn without_a_daemon_every_command_says_so() {
    let socket = "/tmp/roceline-nobody-here.sock";
    for arguments in [
        &["show", "--socket", socket][..],
        &["stat", "--socket", socket],
        &["top", "--socket", socket],
        &["wait", "--timeout", "0", "--socket", socket],
    ] {
        fails(arguments, 1, &[socket, "roceline nic"]);
    }
}

#[test]
fn what_cannot_be_run_ends_as_in_a_shell() {
    let shim = file("libroceline_shim.so", "");
    let no_program = file("no-program", "");
    let no_program = no_program.to_str().unwrap();
    for (arguments, code, says) in [
        (&["--", "no-such-program"][..], 127, "not found"),
        (&["no-such-program", "-x"], 127, "not found"),
        (&["--", "./no-such-program"], 127, "not found"),
        (&[no_program], 126, "chmod +x"),
        (&["/etc"], 126, "is no program"),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_roceline"))
            .args(["run", "--socket", "/tmp/x.sock"])
            .args(arguments)
            .env("ROCELINE_SHIM", &shim)
            .output()
            .expect("the program runs");
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(says), "{arguments:?}: {stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[test]
fn arguments_behind_the_program_are_its_own() {
    // Without a daemon the program is found and then misses one: its option was not taken for one of ours.
    let shim = file("libroceline_shim.so", "");
    let socket = "/tmp/roceline-nobody-here.sock";
    for arguments in [
        &["true", "--any-cpux", "-v"][..],
        &["--any-cpu", "true", "--socket", "y"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_roceline"))
            .args(["run", "--socket", socket])
            .args(arguments)
            .env("ROCELINE_SHIM", &shim)
            .output()
            .expect("the program runs");
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(socket), "{stderr}");
    }
}

#[test]
fn a_log_level_that_does_not_exist_is_an_error() {
    let output = Command::new(env!("CARGO_BIN_EXE_roceline"))
        .args(["show", "--socket", "/tmp/x.sock"])
        .env("ROCELINE_LOG", "verbose")
        .output()
        .expect("the program runs");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for part in [
        "ROCELINE_LOG",
        "\"verbose\"",
        "error, warn, info, debug, trace",
    ] {
        assert!(stderr.contains(part), "{stderr}");
    }
}

#[test]
fn a_shim_that_does_not_exist_is_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_roceline"))
        .args(["run", "--socket", "/tmp/x.sock", "--", "true"])
        .env("ROCELINE_SHIM", "/no/such/shim.so")
        .output()
        .expect("the program runs");
    assert_eq!(output.status.code(), Some(1));
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("/no/such/shim.so") && stderr.contains("ROCELINE_SHIM"),
        "{stderr}"
    );
}
