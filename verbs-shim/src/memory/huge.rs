//! Transparent huge pages for our object, where the system gives them (`shmem_enabled` of
//! `/sys/kernel/mm/transparent_hugepage`). Copying to it is then several times faster, and so is reaching it.
//!
//! The kernel chooses the size of a page of a memory object when something first needs it: a huge one if that is a fault in
//! a mapping with `MADV_HUGEPAGE`, never in `pwrite(2)` with `advise`. So before bytes are copied a [`Window`] touches the
//! blocks that they go to.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering};

use super::spans::Span;
use crate::sys;

/// The size of a transparent huge page of x86-64.
pub const BLOCK: usize = 2 << 20;

/// Whether memory objects get huge pages for the asking.
fn given() -> bool {
    const UNKNOWN: u8 = 0;
    const YES: u8 = 1;
    const NO: u8 = 2;
    static GIVEN: AtomicU8 = AtomicU8::new(UNKNOWN);
    match GIVEN.load(Ordering::Relaxed) {
        UNKNOWN => {}
        known => return known == YES,
    }
    let mut text = [0; 128];
    let path = c"/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let mut len = 0;
    let fd = sys::open(path, libc::O_RDONLY);
    if fd >= 0 {
        len = usize::try_from(sys::read(fd, &mut text)).unwrap_or(0);
        sys::close(fd);
    }
    let given = is_given(&text[..len]);
    GIVEN.store(if given { YES } else { NO }, Ordering::Relaxed);
    given
}

/// The word in brackets is what holds.
fn is_given(text: &[u8]) -> bool {
    let words: [&[u8]; 3] = [b"[always]", b"[within_size]", b"[advise]"];
    words
        .iter()
        .any(|word| text.windows(word.len()).any(|w| w == *word))
}

/// A mapping of a part of the object through which its pages come to be huge ones.
#[derive(Debug)]
pub struct Window {
    /// What is reserved, and where in it `span` is.
    base: usize,
    len: usize,
    at: usize,
    span: Span,
}

impl Window {
    /// One on the pages of the object `fd` that `span` will have, if huge pages are to be had and fit.
    pub fn new(fd: c_int, span: Span) -> Option<Window> {
        let whole = span.start.next_multiple_of(BLOCK).saturating_add(BLOCK) <= span.end;
        if !whole || !given() {
            return None;
        }
        // Address and offset must agree within a block.
        let len = span.len() + BLOCK;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { sys::mmap(0, len, libc::PROT_NONE, flags, -1, 0) }?;
        let window = Window {
            base,
            len,
            at: base + span.start.wrapping_sub(base) % BLOCK,
            span,
        };
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let offset = span.start as u64;
        // SAFETY: inside of what was reserved just now, as `at` is less than a block above `base`.
        unsafe { sys::mmap(window.at, span.len(), libc::PROT_READ, flags, fd, offset) }?;
        (sys::madvise(window.at, span.len(), libc::MADV_HUGEPAGE) == 0).then_some(window)
    }

    /// Gives the block at `address` a huge page, if it lies in the part whole and the kernel has one.
    pub fn touch(&self, address: usize) {
        if address % BLOCK != 0
            || address < self.span.start
            || address.saturating_add(BLOCK) > self.span.end
        {
            return;
        }
        // As if it were read: what is there stays, and a failure is none.
        super::uffd::populate(self.at + (address - self.span.start), super::swap::PAGE);
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nobody else knows.
        unsafe { sys::unmap(std::ptr::with_exposed_provenance_mut(self.base), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::is_given;

    #[test]
    fn the_word_in_brackets_counts() {
        assert!(is_given(b"always within_size [advise] never deny force\n"));
        assert!(is_given(b"[always] within_size advise never deny force\n"));
        assert!(!is_given(b"always within_size advise [never] deny force\n"));
        assert!(!is_given(b""));
    }
}
