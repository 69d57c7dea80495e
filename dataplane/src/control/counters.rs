//! The names under which counters are shown: one list for the files of the device tree and for `roceline stat`.
//!
//! In: what lcores counted. Out: names and values in a fixed order. The names are those of mlx5's `hw_counters` and of the
//! kernel's `counters` (Linux `drivers/infiniband/hw/mlx5/counters.c`, `core/sysfs.c`); `docs/counters.md` says what each
//! one counts.

use roceline_engine::Counters;

use crate::lcore::PauseReport;
use crate::lcore::message::NicSnapshot;

/// Names of mlx5 whose mechanism does not exist here, so they stay zero: dynamic connections and slow restart.
/// Monitoring looks for the names.
const STILL_HW: [&str; 4] = [
    "rx_dct_connect",
    "roce_slow_restart",
    "roce_slow_restart_cnps",
    "roce_slow_restart_trans",
];
/// Port counters that no event of ours moves: there is no virtual lane and no flow control.
const STILL_PORT: [&str; 10] = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_error_recovery",
    "local_link_integrity_errors",
    "port_rcv_constraint_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_wait",
    "symbol_error",
];
/// What an lcore counts of packets that it had to send and could not: `port_xmit_discards`.
const DISCARDS: [&str; 4] = [
    "tx_no_mbuf",
    "tx_no_way",
    "tx_queue_full",
    "tx_memory_overrun",
];
/// What happens before a QP is known, so a QP counts none.
const OF_PORT: [&str; 4] = [
    "rx_icrc_encapsulated",
    "rx_unknown_qp",
    "rx_malformed",
    "np_cnp_dropped",
];

/// What a NIC counted, all its lcores together.
#[derive(Clone, Copy, Debug, Default)]
pub struct NicCounters {
    transport: Counters,
    discards: u64,
    link_downed: u64,
    multicast: [u64; 2],
    pause: PauseReport,
}

impl NicCounters {
    /// Adds what one lcore counted.
    pub fn add(&mut self, part: &NicSnapshot) {
        self.transport.add(&part.counters);
        self.pause.add(&part.pause);
        for (name, n) in &part.port {
            let sum = match *name {
                "link_downed" => &mut self.link_downed,
                "tx_multicast" => &mut self.multicast[0],
                "rx_multicast" => &mut self.multicast[1],
                name if DISCARDS.contains(&name) => &mut self.discards,
                _ => continue,
            };
            *sum = sum.wrapping_add(*n);
        }
    }

    /// Files of `hw_counters`.
    pub fn hw(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let still = STILL_HW.into_iter().map(|name| (name, 0));
        let c = &self.transport;
        // mlx5's optional counters, of the same packets.
        let optional = [
            ("cc_rx_ce_pkts", c.np_ecn_marked_roce_packets),
            (
                "cc_rx_cnp_pkts",
                c.rp_cnp_handled.wrapping_add(c.rp_cnp_ignored),
            ),
            ("cc_tx_cnp_pkts", c.np_cnp_sent),
        ];
        self.transport.iter().chain(optional).chain(still)
    }

    /// Files of `ethtool`: what `ethtool -S` shows of pauses and priorities.
    pub fn ethtool(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        self.pause.named()
    }

    /// Storms of pauses: received ones, and our own.
    pub fn storms(&self) -> (u64, u64) {
        self.pause.storms()
    }

    /// Files of `counters`.
    pub fn port(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let c = &self.transport;
        let [sent, received] = self.multicast;
        let moving = [
            // In units of four octets (IBTA 16.1.3.5, PortCounters).
            ("port_xmit_data", c.rdma_tx_bytes / 4),
            ("port_rcv_data", c.rdma_rx_bytes / 4),
            ("port_xmit_packets", c.rdma_tx_packets),
            ("port_rcv_packets", c.rdma_rx_packets),
            (
                "unicast_xmit_packets",
                c.rdma_tx_packets.saturating_sub(sent),
            ),
            (
                "unicast_rcv_packets",
                c.rdma_rx_packets.saturating_sub(received),
            ),
            ("multicast_xmit_packets", sent),
            ("multicast_rcv_packets", received),
            (
                "port_rcv_errors",
                c.rx_icrc_encapsulated.wrapping_add(c.rx_malformed),
            ),
            ("port_xmit_discards", self.discards),
            ("link_downed", self.link_downed),
        ];
        let still = STILL_PORT.into_iter().map(|name| (name, 0));
        moving.into_iter().chain(still)
    }
}

/// What is counted for a QP.
pub fn of_qp(counters: &Counters) -> impl Iterator<Item = (&'static str, u64)> + use<> {
    counters.iter().filter(|(name, _)| !OF_PORT.contains(name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names(list: impl Iterator<Item = (&'static str, u64)>) -> BTreeSet<&'static str> {
        let all: Vec<_> = list.map(|(name, _)| name).collect();
        let set: BTreeSet<_> = all.iter().copied().collect();
        assert_eq!(set.len(), all.len(), "a name comes twice");
        set
    }

    /// The list of `drivers/infiniband/hw/mlx5/counters.c`.
    #[test]
    fn every_name_of_mlx5_is_there() {
        let names = names(NicCounters::default().hw());
        for name in [
            "rx_write_requests",
            "rx_read_requests",
            "rx_atomic_requests",
            "rx_dct_connect",
            "out_of_buffer",
            "out_of_sequence",
            "duplicate_request",
            "rnr_nak_retry_err",
            "packet_seq_err",
            "implied_nak_seq_err",
            "local_ack_timeout_err",
            "resp_local_length_error",
            "resp_cqe_error",
            "req_cqe_error",
            "req_remote_invalid_request",
            "req_remote_access_errors",
            "resp_remote_access_errors",
            "resp_cqe_flush_error",
            "req_cqe_flush_error",
            "req_transport_retries_exceeded",
            "req_rnr_retries_exceeded",
            "roce_adp_retrans",
            "roce_adp_retrans_to",
            "roce_slow_restart",
            "roce_slow_restart_cnps",
            "roce_slow_restart_trans",
            "rp_cnp_ignored",
            "rp_cnp_handled",
            "np_ecn_marked_roce_packets",
            "np_cnp_sent",
            "rx_icrc_encapsulated",
            "cc_rx_ce_pkts",
            "cc_rx_cnp_pkts",
            "cc_tx_cnp_pkts",
            "rdma_tx_packets",
            "rdma_tx_bytes",
            "rdma_rx_packets",
            "rdma_rx_bytes",
        ] {
            assert!(names.contains(name), "{name}");
        }
    }

    #[test]
    fn every_name_is_in_the_document() {
        let document = include_str!("../../../docs/counters.md");
        for (name, _) in NicCounters::default().hw() {
            assert!(document.contains(&format!("`{name}`")), "{name}");
        }
        for (name, _) in NicCounters::default().ethtool() {
            // Those of priorities are there once, as rx_prioN_pause.
            let general = match name.split_once("_prio") {
                Some((side, rest)) => format!("{side}_prioN{}", &rest[1..]),
                None => name.to_string(),
            };
            assert!(document.contains(&format!("`{general}`")), "{general}");
        }
    }

    #[test]
    fn data_is_in_words_and_discards_are_summed() {
        let mut part = NicSnapshot::default();
        part.counters.rdma_tx_bytes = 4099;
        part.port = vec![("tx_no_mbuf", 2), ("rx_not_roce", 7), ("tx_queue_full", 3)];
        let mut nic = NicCounters::default();
        nic.add(&part);
        nic.add(&part);
        let value = |wanted| nic.port().find(|(name, _)| *name == wanted).map(|c| c.1);
        assert_eq!(value("port_xmit_data"), Some(4099 * 2 / 4));
        assert_eq!(value("port_xmit_discards"), Some(10));
        assert_eq!(value("link_downed"), Some(0));
        names(nic.port());
    }

    #[test]
    fn a_qp_has_no_counters_of_the_port() {
        let names = names(of_qp(&Counters::default()));
        assert!(names.contains("out_of_sequence") && names.contains("rdma_tx_bytes"));
        assert!(!names.contains("rx_malformed"));
    }
}
