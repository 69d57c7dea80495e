//! Memory objects: the one of ours under changed memory, and those of the program.
//!
//! Ours is one memfd for the process (and one for each size of huge pages, if it registers such), as long as the address space, in which an address has the offset of its own number. So
//! neighbours in memory are neighbours in the object, and the kernel joins their mappings. It is sealed against shrinking,
//! which is what the daemon's mapping of it must not suffer, and it holds only the pages that were ever touched.

use std::ffi::{CStr, c_int};
use std::fmt::Write;

use super::maps::{self, Name, Vma};
use super::{ADDRESSES, PAGE};
use crate::context::{self, Context, OBJECTS};
use crate::sys;

/// Sizes of pages, of one object each. The first is for ordinary memory.
const PAGES: [usize; OBJECTS] = [PAGE, 2 << 20, 1 << 30];

/// An object of ours.
#[derive(Clone, Copy, Debug)]
pub struct Object {
    /// Its descriptor.
    pub fd: c_int,
    /// Bytes of a page.
    pub page: usize,
    /// Device and inode.
    identity: (u64, u64),
}

impl Object {
    /// Whether a mapping shows its pages.
    pub fn is_in(&self, vma: &Vma) -> bool {
        vma.is_shared() && (vma.dev, vma.inode) == self.identity
    }

    /// Whether it has huge pages of hugetlbfs.
    pub fn is_huge(&self) -> bool {
        self.page != PAGE
    }
}

/// Our objects at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Objects([Option<Object>; OBJECTS]);

impl Objects {
    /// The one whose pages a mapping shows.
    pub fn of(&self, vma: &Vma) -> Option<Object> {
        self.iter().find(|object| object.is_in(vma))
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = Object> {
        self.0.into_iter().flatten()
    }
}

/// Our objects.
pub fn all() -> Objects {
    Objects(std::array::from_fn(get))
}

fn get(which: usize) -> Option<Object> {
    let holder = context::holder(which)?;
    Some(Object {
        fd: holder.held_file()?,
        page: PAGES[which],
        identity: holder.file_identity(),
    })
}

/// The object that private memory is to be shared with, made if need be; none if this process may not have one.
pub fn for_private(vma: &Vma) -> Option<Object> {
    if !vma.is_private_huge() {
        return get_or_make(0);
    }
    // Anonymous huge pages of a size are files of the same file system as memory objects of that size.
    (1..OBJECTS)
        .filter_map(get_or_make)
        .find(|object| object.identity.0 == vma.dev)
}

fn get_or_make(which: usize) -> Option<Object> {
    if let Some(object) = get(which) {
        return Some(object);
    }
    // A limit would make writes to it fail with a signal.
    if page_size() != PAGE || sys::has_file_size_limit() {
        return None;
    }
    let huge = match PAGES[which] {
        PAGE => 0,
        page => libc::MFD_HUGETLB | page.trailing_zeros() << libc::MFD_HUGE_SHIFT,
    };
    let fd = sys::memfd_create(c"roceline-memory", huge);
    if fd < 0 {
        return None;
    }
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    let fd = crate::open::hide(fd);
    let made = sys::ftruncate(fd, ADDRESSES) == 0
        && sys::add_seals(fd, seals) == 0
        && Context::hold_file(fd, which);
    if !made {
        sys::close(fd);
        return None;
    }
    get(which)
}

fn page_size() -> usize {
    // SAFETY: no pointers.
    unsafe { libc::getauxval(libc::AT_PAGESZ) as usize }
}

/// A descriptor of the program's own object under a mapping, open both ways.
pub fn open_mapped(vma: &Vma) -> Option<c_int> {
    let mut path = Text::new();
    write!(
        path,
        "/proc/self/map_files/{:x}-{:x}",
        vma.span.start, vma.span.end
    )
    .ok()?;
    // That takes a privilege; the other ways do not.
    open_same(path.as_c()?, vma)
        .or_else(|| open_by_name(vma))
        .or_else(|| open_by_fd(vma))
}

fn open_same(path: &CStr, vma: &Vma) -> Option<c_int> {
    let fd = sys::open(path, libc::O_RDWR | libc::O_NONBLOCK | libc::O_NOCTTY);
    if fd < 0 {
        return None;
    }
    if sys::identity(fd) != Some((vma.dev, vma.inode)) {
        sys::close(fd);
        return None;
    }
    Some(fd)
}

/// By the name in the maps: a file in `/dev/shm`, say. Only regular files are opened, as opening others may have effects.
fn open_by_name(vma: &Vma) -> Option<c_int> {
    let mut path = Text::new();
    maps::each_beyond(vma.span.start, |other, name| {
        if other.span == vma.span && other.name == Name::Path {
            path.push(name);
        }
        other.span.start < vma.span.start
    });
    let path = path.as_c()?;
    // SAFETY: zeroes are a valid struct stat.
    let mut st: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `st` is writable and the path a C string.
    let found = unsafe { sys::fstatat(libc::AT_FDCWD, path.as_ptr(), &mut st, 0) } == 0;
    let same = found
        && (st.st_dev, st.st_ino) == (vma.dev, vma.inode)
        && st.st_mode & libc::S_IFMT == libc::S_IFREG;
    if same { open_same(path, vma) } else { None }
}

/// By a descriptor that the program still has: a memfd.
fn open_by_fd(vma: &Vma) -> Option<c_int> {
    let mut found = None;
    each_fd(|fd| {
        if sys::identity(fd) == Some((vma.dev, vma.inode)) {
            let copy = sys::dup_above(fd, 0);
            found = (copy >= 0).then_some(copy);
        }
        found.is_none()
    });
    found
}

/// Calls `f` for each open descriptor until it says no. False if they cannot be read.
pub fn each_fd(mut f: impl FnMut(c_int) -> bool) -> bool {
    let dir = sys::open(c"/proc/self/fd", libc::O_RDONLY | libc::O_DIRECTORY);
    if dir < 0 {
        return false;
    }
    let mut entries = [0u8; 4096];
    let whole = 'all: loop {
        let n = sys::getdents(dir, &mut entries);
        let Ok(n) = usize::try_from(n) else {
            break false;
        };
        if n == 0 {
            break true;
        }
        // struct linux_dirent64: d_ino, d_off (8 each), d_reclen (2), d_type (1), d_name.
        let mut at = 0;
        while at + 19 <= n {
            let len = usize::from(u16::from_ne_bytes([entries[at + 16], entries[at + 17]]));
            if len < 20 || at + len > n {
                break 'all false;
            }
            let name = &entries[at + 19..at + len];
            let digits = name.iter().take_while(|b| b.is_ascii_digit()).count();
            let number = std::str::from_utf8(&name[..digits]).ok();
            if let Some(fd) = number.and_then(|t| t.parse().ok()) {
                if fd != dir && !f(fd) {
                    break 'all true;
                }
            }
            at += len;
        }
    };
    sys::close(dir);
    whole
}

/// A path in place.
struct Text {
    bytes: [u8; 512],
    len: usize,
}

impl Text {
    fn new() -> Text {
        Text {
            bytes: [0; 512],
            len: 0,
        }
    }

    fn push(&mut self, text: &[u8]) -> bool {
        // One byte stays for the NUL.
        let room = self.bytes.len() - 1 - self.len;
        if text.len() > room {
            self.len = 0;
            return false;
        }
        self.bytes[self.len..self.len + text.len()].copy_from_slice(text);
        self.len += text.len();
        true
    }

    fn as_c(&self) -> Option<&CStr> {
        if self.len == 0 {
            return None;
        }
        CStr::from_bytes_with_nul(&self.bytes[..=self.len]).ok()
    }
}

impl Write for Text {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        if self.push(s.as_bytes()) {
            Ok(())
        } else {
            Err(std::fmt::Error)
        }
    }
}
