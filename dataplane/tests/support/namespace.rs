//! Network namespaces of a test's own, and the programs that join them.

use std::process::{Command, Output};

use super::daemon::Daemon;

/// A network namespace, which goes with its owner.
pub struct Namespace(pub String);

impl Namespace {
    pub fn new(name: &str) -> Namespace {
        let name = format!("rl-{name}-{}", std::process::id());
        expect(ip().args(["netns", "add", &name]));
        let made = Namespace(name);
        made.run(&["ip", "link", "set", "lo", "up"]);
        made
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = ip();
        command.args(["netns", "exec", &self.0]).args(words);
        command
    }

    #[track_caller]
    pub fn run(&self, words: &[&str]) -> String {
        expect(&mut self.command(words))
    }

    /// A daemon in it, ready. Programs reach it from anywhere, by its socket.
    #[track_caller]
    pub fn daemon(&self, config: &str) -> Daemon {
        let mut daemon = Daemon::prepare(config);
        let plain = daemon.command();
        let words = std::iter::once(plain.get_program()).chain(plain.get_args());
        let words: Vec<&str> = words.map(|w| w.to_str().expect("plain words")).collect();
        let command = self.command(&words);
        daemon.launch_by(command);
        daemon.expect_ready();
        daemon
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip().args(["netns", "del", &self.0]).output();
    }
}

/// iproute2.
pub fn ip() -> Command {
    Command::new("ip")
}

/// Runs it, and gives what it says; it must succeed.
#[track_caller]
pub fn expect(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("the program is installed");
    let said = String::from_utf8_lossy(&stdout).into_owned();
    let errors = String::from_utf8_lossy(&stderr);
    assert!(status.success(), "{command:?}: {status}\n{said}{errors}");
    said
}

/// Whether there is such a program; if not, says that a test is skipped.
pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).exists());
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}
