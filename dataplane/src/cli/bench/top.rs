//! `roceline bench top`.

use std::io;

use clap::Parser;
use serde_json::json;

use super::super::CliError;
use super::super::table::Table;
use super::datapath::{How, LCORES, begin, bytes};
use super::{Output, failed};
use crate::bench::datapath::{Case, Datapath, Watching};
use crate::bench::load::{Load, Op};
use crate::bench::stats::Spread;

/// What it costs the datapath that somebody looks with `roceline top`: cycles of a message without and with it, in turns
#[derive(Debug, Parser)]
pub(super) struct Args {
    #[command(flatten)]
    how: How,

    #[command(flatten)]
    pub(super) output: Output,
}

/// Small messages of one and of many queue pairs, and large ones.
const CASES: [(Op, u32, usize); 5] = [
    (Op::Write, 64, 1),
    (Op::Write, 64, 64),
    (Op::Send, 64, 1),
    (Op::Write, 4096, 1),
    (Op::Write, 1 << 20, 1),
];

pub(super) fn run(args: Args) -> Result<(), CliError> {
    let mut datapath = Datapath::new(args.how.settings()).map_err(failed)?;
    let out = &args.output;
    let machine = begin(&datapath, out, format_args!("fabric link; {}", args.how))?;
    let mut cases = Vec::new();
    for (op, len, qps) in CASES {
        let load = Load { op, len };
        cases.push(datapath.watched(&Case { load, qps }).map_err(failed)?);
    }
    if !out.json {
        table(&cases).write(&mut io::stdout().lock(), "nothing")?;
    }
    out.finish(&json!({
        "bench": "top",
        "machine": machine,
        "port": "fabric",
        "lcores": LCORES,
        "settings": args.how.settings(),
        "cases": cases,
    }))
}

fn table(cases: &[Watching]) -> Table {
    let mut table = Table::new(&[
        "case",
        ">QPs",
        ">sender cycles",
        ">watched",
        ">middle half",
        ">receiver cycles",
        ">watched",
        ">middle half",
    ]);
    for case in cases {
        let mut row = vec![
            format!("{} {}", case.op, bytes(case.bytes)),
            case.qps.to_string(),
        ];
        let sides = [
            (&case.requester_cycles, &case.requester_more_percent),
            (&case.responder_cycles, &case.responder_more_percent),
        ];
        for (cycles, more) in sides {
            let Spread {
                median, low, high, ..
            } = more;
            row.push(format!("{:.0}", cycles.median));
            row.push(format!("{median:+.1} %"));
            row.push(format!("{low:+.1} to {high:+.1} %"));
        }
        table.row(row);
    }
    table
}
