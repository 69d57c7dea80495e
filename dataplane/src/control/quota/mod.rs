//! How much a program, a user and all together may have of a device.
//!
//! In flow the charges of sessions, before they make an object, and the amounts they give back after it is gone; out flow
//! refusals that name the limit and the key that raises it, and the numbers of `roceline show programs`. Sessions of
//! different threads meet in the counts here and nowhere else.
//!
//! A *program* is a process as the kernel sees it at the other end of the socket (`SO_PEERCRED`): what it says of itself does
//! not give it more. Processes of PID namespaces that are not seen here have no number; those of one user count as one
//! program. Limits are for each device, as those of the kernel's RDMA cgroup (`Documentation/admin-guide/cgroup-v1/rdma.rst`).

mod account;
mod turns;

use super::limits::DeviceLimits;

pub use account::{Account, Accounts, Charge, ProgramUse};
pub use turns::{Turn, Turns};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Opens of the device.
    Contexts,
    /// Protection domains.
    Pds,
    /// Memory regions.
    Mrs,
    /// Bytes of memory regions; what lies in two of them counts twice, as for `RLIMIT_MEMLOCK`.
    Registered,
    /// Completion queues.
    Cqs,
    /// Elements of completion queues.
    Cqes,
    /// Queue pairs.
    Qps,
    /// Shared receive queues.
    Srqs,
    /// Address handles.
    Ahs,
    /// Memory windows.
    Mws,
    /// Completion channels: each costs the daemon three descriptors and the supervisor one.
    Channels,
    /// Memory objects that regions lie in: each costs a descriptor.
    MemoryObjects,
    /// Mappings of such objects: the kernel has few (`vm.max_map_count`).
    Mappings,
    /// Bytes of queues.
    QueueMemory,
    /// Queue pairs in multicast groups: one that is in two counts twice.
    Mcasts,
}

impl Resource {
    /// How many there are.
    pub const COUNT: usize = 15;
    /// All, in the order of listings.
    pub const ALL: [Resource; Resource::COUNT] = [
        Resource::Contexts,
        Resource::Pds,
        Resource::Mrs,
        Resource::Registered,
        Resource::Cqs,
        Resource::Cqes,
        Resource::Qps,
        Resource::Srqs,
        Resource::Ahs,
        Resource::Mws,
        Resource::Channels,
        Resource::MemoryObjects,
        Resource::Mappings,
        Resource::QueueMemory,
        Resource::Mcasts,
    ];

    /// Its key in the configuration and in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Resource::Contexts => "contexts",
            Resource::Pds => "pds",
            Resource::Mrs => "mrs",
            Resource::Registered => "registered",
            Resource::Cqs => "cqs",
            Resource::Cqes => "cqes",
            Resource::Qps => "qps",
            Resource::Srqs => "srqs",
            Resource::Ahs => "ahs",
            Resource::Mws => "mws",
            Resource::Channels => "channels",
            Resource::MemoryObjects => "memory_objects",
            Resource::Mappings => "mappings",
            Resource::QueueMemory => "queue_memory",
            Resource::Mcasts => "mcasts",
        }
    }

    /// What there are so and so many of.
    pub fn what(self) -> &'static str {
        match self {
            Resource::Contexts => "open devices",
            Resource::Pds => "protection domains",
            Resource::Mrs => "memory regions",
            Resource::Registered => "bytes of registered memory",
            Resource::Cqs => "completion queues",
            Resource::Cqes => "completion queue elements",
            Resource::Qps => "queue pairs",
            Resource::Srqs => "shared receive queues",
            Resource::Ahs => "address handles",
            Resource::Mws => "memory windows",
            Resource::Channels => "completion channels",
            Resource::MemoryObjects => "memory objects",
            Resource::Mappings => "mappings of memory",
            Resource::QueueMemory => "bytes of queue memory",
            Resource::Mcasts => "queue pairs in multicast groups",
        }
    }

    /// Whether it is an amount of memory: then the kernel's errno is that of `RLIMIT_MEMLOCK`.
    pub fn is_bytes(self) -> bool {
        matches!(self, Resource::Registered | Resource::QueueMemory)
    }
}

/// Whose limit it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// A program's.
    Program,
    /// A user's: of all programs that run as it.
    User,
    /// Everybody's.
    Device,
}

impl Level {
    /// The section of the configuration.
    pub fn section(self) -> &'static str {
        match self {
            Level::Program => "[limits.program]",
            Level::User => "[limits.user]",
            Level::Device => "[limits.device]",
        }
    }
}

/// A number for each resource, where one is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts([Option<u64>; Resource::COUNT]);

impl Amounts {
    /// The number for a resource.
    pub fn get(&self, resource: Resource) -> Option<u64> {
        self.0[resource as usize]
    }

    /// Sets it.
    pub fn set(&mut self, resource: Resource, value: Option<u64>) {
        self.0[resource as usize] = value;
    }
}

/// `[limits]` of the configuration: what is not set is what the device can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// Of a program.
    pub program: Amounts,
    /// Of a user.
    pub user: Amounts,
    /// Of all together.
    pub device: Amounts,
}

impl Quotas {
    /// What was set for a level.
    pub fn at(&self, level: Level) -> &Amounts {
        match level {
            Level::Program => &self.program,
            Level::User => &self.user,
            Level::Device => &self.device,
        }
    }

    /// What a device reports to a program that may have no more than this.
    pub fn report(&self, limits: DeviceLimits) -> DeviceLimits {
        let least = |resource, value: u32| {
            [Level::Program, Level::User, Level::Device]
                .iter()
                .filter_map(|level| self.at(*level).get(resource))
                .fold(value, |least, set| {
                    least.min(u32::try_from(set).unwrap_or(u32::MAX))
                })
        };
        // A queue's elements are counted as it has them: a power of two less the one that stays empty.
        let cqes = least(Resource::Cqes, limits.max_cqe);
        DeviceLimits {
            max_cqe: (1 << cqes.saturating_add(1).ilog2()) - 1,
            max_qp: least(Resource::Qps, limits.max_qp),
            max_cq: least(Resource::Cqs, limits.max_cq),
            max_srq: least(Resource::Srqs, limits.max_srq),
            max_mr: least(Resource::Mrs, limits.max_mr),
            max_mw: least(Resource::Mws, limits.max_mw),
            max_pd: least(Resource::Pds, limits.max_pd),
            max_ah: least(Resource::Ahs, limits.max_ah),
            max_channels: least(Resource::Channels, limits.max_channels),
            ..limits
        }
    }
}

/// The limits of one level, none missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    most: [u64; Resource::COUNT],
    /// Set by the configuration, and not what the device can do anyway.
    set: [bool; Resource::COUNT],
}

impl Limits {
    /// What is set, else what `own` says.
    pub fn new(set: &Amounts, own: impl Fn(Resource) -> u64) -> Limits {
        Limits {
            most: Resource::ALL.map(|r| set.get(r).unwrap_or_else(|| own(r))),
            set: Resource::ALL.map(|r| set.get(r).is_some()),
        }
    }

    /// The most of a resource; `u64::MAX` is without limit.
    pub fn most(&self, resource: Resource) -> u64 {
        self.most[resource as usize]
    }

    fn is_set(&self, resource: Resource) -> bool {
        self.set[resource as usize]
    }
}

/// What one program may have of a device when nothing is set: what the device reports, where it reports something.
pub fn of_a_program(limits: &DeviceLimits, resource: Resource) -> u64 {
    match resource {
        Resource::Contexts => limits.max_connections_per_process as u64,
        Resource::Pds => limits.max_pd.into(),
        Resource::Mrs => limits.max_mr.into(),
        Resource::Cqs => limits.max_cq.into(),
        Resource::Qps => limits.max_qp.into(),
        Resource::Mws => limits.max_mw.into(),
        Resource::Srqs => limits.max_srq.into(),
        Resource::Ahs => limits.max_ah.into(),
        Resource::Channels => limits.max_channels.into(),
        Resource::MemoryObjects => limits.max_memory_objects.into(),
        Resource::Mappings => limits.max_mappings.into(),
        Resource::QueueMemory => limits.max_queue_bytes,
        // So no program takes more than a quarter of the groups.
        Resource::Mcasts => (limits.max_mcast_grp / 4).into(),
        Resource::Registered | Resource::Cqes => u64::MAX,
    }
}

/// What all programs together may have when nothing is set: the sizes of the daemon's tables, and what the machine has of
/// memory, mappings and descriptors.
pub fn of_a_device(limits: &DeviceLimits, machine: &Machine, resource: Resource) -> u64 {
    let program = of_a_program(limits, resource);
    match resource {
        Resource::Contexts => limits.max_connections as u64,
        Resource::Pds => program.saturating_mul(4),
        Resource::Mrs => limits.all_mrs.into(),
        // Handles of all contexts are of one table.
        Resource::Qps | Resource::Cqs => program,
        Resource::Srqs | Resource::Ahs | Resource::Mws => program.saturating_mul(4),
        // Half of the descriptors for channels, an eighth for objects; the rest is for devices and the daemon itself.
        Resource::Channels => program.max(machine.descriptors / 2 / 3),
        Resource::MemoryObjects => program.max(machine.descriptors / 8),
        Resource::Mappings => machine.mappings / 2,
        Resource::QueueMemory => machine.memory / 2,
        Resource::Mcasts => u64::from(limits.max_mcast_grp) * u64::from(limits.max_mcast_qp_attach),
        Resource::Registered | Resource::Cqes => u64::MAX,
    }
}

/// What the machine has of that which programs use up in the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Bytes of memory.
    pub memory: u64,
    /// Mappings of a process (`vm.max_map_count`).
    pub mappings: u64,
    /// Descriptors of this process (`RLIMIT_NOFILE`).
    pub descriptors: u64,
}

impl Machine {
    /// This one.
    pub fn here() -> Machine {
        // SAFETY: plain system calls that read two numbers.
        let (pages, page) = unsafe {
            (
                libc::sysconf(libc::_SC_PHYS_PAGES),
                libc::sysconf(libc::_SC_PAGESIZE),
            )
        };
        let memory = u64::try_from(pages)
            .ok()
            .zip(u64::try_from(page).ok())
            .map_or(8 << 30, |(pages, page)| pages.saturating_mul(page));
        let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count")
            .ok()
            .and_then(|text| text.trim().parse().ok())
            // The kernel's own default (`DEFAULT_MAX_MAP_COUNT`).
            .unwrap_or(65530);
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: fills in one rlimit.
        let known = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
        Machine {
            memory,
            mappings,
            descriptors: if known { limit.rlim_max } else { 1024 },
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
