//! The answers, as both ends know them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Answer to [`Query::Ready`]: the daemon serves its devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyReply {
    /// Always true: a daemon that is not ready does not answer, or answers with an error.
    pub ready: bool,
    /// Names of the devices.
    pub devices: Vec<String>,
}

/// Answer to [`Query::Version`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionReply {
    /// Of the daemon.
    pub version: String,
    /// Of the protocol between shim and daemon.
    pub protocol: u32,
    /// Process of the daemon that serves the devices now.
    pub pid: u32,
    /// Processes that served them before: each died, and with it the devices that were open then.
    #[serde(default)]
    pub restarts: u32,
    /// How the last of those ended.
    #[serde(default)]
    pub last_end: Option<String>,
    /// Why whoever asks may not open devices.
    #[serde(default)]
    pub refused: Option<String>,
}

impl VersionReply {
    /// A sentence about processes that died; none if there were none.
    pub fn restarted(&self) -> Option<String> {
        let times = match self.restarts {
            0 => return None,
            1 => "once".into(),
            n => format!("{n} times"),
        };
        let how = self.last_end.as_deref().unwrap_or("unknown");
        Some(format!(
            "the daemon's process died and was started again {times} (last end: {how}); devices that were open then are \
             lost, new opens work; the daemon's log says more"
        ))
    }
}

/// Answer to [`Query::Devices`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicesReply {
    /// By index.
    pub devices: Vec<Device>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// `roce0`.
    pub name: String,
    /// Its place in the configuration, from 0.
    pub index: u32,
    /// `uverbs0`.
    pub uverbs: String,
    /// Node GUID as sysfs prints it.
    pub node_guid: String,
    /// MAC.
    pub mac: String,
    /// Addresses with prefix length, without that which only follows from the MAC address.
    pub addrs: Vec<String>,
    /// GID table: the entries that are not empty.
    pub gids: Vec<GidLine>,
    /// MTU of the port.
    pub mtu: u32,
    /// Largest path MTU.
    pub active_mtu: u32,
    /// Opens of the device.
    pub contexts: u32,
    /// Protection domains.
    pub pds: u32,
    /// Completion queues.
    pub cqs: u32,
    /// Memory windows.
    pub mws: u32,
    /// Shared receive queues.
    pub srqs: u32,
    /// Address handles.
    pub ahs: u32,
    /// Multicast groups with members.
    pub mcast_groups: u32,
    /// Queue pairs.
    pub qps: u32,
    /// Memory regions.
    pub mrs: u32,
}

/// An entry of a GID table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GidLine {
    /// Index: what `-x` of perftest and `-g` of the pingpongs mean.
    pub index: u32,
    /// The GID as sysfs prints it.
    pub gid: String,
    /// The same as an address.
    pub address: String,
    /// `RoCE v2`.
    #[serde(rename = "type")]
    pub kind: String,
}

/// Answer to [`Query::Ports`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortsReply {
    /// One for each device.
    pub ports: Vec<Port>,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Its device.
    pub device: String,
    /// 1.
    pub port: u32,
    /// `ACTIVE`, or `DOWN` without a link.
    pub state: String,
    /// It is down since somebody said so: `roceline link down`.
    #[serde(default)]
    pub ordered_down: bool,
    /// Which pauses are on: `off`, `pfc`, `global`, the last two `by the hardware` where the port's driver does it.
    #[serde(default)]
    pub pauses: String,
    /// MAC.
    pub mac: String,
    /// MTU: bytes of an IP packet.
    pub mtu: u32,
    /// Impairment rules at its sides, and on the link in the direction from it.
    #[serde(default)]
    pub rules: usize,
    /// Packets, bytes, drops and their causes.
    pub counters: BTreeMap<String, u64>,
}

/// Answer to [`Query::Qps`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QpsReply {
    /// By device and number.
    pub qps: Vec<Qp>,
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qp {
    /// Its device.
    pub device: String,
    /// Its transport: `RC`, `UC` or `UD`.
    #[serde(default)]
    pub transport: String,
    /// Number.
    pub qpn: u32,
    /// State.
    pub state: String,
    /// Its program.
    pub pid: u32,
    /// The peer's address.
    pub remote: String,
    /// The peer's number.
    pub remote_qpn: u32,
    /// Next PSN to send.
    pub sq_psn: u32,
    /// Next PSN expected.
    pub rq_psn: u32,
    /// What congestion control allows it, in bits per second: line rate where nothing holds it back.
    #[serde(default)]
    pub rate: u64,
    /// What was counted for it since it was created, under the names of `hw_counters`; those that are not there are 0.
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
}

#[cfg(test)]
impl Qp {
    /// A connected one that has not counted anything.
    pub fn sample(device: &str, qpn: u32) -> Qp {
        Qp {
            transport: "RC".into(),
            device: device.into(),
            qpn,
            state: "RTS".into(),
            pid: 1,
            remote: "10.0.0.2".into(),
            remote_qpn: 3,
            sq_psn: 0,
            rq_psn: 0,
            rate: 0,
            counters: BTreeMap::new(),
        }
    }
}

/// Answer to [`Query::Mrs`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MrsReply {
    /// By device and key.
    pub mrs: Vec<Mr>,
}

/// A memory region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mr {
    /// Its device.
    pub device: String,
    /// Local key.
    pub lkey: u32,
    /// Its program.
    pub pid: u32,
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Bits of `enum ibv_access_flags`.
    pub access: u32,
    /// How its memory is reached.
    pub reach: String,
}

/// Answer to [`Query::Stat`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatReply {
    /// By index.
    pub devices: Vec<DeviceStat>,
    /// Ports of switches, by the name of the switch and of what is beyond: their counters are in `port`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub switches: Vec<DeviceStat>,
}

/// Counters of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceStat {
    /// Its name.
    pub name: String,
    /// Transport counters under the names of mlx5's `hw_counters`.
    pub hw_counters: BTreeMap<String, u64>,
    /// Port counters under the names of the `counters` folder in sysfs; `port_*_data` in words of 4 bytes.
    pub counters: BTreeMap<String, u64>,
    /// Pauses and priorities under the names that `ethtool -S` shows for an mlx5 port.
    #[serde(default)]
    pub ethtool: BTreeMap<String, u64>,
    /// Counters of the port driver: packets, bytes, drops and their causes.
    pub port: BTreeMap<String, u64>,
}

/// Answer to [`Query::Lcores`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LcoresReply {
    /// By number.
    pub lcores: Vec<Lcore>,
}

/// The devices that some lcores serve, each once: several may serve one.
pub fn devices(lcores: &[Lcore]) -> Vec<&str> {
    let mut all: Vec<&str> = Vec::new();
    for device in lcores.iter().flat_map(|lcore| &lcore.devices) {
        if !all.contains(&device.as_str()) {
            all.push(device);
        }
    }
    all
}

/// A poll loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lcore {
    /// Number.
    pub lcore: u32,
    /// CPU it is pinned to, if any.
    pub cpu: Option<usize>,
    /// Devices that it serves, alone or with others.
    pub devices: Vec<String>,
    /// Polls made.
    pub polls: u64,
    /// Polls that found nothing.
    pub empty_polls: u64,
    /// Times it slept.
    pub sleeps: u64,
    /// Microseconds during which the kernel kept it from running, and its clock stood still.
    pub lost_us: u64,
}
