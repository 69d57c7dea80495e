//! Memory windows as send requests and peers meet them. Which binding is allowed, the table's own tests say.

use roceline_engine::memory::{Access, MwInfo, WindowType};
use roceline_engine::verbs::*;
use roceline_engine::wire::{ExtHeaders, Feth, Opcode};

use super::*;
use crate::node::{MemoryFaults, PD};
use WcStatus::*;
use WrOpcode::{BindMw, LocalInv, Read, Send, SendInv, Write};

impl Bench {
    fn window(&mut self, n: usize, kind: WindowType) -> MwInfo {
        let made = self.node(n).engine.alloc_window(PD, kind);
        made.expect("room")
    }

    /// A request of node `n` that binds a window to 4 KiB; the new key, and the first byte of the window.
    fn bind_wr(&mut self, n: usize, window: u32) -> (SendWr, u32, u64) {
        let at = self.node(n).memory.alloc(4096);
        let key = window & !0xff | (window.wrapping_add(1) & 0xff);
        let rights = 0xe;
        let wr = SendWr {
            wr_id: 500,
            opcode: Some(BindMw),
            signaled: true,
            imm_or_rkey: window,
            rkey: key,
            remote_addr: at + IOVA_SHIFT,
            compare_add: 4096,
            swap: u64::from(self.node(n).mr.lkey) | rights << 32,
            ..SendWr::default()
        };
        (wr, key, at)
    }

    /// Node 1 binds; key and first byte.
    fn bound(&mut self, kind: WindowType) -> (u32, u64) {
        let window = self.window(1, kind).rkey;
        let (wr, key, at) = self.bind_wr(1, window);
        self.post_at(1, wr);
        self.run();
        assert_eq!(self.done(1), [(500, Success)]);
        (key, at)
    }

    fn post_at(&mut self, n: usize, wr: SendWr) {
        let qp = self.ids[n];
        assert!(self.node(n).post_send(qp, wr, &[], &[]));
    }

    /// A WRITE of node 0 through a key of node 1.
    fn write_through(&mut self, key: u32, at: u64) -> u64 {
        let (wr, list) = self.wr(Write, 64);
        let wr = SendWr {
            rkey: key,
            remote_addr: at + IOVA_SHIFT,
            ..wr
        };
        self.post_wr(wr, &list)
    }

    fn send_inv(&mut self, key: u32) -> u64 {
        let (wr, list) = self.wr(SendInv, 8);
        self.post_wr(
            SendWr {
                imm_or_rkey: key,
                ..wr
            },
            &list,
        )
    }
}

fn local_inv(key: u32) -> SendWr {
    SendWr {
        wr_id: 501,
        opcode: Some(LocalInv),
        signaled: true,
        imm_or_rkey: key,
        ..SendWr::default()
    }
}

#[test]
fn peers_use_a_bound_window_until_it_is_invalidated() {
    for kind in [WindowType::One, WindowType::Two] {
        let mut b = Bench::new();
        let (key, at) = b.bound(kind);
        b.write_through(key, at);
        b.run();
        assert_eq!(b.done(0), [(0, Success)]);
        match kind {
            WindowType::Two => b.post_at(1, local_inv(key)),
            WindowType::One => {
                let (wr, ..) = b.bind_wr(1, key);
                b.post_at(
                    1,
                    SendWr {
                        wr_id: 501,
                        compare_add: 0,
                        ..wr
                    },
                );
            }
        }
        b.run();
        assert_eq!(b.done(1), [(501, Success)]);
        b.write_through(key, at);
        b.run();
        assert_eq!(b.done(0), [(1, RemAccessErr)]);
    }
}

#[test]
fn local_operations_complete_in_their_turn() {
    let mut b = Bench::new();
    let window = b.window(0, WindowType::Two).rkey;
    let (bind, key, _) = b.bind_wr(0, window);
    let first = b.post(Write, 9000);
    b.post_at(0, bind);
    b.post(Write, 64);
    b.post_at(
        0,
        SendWr {
            signaled: false,
            ..local_inv(key)
        },
    );
    let last = b.post(Read, 64);
    b.run();
    let done = b.w.completions(0);
    let told: Vec<_> = done.iter().map(|c| (c.wr_id, c.opcode)).collect();
    let (write, read) = (WcOpcode::RdmaWrite, WcOpcode::RdmaRead);
    let order = [
        (first, write),
        (500, WcOpcode::BindMw),
        (1, write),
        (last, read),
    ];
    assert_eq!(told, order);
    assert_eq!(b.w.nodes[0].occupied(b.ids[0]), 0);
}

/// Nothing is on the wire: they complete at once, one by one or many together.
#[test]
fn local_operations_alone_need_no_peer() {
    let mut b = Bench::new();
    let mut window = b.window(0, WindowType::One).rkey;
    for _ in 0..30 {
        let (bind, key, _) = b.bind_wr(0, window);
        b.post_at(0, bind);
        window = key;
    }
    b.run();
    assert_eq!(b.done(0), [(500, Success); 30]);
    assert!(b.sent(0).is_empty() && b.w.is_idle());
}

/// Requests that go out again pass over what was carried out between them.
#[test]
fn local_operations_are_carried_out_once() {
    for psn in 0x100..0x104 {
        let mut b = Bench::new();
        let window = b.window(0, WindowType::Two).rkey;
        b.lose(0, Opcode::RC_WRITE_ONLY, psn, 2);
        b.post(Write, 64);
        let (bind, key, _) = b.bind_wr(0, window);
        b.post_at(0, bind);
        b.post(Write, 64);
        b.post_at(0, local_inv(key));
        let (again, second, _) = b.bind_wr(0, key);
        b.post_at(0, again);
        b.post(Write, 64);
        b.post_at(0, local_inv(second));
        b.post(Write, 64);
        b.run();
        let order = [0, 500, 1, 501, 500, 2, 501, 3].map(|n| (n, Success));
        assert_eq!(b.done(0), order, "{psn:x}");
        assert_eq!(b.w.nodes[0].occupied(b.ids[0]), 0);
    }
}

/// With the fence an invalidation waits for all that was posted before it, so that it cannot take the key away from it.
#[test]
fn a_fenced_invalidation_waits_for_everything_before_it() {
    let mut b = Bench::new();
    let (bind, key, _) = {
        let window = b.window(0, WindowType::Two).rkey;
        b.bind_wr(0, window)
    };
    b.post_at(0, bind);
    b.run();
    b.done(0);
    b.filter(|from, _, _| match from {
        1 => Verdict::Delay(Nanos(50_000)),
        _ => Verdict::Pass,
    });
    b.post(Write, 64);
    b.post_at(
        0,
        SendWr {
            fence: true,
            ..local_inv(key)
        },
    );
    b.w.run_for(Nanos(40_000));
    assert!(b.w.completions(0).is_empty());
    b.run();
    assert_eq!(b.w.completions(0).len(), 2);
}

#[test]
fn what_cannot_be_bound_or_invalidated_fails_the_request() {
    let mut b = Bench::new();
    let window = b.window(0, WindowType::Two).rkey;
    let (bind, key, _) = b.bind_wr(0, window);
    b.post_at(0, bind);
    b.post_at(0, bind);
    b.run();
    assert_eq!(b.done(0), [(500, Success), (500, MwBindErr)]);
    assert_eq!(b.state(0), QpState::Err);

    let mut b = Bench::new();
    let rkey = b.node(0).mr.rkey;
    b.post_at(0, local_inv(rkey));
    b.post(Write, 8);
    b.run();
    assert_eq!(
        b.done(0),
        [(501, LocQpOpErr), (0, WrFlushErr)],
        "a region, not {key:#x}"
    );
    assert!(b.sent(0).is_empty());
}

#[test]
fn a_send_with_invalidate_takes_the_key_away_and_says_so() {
    for len in [8, 5000] {
        let mut b = Bench::new();
        let (key, at) = b.bound(WindowType::Two);
        b.receive(len);
        b.write_through(key, at);
        let (wr, list) = b.wr(SendInv, len);
        b.post_wr(
            SendWr {
                imm_or_rkey: key,
                ..wr
            },
            &list,
        );
        b.write_through(key, at);
        b.run();
        assert_eq!(b.done(0), [(0, Success), (1, Success), (2, RemAccessErr)]);
        let got = b.w.completions(1)[0];
        assert_eq!((got.flags, got.imm_or_rkey), (WC_WITH_INV, key));
        assert_eq!((got.byte_len, got.opcode), (len, WcOpcode::Recv));
    }
}

/// A key of another QP, of no window, of a window of type 1, of a region: refused, and nothing is invalidated.
#[test]
fn a_send_with_invalidate_of_something_else_is_a_remote_access_error() {
    type Key = dyn Fn(&mut Bench) -> u32;
    let keys: [(&str, Box<Key>); 4] = [
        ("none", Box::new(|_| 0xdead_0001)),
        ("a region", Box::new(|b| b.node(1).mr.rkey)),
        ("type 1", Box::new(|b| b.bound(WindowType::One).0)),
        ("not bound", Box::new(|b| b.window(1, WindowType::Two).rkey)),
    ];
    for (name, key) in keys {
        let mut b = Bench::new();
        let key = key(&mut b);
        b.receive(8);
        b.receive(8);
        b.send_inv(key);
        b.run();
        assert_eq!(b.done(0), [(0, RemAccessErr)], "{name}");
        assert_eq!(
            b.done(1),
            [(1000, RemInvReqErr), (1001, WrFlushErr)],
            "{name}"
        );
        assert!(b.sent(1).last().is_some_and(|l| l.contains("syn=62")));
        assert_eq!(b.state(1), QpState::Err);
    }
    // Another QP of the same protection domain has bound it.
    let mut b = Bench::new();
    let (key, at) = b.bound(WindowType::Two);
    let (attr, init) = (default_attr(), default_init());
    let first = b.ids;
    b.ids = b.w.connect([&init, &init], [&attr, &attr]);
    b.write_through(key, at);
    b.run();
    assert_eq!(b.done(0), [(0, RemAccessErr)]);
    b.ids = first;
    b.write_through(key, at);
    b.run();
    assert_eq!(b.done(0), [(1, Success)]);
}

/// The key goes when the SEND's turn has come: a READ before it still has it, and a WRITE behind it has it no more,
/// although the SEND's own payload is slow to arrive in memory.
#[test]
fn invalidation_is_in_the_order_of_the_requests() {
    for seed in 0..20 {
        let mut b = Bench::with_config(default_config(seed));
        let (key, at) = b.bound(WindowType::Two);
        b.node(1).memory_faults = MemoryFaults {
            pending: 800,
            pending_ns: 20_000,
            fault: 0,
        };
        b.receive(8);
        let (wr, list) = b.wr(Read, 4096);
        b.post_wr(
            SendWr {
                rkey: key,
                remote_addr: at + IOVA_SHIFT,
                ..wr
            },
            &list,
        );
        b.send_inv(key);
        b.write_through(key, at);
        b.run();
        let done = [(0, Success), (1, Success), (2, RemAccessErr)];
        assert_eq!(b.done(0), done, "{seed}");
        assert!(b.done(1).starts_with(&[(1000, Success)]));
    }
}

/// A FLUSH of a whole region names no range, but its key counts as any other's.
#[test]
fn a_flush_of_a_region_behind_its_invalidation_is_refused() {
    let mut b = Bench::new();
    let window = b.window(1, WindowType::Two).rkey;
    let (mut bind, key, at) = b.bind_wr(1, window);
    bind.swap |= u64::from(Access::FLUSH_GLOBAL.0) << 32;
    b.post_at(1, bind);
    b.run();
    assert_eq!(b.done(1), [(500, Success)]);
    b.node(1).memory_faults.pending = 1000;
    b.node(1).memory_faults.pending_ns = 500_000;
    b.receive(8);
    b.send_inv(key);
    let region = Feth {
        placement: Feth::GLOBAL,
        selectivity: Feth::REGION,
    };
    let (wr, _) = b.wr(WrOpcode::Flush, 0);
    let flush = SendWr {
        rkey: key,
        remote_addr: at + IOVA_SHIFT,
        imm_or_rkey: region.raw(),
        ..wr
    };
    b.post_wr(flush, &[]);
    b.run();
    assert_eq!(b.done(0), [(0, Success), (1, RemAccessErr)]);
}

/// When it completes, nothing that came through the key is still on its way into memory.
#[test]
fn a_local_invalidation_waits_for_what_came_through_the_key() {
    let mut b = Bench::new();
    let (key, at) = b.bound(WindowType::Two);
    b.node(1).memory_faults = MemoryFaults::slow(500_000);
    let (wr, list) = b.wr(Write, 3000);
    b.post_wr(
        SendWr {
            rkey: key,
            remote_addr: at + IOVA_SHIFT,
            ..wr
        },
        &list,
    );
    // The WRITE has arrived, and waits for memory.
    while b.node(1).pending() == 0 {
        while b.w.poll() {}
        b.w.now = b.w.next_time().expect("a packet on its way");
    }
    b.post_at(1, local_inv(key));
    while b.node(1).completions.is_empty() {
        while b.w.poll() {}
        b.w.now = b.w.next_time().expect("a completion");
    }
    let written = b.node(1).memory.read(at, 3000).to_vec();
    b.run();
    let [done] = b.done(0)[..] else {
        panic!("one completion");
    };
    // All of it or, if the rest came too late, what had come; nothing afterwards.
    assert!(matches!(done.1, Success | RemAccessErr));
    assert_eq!(b.node(1).memory.read(at, 3000), written);
    assert_eq!(b.done(1)[0], (501, Success));
}

/// A peer that always has something on its way, into memory that takes its time, does not hold it up for ever.
#[test]
fn a_local_invalidation_ends_beside_a_peer_that_streams_into_slow_memory() {
    let mut b = Bench::new();
    let (key, at) = b.bound(WindowType::Two);
    b.node(1).memory_faults = MemoryFaults::slow(500_000);
    let (wr, list) = b.wr(Write, 3000);
    let wr = SendWr {
        rkey: key,
        remote_addr: at + IOVA_SHIFT,
        ..wr
    };
    // As much as the send queue takes, all the time.
    let stream = |b: &mut Bench| {
        let qp = b.ids[0];
        while b.node(0).post_send(qp, wr, &list, &[]) {}
        while b.w.poll() {}
        b.w.now = b.w.next_time().expect("something on its way");
    };
    let begin = b.w.now;
    while b.w.now - begin < Nanos(50_000_000) {
        stream(&mut b);
    }
    b.post_at(1, local_inv(key));
    let asked = b.w.now;
    while b.node(1).completions.is_empty() {
        stream(&mut b);
        assert!(b.w.now - asked < Nanos(50_000_000), "it waits for ever");
    }
    let written = b.node(1).memory.read(at, 3000).to_vec();
    b.run();
    assert_eq!(b.done(1)[0], (501, Success));
    assert_eq!(b.node(1).memory.read(at, 3000), written);
    assert!(b.done(0).iter().any(|done| done.1 == RemAccessErr));
}

#[test]
fn a_window_ends_with_its_qp() {
    let mut b = Bench::new();
    let (key, _) = b.bound(WindowType::Two);
    let (qp, lkey) = (b.ids[1], b.node(1).mr.lkey);
    assert!(b.node(1).engine.deregister(lkey).is_err(), "bound");
    b.node(1).engine.destroy_qp(qp).expect("it exists");
    assert!(b.node(1).engine.deregister(lkey).is_ok());
    assert!(b.node(1).engine.dealloc_window(key >> 8));
}

/// In a zero-based window the address that a peer names and the one in the program differ: both must suit an atomic.
#[test]
fn an_atomic_in_a_zero_based_window_needs_both_addresses_aligned() {
    for (shift, va, fits) in [(0, 8, true), (0, 4, false), (4, 4, false), (4, 8, false)] {
        let mut b = Bench::new();
        let window = b.window(1, WindowType::Two).rkey;
        let (mut wr, key, _) = b.bind_wr(1, window);
        let at = b.node(1).memory.alloc_word(1);
        b.node(1).memory.alloc_word(1);
        wr.remote_addr = at + shift + IOVA_SHIFT;
        wr.compare_add = 16;
        wr.swap |= u64::from(Access::ZERO_BASED.0) << 32;
        b.post_at(1, wr);
        b.run();
        let ext = ExtHeaders {
            va,
            rkey: key,
            swap_add: 1,
            ..NO_HEADERS
        };
        b.sent(1);
        b.inject(Opcode::RC_FETCH_ADD, 0x100, 0, ext);
        let answer = b.sent(1);
        assert_eq!(answer[0].contains("ATOMIC_ACK"), fits, "{answer:?}");
        assert_eq!(answer[0].contains("syn=61"), !fits, "{answer:?}");
    }
    // Sends go through without a window.
    let mut b = Bench::new();
    b.receive(8);
    b.post(Send, 8);
    b.run();
    assert_eq!(b.done(0), [(0, Success)]);
}
