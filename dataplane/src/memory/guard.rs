//! Reading and writing mapped files that their owner can shrink, without dying of it.
//!
//! In flow ranges of this process that are mapped from such files ([`register`]); out flows, for each, whether it is
//! still what it was ([`Guarded::is_dead`]). An access beyond the end of a mapped file raises SIGBUS (`mmap(2)`), so does one
//! for which no page can be had. The handler puts zero pages over the whole range and marks it dead, and the access
//! goes on with those. Whoever made it looks at the mark afterwards. A SIGBUS anywhere else goes where it went before.
//!
//! The handler must take no lock, so ranges live in a static table of atomics; taking and giving back slots is for
//! control threads.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;

/// Ranges at once: half of the mappings that a process may have by default (`vm.max_map_count`).
const SLOTS: usize = 1 << 15;

struct Slot {
    start: AtomicUsize,
    /// 0 while the slot is free.
    end: AtomicUsize,
    dead: AtomicBool,
    told: AtomicBool,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        dead: AtomicBool::new(false),
        told: AtomicBool::new(false),
    }
}; SLOTS];
/// Slots from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Rung when a range dies.
static NEWS: AtomicI32 = AtomicI32::new(-1);
/// What SIGBUS did before.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

#[derive(Default)]
struct Book {
    free: Vec<usize>,
    names: Vec<String>,
}

static BOOK: OnceLock<Mutex<Book>> = OnceLock::new();

fn book() -> MutexGuard<'static, Book> {
    let book = BOOK.get_or_init(Mutex::default);
    book.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A range under guard, until it is dropped. To be dropped before the range is unmapped.
#[derive(Debug)]
pub struct Guarded(usize);

impl Guarded {
    /// Whether zero pages stand in for the file.
    #[inline]
    pub fn is_dead(&self) -> bool {
        self.mark().load(Ordering::Relaxed)
    }

    /// What [`Guarded::is_dead`] looks at.
    pub fn mark(&self) -> &'static AtomicBool {
        &TABLE[self.0].dead
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        TABLE[self.0].end.store(0, Ordering::SeqCst);
        book().free.push(self.0);
    }
}

/// Guards `len` bytes at `start`, a mapping of this process. `name` says whose it is, for the log.
pub fn register(start: usize, len: usize, name: String) -> io::Result<Guarded> {
    install()?;
    let mut book = book();
    let index = match book.free.pop() {
        Some(index) => index,
        None => {
            let next = USED.load(Ordering::Relaxed);
            if next == SLOTS {
                return Err(io::Error::other(format!(
                    "all {SLOTS} places for mapped memory are taken"
                )));
            }
            book.names.push(String::new());
            USED.store(next + 1, Ordering::Release);
            next
        }
    };
    book.names[index] = name;
    let slot = &TABLE[index];
    slot.dead.store(false, Ordering::Relaxed);
    slot.told.store(false, Ordering::Relaxed);
    slot.start.store(start, Ordering::SeqCst);
    slot.end.store(start + len, Ordering::SeqCst);
    Ok(Guarded(index))
}

/// Puts the handler in its place and starts the thread that speaks for it; once.
fn install() -> io::Result<()> {
    static DONE: Mutex<bool> = Mutex::new(false);
    let mut done = DONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if *done {
        return Ok(());
    }
    // SAFETY: a new descriptor that becomes ours.
    let news = unsafe {
        let fd = libc::eventfd(0, libc::EFD_CLOEXEC);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        OwnedFd::from_raw_fd(fd)
    };
    let number = news.as_raw_fd();
    thread::Builder::new()
        .name("memory-guard".into())
        .spawn(move || tell(&news))?;
    NEWS.store(number, Ordering::SeqCst);
    // SAFETY: a sigaction is valid when all zero; the handler only uses what is allowed in one.
    unsafe {
        let mut previous: Box<libc::sigaction> = Box::new(std::mem::zeroed());
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigbus as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut *previous) != 0 {
            return Err(io::Error::last_os_error());
        }
        PREVIOUS.store(Box::into_raw(previous), Ordering::SeqCst);
        if libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    *done = true;
    Ok(())
}

extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid siginfo; for the SIGBUS of an access it has an address.
    let (addr, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    // One that a process sent has no address (`sigaction(2)`: codes of the kernel's are above 0).
    let used = if code > 0 {
        USED.load(Ordering::Acquire)
    } else {
        0
    };
    for slot in &TABLE[..used] {
        let end = slot.end.load(Ordering::SeqCst);
        let start = slot.start.load(Ordering::SeqCst);
        if addr < start || addr >= end {
            continue;
        }
        // Another thread may have given the slot to another range meanwhile, so the two need not belong together. The slot
        // of the range that was accessed stays as it is: whoever accesses it has it.
        if slot.end.load(Ordering::SeqCst) != end {
            continue;
        }
        // Before the zero pages are there: whoever copies from them then finds the mark.
        slot.dead.store(true, Ordering::SeqCst);
        // SAFETY: the range is a mapping of ours that only raw copies use; mmap and write are allowed in a handler.
        unsafe {
            let errno = *libc::__errno_location();
            let zeroes = libc::mmap(
                start as *mut libc::c_void,
                end - start,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            );
            if zeroes == libc::MAP_FAILED {
                break;
            }
            let one = 1u64;
            libc::write(NEWS.load(Ordering::Relaxed), (&raw const one).cast(), 8);
            *libc::__errno_location() = errno;
        }
        return;
    }
    // Not ours: the access is repeated, and the signal goes where it went before.
    // SAFETY: `PREVIOUS` was filled in before this handler could run.
    unsafe {
        libc::sigaction(
            libc::SIGBUS,
            PREVIOUS.load(Ordering::SeqCst),
            std::ptr::null_mut(),
        )
    };
}

/// Says in the log what the handler may not.
fn tell(news: &OwnedFd) {
    loop {
        let mut count = 0u64;
        // SAFETY: reads eight bytes into a local.
        let n = unsafe { libc::read(news.as_raw_fd(), (&raw mut count).cast(), 8) };
        if n < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
            continue;
        }
        if n != 8 {
            return;
        }
        let book = book();
        for (slot, name) in TABLE.iter().zip(&book.names) {
            let dead = slot.end.load(Ordering::SeqCst) != 0 && slot.dead.load(Ordering::SeqCst);
            if dead && !slot.told.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    memory = name.as_str(),
                    "a mapped memory object lost its pages (was it truncated?); its region is reached through the kernel from now on, \
                     and fails where nothing is there"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    use super::super::mapping::tests::memfd;
    use super::super::mapping::{Mapping, MappingError, MemoryFile};

    /// Where no huge page is to be had, the first access is one that the handler has to mend.
    #[test]
    fn an_object_of_huge_pages_is_mapped_by_those_or_not_at_all() {
        const HUGE: u64 = 2 << 20;
        // SAFETY: plain system calls on a new descriptor that becomes ours.
        let fd = unsafe {
            let flags = libc::MFD_CLOEXEC | libc::MFD_HUGETLB | libc::MFD_HUGE_2MB;
            let fd = libc::memfd_create(c"huge".as_ptr(), flags);
            if fd < 0 {
                eprintln!("no huge pages here: {}", std::io::Error::last_os_error());
                return;
            }
            assert_eq!(libc::ftruncate(fd, 2 * HUGE as libc::off_t), 0);
            OwnedFd::from_raw_fd(fd)
        };
        let file = MemoryFile::adopt(fd).unwrap();
        for (offset, len) in [(0, 4096), (4096, HUGE), (0, HUGE + 4096)] {
            // Neither unmapping nor zero pages in its place would work.
            let refused = Mapping::new(&file, offset, len, String::new());
            let error = refused.expect_err("not whole pages of the object");
            assert!(matches!(error, MappingError::Pages { .. }), "{error}");
        }
        let mapping = Mapping::new(&file, HUGE, HUGE, "huge".into()).unwrap();
        let written = mapping.write(5, b"bytes");
        assert_ne!(written, mapping.is_dead());
    }

    #[test]
    fn a_truncated_object_reads_as_zeroes_and_is_marked() {
        let fd = memfd(3 * 4096, 0);
        let file = MemoryFile::adopt(fd.try_clone().unwrap()).unwrap();
        let mapping = Mapping::new(&file, 0, 3 * 4096, "test".into()).unwrap();
        let other = Mapping::new(&file, 0, 4096, "other".into()).unwrap();
        let mut page = [0u8; 4096];
        assert!(mapping.write(2 * 4096, &[7; 4096]));
        assert!(other.write(0, &[5; 4096]));
        assert!(mapping.read(2 * 4096, &mut page));
        assert_eq!(page, [7; 4096]);
        // SAFETY: a plain system call.
        let cut = unsafe { libc::ftruncate(fd.as_raw_fd(), 4096) };
        assert_eq!(cut, 0);
        assert!(!mapping.read(2 * 4096, &mut page));
        assert!(mapping.is_dead());
        assert!(!mapping.write(0, &[1; 8]), "dead for good");
        // What the object still has is whole through another mapping.
        assert!(other.read(0, &mut page) && !other.is_dead());
        assert_eq!(page, [5; 4096]);
    }
}
