//! The transport of a RoCE v2 NIC as state machines.
//!
//! **In** flow parsed headers, work requests, outcomes of memory operations and `now`. **Out** flow,
//! into arrays that the caller owns ([`Outputs`]), descriptors of packets to build, placements to
//! make, completions and the next deadline. The engine has no clock, no thread, no I/O and never
//! touches a byte of payload. One [`Engine`] is the part of one NIC that one lcore owns, so nothing in it is
//! shared; after construction the datapath calls allocate nothing.
//!
//! The same code runs in the poll loop, under virtual time, and against captures.

pub mod congestion;
pub mod counters;
pub mod descriptor;
pub mod diagnosis;
pub mod fabric;
pub mod memory;
pub mod time;
pub mod timers;
pub mod transport;
pub mod verbs;
pub mod wire;

pub use counters::Counters;
pub use descriptor::{MemSlice, NO_AH, Outcome, Outputs, Payload, Place, PlaceKind, Side, TxDesc};
pub use diagnosis::{Diagnosis, diagnose};
pub use time::Nanos;
pub use transport::journal::{Owner, PostMortem, PostMortems};
pub use transport::{AckPolicy, Engine, EngineConfig, MAX_PENDING, Retransmission, Waiting};
