//! Memory objects that the daemon makes.

use std::ffi::CStr;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// `linux/memfd.h`, since Linux 6.3: it cannot be made executable. Implies that it can be sealed.
const MFD_NOEXEC_SEAL: u32 = 8;

/// A new one, empty, sealable and close-on-exec. It says that nobody will execute it, as `vm.memfd_noexec = 2` demands and
/// kernels before 6.3 do not understand.
pub fn create(name: &CStr) -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let make = |flags| {
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: new and ours.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    };
    match make(flags | MFD_NOEXEC_SEAL) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => make(flags),
        made => made,
    }
}
