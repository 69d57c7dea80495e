//! What there is, for `roceline show` and `roceline stat`. Built on request, between bursts.

use roceline_engine::Counters;

use super::Lcore;
use super::context::Qp;
use super::message::{LcoreSnapshot, MrSnapshot, NicSnapshot, QpSnapshot, Snapshot};
use super::nic::Nic;

/// The counters of an lcore, and no counts of objects: those would be looked for in tables of their own size, which takes
/// milliseconds, and this is asked for ten times a second.
pub fn counters(lcore: &Lcore) -> Snapshot {
    let mut all = Snapshot {
        lcore: LcoreSnapshot {
            cpu: lcore.cpu,
            polls: lcore.polls,
            empty_polls: lcore.empty_polls,
            sleeps: lcore.idle.sleeps(),
        },
        ..Snapshot::default()
    };
    let shared = &lcore.shared;
    for nic in &lcore.nics {
        let c = &nic.counts;
        let mut port = nic.port.counters();
        port.extend([
            ("rx_not_roce", c.rx_not_roce),
            ("rx_arp", c.rx_arp),
            ("rx_icmp", c.rx_icmp),
            ("rx_icmpv6", c.rx_icmpv6),
            ("rx_others_dropped", c.rx_others_dropped),
            ("rx_not_ours", c.rx_not_ours),
            ("rx_memory_overrun", c.rx_memory_overrun),
            ("tx_no_mbuf", c.tx_no_mbuf),
            ("tx_queue_full", c.tx_queue_full),
            ("tx_memory_overrun", c.tx_memory_overrun),
            ("link_downed", c.link_downed),
            ("mempool_exhausted", shared.pool.exhausted()),
        ]);
        all.nics.push(NicSnapshot {
            name: nic.info.name.clone(),
            counters: *nic.engine.counters(),
            port,
            ..NicSnapshot::default()
        });
    }
    all
}

/// The objects and counters of an lcore.
pub fn snapshot(lcore: &Lcore) -> Snapshot {
    let mut all = counters(lcore);
    let shared = &lcore.shared;
    for (index, (nic, counted)) in lcore.nics.iter().zip(&mut all.nics).enumerate() {
        let ours = |key: usize| shared.contexts.get(key).is_some_and(|x| x.nic == index);
        let contexts = shared.contexts.iter().filter(|(_, x)| x.nic == index);
        counted.contexts = contexts.count() as u32;
        counted.mrs = nic.mrs.iter().flatten().count() as u32;
        counted.cqs = shared.cqs.iter().filter(|(_, cq)| ours(cq.context)).count() as u32;
        counted.srqs = nic.qps.srqs.len() as u32;
        counted.pds = shared.pds.iter().filter(|(_, pd)| ours(pd.context)).count() as u32;
    }
    for nic in &lcore.nics {
        for qp in nic.qps.iter() {
            let Ok((attr, _)) = nic.engine.query_qp(qp.id) else {
                continue;
            };
            all.qps.push(QpSnapshot {
                device: nic.info.name.clone(),
                qpn: qp.id.0,
                state: format!("{:?}", attr.state).to_uppercase(),
                pid: shared.contexts[qp.context].pid,
                remote: attr.path.dgid.to_ip().to_string(),
                remote_qpn: attr.dest_qpn,
                sq_psn: attr.sq_psn.get(),
                rq_psn: attr.rq_psn.get(),
                counters: qp_counters(nic, qp),
            });
        }
        for mr in nic.mrs.iter().flatten() {
            all.mrs.push(MrSnapshot {
                device: nic.info.name.clone(),
                lkey: mr.info.lkey,
                pid: shared.contexts.get(mr.context).map_or(0, |c| c.pid),
                addr: mr.addr,
                len: mr.len,
                access: mr.access.0,
                reach: mr.reach.describe(mr.addr, mr.len),
            });
        }
    }
    all
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
