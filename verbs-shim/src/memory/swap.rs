//! Changing private memory into memory shared with the daemon and back, under the eyes of whoever uses it.
//!
//! In flow ranges of private anonymous memory, page by page of one mapping; out flows the same memory, at the same
//! addresses with the same protection and the same bytes, as a shared mapping of our memory object ([`to_shared`]), and the other way
//! round ([`to_private`]). No write of another thread, or of the kernel for one, is lost: writers are held back meanwhile
//! (`uffd`), or there are none.
//!
//! While writers are held, this thread must not write to the range itself: its stack and what the C library keeps for it are
//! left out ([`own_pages`]), and signal handlers do not run.

use std::ffi::c_int;

use super::huge::{BLOCK, Window};
use super::hugetlb;
use super::object::Object;
use super::spans::Span;
use super::uffd::{self, Uffd};
use crate::sys;

/// Page size. Where the kernel's is another one, nothing is mapped.
pub const PAGE: usize = 4096;
/// Bytes for which writers are held at a time: some milliseconds.
pub const STEP: usize = 16 << 20;
/// Bits of a page's entry in `/proc/self/pagemap`.
pub const PRESENT: u64 = 1 << 63;
/// Not in memory, and not nothing: on disk, or, without any swap space too, on its way to another place of memory (compaction,
/// NUMA balancing), held without ever having been touched, or a guard.
const SWAPPED: u64 = 1 << 62;

/// Who may write to a range while it is changed.
#[derive(Debug)]
pub enum Writers {
    /// Nobody: this is the only thread, and no operation of the daemon is under way there.
    None,
    /// Others, who are held back.
    Held(Uffd),
}

/// The pages that this thread itself writes to while it changes mappings: its stack from here up, and the C library's
/// data of the thread.
pub fn own_pages() -> [Span; 3] {
    const BELOW: usize = 256 << 10;
    const LONGEST_STACK: usize = 256 << 20;
    let here = 0u8;
    let sp = (&raw const here) as usize;
    // SAFETY: no argument; on Linux it gives the address of the thread's own structure, which lies above its stack.
    let thread = unsafe { libc::pthread_self() } as usize;
    // SAFETY: glibc returns a valid pointer.
    let errno = unsafe { libc::__errno_location() } as usize;
    let near = |start: usize, end: usize| Span {
        start: start & !(PAGE - 1),
        end: end.saturating_add(PAGE - 1) & !(PAGE - 1),
    };
    let top = if thread > sp && thread - sp < LONGEST_STACK {
        thread
    } else {
        sp + BELOW
    };
    [
        near(sp.saturating_sub(BELOW), top),
        near(thread.saturating_sub(64 << 10), thread + (64 << 10)),
        near(errno, errno + 4),
    ]
}

/// What the C library gives a thread for a stack unless it is told otherwise, or somewhat more.
pub fn longest_stack() -> usize {
    const USUAL: usize = 8 << 20;
    let limit = usize::try_from(sys::stack_limit()).unwrap_or(USUAL);
    // Without a limit the C library takes less than the usual one.
    if limit > 1 << 30 {
        USUAL
    } else {
        limit.max(USUAL)
    }
}

/// Makes `span`, private memory of one mapping with `protection`, shared with the object `fd` at the offset of its address.
/// False: some of it was not; `done` then says how far it got.
pub fn to_shared(
    object: &Object,
    span: Span,
    protection: c_int,
    writers: &Writers,
    unforked: impl Fn(Span),
    done: &mut usize,
) -> bool {
    let pagemap = sys::open(c"/proc/self/pagemap", libc::O_RDONLY);
    if pagemap < 0 {
        return false;
    }
    let (fd, step) = (object.fd, STEP.max(object.page));
    let mut start = span.start;
    *done = start;
    while start < span.end {
        let end = span.end.min(start.saturating_add(step));
        let part = Span { start, end };
        let mask = sys::block_signals();
        let held = match writers {
            Writers::None => true,
            // What holds shared memory holds huge pages, too.
            Writers::Held(uffd) => (!object.is_huge() || uffd.holds_shared()) && uffd.hold(part),
        };
        let copied = held
            && if object.is_huge() {
                hugetlb::copy_touched(object, pagemap, part)
            } else {
                copy_touched(fd, pagemap, part, writers)
            };
        // SAFETY: the same bytes, and nobody has written to the old ones since they were copied.
        let mapped = copied
            && unsafe {
                let flags = libc::MAP_SHARED | libc::MAP_FIXED;
                sys::mmap(
                    part.start,
                    part.len(),
                    protection,
                    flags,
                    fd,
                    part.start as u64,
                )
                .is_some()
            };
        if mapped {
            unforked(part);
        }
        if let (true, Writers::Held(uffd)) = (held, writers) {
            if mapped {
                uffd.wake(part);
            } else {
                uffd.let_go(part);
            }
        }
        sys::restore_signals(mask);
        if !mapped {
            sys::punch_hole(fd, part.start as u64, part.len());
            break;
        }
        start = end;
        *done = end;
    }
    sys::close(pagemap);
    start >= span.end
}

/// Copies what was ever touched of `part` to the object. False if something cannot be read: a guard page
/// (`MADV_GUARD_INSTALL`), say.
fn copy_touched(fd: c_int, pagemap: c_int, part: Span, writers: &Writers) -> bool {
    /// Those of a huge page.
    const ENTRIES: usize = BLOCK / PAGE;
    let mut entries = [0u64; ENTRIES];
    let window = Window::new(fd, part);
    let mut at = part.start;
    while at < part.end {
        // From block to block.
        let pages = ((part.end - at) / PAGE).min(ENTRIES - at / PAGE % ENTRIES);
        // SAFETY: the kernel writes at most `pages` entries.
        let n = unsafe {
            let into = entries.as_mut_ptr() as usize;
            sys::pread(pagemap, into, pages * 8, (at / PAGE * 8) as u64)
        };
        if n != (pages * 8) as isize {
            return false;
        }
        if let Some(window) = &window {
            // Where writers are held, what was never touched looks as if it were swapped.
            if entries[..pages].iter().any(|e| e & PRESENT != 0) {
                window.touch(at);
            }
        }
        let mut page = 0;
        while page < pages {
            let address = at + page * PAGE;
            let kind = entries[page] & (PRESENT | SWAPPED);
            let run = entries[page..pages]
                .iter()
                .take_while(|e| **e & (PRESENT | SWAPPED) == kind)
                .count();
            let copied = match (kind, writers) {
                (0, _) => true,
                (_, Writers::None) => write_out(fd, address, run * PAGE),
                (SWAPPED, Writers::Held(_)) => {
                    uffd::populate(address, run * PAGE) && copy_out(fd, address, run * PAGE)
                }
                _ => copy_out(fd, address, run * PAGE),
            };
            if !copied {
                return false;
            }
            page += run;
        }
        at += pages * PAGE;
    }
    true
}

/// Copies pages that can be read to the object, without those of zeroes: to hold writers back makes such of pages that were
/// never touched.
fn copy_out(fd: c_int, address: usize, len: usize) -> bool {
    let end = address + len;
    let mut at = address;
    while at < end {
        let mut stop = at;
        while stop < end && !is_zero(stop) {
            stop += PAGE;
        }
        if !write_out(fd, at, stop - at) {
            return false;
        }
        at = stop + PAGE;
    }
    true
}

fn write_out(fd: c_int, mut address: usize, mut len: usize) -> bool {
    while len > 0 {
        let n = sys::pwrite(fd, address, len, address as u64);
        if n <= 0 {
            return false;
        }
        address += n as usize;
        len -= n as usize;
    }
    true
}

/// Whether a readable page has only zeroes.
fn is_zero(address: usize) -> bool {
    let words = PAGE / 8;
    let base = std::ptr::with_exposed_provenance::<u64>(address);
    // SAFETY: a readable, aligned page of the program's, read word by word as it may be shared.
    (0..words).all(|i| unsafe { base.add(i).read_volatile() } == 0)
}

/// Makes `span`, mapped shared from `offset` of the object with `protection`, private again. False: some of it was not.
pub fn to_private(
    object: &Object,
    span: Span,
    offset: u64,
    protection: c_int,
    writers: &Writers,
    unforked: impl Fn(Span),
) -> bool {
    if let Writers::Held(uffd) = writers {
        if !uffd.holds_shared() {
            return false;
        }
    }
    let step = STEP.max(object.page);
    let mut start = span.start;
    while start < span.end {
        let end = span.end.min(start.saturating_add(step));
        let part = Span { start, end };
        let from = offset + (start - span.start) as u64;
        let mask = sys::block_signals();
        let held = match writers {
            Writers::None => true,
            Writers::Held(uffd) => uffd.hold(part),
        };
        let moved = held && copy_back(object, part, from, protection);
        if moved {
            unforked(part);
        }
        if let (true, Writers::Held(uffd)) = (held, writers) {
            if moved {
                uffd.wake(part);
            } else {
                uffd.let_go(part);
            }
        }
        sys::restore_signals(mask);
        if !moved {
            return false;
        }
        start = end;
    }
    true
}

/// Puts a private copy of the object's bytes from `offset` in the place of `part`.
pub fn copy_back(object: &Object, part: Span, offset: u64, protection: c_int) -> bool {
    if object.is_huge() {
        return hugetlb::copy_back(object, part, offset, protection);
    }
    let fd = object.fd;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let Some(copy) = (unsafe { sys::mmap(0, part.len(), both, flags, -1, 0) }) else {
        return false;
    };
    // SAFETY: the new mapping is ours alone until it is moved; the bytes in its new place are the same.
    unsafe {
        let whole = read_in(fd, copy, part.len(), offset)
            && (protection == both || sys::mprotect(copy, part.len(), protection))
            && sys::move_mapping(copy, part.len(), part.start);
        if !whole {
            sys::unmap(std::ptr::with_exposed_provenance_mut(copy), part.len());
        }
        whole
    }
}

/// Reads the object's bytes from `offset` to `into`, where zeroes are; holes are skipped.
///
/// # Safety
/// Nobody else uses the bytes there.
unsafe fn read_in(fd: c_int, into: usize, len: usize, offset: u64) -> bool {
    let end = offset + len as u64;
    let mut at = offset;
    while at < end {
        let Some(data) = sys::seek(fd, at, libc::SEEK_DATA).filter(|d| *d < end) else {
            return sys::seek(fd, 0, libc::SEEK_SET).is_some();
        };
        let Some(hole) = sys::seek(fd, data, libc::SEEK_HOLE) else {
            return false;
        };
        at = data;
        let stop = hole.min(end);
        while at < stop {
            let there = into + (at - offset) as usize;
            // SAFETY: by the caller's promise.
            let n = unsafe { sys::pread(fd, there, (stop - at) as usize, at) };
            if n <= 0 {
                return false;
            }
            at += n as u64;
        }
    }
    true
}
