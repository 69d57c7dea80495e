//! Rules of QP states: flush, reset, drain, events.

use roceline_engine::verbs::*;
use roceline_engine::wire::{ExtHeaders, Opcode, Psn};
use roceline_engine::{EngineConfig, Nanos, Outputs};

use super::*;
use crate::node::{MemoryFaults, RTR, RTS};
use WcStatus::*;
use WrOpcode::{Read, Send, Write};

#[test]
fn in_err_both_queues_are_flushed_in_order_and_later_posts_too() {
    let mut b = Bench::with_attr(no_timeout());
    b.filter(|_, _, _| Verdict::Drop);
    for _ in 0..5 {
        b.post(Write, 100);
        b.receive(100);
    }
    b.run();
    b.enter(0, QpState::Err);
    b.enter(1, QpState::Err);
    b.run();
    assert_eq!(b.done(0), [0, 1, 2, 3, 4].map(|i| (i, WrFlushErr)));
    assert_eq!(
        b.done(1),
        [1000, 1001, 1002, 1003, 1004].map(|i| (i, WrFlushErr))
    );
    // No doorbell tells of receives; `advance` finds them.
    assert!(b.node(1).engine.has_errored_qps());
    b.receive(100);
    b.post(Write, 100);
    b.run();
    assert_eq!(b.done(1), [(1005, WrFlushErr)]);
    assert_eq!(b.done(0), [(5, WrFlushErr)]);
    assert!(b.sent(0).len() == 5 && b.sent(1).is_empty());
}

#[test]
fn unsignalled_requests_are_flushed_with_completions() {
    let mut b = Bench::with_attr(no_timeout());
    b.filter(|_, _, _| Verdict::Drop);
    for _ in 0..3 {
        let (mut wr, list) = b.wr(Write, 8);
        wr.signaled = false;
        b.post_wr(wr, &list);
    }
    b.enter(0, QpState::Err);
    b.run();
    assert_eq!(b.done(0).len(), 3);
}

#[test]
fn a_receive_in_progress_is_flushed_first() {
    let mut b = Bench::new();
    b.receive(5000);
    b.receive(5000);
    b.inject(Opcode::RC_SEND_FIRST, 0x100, 1024, ExtHeaders::default());
    b.enter(1, QpState::Err);
    b.run();
    assert_eq!(b.done(1), [(1000, WrFlushErr), (1001, WrFlushErr)]);
}

/// After its completion the program may use a buffer, so the flush waits for placements under way.
#[test]
fn a_flush_waits_for_placements_under_way() {
    let mut b = Bench::new();
    for n in 0..2 {
        b.node(n).memory_faults = MemoryFaults::slow(1_000);
    }
    b.receive(100);
    b.receive(100);
    b.inject(Opcode::RC_SEND_ONLY, 0x100, 64, ExtHeaders::default());
    assert_eq!(b.node(1).pending(), 1);
    b.enter(1, QpState::Err);
    while b.w.poll() {}
    assert!(b.done(1).is_empty());
    b.run();
    assert_eq!(b.done(1), [(1000, WrFlushErr), (1001, WrFlushErr)]);

    let mut b = Bench::with_attr(no_timeout());
    b.node(0).memory_faults = MemoryFaults::slow(1_000);
    b.post(Read, 64);
    loop {
        while b.w.poll() {}
        if b.node(0).pending() > 0 {
            break;
        }
        b.w.now = b.w.next_time().expect("the response is on its way");
    }
    b.enter(0, QpState::Err);
    while b.w.poll() {}
    assert!(b.done(0).is_empty());
    b.run();
    assert_eq!(b.done(0), [(0, WrFlushErr)]);
}

#[test]
fn a_flush_is_bounded_per_call_and_goes_on() {
    let init = QpInit {
        max_send_wr: 4096,
        ..default_init()
    };
    let mut b = Bench::with(default_config(1), &no_timeout(), &init);
    b.filter(|_, _, _| Verdict::Drop);
    let (qp, now) = (b.ids[0], b.w.now);
    let (wr, list) = b.wr(Write, 8);
    for _ in 0..4096 {
        assert!(b.node(0).engine.wants_sends(qp));
        b.node(0).engine.post_send(qp, &wr, &list).expect("room");
    }
    assert!(!b.node(0).engine.wants_sends(qp));
    assert!(b.node(0).engine.post_send(qp, &wr, &list).is_err());
    let mut out = Outputs::new();
    let attr = QpAttr {
        state: QpState::Err,
        ..QpAttr::default()
    };
    b.node(0)
        .engine
        .modify_qp(qp, &attr, mask::STATE, now, &mut out)
        .expect("allowed");
    assert_eq!(
        b.node(0).engine.next_deadline(),
        Some(Nanos::ZERO),
        "there is work"
    );
    let mut flushed = 0;
    let mut queues = crate::node::Queues::default();
    loop {
        let more = b.node(0).engine.advance(now, &mut queues, &mut out);
        assert!(out.events.len() <= Outputs::EVENTS_PER_CALL);
        flushed += out.events.len();
        out.clear();
        if !more {
            break;
        }
    }
    assert_eq!(flushed, 4096);
    assert_eq!(b.node(0).engine.next_deadline(), None);
}

#[test]
fn reset_drops_everything_and_ghosts_find_nothing() {
    let mut b = Bench::new();
    b.receive(100);
    // Frames and answers of the old connection stay on the wire for long.
    b.filter(|_, _, _| Verdict::Delay(Nanos::from_micros(100)));
    b.post(Send, 64);
    b.post(Write, 64);
    b.w.run_for(Nanos::from_micros(110));
    b.enter(0, QpState::Reset);
    b.enter(1, QpState::Reset);
    b.w.filter = None;
    b.done(1);
    let attr = QpAttr {
        sq_psn: Psn::new(0x5000),
        rq_psn: Psn::new(0x5000),
        ..default_attr()
    };
    for n in 0..2 {
        let (qp, peer, now) = (b.ids[n], b.ids[1 - n].0, b.w.now);
        b.node(n).connect(
            qp,
            &QpAttr {
                dest_qpn: peer,
                ..attr
            },
            now,
        );
    }
    b.run();
    assert!(b.done(0).is_empty() && b.done(1).is_empty());
    b.receive(64);
    let number = b.post(Send, 64);
    b.run();
    assert_eq!(b.done(0), [(number, Success)]);
    assert_eq!(b.done(1), [(1001, Success)]);
}

/// Whatever a responder was in the middle of, the next connection shows no trace of it.
#[test]
fn a_reset_begins_everything_anew() {
    type Before = fn(&mut Bench, ExtHeaders);
    const NONE: ExtHeaders = NO_HEADERS;
    let before: [Before; 6] = [
        |b, _| {
            b.receive(3000);
            b.inject(Opcode::RC_SEND_FIRST, 0x100, 1024, NONE);
        },
        |b, _| {
            b.receive(8);
            b.inject(Opcode::RC_SEND_ONLY, 0x100, 8, NONE);
        },
        |b, _| b.inject(Opcode::RC_SEND_ONLY, 0x105, 8, NONE),
        |b, _| b.inject(Opcode::RC_SEND_ONLY, 0x100, 8, NONE),
        |b, _| b.inject(Opcode::RC_SEND_LAST, 0x100, 8, NONE),
        |b, read| b.inject(Opcode::RC_READ_REQUEST, 0x100, 0, read),
    ];
    for (case, before) in before.iter().enumerate() {
        let begin = || {
            let mut b = Bench::with_attr(no_timeout());
            let read = b.reth(8);
            before(&mut b, read);
            b.enter(1, QpState::Reset);
            let (qp, peer, now) = (b.ids[1], b.ids[0].0, b.w.now);
            let attr = QpAttr {
                dest_qpn: peer,
                rq_psn: Psn::new(0x200),
                ..no_timeout()
            };
            b.node(1).connect(qp, &attr, now);
            b.sent(1);
            b.done(1);
            (b, read)
        };
        // Ghosts: nothing could be acknowledged or read again.
        let (mut b, read) = begin();
        b.inject(Opcode::RC_SEND_ONLY, 0x100, 8, NONE);
        b.inject(Opcode::RC_READ_REQUEST, 0x100, 0, read);
        assert!(b.sent(1).is_empty(), "case {case}");
        b.inject(Opcode::RC_SEND_ONLY, 0x202, 8, NONE);
        let nak = ["RC_ACK psn=200 pay=0 syn=60 msn=0"];
        assert_eq!(b.sent(1), nak, "case {case}");
        b.receive(8);
        b.inject(Opcode::RC_SEND_ONLY, 0x200, 8, NONE);
        let ack = ["RC_ACK psn=200 pay=0 syn=1f msn=1"];
        assert_eq!(b.sent(1), ack, "case {case}");
        assert_eq!(b.done(1).len(), 1, "case {case}");
        // Nor is there a receive of before to be flushed.
        let (mut b, _) = begin();
        b.enter(1, QpState::Err);
        b.run();
        assert!(b.done(1).is_empty(), "case {case}");
    }
}

#[test]
fn placements_of_before_a_reset_are_not_counted_after_it() {
    let mut b = Bench::new();
    b.node(1).memory_faults = MemoryFaults::slow(50_000);
    let ext = b.reth(64);
    b.inject(Opcode::RC_WRITE_ONLY, 0x100, 64, ext);
    b.enter(1, QpState::Reset);
    let (qp, peer, now) = (b.ids[1], b.ids[0].0, b.w.now);
    b.node(1).connect(
        qp,
        &QpAttr {
            dest_qpn: peer,
            ..default_attr()
        },
        now,
    );
    b.inject(Opcode::RC_WRITE_ONLY, 0x100, 64, ext);
    b.run();
    assert_eq!(b.sent(1), ["RC_ACK psn=100 pay=0 syn=1f msn=1"]);
}

#[test]
fn comm_est_comes_once_with_the_first_request_in_rtr() {
    let mut b = Bench::new();
    b.enter(1, QpState::Reset);
    let (qp, now, peer) = (b.ids[1], b.w.now, b.ids[0].0);
    let mut attr = QpAttr {
        dest_qpn: peer,
        ..default_attr()
    };
    attr.path.sgid = b.node(1).gid;
    attr.path.dgid = b.node(1).peer_gid;
    let init = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
    attr.state = QpState::Init;
    b.node(1).modify(qp, &attr, init, now).expect("to INIT");
    // INIT takes no packets yet.
    b.inject(Opcode::RC_SEND_ONLY, 0x100, 0, ExtHeaders::default());
    assert_eq!(b.node(1).engine.counters().rx_unknown_qp, 1);
    attr.state = QpState::Rtr;
    b.node(1)
        .modify(qp, &attr, mask::STATE | RTR, now)
        .expect("to RTR");
    b.receive(64);
    b.receive(64);
    b.inject(Opcode::RC_SEND_ONLY, 0x100, 0, ExtHeaders::default());
    b.inject(Opcode::RC_SEND_ONLY, 0x101, 0, ExtHeaders::default());
    assert_eq!(b.events(1), [AsyncKind::CommEst]);
    assert_eq!(b.done(1).len(), 2, "RTR receives");
    assert!(!b.node(1).engine.wants_sends(qp), "but does not send");
    attr.state = QpState::Rts;
    b.node(1)
        .modify(qp, &attr, mask::STATE | RTS, now)
        .expect("to RTS");
    assert!(b.node(1).engine.wants_sends(qp));
}

#[test]
fn sqd_finishes_what_has_started_and_says_so() {
    let mut b = Bench::with(
        EngineConfig {
            window: 2,
            ..default_config(1)
        },
        &no_timeout(),
        &default_init(),
    );
    b.post(Write, 5000);
    b.post(Write, 5000);
    while b.w.poll() {}
    let (qp, now) = (b.ids[0], b.w.now);
    let attr = QpAttr {
        state: QpState::Sqd,
        sqd_async_notify: true,
        ..QpAttr::default()
    };
    let given = mask::STATE | mask::EN_SQD_ASYNC_NOTIFY;
    b.node(0).modify(qp, &attr, given, now).expect("RTS to SQD");
    assert!(b.events(0).is_empty(), "the first WRITE is on its way");
    // Until then nothing can be changed, and the way back is closed (IBTA 10.3.1).
    assert!(b.query(0).sq_draining);
    for (state, given) in [
        (QpState::Rts, mask::STATE),
        (QpState::Sqd, mask::RETRY_CNT),
        (QpState::Sqd, mask::STATE | mask::RETRY_CNT),
    ] {
        let attr = QpAttr {
            state,
            ..QpAttr::default()
        };
        let refused = b.node(0).modify(qp, &attr, given, now);
        assert_eq!(refused, Err(QpError::Draining));
    }
    b.run();
    assert!(!b.query(0).sq_draining);
    assert_eq!(b.events(0), [AsyncKind::SqDrained]);
    assert_eq!(b.done(0), [(0, Success)]);
    assert_eq!(b.sent(0).len(), 5);
    let attr = QpAttr {
        state: QpState::Rts,
        ..QpAttr::default()
    };
    b.node(0)
        .modify(qp, &attr, mask::STATE, now)
        .expect("SQD to RTS");
    b.run();
    assert_eq!(b.done(0), [(1, Success)]);
    // An idle queue is drained at once.
    let attr = QpAttr {
        state: QpState::Sqd,
        sqd_async_notify: true,
        ..QpAttr::default()
    };
    b.node(0).modify(qp, &attr, given, now).expect("RTS to SQD");
    assert_eq!(b.events(0), [AsyncKind::SqDrained]);
}

#[test]
fn an_error_of_the_caller_takes_the_qp_down_with_an_event() {
    let mut b = Bench::with_attr(no_timeout());
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Write, 8);
    let (qp, now) = (b.ids[0], b.w.now);
    let mut out = Outputs::new();
    b.node(0).engine.fail_qp(qp, now, &mut out);
    b.node(0).engine.fail_qp(qp, now, &mut out);
    assert_eq!(
        out.events,
        [Event::Async {
            qp,
            kind: AsyncKind::QpFatal
        }]
    );
    assert_eq!(b.state(0), QpState::Err);
}

#[test]
fn destroyed_qps_leave_nothing() {
    let mut b = Bench::new();
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Write, 8);
    b.w.run_for(Nanos::from_micros(10));
    let qp = b.ids[0];
    b.node(0).engine.destroy_qp(qp).expect("it exists");
    assert_eq!(b.node(0).engine.destroy_qp(qp), Err(QpError::Unknown(qp.0)));
    assert_eq!(b.node(0).engine.next_deadline(), None);
    b.run();
    assert!(b.done(0).is_empty());
    assert_eq!(b.sent(0).len(), 1);
}

#[test]
fn query_shows_what_was_set_and_where_the_psns_are() {
    let mut b = Bench::new();
    b.post(Write, 5000);
    b.run();
    let attr = b.query(0);
    let want = QpAttr {
        state: QpState::Rts,
        sq_psn: Psn::new(0x105),
        dest_qpn: b.ids[1].0,
        path: attr.path,
        ..default_attr()
    };
    assert_eq!(attr, want);
    assert_eq!(b.query(1).rq_psn, Psn::new(0x105));
}

#[test]
fn qps_share_the_link_fairly() {
    let mut b = Bench::with_config(EngineConfig {
        window: 256,
        ..default_config(1)
    });
    let attr = default_attr();
    let second = b.w.connect_default(&attr);
    let first = b.ids;
    b.w.keep_log = true;
    for ids in [first, second] {
        b.ids = ids;
        b.post(Write, 200 * 1024);
    }
    b.w.poll();
    while b.w.poll() {}
    let mine = |b: &Bench, id: QpId| {
        b.w.log
            .iter()
            .take(128)
            .filter(|l| l.0 == 0 && l.2.dest_qpn == id.0)
            .count()
    };
    let (a, c) = (mine(&b, first[1]), mine(&b, second[1]));
    assert!(a.abs_diff(c) <= 32, "{a} against {c}");
}
