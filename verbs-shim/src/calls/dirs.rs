//! Directories, links, canonical names and permissions.

use std::ffi::{c_char, c_int};

use libc::{AT_FDCWD, DIR, dirent, glob_t, size_t, ssize_t};

use super::listing;
use crate::sys::{Fail, fail};
use crate::{next, sys, view};

/// # Safety
/// As for `opendir`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn opendir(path: *const c_char) -> *mut DIR {
    let Some(real) = next::opendir.find() else {
        return fail(libc::ENOSYS);
    };
    // SAFETY: by the caller's promise; the directory is new.
    unsafe {
        let dir = view::through(path, |p| real(p));
        if view::lists_devices(path) {
            listing::sort(dir);
        }
        dir
    }
}

type Filter = Option<unsafe extern "C" fn(*const dirent) -> c_int>;
type Compare = Option<unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int>;

macro_rules! scandir_family {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As for `scandir`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            path: *const c_char,
            list: *mut *mut *mut dirent,
            filter: Filter,
            compare: Compare,
        ) -> c_int {
            let Some(real) = next::scandir.find() else {
                return fail(libc::ENOSYS);
            };
            // SAFETY: by the caller's promise.
            unsafe { view::through(path, |p| real(p, list, filter, compare)) }
        }
    )*};
}

scandir_family! { scandir scandir64 }

type GlobError = Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>;

/// The result of a failed `glob` is a code of its own.
struct GlobResult(c_int);

impl Fail for GlobResult {
    const FAIL: GlobResult = GlobResult(libc::GLOB_NOMATCH);
}

macro_rules! glob_family {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As for `glob`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            pattern: *const c_char,
            flags: c_int,
            error: GlobError,
            into: *mut glob_t,
        ) -> c_int {
            let Some(real) = next::glob.find() else {
                return fail(libc::ENOSYS);
            };
            // SAFETY: by the caller's promise.
            unsafe {
                if !view::ours(pattern) {
                    return real(pattern, flags, error, into);
                }
                let result = view::through(pattern, |p| GlobResult(real(p, flags, error, into))).0;
                if let (0, Some(found)) = (result, into.as_ref()) {
                    for i in 0..found.gl_pathc {
                        view::strip_c(*found.gl_pathv.add(found.gl_offs + i));
                    }
                }
                result
            }
        }
    )*};
}

glob_family! { glob glob64 }

/// # Safety
/// As for `realpath`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realpath(path: *const c_char, into: *mut c_char) -> *mut c_char {
    let Some(real) = next::realpath.find() else {
        return fail(libc::ENOSYS);
    };
    // SAFETY: by the caller's promise; the result is null or a writable C string.
    unsafe {
        let result = view::through(path, |p| real(p, into));
        view::strip_c(result);
        result
    }
}

/// # Safety
/// As for `realpath`. The fortified form: `size` bytes are known to be there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    into: *mut c_char,
    _size: size_t,
) -> *mut c_char {
    // SAFETY: by the caller's promise.
    unsafe { realpath(path, into) }
}

/// # Safety
/// As for `canonicalize_file_name`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: by the caller's promise.
    unsafe { realpath(path, std::ptr::null_mut()) }
}

/// # Safety
/// As for `readlinkat`.
#[inline]
unsafe fn readlink_any(
    path: *const c_char,
    into: *mut c_char,
    size: size_t,
    real: impl FnOnce(*const c_char) -> ssize_t,
) -> ssize_t {
    // SAFETY: by the caller's promise; `result` bytes were written.
    unsafe {
        let result = view::through(path, real);
        match usize::try_from(result) {
            Ok(len) if len <= size => {
                view::strip(std::slice::from_raw_parts_mut(into.cast(), len)) as ssize_t
            }
            _ => result,
        }
    }
}

/// # Safety
/// As for `readlink`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readlink(path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t {
    // SAFETY: by the caller's promise.
    unsafe {
        readlink_any(path, into, size, |p| match next::readlink.get() {
            Some(f) => f(p, into, size),
            None => sys::readlinkat(AT_FDCWD, p, into, size),
        })
    }
}

/// # Safety
/// As for `readlinkat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readlinkat(
    dir: c_int,
    path: *const c_char,
    into: *mut c_char,
    size: size_t,
) -> ssize_t {
    // SAFETY: by the caller's promise.
    unsafe {
        readlink_any(path, into, size, |p| match next::readlinkat.get() {
            Some(f) => f(dir, p, into, size),
            None => sys::readlinkat(dir, p, into, size),
        })
    }
}

/// # Safety
/// As for `readlink`. The fortified form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __readlink_chk(
    path: *const c_char,
    into: *mut c_char,
    size: size_t,
    _available: size_t,
) -> ssize_t {
    // SAFETY: by the caller's promise.
    unsafe { readlink(path, into, size) }
}

/// # Safety
/// As for `readlinkat`. The fortified form.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __readlinkat_chk(
    dir: c_int,
    path: *const c_char,
    into: *mut c_char,
    size: size_t,
    _available: size_t,
) -> ssize_t {
    // SAFETY: by the caller's promise.
    unsafe { readlinkat(dir, path, into, size) }
}

/// Whether `path` may be used in `mode`. To read or write a device is to connect to the daemon.
///
/// # Safety
/// `path` is null or a C string.
#[inline]
unsafe fn access_by(
    path: *const c_char,
    mode: c_int,
    real: impl Fn(*const c_char, c_int) -> c_int,
) -> c_int {
    // SAFETY: by the caller's promise.
    unsafe {
        if view::uverbs_number(path).is_none() {
            return view::through(path, |p| real(p, mode));
        }
        let exists = view::through(path, |p| real(p, libc::F_OK));
        match (exists, view::socket()) {
            (0, Some(_)) if mode & libc::X_OK != 0 => fail(libc::EACCES),
            (0, Some(socket)) if mode != libc::F_OK => real(socket.as_ptr(), libc::W_OK),
            _ => exists,
        }
    }
}

/// # Safety
/// As for `access`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: by the caller's promise.
    unsafe {
        access_by(path, mode, |p, mode| match next::access.get() {
            Some(f) => f(p, mode),
            None => sys::faccessat(AT_FDCWD, p, mode),
        })
    }
}

/// # Safety
/// As for `faccessat`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn faccessat(
    dir: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: by the caller's promise.
    unsafe {
        access_by(path, mode, |p, mode| match next::faccessat.get() {
            Some(f) => f(dir, p, mode, flags),
            None => sys::faccessat(dir, p, mode),
        })
    }
}

macro_rules! euidaccess_family {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As for `euidaccess`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(path: *const c_char, mode: c_int) -> c_int {
            let Some(real) = next::euidaccess.find() else {
                return fail(libc::ENOSYS);
            };
            // SAFETY: by the caller's promise.
            unsafe { access_by(path, mode, |p, mode| real(p, mode)) }
        }
    )*};
}

euidaccess_family! { euidaccess eaccess }
