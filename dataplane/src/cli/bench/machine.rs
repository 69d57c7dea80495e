//! `roceline bench machine`.

use clap::Parser;

use super::super::CliError;
use super::Output;
use crate::bench::machine::Machine;

/// What benchmarks say of the machine, and how far its first two CPUs are from each other
#[derive(Debug, Parser)]
pub(super) struct Args {
    #[command(flatten)]
    pub(super) output: Output,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let machine = Machine::look(None);
    args.output.say(&machine)?;
    args.output
        .finish(&serde_json::to_value(&machine).unwrap_or_default())
}
