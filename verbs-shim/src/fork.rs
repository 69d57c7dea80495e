//! fork: the child has the fds and the memory of the parent's contexts, but the daemon's connection is the parent's.
//! In the child they are dead (commands give EIO) and its copies of the hidden fds are closed, so that the end of the
//! parent is the end of the connection. The child may open devices of its own. What of its memory was shared with the
//! daemon is made the child's own (`memory`).
//!
//! The handlers are registered when the library is loaded, before the program's own (`pthread_atfork(3)` runs what prepares
//! a fork in reverse order, the rest in order): so between ours there is nothing but the fork, and in the child memory is
//! its own before anything of the program runs. Libraries that were initialised before this one may still come between; what
//! they call of ours finds the locks held by its own thread, and passes ([`is_this_thread`]).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::{context, memory, open, sys, table};

/// The thread that is between the handlers, in the parent or the child; 0 if none is.
static THREAD: AtomicUsize = AtomicUsize::new(0);

/// Watches all forks of this process.
pub fn watch() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if WATCHED.swap(true, Ordering::Relaxed) {
        return;
    }
    table::own();
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

/// Whether this thread is between the handlers, and so holds all locks.
pub fn is_this_thread() -> bool {
    THREAD.load(Ordering::Relaxed) == sys::this_thread()
}

extern "C" fn before() {
    memory::before();
    table::LOCK.acquire();
    THREAD.store(sys::this_thread(), Ordering::Relaxed);
}

extern "C" fn in_parent() {
    THREAD.store(0, Ordering::Relaxed);
    table::LOCK.release();
    memory::after_in_parent();
}

extern "C" fn in_child() {
    THREAD.store(0, Ordering::Relaxed);
    table::own();
    memory::after_in_child();
    context::orphan_all();
    open::forget_program();
    table::LOCK.release();
}
