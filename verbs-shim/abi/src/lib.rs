//! What the shim and the daemon must agree on: the layout of the shared context file, the work and
//! completion queues in it, and the messages on the hidden control socket.
//!
//! Nearly everything here is data; [`flush`] is what both sides do with it when the daemon is dead. The daemon treats all of it as hostile: it copies a value once, checks
//! the copy and uses the copy (see `docs/architecture.md`, "Trust").

pub mod control;
pub mod flush;
pub mod layout;
pub mod objects;
pub mod queue;
pub mod view;

/// Version of everything in this crate. Shim and daemon compare it when a context is opened and say
/// plainly when they differ.
pub const PROTOCOL_VERSION: u16 = 2;

/// Starts the [`mark`].
pub const MARK_PREFIX: &[u8] = b"roceline-shim protocol ";

/// Stands in the shim's file, so that its version can be read without loading it: the prefix, then
/// [`PROTOCOL_VERSION`] in five digits.
pub const fn mark() -> [u8; 28] {
    let mut mark = [0; 28];
    let mut i = 0;
    while i < MARK_PREFIX.len() {
        mark[i] = MARK_PREFIX[i];
        i += 1;
    }
    let mut rest = PROTOCOL_VERSION;
    i = mark.len();
    while i > MARK_PREFIX.len() {
        i -= 1;
        mark[i] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    mark
}
