//! What can go wrong with ports, each with the value that was refused and what helps.

use thiserror::Error;

/// Why EAL, a mempool or a port could not be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PortError {
    /// EAL can be initialised once in the life of a process.
    #[error(
        "EAL was already initialised in this process; start a new process to change [eal] settings"
    )]
    EalAlreadyStarted,
    /// An argument holds a NUL byte.
    #[error("{what} `{value}` holds a NUL byte; remove it")]
    Nul {
        /// Which setting.
        what: &'static str,
        /// Its value, escaped.
        value: String,
    },
    /// Hugepages were demanded and are not there.
    #[error(
        "{wanted_mb} MiB of free hugepages are wanted (`hugepages = \"always\"` in [eal]), {free_mb} MiB are there; reserve some \
         (`sysctl vm.nr_hugepages={pages}`), lower `memory_mb`, or set `hugepages = \"auto\"`"
    )]
    NoHugepages {
        /// Asked for.
        wanted_mb: u32,
        /// Free now.
        free_mb: u64,
        /// 2 MiB pages that would do.
        pages: u64,
    },
    /// More memory than the machine has.
    #[error(
        "memory_mb = {wanted_mb} in [eal] is more than this machine has ({total_mb} MiB, of which {available_mb} MiB are available): \
         lower it; 256 do for two NICs"
    )]
    NoMemory {
        /// Asked for.
        wanted_mb: u32,
        /// The machine's.
        total_mb: u64,
        /// What is free or can be freed.
        available_mb: u64,
    },
    /// A PCI device is not there.
    #[error("there is no PCI device {0} here: `lspci -D` lists what there is")]
    NoPciDevice(String),
    /// `rte_eal_init` refused.
    #[error("EAL did not start with `{args}`: {reason}; {remedy}")]
    EalInit {
        /// The arguments.
        args: String,
        /// DPDK's words for `rte_errno`.
        reason: String,
        /// What to try.
        remedy: &'static str,
    },
    /// A thread could not become an EAL thread.
    #[error(
        "this thread cannot be registered with EAL: {0}; at most 128 lcores and registered threads can exist"
    )]
    ThreadRegister(String),
    /// A mempool could not be made.
    #[error(
        "mempool `{name}` with {count} mbufs of {data_room} bytes ({total_mb} MiB) could not be made: {reason}; \
         raise `memory_mb` in [eal] or lower the number of mbufs"
    )]
    Mempool {
        /// Its name.
        name: String,
        /// Mbufs.
        count: u32,
        /// Bytes of frame in each.
        data_room: u32,
        /// What that makes.
        total_mb: u64,
        /// DPDK's words.
        reason: String,
    },
    /// A mempool setting is out of range.
    #[error("mempool `{name}`: {setting} = {value} is out of range; {remedy}")]
    MempoolConfig {
        /// Its name.
        name: String,
        /// Which setting.
        setting: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        remedy: &'static str,
    },
    /// No such device.
    #[error(
        "device `{device}` cannot be opened: {reason}; name a virtual device as NAME,KEY=VALUE,… (net_memif0,…), \
         or \"pci:\" and an address such as 0000:01:00.0"
    )]
    NoDevice {
        /// As configured.
        device: String,
        /// DPDK's words.
        reason: String,
    },
    /// The device has an owner.
    #[error("device `{device}` is open already; give each NIC a device of its own")]
    InUse {
        /// As configured.
        device: String,
    },
    /// The driver cannot carry that MTU.
    #[error("device `{device}` ({driver}) cannot take mtu = {mtu}: it allows {max}; {remedy}")]
    Mtu {
        /// As configured.
        device: String,
        /// Driver name.
        driver: String,
        /// Asked for.
        mtu: u32,
        /// The most it takes.
        max: u32,
        /// What to do.
        remedy: &'static str,
    },
    /// Frames of the MTU do not fit into the mempool's mbufs.
    #[error(
        "device `{device}`: frames of {frame} bytes (mtu {mtu}) do not fit into mbufs of {data_room} bytes; use a \
         mempool with data_room of at least {frame}"
    )]
    DataRoom {
        /// As configured.
        device: String,
        /// Asked for.
        mtu: u32,
        /// Bytes of the largest frame.
        frame: u32,
        /// Bytes an mbuf holds.
        data_room: u32,
    },
    /// The driver refused a step of setting the port up.
    #[error("device `{device}` ({driver}): {step} failed: {reason}; {remedy}")]
    Setup {
        /// As configured.
        device: String,
        /// Driver name.
        driver: String,
        /// Which step.
        step: &'static str,
        /// DPDK's words.
        reason: String,
        /// What to try.
        remedy: &'static str,
    },
    /// A fabric link setting is out of range.
    #[error("fabric link: {setting} = {value} is out of range; {remedy}")]
    FabricConfig {
        /// Which setting.
        setting: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        remedy: &'static str,
    },
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}
