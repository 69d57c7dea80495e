//! Devices in the order of their numbers, whatever the file system says.
//!
//! libibverbs lists devices as readdir gives them (rdma-core `libibverbs/init.c`: two lists, each the other way round), and a program
//! that names none takes the first. A tmpfs gives the newest first or last, by kernel, and ext4 none in particular. So what `opendir`
//! opens of ours is read once, and then given in order, by the places that `telldir` says. In: an open directory; out: its entries.

use std::cmp::Ordering as Order;
use std::ffi::{CStr, c_long};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI64, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use libc::{DIR, dirent};

use crate::{next, sys};

/// Directories that are listed in order at once; more come as they are, as do those with more entries.
const LISTINGS: usize = 8;
const ENTRIES: usize = 128;
/// Bytes of a name that are compared: names of devices have fewer (`IB_DEVICE_NAME_MAX` is 64).
const NAME: usize = 64;

/// A directory with its entries in order.
struct Listing {
    /// Null while free, and dangling while it is being filled in.
    dir: AtomicPtr<DIR>,
    count: AtomicUsize,
    /// The next one to be given.
    next: AtomicUsize,
    places: [AtomicI64; ENTRIES],
    /// Hashes of the names: whether at a place there still is what was there.
    names: [AtomicU64; ENTRIES],
}

static TABLE: [Listing; LISTINGS] = [const {
    Listing {
        dir: AtomicPtr::new(null_mut()),
        count: AtomicUsize::new(0),
        next: AtomicUsize::new(0),
        places: [const { AtomicI64::new(0) }; ENTRIES],
        names: [const { AtomicU64::new(0) }; ENTRIES],
    }
}; LISTINGS];
/// Listings in use, or more: other programs' calls look no further.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// An entry while they are sorted.
#[derive(Clone, Copy)]
struct Entry {
    place: c_long,
    hash: u64,
    len: usize,
    name: [u8; NAME],
}

impl Entry {
    const NONE: Entry = Entry {
        place: 0,
        hash: 0,
        len: 0,
        name: [0; NAME],
    };

    fn new(place: c_long, name: &[u8]) -> Entry {
        let len = name.len().min(NAME);
        let mut entry = Entry {
            place,
            hash: hash(name),
            len,
            ..Entry::NONE
        };
        entry.name[..len].copy_from_slice(&name[..len]);
        entry
    }

    /// What is before the digits at the end, the digits' number, and all of it.
    fn key(&self) -> (&[u8], u64, &[u8]) {
        let name = &self.name[..self.len];
        let digits = name.iter().rev().take_while(|b| b.is_ascii_digit()).count();
        let (stem, digits) = name.split_at(name.len() - digits);
        let number = digits.iter().fold(0u64, |number, digit| {
            number
                .wrapping_mul(10)
                .wrapping_add(u64::from(digit - b'0'))
        });
        (stem, number, name)
    }

    fn order(&self, other: &Entry) -> Order {
        self.key().cmp(&other.key())
    }
}

/// FNV-1a.
fn hash(name: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    name.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// # Safety
/// `entry` is from readdir, and not yet overwritten.
unsafe fn name_of<'a>(entry: *const dirent) -> &'a [u8] {
    // SAFETY: readdir's names have a NUL.
    unsafe { CStr::from_ptr((&raw const (*entry).d_name).cast()) }.to_bytes()
}

fn of(dir: *mut DIR) -> Option<&'static Listing> {
    if IN_USE.load(Ordering::Acquire) == 0 || dir.is_null() {
        return None;
    }
    TABLE
        .iter()
        .find(|listing| listing.dir.load(Ordering::Acquire) == dir)
}

/// Has the entries of a directory that was just opened, or is at its start, given in order, if that is possible.
///
/// # Safety
/// `dir` is null or from opendir.
#[cold]
pub unsafe fn sort(dir: *mut DIR) {
    forget(dir);
    let calls = (
        next::readdir.find(),
        next::telldir.find(),
        next::rewinddir.find(),
    );
    let (Some(readdir), Some(telldir), Some(rewinddir)) = calls else {
        return;
    };
    // Not one that reads in order without `seekdir`.
    if dir.is_null() || next::seekdir.find().is_none() || next::closedir.find().is_none() {
        return;
    }
    let errno = sys::errno();
    let mut entries = [Entry::NONE; ENTRIES];
    let mut count = 0;
    let mut fits = true;
    // SAFETY: an open directory, which its program does not read in another thread meanwhile.
    unsafe {
        loop {
            let place = telldir(dir);
            let entry = readdir(dir);
            if entry.is_null() {
                break;
            }
            if count == ENTRIES {
                fits = false;
                break;
            }
            entries[count] = Entry::new(place, name_of(entry));
            count += 1;
        }
        rewinddir(dir);
    }
    let entries = &mut entries[..count];
    if fits && !entries.is_sorted_by(|a, b| a.order(b) != Order::Greater) {
        // In place: nothing here allocates.
        entries.sort_unstable_by(Entry::order);
        keep(dir, entries);
    }
    sys::set_errno(errno);
}

fn keep(dir: *mut DIR, entries: &[Entry]) {
    let filling = std::ptr::dangling_mut::<DIR>();
    let take = |listing: &&Listing| {
        let (taken, stale) = (Ordering::Acquire, Ordering::Relaxed);
        let free = &listing.dir;
        free.compare_exchange(null_mut(), filling, taken, stale)
            .is_ok()
    };
    let Some(listing) = TABLE.iter().find(take) else {
        return;
    };
    for (at, entry) in entries.iter().enumerate() {
        listing.places[at].store(entry.place, Ordering::Relaxed);
        listing.names[at].store(entry.hash, Ordering::Relaxed);
    }
    listing.count.store(entries.len(), Ordering::Relaxed);
    listing.next.store(0, Ordering::Relaxed);
    IN_USE.fetch_add(1, Ordering::Relaxed);
    listing.dir.store(dir, Ordering::Release);
}

/// The directory is closed, or another one has its place.
fn forget(dir: *mut DIR) {
    if let Some(listing) = of(dir) {
        listing.dir.store(null_mut(), Ordering::Release);
        IN_USE.fetch_sub(1, Ordering::Release);
    }
}

impl Listing {
    /// The next entry in order. What is no longer there is left out.
    ///
    /// # Safety
    /// `dir` is this one's, and open.
    unsafe fn read(&self, dir: *mut DIR) -> *mut dirent {
        let calls = (
            next::readdir.get(),
            next::seekdir.get(),
            next::rewinddir.get(),
        );
        let (Some(readdir), Some(seekdir), Some(rewinddir)) = calls else {
            return null_mut();
        };
        loop {
            let at = self.next.load(Ordering::Relaxed);
            if at >= self.count.load(Ordering::Relaxed).min(ENTRIES) {
                return null_mut();
            }
            self.next.store(at + 1, Ordering::Relaxed);
            let wanted = self.names[at].load(Ordering::Relaxed);
            // SAFETY: by the caller's promise; the place is one that telldir gave, and names are looked at before the next readdir.
            unsafe {
                seekdir(dir, self.places[at].load(Ordering::Relaxed));
                let entry = readdir(dir);
                if !entry.is_null() && hash(name_of(entry)) == wanted {
                    return entry;
                }
                // Places of a tmpfs before Linux 6.6 are counts of entries (`dcache_dir_lseek`): they shift when one comes or goes.
                rewinddir(dir);
                loop {
                    let entry = readdir(dir);
                    if entry.is_null() {
                        break;
                    }
                    if hash(name_of(entry)) == wanted {
                        return entry;
                    }
                }
            }
        }
    }
}

macro_rules! readdir_family {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As for `readdir`.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(dir: *mut DIR) -> *mut dirent {
            // SAFETY: by the caller's promise; the two structures are the same on 64-bit machines.
            unsafe {
                match (of(dir), next::readdir.find()) {
                    (Some(listing), _) => listing.read(dir),
                    (None, Some(real)) => real(dir),
                    (None, None) => sys::fail(libc::ENOSYS),
                }
            }
        }
    )*};
}

readdir_family! { readdir readdir64 }

/// # Safety
/// As for `closedir`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closedir(dir: *mut DIR) -> libc::c_int {
    forget(dir);
    match next::closedir.find() {
        // SAFETY: by the caller's promise.
        Some(real) => unsafe { real(dir) },
        None => sys::fail(libc::ENOSYS),
    }
}

/// # Safety
/// As for `rewinddir`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rewinddir(dir: *mut DIR) {
    let sorted = of(dir).is_some();
    if let Some(real) = next::rewinddir.find() {
        // SAFETY: by the caller's promise.
        unsafe { real(dir) };
    }
    if sorted {
        // What has come since it was opened is listed as well (POSIX).
        // SAFETY: by the caller's promise; of null there is no listing.
        unsafe { sort(dir) };
    }
}

/// # Safety
/// As for `telldir`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn telldir(dir: *mut DIR) -> c_long {
    match (of(dir), next::telldir.find()) {
        (Some(listing), _) => listing.next.load(Ordering::Relaxed) as c_long,
        // SAFETY: by the caller's promise.
        (None, Some(real)) => unsafe { real(dir) },
        (None, None) => -1,
    }
}

/// # Safety
/// As for `seekdir`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn seekdir(dir: *mut DIR, place: c_long) {
    match (of(dir), next::seekdir.find()) {
        (Some(listing), _) => {
            let place = usize::try_from(place).unwrap_or(ENTRIES);
            listing.next.store(place, Ordering::Relaxed);
        }
        // SAFETY: by the caller's promise.
        (None, Some(real)) => unsafe { real(dir, place) },
        (None, None) => {}
    }
}
