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

/// Packets with random fields, half of them with the right Q_Key: what is no datagram for the QP does nothing, and every
/// packet is accounted for.
#[test]
fn nothing_from_the_wire_upsets_it() {
    let seed = 7;
    let mut rng = Rng::new(seed);
    let mut p = Pair::over(Faults::default(), seed);
    let mut received = 0;
    for round in 0..4_000 {
        if rng.permille(300) {
            // One that is too short waits for a datagram that fits.
            let len = rng.pick(&[2048, 4096]);
            p.receive(1, round, len);
        }
        let opcode = match rng.permille(700) {
            true => rng.pick(&[Opcode::UD_SEND_ONLY, Opcode::UD_SEND_ONLY_IMM]),
            false => rng.pick(Opcode::ALL),
        };
        let (len, right) = (rng.below(4097) as usize, rng.permille(500));
        let words: [u64; 4] = std::array::from_fn(|_| rng.next());
        let to_all = rng.permille(20);
        p.inject(1, |f| {
            f.opcode = opcode;
            f.psn = Psn::new(words[0] as u32);
            f.solicited = words[1] & 1 != 0;
            f.ack_req = words[1] & 2 != 0;
            f.ext = ExtHeaders {
                va: words[2],
                rkey: words[0] as u32,
                dma_len: words[3] as u32,
                aeth: (words[0] >> 32) as u32,
                imm_or_rkey: (words[1] >> 32) as u32,
                qkey: if right { QKEY } else { words[2] as u32 },
                src_qpn: words[3] as u32 & 0xff_ffff,
                ..f.ext
            };
            f.payload = vec![round as u8; len];
            if to_all {
                f.dest_qpn = 0xff_ffff;
            }
        });
        p.w.run();
        for c in p.w.completions(1) {
            assert_eq!((c.status, c.flags & WC_GRH), (WcStatus::Success, WC_GRH));
            assert_eq!(c.byte_len, GRH + len as u32);
            received += 1;
        }
    }
    let c = p.counters(1);
    let dropped = c.rx_qkey_violations + c.out_of_buffer + c.rx_dropped + c.rx_unknown_qp;
    // CNPs: congestion control is off.
    let dropped = dropped + c.rp_cnp_ignored;
    assert_eq!(received + dropped + c.resp_local_length_error, 4_000);
    assert!(received > 100, "{received}");
    assert_eq!(p.state(1), QpState::Rts);
    assert!(p.w.sent_by(1).is_empty());
}
