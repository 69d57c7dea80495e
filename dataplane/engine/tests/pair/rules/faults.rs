//! Each row of the table of faults, brought about: what it says of both ends is what they show.

use roceline_engine::Counters;
use roceline_engine::memory::Access;
use roceline_engine::verbs::*;

use super::*;
use crate::node::MemoryFaults;
use WcStatus::*;
use WrOpcode::{Read, Send, Write};

const UNREACHABLE: MemoryFaults = MemoryFaults {
    pending: 0,
    pending_ns: 0,
    fault: 1000,
};

/// A pair in which the first request of node 0 has met the fault, or is about to.
fn meet(fault: Fault) -> Bench {
    match fault {
        Fault::BadRequest => {
            let mut b = Bench::new();
            let (wr, list) = b.wr(Write, 8);
            b.post_wr(SendWr { opcode: None, ..wr }, &list);
            b
        }
        Fault::NoReadCredits => {
            let mut b = Bench::with_attr(QpAttr {
                max_rd_atomic: 0,
                ..default_attr()
            });
            b.post(Read, 8);
            b
        }
        Fault::WindowBind | Fault::LocalInvalidate => {
            let mut b = Bench::new();
            let (wr, _) = b.wr(Write, 8);
            let op = match fault {
                Fault::WindowBind => WrOpcode::BindMw,
                _ => WrOpcode::LocalInv,
            };
            b.post_wr(
                SendWr {
                    opcode: Some(op),
                    ..wr
                },
                &[],
            );
            b
        }
        Fault::RemoteInvalidate => {
            let mut b = Bench::new();
            b.receive(8);
            b.post(WrOpcode::SendInv, 8);
            b
        }
        Fault::TooLong => {
            let mut b = Bench::new();
            let (mut wr, list) = b.wr(Write, 8);
            let half = Sge {
                length: 1 << 30,
                ..list[0]
            };
            let more = Sge {
                length: half.length + 1,
                ..half
            };
            wr.num_sge = 2;
            b.post_wr(wr, &[half, more]);
            b
        }
        Fault::LocalKey => {
            let mut b = Bench::new();
            let (wr, mut list) = b.wr(Write, 8);
            list[0].lkey ^= 0x100;
            b.post_wr(wr, &list);
            b
        }
        Fault::LocalMemory => {
            let mut b = Bench::new();
            b.node(0).memory_faults = UNREACHABLE;
            b.post(Write, 8);
            b
        }
        Fault::RetriesExceeded => {
            let mut b = Bench::new();
            b.filter(|from, _, _| match from {
                0 => Verdict::Drop,
                _ => Verdict::Pass,
            });
            b.post(Write, 8);
            b
        }
        Fault::RnrExceeded => {
            let mut b = Bench::with_attr(QpAttr {
                rnr_retry: 1,
                ..default_attr()
            });
            b.post(Send, 8);
            b
        }
        Fault::InvalidRequest => {
            let mut b = Bench::with_attr(QpAttr {
                access: Access(0),
                ..default_attr()
            });
            b.post(Write, 8);
            b
        }
        Fault::RemoteAccess => {
            let mut b = Bench::new();
            let (mut wr, list) = b.wr(Write, 8);
            wr.rkey ^= 0x100;
            b.post_wr(wr, &list);
            b
        }
        Fault::SendTooLong => {
            let mut b = Bench::new();
            b.receive(7);
            b.post(Send, 8);
            b
        }
        Fault::ReceiveKey => {
            let mut b = Bench::new();
            let (at, lkey) = (b.node(1).memory.alloc(8), b.node(1).mr.lkey);
            b.receive_at(&sges(&[(at, 8)], lkey ^ 0x100));
            b.post(Send, 8);
            b
        }
        Fault::ReceiveEntries => {
            let mut b = Bench::new();
            let (at, lkey) = (b.node(1).memory.alloc(8), b.node(1).mr.lkey);
            b.receive_at(&sges(&[(at, 8)], lkey));
            let qp = b.ids[1];
            let posted = b.node(1).queues.0.get_mut(&qp).and_then(|q| q.back_mut());
            posted.expect("posted just now").num_sge = MAX_SGE as u32 + 1;
            b.post(Send, 8);
            b
        }
        Fault::ReceiveMemory => {
            let mut b = Bench::new();
            b.node(1).memory_faults = UNREACHABLE;
            b.receive(8);
            b.post(Send, 8);
            b
        }
        Fault::TargetMemory => {
            let mut b = Bench::new();
            b.node(1).memory_faults = UNREACHABLE;
            b.post(Write, 8);
            b
        }
        Fault::CqOverflow | Fault::Flushed => {
            let mut b = Bench::with_attr(no_timeout());
            b.filter(|_, _, _| Verdict::Drop);
            b.post(Write, 8);
            b
        }
    }
}

/// Counters of faults: those of packets, messages and retries move, too.
fn faults(counters: &Counters) -> Vec<(String, u64)> {
    let mut some: Vec<_> = counters
        .iter()
        .filter(|(name, n)| *n > 0 && (name.starts_with("req_") || name.starts_with("resp_")))
        .map(|(name, n)| (name.to_string(), n))
        .collect();
    some.sort();
    some
}

/// What one end counts: its faulty completion, what was flushed, and the cause's own counter.
fn counted(
    side: &str,
    status: Option<WcStatus>,
    flushed: usize,
    own: Option<&'static str>,
) -> Vec<(String, u64)> {
    let mut all: Vec<(String, u64)> = own.map(|name| (name.into(), 1)).into_iter().collect();
    if status.is_some_and(|s| s != WrFlushErr) {
        all.push((format!("{side}_cqe_error"), 1));
    }
    if flushed > 0 {
        all.push((format!("{side}_cqe_flush_error"), flushed as u64));
    }
    all.sort();
    all
}

fn check(row: &FaultRow) {
    let context = format!("{:?}", row.fault);
    let mut b = meet(row.fault);
    let first = b.wr(Write, 8).0.wr_id - 1;
    // Behind it: two requests, and at the responder a receive request that nothing comes for.
    let (wr, list) = b.wr(Write, 8);
    let behind = [b.post_wr(wr, &list), b.post(Write, 8)];
    let in_progress = row.receive.filter(|_| row.nak.is_some());
    if row.fault != Fault::RnrExceeded {
        b.receive(64);
    }
    let idle_receives = usize::from(row.fault != Fault::RnrExceeded);
    match row.fault {
        Fault::CqOverflow => {
            let (qp, now) = (b.ids[0], b.w.now);
            let mut out = roceline_engine::Outputs::new();
            b.node(0).engine.fail_qp(qp, now, &mut out);
            let told = [Event::Async {
                qp,
                kind: AsyncKind::QpFatal,
            }];
            assert_eq!(out.events, told, "{context}");
        }
        Fault::Flushed => b.enter(0, QpState::Err),
        _ => {}
    }
    b.run();

    // Completions: the faulty one, then what was behind it, in order and once.
    let status = row.requester.unwrap_or(WrFlushErr);
    let [second, third] = behind;
    let sends = [(first, status), (second, WrFlushErr), (third, WrFlushErr)];
    assert_eq!(b.done(0), sends, "{context}");
    let mut receives = Vec::new();
    let mut number = 1000;
    if let Some(status) = in_progress {
        receives.push((number, status));
        number += 1;
    }
    if row.responder_fails {
        receives.push((number, WrFlushErr));
    }
    assert_eq!(b.done(1), receives, "{context}");

    // States and events. A QP that overflowed told of it above.
    let state = |fails| if fails { QpState::Err } else { QpState::Rts };
    assert_eq!(b.state(0), state(row.requester_fails), "{context}");
    assert_eq!(b.state(1), state(row.responder_fails), "{context}");
    let event: Vec<_> = row.event.into_iter().collect();
    let (own, peers) = match (row.nak, row.fault) {
        (Some(_), _) => (vec![], event),
        (None, Fault::CqOverflow) => (vec![], vec![]),
        (None, _) => (event, vec![]),
    };
    assert_eq!((b.events(0), b.events(1)), (own, peers), "{context}");

    // On the wire.
    let local = row.nak.is_none() && row.requester_fails;
    let asked = b.sent(0);
    let answers = b.sent(1);
    match row.nak {
        Some(nak) => {
            let syndrome = format!("syn={:x}", 0x60 | nak as u8);
            assert!(
                answers.last().is_some_and(|l| l.contains(&syndrome)),
                "{context}: {answers:?}"
            );
        }
        None => assert!(
            answers.iter().all(|l| !l.contains("syn=6")),
            "{context}: {answers:?}"
        ),
    }
    let found_by_requester = matches!(
        row.fault,
        Fault::BadRequest
            | Fault::NoReadCredits
            | Fault::WindowBind
            | Fault::LocalInvalidate
            | Fault::TooLong
            | Fault::LocalKey
            | Fault::LocalMemory
    );
    assert!(local || !found_by_requester);
    assert!(
        !found_by_requester || asked.is_empty(),
        "{context} reached the peer: {asked:?}"
    );

    // Counters.
    let flushed = 2 + usize::from(status == WrFlushErr);
    let want = counted("req", Some(status), flushed, row.requester_counts);
    assert_eq!(faults(b.node(0).engine.counters()), want, "{context}");
    let flushed = if row.responder_fails {
        idle_receives
    } else {
        0
    };
    let want = counted("resp", in_progress, flushed, row.responder_counts);
    assert_eq!(faults(b.node(1).engine.counters()), want, "{context}");
}

#[test]
fn every_fault_shows_at_both_ends_what_its_row_says() {
    FAULTS.iter().for_each(check);
}
