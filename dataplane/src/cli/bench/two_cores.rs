//! `roceline bench datapath --cores 2`, and the process that is its other half.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;
use serde_json::json;

use super::super::CliError;
use super::super::table::Table;
use super::datapath::{How, bytes};
use super::{Output, failed, unknown};
use crate::bench::datapath::{Case, MBUFS, Settings, end_config, least_bytes};
use crate::bench::end::{End, EndConfig};
use crate::bench::far::{Far, serve_parent};
use crate::bench::machine::{Machine, Seen, pin, tsc_hz};
use crate::bench::ports::PortKind;
use crate::bench::two_core::{Outcome, TwoCores};
use crate::config::LINK_PACKETS;
use crate::config::allowed_cpus;
use crate::port::{Eal, EalConfig, FabricLink, FabricLinkConfig, Mempool, MempoolConfig, Port};

/// The other half of a benchmark: started by the first.
#[derive(Debug, Parser)]
pub(super) struct FarArgs {
    /// What it is to be, as JSON.
    config: String,
    /// Its port.
    device: String,
    /// Where it runs.
    cpu: Option<usize>,
}

/// EAL and mbufs of one half.
struct Memory {
    // Before EAL.
    pool: Arc<Mempool>,
    eal: Eal,
}

impl Memory {
    fn new(port: PortKind, side: usize) -> io::Result<Memory> {
        let eal = EalConfig {
            single_file_segments: port == PortKind::Vhost,
            file_prefix: Some(format!("roceline-bench-{}-{side}", std::process::id())),
            ..EalConfig::default()
        };
        let eal = Eal::init(&eal).map_err(io::Error::other)?;
        let pool = MempoolConfig {
            count: MBUFS,
            ..MempoolConfig::default()
        };
        let pool = Mempool::new(&eal, &pool).map_err(io::Error::other)?;
        Ok(Memory { pool, eal })
    }
}

pub(super) fn far(args: &FarArgs) -> Result<(), CliError> {
    let config: EndConfig = serde_json::from_str(&args.config)
        .map_err(|error| CliError::Usage(format!("{}: {error}", args.config)))?;
    let run = || {
        let port = match args.device.starts_with("net_vhost") {
            true => PortKind::Vhost,
            false => PortKind::Memif,
        };
        let memory = Memory::new(port, 1)?;
        pinned(args.cpu)?;
        let port = PortKind::open(&args.device, &memory.pool).map_err(io::Error::other)?;
        serve_parent(&config, port, Arc::clone(&memory.pool))
    };
    run().map_err(failed)
}

fn pinned(cpu: Option<usize>) -> io::Result<()> {
    match cpu {
        Some(cpu) if !pin(cpu) => Err(io::Error::other(format!("cannot run on CPU {cpu}"))),
        _ => Ok(()),
    }
}

/// Two halves on the first two CPUs that this process may use, and its memory.
pub(super) struct Setup {
    pub(super) cores: TwoCores,
    // They were used by the halves.
    _socket: Option<Socket>,
    memory: Memory,
}

/// What a driver may leave behind.
struct Socket(PathBuf);

impl Drop for Socket {
    fn drop(&mut self) {
        // The driver may have removed it itself.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The CPUs of the two halves. One alone is no place for two pollers.
fn cpus() -> Result<(usize, usize), CliError> {
    match *allowed_cpus() {
        [a, b, ..] => Ok((a, b)),
        _ => Err(CliError::Usage(
            "two halves that poll need two CPUs, and this process may use one".into(),
        )),
    }
}

/// Builds the halves; the first runs on this thread from now on.
pub(super) fn set_up(
    port: PortKind,
    settings: &Settings,
    qps: usize,
    len: usize,
) -> Result<Setup, CliError> {
    let (a, b) = cpus()?;
    build(port, settings, qps, len, (a, b)).map_err(failed)
}

fn build(
    port: PortKind,
    settings: &Settings,
    qps: usize,
    len: usize,
    (cpu_a, cpu_b): (usize, usize),
) -> io::Result<Setup> {
    let hz = tsc_hz();
    let config = |side| EndConfig {
        side,
        ..end_config(settings, qps, least_bytes(len))
    };
    let memory = Memory::new(port, 0)?;
    pinned(Some(cpu_a))?;
    let socket = std::env::temp_dir().join(format!("roceline-bench-{}.sock", std::process::id()));
    let pool = || Arc::clone(&memory.pool);
    let (own, far) = match port.device(1, &socket) {
        None => {
            let link = FabricLinkConfig {
                capacity_packets: LINK_PACKETS as usize,
                ..FabricLinkConfig::default()
            };
            let (own, other) = FabricLink::pair(&link).map_err(io::Error::other)?;
            let other = Port::new(other);
            let far = Far::thread(config(1), other, pool(), &memory.eal, Some(cpu_b))?;
            (Port::new(own), far)
        }
        Some(device) => {
            let words = ["bench", "far", &serde_json::to_string(&config(1))?, &device];
            let mut words: Vec<String> = words.map(String::from).into();
            words.push(cpu_b.to_string());
            let far = Far::process(&words)?;
            let device = port.device(0, &socket).unwrap_or_default();
            let own = PortKind::open(&device, &memory.pool).map_err(io::Error::other)?;
            (own, far)
        }
    };
    let end = End::new(&config(0), own, pool())?;
    let cores = TwoCores::new(end, far, settings.mtu, Some((cpu_a, cpu_b)), hz)?;
    Ok(Setup {
        cores,
        _socket: (port != PortKind::Fabric).then_some(Socket(socket)),
        memory,
    })
}

pub(super) fn run(
    port: PortKind,
    how: &How,
    cases: &[Case],
    output: &Output,
) -> Result<(), CliError> {
    let (cpu_a, cpu_b) = cpus().map_err(|error| {
        CliError::Usage(format!(
            "{error}: without --cores 2 and --port both NICs run on one"
        ))
    })?;
    let qps = cases.iter().map(|case| case.qps).max().unwrap_or(1);
    if cases.iter().any(|case| case.qps != qps) {
        return Err(CliError::Usage(
            "on two cores all cases have the same number of --qps".into(),
        ));
    }
    let len = cases.iter().map(|case| case.load.len).max().unwrap_or(0);
    let mut machine = Machine::look(None);
    let settings = how.settings();
    let mut setup = set_up(port, &settings, qps, len as usize)?;
    machine.hugepages = Some(setup.memory.eal.has_hugepages());
    output.say(&machine)?;
    let lcores = match port {
        PortKind::Fabric => format!("a thread on CPU {cpu_a} sends, one on CPU {cpu_b} receives"),
        _ => format!("a process on CPU {cpu_a} sends, one on CPU {cpu_b} receives"),
    };
    output.say(format_args!("lcores: {lcores}; port: {port}; {how}"))?;
    let mut outcomes = Vec::new();
    for case in cases {
        let outcome = setup
            .cores
            .measure(case.load, settings.rounds, settings.round);
        outcomes.push(outcome.map_err(failed)?);
    }
    if !output.json {
        rates(&outcomes).write(&mut io::stdout().lock(), "nothing")?;
        if let Some(text) = unknown(outcomes.iter().flat_map(|outcome| &outcome.distance)) {
            output.say(text)?;
        }
    }
    output.finish(&json!({
        "bench": "datapath",
        "machine": machine,
        "port": port,
        "lcores": lcores,
        "settings": settings,
        "cases": outcomes,
    }))
}

fn rates(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new(&[
        "case",
        ">QPs",
        ">k/s",
        ">least",
        ">most",
        ">Gb/s",
        ">sender busy",
        ">receiver busy",
        ">resent",
        "CPUs before",
        "after",
    ]);
    for outcome in outcomes {
        let rate = &outcome.messages_per_s;
        let mut row = vec![
            format!("{} {}", outcome.op, bytes(outcome.bytes)),
            outcome.qps.to_string(),
            format!("{:.1}", rate.median / 1e3),
            format!("{:.1}", rate.min / 1e3),
            format!("{:.1}", rate.max / 1e3),
            format!("{:.1}", outcome.gbps.median),
            format!("{:.0} %", 100.0 * outcome.requester_busy),
            format!("{:.0} %", 100.0 * outcome.responder_busy),
            outcome.retries.to_string(),
        ];
        row.extend(outcome.distance.iter().map(Seen::cell));
        table.row(row);
    }
    table
}
