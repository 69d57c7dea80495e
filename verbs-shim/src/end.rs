//! The end of the daemon, seen from a program that polls. Normally the daemon's supervisor outlives it and flushes the
//! queues from outside. Where that died too (`kill -9` of both, the end of a container) nobody else is left: so every
//! [`LOOKS`]th empty poll of a CQ asks whether the connection still stands, and some time after it fell the program
//! flushes its own queues, by the same code (`roceline_abi::flush`) on the same file. Both may be at it: a pass flushes
//! only what is still there.
//!
//! In: empty polls. Out: completions in the program's queues.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use roceline_abi::flush;
use roceline_abi::layout::FILE_BYTES;
use roceline_abi::view::View;

use crate::context::{self, Context};
use crate::say::say;
use crate::{sys, table};

/// Empty polls of a CQ between two looks: under one per cent of their time is spent on it.
const LOOKS: u32 = 256;
/// How long the supervisor has for it alone.
const GRACE_MS: u64 = 500;
/// A lock that is held so long is a dead supervisor's.
const LOCKED_MS: u64 = 2000;
/// Between two passes.
const AGAIN_MS: u64 = 10;

/// What a context knows of it. All zero while the daemon lives.
#[derive(Debug)]
pub struct End {
    /// When the connection was first found cut, in milliseconds.
    cut_at: AtomicU64,
    /// When the last pass was made.
    passed_at: AtomicU64,
    /// All of the context file.
    whole: AtomicPtr<u8>,
    /// A thread is at it.
    busy: AtomicU32,
}

/// A count of empty polls with a cache line of its own.
#[repr(align(64))]
struct Count(AtomicU32);

/// CQs share them by their address. No thread-local: in a library that costs a call for each poll.
static EMPTY: [Count; 1 << COUNT_BITS] = [const { Count(AtomicU32::new(0)) }; 1 << COUNT_BITS];
const COUNT_BITS: u32 = 6;

/// To be called after a poll of `cq` that found nothing.
#[inline]
pub fn after_empty_poll(cq: usize) {
    // Fibonacci hashing (Knuth, TAOCP 6.4): addresses of neighbours are spread.
    let index = (cq as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - COUNT_BITS);
    let count = &EMPTY[index as usize].0;
    // No atomic increment: if threads that poll at the same time count one poll between them, it is no harm.
    let n = count.load(Ordering::Relaxed).wrapping_add(1);
    count.store(n, Ordering::Relaxed);
    if n % LOOKS == 0 {
        look();
    }
}

#[cold]
fn look() {
    let errno = sys::errno();
    for context in context::all().iter().filter(|context| context.is_live()) {
        let end = &context.end;
        if (end.cut_at.load(Ordering::Relaxed) != 0 || context.is_cut())
            && end.busy.swap(1, Ordering::Acquire) == 0
        {
            // It may have been closed meanwhile by another thread, which then waits for us in `clear`.
            if context.is_live() {
                context.lose();
                end.come(context);
            }
            end.busy.store(0, Ordering::Release);
        }
    }
    sys::set_errno(errno);
}

impl End {
    /// Makes a pass if it is time. The caller holds `busy`.
    fn come(&self, context: &Context) {
        let (now, order) = (sys::now_ms().max(1), Ordering::Relaxed);
        let mut cut_at = self.cut_at.load(order);
        if cut_at == 0 {
            cut_at = now;
            self.cut_at.store(now, order);
        }
        let passed_at = self.passed_at.load(order);
        if now < cut_at + GRACE_MS || now < passed_at + AGAIN_MS {
            return;
        }
        let Some(view) = self.view(context) else {
            return;
        };
        // Nobody is left to write events; the CQs stay armed.
        match flush::pass(&view, false, &mut |_, _| false) {
            Some(_) => self.passed_at.store(now, order),
            None if now > passed_at.max(cut_at) + LOCKED_MS => flush::break_lock(&view),
            None => {}
        }
    }

    /// The context file, mapped whole.
    fn view(&self, context: &Context) -> Option<View<'static>> {
        let mut whole = self.whole.load(Ordering::Acquire);
        if whole.is_null() {
            let Some(mapped) =
                table::file_of(context).and_then(|fd| sys::map_sparse(FILE_BYTES as usize, fd))
            else {
                // Not again every time.
                self.passed_at.store(u64::MAX / 2, Ordering::Relaxed);
                say(format_args!(
                    "the daemon is gone and the queues cannot be mapped (a limit on address space?): \
                     what is posted will not complete"
                ));
                return None;
            };
            whole = mapped;
            self.whole.store(whole, Ordering::Release);
        }
        // SAFETY: mapped above in that length, until `clear`, which waits for `busy`; everybody's access is atomic, or the
        // provider's own to words that it shares with the daemon anyway.
        Some(unsafe { View::new(NonNull::new(whole)?, FILE_BYTES) })
    }

    /// In the child of a fork: a thread that was at it does not exist here.
    pub fn orphan(&self) {
        self.busy.store(0, Ordering::Relaxed);
    }

    /// Forgets it all: the context ends.
    pub fn clear(&self) {
        while self.busy.swap(1, Ordering::Acquire) != 0 {
            sys::yield_now();
        }
        let whole = self.whole.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !whole.is_null() {
            // SAFETY: only the holder of `busy` uses it, and that is us.
            unsafe { sys::unmap(whole, FILE_BYTES as usize) };
        }
        self.cut_at.store(0, Ordering::Relaxed);
        self.passed_at.store(0, Ordering::Relaxed);
        self.busy.store(0, Ordering::Release);
    }
}
