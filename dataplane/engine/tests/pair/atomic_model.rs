//! Atomics over bad links and slow memory: each is executed once, in its order, and returns what was there. Every QP has a
//! word of its own, whose history a model knows beforehand, and all add to one word that they share.

use roceline_engine::verbs::*;
use roceline_engine::wire::Feth;

use crate::link::Faults;
use crate::memory::{IOVA_SHIFT, sges};
use crate::node::{MemoryFaults, default_attr};
use crate::rng::Rng;
use crate::world::{World, default_config, default_init};

/// Prints how to repeat a failing run.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed; repeat with ROCELINE_SEED={}", self.0);
        }
    }
}

/// One connection: node 0 asks, node 1 has the words.
struct Flow {
    qp: QpId,
    word: u64,
    /// What the word holds once all that is posted is done.
    model: u64,
    /// Where answers go, and what they must be.
    answers: Vec<(u64, u64)>,
    posted: u64,
}

struct Run {
    w: World,
    rng: Rng,
    flows: Vec<Flow>,
    shared: u64,
    /// Where the answers of the shared word go.
    shared_answers: Vec<u64>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut rng = Rng::new(seed);
        let faults = Faults {
            loss: rng.below(80) as u32,
            duplicate: rng.below(60) as u32,
            reorder: rng.below(60) as u32,
            corrupt: rng.below(20) as u32,
        };
        let mut w = World::new(default_config(seed), faults, 1 << 20);
        w.keep_log = false;
        for node in &mut w.nodes {
            node.memory_faults = MemoryFaults {
                pending: rng.below(500) as u32,
                pending_ns: 20_000,
                fault: 0,
            };
        }
        let attr = QpAttr {
            timeout: 6,
            max_rd_atomic: 1 + rng.below(16) as u8,
            max_dest_rd_atomic: 16,
            ..default_attr()
        };
        let shared = w.nodes[1].memory.alloc_word(0);
        let init = default_init();
        let flows = (0..1 + rng.below(4))
            .map(|_| Flow {
                qp: w.connect([&init, &init], [&attr, &attr])[0],
                word: w.nodes[1].memory.alloc_word(0),
                model: 0,
                answers: Vec::new(),
                posted: 0,
            })
            .collect();
        Run {
            w,
            rng,
            flows,
            shared,
            shared_answers: Vec::new(),
        }
    }

    /// Posts one random request on a flow.
    fn post(&mut self, f: usize) {
        let (rng, flow) = (&mut self.rng, &mut self.flows[f]);
        let rkey = self.w.nodes[1].mr.rkey;
        let node = &mut self.w.nodes[0];
        let value = rng.below(4);
        // The source of a write, or where an answer goes.
        let at = node.memory.alloc_word(value);
        let mut wr = SendWr {
            wr_id: flow.posted,
            signaled: true,
            fence: rng.permille(100),
            rkey,
            remote_addr: flow.word + IOVA_SHIFT,
            num_sge: 1,
            length: 8,
            ..SendWr::default()
        };
        let before = flow.model;
        let op = match rng.below(8) {
            0..=2 => {
                (wr.compare_add, wr.swap) = (rng.below(4), value);
                if wr.compare_add == before {
                    flow.model = value;
                }
                flow.answers.push((at, before));
                WrOpcode::CmpSwap
            }
            3 => {
                // Ends below 4, so that comparisons succeed now and then.
                flow.model = before.wrapping_add(value) & 3;
                wr.compare_add = flow.model.wrapping_sub(before);
                flow.answers.push((at, before));
                WrOpcode::FetchAdd
            }
            4 => {
                wr.remote_addr = self.shared + IOVA_SHIFT;
                wr.compare_add = 1;
                self.shared_answers.push(at);
                WrOpcode::FetchAdd
            }
            5 => {
                flow.model = value;
                WrOpcode::AtomicWrite
            }
            6 => {
                flow.model = value;
                WrOpcode::Write
            }
            _ => {
                wr.imm_or_rkey = u32::from(Feth::GLOBAL);
                WrOpcode::Flush
            }
        };
        wr.opcode = Some(op);
        flow.posted += 1;
        let list = sges(&[(at, 8)], node.mr.lkey);
        assert!(node.post_send(flow.qp, wr, &list, &[]), "room");
    }

    fn check(&mut self) {
        for flow in &self.flows {
            let done = self.w.nodes[0].completions.iter();
            let of_qp: Vec<_> = done.filter(|c| c.qp == flow.qp).collect();
            let all: Vec<u64> = of_qp.iter().map(|c| c.wr_id).collect();
            assert_eq!(all, (0..flow.posted).collect::<Vec<_>>(), "once, in order");
            assert!(of_qp.iter().all(|c| c.status == WcStatus::Success));
            for (n, &(at, before)) in flow.answers.iter().enumerate() {
                assert_eq!(self.w.nodes[0].memory.word(at), before, "answer {n}");
            }
            assert_eq!(self.w.nodes[1].memory.word(flow.word), flow.model);
        }
        // Nobody saw the same number twice, and none is missing.
        let value = |at: &u64| self.w.nodes[0].memory.word(*at);
        let mut seen: Vec<u64> = self.shared_answers.iter().map(value).collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..seen.len() as u64).collect::<Vec<_>>());
        let total = self.w.nodes[1].memory.word(self.shared);
        assert_eq!(total, seen.len() as u64);
    }
}

fn run(seed: u64) {
    let _seed = Seed(seed);
    let mut run = Run::new(seed);
    for _ in 0..3 {
        for _ in 0..60 {
            for f in 0..run.flows.len() {
                run.post(f);
            }
        }
        run.w.run();
    }
    run.check();
    assert!(run.w.is_idle());
}

#[test]
fn atomics_are_executed_once_over_a_bad_link() {
    if let Some(seed) = std::env::var("ROCELINE_SEED")
        .ok()
        .and_then(|v| v.parse().ok())
    {
        return run(seed);
    }
    (0..60).for_each(run);
}
