//! Rules of `retransmission = "adaptive"`; `docs/conformance.md` has them with their sources.

use roceline_engine::wire::Opcode;
use roceline_engine::{EngineConfig, Nanos, Retransmission};

use super::*;
use WcStatus::*;
use WrOpcode::{Read, Send, Write};

/// Local ACK timeout codes: 2 ms, which is the first wait, 67 ms, 1.07 s.
const T_2MS: u8 = 9;
const T_67MS: u8 = 14;
const T_1S: u8 = 18;

fn adaptive(timeout: u8, retry_cnt: u8) -> Bench {
    let config = EngineConfig {
        retransmission: Retransmission::Adaptive,
        ..default_config(1)
    };
    let attr = QpAttr {
        timeout,
        retry_cnt,
        ..default_attr()
    };
    Bench::with(config, &attr, &default_init())
}

fn t(code: u8) -> u64 {
    4096 << code
}

/// What lies between the frames of node 0, in ACK timeouts of code 9 (2.1 ms).
fn waits(b: &mut Bench) -> Vec<u64> {
    let times = b.times(0);
    times
        .windows(2)
        .map(|pair| (pair[1].0 - pair[0].0 + t(T_2MS) / 2) / t(T_2MS))
        .collect()
}

/// linux-rdma/perftest issue 251: `-u 18`, 40 ms of delay in the network, and requests that went out again after
/// 2, 4, 8 and 16 ms.
#[test]
fn waits_double_from_2_ms_whatever_the_timeout_says() {
    let mut b = adaptive(T_1S, 7);
    b.filter(|_, _, _| Verdict::Delay(Nanos::from_millis(20)));
    b.post(Read, 64);
    b.w.run_for(Nanos::from_millis(42));
    assert_eq!(waits(&mut b), [1, 2, 4, 8]);
    b.run();
    assert_eq!(b.done(0), [(0, Success)]);
    let c = *b.node(0).engine.counters();
    assert_eq!((c.roce_adp_retrans, c.local_ack_timeout_err), (4, 0));
    assert_eq!(c.roce_adp_retrans_to, 0);
}

#[test]
fn the_ack_timeout_caps_the_waits_and_its_retries_are_counted_apart() {
    let mut b = adaptive(T_67MS, 7);
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Send, 64);
    b.w.run_for(Nanos::from_millis(300));
    assert_eq!(waits(&mut b), [1, 2, 4, 8, 16, 32, 32, 32]);
    let c = *b.node(0).engine.counters();
    assert_eq!((c.roce_adp_retrans, c.local_ack_timeout_err), (5, 3));
}

/// NVIDIA: the QP fails when there was no progress for its ACK timeout times its retry count; what `retry_cnt` counts is
/// time, so far more than seven retries may fit.
#[test]
fn the_qp_fails_after_retry_cnt_ack_timeouts_without_progress() {
    for (timeout, retry_cnt, retries) in [
        (T_67MS, 7, 11),
        (T_67MS, 1, 5),
        (T_67MS, 0, 5),
        (T_1S, 1, 9),
    ] {
        let mut b = adaptive(timeout, retry_cnt);
        b.filter(|_, _, _| Verdict::Drop);
        let start = b.w.now;
        b.post(Send, 64);
        b.post(Write, 64);
        b.run();
        assert_eq!(b.done(0), [(0, RetryExcErr), (1, WrFlushErr)]);
        let total = t(timeout) * u64::from(retry_cnt.max(1));
        let took = b.w.now.0 - start.0;
        assert!(
            took >= total && took <= total + t(timeout) + 1_000_000,
            "{took} of {total}"
        );
        let c = *b.node(0).engine.counters();
        assert_eq!(c.roce_adp_retrans + c.local_ack_timeout_err, retries);
        assert_eq!(
            (c.roce_adp_retrans_to, c.req_transport_retries_exceeded),
            (1, 1)
        );
    }
}

#[test]
fn progress_goes_back_to_the_first_wait() {
    let mut b = adaptive(T_1S, 7);
    // Three copies of each request are lost.
    let lost = Rc::new(Cell::new((0, 0)));
    b.filter(move |from, _, f| {
        if from == 1 {
            return Verdict::Pass;
        }
        let (psn, n) = lost.get();
        let n = if psn == f.psn.get() { n + 1 } else { 1 };
        lost.set((f.psn.get(), n));
        if n <= 3 { Verdict::Drop } else { Verdict::Pass }
    });
    for _ in 0..2 {
        b.post(Write, 8);
        b.run();
        assert_eq!(waits(&mut b), [1, 2, 4]);
        b.sent(0);
    }
    assert_eq!(b.done(0), [(0, Success), (1, Success)]);
    assert_eq!(b.node(0).engine.counters().roce_adp_retrans, 6);
}

#[test]
fn a_short_ack_timeout_is_the_only_wait() {
    let mut b = adaptive(5, 7);
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Send, 64);
    b.run();
    for pair in b.times(0).windows(2) {
        let waited = pair[1].0 - pair[0].0;
        assert!(waited >= t(5) && waited <= 4 * t(5));
    }
    let c = *b.node(0).engine.counters();
    assert_eq!((c.roce_adp_retrans, c.local_ack_timeout_err), (0, 6));
    assert_eq!(b.done(0), [(0, RetryExcErr)]);
}

#[test]
fn timeout_0_waits_for_ever_here_too() {
    let mut b = adaptive(0, 7);
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Send, 64);
    b.run();
    assert_eq!(b.sent(0).len(), 1);
}

/// NAKs, implied ones too, are counted by `retry_cnt` as ever and answered at once.
#[test]
fn naks_are_answered_at_once_and_use_up_retry_cnt() {
    let mut b = adaptive(T_1S, 1);
    b.lose(0, Opcode::RC_WRITE_MIDDLE, 0x101, 1);
    b.post(Write, 3 * 1024);
    let start = b.w.now;
    b.run();
    assert_eq!(b.done(0), [(0, Success)]);
    let c = *b.node(0).engine.counters();
    assert_eq!((c.packet_seq_err, c.roce_adp_retrans), (1, 0));
    let took = b.log_end() - start.0;
    assert!(took < 1_000_000, "{took}");

    let mut b = adaptive(T_1S, 1);
    b.lose(0, Opcode::RC_WRITE_MIDDLE, 0x101, 2);
    b.post(Write, 3 * 1024);
    b.run();
    assert_eq!(b.done(0), [(0, Success)]);
    let c = *b.node(0).engine.counters();
    assert_eq!(
        (c.packet_seq_err, c.roce_adp_retrans),
        (1, 1),
        "one NAK per gap"
    );
}

/// Time in which the peer asks to wait, or in which our own program's memory holds packets back, is not time in vain.
#[test]
fn only_waits_for_acknowledgements_are_counted() {
    // A first loss, then RNR NAKs for far longer than T, then another loss.
    let mut b = adaptive(T_67MS, 1);
    let lose = Rc::new(Cell::new(true));
    let lost = lose.clone();
    b.filter(move |from, _, _| {
        if from == 0 && lost.replace(false) {
            return Verdict::Drop;
        }
        Verdict::Pass
    });
    b.post(Send, 64);
    b.w.run_for(Nanos(4 * t(T_67MS)));
    assert!(b.node(0).engine.counters().rnr_nak_retry_err > 3);
    lose.set(true);
    b.w.run_for(Nanos(t(T_67MS) / 2));
    assert!(!lose.get());
    b.receive(64);
    b.run();
    assert_eq!(b.done(0), [(0, Success)]);
    let c = *b.node(0).engine.counters();
    assert_eq!((c.roce_adp_retrans, c.roce_adp_retrans_to), (2, 0));

    // A first loss, then a long pause, then another loss.
    let mut b = adaptive(T_67MS, 1);
    let losses = Cell::new(2);
    b.filter(move |_, _, _| {
        if losses.get() > 0 {
            losses.set(losses.get() - 1);
            return Verdict::Drop;
        }
        Verdict::Pass
    });
    b.post(Write, 64);
    b.w.run_for(Nanos(t(T_2MS) / 2));
    let qp = b.ids[0];
    b.w.run_for(Nanos(t(T_2MS)));
    assert_eq!(b.sent(0).len(), 2);
    b.node(0).engine.pause_tx(qp, true);
    b.w.run_for(Nanos(4 * t(T_67MS)));
    b.node(0).engine.pause_tx(qp, false);
    b.run();
    assert_eq!(b.done(0), [(0, Success)]);
}
