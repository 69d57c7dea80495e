//! Unreliable connections: nothing is acknowledged, and what is broken costs no other message (IBTA 9.8.2).

use roceline_engine::Nanos;
use roceline_engine::memory::Access;
use roceline_engine::verbs::*;
use roceline_engine::wire::{Opcode, Psn};

use super::Bench;
use crate::link::{Frame, Verdict};
use crate::memory::sges;
use crate::node::default_attr;
use crate::world::{default_config, default_init};

fn bench() -> Bench {
    with_init(default_init())
}

fn with_init(init: QpInit) -> Bench {
    let init = QpInit {
        qp_type: QpType::Uc,
        ..init
    };
    Bench::with(default_config(1), &default_attr(), &init)
}

const OK: WcStatus = WcStatus::Success;

#[test]
fn uc_sends_and_writes_arrive_and_nothing_is_acknowledged() {
    let mut b = bench();
    for _ in 0..3 {
        b.receive(5000);
    }
    let wanted = [
        WrOpcode::Send,
        WrOpcode::SendImm,
        WrOpcode::WriteImm,
        WrOpcode::Write,
    ]
    .map(|op| b.post(op, 2500));
    b.run();
    assert_eq!(b.done(0), wanted.map(|n| (n, OK)));
    let got = b.w.completions(1);
    let seen: Vec<_> = got
        .iter()
        .map(|c| (c.status, c.opcode, c.byte_len, c.flags))
        .collect();
    assert_eq!(
        seen,
        [
            (OK, WcOpcode::Recv, 2500, 0),
            (OK, WcOpcode::Recv, 2500, WC_WITH_IMM),
            (OK, WcOpcode::RecvRdmaWithImm, 2500, WC_WITH_IMM),
        ]
    );
    assert!(b.w.sent_by(1).is_empty(), "{:?}", b.w.sent_by(1));
    let sent = b.w.sent_by(0);
    assert_eq!(sent.len(), 12);
    // No A bit, since nobody answers; opcodes are those of RC in UC's range.
    assert!(
        sent.iter()
            .all(|line| line.starts_with("UC_") && !line.contains(" A "))
    );
    assert!(b.w.is_idle());
}

#[test]
fn uc_messages_complete_when_their_payload_is_fetched_and_longer_ones_than_the_window_pass() {
    let mut b = bench();
    b.node(0).memory_faults.pending = 1000;
    b.node(0).memory_faults.pending_ns = 50_000;
    b.receive(200 * 1024);
    let wanted = b.post(WrOpcode::Send, 200 * 1024);
    // The window is 64 packets: it opens as payload is fetched.
    while b.done(0).is_empty() {
        b.w.run_for(Nanos(1_000));
    }
    assert_eq!(
        b.w.sent_by(0).len(),
        200,
        "no completion before the last packet is away"
    );
    b.run();
    assert_eq!(b.w.completions(1)[0].byte_len, 200 * 1024);
    assert!(b.done(0).is_empty() && wanted == 0);
}

#[test]
fn uc_gap_costs_the_broken_message_and_its_receive_serves_the_next() {
    let mut b = bench();
    let first = b.receive(4096);
    b.receive(4096);
    b.lose(0, Opcode::UC_SEND_MIDDLE, 0x101, 1);
    b.post(WrOpcode::Send, 3500);
    b.post(WrOpcode::Send, 64);
    b.run();
    // The sender never learns of it.
    assert_eq!(b.done(0), [(0, OK), (1, OK)]);
    let got = b.w.completions(1);
    assert_eq!(got.len(), 1);
    assert_eq!(
        (got[0].wr_id, got[0].byte_len, got[0].status),
        (first, 64, OK)
    );
    let c = *b.node(1).engine.counters();
    assert_eq!(
        (c.out_of_sequence, c.rx_dropped),
        (1, 2),
        "one gap, two packets of no use"
    );
    assert_eq!(b.state(1), QpState::Rts);
}

#[test]
fn uc_lost_first_or_last_packets_cost_one_message_each() {
    for lost in [0x100, 0x103] {
        let mut b = bench();
        for _ in 0..3 {
            b.receive(4096);
        }
        b.filter(move |_, _, f| match f.psn.get() == lost {
            true => Verdict::Drop,
            false => Verdict::Pass,
        });
        b.post(WrOpcode::Send, 3500);
        b.post(WrOpcode::SendImm, 2000);
        b.post(WrOpcode::Send, 7);
        b.run();
        let lens: Vec<u32> = b.w.completions(1).iter().map(|c| c.byte_len).collect();
        assert_eq!(lens, [2000, 7], "{lost:x}");
    }
}

#[test]
fn uc_broken_write_with_immediate_takes_no_receive() {
    let mut b = bench();
    b.receive(0);
    b.lose(0, Opcode::UC_WRITE_MIDDLE, 0x101, 1);
    b.post(WrOpcode::WriteImm, 3500);
    b.post(WrOpcode::WriteImm, 10);
    b.run();
    let got = b.w.completions(1);
    assert_eq!(got.len(), 1);
    assert_eq!(
        (got[0].byte_len, got[0].opcode),
        (10, WcOpcode::RecvRdmaWithImm)
    );
}

#[test]
fn uc_without_a_receive_messages_are_dropped_and_counted() {
    let mut b = bench();
    b.post(WrOpcode::Send, 2000);
    b.post(WrOpcode::WriteImm, 2000);
    b.run();
    b.receive(100);
    b.post(WrOpcode::Send, 100);
    b.run();
    assert_eq!(b.done(0), [(0, OK), (1, OK), (2, OK)]);
    assert_eq!(b.done(1).len(), 1);
    assert_eq!(b.node(1).engine.counters().out_of_buffer, 2);
    assert!(b.w.sent_by(1).is_empty());
}

/// Length, key and rights: IBTA's class D, no answer, no completion, no event; the next message is fine.
#[test]
fn uc_requests_that_rc_would_refuse_are_dropped_without_a_word() {
    type Break = fn(&mut Bench);
    let too_long: Break = |b| {
        b.receive(10);
        b.post(WrOpcode::Send, 11);
    };
    let bad_key: Break = |b| {
        let (mut wr, list) = b.wr(WrOpcode::Write, 3000);
        wr.rkey ^= 0x55_0000;
        b.post_wr(wr, &list);
    };
    let bad_range: Break = |b| {
        let (mut wr, list) = b.wr(WrOpcode::WriteImm, 3000);
        wr.remote_addr = 1 << 40;
        b.post_wr(wr, &list);
    };
    for (number, what) in [too_long, bad_key, bad_range].into_iter().enumerate() {
        let mut b = bench();
        what(&mut b);
        b.receive(4000);
        b.post(WrOpcode::Send, 10);
        b.run();
        assert_eq!(b.done(0), [(0, OK), (1, OK)], "case {number}");
        let got = b.w.completions(1);
        assert_eq!(got.len(), 1, "case {number}");
        assert_eq!((got[0].status, got[0].byte_len), (OK, 10), "case {number}");
        assert!(
            b.events(1).is_empty() && b.w.sent_by(1).is_empty(),
            "case {number}"
        );
        assert_eq!(b.state(1), QpState::Rts, "case {number}");
    }
}

#[test]
fn uc_qp_without_remote_write_drops_writes() {
    let init = QpInit {
        qp_type: QpType::Uc,
        ..default_init()
    };
    let attr = QpAttr {
        access: Access(0),
        ..default_attr()
    };
    let mut b = Bench::with(default_config(1), &attr, &init);
    b.receive(10);
    b.post(WrOpcode::Write, 3000);
    b.post(WrOpcode::Send, 10);
    b.run();
    assert_eq!(b.done(1).len(), 1);
    assert!(b.events(1).is_empty());
}

/// The fault is this end's own: class A.
#[test]
fn uc_receive_that_is_no_good_fails_the_qp() {
    let mut b = bench();
    let at = b.node(1).memory.alloc(64);
    let bad = b.receive_at(&sges(&[(at, 64)], 0x7777));
    let behind = b.receive(64);
    b.post(WrOpcode::Send, 64);
    b.run();
    assert_eq!(b.done(0), [(0, OK)]);
    assert_eq!(
        b.done(1),
        [(bad, WcStatus::LocProtErr), (behind, WcStatus::WrFlushErr)]
    );
    assert_eq!(b.state(1), QpState::Err);
    assert!(b.w.sent_by(1).is_empty(), "no NAK");
}

/// A duplicate of a whole message is a message (nothing in UC remembers what was served); one within a message breaks it.
#[test]
fn uc_takes_every_only_and_first_whatever_its_psn() {
    let mut b = bench();
    for _ in 0..3 {
        b.receive(100);
    }
    b.post(WrOpcode::Send, 100);
    b.run();
    let again = b.w.log[0].2.clone();
    let now = b.w.now;
    b.w.inject(1, again.clone(), now + Nanos(1));
    let far = Frame {
        psn: Psn::new(0x80_0000),
        ..again
    };
    b.w.inject(1, far, now + Nanos(2));
    b.run();
    assert_eq!(b.done(1).len(), 3);
    let c = b.node(1).engine.counters();
    assert_eq!((c.duplicate_request, c.out_of_sequence), (1, 1));
}

#[test]
fn uc_packets_that_ask_for_an_ack_get_none() {
    let mut b = bench();
    b.receive(100);
    b.receive(100);
    b.post(WrOpcode::Send, 100);
    b.run();
    let mut asking = b.w.log[0].2.clone();
    asking.ack_req = true;
    let now = b.w.now;
    b.w.inject(1, asking, now + Nanos(1));
    b.run();
    assert_eq!(b.done(1).len(), 2);
    assert!(b.w.sent_by(1).is_empty());
}

#[test]
fn rc_packets_for_a_uc_qp_and_the_other_way_round_are_dropped() {
    let mut b = bench();
    b.receive(100);
    b.post(WrOpcode::Send, 100);
    b.run();
    let mut frame = b.w.log[0].2.clone();
    for opcode in [
        Opcode::RC_SEND_ONLY,
        Opcode::RC_ACK,
        Opcode::RC_READ_REQUEST,
    ] {
        frame.opcode = opcode;
        let now = b.w.now;
        b.w.inject(1, frame.clone(), now + Nanos(1));
        b.run();
    }
    assert_eq!(b.done(1).len(), 1);
    assert_eq!(b.node(1).engine.counters().rx_dropped, 3);
}

/// What a UC QP cannot do, and local faults: the request completes with its error, what is behind it is flushed, and
/// receiving goes on (IBTA 10.3.1, SQE).
#[test]
fn uc_send_errors_lead_to_sqe_and_back_to_rts() {
    type Post = fn(&mut Bench) -> u64;
    let read: Post = |b| b.post(WrOpcode::Read, 10);
    let atomic: Post = |b| b.post(WrOpcode::FetchAdd, 8);
    let key: Post = |b| {
        let (wr, mut list) = b.wr(WrOpcode::Send, 10);
        list[0].lkey ^= 0x55;
        b.post_wr(wr, &list)
    };
    let long: Post = |b| {
        let (wr, mut list) = b.wr(WrOpcode::Send, 10);
        list[0].length = (1 << 31) + 1;
        b.post_wr(wr, &list)
    };
    for (post, status) in [
        (read, WcStatus::LocQpOpErr),
        (atomic, WcStatus::LocQpOpErr),
        (key, WcStatus::LocProtErr),
        (long, WcStatus::LocLenErr),
    ] {
        let mut b = bench();
        for _ in 0..4 {
            b.receive(2000);
        }
        let good = b.post(WrOpcode::Send, 2000);
        let bad = post(&mut b);
        let behind = b.post(WrOpcode::Send, 10);
        b.run();
        let flushed = WcStatus::WrFlushErr;
        assert_eq!(b.done(0), [(good, OK), (bad, status), (behind, flushed)]);
        assert_eq!(b.state(0), QpState::Sqe);
        let late = b.post(WrOpcode::Send, 10);
        b.run();
        assert_eq!(b.done(0), [(late, flushed)]);
        // It still receives.
        let qp = b.ids[0];
        let at = b.node(0).memory.alloc(64);
        let lkey = b.node(0).mr.lkey;
        b.node(0).post_recv(qp, 77, &sges(&[(at, 64)], lkey));
        let (peer, at) = (b.ids[1], b.node(1).memory.alloc(64));
        let list = sges(&[(at, 64)], b.node(1).mr.lkey);
        let wr = SendWr {
            opcode: Some(WrOpcode::Send),
            num_sge: 1,
            length: 64,
            signaled: true,
            ..SendWr::default()
        };
        assert!(b.node(1).post_send(peer, wr, &list, &[]));
        b.run();
        assert_eq!(b.done(0), [(77, OK)]);
        // And sends again.
        let attr = QpAttr {
            state: QpState::Rts,
            ..QpAttr::default()
        };
        let now = b.w.now;
        b.node(0)
            .modify(qp, &attr, mask::STATE, now)
            .expect("SQE to RTS");
        let sent = b.w.completions(1).iter().filter(|c| c.recv).count();
        let again = b.post(WrOpcode::Send, 1500);
        b.run();
        assert_eq!(b.done(0), [(again, OK)]);
        let lens: Vec<u32> =
            b.w.completions(1)
                .iter()
                .filter(|c| c.recv)
                .map(|c| c.byte_len)
                .collect();
        assert_eq!((sent, lens.as_slice()), (1, &[1500][..]), "{status:?}");
        assert!(b.w.is_idle());
    }
}

/// What was posted before RTS is flushed in any case, however much it is; what is posted after it is sent.
#[test]
fn uc_requests_of_before_sqe_are_flushed_though_the_qp_is_in_rts_again() {
    let mut b = with_init(QpInit {
        max_send_wr: 2000,
        ..default_init()
    });
    b.receive(100);
    b.post(WrOpcode::Read, 8);
    let (wr, list) = b.wr(WrOpcode::Send, 8);
    let qp = b.ids[0];
    for n in 0..1500 {
        let wr = SendWr {
            wr_id: 100 + n,
            ..wr
        };
        assert!(b.node(0).post_send(qp, wr, &list, &[]));
    }
    // One turn: the error comes out, and as many flushes as a call may give.
    b.w.poll();
    assert_eq!(b.state(0), QpState::Sqe);
    let attr = QpAttr {
        state: QpState::Rts,
        ..QpAttr::default()
    };
    let now = b.w.now;
    b.node(0)
        .modify(qp, &attr, mask::STATE, now)
        .expect("SQE to RTS");
    let last = SendWr { wr_id: 9999, ..wr };
    assert!(b.node(0).post_send(qp, last, &list, &[]));
    b.run();
    let done = b.done(0);
    let flushed = done.iter().filter(|d| d.1 == WcStatus::WrFlushErr).count();
    assert_eq!(done[0].1, WcStatus::LocQpOpErr);
    assert_eq!((flushed, done.len()), (1500, 1502));
    assert_eq!(done.last(), Some(&(9999, OK)));
    assert_eq!(b.done(1).len(), 1);
}

/// Memory that cannot be read: the packets before it are out, the message is broken, the peer waits for nothing.
#[test]
fn uc_payload_that_cannot_be_fetched_is_a_local_protection_error() {
    let mut b = bench();
    b.receive(5000);
    b.node(0).memory_faults.fault = 1000;
    let bad = b.post(WrOpcode::Send, 3000);
    b.run();
    assert_eq!(b.done(0), [(bad, WcStatus::LocProtErr)]);
    assert_eq!(b.state(0), QpState::Sqe);
    assert_eq!(b.state(1), QpState::Rts);
    assert!(b.done(1).is_empty());
}

/// A packet that was lost before it, and not told of yet, is not sent after all: its request is complete.
#[test]
fn uc_a_fetch_that_fails_sends_nothing_again() {
    let mut b = bench();
    b.receive(64);
    b.node(0).memory_faults.pending = 1000;
    b.node(0).memory_faults.pending_ns = 1000;
    let lost = b.post(WrOpcode::Send, 64);
    b.node(0).poll(Nanos::ZERO);
    b.node(0).memory_faults.fault = 1000;
    let bad = b.post(WrOpcode::Send, 64);
    b.node(0).poll(Nanos::ZERO);
    let qp = b.ids[0];
    b.node(0).lose_outgoing(qp);
    b.run();
    assert_eq!(b.done(0), [(lost, OK), (bad, WcStatus::LocProtErr)]);
    assert_eq!(b.state(0), QpState::Sqe);
    assert!(b.w.sent_by(0).is_empty(), "{:?}", b.w.sent_by(0));
}
