//! What a NIC is, derived from its configuration: MAC, GUID, GID table, MTU, and who is where.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use roceline_engine::verbs::Mtu;

use super::{Config, NicConfig, PortSpec};
use crate::addresses::{Address, Addresses, Origin, Table};
use crate::congestion::Live;
use crate::neighbour::{Known, Network};
use crate::nic::{LinkState, NicInfo};

impl Config {
    /// The NICs in the order of their indices.
    pub fn nic_infos(&self) -> Vec<NicInfo> {
        (0..)
            .zip(&self.nics)
            .map(|(index, nic)| nic_info(index, nic))
            .collect()
    }

    /// What each NIC knows without asking: itself, the NICs at the other ends of its emulated link or fabric, and the neighbours that the
    /// configuration names, which win.
    pub fn networks(&self, infos: &[NicInfo]) -> Vec<Network> {
        infos
            .iter()
            .zip(&self.nics)
            .map(|(info, nic)| self.network(info, nic, infos))
            .collect()
    }

    fn network(&self, info: &NicInfo, nic: &NicConfig, infos: &[NicInfo]) -> Network {
        let on_link = |other: &NicInfo, port: &PortSpec| {
            let link = match (&nic.port, port) {
                (PortSpec::Fabric(a), PortSpec::Fabric(b)) => a == b || self.fabric.reaches(a, b),
                _ => false,
            };
            link || other.index == info.index
        };
        let mut known = BTreeMap::new();
        let mut peers = Vec::new();
        let here = infos.iter().zip(&self.nics);
        for (to, _) in here.filter(|(to, other)| on_link(to, &other.port)) {
            peers.push(to.index);
            for (_, address) in to.addresses.now().iter() {
                let entry_known = Known {
                    mac: to.mac,
                    configured: false,
                };
                known.insert(address.ip, entry_known);
            }
        }
        for &(ip, mac) in &nic.neighbours {
            let configured = Known {
                mac,
                configured: true,
            };
            known.insert(ip, configured);
        }
        let own = IpAddr::V6(link_local(nic.mac));
        let mut addrs = nic.addresses.clone();
        if !addrs.iter().any(|&(ip, _)| ip == own) {
            addrs.push((own, 64));
        }
        Network {
            name: info.name.clone(),
            mac: info.mac,
            addrs,
            gateways: nic.gateways.clone(),
            wired: !matches!(nic.port, PortSpec::Fabric(_)),
            known,
            peers,
        }
    }
}

fn nic_info(index: u32, nic: &NicConfig) -> NicInfo {
    NicInfo {
        index,
        uverbs: index,
        name: nic.name.clone(),
        mac: nic.mac,
        addresses: Addresses::new(gid_table(nic)),
        port_mtu: nic.mtu,
        active_mtu: Mtu::for_port(nic.mtu).unwrap_or(Mtu::M256),
        memory: nic.memory,
        node_guid: eui64(nic.mac),
        lid: nic.lid,
        link: LinkState::default(),
        congestion: Live::new(nic.congestion),
    }
}

/// IPv4 first, so that index 0 is what programs want when they do not ask; link-local last, because it is what
/// they least want. Within a kind the order is that of the file.
fn gid_table(nic: &NicConfig) -> Table {
    let rank = |address: &Address| match address.ip {
        IpAddr::V4(_) => 0,
        IpAddr::V6(v6) if v6.is_unicast_link_local() => 2,
        IpAddr::V6(_) => 1,
    };
    let given = nic.addresses.iter();
    let given = given.map(|&(ip, prefix)| Address::configured(ip, prefix));
    let mut addresses: Vec<Address> = given.collect();
    let own = IpAddr::V6(link_local(nic.mac));
    if !addresses.iter().any(|address| address.ip == own) {
        addresses.push(Address {
            ip: own,
            prefix: 64,
            origin: Origin::Mac,
        });
    }
    addresses.sort_by_key(rank);
    addresses.into_iter().collect()
}

/// The EUI-64 of a MAC address with the universal/local bit inverted (RFC 4291 appendix A); on RoCE it is also
/// the node GUID.
pub fn eui64(mac: [u8; 6]) -> [u8; 8] {
    [
        mac[0] ^ 2,
        mac[1],
        mac[2],
        0xff,
        0xfe,
        mac[3],
        mac[4],
        mac[5],
    ]
}

/// The link-local address of a MAC address.
pub fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets[..2].copy_from_slice(&[0xfe, 0x80]);
    octets[8..].copy_from_slice(&eui64(mac));
    Ipv6Addr::from(octets)
}

/// The MAC address of a NIC that was given none: locally administered, `52:4c` for us, and three bytes
/// of its first address, so that two daemons on one wire differ and a person can tell them apart: those after
/// the first byte of an IPv4 address, a hash of an IPv6 address.
pub fn derived_mac(first: IpAddr) -> [u8; 6] {
    let [a, b, c] = match first {
        IpAddr::V4(v4) => {
            let [_, a, b, c] = v4.octets();
            [a, b, c]
        }
        IpAddr::V6(v6) => {
            let [a, b, c, d] = fnv1a(&v6.octets()).to_be_bytes();
            [a ^ d, b, c]
        }
    };
    [0x02, 0x52, 0x4c, a, b, c]
}

/// FNV-1a, 32 bits.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Preset;
    use crate::neighbour::NextHop;

    fn pair() -> Config {
        Config::preset(Preset::Pair).expect("the preset is good")
    }

    fn gids(info: &NicInfo) -> Vec<String> {
        let table = info.addresses.now();
        table
            .iter()
            .map(|(_, address)| address.ip.to_string())
            .collect()
    }

    #[test]
    fn the_pair_is_as_documented() {
        let infos = pair().nic_infos();
        let names: Vec<&str> = infos.iter().map(|info| info.name.as_str()).collect();
        assert_eq!(names, ["roce0", "roce1"]);
        assert_eq!(infos[1].index, 1);
        assert_eq!((infos[0].port_mtu, infos[0].active_mtu), (4200, Mtu::M4096));
        assert_eq!(infos[0].mac, [0x02, 0x52, 0x4c, 77, 0, 1]);
        assert_eq!(infos[0].node_guid, [0x00, 0x52, 0x4c, 0xff, 0xfe, 77, 0, 1]);
        assert_eq!(
            gids(&infos[0]),
            ["10.77.0.1", "fd77::1", "fe80::52:4cff:fe4d:1"]
        );
        assert_eq!(
            gids(&infos[1]),
            ["10.77.0.2", "fd77::2", "fe80::52:4cff:fe4d:2"]
        );
    }

    #[test]
    fn gids_are_ordered_by_kind_then_by_file() {
        let config = Config::parse(
            "f.toml",
            "[[nic]]\nname = \"a\"\nport = \"vdev:net_null0\"\nmac = \"02:00:00:00:00:01\"\n\
             addresses = [\"fe80::9/64\", \"fd00::2/64\", \"10.0.0.2/24\", \"fd00::1/64\", \"10.0.0.1/24\"]\n",
        )
        .unwrap();
        assert_eq!(
            gids(&config.nic_infos()[0]),
            [
                "10.0.0.2",
                "10.0.0.1",
                "fd00::2",
                "fd00::1",
                "fe80::9",
                "fe80::ff:fe00:1"
            ]
        );
    }

    #[test]
    fn a_configured_link_local_address_is_not_doubled() {
        let config = Config::parse(
            "f.toml",
            "[[nic]]\nname = \"a\"\nport = \"vdev:net_null0\"\nmac = \"02:00:00:00:00:01\"\n\
             addresses = [\"fe80::ff:fe00:1/64\"]\n",
        )
        .unwrap();
        assert_eq!(gids(&config.nic_infos()[0]), ["fe80::ff:fe00:1"]);
    }

    fn networks(text: &str) -> Vec<Network> {
        let config = Config::parse("f.toml", text).unwrap();
        config.networks(&config.nic_infos())
    }

    fn hop(network: &Network, ip: &str) -> NextHop {
        network.next_hop(ip.parse().unwrap())
    }

    #[test]
    fn nics_on_an_emulated_link_know_each_other_and_themselves() {
        let infos = pair().nic_infos();
        let networks = networks(Preset::Pair.text());
        for from in &networks {
            assert!(!from.wired);
            for to in &infos {
                for (_, address) in to.addresses.now().iter() {
                    let next = from.next_hop(address.ip);
                    assert_eq!(next, NextHop::Known(to.mac));
                }
            }
            assert_eq!(hop(from, "10.77.0.9"), NextHop::Nobody);
        }
    }

    #[test]
    fn nics_on_real_ports_ask_the_network_also_for_each_other() {
        let nic = |n: u32| {
            format!(
                "[[nic]]\nname = \"a{n}\"\nport = \"vdev:net_null{n}\"\naddresses = [\"10.0.0.{n}/24\"]\n"
            )
        };
        let networks = networks(&(nic(1) + &nic(2)));
        let other: IpAddr = "10.0.0.2".parse().unwrap();
        assert!(networks[0].wired);
        assert_eq!(networks[0].next_hop(other), NextHop::Ask(other));
        assert_eq!(
            hop(&networks[0], "10.0.0.1"),
            NextHop::Known(networks[0].mac),
            "itself"
        );
        assert!(networks[0].is_own(link_local(networks[0].mac).into()));
    }

    #[test]
    fn configured_neighbours_belong_to_their_nic_and_win() {
        let text = Preset::Pair.text().replace(
            "\n[[nic]]\nname = \"roce1\"",
            "[[nic.neighbor]]\nip = \"10.77.0.2\"\nmac = \"02:00:00:00:00:99\"\n\
             [[nic.neighbor]]\nip = \"10.77.0.9\"\nmac = \"02:00:00:00:00:09\"\n\
             [[nic]]\nname = \"roce1\"",
        );
        let networks = networks(&text);
        let known = |last| NextHop::Known([2, 0, 0, 0, 0, last]);
        assert_eq!(hop(&networks[0], "10.77.0.2"), known(0x99));
        assert_eq!(hop(&networks[0], "10.77.0.9"), known(9));
        assert_eq!(hop(&networks[1], "10.77.0.9"), NextHop::Nobody);
    }

    #[test]
    fn derived_macs_are_local_unicast_and_differ() {
        let mut macs: Vec<[u8; 6]> = ["10.77.0.1", "10.77.0.2", "10.77.1.1", "fd77::1", "fd77::2"]
            .iter()
            .map(|ip| derived_mac(ip.parse().unwrap()))
            .collect();
        assert!(macs.iter().all(|mac| mac[0] & 3 == 2));
        macs.sort_unstable();
        macs.dedup();
        assert_eq!(macs.len(), 5);
    }
}
