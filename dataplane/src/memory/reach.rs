//! How the bytes of a memory region are reached: which of its pages are mapped here.
//!
//! In flow the mapped ranges of a region, from the control thread; out flow windows for pieces that lie wholly in one of them.
//! What lies elsewhere goes through the program's `/proc/self/mem` (`super::helper`), which reaches everything.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::mapping::{Bytes, Mapping};
use crate::port::prefetch_line;

/// Pages of a program that are mapped here.
#[derive(Debug)]
pub struct Range {
    /// First address in the program.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// A mapping that has them.
    pub mapping: Arc<Mapping>,
    /// Where in the mapping the byte at `start` is.
    pub offset: u64,
}

/// A range, with what a copy needs at hand.
#[derive(Debug)]
struct Spot {
    start: u64,
    end: u64,
    /// Of the byte at `start`.
    base: NonNull<u8>,
    dead: &'static AtomicBool,
    /// Keeps the bytes where they are.
    mapping: Arc<Mapping>,
}

// SAFETY: `base` is the mapping's, which is Send and Sync, and is kept.
unsafe impl Send for Spot {}
// SAFETY: as above.
unsafe impl Sync for Spot {}

/// The mapped ranges of a region.
#[derive(Debug, Default)]
pub struct Reach {
    spots: Box<[Spot]>,
}

/// A piece of a program's memory that is mapped here.
pub type Window<'a> = Bytes<'a>;

impl Reach {
    /// Everything through the kernel.
    pub fn kernel() -> Reach {
        Reach::default()
    }

    /// These ranges, ascending and apart, mapped. One that is not in its mapping as a whole is reached through the kernel.
    pub fn mapped(ranges: Vec<Range>) -> Reach {
        debug_assert!(ranges.windows(2).all(|w| w[0].end <= w[1].start));
        let spot = |range: Range| {
            let len = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
            let offset = usize::try_from(range.offset).ok()?;
            let (base, dead) = range.mapping.piece(offset, len)?;
            Some(Spot {
                start: range.start,
                end: range.end,
                base,
                dead,
                mapping: range.mapping,
            })
        };
        Reach {
            spots: ranges.into_iter().filter_map(spot).collect(),
        }
    }

    /// Asks the cache for the first range, the only one of nearly all regions.
    #[inline]
    pub fn prefetch(&self) {
        prefetch_line(self.spots.as_ptr().cast());
    }

    /// The `len` bytes at `addr`, if they are mapped in one piece.
    #[inline]
    pub fn at(&self, addr: u64, len: u32) -> Option<Window<'_>> {
        let spot = match &*self.spots {
            [] => return None,
            [only] => only,
            many => many.get(many.partition_point(|s| s.end <= addr))?,
        };
        let end = addr.checked_add(u64::from(len))?;
        if addr < spot.start || end > spot.end || spot.dead.load(Ordering::Relaxed) {
            return None;
        }
        // SAFETY: the piece is inside the spot's bytes, which are mapped as long as its mapping is kept, and so at least as long
        // as self is borrowed.
        Some(unsafe {
            let at = spot.base.add((addr - spot.start) as usize);
            Bytes::new(at, len as usize, spot.dead)
        })
    }

    /// In a word, for `roceline show mrs`: how the region of `len` bytes at `addr` is reached.
    pub fn describe(&self, addr: u64, len: u64) -> &'static str {
        if self.spots.iter().any(|s| s.mapping.is_dead()) {
            return "dead";
        }
        let end = addr.saturating_add(len);
        let bytes: u64 = self
            .spots
            .iter()
            .map(|r| r.end.min(end).saturating_sub(r.start.max(addr)))
            .sum();
        match bytes {
            0 => "kernel",
            n if n >= len => "mapped",
            _ => "mixed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::mapping::MemoryFile;
    use super::super::mapping::tests::memfd;
    use super::*;

    #[test]
    fn a_piece_is_reached_if_one_range_holds_it() {
        let file = MemoryFile::adopt(memfd(1 << 20, 0)).unwrap();
        let range = |start: u64, end: u64| Range {
            start,
            end,
            mapping: Mapping::new(&file, start, end - start, String::new()).unwrap(),
            offset: 0,
        };
        let one = Reach::mapped(vec![range(0x1000, 0x3000)]);
        let many = Reach::mapped(vec![
            range(0x1000, 0x3000),
            range(0x3000, 0x4000),
            range(0x8000, 0x9000),
        ]);
        for reach in [&one, &many] {
            assert!(reach.at(0x1000, 0x2000).is_some());
            assert!(reach.at(0x2fff, 1).is_some());
            assert!(reach.at(0xfff, 1).is_none() && reach.at(0xfff, 2).is_none());
            assert!(reach.at(0x2fff, 2).is_none(), "two ranges");
            assert!(reach.at(u64::MAX, 2).is_none());
        }
        assert!(one.at(0x3000, 1).is_none() && many.at(0x3000, 1).is_some());
        assert!(many.at(0x4000, 1).is_none() && many.at(0x9000, 1).is_none());
        assert!(many.at(0x8ff0, 16).unwrap().write(b"0123456789abcdef"));
        let mut seen = [0; 4];
        assert!(many.at(0x8ffc, 4).unwrap().read(&mut seen));
        assert_eq!(&seen, b"cdef");
        assert!(Reach::kernel().at(0x1000, 1).is_none());
    }

    #[test]
    fn a_region_is_described_in_a_word() {
        let file = MemoryFile::adopt(memfd(1 << 20, 0)).unwrap();
        let mapping = Mapping::new(&file, 0, 0x2000, String::new()).unwrap();
        let reach = Reach::mapped(vec![Range {
            start: 0x1000,
            end: 0x3000,
            mapping,
            offset: 0,
        }]);
        assert_eq!(reach.describe(0x1800, 0x1000), "mapped");
        assert_eq!(reach.describe(0x1800, 0x2000), "mixed");
        assert_eq!(reach.describe(0x5000, 0x2000), "kernel");
        assert_eq!(Reach::kernel().describe(0, 1), "kernel");
    }
}
