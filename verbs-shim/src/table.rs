//! Which file descriptors are ours: a flat array that the fast path reads with one load.
//!
//! An entry names the context and what the fd is to it. Entries change under one lock, which fork also takes, so a
//! child never finds it held. A vfork child shares this memory but not the fds: it must leave the table alone
//! ([`is_owner`]).
//!
//! Programs close fds by raw system calls as well (`syscall(SYS_close_range, ...)` of those that become daemons), and then
//! the number may be another file's. So whoever is about to do something to an fd, other than to ring a doorbell, asks
//! [`is_current`] first.

use std::ffi::c_int;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::context::Context;
use crate::sys::{self, Lock};

/// Fds below this can be ours.
pub const FDS: usize = 1 << 16;

/// What an fd is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `cmd_fd`: the context file.
    Command = 0,
    /// A completion channel.
    Channel = 1,
    /// The control socket or the wake eventfd, which the program does not know of.
    Hidden = 2,
}

const ROLE_MASK: usize = 3;
const _: () = assert!(align_of::<Context>() > ROLE_MASK);

static TABLE: [AtomicPtr<Context>; FDS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; FDS];
/// Handles of completion channels.
static HANDLES: [AtomicU32; FDS] = [const { AtomicU32::new(0) }; FDS];
/// Which file each fd is, as [`mark`] has it.
static FILES: [AtomicU64; FDS] = [const { AtomicU64::new(0) }; FDS];
/// No fd at or above this is ours.
static END: AtomicUsize = AtomicUsize::new(0);
/// Taken by whoever changes the table or the list of contexts.
pub static LOCK: Lock = Lock::new();
/// The process whose fds the table describes.
static OWNER: AtomicU32 = AtomicU32::new(0);

fn slot(fd: c_int) -> Option<&'static AtomicPtr<Context>> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// The context of a `cmd_fd`.
#[inline]
pub fn command(fd: c_int) -> Option<&'static Context> {
    // A negative fd becomes an index far beyond the table.
    let p = TABLE.get(fd as u32 as usize)?.load(Ordering::Acquire);
    if p.is_null() || p.addr() & ROLE_MASK != Role::Command as usize {
        return None;
    }
    // SAFETY: entries point to contexts, and those are never freed.
    Some(unsafe { &*p })
}

/// What `fd` is, if it is ours.
#[inline]
pub fn get(fd: c_int) -> Option<(&'static Context, Role)> {
    let p = TABLE.get(fd as u32 as usize)?.load(Ordering::Acquire);
    if p.is_null() {
        return None;
    }
    Some(untag(p))
}

fn untag(p: *mut Context) -> (&'static Context, Role) {
    let role = match p.addr() & ROLE_MASK {
        0 => Role::Command,
        1 => Role::Channel,
        _ => Role::Hidden,
    };
    let context = p.map_addr(|a| a & !ROLE_MASK);
    // SAFETY: entries point to contexts, and those are never freed.
    (unsafe { &*context }, role)
}

/// Handle of the channel that `fd` is, if it is one of `context`.
pub fn channel(context: &Context, fd: c_int) -> Option<u32> {
    match get(fd) {
        Some((c, Role::Channel)) if std::ptr::eq(c, context) => {
            Some(HANDLES[fd as usize].load(Ordering::Relaxed))
        }
        _ => None,
    }
}

/// Enters an fd; `handle` counts for channels. False if the number is too high. The lock is held by the caller.
pub fn enter(fd: c_int, context: &'static Context, role: Role, handle: u32) -> bool {
    let Some(slot) = slot(fd) else {
        return false;
    };
    HANDLES[fd as usize].store(handle, Ordering::Relaxed);
    FILES[fd as usize].store(mark(fd).unwrap_or(0), Ordering::Relaxed);
    let tagged = std::ptr::from_ref(context)
        .cast_mut()
        .map_addr(|a| a | role as usize);
    slot.store(tagged, Ordering::Release);
    END.fetch_max(fd as usize + 1, Ordering::Relaxed);
    true
}

/// Tells files apart. All eventfds are one file to the kernel, so those are not told from each other.
fn mark(fd: c_int) -> Option<u64> {
    let (dev, ino) = sys::identity(fd)?;
    Some(dev.rotate_left(32) ^ ino)
}

/// Whether `fd` is still the file that was entered, and not closed or another file's by now. Where the program's own filter
/// forbids to ask (seccomp), it is taken for what it was. `errno` is kept.
pub fn is_current(fd: c_int) -> bool {
    let Some(file) = FILES.get(fd as u32 as usize) else {
        return false;
    };
    let errno = sys::errno();
    let current = match mark(fd) {
        Some(mark) => mark == file.load(Ordering::Relaxed),
        None => sys::errno() != libc::EBADF,
    };
    sys::set_errno(errno);
    current
}

/// What goes when an fd is closed.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    /// Its context.
    pub context: &'static Context,
    /// What it was.
    pub role: Role,
    /// Handle of the channel.
    pub handle: u32,
    /// No other fd is the same.
    pub last: bool,
}

/// Takes an fd out. The lock is held by the caller.
pub fn remove(fd: c_int) -> Option<Left> {
    let p = slot(fd)?.swap(std::ptr::null_mut(), Ordering::AcqRel);
    if p.is_null() {
        return None;
    }
    let (context, role) = untag(p);
    let handle = HANDLES[fd as usize].load(Ordering::Relaxed);
    let same = |i: usize| {
        TABLE[i].load(Ordering::Relaxed) == p && HANDLES[i].load(Ordering::Relaxed) == handle
    };
    let last = !(0..end()).any(same);
    Some(Left {
        context,
        role,
        handle,
        last,
    })
}

/// Enters `copy` as what `fd` is. The lock is held by the caller.
pub fn copy(fd: c_int, copy: c_int) {
    if let Some((context, role)) = get(fd) {
        enter(
            copy,
            context,
            role,
            HANDLES[fd as usize].load(Ordering::Relaxed),
        );
    }
}

/// An fd that is the context file of `context`.
pub fn file_of(context: &Context) -> Option<c_int> {
    (0..end() as c_int).find(|&fd| match get(fd) {
        Some((c, Role::Command)) => std::ptr::eq(c, context) && context.is_file(fd),
        _ => false,
    })
}

/// Takes out all fds of a context. The lock is held by the caller.
pub fn remove_all(context: &Context) {
    for slot in &TABLE[..end()] {
        let p = slot.load(Ordering::Relaxed);
        if !p.is_null() && std::ptr::eq(untag(p).0, context) {
            slot.store(std::ptr::null_mut(), Ordering::Release);
        }
    }
}

/// No fd at or above this is ours.
pub fn end() -> usize {
    END.load(Ordering::Relaxed).min(FDS)
}

/// Notes that the table describes this process.
pub fn own() {
    OWNER.store(sys::getpid(), Ordering::Relaxed);
}

/// Whether this is the process that the table describes: not the child of a vfork.
pub fn is_owner() -> bool {
    OWNER.load(Ordering::Relaxed) == sys::getpid()
}
