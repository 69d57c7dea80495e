//! What a packet costs in the engine alone, by end and stage. Two engines joined directly, no memory, and nothing measured but their
//! calls. And what impairment rules add to a packet. Prints time stamp counter cycles for each packet of payload: the median of many
//! rounds, and the tenth and ninetieth percentile of both ends together.
//!
//! * sender: `post` (work requests in), `tx` (packets out), `ack` (responses in);
//! * receiver: `rx` (requests in, placements, ACKs out), `resp` (`tx` of its own, READ responses).
//!
//! `cargo bench -p roceline-engine --bench engine [-- --json] [-- FILTER]`; `--fixed NAME COUNT` runs a fixed load and
//! prints nothing: for `scripts/instructions`.

mod clock;
mod fixed;
#[path = "../ideal/mod.rs"]
mod ideal;
mod load;
mod rules;

use load::{Load, STAGES, measure};
use roceline_engine::AckPolicy;
use roceline_engine::verbs::WrOpcode;
use serde_json::{Value, json};

const ROUNDS: u32 = 4_000;

fn size(len: u32) -> String {
    match len {
        1_048_576.. => format!("{} MiB", len >> 20),
        1024.. => format!("{} KiB", len >> 10),
        _ => format!("{len} B"),
    }
}

fn verb(op: WrOpcode) -> &'static str {
    match op {
        WrOpcode::Send => "SEND",
        WrOpcode::Read => "READ",
        WrOpcode::FetchAdd => "FETCH_ADD",
        WrOpcode::CmpSwap => "CMP_SWAP",
        _ => "WRITE",
    }
}

fn name(load: &Load) -> String {
    let policy = match load.ack_policy {
        AckPolicy::PerMessage => ", ack each",
        AckPolicy::Coalesced => "",
    };
    let order = if load.random { " random" } else { "" };
    let prefetch = if load.prefetch { " prefetch" } else { "" };
    let (verb, size) = (verb(load.op), size(load.len));
    format!("{verb} {size}{policy}, {} QP{order}{prefetch}", load.qps)
}

fn loads() -> Vec<Load> {
    let base = Load {
        op: WrOpcode::Write,
        len: 64,
        ack_policy: AckPolicy::Coalesced,
        qps: 1,
        random: false,
        prefetch: false,
    };
    let mut loads = Vec::new();
    for ack_policy in [AckPolicy::PerMessage, AckPolicy::Coalesced] {
        for op in [WrOpcode::Write, WrOpcode::Send] {
            for len in [64, 4096, 1 << 20] {
                loads.push(Load {
                    op,
                    len,
                    ack_policy,
                    ..base
                });
            }
        }
    }
    for (op, len) in [
        (WrOpcode::Read, 64),
        (WrOpcode::Read, 4096),
        (WrOpcode::Read, 1 << 20),
        (WrOpcode::FetchAdd, 8),
        (WrOpcode::CmpSwap, 8),
    ] {
        loads.push(Load { op, len, ..base });
    }
    for op in [WrOpcode::Write, WrOpcode::Send] {
        for qps in [64, 1_000, 10_000] {
            for (random, prefetch) in [(false, false), (true, false), (true, true)] {
                loads.push(Load {
                    op,
                    qps,
                    random,
                    prefetch,
                    ..base
                });
            }
        }
    }
    loads.push(Load {
        op: WrOpcode::Read,
        len: 4096,
        qps: 10_000,
        random: true,
        ..base
    });
    loads
}

fn main() {
    let mut args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    if args.first().is_some_and(|arg| arg == "--fixed") {
        return fixed::main(&args[1..]);
    }
    let json = args.iter().any(|arg| arg == "--json");
    args.retain(|arg| arg != "--json");
    let wanted = |name: &str| args.iter().all(|part| name.contains(part.as_str()));
    if !json {
        print!("{:<38}", "cycles for a packet of payload");
        STAGES.iter().for_each(|stage| print!("{stage:>7}"));
        println!("{:>8}{:>9}{:>7}  p10..p90", "sender", "receiver", "all");
    }
    let mut rows = Vec::new();
    for load in loads() {
        let name = name(&load);
        if !wanted(&name) {
            continue;
        }
        let costs = measure(load, ROUNDS);
        if !json {
            print!("{name:<38}");
            costs
                .stages
                .iter()
                .for_each(|s| print!("{:>7.1}", s.median));
            let (sender, receiver, all) = (costs.sender.median, costs.receiver.median, costs.all);
            println!(
                "{sender:>8.1}{receiver:>9.1}{:>7.1}  {:.0}..{:.0}",
                all.median, all.p10, all.p90
            );
        }
        let stages: serde_json::Map<String, Value> = STAGES
            .iter()
            .zip(&costs.stages)
            .map(|(&stage, spread)| (stage.to_string(), spread.json()))
            .collect();
        rows.push(json!({
            "name": name, "op": verb(load.op), "bytes": load.len, "qps": load.qps, "random": load.random,
            "prefetch": load.prefetch, "ack_each": load.ack_policy == AckPolicy::PerMessage,
            "packets_per_payload_packet": costs.packets, "stages": stages, "sender": costs.sender.json(),
            "receiver": costs.receiver.json(), "all": costs.all.json(),
        }));
    }
    let rules = match args.is_empty() {
        true => rules::run(json),
        false => Vec::new(),
    };
    if json {
        let unit = "time stamp counter cycles for a packet of payload";
        println!(
            "{}",
            json!({ "bench": "engine", "unit": unit, "loads": rows, "rules": rules })
        );
    }
}
