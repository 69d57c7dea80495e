//! DPDK's environment abstraction layer: memory, drivers and the interrupt thread. Initialised once in the life
//! of a process by [`Eal::init`]; everything made with it (mempools, ports, registered threads) holds a share
//! of it, so that it ends after the last of them.
//!
//! EAL gets one lcore that may run on every CPU the calling thread may run on: DPDK launches no worker of its
//! own here, the poll loop's threads are ours and register themselves ([`Eal::register_thread`]).

use std::ffi::{CStr, CString, c_char, c_int};
use std::fs;
use std::io;
use std::marker::PhantomData;
use std::mem;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dpdk_sys as sys;

use super::PortError;
use super::fabric_link::have_membarrier;

/// Whether EAL takes its memory from hugepages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Huge {
    /// If enough are free.
    #[default]
    Auto,
    /// No.
    Never,
    /// Yes, or fail.
    Always,
}

/// How to initialise EAL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EalConfig {
    /// Hugepages.
    pub huge: Huge,
    /// Memory for mempools and rings.
    pub mem_mb: u32,
    /// Virtual devices to make at once, `net_null0,size=64`. [`super::Ethdev::open`] can make them later, too.
    pub vdevs: Vec<String>,
    /// Whether a device opened later shares EAL's memory with another process (vhost, virtio-user, memif with
    /// zero-copy). Those in `vdevs` are recognised.
    pub single_file_segments: bool,
    /// PCI devices, each as EAL's `--allow` takes it (`0000:03:00.0`, arguments after a comma). No other is touched.
    pub pci: Vec<String>,
    /// Prefix of EAL's files, for several DPDK programs with hugepages side by side.
    pub file_prefix: Option<String>,
    /// DPDK's log level, 1 (emergency) to 8 (debug).
    pub log_level: u8,
    /// Passed on as they are.
    pub extra_args: Vec<String>,
}

impl Default for EalConfig {
    fn default() -> EalConfig {
        EalConfig {
            huge: Huge::Auto,
            mem_mb: 128,
            vdevs: Vec::new(),
            single_file_segments: false,
            pci: Vec::new(),
            file_prefix: None,
            log_level: 4,
            extra_args: Vec::new(),
        }
    }
}

/// The initialised EAL. Clones share it.
#[derive(Clone, Debug)]
pub struct Eal(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    huge: bool,
    args: String,
    /// A mempool could not be freed because mbufs of it were still in use.
    leaked: AtomicBool,
}

/// EAL cannot be initialised again in this process, not even after clean-up.
static STARTED: AtomicBool = AtomicBool::new(false);

impl Eal {
    /// Does early what [`Eal::init`] and the first port would wait for: the measurement of the clock begins, and `membarrier(2)` is
    /// asked for, which takes some 15 ms once the process has a second thread. Nobody needs to call it.
    pub fn prepare() {
        // SAFETY: reads clocks.
        unsafe { sys::rl_tsc_begin() };
        have_membarrier();
    }

    /// Initialises EAL.
    ///
    /// Must not be called under SCHED_FIFO on a single CPU: DPDK 22.11 then takes minutes. Raise a polling
    /// thread's priority, and pin it, afterwards.
    ///
    /// The calling thread becomes EAL's main lcore; its CPU affinity is as before when this returns.
    ///
    /// # Errors
    ///
    /// When called a second time, when memory, hugepages or PCI devices are demanded that are not there, and when EAL
    /// refuses.
    pub fn init(config: &EalConfig) -> Result<Eal, PortError> {
        check_pci(&config.pci, Path::new("/sys/bus/pci/devices"))?;
        let huge = choose_memory(config)?;
        if !huge {
            let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
            check_memory(config.mem_mb, &meminfo)?;
        }
        let affinity = Affinity::of_this_thread().map_err(|source| PortError::System {
            what: "sched_getaffinity",
            source,
        })?;
        let args = arguments(config, huge, &affinity.cpus());
        let shown = args[1..].join(" ");
        let args = args
            .into_iter()
            .map(|arg| {
                CString::new(arg).map_err(|e| PortError::Nul {
                    what: "EAL argument",
                    value: String::from_utf8_lossy(&e.into_vec())
                        .escape_debug()
                        .to_string(),
                })
            })
            .collect::<Result<Vec<CString>, PortError>>()?;
        if STARTED.swap(true, Ordering::SeqCst) {
            return Err(PortError::EalAlreadyStarted);
        }
        // EAL keeps pointers into its arguments: they live as long as the process.
        let mut argv: Vec<*mut c_char> = args.into_iter().map(CString::into_raw).collect();
        let argc = argv.len() as c_int;
        argv.push(ptr::null_mut());
        let argv = argv.leak();
        // SAFETY: `argv` is an array of `argc` strings and a null, none ever freed; called once.
        let ret = unsafe {
            sys::rl_log_to_stderr();
            sys::rl_tsc_begin();
            sys::rte_eal_init(argc, argv.as_mut_ptr())
        };
        let errno = last_errno();
        affinity
            .apply_to_this_thread()
            .map_err(|source| PortError::System {
                what: "sched_setaffinity",
                source,
            })?;
        if ret < 0 {
            return Err(PortError::EalInit {
                args: shown,
                reason: strerror(errno),
                remedy: remedy(errno),
            });
        }
        // SAFETY: reads a variable.
        let tsc_mhz = unsafe { sys::rl_tsc_hz() } / 1_000_000;
        tracing::debug!(args = %shown, hugepages = huge, tsc_mhz, "EAL initialised");
        Ok(Eal(Arc::new(Inner {
            huge,
            args: shown,
            leaked: AtomicBool::new(false),
        })))
    }

    /// Whether memory comes from hugepages.
    pub fn has_hugepages(&self) -> bool {
        self.0.huge
    }

    /// The arguments that EAL was given, for people.
    pub fn args(&self) -> &str {
        &self.0.args
    }

    /// DPDK's version, "DPDK 22.11.11".
    pub fn version() -> String {
        // SAFETY: returns a static string.
        unsafe { CStr::from_ptr(sys::rte_version()) }
            .to_string_lossy()
            .into_owned()
    }

    /// Gives this thread an lcore id and with it a cache in every mempool: without, each allocation and free
    /// goes to the mempool's shared ring. Threads that poll ports should call it first.
    ///
    /// # Errors
    ///
    /// When EAL has no lcore id left.
    pub fn register_thread(&self) -> Result<EalThread, PortError> {
        // SAFETY: EAL is initialised.
        let registered = unsafe {
            if sys::rl_has_lcore_id() == 0 {
                if sys::rte_thread_register() != 0 {
                    return Err(PortError::ThreadRegister(strerror(last_errno())));
                }
                true
            } else {
                false
            }
        };
        Ok(EalThread {
            registered,
            _eal: self.clone(),
            _not_send: PhantomData,
        })
    }

    /// Something still uses EAL's memory: it must stay.
    pub(super) fn keep_memory(&self) {
        self.0.leaked.store(true, Ordering::Relaxed);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !*self.leaked.get_mut() {
            // SAFETY: every mempool, port and registered thread held a share, so none is left.
            unsafe {
                sys::rte_eal_cleanup();
            }
        }
    }
}

/// A thread registered with EAL, until dropped.
#[derive(Debug)]
pub struct EalThread {
    registered: bool,
    _eal: Eal,
    /// The registration is a property of the thread that made it.
    _not_send: PhantomData<*mut ()>,
}

impl Drop for EalThread {
    fn drop(&mut self) {
        if self.registered {
            // SAFETY: this thread was registered by `register_thread`; the guard cannot leave the thread.
            unsafe { sys::rte_thread_unregister() }
        }
    }
}

/// What rte_errno of this thread says.
pub(super) fn last_errno() -> i32 {
    // SAFETY: reads a thread-local variable.
    unsafe { sys::rl_errno() }
}

/// DPDK's words for an errno, positive or negative.
pub(super) fn strerror(errno: i32) -> String {
    // SAFETY: returns a string in a thread-local buffer, copied at once.
    let words = unsafe { CStr::from_ptr(sys::rte_strerror(errno.abs())) }
        .to_string_lossy()
        .into_owned();
    format!("{words} ({})", errno.abs())
}

fn remedy(errno: i32) -> &'static str {
    match errno {
        libc::EACCES | libc::EPERM => {
            "EAL lacks a right: without hugepages (`hugepages = \"never\"` in [eal]) and PCI ports it needs none"
        }
        libc::ENOMEM => {
            "not enough memory: lower `memory_mb` in [eal], or set `hugepages = \"never\"`"
        }
        libc::ENODEV => "a device in [eal] vdevs is unknown to this build: see the lines above",
        _ => "see EAL's lines above; log_level = 8 shows more",
    }
}

/// The command line for `rte_eal_init`.
fn arguments(config: &EalConfig, huge: bool, cpus: &[usize]) -> Vec<String> {
    let mut args: Vec<String> = vec!["roceline".into()];
    // One lcore that floats over the CPUs we have: EAL then restricts neither its own threads nor ours.
    let cpus: Vec<String> = cpus
        .iter()
        .filter(|&&cpu| cpu < sys::RTE_MAX_LCORE as usize)
        .map(ToString::to_string)
        .collect();
    if !cpus.is_empty() {
        args.push("--lcores".into());
        args.push(format!("0@({})", cpus.join(",")));
    }
    args.push("-m".into());
    args.push(config.mem_mb.to_string());
    if huge {
        args.push("--in-memory".into());
        if config.single_file_segments || config.vdevs.iter().any(|v| shares_memory(v)) {
            args.push("--single-file-segments".into());
        }
    } else {
        // In 22.11 `--no-huge` (which is legacy memory) and `--in-memory` exclude one another.
        args.push("--no-huge".into());
        args.push("--no-shconf".into());
    }
    args.push("--no-telemetry".into());
    if config.pci.is_empty() {
        args.push("--no-pci".into());
    }
    // With a list, the bus probes what is on it and leaves everybody else's devices alone.
    args.extend(config.pci.iter().map(|device| format!("--allow={device}")));
    if let Some(prefix) = &config.file_prefix {
        args.push(format!("--file-prefix={prefix}"));
    }
    args.push(format!("--log-level={}", config.log_level));
    args.extend(config.vdevs.iter().map(|v| format!("--vdev={v}")));
    args.extend(config.extra_args.iter().cloned());
    args
}

/// Whether a virtual device hands EAL's memory to another process, which takes few files, not one per page.
fn shares_memory(vdev: &str) -> bool {
    let name = vdev.split(',').next().unwrap_or(vdev);
    name.starts_with("net_vhost")
        || name.starts_with("net_virtio_user")
        || (name.starts_with("net_memif") && vdev.contains("zero-copy=yes"))
}

/// Decides for or against hugepages.
fn choose_memory(config: &EalConfig) -> Result<bool, PortError> {
    if config.huge == Huge::Never {
        return Ok(false);
    }
    let sizes = free_hugepages();
    let wanted = u64::from(config.mem_mb) << 20;
    let usable = sizes
        .iter()
        .any(|&(size, free)| size * free >= wanted && can_map(size, wanted));
    if !usable && config.huge == Huge::Always {
        let free: u64 = sizes.iter().map(|(size, free)| size * free).sum();
        return Err(PortError::NoHugepages {
            wanted_mb: config.mem_mb,
            free_mb: free >> 20,
            pages: u64::from(config.mem_mb).div_ceil(2),
        });
    }
    Ok(usable)
}

/// Whether the machine has that much memory at all. EAL reserves addresses only, and the pages come when packets do: it
/// would start, and the machine would fall over later. Less than is available now is a warning, as what is available changes.
fn check_memory(wanted_mb: u32, meminfo: &str) -> Result<(), PortError> {
    let mb = |key: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(key))?;
        let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
        Some(kib >> 10)
    };
    let wanted = u64::from(wanted_mb);
    if let Some(total_mb) = mb("MemTotal:").filter(|&total| wanted > total) {
        return Err(PortError::NoMemory {
            wanted_mb,
            total_mb,
            available_mb: mb("MemAvailable:").unwrap_or(total_mb),
        });
    }
    if let Some(available_mb) = mb("MemAvailable:").filter(|&available| wanted > available) {
        tracing::warn!(
            wanted_mb,
            available_mb,
            "`memory_mb` in [eal] is more than is available now; if packets come to fill it, something has to be killed: lower it"
        );
    }
    Ok(())
}

/// Whether the PCI devices are there. EAL skips those that are not without a word.
fn check_pci(devices: &[String], bus: &Path) -> Result<(), PortError> {
    for device in devices {
        let address = device.split(',').next().unwrap_or(device);
        if !bus.join(address).exists() {
            return Err(PortError::NoPciDevice(address.into()));
        }
    }
    Ok(())
}

/// (page size in bytes, free pages) of every size the kernel has.
fn free_hugepages() -> Vec<(u64, u64)> {
    let Ok(entries) = fs::read_dir("/sys/kernel/mm/hugepages") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let name = entry.file_name().into_string().ok()?;
            let kib: u64 = name
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?
                .parse()
                .ok()?;
            let free = fs::read_to_string(entry.path().join("free_hugepages")).ok()?;
            Some((kib << 10, free.trim().parse().ok()?))
        })
        .collect()
}

/// Whether this process may map that many bytes of hugepages: free pages can be reserved by others, and cgroups
/// can forbid them.
fn can_map(page: u64, bytes: u64) -> bool {
    let Ok(len) = usize::try_from(bytes.div_ceil(page) * page) else {
        return false;
    };
    let flags = libc::MAP_PRIVATE
        | libc::MAP_ANONYMOUS
        | libc::MAP_HUGETLB
        | ((page.trailing_zeros() as c_int) << libc::MAP_HUGE_SHIFT);
    // SAFETY: a new mapping at an address of the kernel's choice, removed again untouched.
    unsafe {
        let at = libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        );
        if at == libc::MAP_FAILED {
            return false;
        }
        libc::munmap(at, len);
        true
    }
}

/// The CPUs a thread may run on.
struct Affinity(libc::cpu_set_t);

impl Affinity {
    fn of_this_thread() -> io::Result<Affinity> {
        // SAFETY: a plain bit array, for which zero is valid, filled by the kernel.
        unsafe {
            let mut set: libc::cpu_set_t = mem::zeroed();
            if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Affinity(set))
        }
    }

    fn apply_to_this_thread(&self) -> io::Result<()> {
        // SAFETY: reads a valid set.
        let ret =
            unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.0) };
        if ret == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    fn cpus(&self) -> Vec<usize> {
        (0..libc::CPU_SETSIZE as usize)
            // SAFETY: the index is below CPU_SETSIZE.
            .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &self.0) })
            .collect()
    }
}

#[cfg(test)]
impl Eal {
    /// That of all tests in this process, which can start it once.
    pub(crate) fn of_tests() -> &'static Eal {
        static EAL: std::sync::OnceLock<Eal> = std::sync::OnceLock::new();
        EAL.get_or_init(|| Eal::init(&EalConfig::default()).unwrap())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> EalConfig {
        EalConfig {
            mem_mb: 64,
            ..EalConfig::default()
        }
    }

    #[test]
    fn no_huge_and_in_memory_exclude_each_other() {
        let without = arguments(&config(), false, &[0, 1]);
        assert!(without.contains(&"--no-huge".into()) && without.contains(&"--no-shconf".into()));
        assert!(!without.contains(&"--in-memory".into()));
        let with = arguments(&config(), true, &[0, 1]);
        assert!(with.contains(&"--in-memory".into()) && !with.contains(&"--no-huge".into()));
    }

    #[test]
    fn the_lcore_floats_over_our_cpus() {
        let args = arguments(&config(), false, &[3, 5, 4000]);
        assert!(
            args.windows(2)
                .any(|w| w[0] == "--lcores" && w[1] == "0@(3,5)"),
            "{args:?}"
        );
    }

    #[test]
    fn shared_memory_devices_ask_for_single_files() {
        for (vdev, single) in [
            ("net_vhost0,iface=/tmp/x", true),
            ("net_virtio_user0,path=/tmp/x", true),
            ("net_memif0,zero-copy=yes", true),
            ("net_memif0,role=client", false),
            ("net_null0", false),
        ] {
            let config = EalConfig {
                vdevs: vec![vdev.into()],
                ..config()
            };
            let args = arguments(&config, true, &[0]);
            assert_eq!(
                args.contains(&"--single-file-segments".into()),
                single,
                "{vdev}"
            );
        }
    }

    #[test]
    fn only_the_named_pci_devices_are_probed() {
        assert!(arguments(&config(), false, &[0]).contains(&"--no-pci".into()));
        let config = EalConfig {
            pci: vec!["0000:01:00.0".into(), "0000:01:00.1,x=1".into()],
            ..config()
        };
        let args = arguments(&config, false, &[0]);
        assert!(!args.contains(&"--no-pci".into()));
        assert!(args.contains(&"--allow=0000:01:00.0".into()));
        assert!(args.contains(&"--allow=0000:01:00.1,x=1".into()));
    }

    #[test]
    fn a_pci_device_that_is_not_there_is_named() {
        let bus = std::env::temp_dir().join(format!("roceline-bus-{}", std::process::id()));
        fs::create_dir_all(bus.join("0000:01:00.0")).unwrap();
        let check = |device: &str| check_pci(&[device.into()], &bus);
        assert!(check("0000:01:00.0,x=1").is_ok());
        let error = check("0000:02:00.0").unwrap_err().to_string();
        assert!(
            error.contains("0000:02:00.0") && error.contains("lspci -D"),
            "{error}"
        );
        fs::remove_dir_all(&bus).unwrap();
    }

    #[test]
    fn more_memory_than_the_machine_has_is_refused_with_what_there_is() {
        let meminfo = "MemTotal:        2097152 kB\nMemFree:  1 kB\nMemAvailable:    1048576 kB\n";
        assert!(check_memory(256, meminfo).is_ok());
        assert!(check_memory(2048, meminfo).is_ok(), "available changes");
        assert!(check_memory(1 << 20, "").is_ok(), "nothing is known");
        let error = check_memory(2049, meminfo).unwrap_err().to_string();
        for part in ["memory_mb = 2049", "2048 MiB", "1024 MiB"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn pages_that_no_machine_has_are_refused_with_a_number() {
        let config = EalConfig {
            huge: Huge::Always,
            mem_mb: u32::MAX,
            ..config()
        };
        let error = choose_memory(&config).unwrap_err();
        assert!(matches!(
            error,
            PortError::NoHugepages {
                wanted_mb: u32::MAX,
                pages: 0x8000_0000,
                ..
            }
        ));
    }
}
