//! The `roceline` binary.
fn main() {}
