//! `roceline replay`: packets of a capture, fed to a NIC as if they had come from its port.
//!
//! In flows a file, which this process reads as its own user; out flow frames to the daemon, in batches that its NIC has
//! room for, and what the NIC's counters say afterwards.

mod feed;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::{Parser, ValueEnum};
use serde::Serialize;

use super::capture::interruption;
use super::table::Table;
use super::{CliError, number_in};
use crate::capture::filter::Filter;
use crate::capture::rewrite::Map;
use crate::capture::source::{Source, SourceError};
use crate::control::client::{Client, ClientError};
use crate::control::query::{Device, DeviceStat, DevicesReply, Query, StatReply};
use crate::daemon::DaemonError;
use crate::impair::MatchArgs;
use feed::Replay;

const EXAMPLES: &str = "\
Examples:
  roceline replay -r crash.pcapng --nic roce1            # what roce1 received then, at the same pace
  roceline replay -r all.pcapng --nic roce1 --class nak --speed max
  roceline replay -r peer.pcap --nic roce0 --map-ip 10.0.0.2=10.77.0.1 --map-qpn 0x11=0x12

By default the packets are those that the file says were received, by the interface of the NIC's name if there is
one; packets without a direction count as received. With --map-qpn and --map-ip the packets are changed to fit the
NIC and the queue pairs of now, and their ICRC is computed anew if it was right.

At the end, or when it is interrupted (ctrl-C), it prints how the counters of the NIC grew meanwhile; other traffic counts as well.";

/// Feed the packets of a capture to a NIC
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// File to read, pcap or pcapng; `-` is stdin
    #[arg(short, long, value_name = "FILE")]
    read: PathBuf,

    /// NIC that is to receive them [default: the only one]
    #[arg(long, value_name = "NAME")]
    nic: Option<String>,

    /// Pace: real (as captured), max, or a multiple such as x10 or x0.5
    #[arg(long, value_name = "SPEED", default_value = "real", value_parser = speed)]
    speed: Speed,

    /// Only packets of this interface of the file
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,

    /// Which packets of the file, where it knows their direction
    #[arg(long, value_enum, default_value = "received")]
    direction: Direction,

    /// Stop after this many packets
    #[arg(long, value_name = "N", value_parser = number_in(1..=u64::MAX))]
    count: Option<u64>,

    /// Another destination QP number, again for another
    #[arg(long, value_name = "OLD=NEW")]
    map_qpn: Vec<Map<u32>>,

    /// Another address, source or destination, again for another
    #[arg(long, value_name = "OLD=NEW")]
    map_ip: Vec<Map<IpAddr>>,

    #[command(flatten)]
    matching: MatchArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Direction {
    /// Those that a NIC received
    Received,
    /// Those that a NIC sent
    Sent,
    /// All
    Any,
}

/// Seconds of a capture in a second; `None`: no waiting.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Speed(Option<f64>);

fn speed(text: &str) -> Result<Speed, String> {
    match text {
        "real" => return Ok(Speed(Some(1.0))),
        "max" => return Ok(Speed(None)),
        _ => {}
    }
    let times = text
        .strip_prefix('x')
        .and_then(|times| times.parse::<f64>().ok());
    match times {
        Some(times) if times.is_finite() && times > 0.0 => Ok(Speed(Some(times))),
        _ => Err("must be real, max, or a multiple such as x10 or x0.5".into()),
    }
}

/// Why a replay did not go through.
#[allow(missing_docs)]
#[derive(Debug, thiserror::Error)]
pub(super) enum ReplayError {
    #[error("which NIC? name one of {0} with --nic")]
    WhichNic(String),
    #[error("there is no NIC {name}: there are {all}")]
    NoNic { name: String, all: String },
    #[error("{path}: {source}", path = path.display())]
    Source { path: PathBuf, source: SourceError },
    #[error(
        "{path}: packet {number} has {len} bytes, and {nic} takes {longest} at most: leave it out with --length, or \
         replay to a NIC with a larger mtu",
        path = path.display()
    )]
    TooLong {
        path: PathBuf,
        number: u64,
        len: usize,
        nic: String,
        longest: usize,
    },
    #[error("{path} has no packets", path = path.display())]
    NoPackets { path: PathBuf },
    #[error(
        "{path} has no interface {name}, so nothing was replayed: it has {all}",
        path = path.display()
    )]
    NoInterface {
        path: PathBuf,
        name: String,
        all: String,
    },
    #[error(
        "none of the {read} packets of {path} was replayed: {why}",
        path = path.display()
    )]
    NoneChosen {
        path: PathBuf,
        read: u64,
        why: String,
    },
    #[error("{0} took no packet for 10 s: its lcore stands still, or its program's memory does")]
    Stuck(String),
}

/// What became of the packets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Outcome {
    nic: String,
    /// Packets of the file that were looked at.
    read: u64,
    /// Of those, the ones left out by --direction, --interface or the filter.
    left_out: u64,
    /// Packets that the NIC got.
    sent: u64,
    /// Of those, the ones changed by --map-qpn or --map-ip.
    changed: u64,
    /// Whether it was interrupted before the end of the file.
    interrupted: bool,
    /// What the NIC's counters grew by.
    counters: BTreeMap<String, u64>,
}

pub(super) fn run(args: Args, socket: &Path) -> Result<(), CliError> {
    let interrupted = interruption().map_err(|source| DaemonError::System {
        what: "signal handlers",
        source,
    })?;
    let filter = Filter::new(&args.matching.spec(), 1)?;
    let in_file = |source| ReplayError::Source {
        path: args.read.clone(),
        source,
    };
    let file: Box<dyn Read> = match args.read.to_str() {
        Some("-") => Box::new(io::stdin()),
        _ => Box::new(File::open(&args.read).map_err(|e| in_file(e.into()))?),
    };
    let source = Source::new(file).map_err(in_file)?;
    let client = Client::connect(socket)?;
    let nic = choose(&client, args.nic.as_deref())?;
    let before = counters(&client, &nic.name)?;
    let mut replay = Replay::new(&args, client, nic, filter, interrupted);
    replay.feed(source)?;
    let after = counters(&replay.client, &replay.nic.name)?;
    let mut outcome = replay.outcome;
    outcome.counters = growth(&before, &after);
    report(&mut io::stdout().lock(), &outcome, args.json)?;
    Ok(())
}

fn choose(client: &Client, name: Option<&str>) -> Result<Device, CliError> {
    let DevicesReply { mut devices } = client.ask(&Query::Devices)?;
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    let all = names.join(", ");
    let at = match name {
        None if devices.len() == 1 => Some(0),
        None => return Err(ReplayError::WhichNic(all).into()),
        Some(name) => devices.iter().position(|device| device.name == name),
    };
    match at {
        Some(at) => Ok(devices.swap_remove(at)),
        None => {
            let name = name.unwrap_or_default().into();
            Err(ReplayError::NoNic { name, all }.into())
        }
    }
}

fn counters(client: &Client, nic: &str) -> Result<BTreeMap<String, u64>, ClientError> {
    let StatReply { devices, .. } = client.ask(&Query::Stat)?;
    let own: Option<DeviceStat> = devices.into_iter().find(|device| device.name == nic);
    let Some(own) = own else {
        return Ok(BTreeMap::new());
    };
    let all = own
        .hw_counters
        .into_iter()
        .chain(own.counters)
        .chain(own.port);
    Ok(all.collect())
}

fn growth(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let grown = after.iter().map(|(name, value)| {
        let before = before.get(name).copied().unwrap_or(0);
        (name.clone(), value.saturating_sub(before))
    });
    grown.filter(|(_, growth)| *growth > 0).collect()
}

fn report(out: &mut impl Write, outcome: &Outcome, json: bool) -> io::Result<()> {
    if json {
        return writeln!(out, "{:#}", serde_json::json!(outcome));
    }
    if outcome.interrupted {
        writeln!(out, "interrupted before the end of the file")?;
    }
    writeln!(
        out,
        "{} packets read, {} left out, {} given to {} ({} of them changed)",
        outcome.read, outcome.left_out, outcome.sent, outcome.nic, outcome.changed
    )?;
    let mut table = Table::new(&["counter", ">grew by"]);
    for (name, growth) in &outcome.counters {
        table.row(vec![name.clone(), growth.to_string()]);
    }
    table.write(out, "no counter grew")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds() {
        assert_eq!(speed("real"), Ok(Speed(Some(1.0))));
        assert_eq!(speed("x0.5"), Ok(Speed(Some(0.5))));
        assert_eq!(speed("max"), Ok(Speed(None)));
        for bad in ["2", "x", "x0", "x-1", "xinf", "fast"] {
            assert!(speed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_what_grew_is_told() {
        let count = |value| BTreeMap::from([("a".to_string(), value), ("b".into(), 1)]);
        let outcome = Outcome {
            nic: "roce0".into(),
            read: 5,
            left_out: 2,
            sent: 3,
            changed: 1,
            interrupted: false,
            counters: growth(&count(1), &count(4)),
        };
        let mut out = Vec::new();
        report(&mut out, &outcome, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "5 packets read, 2 left out, 3 given to roce0 (1 of them changed)"
        );
        assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>(), ["a", "3"]);
        assert_eq!(lines.len(), 3);
    }
}
