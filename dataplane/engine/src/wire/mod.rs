//! Bytes on the wire. One file per header; `parse` reads a whole frame, `icrc` proves it, `template`
//! builds one.
//!
//! In flow frames as they were received and, to be sent, [`crate::descriptor::TxDesc`]s; out flow
//! [`Packet`]s and header bytes. Nothing here keeps state between packets or owns a buffer. A payload byte is
//! read by the ICRC and by nothing else.

pub mod aeth;
pub mod arp;
pub mod atomic_eth;
mod be;
pub mod bth;
pub mod checksum;
pub mod deth;
pub mod ethernet;
pub mod feth;
pub mod fuzz;
mod gid;
pub mod grh;
pub mod icmp;
pub mod icmpv6;
pub mod icrc;
pub mod ieth;
pub mod imm_dt;
pub mod ipv4;
pub mod ipv6;
mod link_time;
mod opcode;
mod packet;
mod parse;
pub mod pause;
mod plain;
mod psn;
pub mod reth;
mod template;
pub mod udp;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use feth::Feth;
pub use gid::Gid;
pub use icrc::IcrcState;
pub use link_time::{LINK_OVERHEAD, link_bytes};
pub use opcode::{HeaderSet, Opcode, OpcodeInfo, Operation, Position, Transport};
pub use packet::{ExtHeaders, Packet};
pub use parse::{Malformed, ParseError, ParsedFrame, parse, parse_into};
pub use pause::PauseFrame;
pub use psn::Psn;
pub use template::HeaderTemplate;
pub use udp::udp_sport;
