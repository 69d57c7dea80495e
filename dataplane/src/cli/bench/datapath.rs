//! `roceline bench datapath`.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use roceline_engine::verbs::Mtu;
use serde_json::json;

use super::super::table::Table;
use super::super::{CliError, number_in};
use super::{Output, failed, look_again, moved, stay_put, two_cores};
use crate::bench::datapath::{Case, Cost, Datapath, Outcome, Settings};
use crate::bench::end::MTUS;
use crate::bench::load::{Load, MAX_INLINE, Op};
use crate::bench::machine::Machine;
use crate::bench::ports::PortKind;
use crate::tune::workload::number;

/// Sizes that are measured if none is named.
const BYTES: [u32; 6] = [8, 64, 1024, 4096, 65536, 1 << 20];
/// And numbers of QPs, of small messages.
const QPS: [usize; 3] = [64, 1000, 10_000];
/// Idle QPs of the loop that has nothing to do.
const IDLE_QPS: usize = 64;

/// Messages between two programs in this process: rates of a core that only sends or only receives, cycles by NIC and stage
#[derive(Debug, Parser)]
pub(super) struct Args {
    /// Operations [default: all]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "OP")]
    op: Vec<Op>,

    /// Bytes of a message, such as 64, 4K or 1M [default: 8 to 1 MiB]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = bytes_in(1..=1 << 30))]
    bytes: Vec<u64>,

    /// QPs that take turns [default: 1; for WRITE and SEND of 64 bytes also 64, 1,000 and 10,000]
    #[arg(long, value_delimiter = ',', value_name = "N", value_parser = number_in(1..=20_000))]
    qps: Vec<u64>,

    /// 1: both NICs on one core, each on an lcore of its own, so that cycles are known by NIC; 2: a core for each, which
    /// shows what the way between cores costs
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = number_in(1..=2))]
    cores: u64,

    /// What joins the NICs; all but a fabric link take two processes on two cores
    #[arg(long, value_enum, default_value_t = PortKind::Fabric, value_name = "PORT")]
    port: PortKind,

    /// Measure nothing, but move so many messages of each case with a clock that only polls move: the same instructions in every
    /// run, for a simulated CPU to count
    #[arg(long, value_name = "N", conflicts_with_all = ["cores", "port"], value_parser = number_in(1..=100_000_000))]
    messages: Option<u64>,

    /// Of these messages: as while somebody looks with `roceline top`
    #[arg(long, requires = "messages")]
    watched: bool,

    #[command(flatten)]
    how: How,

    #[command(flatten)]
    pub(super) output: Output,
}

/// How messages go.
#[derive(Clone, Debug, Parser)]
pub(super) struct Way {
    /// Path MTU: 256, 512, 1024, 2048 or 4096
    #[arg(long, default_value_t = 4096, value_name = "BYTES", value_parser = path_mtu)]
    mtu: u32,

    /// Reach memory through the kernel instead of mapping it
    #[arg(long)]
    kernel_memory: bool,

    /// An ACK for each message instead of as few as the rules allow
    #[arg(long)]
    ack_per_message: bool,

    /// No congestion control instead of that of `roceline nic`, for a line of 1 Tb/s
    #[arg(long)]
    no_congestion_control: bool,
}

/// How messages go, and how long it is measured.
#[derive(Clone, Debug, Parser)]
pub(super) struct How {
    #[command(flatten)]
    way: Way,

    /// Rounds of a case; the median counts
    #[arg(long, default_value_t = 15, value_name = "N", value_parser = number_in(1..=1000))]
    rounds: u64,

    /// Length of a round in milliseconds
    #[arg(long, default_value_t = 20, value_name = "MS", value_parser = number_in(1..=60_000))]
    round: u64,
}

/// A path MTU.
fn path_mtu(text: &str) -> Result<u32, String> {
    let known = MTUS.map(Mtu::bytes);
    let mtu = text.parse().ok().filter(|mtu| known.contains(mtu));
    mtu.ok_or_else(|| "must be 256, 512, 1024, 2048 or 4096".into())
}

/// Bytes within bounds, with `K` and `M` as in workloads of `roceline tune`.
pub(super) fn bytes_in(
    bounds: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<u64, String> + Clone {
    move |text| {
        let bytes = number(text).filter(|bytes| bounds.contains(bytes));
        bytes.ok_or_else(|| {
            let (least, most) = (bounds.start(), bounds.end());
            format!("must be bytes from {least} to {most}, such as 64, 4K or 1M")
        })
    }
}

impl How {
    pub(super) fn settings(&self) -> Settings {
        Settings {
            rounds: self.rounds as usize,
            round: Duration::from_millis(self.round),
            ..self.way.settings()
        }
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rounds {
            1 => write!(f, "{}; a round of {} ms", self.way, self.round),
            rounds => write!(
                f,
                "{}; medians of {rounds} rounds of {} ms",
                self.way, self.round
            ),
        }
    }
}

impl Way {
    /// Of something that has no rounds.
    pub(super) fn settings(&self) -> Settings {
        Settings {
            mtu: self.mtu,
            mapped: !self.kernel_memory,
            ack_per_message: self.ack_per_message,
            congestion_control: !self.no_congestion_control,
            rounds: 0,
            round: Duration::ZERO,
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "path MTU {}; memory {}; ACKs {}; congestion control {}",
            self.mtu,
            match self.kernel_memory {
                true => "through the kernel",
                false => "mapped",
            },
            match self.ack_per_message {
                true => "per message",
                false => "coalesced",
            },
            match self.no_congestion_control {
                true => "none",
                false => "as of roceline nic",
            },
        )
    }
}

impl Args {
    fn cases(&self) -> Vec<Case> {
        let ops = match &*self.op {
            [] => Op::value_variants(),
            named => named,
        };
        let bytes: Vec<u32> = match &*self.bytes {
            [] => BYTES.into(),
            named => named.iter().map(|&n| n as u32).collect(),
        };
        let all = self.qps.is_empty() && self.bytes.is_empty() && self.op.is_empty();
        let qps: Vec<usize> = match &*self.qps {
            [] => vec![1],
            named => named.iter().map(|&n| n as usize).collect(),
        };
        let mut cases = Vec::new();
        for &qps in &qps {
            for &op in ops {
                let fits = |&&len: &&u32| match op {
                    Op::WriteInline => len <= MAX_INLINE,
                    Op::FetchAdd | Op::CompareSwap => len == 8,
                    _ => true,
                };
                let loads = bytes.iter().filter(fits).map(|&len| Load { op, len });
                cases.extend(loads.map(|load| Case { load, qps }));
            }
        }
        if all && self.cores == 1 && self.port == PortKind::Fabric {
            for qps in QPS {
                let loads = [Op::Write, Op::Send].map(|op| Load { op, len: 64 });
                cases.extend(loads.map(|load| Case { load, qps }));
            }
        }
        // What is named twice is measured once.
        let mut once: Vec<Case> = Vec::with_capacity(cases.len());
        for case in cases {
            if !once.contains(&case) {
                once.push(case);
            }
        }
        once
    }

    /// What is said when operations and sizes do not fit each other.
    fn no_case(&self) -> String {
        let words = |all: Vec<String>| all.join(",");
        let name = |op: &Op| {
            op.to_possible_value()
                .map(|value| value.get_name().to_owned())
        };
        format!(
            "no case is left of --op {} with --bytes {}: write-inline has {MAX_INLINE} bytes at most, fetch-add and \
             compare-swap have 8",
            words(self.op.iter().filter_map(name).collect()),
            words(self.bytes.iter().map(u64::to_string).collect()),
        )
    }
}

/// What polls in benchmarks of a core's cycles.
pub(super) const LCORES: &str = "two, polled in turns by one core";

/// Begins a benchmark of a core's cycles: stays on a CPU, and says what is measured where.
pub(super) fn begin(
    datapath: &Datapath,
    out: &Output,
    what: fmt::Arguments<'_>,
) -> Result<Machine, CliError> {
    let machine = Machine::look(Some(datapath.has_hugepages()));
    stay_put();
    out.say(&machine)?;
    out.say(format_args!("lcores: {LCORES}; port: {what}"))?;
    Ok(machine)
}

pub(super) fn run(args: Args) -> Result<(), CliError> {
    let cases = args.cases();
    if cases.is_empty() {
        return Err(CliError::Usage(args.no_case()));
    }
    if args.cores == 2 || args.port != PortKind::Fabric {
        return two_cores::run(args.port, &args.how, &cases, &args.output);
    }
    let mut datapath = Datapath::new(args.how.settings()).map_err(failed)?;
    if let Some(messages) = args.messages {
        let mut each = cases.iter();
        return each
            .try_for_each(|case| datapath.exactly(case, messages, args.watched))
            .map_err(failed);
    }
    let out = &args.output;
    let machine = begin(&datapath, out, format_args!("{}; {}", args.port, args.how))?;
    let idle = datapath.empty_poll(IDLE_QPS).map_err(failed)?;
    let mut outcomes = Vec::new();
    for case in &cases {
        outcomes.push(datapath.measure(case).map_err(failed)?);
    }
    let after = look_again(&machine);
    if !out.json {
        let mut stdout = io::stdout().lock();
        rates(&outcomes).write(&mut stdout, "nothing")?;
        out.say("")?;
        out.say("Cycles of a packet by stage")?;
        stages(&outcomes).write(&mut stdout, "nothing")?;
        out.say(format_args!(
            "\nA poll in which nothing happens, {IDLE_QPS} idle QPs: {idle:.0} ns"
        ))?;
    }
    if let Some(text) = moved(&machine.distance, &after) {
        out.say(text)?;
    }
    out.finish(&json!({
        "bench": "datapath",
        "machine": machine,
        "distance_after": after,
        "port": args.port,
        "lcores": LCORES,
        "settings": args.how.settings(),
        "empty_poll_ns": idle,
        "idle_qps": IDLE_QPS,
        "cases": outcomes,
    }))
}

pub(super) fn bytes(n: u32) -> String {
    match n {
        _ if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        _ if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
        _ => format!("{n} B"),
    }
}

fn name(outcome: &Outcome) -> [String; 2] {
    [
        format!("{} {}", outcome.op, bytes(outcome.bytes)),
        outcome.qps.to_string(),
    ]
}

fn rates(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new(&[
        "case",
        ">QPs",
        ">sends k/s",
        ">cycles",
        ">Gb/s",
        ">of limit",
        ">receives k/s",
        ">cycles",
        ">Gb/s",
        ">of limit",
        ">all in k/s",
        ">spread",
        ">resent",
    ]);
    for outcome in outcomes {
        let mut row: Vec<String> = name(outcome).into();
        for cost in [&outcome.requester, &outcome.responder] {
            row.push(format!("{:.1}", cost.messages_per_s.median / 1e3));
            row.push(format!("{:.0}", cost.cycles.median));
            row.push(format!("{:.1}", cost.gbps.median));
            row.push(format!("{:.0} %", 100.0 * cost.share_of_limit));
        }
        row.push(format!("{:.1}", outcome.together_per_s.median / 1e3));
        let spread = |cost: &Cost| cost.cycles.middle_half() / cost.cycles.median;
        let spread = spread(&outcome.requester).max(spread(&outcome.responder));
        row.push(format!("{:.0} %", 100.0 * spread));
        row.push(outcome.retries.to_string());
        table.row(row);
    }
    table
}

fn stages(outcomes: &[Outcome]) -> Table {
    let mut titles: Vec<String> = ["case", ">QPs", "NIC"].map(String::from).into();
    if let Some(outcome) = outcomes.first() {
        let stages = outcome.requester.stages.iter();
        titles.extend(stages.map(|(stage, _)| format!(">{stage}")));
    }
    let mut table = Table::new(&titles);
    for outcome in outcomes {
        let sides = [
            ("sender", &outcome.requester),
            ("receiver", &outcome.responder),
        ];
        for (side, cost) in sides {
            let mut row: Vec<String> = name(outcome).into();
            row.push(side.into());
            let stages = cost.stages.iter();
            row.extend(stages.map(|(_, cycles)| format!("{cycles:.0}")));
            table.row(row);
        }
    }
    table
}
