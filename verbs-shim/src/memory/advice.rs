//! Advice on memory (`madvise`) of which a part is shared with the daemon in the place of private memory: it has the results that it
//! has for private memory. And marks that have to be given to new mappings (`MADV_DONTFORK`) are remembered.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use super::maps::Vma;
use super::spans::Span;
use super::swap::PAGE;
use super::{ANY, State, lock, object};
use crate::{sys, table};

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
    // A child that is not its own master yet must not touch what it shares with its parent.
    if !table::is_owner() {
        return Advice::Pass;
    }
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
    /// Advice that gives pages back, on a range of which a part may be shared: private memory reads as zeroes after it.
    fn discard(&mut self, span: Span, advice: c_int) -> Advice {
        let objects = object::all();
        // What was shared once may be mapped anew by now.
        if !self.collect(|vma| objects.of(vma).is_some() && vma.span.common(span).is_some())
            || self.vmas.as_slice().is_empty()
        {
            return Advice::Pass;
        }
        let huge = |vma: &Vma| objects.of(vma).is_some_and(|object| object.is_huge());
        let huge = self.vmas.as_slice().iter().any(huge);
        match advice {
            // The kernel refuses the same of huge pages, shared or not.
            libc::MADV_FREE if huge => Advice::Pass,
            libc::MADV_REMOVE => Advice::Answer(libc::EINVAL), // as for private memory
            libc::MADV_FREE => {
                // The kernel may free such pages at any time, or never.
                let mut at = span.start;
                for i in 0..=self.vmas.as_slice().len() {
                    let next = self.vmas.as_slice().get(i).map(|vma| vma.span);
                    let start = next.map_or(span.end, |s| s.start.max(span.start));
                    if start > at && sys::madvise(at, start - at, advice) != 0 {
                        return Advice::Answer(sys::errno());
                    }
                    at = next.map_or(span.end, |s| s.end);
                }
                Advice::Answer(0)
            }
            _ => {
                let result = sys::madvise(span.start, span.len(), advice);
                let errno = sys::errno();
                if result != 0 && huge {
                    return Advice::Answer(errno);
                }
                for vma in self.vmas.as_slice() {
                    if let (Some(part), Some(object)) = (vma.span.common(span), objects.of(vma)) {
                        let offset = vma.offset + (part.start - vma.span.start) as u64;
                        sys::punch_hole(object.fd, offset, part.len());
                    }
                }
                Advice::Answer(if result == 0 { 0 } else { errno })
            }
        }
    }
}
