//! The harness's own books: what went over the link and what programs were told. At the end of a run the engines'
//! counters must agree with them (`docs/counters.md`, "What must add up").

use std::collections::BTreeMap;

use roceline_engine::Counters;
use roceline_engine::verbs::{Completion, QpId, WcStatus};
use roceline_engine::wire::aeth::{Aeth, NakCode, Syndrome};
use roceline_engine::wire::{Opcode, Operation, Psn};

use crate::link::Frame;
use crate::node::Node;

/// Frames and their payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    pub frames: u64,
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, frame: &Frame, copies: u64) {
        self.frames += copies;
        self.bytes += copies * frame.payload.len() as u64;
    }
}

/// What a node sent, heard, and told its programs.
#[derive(Debug, Default)]
pub struct Books {
    pub sent: Amount,
    /// Of `sent`, what the link lost.
    pub lost: Amount,
    /// What the link made of `sent` in addition.
    pub doubled: Amount,
    pub heard: Amount,
    /// Of `heard`.
    pub requests: u64,
    pub sequence_naks: Kept,
    pub rnr_naks: Kept,
    completions: BTreeMap<(bool, &'static str), u64>,
    retries: BTreeMap<QpId, Requests>,
}

/// NAKs of a kind.
#[derive(Debug, Default)]
pub struct Kept {
    pub sent: u64,
    pub heard: u64,
}

/// Where the requests of a QP are on the wire.
#[derive(Debug)]
struct Requests {
    next: Psn,
    rewinds: u64,
}

impl Books {
    /// A frame leaves; the link delivers it so many times.
    pub fn sends(&mut self, frame: &Frame, copies: usize) {
        self.sent.add(frame, 1);
        match copies {
            0 => self.lost.add(frame, 1),
            n => self.doubled.add(frame, n as u64 - 1),
        }
        if let Some(kept) = self.nak(frame) {
            kept.sent += 1;
        }
    }

    /// A frame arrives.
    pub fn hears(&mut self, frame: &Frame) {
        self.heard.add(frame, 1);
        self.requests += u64::from(frame.opcode.info().is_request());
        if let Some(kept) = self.nak(frame) {
            kept.heard += 1;
        }
    }

    fn nak(&mut self, frame: &Frame) -> Option<&mut Kept> {
        if frame.opcode != Opcode::RC_ACK {
            return None;
        }
        match Aeth::from_raw(frame.ext.aeth)?.syndrome {
            Syndrome::Nak(NakCode::PsnSequence) => Some(&mut self.sequence_naks),
            Syndrome::Rnr { .. } => Some(&mut self.rnr_naks),
            _ => None,
        }
    }

    /// A program is told.
    pub fn completes(&mut self, c: &Completion) {
        let kind = match c.status {
            WcStatus::Success => "success",
            WcStatus::WrFlushErr => "flush",
            WcStatus::RetryExcErr => "retries",
            WcStatus::RnrRetryExcErr => "rnr retries",
            WcStatus::LocLenErr => "length",
            _ => "error",
        };
        *self.completions.entry((c.recv, kind)).or_default() += 1;
    }

    /// A QP begins anew, with PSNs of its own.
    pub fn forget(&mut self, qp: QpId) {
        self.retries.remove(&qp);
    }

    fn told(&self, recv: bool, kind: &'static str) -> u64 {
        self.completions.get(&(recv, kind)).copied().unwrap_or(0)
    }

    /// Error completions other than flushes.
    fn errors(&self, recv: bool) -> u64 {
        let kinds = ["retries", "rnr retries", "length", "error"];
        kinds.into_iter().map(|kind| self.told(recv, kind)).sum()
    }

    /// A request of `qp` goes out, which has had so many causes to send again. Requests go up in PSN, but for retries.
    pub fn requests(&mut self, qp: QpId, frame: &Frame, mtu: u32, causes: u64) {
        let info = frame.opcode.info();
        if !info.is_request() {
            return;
        }
        let psns = match info.operation {
            Operation::ReadRequest => frame.ext.dma_len.div_ceil(mtu).max(1),
            _ => 1,
        };
        let end = frame.psn.add(psns);
        let r = self.retries.entry(qp).or_insert(Requests {
            next: frame.psn,
            rewinds: 0,
        });
        r.rewinds += u64::from(frame.psn.before(r.next));
        r.next = end;
        assert!(
            r.rewinds <= causes,
            "{qp:?} went back {} times for {causes} causes, now with {}",
            r.rewinds,
            frame.line()
        );
    }
}

/// What a requester counts when it sends again: each retry is counted once, by its cause.
pub fn causes(c: &Counters) -> u64 {
    c.packet_seq_err
        + c.implied_nak_seq_err
        + c.local_ack_timeout_err
        + c.roce_adp_retrans
        + c.rnr_nak_retry_err
}

/// What the peer asked of a node in a run that failed nowhere: each message once.
#[derive(Clone, Copy, Debug, Default)]
pub struct Served {
    /// Packets of SENDs and WRITEs, and requests of READs.
    pub packets: u64,
    pub writes: u64,
    pub reads: u64,
}

/// Checks a node against its books, when all is quiet.
pub fn check(node: &Node, peer: &Node, qps: &[QpId], served: Option<Served>) {
    let (books, theirs) = (&node.books, &peer.books);
    let (c, p) = (node.engine.counters(), peer.engine.counters());
    // Conservation: what was sent was heard, or lost; what was heard was sent, or a copy.
    for amount in [|a: &Amount| a.frames, |a: &Amount| a.bytes] {
        let [sent, lost, doubled, heard] =
            [&theirs.sent, &theirs.lost, &theirs.doubled, &books.heard].map(amount);
        assert_eq!(sent + doubled, heard + lost);
    }
    // One NAK per gap, one RNR NAK per packet without a receive, and none is counted that was not heard.
    assert!(books.sequence_naks.sent <= c.out_of_sequence, "{c:?}");
    assert!(books.rnr_naks.sent <= c.out_of_buffer, "{c:?}");
    assert!(c.packet_seq_err <= books.sequence_naks.heard, "{c:?}");
    assert!(c.rnr_nak_retry_err <= books.rnr_naks.heard, "{c:?}");
    if theirs.doubled.frames == 0 {
        assert!(c.packet_seq_err <= p.out_of_sequence, "{c:?} {p:?}");
        assert!(c.rnr_nak_retry_err <= p.out_of_buffer, "{c:?} {p:?}");
    }
    // Completions with an error are counted once, on their side.
    assert_eq!(c.req_cqe_error, books.errors(false));
    assert_eq!(c.req_cqe_flush_error, books.told(false, "flush"));
    assert_eq!(c.resp_cqe_error, books.errors(true));
    assert_eq!(c.resp_cqe_flush_error, books.told(true, "flush"));
    assert_eq!(c.resp_local_length_error, books.told(true, "length"));
    // A QP that is taken down while it gives up is flushed instead.
    assert!(c.req_transport_retries_exceeded >= books.told(false, "retries"));
    assert!(c.req_rnr_retries_exceeded >= books.told(false, "rnr retries"));
    // What QPs counted is what the NIC counted, but for packets of no QP.
    let mut sum = Counters::default();
    for &qp in qps {
        sum.add(node.engine.qp_counters(qp).expect("it exists"));
    }
    sum.rx_unknown_qp = c.rx_unknown_qp;
    assert_eq!(sum, *c);
    // Each request packet is served, or has one reason why not.
    if let Some(served) = served {
        let refused = c.duplicate_request + c.out_of_sequence + c.out_of_buffer;
        assert_eq!(books.requests, served.packets + refused, "{c:?}");
        assert_eq!(c.rx_write_requests, served.writes);
        assert_eq!(c.rx_read_requests, served.reads);
    }
}
