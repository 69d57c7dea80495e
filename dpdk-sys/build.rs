//! Replaced by the port work.
fn main() {}
