//! `roceline bench datapath` for `cargo bench`, with the same options:
//!
//! `cargo bench -p roceline --bench datapath [-- --op write --bytes 64 --json]`

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Cargo's own.
    let mut rest = std::env::args_os()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .peekable();
    // Halves on other cores are started as `roceline bench far`.
    let words: &[&str] = match rest.peek() {
        Some(first) if first == "bench" => &["roceline"],
        _ => &["roceline", "bench", "datapath"],
    };
    roceline::cli::run(words.iter().map(OsString::from).chain(rest))
}
