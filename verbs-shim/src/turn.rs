//! Whose turn it is on a CPU that the polling threads of several programs share.
//!
//! To give the CPU away and get it back are two switches, 2.3 us, and when a thread has it again what it waits for is often not
//! there yet, but will be within less than that. So a yield is followed by looks: empty polls that give nothing away. Who
//! has just rung a doorbell has nothing to look for, as an answer takes longer than a switch: its next empty poll yields at once.
//!
//! Looks are in vain where what they wait for shares the CPU: the daemon (`--any-cpu`), or a peer that has not had its turn. Those
//! that were are followed by half as long ones, and by none in the end, except to try again now and then.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::sys;

/// How long looks last, in nanoseconds: as a yield that lets another thread run. Who looks so long in vain has lost no more
/// than a switch that was not needed would have cost.
const LONGEST: u32 = 2_500;
/// Shorter than that they are not worth the clock.
const SHORTEST: u32 = 300;
/// A yield that took longer has let another thread run.
const SWITCH: u64 = 1_000;
/// Yields between two tries, where looks were in vain.
const AGAIN: u32 = 64;

/// Of the whole process: threads that poll beside each other change it under one another's hands, which costs a yield or a look.
#[repr(align(64))]
struct Turn {
    /// Empty polls before that look; 0: the next one yields.
    until: AtomicU64,
    /// How long looks last that follow a yield.
    looks: AtomicU32,
    /// An empty poll since the last yield was a look.
    looked: AtomicBool,
    /// The last yield let nobody run: there is nothing better to do than to look, and nobody to make way for after a ring.
    alone: AtomicBool,
    /// Yields that were followed by no looks, wrapping.
    yields: AtomicU32,
}

static TURN: Turn = Turn {
    until: AtomicU64::new(0),
    looks: AtomicU32::new(LONGEST),
    looked: AtomicBool::new(false),
    alone: AtomicBool::new(false),
    yields: AtomicU32::new(0),
};

/// A doorbell was rung.
#[inline]
pub fn rung() {
    // Not written where polls do not yield, nor for each of many requests.
    if TURN.until.load(Ordering::Relaxed) != 0 && !TURN.alone.load(Ordering::Relaxed) {
        TURN.until.store(0, Ordering::Relaxed);
        TURN.looked.store(false, Ordering::Relaxed);
    }
}

/// A poll has found something.
#[inline]
pub fn found() {
    if TURN.looked.load(Ordering::Relaxed) {
        TURN.looked.store(false, Ordering::Relaxed);
        if !TURN.alone.load(Ordering::Relaxed) {
            TURN.looks.store(LONGEST, Ordering::Relaxed);
        }
    }
}

/// A poll has found nothing, where such polls are to yield.
#[inline]
pub fn nothing_found() {
    let now = sys::now_ns();
    if now < TURN.until.load(Ordering::Relaxed) {
        if !TURN.looked.load(Ordering::Relaxed) {
            TURN.looked.store(true, Ordering::Relaxed);
        }
        return;
    }
    give_way(now);
}

/// Yields, and says how long the looks after it last.
fn give_way(now: u64) {
    let mut looks = TURN.looks.load(Ordering::Relaxed);
    let in_vain = TURN.looked.swap(false, Ordering::Relaxed);
    if in_vain && !TURN.alone.load(Ordering::Relaxed) {
        looks = if looks / 2 < SHORTEST { 0 } else { looks / 2 };
        TURN.looks.store(looks, Ordering::Relaxed);
    }
    sys::yield_now();
    let back = sys::now_ns();
    let alone = back - now < SWITCH;
    TURN.alone.store(alone, Ordering::Relaxed);
    if alone {
        // Or the kernel did not want to switch yet, and somebody waits all the same.
        looks = SHORTEST;
    } else if looks == 0 {
        let yields = TURN.yields.load(Ordering::Relaxed).wrapping_add(1);
        TURN.yields.store(yields, Ordering::Relaxed);
        if yields % AGAIN == 0 {
            looks = LONGEST;
        }
    }
    TURN.until.store(
        if looks == 0 {
            0
        } else {
            back + u64::from(looks)
        },
        Ordering::Relaxed,
    );
}
