//! What a configuration needs of DPDK: EAL, packet buffers, ports, and the switches between them.

use std::collections::BTreeMap;
use std::sync::Arc;

use roceline_engine::EngineConfig;

use super::DaemonError;
use super::pools::Share;
use crate::config::{Config, Hugepages, NicConfig as ConfiguredNic, PortSpec};
use crate::control::DeviceLimits;
use crate::fabric::Fabric;
use crate::lcore::NicConfig;
use crate::nic::NicInfo;
use crate::port::spread::{PartOf, spread};
use crate::port::{
    Eal, EalConfig, Ethdev, EthdevConfig, FabricEnd, FabricLink, FabricLinkConfig, Huge, Port,
};

/// Packets that a requester may have unacknowledged.
const WINDOW: u32 = 256;

/// EAL as the configuration has it.
pub(super) fn eal_config(config: &Config) -> EalConfig {
    let specs = || config.nics.iter().map(|nic| &nic.port);
    EalConfig {
        huge: match config.eal.hugepages {
            Hugepages::Auto => Huge::Auto,
            Hugepages::Always => Huge::Always,
            Hugepages::Never => Huge::Never,
        },
        mem_mb: config.eal.memory_mb,
        single_file_segments: specs().any(|spec| match spec {
            PortSpec::Vdev(args) => {
                args.starts_with("net_vhost")
                    || args.starts_with("net_virtio_user")
                    || args.contains("zero-copy=yes")
            }
            _ => false,
        }),
        pci: specs()
            .filter_map(|spec| match spec {
                PortSpec::Pci(device) => Some(device.clone()),
                _ => None,
            })
            .collect(),
        extra_args: config.eal.args.clone(),
        ..EalConfig::default()
    }
}

/// The switches of a configuration, by lcore.
type Fabrics = BTreeMap<usize, Fabric>;

/// The ends of links for NICs, by NIC index.
type Ends = BTreeMap<u32, FabricEnd>;

/// What there is of switches, and what NICs have of it.
pub(super) fn fabrics(config: &Config, pools: &[Share]) -> Result<(Fabrics, Ends), DaemonError> {
    let plan = &config.fabric;
    let (mut fabrics, ends) = Fabric::split(plan, |lcore| Arc::clone(&pools[lcore].pool))?;
    for (n, station) in plan.stations.iter().enumerate() {
        let home = plan.switches[station.switch].lcore;
        if config.nics[station.nic as usize].lcores != [home] {
            if let Some(fabric) = fabrics.get_mut(&home) {
                fabric.apart(n);
            }
        }
    }
    let nics = plan.stations.iter().map(|station| station.nic);
    Ok((fabrics, nics.zip(ends).collect()))
}

/// Whether what is at the other end of a NIC's port is on another lcore than the NIC, or not in this process at all.
fn is_outside(config: &Config, nic: usize) -> bool {
    let own = &config.nics[nic];
    if !matches!(own.port, PortSpec::Fabric(_)) {
        return true;
    }
    let plan = &config.fabric;
    if let Some(station) = plan.stations.iter().find(|s| s.nic as usize == nic) {
        return own.lcores != [plan.switches[station.switch].lcore];
    }
    let joined = config.nics.iter().filter(|other| other.port == own.port);
    own.lcores.len() > 1 || joined.into_iter().any(|other| other.lcores != own.lcores)
}

/// The NICs of a configuration by their index, each in as many parts as lcores serve it.
pub(super) fn nics(
    config: &Config,
    infos: &[NicInfo],
    eal: &Eal,
    pools: &[Share],
    mut on_switches: BTreeMap<u32, FabricEnd>,
) -> Result<Vec<Vec<NicConfig>>, DaemonError> {
    let mut open_links: BTreeMap<&str, FabricEnd> = BTreeMap::new();
    let mut nics = Vec::new();
    for (index, (nic, info)) in config.nics.iter().zip(infos).enumerate() {
        let served = nic
            .lcores
            .iter()
            .map(|&lcore| Arc::clone(&pools[lcore].pool));
        let served: Vec<_> = served.collect();
        let mut more = Vec::new();
        let port = match &nic.port {
            PortSpec::Fabric(name) => {
                let on_switch = on_switches.remove(&info.index);
                let end = match on_switch.or_else(|| open_links.remove(name.as_str())) {
                    Some(end) => end,
                    None => {
                        let mut others = config.nics[index + 1..].iter();
                        let other = others.find(|other| other.port == nic.port).unwrap_or(nic);
                        let (ours, theirs) =
                            FabricLink::joined(&direction(nic), &direction(other))?;
                        open_links.insert(name, theirs);
                        ours
                    }
                };
                Port::new(end)
            }
            PortSpec::Vdev(name) | PortSpec::Pci(name) => {
                let config = EthdevConfig {
                    device: name.clone(),
                    promiscuous: filters_addresses(&nic.port),
                    rx_descriptors: nic.rings.rx as u16,
                    tx_descriptors: nic.rings.tx as u16,
                    ..EthdevConfig::default()
                };
                let (first, others) = Ethdev::open_for(eal, &served, &config)?;
                more = others.into_iter().map(Port::new).collect();
                Port::new(first)
            }
        };
        let up = port.link().up;
        info.link.set(up);
        let ports = match served.len() {
            1 => vec![port],
            _ => spread(std::iter::once(port).chain(more), nic.mac, &served).map_err(|source| {
                DaemonError::System {
                    what: "descriptors for a port",
                    source,
                }
            })?,
        };
        for port in &ports {
            tracing::info!(nic = nic.name, port = port.describe(), up, "port");
        }
        let parts = ports.len();
        let part = |(number, port)| {
            let part = PartOf::new(number, parts);
            NicConfig {
                info: Arc::new(info.clone()),
                port,
                polled: is_outside(config, index),
                engine: EngineConfig {
                    max_qps: 1 << 16,
                    max_mrs: DeviceLimits::default().all_mrs,
                    window: WINDOW,
                    ack_policy: nic.ack_policy,
                    retransmission: nic.retransmission,
                    owner: part.number,
                    owner_bits: part.bits,
                    congestion: info.congestion.now().congestion,
                    seed: (u64::from(part.number) << 32) | (u64::from(info.index) + 1),
                },
            }
        };
        nics.push(ports.into_iter().enumerate().map(part).collect());
    }
    Ok(nics)
}

/// The direction of an emulated link in which this NIC sends.
fn direction(nic: &ConfiguredNic) -> FabricLinkConfig {
    FabricLinkConfig {
        mtu: nic.mtu,
        capacity_packets: nic.rings.tx as usize,
        ..FabricLinkConfig::default()
    }
}

/// Whether what is behind the port passes on only frames for its own MAC address, which is not the NIC's, and for multicast
/// groups that somebody joined. Other virtual devices pass on everything.
fn filters_addresses(port: &PortSpec) -> bool {
    match port {
        PortSpec::Pci(_) => true,
        PortSpec::Vdev(args) => args.starts_with("net_af_packet"),
        PortSpec::Fabric(_) => false,
    }
}
