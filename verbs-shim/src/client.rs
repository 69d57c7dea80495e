//! One request and its reply on the control socket (`roceline_abi::control`). Buffers are the caller's.

use std::ffi::c_int;
use std::mem::MaybeUninit;

use libc::{iovec, msghdr};
use roceline_abi::PROTOCOL_VERSION;
use roceline_abi::control::{Kind, MAGIC, Plain, ReplyHeader, RequestHeader};

use crate::sys;

/// Fds that one reply may bring.
const MAX_FDS: usize = 2;

/// Room for the control message of `MAX_FDS` fds, aligned as `cmsghdr` must be.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// A reply: the header, and the fds that came along.
#[derive(Debug)]
pub struct Reply {
    /// Its header.
    pub header: ReplyHeader,
    /// Bytes of payload that were stored.
    pub len: usize,
    fds: [c_int; MAX_FDS],
}

impl Reply {
    /// Takes the next fd that came along, in order.
    pub fn take_fd(&mut self) -> Option<c_int> {
        let fd = self.fds.iter_mut().find(|fd| **fd >= 0)?;
        Some(std::mem::replace(fd, -1))
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        while let Some(fd) = self.take_fd() {
            sys::close(fd);
        }
    }
}

/// Why there is no reply.
#[derive(Clone, Copy, Debug)]
pub enum Broken {
    /// The connection ended.
    Gone,
    /// What came is no reply.
    Garbled,
    /// The program has no room for the fd that came.
    NoRoomForFd,
}

/// Sends `kind` with `payload` (up to three pieces) and perhaps an fd; stores the reply's payload in `into`.
///
/// The caller holds the context's lock: requests are never pipelined.
pub fn exchange(
    socket: c_int,
    kind: Kind,
    payload: [&[u8]; 3],
    fd: Option<c_int>,
    into: &mut [u8],
) -> Result<Reply, Broken> {
    let len: usize = payload.iter().map(|p| p.len()).sum();
    let header = RequestHeader {
        magic: MAGIC,
        version: u32::from(PROTOCOL_VERSION),
        kind: kind as u32,
        len: len as u32,
    };
    let sent = send(socket, &header, payload, fd);
    // A daemon that takes no more connections says so and ends this one: the request finds nobody, and the answer is there.
    match sent {
        Err(broken) if !matches!(sys::errno(), libc::EPIPE | libc::ECONNRESET) => Err(broken),
        _ => receive(socket, into),
    }
}

fn send(
    socket: c_int,
    header: &RequestHeader,
    payload: [&[u8]; 3],
    fd: Option<c_int>,
) -> Result<(), Broken> {
    let [a, b, c] = payload;
    let mut iov = [
        sys::iov(header.as_bytes()),
        sys::iov(a),
        sys::iov(b),
        sys::iov(c),
    ];
    let mut control = Control([0; 64]);
    let mut message = message(&mut iov);
    if let Some(fd) = fd {
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: the macros compute sizes; the buffer is aligned and longer than a message of one fd.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(size_of::<c_int>() as u32) as usize;
            let cmsg = libc::CMSG_FIRSTHDR(&message);
            (*cmsg).cmsg_level = libc::SOL_SOCKET;
            (*cmsg).cmsg_type = libc::SCM_RIGHTS;
            (*cmsg).cmsg_len = libc::CMSG_LEN(size_of::<c_int>() as u32) as usize;
            libc::CMSG_DATA(cmsg).cast::<c_int>().write_unaligned(fd);
        }
    }
    // SAFETY: the message points to live buffers.
    let sent = unsafe { sys::sendmsg(socket, &message) };
    if sent < 0 { Err(Broken::Gone) } else { Ok(()) }
}

fn receive(socket: c_int, into: &mut [u8]) -> Result<Reply, Broken> {
    let mut header = ReplyHeader::default();
    let header_iov = iovec {
        iov_base: std::ptr::from_mut(&mut header).cast(),
        iov_len: size_of::<ReplyHeader>(),
    };
    let mut iov = [
        header_iov,
        iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: into.len(),
        },
    ];
    let mut control = Control([0; 64]);
    let mut message = message(&mut iov);
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>();
    // SAFETY: the message points to live buffers.
    let mut n = unsafe { sys::recvmsg(socket, &mut message) };
    if n < 0 && sys::errno() == libc::ECONNRESET {
        // Said once, before what came: the other end ended without having read all of ours.
        // SAFETY: as above; a failed call leaves the message as it is.
        n = unsafe { sys::recvmsg(socket, &mut message) };
    }
    let mut reply = Reply {
        header,
        len: 0,
        fds: [-1; MAX_FDS],
    };
    if n > 0 {
        // SAFETY: the kernel filled the control buffer in.
        unsafe { collect_fds(&message, &mut reply.fds) };
    }
    if n <= 0 {
        return Err(Broken::Gone);
    }
    let payload = (n as usize)
        .checked_sub(size_of::<ReplyHeader>())
        .ok_or(Broken::Garbled)?;
    if header.magic != MAGIC {
        return Err(Broken::Garbled);
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(Broken::NoRoomForFd);
    }
    reply.len = payload.min(header.len as usize);
    Ok(reply)
}

fn message(iov: &mut [iovec]) -> msghdr {
    // SAFETY: zeroes are a valid msghdr.
    let mut message: msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = iov.len();
    message
}

/// Collects passed fds; closes those beyond the array.
///
/// # Safety
/// `message` was filled in by recvmsg.
unsafe fn collect_fds(message: &msghdr, fds: &mut [c_int; MAX_FDS]) {
    let mut count = 0;
    // SAFETY: the macros walk the control buffer by the lengths that the kernel wrote.
    unsafe {
        let mut cmsg = libc::CMSG_FIRSTHDR(message);
        while !cmsg.is_null() {
            if (*cmsg).cmsg_level == libc::SOL_SOCKET && (*cmsg).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*cmsg).cmsg_len - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(cmsg).cast::<c_int>();
                for i in 0..bytes / size_of::<c_int>() {
                    let fd = data.add(i).read_unaligned();
                    match fds.get_mut(count) {
                        Some(slot) => *slot = fd,
                        None => {
                            sys::close(fd);
                        }
                    }
                    count += 1;
                }
            }
            cmsg = libc::CMSG_NXTHDR(message, cmsg);
        }
    }
}
