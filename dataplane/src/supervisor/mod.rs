//! The supervisor: the process that people start, signal and wait for. It does little, so that it lives: it holds the
//! control socket and, for each open device, what must outlive the worker ([`estate`]), and keeps one worker running.
//! The worker is the daemon proper ([`crate::daemon`]): DPDK, the polling thread, the sessions of programs.
//!
//! ```text
//! roceline nic ── supervisor: listening socket, device tree, files and pipes of open devices
//!                    │ spawns, signals, waits            ▲ descriptors (message)
//!                    └──────── worker: the NICs ─────────┘
//! ```
//!
//! When the worker dies, by whatever cause, the supervisor speaks for it to the programs and starts another. Connections
//! that come meanwhile wait in the socket's queue. When the supervisor dies, the worker gets SIGTERM from the kernel.

mod estate;
mod message;
mod restarts;
mod worker;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};
use signal_hook::low_level::pipe;

use crate::control::tree::Tree;
use crate::control::{BoundSocket, ControlError, seqpacket};
use estate::Estate;
pub use message::Keeper;
use message::News;
use restarts::{LONG, Restarts, SHORT_LIVES};
pub use worker::{Inherited, InheritedError};
use worker::{Spawned, Start};

/// How long a worker may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// What a supervisor needs to know. The configuration was checked.
#[derive(Debug)]
pub struct Options {
    /// Where to listen.
    pub socket: PathBuf,
    /// Permission bits of the socket file.
    pub mode: u32,
    /// Text of the configuration: each worker gets the same, whatever becomes of the file.
    pub config: String,
    /// Arguments of each worker after `nic`.
    pub arguments: Vec<OsString>,
}

/// Why there is no daemon any more, apart from a signal.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// The socket.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A system call.
    #[error("{what}: {source}")]
    System {
        /// Which.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The first worker ended before it was ready; it has said why.
    #[error("the NIC process did not start")]
    NotStarted,
    /// It dies again and again.
    #[error(
        "the NIC process died {SHORT_LIVES} times in a row within {} s of its start (last: {last}) and is not started \
         again; its messages above say why, and -v says more",
        LONG.as_secs()
    )]
    GivenUp {
        /// How the last one ended.
        last: String,
    },
}

fn system(what: &'static str) -> impl Fn(io::Error) -> SupervisorError {
    move |source| SupervisorError::System { what, source }
}

/// Runs until SIGINT or SIGTERM.
pub fn run(options: &Options) -> Result<(), SupervisorError> {
    let (stop, stop_written) = signal_pipe(&[SIGINT, SIGTERM])?;
    let (child, child_written) = signal_pipe(&[SIGCHLD])?;
    // The socket first: a second daemon on it must fail before it touches anything of the first.
    let socket = BoundSocket::bind(&options.socket, options.mode)?;
    Tree::discard_stale_drafts(&options.socket);
    let mut supervisor = Supervisor {
        start: Start::new(options).map_err(system("a file for the configuration"))?,
        socket,
        estate: Estate::default(),
        restarts: Restarts::default(),
        worker: None,
        starts: 0,
        start_at: Some(Instant::now()),
        stopping: None,
        stop,
        child,
    };
    let result = supervisor.run();
    supervisor.tidy_up(options);
    // The handlers keep these for ever; named so that they live until here.
    drop((stop_written, child_written));
    result
}

/// A socket that becomes readable with each of the signals; and its other end, which the handlers write to.
fn signal_pipe(signals: &[i32]) -> Result<(UnixStream, UnixStream), SupervisorError> {
    let failed = system("signal handlers");
    let (read, write) = UnixStream::pair().map_err(&failed)?;
    read.set_nonblocking(true).map_err(&failed)?;
    for signal in signals {
        pipe::register(*signal, write.try_clone().map_err(&failed)?).map_err(&failed)?;
    }
    Ok((read, write))
}

/// Whether the signals of a [`signal_pipe`] came since the last time.
fn take_signals(pipe: &UnixStream) -> bool {
    use std::io::Read;
    let mut bytes = [0; 64];
    let mut came = false;
    while matches!((&mut &*pipe).read(&mut bytes), Ok(n) if n > 0) {
        came = true;
    }
    came
}

struct Supervisor {
    start: Start,
    socket: BoundSocket,
    estate: Estate,
    restarts: Restarts,
    worker: Option<Worker>,
    /// Workers started so far.
    starts: u32,
    /// When to start the next; none while one runs or none shall follow.
    start_at: Option<Instant>,
    /// We were told to stop: when patience ends.
    stopping: Option<Instant>,
    stop: UnixStream,
    child: UnixStream,
}

struct Worker {
    spawned: Spawned,
    since: Instant,
    ready: bool,
    /// No more news will come: its programs were told.
    silent: bool,
}

impl Supervisor {
    fn run(&mut self) -> Result<(), SupervisorError> {
        loop {
            let now = Instant::now();
            if self.worker.is_none() {
                if self.stopping.is_some() {
                    return Ok(());
                }
                if self.start_at.is_some_and(|at| at <= now) {
                    self.start_worker(now)?;
                }
            }
            let look = self.estate.look(now);
            self.wait(now, look)?;
            if take_signals(&self.stop) {
                self.stop_worker();
            }
            while self.read_news() {}
            if take_signals(&self.child) {
                self.reap()?;
            }
            self.lose_patience();
        }
    }

    /// Waits for signals, news, or the next thing to do.
    fn wait(&self, now: Instant, look: Option<Duration>) -> Result<(), SupervisorError> {
        let until = |at: Option<Instant>| at.map(|at| at.saturating_duration_since(now));
        let start = until(self.start_at.filter(|_| self.worker.is_none()));
        let sooner = [look, start, until(self.stopping)];
        let timeout = sooner.into_iter().flatten().min().map_or(-1, |wait| {
            // Rounded up, or the last millisecond is spent in a busy loop.
            i32::try_from(wait.as_millis() + 1).unwrap_or(i32::MAX)
        });
        let entry = |fd: BorrowedFd<'_>| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut fds = vec![entry(self.stop.as_fd()), entry(self.child.as_fd())];
        if let Some(worker) = self.worker.as_ref().filter(|worker| !worker.silent) {
            fds.push(entry(worker.spawned.channel.as_fd()));
        }
        // SAFETY: polls a live array of that many entries.
        let n = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
        let error = io::Error::last_os_error();
        if n < 0 && error.kind() != io::ErrorKind::Interrupted {
            return Err(system("poll")(error));
        }
        Ok(())
    }

    fn start_worker(&mut self, now: Instant) -> Result<(), SupervisorError> {
        let spawned = self.start.spawn(self.socket.as_fd(), self.starts);
        let spawned = spawned.map_err(system("starting the NIC process"))?;
        tracing::info!(pid = spawned.child.id(), "NIC process started");
        self.starts += 1;
        self.start_at = None;
        self.worker = Some(Worker {
            spawned,
            since: now,
            ready: false,
            silent: false,
        });
        Ok(())
    }

    fn stop_worker(&mut self) {
        self.start_at = None;
        if self.stopping.is_none() {
            tracing::info!("stopping");
            self.stopping = Some(Instant::now() + STOP_TIMEOUT);
        }
        if let Some(worker) = &self.worker {
            worker.spawned.signal(libc::SIGTERM);
        }
    }

    fn lose_patience(&mut self) {
        if let (Some(end), Some(worker)) = (self.stopping, &self.worker) {
            if Instant::now() >= end {
                tracing::error!("the NIC process does not stop and is killed");
                worker.spawned.signal(libc::SIGKILL);
                // One that a device holds in the kernel may take longer still.
                self.stopping = Some(Instant::now() + STOP_TIMEOUT);
            }
        }
    }

    /// Takes what the worker hands over; true if there may be more. When nothing more can come from it, nothing of it can
    /// write to queues either: a process closes its descriptors after its threads have let go of its memory.
    fn read_news(&mut self) -> bool {
        let Some(worker) = self.worker.as_mut().filter(|worker| !worker.silent) else {
            return false;
        };
        match message::receive(worker.spawned.channel.as_fd()) {
            Ok(Some(Ok(News::Ready))) => worker.ready = true,
            Ok(Some(Ok(News::Stopped))) => self.estate.bury(Instant::now()),
            Ok(Some(Ok(news))) => self.estate.take(news),
            Ok(Some(Err(error))) => tracing::error!("{error}"),
            Ok(None) => self.mourn(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            // A packet without room for its descriptors is lost, the next may be read.
            Err(error) => tracing::error!(%error, "an open device is not kept"),
        }
        true
    }

    fn mourn(&mut self) {
        match &mut self.worker {
            Some(worker) if !worker.silent => worker.silent = true,
            _ => return,
        }
        let devices = self.estate.held();
        self.estate.bury(Instant::now());
        if devices > 0 && self.stopping.is_none() {
            tracing::error!(
                devices,
                "the NIC process died: programs get DEVICE_FATAL and flush errors on their open devices"
            );
        }
    }

    fn reap(&mut self) -> Result<(), SupervisorError> {
        let Some(worker) = &mut self.worker else {
            return Ok(());
        };
        let ended = worker.spawned.child.try_wait();
        let Some(status) = ended.map_err(system("waiting for the NIC process"))? else {
            return Ok(());
        };
        // All that it sent before it died is there.
        while self.read_news() {}
        self.mourn();
        let Some(worker) = self.worker.take() else {
            return Ok(());
        };
        Tree::discard_drafts(self.socket.path(), worker.spawned.child.id());
        if self.stopping.is_some() {
            return Ok(());
        }
        let how = describe(status);
        if self.starts == 1 && !worker.ready && status.code().is_some() {
            return Err(SupervisorError::NotStarted);
        }
        match self.restarts.after(worker.since.elapsed()) {
            Some(pause) => {
                let wait_ms = pause.as_millis() as u64;
                tracing::error!(how, wait_ms, "the NIC process ended and is started again");
                self.start.last_end = Some(how);
                self.start_at = Some(Instant::now() + pause);
                Ok(())
            }
            None => Err(SupervisorError::GivenUp { last: how }),
        }
    }

    fn tidy_up(&self, options: &Options) {
        // The tree before the socket: as long as that is there, the place is ours.
        if self.socket.is_ours() {
            Tree::remove(&options.socket);
        }
    }
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => match signal_hook::low_level::signal_name(signal) {
            Some(name) => format!("signal {signal}, {name}"),
            None => format!("signal {signal}"),
        },
        (None, None) => "unknown".into(),
    }
}

/// Both ends of a channel between supervisor and worker; the first, the supervisor's, does not block.
fn channel() -> io::Result<(OwnedFd, OwnedFd)> {
    let (ours, theirs) = seqpacket::pair()?;
    // SAFETY: a plain system call on our descriptor.
    if unsafe { libc::fcntl(ours.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((ours, theirs))
}
