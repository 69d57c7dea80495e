//! Questions of the command line and their answers, as JSON. The structs are what both ends agree on: the
//! session encodes them, the command line decodes them.
//!
//! `{"query":"stat"}` gives a [`StatReply`], and so on: each [`Query`] names its reply.

mod asked;
mod reply;
mod report;
mod top;

use std::time::Duration;

use roceline_abi::PROTOCOL_VERSION;
use serde::{Deserialize, Serialize};

pub use reply::*;
pub use top::{LcoreTop, NicTop, TopReply, Traffic};

use super::congestion::Pairs;
use super::error::CommandError;
use super::seqpacket::Peer;
use super::server::Shared;
use super::{addresses, congestion, neighbours, post_mortem, programs};
use crate::impair::Spec;
use asked::{counted, fabric, post_mortems, snapshots};
pub(super) use report::mac;
use report::{device, lcores, link, mrs, neighbour_counters, ports, qps, stat, switches};

/// A question, or, for operators, an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "query", rename_all = "lowercase")]
pub enum Query {
    /// Do the lcores answer? -> [`ReadyReply`]
    Ready,
    /// -> [`DevicesReply`]
    Devices,
    /// -> [`QpsReply`]
    Qps,
    /// -> [`MrsReply`]
    Mrs,
    /// -> [`PortsReply`]
    Ports,
    /// -> [`StatReply`]
    Stat,
    /// -> [`VersionReply`]
    Version,
    /// -> [`LcoresReply`]
    Lcores,
    /// What the lcores do with their time, which they count for so long from now on. -> [`TopReply`]
    Top {
        /// In milliseconds, a minute at most.
        #[serde(default)]
        how_long_ms: u32,
    },
    /// What programs have, and may have. -> [`ProgramsReply`](super::programs::ProgramsReply)
    Programs,
    /// Who is where. -> [`NeighboursReply`](super::neighbours::NeighboursReply)
    Neighbours,
    /// Switches. -> [`FabricReport`](crate::fabric::report::FabricReport)
    Fabric,
    /// Queue pairs that failed. -> [`PostMortemsReply`](super::post_mortem::PostMortemsReply)
    PostMortems,
    /// The rules and their counts. -> [`ImpairReply`](super::impair::ImpairReply)
    Impair,
    /// Adds a rule. -> [`AddedReply`](super::impair::AddedReply)
    #[serde(rename = "impair-add")]
    ImpairAdd {
        /// Its keys and values.
        rule: Spec,
    },
    /// Removes rules. -> [`RemovedReply`](super::impair::RemovedReply)
    #[serde(rename = "impair-remove")]
    ImpairRemove {
        /// Numbers or names.
        rules: Vec<String>,
    },
    /// Removes all rules. -> [`RemovedReply`](super::impair::RemovedReply)
    #[serde(rename = "impair-clear")]
    ImpairClear,
    /// What congestion control goes by. -> [`CongestionReply`](super::congestion::CongestionReply)
    Congestion {
        /// Device name; of all if there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
    },
    /// Changes it, all of it or nothing. -> [`CongestionReply`](super::congestion::CongestionReply)
    #[serde(rename = "congestion-set")]
    CongestionSet {
        /// Device name; all if there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
        /// Keys and values.
        settings: Pairs,
    },
    /// Addresses of devices. -> [`AddressesReply`](super::addresses::AddressesReply)
    Addresses {
        /// Device name; of all if there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        device: Option<String>,
    },
    /// Gives a device an address. -> [`AddressesReply`](super::addresses::AddressesReply), of the device
    #[serde(rename = "address-add")]
    AddressAdd {
        /// Device name.
        device: String,
        /// The address, with the length of its prefix or without.
        address: String,
    },
    /// Takes an address from a device. -> [`AddressesReply`](super::addresses::AddressesReply), of the device
    #[serde(rename = "address-remove")]
    AddressRemove {
        /// Device name.
        device: String,
        /// The address.
        address: String,
    },
    /// Takes a link down, or up again. -> [`PortsReply`]
    Link {
        /// Device name.
        device: String,
        /// Up.
        up: bool,
    },
}

impl Query {
    /// What only operators may do, as the end of "may not".
    fn order(&self) -> Option<&'static str> {
        match self {
            Query::ImpairAdd { .. } | Query::ImpairRemove { .. } | Query::ImpairClear => {
                Some("change impairments")
            }
            Query::Link { .. } => Some("take links down or up"),
            Query::CongestionSet { .. } => Some("change congestion control"),
            Query::AddressAdd { .. } | Query::AddressRemove { .. } => {
                Some("change addresses of NICs")
            }
            _ => None,
        }
    }
}

/// Answers a question with JSON text.
pub(super) fn answer(shared: &Shared, peer: Peer, payload: &[u8]) -> Result<Vec<u8>, CommandError> {
    let query: Query =
        serde_json::from_slice(payload).map_err(|e| CommandError::Query(e.to_string()))?;
    if let Some(what) = query.order().filter(|_| !shared.may_operate(peer.uid)) {
        return Err(CommandError::NotOperator {
            uid: peer.uid,
            what,
        });
    }
    let nics = &shared.config.nics;
    match query {
        Query::Ready => {
            counted(shared)?;
            let devices = nics.iter().map(|nic| nic.name.clone()).collect();
            json(&ReadyReply {
                ready: true,
                devices,
            })
        }
        Query::Version => json(&VersionReply {
            version: env!("CARGO_PKG_VERSION").into(),
            protocol: PROTOCOL_VERSION.into(),
            pid: std::process::id(),
            restarts: shared.config.restarts,
            last_end: shared.config.last_end.clone(),
            refused: (!shared.may_open(peer.uid)).then(|| {
                format!(
                    "user {} may not open devices: `[control] users` of the daemon's configuration does not name it",
                    peer.uid
                )
            }),
        }),
        Query::Devices => {
            let all = snapshots(shared)?;
            json(&DevicesReply {
                devices: nics.iter().map(|nic| device(nic, &all)).collect(),
            })
        }
        Query::Ports => json(&ports(shared)?),
        Query::Stat => {
            let all = counted(shared)?;
            json(&StatReply {
                devices: nics
                    .iter()
                    .map(|nic| {
                        let mut stat = stat(nic, &all);
                        stat.port.extend(neighbour_counters(shared, nic));
                        stat
                    })
                    .collect(),
                switches: switches(&fabric(shared)?),
            })
        }
        Query::Qps => json(&QpsReply {
            qps: qps(&snapshots(shared)?),
        }),
        Query::Mrs => json(&MrsReply {
            mrs: mrs(&snapshots(shared)?),
        }),
        Query::Programs => json(&programs::reply(shared)),
        Query::PostMortems => {
            let refused = shared.refused_qps.list();
            json(&post_mortem::reply(&post_mortems(shared)?, refused))
        }
        Query::Lcores => json(&LcoresReply {
            lcores: lcores(&counted(shared)?),
        }),
        Query::Top { how_long_ms } => {
            let how_long = Duration::from_millis(how_long_ms.into());
            json(&top::reply(shared, how_long)?)
        }
        Query::Fabric => json(&fabric(shared)?),
        Query::Neighbours => json(&neighbours::reply(shared)),
        Query::Impair => json(&shared.impairments.list(shared)?),
        Query::ImpairAdd { rule } => json(&shared.impairments.add(shared, rule)?),
        Query::ImpairRemove { rules } => json(&shared.impairments.remove(shared, &rules)?),
        Query::ImpairClear => json(&shared.impairments.clear(shared)?),
        Query::Congestion { device } => json(&congestion::reply(shared, device.as_deref())?),
        Query::CongestionSet { device, settings } => {
            json(&congestion::set(shared, device.as_deref(), &settings)?)
        }
        Query::Addresses { device } => json(&addresses::reply(shared, device.as_deref())?),
        Query::AddressAdd { device, address } => json(&addresses::add(shared, &device, &address)?),
        Query::AddressRemove { device, address } => {
            json(&addresses::remove(shared, &device, &address)?)
        }
        Query::Link { device, up } => json(&link(shared, device, up)?),
    }
}

fn json(reply: &impl Serialize) -> Result<Vec<u8>, CommandError> {
    serde_json::to_vec(reply).map_err(|e| CommandError::Query(e.to_string()))
}

#[cfg(test)]
mod tests {
    use roceline_engine::wire::Gid;

    use super::report::gid_line;
    use super::*;
    use crate::impair::Text;

    #[test]
    fn queries_have_the_documented_text() {
        for (query, text) in [
            (Query::Ready, r#"{"query":"ready"}"#),
            (Query::Devices, r#"{"query":"devices"}"#),
            (Query::Qps, r#"{"query":"qps"}"#),
            (Query::Mrs, r#"{"query":"mrs"}"#),
            (Query::Ports, r#"{"query":"ports"}"#),
            (Query::Stat, r#"{"query":"stat"}"#),
            (Query::Version, r#"{"query":"version"}"#),
            (Query::Lcores, r#"{"query":"lcores"}"#),
            (Query::Programs, r#"{"query":"programs"}"#),
            (Query::Neighbours, r#"{"query":"neighbours"}"#),
            (
                Query::Top { how_long_ms: 3000 },
                r#"{"query":"top","how_long_ms":3000}"#,
            ),
            (Query::Fabric, r#"{"query":"fabric"}"#),
            (Query::Impair, r#"{"query":"impair"}"#),
            (Query::ImpairClear, r#"{"query":"impair-clear"}"#),
            (
                Query::ImpairRemove {
                    rules: vec!["7".into()],
                },
                r#"{"query":"impair-remove","rules":["7"]}"#,
            ),
            (
                Query::Congestion { device: None },
                r#"{"query":"congestion"}"#,
            ),
            (
                Query::CongestionSet {
                    device: Some("roce0".into()),
                    settings: [("rpg_gd".into(), Text("10".into()))].into(),
                },
                r#"{"query":"congestion-set","device":"roce0","settings":{"rpg_gd":"10"}}"#,
            ),
            (Query::PostMortems, r#"{"query":"postmortems"}"#),
            (
                Query::Addresses { device: None },
                r#"{"query":"addresses"}"#,
            ),
            (
                Query::AddressAdd {
                    device: "roce0".into(),
                    address: "10.77.0.9/24".into(),
                },
                r#"{"query":"address-add","device":"roce0","address":"10.77.0.9/24"}"#,
            ),
            (
                Query::AddressRemove {
                    device: "roce0".into(),
                    address: "10.77.0.9".into(),
                },
                r#"{"query":"address-remove","device":"roce0","address":"10.77.0.9"}"#,
            ),
            (
                Query::Link {
                    device: "roce0".into(),
                    up: false,
                },
                r#"{"query":"link","device":"roce0","up":false}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&query).unwrap(), text);
            assert_eq!(serde_json::from_str::<Query>(text).unwrap(), query);
        }
        assert!(serde_json::from_str::<Query>(r#"{"query":"weather"}"#).is_err());
    }

    #[test]
    fn gids_and_macs_are_printed_as_sysfs_prints_them() {
        let gid = Gid::from_ip("10.77.0.1".parse().unwrap());
        let line = gid_line(0, gid);
        assert_eq!(line.gid, "0000:0000:0000:0000:0000:ffff:0a4d:0001");
        assert_eq!(line.address, "10.77.0.1");
        assert_eq!(mac([2, 0, 0, 0xab, 0, 1]), "02:00:00:ab:00:01");
    }
}
