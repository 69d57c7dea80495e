//! A peer that sends whatever it likes: nothing panics, outputs keep their bounds, and in the end every
//! request and receive has completed exactly once.

use roceline_engine::fabric::impair::Random;
use roceline_engine::fabric::impair::fuzz::{self, Scope};
use roceline_engine::verbs::*;
use roceline_engine::wire::{ExtHeaders, Opcode, Psn, Transport};
use roceline_engine::{AckPolicy, EngineConfig, Nanos};

use crate::link::{Faults, Frame, Verdict};
use crate::memory::{IOVA_SHIFT, sges};
use crate::node::{MemoryFaults, default_attr};
use crate::rng::Rng;
use crate::world::{World, default_config, default_init};

struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "failed with seed {0}; repeat with ROCELINE_SEED={0}",
                self.0
            );
        }
    }
}

/// A frame that looks as if it belonged to the connection, more or less.
fn forge(w: &World, ids: [QpId; 2], to: usize, rng: &mut Rng) -> Frame {
    let (qp, init) = w.nodes[to].engine.query_qp(ids[to]).expect("it exists");
    let opcodes = Opcode::ALL;
    let base = rng.pick(&[qp.sq_psn, qp.rq_psn]);
    let near = base.add(rng.below(8) as u32).sub(4);
    let psn = if rng.permille(50) {
        Psn::new(rng.next() as u32)
    } else {
        near
    };
    let (addr, len) = w.nodes[to].memory.extent();
    let dma_len = rng.pick(&[0, 1, 1024, 1025, 5000, 1 << 20, u32::MAX]);
    let syndrome = rng.pick(&[
        0x1f, 0x1f, 0x00, 0x60, 0x61, 0x62, 0x63, 0x64, 0x21, 0x3f, 0x7f, 0x80,
    ]);
    let opcode = match rng.below(4) {
        // What keeps a connection alive.
        0 => Opcode::RC_ACK,
        1 => rng.pick(&[
            Opcode::RC_SEND_ONLY,
            Opcode::RC_READ_REQUEST,
            Opcode::RC_READ_RESP_FIRST,
            Opcode::RC_READ_RESP_LAST,
        ]),
        _ => opcodes[rng.below(opcodes.len() as u64) as usize],
    };
    let unreliable = init.qp_type == QpType::Uc && rng.permille(800);
    let same = Opcode::from_raw(opcode.raw() | 0x20);
    let opcode = match same.filter(|uc| unreliable && uc.info().transport == Transport::Uc) {
        Some(of_uc) => of_uc,
        None => opcode,
    };
    let payload = match opcode.info().payload {
        true => rng.pick(&[0, 1, 904, 1023, 1024, 1024, 1024, 1025, 4096]),
        false => 0,
    };
    Frame {
        src: w.nodes[1 - to].gid,
        dst: w.nodes[to].gid,
        dest_qpn: ids[to].0,
        opcode,
        psn,
        ack_req: rng.permille(500),
        solicited: rng.permille(100),
        ext: ExtHeaders {
            va: addr + IOVA_SHIFT + rng.below(len + 4096),
            rkey: w.nodes[to].mr.rkey ^ u32::from(rng.permille(20)),
            dma_len,
            aeth: syndrome << 24 | rng.below(1 << 24) as u32,
            imm_or_rkey: rng.next() as u32,
            ..ExtHeaders::default()
        },
        traffic_class: 0,
        payload: vec![1; payload],
    }
}

fn run(seed: u64) {
    let _seed = Seed(seed);
    let mut rng = Rng::new(seed);
    let config = EngineConfig {
        window: rng.pick(&[1, 8, 256]),
        ack_policy: rng.pick(&[AckPolicy::PerMessage, AckPolicy::Coalesced]),
        ..default_config(seed)
    };
    let mut w = World::new(config, Faults::default(), 1 << 16);
    w.keep_log = false;
    if seed % 2 == 1 {
        // Changed packets with right checksums, and ghosts of packets from before a reset.
        let mut random = Random::new(seed);
        for way in &mut w.link.ways {
            for id in 0..4 {
                let rule = fuzz::rule(&mut random, id, Scope::Anything, Nanos(20_000));
                way.rules.add(rule).expect("a good rule");
            }
        }
    }
    // Honest frames arrive too, or not, so that states are reached which no honest pair has.
    w.filter = Some(Box::new({
        let mut rng = rng.clone();
        move |_, _| {
            if rng.permille(500) {
                Verdict::Drop
            } else {
                Verdict::Pass
            }
        }
    }));
    let init = QpInit {
        qp_type: match seed % 3 {
            2 => QpType::Uc,
            _ => QpType::Rc,
        },
        max_send_wr: 16,
        ..default_init()
    };
    let attr = QpAttr {
        rnr_retry: rng.below(8) as u8,
        ..default_attr()
    };
    let ids = w.connect([&init, &init], [&attr, &attr]);
    for node in &mut w.nodes {
        node.memory_faults = MemoryFaults {
            pending: 300,
            pending_ns: 5_000,
            fault: 2,
        };
    }
    let mut posted = [0u64; 2];
    let mut receives = [0u64; 2];
    for _ in 0..400 {
        let n = rng.below(2) as usize;
        let state = w.nodes[n]
            .engine
            .query_qp(ids[n])
            .expect("it exists")
            .0
            .state;
        if state == QpState::Sqe && rng.permille(300) {
            let attr = QpAttr {
                state: QpState::Rts,
                ..attr
            };
            let now = w.now;
            let again = w.nodes[n].modify(ids[n], &attr, mask::STATE, now);
            again.expect("SQE to RTS");
        }
        if state == QpState::Err && rng.permille(300) {
            finish(&mut w, ids, &mut posted, &mut receives);
            for n in 0..2 {
                let now = w.now;
                w.nodes[n].enter(ids[n], QpState::Reset, now);
                let attr = QpAttr {
                    dest_qpn: ids[1 - n].0,
                    ..attr
                };
                w.nodes[n].connect(ids[n], &attr, now);
            }
        }
        let (lkey, rkey) = (w.nodes[n].mr.lkey, w.nodes[1 - n].mr.rkey);
        let (addr, _) = w.nodes[n].memory.extent();
        let length = rng.pick(&[0, 1, 1024, 5000]);
        let list = sges(&[(addr, length)], lkey);
        match rng.below(10) {
            0 | 1 => {
                let wr = SendWr {
                    wr_id: posted[n],
                    opcode: WrOpcode::from_raw(rng.below(17) as u32),
                    signaled: true,
                    fence: rng.permille(100),
                    num_sge: 1,
                    length: length.into(),
                    rkey,
                    remote_addr: addr + IOVA_SHIFT,
                    ..SendWr::default()
                };
                // Opcodes without support end the run for this QP soon, so they are rare.
                let supported = wr.opcode.is_some_and(|op| op as u8 <= 4);
                if supported || rng.permille(20) {
                    posted[n] += u64::from(w.nodes[n].post_send(ids[n], wr, &list, &[]));
                }
            }
            2 => {
                w.nodes[n].post_recv(ids[n], receives[n], &list);
                receives[n] += 1;
            }
            3 => w.run_for(Nanos(rng.below(100_000))),
            _ => {
                let frame = forge(&w, ids, n, &mut rng);
                let now = w.now;
                w.inject(n, frame, now);
                w.poll();
            }
        }
    }
    finish(&mut w, ids, &mut posted, &mut receives);
    assert!(w.is_idle());
}

/// Takes both ends down and checks that everything has completed once, in order.
fn finish(w: &mut World, ids: [QpId; 2], posted: &mut [u64; 2], receives: &mut [u64; 2]) {
    let now = w.now;
    for (node, id) in w.nodes.iter_mut().zip(ids) {
        node.enter(id, QpState::Err, now);
    }
    w.run();
    for (n, id) in ids.into_iter().enumerate() {
        let done = w.completions(n);
        let of = |recv: bool| {
            let mine = move |c: &&Completion| c.recv == recv;
            done.iter().filter(mine).map(|c| c.wr_id)
        };
        assert!(
            of(false).eq(0..posted[n]),
            "each request completes once, in order"
        );
        assert!(
            of(true).eq(0..receives[n]),
            "each receive completes once, in order"
        );
        assert_eq!(w.nodes[n].occupied(id), 0);
    }
    *posted = [0; 2];
    *receives = [0; 2];
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

/// Seeds of this kind, and of a round, as in `random`.
const KIND: u64 = 9_000_000;
const ROUND: u64 = 100_000_000;

#[test]
fn whatever_a_peer_sends_everything_completes_once() {
    match number("ROCELINE_SEED") {
        Some(seed) if seed % ROUND / 1_000_000 == KIND / 1_000_000 => run(seed),
        Some(_) => {}
        None => (0..number("ROCELINE_RUNS").unwrap_or(200)).for_each(|n| run(KIND + n)),
    }
}

/// For `ROCELINE_SECONDS` seconds, from the round `ROCELINE_ROUND` on.
#[test]
#[ignore = "scripts/fuzz runs it"]
fn long_hostile_peer() {
    let time = std::time::Duration::from_secs(number("ROCELINE_SECONDS").unwrap_or(10));
    let first = number("ROCELINE_ROUND").unwrap_or(1).max(1) * ROUND + KIND;
    let start = std::time::Instant::now();
    let mut runs = 0u64;
    while start.elapsed() < time {
        run(first + runs / 1_000_000 * ROUND + runs % 1_000_000);
        runs += 1;
    }
    println!("{runs} runs against a hostile peer");
}
