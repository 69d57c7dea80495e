//! Memory of this process that is resident, as the kernel counts it.

use std::fs;

/// Resident bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Private: tables and what hangs on them.
    pub private: u64,
    /// Shared memory objects: the queues of programs, and their buffers.
    pub shared: u64,
}

impl Resident {
    /// Of this process, now.
    pub fn now() -> Resident {
        Resident::of(&fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    /// What became resident since `before`.
    pub fn since(self, before: Resident) -> Resident {
        Resident {
            private: self.private.saturating_sub(before.private),
            shared: self.shared.saturating_sub(before.shared),
        }
    }

    /// From the text of `/proc/PID/status` (`proc_pid_status(5)`).
    fn of(status: &str) -> Resident {
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|rest| rest.split_whitespace().next());
            kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
        };
        Resident {
            private: bytes("RssAnon:"),
            shared: bytes("RssShmem:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_figures_are_read_in_bytes() {
        let text =
            "VmRSS:\t  900 kB\nRssAnon:\t     512 kB\nRssFile:\t 1 kB\nRssShmem:\t       8 kB\n";
        let resident = Resident::of(text);
        assert_eq!((resident.private, resident.shared), (512 << 10, 8 << 10));
        let later = Resident {
            private: 600 << 10,
            shared: 0,
        };
        assert_eq!(later.since(resident).private, 88 << 10);
        assert_eq!(later.since(resident).shared, 0);
    }
}
