//! The configuration of a daemon: a TOML text goes in, a checked [`Config`] comes out, and from that the
//! [`NicInfo`](crate::nic::NicInfo)s and [`Network`](crate::neighbour::Network)s that everybody else works with.
//!
//! `file` is the text as serde reads it, `check` turns it into values that can be relied on, `nics` derives
//! what a NIC is. Whoever holds a `Config` never has to doubt it again. `docs/configuration.md` is the
//! reference for people.

mod check;
mod congestion;
pub(crate) mod error;
mod fabric;
mod file;
mod impair;
mod lcores;
mod lid;
pub(crate) mod limits;
mod nics;
mod port;
mod preset;
mod rings;
mod unquoted;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use roceline_abi::control::MemoryPolicy;
use roceline_engine::{AckPolicy, Retransmission};

use crate::congestion::Settings;
use crate::control::quota::Quotas;
use crate::fabric::plan::Plan;
use crate::impair::{Spec, Wiring};
use crate::lcore::Tuning;

pub(crate) use check::cpu_problem;
pub use error::ConfigError;
pub(crate) use error::nearest;
pub use nics::{derived_mac, eui64, link_local};
pub use preset::Preset;
pub(crate) use rings::LINK_PACKETS;
pub use rings::Rings;

/// What a daemon is to be.
#[derive(Clone, Debug)]
pub struct Config {
    /// How DPDK's environment is set up.
    pub eal: EalConfig,
    /// Polling threads, by number; at least one.
    pub lcores: Vec<LcoreConfig>,
    /// The NICs, in the order of their indices.
    pub nics: Vec<NicConfig>,
    /// Switches, and the NICs on them.
    pub fabric: Plan,
    /// Impairments to begin with, in the order of the file.
    pub impair: Vec<Spec>,
    /// How much programs may have.
    pub limits: Limits,
    /// The control socket and who may use it.
    pub control: SocketConfig,
    /// Log filter, as `ROCELINE_LOG` would give it; `None` leaves the default.
    pub log: Option<String>,
    /// The text that all this was read from, with what files say (delays, numbers of users) in the place of the names: a
    /// worker parses it again, perhaps long after the files have changed or gone.
    pub text: String,
}

/// `[eal]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EalConfig {
    /// Whether to use hugepages.
    pub hugepages: Hugepages,
    /// Memory for packet buffers without hugepages, or at most with them.
    pub memory_mb: u32,
    /// Further EAL arguments, as they are.
    pub args: Vec<String>,
}

/// Whether packet buffers lie in hugepages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hugepages {
    /// When enough are free.
    Auto,
    /// Without them the daemon does not start.
    Always,
    /// Not even when they are there.
    Never,
}

/// `[[lcore]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LcoreConfig {
    /// The CPU it is pinned to; `None` leaves the choice to the scheduler.
    pub cpu: Option<usize>,
    /// What it does without work.
    pub idle: Idle,
    /// Seconds of CPU time, or of waiting, without progress after which the NIC process is ended; 0: never.
    pub watchdog_s: u32,
    /// How much a poll takes at once, and how far it looks ahead.
    pub tuning: Tuning,
}

/// What an lcore without work does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Idle {
    /// It polls on.
    Spin,
    /// It polls, then yields, then sleeps until something wakes it.
    Adaptive,
}

/// `[[nic]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// Device name.
    pub name: String,
    /// Addresses with prefix lengths, in the order of the file.
    pub addresses: Vec<(IpAddr, u8)>,
    /// MAC address, given or derived.
    pub mac: [u8; 6],
    /// Bytes of the largest IP packet.
    pub mtu: u32,
    /// What carries its packets.
    pub port: PortSpec,
    /// Packets that its rings hold.
    pub rings: Rings,
    /// When its responders acknowledge.
    pub ack_policy: AckPolicy,
    /// How its requesters time their retries.
    pub retransmission: Retransmission,
    /// Which memory of programs may be mapped.
    pub memory: MemoryPolicy,
    /// Its LID; 0 for none.
    pub lid: u16,
    /// The lcores that serve it, each a part of its contexts; at least one. The first one has its port.
    pub lcores: Vec<usize>,
    /// Routers to hosts outside of its subnets, one for each family at most.
    pub gateways: Vec<IpAddr>,
    /// `[[nic.neighbor]]`: hosts beyond the port.
    pub neighbours: Vec<(IpAddr, [u8; 6])>,
    /// Congestion control and pauses.
    pub congestion: Settings,
}

/// What carries a NIC's packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortSpec {
    /// A port of the switch of this name, or else one end of the emulated link of this name; the NIC with the same name has
    /// the other.
    Fabric(String),
    /// A virtual device of DPDK: the text after `--vdev=`.
    Vdev(String),
    /// A PCI device: the text after `--allow=`, its address in full.
    Pci(String),
}

/// `[limits]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Send requests of a program that one poll reads.
    pub requests_per_poll: u32,
    /// Objects and bytes.
    pub quotas: Quotas,
}

/// `[control]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketConfig {
    /// Where the control socket is; `None` means the default place.
    pub socket: Option<PathBuf>,
    /// Permission bits of the socket.
    pub mode: u32,
    /// Users who may open devices, besides root and the daemon's own user; `None` means everybody whom the
    /// permission bits let in.
    pub users: Option<Vec<u32>>,
    /// Users who may change what the daemon does and see others' packets, besides root and the daemon's own user.
    pub operators: Vec<u32>,
}

impl Config {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<(Config, String), ConfigError> {
        let label = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            file: label.clone(),
            source,
        })?;
        let base = path.parent().unwrap_or(Path::new("."));
        Ok((Config::parse_in(base, &label, &text)?, text))
    }

    /// Checks a text; `label` names it in errors. Files are named from the working directory.
    pub fn parse(label: &str, text: &str) -> Result<Config, ConfigError> {
        Config::parse_in(Path::new("."), label, text)
    }

    fn parse_in(base: &Path, label: &str, text: &str) -> Result<Config, ConfigError> {
        let raw = file::parse(label, text)?;
        check::Checker::new(label, text, base, allowed_cpus()).check(raw)
    }

    /// Who is joined to whom.
    pub fn wiring(&self) -> Wiring {
        wiring(&self.nics)
    }

    /// A built-in configuration.
    pub fn preset(preset: Preset) -> Result<Config, ConfigError> {
        Config::parse(&preset.label(), preset.text())
    }
}

fn wiring(nics: &[NicConfig]) -> Wiring {
    Wiring::new(nics.iter().map(|nic| match &nic.port {
        PortSpec::Fabric(link) => (nic.name.as_str(), Some(link.as_str())),
        PortSpec::Vdev(_) | PortSpec::Pci(_) => (nic.name.as_str(), None),
    }))
}

/// The CPUs that this process may run on, ascending.
pub fn allowed_cpus() -> Vec<usize> {
    let mut cpus: Vec<usize> = core_affinity::get_core_ids()
        .unwrap_or_default()
        .iter()
        .map(|core| core.id)
        .collect();
    cpus.sort_unstable();
    cpus
}
