//! The memory of a program as the control thread sees it: is the descriptor what it claims to be, and is a range
//! fit to be registered?
//!
//! The descriptor is the program's own `/proc/self/mem`. It names an address space, not a PID: after `exec` or
//! exit it reads nothing, so it can never reach a stranger.
//!
//! Hardware pins every page of a region, so a hole, or a read-only page where local write is asked for, fails the
//! registration with EFAULT. Here nothing is pinned and `/proc/PID/mem` ignores protection, so both are checked
//! at registration:
//!
//! * where `/proc/PID/maps` of the peer can be read (same user, or root), each mapping of the range is looked at;
//!   memory that is unmapped or made read-only *later* is not noticed until it is used;
//! * where it cannot, one byte in each of at most [`MAX_PROBES`] pages is read: a hole between them comes out as
//!   an access error when it is used, and protection goes unchecked.
//!
//! The maps of a wrong process could at worst refuse or admit a range wrongly, for the program's own memory: what
//! is read and written always goes through the descriptor.

use std::ffi::CStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use super::error::CommandError;

const PAGE: u64 = 4096;
/// Pages probed where maps cannot be read: about a millisecond.
const MAX_PROBES: u64 = 1024;
/// `PROC_SUPER_MAGIC` of `statfs(2)`.
const PROC_SUPER_MAGIC: i64 = 0x9fa0;

/// An address space.
#[derive(Debug)]
pub struct ProgramMemory {
    mem: OwnedFd,
    /// `/proc/PID` of the peer. It stays with the process: when that ends, it opens nothing any more.
    process: Option<OwnedFd>,
}

impl ProgramMemory {
    /// Takes over the descriptor that a program has passed, if it is a `/proc/PID/mem` opened for both ways.
    /// `peer` is the process that connected, as the kernel names it; 0 if it cannot.
    pub fn adopt(mem: OwnedFd, peer: i32) -> Result<ProgramMemory, CommandError> {
        let target = identify(mem.as_fd())?;
        let process = open_process(peer).filter(|dir| is_process(dir, target));
        Ok(ProgramMemory { mem, process })
    }

    /// The descriptor, for the owner of the context.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.mem.try_clone()
    }

    /// Whether `len` bytes at `addr` may become a region, written to by the NIC if `write`.
    pub fn check(&self, addr: u64, len: u64, write: bool) -> Result<(), CommandError> {
        let end = addr
            .checked_add(len)
            .filter(|end| len > 0 && *end <= u64::MAX - PAGE)
            .ok_or(CommandError::Range { addr, len })?;
        let maps = self
            .process
            .as_ref()
            .and_then(|dir| open_at(dir.as_fd(), c"maps").ok());
        let probes = match maps {
            Some(maps) => {
                covered(BufReader::new(maps), addr, end, write)?;
                2
            }
            None => MAX_PROBES,
        };
        let first = addr / PAGE;
        let pages = (end - 1) / PAGE - first + 1;
        for i in 0..probes.min(pages) {
            // Spread over the range; the first is the first page, the last the last.
            let page = match probes.min(pages) {
                1 => first,
                n => first + (u128::from(pages - 1) * u128::from(i) / u128::from(n - 1)) as u64,
            };
            let at = (page * PAGE).max(addr);
            if !self.readable(at) {
                return Err(CommandError::Unmapped { addr, len, at });
            }
        }
        Ok(())
    }

    /// Whether the process has `CAP_NET_RAW` for what is the daemon's: in effect, and in the daemon's own user namespace, since
    /// everybody has all capabilities in one that they make (user_namespaces(7)). False if either cannot be known.
    pub fn has_net_raw(&self) -> bool {
        let Some(dir) = &self.process else {
            return false;
        };
        let mut status = String::new();
        let read = open_at(dir.as_fd(), c"status").and_then(|mut f| f.read_to_string(&mut status));
        // The namespace after the capabilities: who leaves ours in between does not come back.
        read.is_ok() && says_net_raw(&status) && shares_user_namespace(dir)
    }

    /// Writes a few bytes that a command promises to write to an address of the program. It may wait for a page as long as
    /// the program lets it.
    pub fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), CommandError> {
        let at = libc::off64_t::try_from(addr).map_err(|_| CommandError::Address(addr))?;
        loop {
            // SAFETY: reads initialised bytes.
            let n = unsafe {
                libc::pwrite64(self.mem.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), at)
            };
            if n < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                continue;
            }
            // Less than all means that the rest is not mapped.
            return if n == bytes.len() as isize {
                Ok(())
            } else {
                Err(CommandError::Address(addr))
            };
        }
    }

    fn readable(&self, at: u64) -> bool {
        let mut byte = 0u8;
        loop {
            // SAFETY: writes at most one byte, to `byte`.
            let n = unsafe {
                libc::pread64(
                    self.mem.as_raw_fd(),
                    (&raw mut byte).cast(),
                    1,
                    at as libc::off64_t,
                )
            };
            if n < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return n == 1;
        }
    }
}

/// The PID in the descriptor's name, if it is a `/proc/PID/mem` open for reading and writing. The name is in
/// the PID namespace of the `/proc` that the program sees.
fn identify(mem: BorrowedFd<'_>) -> Result<i32, CommandError> {
    let refuse = |why: String| CommandError::MemoryFd(why);
    let system = |what| CommandError::System {
        what,
        source: io::Error::last_os_error(),
    };
    // SAFETY: statfs is valid when all zero.
    let mut fs: libc::statfs64 = unsafe { std::mem::zeroed() };
    // SAFETY: writes one statfs64.
    if unsafe { libc::fstatfs64(mem.as_raw_fd(), &mut fs) } != 0 {
        return Err(system("fstatfs of the program's memory"));
    }
    // SAFETY: a plain system call.
    let flags = unsafe { libc::fcntl(mem.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 {
        return Err(system("flags of the program's memory"));
    }
    let name =
        std::fs::read_link(format!("/proc/self/fd/{}", mem.as_raw_fd())).map_err(|source| {
            CommandError::System {
                what: "name of the program's memory",
                source,
            }
        })?;
    let name = name.to_string_lossy();
    if fs.f_type as i64 != PROC_SUPER_MAGIC {
        return Err(refuse(format!("{name} is not in a proc file system")));
    }
    if flags & libc::O_ACCMODE != libc::O_RDWR || flags & libc::O_PATH != 0 {
        return Err(refuse(format!(
            "{name} is not open for reading and writing"
        )));
    }
    // `/proc/12/mem`, or `/proc/12/task/12/mem`.
    let mut parts = name.rsplit('/');
    match (parts.next(), parts.next().and_then(|p| p.parse().ok())) {
        (Some("mem"), Some(pid)) => Ok(pid),
        _ => Err(refuse(format!("{name} is not /proc/PID/mem"))),
    }
}

/// `/proc/pid`, held open.
fn open_process(pid: i32) -> Option<OwnedFd> {
    if pid <= 0 {
        return None;
    }
    let dir = File::open(format!("/proc/{pid}")).ok()?;
    Some(dir.into())
}

/// Whether `/proc/PID/status` says that its process has `CAP_NET_RAW` in effect (proc(5), capabilities(7)).
fn says_net_raw(status: &str) -> bool {
    const CAP_NET_RAW: u32 = 13;
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 << CAP_NET_RAW != 0)
}

/// Whether the process is in our user namespace.
fn shares_user_namespace(dir: &OwnedFd) -> bool {
    let of = |file: File| file.metadata().map(|m| (m.dev(), m.ino()));
    let theirs = open_at(dir.as_fd(), c"ns/user").and_then(of);
    let ours = File::open("/proc/self/ns/user").and_then(of);
    matches!((theirs, ours), (Ok(theirs), Ok(ours)) if theirs == ours)
}

/// Whether the process has the number `pid` in its own or in an enclosing PID namespace.
fn is_process(dir: &OwnedFd, pid: i32) -> bool {
    let mut status = String::new();
    let read = open_at(dir.as_fd(), c"status").and_then(|mut f| f.read_to_string(&mut status));
    read.is_ok()
        && status
            .lines()
            .filter_map(|line| line.strip_prefix("NSpid:"))
            .flat_map(str::split_whitespace)
            .any(|n| n.parse() == Ok(pid))
}

fn open_at(dir: BorrowedFd<'_>, name: &CStr) -> io::Result<File> {
    // SAFETY: the name is NUL-terminated.
    let fd = unsafe {
        libc::openat(
            dir.as_raw_fd(),
            name.as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and ours.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Reads `maps` (`proc_pid_maps(5)`: ascending, `start-end perms ...`) until `addr..end` is covered.
fn covered(maps: impl BufRead, addr: u64, end: u64, write: bool) -> Result<(), CommandError> {
    let len = end - addr;
    let mut at = addr;
    for line in maps.split(b'\n') {
        let line = line.map_err(|source| CommandError::System {
            what: "reading the program's maps",
            source,
        })?;
        let Some((from, to, perms)) = parse_mapping(&line) else {
            continue;
        };
        if to <= at {
            continue;
        }
        if from > at {
            break;
        }
        if !perms.starts_with('r') || (write && perms.as_bytes().get(1) != Some(&b'w')) {
            return Err(CommandError::Protection {
                addr,
                len,
                at,
                perms: perms.to_string(),
            });
        }
        at = to;
        if at >= end {
            return Ok(());
        }
    }
    Err(CommandError::Unmapped { addr, len, at })
}

fn parse_mapping(line: &[u8]) -> Option<(u64, u64, &str)> {
    // Only the path may be other than ASCII.
    let head = &line[..line.len().min(64)];
    let head = head.split(|b| *b == b' ').take(2).collect::<Vec<_>>();
    let (range, perms) = (std::str::from_utf8(head.first()?).ok()?, head.get(1)?);
    let (from, to) = range.split_once('-')?;
    let from = u64::from_str_radix(from, 16).ok()?;
    let to = u64::from_str_radix(to, 16).ok()?;
    Some((from, to, std::str::from_utf8(perms).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;
    use std::process::{Command, Stdio};

    fn own_memory() -> OwnedFd {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open("/proc/self/mem")
            .unwrap()
            .into()
    }

    fn own() -> ProgramMemory {
        ProgramMemory::adopt(own_memory(), std::process::id() as i32).unwrap()
    }

    /// Three pages: read-write, read-only, unmapped.
    fn three_pages() -> u64 {
        // SAFETY: new mappings, of which the last page is unmapped again.
        unsafe {
            let p = libc::mmap(
                std::ptr::null_mut(),
                3 * PAGE as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(p, libc::MAP_FAILED);
            assert_eq!(
                libc::mprotect(p.byte_add(PAGE as usize), PAGE as usize, libc::PROT_READ),
                0
            );
            assert_eq!(
                libc::munmap(p.byte_add(2 * PAGE as usize), PAGE as usize),
                0
            );
            p as u64
        }
    }

    #[test]
    fn ranges_are_checked_by_maps() {
        let (memory, base) = (own(), three_pages());
        assert!(memory.process.is_some());
        memory.check(base, PAGE, true).unwrap();
        memory.check(base + 1, 2 * PAGE - 1, false).unwrap();
        let error = memory.check(base + 1, 2 * PAGE - 1, true).unwrap_err();
        assert!(matches!(error, CommandError::Protection { at, .. } if at == base + PAGE));
        let error = memory.check(base + PAGE, PAGE + 1, false).unwrap_err();
        assert!(matches!(error, CommandError::Unmapped { .. }), "{error}");
        assert_eq!(error.errno(), libc::EFAULT);
    }

    #[test]
    fn without_maps_pages_are_probed() {
        let base = three_pages();
        let memory = ProgramMemory {
            process: None,
            ..own()
        };
        memory.check(base, 2 * PAGE, true).unwrap();
        let error = memory.check(base + 10, 2 * PAGE, false).unwrap_err();
        assert!(matches!(error, CommandError::Unmapped { at, .. } if at == base + 2 * PAGE));
    }

    #[test]
    fn ranges_that_wrap_or_are_empty_are_refused() {
        for (addr, len) in [
            (0x1000, 0),
            (u64::MAX, 1),
            (u64::MAX - 5, 10),
            (0, u64::MAX),
        ] {
            let error = own().check(addr, len, false).unwrap_err();
            assert!(matches!(error, CommandError::Range { .. }), "{error}");
        }
        // The kernel's half.
        assert_eq!(
            own()
                .check(0xffff_8000_0000_0000, 16, false)
                .unwrap_err()
                .errno(),
            libc::EFAULT
        );
    }

    #[test]
    fn only_a_programs_memory_is_taken() {
        let open = |path: &str| -> OwnedFd { File::open(path).unwrap().into() };
        for fd in [
            open("/dev/null"),
            open("/proc/self/maps"),
            open("/proc/self/mem"),
        ] {
            let error = ProgramMemory::adopt(fd, 0).unwrap_err();
            assert!(matches!(error, CommandError::MemoryFd(_)), "{error}");
        }
        assert!(ProgramMemory::adopt(own_memory(), 0).is_ok());
    }

    #[test]
    fn the_maps_of_another_process_are_not_used() {
        let memory = ProgramMemory::adopt(own_memory(), 1).unwrap();
        assert!(memory.process.is_none() || std::process::id() == 1);
    }

    #[test]
    fn a_privileged_qkey_takes_cap_net_raw() {
        assert!(says_net_raw("Name:\tx\nCapEff:\t0000000000002000\n"));
        assert!(says_net_raw("CapEff:\t000001ffffffffff"));
        for no in [
            "",
            "CapEff:\t000001ffffffdfff",
            "CapEff:\t?",
            "CapPrm:\t0000000000002000",
        ] {
            assert!(!says_net_raw(no), "{no}");
        }
    }

    #[test]
    fn capabilities_in_a_user_namespace_of_ones_own_are_none() {
        let own = own();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(own.has_net_raw(), says_net_raw(&status));
        let script = "cat /proc/self/status; read end";
        let unshared = Command::new("unshare")
            .args(["--user", "--map-root-user", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut child) = unshared else {
            eprintln!("skipped: no unshare(1)");
            return;
        };
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let effective = lines.find_map(|line| line.ok().filter(|l| l.starts_with("CapEff:")));
        let Some(effective) = effective else {
            eprintln!("skipped: no user namespaces here");
            child.wait().unwrap();
            return;
        };
        assert!(says_net_raw(&effective), "{effective}");
        let inside = ProgramMemory {
            mem: own_memory(),
            process: open_process(child.id() as i32),
        };
        assert!(inside.process.is_some() && !inside.has_net_raw());
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn who_cannot_be_known_has_no_capability() {
        let unknown = ProgramMemory {
            process: None,
            ..own()
        };
        assert!(!unknown.has_net_raw());
    }

    #[test]
    fn maps_lines_are_read_whatever_the_path() {
        let maps: &[u8] = b"1000-3000 rw-p 00000000 00:00 0 [heap]\n\
            garbage\n3000-4000 r--s 00000000 08:01 7 /tmp/\xff\xfe name\n5000-6000 -w-p 0 0:0 0\n";
        covered(maps, 0x1800, 0x3000, true).unwrap();
        covered(maps, 0x1800, 0x4000, false).unwrap();
        assert!(covered(maps, 0x1800, 0x3001, true).is_err());
        assert!(covered(maps, 0x3000, 0x5000, false).is_err());
        assert!(covered(maps, 0x5000, 0x5001, false).is_err());
        assert!(covered(maps, 0x7000, 0x7001, false).is_err());
    }
}
