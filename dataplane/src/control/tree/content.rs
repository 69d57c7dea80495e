//! The files of a device tree and what is in them, as the kernel prints it (Linux `drivers/infiniband/core/sysfs.c` and
//! `Documentation/ABI/stable/sysfs-class-infiniband`).
//!
//! In: NICs and counters. Out: directories of attributes, one line each. What a tree is and how long it lives is the
//! parent's.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::{Tree, attributes, gids};
use crate::addresses::GID_TABLE_LEN;
use crate::control::counters::NicCounters;
use crate::nic::NicInfo;

/// Entries of a port's P_Key table: the default one.
pub const PKEY_TABLE_LEN: usize = 1;
/// The default P_Key, full member.
pub const DEFAULT_PKEY: u16 = 0xffff;
/// Capabilities of a port, `cap_mask` and `port_cap_flags` of QUERY_PORT: none. The rxe kernel driver says IB_PORT_CM_SUP, but there
/// is no connection manager here.
pub const PORT_CAP_FLAGS: u32 = 0;
/// Major number of the uverbs character devices.
pub const UVERBS_MAJOR: u32 = 231;
/// Minor number of `uverbs0`.
pub const UVERBS_MINOR: u32 = 192;

/// Where a view has devices by name, by number, and what programs open.
const CLASS: &str = "sys/class/infiniband";
const VERBS: &str = "sys/class/infiniband_verbs";
const NODES: &str = "dev/infiniband";
/// Version of the uverbs interface, for all devices.
const UVERBS_ABI: u32 = 6;
/// Version of the rxe driver's part of it.
const RXE_ABI: u32 = 2;
/// How the rxe provider of rdma-core recognises a device of any name.
const RXE_MODALIAS: &str = "rdma_device:Nrxe";
/// A rate that every tool knows: QUERY_PORT must say width 4X (2) and speed EDR (32) to agree.
const RATE: &str = "100 Gb/sec (4X EDR)";

pub(super) fn build(root: &Path, nics: &[NicInfo]) -> io::Result<()> {
    for nic in nics {
        let count = nic.addresses.now().len();
        if count > GID_TABLE_LEN {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "{} has {count} GIDs but its table holds {GID_TABLE_LEN}: give it fewer addresses",
                    nic.name,
                ),
            ));
        }
    }
    make_dir(root)?;
    let (all, only) = (root.join("all"), root.join("only"));
    frame(&all)?;
    make_dir(&only)?;
    for nic in nics {
        fill(&all, nic)?;
        let limited = only.join(&nic.name);
        frame(&limited)?;
        for part in parts(nic) {
            link(&all.join(&part), &limited.join(&part))?;
        }
    }
    Ok(())
}

/// A view without devices.
fn frame(view: &Path) -> io::Result<()> {
    for dir in [CLASS, VERBS, NODES] {
        make_dir(&view.join(dir))?;
    }
    put(&view.join(VERBS), "abi_version", UVERBS_ABI)
}

/// What a view has of a NIC.
fn parts(nic: &NicInfo) -> [PathBuf; 4] {
    let uverbs = format!("uverbs{}", nic.uverbs);
    [
        Path::new(CLASS).join(&nic.name),
        Path::new(VERBS).join(&uverbs),
        Path::new(NODES).join(&uverbs),
        Path::new("sys/class/net").join(&nic.name),
    ]
}

fn fill(view: &Path, nic: &NicInfo) -> io::Result<()> {
    let uverbs = format!("uverbs{}", nic.uverbs);
    let node = view.join(VERBS).join(&uverbs);
    make_dir(&node)?;
    put(&node, "ibdev", &nic.name)?;
    put(
        &node,
        "dev",
        format_args!("{UVERBS_MAJOR}:{}", UVERBS_MINOR + nic.uverbs),
    )?;
    put(&node, "abi_version", RXE_ABI)?;
    put_bytes(&view.join(NODES), &uverbs, b"")?;
    device(&view.join(CLASS).join(&nic.name), nic)?;
    let port_dir = port_dir(view, &nic.name);
    port(&port_dir, nic)?;
    counters(&port_dir)?;
    attributes::create(view, &nic.name, &nic.congestion.now())
}

/// The same files in another view, by another name: a file that is written needs to be so once, and a name costs a file system less
/// than a file. Where there is no journal, ext4 looks at each inode that was freed in the last minutes for every new file.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    if !fs::symlink_metadata(from)?.is_dir() {
        return fs::hard_link(from, to);
    }
    make_dir(to)?;
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        link(&from.join(&name), &to.join(&name))?;
    }
    Ok(())
}

fn device(dir: &Path, nic: &NicInfo) -> io::Result<()> {
    make_dir(dir)?;
    put(dir, "node_type", "1: CA")?;
    put(dir, "node_guid", guid(nic.node_guid))?;
    put(dir, "sys_image_guid", guid(nic.node_guid))?;
    put(dir, "node_desc", &nic.name)?;
    put(dir, "fw_ver", env!("CARGO_PKG_VERSION"))?;
    put(dir, "hca_type", "Roceline")?;
    put(dir, "board_id", "Roceline")?;

    let dir = dir.join("device");
    make_dir(&dir)?;
    put(&dir, "modalias", RXE_MODALIAS)?;
    // No card, so no node that is nearer to it than another.
    put(&dir, "numa_node", -1)?;
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get());
    put(&dir, "local_cpus", cpu_mask(cpus))?;
    put(&dir, "local_cpulist", format_args!("0-{}", cpus - 1))?;
    // A PCI function that no driver claims, in a slot that is no bottleneck.
    put(&dir, "vendor", "0xffff")?;
    put(&dir, "device", "0x0000")?;
    put(&dir, "subsystem_vendor", "0xffff")?;
    put(&dir, "subsystem_device", "0x0000")?;
    put(&dir, "class", "0x020000")?;
    for limit in ["current", "max"] {
        put(&dir, &format!("{limit}_link_width"), 16)?;
        put(&dir, &format!("{limit}_link_speed"), "16.0 GT/s PCIe")?;
    }
    Ok(())
}

fn port(dir: &Path, nic: &NicInfo) -> io::Result<()> {
    make_dir(dir)?;
    for (name, text) in link_files(nic.link.is_up()) {
        put(dir, name, text)?;
    }
    put(dir, "link_layer", "Ethernet")?;
    put(dir, "rate", RATE)?;
    put(dir, "lid", format_args!("{:#x}", nic.lid))?;
    put(dir, "sm_lid", "0x0")?;
    put(dir, "lid_mask_count", 0)?;
    put(dir, "sm_sl", 0)?;
    put(dir, "cap_mask", format_args!("{PORT_CAP_FLAGS:#010x}"))?;

    let pkeys = dir.join("pkeys");
    make_dir(&pkeys)?;
    put(&pkeys, "0", format_args!("{DEFAULT_PKEY:#06x}"))?;

    gids::create(dir, &nic.addresses.now())
}

/// File name and text of what says whether a port has a link. Without one the rxe kernel driver is in Polling, too.
pub(super) fn link_files(up: bool) -> [(&'static str, &'static str); 2] {
    match up {
        true => [("state", "4: ACTIVE"), ("phys_state", "5: LinkUp")],
        false => [("state", "1: DOWN"), ("phys_state", "2: Polling")],
    }
}

/// The folders of counters.
fn counters(dir: &Path) -> io::Result<()> {
    for group in COUNTER_GROUPS {
        make_dir(&dir.join(group))?;
    }
    for (group, name, value) in counter_files(&NicCounters::default()) {
        put(&dir.join(group), name, value)?;
    }
    let lifespan = Tree::LIFESPAN.as_millis();
    put(&dir.join("hw_counters"), "lifespan", lifespan)
}

const COUNTER_GROUPS: [&str; 3] = ["counters", "hw_counters", "ethtool"];

/// A counter's folder, file name and value.
pub type CounterFile = (&'static str, &'static str, u64);

/// All counter files of a device, in a fixed order.
pub fn counter_files(c: &NicCounters) -> Vec<CounterFile> {
    let port = c.port().map(|(name, value)| ("counters", name, value));
    let hw = c.hw().map(|(name, value)| ("hw_counters", name, value));
    let ethtool = c.ethtool().map(|(name, value)| ("ethtool", name, value));
    port.chain(hw).chain(ethtool).collect()
}

pub(super) fn port_dir(view: &Path, nic: &str) -> PathBuf {
    view.join(CLASS).join(nic).join("ports/1")
}

/// Four groups of four hex digits.
fn guid(bytes: [u8; 8]) -> String {
    groups(&bytes)
}

/// Groups of four hex digits, never shortened.
pub(super) fn groups(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (i, pair) in bytes.chunks(2).enumerate() {
        let separator = if i == 0 { "" } else { ":" };
        let value = pair.iter().fold(0u16, |v, b| v << 8 | u16::from(*b));
        let _ = write!(text, "{separator}{value:04x}");
    }
    text
}

/// The first `cpus` CPUs as the kernel prints a mask: 32-bit words, most significant first.
pub(super) fn cpu_mask(cpus: usize) -> String {
    let mut text = String::new();
    for word in (0..cpus.div_ceil(32)).rev() {
        let bits = (cpus - word * 32).min(32);
        let mask = u32::MAX >> (32 - bits);
        let _ = match text.is_empty() {
            true => write!(text, "{mask:x}"),
            false => write!(text, ",{mask:08x}"),
        };
    }
    text
}

/// Makes `dir` and what is missing above it, readable by all whatever the umask.
pub(in crate::control) fn make_dir(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent().filter(|p| !p.as_os_str().is_empty()) {
        make_dir(parent)?;
    }
    fs::create_dir(dir)?;
    fs::set_permissions(dir, Permissions::from_mode(0o755))
}

/// Writes an attribute: one line.
pub(super) fn put(dir: &Path, name: &str, value: impl std::fmt::Display) -> io::Result<()> {
    put_bytes(dir, name, format!("{value}\n").as_bytes())
}

pub(super) fn put_bytes(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let path = dir.join(name);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&path)?;
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(0o644))
}
