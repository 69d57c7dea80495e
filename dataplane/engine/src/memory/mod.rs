//! Memory regions, and windows into them, as the transport sees them: keys, ranges, protection domains and access rights.
//! How the bytes are reached is the caller's affair.

mod owners;
mod table;
mod window;

pub use table::MrTable;
pub use window::{Binding, MwInfo, WindowError, WindowType};

/// Access rights of a region or QP, bits as in `enum ibv_access_flags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(pub u32);

impl Access {
    /// Local memory may be written: receive buffers, READ targets.
    pub const LOCAL_WRITE: Access = Access(1);
    /// Peers may WRITE.
    pub const REMOTE_WRITE: Access = Access(2);
    /// Peers may READ.
    pub const REMOTE_READ: Access = Access(4);
    /// Peers may use atomics.
    pub const REMOTE_ATOMIC: Access = Access(8);
    /// Windows may be bound to the region.
    pub const MW_BIND: Access = Access(1 << 4);
    /// The first byte is named 0.
    pub const ZERO_BASED: Access = Access(1 << 5);
    /// Peers may FLUSH for visibility.
    pub const FLUSH_GLOBAL: Access = Access(1 << 8);
    /// Peers may FLUSH for persistence.
    pub const FLUSH_PERSISTENT: Access = Access(1 << 9);
    /// Only local reading: every region allows it.
    pub const LOCAL_READ: Access = Access(0);

    /// Whether all rights in `need` are in `self`.
    pub const fn allows(self, need: Access) -> bool {
        self.0 & need.0 == need.0
    }
}

/// A region to be registered.
#[derive(Clone, Copy, Debug)]
pub struct MrAttr {
    /// Protection domain (the caller's number).
    pub pd: u32,
    /// First byte in the program.
    pub addr: u64,
    /// The address by which work requests and peers name that byte.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
    /// Rights.
    pub access: Access,
}

/// A registered region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MrInfo {
    /// Dense index, for the caller's own table. Not reused before the key leaves quarantine.
    pub index: u32,
    /// Key for local use.
    pub lkey: u32,
    /// Key for peers.
    pub rkey: u32,
}

/// Why a key, range or right was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// No such key.
    #[error("key {0:#x} names no memory region")]
    UnknownKey(u32),
    /// Key of another protection domain.
    #[error("key {0:#x} belongs to another protection domain")]
    WrongPd(u32),
    /// Outside the region, or the end overflows.
    #[error("range {addr:#x}+{len:#x} is outside the memory region")]
    Range {
        /// First byte asked for.
        addr: u64,
        /// Bytes asked for.
        len: u64,
    },
    /// The region does not give that right.
    #[error("the memory region does not allow access {0:#x}")]
    Denied(u32),
    /// The table is full.
    #[error("no memory region left: {0} are registered")]
    Full(u32),
    /// A window of type 2 that another QP has bound.
    #[error("key {0:#x} is that of a memory window which another queue pair has bound")]
    WrongQp(u32),
    /// The region cannot go while windows are bound to it.
    #[error("{0} memory windows are bound to the memory region: invalidate or free them first")]
    WindowsBound(u32),
}
