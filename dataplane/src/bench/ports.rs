//! Ports of benchmarks between two halves: a fabric link, or virtual devices of DPDK between two processes.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::port::{Ethdev, EthdevConfig, Mempool, Port, PortError};

/// What the two NICs are joined by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PortKind {
    /// A link of the fabric inside the daemon
    Fabric,
    /// net_memif between two processes
    Memif,
    /// net_virtio_user of the sender, net_vhost of the receiver, between two processes
    Vhost,
}

impl fmt::Display for PortKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PortKind::Fabric => "fabric link",
            PortKind::Memif => "net_memif",
            PortKind::Vhost => "net_virtio_user to net_vhost",
        })
    }
}

impl PortKind {
    /// The device of the requester's half (0) or the responder's (1), which is there first and owns the socket; none of a fabric link.
    pub fn device(self, side: usize, socket: &Path) -> Option<String> {
        let socket = socket.display();
        let memif = format!(
            "socket={socket},socket-abstract=no,bsize={},rsize=11",
            Mempool::JUMBO_DATA_ROOM
        );
        match (self, side) {
            (PortKind::Fabric, _) => None,
            (PortKind::Memif, 0) => Some(format!("net_memif0,role=client,{memif}")),
            (PortKind::Memif, _) => Some(format!("net_memif0,role=server,{memif}")),
            (PortKind::Vhost, 0) => Some(format!(
                "net_virtio_user0,path={socket},queue_size=1024,packed_vq=1,in_order=1,mac=02:52:4c:4d:00:01"
            )),
            (PortKind::Vhost, _) => Some(format!("net_vhost0,iface={socket}")),
        }
    }

    /// Opens it.
    ///
    /// # Errors
    /// When DPDK refuses.
    pub fn open(device: &str, pool: &std::sync::Arc<Mempool>) -> Result<Port, PortError> {
        let config = EthdevConfig {
            device: device.to_owned(),
            rx_descriptors: DESCRIPTORS,
            tx_descriptors: DESCRIPTORS,
            ..EthdevConfig::default()
        };
        Ok(Port::new(Ethdev::open(pool.eal(), pool, &config)?))
    }
}

/// Of a ring: the window of a QP, 256 packets, several times.
const DESCRIPTORS: u16 = 1024;
