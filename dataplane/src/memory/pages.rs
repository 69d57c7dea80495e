//! Page tables of large mappings, piece by piece. While one system call fills or empties a table, no other thread of the process
//! can map or unmap anything (they wait for the address space's lock), and no program's control request is served that does.
//! On two shared vCPUs others waited 42 to 125 ms for 64 MiB that were filled at once, and 75 ms for 512 MiB that were
//! unmapped at once; less than one for a piece.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// Bytes of which one call fills in the table: half a millisecond, where the pages exist.
const FILLED: usize = 2 << 20;
/// Bytes of which one call empties it: two milliseconds where all pages exist, and not too many calls where few do.
const EMPTIED: usize = 16 << 20;

/// Enters pages in the table, for writing; those that do not exist are made. False where the kernel cannot (before Linux 5.14),
/// or there is no memory.
///
/// # Safety
/// The range is a mapping of ours.
pub unsafe fn fill(base: NonNull<u8>, len: usize) -> bool {
    pieces(len, FILLED).all(|(at, len)| {
        // SAFETY: inside what the caller promises; the call changes no byte.
        unsafe {
            let at = base.as_ptr().add(at);
            libc::madvise(at.cast(), len, libc::MADV_POPULATE_WRITE) == 0
        }
    })
}

/// `asm-generic/mman-common.h`, since Linux 6.1: makes a huge page of pages, at once and whatever
/// `/sys/kernel/mm/transparent_hugepage` says of memory objects.
const MADV_COLLAPSE: libc::c_int = 25;
/// Bytes of a small page.
const PAGE: usize = 4096;

/// Reserves address space for a mapping of `len` bytes, all whole pages, that begins at a multiple of `align`, a power of two.
///
/// # Errors
/// When there is no such room.
pub fn reserve(len: usize, align: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice, which takes no memory.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len + align,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let base = base.cast::<u8>();
    let before = base.align_offset(align);
    // SAFETY: the parts of the new mapping in front of the aligned one and behind it, to which nobody has references.
    unsafe {
        for (at, part) in [(0, before), (before + len, align - before)] {
            if part > 0 {
                libc::munmap(base.add(at).cast(), part);
            }
        }
        Ok(NonNull::new_unchecked(base.add(before)))
    }
}

/// Makes a huge page, zeroed, of a block of a memory object of which no page exists yet. False where the kernel cannot (before Linux
/// 6.1), or has no memory that hangs together; then the last page exists.
///
/// # Safety
/// The range is a mapping of ours, a huge page long, and begins at a multiple of that both there and in the object.
pub unsafe fn join(base: NonNull<u8>, len: usize) -> bool {
    // SAFETY: inside what the caller promises; neither call changes a byte.
    unsafe {
        // Where the page table has nothing at all, there is nothing to join.
        let last = base.as_ptr().add(len - PAGE);
        libc::madvise(last.cast(), PAGE, libc::MADV_POPULATE_WRITE) == 0
            && libc::madvise(base.as_ptr().cast(), len, MADV_COLLAPSE) == 0
    }
}

/// Unmaps a mapping of a file or memory object.
///
/// # Safety
/// The range is a mapping of ours, and nobody uses it any more.
pub unsafe fn unmap(base: NonNull<u8>, len: usize) {
    for (at, len) in pieces(len, EMPTIED) {
        // SAFETY: inside what the caller promises; where the kernel cannot, what follows takes longer.
        unsafe { libc::madvise(base.as_ptr().add(at).cast(), len, libc::MADV_DONTNEED) };
    }
    // SAFETY: by the caller's promise.
    unsafe { libc::munmap(base.as_ptr().cast(), len) };
}

/// The same for a mapping of `file` from its begin that is much larger than what it holds: what it does not hold takes no calls,
/// each of which would interrupt the CPUs that other threads of this process run on. The 16 GiB of a context took 1,024.
///
/// # Safety
/// As for [`unmap`].
pub unsafe fn unmap_sparse(base: NonNull<u8>, len: usize, file: BorrowedFd<'_>) {
    let next_data = |from: usize| {
        // SAFETY: a plain system call; nobody reads or writes this file at its offset.
        let at = unsafe { libc::lseek(file.as_raw_fd(), from as libc::off_t, libc::SEEK_DATA) };
        if at >= 0 {
            return Some(at as usize);
        }
        // Nothing behind here; or the kernel cannot tell.
        let error = io::Error::last_os_error();
        (error.raw_os_error() != Some(libc::ENXIO)).then_some(from)
    };
    for (at, len) in data_pieces(len, EMPTIED, next_data) {
        // SAFETY: inside what the caller promises; where the kernel cannot, what follows takes longer.
        unsafe { libc::madvise(base.as_ptr().add(at).cast(), len, libc::MADV_DONTNEED) };
    }
    // SAFETY: by the caller's promise.
    unsafe { libc::munmap(base.as_ptr().cast(), len) };
}

/// Offset and length of each piece that begins with something. `next_data` finds where that is, from an offset on.
fn data_pieces(
    len: usize,
    piece: usize,
    next_data: impl Fn(usize) -> Option<usize>,
) -> impl Iterator<Item = (usize, usize)> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = next_data(from).filter(|&at| at < len)?;
        let piece = piece.min(len - at);
        from = at + piece;
        Some((at, piece))
    })
}

/// Offset and length of each piece.
fn pieces(len: usize, piece: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len)
        .step_by(piece)
        .map(move |at| (at, piece.min(len - at)))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_is_reserved_begins_where_it_should_and_is_there_as_a_whole() {
        const LEN: usize = 3 << 20;
        for align in [PAGE, 2 << 20] {
            let base = reserve(LEN, align).unwrap();
            assert_eq!(base.as_ptr() as usize % align, 0);
            let mut resident = vec![0u8; LEN / PAGE];
            // SAFETY: what was just reserved, and a byte for each page of it. Fails if any of it is not mapped.
            unsafe {
                let at = base.as_ptr().cast();
                assert_eq!(libc::mincore(at, LEN, resident.as_mut_ptr()), 0);
                assert_eq!(libc::munmap(at, LEN), 0);
            }
        }
    }

    #[test]
    fn pieces_are_the_whole() {
        let all = |len| pieces(len, 10).collect::<Vec<_>>();
        assert_eq!(all(0), []);
        assert_eq!(all(10), [(0, 10)]);
        assert_eq!(all(25), [(0, 10), (10, 10), (20, 5)]);
    }

    #[test]
    fn pieces_with_data_begin_where_there_is_some() {
        let all = |len, data: &[usize]| {
            let next = |from| data.iter().copied().find(|&at| at >= from);
            data_pieces(len, 10, next).collect::<Vec<_>>()
        };
        assert_eq!(all(100, &[]), []);
        assert_eq!(
            all(100, &[0, 3, 10, 45, 54, 97]),
            [(0, 10), (10, 10), (45, 10), (97, 3)]
        );
        assert_eq!(all(40, &[45]), []);
    }

    /// Whatever the kernel says of a memory object, the mapping is gone.
    #[test]
    fn a_sparse_mapping_is_unmapped() {
        let file = super::super::memfd::create(c"sparse").unwrap();
        let len = 1 << 30;
        // SAFETY: system calls on our own file and a new mapping of it.
        unsafe {
            assert_eq!(libc::ftruncate(file.as_raw_fd(), len as libc::off_t), 0);
            let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
            let at = libc::mmap(std::ptr::null_mut(), len, access, kind, file.as_raw_fd(), 0);
            assert_ne!(at, libc::MAP_FAILED);
            let base = NonNull::new(at.cast::<u8>()).unwrap();
            base.add(len / 2).write_volatile(7);
            unmap_sparse(base, len, file.as_fd());
            let mut core = 0;
            assert_eq!(libc::mincore(at, 4096, &mut core), -1);
        }
    }
}
