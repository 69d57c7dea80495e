//! The rules of sending and receiving datagrams.

use roceline_engine::Nanos;
use roceline_engine::verbs::*;
use roceline_engine::wire::Opcode;

use super::*;
use crate::link::Verdict;
use crate::node::MemoryFaults;

#[test]
fn a_datagram_arrives_behind_its_grh_with_sender_immediate_and_solicited() {
    let mut p = Pair::new();
    let at = p.receive(1, 9, 64);
    let from = p.node(0).memory.alloc(5);
    p.node(0).memory.write(from, b"hello");
    let (mut wr, list) = p.wr(0, &[(from, 5)]);
    (wr.opcode, wr.imm_or_rkey) = (Some(WrOpcode::SendImm), 0x0100_feca);
    wr.solicited = true;
    p.post(0, wr, &list);
    p.w.run();
    let got = p.w.completions(1);
    let want = Completion {
        qp: p.ids[1],
        cq: 2,
        recv: true,
        retire: 0,
        wr_id: 9,
        status: WcStatus::Success,
        opcode: WcOpcode::Recv,
        byte_len: GRH + 5,
        flags: WC_GRH | WC_WITH_IMM,
        imm_or_rkey: 0x0100_feca,
        src_qp: p.ids[0].0,
        sl: SL_IPV4,
        solicited: true,
    };
    assert_eq!(got, [want]);
    let (src, dst) = (p.node(0).gid, p.node(1).gid);
    let area = p.node(1).memory.read(at, GRH + 5).to_vec();
    assert_eq!((&area[8..24], &area[24..40]), (&src.0[..], &dst.0[..]));
    assert_eq!(area[40..], *b"hello");
    assert_eq!(
        p.w.sent_by(0),
        ["UD_SEND_ONLY_IMM psn=fffffe SE pay=5 imm=0100feca"]
    );
    assert_eq!(p.done(0), [(wr.wr_id, WcStatus::Success)]);
    assert!(p.w.sent_by(1).is_empty(), "nobody acknowledges");
}

#[test]
fn psns_count_packets_and_wrap() {
    let mut p = Pair::new();
    for _ in 0..3 {
        p.send(0, &[1; 3]);
    }
    p.w.run();
    let psns: Vec<u32> = p.w.log.iter().map(|l| l.2.psn.get()).collect();
    assert_eq!(psns, [0xff_fffe, 0xff_ffff, 0]);
}

#[test]
fn empty_inline_and_scattered_datagrams() {
    let mut p = Pair::new();
    let all: Vec<u64> = (0..3).map(|n| p.receive(1, n, 64)).collect();
    p.send(0, &[]);
    let (mut wr, _) = p.wr(0, &[]);
    (wr.inline, wr.length) = (true, 6);
    let qp = p.ids[0];
    assert!(p.node(0).post_send(qp, wr, &[], b"inline"));
    let pieces = [b"scat".as_slice(), b"", b"tered"].map(|data| {
        let at = p.node(0).memory.alloc(data.len() as u32);
        p.node(0).memory.write(at, data);
        (at, data.len() as u32)
    });
    let (wr, list) = p.wr(0, &pieces);
    p.post(0, wr, &list);
    p.w.run();
    let got = p.w.completions(1);
    for ((at, c), want) in all
        .iter()
        .zip(&got)
        .zip([b"".as_slice(), b"inline", b"scattered"])
    {
        assert_eq!(c.byte_len, GRH + want.len() as u32);
        let data = p
            .node(1)
            .memory
            .read(at + u64::from(GRH), want.len() as u32);
        assert_eq!(data, want);
    }
    assert_eq!((got.len(), p.done(0).len()), (3, 3));
}

#[test]
fn a_wrong_q_key_is_dropped_and_counted() {
    let mut p = Pair::new();
    p.receive(1, 9, 64);
    let at = p.node(0).memory.alloc(4);
    let (mut wr, list) = p.wr(0, &[(at, 4)]);
    wr.qkey = QKEY ^ 1;
    p.post(0, wr, &list);
    // With the top bit the QP's own goes out, whatever the rest says.
    wr.qkey = 0x8000_0000;
    p.post(0, wr, &list);
    p.w.run();
    let ok = (wr.wr_id, WcStatus::Success);
    assert_eq!(p.done(0), [ok, ok], "nobody tells the sender");
    assert_eq!(p.done(1), [(9, WcStatus::Success)]);
    let c = p.counters(1);
    assert_eq!((c.rx_qkey_violations, c.rx_dropped), (1, 0));
    assert_eq!(p.w.log[1].2.ext.qkey, QKEY);
}

#[test]
fn without_a_receive_it_is_gone() {
    let mut p = Pair::new();
    p.send(0, b"early");
    p.w.run();
    assert_eq!(p.counters(1).out_of_buffer, 1);
    let at = p.receive(1, 9, 64);
    p.send(0, b"later");
    p.w.run();
    assert_eq!(p.done(1), [(9, WcStatus::Success)]);
    assert_eq!(p.node(1).memory.read(at + u64::from(GRH), 5), b"later");
}

#[test]
fn one_that_does_not_fit_is_dropped_and_the_next_gets_its_receive() {
    let mut p = Pair::new();
    p.receive(1, 9, 3);
    p.receive(1, 10, 64);
    p.send(0, b"four");
    p.send(0, b"two");
    p.send(0, b"more");
    p.w.run();
    let ok = WcStatus::Success;
    assert_eq!(p.done(1), [(9, ok), (10, ok)]);
    let c = p.counters(1);
    assert_eq!((c.resp_local_length_error, c.resp_cqe_error), (1, 0));
    assert_eq!(p.state(1), QpState::Rts);
    // One that was taken for a datagram that did not fit is flushed like the others, and first.
    p.receive(1, 11, 3);
    p.receive(1, 12, 64);
    p.send(0, b"four");
    p.w.run();
    let (qp, now) = (p.ids[1], p.w.now);
    p.node(1).enter(qp, QpState::Err, now);
    p.w.run();
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(p.done(1), [(11, flushed), (12, flushed)]);
}

#[test]
fn packets_that_are_no_datagrams_for_this_qp_are_dropped() {
    let mut p = Pair::new();
    p.receive(1, 9, 64);
    p.inject(1, |f| f.opcode = Opcode::RC_SEND_ONLY);
    p.inject(1, |f| f.opcode = Opcode::UC_SEND_ONLY);
    p.inject(1, |f| f.opcode = Opcode::RC_ACK);
    p.inject(1, |f| f.dest_qpn = 0xff_ffff);
    p.w.run();
    let c = p.counters(1);
    assert_eq!((c.rx_dropped, c.rx_unknown_qp), (3, 1));
    assert!(p.done(1).is_empty());
    // From anybody, though.
    p.inject(1, |f| f.src = roceline_engine::wire::Gid([9; 16]));
    p.w.run();
    let got = p.w.completions(1);
    assert_eq!((got.len(), got[0].src_qp), (1, 0x77));
}

#[test]
fn connected_qps_take_no_datagrams() {
    let mut p = Pair::new();
    let rc = p.node(1).create_qp(&default_init());
    let attr = crate::node::default_attr();
    p.node(1).connect(rc, &attr, Nanos::ZERO);
    p.inject(1, |f| f.dest_qpn = rc.0);
    p.w.run();
    assert_eq!(p.counters(1).rx_dropped, 1);
    assert!(p.done(1).is_empty());
}

#[test]
fn a_send_completes_when_its_payload_was_fetched_and_in_order() {
    let mut p = Pair::new();
    p.node(0).memory_faults = MemoryFaults::slow(50_000);
    for n in 0..3 {
        p.receive(1, n, 64);
    }
    let slow = p.send(0, b"slow");
    let (mut wr, _) = p.wr(0, &[]);
    (wr.inline, wr.length) = (true, 4);
    let qp = p.ids[0];
    assert!(p.node(0).post_send(qp, wr, &[], b"fast"));
    let last = p.send(0, b"last");
    p.w.poll();
    assert!(p.w.completions(0).is_empty() && p.w.log.is_empty());
    p.w.run();
    let ok = WcStatus::Success;
    assert_eq!(p.done(0), [(slow, ok), (wr.wr_id, ok), (last, ok)]);
    assert_eq!(p.done(1), [(0, ok), (1, ok), (2, ok)]);
}

#[test]
fn sqd_sends_nothing_new_and_receives() {
    let mut p = Pair::new();
    p.receive(0, 9, 64);
    p.node(0).memory_faults = MemoryFaults::slow(50_000);
    let started = p.send(0, b"started");
    p.w.poll();
    let (qp, now) = (p.ids[0], p.w.now);
    let mut drain = attr(QpState::Sqd);
    drain.sqd_async_notify = true;
    let given = mask::STATE | mask::EN_SQD_ASYNC_NOTIFY;
    p.node(0)
        .modify(qp, &drain, given, now)
        .expect("RTS to SQD");
    assert!(p.node(0).events.is_empty(), "one is on its way");
    let held = p.send(0, b"held");
    p.send(1, b"to node 0");
    p.w.run();
    let mut done = p.done(0);
    done.sort_by_key(|d| d.0);
    assert_eq!(done, [(started, WcStatus::Success), (9, WcStatus::Success)]);
    assert_eq!(p.node(0).events, [(qp, AsyncKind::SqDrained)]);
    let now = p.w.now;
    p.node(0)
        .modify(qp, &attr(QpState::Rts), mask::STATE, now)
        .expect("SQD to RTS");
    p.w.run();
    assert_eq!(p.done(0), [(held, WcStatus::Success)]);
}

#[test]
fn in_err_everything_is_flushed_and_a_reset_begins_anew() {
    let mut p = Pair::new();
    p.receive(0, 9, 64);
    p.node(0).memory_faults = MemoryFaults::slow(50_000);
    let pending = p.send(0, b"pending");
    p.w.poll();
    let (qp, now) = (p.ids[0], p.w.now);
    p.node(0).enter(qp, QpState::Err, now);
    p.w.run();
    let flushed = WcStatus::WrFlushErr;
    assert_eq!(p.done(0), [(pending, flushed), (9, flushed)]);
    assert!(p.w.log.is_empty());
    let now = p.w.now;
    p.node(0).enter(qp, QpState::Reset, now);
    up(&mut p.w.nodes[0], qp, attr(QpState::Init), now);
    p.receive(1, 10, 64);
    let again = p.send(0, b"again");
    p.w.run();
    assert_eq!(p.done(0), [(again, WcStatus::Success)]);
    assert_eq!(p.done(1), [(10, WcStatus::Success)]);
}

#[test]
fn unsignalled_sends_give_their_slots_back() {
    let mut p = Pair::new();
    for round in 0..200u32 {
        let at = p.node(0).memory.alloc(8);
        let (mut wr, list) = p.wr(0, &[(at, 8)]);
        wr.signaled = round % 50 == 49;
        p.post(0, wr, &list);
        p.w.run();
    }
    assert_eq!(p.done(0).len(), 4);
    let qp = p.ids[0];
    assert_eq!(p.node(0).occupied(qp), 0);
}

#[test]
fn a_frame_held_back_by_hand_comes_late_and_whole() {
    let mut p = Pair::new();
    p.receive(1, 1, 64);
    p.receive(1, 2, 64);
    p.w.filter = Some(Box::new(|_, frame| match frame.payload[0] {
        b'a' => Verdict::Delay(Nanos::from_micros(50)),
        _ => Verdict::Pass,
    }));
    p.send(0, b"a first");
    p.send(0, b"b second");
    p.w.run();
    let lens: Vec<u32> =
        p.w.completions(1)
            .iter()
            .map(|c| c.byte_len - GRH)
            .collect();
    assert_eq!(lens, [8, 7], "order is not promised");
}
