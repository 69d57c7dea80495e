//! Counters of one NIC, or of one of its QPs, under the names that mlx5 gives them in `hw_counters`; each has exactly one
//! cause (`docs/counters.md`).

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Monotonic counts since the NIC, or the QP, was created. Read by name through [`Counters::iter`].
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Name and value of each, in a fixed order.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// Adds another lcore's counts.
            pub fn add(&mut self, other: &Counters) {
                $(self.$name = self.$name.wrapping_add(other.$name);)*
            }
        }
    };
}

counters! {
    /// Responder: WRITE requests (messages) that came in their turn, refused ones included; not those that an RNR
    /// NAK put off, which come again.
    rx_write_requests,
    /// Responder: READ requests that came in their turn, refused ones included.
    rx_read_requests,
    /// Responder: atomic requests received.
    rx_atomic_requests,
    /// Responder: packets dropped for want of a receive WQE (an RNR NAK was the answer).
    out_of_buffer,
    /// Responder: packets that arrived ahead of the expected PSN.
    out_of_sequence,
    /// Responder: request packets whose PSN was already served.
    duplicate_request,
    /// Requester: RNR NAKs received while retries remained.
    rnr_nak_retry_err,
    /// Requester: PSN-sequence NAKs received while retries remained.
    packet_seq_err,
    /// Requester: retries since a response or ACK was beyond the expected READ response.
    implied_nak_seq_err,
    /// Requester: retries after a wait of the QP's whole ACK timeout.
    local_ack_timeout_err,
    /// Responder: inbound SEND too long for its receive WQE.
    resp_local_length_error,
    /// Responder: receive completions with an error other than flush.
    resp_cqe_error,
    /// Responder: receive completions flushed.
    resp_cqe_flush_error,
    /// Responder: access violations detected.
    resp_remote_access_errors,
    /// Requester: send completions with an error other than flush.
    req_cqe_error,
    /// Requester: send completions flushed.
    req_cqe_flush_error,
    /// Requester: NAKs "invalid request" received.
    req_remote_invalid_request,
    /// Requester: NAKs "remote access error" received.
    req_remote_access_errors,
    /// Requester: QPs failed because `retry_cnt`, or the time that it stands for, was used up.
    req_transport_retries_exceeded,
    /// Requester: QPs failed because `rnr_retry` was used up.
    req_rnr_retries_exceeded,
    /// Requester: retries after a wait shorter than the QP's ACK timeout (adaptive retransmission).
    roce_adp_retrans,
    /// Requester: adaptive retransmissions that ended with the failure of the QP.
    roce_adp_retrans_to,
    /// Port or QP: RoCE packets received with a CE mark, CNPs not counted.
    np_ecn_marked_roce_packets,
    /// Port or QP: CNPs sent.
    np_cnp_sent,
    /// Port: CNPs given up since too many waited to be sent.
    np_cnp_dropped,
    /// Port or QP: CNPs received that lowered a rate, or would have.
    rp_cnp_handled,
    /// Port or QP: CNPs received and ignored: congestion control off, no such QP, or not in a state to send.
    rp_cnp_ignored,
    /// Port: RoCE packets dropped for a bad ICRC.
    rx_icrc_encapsulated,
    /// Port: RoCE packets dropped because no QP in a state to receive had their destination QPN.
    rx_unknown_qp,
    /// Port: RoCE packets dropped as malformed: unknown opcode, too short, bad pad, forged lengths.
    rx_malformed,
    /// Port or QP: datagrams dropped for a wrong Q_Key.
    rx_qkey_violations,
    /// Port or QP: well-formed packets dropped silently: from a stranger, ghosts, stale responses, a full pipeline.
    rx_dropped,
    /// Port: RoCE packets sent.
    rdma_tx_packets,
    /// Port: bytes of them (Ethernet frame without FCS).
    rdma_tx_bytes,
    /// Port: RoCE packets received and believed.
    rdma_rx_packets,
    /// Port: bytes of them.
    rdma_rx_bytes,
}
