//! Private huge pages (`MAP_HUGETLB`), copied to an object of such pages and back. They come from a pool: a copy needs as many
//! free ones for a moment, and where they are not to be had nothing is changed.
//!
//! Files of hugetlbfs cannot be written by `write(2)`, only through a mapping; and a page of one that is not to be had, for
//! want of pages of this NUMA node or by a limit of the cgroup, is a SIGBUS to who touches it. So the kernel copies, by
//! `/proc/self/mem`, and gives an error instead.

use std::ffi::c_int;

use super::object::Object;
use super::spans::Span;
use super::swap::{PAGE, PRESENT};
use crate::sys;

const BOTH: c_int = libc::PROT_READ | libc::PROT_WRITE;

/// A mapping of ours, for a while.
struct Mapped {
    start: usize,
    len: usize,
}

impl Mapped {
    /// Whole pages of a size, as `flags`, `fd` and `offset` say.
    fn new(len: usize, protection: c_int, flags: c_int, fd: c_int, offset: u64) -> Option<Mapped> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { sys::mmap(0, len, protection, flags, fd, offset) }?;
        Some(Mapped { start, len })
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody else knows.
        unsafe { sys::unmap(std::ptr::with_exposed_provenance_mut(self.start), self.len) };
    }
}

/// The memory of this process, by the kernel.
struct Own(c_int);

impl Own {
    fn open() -> Option<Own> {
        let fd = sys::open(c"/proc/self/mem", libc::O_RDONLY);
        (fd >= 0).then_some(Own(fd))
    }

    /// Copies `len` bytes at `from` to `to`, a mapping of ours.
    fn copy(&self, from: usize, to: usize, len: usize) -> bool {
        let mut done = 0;
        while done < len {
            // SAFETY: the callers copy into mappings that only they know.
            let n = unsafe { sys::pread(self.0, to + done, len - done, (from + done) as u64) };
            if n <= 0 {
                return false;
            }
            done += n as usize;
        }
        true
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// Copies what was ever touched of `part` to the object, at the offset of its address. False if there are no pages for it.
pub fn copy_touched(object: &Object, pagemap: c_int, part: Span) -> bool {
    let to = Mapped::new(
        part.len(),
        BOTH,
        libc::MAP_SHARED,
        object.fd,
        part.start as u64,
    );
    let (Some(to), Some(own)) = (to, Own::open()) else {
        return false;
    };
    (part.start..part.end).step_by(object.page).all(|page| {
        let mut entry = 0u64;
        // SAFETY: the kernel writes one entry.
        let n = unsafe {
            let into = (&raw mut entry).expose_provenance();
            sys::pread(pagemap, into, 8, (page / PAGE * 8) as u64)
        };
        let touched = n != 8 || entry & PRESENT != 0;
        !touched || own.copy(page, to.start + (page - part.start), object.page)
    })
}

/// Puts a private copy of the object's bytes from `offset` in the place of `part`. False if there are no pages for it, or the
/// kernel cannot move huge pages (before Linux 5.16).
pub fn copy_back(object: &Object, part: Span, offset: u64, protection: c_int) -> bool {
    let size = (object.page.trailing_zeros() as c_int) << libc::MAP_HUGE_SHIFT;
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB | size;
    let copy = Mapped::new(part.len(), BOTH, anonymous, -1, 0);
    let from = Mapped::new(
        part.len(),
        libc::PROT_READ,
        libc::MAP_SHARED,
        object.fd,
        offset,
    );
    let (Some(copy), Some(from), Some(own)) = (copy, from, Own::open()) else {
        return false;
    };
    // SAFETY: the new mapping is ours alone until it is moved; the bytes in its new place are the same.
    let moved = unsafe {
        own.copy(from.start, copy.start, part.len())
            && (protection == BOTH || sys::mprotect(copy.start, copy.len, protection))
            && sys::move_mapping(copy.start, copy.len, part.start)
    };
    if moved {
        std::mem::forget(copy);
    }
    moved
}
