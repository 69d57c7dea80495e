//! Page tables of large mappings, piece by piece. While one system call fills or empties a table, no other thread of the process
//! can map or unmap anything (they wait for the address space's lock), and no program's control request is served that does.
//! On two shared vCPUs others waited 42 to 125 ms for 64 MiB that were filled at once, and 75 ms for 512 MiB that were
//! unmapped at once; less than one for a piece.

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

/// Offset and length of each piece.
fn pieces(len: usize, piece: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len)
        .step_by(piece)
        .map(move |at| (at, piece.min(len - at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_whole() {
        let all = |len| pieces(len, 10).collect::<Vec<_>>();
        assert_eq!(all(0), []);
        assert_eq!(all(10), [(0, 10)]);
        assert_eq!(all(25), [(0, 10), (10, 10), (20, 5)]);
    }
}
