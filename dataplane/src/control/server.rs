//! The listening socket: one thread accepts, each connection gets a thread of its own.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::bound_socket::{BoundSocket, raise_limits};
use super::error::ControlError;
use super::impair::Impairments;
use super::limits::DeviceLimits;
use super::quota::{Accounts, Machine, Turns};
use super::refused_qps::RefusedQps;
use super::seqpacket::{self, Peer};
use super::written::Written;
use super::{ControlConfig, LcorePort, ask, session};
use crate::lcore::message::ContextId;
use crate::memory::room;

/// How long a shutdown waits for sessions to close their contexts.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);
/// How much of that captures have to fetch what was recorded.
const CAPTURE_GRACE: Duration = Duration::from_secs(3);
/// Refusals of one process that the log tells of.
const MAX_REFUSALS: usize = 64;
/// Lines about the programs of one user that the log takes at once.
const LINES_AT_ONCE: u32 = 256;
/// Connections that only root and the daemon's own user get: the command line works when programs have all others.
const RESERVED: usize = 32;
/// Pause when no connection can be accepted for want of descriptors or memory.
const ACCEPT_PAUSE_MS: i32 = 100;

/// What all sessions share.
pub struct Shared {
    /// The config.
    pub config: ControlConfig,
    /// The way to the lcores.
    pub lcores: Arc<dyn LcorePort>,
    /// How long one of them may take to answer.
    pub reply_timeout: Duration,
    /// Held while a link is taken down or up: what it was before, and what it is to be, belong together.
    pub link_orders: Mutex<()>,
    /// Held while a NIC gets or loses an address: no two may have the same.
    pub address_orders: Mutex<()>,
    /// The rules that are in force.
    pub impairments: Impairments,
    /// Queue pairs that could not be connected.
    pub refused_qps: RefusedQps,
    /// What programs have.
    pub accounts: Arc<Accounts>,
    /// Of the command line: how many ask lcores at once.
    pub questions: Turns,
    /// What devices report to programs, and what is checked on their commands.
    pub reported: DeviceLimits,
    next_context: AtomicU64,
    sessions: Mutex<Sessions>,
    ended: Condvar,
}

#[derive(Default)]
struct Sessions {
    next: u64,
    live: HashMap<u64, Live>,
    processes: HashMap<i32, Process>,
    /// By user, and never forgotten.
    lines: HashMap<u32, Lines>,
    closing: bool,
}

/// What the connections of one process have together.
#[derive(Default)]
struct Process {
    connections: usize,
    /// What it was refused because this version, or its share, does not have it.
    refused: HashSet<String>,
}

/// Lines that the log has for what a user's programs do wrong: some at once, then one a second. One that is refused as fast as it
/// can ask, or connects anew each time, would otherwise fill the log.
#[derive(Debug)]
struct Lines {
    left: u32,
    since: Instant,
}

impl Default for Lines {
    fn default() -> Lines {
        Lines {
            left: LINES_AT_ONCE,
            since: Instant::now(),
        }
    }
}

impl Lines {
    fn take(&mut self, now: Instant) -> bool {
        let seconds = now.saturating_duration_since(self.since).as_secs();
        if seconds > 0 {
            let more = u32::try_from(seconds).unwrap_or(LINES_AT_ONCE);
            self.left = self.left.saturating_add(more).min(LINES_AT_ONCE);
            self.since = now;
        }
        let some = self.left > 0;
        self.left = self.left.saturating_sub(1);
        some
    }
}

/// Why a connection gets no session.
#[allow(missing_docs)]
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("the daemon is stopping")]
    Stopping,
    #[error("there are {0} connections to this daemon, which is the most: each open device is one")]
    Daemon(usize),
    #[error(
        "user {0} has {1} connections to this daemon, which is the most for one user: each open device is one"
    )]
    User(u32, usize),
    #[error(
        "this process has {0} connections to the daemon, which is the most for one: each open device is one"
    )]
    Process(usize),
    #[error("no thread for it could be started: {0}")]
    Thread(io::Error),
}

impl Refusal {
    /// What the open of a device fails with.
    fn errno(&self) -> i32 {
        match self {
            Refusal::Stopping => libc::EIO,
            Refusal::Daemon(_) | Refusal::User(..) | Refusal::Process(_) => libc::ENOMEM,
            Refusal::Thread(error) => room::errno(error),
        }
    }
}

struct Live {
    socket: Arc<OwnedFd>,
    pid: i32,
    uid: u32,
    /// It captures: at the end of the daemon it gets time to fetch what was recorded.
    spared: bool,
}

impl Shared {
    /// The common part of a server.
    pub fn new(config: ControlConfig, lcores: Arc<dyn LcorePort>) -> Shared {
        let accounts = Accounts::new(
            config.nics.len(),
            &config.limits,
            &config.quotas,
            &Machine::here(),
        );
        Shared {
            accounts: Arc::new(accounts),
            questions: Turns::new(2),
            reported: config.quotas.report(config.limits),
            config,
            lcores,
            reply_timeout: ask::REPLY_TIMEOUT,
            link_orders: Mutex::new(()),
            address_orders: Mutex::new(()),
            impairments: Impairments::default(),
            refused_qps: RefusedQps::default(),
            // 0 is no context: queries use it.
            next_context: AtomicU64::new(1),
            sessions: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    /// A name never used before for a context of NIC `nic`; it says which lcore the context belongs to from here on.
    pub fn next_context(&self, nic: u32) -> ContextId {
        let number = self.next_context.fetch_add(1, Ordering::Relaxed);
        ContextId::new(number, self.lcores.place(nic))
    }

    /// Whether a user may open devices.
    pub fn may_open(&self, uid: u32) -> bool {
        let allowed = self.config.allowed_users.as_ref();
        is_master(uid) || allowed.is_none_or(|users| users.contains(&uid))
    }

    /// Whether a user may change what the daemon does, and see what is not its own.
    pub fn may_operate(&self, uid: u32) -> bool {
        is_master(uid) || self.config.operators.contains(&uid)
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a process is refused this for the first time, by command and reason.
    pub fn first_refusal(&self, pid: i32, command: &str, reason: &str) -> bool {
        let mut sessions = self.sessions();
        let Some(own) = sessions.processes.get_mut(&pid) else {
            return true;
        };
        // A program that makes up numbers of commands has said enough.
        own.refused.len() < MAX_REFUSALS && own.refused.insert(format!("{command}: {reason}"))
    }

    /// Whether the log may have one more line about what a user's programs do wrong.
    pub fn may_log(&self, uid: u32) -> bool {
        let mut sessions = self.sessions();
        let lines = sessions.lines.entry(uid).or_default();
        lines.take(Instant::now())
    }

    fn enter(&self, socket: &Arc<OwnedFd>, Peer { pid, uid }: Peer) -> Result<u64, Refusal> {
        let limits = &self.config.limits;
        let mut sessions = self.sessions();
        if sessions.closing {
            return Err(Refusal::Stopping);
        }
        let most = match is_master(uid) {
            true => limits.max_connections,
            // A small limit of a test has no room for a reserve.
            false => limits.max_connections.saturating_sub(RESERVED).max(1),
        };
        if sessions.live.len() >= most {
            return Err(Refusal::Daemon(most));
        }
        let of_user = sessions.live.values().filter(|live| live.uid == uid);
        let of_a_user = (most / 4 * 3).max(1);
        if !is_master(uid) && of_user.count() >= of_a_user {
            return Err(Refusal::User(uid, of_a_user));
        }
        let own = sessions.processes.entry(pid).or_default();
        // PID 0 stands for all processes of PID namespaces that we do not see.
        let limit = match pid {
            0 => limits.max_connections / 2,
            _ => limits.max_connections_per_process,
        };
        if own.connections >= limit {
            return Err(Refusal::Process(limit));
        }
        own.connections += 1;
        let id = sessions.next;
        sessions.next += 1;
        sessions.live.insert(
            id,
            Live {
                socket: socket.clone(),
                pid,
                uid,
                spared: false,
            },
        );
        Ok(id)
    }

    /// Notes that a session captures.
    pub fn spare(&self, id: u64) {
        if let Some(live) = self.sessions().live.get_mut(&id) {
            live.spared = true;
        }
    }

    /// Whether the daemon is ending, and not only a connection.
    pub fn is_closing(&self) -> bool {
        self.sessions().closing
    }

    fn leave(&self, id: u64) {
        let mut sessions = self.sessions();
        if let Some(Live { pid, .. }) = sessions.live.remove(&id) {
            if let Some(own) = sessions.processes.get_mut(&pid) {
                own.connections -= 1;
                if own.connections == 0 {
                    sessions.processes.remove(&pid);
                }
            }
        }
        self.ended.notify_all();
    }

    /// Ends all connections and waits until their contexts are closed. False if some were not in time. Those that capture
    /// are told that they should come to an end, and have [`CAPTURE_GRACE`] for it.
    fn close_all(&self, timeout: Duration) -> bool {
        let mut sessions = self.sessions();
        sessions.closing = true;
        for live in sessions.live.values().filter(|live| !live.spared) {
            seqpacket::shutdown(live.socket.as_fd());
        }
        let end = Instant::now() + timeout;
        let mut grace = Some(Instant::now() + CAPTURE_GRACE.min(timeout));
        while !sessions.live.is_empty() {
            let until = grace.unwrap_or(end);
            let Some(left) = until.checked_duration_since(Instant::now()) else {
                if grace.take().is_none() {
                    return false;
                }
                for live in sessions.live.values() {
                    seqpacket::shutdown(live.socket.as_fd());
                }
                continue;
            };
            sessions = self
                .ended
                .wait_timeout(sessions, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }
}

/// Root and the daemon's own user may do everything.
fn is_master(uid: u32) -> bool {
    // SAFETY: a plain system call that cannot fail.
    let own = unsafe { libc::geteuid() };
    uid == 0 || uid == own
}

/// A listening control socket, which nobody serves yet.
pub struct Listener {
    config: ControlConfig,
    socket: Source,
}

/// Where connections come from.
enum Source {
    /// A socket of ours.
    Bound(BoundSocket),
    /// The supervisor's, which cares for the file.
    Inherited(OwnedFd),
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Source::Bound(socket) => socket.as_fd(),
            Source::Inherited(socket) => socket.as_fd(),
        }
    }
}

/// A control socket that is served. Dropping it is a [`Server::stop`].
pub struct Server {
    shared: Arc<Shared>,
    stop: OwnedFd,
    accept: Option<JoinHandle<()>>,
}

impl Server {
    /// Takes the socket of `config`, and replaces it if the daemon that it belonged to is gone.
    pub fn bind(config: ControlConfig) -> Result<Listener, ControlError> {
        let socket = BoundSocket::bind(&config.socket, config.socket_mode)?;
        Ok(Listener {
            config,
            socket: Source::Bound(socket),
        })
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.shared.config.socket
    }

    /// Ends all connections and closes their contexts; the lcores must still answer.
    pub fn stop(self) {
        drop(self);
    }
}

impl Listener {
    /// Serves a socket that a [`BoundSocket`] of another process made.
    pub fn inherited(config: ControlConfig, socket: OwnedFd) -> Listener {
        raise_limits();
        Listener {
            config,
            socket: Source::Inherited(socket),
        }
    }

    /// Serves connections from now on.
    pub fn start(self, lcores: Arc<dyn LcorePort>) -> Result<Server, ControlError> {
        let Listener { config, socket } = self;
        let path = config.socket.clone();
        let failed = |what| {
            let path = path.clone();
            move |source| ControlError::Socket { what, path, source }
        };
        // SAFETY: a plain system call.
        let stop = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if stop < 0 {
            return Err(failed("making an eventfd for")(io::Error::last_os_error()));
        }
        // SAFETY: the descriptor is new and ours.
        let stop = unsafe { OwnedFd::from_raw_fd(stop) };
        let shared = Arc::new(Shared::new(config, lcores));
        for rule in &shared.config.impair {
            shared
                .impairments
                .add(&shared, rule.clone())
                .map_err(ControlError::Impair)?;
        }
        let thread = {
            let (shared, stop) = (shared.clone(), stop.try_clone());
            let stop = stop.map_err(failed("duplicating a descriptor for"))?;
            thread::Builder::new()
                .name("control".into())
                .spawn(move || accept_loop(&shared, socket.as_fd(), &stop))
                .map_err(failed("starting a thread for"))?
        };
        Ok(Server {
            shared,
            stop,
            accept: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let Some(accept) = self.accept.take() else {
            return;
        };
        let one = 1u64;
        // SAFETY: writes eight initialised bytes to our eventfd.
        unsafe { libc::write(self.stop.as_raw_fd(), (&raw const one).cast(), 8) };
        if accept.join().is_err() {
            tracing::error!("the control thread failed by a bug");
        }
        // New connections ended first, with the thread and its socket; then those that exist.
        if !self.shared.close_all(SHUTDOWN_TIMEOUT) {
            tracing::warn!("some programs' contexts were not closed in time");
        }
    }
}

fn accept_loop(shared: &Arc<Shared>, listener: BorrowedFd<'_>, stop: &OwnedFd) {
    let pollfd = |fd: BorrowedFd<'_>| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let written = Written::watch(shared).inspect_err(|error| {
        tracing::warn!(%error, "files of devices are not watched: they can be written by way of the shim only");
    });
    let written = written.ok();
    // Said once, until one could be accepted.
    let mut short = false;
    loop {
        // Without a third one it is the first again.
        let third = written
            .as_ref()
            .map_or(stop.as_fd(), |written| written.as_fd());
        let mut fds = [pollfd(stop.as_fd()), pollfd(listener), pollfd(third)];
        // SAFETY: polls a live array of three entries.
        if unsafe { libc::poll(fds.as_mut_ptr(), 3, -1) } < 0 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            tracing::error!(%error, "poll on the control socket");
            return;
        }
        if fds[0].revents != 0 {
            return;
        }
        if let Some(written) = written.as_ref().filter(|_| fds[2].revents != 0) {
            written.follow(shared);
        }
        if fds[1].revents == 0 {
            continue;
        }
        match seqpacket::accept(listener) {
            Ok(socket) => {
                short = false;
                welcome(shared, socket);
            }
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::EINTR | libc::ECONNABORTED)) => {}
            Err(error) => {
                if !std::mem::replace(&mut short, true) {
                    tracing::warn!(
                        %error,
                        "no connection can be accepted until programs have ended: start the daemon with a higher limit of \
                         open files (ulimit -n)"
                    );
                }
                // SAFETY: polls one live entry; the pause ends early when the server stops.
                unsafe { libc::poll(&mut pollfd(stop.as_fd()), 1, ACCEPT_PAUSE_MS) };
            }
        }
    }
}

/// Gives a connection its thread.
fn welcome(shared: &Arc<Shared>, socket: OwnedFd) {
    let peer = match seqpacket::peer(socket.as_fd()) {
        Ok(peer) => peer,
        Err(error) => {
            tracing::warn!(%error, "connection refused: no credentials");
            return;
        }
    };
    if let Err(refusal) = start_session(shared, socket, peer) {
        if !shared.may_log(peer.uid) {
            return;
        }
        tracing::warn!(
            pid = peer.pid,
            uid = peer.uid,
            "connection refused: {refusal}"
        );
    }
}

/// Removes a session from the list when its thread ends, in whatever way.
struct Leave(Arc<Shared>, u64);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.leave(self.1);
    }
}

/// Starts a session's thread, or tells the other end why not. Also used by tests, with one end of a socket pair.
pub fn start_session(shared: &Arc<Shared>, socket: OwnedFd, peer: Peer) -> Result<(), Refusal> {
    let socket = Arc::new(socket);
    let started = run_session(shared, &socket, peer);
    if let Err(refusal) = &started {
        session::turn_away(socket.as_fd(), refusal.errno(), &refusal.to_string());
    }
    started
}

fn run_session(shared: &Arc<Shared>, socket: &Arc<OwnedFd>, peer: Peer) -> Result<(), Refusal> {
    room::check(room::THREAD).map_err(Refusal::Thread)?;
    let socket = Arc::clone(socket);
    let id = shared.enter(&socket, peer)?;
    let leave = Leave(shared.clone(), id);
    let shared = shared.clone();
    let started = thread::Builder::new()
        .name(format!("ctl-{}", peer.pid))
        .spawn(move || {
            let _leave = leave;
            // Beside programs that poll, a request is not to wait for the end of their time slices.
            crate::lcore::slice::shorten();
            session::serve(&shared, socket.as_fd(), peer, id);
            // Before `_leave` says that the session is over.
            drop(socket);
        });
    started.map(|_| ()).map_err(Refusal::Thread)
}

#[cfg(test)]
mod tests;
