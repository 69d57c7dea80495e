//! Answers made of what the lcores said.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use roceline_engine::wire::Gid;

use super::asked::counted;
use super::reply::*;
use crate::control::ask::Step;
use crate::control::counters::{NicCounters, of_qp};
use crate::control::error::CommandError;
use crate::control::limits;
use crate::control::server::Shared;
use crate::fabric::report::FabricReport;
use crate::lcore::message::{Command, Snapshot};
use crate::nic::NicInfo;

pub(super) fn device(nic: &NicInfo, all: &[(u32, Snapshot)]) -> Device {
    let parts = || {
        all.iter()
            .flat_map(|(_, s)| &s.nics)
            .filter(|n| n.name == nic.name)
    };
    let table = nic.addresses.now();
    Device {
        name: nic.name.clone(),
        index: nic.index,
        uverbs: format!("uverbs{}", nic.uverbs),
        node_guid: hex_groups(&nic.node_guid),
        mac: mac(nic.mac),
        addrs: table.given().map(ToString::to_string).collect(),
        gids: table
            .gids()
            .map(|(index, gid)| gid_line(index as u32, gid))
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

pub(super) fn gid_line(index: u32, gid: Gid) -> GidLine {
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

pub fn mac(mac: [u8; 6]) -> String {
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

pub(super) fn ports(shared: &Shared) -> Result<PortsReply, CommandError> {
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
pub(super) fn link(shared: &Shared, device: String, up: bool) -> Result<PortsReply, CommandError> {
    let found = shared.config.nics.iter().find(|nic| nic.name == device);
    let nic = found.ok_or(CommandError::Device(device))?;
    let alone = shared
        .link_orders
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let before = !nic.link.is_ordered_down();
    let parts = shared.parts([(nic.index, nic.index)]);
    shared.change(&parts, |&nic, step| Command::SetLink {
        nic,
        up: match step {
            Step::Make => up,
            Step::TakeBack => before,
        },
    })?;
    drop(alone);
    ports(shared)
}

/// What neighbour resolution counted, among what the port did.
pub(super) fn neighbour_counters(
    shared: &Shared,
    nic: &NicInfo,
) -> impl Iterator<Item = (String, u64)> {
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

pub(super) fn stat(nic: &NicInfo, all: &[(u32, Snapshot)]) -> DeviceStat {
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

/// Ports of switches as if they were devices.
pub(super) fn switches(fabric: &FabricReport) -> Vec<DeviceStat> {
    let ports = fabric.switches.iter();
    let ports = ports.flat_map(|switch| switch.ports.iter().map(move |port| (switch, port)));
    ports
        .map(|(switch, port)| DeviceStat {
            name: format!("{}:{}", switch.name, port.peer),
            hw_counters: BTreeMap::new(),
            counters: BTreeMap::new(),
            ethtool: BTreeMap::new(),
            port: port.counters().collect(),
        })
        .collect()
}

pub(super) fn qps(all: &[(u32, Snapshot)]) -> Vec<Qp> {
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

pub(super) fn mrs(all: &[(u32, Snapshot)]) -> Vec<Mr> {
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

pub(super) fn lcores(all: &[(u32, Snapshot)]) -> Vec<Lcore> {
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
