//! The whole datapath on one core: two NICs on one lcore, joined by a fabric link, driven by an in-process producer
//! through the real shared-memory queues. Prints message rate, bandwidth and TSC cycles per packet by stage.
//!
//! `cargo bench -p roceline --bench datapath [-- --json]`

use std::time::{Duration, Instant};

use roceline::bench::Pair;
use roceline::bench::producer::{INLINE, SIGNALED};
use roceline::lcore::probe::{CycleProbe, NoProbe, Stage, tsc};
use roceline_engine::AckPolicy;
use roceline_engine::verbs::{Mtu, Sge, WrOpcode};

/// Rounds of each case; the median is reported.
const ROUNDS: usize = 5;
/// Length of a round.
const ROUND: Duration = Duration::from_millis(300);
/// A signalled request each so many.
const SIGNAL_EVERY: u32 = 16;

struct Case {
    name: &'static str,
    opcode: WrOpcode,
    len: u32,
    inline: bool,
}

struct Round {
    messages: u64,
    packets: u64,
    seconds: f64,
    cycles: f64,
    stages: [f64; Stage::ALL.len()],
}

fn main() {
    let json = std::env::args().any(|arg| arg == "--json");
    let cases = [
        Case {
            name: "write 8 B inline",
            opcode: WrOpcode::Write,
            len: 8,
            inline: true,
        },
        Case {
            name: "write 64 B",
            opcode: WrOpcode::Write,
            len: 64,
            inline: false,
        },
        Case {
            name: "write 4 KiB",
            opcode: WrOpcode::Write,
            len: 4096,
            inline: false,
        },
        Case {
            name: "write 64 KiB",
            opcode: WrOpcode::Write,
            len: 65536,
            inline: false,
        },
        Case {
            name: "send 64 B",
            opcode: WrOpcode::Send,
            len: 64,
            inline: false,
        },
        Case {
            name: "read 4 KiB",
            opcode: WrOpcode::Read,
            len: 4096,
            inline: false,
        },
        Case {
            name: "read 64 KiB",
            opcode: WrOpcode::Read,
            len: 65536,
            inline: false,
        },
    ];
    let mut pair = match Pair::new(AckPolicy::Coalesced, Mtu::M4096, 8) {
        Ok(pair) => pair,
        Err(error) => {
            eprintln!("datapath: {error}");
            std::process::exit(1);
        }
    };
    let mut from = vec![7u8; 1 << 16];
    let mut to = vec![0u8; 1 << 16];
    let mut poll = || {
        pair.lcore.turn(&mut NoProbe);
    };
    let keys = (
        pair.a
            .producer
            .register(from.as_mut_ptr() as u64, 1 << 16, &mut poll)
            .expect("register"),
        pair.b
            .producer
            .register(to.as_mut_ptr() as u64, 1 << 16, &mut poll)
            .expect("register"),
    );
    let place = machine();
    if !json {
        println!(
            "datapath: 2 NICs, 1 lcore and the producer on {place}, FabricLink, path MTU 4096, coalesced ACKs"
        );
        println!("memory by /proc/self/mem on two helper threads; medians of {ROUNDS} rounds");
        print!(
            "{:<18} {:>9} {:>8} {:>9}",
            "case", "kmsg/s", "Gb/s", "cyc/pkt"
        );
        for stage in Stage::ALL {
            print!(" {:>9}", format!("{stage:?}").to_lowercase());
        }
        println!();
    }
    for case in &cases {
        let filter = std::env::var("ROCELINE_CASE").unwrap_or_default();
        if !case.name.contains(filter.as_str()) {
            continue;
        }
        let mut rounds: Vec<Round> = (0..ROUNDS)
            .map(|_| round(&mut pair, case, &from, &to, keys))
            .collect();
        rounds.sort_by(|x, y| {
            (x.messages as f64 / x.seconds).total_cmp(&(y.messages as f64 / y.seconds))
        });
        let r = &rounds[ROUNDS / 2];
        let rate = r.messages as f64 / r.seconds;
        let gbps = rate * f64::from(case.len) * 8.0 / 1e9;
        let per_packet = |cycles: f64| cycles / r.packets.max(1) as f64;
        if json {
            let stages: serde_json::Map<String, serde_json::Value> = Stage::ALL
                .iter()
                .map(|&s| {
                    (
                        format!("{s:?}").to_lowercase(),
                        per_packet(r.stages[s as usize]).into(),
                    )
                })
                .collect();
            println!(
                "{}",
                serde_json::json!({"case": case.name, "messages_per_s": rate, "gbps": gbps,
                    "cycles_per_packet": per_packet(r.cycles), "stages": stages, "cpus": place})
            );
        } else {
            print!(
                "{:<18} {:>9.1} {:>8.2} {:>9.0}",
                case.name,
                rate / 1e3,
                gbps,
                per_packet(r.cycles)
            );
            for stage in Stage::ALL {
                print!(" {:>9.0}", per_packet(r.stages[stage as usize]));
            }
            println!();
        }
    }
}

/// What ran where: the benchmark's own thread polls and produces; helpers inherit its CPUs.
fn machine() -> String {
    let cpus = roceline::config::allowed_cpus();
    format!("CPUs {cpus:?} (unpinned unless run under taskset)")
}

fn round(pair: &mut Pair, case: &Case, from: &[u8], to: &[u8], keys: (u32, u32)) -> Round {
    let local = Sge {
        addr: from.as_ptr() as u64,
        length: case.len,
        lkey: keys.0,
    };
    let sink = Sge {
        addr: to.as_ptr() as u64,
        length: case.len,
        lkey: keys.1,
    };
    let remote = (to.as_ptr() as u64, keys.1);
    let packets_before = packets(pair);
    let mut probe = CycleProbe::new();
    let (begin, begin_tsc) = (Instant::now(), tsc());
    let (mut posted, mut done, mut receives) = (0u32, 0u64, 0u32);
    let mut stopping = false;
    while !stopping || done < u64::from(posted) {
        stopping |= begin.elapsed() >= ROUND && posted % SIGNAL_EVERY == 0;
        let mut rang = false;
        while !stopping && pair.a.producer.can_send(&pair.a.qp) && posted - (done as u32) < 128 {
            if case.opcode == WrOpcode::Send {
                pair.b.producer.post_recv(&mut pair.b.qp, sink);
                receives += 1;
            }
            posted += 1;
            let mut flags = if posted % SIGNAL_EVERY == 0 {
                SIGNALED
            } else {
                0
            };
            let inline = case.inline.then(|| &from[..case.len as usize]);
            if case.inline {
                flags |= INLINE;
            }
            pair.a
                .producer
                .post_send(&mut pair.a.qp, case.opcode, flags, local, remote, inline);
            rang = true;
        }
        if rang {
            pair.a.producer.ring(&pair.a.qp);
        }
        if pair.lcore.turn(&mut probe) == 0 {
            // The helpers share our cores.
            std::thread::yield_now();
        }
        while let Some(cqe) = pair.a.producer.poll_cq() {
            assert_eq!(
                cqe.status, 0,
                "{}: completion with status {}",
                case.name, cqe.status
            );
            done += u64::from(SIGNAL_EVERY);
        }
        while let Some(cqe) = pair.b.producer.poll_cq() {
            assert_eq!(
                cqe.status, 0,
                "{}: receive with status {}",
                case.name, cqe.status
            );
            receives -= 1;
        }
    }
    let cycles = (tsc() - begin_tsc) as f64;
    let seconds = begin.elapsed().as_secs_f64();
    while receives > 0 {
        pair.lcore.turn(&mut NoProbe);
        while pair.b.producer.poll_cq().is_some() {
            receives -= 1;
        }
    }
    let mut stages = [0.0; Stage::ALL.len()];
    for stage in Stage::ALL {
        stages[stage as usize] = probe.cycles(stage) as f64;
    }
    Round {
        messages: u64::from(posted),
        packets: packets(pair) - packets_before,
        seconds,
        cycles,
        stages,
    }
}

/// RoCE packets received by both NICs so far, ACKs included.
fn packets(pair: &Pair) -> u64 {
    (0..2)
        .map(|nic| pair.lcore.counters(nic).rdma_rx_packets)
        .sum()
}
