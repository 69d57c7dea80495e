//! What the daemon as a whole knows about a queue pair that failed, beside its own record. A NIC knows of its peer only what
//! packets said, and programs are told no more. This is for the person at the terminal, who may ask for all of it by
//! `roceline stat`, `show qps` and `impair list` anyhow: here it is put together.
//!
//! In: a record, and answers of the daemon. Out: sentences. Counts of NICs and rules are since they exist, not of the
//! moment of the failure, and the sentences say so.

use std::collections::BTreeMap;

use crate::control::client::{Client, ClientError};
use crate::control::impair::{ImpairReply, RuleLine};
use crate::control::post_mortem::Record;
use crate::control::query::{DeviceStat, DevicesReply, Qp, QpsReply, Query, StatReply};

/// What is asked of the daemon.
pub(super) struct Surroundings {
    devices: DevicesReply,
    stat: StatReply,
    qps: QpsReply,
    rules: Vec<RuleLine>,
}

/// Drops of a NIC that its peers cannot see, and what they mean.
const DROPS: [(&str, &str); 5] = [
    (
        "rx_icrc_encapsulated",
        "with a wrong ICRC (something on the way changes packets)",
    ),
    (
        "rx_dropped",
        "that did not fit a queue pair (another source address or GID than it was told, or packets out of date)",
    ),
    (
        "rx_unknown_qp",
        "for queue pairs that do not exist or are not in RTR",
    ),
    (
        "tx_link_down",
        "that it was to send while its link was down (`roceline show ports`)",
    ),
    (
        "rx_link_down",
        "that came while its link was down by order (`roceline link`)",
    ),
];

impl Surroundings {
    pub(super) fn ask(client: &Client) -> Result<Surroundings, ClientError> {
        Ok(Surroundings {
            devices: client.ask(&Query::Devices)?,
            stat: client.ask(&Query::Stat)?,
            qps: client.ask(&Query::Qps)?,
            rules: client.ask::<ImpairReply>(&Query::Impair)?.rules,
        })
    }

    /// What may have to do with the end of a queue pair.
    pub(super) fn hints(&self, record: &Record) -> Vec<String> {
        let retries = record.counters.get("req_transport_retries_exceeded");
        if retries.is_none_or(|&n| n == 0) {
            return Vec::new();
        }
        let peer = self.nic_with(&record.remote);
        let mut hints = Vec::new();
        hints.extend(self.address_gone(record));
        if let Some(peer) = peer {
            hints.extend(self.peer_queue_pair(record, peer));
            hints.extend(
                self.drops(peer).map(|said| {
                    format!("{peer} of this daemon, which has {}, {said}", record.remote)
                }),
            );
        }
        hints.extend(self.drops(&record.device).map(|said| {
            let device = &record.device;
            format!("{device} itself {said}")
        }));
        let near = [Some(record.device.as_str()), peer];
        hints.extend(self.rules_near(&near).map(rule));
        hints
    }

    /// Of each NIC what it dropped: a responder whose requests are spoilt on the way has no queue pair that failed.
    pub(super) fn notes(&self) -> Vec<String> {
        let of = |stat: &DeviceStat| {
            let name = stat.name.clone();
            self.drops(&stat.name)
                .map(move |said| format!("{name} {said}"))
        };
        let mut notes: Vec<String> = self.stat.devices.iter().filter_map(of).collect();
        if self.rules.iter().any(|rule| rule.hit > 0) {
            notes.push("rules impair packets on purpose (`roceline impair list`)".into());
        }
        notes
    }

    fn nic_with(&self, address: &str) -> Option<&str> {
        let has =
            |gids: &[crate::control::query::GidLine]| gids.iter().any(|gid| gid.address == address);
        let mut devices = self.devices.devices.iter();
        devices
            .find(|device| has(&device.gids))
            .map(|device| device.name.as_str())
    }

    /// Its own address was taken from the NIC.
    fn address_gone(&self, record: &Record) -> Option<String> {
        let has_it = self.nic_with(&record.local) == Some(record.device.as_str());
        let (device, local) = (&record.device, &record.local);
        (!has_it).then(|| {
            format!(
                "{local} is no address of {device} any more, so that all answers to this queue pair are dropped: use another \
                 GID index (`roceline address list {device}`), or give it back (`roceline address add {device} {local}`)"
            )
        })
    }

    /// What became of the peer's queue pair, as long as it is there.
    fn peer_queue_pair(&self, record: &Record, peer: &str) -> Option<String> {
        let is_peer = |qp: &&Qp| qp.device == peer && qp.qpn == record.remote_qpn;
        let who = format!("queue pair {:#08x} of {peer}", record.remote_qpn);
        let Some(qp) = self.qps.qps.iter().find(is_peer) else {
            return Some(format!("{who} does not exist (any more)"));
        };
        if !matches!(qp.state.as_str(), "RTR" | "RTS") {
            return Some(format!("{who} is in {}", qp.state));
        }
        if qp.remote != record.local || qp.remote_qpn != record.qpn {
            return Some(format!(
                "{who} was told to talk to {} queue pair {:#08x}, and this one is {} queue pair {:#08x}",
                qp.remote, qp.remote_qpn, record.local, record.qpn
            ));
        }
        (qp.rq_psn != record.psn_unacked).then(|| {
            format!(
                "{who} expects PSN {}, and {} is the first unacknowledged here",
                qp.rq_psn, record.psn_unacked
            )
        })
    }

    fn drops(&self, device: &str) -> Option<String> {
        let stat = self.stat.devices.iter().find(|s| s.name == device)?;
        // Names of the two groups differ.
        let mut all = stat.hw_counters.clone();
        all.extend(stat.port.clone());
        said(&all)
    }

    /// Rules that did something, at these NICs or on a link that one of them is at.
    fn rules_near<'a>(&'a self, nics: &'a [Option<&str>]) -> impl Iterator<Item = &'a RuleLine> {
        let at = move |place: &str| {
            let mut words = place.split(' ');
            words.any(|word| nics.contains(&Some(word)))
        };
        let links = |rule: &RuleLine| rule.rule.get("link").map(str::to_string);
        let near: Vec<Option<String>> = self
            .rules
            .iter()
            .filter(|rule| at(&rule.place))
            .map(links)
            .collect();
        self.rules.iter().filter(move |rule| {
            let of_link = links(rule).is_some_and(|link| near.contains(&Some(link)));
            rule.hit > 0 && (at(&rule.place) || of_link)
        })
    }
}

/// What a NIC dropped.
fn said(counters: &BTreeMap<String, u64>) -> Option<String> {
    let grown = DROPS.iter().filter_map(|(name, what)| {
        let n = counters.get(*name).copied().filter(|&n| n > 0)?;
        Some(format!("{n} packets {what} [{name}]"))
    });
    let parts: Vec<String> = grown.collect();
    (!parts.is_empty()).then(|| format!("has dropped, since it runs, {}", parts.join("; ")))
}

fn rule(rule: &RuleLine) -> String {
    let dropped = match rule.dropped {
        0 => String::new(),
        n => format!(" and dropped {n} of them"),
    };
    format!(
        "impairment rule {} ({}) hit {} packets at {}{dropped}, since it was added",
        rule.name, rule.text, rule.hit, rule.place
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_counters_that_moved_are_named() {
        let counters = |pairs: &[(&str, u64)]| -> BTreeMap<String, u64> {
            pairs.iter().map(|(k, v)| (k.to_string(), *v)).collect()
        };
        assert_eq!(said(&counters(&[("rx_dropped", 0)])), None);
        let text = said(&counters(&[
            ("rx_icrc_encapsulated", 64),
            ("rx_dropped", 0),
        ]))
        .unwrap();
        assert!(text.contains("64 packets with a wrong ICRC"), "{text}");
        assert!(!text.contains("rx_dropped"), "{text}");
    }
}
