//! Whether programs of this user can have their memory mapped into the daemon, which is faster than the kernel's way to it.

use std::fs;

use super::Finding;

/// Linux that can hold back writers without populating memory first, and the least that can hold them at all.
const LEAST: (u32, u32) = (5, 14);
/// `CAP_SYS_PTRACE`, by which a userfaultfd may see faults of the kernel.
const CAP_SYS_PTRACE: u32 = 19;

/// What this machine lets a program of this user do.
#[derive(Clone, Copy, Debug)]
struct Facts {
    kernel: Option<(u32, u32)>,
    capable: bool,
    sysctl: bool,
    device: bool,
}

/// The finding for this process's user.
pub(super) fn mapped() -> Finding {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut options = fs::File::options();
    let device = options.read(true).write(true).open("/dev/userfaultfd");
    judge(Facts {
        kernel: version(&read("/proc/sys/kernel/osrelease")),
        capable: has_capability(&read("/proc/self/status"), CAP_SYS_PTRACE),
        sysctl: read("/proc/sys/vm/unprivileged_userfaultfd").trim() == "1",
        device: device.is_ok(),
    })
}

fn judge(facts: Facts) -> Finding {
    const WHAT: &str = "mapped memory";
    let old = facts.kernel.is_some_and(|kernel| kernel < LEAST);
    if !old && (facts.capable || facts.sysctl || facts.device) {
        return Finding::ok(WHAT, "memory of all programs of this user can be mapped");
    }
    let found = "of programs with one thread only: writes of others cannot be held back while memory is moved, so memory of \
                 programs with several threads is reached through the kernel, which is slower";
    let remedy = if old {
        "Linux 5.14 or newer is needed"
    } else {
        "let this user read and write /dev/userfaultfd (chgrp and chmod, or a udev rule), or set \
         `sysctl vm.unprivileged_userfaultfd=1`"
    };
    Finding::off(WHAT, found, remedy)
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

    #[test]
    fn one_way_to_hold_writers_is_enough_on_a_new_kernel() {
        let none = Facts {
            kernel: Some((6, 1)),
            capable: false,
            sysctl: false,
            device: false,
        };
        assert_eq!(judge(none).state, State::Off);
        for facts in [
            Facts {
                capable: true,
                ..none
            },
            Facts {
                sysctl: true,
                ..none
            },
            Facts {
                device: true,
                ..none
            },
        ] {
            assert_eq!(judge(facts).state, State::Ok);
            let old = Facts {
                kernel: Some((5, 10)),
                ..facts
            };
            assert!(judge(old).remedy.is_some_and(|r| r.contains("5.14")));
        }
    }

    #[test]
    fn kernel_and_capabilities_are_read() {
        assert_eq!(version("6.1.0-18-amd64\n"), Some((6, 1)));
        assert_eq!(version("5.14\n"), Some((5, 14)));
        assert_eq!(version("x"), None);
        let status = "Name:\tx\nCapEff:\t0000000000080000\n";
        assert!(has_capability(status, 19) && !has_capability(status, 18));
        assert!(!has_capability("", 19));
    }
}
