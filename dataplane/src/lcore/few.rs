//! A few things in an array on the stack, for what borrows a burst and lives no longer than a stage.

use std::mem::MaybeUninit;
use std::slice;

/// Up to `N` of them, which need no drop.
pub struct Few<T, const N: usize> {
    /// The first `len` are initialised.
    items: [MaybeUninit<T>; N],
    len: usize,
}

impl<T, const N: usize> Few<T, N> {
    /// None yet.
    #[inline(always)]
    pub fn new() -> Few<T, N> {
        const { assert!(!std::mem::needs_drop::<T>()) };
        Few {
            items: [const { MaybeUninit::uninit() }; N],
            len: 0,
        }
    }

    /// Adds one; false if there is no room.
    #[inline(always)]
    pub fn push(&mut self, item: T) -> bool {
        let slot = self.items.get_mut(self.len);
        if let Some(slot) = slot {
            slot.write(item);
            self.len += 1;
            return true;
        }
        false
    }

    /// All of them.
    #[inline(always)]
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: the first `len` are initialised.
        unsafe { slice::from_raw_parts(self.items.as_ptr().cast(), self.len) }
    }

    /// All of them, to change.
    #[inline(always)]
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        // SAFETY: the first `len` are initialised.
        unsafe { slice::from_raw_parts_mut(self.items.as_mut_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::Few;

    #[test]
    fn it_holds_what_fits() {
        let mut few = Few::<u32, 3>::new();
        assert!(few.as_slice().is_empty());
        assert_eq!(
            [7, 8, 9, 10].map(|n| few.push(n)),
            [true, true, true, false]
        );
        few.as_mut_slice()[1] = 5;
        assert_eq!(few.as_slice(), [7, 5, 9]);
    }
}
