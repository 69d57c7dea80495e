//! BTH opcodes (IBTA table 38): one table says all that depends on an opcode.

/// A BTH opcode that the table knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(u8);

/// Extended headers that follow the BTH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderSet(pub u8);

/// What the table says of an opcode.
#[derive(Clone, Copy, Debug)]
pub struct OpcodeInfo {
    /// Extended headers.
    pub headers: HeaderSet,
}
