//! What a NIC knows of its network without asking: from the configuration, and, as addresses of NICs come and go, from orders.

use std::collections::BTreeMap;
use std::net::IpAddr;

use roceline_engine::wire::ethernet::Mac;

/// A MAC address that needs no asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    /// The MAC address.
    pub mac: Mac,
    /// It stands in the configuration; otherwise it is a NIC of this daemon on the same link.
    pub configured: bool,
}

impl Known {
    /// Where it is from, in a word.
    pub fn source(&self) -> &'static str {
        match self.configured {
            true => "static",
            false => "link",
        }
    }
}

/// A NIC's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Name of the device.
    pub name: String,
    /// Its MAC address.
    pub mac: Mac,
    /// Its addresses with prefix lengths, link-local ones among them.
    pub addrs: Vec<(IpAddr, u8)>,
    /// Routers to everybody else, one for each family at most.
    pub gateways: Vec<IpAddr>,
    /// Behind its port are others, to be asked; otherwise it is on an emulated link with NICs that are all known.
    pub wired: bool,
    /// What needs no asking: itself, NICs on the same emulated link, static neighbours, which win.
    pub known: BTreeMap<IpAddr, Known>,
    /// NICs on the same emulated link, by their indices, this one among them.
    pub peers: Vec<u32>,
}

/// Where packets for an address go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// There.
    Known(Mac),
    /// To whoever has this address: the destination's, or a router's.
    Ask(IpAddr),
    /// Nowhere: everybody on the link is known, and it is none of them.
    Nobody,
    /// Nowhere: no subnet, no gateway.
    NoRoute,
}

impl Network {
    /// Where packets for `address` go.
    pub fn next_hop(&self, address: IpAddr) -> NextHop {
        if let Some(known) = self.known.get(&address) {
            return NextHop::Known(known.mac);
        }
        if !self.wired {
            return NextHop::Nobody;
        }
        if self.is_on_link(address) {
            return NextHop::Ask(address);
        }
        let router = self
            .gateways
            .iter()
            .find(|router| router.is_ipv4() == address.is_ipv4());
        match router {
            None => NextHop::NoRoute,
            Some(router) => match self.known.get(router) {
                Some(known) => NextHop::Known(known.mac),
                None => NextHop::Ask(*router),
            },
        }
    }

    /// Whether an address is in a subnet of this NIC.
    pub fn is_on_link(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => true,
            _ => self.subnet_of(address).is_some(),
        }
    }

    /// Whether an address is this NIC's own.
    pub fn is_own(&self, address: IpAddr) -> bool {
        self.addrs.iter().any(|&(own, _)| own == address)
    }

    /// A NIC on the link, or this one, has an address from now on.
    pub fn learn(&mut self, ip: IpAddr, mac: Mac) {
        let from_nic = Known {
            mac,
            configured: false,
        };
        self.known.entry(ip).or_insert(from_nic);
    }

    /// A NIC on the link has an address no longer.
    pub fn forget(&mut self, ip: IpAddr) {
        if self.known.get(&ip).is_some_and(|known| !known.configured) {
            self.known.remove(&ip);
        }
    }

    /// As what the configuration names an address, if it does.
    pub fn named(&self, address: IpAddr) -> Option<&'static str> {
        let neighbour = self
            .known
            .get(&address)
            .is_some_and(|known| known.configured);
        match neighbour {
            true => Some("a `[[nic.neighbor]]`"),
            false => self.gateways.contains(&address).then_some("the `gateway`"),
        }
    }

    /// The own address to ask `target` from: that of its subnet, if there is one, else any of its family.
    pub fn source_for(&self, target: IpAddr) -> Option<IpAddr> {
        let family = |own: &IpAddr| own.is_ipv4() == target.is_ipv4();
        self.subnet_of(target)
            .or_else(|| self.addrs.iter().map(|&(own, _)| own).find(family))
    }

    /// The own address whose subnet has `address` in it.
    fn subnet_of(&self, address: IpAddr) -> Option<IpAddr> {
        self.addrs
            .iter()
            .find(|&&(own, prefix)| same_subnet(own, address, prefix))
            .map(|&(own, _)| own)
    }

    /// Its subnets, for people.
    pub fn subnets(&self) -> String {
        let all: Vec<String> = self
            .addrs
            .iter()
            .map(|(own, prefix)| format!("{own}/{prefix}"))
            .collect();
        all.join(", ")
    }
}

/// Whether the first `prefix` bits of two addresses of one family are the same.
pub fn same_subnet(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let (a, b, bits) = match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u128::from(u32::from(a)), u128::from(u32::from(b)), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a), u128::from(b), 128),
        _ => return false,
    };
    let host_bits = u32::saturating_sub(bits, prefix.into());
    // A shift by all 128 bits is none in Rust: no bit of the prefix is left to differ then.
    (a ^ b).checked_shr(host_bits).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn network() -> Network {
        let statics = [("10.78.0.7", 7), ("192.168.0.1", 8)];
        Network {
            name: "roce0".into(),
            mac: [2, 0, 0, 0, 0, 1],
            addrs: vec![
                (ip("10.78.0.1"), 24),
                (ip("fd78::1"), 64),
                (ip("fe80::1"), 64),
            ],
            gateways: vec![ip("10.78.0.254")],
            wired: true,
            known: statics
                .map(|(text, last)| {
                    let known = Known {
                        mac: [2, 0, 0, 0, 0, last],
                        configured: true,
                    };
                    (ip(text), known)
                })
                .into(),
            peers: vec![],
        }
    }

    #[test]
    fn next_hops() {
        let mut net = network();
        let hop = |net: &Network, text: &str| net.next_hop(ip(text));
        let ask = |text: &str| NextHop::Ask(ip(text));
        assert_eq!(hop(&net, "10.78.0.9"), ask("10.78.0.9"));
        assert_eq!(hop(&net, "fd78::9"), ask("fd78::9"));
        assert_eq!(hop(&net, "fe80::9"), ask("fe80::9"));
        let known = |last| NextHop::Known([2, 0, 0, 0, 0, last]);
        assert_eq!(hop(&net, "10.78.0.7"), known(7), "static entries win");
        assert_eq!(hop(&net, "192.168.0.1"), known(8), "also off-link");
        assert_eq!(hop(&net, "10.79.0.9"), ask("10.78.0.254"));
        assert_eq!(hop(&net, "fd79::9"), NextHop::NoRoute);
        net.gateways = vec![ip("10.78.0.7")];
        assert_eq!(hop(&net, "10.79.0.9"), known(7), "a static gateway");
        net.wired = false;
        assert_eq!(hop(&net, "10.78.0.9"), NextHop::Nobody);
    }

    #[test]
    fn addresses_of_nics_come_and_go_and_those_of_the_configuration_stay() {
        let mut net = network();
        let mac = [2, 0, 0, 0, 0, 9];
        let known = |net: &Network, text: &str| net.known.get(&ip(text)).map(|known| known.mac[5]);
        net.learn(ip("10.78.0.9"), mac);
        net.learn(ip("10.78.0.7"), mac);
        assert_eq!(known(&net, "10.78.0.9"), Some(9));
        assert_eq!(known(&net, "10.78.0.7"), Some(7), "static entries win");
        net.forget(ip("10.78.0.9"));
        net.forget(ip("10.78.0.7"));
        assert_eq!(known(&net, "10.78.0.9"), None);
        assert_eq!(known(&net, "10.78.0.7"), Some(7));
        assert!(net.named(ip("10.78.0.7")).is_some() && net.named(ip("10.78.0.254")).is_some());
        assert_eq!(net.named(ip("10.78.0.9")), None);
    }

    #[test]
    fn sources_are_of_the_targets_subnet() {
        let net = network();
        let source = |text: &str| net.source_for(ip(text));
        assert_eq!(source("fe80::9"), Some(ip("fe80::1")));
        assert_eq!(source("fd78::9"), Some(ip("fd78::1")));
        assert_eq!(source("10.99.0.1"), Some(ip("10.78.0.1")));
    }

    #[test]
    fn prefixes() {
        let same = |a: &str, b: &str, bits| same_subnet(ip(a), ip(b), bits);
        assert!(same("10.0.0.1", "10.0.0.254", 24) && !same("10.0.0.1", "10.0.1.1", 24));
        assert!(same("10.0.0.1", "192.168.0.1", 0) && !same("10.0.0.1", "10.0.0.2", 32));
        assert!(same("fd00::1", "fe00::1", 0) && same("fd00::1", "fd00::1", 128));
        assert!(!same("fd00::1", "10.0.0.1", 0));
    }
}
