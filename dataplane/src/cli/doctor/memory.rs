//! How the daemon can reach the memory of programs of this user, and which of the faster ways are off, with the reason.

use std::fs;
use std::io;

use super::Finding;
use crate::memory::memfd;

/// The least Linux that can hold back writers.
const LEAST: (u32, u32) = (5, 14);
/// `CAP_SYS_PTRACE`, by which a userfaultfd may see faults of the kernel.
const CAP_SYS_PTRACE: u32 = 19;
/// `CAP_SYS_ADMIN` and `CAP_CHECKPOINT_RESTORE`, by which mappings can be opened without a descriptor.
const CAP_SYS_ADMIN: u32 = 21;
const CAP_CHECKPOINT_RESTORE: u32 = 40;

/// The findings for this process's user.
pub(super) fn all() -> Vec<Finding> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let mut findings = vec![
        reachable(
            open_both_ways("/proc/self/mem"),
            &read("/proc/sys/kernel/yama/ptrace_scope"),
        ),
        mapped(&Hold {
            kernel: version(&read("/proc/sys/kernel/osrelease")),
            call: userfaultfd(),
            device: open_both_ways("/dev/userfaultfd"),
            capable: has_capability(&status, CAP_SYS_PTRACE),
            filtered: status.lines().any(|line| line == "Seccomp:\t2"),
            sysctl: read("/proc/sys/vm/unprivileged_userfaultfd"),
        }),
        huge(&read("/sys/kernel/mm/transparent_hugepage/shmem_enabled")),
        unnamed(&status),
    ];
    // Nothing to be said of what always works, but for a kernel or a filter without it.
    if let Err(error) = memfd::create(c"roceline-doctor") {
        findings.push(Finding::missing(
            "memory objects",
            format!("memfd_create: {error}: no device can be opened"),
            "allow memfd_create(2) in the system call filter",
        ));
    }
    findings
}

fn open_both_ways(path: &str) -> io::Result<()> {
    fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .map(|_| ())
}

/// Whether the system call gives one that sees faults of the kernel, too.
fn userfaultfd() -> io::Result<()> {
    use std::os::fd::{FromRawFd, OwnedFd};
    // SAFETY: takes flags only.
    let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: new and ours; it goes at once.
    drop(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) });
    Ok(())
}

/// The way that everything can be reached.
fn reachable(mem: io::Result<()>, yama: &str) -> Finding {
    const WHAT: &str = "program memory";
    match mem {
        Ok(()) => {
            let yama = match yama.trim() {
                "" | "0" => String::new(),
                scope => format!("; kernel.yama.ptrace_scope = {scope} changes nothing"),
            };
            Finding::ok(
                WHAT,
                format!("a program can pass its own to the daemon{yama}"),
            )
        }
        Err(error) => Finding::missing(
            WHAT,
            format!("/proc/self/mem: {error}: programs cannot open a device"),
            "mount /proc; a program must be dumpable (prctl PR_SET_DUMPABLE)",
        ),
    }
}

/// What it takes to hold back writers while memory is moved.
#[derive(Debug)]
struct Hold {
    kernel: Option<(u32, u32)>,
    call: io::Result<()>,
    device: io::Result<()>,
    capable: bool,
    filtered: bool,
    sysctl: String,
}

fn mapped(hold: &Hold) -> Finding {
    const WHAT: &str = "mapped memory";
    let old = hold.kernel.is_some_and(|kernel| kernel < LEAST);
    if !old && (hold.call.is_ok() || hold.device.is_ok()) {
        return Finding::ok(WHAT, "memory of all programs of this user can be mapped");
    }
    let mut reasons = Vec::new();
    if old {
        reasons.push("this kernel is older than 5.14".to_owned());
    }
    if let Err(error) = &hold.call {
        let mut why = Vec::new();
        if hold.filtered {
            why.push("a system call filter".to_owned());
        }
        if !hold.capable {
            why.push("no CAP_SYS_PTRACE".to_owned());
            if let "0" = hold.sysctl.trim() {
                why.push("vm.unprivileged_userfaultfd = 0".to_owned());
            }
        }
        let why = if why.is_empty() {
            String::new()
        } else {
            format!(" ({})", why.join(", "))
        };
        reasons.push(format!("userfaultfd(2): {error}{why}"));
    }
    if let Err(error) = &hold.device {
        reasons.push(format!("/dev/userfaultfd: {error}"));
    }
    let found = format!(
        "of programs with one thread only: writes of others cannot be held back while memory is moved, so memory of programs \
         with several threads is reached through the kernel, which is slower; {}",
        reasons.join("; ")
    );
    let remedy = if old {
        "Linux 5.14 or newer is needed"
    } else if hold.filtered {
        "let this user read and write /dev/userfaultfd (of a container: pass the device), as the filter forbids the call"
    } else {
        "let this user read and write /dev/userfaultfd (chgrp and chmod, or a udev rule), or set \
         `sysctl vm.unprivileged_userfaultfd=1`"
    };
    Finding::off(WHAT, found, remedy)
}

/// Transparent huge pages of memory objects.
fn huge(shmem_enabled: &str) -> Finding {
    const WHAT: &str = "huge mapped memory";
    let given = ["[always]", "[within_size]", "[advise]"];
    if given.iter().any(|word| shmem_enabled.contains(word)) {
        return Finding::ok(WHAT, "large regions get huge pages when they are mapped");
    }
    let why = match shmem_enabled.trim() {
        "" => "this kernel has no transparent huge pages for memory objects".to_owned(),
        _ => "transparent_hugepage/shmem_enabled is never or deny".to_owned(),
    };
    Finding::off(
        WHAT,
        format!("off, so to register large memory takes some three times as long: {why}"),
        "as root: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    )
}

/// Objects that have neither a name nor a descriptor.
fn unnamed(status: &str) -> Finding {
    const WHAT: &str = "SysV shared memory";
    if [CAP_SYS_ADMIN, CAP_CHECKPOINT_RESTORE]
        .iter()
        .any(|capability| has_capability(status, *capability))
    {
        return Finding::ok(WHAT, "and shared anonymous memory can be mapped");
    }
    Finding::off(
        WHAT,
        "and shared anonymous memory of this user's programs is reached through the kernel, which is slower: no \
         CAP_CHECKPOINT_RESTORE, so /proc/self/map_files cannot be opened",
        "use POSIX shared memory or a memfd, which need no capability",
    )
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn has_capability(status: &str, number: u32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> number & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::State;

    fn refused() -> io::Result<()> {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    }

    fn nothing() -> Hold {
        Hold {
            kernel: Some((6, 1)),
            call: refused(),
            device: refused(),
            capable: false,
            filtered: false,
            sysctl: "0\n".into(),
        }
    }

    #[test]
    fn one_way_to_hold_writers_is_enough_on_a_new_kernel() {
        assert_eq!(mapped(&nothing()).state, State::Off);
        for hold in [
            Hold {
                call: Ok(()),
                ..nothing()
            },
            Hold {
                device: Ok(()),
                ..nothing()
            },
        ] {
            assert_eq!(mapped(&hold).state, State::Ok);
            let old = Hold {
                kernel: Some((5, 10)),
                ..hold
            };
            assert!(mapped(&old).remedy.is_some_and(|r| r.contains("5.14")));
        }
    }

    #[test]
    fn what_keeps_memory_from_being_mapped_is_named() {
        let found = mapped(&nothing()).found;
        for reason in [
            "no CAP_SYS_PTRACE",
            "unprivileged_userfaultfd = 0",
            "/dev/userfaultfd: ",
        ] {
            assert!(found.contains(reason), "{reason}: {found}");
        }
        // Root of a container has the capability, and the filter stands before it.
        let container = Hold {
            capable: true,
            filtered: true,
            ..nothing()
        };
        let finding = mapped(&container);
        assert!(
            finding.found.contains("(a system call filter)"),
            "{finding:?}"
        );
        assert!(
            finding
                .remedy
                .is_some_and(|r| r.contains("pass the device"))
        );
    }

    #[test]
    fn huge_pages_are_given_or_not() {
        assert_eq!(huge("always within_size [advise] never\n").state, State::Ok);
        assert_eq!(
            huge("always within_size advise [never]\n").state,
            State::Off
        );
        assert!(huge("").found.contains("this kernel has no"));
    }

    #[test]
    fn memory_that_cannot_be_passed_is_missing() {
        assert_eq!(reachable(Ok(()), "").state, State::Ok);
        assert!(reachable(Ok(()), "1\n").found.contains("ptrace_scope = 1"));
        assert_eq!(reachable(refused(), "").state, State::Missing);
    }

    #[test]
    fn kernel_and_capabilities_are_read() {
        assert_eq!(version("6.1.0-18-amd64\n"), Some((6, 1)));
        assert_eq!(version("5.14\n"), Some((5, 14)));
        assert_eq!(version("x"), None);
        let status = "Name:\tx\nCapEff:\t0000000000080000\n";
        assert!(has_capability(status, 19) && !has_capability(status, 18));
        assert!(!has_capability("", 19));
        assert_eq!(unnamed(status).state, State::Off);
        assert_eq!(unnamed("CapEff:\t0000010000000000\n").state, State::Ok);
    }
}
