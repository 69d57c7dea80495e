//! How programs and the command line reach the daemon: the kernel's uverbs layer, played on a Unix socket.
//!
//! **In** flow packets of the hidden control socket (`roceline_abi::control`): a program opens a device, its
//! rdma-core writes uverbs commands, the command line asks questions. **Out** flow messages to the lcore that
//! owns the context ([`crate::lcore::message`]), and, from its replies, what the kernel would have answered.
//! Each connection is one thread; it owns the program's context on this side ([`context`]) and never touches a
//! live object. What a program sends is hostile: it is copied, length-checked and range-checked before use.
//!
//! ```text
//! server ── accept ──> session (one thread per connection)
//!                        ├─ OpenDevice ─> context: file, pipes, program memory
//!                        ├─ Uverbs ─────> uverbs: decode ─> Command ─> lcore ─> Reply ─> encode
//!                        └─ Query ──────> query: NicInfo and Snapshot as JSON
//! ```

pub mod addresses;
mod ask;
mod bound_socket;
mod capture;
pub mod client;
pub mod congestion;
mod context;
pub mod counter_files;
pub mod counters;
mod error;
pub mod impair;
mod inject;
pub mod limits;
pub mod machine;
pub mod neighbours;
pub mod post_mortem;
mod program_memory;
pub mod programs;
pub mod query;
mod queue_memory;
pub mod quota;
pub mod refused_qps;
mod region_memory;
pub(crate) mod seqpacket;
mod server;
mod session;
pub mod tree;
mod uverbs;
mod written;

#[cfg(test)]
mod session_tests;
#[cfg(test)]
mod testing;

use std::path::PathBuf;
use std::sync::Arc;

pub use bound_socket::BoundSocket;
pub use client::{Client, ClientError};
#[cfg(test)]
pub(crate) use context::event_pipe;
pub use error::{CommandError, ControlError};
pub use limits::DeviceLimits;
pub use server::{Listener, Server};

use self::quota::Quotas;
use crate::fabric::plan::PortName;
use crate::impair::{Spec, Wiring};
use crate::lcore::message::Request;
use crate::neighbour::Neighbours;
use crate::nic::NicInfo;
use crate::supervisor::Keeper;

/// What the control socket needs to know. Fixed while the daemon runs.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// Where to listen.
    pub socket: PathBuf,
    /// Permission bits of the socket file: who may connect at all. 0o666 by default.
    pub socket_mode: u32,
    /// The NICs, by index.
    pub nics: Arc<[NicInfo]>,
    /// Ports of emulated switches, as captures count them behind the NICs.
    pub switch_ports: Arc<[PortName]>,
    /// Who is where.
    pub neighbours: Arc<Neighbours>,
    /// What devices can do.
    pub limits: DeviceLimits,
    /// How much programs, users and all together may have.
    pub quotas: Quotas,
    /// Users who may open devices, besides root and the daemon's own user; `None`: everybody.
    pub allowed_users: Option<Vec<u32>>,
    /// Users who may change what the daemon does (impairments) and see the packets of others (captures), besides root
    /// and the daemon's own user.
    pub operators: Vec<u32>,
    /// Which NICs share a link.
    pub wiring: Wiring,
    /// Impairments to begin with.
    pub impair: Vec<Spec>,
    /// Who speaks for this process when it is dead; `None` where nobody does.
    pub keeper: Option<Arc<Keeper>>,
    /// Daemon processes that served this socket before.
    pub restarts: u32,
    /// How the last of them ended.
    pub last_end: Option<String>,
}

impl ControlConfig {
    /// A config with the default limits, open to everybody who can reach the socket.
    pub fn new(
        socket: PathBuf,
        nics: Arc<[NicInfo]>,
        neighbours: Arc<Neighbours>,
    ) -> ControlConfig {
        ControlConfig {
            socket,
            socket_mode: 0o666,
            nics,
            switch_ports: Arc::new([]),
            neighbours,
            limits: DeviceLimits::default(),
            quotas: Quotas::default(),
            allowed_users: None,
            operators: Vec::new(),
            wiring: Wiring::default(),
            impair: Vec::new(),
            keeper: None,
            restarts: 0,
            last_end: None,
        }
    }
}

/// The way to the lcores, by their numbers.
pub trait LcorePort: Send + Sync {
    /// Queues `request` for lcore `lcore`, which is woken if it sleeps.
    fn send(&self, lcore: u32, request: Request) -> Result<(), SendError>;

    /// How many lcores there are.
    fn count(&self) -> u32 {
        1
    }

    /// The lcores that serve NIC `nic`. The first one has its port.
    fn serving(&self, _nic: u32) -> &[u32] {
        &[0]
    }

    /// The lcore that a new context of NIC `nic` is to belong to.
    fn place(&self, nic: u32) -> u32 {
        self.serving(nic).first().copied().unwrap_or(0)
    }

    /// Lcore slots whose doorbell areas are in use.
    fn slots(&self) -> u32 {
        1
    }
}

/// The lcore's queue of requests is full, or the lcore has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lcore takes no requests: its queue is full or it has stopped")]
pub struct SendError;
