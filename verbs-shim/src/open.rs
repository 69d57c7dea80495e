//! `open("/dev/infiniband/uverbsN")`: a connection to the daemon, its files, and where they are kept.

use std::ffi::{CStr, c_int};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use roceline_abi::PROTOCOL_VERSION;
use roceline_abi::control::{Kind, NAME_BYTES, OpenDevice, OpenReply, Plain};

use crate::client;
use crate::context::{Context, Parts};
use crate::say::{say, say_once, text};
use crate::sys::{self, fail};
use crate::{fork, memory, view};

/// Names this program to the daemon.
static PROGRAM: AtomicU64 = AtomicU64::new(0);
/// Why the last open failed; 0 after a success.
static FAILURE: AtomicI32 = AtomicI32::new(0);

/// An fd that is closed unless it is taken.
pub struct Fd(pub c_int);

impl Fd {
    /// What a system call gave: the fd, or `errno`.
    pub fn new(fd: c_int) -> Result<Fd, c_int> {
        if fd < 0 {
            Err(sys::errno())
        } else {
            Ok(Fd(fd))
        }
    }

    /// The fd, from now on the caller's.
    pub fn take(mut self) -> c_int {
        std::mem::replace(&mut self.0, -1)
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if self.0 >= 0 {
            sys::close(self.0);
        }
    }
}

/// Opens device `n`: a `cmd_fd`, or -1 and `errno`.
#[cold]
pub fn open(n: u32, flags: c_int) -> c_int {
    let errno = sys::errno();
    match connect_and_open(n) {
        Ok(fd) => {
            FAILURE.store(0, Ordering::Relaxed);
            if flags & libc::O_CLOEXEC == 0 {
                sys::keep_on_exec(fd);
            }
            sys::set_errno(errno);
            fd
        }
        Err(errno) => {
            FAILURE.store(errno, Ordering::Relaxed);
            fail(errno)
        }
    }
}

/// Why the last open failed, if it did.
pub fn failure() -> Option<c_int> {
    Some(FAILURE.load(Ordering::Relaxed)).filter(|e| *e != 0)
}

/// In the child of a fork: another program to the daemon.
pub fn forget_program() {
    PROGRAM.store(0, Ordering::Relaxed);
}

fn program() -> u64 {
    let new = sys::random();
    match PROGRAM.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => new,
        Err(old) => old,
    }
}

fn connect_and_open(n: u32) -> Result<c_int, c_int> {
    let mut device = [0u8; NAME_BYTES];
    // No such file is what a missing device node gives.
    view::device_name(n, &mut device).ok_or(libc::ENOENT)?;
    let socket = connect()?;
    let mem = Fd::new(sys::open(c"/proc/self/mem", libc::O_RDWR)).inspect_err(|errno| {
        static SAID: AtomicBool = AtomicBool::new(false);
        say_once(
            &SAID,
            format_args!(
                "cannot open /proc/self/mem (errno {errno}), by which the NIC reaches registered memory: \
                 the process must be dumpable and /proc mounted"
            ),
        );
    })?;
    let request = OpenDevice {
        device,
        program: program(),
        pid: sys::getpid(),
        reserved: 0,
    };
    // Of a refusal, the reason.
    let mut answer = [0u8; 512];
    let payload: [&[u8]; 3] = [request.as_bytes(), &[], &[]];
    let kind = Kind::OpenDevice;
    let mut reply =
        client::exchange(socket.0, kind, payload, Some(mem.0), &mut answer).map_err(|e| {
            match e {
                client::Broken::Gone => say(format_args!(
                    "the daemon ended the connection instead of opening uverbs{n}: it stops, or was stopped"
                )),
                _ => say(format_args!(
                    "the daemon did not answer the open of uverbs{n}: {e:?}"
                )),
            }
            match e {
                client::Broken::NoRoomForFd => libc::EMFILE,
                client::Broken::Gone | client::Broken::Garbled => libc::EIO,
            }
        })?;
    drop(mem);
    if reply.header.version != u32::from(PROTOCOL_VERSION) {
        say(format_args!(
            "the daemon speaks protocol version {} and this library (libroceline_shim.so) version {PROTOCOL_VERSION}: \
             install both from one build and restart the daemon",
            reply.header.version
        ));
        return Err(libc::EPROTO);
    }
    if reply.header.error != 0 {
        let name = CStr::from_bytes_until_nul(&device).unwrap_or_default();
        say(format_args!(
            "the daemon refuses to open {} (errno {}): {}",
            text(name.to_bytes()),
            reply.header.error,
            text(&answer[..reply.len.min(answer.len())])
        ));
        return Err(reply.header.error);
    }
    let opened = OpenReply::from_bytes(&answer[..reply.len]).ok_or(libc::EIO)?;
    let file = Fd::new(reply.take_fd().ok_or(libc::EIO)?)?;
    let wake = Fd::new(hide(reply.take_fd().ok_or(libc::EIO)?))?;
    // The file gets the lowest free number, as it would from open.
    let file = match sys::dup_above(file.0, 0) {
        lower if lower >= 0 && lower < file.0 => Fd(lower),
        higher => {
            if higher >= 0 {
                sys::close(higher);
            }
            file
        }
    };
    fork::watch();
    Context::create(&Parts {
        file: file.0,
        socket: socket.0,
        wake: wake.0,
        device: n,
        slots: opened.lcore_slots,
        memory: memory::effective(opened.memory),
    })?;
    let _ = (socket.take(), wake.take());
    Ok(file.take())
}

/// Bytes of the longest path of a Unix socket (unix(7)), without the NUL.
const LONGEST: usize = 107;

/// A path as the address of a socket; none if it is too long.
fn address(path: &CStr) -> Option<libc::sockaddr_un> {
    // SAFETY: zeroes are a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.to_bytes();
    if bytes.len() > LONGEST {
        return None;
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Some(address)
}

/// Whether nobody listens at a socket any more. Asked with a socket of another kind, so that nobody who does listen has a
/// connection of it (`EPROTOTYPE`).
pub fn is_stale(path: &CStr) -> bool {
    let Some(address) = address(path) else {
        return false;
    };
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    let Ok(probe) = Fd::new(sys::socket(libc::AF_UNIX, kind, 0)) else {
        return false;
    };
    sys::connect(probe.0, &address) != 0 && sys::errno() == libc::ECONNREFUSED
}

/// A connection to the daemon, hidden from the program.
pub fn connect() -> Result<Fd, c_int> {
    let path = view::socket().ok_or(libc::ENAMETOOLONG)?;
    let bytes = path.to_bytes();
    let Some(address) = address(path) else {
        say(format_args!(
            "the socket path {} has {} bytes, and a Unix socket's may have {LONGEST}: choose a shorter one",
            text(bytes),
            bytes.len(),
        ));
        return Err(libc::ENAMETOOLONG);
    };
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    let socket = Fd::new(hide(Fd::new(sys::socket(libc::AF_UNIX, kind, 0))?.take()))?;
    while sys::connect(socket.0, &address) != 0 {
        match sys::errno() {
            libc::EINTR => {}
            libc::ENOENT | libc::ECONNREFUSED => {
                view::say_no_daemon();
                return Err(libc::ENODEV);
            }
            errno => {
                say(format_args!(
                    "cannot connect to the daemon at {}: errno {errno}",
                    text(bytes)
                ));
                return Err(errno);
            }
        }
    }
    Ok(socket)
}

/// Moves an fd out of the way: to a high number, close-on-exec. Where that fails it stays where it is.
pub fn hide(fd: c_int) -> c_int {
    // High enough that programs do not meet it, low enough that the kernel's fd table stays small.
    let floor = sys::file_limit().min(4096).saturating_sub(512);
    let moved = sys::dup_above(fd, floor as c_int);
    if moved < 0 {
        return fd;
    }
    sys::close(fd);
    moved
}
