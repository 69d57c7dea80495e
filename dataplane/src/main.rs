//! The `roceline` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    roceline::cli::main()
}
