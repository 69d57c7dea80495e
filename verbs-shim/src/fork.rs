//! fork: the child has the fds and the memory of the parent's contexts, but the daemon's connection is the parent's.
//! In the child they are dead (commands give EIO) and its copies of the hidden fds are closed, so that the end of the
//! parent is the end of the connection. The child may open devices of its own. What of its memory was shared with the
//! daemon is made the child's own (`memory`).

use std::sync::atomic::{AtomicBool, Ordering};

use crate::{context, memory, open, table};

/// Watches forks from the first open of a device on.
pub fn watch() {
    static WATCHED: AtomicBool = AtomicBool::new(false);
    if WATCHED.swap(true, Ordering::Relaxed) {
        return;
    }
    table::own();
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

extern "C" fn before() {
    memory::before();
    table::LOCK.acquire();
}

extern "C" fn in_parent() {
    table::LOCK.release();
    memory::after_in_parent();
}

extern "C" fn in_child() {
    table::own();
    memory::after_in_child();
    context::orphan_all();
    open::forget_program();
    table::LOCK.release();
}
