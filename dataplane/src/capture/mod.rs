//! Captures: what a tap in the lcore records, and how it leaves.
//!
//! ```text
//! lcore: Tap ── Record ──> chunks::Filler ══ chunks ══> chunks::Drainer ── session ── socket ──> command line ──> pcapng
//!          └─────────────> LastPackets (--last), handed over whole when the tap is removed
//! ```
//!
//! The lcore writes [`record`]s into memory that the session's thread allocated, and never waits: when no chunk is free the
//! record is counted as lost. The session only moves chunks when the command line asks for the next ones, so a
//! reader that stalls or dies costs the daemon a bounded buffer and nobody a packet. The file is opened and written by
//! the command line, as its own user: no descriptor that might block, and no path, ever reaches the daemon.

pub mod chunks;
pub mod last;
pub mod pcapng;

pub mod record;
pub mod request;

pub use record::{Hit, Record};
