//! What lies between two NICs: how it misbehaves on purpose ([`impair`]), and switches ([`switch`]).

pub mod impair;
pub mod switch;
