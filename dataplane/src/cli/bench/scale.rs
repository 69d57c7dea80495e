//! `roceline bench scale`.

use std::io;

use clap::Parser;
use serde_json::json;

use super::super::table::Table;
use super::super::{CliError, number_in};
use super::datapath::{How, LCORES, begin};
use super::{Output, failed};
use crate::bench::datapath::{Case, Datapath};
use crate::bench::load::{Load, Op};
use crate::bench::resident::Resident;

/// What many queue pairs and memory regions cost: cycles of a message beside those of one QP in turns, bytes, registrations in a second
#[derive(Debug, Parser)]
pub(super) struct Args {
    /// QPs that take turns
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = [1, 64, 1000, 10_000], value_parser = number_in(1..=20_000))]
    qps: Vec<u64>,

    /// Memory regions, of which messages name one at random
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = [1, 1000, 100_000, 1_000_000], value_parser = number_in(1..=1_000_000))]
    mrs: Vec<u64>,

    #[command(flatten)]
    how: How,

    #[command(flatten)]
    pub(super) output: Output,
}

/// What is measured.
const LOAD: Load = Load {
    op: Op::Write,
    len: 64,
};

pub(super) fn run(args: Args) -> Result<(), CliError> {
    let mut datapath = Datapath::new(args.how.settings()).map_err(failed)?;
    let out = &args.output;
    let machine = begin(
        &datapath,
        out,
        format_args!("fabric link; WRITE 64 B; {}", args.how),
    )?;
    let (mut qp_table, mut mr_table) = (Table::new(&QP_TITLES), Table::new(&MR_TITLES));
    let (mut qp_cases, mut mr_cases) = (Vec::new(), Vec::new());
    let mut one = datapath.one(LOAD.len as usize).map_err(failed)?;
    for &qps in &args.qps {
        let case = Case {
            load: LOAD,
            qps: qps as usize,
        };
        datapath.forget();
        let before = Resident::now();
        datapath.ends(case.qps, LOAD.len as usize).map_err(failed)?;
        let used = Resident::now().since(before);
        let outcome = datapath.compare(&case, &mut one).map_err(failed)?;
        // Both halves have as many.
        let each = |bytes: u64| bytes / (2 * qps);
        for (name, side) in [
            ("sender", &outcome.requester),
            ("receiver", &outcome.responder),
        ] {
            qp_table.row(vec![
                qps.to_string(),
                name.into(),
                format!("{:.0}", side.cycles.median),
                format!("{:.0}", side.one_cycles.median),
                format!("{:.2}", side.ratio.median),
                format!("{:.0}", side.packet_cycles.median),
                format!("{:.0}", side.one_packet_cycles.median),
                format!("{:.2}", side.packet_ratio.median),
                each(used.private).to_string(),
                each(used.shared).to_string(),
            ]);
        }
        qp_cases.push(json!({
            "qps": qps,
            "requester_cycles": outcome.requester.cycles,
            "responder_cycles": outcome.responder.cycles,
            "requester": outcome.requester,
            "responder": outcome.responder,
            "private_bytes_per_qp": each(used.private),
            "queue_bytes_per_qp": each(used.shared),
            "retries": outcome.retries,
        }));
    }
    drop(one);
    for &mrs in &args.mrs {
        let case = Case { load: LOAD, qps: 1 };
        datapath.forget();
        datapath.ends(1, LOAD.len as usize).map_err(failed)?;
        let before = Resident::now();
        let seconds = datapath.register(mrs as usize).map_err(failed)?;
        let used = Resident::now().since(before);
        let outcome = datapath.measure(&case).map_err(failed)?;
        let cycles = outcome.responder.cycles.median;
        mr_table.row(vec![
            mrs.to_string(),
            format!("{:.0}", mrs as f64 / seconds / 1e3),
            format!("{cycles:.0}"),
            (used.private / mrs).to_string(),
        ]);
        mr_cases.push(json!({
            "mrs": mrs,
            "registrations_per_s": mrs as f64 / seconds,
            "responder_cycles": outcome.responder.cycles,
            "private_bytes_per_mr": used.private / mrs,
        }));
    }
    if !out.json {
        let mut stdout = io::stdout().lock();
        qp_table.write(&mut stdout, "nothing")?;
        out.say("")?;
        mr_table.write(&mut stdout, "nothing")?;
    }
    out.finish(&json!({
        "bench": "scale",
        "machine": machine,
        "port": "fabric",
        "lcores": LCORES,
        "settings": args.how.settings(),
        "qps": qp_cases,
        "mrs": mr_cases,
    }))
}

const QP_TITLES: [&str; 10] = [
    ">QPs",
    "NIC",
    ">cycles of a message",
    ">of one QP",
    ">ratio",
    ">of a packet",
    ">of one QP",
    ">ratio",
    ">bytes of a QP",
    ">of its queues",
];
const MR_TITLES: [&str; 4] = [
    ">MRs",
    ">registered k/s",
    ">receiver's cycles",
    ">bytes of an MR",
];
