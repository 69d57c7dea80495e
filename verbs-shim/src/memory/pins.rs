//! Signs that the kernel may have pinned memory of this process for a device, a ring or another process: io_uring, asynchronous
//! I/O, AF_XDP, GPUs, VFIO, vhost, KNEM, XPMEM, a real RDMA device; or that the program serves page faults of its own
//! (userfaultfd). Pages that are pinned keep their place when other memory takes over their address, and what is transferred to
//! them is lost; faults on memory that was changed are not the program's any more. So with `auto` nothing of such a program is
//! changed, and what was changed before the sign was there stays as it is.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::maps::{self, Name, Vma};
use super::object;
use crate::sys;

/// Once seen, always so: what was pinned may stay pinned after the descriptor is gone.
static SEEN: AtomicBool = AtomicBool::new(false);

/// Whether there is such a sign. To be asked before each change, and before a userfaultfd of ours exists: a ring may have been
/// made since the last look. Where no look is possible, as no descriptor is free, there may be one.
pub fn any() -> bool {
    let looked = seen()
        || maps::each(|vma, _| {
            note(vma);
            !seen()
        });
    !looked || any_but_maps()
}

/// The same where each mapping was noted just now.
pub fn any_but_maps() -> bool {
    let looked = seen()
        || object::each_fd(|fd| {
            if pins(fd) {
                SEEN.store(true, Ordering::Relaxed);
            }
            !seen()
        });
    !looked || seen()
}

/// Takes note of a mapping that is a sign.
pub fn note(vma: &Vma) {
    if vma.name == Name::Pins {
        SEEN.store(true, Ordering::Relaxed);
    }
}

/// Whether there ever was a sign.
pub fn seen() -> bool {
    SEEN.load(Ordering::Relaxed)
}

fn pins(fd: i32) -> bool {
    const SIGNS: [&[u8]; 12] = [
        b"anon_inode:[io_uring]",
        b"anon_inode:[userfaultfd]",
        b"/dev/nvidia",
        b"/dev/kfd",
        b"/dev/vfio/",
        b"/dev/infiniband/",
        b"/dev/iommu",
        b"/dev/dri/",
        b"/dev/accel/",
        b"/dev/vhost-",
        b"/dev/knem",
        b"/dev/xpmem",
    ];
    let mut number = [0u8; 16];
    let Some(name) = decimal(fd, &mut number) else {
        return false;
    };
    let mut path = [0u8; 40];
    let start = b"/proc/self/fd/";
    path[..start.len()].copy_from_slice(start);
    path[start.len()..start.len() + name.len()].copy_from_slice(name);
    let Ok(path) = CStr::from_bytes_until_nul(&path) else {
        return false;
    };
    let mut link = [0u8; 64];
    // SAFETY: the buffer is as long as said.
    let n = unsafe {
        let into = link.as_mut_ptr().cast();
        sys::readlinkat(libc::AT_FDCWD, path.as_ptr(), into, link.len())
    };
    let link = &link[..usize::try_from(n).unwrap_or(0)];
    SIGNS.iter().any(|sign| link.starts_with(sign))
}

fn decimal(value: i32, into: &mut [u8; 16]) -> Option<&[u8]> {
    let mut rest = u32::try_from(value).ok()?;
    let mut at = into.len();
    loop {
        at -= 1;
        into[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return into.get(at..);
        }
    }
}
