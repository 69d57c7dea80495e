//! Memory of a [`Producer`](super::Producer): a sealed memory object, as the shim makes of a program's buffer when it is
//! registered. The program's mapping of it is here; the lcore's own comes with [`Buffer::reach`].

use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::memory::{Mapping, MemoryFile, Range, Reach, memfd, pages};

/// Pages that programs and lcores share.
const PAGE: usize = 4096;

/// A buffer with a descriptor.
#[derive(Debug)]
pub struct Buffer {
    base: NonNull<u8>,
    len: usize,
    file: MemoryFile,
    /// An lcore's mapping of all of it, once there is one.
    mapping: Option<Arc<Mapping>>,
}

// SAFETY: the mapping lives as long as the value; nobody has references into it.
unsafe impl Send for Buffer {}

impl Buffer {
    /// A buffer of at least `len` bytes, whole pages, all of them touched.
    ///
    /// # Errors
    /// When the kernel refuses memory.
    pub fn new(len: usize) -> io::Result<Buffer> {
        let len = len.max(1).next_multiple_of(PAGE);
        let fd = memfd::create(c"roceline-bench")?;
        // SAFETY: plain system calls on our descriptor, and a new mapping at an address of the kernel's choice.
        let base = unsafe {
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
            if libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) != 0
                || libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) != 0
            {
                return Err(io::Error::last_os_error());
            }
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("mmap never returns null without MAP_FIXED");
        let file = MemoryFile::adopt(fd).map_err(io::Error::other)?;
        Ok(Buffer {
            base,
            len,
            file,
            mapping: None,
        })
    }

    /// Address of its first byte.
    pub fn addr(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes; it always has some.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of it mapped for an lcore, as the memory of programs is. All regions share a mapping, as those of a program do that
    /// overlap.
    ///
    /// # Errors
    /// When it cannot be mapped once more.
    pub fn reach(&mut self) -> io::Result<Reach> {
        let mapping = match &self.mapping {
            Some(mapping) => Arc::clone(mapping),
            None => {
                let mapping = Mapping::new(&self.file, 0, self.len as u64, "benchmark".into());
                Arc::clone(self.mapping.insert(mapping.map_err(io::Error::other)?))
            }
        };
        Ok(Reach::mapped(vec![Range {
            start: self.addr(),
            end: self.addr() + self.len as u64,
            mapping,
            offset: 0,
        }]))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no reference is left.
        unsafe { pages::unmap(self.base, self.len) };
    }
}
