//! Memory objects of programs, mapped here: the fast way to application memory.
//!
//! In flow descriptors that programs have passed ([`MemoryFile::adopt`]) and ranges of them ([`Mapping`]); out flow copies.
//! A mapping belongs to the regions that use it (by `Arc`); the control thread keeps one count, so that the lcore never
//! unmaps.
//!
//! Only tmpfs and hugetlbfs objects are taken: to touch their pages never waits for a disk, a network or the program.
//! The program writes to the same bytes at any time, so nothing here hands out a reference to them: they are copied.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};

use super::atomic::AtomicOp;
use super::guard::{self, Guarded};
use super::{copy, pages, room};

const PAGE: u64 = 4096;
/// `TMPFS_MAGIC` and `HUGETLBFS_MAGIC` of `statfs(2)`: memfds are files of these.
const TMPFS_MAGIC: i64 = 0x0102_1994;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// Why a memory object cannot be mapped.
#[derive(Debug, thiserror::Error)]
pub enum MappingError {
    /// The descriptor is not a tmpfs or hugetlbfs file.
    #[error(
        "the descriptor is no memory object: its file system has the magic {0:#x}, and only tmpfs and hugetlbfs are mapped"
    )]
    NotMemory(i64),
    /// It is a device or the like, which may lie in a tmpfs too (`/dev`).
    #[error("the descriptor is no memory object but a special file of mode {0:o}")]
    NotRegular(u32),
    /// It cannot be written.
    #[error("the memory object is not open for reading and writing")]
    NotWritable,
    /// The range is not in the object.
    #[error("{len:#x} bytes at {offset:#x} are not in the memory object, which has {size:#x}")]
    Range {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of the object.
        size: u64,
    },
    /// The range is not made of whole pages of the object.
    #[error(
        "{len:#x} bytes at {offset:#x} are not whole pages of the memory object, which has pages of {page:#x}"
    )]
    Pages {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Bytes of a page.
        page: u64,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// Which.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

fn system(what: &'static str) -> MappingError {
    MappingError::System {
        what,
        source: io::Error::last_os_error(),
    }
}

/// A memory object of a program: a memfd, a tmpfs or hugetlbfs file, a SysV segment.
#[derive(Debug)]
pub struct MemoryFile {
    fd: OwnedFd,
    /// Bytes of a page of it: more than usual for one of huge pages.
    page: u64,
    /// It is sealed against becoming shorter.
    sealed: bool,
}

impl MemoryFile {
    /// Takes over a descriptor, if it is a memory object open both ways.
    pub fn adopt(fd: OwnedFd) -> Result<MemoryFile, MappingError> {
        // SAFETY: statfs is valid when all zero.
        let mut fs: libc::statfs64 = unsafe { std::mem::zeroed() };
        // SAFETY: writes one statfs64.
        if unsafe { libc::fstatfs64(fd.as_raw_fd(), &mut fs) } != 0 {
            return Err(system("fstatfs of a memory object"));
        }
        let magic = fs.f_type as i64;
        if magic != TMPFS_MAGIC && magic != HUGETLBFS_MAGIC {
            return Err(MappingError::NotMemory(magic));
        }
        // SAFETY: a plain system call.
        let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
        if flags < 0 {
            return Err(system("flags of a memory object"));
        }
        if flags & libc::O_ACCMODE != libc::O_RDWR || flags & libc::O_PATH != 0 {
            return Err(MappingError::NotWritable);
        }
        // Of hugetlbfs it is the size of its pages; what tmpfs says is that of usual ones.
        let page = match magic {
            HUGETLBFS_MAGIC => fs.f_bsize as u64,
            _ => PAGE,
        };
        // SAFETY: a plain system call; what cannot be sealed gives an error.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        let sealed = seals > 0 && seals & libc::F_SEAL_SHRINK != 0;
        let file = MemoryFile { fd, page, sealed };
        let mode = file.stat()?.st_mode;
        if mode & libc::S_IFMT != libc::S_IFREG {
            return Err(MappingError::NotRegular(mode));
        }
        Ok(file)
    }

    /// Whether none of its pages can be lost to a mapping: it never gets shorter, and does not depend on free huge pages.
    pub fn keeps_pages(&self) -> bool {
        self.sealed && self.page == PAGE
    }

    fn stat(&self) -> Result<libc::stat64, MappingError> {
        // SAFETY: stat is valid when all zero.
        let mut st: libc::stat64 = unsafe { std::mem::zeroed() };
        // SAFETY: writes one stat64.
        if unsafe { libc::fstat64(self.fd.as_raw_fd(), &mut st) } != 0 {
            return Err(system("fstat of a memory object"));
        }
        Ok(st)
    }
}

/// Part of a memory object, mapped in this process.
#[derive(Debug)]
pub struct Mapping {
    // Before the mapping goes.
    guard: Option<Guarded>,
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping lives as long as the value, and all access to it is by raw copies.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes at `offset` of `file`, both whole pages of it, which may be huge ones. `name` says whose they are, for the log.
    pub fn new(
        file: &MemoryFile,
        offset: u64,
        len: u64,
        name: String,
    ) -> Result<Arc<Mapping>, MappingError> {
        // The page that has the last byte is there as a whole (`mmap(2)`).
        let size = (file.stat()?.st_size as u64).next_multiple_of(PAGE);
        // A part of a huge page can be mapped, but neither unmapped nor replaced, which the guard must be able to.
        let page = file.page;
        if page == 0 || offset % page != 0 || len % page != 0 {
            return Err(MappingError::Pages { offset, len, page });
        }
        let inside = len > 0 && offset.checked_add(len).is_some_and(|end| end <= size);
        let (Ok(length), true) = (usize::try_from(len), inside) else {
            return Err(MappingError::Range { offset, len, size });
        };
        let turn = room::take(len).map_err(|source| MappingError::System {
            what: "mapping a memory object",
            source,
        })?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.fd.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(system("mapping a memory object"));
        }
        drop(turn);
        let base: NonNull<u8> =
            NonNull::new(base.cast()).expect("mmap never returns null without MAP_FIXED");
        let mut mapping = Mapping {
            guard: None,
            base,
            len: length,
        };
        let guarded = guard::register(base.as_ptr() as usize, length, name);
        mapping.guard = Some(guarded.map_err(|source| MappingError::System {
            what: "guarding a memory object",
            source,
        })?);
        mapping.populate();
        Ok(Arc::new(mapping))
    }

    /// Enters the pages that exist in our page table, so that the lcore meets fewer faults. Only a matter of speed.
    fn populate(&self) {
        const PAGE: usize = 4096;
        const STEP: usize = 64 << 20;
        let mut resident = vec![0u8; self.len.min(STEP) / PAGE];
        let mut at = 0;
        while at < self.len {
            let step = STEP.min(self.len - at);
            let count = step / PAGE;
            // SAFETY: `at` is inside the mapping, and the vector has a byte for each page of the step.
            let asked = unsafe {
                libc::mincore(
                    self.base.as_ptr().add(at).cast(),
                    step,
                    resident.as_mut_ptr(),
                )
            };
            if asked != 0 {
                return;
            }
            let mut page = 0;
            while page < count {
                let run = resident[page..count]
                    .iter()
                    .take_while(|r| **r & 1 != 0)
                    .count();
                if run > 0 {
                    // SAFETY: a range inside the mapping.
                    let filled =
                        unsafe { pages::fill(self.base.add(at + page * PAGE), run * PAGE) };
                    if !filled {
                        return; // before Linux 5.14
                    }
                }
                page += run.max(1);
            }
            at += step;
        }
    }

    /// Whether the object has lost pages: the region is to be reached another way.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.guard.as_ref().is_none_or(Guarded::is_dead)
    }

    /// Where the `len` bytes at `offset` are, and what is true once the object has lost pages. `None` if they are not in the mapping.
    pub(super) fn piece(
        &self,
        offset: usize,
        len: usize,
    ) -> Option<(NonNull<u8>, &'static AtomicBool)> {
        if offset > self.len || len > self.len - offset {
            return None;
        }
        let dead = self.guard.as_ref()?.mark();
        // SAFETY: in bounds, checked above.
        Some((unsafe { self.base.add(offset) }, dead))
    }
}

/// Tells whether a mapping has its object's pages.
#[derive(Clone, Copy, Debug)]
pub struct Mark(&'static AtomicBool);

impl Mark {
    /// Whether it had them all along until now. To be asked when bytes were accessed, and not before: the handler may have run in
    /// between.
    #[inline(always)]
    pub fn is_alive(&self) -> bool {
        compiler_fence(Ordering::SeqCst);
        !self.0.load(Ordering::Relaxed)
    }
}

/// A piece of a mapping. The program writes to it at any time, so its bytes are copied and never lent.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    at: NonNull<u8>,
    len: usize,
    dead: &'static AtomicBool,
    mapping: PhantomData<&'a Mapping>,
}

impl<'a> Bytes<'a> {
    /// `len` bytes at `at`; `dead` is true once they are zero pages that stand in for lost ones.
    ///
    /// # Safety
    ///
    /// They lie in a [`Mapping`] that is kept for as long as `'a`.
    #[inline(always)]
    pub(super) unsafe fn new(at: NonNull<u8>, len: usize, dead: &'static AtomicBool) -> Bytes<'a> {
        Bytes {
            at,
            len,
            dead,
            mapping: PhantomData,
        }
    }

    /// Whether what was done to the bytes was done to the object.
    #[inline(always)]
    fn is_alive(&self) -> bool {
        self.mark().is_alive()
    }

    /// Where they are, for whoever reads them by other means; [`Mark::is_alive`] says afterwards whether these were the object's.
    #[inline(always)]
    pub fn source(&self) -> (*const u8, Mark) {
        (self.at.as_ptr(), self.mark())
    }

    #[inline(always)]
    fn mark(&self) -> Mark {
        Mark(self.dead)
    }

    /// Copies the first bytes out. False if there are not so many, or the object has lost pages; what was copied is then
    /// meaningless.
    #[inline]
    pub fn read(&self, into: &mut [u8]) -> bool {
        if into.len() > self.len {
            return false;
        }
        // SAFETY: in bounds, checked above; the slice is not in the mapping, as nobody has references into it.
        unsafe { copy::bytes(self.at.as_ptr(), into.as_mut_ptr(), into.len()) };
        self.is_alive()
    }

    /// Copies bytes in at the front. False if there is no room, or the object has lost pages; the bytes are then not in it.
    #[inline]
    pub fn write(&self, from: &[u8]) -> bool {
        if from.len() > self.len {
            return false;
        }
        // SAFETY: as for `read`.
        unsafe { copy::bytes(from.as_ptr(), self.at.as_ptr(), from.len()) };
        self.is_alive()
    }

    /// The first 8 bytes as a word that the program's own atomics see as one. `None` if there are fewer, or their address is no
    /// multiple of 8.
    fn word(&self) -> Option<&AtomicU64> {
        if self.len < 8 || self.at.as_ptr().addr() % 8 != 0 {
            return None;
        }
        // SAFETY: in bounds and aligned; the reference does not outlive the mapping. Other threads here touch the bytes by raw
        // copies, of one lcore's thread, and the program is another process.
        Some(unsafe { AtomicU64::from_ptr(self.at.as_ptr().cast()) })
    }

    /// Executes `op` on the first 8 bytes at once; what was there before. `None` if there are fewer, or their address is no
    /// multiple of 8, or as for [`Bytes::read`]; what was done then was done to zero pages that nobody sees.
    #[inline]
    pub fn execute(&self, op: AtomicOp) -> Option<u64> {
        let word = self.word()?;
        let before = match op {
            AtomicOp::CompareSwap { compare, swap } => {
                let done = word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
                done.unwrap_or_else(|found| found)
            }
            AtomicOp::FetchAdd(add) => word.fetch_add(add, Ordering::SeqCst),
            AtomicOp::Store(value) => word.swap(value, Ordering::SeqCst),
        };
        self.is_alive().then_some(before)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: our own mapping, to which no reference is left.
        unsafe { pages::unmap(self.base, self.len) };
    }
}

#[cfg(test)]
/// Helpers for the tests of this folder and of those that use it.
pub mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::FromRawFd;

    impl Mapping {
        fn bytes(&self, offset: usize, len: usize) -> Option<Bytes<'_>> {
            let (at, dead) = self.piece(offset, len)?;
            // SAFETY: in the mapping, which is borrowed.
            Some(unsafe { Bytes::new(at, len, dead) })
        }

        /// See [`Bytes::read`].
        pub fn read(&self, offset: usize, into: &mut [u8]) -> bool {
            self.bytes(offset, into.len())
                .is_some_and(|bytes| bytes.read(into))
        }

        /// See [`Bytes::write`].
        pub fn write(&self, offset: usize, from: &[u8]) -> bool {
            self.bytes(offset, from.len())
                .is_some_and(|bytes| bytes.write(from))
        }

        /// See [`Bytes::execute`].
        pub fn execute(&self, offset: usize, op: AtomicOp) -> Option<u64> {
            self.bytes(offset, 8)?.execute(op)
        }
    }

    /// A memfd of `len` bytes with seals.
    pub fn memfd(len: u64, seals: libc::c_int) -> OwnedFd {
        // SAFETY: plain system calls on a new descriptor that becomes ours.
        unsafe {
            let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
            let fd = OwnedFd::from_raw_fd(libc::memfd_create(c"test".as_ptr(), flags));
            assert_eq!(libc::ftruncate(fd.as_raw_fd(), len as libc::off_t), 0);
            assert_eq!(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals), 0);
            fd
        }
    }

    #[test]
    fn only_memory_objects_open_both_ways_are_taken() {
        let both_ways = File::options().read(true).write(true).open("/dev/null");
        // `/dev` may be a tmpfs.
        let error = MemoryFile::adopt(both_ways.unwrap().into()).unwrap_err();
        assert!(
            matches!(
                error,
                MappingError::NotMemory(_) | MappingError::NotRegular(_)
            ),
            "{error}"
        );
        let proc = File::open("/proc/self/maps").unwrap().into();
        let error = MemoryFile::adopt(proc).unwrap_err();
        assert!(matches!(error, MappingError::NotMemory(_)), "{error}");
        let fd = memfd(4096, 0);
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let readable: OwnedFd = File::open(path).unwrap().into();
        assert!(matches!(
            MemoryFile::adopt(readable).unwrap_err(),
            MappingError::NotWritable
        ));
        assert!(MemoryFile::adopt(fd).is_ok());
    }

    #[test]
    fn ranges_outside_the_object_are_refused() {
        let file = MemoryFile::adopt(memfd(8192, 0)).unwrap();
        for (offset, len) in [(0, 0), (0, 12288), (8192, 4096), (4096, u64::MAX - 4095)] {
            let error = Mapping::new(&file, offset, len, String::new()).unwrap_err();
            assert!(matches!(error, MappingError::Range { .. }), "{error}");
        }
        assert!(Mapping::new(&file, 4096, 4096, String::new()).is_ok());
    }

    #[test]
    fn two_mappings_of_a_range_see_the_same_bytes() {
        let file = MemoryFile::adopt(memfd(8192, 0)).unwrap();
        let a = Mapping::new(&file, 0, 8192, String::new()).unwrap();
        let b = Mapping::new(&file, 4096, 4096, String::new()).unwrap();
        assert!(a.write(4090, b"across pages"));
        let mut seen = [0; 6];
        assert!(b.read(0, &mut seen));
        assert_eq!(&seen, b" pages");
    }

    #[test]
    fn words_are_changed_at_once_and_only_whole_aligned_ones() {
        let file = MemoryFile::adopt(memfd(4096, 0)).unwrap();
        let mapping = Mapping::new(&file, 0, 4096, String::new()).unwrap();
        let swap = |compare, swap| AtomicOp::CompareSwap { compare, swap };
        assert_eq!(mapping.execute(8, AtomicOp::FetchAdd(5)), Some(0));
        assert_eq!(mapping.execute(8, swap(4, 9)), Some(5));
        assert_eq!(mapping.execute(8, swap(5, 9)), Some(5));
        assert_eq!(mapping.execute(8, AtomicOp::Store(u64::MAX)), Some(9));
        assert_eq!(mapping.execute(8, AtomicOp::FetchAdd(2)), Some(u64::MAX));
        let mut bytes = [0; 8];
        assert!(mapping.read(8, &mut bytes));
        assert_eq!(u64::from_ne_bytes(bytes), 1);
        for offset in [1, 4, 4089, 4096, usize::MAX - 7] {
            assert_eq!(mapping.execute(offset, AtomicOp::Store(1)), None);
        }
        assert!(mapping.execute(4088, AtomicOp::Store(1)).is_some());
    }

    #[test]
    fn nothing_beyond_the_mapping_is_touched() {
        let file = MemoryFile::adopt(memfd(4096, 0)).unwrap();
        let mapping = Mapping::new(&file, 0, 4096, String::new()).unwrap();
        assert!(mapping.write(4090, &[1; 6]));
        assert!(!mapping.write(4090, &[1; 7]) && !mapping.read(4090, &mut [0; 7]));
        assert!(!mapping.read(usize::MAX, &mut [0; 1]));
    }
}
