//! fork: the child has the fds and the memory of the parent's contexts, but the daemon's connection is the parent's.
//! In the child they are dead (commands give EIO) and its copies of the hidden fds are closed, so that the end of the
//! parent is the end of the connection. Its copies of the parent's queues lead nowhere. The child may open devices of its own. What of its memory was shared with the
//! daemon is made the child's own (`memory`).
//!
//! The handlers are registered when the library is loaded, before the program's own (`pthread_atfork(3)` runs what prepares
//! a fork in reverse order, the rest in order): so between ours there is nothing but the fork, and in the child memory is
//! its own before anything of the program runs. Libraries that were initialised before this one may still come between; what
//! they call of ours finds the locks held by its own thread, and passes ([`is_this_thread`]).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::context::Context;
use crate::memory::maps;
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
    own_queues();
    context::orphan_all();
    open::forget_program();
    table::LOCK.release();
}

/// In the child: its mappings of context files become copies of its own, so that what it posts is never carried out with the parent's
/// next request, and what it polls is not taken from the parent. Pages that it does not write to show what the parent's do.
fn own_queues() {
    if !context::all().iter().any(Context::is_live) {
        return;
    }
    maps::each(|vma, _| {
        let file = (vma.dev, vma.inode);
        let mut live = context::all().iter().filter(|context| context.is_live());
        let fd = match vma.is_shared() {
            true => live.find(|context| context.file_identity() == file),
            false => None,
        }
        .and_then(table::file_of);
        if let Some(fd) = fd {
            let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
            let (start, len) = (vma.span.start, vma.span.len());
            // SAFETY: the same bytes at the same addresses, and no other thread exists. Where it fails, the child shares its
            // parent's, as it would with the kernel's driver.
            unsafe { sys::mmap(start, len, vma.protection(), flags, fd, vma.offset) };
        }
        true
    });
}
