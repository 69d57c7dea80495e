//! Rules by which the responder refuses requests.

use roceline_engine::memory::{Access, MrAttr};
use roceline_engine::verbs::*;
use roceline_engine::wire::{ExtHeaders, Feth, Gid, Opcode};

use super::*;
use crate::node::{MemoryFaults, PD};
use WcStatus::*;
use WrOpcode::{Send, Write};

const NONE: ExtHeaders = NO_HEADERS;

/// Runs packets at a fresh QP; the last of them must be refused as an invalid request.
fn invalid(name: &str, packets: &[(Opcode, u32, u32)]) {
    let mut b = Bench::new();
    for _ in 0..4 {
        b.receive(1 << 14);
    }
    for (i, &(opcode, payload, dma_len)) in packets.iter().enumerate() {
        let mut ext = b.reth(1 << 14);
        ext.dma_len = dma_len;
        b.inject(opcode, 0x100 + i as u32, payload, ext);
    }
    let psn = 0xff + packets.len();
    let sent = b.sent(1);
    let nak = sent.last().map(String::as_str);
    assert!(
        nak.is_some_and(|n| n.starts_with(&format!("RC_ACK psn={psn:x} pay=0 syn=61"))),
        "{name}: {sent:?}"
    );
    assert_eq!(b.state(1), QpState::Err, "{name}");
    assert_eq!(b.events(1), [AsyncKind::QpReqErr], "{name}");
    b.run();
    assert!(
        b.done(1)
            .iter()
            .all(|d| matches!(d.1, Success | WrFlushErr))
    );
    // Deaf from now on.
    b.inject(Opcode::RC_SEND_ONLY, 0x100 + packets.len() as u32, 0, NONE);
    assert!(b.sent(1).is_empty());
}

#[test]
fn packets_out_of_order_within_their_message_are_invalid() {
    use roceline_engine::wire::Opcode as O;
    invalid("SEND_MIDDLE first", &[(O::RC_SEND_MIDDLE, 1024, 0)]);
    invalid("SEND_LAST first", &[(O::RC_SEND_LAST, 1, 0)]);
    invalid("WRITE_MIDDLE first", &[(O::RC_WRITE_MIDDLE, 1024, 0)]);
    invalid("WRITE_LAST_IMM first", &[(O::RC_WRITE_LAST_IMM, 1, 0)]);
    invalid(
        "two FIRST",
        &[(O::RC_SEND_FIRST, 1024, 0), (O::RC_SEND_FIRST, 1024, 0)],
    );
    invalid(
        "ONLY inside",
        &[(O::RC_SEND_FIRST, 1024, 0), (O::RC_SEND_ONLY, 1, 0)],
    );
    invalid(
        "READ inside",
        &[(O::RC_SEND_FIRST, 1024, 0), (O::RC_READ_REQUEST, 0, 8)],
    );
    invalid(
        "WRITE in SEND",
        &[(O::RC_SEND_FIRST, 1024, 0), (O::RC_WRITE_LAST, 8, 0)],
    );
    invalid(
        "SEND in WRITE",
        &[
            (O::RC_WRITE_FIRST, 1024, 2048),
            (O::RC_SEND_MIDDLE, 1024, 0),
        ],
    );
    invalid(
        "after LAST",
        &[
            (O::RC_SEND_FIRST, 1024, 0),
            (O::RC_SEND_LAST, 1, 0),
            (O::RC_SEND_LAST, 1, 0),
        ],
    );
}

#[test]
fn packets_of_the_wrong_length_are_invalid() {
    use roceline_engine::wire::Opcode as O;
    invalid("short FIRST", &[(O::RC_SEND_FIRST, 1023, 0)]);
    invalid("long FIRST", &[(O::RC_SEND_FIRST, 1028, 0)]);
    invalid(
        "short MIDDLE",
        &[(O::RC_SEND_FIRST, 1024, 0), (O::RC_SEND_MIDDLE, 8, 0)],
    );
    invalid(
        "empty LAST",
        &[(O::RC_SEND_FIRST, 1024, 0), (O::RC_SEND_LAST, 0, 0)],
    );
    invalid(
        "long LAST",
        &[(O::RC_SEND_FIRST, 1024, 0), (O::RC_SEND_LAST, 1025, 0)],
    );
    invalid("long ONLY", &[(O::RC_SEND_ONLY, 1025, 0)]);
    invalid("WRITE longer than its RETH", &[(O::RC_WRITE_ONLY, 65, 64)]);
    invalid("WRITE shorter than its RETH", &[(O::RC_WRITE_ONLY, 63, 64)]);
    invalid("WRITE_FIRST of all", &[(O::RC_WRITE_FIRST, 1024, 1024)]);
    invalid(
        "WRITE_MIDDLE of all",
        &[
            (O::RC_WRITE_FIRST, 1024, 2048),
            (O::RC_WRITE_MIDDLE, 1024, 0),
        ],
    );
    invalid(
        "WRITE_LAST too early",
        &[(O::RC_WRITE_FIRST, 1024, 3000), (O::RC_WRITE_LAST, 900, 0)],
    );
    invalid(
        "more than 2^31",
        &[(O::RC_WRITE_FIRST, 1024, (1 << 31) + 1)],
    );
    invalid(
        "READ of more than 2^31",
        &[(O::RC_READ_REQUEST, 0, (1 << 31) + 1)],
    );
}

#[test]
fn operations_that_this_qp_does_not_have_are_invalid() {
    for (access, opcode, len) in [
        (Access::REMOTE_READ, Opcode::RC_WRITE_ONLY, 8),
        (Access::REMOTE_WRITE, Opcode::RC_READ_REQUEST, 0),
        (Access(6), Opcode::RC_CMP_SWAP, 0),
        (Access(6), Opcode::RC_FETCH_ADD, 0),
        (Access(0xc), Opcode::RC_ATOMIC_WRITE, 8),
        (Access(0xe), Opcode::RC_FLUSH, 0),
    ] {
        let mut b = Bench::with_attr(QpAttr {
            access,
            ..default_attr()
        });
        let mut ext = b.reth(8);
        ext.qkey = u32::from(Feth::GLOBAL);
        b.inject(opcode, 0x100, len, ext);
        assert_eq!(b.sent(1), ["RC_ACK psn=100 pay=0 syn=61 msn=0"]);
    }
}

#[test]
fn keys_ranges_domains_and_rights_are_checked() {
    type Spoil = dyn Fn(&mut Bench, &mut ExtHeaders);
    let region = |b: &mut Bench, pd, access| {
        let (addr, len) = b.node(1).memory.extent();
        let attr = MrAttr {
            pd,
            addr,
            iova: addr + IOVA_SHIFT,
            len,
            access: Access(access),
        };
        b.node(1).engine.register(attr).expect("room").rkey
    };
    let cases: Vec<(&str, Box<Spoil>)> = vec![
        ("unknown key", Box::new(|_, e| e.rkey ^= 0xff)),
        ("before the region", Box::new(|_, e| e.va -= 1 << 20)),
        ("beyond the region", Box::new(|_, e| e.va += 4 << 20)),
        (
            "end of the address space",
            Box::new(|_, e| e.va = u64::MAX - 4),
        ),
        (
            "another domain",
            Box::new(move |b, e| e.rkey = region(b, PD + 1, 7)),
        ),
        (
            "local rights only",
            Box::new(move |b, e| e.rkey = region(b, PD, 1)),
        ),
    ];
    for (name, spoil) in cases {
        for (opcode, payload) in [(Opcode::RC_WRITE_ONLY, 64), (Opcode::RC_READ_REQUEST, 0)] {
            let mut b = Bench::new();
            b.receive(64);
            let mut ext = b.reth(64);
            spoil(&mut b, &mut ext);
            b.inject(opcode, 0x100, payload, ext);
            assert_eq!(b.sent(1), ["RC_ACK psn=100 pay=0 syn=62 msn=0"], "{name}");
            assert_eq!(b.events(1), [AsyncKind::QpAccessErr], "{name}");
            b.run();
            assert_eq!(b.done(1), [(1000, WrFlushErr)], "{name}");
            assert_eq!(b.node(1).engine.counters().resp_remote_access_errors, 1);
        }
    }
}

/// The whole range is checked with the first packet, so nothing is written of a message that does not fit.
#[test]
fn a_write_that_does_not_fit_writes_nothing() {
    let mut b = Bench::new();
    let (addr, len) = b.node(1).memory.extent();
    let mut ext = b.reth(0);
    ext.va = addr + len - 1024 + IOVA_SHIFT;
    ext.dma_len = 1025;
    b.inject(Opcode::RC_WRITE_FIRST, 0x100, 1024, ext);
    assert_eq!(b.sent(1), ["RC_ACK psn=100 pay=0 syn=62 msn=0"]);
    assert!(b.node(1).memory.guards_intact(&[]));
}

#[test]
fn empty_operations_need_no_key() {
    let mut b = Bench::new();
    b.inject(
        Opcode::RC_WRITE_ONLY,
        0x100,
        0,
        ExtHeaders {
            rkey: 0xdead,
            ..NONE
        },
    );
    b.inject(
        Opcode::RC_READ_REQUEST,
        0x101,
        0,
        ExtHeaders {
            rkey: 0xdead,
            ..NONE
        },
    );
    assert_eq!(
        b.sent(1),
        [
            "RC_ACK psn=100 pay=0 syn=1f msn=1",
            "RC_READ_RESP_ONLY psn=101 pay=0 syn=1f msn=2"
        ]
    );
}

/// IBTA: the requester sent too much, hence "invalid request" and a local length error here. (Soft-RoCE
/// answers "remote operational error".)
#[test]
fn a_send_longer_than_the_receive_is_an_invalid_request() {
    let mut b = Bench::new();
    b.receive(1500);
    b.receive(1500);
    b.post(Send, 1600);
    b.post(Write, 0);
    b.run();
    assert_eq!(b.done(0), [(0, RemInvReqErr), (1, WrFlushErr)]);
    assert_eq!(b.done(1), [(1000, LocLenErr), (1001, WrFlushErr)]);
    assert_eq!(b.node(1).engine.counters().resp_local_length_error, 1);
    assert!(b.events(1).is_empty(), "the completion says it");
    assert_eq!(b.state(1), QpState::Err);
}

#[test]
fn a_receive_with_a_bad_key_is_a_remote_operational_error() {
    let mut b = Bench::new();
    b.receive_at(&[Sge {
        addr: 0,
        length: 100,
        lkey: 0x77,
    }]);
    b.receive(100);
    b.post(Send, 64);
    b.run();
    assert_eq!(b.done(0), [(0, RemOpErr)]);
    assert_eq!(b.done(1), [(1000, LocProtErr), (1001, WrFlushErr)]);
}

#[test]
fn more_reads_than_max_dest_rd_atomic_are_an_invalid_request() {
    let mut b = Bench::with_attr(QpAttr {
        max_dest_rd_atomic: 2,
        ..default_attr()
    });
    b.node(1).memory_faults = MemoryFaults::slow(1_000_000);
    // A WRITE that is being placed holds the READs back.
    let ext = b.reth(64);
    b.inject(Opcode::RC_WRITE_ONLY, 0x100, 64, ext);
    for psn in 0x101..0x104 {
        b.inject(Opcode::RC_READ_REQUEST, psn, 0, ext);
    }
    b.run();
    let sent = b.sent(1);
    assert!(sent[1].starts_with("RC_READ_RESP_ONLY psn=101"));
    assert!(sent[2].starts_with("RC_READ_RESP_ONLY psn=102"));
    assert!(sent[3].starts_with("RC_ACK psn=103 pay=0 syn=61"));
}

#[test]
fn packets_that_are_not_of_this_connection_are_dropped() {
    let mut b = Bench::new();
    b.receive(64);
    let good = b.frame(Opcode::RC_SEND_ONLY, 0x100, 64, NONE);
    let stranger = Gid::from_ip([10, 0, 0, 9].into());
    let now = b.w.now;
    for frame in [
        Frame {
            src: stranger,
            ..good.clone()
        },
        Frame {
            dst: stranger,
            ..good.clone()
        },
        Frame {
            opcode: Opcode::UC_SEND_ONLY,
            ..good.clone()
        },
        Frame {
            opcode: Opcode::UD_SEND_ONLY,
            ..good.clone()
        },
        Frame {
            opcode: Opcode::CNP,
            src: stranger,
            ..good.clone()
        },
    ] {
        b.w.inject(1, frame, now);
    }
    b.w.inject(
        1,
        Frame {
            dest_qpn: b.ids[1].0 ^ 0x80_0000,
            ..good.clone()
        },
        now,
    );
    while b.w.poll() {}
    let c = *b.node(1).engine.counters();
    assert_eq!((c.rx_dropped, c.rx_unknown_qp), (5, 1));
    assert!(b.done(1).is_empty() && b.sent(1).is_empty());
}

#[test]
fn a_region_that_goes_away_refuses_what_is_still_to_come() {
    let mut b = Bench::new();
    let ext = b.reth(3000);
    b.inject(Opcode::RC_WRITE_FIRST, 0x100, 1024, ext);
    let key = b.node(1).mr.rkey;
    b.node(1).engine.deregister(key).expect("it was registered");
    b.inject(Opcode::RC_WRITE_MIDDLE, 0x101, 1024, NONE);
    assert_eq!(
        b.sent(1).last().map(String::as_str),
        Some("RC_ACK psn=101 pay=0 syn=62 msn=0")
    );
}
