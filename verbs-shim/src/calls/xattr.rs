//! Extended attributes of paths. `ls -l` asks for access control lists in this way and complains of files that are not there.

use std::ffi::{c_char, c_void};

use libc::{size_t, ssize_t};

use crate::sys::fail;
use crate::{next, view};

macro_rules! get_family {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As for `getxattr`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            path: *const c_char,
            name: *const c_char,
            into: *mut c_void,
            size: size_t,
        ) -> ssize_t {
            let Some(real) = next::$name.find() else {
                return fail(libc::ENOSYS);
            };
            // SAFETY: by the caller's promise.
            unsafe { view::through(path, |p| real(p, name, into, size)) }
        }
    )*};
}

macro_rules! list_family {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As for `listxattr`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            path: *const c_char,
            into: *mut c_char,
            size: size_t,
        ) -> ssize_t {
            let Some(real) = next::$name.find() else {
                return fail(libc::ENOSYS);
            };
            // SAFETY: by the caller's promise.
            unsafe { view::through(path, |p| real(p, into, size)) }
        }
    )*};
}

get_family! { getxattr lgetxattr }
list_family! { listxattr llistxattr }
