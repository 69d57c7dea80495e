//! Calls on file descriptors, and the two that keep rdma-core on the paths we serve.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libc::{size_t, ssize_t};

use crate::sys::fail;
use crate::table::{self, Left, Role};
use crate::{attribute, command, next, open, sys};

/// Netlink family of the RDMA subsystem (`linux/netlink.h`).
const NETLINK_RDMA: c_int = 20;

/// # Safety
/// As for `write`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t {
    // SAFETY: by the caller's promise.
    unsafe {
        if let Some(context) = table::command(fd) {
            if let Some(result) = command::write(context, fd, bytes, len) {
                return result;
            }
        }
        if attribute::is(fd) {
            if let Some(result) = attribute::write(fd, bytes, len) {
                return result;
            }
        }
        match next::write.get() {
            Some(f) => f(fd, bytes, len),
            None => sys::write(fd, bytes, len),
        }
    }
}

fn real_close(fd: c_int) -> c_int {
    match next::close.get() {
        // SAFETY: only an integer.
        Some(f) => unsafe { f(fd) },
        None => sys::close(fd),
    }
}

/// Follows up on an fd of ours that goes away: its number may be used again as soon as it is closed, so this comes
/// before.
fn leave(fd: c_int) {
    let left = {
        let _held = table::LOCK.hold();
        table::remove(fd)
    };
    match left {
        Some(Left {
            context,
            role: Role::Command,
            last: true,
            ..
        }) => context.end(),
        Some(Left {
            context,
            role: Role::Channel,
            last: true,
            handle,
        }) => {
            command::close_channel(context, handle);
        }
        // Closed by a system call before, or it would not have come here.
        Some(Left {
            context,
            role: Role::Hidden,
            ..
        }) => context.lose(),
        _ => {}
    }
}

/// What is to be done before the program closes `fd`, or puts another file in its place. `false` if the program has
/// no such fd: it is a hidden one.
#[inline]
fn may_close(fd: c_int) -> bool {
    match table::get(fd) {
        None => true,
        Some((_, role)) => may_close_ours(fd, role),
    }
}

#[cold]
fn may_close_ours(fd: c_int, role: Role) -> bool {
    if !table::is_owner() {
        // The child of a vfork has fds of its own but shares our memory.
        return true;
    }
    let errno = sys::errno();
    let may = role != Role::Hidden || !table::is_current(fd);
    if may {
        leave(fd);
    }
    sys::set_errno(errno);
    may
}

/// # Safety
/// As for `close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if !may_close(fd) {
        return fail(libc::EBADF);
    }
    if attribute::is(fd) {
        let refused = attribute::leave(fd);
        let closed = real_close(fd);
        return refused.map_or(closed, fail);
    }
    real_close(fd)
}

/// # Safety
/// As for `close_range`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    let close = |first: c_uint, last: c_uint| match next::close_range.get() {
        // SAFETY: only integers.
        Some(f) => unsafe { f(first, last, flags) },
        None => sys::close_range(first, last, flags),
    };
    let marks_only = flags & libc::CLOSE_RANGE_CLOEXEC as c_int != 0;
    if attribute::any() && !marks_only {
        attribute::leave_range(first as usize, last as usize);
    }
    if table::end() == 0 || marks_only || first > last || !table::is_owner() {
        return close(first, last);
    }
    let mut from = first;
    for fd in first..=last.min(table::end() as c_uint - 1) {
        if !may_close(fd as c_int) {
            // Around a hidden fd.
            if from < fd {
                let result = close(from, fd - 1);
                if result != 0 {
                    return result;
                }
            }
            from = fd + 1;
        }
    }
    if from > last { 0 } else { close(from, last) }
}

/// # Safety
/// As for `closefrom`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: by the caller's promise.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

/// Enters a duplicate.
fn copied(fd: c_int, copy: c_int) -> c_int {
    if copy >= 0 && attribute::is(fd) {
        attribute::enter(copy);
    }
    if copy >= 0 && table::get(fd).is_some() && table::is_owner() && table::is_current(fd) {
        let _held = table::LOCK.hold();
        table::copy(fd, copy);
    }
    copy
}

/// # Safety
/// As for `dup`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    let copy = match next::dup.get() {
        // SAFETY: only an integer.
        Some(f) => unsafe { f(fd) },
        None => sys::dup(fd),
    };
    copied(fd, copy)
}

/// Makes `to` a duplicate of `fd` by `real`.
fn dup_to(fd: c_int, to: c_int, real: impl FnOnce() -> c_int) -> c_int {
    if fd == to {
        return real();
    }
    if attribute::is(to) && sys::identity(fd).is_some() {
        // Nobody asks what became of the file that was here.
        attribute::leave(to);
    }
    if (table::get(to).is_none() && table::get(fd).is_none()) || !table::is_owner() {
        return copied(fd, real());
    }
    // A bad fd leaves `to` as it is.
    if sys::identity(fd).is_none() {
        return real();
    }
    if let Some((context, Role::Hidden)) = table::get(to) {
        let current = table::is_current(to);
        let _held = table::LOCK.hold();
        table::remove(to);
        if current {
            context.move_hidden(to);
        } else {
            context.lose();
        }
    }
    may_close(to);
    copied(fd, real())
}

/// # Safety
/// As for `dup2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    dup_to(fd, to, || match next::dup2.get() {
        // SAFETY: only integers.
        Some(f) => unsafe { f(fd, to) },
        // dup3 refuses what dup2 answers with `to` itself.
        None if fd == to && sys::identity(fd).is_some() => to,
        None if fd == to => fail(libc::EBADF),
        None => sys::dup3(fd, to, 0),
    })
}

/// # Safety
/// As for `dup3`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    dup_to(fd, to, || match next::dup3.get() {
        // SAFETY: only integers.
        Some(f) => unsafe { f(fd, to, flags) },
        None => sys::dup3(fd, to, flags),
    })
}

macro_rules! fcntl_family {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As for `fcntl`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, command: c_int, argument: usize) -> c_int {
            // SAFETY: by the caller's promise.
            let result = unsafe {
                match next::fcntl.get() {
                    Some(f) => f(fd, command, argument),
                    None => sys::fcntl(fd, command, argument),
                }
            };
            match command {
                libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, result),
                _ => result,
            }
        }
    )*};
}

fcntl_family! { fcntl fcntl64 }

/// Where ib_core is loaded, libibverbs asks it for devices and then reads no sysfs. Refused, it reads sysfs.
///
/// # Safety
/// As for `socket`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        return fail(libc::EPROTONOSUPPORT);
    }
    match next::socket.get() {
        // SAFETY: only integers.
        Some(f) => unsafe { f(domain, kind, protocol) },
        None => sys::socket(domain, kind, protocol),
    }
}

/// After a failed open libibverbs waits five seconds for udev to bring the device to `/dev/char/`. Ours is not coming
/// from there; the wait ends with the reason of the failure.
///
/// # Safety
/// As for `inotify_add_watch`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inotify_add_watch(fd: c_int, path: *const c_char, mask: u32) -> c_int {
    if mask == libc::IN_CREATE && !path.is_null() {
        // SAFETY: by the caller's promise.
        let waits_for_udev = unsafe { CStr::from_ptr(path) } == c"/dev/char/";
        if let (true, Some(errno)) = (waits_for_udev, open::failure()) {
            return fail(errno);
        }
    }
    let Some(real) = next::inotify_add_watch.find() else {
        return fail(libc::ENOSYS);
    };
    // SAFETY: by the caller's promise.
    unsafe { real(fd, path, mask) }
}
