//! A child process with a deadline, its output in files.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A running child; killed when dropped.
pub struct Process {
    child: Child,
    name: String,
    stdout: PathBuf,
    stderr: PathBuf,
}

/// How a child ended.
#[derive(Debug)]
pub struct Ended {
    pub name: String,
    pub status: ExitStatus,
    /// It had to be killed, as it had not ended in time.
    pub overdue: bool,
    pub stdout: String,
    pub stderr: String,
}

impl Process {
    /// Starts it; its output goes to `<name>.out` and `<name>.err` in `dir`.
    #[track_caller]
    pub fn start(dir: &Path, name: &str, command: &mut Command) -> Process {
        let (stdout, stderr) = (
            dir.join(format!("{name}.out")),
            dir.join(format!("{name}.err")),
        );
        let create = |path: &Path| File::create(path).expect("an output file can be made");
        command
            .stdin(Stdio::null())
            .stdout(create(&stdout))
            .stderr(create(&stderr));
        // SAFETY: signal(2) is async-signal-safe and touches nothing of this process.
        unsafe {
            command.pre_exec(|| {
                // Shells start what runs in the background with SIGINT ignored, which programs inherit.
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                Ok(())
            })
        };
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Process {
            child,
            name: name.into(),
            stdout,
            stderr,
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.child
            .try_wait()
            .expect("our child can be waited for")
            .is_none()
    }

    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: no memory is involved; the pid is that of our child, which has not been waited for
        // since `Child` keeps its number until it is dropped or was seen to end.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    /// What it has said so far.
    pub fn output(&self) -> (String, String) {
        let read =
            |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
        (read(&self.stdout), read(&self.stderr))
    }

    /// Waits for its end, and makes one if there is none in time.
    pub fn finish(mut self, patience: Duration) -> Ended {
        let begin = Instant::now();
        let (status, overdue) = loop {
            if let Some(status) = self.child.try_wait().expect("our child can be waited for") {
                break (status, false);
            }
            if begin.elapsed() > patience {
                eprintln!(
                    "{} has not ended within {patience:?} and is killed",
                    self.name
                );
                let _ = self.child.kill();
                let status = self.child.wait();
                break (status.expect("our child can be waited for"), true);
            }
            thread::sleep(Duration::from_millis(2));
        };
        let (stdout, stderr) = self.output();
        Ended {
            name: self.name.clone(),
            status,
            overdue,
            stdout,
            stderr,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    pub fn ok(&self) -> bool {
        self.status.success()
    }

    /// Whether it ended by itself, or by a signal of the test's, and not well: being killed for its lateness is no failure
    /// that a test may wait for.
    pub fn failed(&self) -> bool {
        !self.ok() && !self.overdue
    }

    /// All that is known, for a message.
    pub fn report(&self) -> String {
        let how = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "unknown end".into(),
        };
        format!("---- {} ({how})\n{}{}", self.name, self.stdout, self.stderr)
    }

    #[track_caller]
    pub fn expect_ok(self) -> Ended {
        assert!(self.ok(), "{}", self.report());
        self
    }
}
