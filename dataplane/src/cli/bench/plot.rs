//! `roceline bench plot`.

use std::path::PathBuf;

use clap::Parser;

use super::super::CliError;
use super::failed;
use crate::bench::chart;
use crate::bench::results::Results;

/// Draw the results that benches/run has written, as SVG
#[derive(Debug, Parser)]
pub(super) struct Args {
    /// Where the results are
    #[arg(default_value = "benches/results", value_name = "DIRECTORY")]
    results: PathBuf,

    /// Where the figures go [default: beside the results]
    #[arg(long, value_name = "DIRECTORY")]
    to: Option<PathBuf>,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let results = Results::read(&args.results).map_err(failed)?;
    let to = args.to.as_ref().unwrap_or(&args.results);
    for file in chart::draw(&results, to).map_err(failed)? {
        println!("{}", file.display());
    }
    Ok(())
}
