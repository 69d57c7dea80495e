//! RoCE v2 addresses: a GID is an IPv6 address, or an IPv4 address mapped into one.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A GID in wire order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID of an address.
    pub fn from_ip(ip: IpAddr) -> Gid {
        match ip {
            IpAddr::V4(v4) => Gid(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Gid(v6.octets()),
        }
    }
    /// The address of a GID.
    pub fn to_ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V4(v4),
            None => IpAddr::V6(v6),
        }
    }
    /// Its bytes mixed with `seed` into a number whose bits 5 and up tell addresses apart, for tables with a place for each of many.
    pub fn mix(self, seed: u32) -> u32 {
        self.0.chunks_exact(4).fold(seed, |mixed, bytes| {
            let word = bytes.iter().fold(0, |word, &b| word << 8 | u32::from(b));
            (mixed ^ word).wrapping_mul(0x9e37_79b1).rotate_left(15)
        })
    }
    /// The IPv4 address, if it is one.
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_addresses_are_mapped_and_ipv6_ones_are_themselves() {
        let v4: IpAddr = "10.77.0.1".parse().expect("address");
        let gid = Gid::from_ip(v4);
        assert_eq!(
            gid.0,
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 77, 0, 1]
        );
        assert_eq!(
            (gid.to_ip(), gid.ipv4()),
            (v4, Some(Ipv4Addr::new(10, 77, 0, 1)))
        );
        let v6: IpAddr = "fd77::1".parse().expect("address");
        assert_eq!(
            (Gid::from_ip(v6).to_ip(), Gid::from_ip(v6).ipv4()),
            (v6, None)
        );
    }
}
