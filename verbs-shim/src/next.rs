//! The functions that ours stand in front of: the next definition in the search order, so that other preloaded
//! libraries and the cancellation points of libc keep working.
//!
//! They are looked up when the library is loaded. What has a system call of its own does not depend on that: before
//! (other libraries' constructors, an allocator that starts up under `dlsym`) the caller makes the system call.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{DIR, FILE, dirent, glob_t, mode_t, size_t, ssize_t, stat as Stat, statx as StatX};

/// The next definition of one function; `F` is its type.
pub struct Next<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    kind: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    const fn new(name: &'static CStr) -> Next<F> {
        assert!(size_of::<F>() == size_of::<*mut c_void>());
        Next {
            name,
            address: AtomicPtr::new(std::ptr::null_mut()),
            kind: PhantomData,
        }
    }

    /// The function, if it was looked up already. Never calls into the loader.
    #[inline]
    pub fn get(&self) -> Option<F> {
        let p = self.address.load(Ordering::Relaxed);
        if p.is_null() {
            return None;
        }
        // SAFETY: F is a function pointer type of pointer size, and the address is that of the function of that
        // name, whose C prototype F repeats.
        Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&p) })
    }

    /// The function, looked up if need be.
    pub fn find(&self) -> Option<F> {
        if self.address.load(Ordering::Relaxed).is_null() {
            // SAFETY: the name is a C string.
            let p = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            self.address.store(p, Ordering::Relaxed);
        }
        self.get()
    }
}

macro_rules! functions {
    ($($name:ident($($arg:ty),*) -> $result:ty;)*) => {
        $(
            #[allow(non_upper_case_globals)]
            pub static $name: Next<unsafe extern "C" fn($($arg),*) -> $result> = Next::new(
                match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without NUL"),
                },
            );
        )*

        /// Looks all of them up.
        pub fn find_all() {
            $($name.find();)*
        }
    };
}

type Filter = Option<unsafe extern "C" fn(*const dirent) -> c_int>;
type Compare = Option<unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int>;
type GlobError = Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>;

functions! {
    open(*const c_char, c_int, mode_t) -> c_int;
    openat(c_int, *const c_char, c_int, mode_t) -> c_int;
    fopen(*const c_char, *const c_char) -> *mut FILE;
    freopen(*const c_char, *const c_char, *mut FILE) -> *mut FILE;
    fflush(*mut FILE) -> c_int;
    fclose(*mut FILE) -> c_int;
    _IO_list_lock() -> ();
    _IO_list_unlock() -> ();
    _IO_iter_begin() -> *mut c_void;
    _IO_iter_end() -> *mut c_void;
    _IO_iter_next(*mut c_void) -> *mut c_void;
    _IO_iter_file(*mut c_void) -> *mut FILE;
    opendir(*const c_char) -> *mut DIR;
    readdir(*mut DIR) -> *mut dirent;
    closedir(*mut DIR) -> c_int;
    rewinddir(*mut DIR) -> ();
    telldir(*mut DIR) -> c_long;
    seekdir(*mut DIR, c_long) -> ();
    scandir(*const c_char, *mut *mut *mut dirent, Filter, Compare) -> c_int;
    realpath(*const c_char, *mut c_char) -> *mut c_char;
    glob(*const c_char, c_int, GlobError, *mut glob_t) -> c_int;
    stat(*const c_char, *mut Stat) -> c_int;
    lstat(*const c_char, *mut Stat) -> c_int;
    fstat(c_int, *mut Stat) -> c_int;
    fstatat(c_int, *const c_char, *mut Stat, c_int) -> c_int;
    statx(c_int, *const c_char, c_int, c_uint, *mut StatX) -> c_int;
    access(*const c_char, c_int) -> c_int;
    euidaccess(*const c_char, c_int) -> c_int;
    faccessat(c_int, *const c_char, c_int, c_int) -> c_int;
    readlink(*const c_char, *mut c_char, size_t) -> ssize_t;
    readlinkat(c_int, *const c_char, *mut c_char, size_t) -> ssize_t;
    write(c_int, *const c_void, size_t) -> ssize_t;
    close(c_int) -> c_int;
    dup(c_int) -> c_int;
    dup2(c_int, c_int) -> c_int;
    dup3(c_int, c_int, c_int) -> c_int;
    fcntl(c_int, c_int, usize) -> c_int;
    close_range(c_uint, c_uint, c_int) -> c_int;
    socket(c_int, c_int, c_int) -> c_int;
    getxattr(*const c_char, *const c_char, *mut c_void, size_t) -> ssize_t;
    lgetxattr(*const c_char, *const c_char, *mut c_void, size_t) -> ssize_t;
    listxattr(*const c_char, *mut c_char, size_t) -> ssize_t;
    llistxattr(*const c_char, *mut c_char, size_t) -> ssize_t;
    madvise(*mut c_void, size_t, c_int) -> c_int;
    inotify_add_watch(c_int, *const c_char, u32) -> c_int;
}
