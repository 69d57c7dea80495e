//! Why a command of a program failed: the errno that its `write()` gives, and the sentence for the log, which
//! names the value and, where there is one, the remedy.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use roceline_engine::verbs::QpState;

use super::quota::{Level, Resource};

/// A command that failed.
#[allow(missing_docs)]
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("{command}: {bytes} bytes do not agree with the lengths in the header")]
    Framing { command: &'static str, bytes: usize },
    #[error("{command}: {what} of {got} bytes is too short, {need} are needed")]
    Space {
        command: &'static str,
        what: &'static str,
        got: usize,
        need: usize,
    },
    #[error("{command}: field {field} has a value that means nothing in this version: {value:#x}")]
    Field {
        command: &'static str,
        field: &'static str,
        value: u64,
    },
    #[error("no uverbs command has the number {0:#x}")]
    UnknownCommand(u32),
    #[error("no extended uverbs command has the number {0:#x}")]
    UnknownExtended(u32),
    #[error("{0} is not supported in this version")]
    Unsupported(&'static str),
    #[error("the command needs a context, but GET_CONTEXT was not the first")]
    NoContext,
    #[error("this connection has its context already: open the device again for another")]
    SecondContext,
    #[error("this connection has no device: OpenDevice must come first")]
    NoDevice,
    #[error("there is no {kind} with handle {handle:#x} in this context")]
    Handle { kind: &'static str, handle: u32 },
    #[error("{name} = {value} is out of range: {limit} at most")]
    Limit {
        name: &'static str,
        value: u64,
        limit: u64,
    },
    #[error("{name} must not be 0")]
    Zero { name: &'static str },
    #[error("this context has {limit} {what} already, which is the most it may have")]
    Quota { what: &'static str, limit: u64 },
    #[error("{}", share(*resource, *level, *uid, [*used, *amount, *limit], *set))]
    Share {
        resource: Resource,
        level: Level,
        uid: u32,
        used: u64,
        amount: u64,
        limit: u64,
        set: bool,
    },
    #[error("no room for a queue of {bytes} bytes is left in the context's file")]
    QueueMemory { bytes: u64 },
    #[error("access flags {0:#x}: remote write and remote atomic need local write")]
    RemoteWithoutLocal(u32),
    #[error("access flags {0:#x} have bits that no region can have")]
    AccessBits(u32),
    #[error("memory region {addr:#x}+{len:#x} is empty or wraps around")]
    Range { addr: u64, len: u64 },
    #[error("iova {iova:#x} and address {addr:#x} differ in their offset within a page")]
    IovaOffset { addr: u64, iova: u64 },
    #[error("memory region {addr:#x}+{len:#x}: nothing is mapped at {at:#x}")]
    Unmapped { addr: u64, len: u64, at: u64 },
    #[error(
        "memory region {addr:#x}+{len:#x}: the mapping at {at:#x} is {perms}; local write needs a writable one, and \
         every region a readable one"
    )]
    Protection {
        addr: u64,
        len: u64,
        at: u64,
        perms: String,
    },
    #[error("address {0:#x}, which the command names for its answer, cannot be written")]
    Address(u64),
    #[error("{0} queue pairs are not supported in this version")]
    QpType(&'static str),
    #[error("queue pair state {0} does not exist")]
    QpState(u32),
    #[error(
        "the queue pair (handle {qp:#x}) is in {state:?}, not in {claimed:?}, the current state that the command names"
    )]
    CurrentState {
        qp: u32,
        state: QpState,
        claimed: QpState,
    },
    #[error("port {0} does not exist: the only port is 1")]
    Port(u8),
    #[error(
        "the address vector has no GID (is_global is 0): RoCE needs one. Name a GID index (`-g 0` in ibv_*_pingpong, \
         `-x 0` in perftest); for programs that know LIDs only, as qperf, say `lids = true` in the NIC's configuration"
    )]
    NotGlobal,
    #[error(
        "GID index {index} of {device} is empty: `roceline show devices` lists those that are not"
    )]
    GidIndex { device: String, index: u8 },
    #[error(
        "the peer's GID {0} is no unicast address: exchange GIDs, or check the peer's GID index"
    )]
    DestinationGid(IpAddr),
    #[error(
        "{0} is no multicast group: use an IPv6 multicast address (ff00::/8), or an IPv4 one as ::ffff:239.1.2.3"
    )]
    MulticastGid(IpAddr),
    #[error(
        "own GID {sgid} (index {index}) and the peer's GID {dgid} are of different address families: choose GID \
         indices of one family on both sides"
    )]
    GidFamily {
        sgid: IpAddr,
        dgid: IpAddr,
        index: u8,
    },
    #[error("{0}")]
    Neighbour(#[from] crate::neighbour::Unresolved),
    #[error(
        "path MTU {asked} is larger than the active MTU {active} of {device} (port MTU {port}): use a smaller one \
         (`-m {active}`) or raise the port's `mtu`"
    )]
    PathMtu {
        device: String,
        asked: u32,
        active: u32,
        port: u32,
    },
    #[error(
        "Q_Key {0:#010x} is for the privileged, as its highest bit is set: give the program CAP_NET_RAW and run the daemon as \
         root, or it cannot see that; or choose another"
    )]
    PrivilegedQkey(u32),
    #[error("path MTU number {0} does not exist")]
    MtuNumber(u32),
    #[error("{reason}")]
    Refused { errno: i32, reason: String },
    #[error("the lcore did not answer {0} within {1} s")]
    NoAnswer(&'static str, u64),
    #[error("the lcore's answer to {0} makes no sense: {1}")]
    BadAnswer(&'static str, String),
    #[error("{0}")]
    Lcore(#[from] super::SendError),
    #[error("there is no device {0:?} here: `roceline show devices` lists them")]
    Device(String),
    #[error("user {uid} may not open {device}: `[control] users` does not name it")]
    Denied { uid: u32, device: String },
    #[error(
        "user {uid} may not {what}: only root, the daemon's own user and `[control] operators` of its configuration may"
    )]
    NotOperator { uid: u32, what: &'static str },
    #[error("the descriptor passed as the program's memory is not one: {0}")]
    MemoryFd(String),
    #[error("{0}")]
    Memory(#[from] crate::memory::MappingError),
    #[error(
        "the file of a device's queues has {bytes} bytes, most of which are never used, but the daemon may have files of \
         {limit} bytes: start it without `ulimit -f` (RLIMIT_FSIZE)"
    )]
    FileSize { bytes: u64, limit: u64 },
    #[error("{what}: {source}")]
    System {
        what: &'static str,
        source: io::Error,
    },
    #[error("no file that can be written has the path {0:?}")]
    Attribute(String),
    #[error("the message is malformed: {0}")]
    Message(&'static str),
    #[error("no capture: {0}")]
    Capture(String),
    #[error("the query is not understood: {0}")]
    Query(String),
    #[error("{0}")]
    Rule(String),
}

impl CommandError {
    /// What the program's call fails with: the errno that the kernel gives in the same case.
    pub fn errno(&self) -> i32 {
        use CommandError::*;
        match self {
            Framing { .. }
            | Field { .. }
            | UnknownCommand(_)
            | NoContext
            | SecondContext
            | NoDevice => libc::EINVAL,
            Handle { .. } | Limit { .. } | Zero { .. } | RemoteWithoutLocal(_) | AccessBits(_) => {
                libc::EINVAL
            }
            Range { .. } | IovaOffset { .. } | QpState(_) | CurrentState { .. } | Port(_) => {
                libc::EINVAL
            }
            NotGlobal
            | GidIndex { .. }
            | DestinationGid(_)
            | MulticastGid(_)
            | GidFamily { .. } => libc::EINVAL,
            PathMtu { .. } | MtuNumber(_) | MemoryFd(_) | Message(_) | Query(_) => libc::EINVAL,
            Memory(_) | Rule(_) | Capture(_) => libc::EINVAL,
            Space { .. } => libc::ENOSPC,
            UnknownExtended(_) | Unsupported(_) | QpType(_) => libc::EOPNOTSUPP,
            Quota { .. } | QueueMemory { .. } => libc::ENOMEM,
            // A device that has no more of something is out of memory to its driver; a share that somebody set is the RDMA
            // cgroup's (`rdmacg_try_charge`: EAGAIN), and one of memory that of `RLIMIT_MEMLOCK` (`ib_umem_get`: ENOMEM).
            Share { resource, set, .. } if *set && !resource.is_bytes() => libc::EAGAIN,
            Share { .. } => libc::ENOMEM,
            Unmapped { .. } | Protection { .. } | Address(_) => libc::EFAULT,
            Neighbour(unresolved) => unresolved.errno(),
            Refused { errno, .. } => *errno,
            NoAnswer(..) | BadAnswer(..) | Lcore(_) => libc::EIO,
            Device(_) => libc::ENODEV,
            Attribute(_) => libc::ENOENT,
            Denied { .. } => libc::EACCES,
            NotOperator { .. } | PrivilegedQkey(_) => libc::EPERM,
            FileSize { .. } => libc::EFBIG,
            System { source, .. } => crate::memory::room::errno(source),
        }
    }

    /// What it is about, if a program may ask for it again and again and the log is to say so once: a feature that this
    /// version does not have, or more than the program's share. `text` is the sentence.
    pub fn told_once<'a>(&self, text: &'a str) -> Option<&'a str> {
        match self {
            CommandError::Unsupported(_)
            | CommandError::UnknownExtended(_)
            | CommandError::QpType(_) => Some(text),
            CommandError::Share { resource, .. } => Some(resource.key()),
            _ => None,
        }
    }
}

/// Who has how much of what already, and what would give more.
fn share(
    resource: Resource,
    level: Level,
    uid: u32,
    [used, amount, limit]: [u64; 3],
    set: bool,
) -> String {
    let what = resource.what();
    let who = match level {
        Level::Program => "this program has".into(),
        Level::User => format!("the programs of user {uid} have"),
        Level::Device => "all programs together have".into(),
    };
    let more = match amount {
        1 => "one more would be".into(),
        _ => format!("{amount} more would be"),
    };
    let (key, section) = (resource.key(), level.section());
    let bound = match (set, level) {
        (true, _) => format!("its share of {limit}: raise `{key}` in {section}"),
        (false, Level::Device) => format!("the {limit} that there are"),
        (false, _) => format!(
            "{limit}, the default of `{key}` in {section}: set it there (all programs together have what \
             [limits.device] says)"
        ),
    };
    format!("{who} {used} {what} of this device already, and {more} more than {bound}")
}

/// Why the control socket could not be set up.
#[allow(missing_docs)]
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("an [[impair]] of the configuration cannot be set up: {0}")]
    Impair(CommandError),
    #[error("another daemon answers on {0}: stop it, or choose another socket with --socket")]
    InUse(PathBuf),
    #[error("{0} exists and is not a socket: remove it, or choose another with --socket")]
    NotASocket(PathBuf),
    #[error("the socket path {0} is too long: a Unix socket's path has at most 107 bytes")]
    PathTooLong(PathBuf),
    #[error(
        "{what} {path}: {source}; choose a place that this user can write to with --socket PATH, or set XDG_RUNTIME_DIR"
    )]
    Place {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{what} {path}: {source}")]
    Socket {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}
