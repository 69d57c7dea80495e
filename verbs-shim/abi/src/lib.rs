//! What the shim and the daemon must agree on: the layout of the shared context file, the work and
//! completion queues in it, and the messages on the hidden control socket.
//!
//! Everything here is data. The daemon treats all of it as hostile: it copies a value once, checks
//! the copy and uses the copy (see `docs/architecture.md`, "Trust").

pub mod control;
pub mod layout;
pub mod queue;

/// Version of everything in this crate. Shim and daemon compare it when a context is opened and say
/// plainly when they differ.
pub const PROTOCOL_VERSION: u16 = 1;
