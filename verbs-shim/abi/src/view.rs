//! A mapping of a context file, through which values are read and written: bounds-checked, by atomic access only,
//! because the program can write all of it at any time. Any value that is read is one that the program may have chosen.

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// The start of a context file, mapped read-write.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    base: NonNull<u8>,
    len: u64,
    life: PhantomData<&'a AtomicU64>,
}

impl<'a> View<'a> {
    /// A view of `len` bytes at `base`.
    ///
    /// # Safety
    /// They are mapped shared and writable, from a page boundary, for as long as `'a`; this process accesses them
    /// atomically or by volatile copies only.
    pub unsafe fn new(base: NonNull<u8>, len: u64) -> View<'a> {
        View {
            base,
            len,
            life: PhantomData,
        }
    }

    /// Bytes that it has.
    pub fn bytes(&self) -> u64 {
        self.len
    }

    /// The u32 at `offset`; `None` if it is outside or not aligned.
    #[inline]
    pub fn u32(&self, offset: u64) -> Option<&'a AtomicU32> {
        let at = self.at(offset, 4)?;
        // SAFETY: in bounds and aligned, checked by `at`; lives and is accessed as `new` demands; any value is valid.
        Some(unsafe { at.cast::<AtomicU32>().as_ref() })
    }

    /// The u64 at `offset`; `None` if it is outside or not aligned.
    #[inline]
    pub fn u64(&self, offset: u64) -> Option<&'a AtomicU64> {
        let at = self.at(offset, 8)?;
        // SAFETY: as for `u32`.
        Some(unsafe { at.cast::<AtomicU64>().as_ref() })
    }

    #[inline]
    fn at(&self, offset: u64, size: u64) -> Option<NonNull<u8>> {
        let end = offset.checked_add(size)?;
        if end > self.len || offset % size != 0 {
            return None;
        }
        // SAFETY: inside the mapping, checked above.
        Some(unsafe { self.base.add(offset as usize) })
    }
}
