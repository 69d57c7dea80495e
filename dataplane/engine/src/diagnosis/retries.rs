//! Retries ran out. What came back meanwhile, and before, tells apart why.

use super::{Diagnosis, Duration, operation, peer};
use crate::transport::journal::{Cause, PostMortem, Retry};
use crate::wire::Gid;
use crate::wire::aeth::{self, NakCode, Syndrome};

/// `retry_cnt` was used up.
pub(super) fn exceeded(record: &PostMortem) -> Diagnosis {
    let checks: [fn(&PostMortem) -> Option<Diagnosis>; 7] = [
        path_mtu,
        first_psns,
        other_addresses,
        bad_icrc,
        too_big,
        never_answered,
        lossy,
    ];
    checks
        .iter()
        .find_map(|check| check(record))
        .unwrap_or_else(|| went_silent(record))
}

/// READ responses are cut to the path MTU of whoever answers.
fn path_mtu(record: &PostMortem) -> Option<Diagnosis> {
    let misfit = record.evidence.misfit?;
    let mtu = record.attr.path_mtu.bytes();
    Some(Diagnosis::certain(
        "path-mtu-mismatch",
        format!(
            "READ responses of {} carry {} bytes where the path MTU of this queue pair ({mtu}) makes it {}: the two \
             ends have different path MTUs",
            peer(record),
            misfit.got,
            misfit.want
        ),
        "give both queue pairs the same path_mtu, no more than the smaller active MTU; perftest takes -m",
    ))
}

/// A responder names the PSN that it expects, or has, and that is none of ours: the two ends began with different ones
/// (IBTA 9.7.5.1.2: what is ahead gets a NAK with the PSN expected, what is behind is a duplicate and gets an ACK with
/// the newest PSN done).
fn first_psns(record: &PostMortem) -> Option<Diagnosis> {
    let astray = record.evidence.astray?;
    let began = record.attr.sq_psn.get();
    if record.unacked.get() != began || record.evidence.succeeded != 0 {
        return None;
    }
    let remedy = format!(
        "let each end tell the other the sq_psn that it really uses, and set that as the peer's rq_psn (here \
         sq_psn is {began}); move both queue pairs through RESET when a connection is set up anew"
    );
    match Syndrome::from_raw(astray.syndrome)? {
        Syndrome::Nak(NakCode::PsnSequence) => Some(Diagnosis::certain(
            "psn-mismatch",
            format!(
                "{} expects PSN {}, but this queue pair began at {began}: sq_psn here and rq_psn there differ",
                peer(record),
                astray.psn.get()
            ),
            remedy,
        )),
        Syndrome::Ack { .. } => Some(Diagnosis::likely(
            "psn-mismatch",
            format!(
                "{} acknowledges PSN {}, which this queue pair never sent: it began at {began}, and likely sq_psn here \
                 is below rq_psn there, so that its requests are taken for duplicates",
                peer(record),
                astray.psn.get()
            ),
            remedy,
        )),
        _ => None,
    }
}

/// The peer speaks, but not between the two addresses that this QP was told.
fn other_addresses(record: &PostMortem) -> Option<Diagnosis> {
    let foreign = record.evidence.foreign?;
    if record.traffic.responses > 0 {
        return None;
    }
    let path = &record.attr.path;
    Some(Diagnosis::likely(
        "wrong-gid",
        format!(
            "packets for this queue pair came from {} to {}, but it was told to talk from {} to {}: likely one end \
             uses another GID index than the other believes",
            foreign.src.to_ip(),
            foreign.dst.to_ip(),
            path.sgid.to_ip(),
            path.dgid.to_ip()
        ),
        "give both ends a RoCE v2 GID of the same network (`roceline show devices` lists them by index), and let \
         each tell the other the GID that it really uses; perftest takes -x",
    ))
}

/// Something changes packets.
fn bad_icrc(record: &PostMortem) -> Option<Diagnosis> {
    let count = record.evidence.port.bad_icrc;
    (count > 0).then(|| {
        Diagnosis::likely(
            "icrc-changed",
            format!(
                "while {} was not heard, this port dropped {count} packets with a wrong ICRC: likely something on \
                 the way changes packets (address translation, a tunnel, a switch that rewrites fields under the \
                 ICRC) or damages them",
                peer(record)
            ),
            "compare a packet as it was sent with what arrived; take NAT and rewriting middleboxes out of the path; \
             watch rx_icrc_encapsulated in `roceline stat` at both ends",
        )
    })
}

/// Smaller packets pass, and this one never did.
fn too_big(record: &PostMortem) -> Option<Diagnosis> {
    let request = record.request?;
    let mtu = record.attr.path_mtu.bytes();
    let size = request.len.min(u64::from(mtu)) as u32;
    let passed = record.evidence.largest;
    let stuck_at_start = request.packets > 0 && record.unacked == request.first;
    if record.evidence.succeeded == 0 || size <= passed || !stuck_at_start || size <= 256 {
        return None;
    }
    // Ethernet, IPv6, UDP, BTH, RETH, ICRC: what the largest packets add.
    let frame = size + 80;
    Some(Diagnosis::likely(
        "packet-too-big",
        format!(
            "requests with packets of up to {passed} bytes passed, but the first {} with {size} bytes in a packet never \
             did: likely a link on the way carries no packets of that size",
            operation(request.op)
        ),
        format!(
            "set the MTU of every link, switch port and NIC on the way to {frame} or more, or use a smaller path_mtu \
             for both queue pairs (this one has {mtu}; perftest takes -m)"
        ),
    ))
}

/// The peer drops in silence what this end cannot see to be wrong; its counters tell.
const COUNTERS_THERE: &str = "see which counter grows there (`roceline stat`): rx_icrc_encapsulated when packets were changed on \
     the way, rx_dropped when addresses do not fit its queue pair, duplicate_request when PSNs do not, rx_unknown_qp when the \
     queue pair is not there";

fn is_link_local(gid: Gid) -> bool {
    matches!(gid.to_ip(), std::net::IpAddr::V6(ip) if ip.segments()[0] & 0xffc0 == 0xfe80)
}

/// Nothing that we sent was ever answered.
fn never_answered(record: &PostMortem) -> Option<Diagnosis> {
    if record.traffic.responses > 0 {
        return None;
    }
    let path = &record.attr.path;
    let (peer, evidence) = (peer(record), &record.evidence);
    if record.traffic.requests > 0 {
        return Some(Diagnosis::likely(
            "one-way",
            format!(
                "packets of {peer} arrive, but none of this queue pair's was ever answered: likely UDP port 4791 is \
                 filtered on the way there, or back only for answers, or the peer drops them since something on the way \
                 makes their ICRC wrong or {} is not the address that it was told",
                path.sgid.to_ip()
            ),
            format!(
                "let UDP port 4791 pass in both directions (firewalls, security groups, switch ACLs); see with \
                 `tcpdump udp port 4791` at the peer whether packets arrive; {COUNTERS_THERE}"
            ),
        ));
    }
    if is_link_local(path.sgid) || is_link_local(path.dgid) {
        return Some(Diagnosis::likely(
            "link-local-gid",
            format!(
                "no packet ever came back from {peer}, and the connection is between link-local addresses ({} and \
                 {}): likely the wrong GID index was used",
                path.sgid.to_ip(),
                path.dgid.to_ip()
            ),
            "use the GID index of a routable RoCE v2 address on both ends (`roceline show devices` lists them; \
             perftest takes -x, the pingpongs -g)",
        ));
    }
    if evidence.peer_answers_others {
        return Some(Diagnosis::likely(
            "peer-qp-gone",
            format!(
                "{peer} never answered, while the same address answers other queue pairs: likely the peer's queue \
                 pair does not exist any more, is not yet in RTR, or expects other addresses"
            ),
            format!(
                "see the state of queue pair {:#x} at the peer (`roceline show qps` there), and whether both ends \
                 exchanged QP numbers and GIDs of this connection; {COUNTERS_THERE}",
                record.attr.dest_qpn
            ),
        ));
    }
    if evidence.port.unknown_qp > 0 {
        return Some(Diagnosis::likely(
            "unknown-qp",
            format!(
                "{peer} never answered, while {} packets arrived here for queue pairs that do not exist: likely QP \
                 numbers were exchanged wrongly, or the peer still talks to an older connection",
                evidence.port.unknown_qp
            ),
            "compare dest_qp_num of each end with qp_num of the other",
        ));
    }
    Some(Diagnosis::likely(
        "peer-silent",
        format!(
            "no packet ever came back from {peer} ({} packets sent, {} of them again): likely the peer cannot be \
             reached at that address, UDP port 4791 is filtered in one or both directions (a firewall that lets the \
             connection set-up over TCP pass looks like this), its queue pair does not exist or is not yet in RTR, or it \
             drops what arrives: something on the way changes packets, so that their ICRC is wrong; {} is not the address \
             that it was told (another GID index, IPv4 instead of IPv6); or its rq_psn is above sq_psn here ({})",
            record.traffic.sent,
            record.traffic.resent,
            path.sgid.to_ip(),
            record.attr.sq_psn.get()
        ),
        format!(
            "ping the peer; see with `tcpdump udp port 4791` there whether packets arrive and answers leave; check \
             its MAC if it is a static neighbour; see the state of queue pair {:#x} there; {COUNTERS_THERE}",
            record.attr.dest_qpn
        ),
    ))
}

/// The peer answers still, but not enough gets through. (After its one NAK for a gap a responder is silent by rule, so a
/// NAK that began the retries is answer enough.)
fn lossy(record: &PostMortem) -> Option<Diagnosis> {
    let since = record.evidence.trouble;
    let answers = since.is_some_and(|since| record.evidence.heard >= since);
    if !answers && record.cause == Cause::RetriesExceeded(Retry::Timeout) {
        return None;
    }
    let tried = match record.by_time() {
        true => "retries for retry_cnt times the ACK timeout".into(),
        false => format!("{} retries in a row", record.attr.retry_cnt),
    };
    Some(Diagnosis::likely(
        "loss",
        format!(
            "{} answered meanwhile, but {tried} brought nothing through: likely heavy loss on the way ({} of \
             {} packets sent again, {} timeouts, {} sequence NAKs)",
            peer(record),
            record.traffic.resent,
            record.traffic.sent,
            record.counters.local_ack_timeout_err + record.counters.roce_adp_retrans,
            record.counters.packet_seq_err
        ),
        "find where packets are dropped (`roceline stat` at both ends, counters of the switches); make the class \
         lossless (PFC) or slow the senders down (ECN); raise retry_cnt and timeout to survive until then",
    ))
}

/// The peer answered once, and then no more.
fn went_silent(record: &PostMortem) -> Diagnosis {
    let attr = &record.attr;
    let ago = record.at.saturating_sub(record.evidence.heard);
    let timeout = aeth::ack_timeout(attr.timeout).map_or_else(
        || "endless".into(),
        |timeout| format!("{} = {}", attr.timeout, Duration(timeout)),
    );
    let mut remedy = format!(
        "see whether the peer's program still runs and what became of its queue pair (`roceline show qp --post-mortem \
         {:#x}` there); see whether the path is up; {COUNTERS_THERE}",
        attr.dest_qpn
    );
    if attr.retry_cnt < 7 {
        remedy += &format!(
            "; retry_cnt is {}, 7 would survive more lost packets",
            attr.retry_cnt
        );
    }
    Diagnosis::likely(
        "peer-went-silent",
        format!(
            "{} answered until {} before the end and then no more, for {} {} timeout {timeout}: likely its \
             program ended or destroyed the queue pair, the queue pair went to ERR, its host died, the path broke, or something \
             on the way began to change packets, so that it drops them for a wrong ICRC",
            peer(record),
            Duration(ago),
            attr.retry_cnt,
            if record.by_time() {
                "times the"
            } else {
                "retries with"
            }
        ),
        remedy,
    )
}
