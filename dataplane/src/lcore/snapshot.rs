//! What there is, for `roceline show` and `roceline stat`. Built on request, between bursts.

use roceline_engine::{Counters, Nanos};

use super::Lcore;
use super::context::Qp;
use super::message::{Cursor, LcoreSnapshot, MrSnapshot, NicSnapshot, QpSnapshot, Snapshot};
use super::nic::Nic;
use super::pause::PauseReport;

/// The counters of an lcore, and no counts of objects: those would be looked for in tables of their own size, which takes
/// milliseconds, and this is asked for ten times a second.
pub fn counters(lcore: &Lcore) -> Snapshot {
    let mut all = Snapshot {
        lcore: LcoreSnapshot {
            cpu: lcore.cpu,
            polls: lcore.polls,
            empty_polls: lcore.empty_polls,
            sleeps: lcore.idle.sleeps(),
            lost_us: lcore.clock.lost().0 / 1000,
        },
        ..Snapshot::default()
    };
    let shared = &lcore.shared;
    for nic in &lcore.nics {
        let c = &nic.counts;
        let mut port = nic.port.counters();
        port.extend([
            ("rx_not_roce", c.rx_not_roce),
            ("rx_mac_control", c.rx_mac_control),
            ("rx_arp", c.rx_arp),
            ("rx_icmp", c.rx_icmp),
            ("rx_icmpv6", c.rx_icmpv6),
            ("rx_others_dropped", c.rx_others_dropped),
            ("rx_not_ours", c.rx_not_ours),
            ("rx_memory_overrun", c.rx_memory_overrun),
            ("rx_multicast", c.rx_multicast),
            ("tx_multicast", c.tx_multicast),
            ("tx_no_mbuf", c.tx_no_mbuf),
            ("tx_no_way", c.tx_no_way),
            ("tx_queue_full", c.tx_queue_full),
            ("tx_memory_overrun", c.tx_memory_overrun),
            ("link_downed", c.link_downed),
        ]);
        // One pool may be that of all parts of a NIC.
        if nic.part.number == 0 {
            port.push(("mempool_exhausted", shared.pool.exhausted()));
        }
        all.nics.push(NicSnapshot {
            name: nic.info.name.clone(),
            counters: *nic.engine.counters(),
            port,
            pauses: nic.describe_pauses(),
            pause: match &nic.pause {
                Some(pause) => pause.report(shared.now),
                None => PauseReport::default(),
            },
            ..NicSnapshot::default()
        });
    }
    all
}

/// Objects that one message lists: about 100 us.
const PAGE: usize = 64;

/// The counters of an lcore and its objects, as many as there is time for, from `from` on.
pub fn snapshot(lcore: &Lcore, from: Cursor) -> Snapshot {
    let mut all = counters(lcore);
    let shared = &lcore.shared;
    for (nic, counted) in lcore.nics.iter().zip(&mut all.nics) {
        counted.srqs = nic.qps.srqs.len() as u32;
        counted.mcast_groups = nic.groups.count().0 as u32;
    }
    for (_, context) in &shared.contexts {
        if let Some(counted) = all.nics.get_mut(context.nic) {
            counted.contexts += 1;
            counted.mrs += context.owned.mrs.len() as u32;
            counted.mws += context.owned.mws.len() as u32;
            counted.cqs += context.owned.cqs.len() as u32;
            counted.pds += context.owned.pds.len() as u32;
            counted.ahs += context.owned.ahs.len() as u32;
            counted.qps += context.qps.len() as u32;
        }
    }
    let mut left = PAGE;
    for (key, context) in &shared.contexts {
        if key < from.context {
            continue;
        }
        let Some(nic) = lcore.nics.get(context.nic) else {
            continue;
        };
        let mut cursor = match key == from.context {
            true => from,
            false => Cursor {
                context: key,
                ..Cursor::default()
            },
        };
        while cursor.qp < context.bell_limit as usize {
            if left == 0 {
                all.more = Some(cursor);
                return all;
            }
            if let Some(qp) = context.qps.get(cursor.qp).and_then(|&id| nic.qps.get(id)) {
                all.qps.extend(of_qp(nic, qp, context.pid, shared.now));
                left -= 1;
            }
            cursor.qp += 1;
        }
        for &handle in context.owned.mrs.range(cursor.mr..) {
            if left == 0 {
                cursor.mr = handle;
                all.more = Some(cursor);
                return all;
            }
            left -= 1;
            if let Some(Some(mr)) = nic.mrs.get(handle as usize) {
                all.mrs.push(MrSnapshot {
                    device: nic.info.name.clone(),
                    lkey: mr.info.lkey,
                    pid: context.pid,
                    addr: mr.addr,
                    len: mr.len,
                    access: mr.access.0,
                    reach: mr.reach.describe(mr.addr, mr.len),
                });
            }
        }
    }
    all
}

fn of_qp(nic: &Nic, qp: &Qp, pid: u32, now: Nanos) -> Option<QpSnapshot> {
    let (attr, init) = nic.engine.query_qp(qp.id).ok()?;
    Some(QpSnapshot {
        device: nic.info.name.clone(),
        transport: init.qp_type.name(),
        qpn: qp.id.0,
        state: format!("{:?}", attr.state).to_uppercase(),
        pid,
        remote: attr.path.dgid.to_ip().to_string(),
        remote_qpn: attr.dest_qpn,
        sq_psn: attr.sq_psn.get(),
        rq_psn: attr.rq_psn.get(),
        rate: nic.engine.qp_rate(qp.id, now).map_or(0, |rate| rate.0),
        counters: qp_counters(nic, qp),
    })
}

/// What the engine counted for a QP, and the packets that came and went.
fn qp_counters(nic: &Nic, qp: &Qp) -> Counters {
    let mut counters = nic.engine.qp_counters(qp.id).copied().unwrap_or_default();
    let p = &qp.packets;
    counters.rdma_tx_packets = p.tx;
    counters.rdma_tx_bytes = p.tx_bytes;
    counters.rdma_rx_packets = p.rx;
    counters.rdma_rx_bytes = p.rx_bytes;
    counters
}
