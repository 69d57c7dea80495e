//! `roceline stat`: counters, once or again and again.

mod rates;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use roceline_engine::Counters;
use serde_json::{Value, json};

use super::CliError;
use super::show::{decode, write_json};
use super::table::Table;
use crate::control::client::Client;
use crate::control::counters;
use crate::control::query::{DeviceStat, Qp, QpsReply, Query, StatReply};
use rates::Rates;

const EXAMPLES: &str = "\
Examples:
  roceline stat                    # what is not zero
  roceline stat --watch            # and how fast it grows
  roceline stat --json | jq '.devices[0].hw_counters'
  roceline stat --qp 0x000102      # of one queue pair; `roceline show qps` has the numbers

The names are those of /sys/class/infiniband/DEVICE/ports/1/hw_counters and .../counters on an
mlx5 NIC, where monitoring tools look for them; `ethtool` those of pauses and priorities in
`ethtool -S` there; `port` counts what the packet driver saw. Switches of [fabric] have a
column for each port. docs/counters.md says what each one counts.";

/// Show counters
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Print JSON, with --watch one object a line
    #[arg(long)]
    json: bool,

    /// Show them every second, with what they grew by and how fast queue pairs are, until interrupted
    #[arg(long)]
    watch: bool,

    /// Show those at zero too
    #[arg(long)]
    all: bool,

    /// Show those of the queue pair with this number, decimal or 0x and hexadecimal
    #[arg(long, value_name = "QPN", value_parser = qp_number)]
    qp: Option<u32>,
}

fn qp_number(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number
        .ok()
        .filter(|n| *n < 1 << 24)
        .ok_or_else(|| "a queue pair's number has 24 bits, such as 258 or 0x000102".into())
}

const INTERVAL: Duration = Duration::from_secs(1);
/// Clears a terminal and goes to its first line (ECMA-48 ED and CUP).
const CLEAR: &str = "\x1b[2J\x1b[H";

pub(super) fn run(args: Args, socket: &Path) -> Result<(), CliError> {
    let client = Client::connect(socket)?;
    let mut out = io::stdout().lock();
    let mut before: Option<(Instant, StatReply)> = None;
    let (mut rates, mut looked) = (Rates::default(), None);
    loop {
        let now = Instant::now();
        let mut answer = match args.qp {
            None => client.query(&Query::Stat)?,
            Some(qpn) => of_qp(client.ask(&Query::Qps)?, qpn)?,
        };
        let mut fastest = (Vec::new(), 0);
        if args.watch && args.qp.is_none() {
            let qps = client.ask(&Query::Qps)?;
            let last = looked.replace(now).unwrap_or(now);
            fastest = rates.look(&qps, now - last);
            answer["qp_rates"] = json!(fastest.0);
        }
        if args.json {
            match args.watch {
                true => writeln!(out, "{answer}")?,
                false => write_json(&mut out, &answer)?,
            }
        } else {
            let stat = match args.qp {
                None => decode(answer)?,
                Some(_) => as_columns(decode(answer)?),
            };
            if args.watch && io::stdout().is_terminal() {
                write!(out, "{CLEAR}")?;
            }
            let since = before.as_ref().map(|(then, stat)| (now - *then, stat));
            let devices = since.map(|(time, stat)| (time, &stat.devices[..]));
            write_table(&mut out, &stat.devices, devices, args.all)?;
            if !stat.switches.is_empty() {
                let switches = since.map(|(time, stat)| (time, &stat.switches[..]));
                writeln!(out)?;
                write_table(&mut out, &stat.switches, switches, args.all)?;
            }
            rates::write(&mut out, &fastest.0, fastest.1)?;
            before = Some((now, stat));
        }
        if !args.watch {
            return Ok(());
        }
        out.flush()?;
        thread::sleep(INTERVAL.saturating_sub(now.elapsed()));
    }
}

/// The queue pairs with a number: one, or one on each of several devices.
fn of_qp(mut reply: QpsReply, qpn: u32) -> Result<Value, CliError> {
    reply.qps.retain(|qp| qp.qpn == qpn);
    if reply.qps.is_empty() {
        return Err(CliError::NoQp(qpn));
    }
    Ok(json!(reply))
}

/// Queue pairs as if they were devices: a column each.
fn as_columns(reply: QpsReply) -> StatReply {
    let column = |qp: Qp| {
        let zero = counters::of_qp(&Counters::default());
        let mut all: BTreeMap<String, u64> = zero.map(|(name, n)| (name.into(), n)).collect();
        all.extend(qp.counters);
        DeviceStat {
            name: format!("{}/{:#08x}", qp.device, qp.qpn),
            hw_counters: all,
            counters: BTreeMap::new(),
            ethtool: BTreeMap::new(),
            port: BTreeMap::new(),
        }
    };
    StatReply {
        devices: reply.qps.into_iter().map(column).collect(),
        switches: Vec::new(),
    }
}

const GROUPS: [&str; 4] = ["hw", "counters", "ethtool", "port"];

/// A device's counters by group, in the order of [`GROUPS`].
fn groups(device: &DeviceStat) -> [&BTreeMap<String, u64>; 4] {
    [
        &device.hw_counters,
        &device.counters,
        &device.ethtool,
        &device.port,
    ]
}

/// A row for each counter, a column for each device; with `since`, another for its growth in a second.
fn write_table(
    out: &mut impl Write,
    devices: &[DeviceStat],
    since: Option<(Duration, &[DeviceStat])>,
    all: bool,
) -> io::Result<()> {
    let mut titles = vec!["group".to_string(), "counter".into()];
    for device in devices {
        titles.push(format!(">{}", device.name));
        if since.is_some() {
            titles.push(format!(">{}/s", device.name));
        }
    }
    let mut table = Table::new(&titles);
    let mut left_out = 0;
    for (group, title) in GROUPS.into_iter().enumerate() {
        // Ports differ in what they count, so a device may lack what another has.
        let names: BTreeSet<&String> = devices
            .iter()
            .flat_map(|device| groups(device)[group].keys())
            .collect();
        for name in names {
            let value = |device: &DeviceStat| groups(device)[group].get(name).copied();
            let values: Vec<u64> = devices
                .iter()
                .map(|device| value(device).unwrap_or(0))
                .collect();
            if !all && values.iter().all(|&value| value == 0) {
                left_out += 1;
                continue;
            }
            let mut row = vec![title.to_string(), name.to_string()];
            for (device, now) in devices.iter().zip(values) {
                row.push(now.to_string());
                if let Some((time, before)) = since {
                    let then = before.iter().find(|then| then.name == device.name);
                    row.push(rate(time, now, then.and_then(value).unwrap_or(0)));
                }
            }
            table.row(row);
        }
    }
    table.write(out, "all counters are 0")?;
    if left_out > 0 {
        writeln!(
            out,
            "({left_out} counters at 0 are left out; --all shows them)"
        )?;
    }
    Ok(())
}

fn rate(time: Duration, now: u64, then: u64) -> String {
    format!(
        "{:.0}",
        now.saturating_sub(then) as f64 / time.as_secs_f64().max(1e-9)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(packets: u64) -> StatReply {
        let device = |name: &str, packets: u64| DeviceStat {
            name: name.into(),
            hw_counters: BTreeMap::from([("out_of_sequence".into(), 0)]),
            counters: BTreeMap::from([("port_xmit_packets".into(), packets)]),
            ethtool: BTreeMap::new(),
            port: BTreeMap::from([("rx_packets".into(), 1)]),
        };
        StatReply {
            devices: vec![device("roce0", packets), device("roce1", 3)],
            switches: Vec::new(),
        }
    }

    fn rows(since: Option<(Duration, &StatReply)>, all: bool) -> Vec<String> {
        let mut out = Vec::new();
        let since = since.map(|(time, stat)| (time, &stat.devices[..]));
        write_table(&mut out, &stat(700).devices, since, all).unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines()
            .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn zeros_are_left_out_and_said() {
        assert_eq!(
            rows(None, false),
            [
                "group counter roce0 roce1",
                "counters port_xmit_packets 700 3",
                "port rx_packets 1 1",
                "(1 counters at 0 are left out; --all shows them)"
            ]
        );
        assert_eq!(rows(None, true)[1], "hw out_of_sequence 0 0");
    }

    #[test]
    fn numbers_of_queue_pairs_are_decimal_or_hexadecimal() {
        assert_eq!(qp_number("258"), Ok(258));
        assert_eq!(qp_number("0x000102"), Ok(258));
        for bad in ["", "0x", "102h", "-1", "0x1000000"] {
            assert!(qp_number(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_queue_pair_is_a_column_of_its_own() {
        let qp = |device: &str, qpn| Qp {
            counters: BTreeMap::from([("packet_seq_err".into(), u64::from(qpn))]),
            ..Qp::sample(device, qpn)
        };
        let reply = || QpsReply {
            qps: vec![qp("roce0", 2), qp("roce0", 3), qp("roce1", 2)],
        };
        let found = decode(of_qp(reply(), 2).unwrap()).unwrap();
        let mut out = Vec::new();
        write_table(&mut out, &as_columns(found).devices, None, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert!(
            lines[0].ends_with("roce0/0x000002  roce1/0x000002"),
            "{text}"
        );
        assert!(lines[1].contains("packet_seq_err"), "{text}");
        assert!(matches!(of_qp(reply(), 9), Err(CliError::NoQp(9))));
    }

    #[test]
    fn growth_is_per_second() {
        let before = stat(100);
        let shown = rows(Some((Duration::from_secs(2), &before)), false);
        assert_eq!(shown[0], "group counter roce0 roce0/s roce1 roce1/s");
        assert_eq!(shown[1], "counters port_xmit_packets 700 300 3 0");
    }
}
