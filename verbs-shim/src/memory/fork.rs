//! fork: a child gets private copies of what is shared with our object, as of the moment of the fork.
//!
//! With one thread, the parent waits in fork until the child has copied: nobody else of the program writes meanwhile. With
//! several, the memory is made private before the fork, which then copies as it always does, and shared again after it in the
//! parent; the daemon goes through the kernel in between. What a peer writes in these moments may be old or new in the child,
//! as with hardware.

use std::cell::UnsafeCell;
use std::ffi::c_int;

use roceline_abi::control::{Kind, Plain, RegionReach};

use super::regions::Region;
use super::spans::Span;
use super::{State, Writers, object, pins, swap};
use crate::client;
use crate::context::{self, Context};
use crate::say::say;
use crate::sys;

/// What `before` leaves for the other two, in the thread that forks.
struct Fork {
    /// Closed by the child when it has copied.
    pipe: Option<[c_int; 2]>,
    /// Regions go through the kernel until they are shared again.
    unmapped: bool,
    /// The contexts whose locks were taken.
    contexts: context::All,
}

struct Guarded(UnsafeCell<Fork>);

// SAFETY: only the thread that forks uses it, while it holds `super::LOCK`; in the child that is the only thread.
unsafe impl Sync for Guarded {}

static FORK: Guarded = Guarded(UnsafeCell::new(Fork {
    pipe: None,
    unmapped: false,
    contexts: context::All::NONE,
}));

/// Before the fork. Takes the locks of all contexts, then that of the memory; the two below give them back.
pub fn before() {
    // Those that are opened meanwhile are not among these.
    let contexts = context::all();
    contexts.iter().for_each(|c| c.lock.acquire());
    super::LOCK.acquire();
    // SAFETY: the lock is held.
    let (state, fork) = unsafe { (&mut *super::STATE.0.get(), &mut *FORK.0.get()) };
    fork.pipe = None;
    fork.unmapped = false;
    fork.contexts = contexts;
    if state.swapped.is_empty() {
        return;
    }
    if sys::threads() != 1 && !pins::any() {
        if let Some(writers @ Writers::Held(_)) = state.writers(true) {
            fork.unmapped = true;
            contexts.iter().for_each(|c| state.unmap_all(c));
            let mut at = 0;
            while let Some(&span) = state.swapped.as_slice().get(at) {
                // What stays is the stack of this thread, which another one registered.
                if !state.make_private(span, Some(&writers)) {
                    at += 1;
                }
            }
        }
    }
    if !state.swapped.is_empty() {
        fork.pipe = sys::pipe();
    }
}

/// After the fork, in the parent.
pub fn after_in_parent() {
    // SAFETY: the lock is held since `before`.
    let (state, fork) = unsafe { (&mut *super::STATE.0.get(), &mut *FORK.0.get()) };
    if let Some([read, write]) = fork.pipe.take() {
        sys::close(write);
        // Ends when the child closes its end, or dies.
        let mut byte = [0];
        while sys::read(read, &mut byte) < 0 && sys::errno() == libc::EINTR {}
        sys::close(read);
    }
    let contexts = fork.contexts;
    if fork.unmapped {
        contexts.iter().for_each(|c| state.map_all(c));
        state.note();
    }
    super::LOCK.release();
    contexts.iter().for_each(|c| c.lock.release());
}

/// After the fork, in the child: contexts are dead here, and their locks are given back by whoever says so to them.
pub fn after_in_child() {
    // SAFETY: the lock is held since `before`, and no other thread exists.
    let (state, fork) = unsafe { (&mut *super::STATE.0.get(), &mut *FORK.0.get()) };
    let copied = state.unshare();
    match fork.pipe.take() {
        Some([read, write]) => {
            sys::close(read);
            sys::close(write);
        }
        // The parent did not wait, so what was copied may be of any time.
        None if copied => give_up(
            "a forked child has no descriptor to let its parent wait until registered memory is copied",
        ),
        None => {}
    }
    state.regions.clear();
    state.files.clear();
    state.swapped.clear();
    state.note();
    super::LOCK.release();
}

impl State {
    /// Lets the daemon reach all regions of a context through the kernel.
    fn unmap_all(&mut self, context: &Context) {
        let Some(socket) = context.socket() else {
            return;
        };
        for place in 0..self.regions.places() {
            let Some(region) = self.regions.at(place) else {
                continue;
            };
            if region.serial == context.serial() && region.mapped {
                let head = head(&region);
                let payload: [&[u8]; 3] = [head.as_bytes(), &[], &[]];
                if client::exchange(socket, Kind::Reach, payload, None, &mut []).is_err() {
                    context.lose();
                    return;
                }
            }
        }
    }

    /// Shares the memory of all regions of a context again.
    fn map_all(&mut self, context: &Context) {
        let Some(socket) = context.socket() else {
            return;
        };
        // SAFETY: the context's lock is held since `before`.
        let scratch = unsafe { &mut *context.reply.get() };
        for place in 0..self.regions.places() {
            let Some(region) = self.regions.at(place) else {
                continue;
            };
            if region.serial == context.serial() && region.mapped {
                let head = head(&region);
                let room = scratch.len() - size_of::<RegionReach>();
                let (policy, scratch) = (context.memory_policy(), &mut scratch[..room]);
                let kind = Kind::Reach;
                self.map(
                    context,
                    socket,
                    region.span,
                    policy,
                    kind,
                    head.as_bytes(),
                    scratch,
                );
            }
        }
    }

    /// In the child: private copies of all that is mapped from our object. Whether anything is.
    fn unshare(&mut self) -> bool {
        let objects = object::all();
        if !self.collect(|vma| objects.of(vma).is_some()) {
            give_up(NO_MEMORY);
        }
        let own = swap::own_pages();
        for vma in self.vmas.as_slice() {
            let Some(object) = objects.of(vma) else {
                continue;
            };
            let mut rest = vma.span;
            while rest.start < rest.end {
                // This thread's own pages cannot be replaced by a copy while it writes to them.
                let mine = own
                    .iter()
                    .find_map(|o| o.common(rest).filter(|c| c.start == rest.start));
                let next = own.iter().filter_map(|o| o.common(rest)).map(|c| c.start);
                let next = next.filter(|s| *s > rest.start).min().unwrap_or(rest.end);
                let part = mine.unwrap_or(Span {
                    end: next.min(rest.start.saturating_add(object.page.max(64 << 20))),
                    ..rest
                });
                let offset = vma.offset + (part.start - vma.span.start) as u64;
                let copied = if mine.is_some() {
                    copy_in_place(object.fd, part, offset, vma.protection())
                } else {
                    swap::copy_back(&object, part, offset, vma.protection())
                };
                if !copied && object.is_huge() {
                    // As when the kernel has no huge page for a child that writes, but already now. A child that executes
                    // something needs none.
                    let start = std::ptr::with_exposed_provenance_mut(part.start);
                    // SAFETY: nothing of ours is in the program's huge pages.
                    unsafe { sys::unmap(start, part.len()) };
                } else if !copied {
                    give_up(NO_MEMORY);
                }
                rest.start = part.end;
            }
        }
        !self.vmas.as_slice().is_empty()
    }
}

fn head(region: &Region) -> RegionReach {
    RegionReach {
        handle: region.handle,
        reserved: 0,
    }
}

/// Maps the object's pages private in place, and makes each this process's own by writing to it what it has.
fn copy_in_place(fd: c_int, part: Span, offset: u64, protection: c_int) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED;
    // SAFETY: the same bytes at the same addresses; only this thread exists.
    let mapped = unsafe { sys::mmap(part.start, part.len(), protection, flags, fd, offset) };
    if mapped.is_none() {
        return false;
    }
    if protection & libc::PROT_WRITE != 0 {
        let mut at = part.start;
        while at < part.end {
            let byte = std::ptr::with_exposed_provenance_mut::<u8>(at);
            // SAFETY: mapped above and writable; an atomic operation, so that the compiler cannot leave it out.
            unsafe { &*byte.cast::<std::sync::atomic::AtomicU8>() }
                .fetch_or(0, std::sync::atomic::Ordering::Relaxed);
            at += swap::PAGE;
        }
    }
    true
}

const NO_MEMORY: &str = "a forked child has no memory for its copy of registered memory";

/// A child that shares memory with its parent would change the parent's.
fn give_up(why: &str) -> ! {
    say(format_args!(
        "{why}, and ends; use ibv_fork_init, or ROCELINE_MEMORY=never"
    ));
    // SAFETY: ends the process at once.
    unsafe { libc::_exit(127) }
}
