//! `roceline bench latency`.

use std::io;

use clap::Parser;
use serde_json::json;

use super::super::table::Table;
use super::super::{CliError, number_in};
use super::datapath::{How, bytes};
use super::two_cores::set_up;
use super::{Output, failed};
use crate::bench::machine::Machine;
use crate::bench::ping_pong::buffer;
use crate::bench::ports::PortKind;

/// Half round trips of WRITEs between two programs, each on a core with its NIC: percentiles
#[derive(Debug, Parser)]
pub(super) struct Args {
    /// What joins the NICs
    #[arg(long, value_enum, default_value_t = PortKind::Fabric, value_name = "PORT")]
    port: PortKind,

    /// Bytes of a message, multiples of 8
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = [64, 4096], value_parser = number_in(8..=1 << 20))]
    bytes: Vec<u64>,

    /// Round trips
    #[arg(long, default_value_t = 200_000, value_name = "N", value_parser = number_in(100..=100_000_000))]
    trips: u64,

    #[command(flatten)]
    how: How,

    #[command(flatten)]
    output: Output,
}

pub(super) fn run(args: Args) -> Result<(), CliError> {
    if let Some(odd) = args.bytes.iter().find(|&&bytes| bytes % 8 != 0) {
        return Err(CliError::Usage(format!(
            "--bytes {odd}: must be a multiple of 8"
        )));
    }
    let most = args.bytes.iter().copied().max().unwrap_or(8) as u32;
    let machine = Machine::look(None);
    let out = &args.output;
    out.say(&machine)?;
    let mut setup = set_up(args.port, &args.how, 1, buffer(most))?;
    out.say(format_args!(
        "lcores: a program and its NIC on each of two CPUs; port: {}; {}",
        args.port, args.how
    ))?;
    let mut table = Table::new(&[
        "half round trip (us)",
        ">p50",
        ">p90",
        ">p99",
        ">p99.9",
        ">p99.99",
        ">max",
        "CPUs before",
        "after",
    ]);
    let mut cases = Vec::new();
    for &len in &args.bytes {
        let before = setup.cores.distance().map_err(failed)?;
        let latency = setup
            .cores
            .latency(len as u32, args.trips)
            .map_err(failed)?;
        let after = setup.cores.distance().map_err(failed)?;
        let mut row = vec![format!("WRITE {}", bytes(len as u32))];
        let quantiles = [
            latency.p50,
            latency.p90,
            latency.p99,
            latency.p999,
            latency.p9999,
            latency.max,
        ];
        row.extend(quantiles.map(|ns| format!("{:.2}", ns / 1e3)));
        for distance in [&before, &after] {
            row.push(distance.as_ref().map_or_else(String::new, |distance| {
                let word = if distance.near { "near" } else { "far" };
                format!("{word} ({:.0} ns)", distance.round_trip_ns)
            }));
        }
        table.row(row);
        cases.push(json!({
            "op": "write", "bytes": len, "nanoseconds": latency, "distance": [before, after],
        }));
    }
    if !out.json {
        table.write(&mut io::stdout().lock(), "nothing")?;
    }
    out.finish(&json!({
        "bench": "latency",
        "machine": machine,
        "port": args.port,
        "lcores": "a program and its NIC on each of two CPUs",
        "settings": args.how.settings(),
        "cases": cases,
    }))
}
