//! `AF_UNIX`, `SOCK_SEQPACKET`: whole packets with file descriptors beside them (`unix(7)`, `cmsg(3)`).

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Descriptors that one packet may carry.
const MAX_FDS: usize = 4;
/// `CMSG_SPACE` of that many, with room to spare.
const CONTROL_BYTES: usize = 64;

/// Ancillary data must be aligned as `cmsghdr` is.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// The user on the other end, as the kernel saw it when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process, in our PID namespace; 0 if it is not visible there.
    pub pid: i32,
    /// User, in our user namespace.
    pub uid: u32,
}

impl Peer {
    /// Whose turn it is where programs take turns: a process, or where it is not visible all such of a user, since what
    /// they say of themselves counts for nothing.
    pub fn program(self) -> (i32, u32) {
        (self.pid.max(0), if self.pid > 0 { 0 } else { self.uid })
    }
}

/// A packet received.
#[derive(Debug)]
pub struct Packet {
    /// Bytes of it at the start of the buffer.
    pub len: usize,
    /// Descriptors that came along, close-on-exec.
    pub fds: Vec<OwnedFd>,
}

/// A new socket.
pub fn socket() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
    owned(fd)
}

/// Two sockets that are connected with each other.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: writes two descriptors into the array.
    check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) })?;
    // SAFETY: both are new and ours.
    Ok(unsafe { (OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) })
}

/// The address of `path`, or `None` if it is too long (or contains a NUL).
pub fn address(path: &Path) -> Option<libc::sockaddr_un> {
    // SAFETY: sockaddr_un is valid when all zero.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    // One byte stays for the NUL.
    if bytes.is_empty() || bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return None;
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Some(address)
}

/// Connects `socket`.
pub fn connect(socket: BorrowedFd<'_>, address: &libc::sockaddr_un) -> io::Result<()> {
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address is a live sockaddr_un of that length.
    check(unsafe { libc::connect(socket.as_raw_fd(), std::ptr::from_ref(address).cast(), len) })
}

/// Binds `socket` and listens on it.
pub fn listen(socket: BorrowedFd<'_>, address: &libc::sockaddr_un) -> io::Result<()> {
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: the address is a live sockaddr_un of that length.
    check(unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(address).cast(), len) })?;
    // SAFETY: a plain system call.
    check(unsafe { libc::listen(socket.as_raw_fd(), 128) })
}

/// The next connection.
pub fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: null addresses mean that the peer's address is not wanted.
    let fd = unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_CLOEXEC,
        )
    };
    owned(fd)
}

/// Who is on the other end.
pub fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut cred = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: writes at most `len` bytes, the size of `cred`.
    check(unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &mut len,
        )
    })?;
    Ok(Peer {
        pid: cred.pid,
        uid: cred.uid,
    })
}

/// From now on a receive that waits longer fails with EAGAIN.
pub fn set_receive_timeout(socket: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
    let time = libc::timeval {
        tv_sec: timeout.as_secs().min(i32::MAX as u64) as libc::time_t,
        tv_usec: timeout.subsec_micros().into(),
    };
    // SAFETY: reads one live timeval.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVTIMEO,
            (&raw const time).cast(),
            size_of::<libc::timeval>() as libc::socklen_t,
        )
    })
}

/// Ends both directions: a thread blocked on the socket returns.
pub fn shutdown(socket: BorrowedFd<'_>) {
    // SAFETY: a plain system call; a socket that is no longer connected is no error here.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Sends one packet made of `parts`, with `fds` beside it.
pub fn send(socket: BorrowedFd<'_>, parts: &[&[u8]], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if fds.len() > MAX_FDS {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "too many descriptors",
        ));
    }
    let mut iov: Vec<libc::iovec> = parts
        .iter()
        .map(|p| libc::iovec {
            iov_base: p.as_ptr().cast_mut().cast(),
            iov_len: p.len(),
        })
        .collect();
    let mut control = Control([0; CONTROL_BYTES]);
    // SAFETY: msghdr is valid when all zero.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = iov.len() as _;
    if !fds.is_empty() {
        let payload = std::mem::size_of_val(fds) as u32;
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE, CMSG_FIRSTHDR, CMSG_LEN and CMSG_DATA compute within `control`, which holds
        // CMSG_SPACE(MAX_FDS * 4) bytes (asserted below) and is aligned.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(payload) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload) as _;
            let data: *mut i32 = libc::CMSG_DATA(header).cast();
            for (i, fd) in fds.iter().enumerate() {
                data.add(i).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    loop {
        // SAFETY: the message points to live buffers.
        let n = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL) };
        if n >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Receives one packet into `buffer`; `None` when the other end is gone, and all that it had sent was received. A packet larger than the buffer or
/// with more than [`MAX_FDS`] descriptors is an error.
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<Packet>> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut iov = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: msghdr is valid when all zero.
    let mut message: libc::msghdr = unsafe { zeroed() };
    let mut reset = false;
    let n = loop {
        message.msg_iov = &mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = CONTROL_BYTES as _;
        // SAFETY: the message points to live buffers of the lengths given.
        let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
        if n >= 0 {
            break n as usize;
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            // Said once, before what the other end had sent: it ended without having read all of ours.
            io::ErrorKind::ConnectionReset if !std::mem::replace(&mut reset, true) => {}
            io::ErrorKind::ConnectionReset => return Ok(None),
            _ => return Err(error),
        }
    };
    let fds = passed_fds(&message);
    if message.msg_flags & libc::MSG_TRUNC != 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("packet of more than {} bytes", buffer.len()),
        ));
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 || fds.len() > MAX_FDS {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "packet with too many descriptors, or no descriptor left to receive one",
        ));
    }
    Ok(if n == 0 {
        None
    } else {
        Some(Packet { len: n, fds })
    })
}

/// Takes over the descriptors that the kernel put into the control buffer of a received message.
fn passed_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: recvmsg filled the control buffer and set its length; the CMSG_ macros stay within it, and every
    // descriptor in an SCM_RIGHTS record is new and ours alone.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes =
                    ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                let data: *const i32 = libc::CMSG_DATA(header).cast();
                for i in 0..bytes / size_of::<i32>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    fds
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    check(fd)?;
    // SAFETY: a descriptor that a system call has just returned is new and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn check(result: i32) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

// SAFETY: CMSG_SPACE only computes.
const _: () = assert!(unsafe { libc::CMSG_SPACE((MAX_FDS * 4) as u32) } as usize <= CONTROL_BYTES);

/// A connected pair, for tests.
#[cfg(test)]
pub fn both_ends() -> (OwnedFd, OwnedFd) {
    pair().expect("a socket pair")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn bytes_and_descriptors_arrive_together() {
        let (a, b) = both_ends();
        send(a.as_fd(), &[b"he", b"llo"], &[a.as_fd(), b.as_fd()]).unwrap();
        let mut buffer = [0; 16];
        let packet = receive(b.as_fd(), &mut buffer).unwrap().unwrap();
        assert_eq!(&buffer[..packet.len], b"hello");
        assert_eq!(packet.fds.len(), 2);
        // Close-on-exec, so that no program started by the daemon inherits it.
        // SAFETY: a plain system call on an open descriptor.
        let flags = unsafe { libc::fcntl(packet.fds[0].as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }

    #[test]
    fn a_packet_larger_than_the_buffer_is_an_error() {
        let (a, b) = both_ends();
        send(a.as_fd(), &[&[1; 17]], &[]).unwrap();
        let error = receive(b.as_fd(), &mut [0; 16]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn more_descriptors_than_allowed_are_refused_on_both_ends() {
        let (a, b) = both_ends();
        let five = [a.as_fd(); MAX_FDS + 1];
        assert!(send(a.as_fd(), &[b"x"], &five).is_err());
        assert!(send(a.as_fd(), &[b"x"], &five[..MAX_FDS]).is_ok());
        assert_eq!(
            receive(b.as_fd(), &mut [0; 8]).unwrap().unwrap().fds.len(),
            MAX_FDS
        );
    }

    #[test]
    fn the_end_of_the_connection_is_seen() {
        let (a, b) = both_ends();
        drop(a);
        assert!(receive(b.as_fd(), &mut [0; 8]).unwrap().is_none());
    }

    #[test]
    fn overlong_paths_have_no_address() {
        assert!(address(Path::new("/run/roceline.sock")).is_some());
        assert!(address(Path::new(&"x".repeat(108))).is_none());
        assert!(address(Path::new("")).is_none());
    }
}
