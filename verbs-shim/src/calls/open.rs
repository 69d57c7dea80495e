//! Opening by path.

use std::ffi::{CStr, c_char, c_int};

use libc::{AT_FDCWD, FILE, mode_t};

use crate::sys::fail;
use crate::{attribute, next, open, sys, view};

/// Opens by `real`, or a device, or a file of the tree.
///
/// # Safety
/// `path` is null or a C string.
#[inline]
unsafe fn open_by(
    path: *const c_char,
    flags: c_int,
    real: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: by the caller's promise.
    unsafe {
        if !view::ours(path) {
            return real(path);
        }
        match view::uverbs_number(path) {
            Some(n) if flags & libc::O_PATH == 0 => open::open(n, flags),
            _ if attribute::opens(path, flags) => attribute::open(CStr::from_ptr(path), flags),
            _ => view::through(path, real),
        }
    }
}

/// # Safety
/// As for `open`.
unsafe fn real_open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: by the caller's promise.
    unsafe {
        match next::open.get() {
            Some(f) => f(path, flags, mode),
            None => sys::openat(AT_FDCWD, path, flags, mode),
        }
    }
}

/// # Safety
/// As for `openat`.
unsafe fn real_openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: by the caller's promise.
    unsafe {
        match next::openat.get() {
            Some(f) => f(dir, path, flags, mode),
            None => sys::openat(dir, path, flags, mode),
        }
    }
}

/// # Safety
/// As for `openat`.
#[inline]
unsafe fn openat_any(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    // SAFETY: by the caller's promise.
    unsafe {
        match view::uverbs_below(dir, path) {
            Some(n) if flags & libc::O_PATH == 0 => open::open(n, flags),
            _ => open_by(path, flags, |p| real_openat(dir, p, flags, mode)),
        }
    }
}

macro_rules! open_family {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As for `open`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            // SAFETY: by the caller's promise.
            unsafe { open_by(path, flags, |p| real_open(p, flags, mode)) }
        }
    )*};
}

macro_rules! openat_family {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As for `openat`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            dir: c_int,
            path: *const c_char,
            flags: c_int,
            mode: mode_t,
        ) -> c_int {
            // SAFETY: by the caller's promise.
            unsafe { openat_any(dir, path, flags, mode) }
        }
    )*};
}

// The 64 variants differ on 32-bit targets only. The fortified ones (__open_2) have no mode, which then is not read.
open_family! { open open64 __open_2 __open64_2 }
openat_family! { openat openat64 __openat_2 __openat64_2 }

macro_rules! fopen_family {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As for `fopen`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut FILE {
            let Some(real) = next::fopen.find() else {
                return fail(libc::ENOSYS);
            };
            // SAFETY: by the caller's promise.
            unsafe {
                match attribute::flags_of(mode) {
                    Some(flags) if attribute::opens(path, flags) => {
                        match attribute::open(CStr::from_ptr(path), flags) {
                            fd if fd >= 0 => libc::fdopen(fd, mode),
                            _ => std::ptr::null_mut(),
                        }
                    }
                    _ => view::through(path, |p| real(p, mode)),
                }
            }
        }
    )*};
}

macro_rules! freopen_family {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As for `freopen`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            path: *const c_char,
            mode: *const c_char,
            stream: *mut FILE,
        ) -> *mut FILE {
            let Some(real) = next::freopen.find() else {
                return fail(libc::ENOSYS);
            };
            // SAFETY: by the caller's promise.
            unsafe {
                if attribute::any() && !stream.is_null() {
                    attribute::reopens(stream, !path.is_null());
                }
                view::through(path, |p| real(p, mode, stream))
            }
        }
    )*};
}

fopen_family! { fopen fopen64 }
freopen_family! { freopen freopen64 }

/// # Safety
/// As for `fflush`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fflush(stream: *mut FILE) -> c_int {
    let Some(real) = next::fflush.find() else {
        return fail(libc::ENOSYS);
    };
    // SAFETY: by the caller's promise.
    unsafe {
        let flushed = real(stream);
        if attribute::any() {
            return attribute::flushed(stream, flushed);
        }
        flushed
    }
}

/// # Safety
/// As for `fclose`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fclose(stream: *mut FILE) -> c_int {
    let Some(real) = next::fclose.find() else {
        return fail(libc::ENOSYS);
    };
    // SAFETY: by the caller's promise.
    unsafe {
        if attribute::any() && !stream.is_null() {
            return attribute::close_stream(stream, real);
        }
        real(stream)
    }
}
