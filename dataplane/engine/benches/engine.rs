//! What a packet costs in the engine alone, by stage: requester tx, responder rx, ACK handling. Two engines
//! joined directly, no memory. Prints time stamp counter cycles a packet, the median of many rounds.
//!
//! `cargo bench -p roceline-engine --bench engine`

mod ideal;

use ideal::Ideal;
use roceline_engine::AckPolicy;
use roceline_engine::verbs::{Mtu, WrOpcode};

/// Requests in a round: they fill the window, so that stages do not mix.
const ROUND: u64 = 256;
/// READs in a round: as many as may be out at once.
const READ_ROUND: u64 = 16;
const ROUNDS: usize = 2_000;

#[cfg(target_arch = "x86_64")]
fn cycles() -> u64 {
    // SAFETY: reads a counter; every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(not(target_arch = "x86_64"))]
fn cycles() -> u64 {
    // Without a cycle counter in user space: nanoseconds.
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START
        .get_or_init(std::time::Instant::now)
        .elapsed()
        .as_nanos() as u64
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Runs rounds of one kind of request and prints a line.
fn measure(name: &str, op: WrOpcode, len: u32, ack_policy: AckPolicy) {
    let mut pair = Ideal::new(Mtu::M4096, ack_policy);
    let round = if op == WrOpcode::Read {
        READ_ROUND
    } else {
        ROUND
    };
    let mut stages: [Vec<f64>; 4] = Default::default();
    for _ in 0..ROUNDS {
        let posts = cycles();
        for _ in 0..round {
            assert!(pair.post(op, len));
        }
        let tx = cycles();
        while pair.tx(0, 64) {}
        let sent = cycles();
        let packets = pair.wire[1].len() as f64;
        let rx = cycles();
        pair.rx(1);
        while pair.tx(1, 64) {}
        let answered = cycles();
        pair.rx(0);
        let done = cycles();
        let per = |from: u64, to: u64| (to - from) as f64 / packets;
        let took = [
            per(posts, tx),
            per(tx, sent),
            per(rx, answered),
            per(answered, done),
        ];
        for (stage, value) in stages.iter_mut().zip(took) {
            stage.push(value);
        }
    }
    assert_eq!(pair.completions, round * ROUNDS as u64);
    let [post, tx, rx, ack] = stages.map(median);
    println!(
        "{name:<28} {post:>8.1} {tx:>8.1} {rx:>8.1} {ack:>8.1} {:>8.1}",
        post + tx + rx + ack
    );
}

fn main() {
    println!("cycles a packet               post       tx       rx      ack      all");
    for (policy, label) in [
        (AckPolicy::PerMessage, "ack each"),
        (AckPolicy::Coalesced, "coalesced"),
    ] {
        for (op, verb) in [(WrOpcode::Write, "WRITE"), (WrOpcode::Send, "SEND")] {
            for (len, size) in [(64, "64 B"), (4096, "4 KiB")] {
                measure(&format!("{verb} {size}, {label}"), op, len, policy);
            }
        }
    }
    // A READ's stages: request tx; request rx and response tx; response rx with placement.
    measure("READ 4 KiB", WrOpcode::Read, 4096, AckPolicy::Coalesced);
}
