//! Bytes on the wire. One file per header; `packet` parses a whole frame, `template` builds one.

mod gid;
mod opcode;
mod packet;
mod psn;

pub use gid::Gid;
pub use opcode::{HeaderSet, Opcode, OpcodeInfo, Operation, Position, Transport};
pub use packet::{ExtHeaders, Packet};
pub use psn::Psn;
