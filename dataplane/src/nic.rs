//! What a NIC is to everybody: its name, addresses and limits, fixed while the daemon runs, and whether it has a link.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use roceline_abi::control::MemoryPolicy;
use roceline_engine::verbs::Mtu;
use roceline_engine::wire::Gid;

/// One entry of the GID table; only RoCE v2 entries exist in this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
}

/// A NIC as configured.
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
    /// Addresses with prefix lengths, in config order.
    pub addrs: Vec<(IpAddr, u8)>,
    /// GID table in its fixed order: first IPv4, then IPv6 addresses, then link-local.
    pub gids: Vec<GidEntry>,
    /// MTU of the port: bytes of an IP packet.
    pub port_mtu: u32,
    /// Largest path MTU that fits.
    pub active_mtu: Mtu,
    /// Which memory of programs may be mapped.
    pub memory: MemoryPolicy,
    /// Node GUID in wire order.
    pub node_guid: [u8; 8],
    /// Whether its port has a link.
    pub link: LinkState,
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
