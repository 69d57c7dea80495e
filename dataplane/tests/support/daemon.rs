//! A daemon of the test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::process::{Ended, Process};
use super::{PATIENCE, TempDir, roceline, wait_for};

/// A running daemon; stopped when dropped.
pub struct Daemon {
    // Before `dir`: the process goes first.
    process: Option<Process>,
    socket: PathBuf,
    /// What programs are given as a clock, if it is not the machine's.
    clock: Option<PathBuf>,
    dir: TempDir,
}

/// Two NICs on one daemon that takes no particular CPU, so that the test's own arrangement decides.
pub const PAIR: &str = include_str!("../../src/config/pair.toml");

impl Daemon {
    /// The preset `pair`, ready.
    #[track_caller]
    pub fn pair() -> Daemon {
        Daemon::start(PAIR)
    }

    /// A daemon with this configuration, ready.
    #[track_caller]
    pub fn start(config: &str) -> Daemon {
        let mut daemon = Daemon::prepare(config);
        daemon.launch();
        daemon.expect_ready();
        daemon
    }

    /// A directory with a configuration and nothing running.
    pub fn prepare(config: &str) -> Daemon {
        let dir = TempDir::new();
        fs::write(dir.path().join("config.toml"), config).expect("the directory is ours");
        Daemon {
            process: None,
            socket: dir.path().join("roceline.sock"),
            clock: None,
            dir,
        }
    }

    /// The command that starts it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(roceline());
        command
            .args(["nic", "-v", "--config"])
            .arg(self.dir.path().join("config.toml"));
        command.arg("--socket").arg(&self.socket);
        command
    }

    /// Starts the process without waiting for it.
    #[track_caller]
    pub fn launch(&mut self) {
        let mut command = self.command();
        self.process = Some(Process::start(self.dir.path(), "daemon", &mut command));
    }

    /// Starts the process by another command.
    #[track_caller]
    pub fn launch_by(&mut self, mut command: Command) {
        self.process = Some(Process::start(self.dir.path(), "daemon", &mut command));
    }

    #[track_caller]
    pub fn expect_ready(&self) {
        let wait = self.roceline("wait", &["wait", "--timeout", "60"]);
        assert!(wait.ok(), "{}{}", wait.report(), self.log());
    }

    pub fn socket(&self) -> &Path {
        &self.socket
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn process(&mut self) -> &mut Process {
        self.process.as_mut().expect("the daemon was launched")
    }

    /// The process that runs the NICs: the supervisor's child, if it has one at the moment.
    pub fn find_worker(&mut self) -> Option<u32> {
        let id = self.process().id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.unwrap_or_default();
        children.split_ascii_whitespace().next()?.parse().ok()
    }

    #[track_caller]
    pub fn worker(&mut self) -> u32 {
        self.find_worker()
            .unwrap_or_else(|| panic!("no worker{}", self.log()))
    }

    #[track_caller]
    pub fn kill_worker(&mut self, signal: libc::c_int) {
        let worker = self.worker() as libc::pid_t;
        // SAFETY: a plain system call. The supervisor may wait for its child at this moment, but does so only after the
        // child ended, and no test expects that here.
        unsafe { libc::kill(worker, signal) };
    }

    /// SIGKILL for both at once, as far as that can be: the supervisor cannot react.
    #[track_caller]
    pub fn kill_both(&mut self) {
        self.process().signal(libc::SIGSTOP);
        self.kill_worker(libc::SIGKILL);
        self.process().signal(libc::SIGKILL);
        let process = self.process();
        wait_for("end of the supervisor", PATIENCE, || !process.is_running());
    }

    /// What the daemon said.
    pub fn log(&self) -> String {
        let (stdout, stderr) = self
            .process
            .as_ref()
            .map(Process::output)
            .unwrap_or_default();
        format!("---- daemon {}\n{stdout}{stderr}", self.socket.display())
    }

    /// A command of the command line against this daemon.
    #[track_caller]
    pub fn roceline(&self, name: &str, arguments: &[&str]) -> Ended {
        let mut command = Command::new(roceline());
        command.args(arguments).arg("--socket").arg(&self.socket);
        Process::start(self.dir.path(), name, &mut command).finish(PATIENCE)
    }

    /// Starts a command of the command line that does not end by itself.
    #[track_caller]
    pub fn start_roceline(&self, name: &str, arguments: &[&str]) -> Process {
        let mut command = Command::new(roceline());
        command.args(arguments).arg("--socket").arg(&self.socket);
        Process::start(self.dir.path(), name, &mut command)
    }

    /// An unmodified program with the shim, on any CPU but the daemon's.
    pub fn program(&self, program: &str, arguments: &[&str]) -> Command {
        self.run(&[], program, arguments)
    }

    /// The same with options of `roceline run`.
    pub fn run(&self, options: &[&str], program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(roceline());
        command
            .arg("run")
            .arg("--socket")
            .arg(&self.socket)
            .args(options);
        command.arg("--").arg(program).args(arguments);
        if let Some(clock) = &self.clock {
            command.env("LD_PRELOAD", clock);
        }
        command
    }

    /// From now on perftest measures the CPU's frequency and waits for its other end quickly, and the rates it prints are wrong
    /// (`tests/quick_clock.c`);
    /// unless `ROCELINE_CLOCK=true`.
    #[track_caller]
    pub fn quicken(&mut self) {
        if std::env::var("ROCELINE_CLOCK").is_ok_and(|clock| clock == "true") {
            return;
        }
        let options = ["-shared", "-fPIC", "-Wl,--as-needed"];
        let clock = super::compile_with(&options, self.dir(), "quick_clock.so", &["quick_clock.c"]);
        self.clock = Some(clock.expect("quick_clock.c compiles").into());
    }

    /// Starts such a program.
    #[track_caller]
    pub fn start_program(&self, name: &str, program: &str, arguments: &[&str]) -> Process {
        Process::start(self.dir.path(), name, &mut self.program(program, arguments))
    }

    /// Runs such a program to its end.
    #[track_caller]
    pub fn run_program(&self, name: &str, program: &str, arguments: &[&str]) -> Ended {
        self.start_program(name, program, arguments)
            .finish(PATIENCE)
    }

    /// An answer in JSON.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut all = arguments.to_vec();
        all.push("--json");
        let answer = self.roceline("json", &all);
        assert!(answer.ok(), "{}{}", answer.report(), self.log());
        serde_json::from_str(&answer.stdout)
            .unwrap_or_else(|error| panic!("{error} in {}", answer.report()))
    }

    /// Objects that programs have at the moment.
    #[track_caller]
    pub fn objects(&self) -> Objects {
        let devices = self.json(&["show", "devices"]);
        let devices = devices["devices"].as_array().expect("`devices` is a list");
        let sum = |key: &str| {
            let count = |device: &Value| {
                device[key]
                    .as_u64()
                    .unwrap_or_else(|| panic!("no count {key} in {device}"))
            };
            devices.iter().map(count).sum()
        };
        Objects {
            contexts: sum("contexts"),
            pds: sum("pds"),
            mrs: sum("mrs"),
            mws: sum("mws"),
            cqs: sum("cqs"),
            srqs: sum("srqs"),
            ahs: sum("ahs"),
            mcast_groups: sum("mcast_groups"),
            qps: sum("qps"),
        }
    }

    /// Waits until programs have nothing any more.
    #[track_caller]
    pub fn expect_empty(&self) {
        let mut last = self.objects();
        wait_for("release of all objects", PATIENCE, || {
            last = self.objects();
            last == Objects::default()
        });
    }

    /// The process itself, which then ends by other means than [`Daemon::stop`].
    pub fn take_process(&mut self) -> Process {
        self.process.take().expect("the daemon was launched")
    }

    /// SIGTERM, and how it ended.
    #[track_caller]
    pub fn stop(&mut self) -> Ended {
        let process = self.take_process();
        process.signal(libc::SIGTERM);
        process.finish(Duration::from_secs(20))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.signal(libc::SIGTERM);
            process.finish(Duration::from_secs(5));
        }
    }
}

/// How many there are of each kind, over all devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    pub contexts: u64,
    pub pds: u64,
    pub mrs: u64,
    pub mws: u64,
    pub cqs: u64,
    pub srqs: u64,
    pub ahs: u64,
    pub mcast_groups: u64,
    pub qps: u64,
}
