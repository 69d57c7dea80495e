//! `roceline show`: what the daemon has at this moment.

mod fabric;
mod programs;

use std::io::{self, Write};
use std::path::Path;

use clap::{Parser, ValueEnum};
use serde_json::Value;

use super::CliError;
use super::hints::Surroundings;
use super::neighbours;
use super::post_mortem::{self, Which};
use super::table::Table;
use crate::control::client::{Client, ClientError};
use crate::control::post_mortem::PostMortemsReply;
use crate::control::query::{DevicesReply, MrsReply, PortsReply, QpsReply, Query, VersionReply};
use crate::impair::units;

const EXAMPLES: &str = "\
Examples:
  roceline show
  roceline show qps
  roceline show qp --post-mortem            # which queue pairs failed
  roceline show qp --post-mortem last       # why the last one did, and what to do
  roceline show qp --post-mortem 0x11
  roceline show programs                    # what each program has, and may have
  roceline show fabric                      # switches: queues, marks, pauses
  roceline show devices --json | jq '.devices[].gids'";

/// Show devices, programs, queue pairs, memory regions, ports, neighbours or switches
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// What to show [default: devices]
    #[arg(value_enum)]
    what: Option<What>,

    /// Why queue pairs failed, or could not be connected: of the one with this number, of the `last` one, or a list of
    /// `all` (also without a value). Records of the newest failures outlive the queue pair and its program
    #[arg(long, value_name = "QPN|last|all", num_args = 0..=1, default_missing_value = "all")]
    post_mortem: Option<Which>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// Devices, their addresses, GIDs and objects
    Devices,
    /// Queue pairs of all programs
    #[value(alias = "qp")]
    Qps,
    /// Memory regions of all programs
    Mrs,
    /// Ports, with what came and went
    Ports,
    /// Programs that have devices open: objects and bytes of each, and the limits ([limits] of the configuration)
    Programs,
    /// Peers' MAC addresses: configured, or found by ARP and neighbour discovery
    #[value(alias = "neighbors")]
    Neighbours,
    /// Switches ([fabric] of the configuration): of each port and priority the queue, its depth, marks, drops and pauses
    #[value(aliases = ["switches", "switch"])]
    Fabric,
}

pub(super) fn run(args: Args, socket: &Path) -> Result<(), CliError> {
    let client = Client::connect(socket)?;
    if let Some(which) = args.post_mortem {
        return why_failed(&client, which, &args);
    }
    let what = args.what.unwrap_or(What::Devices);
    let query = match what {
        What::Devices => Query::Devices,
        What::Qps => Query::Qps,
        What::Mrs => Query::Mrs,
        What::Ports => Query::Ports,
        What::Programs => Query::Programs,
        What::Neighbours => Query::Neighbours,
        What::Fabric => Query::Fabric,
    };
    let answer = client.query(&query)?;
    let mut out = io::stdout().lock();
    if args.json {
        return Ok(write_json(&mut out, &answer)?);
    }
    match what {
        What::Devices => {
            devices(&mut out, &decode(answer)?)?;
            if let Some(what) = client.ask::<VersionReply>(&Query::Version)?.restarted() {
                writeln!(out, "\n{what}")?;
            }
        }
        What::Qps => qps(&mut out, &decode(answer)?)?,
        What::Mrs => mrs(&mut out, &decode(answer)?)?,
        What::Ports => ports(&mut out, &decode(answer)?)?,
        What::Programs => programs::write(&mut out, &decode(answer)?)?,
        What::Neighbours => neighbours::show(&mut out, &decode(answer)?)?,
        What::Fabric => fabric::write(&mut out, &decode(answer)?)?,
    }
    Ok(())
}

fn why_failed(client: &Client, which: Which, args: &Args) -> Result<(), CliError> {
    if !matches!(args.what, None | Some(What::Qps)) {
        return Err(CliError::Usage(
            "--post-mortem is about queue pairs: `roceline show qp --post-mortem`".into(),
        ));
    }
    let mut reply: PostMortemsReply = client.ask(&Query::PostMortems)?;
    post_mortem::choose(&mut reply, which).map_err(CliError::NoRecord)?;
    let around = Surroundings::ask(client)?;
    for record in &mut reply.post_mortems {
        record.hints = match which {
            Which::All => Vec::new(),
            Which::Last | Which::Qpn(_) => around.hints(record),
        };
    }
    let mut out = io::stdout().lock();
    if args.json {
        let value = serde_json::to_value(&reply).map_err(io::Error::other)?;
        return Ok(write_json(&mut out, &value)?);
    }
    if which == Which::All {
        post_mortem::list(&mut out, &reply)?;
        post_mortem::notes(&mut out, &around.notes())?;
        return Ok(());
    }
    for record in &reply.post_mortems {
        post_mortem::full(&mut out, record)?;
    }
    for refused in &reply.refused {
        post_mortem::refused(&mut out, refused)?;
    }
    Ok(())
}

/// JSON for people and programs: one value a line.
pub(super) fn write_json(out: &mut impl Write, value: &Value) -> io::Result<()> {
    writeln!(out, "{value:#}")
}

pub(super) fn decode<T: serde::de::DeserializeOwned>(answer: Value) -> Result<T, ClientError> {
    serde_json::from_value(answer).map_err(|error| ClientError::Answer(error.to_string()))
}

fn devices(out: &mut impl Write, reply: &DevicesReply) -> io::Result<()> {
    let mut table = Table::new(&[
        "device",
        ">mtu",
        ">path mtu",
        ">contexts",
        ">pds",
        ">mrs",
        ">mws",
        ">cqs",
        ">srqs",
        ">ahs",
        ">qps",
        "node guid",
        "mac",
    ]);
    let mut gids = Table::new(&["device", ">gid", "address", "type"]);
    for device in &reply.devices {
        let counts = [
            device.contexts,
            device.pds,
            device.mrs,
            device.mws,
            device.cqs,
            device.srqs,
            device.ahs,
            device.qps,
        ];
        let mut row = vec![
            device.name.clone(),
            device.mtu.to_string(),
            device.active_mtu.to_string(),
        ];
        row.extend(counts.map(|count| count.to_string()));
        row.extend([device.node_guid.clone(), device.mac.clone()]);
        table.row(row);
        for gid in &device.gids {
            let index = gid.index.to_string();
            gids.row(vec![
                device.name.clone(),
                index,
                gid.address.clone(),
                gid.kind.clone(),
            ]);
        }
    }
    table.write(out, "no devices")?;
    writeln!(out)?;
    gids.write(out, "no GIDs")
}

fn qps(out: &mut impl Write, reply: &QpsReply) -> io::Result<()> {
    let mut table = Table::new(&[
        "device",
        "type",
        ">qpn",
        "state",
        ">pid",
        "peer",
        ">peer qpn",
        ">sq psn",
        ">rq psn",
        ">rate",
    ]);
    for qp in &reply.qps {
        table.row(vec![
            qp.device.clone(),
            qp.transport.clone(),
            format!("{:#08x}", qp.qpn),
            qp.state.clone(),
            qp.pid.to_string(),
            qp.remote.clone(),
            format!("{:#08x}", qp.remote_qpn),
            qp.sq_psn.to_string(),
            qp.rq_psn.to_string(),
            units::rounded_rate(qp.rate),
        ]);
    }
    table.write(out, "no queue pairs")
}

fn mrs(out: &mut impl Write, reply: &MrsReply) -> io::Result<()> {
    let mut table = Table::new(&[
        "device",
        ">lkey",
        ">pid",
        ">address",
        ">bytes",
        "access",
        "reached by",
    ]);
    for mr in &reply.mrs {
        table.row(vec![
            mr.device.clone(),
            format!("{:#010x}", mr.lkey),
            mr.pid.to_string(),
            format!("{:#x}", mr.addr),
            mr.len.to_string(),
            rights(mr.access),
            mr.reach.clone(),
        ]);
    }
    table.write(out, "no memory regions")
}

/// The bits of `enum ibv_access_flags` that say who may do what.
fn rights(access: u32) -> String {
    const NAMES: [(u32, &str); 5] = [
        (1 << 0, "local-write"),
        (1 << 1, "remote-write"),
        (1 << 2, "remote-read"),
        (1 << 3, "remote-atomic"),
        (1 << 4, "mw-bind"),
    ];
    let named: Vec<&str> = NAMES
        .iter()
        .filter(|(bit, _)| access & bit != 0)
        .map(|&(_, name)| name)
        .collect();
    if named.is_empty() {
        "local-read".into()
    } else {
        named.join(",")
    }
}

fn ports(out: &mut impl Write, reply: &PortsReply) -> io::Result<()> {
    let mut table = Table::new(&["device", ">port", "state", "mac", ">mtu", ">rules"]);
    let mut counters = Table::new(&["device", "counter", ">value"]);
    for port in &reply.ports {
        table.row(vec![
            port.device.clone(),
            port.port.to_string(),
            if port.ordered_down {
                format!("{} (ordered)", port.state)
            } else {
                port.state.clone()
            },
            port.mac.clone(),
            port.mtu.to_string(),
            port.rules.to_string(),
        ]);
        for (name, value) in &port.counters {
            counters.row(vec![port.device.clone(), name.clone(), value.to_string()]);
        }
    }
    table.write(out, "no ports")?;
    if reply.ports.iter().any(|port| port.rules > 0) {
        writeln!(
            out,
            "rules impair packets on purpose: `roceline impair list` shows what they do"
        )?;
    }
    writeln!(out)?;
    counters.write(out, "no counters")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn rights_have_names() {
        assert_eq!(rights(0), "local-read");
        assert_eq!(rights(0b111), "local-write,remote-write,remote-read");
        assert_eq!(
            rights(1 << 20),
            "local-read",
            "relaxed ordering is no right"
        );
    }

    #[test]
    fn queue_pairs_are_a_table() {
        let qp = serde_json::json!({ "qps": [{ "device": "roce0", "qpn": 17, "state": "RTS", "pid": 42,
            "remote": "10.77.0.2", "remote_qpn": 18, "sq_psn": 5, "rq_psn": 6, "rate": 1_250_000_000u64 }] });
        let shown = text(|out| qps(out, &decode(qp).unwrap()));
        let lines: Vec<Vec<&str>> = shown
            .lines()
            .map(|line| line.split_ascii_whitespace().collect())
            .collect();
        assert_eq!(
            lines[1],
            [
                "roce0",
                "0x000011",
                "RTS",
                "42",
                "10.77.0.2",
                "0x000012",
                "5",
                "6",
                "1.25Gb/s"
            ]
        );
        assert_eq!(
            text(|out| qps(out, &QpsReply { qps: vec![] })),
            "no queue pairs\n"
        );
    }

    #[test]
    fn ports_say_whether_rules_impair_them() {
        let port = |device: &str, rules: u32| {
            serde_json::json!({ "device": device, "port": 1, "state": "ACTIVE",
            "mac": "02:00:00:00:00:01", "mtu": 4200, "rules": rules, "counters": {} })
        };
        let shown = |rules| {
            let reply = serde_json::json!({ "ports": [port("roce0", 0), port("roce1", rules)] });
            text(|out| ports(out, &decode(reply).unwrap()))
        };
        assert!(
            shown(2).contains("4200      2\nrules impair packets on purpose"),
            "{}",
            shown(2)
        );
        assert!(!shown(0).contains("on purpose"));
    }

    #[test]
    fn json_has_one_value_a_line() {
        let value = serde_json::json!({ "a": 1, "b": 2 });
        assert_eq!(
            text(|out| write_json(out, &value)),
            "{\n  \"a\": 1,\n  \"b\": 2\n}\n"
        );
    }
}
