//! `/proc/self/maps`: what lies where in this process, as the kernel knows it. Programs map and unmap by raw system
//! calls, so this is asked each time and nothing of it is kept.

use std::ffi::c_int;

use super::spans::Span;
use crate::sys;

/// A mapping.
#[derive(Clone, Copy, Debug)]
pub struct Vma {
    /// Where.
    pub span: Span,
    /// `r`, `w`, `x`, and `p` or `s`.
    pub perms: [u8; 4],
    /// Where it begins in its file.
    pub offset: u64,
    /// Device and inode of the file; 0 without one.
    pub dev: u64,
    /// Of the file.
    pub inode: u64,
    /// What kind of name it has.
    pub name: Name,
}

/// What the last column says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Nothing, `[heap]` or `[anon:...]`: plain memory, if it has no inode.
    Plain,
    /// The main thread's stack, or something of the kernel's.
    Special,
    /// A kernel ring for asynchronous I/O, or a mapping of a device that pins memory.
    Pins,
    /// Huge pages without a file.
    Huge,
    /// A file.
    Path,
}

impl Vma {
    /// Protection bits as `mmap` takes them.
    pub fn protection(&self) -> c_int {
        let bit = |i: usize, letter: u8, bit: c_int| {
            if self.perms[i] == letter { bit } else { 0 }
        };
        bit(0, b'r', libc::PROT_READ)
            | bit(1, b'w', libc::PROT_WRITE)
            | bit(2, b'x', libc::PROT_EXEC)
    }

    /// Private memory without a file.
    pub fn is_private_anonymous(&self) -> bool {
        self.perms[3] == b'p' && self.inode == 0 && self.name == Name::Plain
    }

    /// Private memory of huge pages (`MAP_HUGETLB`), which has a file of the kernel's own.
    pub fn is_private_huge(&self) -> bool {
        self.perms[3] == b'p' && self.name == Name::Huge
    }

    /// Private memory that no file is seen in.
    pub fn is_swappable(&self) -> bool {
        self.is_private_anonymous() || self.is_private_huge()
    }

    /// Shared with a file or memory object. The SysV segment with the identifier 0 has the inode 0.
    pub fn is_shared(&self) -> bool {
        self.perms[3] == b's' && (self.dev, self.inode) != (0, 0)
    }
}

const BUFFER: usize = 8192;

/// Calls `f` for each mapping with the text of its last column, in ascending order, until it says no. False if the maps cannot be
/// read.
pub fn each(f: impl FnMut(&Vma, &[u8]) -> bool) -> bool {
    each_beyond(0, f)
}

/// The same for those mappings that reach beyond `address`. The others are passed over sooner.
pub fn each_beyond(address: usize, mut f: impl FnMut(&Vma, &[u8]) -> bool) -> bool {
    let fd = sys::open(c"/proc/self/maps", libc::O_RDONLY);
    if fd < 0 {
        return false;
    }
    let whole = each_in(fd, address, &mut f);
    sys::close(fd);
    whole
}

fn each_in(fd: c_int, address: usize, f: &mut impl FnMut(&Vma, &[u8]) -> bool) -> bool {
    let mut buffer = [0u8; BUFFER];
    let mut filled = 0;
    loop {
        let n = sys::read(fd, &mut buffer[filled..]);
        if n < 0 {
            return false;
        }
        filled += n as usize;
        let mut from = 0;
        while let Some(len) = buffer[from..filled].iter().position(|b| *b == b'\n') {
            if let Some((vma, name)) = parse(&buffer[from..from + len], address) {
                if !f(&vma, name) {
                    return true;
                }
            }
            from += len + 1;
        }
        if n == 0 {
            return true;
        }
        if from == 0 && filled == BUFFER {
            return false; // longer than any line of the kernel's
        }
        buffer.copy_within(from..filled, 0);
        filled -= from;
    }
}

/// `start-end perms offset major:minor inode   name`, all but the inode hexadecimal (`proc_pid_maps(5)`). None also for a mapping
/// that does not reach beyond `address`.
fn parse(line: &[u8], address: usize) -> Option<(Vma, &[u8])> {
    let mut fields = line.splitn(6, |b| *b == b' ');
    let range = fields.next()?;
    let dash = range.iter().position(|b| *b == b'-')?;
    let end = number(&range[dash + 1..], 16)? as usize;
    if end <= address {
        return None;
    }
    let perms = fields.next()?.try_into().ok()?;
    let offset = number(fields.next()?, 16)?;
    let device = fields.next()?;
    let inode = number(fields.next()?, 10)?;
    let rest = fields.next().unwrap_or_default();
    let colon = device.iter().position(|b| *b == b':')?;
    let major = number(&device[..colon], 16)? as u32;
    let minor = number(&device[colon + 1..], 16)? as u32;
    let blank = rest.iter().take_while(|b| **b == b' ').count();
    let text = &rest[blank..];
    let vma = Vma {
        span: Span {
            start: number(&range[..dash], 16)? as usize,
            end,
        },
        perms,
        offset,
        dev: libc::makedev(major, minor),
        inode,
        name: name(text),
    };
    Some((vma, text))
}

fn name(text: &[u8]) -> Name {
    let pins: [&[u8]; 5] = [
        b"/[aio]",
        b"anon_inode:[io_uring]",
        b"/dev/nvidia",
        b"/dev/kfd",
        // Rings of AF_XDP or AF_PACKET.
        b"socket:[",
    ];
    match text {
        b"" | b"[heap]" => Name::Plain,
        _ if text.starts_with(b"[anon:") => Name::Plain,
        b"/anon_hugepage (deleted)" | b"/anon_hugepage" => Name::Huge,
        _ if text.starts_with(b"[") => Name::Special,
        _ if pins.iter().any(|p| text.starts_with(p)) => Name::Pins,
        _ => Name::Path,
    }
}

fn number(digits: &[u8], radix: u32) -> Option<u64> {
    let text = std::str::from_utf8(digits).ok()?;
    u64::from_str_radix(text, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_told_from_private() {
        let of = |line: &str| parse(line.as_bytes(), 0).expect("a mapping").0;
        let segment =
            of("7f00-8f00 rw-s 00000000 00:01 0                  /SYSV00000000 (deleted)");
        assert!(segment.is_shared() && !segment.is_swappable());
        let memfd = of("7f00-8f00 rw-s 00001000 00:01 1035               /memfd:x (deleted)");
        assert!(memfd.is_shared() && memfd.offset == 0x1000);
        let plain = of("7f00-8f00 rw-p 00000000 00:00 0 ");
        assert!(plain.is_swappable() && !plain.is_shared());
    }

    #[test]
    fn mappings_below_are_passed_over() {
        let line = b"7f00-8f00 rw-p 00000000 00:00 0 ";
        assert!(parse(line, 0x8f00).is_none());
        assert!(parse(line, 0x8eff).is_some());
    }
}
