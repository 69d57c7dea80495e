//! A lock-free queue between one producer and one consumer, each a type that cannot be cloned. Both work in
//! batches: what was pushed (or popped) becomes visible to the other side with `flush`, one store per burst.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

struct Ring<T> {
    /// A power of two of slots; those from `head` to `tail` (both counted without end) are initialised.
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    /// Written by the consumer.
    head: CachePadded<AtomicUsize>,
    /// Written by the producer.
    tail: CachePadded<AtomicUsize>,
}

// SAFETY: a slot is touched by the producer while outside head..tail and by the consumer while inside; the
// release store and acquire load of the index that moves hand it over.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: owns its items.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    fn slot(&self, index: usize) -> *mut MaybeUninit<T> {
        self.slots[index & (self.slots.len() - 1)].get()
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let (head, tail) = (*self.head.get_mut(), *self.tail.get_mut());
        let mut at = head;
        while at != tail {
            // SAFETY: initialised, and nobody else is left.
            unsafe { (*self.slot(at)).assume_init_drop() };
            at = at.wrapping_add(1);
        }
    }
}

/// The end that pushes.
pub(crate) struct Producer<T> {
    ring: Arc<Ring<T>>,
    /// Next slot to fill; `ring.tail` is what the consumer has been told.
    tail: usize,
    /// `ring.head` when last looked at.
    head: usize,
}

/// The end that pops.
pub(crate) struct Consumer<T> {
    ring: Arc<Ring<T>>,
    /// Next slot to empty; `ring.head` is what the producer has been told.
    head: usize,
    /// `ring.tail` when last looked at.
    tail: usize,
}

/// A queue of at least `capacity` items.
pub(crate) fn channel<T: Send>(capacity: usize) -> (Producer<T>, Consumer<T>) {
    let slots = capacity.max(2).next_power_of_two();
    let ring = Arc::new(Ring {
        slots: (0..slots)
            .map(|_| UnsafeCell::new(MaybeUninit::uninit()))
            .collect(),
        head: CachePadded::new(AtomicUsize::new(0)),
        tail: CachePadded::new(AtomicUsize::new(0)),
    });
    (
        Producer {
            ring: Arc::clone(&ring),
            tail: 0,
            head: 0,
        },
        Consumer {
            ring,
            head: 0,
            tail: 0,
        },
    )
}

impl<T> Producer<T> {
    /// Whether an item fits.
    #[inline(always)]
    pub(crate) fn has_room(&mut self) -> bool {
        if self.tail.wrapping_sub(self.head) < self.ring.slots.len() {
            return true;
        }
        self.head = self.ring.head.load(Ordering::Acquire);
        self.tail.wrapping_sub(self.head) < self.ring.slots.len()
    }

    /// Adds an item, or hands it back if the queue is full.
    #[inline(always)]
    pub(crate) fn push(&mut self, item: T) -> Result<(), T> {
        if !self.has_room() {
            return Err(item);
        }
        // SAFETY: the slot is outside head..tail, so it is ours.
        unsafe { (*self.ring.slot(self.tail)).write(item) };
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Whether the consumer has given back every slot that it was shown: it waits for more.
    pub(crate) fn is_drained(&mut self) -> bool {
        self.head = self.ring.head.load(Ordering::Acquire);
        self.tail == self.head
    }

    /// Lets the consumer see what was pushed.
    #[inline(always)]
    pub(crate) fn flush(&mut self) {
        self.ring.tail.store(self.tail, Ordering::Release);
    }
}

impl<T> Drop for Producer<T> {
    fn drop(&mut self) {
        self.flush();
    }
}

impl<T> Consumer<T> {
    /// Takes the oldest item.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<T> {
        if self.head == self.tail {
            self.tail = self.ring.tail.load(Ordering::Acquire);
            if self.head == self.tail {
                return None;
            }
        }
        // SAFETY: the slot is inside head..tail, so it is initialised and ours.
        let item = unsafe { (*self.ring.slot(self.head)).assume_init_read() };
        self.head = self.head.wrapping_add(1);
        Some(item)
    }

    /// Whether there is nothing to take.
    #[inline(always)]
    pub(crate) fn is_empty(&mut self) -> bool {
        if self.head == self.tail {
            self.tail = self.ring.tail.load(Ordering::Acquire);
        }
        self.head == self.tail
    }

    /// Gives the emptied slots back to the producer.
    #[inline(always)]
    pub(crate) fn flush(&mut self) {
        self.ring.head.store(self.head, Ordering::Release);
    }
}

impl<T> Drop for Consumer<T> {
    fn drop(&mut self) {
        self.flush();
    }
}

impl<T> fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Producer({} slots, at {})",
            self.ring.slots.len(),
            self.tail
        )
    }
}

impl<T> fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Consumer({} slots, at {})",
            self.ring.slots.len(),
            self.head
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_exactly_its_capacity_and_keeps_order() {
        let (mut tx, mut rx) = channel(4);
        for round in 0..3 {
            for i in 0..4 {
                tx.push(round * 4 + i).unwrap();
            }
            assert_eq!(tx.push(99), Err(99));
            tx.flush();
            for i in 0..4 {
                assert_eq!(rx.pop(), Some(round * 4 + i));
            }
            assert_eq!(rx.pop(), None);
            assert!(
                !tx.has_room(),
                "the consumer has not given the slots back yet"
            );
            rx.flush();
            assert!(tx.has_room());
        }
    }

    #[test]
    fn nothing_is_seen_before_the_flush() {
        let (mut tx, mut rx) = channel(4);
        tx.push(1).unwrap();
        assert!(rx.is_empty());
        tx.flush();
        assert!(!rx.is_empty());
    }

    #[test]
    fn the_producer_knows_when_all_was_taken() {
        let (mut tx, mut rx) = channel(4);
        assert!(tx.is_drained());
        tx.push(1).unwrap();
        tx.flush();
        assert!(!tx.is_drained());
        rx.pop();
        assert!(!tx.is_drained(), "the slot was not given back yet");
        rx.flush();
        assert!(tx.is_drained());
    }

    #[test]
    fn items_left_behind_are_dropped_once() {
        let item = Arc::new(());
        let (mut tx, mut rx) = channel(8);
        for _ in 0..5 {
            tx.push(Arc::clone(&item)).unwrap();
        }
        tx.flush();
        tx.push(Arc::clone(&item)).unwrap();
        drop(rx.pop());
        drop(rx);
        assert_eq!(Arc::strong_count(&item), 6);
        drop(tx);
        assert_eq!(Arc::strong_count(&item), 1);
    }

    #[test]
    fn two_threads_see_every_item_in_order() {
        const ITEMS: u64 = if cfg!(miri) { 200 } else { 20_000 };
        let (mut tx, mut rx) = channel(8);
        let producer = std::thread::spawn(move || {
            for i in 0..ITEMS {
                let mut item = Box::new(i);
                while let Err(back) = tx.push(item) {
                    item = back;
                    std::thread::yield_now();
                }
                if i % 3 == 0 || i + 1 == ITEMS || !tx.has_room() {
                    tx.flush();
                }
            }
        });
        for expected in 0..ITEMS {
            let item = loop {
                if let Some(item) = rx.pop() {
                    break item;
                }
                rx.flush();
                std::thread::yield_now();
            };
            assert_eq!(*item, expected);
        }
        producer.join().unwrap();
    }
}
