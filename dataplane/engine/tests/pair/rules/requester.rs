//! Rules of the requester.

use roceline_engine::memory::AccessError;
use roceline_engine::verbs::*;
use roceline_engine::wire::{Opcode, Psn};
use roceline_engine::{EngineConfig, Nanos};

use super::*;
use crate::node::MemoryFaults;
use WcStatus::*;
use WrOpcode::{Read, Send, SendImm, Write, WriteImm};

const ACK: u32 = 0x1f << 24;

#[test]
fn psns_wrap_from_ffffff_to_0() {
    let psn = Psn::new(0xff_fffe);
    let mut b = Bench::with_attr(QpAttr {
        sq_psn: psn,
        rq_psn: psn,
        ..default_attr()
    });
    b.post(Write, 5 * 1024);
    b.run();
    let want = [
        "WRITE_FIRST fffffe",
        "WRITE_MIDDLE ffffff",
        "WRITE_MIDDLE 0",
        "WRITE_MIDDLE 1",
        "WRITE_LAST 2",
    ];
    assert_eq!(short(&b.sent(0)), want);
    assert_eq!(b.done(0), [(0, Success)]);
    assert_eq!(
        (b.query(0).sq_psn, b.query(1).rq_psn),
        (Psn::new(3), Psn::new(3))
    );
}

#[test]
fn messages_are_cut_at_every_path_mtu() {
    for path_mtu in [Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096] {
        let mtu = path_mtu.bytes();
        for (len, packets) in [
            (0, 1),
            (1, 1),
            (mtu - 1, 1),
            (mtu, 1),
            (mtu + 1, 2),
            (3 * mtu, 3),
        ] {
            let mut b = Bench::with_attr(QpAttr {
                path_mtu,
                ..default_attr()
            });
            b.receive(len);
            b.post(Send, len);
            b.post(Write, len);
            b.post(Read, len);
            b.run();
            assert_eq!(b.done(0), [(0, Success), (1, Success), (2, Success)]);
            assert_eq!(b.sent(0).len(), 2 * packets + 1, "{len} at {mtu}");
            assert_eq!(b.sent(1).len(), 2 + packets);
        }
    }
}

#[test]
fn the_last_packet_asks_for_an_ack_and_every_64th() {
    let mut b = Bench::with_config(EngineConfig {
        window: 256,
        ..default_config(1)
    });
    b.post(Write, 150 * 1024);
    b.run();
    let asking: Vec<usize> = b
        .sent(0)
        .iter()
        .enumerate()
        .filter(|l| l.1.contains(" A "))
        .map(|l| l.0)
        .collect();
    assert_eq!(asking, [63, 127, 149]);
}

#[test]
fn the_packet_that_closes_the_window_asks_for_an_ack() {
    let mut b = Bench::with(
        EngineConfig {
            window: 4,
            ..default_config(1)
        },
        &no_timeout(),
        &default_init(),
    );
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Write, 10 * 1024);
    b.run();
    let sent = b.sent(0);
    assert_eq!(sent.len(), 4, "no more than the window is on its way");
    assert!(sent[3].contains(" A ") && !sent[2].contains(" A "));
    b.w.filter = None;
    b.respond(Opcode::RC_ACK, 0x101, 0, ACK);
    assert_eq!(short(&b.sent(0)), ["WRITE_MIDDLE 104", "WRITE_MIDDLE 105"]);
}

#[test]
fn no_more_reads_are_out_than_max_rd_atomic() {
    let mut b = Bench::with_attr(QpAttr {
        max_rd_atomic: 2,
        ..no_timeout()
    });
    b.filter(|from, _, _| {
        if from == 1 {
            Verdict::Drop
        } else {
            Verdict::Pass
        }
    });
    for _ in 0..5 {
        b.post(Read, 2000);
    }
    b.run();
    assert_eq!(short(&b.sent(0)), ["READ_REQUEST 100", "READ_REQUEST 102"]);
    b.respond(Opcode::RC_READ_RESP_FIRST, 0x100, 1024, ACK);
    assert!(b.sent(0).is_empty());
    b.respond(Opcode::RC_READ_RESP_LAST, 0x101, 976, ACK);
    assert_eq!(short(&b.sent(0)), ["READ_REQUEST 104"]);
}

#[test]
fn a_fence_waits_until_reads_are_placed() {
    let mut b = Bench::with_attr(no_timeout());
    b.node(0).memory_faults = MemoryFaults::slow(1);
    b.post(Read, 100);
    let (mut wr, list) = b.wr(Write, 0);
    wr.fence = true;
    b.post_wr(wr, &list);
    b.post(Write, 0);
    while b.w.poll() {}
    assert_eq!(short(&b.sent(0)), ["READ_REQUEST 100"]);
    b.run();
    assert_eq!(short(&b.sent(0)), ["WRITE_ONLY 101", "WRITE_ONLY 102"]);
    assert_eq!(b.done(0).len(), 3);
}

#[test]
fn a_fence_does_not_wait_for_writes() {
    let mut b = Bench::with_attr(no_timeout());
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Write, 0);
    let (mut wr, list) = b.wr(Write, 0);
    wr.fence = true;
    b.post_wr(wr, &list);
    b.run();
    assert_eq!(b.sent(0).len(), 2);
}

#[test]
fn a_read_completes_when_its_last_byte_is_placed() {
    let mut b = Bench::with_attr(no_timeout());
    b.node(0).memory_faults = MemoryFaults::slow(1_000_000);
    b.post(Read, 3000);
    b.post(Write, 0);
    let mut placed_at = Nanos::ZERO;
    loop {
        while b.w.poll() {}
        if b.node(0).pending() > 0 {
            assert!(b.node(0).completions.is_empty());
            placed_at = b.w.now;
        }
        match b.w.next_time() {
            Some(t) => b.w.now = t,
            None => break,
        }
    }
    assert!(
        placed_at > Nanos::from_micros(10),
        "the responses were there long before"
    );
    assert_eq!(b.done(0), [(0, Success), (1, Success)]);
}

#[test]
fn unsignalled_requests_ride_with_the_next_completion() {
    let mut b = Bench::new();
    for i in 0..5 {
        let (mut wr, list) = b.wr(Write, 8);
        wr.signaled = i == 2;
        b.post_wr(wr, &list);
    }
    // One ACK for all.
    b.filter(|from, _, f| match (from, f.psn.get()) {
        (1, 0x100..=0x103) => Verdict::Drop,
        _ => Verdict::Pass,
    });
    b.run();
    let done = b.w.completions(0);
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].wr_id, done[0].retire), (2, 3));
    let qp = b.ids[0];
    assert_eq!(
        b.node(0).occupied(qp),
        0,
        "the last two were retired by themselves"
    );
}

/// What is wrong with a request shows in its turn, and nothing of it is sent.
#[test]
fn a_bad_request_completes_in_its_turn_and_nothing_of_it_is_sent() {
    let lkey = |b: &mut Bench, wr: &mut SendWr, list: &mut Vec<Sge>| {
        let _ = (b, wr);
        list[0].lkey ^= 0x1234_5600;
    };
    type Spoil = dyn Fn(&mut Bench, &mut SendWr, &mut Vec<Sge>);
    let cases: Vec<(&str, Box<Spoil>, WcStatus)> = vec![
        ("key", Box::new(lkey), LocProtErr),
        (
            "range",
            Box::new(|_, _, l| l[0].addr += 1 << 40),
            LocProtErr,
        ),
        (
            "end of range",
            Box::new(|_, _, l| l[0].addr = u64::MAX - 10),
            LocProtErr,
        ),
        (
            "second entry",
            Box::new(|_, w, l| {
                l.push(Sge {
                    addr: 0,
                    length: 1,
                    lkey: 77,
                });
                w.num_sge = 2;
                w.length += 1;
            }),
            LocProtErr,
        ),
        ("no opcode", Box::new(|_, w, _| w.opcode = None), LocQpOpErr),
        (
            "atomic without room",
            Box::new(|_, w, l| {
                w.opcode = Some(WrOpcode::CmpSwap);
                (l[0].length, w.length) = (7, 7);
            }),
            LocLenErr,
        ),
        (
            "inline atomic",
            Box::new(|_, w, l| {
                w.opcode = Some(WrOpcode::FetchAdd);
                w.inline = true;
                l.clear();
            }),
            LocQpOpErr,
        ),
        (
            "ATOMIC WRITE of other than 8 bytes",
            Box::new(|_, w, l| {
                w.opcode = Some(WrOpcode::AtomicWrite);
                (l[0].length, w.length) = (16, 16);
            }),
            LocLenErr,
        ),
        (
            "invalidate",
            Box::new(|_, w, _| w.opcode = Some(WrOpcode::LocalInv)),
            LocQpOpErr,
        ),
        (
            "bind",
            Box::new(|_, w, _| w.opcode = Some(WrOpcode::BindMw)),
            MwBindErr,
        ),
        (
            "too many entries",
            Box::new(|_, w, l| {
                *l = vec![Sge { length: 1, ..l[0] }; 32];
                w.num_sge = 33;
            }),
            LocQpOpErr,
        ),
        (
            "inline READ",
            Box::new(|_, w, l| {
                w.opcode = Some(Read);
                w.inline = true;
                l.clear();
            }),
            LocQpOpErr,
        ),
        (
            "too much inline",
            Box::new(|_, w, l| {
                w.inline = true;
                w.length = 513;
                l.clear();
            }),
            LocLenErr,
        ),
        (
            "more than 2^31 bytes",
            Box::new(|_, w, l| {
                l[0].length = (1 << 31) + 1;
                w.length = (1 << 31) + 1;
            }),
            LocLenErr,
        ),
        (
            "sum of more than 2^32 bytes",
            Box::new(|_, w, l| {
                l[0].length = (1 << 31) + 1;
                *l = vec![l[0]; 2];
                w.num_sge = 2;
                w.length = (1 << 32) + 2;
            }),
            LocLenErr,
        ),
    ];
    for (name, spoil, status) in cases {
        let mut b = Bench::new();
        b.post(Write, 5000);
        b.post(Read, 5000);
        let (mut wr, mut list) = b.wr(Write, 100);
        spoil(&mut b, &mut wr, &mut list);
        b.post_wr(wr, &list);
        b.post(Write, 0);
        b.run();
        let want = [(0, Success), (1, Success), (2, status), (3, WrFlushErr)];
        assert_eq!(b.done(0), want, "{name}");
        assert_eq!(b.sent(0).len(), 6, "{name}");
        assert_eq!(b.state(0), QpState::Err, "{name}");
        assert!(b.events(0).is_empty(), "{name}: the completion says it");
        let c = b.node(0).engine.counters();
        assert_eq!((c.req_cqe_error, c.req_cqe_flush_error), (1, 1));
    }
}

#[test]
fn a_read_needs_local_write_access_and_read_credits() {
    let mut b = Bench::with_attr(QpAttr {
        max_rd_atomic: 0,
        ..default_attr()
    });
    b.post(Read, 8);
    b.run();
    assert_eq!(b.done(0), [(0, LocQpOpErr)]);

    let mut b = Bench::new();
    let (addr, len) = b.node(0).memory.extent();
    let attr = roceline_engine::memory::MrAttr {
        pd: crate::node::PD,
        addr,
        iova: addr,
        len,
        access: roceline_engine::memory::Access(0),
    };
    let key = b.node(0).engine.register(attr).expect("room").lkey;
    let (wr, _) = b.wr(Read, 8);
    b.post_wr(
        wr,
        &[Sge {
            addr,
            length: 8,
            lkey: key,
        }],
    );
    b.run();
    assert_eq!(b.done(0), [(0, LocProtErr)]);
    // For sending the same region is good.
    let mut b = Bench::new();
    let key = b.node(0).engine.register(attr).expect("room").lkey;
    let (wr, _) = b.wr(Write, 8);
    b.post_wr(
        wr,
        &[Sge {
            addr,
            length: 8,
            lkey: key,
        }],
    );
    b.run();
    assert_eq!(b.done(0), [(0, Success)]);
}

#[test]
fn a_region_that_goes_away_in_mid_message_fails_the_request() {
    let mut b = Bench::with(
        EngineConfig {
            window: 2,
            ..default_config(1)
        },
        &default_attr(),
        &default_init(),
    );
    b.post(Write, 8 * 1024);
    while b.w.poll() {}
    let key = b.node(0).mr.lkey;
    let gone: Result<_, AccessError> = b.node(0).engine.deregister(key);
    gone.expect("it was registered");
    b.run();
    assert_eq!(b.done(0), [(0, LocProtErr)]);
    assert_eq!(b.sent(0).len(), 2);
}

#[test]
fn naks_give_the_status_of_their_code() {
    for (syndrome, status) in [(0x61, RemInvReqErr), (0x62, RemAccessErr), (0x63, RemOpErr)] {
        let mut b = Bench::with_attr(no_timeout());
        b.filter(|_, _, _| Verdict::Drop);
        for _ in 0..3 {
            b.post(Write, 2000);
        }
        b.run();
        // It acknowledges what is before it, and fails the message it names.
        b.respond(Opcode::RC_ACK, 0x103, 0, syndrome << 24);
        b.run();
        assert_eq!(b.done(0), [(0, Success), (1, status), (2, WrFlushErr)]);
    }
}

#[test]
fn answers_to_nothing_are_dropped() {
    let mut b = Bench::with_attr(no_timeout());
    b.respond(Opcode::RC_ACK, 0x100, 0, ACK);
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Write, 2000);
    b.run();
    let before = b.node(0).engine.counters().rx_dropped;
    for psn in [0xff, 0x102, 0x80_0100, 0] {
        for syndrome in [0x1f, 0x60, 0x61, 0x31] {
            b.respond(Opcode::RC_ACK, psn, 0, syndrome << 24);
        }
    }
    // reserved syndromes, a READ response to a WRITE, an atomic's answer
    b.respond(Opcode::RC_ACK, 0x101, 0, 0x40 << 24);
    b.respond(Opcode::RC_ACK, 0x101, 0, 0xff << 24);
    b.respond(Opcode::RC_READ_RESP_ONLY, 0x100, 1024, ACK);
    b.respond(Opcode::RC_ATOMIC_ACK, 0x101, 0, ACK);
    assert_eq!(b.node(0).engine.counters().rx_dropped, before + 20);
    assert!(b.done(0).is_empty());
    assert_eq!(b.sent(0).len(), 2);
    b.respond(Opcode::RC_ACK, 0x101, 0, ACK);
    assert_eq!(b.done(0), [(0, Success)]);
}

#[test]
fn read_responses_of_the_wrong_length_are_dropped() {
    let mut b = Bench::with_attr(no_timeout());
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Read, 2000);
    b.run();
    for (opcode, len) in [
        (Opcode::RC_READ_RESP_FIRST, 1000),
        (Opcode::RC_READ_RESP_ONLY, 1024),
        (Opcode::RC_READ_RESP_LAST, 976),
        (Opcode::RC_READ_RESP_MIDDLE, 0),
    ] {
        b.respond(opcode, 0x100, len, ACK);
    }
    assert_eq!(b.node(0).engine.counters().rx_dropped, 4);
    b.respond(Opcode::RC_READ_RESP_FIRST, 0x100, 1024, ACK);
    b.respond(Opcode::RC_READ_RESP_LAST, 0x101, 976, ACK);
    assert_eq!(b.done(0), [(0, Success)]);
}

#[test]
fn immediates_and_solicited_events_are_in_the_last_packet() {
    let mut b = Bench::new();
    for op in [Send, SendImm, WriteImm, Write] {
        b.receive(3000);
        let (mut wr, list) = b.wr(op, 3000);
        wr.solicited = true;
        b.post_wr(wr, &list);
    }
    b.run();
    let sent = b.sent(0);
    let marked: Vec<usize> = sent
        .iter()
        .enumerate()
        .filter(|l| l.1.contains(" SE"))
        .map(|l| l.0)
        .collect();
    assert_eq!(
        marked,
        [2, 5, 8],
        "a WRITE without immediate completes nothing at the peer"
    );
    assert!(sent[5].contains("imm=0100feca") && sent[8].contains("imm=0100feca"));
    let solicited: Vec<bool> = b.w.completions(1).iter().map(|c| c.solicited).collect();
    assert_eq!(solicited, [true; 3]);
}

#[test]
fn the_longest_read_takes_half_the_psn_space() {
    let mut b = Bench::with_attr(QpAttr {
        path_mtu: Mtu::M256,
        ..no_timeout()
    });
    b.filter(|_, _, _| Verdict::Drop);
    // No memory is that long here: the region claims it.
    let attr = roceline_engine::memory::MrAttr {
        pd: crate::node::PD,
        addr: 1 << 32,
        iova: 1 << 32,
        len: 1 << 32,
        access: roceline_engine::memory::Access(7),
    };
    let lkey = b.node(0).engine.register(attr).expect("room").lkey;
    let length = 1 << 31;
    let (mut wr, _) = b.wr(Read, 0);
    wr.length = length.into();
    b.post_wr(
        wr,
        &[Sge {
            addr: 1 << 32,
            length,
            lkey,
        }],
    );
    b.post(Write, 0);
    b.run();
    assert_eq!(
        b.sent(0).len(),
        1,
        "the WRITE waits: its PSN could not be told from an old one"
    );
    assert_eq!(b.query(0).sq_psn, Psn::new(0x100 + (1 << 23)));
}

#[test]
fn payload_that_cannot_be_read_fails_its_request_in_its_turn() {
    let mut b = Bench::with_attr(no_timeout());
    b.post(Write, 1000);
    b.post(Write, 0);
    b.run();
    b.node(0).memory_faults = MemoryFaults {
        fault: 1000,
        ..MemoryFaults::default()
    };
    b.post(Write, 1000);
    b.post(Write, 0);
    b.run();
    assert_eq!(
        b.done(0),
        [(0, Success), (1, Success), (2, LocProtErr), (3, WrFlushErr)]
    );
    assert_eq!(b.sent(0).len(), 2);
}
