//! Advice on memory. Private memory that gives its pages back reads as zeroes afterwards, and memory that is shared with the daemon
//! in its place must do the same.

use std::ffi::{c_int, c_void};

use libc::size_t;

use crate::memory::{self, Advice};
use crate::sys::fail;
use crate::{fork, next, sys};

/// # Safety
/// As for `madvise`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(start: *mut c_void, len: size_t, advice: c_int) -> c_int {
    let marks = matches!(advice, libc::MADV_DONTFORK | libc::MADV_DOFORK);
    if marks {
        // Before there is anything to remember.
        fork::watch();
    }
    if marks || memory::concerns() {
        match memory::advise(start.addr(), len, advice) {
            Advice::Pass => {}
            Advice::Answer(0) => return 0,
            Advice::Answer(errno) => return fail(errno),
        }
    }
    match next::madvise.get() {
        // SAFETY: by the caller's promise.
        Some(f) => unsafe { f(start, len, advice) },
        None => sys::madvise(start.addr(), len, advice),
    }
}
