//! Random datagrams. `ROCELINE_SEED=n` repeats one run.

use std::collections::BTreeMap;

use roceline_engine::Nanos;
use roceline_engine::verbs::*;

use super::*;
use crate::link::Faults;
use crate::node::MemoryFaults;
use crate::rng::Rng;

/// Many datagrams both ways over a link that loses, doubles, reorders and spoils, with slow memory and late receives: what is
/// delivered is what was sent, no more often than the link made it, and all that is not delivered is counted somewhere.
fn bad_link(seed: u64) -> (u64, u64) {
    let faults = Faults {
        loss: 30,
        duplicate: 30,
        reorder: 60,
        corrupt: 10,
    };
    let mut rng = Rng::new(seed);
    let mut p = Pair::over(faults, seed);
    let context = format!("ROCELINE_SEED={seed}");
    let mut sent: [BTreeMap<u64, Vec<u8>>; 2] = Default::default();
    let mut buffers: [BTreeMap<u64, u64>; 2] = Default::default();
    for n in 0..2 {
        p.node(n).memory_faults = MemoryFaults {
            pending: 200,
            pending_ns: 20_000,
            fault: 0,
        };
    }
    let mut number = 0;
    for _ in 0..40 {
        for n in 0..2 {
            for _ in 0..rng.below(4) {
                number += 1;
                let at = p.receive(n, number, MTU);
                buffers[n].insert(number, at);
            }
            for _ in 0..rng.below(4) {
                number += 1;
                let len = 8 + rng.below(u64::from(MTU) - 7);
                let mut data: Vec<u8> = number.to_be_bytes().to_vec();
                data.resize_with(len as usize, || rng.next() as u8);
                p.send(n, &data);
                sent[n].insert(number, data);
            }
        }
        let time = Nanos(rng.below(20_000));
        p.w.run_for(time);
    }
    p.w.run();
    let mut delivered = 0;
    for n in 0..2 {
        let mut times: BTreeMap<u64, u64> = BTreeMap::new();
        for c in p.w.completions(n) {
            assert_eq!(c.status, WcStatus::Success, "{context}");
            if !c.recv {
                continue;
            }
            let at = buffers[n]
                .remove(&c.wr_id)
                .expect("each receive is used once");
            let data = p.node(n).memory.read(at + u64::from(GRH), c.byte_len - GRH);
            let id = u64::from_be_bytes(*data.first_chunk().expect("8 bytes"));
            assert_eq!(data, sent[1 - n][&id], "{context}");
            assert_eq!(c.src_qp, p.ids[1 - n].0, "{context}");
            *times.entry(id).or_default() += 1;
            delivered += 1;
        }
        // The rules make one copy at most.
        assert!(times.values().all(|&times| times <= 2), "{context}");
        let books = &p.w.nodes[1 - n].books;
        let arrived = books.sent.frames - books.lost.frames + books.doubled.frames;
        let c = p.counters(n);
        let told = times.values().sum::<u64>();
        let spoilt = arrived - p.w.nodes[n].books.heard.frames;
        assert_eq!(told + c.out_of_buffer + spoilt, arrived, "{context}: {c:?}");
    }
    let all = sent[0].len() + sent[1].len();
    (delivered, all as u64)
}

#[test]
fn a_bad_link_loses_and_doubles_datagrams_and_spoils_none() {
    let asked: Option<u64> = std::env::var("ROCELINE_SEED")
        .ok()
        .and_then(|v| v.parse().ok());
    if let Some(seed) = asked {
        bad_link(seed);
        return;
    }
    let (mut delivered, mut sent) = (0, 0);
    for seed in 0..60 {
        let (some, all) = bad_link(seed);
        delivered += some;
        sent += all;
    }
    assert!(
        delivered > sent / 2 && delivered < sent,
        "{delivered} of {sent}"
    );
}
