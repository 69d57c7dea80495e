//! Messages on the control socket: `AF_UNIX`, `SOCK_SEQPACKET`, one request then one reply, never
//! pipelined. Integers are in native byte order (both ends are on one machine).
//!
//! A connection starts with [`Kind::OpenDevice`] (a program's context), or with [`Kind::Query`] (the
//! command line). A context *is* its connection: when the connection ends, all it had is freed.
//!
//! ```text
//! request: RequestHeader | payload         fds as SCM_RIGHTS
//! reply:   ReplyHeader   | payload         fds as SCM_RIGHTS
//! ```
//!
//! * `OpenDevice`: payload [`OpenDevice`]; fd: the program's `/proc/self/mem`, opened read-write.
//!   Reply payload [`OpenReply`]; fds: the context file, then the wake eventfd.
//! * `Uverbs`: payload is the byte string that rdma-core gave to `write(cmd_fd)`. Reply payload is
//!   what the kernel would have written to the command's `response` address; `error` is the errno
//!   that `write` fails with. If `fd_at` is not [`NO_FD`], one fd comes along and the shim stores its
//!   number as an i32 at that offset of the response before it copies it out (async fd of GET_CONTEXT,
//!   fd of CREATE_COMP_CHANNEL).
//!
//!   A completion channel has no command that names it but its fd number, which only the program knows.
//!   So before the shim stores the fd it reads the u32 that the daemon left there, the *channel handle*,
//!   remembers fd -> handle, and puts the handle in place of the fd in CREATE_CQ (`comp_channel` at
//!   [`CREATE_CQ_CHANNEL_AT`], in the extended form at [`EX_CREATE_CQ_CHANNEL_AT`]; -1 stays). When the fd is
//!   closed it sends `CloseChannel`.
//! * `MemoryFile`: fd: a memory object (memfd, tmpfs or hugetlbfs file) open both ways. Reply payload: the number (u32) by
//!   which pieces name it on this connection.
//! * `Memory`: payload is [`MemoryPiece`]s: where memory of the next REG_MR on this connection lies in such objects.
//!   What no piece covers is reached through the program's `/proc/self/mem`. May come several times before the REG_MR.
//! * `Reach`: payload is [`RegionReach`], then [`MemoryPiece`]s, which replace those of a registered region. When the reply
//!   comes, the old ones are no longer used.
//! * `Query`: payload is a JSON text; reply payload is a JSON text, possibly in several packets: all
//!   but the last have [`MORE`] in `flags`.
//! * `Capture`: payload is a JSON text; reply payload is a JSON text, or records of captured packets, in several
//!   packets as above. The connection may have one capture, which ends with it.
//! * `Inject`: payload is the index of a NIC (u32), then frames, each behind its length (u32): the NIC receives them.
//!   Reply payload is a JSON text.
//! * `Attribute`: payload is the path of a writable file of a device below `/sys/class`, a NUL, and the text that a program
//!   writes to it; `error` is the errno that its `write` fails with. An empty text changes nothing, and is refused to those who
//!   may not write.

/// "RCL1": first word of every message.
pub const MAGIC: u32 = u32::from_le_bytes(*b"RCL1");
/// `fd_at` when no fd comes along.
pub const NO_FD: u32 = u32::MAX;
/// Reply flag: another packet of this reply follows.
pub const MORE: u32 = 1;
/// Reply flag, on a connection with a capture: the daemon is ending. Who asks can fetch what was captured, if soon.
pub const ENDING: u32 = 2;
/// Byte offset of `comp_channel` in a CREATE_CQ command, from the start of the written bytes.
pub const CREATE_CQ_CHANNEL_AT: usize = 32;
/// The same in an extended CREATE_CQ command.
pub const EX_CREATE_CQ_CHANNEL_AT: usize = 40;
/// Largest payload of one packet in either direction.
pub const MAX_PAYLOAD: usize = 60 << 10;
/// Bytes of a device name, NUL-padded.
pub const NAME_BYTES: usize = 64;

/// What a request asks for.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Open a device: a new context.
    OpenDevice = 1,
    /// One uverbs `write()` command on the context of this connection.
    Uverbs = 2,
    /// A question of the command line.
    Query = 3,
    /// The program closed a completion channel's fd; payload is its handle (u32).
    CloseChannel = 4,
    /// A memory object of the program.
    MemoryFile = 5,
    /// Where memory of the next region lies.
    Memory = 6,
    /// Where memory of a registered region lies from now on.
    Reach = 7,
    /// A request of `roceline capture`.
    Capture = 8,
    /// Packets of `roceline replay`.
    Inject = 9,
    /// A program writes to a file of a device in sysfs.
    Attribute = 10,
}

impl Kind {
    /// The kind with this number, if there is one.
    pub fn from_u32(v: u32) -> Option<Kind> {
        match v {
            1 => Some(Kind::OpenDevice),
            2 => Some(Kind::Uverbs),
            3 => Some(Kind::Query),
            4 => Some(Kind::CloseChannel),
            5 => Some(Kind::MemoryFile),
            6 => Some(Kind::Memory),
            7 => Some(Kind::Reach),
            8 => Some(Kind::Capture),
            9 => Some(Kind::Inject),
            10 => Some(Kind::Attribute),
            _ => None,
        }
    }
}

/// Starts every request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestHeader {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`crate::PROTOCOL_VERSION`] of the sender.
    pub version: u32,
    /// A [`Kind`].
    pub kind: u32,
    /// Bytes of payload that follow.
    pub len: u32,
}

/// Starts every reply.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplyHeader {
    /// [`MAGIC`].
    pub magic: u32,
    /// [`crate::PROTOCOL_VERSION`] of the daemon; set even when the request's version differs.
    pub version: u32,
    /// 0, or an errno, and then the payload is the reason as text, for people. A version mismatch is `EPROTO`.
    pub error: i32,
    /// [`MORE`] or 0.
    pub flags: u32,
    /// Offset in the payload where the number of the passed fd belongs, or [`NO_FD`].
    pub fd_at: u32,
    /// Bytes of payload that follow.
    pub len: u32,
}

/// Payload of an `OpenDevice` request.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenDevice {
    /// Device name (`roce0`), NUL-padded.
    pub device: [u8; NAME_BYTES],
    /// The same random number for all contexts of one program: quotas are per program.
    pub program: u64,
    /// For messages only; never used to reach the program.
    pub pid: u32,
    /// Zero.
    pub reserved: u32,
}

/// Payload of the reply to an `OpenDevice` request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenReply {
    /// Size of the context file.
    pub file_bytes: u64,
    /// Index N of `uverbsN`.
    pub device_index: u32,
    /// Lcore slots whose doorbell areas are in use (slots `0..n`).
    pub lcore_slots: u32,
    /// A [`MemoryPolicy`].
    pub memory: u32,
    /// Zero.
    pub reserved: u32,
}

/// Which memory may be mapped into the daemon.
#[repr(u32)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryPolicy {
    /// What can be mapped without doubt.
    #[default]
    Auto = 0,
    /// None.
    Never = 1,
    /// All that can be mapped, even where the program may use it in ways that mapping breaks.
    Always = 2,
}

impl MemoryPolicy {
    /// The policy with this number; an unknown one maps nothing.
    pub fn from_u32(v: u32) -> MemoryPolicy {
        match v {
            0 => MemoryPolicy::Auto,
            2 => MemoryPolicy::Always,
            _ => MemoryPolicy::Never,
        }
    }

    /// The policy that a person writes as this word.
    pub fn from_word(word: &[u8]) -> Option<MemoryPolicy> {
        match word {
            b"auto" => Some(MemoryPolicy::Auto),
            b"never" => Some(MemoryPolicy::Never),
            b"always" => Some(MemoryPolicy::Always),
            _ => None,
        }
    }
}

/// Whole pages of a program that lie in a memory object. Pieces ascend by address and do not overlap.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPiece {
    /// First address in the program.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Where the first of them is in the object.
    pub offset: u64,
    /// The object's number.
    pub file: u32,
    /// Zero.
    pub reserved: u32,
}

/// Starts the payload of a `Reach` request.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionReach {
    /// MR handle.
    pub handle: u32,
    /// Zero.
    pub reserved: u32,
}

/// A plain `repr(C)` message struct without padding or invalid bit patterns.
///
/// # Safety
/// Implementors are `repr(C)`, have no padding and are valid for every bit pattern.
pub unsafe trait Plain: Copy {
    /// The bytes of this value.
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: a Plain type has no padding, so all its bytes are initialised.
        unsafe { core::slice::from_raw_parts((self as *const Self).cast(), size_of::<Self>()) }
    }
    /// Reads a value from the start of `bytes`; `None` if they are too few.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < size_of::<Self>() {
            return None;
        }
        // SAFETY: length checked above; a Plain type is valid for every bit pattern.
        Some(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

// SAFETY: repr(C), only integers, no padding.
unsafe impl Plain for RequestHeader {}
// SAFETY: as above.
unsafe impl Plain for ReplyHeader {}
// SAFETY: as above; the array is 64 bytes, the u64 after it is aligned.
unsafe impl Plain for OpenDevice {}
// SAFETY: as above.
unsafe impl Plain for OpenReply {}

// SAFETY: as above; 48 bytes, every one of them a field's.
unsafe impl Plain for crate::queue::Cqe {}
// SAFETY: as above.
unsafe impl Plain for MemoryPiece {}
// SAFETY: as above.
unsafe impl Plain for RegionReach {}

const _: () = assert!(size_of::<OpenDevice>() == NAME_BYTES + 16);
const _: () = assert!(size_of::<OpenReply>() == 24);
const _: () = assert!(size_of::<MemoryPiece>() == 32);
