//! What a packet costs in the engine alone, by stage: requester tx, responder rx, ACK handling. Two engines
//! joined directly, no memory. And what impairment rules add to a packet. Prints time stamp counter cycles a packet, the median of many rounds.
//!
//! `cargo bench -p roceline-engine --bench engine`

mod ideal;

use ideal::Ideal;
use roceline_engine::fabric::impair::{
    Action, Chance, Class, Direction, Matcher, PacketView, Probability, Rule, RuleId, RuleSet, When,
};
use roceline_engine::verbs::{Mtu, WrOpcode};
use roceline_engine::{AckPolicy, Nanos};

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

/// A WRITE middle of 1 KiB through rules that lose one in a million of such packets, or look for another QP.
fn measure_rules(rules: u32, of_this_qp: bool) {
    let mut frame = vec![0; 14 + 20 + 8 + 12 + 1024 + 4];
    let bth = [7, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 0];
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    frame[16..18].copy_from_slice(&(20u16 + 8 + 12 + 1024 + 4).to_be_bytes());
    frame[23] = 17;
    frame[36..38].copy_from_slice(&4791u16.to_be_bytes());
    frame[42..54].copy_from_slice(&bth);
    let mut set = RuleSet::new();
    for id in 0..rules {
        let rule = Rule {
            id: RuleId(id),
            name: String::new(),
            matcher: Matcher {
                qpn: Some(if of_this_qp { 0x11 } else { 0x12 }),
                ..Matcher::of([Class::Middle])
            },
            when: When {
                chance: Chance::Each(Probability::ratio(1, 1_000_000)),
                ..When::default()
            },
            action: Action::Drop,
            seed: id.into(),
        };
        set.add(rule).expect("a good rule");
    }
    let (mut view, mut offer) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS as u64 {
        const BURST: u64 = 32;
        let start = cycles();
        for _ in 0..BURST {
            std::hint::black_box(PacketView::parse(
                Direction::Tx,
                std::hint::black_box(&frame),
            ));
        }
        let parsed = cycles();
        let seen = PacketView::parse(Direction::Tx, &frame);
        let offers = cycles();
        for _ in 0..BURST {
            std::hint::black_box(set.offer(std::hint::black_box(&seen), Nanos(round)).drop);
        }
        let end = cycles();
        view.push((parsed - start) as f64 / BURST as f64);
        offer.push((end - offers) as f64 / BURST as f64);
    }
    let what = if of_this_qp {
        "that match"
    } else {
        "of another QP"
    };
    println!(
        "{rules} rules {what:<20} {:>8.1} {:>8.1}",
        median(view),
        median(offer)
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
    println!("\ncycles a packet               view    offer");
    measure_rules(0, true);
    for rules in [1, 8] {
        measure_rules(rules, false);
        measure_rules(rules, true);
    }
}
