//! `roceline link`: takes the link of a NIC down, as if somebody pulled the cable, and up again.

use std::io::{self, Write};
use std::path::Path;

use clap::{Parser, ValueEnum};

use super::CliError;
use super::show::{decode, write_json};
use crate::control::client::Client;
use crate::control::query::{PortsReply, Query};

const EXAMPLES: &str = "\
Examples:
  roceline link down roce0      # programs get IBV_EVENT_PORT_ERR, packets of roce0 are lost
  roceline link up roce0        # IBV_EVENT_PORT_ACTIVE, what is still being retried arrives
  roceline show ports           # which ports are down, and by whose order

Queue pairs keep their state: requests are sent again until retry_cnt is used up, so an outage shorter than that is
survived, and a longer one ends in IBV_WC_RETRY_EXC_ERR. The NIC at the other end of an emulated link (fabric:NAME) loses
its link, too; what a port of DPDK's does, its driver decides. The order ends with the daemon's process.";

/// Take a NIC's link down, as if its cable were pulled, or up again
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Which way
    #[arg(value_enum, value_name = "down|up", hide_possible_values = true)]
    to: To,

    /// Which NIC, by its device name
    #[arg(value_name = "NIC")]
    nic: String,

    /// Print JSON: all ports, as `roceline show ports --json` does
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum To {
    Down,
    Up,
}

pub(super) fn run(args: Args, socket: &Path) -> Result<(), CliError> {
    let client = Client::connect(socket)?;
    let mut out = io::stdout().lock();
    let answer = client.query(&Query::Link {
        device: args.nic,
        up: matches!(args.to, To::Up),
    })?;
    if args.json {
        return Ok(write_json(&mut out, &answer)?);
    }
    let reply: PortsReply = decode(answer)?;
    for port in &reply.ports {
        let order = if port.ordered_down { ", by order" } else { "" };
        writeln!(out, "{}: {}{order}", port.device, port.state)?;
    }
    Ok(())
}
