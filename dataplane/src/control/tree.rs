//! What a program sees of the NICs before it opens one: a real directory tree beside the control socket that looks
//! like the kernel's `/sys/class/infiniband*` and `/dev/infiniband`. The shim redirects those paths here, so that
//! readdir, openat and friends work natively.
//!
//! In: the NICs as configured, once, their counters and what other devices there are (`machine`) from time to time. Out:
//! files and links. The control thread owns the tree; it appears as a whole by one rename and goes when the value is dropped.
//!
//! ```text
//! <socket>.d/all/                  every NIC, and links to the machine's own RDMA devices
//! <socket>.d/only/<device>/        one NIC, for programs that are limited to it
//!     sys/class/infiniband_verbs/uverbsN/...
//!     sys/class/infiniband/<device>/...
//!     dev/infiniband/uverbsN
//! ```
//!
//! Contents are formatted as the kernel prints them (Linux `drivers/infiniband/core/sysfs.c` and
//! `Documentation/ABI/stable/sysfs-class-infiniband`).

use std::ffi::CString;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use roceline_engine::wire::Gid;

use super::counters::NicCounters;
use super::machine::{self, Links, Machine};
use crate::nic::NicInfo;

/// Entries of a port's GID table, `gid_tbl_len` of QUERY_PORT: those that exist, then zero GIDs.
pub const GID_TABLE_LEN: usize = 16;
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

/// Version of the uverbs interface, for all devices.
const UVERBS_ABI: u32 = 6;
/// Version of the rxe driver's part of it.
const RXE_ABI: u32 = 2;
/// How the rxe provider of rdma-core recognises a device of any name.
const RXE_MODALIAS: &str = "rdma_device:Nrxe";
/// A rate that every tool knows: QUERY_PORT must say width 4X (2) and speed EDR (32) to agree.
const RATE: &str = "100 Gb/sec (4X EDR)";
/// The tree of one daemon. Dropping it removes it from disk.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    /// Device and inode of `root`: whether it is still ours.
    identity: (u64, u64),
    machine: Machine,
    /// The links to the devices of `machine`, below the view of all devices.
    links: Links,
    /// Stays on disk when the value goes.
    stays: bool,
}

impl Tree {
    /// Where the tree of the daemon at `socket` lies.
    pub fn path(socket: &Path) -> PathBuf {
        suffixed(socket, ".d")
    }

    /// Writes the tree for `nics` beside `socket`. A stale one is replaced.
    pub fn create(socket: &Path, nics: &[NicInfo]) -> io::Result<Tree> {
        Tree::create_beside(Machine::without_devices(), socket, nics)
    }

    /// The same with links to the devices of `machine`.
    pub fn create_beside(machine: Machine, socket: &Path, nics: &[NicInfo]) -> io::Result<Tree> {
        let mut links = Links::new();
        let root = Tree::path(socket);
        let building = suffixed(socket, &format!(".d.new-{}", std::process::id()));
        let old = suffixed(socket, &format!(".d.old-{}", std::process::id()));
        remove(&building)?;
        let made = build(&building, nics).and_then(|()| {
            let wanted = machine.links();
            machine::relink(&building.join("all"), &mut links, &wanted)?;
            warn_of_hidden(&links, &wanted);
            remove(&old)?;
            // At once where the file system can, so that programs that look meanwhile find one or the other.
            if exchange(&building, &root).is_ok() {
                return remove(&building);
            }
            // A directory cannot be renamed over one that has entries.
            match fs::rename(&root, &old) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            fs::rename(&building, &root)?;
            remove(&old)
        });
        if let Err(e) = made {
            let _ = remove(&building);
            return Err(io::Error::new(
                e.kind(),
                format!("cannot write the device tree {}: {e}", root.display()),
            ));
        }
        let identity = identity(&root)?;
        Ok(Tree {
            root,
            identity,
            machine,
            links,
            stays: false,
        })
    }

    /// From now on the tree outlives the value: the supervisor removes it, or the next worker replaces it.
    pub fn stay(&mut self) {
        self.stays = true;
    }

    /// Looks again for devices of the machine.
    pub fn follow_machine(&mut self) -> io::Result<()> {
        let wanted = self.machine.links();
        machine::relink(&self.root.join("all"), &mut self.links, &wanted)
    }

    /// Removes the tree beside `socket`, whoever wrote it.
    pub fn remove(socket: &Path) {
        if let Err(error) = remove(&Tree::path(socket)) {
            tracing::warn!(%error, "device tree not removed");
        }
    }

    /// Its top directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// How old `hw_counters` and `counters` may be: `lifespan` in them, until somebody writes another. The kernel's is 10
    /// ms, but costs something only when somebody reads.
    pub const LIFESPAN: Duration = Duration::from_millis(100);

    /// Brings those files of `nic` up to date in which `now` differs from `before`, what they say.
    pub fn update(&self, nic: &str, before: &[CounterFile], now: &[CounterFile]) -> io::Result<()> {
        // The views of a single device have the same files by another name.
        let port = port_dir(&self.root.join("all"), nic);
        for (file, _) in now.iter().zip(before).filter(|(now, before)| now != before) {
            let (group, name, value) = file;
            let file = OpenOptions::new()
                .write(true)
                .open(port.join(group).join(name))?;
            // Counts only grow, so the text never gets shorter and needs no truncation, which readers could see.
            file.write_all_at(format!("{value}\n").as_bytes(), 0)?;
        }
        Ok(())
    }

    /// What somebody wrote into `lifespan`, or `present`. A value out of range is corrected in the file, as is text
    /// that is no number.
    pub fn lifespan(&self, nic: &str, present: Duration) -> io::Result<Duration> {
        let path = port_dir(&self.root.join("all"), nic).join("hw_counters/lifespan");
        let text = fs::read_to_string(&path)?;
        let text = text.trim();
        if text.is_empty() {
            // Truncated, and about to be written.
            return Ok(present);
        }
        let asked = text.parse().map_or(present, Duration::from_millis);
        let lifespan = asked.clamp(LIFESPANS[0], LIFESPANS[1]);
        let right = lifespan.as_millis().to_string();
        if text != right {
            fs::write(&path, right + "\n")?;
        }
        Ok(lifespan)
    }
}

/// The least, so that nobody makes the daemon write files all the time, and the most.
const LIFESPANS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(60)];

impl Tree {
    /// Says that the port of `nic` has a link, or none any more.
    pub fn update_link(&self, nic: &str, up: bool) -> io::Result<()> {
        for view in [self.root.join("all"), self.root.join("only").join(nic)] {
            let port = port_dir(&view, nic);
            for (name, text) in link_files(up) {
                // Readers see the old text or the new one.
                let new = format!(".{name}.new");
                let _ = fs::remove_file(port.join(&new));
                put(&port, &new, text)?;
                fs::rename(port.join(&new), port.join(name))?;
            }
        }
        Ok(())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // A successor may have put its own tree in our place.
        if !self.stays && identity(&self.root).ok() == Some(self.identity) {
            let _ = remove(&self.root);
        }
    }
}

/// Says which devices of the machine cannot be seen, because ours have their names.
fn warn_of_hidden(links: &Links, wanted: &Links) {
    let class = Path::new("sys/class/infiniband");
    for path in wanted.keys().filter(|path| !links.contains_key(*path)) {
        if let (true, Some(device)) = (path.parent() == Some(class), path.file_name()) {
            tracing::warn!(
                ?device,
                "programs do not see this device of the machine, as a NIC here has its name: give the NIC another"
            );
        }
    }
}

/// Lets two directories change places.
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let path = |path: &Path| CString::new(path.as_os_str().as_bytes());
    let (a, b) = (path(a)?, path(b)?);
    let here = libc::AT_FDCWD;
    // SAFETY: two C strings.
    let result =
        unsafe { libc::renameat2(here, a.as_ptr(), here, b.as_ptr(), libc::RENAME_EXCHANGE) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut s = path.as_os_str().to_owned();
    s.push(suffix);
    PathBuf::from(s)
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let meta = fs::symlink_metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn build(root: &Path, nics: &[NicInfo]) -> io::Result<()> {
    if let Some(nic) = nics.iter().find(|n| n.gids.len() > GID_TABLE_LEN) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "{} has {} GIDs but its table holds {GID_TABLE_LEN}: give it fewer addresses",
                nic.name,
                nic.gids.len()
            ),
        ));
    }
    make_dir(root)?;
    let all = root.join("all");
    view(&all, nics)?;
    let only = root.join("only");
    make_dir(&only)?;
    for nic in nics {
        let limited = only.join(&nic.name);
        view(&limited, std::slice::from_ref(nic))?;
        let from = port_dir(&all, &nic.name);
        counters(&from)?;
        link_counters(&from, &port_dir(&limited, &nic.name))?;
    }
    Ok(())
}

fn view(root: &Path, nics: &[NicInfo]) -> io::Result<()> {
    let verbs = root.join("sys/class/infiniband_verbs");
    make_dir(&verbs)?;
    put(&verbs, "abi_version", UVERBS_ABI)?;
    make_dir(&root.join("sys/class/infiniband"))?;
    let dev = root.join("dev/infiniband");
    make_dir(&dev)?;
    for nic in nics {
        let uverbs = format!("uverbs{}", nic.uverbs);
        let node = verbs.join(&uverbs);
        make_dir(&node)?;
        put(&node, "ibdev", &nic.name)?;
        put(
            &node,
            "dev",
            format_args!("{UVERBS_MAJOR}:{}", UVERBS_MINOR + nic.uverbs),
        )?;
        put(&node, "abi_version", RXE_ABI)?;
        put_bytes(&dev, &uverbs, b"")?;
        device(&root.join("sys/class/infiniband").join(&nic.name), nic)?;
        port(&port_dir(root, &nic.name), nic)?;
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
    put(dir, "lid", "0x0")?;
    put(dir, "sm_lid", "0x0")?;
    put(dir, "lid_mask_count", 0)?;
    put(dir, "sm_sl", 0)?;
    put(dir, "cap_mask", format_args!("{PORT_CAP_FLAGS:#010x}"))?;

    let pkeys = dir.join("pkeys");
    make_dir(&pkeys)?;
    put(&pkeys, "0", format_args!("{DEFAULT_PKEY:#06x}"))?;

    let (gids, types, ndevs) = (
        dir.join("gids"),
        dir.join("gid_attrs/types"),
        dir.join("gid_attrs/ndevs"),
    );
    for dir in [&gids, &types, &ndevs] {
        make_dir(dir)?;
    }
    for i in 0..GID_TABLE_LEN {
        let name = i.to_string();
        let entry = nic.gids.get(i).map(|e| e.gid);
        put(&gids, &name, gid_text(entry.unwrap_or_default()))?;
        // The kernel answers EINVAL for an empty entry, which a file cannot; libibverbs skips zero GIDs but fails
        // where the type is missing.
        put(&types, &name, "RoCE v2")?;
        // libibverbs turns the name into an index, so it must be an interface that exists; the NIC has none.
        put_bytes(&ndevs, &name, if entry.is_some() { b"lo\n" } else { b"" })?;
    }

    Ok(())
}

/// File name and text of what says whether a port has a link. Without one the rxe kernel driver is in Polling, too.
fn link_files(up: bool) -> [(&'static str, &'static str); 2] {
    match up {
        true => [("state", "4: ACTIVE"), ("phys_state", "5: LinkUp")],
        false => [("state", "1: DOWN"), ("phys_state", "2: Polling")],
    }
}

/// The folders of counters in the view of all devices.
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

/// The same files by another name, so that each is written once.
fn link_counters(from: &Path, to: &Path) -> io::Result<()> {
    for group in COUNTER_GROUPS {
        make_dir(&to.join(group))?;
        for entry in fs::read_dir(from.join(group))? {
            let entry = entry?;
            fs::hard_link(entry.path(), to.join(group).join(entry.file_name()))?;
        }
    }
    Ok(())
}

const COUNTER_GROUPS: [&str; 2] = ["counters", "hw_counters"];

/// A counter's folder, file name and value.
pub type CounterFile = (&'static str, &'static str, u64);

/// All counter files of a device, in a fixed order.
pub fn counter_files(c: &NicCounters) -> Vec<CounterFile> {
    let port = c.port().map(|(name, value)| ("counters", name, value));
    let hw = c.hw().map(|(name, value)| ("hw_counters", name, value));
    port.chain(hw).collect()
}

fn port_dir(view: &Path, nic: &str) -> PathBuf {
    view.join("sys/class/infiniband").join(nic).join("ports/1")
}

/// Four groups of four hex digits.
fn guid(bytes: [u8; 8]) -> String {
    groups(&bytes)
}

/// Eight groups of four hex digits, never shortened.
fn gid_text(gid: Gid) -> String {
    groups(&gid.0)
}

fn groups(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (i, pair) in bytes.chunks(2).enumerate() {
        let separator = if i == 0 { "" } else { ":" };
        let value = pair.iter().fold(0u16, |v, b| v << 8 | u16::from(*b));
        let _ = write!(text, "{separator}{value:04x}");
    }
    text
}

/// The first `cpus` CPUs as the kernel prints a mask: 32-bit words, most significant first.
fn cpu_mask(cpus: usize) -> String {
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
/// Makes `dir`, and what is above it, for everybody to read.
pub(super) fn make_dir(dir: &Path) -> io::Result<()> {
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
fn put(dir: &Path, name: &str, value: impl std::fmt::Display) -> io::Result<()> {
    put_bytes(dir, name, format!("{value}\n").as_bytes())
}

fn put_bytes(dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let path = dir.join(name);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&path)?;
    file.write_all(bytes)?;
    file.set_permissions(Permissions::from_mode(0o644))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use roceline_engine::verbs::Mtu;

    use super::*;
    use crate::lcore::message::NicSnapshot;
    use crate::nic::{GidEntry, LinkState};

    fn nic(index: u32) -> NicInfo {
        let addr: IpAddr = format!("10.77.0.{}", index + 1)
            .parse()
            .expect("an address");
        NicInfo {
            index,
            uverbs: index,
            name: format!("roce{index}"),
            mac: [2, 0, 0, 0, 0, index as u8],
            addrs: vec![(addr, 24)],
            gids: vec![GidEntry {
                gid: Gid::from_ip(addr),
            }],
            port_mtu: 4200,
            active_mtu: Mtu::M4096,
            memory: roceline_abi::control::MemoryPolicy::Auto,
            node_guid: [2, 0, 0, 0xff, 0xfe, 0, 0, index as u8],
            link: LinkState::default(),
        }
    }

    /// A fresh directory that goes with the value.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let dir =
                std::env::temp_dir().join(format!("roceline-tree-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).expect("a scratch directory");
            Scratch(dir)
        }
        fn socket(&self) -> PathBuf {
            self.0.join("r.sock")
        }
        fn read(&self, path: &str) -> String {
            let path = self.0.join("r.sock.d").join(path);
            fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_port_without_a_link_is_down() {
        let s = Scratch::new("link");
        let port = |view: &str| format!("{view}/sys/class/infiniband/roce0/ports/1");
        let both = |s: &Scratch, state: &str, phys: &str| {
            for view in ["all", "only/roce0"] {
                assert_eq!(s.read(&format!("{}/state", port(view))), state);
                assert_eq!(s.read(&format!("{}/phys_state", port(view))), phys);
            }
        };
        let nic = nic(0);
        nic.link.set(false);
        let tree = Tree::create(&s.socket(), &[nic]).expect("a tree");
        both(&s, "1: DOWN\n", "2: Polling\n");
        tree.update_link("roce0", true).expect("files");
        both(&s, "4: ACTIVE\n", "5: LinkUp\n");
        tree.update_link("roce0", false).expect("files");
        both(&s, "1: DOWN\n", "2: Polling\n");
    }

    #[test]
    fn files_read_as_the_kernel_prints_them() {
        let s = Scratch::new("format");
        let _tree = Tree::create(&s.socket(), &[nic(0), nic(1)]).expect("a tree");
        let dev = "all/sys/class/infiniband/roce1";
        assert_eq!(s.read("all/sys/class/infiniband_verbs/abi_version"), "6\n");
        assert_eq!(
            s.read("all/sys/class/infiniband_verbs/uverbs1/ibdev"),
            "roce1\n"
        );
        assert_eq!(
            s.read("all/sys/class/infiniband_verbs/uverbs1/dev"),
            "231:193\n"
        );
        assert_eq!(s.read(&format!("{dev}/node_type")), "1: CA\n");
        assert_eq!(s.read(&format!("{dev}/node_guid")), "0200:00ff:fe00:0001\n");
        assert_eq!(
            s.read(&format!("{dev}/device/modalias")),
            "rdma_device:Nrxe\n"
        );
        let port = format!("{dev}/ports/1");
        assert_eq!(s.read(&format!("{port}/state")), "4: ACTIVE\n");
        assert_eq!(s.read(&format!("{port}/cap_mask")), "0x00000000\n");
        assert_eq!(s.read(&format!("{port}/pkeys/0")), "0xffff\n");
        let zero = "0000:0000:0000:0000:0000:0000:0000:0000\n";
        assert_eq!(
            s.read(&format!("{port}/gids/0")),
            "0000:0000:0000:0000:0000:ffff:0a4d:0002\n"
        );
        for i in 1..GID_TABLE_LEN {
            assert_eq!(s.read(&format!("{port}/gids/{i}")), zero);
            assert_eq!(s.read(&format!("{port}/gid_attrs/types/{i}")), "RoCE v2\n");
        }
        assert_eq!(s.read(&format!("{port}/hw_counters/out_of_buffer")), "0\n");
        assert_eq!(s.read(&format!("{port}/counters/port_xmit_data")), "0\n");
        assert_eq!(s.read("all/dev/infiniband/uverbs0"), "");
    }

    #[test]
    fn a_limited_view_has_one_device() {
        let s = Scratch::new("view");
        let tree = Tree::create(&s.socket(), &[nic(0), nic(1)]).expect("a tree");
        let names = |dir: &str| {
            let mut v: Vec<_> = fs::read_dir(tree.root().join(dir))
                .expect("a directory")
                .map(|e| {
                    e.expect("an entry")
                        .file_name()
                        .into_string()
                        .expect("text")
                })
                .collect();
            v.sort();
            v
        };
        assert_eq!(names("all/sys/class/infiniband"), ["roce0", "roce1"]);
        assert_eq!(names("only/roce1/sys/class/infiniband"), ["roce1"]);
        assert_eq!(names("only/roce1/dev/infiniband"), ["uverbs1"]);
        assert_eq!(
            names("only/roce1/sys/class/infiniband_verbs"),
            ["abi_version", "uverbs1"]
        );
    }

    #[test]
    fn a_stale_tree_is_replaced_and_a_successors_tree_is_kept() {
        let s = Scratch::new("stale");
        let first = Tree::create(&s.socket(), &[nic(0)]).expect("a tree");
        let second = Tree::create(&s.socket(), &[nic(1)]).expect("a second tree");
        drop(first);
        assert_eq!(
            s.read("all/sys/class/infiniband_verbs/uverbs1/ibdev"),
            "roce1\n"
        );
        assert!(
            !second
                .root()
                .join("all/sys/class/infiniband/roce0")
                .exists()
        );
        drop(second);
        let left: Vec<_> = fs::read_dir(&s.0).expect("the directory").collect();
        assert!(left.is_empty(), "{left:?}");
    }

    #[test]
    fn too_many_addresses_are_refused_by_name() {
        let s = Scratch::new("many");
        let mut n = nic(0);
        n.gids = vec![n.gids[0]; GID_TABLE_LEN + 1];
        let error = Tree::create(&s.socket(), &[n])
            .expect_err("17 GIDs")
            .to_string();
        assert!(
            error.contains("roce0 has 17 GIDs but its table holds 16"),
            "{error}"
        );
        assert!(!s.0.join("r.sock.d").exists());
    }

    #[test]
    fn counters_reach_both_views() {
        let s = Scratch::new("counters");
        let tree = Tree::create(&s.socket(), &[nic(0)]).expect("a tree");
        let mut part = NicSnapshot::default();
        part.counters.rdma_tx_bytes = 4096;
        part.counters.out_of_buffer = 17;
        let mut counters = NicCounters::default();
        let before = counter_files(&counters);
        counters.add(&part);
        tree.update("roce0", &before, &counter_files(&counters))
            .expect("an update");
        for view in ["all", "only/roce0"] {
            let port = format!("{view}/sys/class/infiniband/roce0/ports/1");
            assert_eq!(s.read(&format!("{port}/counters/port_xmit_data")), "1024\n");
            assert_eq!(s.read(&format!("{port}/hw_counters/out_of_buffer")), "17\n");
        }
    }

    #[test]
    fn lifespan_is_what_somebody_wrote_within_limits() {
        let s = Scratch::new("lifespan");
        let tree = Tree::create(&s.socket(), &[nic(0)]).expect("a tree");
        let path = "only/roce0/sys/class/infiniband/roce0/ports/1/hw_counters/lifespan";
        let ms = Duration::from_millis;
        assert_eq!(s.read(path), "100\n");
        let mut present = Tree::LIFESPAN;
        for (text, lifespan, left) in [
            ("50\n", 50, "50\n"),
            ("", 50, ""),
            ("250", 250, "250"),
            ("0", 10, "10\n"),
            ("99999999", 60_000, "60000\n"),
            ("soon", 60_000, "60000\n"),
        ] {
            fs::write(s.0.join("r.sock.d").join(path), text).expect("it is a file");
            present = tree.lifespan("roce0", present).expect("it can be read");
            assert_eq!(
                (present, s.read(path)),
                (ms(lifespan), left.into()),
                "{text:?}"
            );
        }
    }

    #[test]
    fn cpu_masks_are_in_words_of_32() {
        assert_eq!(cpu_mask(2), "3");
        assert_eq!(cpu_mask(32), "ffffffff");
        assert_eq!(cpu_mask(36), "f,ffffffff");
    }
}
