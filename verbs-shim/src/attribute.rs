//! Files of a device that change it when they are written: `/sys/class/infiniband/DEVICE/ecn/...`.
//!
//! A file of the tree takes whatever is written; the kernel's refuse what makes no sense. So a program that opens one
//! for writing only gets an unlinked file of the name (a memfd), and what it writes goes to the daemon, whose answer is that of
//! `write`. Most programs call `write`, which is ours. What stdio and `writev` write lands in the file, and is passed on when the
//! program flushes or closes: an error is that of `fflush`, `fclose` or `close`.
//!
//! In: paths, fds and streams of the calls. Out: requests on a connection of their own (`Kind::Attribute`). Which file an fd
//! is, its link in `/proc/self/fd` says, also to a program that was started with it as its output; a bit for each fd keeps
//! everybody else from asking. What is still unwritten when the program ends is passed on then, and only its stderr says whether
//! it was refused.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use libc::{FILE, size_t, ssize_t};
use roceline_abi::control::Kind;

use crate::say::{say, text};
use crate::sys::{self, fail};
use crate::view::PathBuf;
use crate::{client, next, open, table, view};

/// As much as the kernel takes in one write to a file of sysfs.
const MOST: usize = 4096;
/// How an fd of ours begins in `/proc/self/fd`; what follows is the path.
const LINK: &[u8] = b"/memfd:roceline:";
/// The kernel's word for unlinked files.
const DELETED: &[u8] = b" (deleted)";
/// Longest name of a memfd.
const NAME: usize = 249;
/// Fds that can be one.
const FDS: usize = 4096;
/// Flag of a stream that had an error (`_IO_ERR_SEEN` of `bits/types/struct_FILE.h`), which `ferror` tests.
const ERROR_SEEN: c_int = 0x20;

static BITS: [AtomicU64; FDS / 64] = [const { AtomicU64::new(0) }; FDS / 64];
/// Bits that are set.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether this process has any.
#[inline]
pub fn any() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// Whether `fd` was one when last heard of.
#[inline]
pub fn is(fd: c_int) -> bool {
    any() && bit(fd).is_some_and(|(word, mask)| word.load(Ordering::Relaxed) & mask != 0)
}

fn bit(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((BITS.get(fd / 64)?, 1 << (fd % 64)))
}

/// Notes that `fd` is one.
#[cold]
pub fn enter(fd: c_int) {
    if let Some((word, mask)) = bit(fd) {
        if word.fetch_or(mask, Ordering::Relaxed) & mask == 0 {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn forget(fd: c_int) {
    // The child of a vfork closes fds of its own, but shares our notes.
    if !table::is_owner() {
        return;
    }
    if let Some((word, mask)) = bit(fd) {
        if word.fetch_and(!mask, Ordering::Relaxed) & mask != 0 {
            COUNT.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Those from `first` to `last`.
fn noted(first: usize, last: usize) -> impl Iterator<Item = c_int> {
    let fds = first..=last.min(FDS - 1);
    fds.map(|fd| fd as c_int).filter(|fd| is(*fd))
}

/// Looks whether the program was started with one as its output (`cat value > .../rpg_ai_rate`).
pub fn inherit() {
    let errno = sys::errno();
    if path_of(libc::STDOUT_FILENO, &mut PathBuf::new()).is_some() {
        enter(libc::STDOUT_FILENO);
    }
    sys::set_errno(errno);
}

/// Whether to open `path` like this is to write to one.
///
/// # Safety
/// `path` is null or a C string.
#[inline]
pub unsafe fn opens(path: *const c_char, flags: c_int) -> bool {
    flags & libc::O_ACCMODE == libc::O_WRONLY
        && flags & libc::O_PATH == 0
        // SAFETY: by the caller's promise; not null if it is ours.
        && unsafe { view::ours(path) && is_named(CStr::from_ptr(path).to_bytes()) }
}

/// What the mode of `fopen` means, if it writes and does not read.
///
/// # Safety
/// `mode` is null or a C string.
#[inline]
pub unsafe fn flags_of(mode: *const c_char) -> Option<c_int> {
    if mode.is_null() {
        return None;
    }
    // SAFETY: by the caller's promise.
    let mode = unsafe { CStr::from_ptr(mode) }.to_bytes();
    let flag = |c: u8, flag: c_int| if mode.contains(&c) { flag } else { 0 };
    let writes = matches!(mode.first(), Some(b'w' | b'a')) && !mode.contains(&b'+');
    writes.then(|| libc::O_WRONLY | flag(b'e', libc::O_CLOEXEC))
}

/// `/sys/class/infiniband/DEVICE/ecn/...`, the same below `net`, and `cc_params`.
#[cold]
fn is_named(path: &[u8]) -> bool {
    let rest = path
        .strip_prefix(b"/sys/class/infiniband/")
        .or_else(|| path.strip_prefix(b"/sys/class/net/"));
    let below = rest.and_then(|rest| rest.splitn(3, |b| *b == b'/').nth(1));
    matches!(below, Some(b"ecn" | b"cc_params"))
}

/// Opens one for writing: an fd, or -1 and `errno`.
#[cold]
pub fn open(path: &CStr, flags: c_int) -> c_int {
    // SAFETY: `redirected` gives a C string.
    let there = view::redirected(path, |p| unsafe {
        sys::faccessat(libc::AT_FDCWD, p, libc::F_OK)
    });
    if there != 0 {
        return -1;
    }
    let path = path.to_bytes();
    match ask(path, b"").and_then(|()| create(path)) {
        Ok(fd) => {
            if flags & libc::O_CLOEXEC == 0 {
                sys::keep_on_exec(fd);
            }
            enter(fd);
            fd
        }
        // The kernel's word at this point.
        Err(libc::EPERM) => fail(libc::EACCES),
        Err(errno) => fail(errno),
    }
}

fn create(path: &[u8]) -> Result<c_int, c_int> {
    let mut name = PathBuf::new();
    // The kernel puts `/memfd:` before it.
    let pushed = name
        .push(&LINK[b"/memfd:".len()..])
        .and_then(|()| name.push(path));
    if pushed.is_none() || name.bytes().len() > NAME {
        return Err(libc::ENAMETOOLONG);
    }
    let fd = open::Fd::new(sys::memfd_create(name.as_c(), 0))?;
    if bit(fd.0).is_none() {
        return Err(libc::EMFILE);
    }
    // SAFETY: only integers. What is taken out of the file makes room at its start.
    unsafe { sys::fcntl(fd.0, libc::F_SETFL, libc::O_APPEND as usize) };
    Ok(fd.take())
}

/// The path of the file that `fd` is, in `link`.
fn path_of(fd: c_int, link: &mut PathBuf) -> Option<&[u8]> {
    let mut own = PathBuf::new();
    write!(own, "/proc/self/fd/{fd}").ok()?;
    link.read_link(own.as_c())?;
    link.bytes().strip_prefix(LINK)?.strip_suffix(DELETED)
}

/// Serves a write to `fd`; `None` if it is another file by now.
///
/// # Safety
/// As for `write`.
#[cold]
pub unsafe fn write(fd: c_int, bytes: *const c_void, len: size_t) -> Option<ssize_t> {
    let errno = sys::errno();
    let mut link = PathBuf::new();
    let Some(path) = path_of(fd, &mut link) else {
        forget(fd);
        sys::set_errno(errno);
        return None;
    };
    if bytes.is_null() || len == 0 || len > MOST {
        return Some(if len == 0 { 0 } else { fail(libc::EINVAL) });
    }
    // SAFETY: by the caller's promise.
    let bytes = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) };
    // What came by other ways comes first.
    let passed = pass_on(fd, path).and_then(|()| ask(path, bytes));
    Some(match passed {
        Ok(()) => {
            sys::set_errno(errno);
            len as ssize_t
        }
        Err(errno) => fail(errno),
    })
}

/// Passes on what lies in the file.
fn pass_on(fd: c_int, path: &[u8]) -> Result<(), c_int> {
    let mut bytes = [0u8; MOST];
    // SAFETY: the buffer is that long.
    let n = unsafe { sys::pread(fd, bytes.as_mut_ptr() as usize, MOST, 0) };
    match usize::try_from(n) {
        Ok(0) | Err(_) => Ok(()),
        Ok(n) => {
            sys::ftruncate(fd, 0);
            ask(path, &bytes[..n])
        }
    }
}

/// The program is about to close `fd`, or to put another file in its place: why what lies in it was refused, if it was.
#[cold]
pub fn leave(fd: c_int) -> Option<c_int> {
    if !is(fd) {
        return None;
    }
    forget(fd);
    pass(fd)
}

/// The same of all from `first` to `last`. Nobody hears what was refused.
#[cold]
pub fn leave_range(first: usize, last: usize) {
    for fd in noted(first, last) {
        leave(fd);
    }
}

/// Passes on what lies in the file that `fd` is: why it was refused, if it was. `errno` is kept.
fn pass(fd: c_int) -> Option<c_int> {
    let errno = sys::errno();
    let mut link = PathBuf::new();
    let refused = path_of(fd, &mut link).and_then(|path| pass_on(fd, path).err());
    sys::set_errno(errno);
    refused
}

/// The program flushed a stream, or with a null pointer all, with this result; what it is to hear.
///
/// # Safety
/// `stream` is null or an open stream.
#[cold]
pub unsafe fn flushed(stream: *mut FILE, result: c_int) -> c_int {
    if stream.is_null() {
        let refused = noted(0, FDS).fold(None, |before, fd| pass(fd).or(before));
        return refused.map_or(result, fail);
    }
    // SAFETY: by the caller's promise.
    let fd = unsafe { libc::fileno(stream) };
    match is(fd).then(|| pass(fd)).flatten() {
        Some(errno) => {
            // Shells ask `ferror` and not what `fflush` returned.
            // SAFETY: the flags are the first word of glibc's FILE, which its headers fix.
            unsafe { *stream.cast::<c_int>() |= ERROR_SEEN };
            fail(errno)
        }
        None => result,
    }
}

/// The program is about to open another file as `stream`, by a path or anew by the fd.
///
/// # Safety
/// `stream` is an open stream.
#[cold]
pub unsafe fn reopens(stream: *mut FILE, by_path: bool) {
    // SAFETY: by the caller's promise.
    let fd = unsafe { libc::fileno(stream) };
    if !is(fd) {
        return;
    }
    if let Some(flush) = next::fflush.find() {
        // SAFETY: by the caller's promise.
        unsafe { flush(stream) };
    }
    if by_path {
        leave(fd)
    } else {
        pass(fd)
    };
}

/// The program ends: libc flushes its streams only after this, and past us.
#[cold]
pub fn end() {
    flush_streams();
    leave_range(0, FDS);
}

/// Flushes the streams that write to one. `fflush(NULL)` would lock all the others too, and wait for ever for one that another thread
/// is reading from; libc's end does not.
fn flush_streams() {
    let (Some(flush), Some(lock), Some(unlock)) = (
        next::fflush.find(),
        next::_IO_list_lock.find(),
        next::_IO_list_unlock.find(),
    ) else {
        return;
    };
    let (Some(begin), Some(end), Some(following), Some(file)) = (
        next::_IO_iter_begin.find(),
        next::_IO_iter_end.find(),
        next::_IO_iter_next.find(),
        next::_IO_iter_file.find(),
    ) else {
        return;
    };
    // SAFETY: the list is locked as libc does before a fork, so its streams stay open.
    unsafe {
        lock();
        let mut at = begin();
        while at != end() {
            let stream = file(at);
            if is(libc::fileno(stream)) {
                flush(stream);
            }
            at = following(at);
        }
        unlock();
    }
}

/// Closes a stream by `real`.
///
/// # Safety
/// As for `fclose`, which `real` is.
#[cold]
pub unsafe fn close_stream(
    stream: *mut FILE,
    real: unsafe extern "C" fn(*mut FILE) -> c_int,
) -> c_int {
    // SAFETY: by the caller's promise.
    unsafe {
        let fd = libc::fileno(stream);
        if !is(fd) {
            return real(stream);
        }
        if let Some(flush) = next::fflush.find() {
            flush(stream);
        }
        let refused = leave(fd);
        let closed = real(stream);
        refused.map_or(closed, fail)
    }
}

/// Lets the daemon write `bytes` to `path`; errno if it refuses.
fn ask(path: &[u8], bytes: &[u8]) -> Result<(), c_int> {
    let socket = open::connect()?;
    let mut reason = [0u8; 512];
    let payload = [path, &[0], bytes];
    let reply = client::exchange(socket.0, Kind::Attribute, payload, None, &mut reason)
        .map_err(|_| libc::EIO)?;
    match reply.header.error {
        0 => Ok(()),
        errno => {
            say(format_args!(
                "{}: {}",
                text(path),
                text(&reason[..reply.len])
            ));
            Err(errno)
        }
    }
}
