//! A growing array in mappings of its own. The program's allocator is not used: it may be what called us, and its
//! memory may be what is being worked on.

use crate::sys;

/// An array of plain values.
#[derive(Debug)]
pub struct List<T: Copy> {
    base: *mut T,
    len: usize,
    room: usize,
}

impl<T: Copy> List<T> {
    /// An empty one.
    pub const fn new() -> List<T> {
        List {
            base: std::ptr::null_mut(),
            len: 0,
            room: 0,
        }
    }

    /// The values.
    pub fn as_slice(&self) -> &[T] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: the first `len` values are initialised, and the mapping stays while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }

    /// The values.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }

    /// Makes room for so many more. False if there is no memory for them.
    pub fn reserve(&mut self, more: usize) -> bool {
        let Some(wanted) = self.len.checked_add(more) else {
            return false;
        };
        self.room >= wanted || self.grow(wanted)
    }

    /// Puts a value in front of that at `at`. False if there is no memory for it.
    pub fn insert(&mut self, at: usize, value: T) -> bool {
        if at > self.len || (self.len == self.room && !self.grow(0)) {
            return false;
        }
        // SAFETY: there is room for one more, and `at` is inside.
        unsafe {
            let place = self.base.add(at);
            std::ptr::copy(place, place.add(1), self.len - at);
            place.write(value);
        }
        self.len += 1;
        true
    }

    /// Puts a value at the end. False if there is no memory for it.
    pub fn push(&mut self, value: T) -> bool {
        self.insert(self.len, value)
    }

    /// Takes the value at `at` out.
    pub fn remove(&mut self, at: usize) {
        if at >= self.len {
            return;
        }
        // SAFETY: inside.
        unsafe {
            let place = self.base.add(at);
            std::ptr::copy(place.add(1), place, self.len - at - 1);
        }
        self.len -= 1;
    }

    /// Forgets all values.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// To twice as much, and at least `wanted`.
    fn grow(&mut self, wanted: usize) -> bool {
        let size = size_of::<T>().max(1);
        let room = (2 * self.room).max(4096 / size).max(wanted);
        let Some(base) = sys::map(room * size, None) else {
            return false;
        };
        let base = base.cast::<T>();
        if self.room > 0 {
            // SAFETY: the new mapping is longer; the old one is not used any more.
            unsafe {
                std::ptr::copy_nonoverlapping(self.base, base, self.len);
                sys::unmap(self.base.cast(), self.room * size);
            }
        }
        self.base = base;
        self.room = room;
        true
    }
}

impl<T: Copy> Drop for List<T> {
    fn drop(&mut self) {
        if self.room > 0 {
            // SAFETY: our own mapping, to which no borrow is left.
            unsafe { sys::unmap(self.base.cast(), self.room * size_of::<T>().max(1)) };
        }
    }
}
