//! Starting a worker: this same program, by `/proc/self/exe` so that an update on disk does not mix versions, with a
//! channel, the listening socket and the configuration as inherited descriptors; and a worker's own look at them.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use super::{Keeper, Options};
use crate::memory::memfd;

/// What each worker is started with.
#[derive(Debug)]
pub(super) struct Start {
    config: File,
    arguments: Vec<OsString>,
    /// How the one before ended.
    pub last_end: Option<String>,
}

/// A worker.
#[derive(Debug)]
pub(super) struct Spawned {
    pub child: Child,
    pub channel: OwnedFd,
}

impl Spawned {
    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: a plain system call; the child was not waited for yet, so its number is its own.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }
}

impl Start {
    pub fn new(options: &Options) -> io::Result<Start> {
        let mut config = File::from(memfd::create(c"roceline-config")?);
        config.write_all(options.config.as_bytes())?;
        Ok(Start {
            config,
            arguments: options.arguments.clone(),
            last_end: None,
        })
    }

    /// Starts one; `restarts` others were there before.
    pub fn spawn(&self, socket: BorrowedFd<'_>, restarts: u32) -> io::Result<Spawned> {
        let (channel, theirs) = super::channel()?;
        let inherited = [
            theirs.as_raw_fd(),
            socket.as_raw_fd(),
            self.config.as_raw_fd(),
        ];
        let [a, b, c] = inherited;
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("roceline")
            .arg("nic")
            .args(["--worker", &format!("{a},{b},{c},{restarts}")])
            .args(&self.arguments);
        if let Some(end) = &self.last_end {
            command.args(["--last-end", end]);
        }
        let parent = std::process::id();
        let in_child = move || {
            for fd in inherited {
                // SAFETY: a plain system call.
                if unsafe { libc::fcntl(fd, libc::F_SETFD, 0) } != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            // SAFETY: plain system calls. The death of the thread that called fork counts, and that is the main thread.
            let orphaned = unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                libc::getppid() as u32 != parent
            };
            if orphaned {
                return Err(io::Error::other("the supervisor is gone"));
            }
            Ok(())
        };
        // SAFETY: between fork and exec it makes only async-signal-safe calls and allocates nothing unless it fails.
        unsafe { command.pre_exec(in_child) };
        Ok(Spawned {
            child: command.spawn()?,
            channel,
        })
    }
}

/// What a worker was started with.
#[derive(Debug)]
pub struct Inherited {
    /// The way to the supervisor.
    pub keeper: Keeper,
    /// The listening control socket.
    pub socket: OwnedFd,
    /// Text of the configuration.
    pub config: String,
    /// Workers that there were before.
    pub restarts: u32,
}

/// What `--worker` says is not so.
#[derive(Debug, thiserror::Error)]
#[error(
    "--worker {argument}: {reason}; it is for the supervisor's use, start `roceline nic` without it"
)]
pub struct InheritedError {
    argument: String,
    reason: String,
}

impl Inherited {
    /// Takes the descriptors that `argument` names. To be called once, before others are made.
    pub fn take(argument: &str) -> Result<Inherited, InheritedError> {
        let failed = |reason: String| InheritedError {
            argument: argument.into(),
            reason,
        };
        let numbers: Vec<u32> = argument
            .split(',')
            .map(|number| number.parse().map_err(|_| failed("not numbers".into())))
            .collect::<Result<_, _>>()?;
        let &[keeper, socket, config, restarts] = numbers.as_slice() else {
            return Err(failed("not four numbers".into()));
        };
        let adopt = |fd| adopt(fd).map_err(|error| failed(format!("descriptor {fd}: {error}")));
        let (keeper, socket, config) = (adopt(keeper)?, adopt(socket)?, adopt(config)?);
        let mut text = String::new();
        let mut config = File::from(config);
        config
            .seek(SeekFrom::Start(0))
            .and_then(|_| config.read_to_string(&mut text))
            .map_err(|error| failed(format!("the configuration: {error}")))?;
        Ok(Inherited {
            keeper: Keeper::new(keeper),
            socket,
            config: text,
            restarts,
        })
    }
}

/// Makes an inherited descriptor ours, and close-on-exec.
fn adopt(fd: u32) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: a plain system call; it fails if there is no such descriptor.
    if fd <= 2 || unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it exists and came from the supervisor for us; nothing else in this process knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_people_start_themselves_is_refused() {
        for argument in ["", "x", "1,2,3", "0,1,2,0", "4000000000,8000,8001,0"] {
            let error = Inherited::take(argument).unwrap_err().to_string();
            assert!(error.contains("without it"), "{error}");
        }
    }
}
