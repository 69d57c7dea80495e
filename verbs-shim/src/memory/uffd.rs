//! userfaultfd: holding back whoever writes to a range while it is copied. The writer, a thread or the kernel in `read(2)`
//! alike, waits in its page fault until it is woken; it loses nothing.
//!
//! That needs a userfaultfd that also sees faults of the kernel: `CAP_SYS_PTRACE`, `vm.unprivileged_userfaultfd = 1`, or
//! access to `/dev/userfaultfd`. One for user mode only would let `read(2)` into the range fail with EFAULT.

use std::ffi::c_int;

use super::spans::Span;
use crate::sys;

// `linux/userfaultfd.h`; the numbers are those of all architectures with the common ioctl encoding.
const UFFD_API: u64 = 0xaa;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const UFFDIO_API: usize = 0xc018_aa3f;
const UFFDIO_REGISTER: usize = 0xc020_aa00;
const UFFDIO_UNREGISTER: usize = 0x8010_aa01;
const UFFDIO_WAKE: usize = 0x8010_aa02;
const UFFDIO_WRITEPROTECT: usize = 0xc018_aa06;
const USERFAULTFD_IOC_NEW: usize = 0xaa00;
const MODE_WP: u64 = 1 << 1;
const WRITEPROTECT_WP: u64 = 1 << 0;
/// Linux 5.14.
const MADV_POPULATE_READ: c_int = 22;

/// A userfaultfd of this process. Closing it lets everybody go on.
#[derive(Debug)]
pub struct Uffd {
    fd: c_int,
    features: u64,
}

impl Uffd {
    /// A new one; `None` if this process may not have one.
    pub fn new() -> Option<Uffd> {
        let mut fd = sys::userfaultfd(libc::O_CLOEXEC);
        if fd < 0 {
            let device = sys::open(c"/dev/userfaultfd", libc::O_RDWR);
            if device < 0 {
                return None;
            }
            fd = sys::ioctl_value(device, USERFAULTFD_IOC_NEW, libc::O_CLOEXEC as usize);
            sys::close(device);
        }
        if fd < 0 {
            return None;
        }
        let mut uffd = Uffd { fd, features: 0 };
        // The kernel refuses what it does not know, so from the newest to the oldest.
        let all = FEATURE_PAGEFAULT_FLAG_WP | FEATURE_WP_HUGETLBFS_SHMEM | FEATURE_WP_UNPOPULATED;
        for features in [
            all,
            all & !FEATURE_WP_UNPOPULATED,
            FEATURE_PAGEFAULT_FLAG_WP,
        ] {
            let mut api = [UFFD_API, features, 0];
            if sys::ioctl(uffd.fd, UFFDIO_API, &mut api) == 0 {
                uffd.features = features;
                return Some(uffd);
            }
        }
        None
    }

    /// Whether shared memory can be held, too.
    pub fn holds_shared(&self) -> bool {
        self.features & FEATURE_WP_HUGETLBFS_SHMEM != 0
    }

    /// Whether pages that were never touched look untouched while they are held.
    fn keeps_untouched(&self) -> bool {
        self.features & FEATURE_WP_UNPOPULATED != 0
    }

    /// Holds back writers to a range of one kind of mapping. False if that cannot be, and then nobody is held.
    pub fn hold(&self, span: Span) -> bool {
        let (start, len) = (span.start as u64, span.len() as u64);
        let mut register = [start, len, MODE_WP, 0];
        if sys::ioctl(self.fd, UFFDIO_REGISTER, &mut register) != 0 {
            return false;
        }
        // Without the feature, a page that does not exist cannot be protected: it must exist.
        if !self.keeps_untouched() && !populate(span.start, span.len()) {
            self.let_go(span);
            return false;
        }
        let mut protect = [start, len, WRITEPROTECT_WP];
        if sys::ioctl(self.fd, UFFDIO_WRITEPROTECT, &mut protect) != 0 {
            self.let_go(span);
            return false;
        }
        true
    }

    /// Undoes a hold.
    pub fn let_go(&self, span: Span) {
        let (start, len) = (span.start as u64, span.len() as u64);
        let mut protect = [start, len, 0];
        sys::ioctl(self.fd, UFFDIO_WRITEPROTECT, &mut protect);
        let mut range = [start, len];
        sys::ioctl(self.fd, UFFDIO_UNREGISTER, &mut range);
        self.wake(span);
    }

    /// Wakes those held, after other memory has taken the place of what they waited for.
    pub fn wake(&self, span: Span) {
        let mut range = [span.start as u64, span.len() as u64];
        sys::ioctl(self.fd, UFFDIO_WAKE, &mut range);
    }
}

/// Makes pages present as if each were read. False if one cannot be.
pub fn populate(start: usize, len: usize) -> bool {
    sys::madvise(start, len, MADV_POPULATE_READ) == 0
}

impl Drop for Uffd {
    fn drop(&mut self) {
        sys::close(self.fd);
    }
}
