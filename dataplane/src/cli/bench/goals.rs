//! `roceline bench goals`.

use std::io;
use std::path::PathBuf;

use clap::Parser;
use serde_json::json;

use super::super::CliError;
use super::super::table::Table;
use super::{Output, failed};
use crate::bench::goals::{DISTURBED, Verdict};
use crate::bench::results::Results;

/// The goals for performance beside the results that benches/run has written
#[derive(Debug, Parser)]
pub(super) struct Args {
    /// Where the results are
    #[arg(default_value = "benches/results", value_name = "DIRECTORY")]
    results: PathBuf,

    #[command(flatten)]
    pub(super) output: Output,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let goals = Results::read(&args.results).map_err(failed)?.goals();
    if !args.output.json {
        let mut table = Table::new(&[
            "goal",
            ">bound",
            ">aim",
            ">measured",
            "unit",
            ">of limit",
            ">spread",
            "verdict",
        ]);
        for goal in &goals {
            let sign = if goal.at_most { "<=" } else { ">=" };
            let percent = |share| format!("{:.0} %", 100.0 * share);
            table.row(vec![
                goal.what.into(),
                format!("{sign} {}", goal.bound),
                goal.aim.to_string(),
                goal.measured
                    .map_or("-".into(), |value| format!("{value:.2}")),
                goal.unit.into(),
                goal.share_of_limit.map_or(String::new(), percent),
                goal.spread.map_or(String::new(), percent),
                match goal.verdict {
                    Verdict::AimMet => "aim met",
                    Verdict::Met => "met",
                    Verdict::Missed => "MISSED",
                    Verdict::NotMeasured => "not measured",
                }
                .to_owned()
                    + if goal.disturbed { ", disturbed" } else { "" },
            ]);
        }
        table.write(&mut io::stdout().lock(), "no goals")?;
        args.output.say(format_args!(
            "\nspread: what the middle half of the rounds spans, by their median. Above {:.0} % something disturbed them: measure again \
             on a machine that does nothing else.",
            100.0 * DISTURBED
        ))?;
    }
    args.output.finish(&json!({ "goals": goals }))
}
