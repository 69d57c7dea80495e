//! Rules of PSNs and acknowledgements that take both ends: which half of the PSN space a packet is in, what an
//! answer acknowledges, credits, and when there is none.

use roceline_engine::wire::{ExtHeaders, Opcode};
use roceline_engine::{AckPolicy, EngineConfig, Nanos};

use super::*;
use WcStatus::*;
use WrOpcode::{Read, Send, Write};

const ACK: u32 = 0x1f << 24;

/// A node 0 that is alone: whatever it sends is lost, and the test answers.
fn alone(attr: QpAttr) -> Bench {
    let mut b = Bench::with_attr(attr);
    b.filter(|_, _, _| Verdict::Drop);
    b
}

/// IBTA 9.7.1: the PSNs before the expected one are duplicates, those after it are ahead, half of the space each.
#[test]
fn half_of_the_psn_space_is_behind_and_half_is_ahead() {
    for first in [0x100, 0, 0xff_ffff, 0x7f_ffff] {
        let mut b = Bench::with_attr(QpAttr {
            rq_psn: Psn::new(first),
            ..no_timeout()
        });
        b.receive(0);
        b.inject(Opcode::RC_SEND_ONLY, first, 0, NO_HEADERS);
        let expected = first.wrapping_add(1);
        let mut want = (0, 0);
        for (distance, ahead) in [
            (1, true),
            (0x7f_ffff, true),
            (0x80_0000, false),
            (0x80_0001, false),
            (0xff_ffff, false),
        ] {
            let psn = (expected.wrapping_add(distance)) & 0xff_ffff;
            b.inject(Opcode::RC_SEND_ONLY, psn, 0, NO_HEADERS);
            want.0 += u64::from(ahead);
            want.1 += u64::from(!ahead);
            let c = *b.node(1).engine.counters();
            let got = (c.out_of_sequence, c.duplicate_request);
            assert_eq!(got, want, "{distance:#x} from {expected:#x}");
        }
    }
}

/// IBTA 9.7.5.1: an answer acknowledges everything before its PSN, whatever it is.
#[test]
fn every_answer_acknowledges_what_is_before_it() {
    let answers = [
        (Opcode::RC_ACK, ACK, Success),
        (Opcode::RC_ACK, 0x61 << 24, RemInvReqErr),
    ];
    for (opcode, aeth, status) in answers {
        let mut b = alone(no_timeout());
        for _ in 0..3 {
            b.post(Write, 8);
        }
        b.run();
        b.respond(opcode, 0x102, 0, aeth);
        assert_eq!(b.done(0), [(0, Success), (1, Success), (2, status)]);
    }
    // NAKs after which the rest is sent again: sequence error at once, RNR after its time.
    for syndrome in [0x60, 0x21] {
        let mut b = alone(no_timeout());
        for _ in 0..3 {
            b.post(Write, 8);
        }
        b.run();
        b.sent(0);
        b.respond(Opcode::RC_ACK, 0x102, 0, syndrome << 24);
        assert_eq!(b.done(0), [(0, Success), (1, Success)]);
        b.run();
        assert_eq!(short(&b.sent(0)), ["WRITE_ONLY 102"]);
    }
    // A READ's response.
    let mut b = alone(no_timeout());
    b.post(Write, 8);
    b.post(Write, 8);
    b.post(Read, 8);
    b.run();
    b.respond(Opcode::RC_READ_RESP_ONLY, 0x102, 8, ACK);
    b.run();
    assert_eq!(b.done(0), [(0, Success), (1, Success), (2, Success)]);
}

/// IBTA 9.7.7: end-to-end credits are optional; a requester may send without, and learns by RNR NAK.
#[test]
fn credits_are_sent_as_none_and_not_heeded() {
    let mut b = alone(no_timeout());
    b.post(Write, 8);
    b.run();
    // No credit beyond MSN 1.
    b.respond(Opcode::RC_ACK, 0x100, 0, 1);
    assert_eq!(b.done(0), [(0, Success)]);
    b.post(Send, 8);
    b.post(Send, 8);
    b.run();
    assert_eq!(b.sent(0).len(), 3);

    let mut b = Bench::new();
    b.receive(8);
    b.post(Send, 8);
    b.run();
    assert!(b.sent(1)[0].contains("syn=1f"));
}

/// IBTA 9.7.5.1: the packet with the A bit is answered; without it an answer may be left to a later one.
#[test]
fn packets_that_ask_for_no_ack_get_none_of_their_own() {
    for ack_policy in [AckPolicy::PerMessage, AckPolicy::Coalesced] {
        let mut b = Bench::with_config(EngineConfig {
            ack_policy,
            ..default_config(1)
        });
        let ext = b.reth(8);
        let now = b.w.now;
        for psn in 0x100..0x103 {
            let mut frame = b.frame(Opcode::RC_WRITE_ONLY, psn, 8, ext);
            frame.ack_req = psn == 0x102;
            b.w.inject(1, frame, now);
            while b.w.poll() {}
        }
        assert_eq!(b.sent(1), ["RC_ACK psn=102 pay=0 syn=1f msn=3"]);
    }
}

/// A duplicate that asks only now, before the first copy's data is placed, is answered once it is.
#[test]
fn a_duplicate_that_asks_for_an_ack_gets_it_when_the_data_is_there() {
    let mut b = Bench::new();
    b.node(1).memory_faults = crate::node::MemoryFaults::slow(1_000);
    let ext = b.reth(8);
    for ack_req in [false, true] {
        let mut frame = b.frame(Opcode::RC_WRITE_ONLY, 0x100, 8, ext);
        frame.ack_req = ack_req;
        let now = b.w.now;
        b.w.inject(1, frame, now);
        while b.w.poll() {}
        assert!(b.sent(1).is_empty());
    }
    b.run();
    assert_eq!(b.sent(1), ["RC_ACK psn=100 pay=0 syn=1f msn=1"]);
}

/// IBTA 9.7.6.1: progress starts the timer anew, so a long queue is no timeout.
#[test]
fn the_ack_timeout_starts_anew_with_progress() {
    let t = Nanos(4096 << 5);
    let mut b = alone(QpAttr {
        timeout: 5,
        ..default_attr()
    });
    for _ in 0..4 {
        b.post(Write, 8);
    }
    // Acknowledged one by one, each after three quarters of the timeout.
    for psn in 0x100..0x103 {
        b.w.run_for(Nanos(t.0 * 3 / 4));
        b.respond(Opcode::RC_ACK, psn, 0, ACK);
        assert_eq!(b.done(0).len(), 1);
    }
    assert_eq!(b.sent(0).len(), 4, "nothing twice");
    assert_eq!(b.node(0).engine.counters().local_ack_timeout_err, 0);
    b.w.run_for(Nanos(4 * t.0));
    assert!(b.node(0).engine.counters().local_ack_timeout_err >= 1);
    assert_eq!(short(&b.sent(0))[0], "WRITE_ONLY 103");
}

/// An RNR NAK neither uses up `retry_cnt` nor gives retries back: the responder is alive, and nothing has moved.
#[test]
fn rnr_naks_and_retry_cnt_leave_each_other_alone() {
    let mut b = Bench::with_attr(QpAttr {
        retry_cnt: 0,
        ..default_attr()
    });
    b.post(Send, 8);
    b.w.run_for(Nanos::from_micros(200));
    b.receive(8);
    b.run();
    assert_eq!(b.done(0), [(0, Success)]);
    assert!(b.node(0).engine.counters().rnr_nak_retry_err > 5);

    let mut b = alone(QpAttr {
        retry_cnt: 1,
        timeout: 5,
        ..default_attr()
    });
    b.post(Send, 8);
    b.w.run_for(Nanos::from_micros(150));
    assert_eq!(b.sent(0).len(), 2, "the one retry");
    b.respond(Opcode::RC_ACK, 0x100, 0, 0x21 << 24);
    b.run();
    assert_eq!(b.done(0), [(0, RetryExcErr)]);
    assert_eq!(b.sent(0).len(), 1, "after the RNR wait");
}

/// IBTA 9.7.5.1: a READ is repeated only while the responder still keeps it.
#[test]
fn a_duplicate_read_that_is_no_longer_kept_is_dropped() {
    let mut b = Bench::with_attr(no_timeout());
    let ext = b.reth(8);
    for psn in 0x100..0x111 {
        b.inject(Opcode::RC_READ_REQUEST, psn, 0, ext);
    }
    assert_eq!(b.sent(1).len(), 17);
    b.inject(Opcode::RC_READ_REQUEST, 0x100, 0, ext);
    assert!(b.sent(1).is_empty());
    b.inject(Opcode::RC_READ_REQUEST, 0x101, 0, ext);
    assert_eq!(short(&b.sent(1)), ["READ_RESP_ONLY 101"]);
}

/// Ghosts of an old connection with the same numbers: their PSNs are behind or ahead, and nothing of them is
/// delivered. Behind, they are not even answered, since nothing of this connection could be acknowledged.
#[test]
fn ghosts_of_an_earlier_connection_are_not_delivered() {
    let mut b = Bench::with_attr(no_timeout());
    b.receive(8);
    for psn in [0xf0, 0xff] {
        b.inject(Opcode::RC_SEND_ONLY, psn, 8, NO_HEADERS);
    }
    assert!(b.sent(1).is_empty());
    b.inject(Opcode::RC_SEND_ONLY, 0x5000, 8, NO_HEADERS);
    assert_eq!(short(&b.sent(1)), ["ACK 100"], "a NAK");
    assert!(b.done(1).is_empty());
    // Answers to what this connection never sent.
    b.respond(Opcode::RC_ACK, 0x5000, 0, ACK);
    b.respond(Opcode::RC_READ_RESP_ONLY, 0x5000, 8, ACK);
    b.post(Send, 8);
    b.run();
    assert_eq!(b.done(0), [(0, Success)]);
    assert_eq!(b.done(1), [(1000, Success)]);
}

/// IBTA 9.7.5.1: the MSN counts modulo 2^24, and retries do not count.
#[test]
fn msn_does_not_count_what_comes_twice() {
    let mut b = Bench::with_attr(no_timeout());
    let ext: ExtHeaders = b.reth(8);
    for psn in [0x100, 0x100, 0x101, 0x100, 0x101] {
        b.inject(Opcode::RC_WRITE_ONLY, psn, 8, ext);
    }
    let msns: Vec<String> = b
        .sent(1)
        .iter()
        .filter_map(|l| l.split("msn=").nth(1).map(String::from))
        .collect();
    assert_eq!(msns, ["1", "1", "2", "2", "2"]);
}
