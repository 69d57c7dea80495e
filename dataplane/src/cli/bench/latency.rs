//! `roceline bench latency`.

use std::io;

use clap::Parser;
use serde_json::json;

use super::super::table::Table;
use super::super::{CliError, number_in};
use super::datapath::{Way, bytes, bytes_in};
use super::two_cores::set_up;
use super::{Output, failed, unknown};
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
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = [64, 4096], value_parser = bytes_in(8..=1 << 20))]
    bytes: Vec<u64>,

    /// Round trips
    #[arg(long, default_value_t = 200_000, value_name = "N", value_parser = number_in(100..=100_000_000))]
    trips: u64,

    #[command(flatten)]
    way: Way,

    #[command(flatten)]
    pub(super) output: Output,
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
    let settings = args.way.settings();
    let mut setup = set_up(args.port, &settings, 1, buffer(most))?;
    out.say(format_args!(
        "lcores: a program and its NIC on each of two CPUs; port: {}; {}; {} round trips, after a tenth of that to warm up",
        args.port, args.way, args.trips
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
    let (mut cases, mut seen) = (Vec::new(), Vec::new());
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
        row.extend([&before, &after].map(|distance| distance.cell()));
        table.row(row);
        cases.push(json!({
            "op": "write", "bytes": len, "nanoseconds": latency, "distance": [&before, &after],
        }));
        seen.extend([before, after]);
    }
    if !out.json {
        table.write(&mut io::stdout().lock(), "nothing")?;
        if let Some(text) = unknown(&seen) {
            out.say(text)?;
        }
    }
    out.finish(&json!({
        "bench": "latency",
        "machine": machine,
        "port": args.port,
        "lcores": "a program and its NIC on each of two CPUs",
        "settings": {
            "mtu": settings.mtu,
            "mapped": settings.mapped,
            "ack_per_message": settings.ack_per_message,
            "congestion_control": settings.congestion_control,
            "trips": args.trips,
        },
        "cases": cases,
    }))
}
