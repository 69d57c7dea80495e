//! The memory objects that a program has passed, and which of them lies under a region.
//!
//! In flow descriptors and pieces (`roceline_abi::control`); out flows the [`Reach`] of a region for its owner. The mappings
//! are counted: regions that overlap share one, and the last count is this thread's, so that unmapping is never the
//! lcore's work.
//!
//! What a program says here can only harm the program: a piece names bytes of an object that it passed, with the rights
//! of the descriptor that it passed, for a range of its own addresses.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};

use roceline_abi::control::{MemoryPiece, Plain};

use super::error::CommandError;
use super::quota::{Account, Charge, Resource};
use crate::memory::{Mapping, MappingError, MemoryFile, Range, Reach};

const PAGE: u64 = 4096;
/// Pieces that may lie under one region.
const MAX_PIECES: usize = 1 << 16;
/// Mappings that begin before a piece, nearest first, of which one that has it is looked for.
const LOOK_BACK: usize = 16;
/// Addresses that they may take, of the 2^47 that a process has.
const MAX_MAPPED_BYTES: u64 = 1 << 41;

/// Memory objects and regions of a context.
#[derive(Debug)]
pub struct RegionMemory {
    account: Arc<Account>,
    files: Vec<MemoryFile>,
    /// For the next registration.
    pieces: Vec<MemoryPiece>,
    /// By object, offset and length. Each is charged until `forget_unmapped`.
    mapped: BTreeMap<(u32, u64, u64), Weak<Mapping>>,
    /// Dead ones that another took the place of, with their bytes, charged as well: regions may hold them still.
    replaced: Vec<(u64, Weak<Mapping>)>,
    /// Bytes of these, those given back since `forget_unmapped` included.
    mapped_bytes: u64,
    /// By handle.
    regions: HashMap<u32, Region>,
}

/// What is known of a region.
#[derive(Debug)]
struct Region {
    addr: u64,
    len: u64,
    /// Held until the lcore has let go of them.
    _mappings: Vec<Arc<Mapping>>,
}

/// A reach with counts of its mappings.
#[derive(Debug)]
pub struct Reached {
    /// For the owner.
    pub reach: Reach,
    mappings: Vec<Arc<Mapping>>,
}

impl RegionMemory {
    /// Nothing yet, of which `account` keeps count.
    pub fn new(account: Arc<Account>) -> RegionMemory {
        RegionMemory {
            account,
            files: Vec::new(),
            pieces: Vec::new(),
            mapped: BTreeMap::new(),
            replaced: Vec::new(),
            mapped_bytes: 0,
            regions: HashMap::new(),
        }
    }

    /// First byte and length of a region.
    pub fn range(&self, handle: u32) -> Option<(u64, u64)> {
        self.regions.get(&handle).map(|r| (r.addr, r.len))
    }

    /// Takes over an object; gives the number by which pieces name it.
    pub fn add_file(&mut self, fd: OwnedFd) -> Result<u32, CommandError> {
        let charge = self.account.charge(Resource::MemoryObjects, 1)?;
        self.files.push(MemoryFile::adopt(fd)?);
        charge.keep();
        Ok(self.files.len() as u32 - 1)
    }

    /// Notes pieces for the next registration: ascending, apart, whole pages.
    pub fn add_pieces(&mut self, payload: &[u8]) -> Result<(), CommandError> {
        let pieces = parse(payload)?;
        if self.pieces.len() + pieces.len() > MAX_PIECES {
            self.pieces.clear();
            return Err(CommandError::Quota {
                what: "pieces of memory under a region",
                limit: MAX_PIECES as u64,
            });
        }
        self.pieces.extend(pieces);
        Ok(())
    }

    /// Drops what was noted for a registration that does not come.
    pub fn forget_pieces(&mut self) {
        self.pieces.clear();
    }

    /// The reach of a region, from the pieces noted for it.
    pub fn reach(&mut self, addr: u64, len: u64) -> Result<Reached, CommandError> {
        let pieces = std::mem::take(&mut self.pieces);
        self.reach_by(&pieces, addr, len)
    }

    /// The same from a message of pieces.
    pub fn reach_of(
        &mut self,
        payload: &[u8],
        addr: u64,
        len: u64,
    ) -> Result<Reached, CommandError> {
        let pieces: Vec<MemoryPiece> = parse(payload)?.collect();
        self.reach_by(&pieces, addr, len)
    }

    fn reach_by(
        &mut self,
        pieces: &[MemoryPiece],
        addr: u64,
        len: u64,
    ) -> Result<Reached, CommandError> {
        let end = addr
            .checked_add(len)
            .ok_or(CommandError::Range { addr, len })?;
        let mut from = 0;
        let (mut ranges, mut mappings) = (Vec::new(), Vec::new());
        for piece in pieces {
            let stop = piece.addr.checked_add(piece.len);
            let aligned = (piece.addr | piece.len | piece.offset) % PAGE == 0;
            let Some(stop) = stop.filter(|_| aligned && piece.len > 0 && piece.addr >= from) else {
                return Err(CommandError::Message(
                    "pieces of memory that are not whole pages in ascending order",
                ));
            };
            from = stop;
            if stop <= addr || piece.addr >= end {
                continue;
            }
            // Without a mapping the kernel reaches the bytes as well.
            let Some((mapping, offset)) = self.map(piece)? else {
                continue;
            };
            mappings.push(Arc::clone(&mapping));
            ranges.push(Range {
                start: piece.addr,
                end: stop,
                mapping,
                offset,
            });
        }
        Ok(Reached {
            reach: Reach::mapped(ranges),
            mappings,
        })
    }

    /// A mapping that has a piece already, being a larger one's, and where in it the piece begins. Only of an object whose pages
    /// stay: else what one region loses would be the others' loss.
    fn within(&self, piece: &MemoryPiece) -> Option<(Arc<Mapping>, u64)> {
        if !self.files.get(piece.file as usize)?.keeps_pages() {
            return None;
        }
        let end = piece.offset.checked_add(piece.len)?;
        let first = (piece.file, 0, 0);
        let before = self
            .mapped
            .range(first..=(piece.file, piece.offset, u64::MAX));
        let mut before = before.rev().take(LOOK_BACK);
        before.find_map(|(&(_, offset, len), mapping)| {
            let mapping = mapping.upgrade().filter(|_| offset + len >= end)?;
            (!mapping.is_dead()).then_some((mapping, piece.offset - offset))
        })
    }

    /// A mapping of a piece, and where in it that begins; none if there is no room for one.
    fn map(&mut self, piece: &MemoryPiece) -> Result<Option<(Arc<Mapping>, u64)>, CommandError> {
        if let Some(found) = self.within(piece) {
            return Ok(Some(found));
        }
        let key = (piece.file, piece.offset, piece.len);
        let old = self.mapped.get(&key).and_then(Weak::upgrade);
        if let Some(mapping) = old.as_ref().filter(|mapping| !mapping.is_dead()) {
            return Ok(Some((Arc::clone(mapping), 0)));
        }
        let name = format!("{:#x}+{:#x}", piece.addr, piece.len);
        if self.mapped_bytes > MAX_MAPPED_BYTES {
            self.forget_unmapped();
        }
        let bytes = self.mapped_bytes.saturating_add(piece.len);
        // What is gone leaves its charge to the next; what is dead and held needs its own.
        let known = old.is_none() && self.mapped.contains_key(&key);
        let charge = match known {
            true => None,
            false => self.charge_mapping(),
        };
        if bytes > MAX_MAPPED_BYTES || !(known || charge.is_some()) {
            return Ok(None);
        }
        let file = self
            .files
            .get(piece.file as usize)
            .ok_or(CommandError::Handle {
                kind: "memory object",
                handle: piece.file,
            })?;
        match Mapping::new(file, piece.offset, piece.len, name) {
            Ok(mapping) => {
                self.mapped_bytes = bytes;
                self.mapped.insert(key, Arc::downgrade(&mapping));
                if let Some(old) = old {
                    self.replaced.push((piece.len, Arc::downgrade(&old)));
                }
                if let Some(charge) = charge {
                    charge.keep();
                }
                Ok(Some((mapping, 0)))
            }
            // Of an object that is shorter than its mapping in the program, only what is there is reached; of huge pages,
            // only whole ones.
            Err(
                error @ (MappingError::System { .. }
                | MappingError::Range { .. }
                | MappingError::Pages { .. }),
            ) => {
                tracing::debug!(%error, "memory is reached through the kernel");
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Room for one more mapping; none if the program, or all together, have as many as there may be.
    fn charge_mapping(&mut self) -> Option<Charge> {
        let charge = |account: &Arc<Account>| account.charge(Resource::Mappings, 1).ok();
        charge(&self.account).or_else(|| {
            self.forget_unmapped();
            charge(&self.account)
        })
    }

    fn forget_unmapped(&mut self) {
        let before = self.mapped.len() + self.replaced.len();
        self.mapped.retain(|_, mapping| mapping.strong_count() > 0);
        self.replaced
            .retain(|(_, mapping)| mapping.strong_count() > 0);
        let gone = before - self.mapped.len() - self.replaced.len();
        self.account.give(Resource::Mappings, gone as u64);
        let replaced = self.replaced.iter().map(|&(len, _)| len);
        let lens = self.mapped.keys().map(|&(_, _, len)| len);
        self.mapped_bytes = lens.chain(replaced).sum();
    }

    /// A region was registered.
    pub fn insert(&mut self, handle: u32, addr: u64, len: u64, reached: Vec<Arc<Mapping>>) {
        let region = Region {
            addr,
            len,
            _mappings: reached,
        };
        self.regions.insert(handle, region);
    }

    /// A region is gone, and the owner has let go of its mappings.
    pub fn remove(&mut self, handle: u32) {
        self.regions.remove(&handle);
    }
}

impl Reached {
    /// The reach for the owner, and the counts to be kept meanwhile.
    pub fn split(self) -> (Reach, Vec<Arc<Mapping>>) {
        (self.reach, self.mappings)
    }
}

fn parse(payload: &[u8]) -> Result<impl ExactSizeIterator<Item = MemoryPiece>, CommandError> {
    const SIZE: usize = size_of::<MemoryPiece>();
    if payload.len() % SIZE != 0 {
        return Err(CommandError::Message("pieces of memory of a wrong length"));
    }
    Ok(payload
        .chunks_exact(SIZE)
        .map(|bytes| MemoryPiece::from_bytes(bytes).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::control::quota::Accounts;
    use crate::control::quota::tests::{account_of, with_limit};
    use crate::memory::tests::memfd;

    fn piece(addr: u64, len: u64, offset: u64) -> MemoryPiece {
        MemoryPiece {
            addr,
            len,
            offset,
            ..MemoryPiece::default()
        }
    }

    fn with_file(bytes: u64) -> RegionMemory {
        with_account(bytes, &with_limit(Resource::Mappings, 100))
    }

    fn with_account(bytes: u64, accounts: &Arc<Accounts>) -> RegionMemory {
        let mut memory = RegionMemory::new(Arc::new(account_of(accounts, 1)));
        assert_eq!(memory.add_file(memfd(bytes, 0)).unwrap(), 0);
        memory
    }

    fn note(memory: &mut RegionMemory, pieces: &[MemoryPiece]) -> Result<(), CommandError> {
        let bytes: Vec<u8> = pieces.iter().flat_map(|p| p.as_bytes().to_vec()).collect();
        memory.add_pieces(&bytes)
    }

    #[test]
    fn pieces_make_the_next_region_and_no_other() {
        let mut memory = with_file(1 << 20);
        note(&mut memory, &[piece(0x10000, 0x1000, 0)]).unwrap();
        note(&mut memory, &[piece(0x12000, 0x2000, 0x3000)]).unwrap();
        let (reach, _) = memory.reach(0x10800, 0x2000).unwrap().split();
        assert_eq!(reach.describe(0x10800, 0x2000), "mixed");
        assert!(reach.at(0x10800, 0x800).is_some() && reach.at(0x11000, 1).is_none());
        let (reach, _) = memory.reach(0x10800, 0x2000).unwrap().split();
        assert_eq!(reach.describe(0x10800, 0x2000), "kernel");
    }

    #[test]
    fn regions_over_the_same_pages_share_a_mapping() {
        let mut memory = with_file(1 << 20);
        let mut mapping = || {
            note(&mut memory, &[piece(0x10000, 0x1000, 0)]).unwrap();
            memory.reach(0x10000, 0x1000).unwrap().split().1.remove(0)
        };
        let (a, b) = (mapping(), mapping());
        assert!(Arc::ptr_eq(&a, &b));
        let old = Arc::downgrade(&a);
        drop((a, b));
        assert!(old.upgrade().is_none(), "unmapped with its last region");
        mapping();
    }

    #[test]
    fn a_region_within_another_shares_its_mapping_where_that_cannot_lose_pages() {
        for (seals, shared) in [(libc::F_SEAL_SHRINK, true), (0, false)] {
            let accounts = with_limit(Resource::Mappings, 100);
            let mut memory = RegionMemory::new(Arc::new(account_of(&accounts, 1)));
            memory.add_file(memfd(1 << 20, seals)).unwrap();
            let mut reach = |page: u64, pages: u64| {
                let (at, len) = (page << 12, pages << 12);
                note(&mut memory, &[piece(0x10000 + at, len, at)]).unwrap();
                memory.reach(0x10000 + at, len).unwrap().split()
            };
            let (whole, of_whole) = reach(0, 16);
            let (part, of_part) = reach(3, 2);
            assert_eq!(Arc::ptr_eq(&of_whole[0], &of_part[0]), shared);
            assert!(whole.at(0x13ff8, 8).unwrap().write(b"the last"));
            let mut seen = [0; 8];
            assert!(part.at(0x13ff8, 8).unwrap().read(&mut seen));
            assert_eq!(&seen, b"the last");
            assert!(part.at(0x12fff, 1).is_none() && part.at(0x15000, 1).is_none());
            // What reaches beyond it has one of its own.
            let (_, of_other) = reach(15, 2);
            assert!(!Arc::ptr_eq(&of_whole[0], &of_other[0]));
        }
    }

    #[test]
    fn lies_are_refused() {
        let mut memory = with_file(0x4000);
        for pieces in [
            &[piece(0x10001, 0x1000, 0)][..],
            &[piece(0x10000, 0x1000, 1)],
            &[piece(0x10000, 0, 0)],
            &[piece(u64::MAX - 0xfff, 0x2000, 0)],
            &[piece(0x11000, 0x1000, 0), piece(0x10000, 0x1000, 0)],
            &[piece(0x10000, 0x2000, 0), piece(0x11000, 0x1000, 0)],
            &[MemoryPiece {
                file: 1,
                ..piece(0x10000, 0x1000, 0)
            }],
        ] {
            note(&mut memory, pieces).unwrap();
            let error = memory.reach(0x10000, 0x10000).unwrap_err();
            assert_eq!(error.errno(), libc::EINVAL, "{pieces:x?}: {error}");
        }
        for outside in [
            piece(0x10000, 0x1000, 0x4000),
            piece(0x10000, 0x8000, 0),
            piece(0x10000, 0x1000, u64::MAX - 0xfff),
        ] {
            note(&mut memory, &[outside]).unwrap();
            let (reach, _) = memory.reach(0x10000, 0x10000).unwrap().split();
            assert_eq!(reach.describe(0x10000, 0x10000), "kernel");
        }
        assert!(memory.add_pieces(&[0; 33]).is_err());
        note(&mut memory, &[piece(0x1000, 0x1000, 0)]).unwrap();
        assert!(memory.reach(u64::MAX - 4, 10).is_err());
    }

    #[test]
    fn a_context_that_maps_too_much_goes_through_the_kernel() {
        let mut memory = with_file(1 << 46);
        note(&mut memory, &[piece(0x10000, MAX_MAPPED_BYTES + 0x1000, 0)]).unwrap();
        let (reach, _) = memory.reach(0x10000, 0x1000).unwrap().split();
        assert_eq!(reach.describe(0x10000, 0x1000), "kernel");
    }

    #[test]
    fn a_dead_mapping_that_is_held_counts_beside_its_successor() {
        let accounts = with_limit(Resource::Mappings, 2);
        let mut memory = RegionMemory::new(Arc::new(account_of(&accounts, 1)));
        let file = memfd(0x1000, 0);
        memory.add_file(file.try_clone().unwrap()).unwrap();
        let mut map = || {
            note(&mut memory, &[piece(0x10000, 0x1000, 0)]).unwrap();
            memory.reach(0x10000, 0x1000).unwrap().split()
        };
        let resize = |len| {
            // SAFETY: a plain system call on a live descriptor.
            assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), len) }, 0);
        };
        let kill = |reach: &Reach| {
            resize(0);
            assert!(!reach.at(0x10000, 8).unwrap().read(&mut [0; 8]));
            assert_eq!(reach.describe(0x10000, 0x1000), "dead");
            resize(0x1000);
        };
        let (first, second) = (map(), map());
        assert!(Arc::ptr_eq(&first.1[0], &second.1[0]));
        kill(&first.0);
        let third = map();
        assert_eq!(third.0.describe(0x10000, 0x1000), "mapped");
        kill(&third.0);
        let fourth = map();
        let how = fourth.0.describe(0x10000, 0x1000);
        assert_eq!(how, "kernel", "there are two, dead or not");
        drop((first, second));
        let fifth = map();
        assert_eq!(fifth.0.describe(0x10000, 0x1000), "mapped");
        drop((third, fourth, fifth));
        let last = map();
        assert_eq!(last.0.describe(0x10000, 0x1000), "mapped");
    }

    #[test]
    fn mappings_of_a_program_are_few_and_come_back() {
        let accounts = with_limit(Resource::Mappings, 2);
        let mut memory = with_account(1 << 20, &accounts);
        let mut other = with_account(1 << 20, &accounts);
        let map = |memory: &mut RegionMemory, page: u64| {
            note(memory, &[piece(0x10000, 0x1000, page << 12)]).unwrap();
            memory.reach(0x10000, 0x1000).unwrap().split()
        };
        let how = |reach: &Reach| reach.describe(0x10000, 0x1000);
        let (first, second) = (map(&mut memory, 0), map(&mut memory, 1));
        assert_eq!((how(&first.0), how(&second.0)), ("mapped", "mapped"));
        let third = map(&mut other, 2);
        assert_eq!(how(&third.0), "kernel", "its contexts have two together");
        drop((first, second));
        let fourth = map(&mut memory, 3);
        assert_eq!(
            how(&fourth.0),
            "mapped",
            "those that are gone are not counted"
        );
        drop(memory);
        assert_eq!(how(&map(&mut other, 4).0), "mapped");
    }
}
