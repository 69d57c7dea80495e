//! Where the daemon's device tree is, and which paths lead there.
//!
//! In: `ROCELINE_SOCKET`, `XDG_RUNTIME_DIR` and `ROCELINE_DEVICE`, read once, and the paths that a program names.
//! Out: the same paths below the tree, and back. The test whether a path is ours is a comparison of a prefix; all
//! else happens only for ours.
//!
//! In the tree's `/dev/infiniband` a file is a device of the daemon, and a link leads to a node of the kernel's, which is
//! opened as it is. Devices of the kernel's below `/sys/class` are links as well, which the kernel follows by itself.

use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::open;
use crate::say::{say_once, text};
use crate::sys::{self, Fail, fail};

/// Longest path that the kernel takes, with its NUL.
const PATH_BYTES: usize = libc::PATH_MAX as usize;
/// Above any N of `uverbsN`: the kernel gives up to 1024 of them, and the daemon stays near.
const MAX_DEVICES: u32 = 4096;
const DEV: &[u8] = b"/dev/infiniband";
const UVERBS: &[u8] = b"/dev/infiniband/uverbs";

/// A path being put together, always NUL-terminated.
pub struct PathBuf {
    bytes: [u8; PATH_BYTES],
    len: usize,
}

impl PathBuf {
    pub const fn new() -> PathBuf {
        PathBuf {
            bytes: [0; PATH_BYTES],
            len: 0,
        }
    }

    /// Appends; `None` if it gets too long.
    pub fn push(&mut self, part: &[u8]) -> Option<()> {
        let end = self
            .len
            .checked_add(part.len())
            .filter(|end| *end < PATH_BYTES)?;
        self.bytes[self.len..end].copy_from_slice(part);
        self.bytes[end] = 0;
        self.len = end;
        Some(())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub fn as_c(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }

    fn cut(&mut self, len: usize) {
        self.len = len.min(self.len);
        self.bytes[self.len] = 0;
    }

    /// Replaces the content by the target of a link.
    pub fn read_link(&mut self, link: &CStr) -> Option<()> {
        // SAFETY: the buffer is as long as said; one byte is kept for the NUL.
        let n = unsafe {
            let into = self.bytes.as_mut_ptr().cast();
            sys::readlinkat(libc::AT_FDCWD, link.as_ptr(), into, PATH_BYTES - 1)
        };
        self.len = usize::try_from(n).ok()?;
        self.bytes[self.len] = 0;
        Some(())
    }
}

impl Write for PathBuf {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        self.push(s.as_bytes()).ok_or(std::fmt::Error)
    }
}

/// What the environment says, made absolute.
struct Place {
    /// The control socket.
    socket: PathBuf,
    /// The directory that stands for `/`.
    root: PathBuf,
    /// Start of the device name in `root`, if the view is limited to one.
    device_at: Option<usize>,
}

static PLACE: OnceLock<Option<Place>> = OnceLock::new();

/// `None` if a path in the environment is longer than the kernel takes.
fn place() -> Option<&'static Place> {
    PLACE.get_or_init(Place::from_environment).as_ref()
}

/// An environment variable that is set and not empty.
pub fn env(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: the name is a C string.
    let p = unsafe { libc::getenv(name.as_ptr()) };
    if p.is_null() {
        return None;
    }
    // SAFETY: getenv gives a C string; callers use it before they call anything that could change it.
    Some(unsafe { CStr::from_ptr(p) }.to_bytes()).filter(|v| !v.is_empty())
}

fn exists(path: &CStr) -> bool {
    // SAFETY: a C string.
    unsafe { sys::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::F_OK) == 0 }
}

impl Place {
    fn from_environment() -> Option<Place> {
        let mut socket = PathBuf::new();
        if let Some(path) = env(c"ROCELINE_SOCKET") {
            socket.push(path)?;
        } else {
            let mut found = false;
            if let Some(dir) = env(c"XDG_RUNTIME_DIR") {
                socket.push(dir)?;
                socket.push(b"/roceline.sock")?;
                // One that its daemon could not remove when it was killed counts only where there is no other.
                found = exists(socket.as_c())
                    && !(exists(c"/run/roceline.sock") && open::is_stale(socket.as_c()));
            }
            if !found {
                socket.cut(0);
                socket.push(b"/run/roceline.sock")?;
            }
        }
        let socket = absolute(&socket)?;
        let mut root = PathBuf::new();
        root.push(socket.bytes())?;
        let device_at = match env(c"ROCELINE_DEVICE") {
            None => {
                root.push(b".d/all")?;
                None
            }
            Some(device) => {
                root.push(b".d/only/")?;
                let at = root.len;
                root.push(device)?;
                Some(at)
            }
        };
        Some(Place {
            socket,
            root,
            device_at,
        })
    }
}

/// `path` with its directory free of links and relative parts, as realpath of a file in the tree will show it.
fn absolute(path: &PathBuf) -> Option<PathBuf> {
    let bytes = path.bytes();
    let slash = bytes.iter().rposition(|b| *b == b'/');
    let (dir, file) = match slash {
        None => (&b"."[..], bytes),
        Some(0) => (&b"/"[..], &bytes[1..]),
        Some(i) => (&bytes[..i], &bytes[i + 1..]),
    };
    let mut out = PathBuf::new();
    out.push(dir)?;
    let fd = sys::open(out.as_c(), libc::O_PATH | libc::O_DIRECTORY);
    if fd >= 0 {
        let mut link = PathBuf::new();
        let _ = write!(link, "/proc/self/fd/{fd}");
        let read = out.read_link(link.as_c());
        sys::close(fd);
        if read.is_none() || out.bytes().first() != Some(&b'/') {
            out.cut(0);
            out.push(dir)?;
        }
    }
    if out.bytes() != b"/" {
        out.push(b"/")?;
    }
    out.push(file)?;
    Some(out)
}

/// The control socket's path.
pub fn socket() -> Option<&'static CStr> {
    place().map(|p| p.socket.as_c())
}

/// Whether `path` is one that the shim redirects.
///
/// # Safety
/// `path` is null or a C string.
#[inline]
pub unsafe fn ours(path: *const c_char) -> bool {
    if path.is_null() {
        return false;
    }
    // SAFETY: a C string has a second byte if its first is not NUL. These two tell nearly all other paths.
    unsafe { *path == b'/' as c_char && matches!(*path.add(1) as u8, b's' | b'd') && matches(path) }
}

/// # Safety
/// `path` is a C string.
unsafe fn matches(path: *const c_char) -> bool {
    // SAFETY: strncmp reads no further than the first NUL; the bytes after a match are in the string or its NUL.
    unsafe {
        let starts =
            |prefix: &CStr| libc::strncmp(path, prefix.as_ptr(), prefix.to_bytes().len()) == 0;
        let ends_or_descends =
            |prefix: &CStr| matches!(*path.add(prefix.to_bytes().len()) as u8, 0 | b'/');
        const MISC: &CStr = c"/sys/class/misc/rdma_cm";
        const NODES: &CStr = c"/dev/infiniband";
        // infiniband, infiniband_verbs, infiniband_mad, infiniband_ucma and what else there may be.
        starts(c"/sys/class/infiniband")
            || (starts(MISC) && ends_or_descends(MISC))
            || (starts(c"/sys/class/net/") && is_ecn_of_ours(CStr::from_ptr(path)))
            || (starts(NODES) && ends_or_descends(NODES))
    }
}

/// Whether the directory `path` has an entry for each device.
///
/// # Safety
/// `path` is null or a C string.
#[inline]
pub unsafe fn lists_devices(path: *const c_char) -> bool {
    // SAFETY: by the caller's promise.
    if !unsafe { ours(path) } {
        return false;
    }
    // SAFETY: a C string, and not null.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let slashes = path.iter().rev().take_while(|b| **b == b'/').count();
    matches!(
        &path[..path.len() - slashes],
        b"/sys/class/infiniband" | b"/sys/class/infiniband_verbs" | DEV
    )
}

/// Whether a path below `/sys/class/net` is the congestion control of a device of the daemon: `/sys/class/net/NAME/ecn`, where
/// NVIDIA's drivers have it. The rest of that folder is the kernel's.
#[cold]
fn is_ecn_of_ours(path: &CStr) -> bool {
    let mut parts = path.to_bytes()[1..].splitn(6, |b| *b == b'/').skip(3);
    let (Some(name), Some(b"ecn")) = (parts.next(), parts.next()) else {
        return false;
    };
    let mut entry = PathBuf::new();
    let pushed = place().and_then(|place| {
        entry.push(place.root.bytes())?;
        entry.push(b"/sys/class/net/")?;
        entry.push(name)
    });
    let errno = sys::errno();
    // SAFETY: a C string.
    let exists = unsafe { sys::faccessat(libc::AT_FDCWD, entry.as_c().as_ptr(), libc::F_OK) == 0 };
    sys::set_errno(errno);
    pushed.is_some() && !name.is_empty() && exists
}

/// N of `/dev/infiniband/uverbsN`, unless that is a device of the kernel's.
///
/// # Safety
/// `path` is null or a C string.
pub unsafe fn uverbs_number(path: *const c_char) -> Option<u32> {
    // SAFETY: by the caller's promise.
    if !unsafe { ours(path) } {
        return None;
    }
    // SAFETY: a C string, and not null.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let n = number(bytes.strip_prefix(UVERBS)?)?;
    kernels_node(place()?, bytes).is_none().then_some(n)
}

/// Where the entry `path` of `/dev/infiniband` leads, if that is a node of the kernel's.
#[cold]
fn kernels_node(place: &Place, path: &[u8]) -> Option<PathBuf> {
    if path.get(DEV.len()) != Some(&b'/') || !path.starts_with(DEV) {
        return None;
    }
    let mut entry = PathBuf::new();
    entry.push(place.root.bytes())?;
    entry.push(path)?;
    let mut node = PathBuf::new();
    let errno = sys::errno();
    let read = node.read_link(entry.as_c());
    sys::set_errno(errno);
    read.map(|()| node)
}

/// N of `uverbsN` opened below a directory fd that leads to our `/dev/infiniband`.
///
/// # Safety
/// `name` is null or a C string.
#[inline]
pub unsafe fn uverbs_below(dir: c_int, name: *const c_char) -> Option<u32> {
    // SAFETY: strncmp reads no further than the NUL.
    if name.is_null() || unsafe { libc::strncmp(name, c"uverbs".as_ptr(), 6) } != 0 {
        return None;
    }
    // SAFETY: a C string.
    below(dir, unsafe { CStr::from_ptr(name) }.to_bytes())
}

#[cold]
fn below(dir: c_int, name: &[u8]) -> Option<u32> {
    let n = number(&name[6..])?;
    let mut link = PathBuf::new();
    write!(link, "/proc/self/fd/{dir}").ok()?;
    let mut target = PathBuf::new();
    target.read_link(link.as_c())?;
    let place = place()?;
    if target.bytes().strip_prefix(place.root.bytes())? != DEV {
        return None;
    }
    let mut path = PathBuf::new();
    path.push(UVERBS)?;
    path.push(&name[6..])?;
    kernels_node(place, path.bytes()).is_none().then_some(n)
}

fn number(digits: &[u8]) -> Option<u32> {
    let n: u32 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    // "+1" and "01" parse too, but no device is called that.
    let plain = digits[0] != b'+' && (digits[0] != b'0' || digits.len() == 1);
    (plain && n < MAX_DEVICES).then_some(n)
}

/// Calls `f` with `path`, redirected if it is ours.
///
/// # Safety
/// `path` is null or a C string.
#[inline]
pub unsafe fn through<R: Fail>(path: *const c_char, f: impl FnOnce(*const c_char) -> R) -> R {
    // SAFETY: by the caller's promise.
    if !unsafe { ours(path) } {
        return f(path);
    }
    // SAFETY: `ours` says it is a C string.
    redirected(unsafe { CStr::from_ptr(path) }, f)
}

/// Calls `f` with the path in the tree that stands for `path`.
#[cold]
pub fn redirected<R: Fail>(path: &CStr, f: impl FnOnce(*const c_char) -> R) -> R {
    let Some(place) = place() else {
        return fail(libc::ENAMETOOLONG);
    };
    static LOOKED: AtomicBool = AtomicBool::new(false);
    if !LOOKED.swap(true, Ordering::Relaxed) {
        complain_if_missing(place);
    }
    if let Some(node) = kernels_node(place, path.to_bytes()) {
        return f(node.as_c().as_ptr());
    }
    let mut target = PathBuf::new();
    let pushed = target
        .push(place.root.bytes())
        .and_then(|()| target.push(path.to_bytes()));
    match pushed {
        Some(()) => f(target.as_c().as_ptr()),
        None => fail(libc::ENAMETOOLONG),
    }
}

/// Says so if there is no tree: to a program it looks as if the machine had no device.
fn complain_if_missing(place: &Place) {
    // SAFETY: a C string.
    let exists =
        |path: &CStr| unsafe { sys::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::F_OK) == 0 };
    if exists(place.root.as_c()) {
        return;
    }
    let mut tree = PathBuf::new();
    let _ = tree
        .push(place.socket.bytes())
        .and_then(|()| tree.push(b".d"));
    match place.device_at {
        Some(at) if exists(tree.as_c()) => say_no_device(text(&place.root.bytes()[at..])),
        _ => say_no_daemon(),
    }
}

static SAID_NO_DAEMON: AtomicBool = AtomicBool::new(false);

/// Says that nobody answers at the socket.
pub fn say_no_daemon() {
    let socket = text(place().map_or(b"", |p| p.socket.bytes()));
    say_once(
        &SAID_NO_DAEMON,
        format_args!(
            "no daemon at {socket}: start one with `roceline nic`, or name its socket in ROCELINE_SOCKET"
        ),
    );
}

fn say_no_device(device: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    say_once(
        &SAID,
        format_args!(
            "no device {device} (ROCELINE_DEVICE): `roceline show devices` lists what there is"
        ),
    );
}

/// The name of device N, written to `name` NUL-padded.
pub fn device_name(n: u32, name: &mut [u8]) -> Option<()> {
    let mut path = PathBuf::new();
    path.push(place()?.root.bytes())?;
    write!(path, "/sys/class/infiniband_verbs/uverbs{n}/ibdev").ok()?;
    let fd = sys::open(path.as_c(), libc::O_RDONLY);
    if fd < 0 {
        return None;
    }
    name.fill(0);
    let read = sys::read(fd, name);
    sys::close(fd);
    let newline = name.iter().position(|b| *b == b'\n')?;
    name[newline..].fill(0);
    (read > 0 && newline > 0).then_some(())
}

/// Takes the tree's own place out of a path that the system gave: the path a program would have seen. The result is
/// never longer.
pub fn strip(path: &mut [u8]) -> usize {
    // Only a program that was in the tree can meet it.
    let Some(Some(place)) = PLACE.get() else {
        return path.len();
    };
    let root = place.root.bytes();
    match path.strip_prefix(root) {
        Some([]) if !path.is_empty() => {
            path[0] = b'/';
            1
        }
        Some([b'/', ..]) => {
            path.copy_within(root.len().., 0);
            path.len() - root.len()
        }
        _ => path.len(),
    }
}

/// [`strip`] of a C string in place.
///
/// # Safety
/// `path` is null or a writable C string.
pub unsafe fn strip_c(path: *mut c_char) {
    if path.is_null() {
        return;
    }
    // SAFETY: by the caller's promise; the NUL is after `len` bytes.
    unsafe {
        let len = libc::strlen(path);
        let kept = strip(std::slice::from_raw_parts_mut(path.cast::<u8>(), len));
        *path.add(kept) = 0;
    }
}
