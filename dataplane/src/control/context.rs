//! One open of a device by one program, as its control thread sees it: the shared file and who has which part of
//! it, the handles that exist, and the way to the owner. The live objects are the lcore's.

use std::collections::{HashMap, HashSet};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use roceline_abi::control::{NAME_BYTES, OpenDevice, OpenReply, Plain, RegionReach};
use roceline_abi::layout::FILE_BYTES;

use roceline_engine::Owner;
use roceline_engine::wire::Gid;

use super::error::CommandError;
use super::limits::DeviceLimits;
use super::program_memory::ProgramMemory;
use super::queue_memory::{Queue, QueueMemory};
use super::quota::{Account, Charge, Resource};
use super::region_memory::RegionMemory;
use super::seqpacket::Peer;
use super::server::Shared;
use crate::lcore::message::{Command, ContextId, EventPipe, NewContext, Reply};
use crate::memory::{ContextFile, room};
use crate::nic::NicInfo;
use crate::supervisor::Keeper;

/// The queues of a QP.
#[derive(Debug)]
pub struct QpQueues {
    /// The number of the QP.
    pub qpn: u32,
    /// Send queue.
    pub sq: Queue,
    /// Receive queue, if it does not share one.
    pub rq: Option<Queue>,
}

/// A shared receive queue.
#[derive(Debug)]
pub struct SrqQueue {
    /// The queue.
    pub queue: Queue,
    /// Entries of a request at most.
    pub max_sge: u32,
}

/// A CQ.
#[derive(Debug)]
pub struct CqQueue {
    /// The queue.
    pub queue: Queue,
    /// Its completion channel, or [`NO_CHANNEL`](roceline_abi::objects::NO_CHANNEL).
    pub channel: u32,
    /// What events name it by.
    pub user_handle: u64,
}

/// An open device.
pub struct Context {
    shared: Arc<Shared>,
    id: ContextId,
    nic: usize,
    /// Its program, for messages.
    owner: Owner,
    /// What it has, of what its program may have.
    pub account: Arc<Account>,
    /// The shared file.
    pub file: Arc<ContextFile>,
    /// Who has which part of it.
    pub queues: QueueMemory,
    /// The program's address space.
    pub program: ProgramMemory,
    /// The program's end of the event pipe, until GET_CONTEXT fetches it.
    async_fd: Option<OwnedFd>,
    /// Protection domains.
    pub pds: HashSet<u32>,
    /// Memory regions.
    pub mrs: RegionMemory,
    /// Memory windows.
    pub mws: HashSet<u32>,
    /// Completion channels.
    pub channels: HashSet<u32>,
    /// Completion queues.
    pub cqs: HashMap<u32, CqQueue>,
    /// Shared receive queues.
    pub srqs: HashMap<u32, SrqQueue>,
    /// Queue pairs.
    pub qps: HashMap<u32, QpQueues>,
    /// Address handles.
    pub ahs: HashSet<u32>,
    /// Queue pairs in multicast groups, by the groups' canonical names.
    pub mcasts: HashSet<(u32, Gid)>,
}

/// A new context with what its program gets.
pub struct Opened {
    /// The context.
    pub context: Context,
    /// Payload of the reply.
    pub reply: OpenReply,
    /// The eventfd that wakes the lcore.
    pub wake: OwnedFd,
}

/// Name of a process as the kernel gives it; zeros where it cannot be known.
fn comm(pid: i32) -> [u8; 16] {
    let mut name = [0; 16];
    if let Ok(text) = std::fs::read(format!("/proc/{pid}/comm")) {
        let text = text.trim_ascii_end();
        let len = text.len().min(name.len());
        name[..len].copy_from_slice(&text[..len]);
    }
    name
}

/// What keeps a context from having a file.
fn no_file(source: io::Error) -> CommandError {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: fills in one rlimit.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
    if source.raw_os_error() == Some(libc::EFBIG) && known {
        return CommandError::FileSize {
            bytes: FILE_BYTES,
            limit: limit.rlim_cur,
        };
    }
    CommandError::System {
        what: "making the context file",
        source,
    }
}

impl Context {
    /// Opens a device for `peer`; `mem` is the program's `/proc/self/mem`.
    pub fn open(
        shared: &Arc<Shared>,
        peer: Peer,
        request: &OpenDevice,
        mem: OwnedFd,
    ) -> Result<Opened, CommandError> {
        let name = device_name(&request.device);
        let nics = &shared.config.nics;
        let Some(nic) = nics.iter().position(|nic| nic.name == name) else {
            return Err(CommandError::Device(name));
        };
        if !shared.may_open(peer.uid) {
            return Err(CommandError::Denied {
                uid: peer.uid,
                device: name,
            });
        }
        let program = ProgramMemory::adopt(mem, peer.pid)?;
        let pid = if peer.pid > 0 {
            peer.pid as u32
        } else {
            request.pid
        };
        let owner = Owner {
            pid,
            name: comm(peer.pid),
        };
        let account = Arc::new(shared.accounts.open(nic as u32, peer, owner));
        account.take(Resource::Contexts, 1)?;
        let turns = Arc::clone(&account);
        let _turn = turns.opening();
        let system = |what| move |source| CommandError::System { what, source };
        let file = Arc::new(ContextFile::create().map_err(no_file)?);
        let wake = eventfd().map_err(system("making the wake eventfd"))?;
        let (async_events, async_fd) = event_pipe().map_err(system("making the event pipe"))?;
        let context = Context {
            shared: shared.clone(),
            id: shared.next_context(nic as u32),
            nic,
            owner,
            file: file.clone(),
            queues: QueueMemory::new(Arc::clone(&account)),
            program,
            async_fd: Some(async_fd),
            pds: HashSet::new(),
            mrs: RegionMemory::new(Arc::clone(&account)),
            account,
            mws: HashSet::new(),
            channels: HashSet::new(),
            cqs: HashMap::new(),
            srqs: HashMap::new(),
            qps: HashMap::new(),
            ahs: HashSet::new(),
            mcasts: HashSet::new(),
        };
        if let Some(keeper) = context.keeper() {
            keeper.context(context.id, pid, peer, file.fd(), async_events.write.as_fd());
        }
        let new = NewContext {
            nic: nic as u32,
            file,
            mem: context
                .program
                .duplicate()
                .map_err(system("duplicating a descriptor"))?,
            lock: context.account.lock(),
            helper: None,
            wake: wake
                .try_clone()
                .map_err(system("duplicating a descriptor"))?,
            async_events,
            program: context.account.program(),
            pid,
            comm: owner.name,
        };
        if let Err(error) = context.done(Command::Open(Box::new(new))) {
            if matches!(error, CommandError::NoAnswer(..)) {
                // The lcore may still open it, and nobody would close it.
                shared.tell_owner(context.id, Command::Close);
            }
            context.no_longer_kept();
            return Err(error);
        }
        let reply = OpenReply {
            file_bytes: FILE_BYTES,
            device_index: context.nic().index,
            lcore_slots: shared.lcores.slots(),
            memory: context.nic().memory as u32,
            reserved: 0,
        };
        Ok(Opened {
            context,
            reply,
            wake,
        })
    }

    /// Who speaks for this context when the daemon is dead.
    fn keeper(&self) -> Option<&Keeper> {
        self.shared.config.keeper.as_deref()
    }

    fn no_longer_kept(&self) {
        if let Some(keeper) = self.keeper() {
            keeper.context_gone(self.id);
        }
    }

    /// Makes a completion channel: its handle, and the program's end.
    pub fn new_channel(&mut self) -> Result<(u32, OwnedFd), CommandError> {
        let system = |source| CommandError::System {
            what: "making a completion channel",
            source,
        };
        let (events, fd) = event_pipe().map_err(system)?;
        let copy = match self.keeper() {
            Some(_) => Some(events.write.try_clone().map_err(system)?),
            None => None,
        };
        let charge = self.charge(Resource::Channels, 1)?;
        let handle = self.handle(Command::AddChannel(events))?;
        self.channels.insert(handle);
        charge.keep();
        if let (Some(keeper), Some(copy)) = (self.keeper(), copy) {
            keeper.channel(self.id, handle, copy.as_fd());
        }
        Ok((handle, fd))
    }

    /// The program closed a completion channel.
    pub fn close_channel(&mut self, channel: u32) -> Result<(), CommandError> {
        if !self.channels.contains(&channel) {
            return Err(CommandError::Handle {
                kind: "completion channel",
                handle: channel,
            });
        }
        self.done(Command::RemoveChannel { channel })?;
        self.channels.remove(&channel);
        self.account.give(Resource::Channels, 1);
        if let Some(keeper) = self.keeper() {
            keeper.channel_gone(self.id, channel);
        }
        Ok(())
    }

    /// The NIC.
    pub fn nic(&self) -> &NicInfo {
        &self.shared.config.nics[self.nic]
    }

    /// What is allowed.
    pub fn limits(&self) -> &DeviceLimits {
        &self.shared.reported
    }

    /// What would be, without `[limits]` of the configuration.
    pub fn device_limits(&self) -> &DeviceLimits {
        &self.shared.config.limits
    }

    /// Says in the log what a program might not have meant.
    pub fn warn(&self, what: std::fmt::Arguments<'_>) {
        let (pid, device) = (self.owner.pid, self.nic().name.as_str());
        if self.shared.may_log(self.account.user()) {
            tracing::warn!(pid, device, "{what}");
        }
    }

    /// Whether the program may give its queue pairs a Q_Key of those that IBTA keeps for the privileged: it has
    /// `CAP_NET_RAW`, as Linux demands, in the daemon's user namespace.
    pub fn may_use_privileged_qkey(&self) -> bool {
        self.program.has_net_raw()
    }

    /// The MAC to which this NIC sends for the peer with `gid`. May ask the network, and waits for its answer a second at
    /// most; nobody but this program waits.
    pub fn neighbour(&self, gid: roceline_engine::wire::Gid) -> Result<[u8; 6], CommandError> {
        let neighbours = &self.shared.config.neighbours;
        Ok(neighbours.resolve(self.nic as u32, gid, self.account.user())?)
    }

    /// The program's end of the event pipe; from then on the context answers.
    pub fn take_async_fd(&mut self) -> Result<OwnedFd, CommandError> {
        self.async_fd.take().ok_or(CommandError::SecondContext)
    }

    /// Every command but GET_CONTEXT needs it to have come first.
    pub fn ready(&self) -> Result<(), CommandError> {
        if self.async_fd.is_some() {
            Err(CommandError::NoContext)
        } else {
            Ok(())
        }
    }

    /// Asks the owner, and waits.
    pub fn call(&self, command: Command) -> Result<Reply, CommandError> {
        // Those that are answered when memory operations have ended may take as long as the program's memory does.
        let waits = matches!(command, Command::Close | Command::DeregMr { .. });
        if command.makes_something() {
            room::check(room::OBJECT).map_err(|source| CommandError::System {
                what: "memory for it",
                source,
            })?;
        }
        let _turn = (!waits).then(|| self.account.turn());
        self.shared.ask_owner(self.id, command)
    }

    /// Asks for something that only can be done.
    pub fn done(&self, command: Command) -> Result<(), CommandError> {
        match self.call(command)? {
            Reply::Done => Ok(()),
            other => Err(self.unexpected("a command", &other)),
        }
    }

    /// Asks for a new object.
    pub fn handle(&self, command: Command) -> Result<u32, CommandError> {
        match self.call(command)? {
            Reply::Handle(handle) => Ok(handle),
            other => Err(self.unexpected("a command", &other)),
        }
    }

    /// The error for a reply that does not fit its command.
    pub fn unexpected(&self, command: &'static str, reply: &Reply) -> CommandError {
        CommandError::BadAnswer(command, format!("{reply:?}"))
    }

    /// A protection domain of this context.
    pub fn pd(&self, handle: u32) -> Result<u32, CommandError> {
        known(self.pds.contains(&handle), "protection domain", handle)
    }

    /// A completion queue of this context.
    pub fn cq(&self, handle: u32) -> Result<u32, CommandError> {
        known(self.cqs.contains_key(&handle), "completion queue", handle)
    }

    /// A shared receive queue of this context.
    pub fn srq(&self, handle: u32) -> Result<u32, CommandError> {
        let exists = self.srqs.contains_key(&handle);
        known(exists, "shared receive queue", handle)
    }

    /// A queue pair of this context.
    pub fn qp(&self, handle: u32) -> Result<u32, CommandError> {
        known(self.qps.contains_key(&handle), "queue pair", handle)
    }

    /// An address handle of this context.
    pub fn ah(&self, handle: u32) -> Result<u32, CommandError> {
        known(self.ahs.contains(&handle), "address handle", handle)
    }

    /// Keeps for people why a queue pair could not be connected.
    pub fn keep_refusal(&self, qp: u32, to: &str, error: &CommandError) {
        let Some(queues) = self.qps.get(&qp) else {
            return;
        };
        self.shared.refused_qps.add(
            &self.nic().name,
            queues.qpn,
            self.owner,
            to,
            error.errno(),
            error.to_string(),
        );
    }

    /// Takes `amount` of something for an object that is about to be made; given back unless it is kept.
    pub fn charge(&self, resource: Resource, amount: u64) -> Result<Charge, CommandError> {
        self.account.charge(resource, amount)
    }

    /// Gives back queues whose object was not created, unless the owner may have created it all the same.
    pub fn free_after(&mut self, error: &CommandError, queues: impl IntoIterator<Item = Queue>) {
        if matches!(
            error,
            CommandError::NoAnswer(..) | CommandError::BadAnswer(..)
        ) {
            return;
        }
        for queue in queues {
            self.queues.free(&self.file, queue);
        }
    }

    /// Changes how a region is reached: by the pieces of a `Reach` request from now on.
    pub fn set_reach(&mut self, payload: &[u8]) -> Result<(), CommandError> {
        let head = RegionReach::from_bytes(payload)
            .ok_or(CommandError::Message("Reach of a wrong length"))?;
        let handle = head.handle;
        let (addr, len) = self.mrs.range(handle).ok_or(CommandError::Handle {
            kind: "memory region",
            handle,
        })?;
        let pieces = &payload[size_of::<RegionReach>()..];
        let (reach, mappings) = self.mrs.reach_of(pieces, addr, len)?.split();
        self.done(Command::SetReach { mr: handle, reach })?;
        self.mrs.insert(handle, addr, len, mappings);
        Ok(())
    }

    /// Ends the context: all it had is freed when this returns.
    pub fn close(self) {
        tracing::debug!(
            device = self.nic().name,
            context = self.id.0,
            qps = self.qps.len(),
            cqs = self.cqs.len(),
            mrs = self.account.used(Resource::Mrs),
            "context ends"
        );
        // Without a turn: it takes as long as the program's memory does, for which another open of the program's may have to come.
        let closed = self.call(Command::Close);
        // What costs time is to unmap its memory.
        let account = Arc::clone(&self.account);
        let _turn = account.opening();
        match closed {
            // Freed while it is its turn.
            Ok(gone @ (Reply::Gone(_) | Reply::Done)) => drop(gone),
            Ok(other) => {
                let error = self.unexpected("Close", &other);
                tracing::warn!(context = self.id.0, %error, "context could not be closed");
            }
            Err(error) => {
                tracing::warn!(context = self.id.0, %error, "context could not be closed");
            }
        }
        // A program that only lost its daemon is to be told so.
        if !self.shared.is_closing() {
            self.no_longer_kept();
        }
        drop(self);
    }
}

fn known(known: bool, kind: &'static str, handle: u32) -> Result<u32, CommandError> {
    if known {
        Ok(handle)
    } else {
        Err(CommandError::Handle { kind, handle })
    }
}

pub(super) fn device_name(bytes: &[u8; NAME_BYTES]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(NAME_BYTES);
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A pipe for events, and the program's end of it.
///
/// O_NONBLOCK belongs to an open file description, and a passed descriptor shares its description with the
/// program. So each side has its own: the program's read end (which blocks, as the kernel's would, until the
/// program says otherwise), the daemon's write end, and the daemon's read end, which is opened anew through
/// `/proc/self/fd`. Whatever the program does to its description, the daemon's calls never block.
pub fn event_pipe() -> io::Result<(EventPipe, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: writes two descriptors into the array.
    if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both are new and ours.
    let (program, write) = unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
    // SAFETY: a plain system call; a new write end has no other status flags.
    if unsafe { libc::fcntl(write.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let drain = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(format!("/proc/self/fd/{}", program.as_raw_fd()))?;
    Ok((
        EventPipe {
            write,
            drain: drain.into(),
        },
        program,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nonblocking(fd: &OwnedFd) -> bool {
        // SAFETY: a plain system call.
        unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) & libc::O_NONBLOCK != 0 }
    }

    #[test]
    fn the_ends_of_an_event_pipe_do_not_share_their_flags() {
        let (pipe, program) = event_pipe().unwrap();
        assert!(nonblocking(&pipe.write) && nonblocking(&pipe.drain));
        assert!(!nonblocking(&program));
        // The program changes its mind: the daemon's end stays as it is, and the other way round.
        // SAFETY: plain system calls.
        unsafe { libc::fcntl(program.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        // SAFETY: as above.
        unsafe { libc::fcntl(pipe.drain.as_raw_fd(), libc::F_SETFL, 0) };
        assert!(nonblocking(&program) && !nonblocking(&pipe.drain) && nonblocking(&pipe.write));
        // Both read ends read the same pipe.
        let mut byte = 0u8;
        // SAFETY: writes one byte from, and reads one byte into, a live variable.
        unsafe {
            assert_eq!(
                libc::write(pipe.write.as_raw_fd(), c"x".as_ptr().cast(), 1),
                1
            );
            assert_eq!(
                libc::read(pipe.drain.as_raw_fd(), (&raw mut byte).cast(), 1),
                1
            );
            assert_eq!(
                libc::read(program.as_raw_fd(), (&raw mut byte).cast(), 1),
                -1
            );
        }
        assert_eq!(byte, b'x');
    }

    #[test]
    fn device_names_end_at_the_first_nul_or_at_the_end() {
        let mut bytes = [0; NAME_BYTES];
        bytes[..5].copy_from_slice(b"roce1");
        assert_eq!(device_name(&bytes), "roce1");
        assert_eq!(device_name(&[b'x'; NAME_BYTES]).len(), NAME_BYTES);
    }
}
