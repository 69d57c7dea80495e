//! What lies between two NICs. So far: how it misbehaves on purpose ([`impair`]).

pub mod impair;
