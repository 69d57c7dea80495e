//! Looks between polls: most turns of a loop without work are looks, and what comes is seen by the first of them.

use roceline::bench::Pair;
use roceline::bench::producer::{INLINE, SIGNALED};
use roceline::lcore::probe::{Probe, Stage};
use roceline_engine::AckPolicy;
use roceline_engine::verbs::{Mtu, Sge, WrOpcode};

/// Counts polls.
#[derive(Default)]
struct Polls(usize);

impl Probe for Polls {
    fn begin(&mut self, stage: Stage) {
        self.0 += usize::from(stage == Stage::Messages);
    }
    fn begin_of(&mut self, _stage: Stage, _nic: usize) {}
    fn requests(&mut self, _nic: usize, _count: usize) {}
}

fn rest(pair: &mut Pair) {
    while pair.lcore.turn(&mut Polls::default()) > 0 {}
}

#[test]
fn most_turns_without_work_are_looks_and_what_comes_is_seen_at_once() {
    let mut pair = Pair::new(AckPolicy::Coalesced, Mtu::M4096, 4).unwrap();
    let mut memory = [0u8; 64];
    let addr = memory.as_mut_ptr() as u64;
    let key = {
        let Pair { lcore, b, .. } = &mut pair;
        let mut poll = || {
            lcore.turn(&mut Polls::default());
        };
        b.producer.register(addr, 64, &mut poll).unwrap()
    };
    // The thread that reaches memory has nothing left to do, and no timer runs.
    rest(&mut pair);

    let mut polls = Polls::default();
    for _ in 0..800 {
        assert_eq!(pair.lcore.turn(&mut polls), 0);
    }
    // The machine's clock may call for upkeep, which polls do anyway.
    assert_eq!(polls.0, 100, "one in eight turns is a poll");

    // Whatever the place among the looks at which a request is posted, the very next turn takes it, and the packet that it is.
    for before in 0..10u64 {
        for _ in 0..before {
            assert_eq!(pair.lcore.turn(&mut Polls::default()), 0);
        }
        let sge = Sge {
            addr: 0,
            length: 8,
            lkey: 0,
        };
        let a = &mut pair.a;
        let bytes = (before + 1).to_ne_bytes();
        let (flags, to) = (SIGNALED | INLINE, (addr, key));
        a.producer
            .post_send(&mut a.qp, WrOpcode::Write, flags, sge, to, Some(&bytes));
        a.producer.ring(&a.qp);
        assert!(pair.lcore.turn(&mut Polls::default()) > 0, "after {before}");
        let done = loop {
            pair.lcore.turn(&mut Polls::default());
            if let Some(cqe) = pair.a.producer.poll_cq() {
                break cqe;
            }
        };
        assert_eq!(done.status, 0);
        rest(&mut pair);
        // SAFETY: the array lives, and nothing writes to it now.
        let got = unsafe { memory.as_ptr().cast::<u64>().read_volatile() };
        assert_eq!(got, before + 1);
    }
}
