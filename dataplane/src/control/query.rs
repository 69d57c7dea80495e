//! Questions of the command line and their answers, as JSON. The structs are what both ends agree on: the
//! session encodes them, the command line decodes them.
//!
//! `{"query":"stat"}` gives a [`StatReply`], and so on: each [`Query`] names its reply.

use std::collections::BTreeMap;

use roceline_abi::PROTOCOL_VERSION;
use roceline_engine::wire::Gid;
use serde::{Deserialize, Serialize};

use super::congestion::Pairs;
use super::counters::{NicCounters, of_qp};
use super::error::CommandError;
use super::seqpacket::Peer;
use super::server::Shared;
use super::{congestion, limits, neighbours, post_mortem, programs};
use crate::fabric::report::FabricReport;
use crate::impair::Spec;
use crate::lcore::message::{Command, ContextId, Cursor, PostMortemReport, Reply, Snapshot};
use crate::nic::NicInfo;

/// A question, or, for operators, an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "query", rename_all = "lowercase")]
pub enum Query {
    /// Do the lcores answer? -> [`ReadyReply`]
    Ready,
    /// -> [`DevicesReply`]
    Devices,
    /// -> [`QpsReply`]
    Qps,
    /// -> [`MrsReply`]
    Mrs,
    /// -> [`PortsReply`]
    Ports,
    /// -> [`StatReply`]
    Stat,
    /// -> [`VersionReply`]
    Version,
    /// -> [`LcoresReply`]
    Lcores,
    /// What programs have, and may have. -> [`ProgramsReply`](super::programs::ProgramsReply)
    Programs,
    /// Who is where. -> [`NeighboursReply`](super::neighbours::NeighboursReply)
    Neighbours,
    /// Switches. -> [`FabricReport`](crate::fabric::report::FabricReport)
    Fabric,
    /// Queue pairs that failed. -> [`PostMortemsReply`](super::post_mortem::PostMortemsReply)
    PostMortems,
    /// The rules and their counts. -> [`ImpairReply`](super::impair::ImpairReply)
    Impair,
    /// Adds a rule. -> [`AddedReply`](super::impair::AddedReply)
    #[serde(rename = "impair-add")]
    ImpairAdd {
        /// Its keys and values.
        rule: Spec,
    },
    /// Removes rules. -> [`RemovedReply`](super::impair::RemovedReply)
    #[serde(rename = "impair-remove")]
    ImpairRemove {
        /// Numbers or names.
        rules: Vec<String>,
    },
    /// Removes all rules. -> [`RemovedReply`](super::impair::RemovedReply)
    #[serde(rename = "impair-clear")]
    ImpairClear,
    /// What congestion control goes by. -> [`CongestionReply`](super::congestion::CongestionReply)
    Congestion {
        /// Device name; of all if there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
    },
    /// Changes it, all of it or nothing. -> [`CongestionReply`](super::congestion::CongestionReply)
    #[serde(rename = "congestion-set")]
    CongestionSet {
        /// Device name; all if there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
        /// Keys and values.
        settings: Pairs,
    },
    /// Takes a link down, or up again. -> [`PortsReply`]
    Link {
        /// Device name.
        device: String,
        /// Up.
        up: bool,
    },
}

impl Query {
    /// What only operators may do, as the end of "may not".
    fn order(&self) -> Option<&'static str> {
        match self {
            Query::ImpairAdd { .. } | Query::ImpairRemove { .. } | Query::ImpairClear => {
                Some("change impairments")
            }
            Query::Link { .. } => Some("take links down or up"),
            Query::CongestionSet { .. } => Some("change congestion control"),
            _ => None,
        }
    }
}

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
    /// Addresses with prefix length, in config order.
    pub addrs: Vec<String>,
    /// GID table.
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

/// A poll loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lcore {
    /// Number.
    pub lcore: u32,
    /// CPU it is pinned to, if any.
    pub cpu: Option<usize>,
    /// Devices that it owns.
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

/// Answers a question with JSON text.
pub(super) fn answer(shared: &Shared, peer: Peer, payload: &[u8]) -> Result<Vec<u8>, CommandError> {
    let query: Query =
        serde_json::from_slice(payload).map_err(|e| CommandError::Query(e.to_string()))?;
    if let Some(what) = query.order().filter(|_| !shared.may_operate(peer.uid)) {
        return Err(CommandError::NotOperator {
            uid: peer.uid,
            what,
        });
    }
    let nics = &shared.config.nics;
    match query {
        Query::Ready => {
            counted(shared)?;
            let devices = nics.iter().map(|nic| nic.name.clone()).collect();
            json(&ReadyReply {
                ready: true,
                devices,
            })
        }
        Query::Version => json(&VersionReply {
            version: env!("CARGO_PKG_VERSION").into(),
            protocol: PROTOCOL_VERSION.into(),
            pid: std::process::id(),
            restarts: shared.config.restarts,
            last_end: shared.config.last_end.clone(),
        }),
        Query::Devices => {
            let all = snapshots(shared)?;
            json(&DevicesReply {
                devices: nics.iter().map(|nic| device(nic, &all)).collect(),
            })
        }
        Query::Ports => json(&ports(shared)?),
        Query::Stat => {
            let all = counted(shared)?;
            json(&StatReply {
                devices: nics
                    .iter()
                    .map(|nic| {
                        let mut stat = stat(nic, &all);
                        stat.port.extend(neighbour_counters(shared, nic));
                        stat
                    })
                    .collect(),
            })
        }
        Query::Qps => json(&QpsReply {
            qps: qps(&snapshots(shared)?),
        }),
        Query::Mrs => json(&MrsReply {
            mrs: mrs(&snapshots(shared)?),
        }),
        Query::Programs => json(&programs::reply(shared)),
        Query::PostMortems => {
            let refused = shared.refused_qps.list();
            json(&post_mortem::reply(&post_mortems(shared)?, refused))
        }
        Query::Lcores => json(&LcoresReply {
            lcores: lcores(&counted(shared)?),
        }),
        Query::Fabric => json(&fabric(shared)?),
        Query::Neighbours => json(&neighbours::reply(shared)),
        Query::Impair => json(&shared.impairments.list(shared)?),
        Query::ImpairAdd { rule } => json(&shared.impairments.add(shared, rule)?),
        Query::ImpairRemove { rules } => json(&shared.impairments.remove(shared, &rules)?),
        Query::ImpairClear => json(&shared.impairments.clear(shared)?),
        Query::Congestion { device } => json(&congestion::reply(shared, device.as_deref())?),
        Query::CongestionSet { device, settings } => {
            json(&congestion::set(shared, device.as_deref(), &settings)?)
        }
        Query::Link { device, up } => json(&link(shared, device, up)?),
    }
}

fn json(reply: &impl Serialize) -> Result<Vec<u8>, CommandError> {
    serde_json::to_vec(reply).map_err(|e| CommandError::Query(e.to_string()))
}

/// The switches of all lcores.
fn fabric(shared: &Shared) -> Result<FabricReport, CommandError> {
    let mut all = FabricReport::default();
    for nic in shared.first_nic_of_each_lcore() {
        match shared.ask(nic, ContextId(0), Command::Fabric)? {
            Reply::Fabric(report) => all.switches.extend(report.switches),
            other => return Err(CommandError::BadAnswer("Fabric", format!("{other:?}"))),
        }
    }
    Ok(all)
}

/// What all lcores keep of queue pairs that failed.
fn post_mortems(shared: &Shared) -> Result<Vec<PostMortemReport>, CommandError> {
    let mut all = Vec::new();
    for nic in shared.first_nic_of_each_lcore() {
        match shared.ask(nic, ContextId(0), Command::PostMortems)? {
            Reply::PostMortems(reports) => all.extend(reports),
            other => return Err(CommandError::BadAnswer("PostMortems", format!("{other:?}"))),
        }
    }
    Ok(all)
}

/// What each lcore owns, by its number.
fn snapshots(shared: &Shared) -> Result<Vec<(u32, Snapshot)>, CommandError> {
    let mut all = Vec::new();
    for nic in shared.first_nic_of_each_lcore() {
        let part = |from| snapshot(shared, nic, Command::Snapshot(from));
        let mut whole = part(Cursor::default())?;
        while let Some(from) = whole.more {
            // Between two parts the lcore does other things: what is made or freed meanwhile is in it or not.
            let next = part(from)?;
            whole.qps.extend(next.qps);
            whole.mrs.extend(next.mrs);
            whole.more = next.more;
        }
        all.push((shared.lcores.owner(nic), whole));
    }
    Ok(all)
}

fn snapshot(shared: &Shared, nic: u32, command: Command) -> Result<Snapshot, CommandError> {
    let _turn = shared.questions.take();
    match shared.ask(nic, ContextId(0), command)? {
        Reply::Snapshot(snapshot) => Ok(*snapshot),
        other => Err(CommandError::BadAnswer("Snapshot", format!("{other:?}"))),
    }
}

/// What the NICs of each lcore have counted, by its number.
fn counted(shared: &Shared) -> Result<Vec<(u32, Snapshot)>, CommandError> {
    shared
        .first_nic_of_each_lcore()
        .into_iter()
        .map(|nic| {
            let counted = snapshot(shared, nic, Command::Counters)?;
            Ok((shared.lcores.owner(nic), counted))
        })
        .collect()
}

fn device(nic: &NicInfo, all: &[(u32, Snapshot)]) -> Device {
    let parts = || {
        all.iter()
            .flat_map(|(_, s)| &s.nics)
            .filter(|n| n.name == nic.name)
    };
    Device {
        name: nic.name.clone(),
        index: nic.index,
        uverbs: format!("uverbs{}", nic.uverbs),
        node_guid: hex_groups(&nic.node_guid),
        mac: mac(nic.mac),
        addrs: nic
            .addrs
            .iter()
            .map(|(ip, prefix)| format!("{ip}/{prefix}"))
            .collect(),
        gids: (0..)
            .zip(&nic.gids)
            .map(|(index, entry)| gid_line(index, entry.gid))
            .collect(),
        mtu: nic.port_mtu,
        active_mtu: nic.active_mtu.bytes(),
        contexts: parts().map(|n| n.contexts).sum(),
        pds: parts().map(|n| n.pds).sum(),
        cqs: parts().map(|n| n.cqs).sum(),
        mws: parts().map(|n| n.mws).sum(),
        srqs: parts().map(|n| n.srqs).sum(),
        ahs: parts().map(|n| n.ahs).sum(),
        mcast_groups: parts().map(|n| n.mcast_groups).sum(),
        qps: parts().map(|n| n.qps).sum(),
        mrs: parts().map(|n| n.mrs).sum(),
    }
}

fn gid_line(index: u32, gid: Gid) -> GidLine {
    GidLine {
        index,
        gid: hex_groups(&gid.0),
        address: gid.to_ip().to_string(),
        kind: "RoCE v2".into(),
    }
}

/// `fe80:0000:...`: two bytes a group, as sysfs prints GIDs and GUIDs.
fn hex_groups(bytes: &[u8]) -> String {
    let group = |pair: &[u8]| pair.iter().map(|b| format!("{b:02x}")).collect::<String>();
    bytes.chunks(2).map(group).collect::<Vec<_>>().join(":")
}

pub(super) fn mac(mac: [u8; 6]) -> String {
    mac.map(|b| format!("{b:02x}")).join(":")
}

/// A NIC's counters: those of sysfs, and of the port driver.
fn counters(nic: &NicInfo, all: &[(u32, Snapshot)]) -> (NicCounters, BTreeMap<String, u64>) {
    let mut counters = NicCounters::default();
    let mut port = BTreeMap::new();
    for part in all
        .iter()
        .flat_map(|(_, s)| &s.nics)
        .filter(|n| n.name == nic.name)
    {
        counters.add(part);
        for (name, value) in &part.port {
            let sum: &mut u64 = port.entry((*name).to_string()).or_default();
            *sum = sum.wrapping_add(*value);
        }
    }
    (counters, port)
}

fn ports(shared: &Shared) -> Result<PortsReply, CommandError> {
    let all = counted(shared)?;
    let nics = shared.config.nics.iter();
    Ok(PortsReply {
        ports: nics
            .map(|nic| {
                let rules = shared.impairments.count(nic.index);
                let mut port = port(nic, rules, &all);
                port.counters.extend(neighbour_counters(shared, nic));
                port
            })
            .collect(),
    })
}

/// Takes a link down or up; how all ports are then.
fn link(shared: &Shared, device: String, up: bool) -> Result<PortsReply, CommandError> {
    let found = shared.config.nics.iter().find(|nic| nic.name == device);
    let nic = found.ok_or(CommandError::Device(device))?.index;
    match shared.ask(nic, ContextId(0), Command::SetLink { nic, up })? {
        Reply::Done => ports(shared),
        other => Err(CommandError::BadAnswer("SetLink", format!("{other:?}"))),
    }
}

/// What neighbour resolution counted, among what the port did.
fn neighbour_counters(shared: &Shared, nic: &NicInfo) -> impl Iterator<Item = (String, u64)> {
    let counters = shared.config.neighbours.counters(nic.index as usize);
    counters.map(|(name, value)| (name.to_string(), value))
}

fn port(nic: &NicInfo, rules: usize, all: &[(u32, Snapshot)]) -> Port {
    Port {
        device: nic.name.clone(),
        port: limits::PORT.into(),
        state: if nic.link.is_up() {
            "ACTIVE".into()
        } else {
            "DOWN".into()
        },
        ordered_down: nic.link.is_ordered_down(),
        pauses: all
            .iter()
            .flat_map(|(_, s)| &s.nics)
            .find(|counted| counted.name == nic.name)
            .map_or_else(String::new, |counted| counted.pauses.into()),
        mac: mac(nic.mac),
        mtu: nic.port_mtu,
        rules,
        counters: counters(nic, all).1,
    }
}

fn stat(nic: &NicInfo, all: &[(u32, Snapshot)]) -> DeviceStat {
    let (sysfs, port) = counters(nic, all);
    let named = |list: &mut dyn Iterator<Item = (&'static str, u64)>| {
        list.map(|(name, value)| (name.into(), value)).collect()
    };
    DeviceStat {
        name: nic.name.clone(),
        hw_counters: named(&mut sysfs.hw()),
        counters: named(&mut sysfs.port()),
        ethtool: named(&mut sysfs.ethtool()),
        port,
    }
}

fn qps(all: &[(u32, Snapshot)]) -> Vec<Qp> {
    let mut qps: Vec<Qp> = all
        .iter()
        .flat_map(|(_, s)| &s.qps)
        .map(|qp| Qp {
            device: qp.device.clone(),
            transport: qp.transport.into(),
            qpn: qp.qpn,
            state: qp.state.clone(),
            pid: qp.pid,
            remote: qp.remote.clone(),
            remote_qpn: qp.remote_qpn,
            sq_psn: qp.sq_psn,
            rq_psn: qp.rq_psn,
            rate: qp.rate,
            counters: of_qp(&qp.counters)
                .filter(|(_, value)| *value != 0)
                .map(|(name, value)| (name.into(), value))
                .collect(),
        })
        .collect();
    qps.sort_by(|a, b| (&a.device, a.qpn).cmp(&(&b.device, b.qpn)));
    qps
}

fn mrs(all: &[(u32, Snapshot)]) -> Vec<Mr> {
    let mut mrs: Vec<Mr> = all
        .iter()
        .flat_map(|(_, s)| &s.mrs)
        .map(|mr| Mr {
            device: mr.device.clone(),
            lkey: mr.lkey,
            pid: mr.pid,
            addr: mr.addr,
            len: mr.len,
            access: mr.access,
            reach: mr.reach.into(),
        })
        .collect();
    mrs.sort_by(|a, b| (&a.device, a.lkey).cmp(&(&b.device, b.lkey)));
    mrs
}

fn lcores(all: &[(u32, Snapshot)]) -> Vec<Lcore> {
    all.iter()
        .map(|(number, s)| Lcore {
            lcore: *number,
            cpu: s.lcore.cpu,
            devices: s.nics.iter().map(|n| n.name.clone()).collect(),
            polls: s.lcore.polls,
            empty_polls: s.lcore.empty_polls,
            sleeps: s.lcore.sleeps,
            lost_us: s.lcore.lost_us,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::impair::Text;

    #[test]
    fn queries_have_the_documented_text() {
        for (query, text) in [
            (Query::Ready, r#"{"query":"ready"}"#),
            (Query::Devices, r#"{"query":"devices"}"#),
            (Query::Qps, r#"{"query":"qps"}"#),
            (Query::Mrs, r#"{"query":"mrs"}"#),
            (Query::Ports, r#"{"query":"ports"}"#),
            (Query::Stat, r#"{"query":"stat"}"#),
            (Query::Version, r#"{"query":"version"}"#),
            (Query::Lcores, r#"{"query":"lcores"}"#),
            (Query::Programs, r#"{"query":"programs"}"#),
            (Query::Neighbours, r#"{"query":"neighbours"}"#),
            (Query::Fabric, r#"{"query":"fabric"}"#),
            (Query::Impair, r#"{"query":"impair"}"#),
            (Query::ImpairClear, r#"{"query":"impair-clear"}"#),
            (
                Query::ImpairRemove {
                    rules: vec!["7".into()],
                },
                r#"{"query":"impair-remove","rules":["7"]}"#,
            ),
            (
                Query::Congestion { device: None },
                r#"{"query":"congestion"}"#,
            ),
            (
                Query::CongestionSet {
                    device: Some("roce0".into()),
                    settings: [("rpg_gd".into(), Text("10".into()))].into(),
                },
                r#"{"query":"congestion-set","device":"roce0","settings":{"rpg_gd":"10"}}"#,
            ),
            (Query::PostMortems, r#"{"query":"postmortems"}"#),
            (
                Query::Link {
                    device: "roce0".into(),
                    up: false,
                },
                r#"{"query":"link","device":"roce0","up":false}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&query).unwrap(), text);
            assert_eq!(serde_json::from_str::<Query>(text).unwrap(), query);
        }
        assert!(serde_json::from_str::<Query>(r#"{"query":"weather"}"#).is_err());
    }

    #[test]
    fn gids_and_macs_are_printed_as_sysfs_prints_them() {
        let gid = Gid::from_ip("10.77.0.1".parse().unwrap());
        let line = gid_line(0, gid);
        assert_eq!(line.gid, "0000:0000:0000:0000:0000:ffff:0a4d:0001");
        assert_eq!(line.address, "10.77.0.1");
        assert_eq!(mac([2, 0, 0, 0xab, 0, 1]), "02:00:00:ab:00:01");
    }
}
