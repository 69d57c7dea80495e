//! Rules of atomics, ATOMIC WRITE and FLUSH.

use roceline_engine::memory::{Access, MrAttr};
use roceline_engine::verbs::*;
use roceline_engine::wire::{ExtHeaders, Feth, Opcode};

use super::*;
use crate::node::{MemoryFaults, PD};
use WcStatus::*;
use WrOpcode::{AtomicWrite, CmpSwap, FetchAdd, Flush, Read, Send, Write};

const SLOW: MemoryFaults = MemoryFaults::slow(3_000);

impl Bench {
    /// A word of node 1.
    fn word(&mut self, value: u64) -> u64 {
        self.node(1).memory.alloc_word(value)
    }

    fn value(&mut self, at: u64) -> u64 {
        self.node(1).memory.word(at)
    }

    /// An atomic of node 0 on a word of node 1; where the answer goes.
    fn atomic(&mut self, op: WrOpcode, at: u64, operands: [u64; 2]) -> u64 {
        let answer = self.node(0).memory.alloc_word(0);
        let (wr, _) = self.wr(op, 0);
        let wr = SendWr {
            remote_addr: at + IOVA_SHIFT,
            compare_add: operands[0],
            swap: operands[1],
            ..wr
        };
        let list = sges(&[(answer, 8)], self.node(0).mr.lkey);
        self.post_wr(wr, &list);
        answer
    }

    fn answer(&mut self, at: u64) -> u64 {
        self.node(0).memory.word(at)
    }

    /// An AtomicETH, or a RETH of 8 bytes, for a word of node 1.
    fn eth(&mut self, at: u64, swap_add: u64, compare: u64) -> ExtHeaders {
        ExtHeaders {
            va: at + IOVA_SHIFT,
            rkey: self.node(1).mr.rkey,
            swap_add,
            compare,
            ..NO_HEADERS
        }
    }

    fn flush(&mut self, feth: Feth, at: u64, len: u32) -> u64 {
        let (wr, _) = self.wr(Flush, 0);
        let wr = SendWr {
            remote_addr: at + IOVA_SHIFT,
            length: len.into(),
            imm_or_rkey: feth.raw(),
            ..wr
        };
        self.post_wr(wr, &[])
    }
}

const VISIBLE: Feth = Feth {
    placement: Feth::GLOBAL,
    selectivity: Feth::RANGE,
};

#[test]
fn atomics_return_what_was_there() {
    let mut b = Bench::new();
    let at = b.word(10);
    let answers = [
        b.atomic(FetchAdd, at, [5, 0]),
        b.atomic(CmpSwap, at, [14, 99]),
        b.atomic(CmpSwap, at, [15, 99]),
        b.atomic(FetchAdd, at, [u64::MAX, 0]),
    ];
    b.run();
    assert_eq!(answers.map(|a| b.answer(a)), [10, 15, 15, 99]);
    assert_eq!(b.value(at), 98);
    let done = b.w.completions(0);
    let told: Vec<_> = done
        .iter()
        .map(|c| (c.opcode, c.byte_len, c.status))
        .collect();
    let (add, swap) = (WcOpcode::FetchAdd, WcOpcode::CompSwap);
    assert_eq!(told, [add, swap, swap, add].map(|op| (op, 8, Success)));
    assert_eq!(b.node(1).engine.counters().rx_atomic_requests, 4);
    assert_eq!(
        b.sent(1)[1],
        "RC_ATOMIC_ACK psn=101 pay=0 syn=1f msn=2",
        "an answer of its own, which counts the message"
    );
}

/// Two entries, or more room than 8 bytes: the value fills the front.
#[test]
fn the_value_fills_the_first_8_bytes_of_the_list() {
    let mut b = Bench::new();
    let at = b.word(0x1122_3344_5566_7788);
    let (first, second) = (b.node(0).memory.alloc(3), b.node(0).memory.alloc(20));
    let lkey = b.node(0).mr.lkey;
    let list = sges(&[(first, 3), (second, 20)], lkey);
    let (wr, _) = b.wr(FetchAdd, 0);
    b.post_wr(
        SendWr {
            remote_addr: at + IOVA_SHIFT,
            num_sge: 2,
            ..wr
        },
        &list,
    );
    b.run();
    let got = b.node(0).memory.gather(&[(first, 3), (second, 5)]);
    assert_eq!(got, 0x1122_3344_5566_7788u64.to_ne_bytes());
    assert!(b.node(0).memory.guards_intact(&[(first, 3), (second, 5)]));
    assert_eq!(b.w.completions(0)[0].byte_len, 8);
}

#[test]
fn a_duplicate_atomic_gets_the_kept_answer_and_changes_nothing() {
    let mut b = Bench::new();
    let at = b.word(7);
    let ext = b.eth(at, 1, 0);
    b.inject(Opcode::RC_FETCH_ADD, 0x100, 0, ext);
    b.inject(Opcode::RC_FETCH_ADD, 0x101, 0, ext);
    b.inject(Opcode::RC_FETCH_ADD, 0x100, 0, ext);
    let answer = |b: &mut Bench| b.w.log.last().expect("an answer").2.ext.compare;
    assert_eq!((answer(&mut b), b.value(at)), (7, 9));
    // One that asks for something else, or is of another kind, is no duplicate of it.
    b.sent(1);
    let elsewhere = ExtHeaders {
        va: ext.va + 8,
        ..ext
    };
    b.inject(Opcode::RC_FETCH_ADD, 0x100, 0, elsewhere);
    b.inject(Opcode::RC_CMP_SWAP, 0x100, 0, ext);
    b.inject(Opcode::RC_READ_REQUEST, 0x100, 0, ext);
    assert!(b.sent(1).is_empty());
    // 16 are kept.
    for psn in 0x102..0x111 {
        b.inject(Opcode::RC_FETCH_ADD, psn, 0, ext);
    }
    b.sent(1);
    b.inject(Opcode::RC_FETCH_ADD, 0x100, 0, ext);
    assert!(b.sent(1).is_empty(), "no longer kept: dropped");
    b.inject(Opcode::RC_FETCH_ADD, 0x101, 0, ext);
    assert_eq!((answer(&mut b), b.value(at)), (8, 7 + 17));
    assert_eq!(b.state(1), QpState::Rts);
}

#[test]
fn a_lost_answer_to_an_atomic_is_asked_for_again() {
    for lost in 1..4 {
        let mut b = Bench::new();
        let at = b.word(1);
        b.lose(1, Opcode::RC_ATOMIC_ACK, 0x100, lost);
        let answers = [[2, 0], [3, 0], [4, 0]].map(|add| b.atomic(FetchAdd, at, add));
        b.post(Write, 8);
        b.run();
        assert_eq!(answers.map(|a| b.answer(a)), [1, 3, 6], "{lost}");
        assert_eq!(b.value(at), 10);
        assert_eq!(b.done(0), [0, 1, 2, 3].map(|n| (n, Success)));
        let c = *b.node(0).engine.counters();
        assert!(
            c.implied_nak_seq_err + c.local_ack_timeout_err >= lost.into(),
            "{c:?}"
        );
    }
}

/// WRITE, atomic, atomic, READ of one word, with memory that takes its time: as if one after the other.
#[test]
fn atomics_and_what_is_placed_before_them_are_in_order() {
    for seed in 0..20 {
        let mut b = Bench::with_config(default_config(seed));
        b.node(1).memory_faults = SLOW;
        let at = b.word(0);
        let (mut wr, list) = b.wr(Write, 8);
        wr.remote_addr = at + IOVA_SHIFT;
        b.node(0)
            .memory
            .write(list[0].addr - IOVA_SHIFT, &40u64.to_ne_bytes());
        b.post_wr(wr, &list);
        let add = b.atomic(FetchAdd, at, [2, 0]);
        let swap = b.atomic(CmpSwap, at, [42, 77]);
        let (mut read, back) = b.wr(Read, 8);
        read.remote_addr = at + IOVA_SHIFT;
        b.post_wr(read, &back);
        b.run();
        let read = b.answer(back[0].addr - IOVA_SHIFT);
        assert_eq!(
            (b.answer(add), b.answer(swap), read),
            (40, 42, 77),
            "{seed}"
        );
    }
}

#[test]
fn atomics_need_an_address_that_is_a_multiple_of_8() {
    for (opcode, payload) in [
        (Opcode::RC_CMP_SWAP, 0),
        (Opcode::RC_FETCH_ADD, 0),
        (Opcode::RC_ATOMIC_WRITE, 8),
    ] {
        for off in [1, 2, 4, 7] {
            let mut b = Bench::new();
            let at = b.word(5);
            let mut ext = b.eth(at - 8 + off, 1, 5);
            ext.dma_len = payload;
            b.inject(opcode, 0x100, payload, ext);
            assert_eq!(b.sent(1), ["RC_ACK psn=100 pay=0 syn=61 msn=0"]);
            assert_eq!(b.events(1), [AsyncKind::QpReqErr]);
            assert_eq!(b.value(at), 5);
        }
    }
}

#[test]
fn atomics_need_the_right_of_the_region() {
    let rights = [
        (Opcode::RC_CMP_SWAP, 0, 7),
        (Opcode::RC_FETCH_ADD, 0, 7),
        (Opcode::RC_ATOMIC_WRITE, 8, 0xd),
        (Opcode::RC_FLUSH, 0, 0xf),
    ];
    for (opcode, payload, access) in rights {
        let mut b = Bench::new();
        let (addr, len) = b.node(1).memory.extent();
        let attr = MrAttr {
            pd: PD,
            addr,
            iova: addr + IOVA_SHIFT,
            len,
            access: Access(access),
        };
        let at = b.word(5);
        let mut ext = b.eth(at, 1, 5);
        ext.rkey = b.node(1).engine.register(attr).expect("room").rkey;
        ext.dma_len = payload;
        ext.qkey = VISIBLE.raw();
        b.inject(opcode, 0x100, payload, ext);
        assert_eq!(
            b.sent(1),
            ["RC_ACK psn=100 pay=0 syn=62 msn=0"],
            "{opcode:?}"
        );
        assert_eq!(b.events(1), [AsyncKind::QpAccessErr]);
        assert_eq!(b.value(at), 5);
        assert_eq!(b.node(1).engine.counters().resp_remote_access_errors, 1);
    }
}

/// IBTA 9.7.5.1: READs and atomics share the responder's resources, and `max_rd_atomic` counts both.
#[test]
fn reads_and_atomics_share_the_resources() {
    let mut b = Bench::with_attr(QpAttr {
        max_rd_atomic: 2,
        max_dest_rd_atomic: 2,
        ..default_attr()
    });
    b.node(1).memory_faults = SLOW;
    let at = b.word(0);
    for _ in 0..5 {
        b.post(Read, 3000);
        b.atomic(FetchAdd, at, [1, 0]);
        let (mut wr, list) = b.wr(AtomicWrite, 8);
        wr.remote_addr = at + IOVA_SHIFT;
        b.post_wr(wr, &list);
        b.flush(VISIBLE, at, 8);
    }
    b.run();
    assert_eq!(b.done(0).len(), 20);
    assert_eq!(b.state(1), QpState::Rts, "never more than 2 at once");

    let mut b = Bench::with_attr(QpAttr {
        max_dest_rd_atomic: 1,
        ..default_attr()
    });
    b.node(1).memory_faults = SLOW;
    let at = b.word(0);
    b.atomic(FetchAdd, at, [1, 0]);
    b.post(Read, 8);
    b.run();
    assert_eq!(b.done(0), [(0, Success), (1, RemInvReqErr)]);
}

#[test]
fn nothing_that_is_answered_goes_out_without_a_credit() {
    for op in [CmpSwap, FetchAdd, AtomicWrite, Flush] {
        let mut b = Bench::with_attr(QpAttr {
            max_rd_atomic: 0,
            ..default_attr()
        });
        let (wr, list) = b.wr(op, 8);
        b.post_wr(wr, &list);
        b.run();
        assert_eq!(b.done(0), [(0, LocQpOpErr)], "{op:?}");
        assert!(b.sent(0).is_empty());
    }
}

#[test]
fn a_fence_waits_for_atomics() {
    let mut b = Bench::new();
    b.receive(64);
    let at = b.word(0);
    b.atomic(FetchAdd, at, [1, 0]);
    let (wr, list) = b.wr(Send, 8);
    b.post_wr(SendWr { fence: true, ..wr }, &list);
    b.run();
    let log: Vec<_> = b.w.log.iter().map(|l| l.2.opcode).collect();
    let order = [
        Opcode::RC_FETCH_ADD,
        Opcode::RC_ATOMIC_ACK,
        Opcode::RC_SEND_ONLY,
        Opcode::RC_ACK,
    ];
    assert_eq!(log, order);
}

#[test]
fn the_answer_to_an_atomic_acknowledges_what_is_before_it() {
    let mut b = Bench::with_attr(no_timeout());
    let at = b.word(0);
    b.filter(|from, _, f| match (from, f.opcode) {
        (1, Opcode::RC_ACK) => Verdict::Drop,
        _ => Verdict::Pass,
    });
    b.post(Write, 8);
    b.post(Write, 3000);
    b.atomic(FetchAdd, at, [1, 0]);
    b.run();
    assert_eq!(b.done(0), [0, 1, 2].map(|n| (n, Success)));
}

/// An ACK beyond an atomic whose answer is missing is an implied NAK (IBTA 9.7.6).
#[test]
fn an_ack_does_not_acknowledge_an_atomic() {
    let mut b = Bench::with_attr(no_timeout());
    let at = b.word(3);
    b.lose(1, Opcode::RC_ATOMIC_ACK, 0x100, 1);
    let answer = b.atomic(FetchAdd, at, [1, 0]);
    b.post(Write, 8);
    b.run();
    assert_eq!(b.done(0), [0, 1].map(|n| (n, Success)));
    assert_eq!((b.answer(answer), b.value(at)), (3, 4));
    assert_eq!(b.node(0).engine.counters().implied_nak_seq_err, 1);
}

#[test]
fn memory_that_fails_an_atomic_fails_the_responder() {
    for op in [FetchAdd, AtomicWrite] {
        let mut b = Bench::new();
        b.node(1).memory_faults = MemoryFaults {
            fault: 1000,
            ..MemoryFaults::default()
        };
        let at = b.word(0);
        let (mut wr, list) = b.wr(op, 8);
        wr.remote_addr = at + IOVA_SHIFT;
        b.post_wr(wr, &list);
        b.run();
        assert_eq!(b.done(0), [(0, RemOpErr)], "{op:?}");
        assert_eq!(b.events(1), [AsyncKind::QpFatal]);
        assert_eq!(b.value(at), 0);
    }
    // The answer's own place.
    let mut b = Bench::new();
    b.node(0).memory_faults.fault = 1000;
    let at = b.word(0);
    b.atomic(FetchAdd, at, [1, 0]);
    b.run();
    assert_eq!(b.done(0), [(0, LocProtErr)]);
    assert_eq!(b.value(at), 1);
}

#[test]
fn an_atomic_write_is_answered_like_a_read_and_done_once() {
    let mut b = Bench::new();
    let at = b.word(0);
    let (mut wr, list) = b.wr(AtomicWrite, 8);
    wr.remote_addr = at + IOVA_SHIFT;
    let from = list[0].addr - IOVA_SHIFT;
    b.node(0)
        .memory
        .write(from, &0x0102_0304_0506_0708u64.to_ne_bytes());
    b.post_wr(wr, &list);
    b.run();
    assert_eq!(b.value(at), 0x0102_0304_0506_0708);
    assert_eq!(b.sent(0), ["RC_ATOMIC_WRITE psn=100 A pay=8 dmalen=8"]);
    assert_eq!(b.sent(1), ["RC_READ_RESP_ONLY psn=100 pay=0 syn=1f msn=1"]);
    assert_eq!(b.w.completions(0)[0].opcode, WcOpcode::AtomicWrite);
    // A duplicate is answered, and writes nothing.
    let ext = ExtHeaders {
        dma_len: 8,
        ..b.eth(at, 0, 0)
    };
    b.inject(Opcode::RC_ATOMIC_WRITE, 0x100, 8, ext);
    assert_eq!(b.sent(1), ["RC_READ_RESP_ONLY psn=100 pay=0 syn=1f msn=1"]);
    assert_eq!(b.value(at), 0x0102_0304_0506_0708);
    // Its bytes may lie in the queue slot, however little inline data the QP takes.
    let mut b = Bench::with(
        default_config(1),
        &default_attr(),
        &QpInit {
            max_inline: 0,
            ..default_init()
        },
    );
    let at = b.word(0);
    let (wr, _) = b.wr(AtomicWrite, 8);
    let wr = SendWr {
        remote_addr: at + IOVA_SHIFT,
        inline: true,
        num_sge: 0,
        ..wr
    };
    let qp = b.ids[0];
    assert!(b.node(0).post_send(qp, wr, &[], &77u64.to_ne_bytes()));
    b.run();
    assert_eq!((b.value(at), b.done(0)), (77, vec![(0, Success)]));
}

#[test]
fn an_atomic_write_has_8_bytes() {
    for (payload, dma_len) in [(8, 16), (4, 8), (16, 16), (0, 0), (0, 8)] {
        let mut b = Bench::new();
        let at = b.word(5);
        let ext = ExtHeaders {
            dma_len,
            ..b.eth(at, 0, 0)
        };
        b.inject(Opcode::RC_ATOMIC_WRITE, 0x100, payload, ext);
        assert_eq!(b.sent(1), ["RC_ACK psn=100 pay=0 syn=61 msn=0"]);
        assert_eq!(b.value(at), 5);
    }
}

/// IBTA A19.4.4: its answer says that what came before it is in memory.
#[test]
fn a_flush_is_answered_when_what_is_before_it_is_placed() {
    let mut b = Bench::new();
    let at = b.word(0);
    b.node(1).memory_faults = MemoryFaults::slow(500_000);
    let (wr, list) = b.wr(Write, 3000);
    b.post_wr(wr, &list);
    b.flush(VISIBLE, at, 8);
    let written = wr.remote_addr - IOVA_SHIFT;
    let source = b
        .node(0)
        .memory
        .read(list[0].addr - IOVA_SHIFT, 3000)
        .to_vec();
    while b.w.poll() {}
    loop {
        let answered =
            b.w.log
                .iter()
                .any(|l| l.2.opcode == Opcode::RC_READ_RESP_ONLY);
        if answered {
            break;
        }
        let next = b.w.next_time().expect("an answer to the FLUSH");
        b.w.run_until(next);
    }
    assert_eq!(b.node(1).memory.read(written, 3000), source);
    b.run();
    assert_eq!(b.done(0), [(0, Success), (1, Success)]);
}

#[test]
fn a_flush_of_a_range_is_checked_and_one_of_a_region_has_none() {
    let region = Feth {
        selectivity: Feth::REGION,
        ..VISIBLE
    };
    let persistent = Feth {
        placement: Feth::PERSISTENT,
        ..VISIBLE
    };
    let mut b = Bench::new();
    let at = b.word(0);
    b.flush(VISIBLE, at, 8);
    b.flush(region, at + (64 << 20), 8);
    b.run();
    assert_eq!(b.done(0), [(0, Success), (1, Success)]);
    let told: Vec<_> = b.sent(0);
    assert_eq!(told[0], "RC_FLUSH psn=100 A pay=0 dmalen=8");
    b.flush(VISIBLE, at + (64 << 20), 8);
    b.run();
    assert_eq!(b.done(0), [(2, RemAccessErr)]);

    // A right that the queue pair does not have, and kinds that do not exist.
    let nothing = Feth {
        placement: 0,
        ..VISIBLE
    };
    let odd = Feth {
        selectivity: 2,
        ..VISIBLE
    };
    for feth in [persistent, nothing, odd] {
        let mut b = Bench::new();
        let at = b.word(0);
        b.flush(feth, at, 8);
        b.run();
        assert_eq!(b.done(0), [(0, RemInvReqErr)], "{feth:?}");
    }
}
