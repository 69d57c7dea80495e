//! `roceline run`: becomes an unmodified program with the shim preloaded.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Parser;

use super::elf::{self, Unreachable};
use super::{CliError, affinity, shim};
use crate::control::client::Client;
use crate::control::query::{LcoresReply, Query, devices};

const EXAMPLES: &str = "\
Examples:
  roceline run ibv_devices
  roceline run --device roce1 -- ibv_devinfo -v
  roceline run -- ib_send_lat -d roce0 &
  roceline run -- ib_send_lat -d roce1 127.0.0.1

What stands after the program's name belongs to the program. Exit code: the program's own; 127 if there is no such
program, 126 if it cannot be run, 1 for anything else that is missing.

The program gets LD_PRELOAD, LD_AUDIT, ROCELINE_SOCKET and, with --device, ROCELINE_DEVICE; everything it
starts inherits them, so a shell or a script can be run as well: roceline run -- bash

LD_AUDIT is for Python wheels that bring a libibverbs under another name: they get the system's. It costs
a program half a millisecond at its start and nothing after that; ROCELINE_WHEELS=never leaves it out.
ROCELINE_DEEPBIND=keep lets programs load libraries with RTLD_DEEPBIND, which is taken out otherwise: a
libibverbs loaded so sees no device.";

/// Run an unmodified program with the NICs of the daemon
///
/// The program keeps off the CPUs on which the daemon polls, as long as it has another.
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Show it this device of the daemon only
    ///
    /// Without it, a program sees all devices of the daemon, and those of the machine beside them. To see the machine's
    /// alone, start it without `roceline run`.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,

    /// Leave its CPU affinity as it is
    #[arg(long)]
    any_cpu: bool,

    /// The program and its arguments; `--` before it may be left out
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Why the program could not be run.
#[derive(Debug, thiserror::Error)]
pub(super) enum RunError {
    #[error(transparent)]
    Shim(#[from] shim::ShimError),
    #[error("{0:?}: command not found: check the name, or install the package that has it")]
    NotFound(OsString),
    #[error("{0}: is no program: check the name, or make it executable with chmod +x")]
    NotExecutable(PathBuf),
    #[error("{0} cannot be run: {1}")]
    Exec(PathBuf, io::Error),
    #[error("the daemon on {socket} has no device {device}: it has {known}")]
    Device {
        socket: PathBuf,
        device: String,
        known: String,
    },
}

impl RunError {
    /// What a shell exits with in the same case (POSIX, Shell Command Language 2.8.2), so that scripts can tell a
    /// program that could not be run from one that failed.
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            RunError::NotFound(_) => 127,
            RunError::NotExecutable(_) | RunError::Exec(..) => 126,
            RunError::Shim(_) | RunError::Device { .. } => 1,
        }
    }
}

/// Only returns when it failed: the process becomes the program.
pub(super) fn run(args: Args, socket: &Path) -> Result<(), CliError> {
    let library = shim::find().map_err(RunError::from)?;
    let name = &args.command[0];
    let program = resolve(name, env::var_os("PATH").as_deref())?;

    let lcores = Client::connect(socket)?
        .ask::<LcoresReply>(&Query::Lcores)?
        .lcores;
    if let Some(device) = &args.device {
        let known = devices(&lcores);
        if !known.contains(&device.as_str()) {
            let (socket, known) = (socket.to_owned(), known.join(", "));
            return Err(RunError::Device {
                socket,
                device: device.clone(),
                known,
            }
            .into());
        }
    }
    warn_if_unreachable(&program);
    if !args.any_cpu {
        let polling: Vec<usize> = lcores.iter().filter_map(|lcore| lcore.cpu).collect();
        affinity::keep_off(&polling);
    }

    let mut command = Command::new(&program);
    command
        .arg0(name)
        .args(&args.command[1..])
        .env(
            "LD_PRELOAD",
            first(&library, env::var_os("LD_PRELOAD").as_deref()),
        )
        .env(
            "ASAN_OPTIONS",
            asan_options(env::var_os("ASAN_OPTIONS").as_deref()),
        )
        .env("ROCELINE_SOCKET", std::path::absolute(socket)?);
    // An auditor of the loader costs a process its loading, even if it declines.
    if env::var_os("ROCELINE_WHEELS").is_none_or(|wheels| wheels != "never") {
        command.env(
            "LD_AUDIT",
            first(&library, env::var_os("LD_AUDIT").as_deref()),
        );
    }
    match &args.device {
        Some(device) => command.env("ROCELINE_DEVICE", device),
        None => command.env_remove("ROCELINE_DEVICE"),
    };
    Err(RunError::Exec(program, command.exec()).into())
}

/// The file that `execvp` would run.
fn resolve(name: &OsStr, path: Option<&OsStr>) -> Result<PathBuf, RunError> {
    let runnable = |file: &Path| {
        file.metadata()
            .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let mut places: Vec<PathBuf> = if name.as_encoded_bytes().contains(&b'/') {
        vec![name.into()]
    } else {
        env::split_paths(path.unwrap_or_default())
            .map(|dir| dir.join(name))
            .collect()
    };
    places.retain(|file| file.exists());
    if let Some(program) = places.iter().find(|file| runnable(file)) {
        return Ok(program.clone());
    }
    match places.into_iter().next() {
        Some(file) => Err(RunError::NotExecutable(file)),
        None => Err(RunError::NotFound(name.into())),
    }
}

/// Ours first. Of preloaded libraries it plays the kernel, so it must be what the others' calls end in; of auditors,
/// the others then see the name that is searched for.
fn first(library: &Path, present: Option<&OsStr>) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(present) = present.filter(|present| !present.is_empty()) {
        all.push(":");
        all.push(present);
    }
    all
}

/// The runtime of AddressSanitizer refuses to be any but the first library, unless it is told that it may be another. What
/// somebody says counts more.
fn asan_options(present: Option<&OsStr>) -> OsString {
    let mut all = OsString::from("verify_asan_link_order=0");
    if let Some(present) = present.filter(|present| !present.is_empty()) {
        all.push(":");
        all.push(present);
    }
    all
}

fn warn_if_unreachable(program: &Path) {
    let why = match elf::unreachable(program) {
        Ok(Some(Unreachable::Static)) => "is linked statically, so nothing can be preloaded",
        Ok(Some(Unreachable::Foreign)) => "is for another machine or word size than the shim",
        Ok(Some(Unreachable::SetId)) => "is set-user-id or set-group-id, so LD_PRELOAD is ignored",
        Ok(None) | Err(_) => return,
    };
    eprintln!(
        "roceline: warning: {} {why}: it will see no device",
        program.display()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_the_shell_finds_them() {
        let path = OsStr::new("/no/such/dir:/bin:/usr/bin");
        let sh = resolve(OsStr::new("sh"), Some(path)).unwrap();
        assert_eq!(sh, Path::new("/bin/sh"));
        assert_eq!(
            resolve(OsStr::new("/bin/sh"), None).unwrap(),
            Path::new("/bin/sh")
        );
        for missing in ["no-such-program", "./no-such-program"] {
            let error = resolve(OsStr::new(missing), Some(path)).unwrap_err();
            assert_eq!(error.exit_code(), 127, "{error}");
        }
        for no_program in ["/etc/passwd", "/etc"] {
            let error = resolve(OsStr::new(no_program), None).unwrap_err();
            assert_eq!(error.exit_code(), 126, "{error}");
        }
    }

    #[test]
    fn options_of_a_sanitizer_are_kept() {
        assert_eq!(asan_options(None), "verify_asan_link_order=0");
        let present = OsStr::new("detect_leaks=0:verify_asan_link_order=1");
        assert_eq!(
            asan_options(Some(present)),
            "verify_asan_link_order=0:detect_leaks=0:verify_asan_link_order=1"
        );
    }

    #[test]
    fn what_was_preloaded_stays_behind_the_shim() {
        let library = Path::new("/x/shim.so");
        assert_eq!(first(library, None), "/x/shim.so");
        assert_eq!(first(library, Some(OsStr::new(""))), "/x/shim.so");
        assert_eq!(
            first(library, Some(OsStr::new("a.so b.so"))),
            "/x/shim.so:a.so b.so"
        );
    }
}
