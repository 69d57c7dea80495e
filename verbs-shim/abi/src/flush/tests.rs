use std::vec;
use std::vec::Vec;

use super::*;
use crate::layout::{ARM_NEXT, MAX_CQS, MAX_QPS};
use crate::objects::{CQ_LIMIT, QP_LIMIT};
use crate::queue::{Q_PUBLISHED, Q_RETIRED};

/// Queues behind the floor, each on a page of its own.
const PAGES: u64 = 8;
const BYTES: u64 = QUEUE_FLOOR + PAGES * 4096;

/// Memory that stands for a mapped file.
struct File(Vec<u64>);

impl File {
    fn new() -> File {
        File(vec![0; BYTES as usize / 8])
    }

    fn view(&mut self) -> View<'_> {
        let base = core::ptr::NonNull::new(self.0.as_mut_ptr().cast()).unwrap();
        // SAFETY: the vector lives as long as the view and is not used meanwhile. It is aligned to 8 bytes, which is all
        // that the accesses need.
        unsafe { View::new(base, BYTES) }
    }
}

fn place(page: u64, log2_elem: u32, mask: u32) -> Place {
    Place {
        offset: QUEUE_FLOOR + page * 4096,
        log2_elem,
        mask,
    }
}

const SQ: u64 = 0;
const RQ: u64 = 1;
const SCQ: u64 = 2;
const RCQ: u64 = 3;

/// One QP with room for 7 requests each way and CQs of 15 on channel 9.
fn one_qp(view: &View<'_>) {
    for (handle, page) in [(4, SCQ), (5, RCQ)] {
        let cq = CqRecord {
            channel: 9,
            user_handle: 0x700 + u64::from(handle),
            queue: place(page, 6, 15),
        };
        cq.publish(view, handle);
        assert_eq!(CqRecord::read(view, handle), Some(cq));
    }
    let qp = QpRecord {
        qpn: 0x1234,
        send_cq: 4,
        recv_cq: 5,
        sq: place(SQ, 8, 7),
        rq: place(RQ, 6, 7),
    };
    qp.publish(view, 3);
    assert_eq!(QpRecord::read(view, 3), Some(qp));
}

fn set32(view: &View<'_>, page: u64, at: u64, value: u32) {
    let at = QUEUE_FLOOR + page * 4096 + at;
    view.u32(at).unwrap().store(value, Ordering::Relaxed);
}

fn get32(view: &View<'_>, page: u64, at: u64) -> u32 {
    let at = QUEUE_FLOOR + page * 4096 + at;
    view.u32(at).unwrap().load(Ordering::Relaxed)
}

fn get64(view: &View<'_>, page: u64, at: u64) -> u64 {
    let at = QUEUE_FLOOR + page * 4096 + at;
    view.u64(at).unwrap().load(Ordering::Relaxed)
}

/// Posts requests `ids` to the send or the receive queue.
fn post(view: &View<'_>, page: u64, log2: u32, ids: core::ops::Range<u64>) {
    for id in ids {
        let producer = get32(view, page, Q_PRODUCER);
        let slot = QUEUE_FLOOR + page * 4096 + Q_DATA + (u64::from(producer) << log2);
        view.u64(slot).unwrap().store(id, Ordering::Relaxed);
        // An RDMA READ where it is a send request.
        view.u64(slot + 8)
            .unwrap()
            .store(4 << 32, Ordering::Relaxed);
        set32(view, page, Q_PRODUCER, (producer + 1) & 7);
    }
}

/// (wr_id, status, opcode, qp_num) of what the program finds when it polls until the queue is empty.
fn poll(view: &View<'_>, page: u64) -> Vec<(u64, u32, u32, u32)> {
    let mut found = Vec::new();
    let mut consumer = get32(view, page, Q_CONSUMER);
    while consumer != get32(view, page, Q_PRODUCER) {
        let slot = Q_DATA + (u64::from(consumer) << 6);
        found.push((
            get64(view, page, slot),
            get32(view, page, slot + 8),
            get32(view, page, slot + 12),
            get32(view, page, slot + 28),
        ));
        consumer = (consumer + 1) & 15;
        set32(view, page, Q_CONSUMER, consumer);
    }
    found
}

fn quiet(view: &View<'_>) -> Pass {
    pass(view, false, &mut |_, _| panic!("no event is wanted")).unwrap()
}

#[test]
fn what_is_posted_is_flushed_in_order() {
    let mut file = File::new();
    let view = file.view();
    one_qp(&view);
    post(&view, SQ, 8, 10..13);
    post(&view, RQ, 6, 20..25);
    assert_eq!(
        quiet(&view),
        Pass {
            flushed: 8,
            cut: false
        }
    );
    let sends: Vec<_> = (10..13).map(|id| (id, 5, 2, 0x1234)).collect();
    let recvs: Vec<_> = (20..25).map(|id| (id, 5, 128, 0x1234)).collect();
    assert_eq!(poll(&view, SCQ), sends);
    assert_eq!(poll(&view, RCQ), recvs);
    // Nothing twice; what is posted later comes later, also around the end of the ring.
    assert_eq!(quiet(&view).flushed, 0);
    post(&view, SQ, 8, 13..20);
    assert_eq!(quiet(&view).flushed, 7);
    assert_eq!(poll(&view, SCQ).len(), 7);
    assert_eq!(get32(&view, SQ, Q_RETIRED), 10);
    assert_eq!(get32(&view, SCQ, Q_PUBLISHED), 10);
}

/// The daemon's steps for signaled send completions that it publishes at once, up to `steps` of them: element and number of
/// each, consumer, producer.
fn daemon_completes(view: &View<'_>, ids: core::ops::Range<u64>, steps: usize) {
    let producer = get32(view, SCQ, Q_PRODUCER);
    let published = get32(view, SCQ, Q_PUBLISHED);
    let (tail, retired) = (get32(view, SQ, Q_CONSUMER), get32(view, SQ, Q_RETIRED));
    let count = (ids.end - ids.start) as u32;
    let put = |page: u64, at: u64, word: u64| {
        let at = QUEUE_FLOOR + page * 4096 + at;
        view.u64(at).unwrap().store(word, Ordering::Relaxed);
    };
    let word = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let mut left = steps;
    let mut step = |what: &dyn Fn()| {
        if left > 0 {
            what();
            left -= 1;
        }
    };
    for (n, id) in (1..).zip(ids) {
        let slot = Q_DATA + (u64::from((producer + n - 1) & 15) << 6);
        let origin = Origin {
            qp: 3,
            recv: false,
            retired: retired + n,
        };
        assert_eq!(Origin::from_word(origin.to_word()), origin);
        step(&|| {
            put(SCQ, slot, id);
            put(SCQ, slot + 8, 0);
            put(SCQ, slot + CQE_ORIGIN, origin.to_word());
        });
        step(&|| put(SCQ, slot + CQE_NUMBER, (published + n).into()));
    }
    step(&|| put(SQ, Q_CONSUMER, word((tail + count) & 7, retired + count)));
    step(&|| {
        put(
            SCQ,
            Q_PRODUCER,
            word((producer + count) & 15, published + count),
        )
    });
}

/// Wherever in its completions the daemon dies, each request completes exactly once: as it did, or with a flush error.
#[test]
fn a_death_between_any_two_stores_loses_and_doubles_nothing() {
    let cases = (1..=3usize).flat_map(|n| (0..=2 * n + 2).map(move |steps| (n, steps)));
    for (count, steps) in cases {
        // On every lap of both rings, so that leftovers of earlier ones lie about.
        for before in 0..40 {
            let mut file = File::new();
            let view = file.view();
            one_qp(&view);
            let mut seen = Vec::new();
            for id in 0..before {
                post(&view, SQ, 8, id..id + 1);
                daemon_completes(&view, id..id + 1, 4);
                seen.extend(poll(&view, SCQ));
            }
            post(&view, SQ, 8, before..before + 4);
            daemon_completes(&view, before..before + count as u64, steps);
            quiet(&view);
            quiet(&view);
            seen.extend(poll(&view, SCQ));
            let ids: Vec<u64> = seen.iter().map(|c| c.0).collect();
            let all: Vec<u64> = (0..before + 4).collect();
            assert_eq!(ids, all, "after {before} completions and {steps} stores");
            let flushed = seen.iter().filter(|c| c.1 == WR_FLUSH_ERR).count();
            assert_eq!(flushed, 4 - (steps / 2).min(count));
        }
    }
}

/// What was written and not published is said a part at a time where there is little time.
#[test]
fn many_completions_of_a_dead_daemon_are_said_in_parts() {
    let mut file = File::new();
    let view = file.view();
    one_qp(&view);
    post(&view, SQ, 8, 0..6);
    daemon_completes(&view, 0..6, 12);
    let mut round = Round::default();
    let mut calls = 1;
    while !part(&view, &mut round, false, &mut 3, &mut |_, _| true).unwrap() {
        calls += 1;
        assert!(calls < 100, "no end");
    }
    let seen: Vec<_> = poll(&view, SCQ).iter().map(|c| (c.0, c.1)).collect();
    let all: Vec<(u64, u32)> = (0..6).map(|id| (id, 0)).collect();
    assert_eq!(seen, all);
}

#[test]
fn what_finds_no_room_in_the_cq_waits_for_the_program() {
    let mut file = File::new();
    let view = file.view();
    one_qp(&view);
    // A CQ of three.
    CqRecord {
        channel: NO_CHANNEL,
        user_handle: 0,
        queue: place(SCQ, 6, 3),
    }
    .publish(&view, 4);
    post(&view, SQ, 8, 0..7);
    assert_eq!(quiet(&view).flushed, 3);
    assert_eq!(quiet(&view).flushed, 0);
    set32(&view, SCQ, Q_CONSUMER, 2);
    assert_eq!(quiet(&view).flushed, 2);
    assert_eq!(get32(&view, SQ, Q_CONSUMER), 5);
}

#[test]
fn events_go_to_armed_queues_once_and_are_tried_again_when_the_pipe_is_full() {
    let mut file = File::new();
    let view = file.view();
    one_qp(&view);
    post(&view, SQ, 8, 0..3);
    let arm = view.u32(ARM_OFFSET + 4 * 4).unwrap();
    arm.store(ARM_NEXT, Ordering::Relaxed);
    let mut events = Vec::new();
    pass(&view, false, &mut |_, _| false).unwrap();
    assert_eq!(arm.load(Ordering::Relaxed), ARM_NEXT);
    let mut note = |channel, handle| {
        events.push((channel, handle));
        true
    };
    post(&view, SQ, 8, 3..5);
    pass(&view, false, &mut note).unwrap();
    pass(&view, false, &mut note).unwrap();
    // The first pass after the death wakes everybody.
    pass(&view, true, &mut note).unwrap();
    assert_eq!(events, [(9, 0x704), (9, 0x704), (9, 0x705)]);
    assert_eq!(arm.load(Ordering::Relaxed), ARM_NONE);
}

#[test]
fn one_at_a_time_until_the_lock_is_broken() {
    let mut file = File::new();
    let view = file.view();
    view.u32(END_LOCK).unwrap().store(1, Ordering::Relaxed);
    assert_eq!(pass(&view, false, &mut |_, _| true), None);
    break_lock(&view);
    assert!(pass(&view, false, &mut |_, _| true).is_some());
}

/// Whatever stands in records and queues, a pass ends and stays in the file.
#[test]
fn hostile_records_and_indices_are_harmless() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        // xorshift64*.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    };
    let mut file = File::new();
    let view = file.view();
    view.u32(QP_LIMIT)
        .unwrap()
        .store(u32::MAX, Ordering::Relaxed);
    view.u32(CQ_LIMIT)
        .unwrap()
        .store(u32::MAX, Ordering::Relaxed);
    assert_eq!(QpRecord::limit(&view), MAX_QPS as u32);
    assert_eq!(CqRecord::limit(&view), MAX_CQS as u32);
    let mut flushed = 0u64;
    for round in 0..300u32 {
        view.u32(QP_LIMIT).unwrap().store(16, Ordering::Relaxed);
        view.u32(CQ_LIMIT).unwrap().store(16, Ordering::Relaxed);
        for page in 0..PAGES {
            for at in [Q_PRODUCER, Q_CONSUMER, Q_DATA + CQE_NUMBER] {
                set32(&view, page, at, random() as u32);
            }
        }
        // Half of the places are good, so that something happens.
        let mut place = || {
            let good = random() % 2 == 0;
            Place {
                offset: if good {
                    QUEUE_FLOOR + random() % PAGES * 4096
                } else {
                    random() >> (random() % 64)
                },
                log2_elem: if good { 6 } else { random() as u32 % 70 },
                mask: if good {
                    7
                } else {
                    random() as u32 >> (random() % 32)
                },
            }
        };
        let index = round % 16;
        QpRecord {
            qpn: round,
            send_cq: (round / 16) % 17,
            recv_cq: u32::MAX - round % 2,
            sq: place(),
            rq: place(),
        }
        .publish(&view, index);
        CqRecord {
            channel: round,
            user_handle: 0,
            queue: place(),
        }
        .publish(&view, index);
        let pass = pass(&view, round % 3 == 0, &mut |_, _| round % 2 == 0).unwrap();
        flushed += u64::from(pass.flushed);
    }
    assert!(flushed > 0);
}
