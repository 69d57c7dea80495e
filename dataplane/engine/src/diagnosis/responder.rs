//! A request of the peer was refused at this end, which knows exactly why.

use super::{Diagnosis, flag, key, peer};
use crate::memory::Access;
use crate::transport::journal::{Cause, PostMortem};

/// Why the responder refused.
pub(super) fn refusal(record: &PostMortem) -> Diagnosis {
    let peer = peer(record);
    let wr_id = record.request.map_or(0, |r| r.wr_id);
    let receive = format!("the receive request with wr_id {wr_id:#x}");
    match record.cause {
        Cause::PacketLength { opcode, got, mtu } => Diagnosis::certain(
            "path-mtu-mismatch",
            format!(
                "{peer} sent {opcode:?} with {got} bytes of payload, but the path MTU of this queue pair is {mtu}: \
                 the two ends have different path MTUs"
            ),
            format!(
                "give both queue pairs the same path_mtu, no more than the smaller active MTU (this port's is in \
                 `roceline show devices`); perftest takes -m. Only messages below {mtu} bytes pass as it is"
            ),
        ),
        Cause::TooManyReads { limit } => Diagnosis::certain(
            "too-many-reads",
            format!(
                "{peer} had more READs and atomics outstanding than max_dest_rd_atomic of this queue pair allows ({limit})"
            ),
            "set max_dest_rd_atomic here at least to max_rd_atomic of the peer",
        ),
        Cause::QpRight(right) => Diagnosis::certain(
            "qp-access-flags",
            format!(
                "{peer} asked for {}, which qp_access_flags of this queue pair do not allow",
                with_article(right)
            ),
            format!("set {} when the queue pair goes to INIT", flag(right)),
        ),
        Cause::RemoteKey {
            addr,
            len,
            right,
            error,
            ..
        } => {
            let what = with_article(right);
            let whose = format!("{what} of {peer} ({len} bytes at {addr:#x})");
            let (sentence, remedy) = key(&whose, "rkey", error, right);
            Diagnosis::certain("remote-key", sentence, remedy)
        }
        Cause::Misaligned(va) => Diagnosis::certain(
            "misaligned-atomic",
            format!("{peer} asked for an atomic at {va:#x}, which is no multiple of 8"),
            "put what atomics are for on addresses that are multiples of 8",
        ),
        Cause::FlushKind(feth) => Diagnosis::certain(
            "flush-kind",
            format!("{peer} asked for a FLUSH of a kind that does not exist (FETH {feth:#010x})"),
            "the peer breaks the protocol: capture the connection with `roceline capture` and report it there",
        ),
        Cause::ReceiveTooShort { got, space } => Diagnosis::certain(
            "receive-too-short",
            format!("{peer} sent at least {got} bytes, but {receive} holds {space}"),
            "post receives that hold the longest message",
        ),
        Cause::ReceiveKey(error) => {
            let (sentence, remedy) = key(&receive, "lkey", error, Access::LOCAL_WRITE);
            Diagnosis::certain("receive-key", sentence, remedy)
        }
        Cause::ReceiveEntries(count) => Diagnosis::certain(
            "receive-entries",
            format!("{receive} claims {count} scatter/gather entries, more than one may have"),
            "post no more entries than max_recv_sge",
        ),
        Cause::PeerOrder(opcode) => Diagnosis::likely(
            "peer-order",
            format!(
                "{peer} sent {opcode:?} where its message could not go on so: likely it was reset in mid-message \
                 and its PSNs happen to follow, or it breaks the protocol"
            ),
            "capture the connection with `roceline capture` and look at the opcodes before this packet",
        ),
        Cause::PeerOperation(opcode) => Diagnosis::certain(
            "peer-operation",
            format!("{peer} sent {opcode:?}, an operation that this version does not have"),
            "docs/limits.md lists what exists; let the program use another operation",
        ),
        Cause::MessageLength { left, got } => Diagnosis::certain(
            "peer-length",
            format!(
                "{peer} sent a packet with {got} bytes where its request still announced {left}"
            ),
            "the peer breaks the protocol: capture the connection with `roceline capture` and report it there",
        ),
        _ => Diagnosis::certain(
            "responder-memory",
            format!(
                "the memory that a request of {peer} is for could not be reached, although it is registered: it \
                 was unmapped, its file was truncated, or the program has exited"
            ),
            "keep memory mapped until its region is deregistered",
        ),
    }
}

/// What it takes a right for.
fn with_article(right: Access) -> &'static str {
    match right {
        Access::REMOTE_READ => "a READ",
        Access::REMOTE_WRITE => "a WRITE",
        Access::REMOTE_ATOMIC => "an atomic",
        _ => "a FLUSH",
    }
}
