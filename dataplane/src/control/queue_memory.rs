//! Queue memory of one context: ranges of its context file, handed out at descending offsets.
//!
//! **Why descending.** A program maps each queue with its own `mmap`. Linux places mappings downwards, so offsets
//! that fall as well make adjacent mappings one VMA; ascending ones would use up `vm.max_map_count`.
//!
//! Ranges are whole pages, allocated (and by that zeroed) before a queue is announced, so that neither the
//! program nor the lcore takes a page fault on its first use and a machine without memory fails here, with an
//! errno, and not there, with SIGBUS. Freed ranges are punched out of the file: the memory goes back to the
//! machine and the next user finds zeros.
//!
//! **Huge pages.** Once the queues of a context reach down so far that they fill a huge page, further ones lie in huge pages ([`ContextFile::join`]), which are made
//! when the first queue enters them. So a context holds at most one huge page more than what its quota is charged with.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use roceline_abi::layout::{FILE_BYTES, QUEUE_FLOOR};
use roceline_abi::objects::Place;
use roceline_abi::queue::{Q_CONSUMER, Q_DATA, Q_INDEX_MASK, Q_LOG2_ELEM_SIZE, Q_PRODUCER};

use super::error::CommandError;
use super::quota::{Account, Resource};
use crate::lcore::message::QueueLoc;
use crate::memory::{BLOCK, ContextFile};

const PAGE: u64 = 4096;
/// rxe gives every element at least a cache line.
const MIN_ELEM: u64 = 64;

/// Form of a queue: `1 << log2_slots` elements of `1 << log2_elem` bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    log2_elem: u32,
    log2_slots: u32,
}

impl Shape {
    /// The form of a queue for `entries` elements of at least `elem_bytes`. A ring keeps one slot empty, so that
    /// full and empty differ; both numbers are rounded up to powers of two.
    pub fn new(entries: u32, elem_bytes: u64) -> Shape {
        let slots = (u64::from(entries) + 1).next_power_of_two().max(2);
        let elem = elem_bytes.max(MIN_ELEM).next_power_of_two();
        Shape {
            log2_elem: elem.trailing_zeros(),
            log2_slots: slots.trailing_zeros(),
        }
    }

    /// Elements that it holds: one less than it has slots.
    pub fn entries(self) -> u32 {
        (1 << self.log2_slots) - 1
    }

    /// Bytes, header included, in whole pages.
    fn bytes(self) -> u64 {
        (Q_DATA + (1 << (self.log2_elem + self.log2_slots))).next_multiple_of(PAGE)
    }
}

/// A range of the file, given back by [`QueueMemory::free`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a queue that is not freed stays allocated until its context ends"]
pub struct Queue {
    offset: u64,
    bytes: u64,
    shape: Shape,
}

impl Queue {
    /// Where it lies, for the lcore.
    pub fn loc(&self) -> QueueLoc {
        QueueLoc {
            offset: self.offset,
            log2_elem: self.shape.log2_elem,
            mask: self.shape.entries(),
        }
    }

    /// Where it lies, for whoever finds it when this process is dead.
    pub fn place(&self) -> Place {
        Place {
            offset: self.offset,
            log2_elem: self.shape.log2_elem,
            mask: self.shape.entries(),
        }
    }

    /// Offset for `mmap`.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length for `mmap`.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Elements that it holds.
    pub fn entries(&self) -> u32 {
        self.shape.entries()
    }

    /// Index of the oldest element and number of elements, as the header has them; the program can write what it likes there.
    pub fn waiting(&self, file: &ContextFile) -> (u32, u32) {
        let mask = self.entries();
        let index = |at| file.atomic_u32(self.offset + at).load(Ordering::Acquire) & mask;
        let first = index(Q_CONSUMER);
        (first, index(Q_PRODUCER).wrapping_sub(first) & mask)
    }

    /// Copies `count` elements from index `first` on to the front of `to`, whose elements have the same size. The program
    /// may write them meanwhile; any bytes will do.
    pub fn copy_to(&self, to: &Queue, file: &ContextFile, first: u32, count: u32) {
        let words = 1u64 << (self.shape.log2_elem - 3);
        let slot = |queue: &Queue, index: u32| {
            let index = u64::from(index & queue.entries());
            queue.offset + Q_DATA + (index << queue.shape.log2_elem)
        };
        for i in 0..count.min(to.entries()) {
            let (from, to) = (slot(self, first.wrapping_add(i)), slot(to, i));
            for word in 0..words {
                let value = file.atomic_u64(from + 8 * word).load(Ordering::Relaxed);
                file.atomic_u64(to + 8 * word)
                    .store(value, Ordering::Relaxed);
            }
        }
    }
}

/// The ranges that are free, and how much is not.
#[derive(Debug)]
pub struct QueueMemory {
    /// Free ranges above `lowest`: start to length, no two adjacent.
    holes: BTreeMap<u64, u64>,
    /// All below this offset, down to the floor, is free.
    lowest: u64,
    used: u64,
    account: Arc<Account>,
}

impl Drop for QueueMemory {
    fn drop(&mut self) {
        self.account.give(Resource::QueueMemory, self.used);
    }
}

impl QueueMemory {
    /// All of a context file's queue range.
    pub fn new(account: Arc<Account>) -> QueueMemory {
        QueueMemory {
            holes: BTreeMap::new(),
            lowest: FILE_BYTES,
            used: 0,
            account,
        }
    }

    /// A zeroed, populated queue with its header written.
    pub fn alloc(&mut self, file: &ContextFile, shape: Shape) -> Result<Queue, CommandError> {
        let bytes = shape.bytes();
        let before = self.lowest;
        let offset = self.take(bytes)?;
        file.join(before, self.lowest);
        let queue = Queue {
            offset,
            bytes,
            shape,
        };
        if let Err(source) = file.populate(offset, bytes) {
            self.free(file, queue);
            return Err(CommandError::System {
                what: "allocating queue memory",
                source,
            });
        }
        file.store_u32(offset + Q_LOG2_ELEM_SIZE, shape.log2_elem);
        file.store_u32(offset + Q_INDEX_MASK, shape.entries());
        Ok(queue)
    }

    /// Gives a queue back. Nobody may use it any more: its owner has replied to its destruction.
    pub fn free(&mut self, file: &ContextFile, queue: Queue) {
        if let Err(error) = file.punch(queue.offset, queue.bytes) {
            // The range would keep its contents: leave it out of use rather than hand it out.
            tracing::warn!(%error, bytes = queue.bytes, "queue memory could not be freed");
            return;
        }
        let before = self.lowest;
        self.give(queue.offset, queue.bytes);
        let unused = before % BLOCK;
        if self.lowest > before && unused > 0 {
            // The rest of a huge page: it is below all queues again, and nobody would free it with any of them. If it stays, it
            // is zeroed memory too much, and goes with the file.
            let _ = file.punch(before - unused, unused);
        }
    }

    /// The highest free range of `bytes`.
    fn take(&mut self, bytes: u64) -> Result<u64, CommandError> {
        let charge = self.account.charge(Resource::QueueMemory, bytes)?;
        let offset = self.find(bytes);
        let offset = offset.ok_or(CommandError::QueueMemory { bytes })?;
        charge.keep();
        self.used += bytes;
        Ok(offset)
    }

    fn find(&mut self, bytes: u64) -> Option<u64> {
        let hole = self
            .holes
            .iter()
            .rev()
            .find(|(_, len)| **len >= bytes)
            .map(|(&s, &l)| (s, l));
        let offset = if let Some((start, len)) = hole {
            // From the top of the hole.
            if len == bytes {
                self.holes.remove(&start);
            } else {
                self.holes.insert(start, len - bytes);
            }
            start + len - bytes
        } else {
            let offset = self
                .lowest
                .checked_sub(bytes)
                .filter(|o| *o >= QUEUE_FLOOR)?;
            self.lowest = offset;
            offset
        };
        Some(offset)
    }

    /// Returns a range and joins it with free neighbours.
    fn give(&mut self, offset: u64, bytes: u64) {
        self.used -= bytes;
        self.account.give(Resource::QueueMemory, bytes);
        let (mut start, mut len) = (offset, bytes);
        if let Some(next) = self.holes.remove(&(offset + bytes)) {
            len += next;
        }
        let below = self.holes.range(..start).next_back().map(|(&s, &l)| (s, l));
        if let Some((s, l)) = below.filter(|(s, l)| s + l == start) {
            self.holes.remove(&s);
            start = s;
            len += l;
        }
        if start == self.lowest {
            self.lowest = start + len;
        } else {
            self.holes.insert(start, len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::fd::AsRawFd;

    use crate::control::quota::tests::{account_of, with_limit};
    use proptest::prelude::*;
    use roceline_abi::queue::{Q_CONSUMER, Q_PRODUCER};

    fn memory(limit: u64) -> QueueMemory {
        let accounts = with_limit(Resource::QueueMemory, limit);
        QueueMemory::new(Arc::new(account_of(&accounts, 1)))
    }

    #[test]
    fn shapes_are_those_of_the_rxe_driver() {
        // 100 entries: 128 slots, 127 usable. A send WQE with one SGE: 208 + 16 bytes in a stride of 256.
        let shape = Shape::new(100, 224);
        assert_eq!(
            (shape.log2_elem, shape.log2_slots, shape.entries()),
            (8, 7, 127)
        );
        // Exactly a power of two needs the next one, for the slot that stays empty.
        assert_eq!(Shape::new(128, 224).entries(), 255);
        assert_eq!(Shape::new(127, 64).entries(), 127);
        // A queue that was asked for with no entries still can be mapped.
        assert_eq!(Shape::new(0, 40).entries(), 1);
        assert_eq!(Shape::new(0, 40).log2_elem, 6);
        // 32 SGEs or 512 inline bytes.
        assert_eq!(Shape::new(1, 208 + 512).log2_elem, 10);
    }

    #[test]
    fn a_queue_has_its_header_and_is_zero_again_when_reused() {
        let file = ContextFile::create().unwrap();
        let mut memory = memory(1 << 20);
        let queue = memory.alloc(&file, Shape::new(15, 64)).unwrap();
        let first = queue.offset();
        assert_eq!(first % PAGE, 0);
        assert_eq!(
            file.atomic_u32(first + Q_LOG2_ELEM_SIZE)
                .load(Ordering::Relaxed),
            6
        );
        assert_eq!(
            file.atomic_u32(first + Q_INDEX_MASK)
                .load(Ordering::Relaxed),
            15
        );
        file.store_u32(first + Q_PRODUCER, 7);
        file.store_u32(first + Q_CONSUMER, 7);
        file.store_u32(first + Q_DATA, 7);
        memory.free(&file, queue);
        assert_eq!(memory.used, 0);
        let again = memory.alloc(&file, Shape::new(15, 64)).unwrap();
        assert_eq!(again.offset(), first, "freed memory is used first");
        for at in [Q_PRODUCER, Q_CONSUMER, Q_DATA] {
            assert_eq!(file.atomic_u32(first + at).load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn offsets_fall_and_the_quota_holds() {
        let file = ContextFile::create().unwrap();
        let mut memory = memory(3 * PAGE);
        let shape = Shape::new(31, 64);
        let a = memory.alloc(&file, shape).unwrap();
        let b = memory.alloc(&file, shape).unwrap();
        let c = memory.alloc(&file, shape).unwrap();
        assert_eq!(a.offset() + a.bytes(), FILE_BYTES);
        assert_eq!(b.offset() + b.bytes(), a.offset());
        assert_eq!(c.offset() + c.bytes(), b.offset());
        let error = memory.alloc(&file, shape).unwrap_err();
        assert_eq!(error.errno(), libc::ENOMEM);
        memory.free(&file, b);
        assert!(memory.alloc(&file, shape).is_ok());
    }

    #[test]
    fn a_programs_contexts_share_one_quota() {
        let file = ContextFile::create().unwrap();
        let accounts = with_limit(Resource::QueueMemory, 2 * PAGE);
        let memory = || QueueMemory::new(Arc::new(account_of(&accounts, 1)));
        let (mut first, mut second) = (memory(), memory());
        let used = || accounts.programs()[0].used[Resource::QueueMemory as usize];
        let shape = Shape::new(31, 64);
        let _queue = first.alloc(&file, shape).unwrap();
        let queue = second.alloc(&file, shape).unwrap();
        assert!(second.alloc(&file, shape).is_err());
        second.free(&file, queue);
        assert_eq!(used(), PAGE);
        // A context that ends gives back what it had.
        drop(first);
        assert_eq!(used(), 0);
        let _a = second.alloc(&file, shape).unwrap();
        let _b = second.alloc(&file, shape).unwrap();
    }

    /// Bytes that the file really has.
    fn allocated(file: &ContextFile) -> u64 {
        // SAFETY: zeroes are a valid stat, which the call fills in.
        unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            assert_eq!(libc::fstat(file.fd().as_raw_fd(), &mut stat), 0);
            stat.st_blocks as u64 * 512
        }
    }

    #[test]
    fn queues_beyond_a_huge_page_lie_in_huge_pages_and_cost_at_most_one_more() {
        let file = ContextFile::create().unwrap();
        let mut memory = memory(64 << 20);
        let small = Shape::new(15, 256);
        let mut queues = Vec::new();
        while memory.used < 3 * BLOCK {
            let queue = memory.alloc(&file, small).unwrap();
            let (first, last) = (queue.offset + Q_DATA, queue.offset + queue.bytes - 4);
            for at in [first, last] {
                assert_eq!(file.atomic_u32(at).swap(7, Ordering::Relaxed), 0);
            }
            queues.push(queue);
            assert!(allocated(&file) <= memory.used + BLOCK);
        }
        for queue in queues {
            memory.free(&file, queue);
        }
        assert_eq!(allocated(&file), 0);
    }

    #[test]
    fn huge_pages_below_all_queues_are_given_back() {
        let file = ContextFile::create().unwrap();
        let mut memory = memory(64 << 20);
        let _kept = memory.alloc(&file, Shape::new(32767, 64)).unwrap();
        // Each ends in the middle of another block than the one before it.
        for log2 in (12..=17).rev() {
            let queue = memory
                .alloc(&file, Shape::new((1 << log2) - 1, 64))
                .unwrap();
            assert!(allocated(&file) <= memory.used + BLOCK);
            memory.free(&file, queue);
            assert!(allocated(&file) <= memory.used, "2^{log2} elements");
        }
    }

    proptest! {
        #[test]
        fn ranges_never_overlap_and_all_come_back(
            steps in proptest::collection::vec((any::<bool>(), 1u64..40, any::<prop::sample::Index>()), 1..200)
        ) {
            let mut memory = memory(FILE_BYTES);
            let mut live: Vec<(u64, u64)> = Vec::new();
            for (alloc, pages, which) in steps {
                if alloc || live.is_empty() {
                    let bytes = pages * PAGE;
                    let offset = memory.take(bytes).unwrap();
                    prop_assert!(offset >= QUEUE_FLOOR && offset + bytes <= FILE_BYTES);
                    for &(o, b) in &live {
                        prop_assert!(offset + bytes <= o || o + b <= offset);
                    }
                    live.push((offset, bytes));
                } else {
                    let (o, b) = live.swap_remove(which.index(live.len()));
                    memory.give(o, b);
                }
                let sum: u64 = live.iter().map(|(_, b)| b).sum();
                prop_assert_eq!(memory.used, sum);
            }
            for (o, b) in live {
                memory.give(o, b);
            }
            prop_assert_eq!(memory.used, 0);
            prop_assert!(memory.holes.is_empty());
            prop_assert_eq!(memory.lowest, FILE_BYTES);
        }

        #[test]
        fn the_end_of_the_file_is_the_end(blocks in 1u64..20) {
            let mut memory = memory(u64::MAX);
            let bytes = (FILE_BYTES - QUEUE_FLOOR) / blocks / PAGE * PAGE;
            for _ in 0..blocks {
                prop_assert!(memory.take(bytes).is_ok());
            }
            prop_assert!(memory.take(bytes).is_err());
        }
    }
}
