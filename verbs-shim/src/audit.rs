//! The shim as an auditor of the loader (`LD_AUDIT`, rtld-audit(7)): what the loader is about to search for, and by
//! which name it is to search instead.
//!
//! Python wheels bring the libraries that they need under names of their own, `libibverbs-1a2b3c4d.so.1.14.41.0`
//! (auditwheel). Such a libibverbs has no rxe provider and looks for providers in the folder of the distribution it was
//! built on. So those names become the system's, where the system has that library: its providers fit it, and both
//! keep the interface of the bundled one by symbol versions.
//!
//! An auditor lives in a namespace of its own, with a libc of its own: nothing of what the preloaded copy knows is
//! known here, and none of the program's calls come through here. From glibc 2.35 on (`LAV_CURRENT` 2) an auditor without PLT hooks
//! costs a program its loading and nothing after that; before, every call through the PLT passes through the
//! loader (glibc bug 15533), so there the auditor declines unless `ROCELINE_WHEELS=always`.

use std::ffi::{CStr, c_char, c_uint};

use crate::say::{say, text};
use crate::{sys, view};

/// `LAV_CURRENT` of glibc 2.35, the newest that we know.
const CHEAP: c_uint = 2;
/// The name as the program or `DT_NEEDED` says it, before any search (`link.h`).
const LA_SER_ORIG: c_uint = 1;

/// A soname in the folders where distributions keep libraries, Debian's first. What the loader gets must stay, so
/// these are constants.
macro_rules! places {
    ($soname:literal) => {
        &[
            places!("/lib/x86_64-linux-gnu/", $soname),
            places!("/usr/lib/x86_64-linux-gnu/", $soname),
            places!("/lib64/", $soname),
            places!("/usr/lib64/", $soname),
            places!("/lib/", $soname),
            places!("/usr/lib/", $soname),
            places!("/usr/local/lib/", $soname),
        ]
    };
    ($folder:literal, $soname:literal) => {
        match CStr::from_bytes_with_nul(concat!($folder, $soname, "\0").as_bytes()) {
            Ok(path) => path,
            Err(_) => panic!("a path without NUL"),
        }
    };
}

/// Stems of file names, and what stands for them.
const LIBRARIES: [(&[u8], &[&CStr]); 5] = [
    (b"libibverbs", places!("libibverbs.so.1")),
    (b"librdmacm", places!("librdmacm.so.1")),
    (b"libmlx5", places!("libmlx5.so.1")),
    (b"libmlx4", places!("libmlx4.so.1")),
    (b"libefa", places!("libefa.so.1")),
];

/// Whether to audit, and by which version of the interface: 0 is no.
#[unsafe(no_mangle)]
pub extern "C" fn la_version(version: c_uint) -> c_uint {
    match view::env(c"ROCELINE_WHEELS") {
        Some(b"never") => 0,
        Some(b"always") => version.min(CHEAP),
        _ if version >= CHEAP => CHEAP,
        _ => 0,
    }
}

/// The file to open for `name`. A name without a folder stays, and the places where the loader looks for it lead to the
/// system's library: so the loader knows that by the asked name as well, which it must, or it aborts at the first symbol
/// version (`find_needed` in glibc `elf/dl-version.c`; an object that is loaded already gets the name after this
/// function only).
///
/// # Safety
/// As for `la_objsearch`: `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn la_objsearch(
    name: *const c_char,
    _cookie: *mut usize,
    flag: c_uint,
) -> *mut c_char {
    if name.is_null() {
        return name.cast_mut();
    }
    // SAFETY: a C string.
    let asked = unsafe { CStr::from_ptr(name) }.to_bytes();
    let is_bare = flag == LA_SER_ORIG && !asked.contains(&b'/');
    let system = stands_for(asked).filter(|_| !is_bare);
    let Some(system) = system.and_then(|paths| paths.iter().find(|path| is_there(path))) else {
        return name.cast_mut();
    };
    if view::env(c"ROCELINE_DEBUG").is_some() {
        say(format_args!(
            "{} is asked for: {} takes its place",
            text(asked),
            text(system.to_bytes())
        ));
    }
    system.as_ptr().cast_mut()
}

/// Where the system may have the library of which `path` names a bundled copy: a stem, a dash, the hexadecimal digits
/// of a checksum. Provider plug-ins (`libmlx5-rdmav34.so`) are no copies.
fn stands_for(path: &[u8]) -> Option<&'static [&'static CStr]> {
    let file = path.rsplit(|b| *b == b'/').next()?;
    let (_, paths) = LIBRARIES.iter().find(|(stem, _)| {
        let rest = file.strip_prefix(*stem).and_then(|r| r.strip_prefix(b"-"));
        let Some(rest) = rest else { return false };
        let digits = rest.iter().take_while(|b| b.is_ascii_hexdigit()).count();
        let end = &rest[digits..];
        digits >= 6 && (end == b".so" || end.starts_with(b".so."))
    })?;
    Some(paths)
}

fn is_there(path: &CStr) -> bool {
    // SAFETY: a C string.
    unsafe { sys::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::R_OK) == 0 }
}
