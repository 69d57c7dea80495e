//! The poll loop allocates nothing while data flows: a counting allocator says so.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

use roceline::bench::Pair;
use roceline::bench::producer::{INLINE, SIGNALED};
use roceline::lcore::probe::NoProbe;
use roceline_engine::AckPolicy;
use roceline_engine::verbs::{Mtu, Sge, WrOpcode};

struct Counting;

thread_local! {
    /// Allocations of this thread.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn count() -> u64 {
    COUNT.with(Cell::get)
}

// SAFETY: hands everything on to the system allocator; counting has no effect on it. The thread-local is const and
// has no destructor, so it may be touched here.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const LEN: u32 = 20_000;

#[test]
fn the_loop_allocates_nothing_while_data_flows() {
    let before_setup = count();
    let mut pair = Pair::new(AckPolicy::Coalesced, Mtu::M4096, 6).unwrap();
    assert!(count() > before_setup, "the counter works");
    let mut from = vec![7u8; LEN as usize];
    let mut to = vec![0u8; LEN as usize];
    let mut poll = || {
        pair.lcore.turn(&mut NoProbe);
    };
    let a_key = pair
        .a
        .producer
        .register(from.as_mut_ptr() as u64, u64::from(LEN), &mut poll)
        .unwrap();
    let b_key = pair
        .b
        .producer
        .register(to.as_mut_ptr() as u64, u64::from(LEN), &mut poll)
        .unwrap();
    let local = |length| Sge {
        addr: from.as_ptr() as u64,
        length,
        lkey: a_key,
    };
    let sink = Sge {
        addr: to.as_ptr() as u64,
        length: LEN,
        lkey: b_key,
    };
    let remote = (to.as_ptr() as u64, b_key);
    let end = Instant::now() + Duration::from_secs(120);
    // The first rounds may grow what grows once; after them not one allocation is allowed.
    let mut allocated = 0;
    for round in 0..200 {
        pair.b.producer.post_recv(&mut pair.b.qp, sink);
        let (producer, qp) = (&pair.a.producer, &mut pair.a.qp);
        producer.post_send(
            qp,
            WrOpcode::Write,
            SIGNALED | INLINE,
            local(8),
            remote,
            Some(&[9; 8]),
        );
        producer.post_send(qp, WrOpcode::Write, SIGNALED, local(LEN), remote, None);
        producer.post_send(qp, WrOpcode::Read, SIGNALED, local(LEN), remote, None);
        producer.post_send(qp, WrOpcode::Send, SIGNALED, local(LEN), remote, None);
        producer.ring(qp);
        let (mut sent, mut received) = (0, 0);
        while sent < 4 || received < 1 {
            assert!(
                Instant::now() < end,
                "round {round}: {sent} sent, {received} received"
            );
            let before = count();
            let work = pair.lcore.turn(&mut NoProbe);
            if round >= 5 {
                allocated += count() - before;
            }
            if work == 0 {
                std::thread::yield_now();
            }
            while let Some(cqe) = pair.a.producer.poll_cq() {
                assert_eq!((cqe.status, cqe.vendor_err), (0, 0));
                sent += 1;
            }
            while let Some(cqe) = pair.b.producer.poll_cq() {
                assert_eq!((cqe.status, cqe.byte_len), (0, LEN));
                received += 1;
            }
        }
    }
    assert_eq!(allocated, 0);
    assert_eq!(to, from);
}
