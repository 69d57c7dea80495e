//! Answers about who is where: [`crate::neighbour`]'s knowledge as the command line shows it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::query::mac;
use super::server::Shared;

/// Answer to [`Query::Neighbours`](super::query::Query::Neighbours).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighboursReply {
    /// By device and address.
    pub neighbours: Vec<NeighbourLine>,
    /// Addresses of the devices that other stations have too.
    pub conflicts: Vec<ConflictLine>,
    /// Requests, replies and what was wrong, by device; emulated links have none.
    pub counters: BTreeMap<String, BTreeMap<String, u64>>,
}

/// A peer that a device knows, or asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeighbourLine {
    /// Device.
    pub device: String,
    /// The peer's address.
    pub address: String,
    /// Its MAC address, if it is known.
    pub mac: Option<String>,
    /// `static` (configured), `link` (a NIC of this daemon on the same emulated link), or as `ip neigh` has it: `incomplete`,
    /// `reachable`, `stale`, `probe`, `failed`.
    pub state: String,
    /// Milliseconds since it was confirmed, or since it is asked for; absent where that means nothing.
    pub age_ms: Option<u64>,
}

/// An address that two stations have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConflictLine {
    /// Device that has it here.
    pub device: String,
    /// The address.
    pub address: String,
    /// MAC address of the other station; this device's own where both are the same.
    pub mac: String,
    /// Packets that showed it.
    pub seen: u64,
    /// Milliseconds since the last of them.
    pub age_ms: u64,
}

/// What is known now.
pub fn reply(shared: &Shared) -> NeighboursReply {
    let (nics, known) = (&shared.config.nics, &shared.config.neighbours);
    let device = |nic: u32| {
        let info = nics.get(nic as usize);
        info.map_or_else(String::new, |info| info.name.clone())
    };
    let counters = nics
        .iter()
        .map(|nic| {
            let counts = known.counters(nic.index as usize);
            let counts: BTreeMap<String, u64> = counts
                .filter(|(_, value)| *value != 0)
                .map(|(name, value)| (name.to_string(), value))
                .collect();
            (nic.name.clone(), counts)
        })
        .filter(|(_, counts)| !counts.is_empty())
        .collect();
    NeighboursReply {
        neighbours: known
            .list()
            .into_iter()
            .map(|n| NeighbourLine {
                device: device(n.nic),
                address: n.address.to_string(),
                mac: n.mac.map(mac),
                state: n.state.into(),
                age_ms: n.age.map(|age| age.0 / 1_000_000),
            })
            .collect(),
        conflicts: known
            .conflicts()
            .into_iter()
            .map(|c| ConflictLine {
                device: device(c.nic),
                address: c.address.to_string(),
                mac: mac(c.mac),
                seen: c.seen,
                age_ms: c.age.0 / 1_000_000,
            })
            .collect(),
        counters,
    }
}
