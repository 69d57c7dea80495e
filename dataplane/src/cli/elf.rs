//! Whether a preloaded library reaches a program: what its file says about that.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Why a preloaded library does not reach a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unreachable {
    /// No dynamic loader: linked statically, as most Go programs are.
    Static,
    /// Of another word size or machine than this one.
    Foreign,
    /// Set-user-id or set-group-id to somebody else: the loader ignores `LD_PRELOAD`.
    SetId,
}

/// `e_ident` and the fields up to `e_phnum` of an ELF64 header.
const HEADER: usize = 64;
const CLASS_64: u8 = 2;
const PT_INTERP: u32 = 3;
/// Size of an ELF64 program header.
const PROGRAM_HEADER: usize = 56;

/// Looks at a program's file. `None` means that nothing stands in the way, or that the file is not ELF (a
/// script, whose interpreter will be loaded).
pub(super) fn unreachable(path: &Path) -> io::Result<Option<Unreachable>> {
    let mut file = File::open(path)?;
    let meta = file.metadata()?;
    // SAFETY: neither call has arguments or effects, and neither can fail.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    let set_id = |bit: u32, owner: u32, own: u32| meta.mode() & bit != 0 && owner != own;
    if set_id(libc::S_ISUID, meta.uid(), uid) || set_id(libc::S_ISGID, meta.gid(), gid) {
        return Ok(Some(Unreachable::SetId));
    }
    let mut header = [0; HEADER];
    if file.read_exact(&mut header).is_err() || header[..4] != *b"\x7fELF" {
        return Ok(None);
    }
    if header[4] != CLASS_64 || half(&header, 18) != this_machine() {
        return Ok(Some(Unreachable::Foreign));
    }
    file.seek(SeekFrom::Start(u64::from_le_bytes(bytes(&header, 32))))?;
    let mut programs = vec![0; PROGRAM_HEADER * usize::from(half(&header, 56))];
    file.read_exact(&mut programs)?;
    let has_loader = programs
        .chunks_exact(PROGRAM_HEADER)
        .any(|program| u32::from_le_bytes(bytes(program, 0)) == PT_INTERP);
    Ok((!has_loader).then_some(Unreachable::Static))
}

/// `e_machine` of this program.
fn this_machine() -> u16 {
    const X86_64: u16 = 62;
    const AARCH64: u16 = 183;
    if cfg!(target_arch = "aarch64") {
        AARCH64
    } else {
        X86_64
    }
}

fn half(from: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes(from, at))
}

fn bytes<const N: usize>(from: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&from[at..at + N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;
    use std::fs;

    fn file(name: &str, content: &[u8]) -> std::path::PathBuf {
        let path = env::temp_dir().join(format!("roceline-elf-{}-{name}", std::process::id()));
        fs::write(&path, content).unwrap();
        path
    }

    /// An ELF64 header with one program header of type `kind` right behind it.
    fn elf(kind: u32, machine: u16, class: u8) -> Vec<u8> {
        let mut image = vec![0; HEADER + PROGRAM_HEADER];
        image[..4].copy_from_slice(b"\x7fELF");
        image[4] = class;
        image[18..20].copy_from_slice(&machine.to_le_bytes());
        image[32..40].copy_from_slice(&(HEADER as u64).to_le_bytes());
        image[56..58].copy_from_slice(&1u16.to_le_bytes());
        image[HEADER..HEADER + 4].copy_from_slice(&kind.to_le_bytes());
        image
    }

    #[track_caller]
    fn verdict(name: &str, content: &[u8], expected: Option<Unreachable>) {
        let path = file(name, content);
        assert_eq!(unreachable(&path).unwrap(), expected);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn programs_are_told_apart() {
        let own = env::current_exe().unwrap();
        assert_eq!(unreachable(&own).unwrap(), None, "this test has a loader");
        verdict("dynamic", &elf(PT_INTERP, this_machine(), CLASS_64), None);
        verdict(
            "static",
            &elf(1, this_machine(), CLASS_64),
            Some(Unreachable::Static),
        );
        verdict(
            "32",
            &elf(PT_INTERP, this_machine(), 1),
            Some(Unreachable::Foreign),
        );
        verdict(
            "other",
            &elf(PT_INTERP, 8, CLASS_64),
            Some(Unreachable::Foreign),
        );
        verdict("script", b"#!/bin/sh\n", None);
        verdict("empty", b"", None);
    }

    #[test]
    fn a_cut_file_is_an_error_and_no_panic() {
        let path = file(
            "cut",
            &elf(PT_INTERP, this_machine(), CLASS_64)[..HEADER + 8],
        );
        assert!(unreachable(&path).is_err());
        fs::remove_file(path).unwrap();
    }
}
