//! How fast queue pairs are, between two looks of `roceline stat --watch`.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;

use serde::Serialize;

use crate::cli::table::Table;
use crate::control::query::{Qp, QpsReply};
use crate::impair::units::written_rate;

/// Queue pairs that are listed: those that sent and received the most.
const MOST: usize = 16;

/// A queue pair's rates, in bits per second of payload and headers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct QpRate {
    device: String,
    qpn: u32,
    remote: String,
    /// What congestion control allows it.
    allowed: u64,
    sent: u64,
    received: u64,
}

/// What was counted at the last look.
#[derive(Debug, Default)]
pub(super) struct Rates {
    before: BTreeMap<(String, u32), [u64; 2]>,
}

fn bytes(qp: &Qp) -> [u64; 2] {
    ["rdma_tx_bytes", "rdma_rx_bytes"].map(|name| qp.counters.get(name).copied().unwrap_or(0))
}

impl Rates {
    /// Takes a new look, `time` after the last one: the fastest of those that were there then and have moved since, and how many more there are.
    pub fn look(&mut self, reply: &QpsReply, time: Duration) -> (Vec<QpRate>, usize) {
        let rate = |now: u64, then: u64| {
            let bits = now.saturating_sub(then) as f64 * 8.0;
            (bits / time.as_secs_f64().max(1e-9)) as u64
        };
        let mut all = Vec::new();
        let mut now = BTreeMap::new();
        for qp in &reply.qps {
            let key = (qp.device.clone(), qp.qpn);
            let counted = bytes(qp);
            if let Some(then) = self.before.get(&key).filter(|then| **then != counted) {
                all.push(QpRate {
                    device: qp.device.clone(),
                    qpn: qp.qpn,
                    remote: qp.remote.clone(),
                    allowed: qp.rate,
                    sent: rate(counted[0], then[0]),
                    received: rate(counted[1], then[1]),
                });
            }
            now.insert(key, counted);
        }
        self.before = now;
        all.sort_by_key(|qp| std::cmp::Reverse(qp.sent + qp.received));
        let more = all.len().saturating_sub(MOST);
        all.truncate(MOST);
        (all, more)
    }
}

/// Writes them, nothing if there are none.
pub(super) fn write(out: &mut impl Write, rates: &[QpRate], more: usize) -> io::Result<()> {
    if rates.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["queue pair", "peer", ">sent/s", ">received/s", ">allowed"]);
    for qp in rates {
        table.row(vec![
            format!("{}/{:#08x}", qp.device, qp.qpn),
            qp.remote.clone(),
            mbps(qp.sent),
            mbps(qp.received),
            written_rate(qp.allowed),
        ]);
    }
    writeln!(out)?;
    table.write(out, "")?;
    if more > 0 {
        writeln!(out, "(and {more} slower ones)")?;
    }
    Ok(())
}

fn mbps(rate: u64) -> String {
    format!("{:.1} Mb/s", rate as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(counted: &[(u32, u64)]) -> QpsReply {
        let qp = |&(qpn, bytes): &(u32, u64)| Qp {
            rate: 2_500_000_000,
            counters: BTreeMap::from([("rdma_tx_bytes".into(), bytes)]),
            ..Qp::sample("roce0", qpn)
        };
        QpsReply {
            qps: counted.iter().map(qp).collect(),
        }
    }

    #[test]
    fn those_that_moved_are_listed_the_fastest_first() {
        let mut rates = Rates::default();
        let second = Duration::from_secs(1);
        let (none, more) = rates.look(&reply(&[(2, 10), (3, 10), (4, 0)]), second);
        assert_eq!((none.len(), more), (0, 0), "nothing to compare with");
        let new = reply(&[(2, 1_010), (3, 2_500_010), (4, 0), (5, 9)]);
        let (fast, _) = rates.look(&new, 2 * second);
        let seen: Vec<(u32, u64)> = fast.iter().map(|qp| (qp.qpn, qp.sent)).collect();
        assert_eq!(seen, [(3, 10_000_000), (2, 4_000)]);
        let mut out = Vec::new();
        write(&mut out, &fast, 7).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("roce0/0x000003") && text.contains("10.0 Mb/s"),
            "{text}"
        );
        assert!(
            text.contains("2500Mb/s") && text.contains("7 slower ones"),
            "{text}"
        );
        let many: Vec<(u32, u64)> = (0..40).map(|n| (n, 0)).collect();
        rates.look(&reply(&many), second);
        let many: Vec<(u32, u64)> = (0..40).map(|n| (n, 100)).collect();
        let (some, more) = rates.look(&reply(&many), second);
        assert_eq!((some.len(), more), (MOST, 24));
    }
}
