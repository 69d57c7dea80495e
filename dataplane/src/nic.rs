//! What a NIC is to everybody: its name and limits, fixed while the daemon runs, its addresses, and whether it has a link.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use roceline_abi::control::MemoryPolicy;
use roceline_engine::verbs::Mtu;

use crate::addresses::Addresses;
use crate::congestion::Live;

/// A NIC.
#[derive(Clone, Debug)]
pub struct NicInfo {
    /// Index: of the NIC in the configuration, and on its lcore.
    pub index: u32,
    /// N of `uverbsN`: the index, or above the numbers that the kernel gives to other devices.
    pub uverbs: u32,
    /// Device name, `roce0`.
    pub name: String,
    /// MAC address.
    pub mac: [u8; 6],
    /// Its addresses: the GID table.
    pub addresses: Addresses,
    /// MTU of the port: bytes of an IP packet.
    pub port_mtu: u32,
    /// Largest path MTU that fits.
    pub active_mtu: Mtu,
    /// Which memory of programs may be mapped.
    pub memory: MemoryPolicy,
    /// Node GUID in wire order.
    pub node_guid: [u8; 8],
    /// Its LID, for programs that know no GIDs; 0, as on every RoCE port, unless configured.
    pub lid: u16,
    /// Whether its port has a link.
    pub link: LinkState,
    /// Congestion control and pauses.
    pub congestion: Live,
}

/// Whether a port has a link: written by the lcore that polls it, read by whoever is asked. Clones share it.
#[derive(Clone, Debug)]
pub struct LinkState(Arc<AtomicU8>);

/// Bits of a [`LinkState`].
const UP: u8 = 1;
const ORDERED_DOWN: u8 = 2;

impl Default for LinkState {
    /// Up.
    fn default() -> LinkState {
        LinkState(Arc::new(AtomicU8::new(UP)))
    }
}

impl LinkState {
    /// Notes what the port says.
    pub fn set(&self, up: bool) {
        self.change(UP, up);
    }

    /// Notes that the link is down by order, or no longer.
    pub fn order_down(&self, down: bool) {
        self.change(ORDERED_DOWN, down);
    }

    fn change(&self, bit: u8, set: bool) {
        if set {
            self.0.fetch_or(bit, Ordering::Relaxed);
        } else {
            self.0.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Whether frames get through.
    pub fn is_up(&self) -> bool {
        self.0.load(Ordering::Relaxed) & UP != 0
    }

    /// Whether it is down by order (`roceline link down`).
    pub fn is_ordered_down(&self) -> bool {
        self.0.load(Ordering::Relaxed) & ORDERED_DOWN != 0
    }
}

/// The LID of an IPv4 address: the host part of it, if that is a unicast LID (IBTA 4.1.3).
pub fn lid_of(ip: Ipv4Addr, prefix: u8) -> Option<u16> {
    const LAST: u16 = 0xbfff;
    let host = ip.to_bits() & host_bits(prefix);
    let lid = u16::try_from(host).ok()?;
    (1..=LAST).contains(&lid).then_some(lid)
}

/// The bits of an IPv4 address behind its prefix.
pub fn host_bits(prefix: u8) -> u32 {
    u32::MAX.checked_shr(prefix.into()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lid_is_the_host_part_of_an_address() {
        let address = |text: &str| text.parse().expect("an address");
        assert_eq!(lid_of(address("10.77.0.2"), 24), Some(2));
        assert_eq!(lid_of(address("10.77.3.2"), 16), Some(0x302));
        for (text, prefix) in [
            ("10.77.0.0", 24),
            ("10.77.192.0", 16),
            ("10.77.0.2", 8),
            ("10.77.0.2", 32),
        ] {
            assert_eq!(lid_of(address(text), prefix), None, "{text}/{prefix}");
        }
    }
}
