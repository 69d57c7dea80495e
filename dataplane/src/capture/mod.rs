//! Captures: what a tap in the lcore records, and how it leaves. And the way back: a capture's packets for a replay.
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
//!
//! A replay reads a file ([`source`]), chooses packets ([`filter`]), changes them ([`rewrite`]), all in the command line,
//! and hands frames to the daemon, whose lcore lets a NIC receive them.

pub mod chunks;
pub mod filter;
pub mod last;
pub mod pcapng;

pub mod record;
pub mod request;
pub mod rewrite;
pub mod source;

pub use record::{Hit, Record};
