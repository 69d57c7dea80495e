//! Rules of the responder.

use roceline_engine::verbs::*;
use roceline_engine::wire::{ExtHeaders, Opcode};
use roceline_engine::{AckPolicy, EngineConfig};

use super::*;
use crate::node::MemoryFaults;
use WcStatus::*;
use WrOpcode::{Read, Send, Write};

const NONE: ExtHeaders = NO_HEADERS;

#[test]
fn one_nak_per_gap_then_silence_until_the_missing_packet_arrives() {
    let mut b = Bench::new();
    for _ in 0..3 {
        b.receive(64);
    }
    for psn in [0x101, 0x102, 0x105, 0x101] {
        b.inject(Opcode::RC_SEND_ONLY, psn, 64, NONE);
    }
    assert_eq!(b.sent(1), ["RC_ACK psn=100 pay=0 syn=60 msn=0"]);
    b.inject(Opcode::RC_SEND_ONLY, 0x100, 64, NONE);
    assert_eq!(b.sent(1), ["RC_ACK psn=100 pay=0 syn=1f msn=1"]);
    // Another gap, another NAK.
    b.inject(Opcode::RC_SEND_ONLY, 0x103, 64, NONE);
    assert_eq!(b.sent(1), ["RC_ACK psn=101 pay=0 syn=60 msn=1"]);
    assert_eq!(b.node(1).engine.counters().out_of_sequence, 5);
}

#[test]
fn duplicates_are_acknowledged_with_the_newest_psn_and_done_once() {
    let mut b = Bench::new();
    for _ in 0..4 {
        b.receive(64);
    }
    for psn in [0x100, 0x101, 0x100, 0x100, 0x101] {
        b.inject(Opcode::RC_SEND_ONLY, psn, 64, NONE);
    }
    let newest = "RC_ACK psn=101 pay=0 syn=1f msn=2";
    assert_eq!(b.sent(1)[2..], [newest; 3]);
    assert_eq!(b.done(1).len(), 2);
    assert_eq!(b.node(1).engine.counters().duplicate_request, 3);
    assert_eq!(b.query(1).rq_psn.get(), 0x102);
}

#[test]
fn an_rnr_nak_does_not_move_the_expected_psn_and_silences_what_follows() {
    let mut b = Bench::new();
    b.inject(Opcode::RC_SEND_ONLY, 0x100, 64, NONE);
    b.inject(Opcode::RC_SEND_ONLY, 0x101, 64, NONE);
    assert_eq!(b.sent(1), ["RC_ACK psn=100 pay=0 syn=21 msn=0"]);
    assert_eq!(b.query(1).rq_psn.get(), 0x100);
    b.receive(64);
    b.inject(Opcode::RC_SEND_ONLY, 0x100, 64, NONE);
    assert_eq!(b.done(1), [(1000, Success)]);
    assert_eq!(b.node(1).engine.counters().out_of_buffer, 1);
}

#[test]
fn a_write_with_immediate_takes_a_receive_with_its_last_packet() {
    let mut b = Bench::new();
    let ext = b.reth(1500);
    b.inject(Opcode::RC_WRITE_FIRST, 0x100, 1024, ext);
    b.inject(
        Opcode::RC_WRITE_LAST_IMM,
        0x101,
        476,
        ExtHeaders {
            imm_or_rkey: 5,
            ..NONE
        },
    );
    assert_eq!(b.sent(1)[1..], ["RC_ACK psn=101 pay=0 syn=21 msn=0"]);
    b.receive(0);
    b.inject(
        Opcode::RC_WRITE_LAST_IMM,
        0x101,
        476,
        ExtHeaders {
            imm_or_rkey: 5,
            ..NONE
        },
    );
    let done = b.w.completions(1);
    assert_eq!(
        (done.len(), done[0].byte_len, done[0].imm_or_rkey),
        (1, 1500, 5)
    );
    assert_eq!(done[0].opcode, WcOpcode::RecvRdmaWithImm);
}

#[test]
fn a_write_put_off_by_an_rnr_nak_is_counted_once() {
    let mut b = Bench::new();
    b.post(WrOpcode::WriteImm, 64);
    b.w.run_for(roceline_engine::Nanos::from_micros(100));
    assert!(b.node(1).engine.counters().out_of_buffer > 3);
    b.receive(0);
    b.run();
    assert_eq!(b.done(0), [(0, Success)]);
    assert_eq!(b.node(1).engine.counters().rx_write_requests, 1);
}

#[test]
fn acks_completions_and_reads_wait_for_the_placements_before_them() {
    let mut b = Bench::new();
    b.node(1).memory_faults = MemoryFaults::slow(1);
    b.receive(64);
    let ext = b.reth(64);
    b.inject(Opcode::RC_SEND_ONLY, 0x100, 64, NONE);
    b.inject(Opcode::RC_WRITE_ONLY, 0x101, 0, ext_of_len(ext, 0));
    b.inject(Opcode::RC_READ_REQUEST, 0x102, 0, ext);
    assert!(b.sent(1).is_empty() && b.done(1).is_empty());
    b.run();
    assert_eq!(b.done(1), [(1000, Success)]);
    let want = ["ACK 100", "ACK 101", "READ_RESP_ONLY 102"];
    assert_eq!(short(&b.sent(1)), want);
}

fn ext_of_len(ext: ExtHeaders, dma_len: u32) -> ExtHeaders {
    ExtHeaders { dma_len, ..ext }
}

#[test]
fn a_nak_waits_for_the_placements_before_it() {
    let mut b = Bench::new();
    b.node(1).memory_faults = MemoryFaults::slow(1);
    let ext = b.reth(64);
    b.inject(Opcode::RC_WRITE_ONLY, 0x100, 64, ext);
    b.inject(Opcode::RC_WRITE_ONLY, 0x102, 64, ext);
    assert!(b.sent(1).is_empty(), "the NAK would acknowledge 100");
    b.run();
    assert_eq!(short(&b.sent(1)), ["ACK 100", "ACK 101"]);
}

#[test]
fn a_duplicate_read_is_executed_again_from_the_psn_it_asks_for() {
    let mut b = Bench::new();
    let ext = b.reth(3000);
    b.inject(Opcode::RC_READ_REQUEST, 0x100, 0, ext);
    assert_eq!(b.sent(1).len(), 3);
    let rest = ExtHeaders {
        va: ext.va + 1024,
        dma_len: 3000 - 1024,
        ..ext
    };
    b.inject(Opcode::RC_READ_REQUEST, 0x101, 0, rest);
    assert_eq!(
        b.sent(1),
        [
            "RC_READ_RESP_FIRST psn=101 pay=1024 syn=1f msn=1",
            "RC_READ_RESP_LAST psn=102 pay=952 syn=1f msn=1"
        ]
    );
    let last = ExtHeaders {
        va: ext.va + 2048,
        dma_len: 952,
        ..ext
    };
    b.inject(Opcode::RC_READ_REQUEST, 0x102, 0, last);
    assert_eq!(
        b.sent(1),
        ["RC_READ_RESP_ONLY psn=102 pay=952 syn=1f msn=1"]
    );
    assert_eq!(b.query(1).rq_psn.get(), 0x103);
}

#[test]
fn a_duplicate_read_that_asks_for_something_else_is_dropped() {
    let mut b = Bench::new();
    let ext = b.reth(3000);
    b.inject(Opcode::RC_READ_REQUEST, 0x100, 0, ext);
    b.sent(1);
    for other in [
        ExtHeaders {
            va: ext.va + 1,
            ..ext
        },
        ExtHeaders {
            dma_len: 2999,
            ..ext
        },
        ExtHeaders {
            rkey: ext.rkey ^ 1,
            ..ext
        },
    ] {
        b.inject(Opcode::RC_READ_REQUEST, 0x100, 0, other);
    }
    // never seen
    b.inject(Opcode::RC_READ_REQUEST, 0xf0, 0, ext);
    assert!(b.sent(1).is_empty());
    assert_eq!(b.node(1).engine.counters().rx_dropped, 4);
}

#[test]
fn when_the_pipeline_is_full_packets_are_dropped_and_sent_again() {
    let mut b = Bench::new();
    b.node(1).memory_faults = MemoryFaults::slow(2_000_000);
    let ext = b.reth(1);
    for psn in 0..600 {
        b.inject(Opcode::RC_WRITE_ONLY, 0x100 + psn, 1, ext);
    }
    let dropped = b.node(1).engine.counters().rx_dropped;
    assert_eq!(
        dropped, 1,
        "the first too many; the others are out of sequence then"
    );
    let next = b.query(1).rq_psn.get();
    b.run();
    let sent = short(&b.sent(1));
    assert_eq!(sent.len() as u32, next - 0x100 + 1);
    assert_eq!(
        sent.last().map(String::as_str),
        Some(&*format!("ACK {next:x}")),
        "a NAK"
    );
}

#[test]
fn coalesced_acks_are_one_for_a_burst() {
    let config = EngineConfig {
        ack_policy: AckPolicy::Coalesced,
        ..default_config(1)
    };
    let mut b = Bench::with_config(config);
    let ext = b.reth(8);
    let now = b.w.now;
    for psn in 0x100..0x110 {
        let frame = b.frame(Opcode::RC_WRITE_ONLY, psn, 8, ext);
        b.w.inject(1, frame, now);
    }
    while b.w.poll() {}
    assert_eq!(b.sent(1), ["RC_ACK psn=10f pay=0 syn=1f msn=16"]);
}

#[test]
fn coalesced_acks_give_way_to_read_responses() {
    let config = EngineConfig {
        ack_policy: AckPolicy::Coalesced,
        ..default_config(1)
    };
    let mut b = Bench::with_config(config);
    let ext = b.reth(8);
    let now = b.w.now;
    for psn in 0x100..0x103 {
        let frame = b.frame(Opcode::RC_WRITE_ONLY, psn, 8, ext);
        b.w.inject(1, frame, now);
    }
    let read = b.frame(Opcode::RC_READ_REQUEST, 0x103, 0, ext);
    b.w.inject(1, read, now);
    while b.w.poll() {}
    let sent = b.sent(1);
    assert_eq!(sent, ["RC_READ_RESP_ONLY psn=103 pay=8 syn=1f msn=4"]);
}

#[test]
fn msn_counts_messages() {
    let mut b = Bench::new();
    b.receive(3000);
    b.post(Send, 3000);
    b.post(Write, 0);
    b.post(Read, 3000);
    b.post(Write, 0);
    b.run();
    let msns: Vec<String> = b
        .sent(1)
        .iter()
        .filter_map(|l| l.split("msn=").nth(1).map(String::from))
        .collect();
    assert_eq!(msns, ["1", "2", "3", "3", "4"]);
}

#[test]
fn memory_that_cannot_be_read_is_a_remote_operational_error() {
    let mut b = Bench::new();
    b.node(1).memory_faults = MemoryFaults {
        fault: 1000,
        ..MemoryFaults::default()
    };
    b.post(Read, 3000);
    b.run();
    assert_eq!(b.done(0), [(0, RemOpErr)]);
    assert_eq!(b.events(1), [AsyncKind::QpFatal]);
    assert_eq!(b.sent(1), ["RC_ACK psn=100 pay=0 syn=63 msn=1"]);
}

#[test]
fn memory_that_cannot_be_written_is_a_remote_operational_error() {
    let mut b = Bench::new();
    b.node(1).memory_faults = MemoryFaults {
        fault: 1000,
        ..MemoryFaults::default()
    };
    b.receive(3000);
    b.receive(3000);
    b.post(Send, 3000);
    b.run();
    assert_eq!(b.done(0), [(0, RemOpErr)]);
    assert_eq!(b.done(1), [(1000, LocProtErr), (1001, WrFlushErr)]);

    let mut b = Bench::new();
    b.node(1).memory_faults = MemoryFaults {
        fault: 1000,
        ..MemoryFaults::default()
    };
    b.post(Write, 3000);
    b.run();
    assert_eq!(b.done(0), [(0, RemOpErr)]);
    assert_eq!(b.events(1), [AsyncKind::QpFatal]);
}

/// A NAK that waits for placements is taken back when what it asks for arrives meanwhile.
#[test]
fn a_waiting_nak_is_taken_back_when_its_packet_arrives() {
    let mut b = Bench::new();
    b.node(1).memory_faults = MemoryFaults::slow(1_000);
    let ext = b.reth(64);
    b.inject(Opcode::RC_WRITE_ONLY, 0x100, 64, ext);
    b.inject(Opcode::RC_SEND_ONLY, 0x101, 0, NONE);
    b.receive(0);
    b.inject(Opcode::RC_SEND_ONLY, 0x101, 0, NONE);
    b.inject(Opcode::RC_WRITE_ONLY, 0x103, 64, ext);
    b.inject(Opcode::RC_WRITE_ONLY, 0x102, 64, ext);
    b.run();
    assert_eq!(short(&b.sent(1)), ["ACK 100", "ACK 101", "ACK 102"]);
    assert_eq!(b.done(1), [(1000, Success)]);
}
