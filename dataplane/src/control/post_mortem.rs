//! Records of queue pairs that failed, as the command line gets them: [`crate::lcore::message::PostMortemReport`]
//! in, JSON out. The sentence is made here, so the lcore only copies.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use roceline_engine::diagnosis::{Diagnosis, diagnose};
use roceline_engine::transport::journal::{Entry, FailedRequest, Kind};
use roceline_engine::wire::Opcode;
use roceline_engine::wire::aeth::{self, NakCode, Syndrome};
use roceline_engine::{Nanos, PostMortem};
use serde::{Deserialize, Serialize};

use super::refused_qps::RefusedQp;
use crate::lcore::message::PostMortemReport;

/// Answer to [`super::query::Query::PostMortems`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PostMortemsReply {
    /// Oldest first.
    pub post_mortems: Vec<Record>,
    /// Queue pairs that could not be connected, oldest first.
    #[serde(default)]
    pub refused: Vec<RefusedQp>,
}

/// One queue pair that went to ERR, or SQE.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Its device.
    pub device: String,
    /// Counts the records of the device from 1; where several lcores serve it, those of each.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// How long ago, in nanoseconds.
    pub age_ns: u64,
    /// Its number.
    pub qpn: u32,
    /// Its transport: RC, UC or UD.
    pub transport: String,
    /// Its state before.
    pub state: String,
    /// Its state since: ERR, or SQE where only the send queue stopped.
    pub to: String,
    /// Process of its program.
    pub pid: u32,
    /// Name of its program.
    pub program: String,
    /// Its own address.
    pub local: String,
    /// The peer's address.
    pub remote: String,
    /// The peer's number.
    pub remote_qpn: u32,
    /// Why.
    pub cause: Cause,
    /// The request that failed, or the oldest one that was cut short.
    pub request: Option<Request>,
    /// Oldest PSN not acknowledged.
    pub psn_unacked: u32,
    /// Next PSN to be sent.
    pub psn_next: u32,
    /// One past the newest PSN ever sent.
    pub psn_newest: u32,
    /// PSN expected from the peer.
    pub psn_expected: u32,
    /// Payload bytes of a full packet.
    pub path_mtu: u32,
    /// ACK timeout code.
    pub timeout: u8,
    /// The ACK timeout in nanoseconds, 0 for none.
    pub timeout_ns: u64,
    /// Retries allowed.
    pub retry_cnt: u8,
    /// Of those, left.
    pub retries_left: u8,
    /// RNR retries allowed; 7 is endless.
    pub rnr_retry: u8,
    /// Of those, left.
    pub rnr_retries_left: u8,
    /// Packets sent, repeated ones included.
    pub sent: u64,
    /// Packets of requests sent again.
    pub resent: u64,
    /// Requests of the peer received.
    pub requests_received: u64,
    /// Responses of the peer received.
    pub responses_received: u64,
    /// Counters of the queue pair that are not zero.
    pub counters: BTreeMap<String, u64>,
    /// Adaptive retransmission gave it up: `retry_cnt` times the ACK timeout had passed, and retries are not counted.
    #[serde(default)]
    pub ended_by_time: bool,
    /// The last packets and retries, oldest first.
    pub journal: Vec<Line>,
    /// What else the daemon knows; the command line asks for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hints: Vec<String>,
}

/// Why a queue pair failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Fixed name, for scripts.
    pub name: String,
    /// Whether other explanations remain.
    pub likely: bool,
    /// Whether the program itself ended it.
    pub orderly: bool,
    /// In a sentence.
    pub sentence: String,
    /// What helps.
    pub remedy: String,
}

/// A work request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Of the program.
    pub wr_id: u64,
    /// `SEND`, `WRITE`, `READ`, `RECV`.
    pub operation: String,
    /// Bytes; of a receive request, those that it holds.
    pub length: u64,
    /// Completion status as verbs names it.
    pub status: String,
    /// First PSN.
    pub first_psn: u32,
    /// PSNs it takes; 0 if it never had one.
    pub packets: u32,
}

/// An entry of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Nanoseconds before the end; of a run, of its newest packet.
    pub before_ns: u64,
    /// `sent`, `resent`, `received`, `timeout`, `sequence_nak`, `implied_nak`, `rnr_nak`.
    pub event: String,
    /// Opcode of the packets.
    pub opcode: Option<String>,
    /// PSN; of a run, of its newest packet.
    pub psn: u32,
    /// Packets in the run.
    pub count: u16,
    /// What an ACK says.
    pub syndrome: Option<String>,
    /// Retries left after this one.
    pub retries_left: Option<u8>,
}

/// The records of all lcores, oldest first.
pub fn reply(reports: &[PostMortemReport], refused: Vec<RefusedQp>) -> PostMortemsReply {
    let mut post_mortems: Vec<Record> = reports.iter().map(record).collect();
    post_mortems.sort_by_key(|r| std::cmp::Reverse(r.age_ns));
    PostMortemsReply {
        post_mortems,
        refused,
    }
}

fn record(report: &PostMortemReport) -> Record {
    let r = &report.record;
    let attr = &r.attr;
    let counted = r.counters.iter().filter(|(_, value)| *value > 0);
    Record {
        device: report.device.clone(),
        number: r.number,
        unix_ms: unix_ms(report.age),
        age_ns: report.age.0,
        qpn: r.qp.0,
        transport: format!("{:?}", r.qp_type).to_uppercase(),
        state: format!("{:?}", r.state).to_uppercase(),
        to: format!("{:?}", r.to).to_uppercase(),
        pid: r.owner.pid,
        program: r.owner.name(),
        local: attr.path.sgid.to_ip().to_string(),
        remote: attr.path.dgid.to_ip().to_string(),
        remote_qpn: attr.dest_qpn,
        cause: cause(r),
        request: r.request.as_ref().map(request),
        psn_unacked: r.unacked.get(),
        psn_next: r.next.get(),
        psn_newest: r.newest.get(),
        psn_expected: r.expected.get(),
        path_mtu: attr.path_mtu.bytes(),
        timeout: attr.timeout,
        timeout_ns: aeth::ack_timeout(attr.timeout).map_or(0, |t| t.0),
        retry_cnt: attr.retry_cnt,
        retries_left: r.retries_left,
        rnr_retry: attr.rnr_retry,
        rnr_retries_left: r.rnr_left,
        sent: r.traffic.sent,
        resent: r.traffic.resent,
        requests_received: r.traffic.requests,
        responses_received: r.traffic.responses,
        counters: counted.map(|(name, value)| (name.into(), value)).collect(),
        ended_by_time: r.by_time(),
        journal: r.entries().map(|entry| line(entry, r)).collect(),
        hints: Vec::new(),
    }
}

fn unix_ms(age: Nanos) -> u64 {
    let then = SystemTime::now().checked_sub(Duration::from_nanos(age.0));
    then.and_then(|t| t.duration_since(UNIX_EPOCH).ok())
        .map_or(0, |t| t.as_millis() as u64)
}

fn cause(record: &PostMortem) -> Cause {
    let Diagnosis {
        name,
        likely,
        sentence,
        remedy,
    } = diagnose(record);
    Cause {
        name: name.into(),
        likely,
        orderly: record.cause.is_orderly(),
        sentence,
        remedy,
    }
}

fn request(request: &FailedRequest) -> Request {
    let operation = request
        .op
        .map_or("RECV".into(), |op| format!("{op:?}").to_uppercase());
    Request {
        wr_id: request.wr_id,
        operation,
        length: request.len,
        status: format!("IBV_WC_{}", upper_snake(&format!("{:?}", request.status))),
        first_psn: request.first.get(),
        packets: request.packets,
    }
}

/// `RetryExcErr` as verbs spells it.
fn upper_snake(camel: &str) -> String {
    let mut out = String::new();
    for c in camel.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_uppercase());
    }
    out
}

fn line(entry: &Entry, record: &PostMortem) -> Line {
    let kind = entry.kind();
    let event = match kind {
        Kind::Empty => "",
        Kind::Sent => "sent",
        Kind::Resent => "resent",
        Kind::Received => "received",
        Kind::Timeout => "timeout",
        Kind::SequenceNak => "sequence_nak",
        Kind::ImpliedNak => "implied_nak",
        Kind::RnrNak => "rnr_nak",
    };
    let opcode = entry.opcode();
    let is_ack = opcode == Some(Opcode::RC_ACK);
    let by_time = kind == Kind::Timeout && record.by_time();
    Line {
        before_ns: record.at.saturating_sub(entry.at()).0,
        event: event.into(),
        opcode: opcode.map(|op| format!("{op:?}")),
        psn: entry.psn().get(),
        count: entry.count(),
        syndrome: is_ack.then(|| syndrome(entry.detail())),
        // Where time counts, the number of retries that are left says nothing.
        retries_left: (!kind.is_packet() && !by_time).then(|| entry.detail()),
    }
}

fn syndrome(raw: u8) -> String {
    match Syndrome::from_raw(raw) {
        Some(Syndrome::Ack { .. }) => "ACK".into(),
        Some(Syndrome::Rnr { timer }) => format!("RNR NAK, timer {timer}"),
        Some(Syndrome::Nak(NakCode::PsnSequence)) => "NAK PSN sequence error".into(),
        Some(Syndrome::Nak(NakCode::InvalidRequest)) => "NAK invalid request".into(),
        Some(Syndrome::Nak(NakCode::RemoteAccess)) => "NAK remote access error".into(),
        Some(Syndrome::Nak(NakCode::RemoteOperational)) => "NAK remote operational error".into(),
        Some(Syndrome::Nak(NakCode::InvalidRd)) => "NAK invalid RD request".into(),
        None => format!("syndrome {raw:#04x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_their_names_of_verbs() {
        for (camel, name) in [
            ("RetryExcErr", "RETRY_EXC_ERR"),
            ("RnrRetryExcErr", "RNR_RETRY_EXC_ERR"),
            ("Success", "SUCCESS"),
        ] {
            assert_eq!(upper_snake(camel), name);
        }
    }

    #[test]
    fn syndromes_have_names() {
        assert_eq!(syndrome(0x1f), "ACK");
        assert_eq!(syndrome(0x21), "RNR NAK, timer 1");
        assert_eq!(syndrome(0x60), "NAK PSN sequence error");
        assert_eq!(syndrome(0x40), "syndrome 0x40");
    }
}
