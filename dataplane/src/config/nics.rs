//! What a NIC is, derived from its configuration: MAC, GUID, GID table, MTU, and who is where.

use std::net::{IpAddr, Ipv6Addr};

use roceline_engine::verbs::Mtu;
use roceline_engine::wire::Gid;

use super::{Config, NicConfig};
use crate::nic::{GidEntry, LinkState, Neighbours, NicInfo};

impl Config {
    /// The NICs in the order of their indices.
    pub fn nic_infos(&self) -> Vec<NicInfo> {
        (0..)
            .zip(&self.nics)
            .map(|(index, nic)| nic_info(index, nic))
            .collect()
    }

    /// Who is where: every NIC of this daemon, as every other and itself see it, and the neighbours that the
    /// configuration names, which win.
    pub fn neighbours(&self, infos: &[NicInfo]) -> Neighbours {
        let mut neighbours = Neighbours::default();
        for from in infos {
            for to in infos {
                for entry in &to.gids {
                    neighbours.by_nic.insert((from.index, entry.gid), to.mac);
                }
            }
        }
        for (info, nic) in infos.iter().zip(&self.nics) {
            for &(ip, mac) in &nic.neighbours {
                neighbours
                    .by_nic
                    .insert((info.index, Gid::from_ip(ip)), mac);
            }
        }
        neighbours
    }
}

fn nic_info(index: u32, nic: &NicConfig) -> NicInfo {
    NicInfo {
        index,
        uverbs: index,
        name: nic.name.clone(),
        mac: nic.mac,
        addrs: nic.addresses.clone(),
        gids: gid_table(nic),
        port_mtu: nic.mtu,
        active_mtu: Mtu::for_port(nic.mtu).unwrap_or(Mtu::M256),
        memory: nic.memory,
        node_guid: eui64(nic.mac),
        link: LinkState::default(),
    }
}

/// IPv4 first, so that index 0 is what programs want when they do not ask; link-local last, because it is what
/// they least want. Within a kind the order is that of the file.
fn gid_table(nic: &NicConfig) -> Vec<GidEntry> {
    let rank = |ip: &IpAddr| match ip {
        IpAddr::V4(_) => 0,
        IpAddr::V6(v6) if v6.is_unicast_link_local() => 2,
        IpAddr::V6(_) => 1,
    };
    let mut ips: Vec<IpAddr> = nic.addresses.iter().map(|&(ip, _)| ip).collect();
    let own = IpAddr::V6(link_local(nic.mac));
    if !ips.contains(&own) {
        ips.push(own);
    }
    ips.sort_by_key(rank);
    ips.into_iter()
        .map(|ip| GidEntry {
            gid: Gid::from_ip(ip),
        })
        .collect()
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

    fn pair() -> Config {
        Config::preset(Preset::Pair).expect("the preset is good")
    }

    fn gids(info: &NicInfo) -> Vec<String> {
        info.gids
            .iter()
            .map(|entry| entry.gid.to_ip().to_string())
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

    #[test]
    fn everybody_knows_everybody_and_themselves() {
        let config = pair();
        let infos = config.nic_infos();
        let neighbours = config.neighbours(&infos);
        for from in &infos {
            for to in &infos {
                for entry in &to.gids {
                    assert_eq!(neighbours.resolve(from.index, entry.gid), Some(to.mac));
                }
            }
        }
        let stranger = Gid::from_ip("10.77.0.9".parse().unwrap());
        assert_eq!(neighbours.resolve(0, stranger), None);
    }

    #[test]
    fn configured_neighbours_belong_to_their_nic_and_win() {
        let text = Preset::Pair.text().replace(
            "\n[[nic]]\nname = \"roce1\"",
            "[[nic.neighbor]]\nip = \"10.77.0.2\"\nmac = \"02:00:00:00:00:99\"\n\
             [[nic.neighbor]]\nip = \"10.77.0.9\"\nmac = \"02:00:00:00:00:09\"\n\
             [[nic]]\nname = \"roce1\"",
        );
        let config = Config::parse("f.toml", &text).unwrap();
        let neighbours = config.neighbours(&config.nic_infos());
        let gid = |ip: &str| Gid::from_ip(ip.parse().unwrap());
        assert_eq!(
            neighbours.resolve(0, gid("10.77.0.2")),
            Some([2, 0, 0, 0, 0, 0x99])
        );
        assert_eq!(
            neighbours.resolve(0, gid("10.77.0.9")),
            Some([2, 0, 0, 0, 0, 9])
        );
        assert_eq!(neighbours.resolve(1, gid("10.77.0.9")), None);
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
