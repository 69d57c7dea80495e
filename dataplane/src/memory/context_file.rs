//! The sealed memfd of a context, mapped whole. The program can write all of it at any time, so nothing here
//! hands out a reference into it: values are copied by volatile or atomic access, in bounds, and then checked.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use roceline_abi::layout::FILE_BYTES;
use roceline_abi::view::View;

use super::{pages, room};

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
        let _turn = room::take(FILE_BYTES)?;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                FILE_BYTES as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("mmap never returns null without MAP_FIXED");
        Ok(ContextFile { fd, base })
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
