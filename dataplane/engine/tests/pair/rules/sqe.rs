//! What is left over from SQE: packets that still wait, requests that are still to be flushed. And what a broken UC message
//! leaves to those behind it.

use roceline_engine::Nanos;
use roceline_engine::verbs::*;
use roceline_engine::wire::{ExtHeaders, Opcode};

use super::Bench;
use crate::node::{PD, default_attr};
use crate::world::{default_config, default_init};

const OK: WcStatus = WcStatus::Success;

fn bench(srq: Option<SrqRef>) -> Bench {
    let init = QpInit {
        qp_type: QpType::Uc,
        srq,
        ..default_init()
    };
    Bench::with(default_config(1), &default_attr(), &init)
}

fn back_to_rts(b: &mut Bench) {
    let (qp, now) = (b.ids[0], b.w.now);
    let attr = QpAttr {
        state: QpState::Rts,
        ..QpAttr::default()
    };
    b.node(0)
        .modify(qp, &attr, mask::STATE, now)
        .expect("SQE to RTS");
}

/// They belong to a request that has completed: its memory is the program's again.
#[test]
fn uc_packets_that_wait_are_not_sent_after_the_way_back_from_sqe() {
    let mut b = bench(None);
    b.node(0).memory_faults.pending = 1000;
    b.node(0).memory_faults.pending_ns = 50_000;
    let bad = b.post(WrOpcode::Write, 200 * 1024);
    // A window of packets waits for its payload, then the region goes.
    b.w.run_for(Nanos(1_000));
    let lkey = b.node(0).mr.lkey;
    b.node(0).engine.deregister(lkey).expect("no windows");
    while b.state(0) == QpState::Rts {
        b.w.run_for(Nanos(100));
    }
    assert_eq!(b.done(0), [(bad, WcStatus::LocProtErr)]);
    back_to_rts(&mut b);
    let out = b.w.sent_by(0).len();
    let (wr, _) = b.wr(WrOpcode::Write, 0);
    let last = b.post_wr(SendWr { num_sge: 0, ..wr }, &[]);
    b.run();
    assert_eq!(b.done(0), [(last, OK)]);
    assert_eq!(b.w.sent_by(0).len(), out + 1);
}

/// The flush of SQE ends where RTS began, that of ERR does not.
#[test]
fn requests_of_before_and_after_sqe_are_flushed_in_err() {
    for srq in [None, Some(SrqRef { number: 3, pd: PD })] {
        let mut b = bench(srq);
        let bad = b.post(WrOpcode::Read, 8);
        let before = b.post(WrOpcode::Write, 8);
        let now = b.w.now;
        b.node(0).poll(now);
        assert_eq!(b.state(0), QpState::Sqe);
        back_to_rts(&mut b);
        let after = b.post(WrOpcode::Write, 8);
        b.enter(0, QpState::Err);
        b.w.run_for(Nanos::from_millis(1));
        let flushed = WcStatus::WrFlushErr;
        assert_eq!(
            b.done(0),
            [
                (bad, WcStatus::LocQpOpErr),
                (before, flushed),
                (after, flushed)
            ]
        );
    }
}

/// The first packet of a message cannot be placed, its rest is lost; a WRITE and a SEND follow, which is given the receive
/// request of the broken one.
#[test]
fn uc_receive_of_a_broken_message_fails_with_it_whatever_arrived_behind() {
    let mut b = bench(None);
    b.node(1).memory_faults.pending = 1000;
    b.node(1).memory_faults.pending_ns = 50_000;
    let first = b.receive(4096);
    let behind = b.receive(4096);
    b.node(1).memory_faults.fault = 1000;
    b.inject(Opcode::UC_SEND_FIRST, 0x100, 1024, ExtHeaders::default());
    b.node(1).memory_faults.fault = 0;
    let reth = b.reth(64);
    b.inject(Opcode::UC_WRITE_ONLY, 0x105, 64, reth);
    b.inject(Opcode::UC_SEND_ONLY, 0x106, 64, ExtHeaders::default());
    b.run();
    assert_eq!(
        b.done(1),
        [
            (first, WcStatus::LocProtErr),
            (behind, WcStatus::WrFlushErr)
        ]
    );
}
