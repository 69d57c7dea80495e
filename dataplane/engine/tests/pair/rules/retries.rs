//! Rules of what makes the requester send again, and give up.

use roceline_engine::wire::aeth::rnr_timer;
use roceline_engine::wire::{ExtHeaders, Opcode};
use roceline_engine::{Nanos, Outputs, Side, Waiting};

use super::*;
use crate::node::MemoryFaults;
use WcStatus::*;
use WrOpcode::{Read, Send, Write};

#[test]
fn retry_cnt_7_means_seven_resends() {
    for retry_cnt in [0, 1, 7] {
        let mut b = Bench::with_attr(QpAttr {
            retry_cnt,
            ..default_attr()
        });
        b.filter(|_, _, _| Verdict::Drop);
        b.post(Send, 64);
        b.post(Write, 64);
        b.run();
        let firsts = b.sent(0).iter().filter(|l| l.contains("SEND_ONLY")).count();
        assert_eq!(firsts, 1 + usize::from(retry_cnt));
        assert_eq!(b.done(0), [(0, RetryExcErr), (1, WrFlushErr)]);
        let c = *b.node(0).engine.counters();
        assert_eq!(c.local_ack_timeout_err, u64::from(retry_cnt));
        assert_eq!(c.req_transport_retries_exceeded, 1);
        assert_eq!(b.state(0), QpState::Err);
    }
}

/// IBTA 9.7.6.1: the timer expires between T and 4T.
#[test]
fn the_ack_timeout_expires_between_t_and_4t() {
    for timeout in [1, 5, 14, 20] {
        let mut b = Bench::with_attr(QpAttr {
            timeout,
            ..default_attr()
        });
        b.filter(|_, _, _| Verdict::Drop);
        b.post(Send, 64);
        b.run();
        let times = b.times(0);
        assert_eq!(times.len(), 8);
        let t = 4096u64 << timeout;
        for pair in times.windows(2) {
            let waited = pair[1].0 - pair[0].0;
            assert!(waited >= t && waited <= 4 * t, "{waited} of {t}");
        }
    }
}

#[test]
fn timeout_0_waits_for_ever() {
    let mut b = Bench::with_attr(no_timeout());
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Send, 64);
    b.run();
    assert_eq!(b.sent(0).len(), 1);
    assert!(b.node(0).engine.next_deadline().is_none());
}

#[test]
fn an_rnr_nak_waits_at_least_as_long_as_the_table_says() {
    for code in 0..32 {
        let mut b = Bench::with_attr(QpAttr {
            min_rnr_timer: code,
            ..default_attr()
        });
        b.post(Send, 64);
        b.w.run_for(Nanos::from_micros(5));
        let start = b.w.now;
        b.receive(64);
        b.run();
        let times = b.times(0);
        assert_eq!(times.len(), 2, "code {code}");
        let waited = times[1].0 - times[0].0;
        let want = rnr_timer(code).0;
        assert!(
            waited >= want && waited < want + 10_000,
            "code {code}: {waited} for {want}"
        );
        assert!(times[0] < start);
        assert_eq!(b.done(0), [(0, Success)]);
        assert_eq!(b.node(0).engine.counters().rnr_nak_retry_err, 1);
        assert_eq!(b.node(1).engine.counters().out_of_buffer, 1);
    }
}

#[test]
fn who_waits_for_the_receiver_says_so() {
    let mut b = Bench::with_attr(QpAttr {
        min_rnr_timer: 20,
        ..default_attr()
    });
    b.post(Send, 64);
    assert_eq!(b.node(0).engine.waiting(0), Some(Waiting::Turn));
    b.w.run_for(Nanos::from_micros(20));
    assert_eq!(b.node(0).engine.waiting(0), Some(Waiting::Receiver));
    b.receive(64);
    b.run();
    assert_eq!(b.node(0).engine.waiting(0), Some(Waiting::Program));
}

#[test]
fn rnr_retry_3_is_three() {
    for rnr_retry in [0, 3, 6] {
        let mut b = Bench::with_attr(QpAttr {
            rnr_retry,
            ..default_attr()
        });
        b.post(Send, 64);
        b.post(Send, 64);
        b.run();
        assert_eq!(b.done(0), [(0, RnrRetryExcErr), (1, WrFlushErr)]);
        let firsts = b.sent(0).iter().filter(|l| l.contains("psn=100")).count();
        assert_eq!(firsts, 1 + usize::from(rnr_retry));
        assert_eq!(b.node(0).engine.counters().req_rnr_retries_exceeded, 1);
    }
}

#[test]
fn rnr_retry_7_is_endless() {
    let mut b = Bench::with_attr(QpAttr {
        rnr_retry: 7,
        ..default_attr()
    });
    b.post(Send, 64);
    b.w.run_for(Nanos::from_millis(1));
    assert!(b.sent(0).len() > 50);
    b.receive(64);
    b.run();
    assert_eq!(b.done(0), [(0, Success)]);
}

#[test]
fn progress_gives_all_retries_back() {
    let mut b = Bench::with_attr(QpAttr {
        retry_cnt: 1,
        ..default_attr()
    });
    // Every message is lost once.
    let seen = Rc::new(Cell::new(0xff));
    b.filter(move |from, _, f| {
        let first = from == 0 && seen.replace(f.psn.get()) != f.psn.get();
        if first { Verdict::Drop } else { Verdict::Pass }
    });
    for i in 0..10 {
        b.post(Write, 8);
        b.run();
        assert_eq!(b.done(0), [(i, Success)]);
    }
}

#[test]
fn a_sequence_nak_is_answered_from_its_psn_at_once() {
    let mut b = Bench::new();
    b.lose(0, Opcode::RC_WRITE_MIDDLE, 0x102, 1);
    b.post(Write, 5 * 1024);
    b.run();
    let sent = short(&b.sent(0));
    assert_eq!(
        sent[5..],
        ["WRITE_MIDDLE 102", "WRITE_MIDDLE 103", "WRITE_LAST 104"]
    );
    let c = *b.node(0).engine.counters();
    assert_eq!((c.packet_seq_err, c.local_ack_timeout_err), (1, 0));
    assert_eq!(b.done(0), [(0, Success)]);
}

#[test]
fn a_lost_read_response_is_missed_at_once_and_the_rest_asked_for_again() {
    let mut b = Bench::new();
    b.lose(1, Opcode::RC_READ_RESP_MIDDLE, 0x102, 1);
    let (wr, list) = b.wr(Read, 5001);
    b.post_wr(wr, &list);
    b.run();
    assert_eq!(b.done(0), [(0, Success)]);
    let requests: Vec<ExtHeaders> =
        b.w.log
            .iter()
            .filter(|l| l.0 == 0)
            .map(|l| l.2.ext)
            .collect();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[1].va, wr.remote_addr + 2 * 1024);
    assert_eq!(requests[1].dma_len, 5001 - 2 * 1024);
    assert_eq!(short(&b.sent(0)), ["READ_REQUEST 100", "READ_REQUEST 102"]);
    let again = short(&b.sent(1));
    assert_eq!(
        again[5..],
        [
            "READ_RESP_FIRST 102",
            "READ_RESP_MIDDLE 103",
            "READ_RESP_LAST 104"
        ]
    );
    let c = *b.node(0).engine.counters();
    assert_eq!((c.implied_nak_seq_err, c.local_ack_timeout_err), (1, 0));
}

#[test]
fn an_ack_beyond_a_read_without_its_responses_is_an_implied_nak() {
    let mut b = Bench::new();
    b.lose(1, Opcode::RC_READ_RESP_ONLY, 0x100, 1);
    b.post(Read, 8);
    b.post(Write, 8);
    b.run();
    assert_eq!(b.done(0), [(0, Success), (1, Success)]);
    let sent = short(&b.sent(0));
    assert_eq!(
        sent,
        [
            "READ_REQUEST 100",
            "WRITE_ONLY 101",
            "READ_REQUEST 100",
            "WRITE_ONLY 101"
        ]
    );
    assert_eq!(b.node(0).engine.counters().implied_nak_seq_err, 1);
    assert_eq!(b.node(0).engine.counters().local_ack_timeout_err, 0);
}

#[test]
fn each_gap_in_read_responses_is_answered_at_once() {
    let mut b = Bench::new();
    // Of each answer one response is lost, each time another.
    let mut requests = 0;
    b.filter(move |from, _, f| {
        requests += u32::from(from == 0);
        let lost = from == 1 && f.psn.get() == 0xff + 2 * requests;
        if lost { Verdict::Drop } else { Verdict::Pass }
    });
    b.post(Read, 8 * 1024);
    b.run();
    assert_eq!(b.done(0), [(0, Success)]);
    let c = *b.node(0).engine.counters();
    assert_eq!(
        (c.implied_nak_seq_err, c.local_ack_timeout_err),
        (3, 1),
        "nothing follows the last"
    );
}

/// Packets may still be in this NIC, so silence says nothing of the peer.
#[test]
fn while_paused_nothing_is_sent_and_no_retry_used_up() {
    let mut b = Bench::new();
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Write, 64);
    while b.w.poll() {}
    let qp = b.ids[0];
    b.node(0).engine.pause_tx(qp, true);
    b.w.run_for(Nanos::from_millis(50));
    assert_eq!(b.sent(0).len(), 1);
    assert_eq!(b.node(0).engine.counters().local_ack_timeout_err, 0);
    b.w.filter = None;
    b.node(0).engine.pause_tx(qp, false);
    b.run();
    assert_eq!(b.done(0), [(0, Success)]);
}

#[test]
fn waiting_packets_of_a_failed_qp_are_no_longer_to_be_sent() {
    let mut b = Bench::new();
    let (qp, now) = (b.ids[0], b.w.now);
    let (wr, list) = b.wr(Write, 64);
    let engine = &mut b.node(0).engine;
    let mut out = Outputs::new();
    engine.post_send(qp, &wr, &list).expect("room");
    engine.tx(1, now, &mut out);
    let epoch = out.tx[0].epoch;
    assert!(engine.is_current(qp, epoch, Side::Requester));
    engine.fail_qp(qp, now, &mut out);
    assert!(!engine.is_current(qp, epoch, Side::Requester));
    assert!(
        engine.is_current(qp, epoch, Side::Responder),
        "a NAK is still to be heard"
    );
    let attr = QpAttr {
        state: QpState::Reset,
        ..QpAttr::default()
    };
    engine
        .modify_qp(qp, &attr, mask::STATE, now, &mut out)
        .expect("allowed");
    assert!(!engine.is_current(qp, epoch, Side::Responder));
}

/// The refused request completes when the READ before it has been placed; until then nothing new is sent.
#[test]
fn nothing_behind_a_refused_request_is_sent_while_it_waits_for_its_turn() {
    let mut b = Bench::with_attr(no_timeout());
    b.filter(|_, _, _| Verdict::Drop);
    b.node(0).memory_faults = MemoryFaults::slow(1_000);
    b.post(Read, 64);
    b.post(Write, 0);
    b.post(Write, 0);
    while b.w.poll() {}
    assert_eq!(b.sent(0).len(), 3);
    b.respond(Opcode::RC_READ_RESP_ONLY, 0x100, 64, 0x1f << 24);
    b.respond(Opcode::RC_ACK, 0x101, 0, 0x61 << 24);
    assert!(b.done(0).is_empty(), "the READ is being placed");
    b.post(Write, 0);
    b.run();
    assert_eq!(
        b.done(0),
        [
            (0, Success),
            (1, RemInvReqErr),
            (2, WrFlushErr),
            (3, WrFlushErr)
        ]
    );
    assert!(b.sent(0).is_empty());
}
