//! Advice on memory (`madvise`) of which a part is shared with the daemon in the place of private memory: it has the results that it
//! has for private memory. And marks that have to be given to new mappings (`MADV_DONTFORK`) are remembered.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use super::spans::Span;
use super::swap::PAGE;
use super::{ANY, State, lock, object};
use crate::sys;

/// What is to happen with advice for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// What the kernel does.
    Pass,
    /// The call ends with this result: 0 or an errno.
    Answer(c_int),
}

/// Whether any call on memory may concern us.
#[inline]
pub fn concerns() -> bool {
    ANY.load(Ordering::Relaxed)
}

/// Advice on `len` bytes at `start`, before the kernel sees it.
#[cold]
pub fn advise(start: usize, len: usize, advice: c_int) -> Advice {
    let Some(end) = start.checked_add(len).filter(|_| start % PAGE == 0) else {
        return Advice::Pass;
    };
    let span = Span {
        start,
        end: end.next_multiple_of(PAGE),
    };
    let mut locked = lock();
    let state = locked.state();
    match advice {
        libc::MADV_DONTFORK => {
            state.unforked.add(span);
            state.note();
            Advice::Pass
        }
        libc::MADV_DOFORK => {
            state.unforked.remove(span);
            state.note();
            Advice::Pass
        }
        libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_REMOVE
            if state.swapped.first_in(span).is_some() =>
        {
            state.discard(span, advice)
        }
        _ => Advice::Pass,
    }
}

impl State {
    /// Advice that gives pages back, on a range of which a part is shared: private memory reads as zeroes after it.
    fn discard(&mut self, span: Span, advice: c_int) -> Advice {
        if advice == libc::MADV_REMOVE {
            return Advice::Answer(libc::EINVAL); // as for private memory
        }
        let Some((fd, _)) = object::get() else {
            return Advice::Pass;
        };
        let mut rest = span;
        while let Some(shared) = self.swapped.first_in(rest) {
            // The kernel may free such pages at any time, or never.
            if advice == libc::MADV_DONTNEED {
                sys::punch_hole(fd, shared.start as u64, shared.len());
            }
            rest.start = shared.end;
        }
        let mut rest = span;
        while let Some(private) = self.swapped.first_not_in(rest) {
            if sys::madvise(private.start, private.len(), advice) != 0 {
                return Advice::Answer(sys::errno());
            }
            rest.start = private.end;
        }
        Advice::Answer(0)
    }
}
