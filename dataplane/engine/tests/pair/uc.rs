//! Random messages over unreliable connections on links that lose, double and reorder: whatever is delivered is intact and
//! in its place, the sender completes everything, and nothing is left anywhere. `ROCELINE_SEED=n` repeats one run.

use roceline_engine::Nanos;
use roceline_engine::verbs::*;
use roceline_engine::wire::Psn;

use crate::link::Faults;
use crate::memory::{IOVA_SHIFT, sges};
use crate::node::{MemoryFaults, default_attr};
use crate::rng::Rng;
use crate::world::{World, default_config, default_init};

/// Prints the seed of a failing run.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "repeat with ROCELINE_SEED={} (and ROCELINE_TRACE=1 for the wire)",
                self.0
            );
        }
    }
}

const MESSAGES: usize = 40;
const RECEIVE: u32 = 40_000;

/// A message says which it is in each of its bytes and by its length, so that a mixture would show.
fn pattern(message: usize, len: u32) -> Vec<u8> {
    (0..len).map(|i| (message as u32 * 31 + i) as u8).collect()
}

/// How many messages were delivered of how many.
fn run(seed: u64, faults: Faults, memory: MemoryFaults) -> (usize, usize) {
    let _seed = Seed(seed);
    let rng = &mut Rng::new(seed);
    let mut w = World::new(default_config(seed), faults, 16 << 20);
    w.keep_log = false;
    for node in &mut w.nodes {
        node.memory_faults = memory;
    }
    let init = QpInit {
        qp_type: QpType::Uc,
        max_send_wr: MESSAGES as u32,
        ..default_init()
    };
    let psn = Psn::new(rng.pick(&[0, 0xff_fff0, 0x7f_ffff]));
    let mtu = rng.pick(&[Mtu::M256, Mtu::M1024, Mtu::M4096]);
    let attr = QpAttr {
        path_mtu: mtu,
        sq_psn: psn,
        rq_psn: psn,
        ..default_attr()
    };
    let [from, to] = w.connect([&init, &init], [&attr, &attr]);
    let (lkey, rkey) = (w.nodes[0].mr.lkey, w.nodes[1].mr.rkey);
    let receive_key = w.nodes[1].mr.lkey;
    // Twice as many receives as messages: a doubled message takes two.
    let receives: Vec<u64> = (0..2 * MESSAGES as u64)
        .map(|n| {
            let at = w.nodes[1].memory.alloc(RECEIVE);
            w.nodes[1].post_recv(to, n, &sges(&[(at, RECEIVE)], receive_key));
            at
        })
        .collect();
    let mut messages = Vec::new();
    for n in 0..MESSAGES {
        use WrOpcode::*;
        let op = rng.pick(&[Send, SendImm, Write, WriteImm]);
        let packets = rng.below(9) as u32 * mtu.bytes();
        let len = (packets + rng.below(3) as u32).min(RECEIVE);
        let at = w.nodes[0].memory.alloc(len);
        w.nodes[0].memory.write(at, &pattern(n, len));
        let remote = w.nodes[1].memory.alloc(len);
        let wr = SendWr {
            wr_id: n as u64,
            opcode: Some(op),
            signaled: rng.permille(500),
            num_sge: 1,
            length: len.into(),
            imm_or_rkey: n as u32 + 1,
            rkey,
            remote_addr: remote + IOVA_SHIFT,
            ..SendWr::default()
        };
        assert!(w.nodes[0].post_send(from, wr, &sges(&[(at, len)], lkey), &[]));
        messages.push((op, len, remote, wr.signaled));
        if rng.permille(300) {
            w.run_for(Nanos(rng.below(20_000)));
        }
    }
    w.run();
    let sent = w.completions(0);
    let wanted: Vec<u64> = (0..MESSAGES)
        .filter(|&n| messages[n].3)
        .map(|n| n as u64)
        .collect();
    assert_eq!(sent.iter().map(|c| c.wr_id).collect::<Vec<_>>(), wanted);
    assert!(sent.iter().all(|c| c.status == WcStatus::Success));
    assert_eq!(w.nodes[0].occupied(from), 0);
    let mut delivered = 0;
    for (next, c) in w.completions(1).iter().enumerate() {
        assert_eq!((c.wr_id, c.status), (next as u64, WcStatus::Success));
        delivered += 1;
        let memory = &w.nodes[1].memory;
        if c.opcode == WcOpcode::RecvRdmaWithImm {
            let n = c.imm_or_rkey as usize - 1;
            let (op, len, remote, _) = messages[n];
            assert_eq!((op, len), (WrOpcode::WriteImm, c.byte_len));
            assert_eq!(memory.read(remote, len), pattern(n, len), "WRITE {n}");
            continue;
        }
        let got = memory.read(receives[next], c.byte_len);
        let fits = |n: &usize| {
            let (op, len, ..) = messages[*n];
            let imm = if op == WrOpcode::SendImm {
                *n as u32 + 1
            } else {
                0
            };
            matches!(op, WrOpcode::Send | WrOpcode::SendImm)
                && (len, imm) == (c.byte_len, c.imm_or_rkey)
                && got == pattern(*n, len)
        };
        assert!(
            (0..MESSAGES).any(|n| fits(&n)),
            "receive {next} is no message that was sent: {c:?}"
        );
    }
    assert!(w.nodes[1].sent.is_empty() && w.nodes[1].books.sent.frames == 0);
    assert!(w.is_idle());
    let takes = |op: WrOpcode| op != WrOpcode::Write;
    (delivered, messages.iter().filter(|m| takes(m.0)).count())
}

fn seeds(kind: u64, count: u64) -> Vec<u64> {
    let base = 40_000_000 + kind * 1_000_000;
    match std::env::var("ROCELINE_SEED")
        .ok()
        .and_then(|v| v.parse().ok())
    {
        Some(seed) if seed / 1_000_000 == base / 1_000_000 => vec![seed],
        Some(_) => vec![],
        None => (base..base + count).collect(),
    }
}

const SLOW: MemoryFaults = MemoryFaults {
    pending: 300,
    pending_ns: 20_000,
    fault: 0,
};

#[test]
fn uc_on_a_good_link_delivers_everything() {
    for seed in seeds(0, 60) {
        let (delivered, sent) = run(seed, Faults::default(), SLOW);
        assert_eq!(delivered, sent, "seed {seed}");
    }
}

#[test]
fn uc_on_a_bad_link_delivers_only_what_is_intact() {
    let faults = Faults {
        loss: 30,
        duplicate: 30,
        reorder: 30,
        corrupt: 10,
    };
    let (mut delivered, mut sent) = (0, 0);
    for seed in seeds(1, 200) {
        let (d, s) = run(seed, faults, SLOW);
        delivered += d;
        sent += s;
    }
    assert!(
        sent == 0 || (delivered > sent / 3 && delivered < sent),
        "{delivered} of {sent}"
    );
}
