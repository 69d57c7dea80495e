//! The sealed memfd of a context, mapped whole. The program can write all of it at any time, so nothing here
//! hands out a reference into it: values are copied by volatile or atomic access, in bounds, and then checked.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use roceline_abi::layout::{FILE_BYTES, QUEUE_FLOOR};
use roceline_abi::view::View;

use super::{pages, room};

/// Bytes of a block of the file that one entry of the page table can map: a huge page.
pub const BLOCK: u64 = 2 << 20;
const PAGE: u64 = 4096;

const _: () = assert!(QUEUE_FLOOR % BLOCK == 0 && FILE_BYTES % BLOCK == 0);

/// The mapping of one context file.
#[derive(Debug)]
pub struct ContextFile {
    fd: OwnedFd,
    base: NonNull<u8>,
}

// SAFETY: the mapping lives as long as the value and all access to it is atomic or volatile.
unsafe impl Send for ContextFile {}
// SAFETY: as above.
unsafe impl Sync for ContextFile {}

impl ContextFile {
    /// Makes, sizes, seals and maps a file.
    pub fn create() -> io::Result<ContextFile> {
        let fd = super::memfd::create(c"roceline-context")?;
        // SAFETY: plain system calls on our fd.
        unsafe {
            if libc::ftruncate(fd.as_raw_fd(), FILE_BYTES as libc::off_t) != 0 {
                return Err(io::Error::last_os_error());
            }
            // Sealed: a program can neither shrink the file (SIGBUS here) nor grow it.
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
            if libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        ContextFile::map(fd)
    }

    /// Maps a file that [`ContextFile::create`] made, in another process perhaps.
    pub fn adopt(fd: OwnedFd) -> io::Result<ContextFile> {
        // SAFETY: zeroes are a valid stat.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: a plain system call that fills `stat` in.
        if unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a plain system call on our fd.
        let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || stat.st_size != FILE_BYTES as i64 {
            return Err(io::Error::other("not a context file"));
        }
        ContextFile::map(fd)
    }

    fn map(fd: OwnedFd) -> io::Result<ContextFile> {
        let _turn = room::take(FILE_BYTES + BLOCK)?;
        // Blocks of the file are blocks of the address space, else none could be a huge page.
        let base = pages::reserve(FILE_BYTES as usize, BLOCK as usize)?;
        // SAFETY: takes the place of what was just reserved, all of it ours.
        let mapped = unsafe {
            libc::mmap(
                base.as_ptr().cast(),
                FILE_BYTES as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED,
                fd.as_raw_fd(),
                0,
            )
        };
        // From here on its end unmaps the place, whatever lies there.
        let file = ContextFile { fd, base };
        match mapped {
            libc::MAP_FAILED => Err(io::Error::last_os_error()),
            _ => Ok(file),
        }
    }

    /// Allocates zeroed pages, those of a queue, and enters them in the page table.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn populate(&self, offset: u64, bytes: u64) -> io::Result<()> {
        self.fallocate(0, offset, bytes)?;
        let at = self.at(offset, bytes);
        // SAFETY: a range of our own mapping.
        let filled = unsafe { pages::fill(at, bytes as usize) };
        // Kernels before 5.14 do not know the advice. The pages exist, so touching them cannot fail either.
        if !filled {
            for page in (0..bytes).step_by(PAGE as usize) {
                self.atomic_u32(offset + page)
                    .fetch_or(0, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Frees pages: later reads give zeros.
    ///
    /// # Errors
    /// When the kernel refuses; then what was there is there.
    pub fn punch(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        self.fallocate(mode, offset, bytes)
    }

    /// Makes huge pages of the blocks that queues, which lie above `before` so far, enter when they are to reach down to `lowest`; not
    /// before they filled one with small pages, which most programs never do. Only a matter of speed: where the kernel cannot, or finds no huge page, what comes is pages as ever.
    ///
    /// A program's thousands of rings lie on as many pages, and each page that the lcore comes to costs it a walk through the page
    /// table, in a virtual machine through two. Blocks are joined before there is anything in them: to move pages that are in use
    /// would make the lcore wait for it.
    pub fn join(&self, before: u64, lowest: u64) {
        if FILE_BYTES - before < BLOCK {
            return;
        }
        for block in (lowest / BLOCK)..(before / BLOCK) {
            let at = self.at(block * BLOCK, BLOCK);
            // SAFETY: a block of our own mapping.
            unsafe { pages::join(at, BLOCK as usize) };
        }
    }

    fn fallocate(&self, mode: libc::c_int, offset: u64, bytes: u64) -> io::Result<()> {
        let (offset, bytes) = (offset as libc::off_t, bytes as libc::off_t);
        // SAFETY: a plain system call on our descriptor.
        match unsafe { libc::fallocate(self.fd.as_raw_fd(), mode, offset, bytes) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The file, to be passed to the program.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// All of it, for the code that both sides share.
    pub fn view(&self) -> View<'_> {
        // SAFETY: mapped as long as self lives; all access here is atomic or volatile.
        unsafe { View::new(self.base, FILE_BYTES) }
    }

    /// Pointer to `len` bytes at `offset`.
    ///
    /// # Panics
    /// If the range is outside the file: offsets come from the daemon, never from the program.
    #[inline]
    pub fn at(&self, offset: u64, len: u64) -> NonNull<u8> {
        assert!(
            offset <= FILE_BYTES && len <= FILE_BYTES - offset,
            "offset {offset:#x}+{len:#x}"
        );
        // SAFETY: inside the mapping, checked above.
        unsafe { self.base.add(offset as usize) }
    }

    /// The u32 at `offset` as an atomic.
    #[inline]
    pub fn atomic_u32(&self, offset: u64) -> &AtomicU32 {
        assert!(offset % 4 == 0);
        // SAFETY: in bounds, aligned, and lives as long as self; other processes access it atomically or
        // not at all in a way that matters to us (any value is valid).
        unsafe { self.at(offset, 4).cast::<AtomicU32>().as_ref() }
    }

    /// The u64 at `offset` as an atomic.
    #[inline]
    pub fn atomic_u64(&self, offset: u64) -> &AtomicU64 {
        assert!(offset % 8 == 0);
        // SAFETY: as for `atomic_u32`.
        unsafe { self.at(offset, 8).cast::<AtomicU64>().as_ref() }
    }

    /// Stores a u32 with release ordering.
    pub fn store_u32(&self, offset: u64, value: u32) {
        self.atomic_u32(offset).store(value, Ordering::Release);
    }
}

impl Drop for ContextFile {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no reference is left.
        unsafe { pages::unmap_sparse(self.base, FILE_BYTES as usize, self.fd()) };
    }
}
