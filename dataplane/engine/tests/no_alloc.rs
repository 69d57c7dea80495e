//! The datapath calls of the engine, and impairment rules, allocate nothing once their objects exist.

#[path = "../benches/ideal/mod.rs"]
mod ideal;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use ideal::Ideal;
use roceline_engine::congestion::{AlgorithmKind, CongestionConfig};
use roceline_engine::fabric::impair::fuzz::{self, Scope};
use roceline_engine::fabric::impair::{
    Direction, Line, MAX_RULES, PacketView, Random, Rule, RuleSet,
};
use roceline_engine::verbs::{Mtu, QpAttr, QpInit, QpType, SendWr, Sge, UD_STEPS, WrOpcode, mask};
use roceline_engine::wire::icrc::Kernel;
use roceline_engine::{AckPolicy, Nanos};

/// Counts what it passes on.
struct Counting;

thread_local! {
    /// Of this thread: the test harness has one of its own, which allocates when it likes.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn allocations() -> u64 {
    ALLOCATIONS.get()
}

fn count() {
    // A thread that ends has no counter any more.
    let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: all requests go to the system's allocator unchanged; the counter is const and needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the allocator's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the allocator's contract.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the allocator's contract.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn the_datapath_allocates_nothing() {
    // As a daemon does when it starts: to try a kernel out takes memory.
    let choice = Kernel::choose().expect("a kernel of ICRCs");
    choice.kernel.make_current();
    rules_allocate_nothing();
    switches_allocate_nothing();
    unreliable_connections_allocate_nothing();
    datagrams_allocate_nothing();
    congestion_allocates_nothing();
    for policy in [AckPolicy::PerMessage, AckPolicy::Coalesced] {
        let mut pair = Ideal::new(Mtu::M1024, policy);
        let mut window = pair.window();
        let before = allocations();
        let mut posted = 0;
        for round in 0..1000 {
            for op in [
                WrOpcode::Write,
                WrOpcode::Send,
                WrOpcode::WriteImm,
                WrOpcode::Read,
            ] {
                for len in [0, 64, 5000] {
                    posted += u64::from(pair.post(op, len));
                }
            }
            for op in [
                WrOpcode::FetchAdd,
                WrOpcode::AtomicWrite,
                WrOpcode::CmpSwap,
                WrOpcode::Flush,
            ] {
                posted += u64::from(pair.post(op, 8));
            }
            if let Some(key) = pair.bind(window) {
                window = key;
                posted += 1;
            }
            // Sometimes a burst is lost, so that NAKs and retries have their turn too.
            for _ in 0..40 {
                pair.tx(0, 64);
                if round % 10 == 3 {
                    pair.wire[1].truncate(5);
                }
                pair.rx(1);
                pair.tx(1, 64);
                pair.rx(0);
                pair.now.0 += 1_000_000;
                let (end, now) = (&mut pair.ends[0], pair.now);
                end.engine.advance(now, &mut end.queues, &mut end.out);
            }
        }
        assert_eq!(allocations(), before);
        assert_eq!(pair.completions, posted);
        let retries = pair.ends[0].engine.counters();
        assert!(retries.packet_seq_err + retries.local_ack_timeout_err > 0);
        // Nor does a QP that fails, with its record.
        let before = allocations();
        assert!(pair.post(WrOpcode::Write, 64));
        pair.tx(0, 64);
        pair.wire[1].clear();
        while pair.ends[0].engine.post_mortems().last() == 0 {
            pair.now.0 += 1_000_000_000;
            let (end, now) = (&mut pair.ends[0], pair.now);
            end.engine.advance(now, &mut end.queues, &mut end.out);
            end.out.clear();
            pair.tx(0, 64);
            pair.wire[1].clear();
        }
        assert_eq!(allocations(), before);
    }
}

/// With gaps, so that messages are broken.
fn unreliable_connections_allocate_nothing() {
    let mut pair = Ideal::of(QpType::Uc, Mtu::M1024, AckPolicy::PerMessage);
    let before = allocations();
    let mut posted = 0;
    for round in 0..1000 {
        for op in [WrOpcode::Write, WrOpcode::Send, WrOpcode::WriteImm] {
            for len in [0, 64, 5000] {
                posted += u64::from(pair.post(op, len));
            }
        }
        pair.tx(0, 64);
        if round % 3 == 1 {
            pair.wire[1].remove(5);
        }
        pair.rx(1);
    }
    assert_eq!(allocations(), before);
    assert_eq!(pair.completions, posted);
    let c = pair.ends[1].engine.counters();
    assert!(c.out_of_sequence > 300 && c.rx_dropped > 0, "{c:?}");
    assert!(pair.wire[0].is_empty());
}

/// Marks, CNPs, queue pairs that wait for their time, and pauses.
fn congestion_allocates_nothing() {
    let mut pair = Ideal::new(Mtu::M1024, AckPolicy::Coalesced);
    let config = CongestionConfig {
        algorithm: AlgorithmKind::Dcqcn,
        ..CongestionConfig::paper()
    };
    for end in &mut pair.ends {
        end.engine.set_congestion(&config, pair.now);
    }
    let before = allocations();
    for round in 0..3000 {
        pair.post(WrOpcode::Write, 20_000);
        let (end, now) = (&mut pair.ends[0], pair.now);
        end.engine.set_paused(if round % 50 == 0 { 1 } else { 0 });
        end.engine.advance(now, &mut end.queues, &mut end.out);
        pair.tx(0, 64);
        for packet in pair.wire[1].iter_mut().step_by(3) {
            packet.ce = true;
        }
        pair.rx(1);
        pair.tx(1, 64);
        pair.rx(0);
        pair.now.0 += 10_000;
    }
    assert_eq!(allocations(), before);
    let (sender, receiver) = (
        pair.ends[0].engine.counters(),
        pair.ends[1].engine.counters(),
    );
    assert!(receiver.np_ecn_marked_roce_packets > 100);
    assert!(receiver.np_cnp_sent > 50);
    assert_eq!(sender.rp_cnp_handled, receiver.np_cnp_sent);
}

/// UD: sent, fetched, received; some without a receive request's room, some with a wrong Q_Key.
fn datagrams_allocate_nothing() {
    let mut pair = Ideal::new(Mtu::M1024, AckPolicy::PerMessage);
    for end in &mut pair.ends {
        let (_, init) = end.engine.query_qp(end.qp).expect("it exists");
        let init = QpInit {
            qp_type: QpType::Ud,
            ..init
        };
        end.qp = end.engine.create_qp(&init).expect("room");
        for (state, given) in UD_STEPS {
            let attr = QpAttr {
                state,
                qkey: 7,
                ..QpAttr::default()
            };
            let given = given | mask::STATE;
            let (engine, out) = (&mut end.engine, &mut end.out);
            engine
                .modify_qp(end.qp, &attr, given, pair.now, out)
                .expect("the usual way up");
        }
    }
    let ah = pair.ends[0].engine.create_ah(1).expect("room").number;
    let dest_qpn = pair.ends[1].qp.0;
    let before = allocations();
    let mut posted = 0;
    for round in 0..1000 {
        let (end, now) = (&mut pair.ends[0], pair.now);
        for len in [0, 64, 1024] {
            let wr = SendWr {
                opcode: Some(WrOpcode::SendImm),
                signaled: true,
                num_sge: 1,
                length: len.into(),
                ah,
                dest_qpn,
                qkey: 7 + u32::from(round % 10 == 0),
                ..SendWr::default()
            };
            let sge = Sge {
                addr: 1 << 32,
                length: len,
                lkey: end.key,
            };
            posted += u64::from(end.engine.post_send(end.qp, &wr, &[sge]).is_ok());
        }
        end.engine.tx(64, now, &mut end.out);
        for i in 0..end.out.tx.len() {
            let desc = end.out.tx[i];
            assert!(desc.tell_fetched);
            let out = &mut end.out;
            end.engine.fetched(desc.qp, desc.epoch, now, out);
        }
        pair.tx(0, 0);
        pair.rx(1);
    }
    assert_eq!(allocations(), before);
    assert_eq!((posted, pair.completions), (3000, 3000));
    assert_eq!(pair.ends[1].engine.counters().rx_qkey_violations, 300);
}

/// Sets of random rules of all kinds, a line, and changes to bytes.
fn rules_allocate_nothing() {
    let mut frame = vec![0; 1_100];
    frame[..50].copy_from_slice(&[
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 2, 4, 0, 0, 1, 0x40, 0, 64, 17, 0, 0, 10,
        0, 0, 1, 10, 0, 0, 2, 0xc0, 0, 0x12, 0xb7, 3, 0xec, 0, 0, 1, 0, 0xff, 0xff, 0, 0, 0, 7,
    ]);
    let mut random = Random::new(5);
    let mut line: Line<u32> = Line::new(64);
    let mut hits = 0;
    for _ in 0..50 {
        let mut rules: Vec<Rule> = (0..MAX_RULES as u32)
            .map(|id| fuzz::rule(&mut random, id, Scope::Anything, Nanos(10_000)))
            .collect();
        let mut set = RuleSet::new();
        let mut bytes = frame.clone();
        let before = allocations();
        while let Some(rule) = rules.pop() {
            assert!(set.add(rule).is_ok());
        }
        for packet in 0..500 {
            let now = Nanos(packet * 1_000);
            frame[51..54].copy_from_slice(&(packet as u32).to_be_bytes()[1..]);
            bytes.copy_from_slice(&frame);
            let verdict = set.offer(&PacketView::parse(Direction::Rx, &frame), now);
            hits += u32::from(verdict.hits);
            let _ = verdict.apply(&mut bytes);
            let _ = line.push(7, &verdict, now);
            let _ = line.push(7, &verdict.of_copy(), now);
            while line.release(now).is_some() {}
        }
        assert_eq!(allocations(), before);
    }
    assert!(hits > 10_000 && line.overflows() > 0, "{hits}");
}

/// A switch with more frames than its buffer holds, pauses in both directions, marks and drops.
fn switches_allocate_nothing() {
    use roceline_engine::fabric::switch::{FrameInfo, PortConfig, Switch, SwitchConfig};
    use roceline_engine::wire::PauseFrame;

    let port = PortConfig::new(1_000_000_000, 4200, 10, SwitchConfig::CELL);
    let config = SwitchConfig::roce(vec![port; 8], 1 << 18);
    let mut switch = Switch::new(&config).expect("a good switch");
    for port in 0..8 {
        let paths = [port, (port + 1) % 8];
        switch.set_route(port.into(), &paths).expect("a good route");
    }
    let mut random = Random::new(1);
    let (mut dropped, mut marked, mut paused) = (0, 0, 0);
    let before = allocations();
    for n in 0..200_000u64 {
        let now = Nanos(n * 100);
        let info = FrameInfo {
            bytes: 64 + random.below(4_000) as u32,
            priority: 3 * random.below(3) as u8,
            ecn_capable: true,
            dst: random.below(9) as u32,
            flow_hash: random.next_u32(),
        };
        let port = random.below(8) as u16;
        dropped += u32::from(switch.receive(port, &info, n, now).is_err());
        let port = random.below(8) as u16;
        if n % 4 == 0 {
            continue;
        }
        marked += u32::from(switch.transmit(port, now).is_some_and(|d| d.mark_ce));
        if random.below(10) == 0 {
            let quanta = [random.below(500) as u16; 8];
            let frame = PauseFrame::Priority {
                enabled: random.next_u32() as u8,
                quanta,
            };
            switch.on_pause(port, &frame, now);
        }
        switch.advance(now, |_| {});
        while switch.next_pause(now).is_some() {
            paused += 1;
        }
    }
    assert_eq!(allocations() - before, 0);
    assert!(
        dropped > 0 && marked > 0 && paused > 0,
        "{dropped} {marked} {paused}"
    );
}
