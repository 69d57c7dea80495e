//! QPs that take their receive requests from a shared queue (IBTA 10.2.9, 10.3.1, 11.6.3.2).

use roceline_engine::Nanos;
use roceline_engine::memory::{Access, MrAttr};
use roceline_engine::verbs::*;

use super::Bench;
use crate::link::Verdict;
use crate::memory::{IOVA_SHIFT, sges};
use crate::node::{PD, default_attr};
use crate::world::{default_config, default_init};

const OK: WcStatus = WcStatus::Success;

fn init(qp_type: QpType, pd: u32) -> QpInit {
    QpInit {
        qp_type,
        srq: Some(SrqRef { number: 3, pd }),
        ..default_init()
    }
}

/// A pair whose ends take from a shared queue, with a second QP beside each.
fn bench(qp_type: QpType) -> (Bench, [QpId; 2]) {
    let init = init(qp_type, PD);
    let mut b = Bench::with(default_config(1), &default_attr(), &init);
    let attr = default_attr();
    let more = b.w.connect([&init, &init], [&attr, &attr]);
    (b, more)
}

#[test]
fn qps_take_from_a_shared_queue_in_the_order_of_their_messages() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (mut b, more) = bench(qp_type);
        for _ in 0..6 {
            b.receive(100);
        }
        let mut wanted = Vec::new();
        for n in 0..6 {
            let (wr, list) = b.wr(WrOpcode::Send, 50 + n);
            let which = n as usize % 2;
            let qp = [b.ids[0], more[0]][which];
            assert!(b.node(0).post_send(qp, wr, &list, &[]));
            b.run();
            wanted.push((1000 + u64::from(n), [b.ids[1], more[1]][which], 50 + n, OK));
        }
        let got = b.w.completions(1);
        let got: Vec<_> = got
            .iter()
            .map(|c| (c.wr_id, c.qp, c.byte_len, c.status))
            .collect();
        assert_eq!(got, wanted);
    }
}

#[test]
fn an_empty_shared_queue_is_an_rnr_nak() {
    let (mut b, _) = bench(QpType::Rc);
    b.post(WrOpcode::Send, 10);
    b.w.run_for(Nanos::from_micros(5));
    assert!(b.done(0).is_empty());
    assert_eq!(b.node(1).engine.counters().out_of_buffer, 1);
    b.receive(10);
    b.run();
    assert_eq!((b.done(0), b.done(1).len()), (vec![(0, OK)], 1));
}

#[test]
fn in_err_the_shared_queue_is_not_flushed_and_the_last_wqe_event_comes_once() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (mut b, more) = bench(qp_type);
        for _ in 0..3 {
            b.receive(100);
        }
        b.enter(1, QpState::Err);
        b.w.run_for(Nanos::from_millis(5));
        assert_eq!(b.events(1), [AsyncKind::QpLastWqeReached]);
        assert!(b.done(1).is_empty());
        assert!(
            !b.node(1).engine.has_errored_qps(),
            "nothing is to be looked for"
        );
        // The other QP has them all.
        for _ in 0..3 {
            let (wr, list) = b.wr(WrOpcode::Send, 50);
            assert!(b.node(0).post_send(more[0], wr, &list, &[]));
        }
        b.run();
        assert_eq!(b.done(1).len(), 3);
        // Again: nothing more is said of the same end.
        b.enter(1, QpState::Err);
        b.w.run_for(Nanos::from_millis(5));
        assert!(b.events(1).is_empty());
        // Another life has another end.
        b.enter(1, QpState::Reset);
        let attr = QpAttr {
            dest_qpn: b.ids[0].0,
            ..default_attr()
        };
        let (qp, now) = (b.ids[1], b.w.now);
        b.node(1).connect(qp, &attr, now);
        b.enter(1, QpState::Err);
        b.w.run_for(Nanos::from_millis(5));
        assert_eq!(b.events(1), [AsyncKind::QpLastWqeReached]);
    }
}

/// A request that was taken is the QP's, and flushed before the event says that it was the last.
#[test]
fn a_receive_in_progress_is_flushed_before_the_last_wqe_event() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let (mut b, _) = bench(qp_type);
        b.receive(4096);
        b.receive(4096);
        b.filter(
            |from, _, f| match from == 0 && f.opcode.info().position.ends() {
                true => Verdict::Drop,
                false => Verdict::Pass,
            },
        );
        b.post(WrOpcode::Send, 3000);
        b.w.run_for(Nanos::from_micros(50));
        b.enter(1, QpState::Err);
        // Nothing is said while the payload is still being placed; here it was placed at once.
        b.w.run_for(Nanos::from_micros(50));
        assert_eq!(b.done(1), [(1000, WcStatus::WrFlushErr)]);
        assert_eq!(b.events(1), [AsyncKind::QpLastWqeReached]);
        assert_eq!(b.node(1).queues.1.len(), 1);
    }
}

#[test]
fn the_last_wqe_event_waits_for_placements_under_way() {
    let (mut b, _) = bench(QpType::Rc);
    b.receive(4096);
    b.node(1).memory_faults.pending = 1000;
    b.node(1).memory_faults.pending_ns = 1_000_000;
    b.post(WrOpcode::Send, 1000);
    b.w.run_for(Nanos::from_micros(10));
    assert!(b.node(1).pending() > 0);
    b.enter(1, QpState::Err);
    assert!(b.events(1).is_empty() && b.done(1).is_empty());
    b.w.run_for(Nanos::from_millis(2));
    assert_eq!(b.done(1), [(1000, WcStatus::WrFlushErr)]);
    assert_eq!(b.events(1), [AsyncKind::QpLastWqeReached]);
}

/// A receive request with a bad key ends its QP: the error first, then the event.
#[test]
fn a_shared_receive_that_is_no_good_fails_the_qp_that_took_it() {
    let (mut b, more) = bench(QpType::Rc);
    let at = b.node(1).memory.alloc(64);
    b.receive_at(&sges(&[(at, 64)], 0x7777));
    b.receive(64);
    b.post(WrOpcode::Send, 64);
    b.run();
    assert_eq!(b.done(0), [(0, WcStatus::RemOpErr)]);
    assert_eq!(b.done(1), [(1000, WcStatus::LocProtErr)]);
    assert_eq!(b.events(1), [AsyncKind::QpLastWqeReached]);
    let (wr, list) = b.wr(WrOpcode::Send, 64);
    assert!(b.node(0).post_send(more[0], wr, &list, &[]));
    b.run();
    assert_eq!(b.done(1), [(1001, OK)]);
}

#[test]
fn keys_of_shared_receives_are_of_the_queues_protection_domain() {
    let other = PD + 1;
    let init = init(QpType::Rc, other);
    let mut b = Bench::with(default_config(1), &default_attr(), &init);
    let at = b.node(1).memory.alloc(64);
    let attr = MrAttr {
        pd: other,
        addr: at,
        iova: at + IOVA_SHIFT,
        len: 64,
        access: Access::LOCAL_WRITE,
    };
    let key = b.node(1).engine.register(attr).expect("room").lkey;
    let good = b.receive_at(&sges(&[(at, 64)], key));
    let bad = b.receive(64);
    b.post(WrOpcode::Send, 64);
    b.run();
    assert_eq!(b.done(1), [(good, OK)]);
    b.post(WrOpcode::Send, 64);
    b.run();
    assert_eq!(
        b.done(1),
        [(bad, WcStatus::LocProtErr)],
        "the QP's own domain does not count"
    );
}

/// What a broken UC message took stays with its QP: the others go on with the rest.
#[test]
fn uc_receive_of_a_broken_message_is_not_put_back_into_a_shared_queue() {
    let (mut b, more) = bench(QpType::Uc);
    for _ in 0..3 {
        b.receive(4096);
    }
    b.lose(0, roceline_engine::wire::Opcode::UC_SEND_MIDDLE, 0x101, 1);
    b.post(WrOpcode::Send, 3000);
    b.run();
    let (wr, list) = b.wr(WrOpcode::Send, 10);
    assert!(b.node(0).post_send(more[0], wr, &list, &[]));
    b.run();
    b.post(WrOpcode::Send, 20);
    b.run();
    let got: Vec<_> =
        b.w.completions(1)
            .iter()
            .map(|c| (c.wr_id, c.byte_len))
            .collect();
    assert_eq!(got, [(1001, 10), (1000, 20)]);
}
