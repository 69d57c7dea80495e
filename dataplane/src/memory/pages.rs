//! Page tables of large mappings, piece by piece. While one system call fills or empties a table, no other thread of the process
//! can map or unmap anything (they wait for the address space's lock), and no program's control request is served that does.
//! On two shared vCPUs others waited 42 to 125 ms for 64 MiB that were filled at once, and 75 ms for 512 MiB that were
//! unmapped at once; less than one for a piece.

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
        let error = std::io::Error::last_os_error();
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
