//! Questions about files: a file of the tree, a device node, or an open `cmd_fd`, which is a memfd but must look like
//! the character device.

use std::ffi::{c_char, c_int, c_uint};

use libc::{AT_FDCWD, stat as Stat, statx as StatX};

use crate::{next, sys, table, view};

/// Major and minor number of `uverbs0`, as the `dev` files of the tree say.
const MAJOR: u32 = 231;
const MINOR: u32 = 192;
/// Mode of a uverbs device node.
const MODE: u32 = libc::S_IFCHR | 0o666;

const _: () = assert!(size_of::<libc::stat>() == size_of::<libc::stat64>());

/// What is being asked about turns out to be device N.
fn disguise(st: &mut Stat, n: u32) {
    st.st_mode = MODE;
    st.st_rdev = libc::makedev(MAJOR, MINOR + n);
    st.st_size = 0;
    st.st_blocks = 0;
}

fn disguise_x(st: &mut StatX, n: u32) {
    st.stx_mode = MODE as u16;
    st.stx_rdev_major = MAJOR;
    st.stx_rdev_minor = MINOR + n;
    st.stx_size = 0;
    st.stx_blocks = 0;
}

/// The device behind an fd that is still what the table says.
#[inline]
fn device_of(fd: c_int) -> Option<u32> {
    table::command(fd)
        .filter(|c| c.is_file(fd))
        .map(|c| c.device())
}

/// # Safety
/// `path` is null or a C string, `into` null or writable.
#[inline]
unsafe fn by_path(
    path: *const c_char,
    into: *mut Stat,
    real: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: by the caller's promise.
    unsafe {
        if !view::ours(path) {
            return real(path);
        }
        let result = view::through(path, real);
        if let (0, Some(n), Some(st)) = (result, view::uverbs_number(path), into.as_mut()) {
            disguise(st, n);
        }
        result
    }
}

/// # Safety
/// `into` is null or writable.
#[inline]
unsafe fn by_fd(fd: c_int, into: *mut Stat, real: impl FnOnce() -> c_int) -> c_int {
    let result = real();
    if table::command(fd).is_some() && result == 0 {
        // SAFETY: by the caller's promise.
        if let (Some(n), Some(st)) = (device_of(fd), unsafe { into.as_mut() }) {
            disguise(st, n);
        }
    }
    result
}

/// Whether a call of the `at` kind asks about the fd itself.
///
/// # Safety
/// `path` is null or a C string.
#[inline]
unsafe fn names_fd(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: by the caller's promise.
    flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0)
}

/// # Safety
/// As for `fstatat`.
#[inline]
unsafe fn fstatat_any(dir: c_int, path: *const c_char, into: *mut Stat, flags: c_int) -> c_int {
    // SAFETY: by the caller's promise.
    unsafe {
        let real = |p| match next::fstatat.get() {
            Some(f) => f(dir, p, into, flags),
            None => sys::fstatat(dir, p, into, flags),
        };
        if names_fd(path, flags) {
            return by_fd(dir, into, || real(path));
        }
        by_path(path, into, real)
    }
}

macro_rules! stat_family {
    ($($name:ident $real:ident $flags:expr;)*) => {$(
        /// # Safety
        /// As for `stat`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, into: *mut Stat) -> c_int {
            // SAFETY: by the caller's promise.
            unsafe {
                by_path(path, into, |p| match next::$real.get() {
                    Some(f) => f(p, into),
                    None => sys::fstatat(AT_FDCWD, p, into, $flags),
                })
            }
        }
    )*};
}

stat_family! {
    stat stat 0;
    stat64 stat 0;
    lstat lstat libc::AT_SYMLINK_NOFOLLOW;
    lstat64 lstat libc::AT_SYMLINK_NOFOLLOW;
}

macro_rules! fstat_family {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As for `fstat`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(fd: c_int, into: *mut Stat) -> c_int {
            // SAFETY: by the caller's promise.
            unsafe {
                by_fd(fd, into, || match next::fstat.get() {
                    Some(f) => f(fd, into),
                    None => sys::fstatat(fd, c"".as_ptr(), into, libc::AT_EMPTY_PATH),
                })
            }
        }
    )*};
}

macro_rules! fstatat_family {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As for `fstatat`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            dir: c_int,
            path: *const c_char,
            into: *mut Stat,
            flags: c_int,
        ) -> c_int {
            // SAFETY: by the caller's promise.
            unsafe { fstatat_any(dir, path, into, flags) }
        }
    )*};
}

fstat_family! { fstat fstat64 }
fstatat_family! { fstatat fstatat64 }

// Programs built for glibc before 2.33 call these; the first argument is the version of struct stat, of which 64-bit
// targets have one. They are hidden in newer libraries, so the system call stands in for the next definition.
macro_rules! old_stat_family {
    ($($name:ident $flags:expr;)*) => {$(
        /// # Safety
        /// As for `stat`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(_version: c_int, path: *const c_char, into: *mut Stat) -> c_int {
            // SAFETY: by the caller's promise.
            unsafe { by_path(path, into, |p| sys::fstatat(AT_FDCWD, p, into, $flags)) }
        }
    )*};
}

old_stat_family! {
    __xstat 0;
    __xstat64 0;
    __lxstat libc::AT_SYMLINK_NOFOLLOW;
    __lxstat64 libc::AT_SYMLINK_NOFOLLOW;
}

macro_rules! old_fstat_family {
    ($($name:ident $at_name:ident;)*) => {$(
        /// # Safety
        /// As for `fstat`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(_version: c_int, fd: c_int, into: *mut Stat) -> c_int {
            // SAFETY: by the caller's promise.
            unsafe {
                by_fd(fd, into, || sys::fstatat(fd, c"".as_ptr(), into, libc::AT_EMPTY_PATH))
            }
        }

        /// # Safety
        /// As for `fstatat`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $at_name(
            _version: c_int,
            dir: c_int,
            path: *const c_char,
            into: *mut Stat,
            flags: c_int,
        ) -> c_int {
            // SAFETY: by the caller's promise.
            unsafe { fstatat_any(dir, path, into, flags) }
        }
    )*};
}

old_fstat_family! {
    __fxstat __fxstatat;
    __fxstat64 __fxstatat64;
}

/// # Safety
/// As for `statx`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    into: *mut StatX,
) -> c_int {
    // SAFETY: by the caller's promise.
    unsafe {
        let real = |p| match next::statx.get() {
            Some(f) => f(dir, p, flags, mask, into),
            None => sys::statx(dir, p, flags, mask, into),
        };
        let is_fd = names_fd(path, flags);
        if !is_fd && !view::ours(path) {
            return real(path);
        }
        let result = view::through(path, real);
        let device = if is_fd {
            device_of(dir)
        } else {
            view::uverbs_number(path)
        };
        if let (0, Some(n), Some(st)) = (result, device, into.as_mut()) {
            disguise_x(st, n);
        }
        result
    }
}
