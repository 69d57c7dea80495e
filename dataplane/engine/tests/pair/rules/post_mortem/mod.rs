//! Why a QP failed, in a sentence: one test a cause, each with the sentence that the user reads.

use roceline_engine::diagnosis::{Diagnosis, diagnose};
use roceline_engine::memory::{Access, MrAttr};
use roceline_engine::transport::journal::{Cause, Kind};
use roceline_engine::verbs::*;
use roceline_engine::wire::{Gid, Opcode};
use roceline_engine::{EngineConfig, Owner, PostMortem, Retransmission};

mod refused;
mod silent;

use super::*;
use crate::node::{MemoryFaults, PD};
use WrOpcode::{Read, Send, Write};

impl Bench {
    /// The newest record of a node.
    fn record(&mut self, n: usize) -> PostMortem {
        let records = self.node(n).engine.post_mortems();
        *records.iter().max_by_key(|r| r.number).expect("a record")
    }

    /// A pair whose ends differ.
    fn unlike(requester: QpAttr, responder: QpAttr) -> Bench {
        let mut w = World::new(default_config(1), Faults::default(), 4 << 20);
        let init = default_init();
        let ids = w.connect([&init, &init], [&requester, &responder]);
        Bench {
            w,
            ids,
            next: [0, 1000],
        }
    }

    /// The peer of node `n` as sentences name it.
    fn peer(&self, n: usize) -> String {
        format!("10.0.0.{} QP {:#08x}", 2 - n, self.ids[1 - n].0)
    }

    /// Checks name, sentence (`PEER` stands for the peer) and certainty of the newest record of node `n`.
    #[track_caller]
    fn expect(&mut self, n: usize, name: &str, sentence: &str) -> Diagnosis {
        let d = diagnose(&self.record(n));
        let want = sentence.replace("PEER", &self.peer(n));
        assert_eq!((d.name, d.sentence.as_str()), (name, want.as_str()));
        assert_eq!(d.likely, d.sentence.contains("likely"), "{d:?}");
        assert!(!d.remedy.is_empty());
        d
    }
}

fn quick() -> QpAttr {
    QpAttr {
        retry_cnt: 2,
        ..default_attr()
    }
}

#[test]
fn requests_that_are_wrong_in_themselves() {
    let mut b = Bench::with_attr(quick());
    let (wr, mut list) = b.wr(Send, 64);
    list[0].lkey = 0x5a00;
    b.post_wr(wr, &list);
    b.run();
    b.expect(
        0,
        "local-protection",
        "the SEND with wr_id 0x0 names lkey 0x00005a00, which is no memory region here: it is wrong, or the region was \
         deregistered",
    );

    let mut b = Bench::with_attr(QpAttr {
        max_rd_atomic: 0,
        ..quick()
    });
    b.post(Read, 64);
    b.run();
    b.expect(
        0,
        "no-read-credits",
        "the READ with wr_id 0x0 can never be sent, since max_rd_atomic of the queue pair is 0",
    );

    let mut b = Bench::with_attr(quick());
    let (mut wr, list) = b.wr(Send, 64);
    wr.opcode = None;
    b.post_wr(wr, &list);
    b.run();
    assert_eq!(diagnose(&b.record(0)).name, "bad-request");

    let mut b = Bench::with_attr(quick());
    let (mut wr, list) = b.wr(Send, 64);
    (wr.inline, wr.length, wr.num_sge) = (true, 4096, 0);
    b.post_wr(wr, &list);
    b.run();
    assert_eq!(diagnose(&b.record(0)).name, "too-long");
}

#[test]
fn memory_that_cannot_be_reached() {
    let faults = MemoryFaults {
        fault: 1000,
        ..MemoryFaults::default()
    };
    let mut b = Bench::with_attr(quick());
    b.node(0).memory_faults = faults;
    b.post(Write, 64);
    b.run();
    b.expect(
        0,
        "local-memory",
        "the memory of the WRITE with wr_id 0x0 could not be reached, although it is registered: it was unmapped, its \
         file was truncated, or the program has exited",
    );
    for op in [Write, Send, Read] {
        let mut b = Bench::with_attr(quick());
        b.node(1).memory_faults = faults;
        b.receive(64);
        b.post(op, 64);
        b.run();
        b.expect(
            1,
            "responder-memory",
            "the memory that a request of PEER is for could not be reached, although it is registered: it was unmapped, \
             its file was truncated, or the program has exited",
        );
    }
}

#[test]
fn the_program_ends_its_queue_pair() {
    let mut b = Bench::with_attr(no_timeout());
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Send, 64);
    b.w.run_for(Nanos::from_micros(5));
    let owner = Owner {
        pid: 42,
        name: *b"ib_send_bw\0\0\0\0\0\0",
    };
    let (qp, now) = (b.ids[0], b.w.now);
    b.node(0).engine.set_owner(qp, owner);
    b.enter(0, QpState::Err);
    b.expect(
        0,
        "program-ended",
        "the program itself moved the queue pair to ERR (ibv_modify_qp); 1 send requests were not complete",
    );
    let r = b.record(0);
    assert_eq!((r.owner.pid, r.owner.name().as_str()), (42, "ib_send_bw"));
    // The oldest request that was cut short.
    assert_eq!(r.request.map(|q| q.status), Some(WcStatus::WrFlushErr));

    let gone = b.ids[1];
    b.node(1).engine.bury_qp(gone, now);
    b.node(1).engine.destroy_qp(gone).expect("it exists");
    b.expect(
        1,
        "program-gone",
        "the program closed its device, or died, while this queue pair was connected to PEER; 0 send requests were not \
         complete",
    );
    // It has failed and has its record.
    b.node(0).engine.bury_qp(qp, now);
    assert_eq!(b.node(0).engine.post_mortems().last(), 1);
}

#[test]
fn a_cq_that_overflowed() {
    let mut b = Bench::with_attr(quick());
    let (qp, now) = (b.ids[0], b.w.now);
    let mut out = roceline_engine::Outputs::new();
    b.node(0).engine.fail_qp(qp, now, &mut out);
    b.expect(
        0,
        "cq-overflow",
        "a completion queue of this queue pair was full when the next completion came",
    );
}

/// Records outlive their QPs; the oldest leave; those of orderly ends push no failure out.
#[test]
fn records_are_kept_and_bounded() {
    let mut b = Bench::with_attr(quick());
    let init = default_init();
    let mut out = roceline_engine::Outputs::new();
    let now = b.w.now;
    let mut end = |b: &mut Bench, fail: bool| {
        let ids = b.w.connect([&init, &init], [&quick(), &quick()]);
        if fail {
            b.node(0).engine.fail_qp(ids[0], now, &mut out);
            out.clear();
        } else {
            b.node(0).enter(ids[0], QpState::Err, now);
        }
        for (n, &qp) in ids.iter().enumerate() {
            b.node(n).engine.destroy_qp(qp).expect("it exists");
        }
        ids[0]
    };
    let first = end(&mut b, true);
    for _ in 0..100 {
        end(&mut b, false);
    }
    let kept = |b: &mut Bench, orderly: bool| {
        let records = b.node(0).engine.post_mortems();
        let kept = records.iter().filter(|r| r.cause.is_orderly() == orderly);
        kept.map(|r| r.qp).collect::<Vec<_>>()
    };
    assert_eq!(kept(&mut b, false), [first]);
    assert_eq!(kept(&mut b, true).len(), 16);
    for _ in 0..60 {
        end(&mut b, true);
    }
    assert_eq!(kept(&mut b, false).len(), 48);
    assert!(!kept(&mut b, false).contains(&first));
    assert_eq!(b.node(0).engine.post_mortems().last(), 161);
}

/// A QP that starts anew knows nothing of its first life.
#[test]
fn a_reset_forgets() {
    let mut b = Bench::with_attr(quick());
    b.receive(64);
    b.post(Send, 64);
    b.run();
    b.enter(0, QpState::Reset);
    let (qp, now) = (b.ids[0], b.w.now);
    let attr = QpAttr {
        dest_qpn: b.ids[1].0,
        ..quick()
    };
    b.node(0).connect(qp, &attr, now);
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Send, 64);
    b.run();
    let r = b.record(0);
    assert_eq!((r.traffic.sent, r.traffic.responses), (3, 0));
    assert!(matches!(r.cause, Cause::RetriesExceeded(_)));
    assert_eq!(diagnose(&r).name, "peer-silent");
}
