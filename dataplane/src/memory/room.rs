//! Room in the address space, where that is limited (`ulimit -v`, RLIMIT_AS).
//!
//! A mapping that does not fit fails, and whoever asked for it hears of that. But the rest of the process must go on: a `malloc` of a few
//! bytes that fails ends it, and so does a thread that starts and finds no room for its signal stack (`std::thread`). So what
//! programs make the daemon map leaves a reserve untouched. Without a limit nothing here costs more than a system call.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is left for everything that cannot fail.
const RESERVE: u64 = 64 << 20;
/// What mappings leave: theirs are no failures, so that programs can have regions and queues when there is no room for mappings.
const BEYOND_MAPPINGS: u64 = 2 * RESERVE;
/// A thread: its stack, its signal stack, and what it allocates.
pub const THREAD: u64 = 4 << 20;
/// What the daemon allocates for an object of a program's, at most: 3 MiB for a queue pair with queues of the greatest length.
pub const OBJECT: u64 = 4 << 20;
/// Bytes of a page in `/proc/self/statm`.
const PAGE: u64 = 4096;

/// There is a limit, and no room below it.
#[derive(Debug, thiserror::Error)]
#[error(
    "the daemon may have {limit} bytes of address space (RLIMIT_AS), has {used}, and would need {bytes} more beside a reserve of \
     {reserve}: start it without `ulimit -v`"
)]
struct NoRoom {
    bytes: u64,
    used: u64,
    limit: u64,
    reserve: u64,
}

/// Held from the look at what is there until the mapping is made; nobody else maps meanwhile.
pub type Turn = Option<MutexGuard<'static, ()>>;

static TURN: Mutex<()> = Mutex::new(());

/// An error if `bytes` more do not fit. Of several who ask at once, each sees what the others have not mapped yet: for what is small
/// beside the reserve.
pub fn check(bytes: u64) -> io::Result<()> {
    match limit() {
        Some(limit) => within(limit, used(), bytes, RESERVE),
        None => Ok(()),
    }
}

/// The same for what is large: whoever holds the answer may map so many.
pub fn take(bytes: u64) -> io::Result<Turn> {
    let Some(limit) = limit() else {
        return Ok(None);
    };
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    within(limit, used(), bytes, BEYOND_MAPPINGS)?;
    Ok(Some(turn))
}

/// The errno of a failure of this or of a system call.
pub fn errno(error: &io::Error) -> i32 {
    match (error.raw_os_error(), error.kind()) {
        (Some(errno), _) => errno,
        (None, io::ErrorKind::OutOfMemory) => libc::ENOMEM,
        (None, _) => libc::EIO,
    }
}

fn within(limit: u64, used: u64, bytes: u64, reserve: u64) -> io::Result<()> {
    let wanted = used.saturating_add(bytes).saturating_add(reserve);
    if wanted <= limit {
        return Ok(());
    }
    let no_room = NoRoom {
        bytes,
        used,
        limit,
        reserve,
    };
    Err(io::Error::new(io::ErrorKind::OutOfMemory, no_room))
}

fn limit() -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: fills in one rlimit.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut limit) } == 0;
    (known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// Address space of this process; 0 where `/proc` does not tell.
fn used() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_ascii_whitespace().next();
    let pages = pages.and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0).saturating_mul(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_leaves_the_reserve() {
        const GIB: u64 = 1 << 30;
        assert!(within(2 * GIB, GIB, GIB - RESERVE, RESERVE).is_ok());
        let error = within(2 * GIB, GIB, GIB - RESERVE + 1, RESERVE).unwrap_err();
        assert_eq!(errno(&error), libc::ENOMEM);
        let text = error.to_string();
        assert!(
            text.contains("RLIMIT_AS") && text.contains("ulimit -v"),
            "{text}"
        );
        assert!(within(2 * GIB, GIB, u64::MAX, RESERVE).is_err());
        assert!(used() > 0);
        assert_eq!(
            errno(&io::Error::from_raw_os_error(libc::EMFILE)),
            libc::EMFILE
        );
    }
}
