//! A stub of the daemon for the tests of the shim alone: a device tree, a control socket, and answers to a handful of
//! commands. It knows nothing of RDMA.

#![allow(dead_code)]

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use roceline_abi::PROTOCOL_VERSION;
use roceline_abi::control::{
    Kind, MAGIC, MAX_PAYLOAD, MemoryPolicy, NO_FD, OpenDevice, OpenReply, Plain, ReplyHeader,
    RequestHeader,
};
use roceline_abi::layout::FILE_BYTES;

/// A directory that goes with the value.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> Scratch {
        let dir = std::env::temp_dir().join(format!("roceline-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a scratch directory");
        Scratch(dir)
    }

    pub fn socket(&self) -> PathBuf {
        self.0.join("r.sock")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The library as built for this test: beside it. The copy one folder up is that of the last `cargo build`.
pub fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("our own path");
    let path = exe.with_file_name("libroceline_shim.so");
    assert!(path.exists(), "{} is not built", path.display());
    path
}

/// Compiles a C program of the tests folder.
pub fn compile(scratch: &Scratch, name: &str, sources: &[&str], libraries: &[&str]) -> PathBuf {
    let out = scratch.0.join(name);
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let status = Command::new("cc")
        .args(["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&out)
        .args(sources.iter().map(|s| here.join(s)))
        .args(libraries)
        .status()
        .expect("cc");
    assert!(status.success(), "cc failed");
    out
}

/// A program under the shim.
pub fn shimmed(program: impl AsRef<std::ffi::OsStr>, socket: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", library())
        .env("ROCELINE_SOCKET", socket)
        .env_remove("ROCELINE_DEVICE")
        .env_remove("ROCELINE_DEBUG");
    command
}

pub fn text(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// The smallest tree that a program can find one device in.
pub fn write_tree(socket: &Path) {
    let mut root = socket.as_os_str().to_owned();
    root.push(".d/all");
    let root = PathBuf::from(root);
    let put = |path: &str, content: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, content).expect("a file");
    };
    put("sys/class/infiniband_verbs/abi_version", "6\n");
    put("sys/class/infiniband_verbs/uverbs0/ibdev", "roce0\n");
    put("sys/class/infiniband_verbs/uverbs0/dev", "231:192\n");
    put("sys/class/infiniband_verbs/uverbs0/abi_version", "2\n");
    put("sys/class/infiniband/roce0/node_type", "1: CA\n");
    put(
        "sys/class/infiniband/roce0/node_guid",
        "0200:00ff:fe00:0001\n",
    );
    put(
        "sys/class/infiniband/roce0/device/modalias",
        "rdma_device:Nrxe\n",
    );
    put("sys/class/infiniband/roce0/ports/1/state", "4: ACTIVE\n");
    put("sys/class/infiniband/roce0/ecn/roce_rp/rpg_ai_rate", "5\n");
    put("sys/class/infiniband/roce0/cc_params/rp_max_rate", "0\n");
    fs::create_dir_all(root.join("sys/class/net/roce0")).expect("a directory");
    let ecn = root.join("sys/class/net/roce0/ecn");
    let _ = std::os::unix::fs::symlink("../../infiniband/roce0/ecn", ecn);
    put("dev/infiniband/uverbs0", "");
}

/// Adds device `n` to the tree, which has the first.
pub fn add_device(socket: &Path, n: u32) {
    let mut root = socket.as_os_str().to_owned();
    root.push(".d/all");
    let root = PathBuf::from(root);
    let put = |path: String, content: String| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, content).expect("a file");
    };
    let verbs = |file: &str| format!("sys/class/infiniband_verbs/uverbs{n}/{file}");
    put(verbs("ibdev"), format!("roce{n}\n"));
    put(verbs("dev"), format!("231:{}\n", 192 + n));
    put(verbs("abi_version"), "2\n".into());
    let device = |file: &str| format!("sys/class/infiniband/roce{n}/{file}");
    put(device("node_type"), "1: CA\n".into());
    put(device("node_guid"), format!("0200:00ff:fe00:{n:04x}\n"));
    put(device("device/modalias"), "rdma_device:Nrxe\n".into());
    put(format!("dev/infiniband/uverbs{n}"), String::new());
}

/// What the stub saw.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen {
    Opened {
        device: String,
        program: u64,
        has_memory: bool,
    },
    Closed,
    /// A write to a file of a device, not one that only asks whether there may be one.
    Attribute {
        path: String,
        text: String,
    },
}

/// How the stub misbehaves.
#[derive(Clone, Copy, Default)]
pub struct Manner {
    /// Added to the protocol version.
    pub version_skew: u32,
    /// errno of every open.
    pub open_error: i32,
}

pub struct Stub {
    pub seen: Receiver<Seen>,
}

impl Stub {
    /// Listens at `socket`; its threads end with the test process.
    pub fn start(socket: &Path, manner: Manner) -> Stub {
        write_tree(socket);
        let listener = listen(socket).expect("a listening socket");
        let (tell, seen) = channel();
        thread::spawn(move || {
            loop {
                // SAFETY: no addresses are asked for.
                let fd = unsafe {
                    let flags = libc::SOCK_CLOEXEC;
                    libc::accept4(
                        listener.as_raw_fd(),
                        std::ptr::null_mut(),
                        std::ptr::null_mut(),
                        flags,
                    )
                };
                assert!(fd >= 0, "accept: {}", io::Error::last_os_error());
                // SAFETY: new and ours.
                let connection = unsafe { OwnedFd::from_raw_fd(fd) };
                let tell = tell.clone();
                thread::spawn(move || Session::new(connection, manner, tell).serve());
            }
        });
        Stub { seen }
    }

    /// The next thing seen, which must come soon.
    pub fn next(&self) -> Seen {
        self.seen
            .recv_timeout(Duration::from_secs(20))
            .expect("something to be seen")
    }
}

fn listen(path: &Path) -> io::Result<OwnedFd> {
    // SAFETY: plain system calls on an address that lives.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        let fd = OwnedFd::from_raw_fd(fd);
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let bytes = path.as_os_str().as_encoded_bytes();
        for (to, from) in address.sun_path.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        let len = size_of::<libc::sockaddr_un>() as u32;
        if libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) != 0
            || libc::listen(fd.as_raw_fd(), 64) != 0
        {
            return Err(io::Error::last_os_error());
        }
        Ok(fd)
    }
}

#[derive(Default)]
struct Answer {
    error: i32,
    payload: Vec<u8>,
    fd_at: Option<u32>,
    fds: Vec<RawFd>,
}

fn error(errno: i32) -> Answer {
    Answer {
        error: errno,
        payload: b"the reason".to_vec(),
        ..Answer::default()
    }
}

struct Session {
    connection: OwnedFd,
    manner: Manner,
    tell: Sender<Seen>,
    wake: Option<OwnedFd>,
    pipes: Vec<OwnedFd>,
    closed_channels: HashMap<u32, u32>,
}

impl Session {
    fn new(connection: OwnedFd, manner: Manner, tell: Sender<Seen>) -> Session {
        Session {
            connection,
            manner,
            tell,
            wake: None,
            pipes: Vec::new(),
            closed_channels: HashMap::new(),
        }
    }

    fn serve(mut self) {
        while let Some((header, payload, fds)) = self.receive() {
            assert_eq!(header.magic, MAGIC);
            assert_eq!(header.version, u32::from(PROTOCOL_VERSION));
            assert_eq!(header.len as usize, payload.len());
            let answer = match Kind::from_u32(header.kind) {
                Some(Kind::OpenDevice) => self.open(&payload, fds),
                Some(Kind::Uverbs) => match self.uverbs(&payload) {
                    Some(answer) => answer,
                    None => break,
                },
                Some(Kind::CloseChannel) => {
                    let handle = u32::from_ne_bytes(payload[..4].try_into().expect("a handle"));
                    *self.closed_channels.entry(handle).or_default() += 1;
                    Answer::default()
                }
                Some(Kind::Attribute) => self.attribute(&payload),
                _ => error(libc::ENOSYS),
            };
            self.send(&answer);
            for fd in answer.fds {
                // SAFETY: ours, and passed by now.
                drop(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
        let _ = self.tell.send(Seen::Closed);
    }

    fn open(&mut self, payload: &[u8], fds: Vec<OwnedFd>) -> Answer {
        let request = OpenDevice::from_bytes(payload).expect("an OpenDevice");
        let device = String::from_utf8_lossy(&request.device);
        let seen = Seen::Opened {
            device: device.trim_end_matches('\0').to_owned(),
            program: request.program,
            has_memory: fds.len() == 1,
        };
        self.tell.send(seen).expect("somebody listens");
        if self.manner.open_error != 0 {
            return error(self.manner.open_error);
        }
        // SAFETY: plain system calls.
        let (file, wake) = unsafe {
            let file = libc::memfd_create(c"context".as_ptr(), libc::MFD_CLOEXEC);
            assert_eq!(libc::ftruncate(file, FILE_BYTES as libc::off_t), 0);
            (
                file,
                libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK),
            )
        };
        // SAFETY: a duplicate of our own.
        self.wake = Some(unsafe { OwnedFd::from_raw_fd(libc::dup(wake)) });
        let reply = OpenReply {
            // Nothing is mapped: a stub has no lcore.
            memory: MemoryPolicy::Never as u32,
            reserved: 0,
            file_bytes: FILE_BYTES,
            device_index: 0,
            lcore_slots: 2,
        };
        Answer {
            payload: reply.as_bytes().to_vec(),
            fds: vec![file, wake],
            ..Answer::default()
        }
    }

    /// Takes numbers, and for `rp_max_rate` nothing.
    fn attribute(&mut self, payload: &[u8]) -> Answer {
        let payload = String::from_utf8_lossy(payload);
        let (path, text) = payload.split_once('\0').expect("a path and a text");
        if path.ends_with("rp_max_rate") {
            return error(libc::EPERM);
        }
        if text.is_empty() {
            return Answer::default();
        }
        let seen = Seen::Attribute {
            path: path.into(),
            text: text.into(),
        };
        self.tell.send(seen).expect("somebody listens");
        match text.trim().parse::<u32>() {
            Ok(_) => Answer::default(),
            Err(_) => error(libc::EINVAL),
        }
    }

    /// `None` is to hang up.
    fn uverbs(&mut self, bytes: &[u8]) -> Option<Answer> {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("a word"));
        let number = |n: u32| Answer {
            payload: [n, 0, 0, 0].map(u32::to_ne_bytes).concat(),
            ..Answer::default()
        };
        Some(match word(0) & 0xffff {
            // CREATE_COMP_CHANNEL: a pipe, and 7 as the channel's handle.
            17 => {
                let mut ends = [0; 2];
                // SAFETY: room for two fds.
                let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
                assert_eq!(made, 0);
                // SAFETY: new and ours.
                self.pipes.push(unsafe { OwnedFd::from_raw_fd(ends[1]) });
                Answer {
                    payload: 7u32.to_ne_bytes().to_vec(),
                    fd_at: Some(0),
                    fds: vec![ends[0]],
                    ..Answer::default()
                }
            }
            // CREATE_CQ: what it saw as channel.
            18 => number(word(32)),
            40 => Answer {
                payload: bytes.to_vec(),
                ..Answer::default()
            },
            41 => number(self.closed_channels.get(&7).copied().unwrap_or(0)),
            42 => return None,
            // The count of the wake eventfd.
            43 => {
                let mut count = 0u64;
                let wake = self.wake.as_ref().expect("an open context").as_raw_fd();
                // SAFETY: eight bytes.
                unsafe { libc::read(wake, (&raw mut count).cast(), 8) };
                number(count as u32)
            }
            _ => error(libc::EOPNOTSUPP),
        })
    }

    fn receive(&self) -> Option<(RequestHeader, Vec<u8>, Vec<OwnedFd>)> {
        let mut bytes = vec![0u8; size_of::<RequestHeader>() + MAX_PAYLOAD];
        let mut control = [0u64; 8];
        // SAFETY: the message points to live buffers; the macros walk what the kernel wrote.
        unsafe {
            let mut iov = libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len(),
            };
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &mut iov;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = size_of_val(&control);
            let fd = self.connection.as_raw_fd();
            let n = libc::recvmsg(fd, &mut message, libc::MSG_CMSG_CLOEXEC);
            if n <= 0 {
                return None;
            }
            bytes.truncate(n as usize);
            let mut fds = Vec::new();
            let cmsg = libc::CMSG_FIRSTHDR(&message);
            if !cmsg.is_null() {
                let count = ((*cmsg).cmsg_len - libc::CMSG_LEN(0) as usize) / 4;
                let data = libc::CMSG_DATA(cmsg).cast::<RawFd>();
                for i in 0..count {
                    fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                }
            }
            let header = RequestHeader::from_bytes(&bytes).expect("a header");
            Some((header, bytes.split_off(size_of::<RequestHeader>()), fds))
        }
    }

    fn send(&self, answer: &Answer) {
        let header = ReplyHeader {
            magic: MAGIC,
            version: u32::from(PROTOCOL_VERSION) + self.manner.version_skew,
            error: answer.error,
            flags: 0,
            fd_at: answer.fd_at.unwrap_or(NO_FD),
            len: answer.payload.len() as u32,
        };
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(&answer.payload);
        let mut control = [0u64; 8];
        // SAFETY: as for `receive`.
        unsafe {
            let mut iov = libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: bytes.len(),
            };
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &mut iov;
            message.msg_iovlen = 1;
            if !answer.fds.is_empty() {
                let len = (4 * answer.fds.len()) as u32;
                message.msg_control = control.as_mut_ptr().cast();
                message.msg_controllen = libc::CMSG_SPACE(len) as usize;
                let cmsg = libc::CMSG_FIRSTHDR(&message);
                (*cmsg).cmsg_level = libc::SOL_SOCKET;
                (*cmsg).cmsg_type = libc::SCM_RIGHTS;
                (*cmsg).cmsg_len = libc::CMSG_LEN(len) as usize;
                let data = libc::CMSG_DATA(cmsg).cast::<RawFd>();
                for (i, fd) in answer.fds.iter().enumerate() {
                    data.add(i).write_unaligned(*fd);
                }
            }
            let n = libc::sendmsg(self.connection.as_raw_fd(), &message, libc::MSG_NOSIGNAL);
            assert_eq!(n, bytes.len() as isize, "{}", io::Error::last_os_error());
        }
    }
}
