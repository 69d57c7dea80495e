//! The datapath calls of the engine allocate nothing once its objects exist.

#[path = "../benches/ideal/mod.rs"]
mod ideal;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use ideal::Ideal;
use roceline_engine::AckPolicy;
use roceline_engine::verbs::{Mtu, WrOpcode};

/// Counts what it passes on.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: all requests go to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the allocator's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the allocator's contract.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the allocator's contract.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// One test in this file: another thread's allocations would be counted too.
#[test]
fn the_datapath_allocates_nothing() {
    for policy in [AckPolicy::PerMessage, AckPolicy::Coalesced] {
        let mut pair = Ideal::new(Mtu::M1024, policy);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
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
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), before);
        assert_eq!(pair.completions, posted);
        let retries = pair.ends[0].engine.counters();
        assert!(retries.packet_seq_err + retries.local_ack_timeout_err > 0);
    }
}
