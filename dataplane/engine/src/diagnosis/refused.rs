//! The peer answered, with a NAK that ends the queue pair.

use super::{Diagnosis, operation, peer};
use crate::transport::journal::{FailedRequest, PostMortem};
use crate::verbs::WrOpcode;
use crate::wire::aeth::NakCode;

/// RNR retries were used up.
pub(super) fn not_ready(record: &PostMortem) -> Diagnosis {
    let peer = peer(record);
    if record.attr.rnr_retry == 0 {
        return Diagnosis::certain(
            "rnr-retry-0",
            format!(
                "{peer} had no receive request posted, and rnr_retry of this queue pair is 0: the first RNR NAK \
                 ends it"
            ),
            "set rnr_retry to 7 (endless) when the queue pair goes to RTS, or let the peer post receives before \
             this end sends",
        );
    }
    Diagnosis::certain(
        "rnr-exhausted",
        format!(
            "{peer} had no receive request posted: it answered RNR NAK {} times without progress, and rnr_retry \
             allows {} retries",
            u32::from(record.attr.rnr_retry) + 1,
            record.attr.rnr_retry
        ),
        "let the peer post receives faster or in advance; set rnr_retry to 7 (endless) at this end, or a longer \
         min_rnr_timer at the peer",
    )
}

/// A request was refused for good.
pub(super) fn refused(record: &PostMortem, code: NakCode) -> Diagnosis {
    let Some(request) = record.request else {
        return invalid(record, None, 0);
    };
    match code {
        NakCode::RemoteAccess => access(record, &request),
        NakCode::RemoteOperational | NakCode::InvalidRd => Diagnosis::likely(
            "remote-operational",
            format!(
                "{} could not carry out the {} of {} bytes (NAK remote operational error): likely its receive \
                 request names memory that it may not use, or the memory of its program could not be reached",
                peer(record),
                operation(request.op),
                request.len
            ),
            look_there(
                record,
                "check lkey, address and length of the receives that it posts",
            ),
        ),
        _ => invalid(record, request.op, request.len),
    }
}

/// Where the peer runs Roceline too, its own record knows more.
fn look_there(record: &PostMortem, what: &str) -> String {
    format!(
        "{what}; if the peer runs roceline too, `roceline show qp --post-mortem {:#x}` there says which",
        record.attr.dest_qpn
    )
}

fn access(record: &PostMortem, request: &FailedRequest) -> Diagnosis {
    let right = match request.op {
        Some(WrOpcode::Read) => "IBV_ACCESS_REMOTE_READ",
        Some(op) if op.is_atomic() => "IBV_ACCESS_REMOTE_ATOMIC",
        Some(WrOpcode::Flush) => "the IBV_ACCESS_FLUSH_* that was asked for",
        _ => "IBV_ACCESS_REMOTE_WRITE",
    };
    if request.op == Some(WrOpcode::SendInv) {
        return Diagnosis::certain(
            "remote-invalidate",
            format!(
                "{} refused to invalidate the key that a SEND names (NAK remote access error): it is no memory window of \
                 type 2 that its queue pair has bound",
                peer(record)
            ),
            look_there(
                record,
                "compare invalidate_rkey with the key of the peer's last bind",
            ),
        );
    }
    Diagnosis::certain(
        "remote-access",
        format!(
            "{} refused rkey {:#010x} for a {} of {} bytes at {:#x} (NAK remote access error): the key is wrong or \
             stale, the range is not inside its memory region, the region belongs to another protection domain, or \
             it lacks {right}",
            peer(record),
            request.rkey,
            operation(request.op),
            request.len,
            request.remote_addr
        ),
        look_there(
            record,
            "compare rkey, address and length with what the peer registered",
        ),
    )
}

/// NAK invalid request: several rules of IBTA 9.7.4.1 end in it, so the request and what went before decide.
fn invalid(record: &PostMortem, op: Option<WrOpcode>, len: u64) -> Diagnosis {
    let peer = peer(record);
    let mtu = record.attr.path_mtu.bytes();
    let name = operation(op);
    let full = len > u64::from(mtu);
    let succeeded = |op: WrOpcode| record.evidence.succeeded & 1 << op as u16 != 0;
    let refused_at_start = record.request.is_some_and(|r| r.first == record.unacked);
    let only_small_passed = full && refused_at_start && record.evidence.largest < mtu;
    let same_mtu = format!(
        "give both queue pairs the same path_mtu (this one has {mtu}), no more than the smaller active MTU; perftest \
         takes -m"
    );
    match op {
        Some(WrOpcode::Read) => Diagnosis::likely(
            "read-not-allowed",
            format!(
                "{peer} refused a READ of {len} bytes as invalid: likely qp_access_flags of its queue pair lack \
                 IBV_ACCESS_REMOTE_READ, or its max_dest_rd_atomic is below the max_rd_atomic {} of this one",
                record.attr.max_rd_atomic
            ),
            look_there(
                record,
                "set both on the peer's queue pair (INIT and RTR), or lower max_rd_atomic here",
            ),
        ),
        Some(op) if op.is_atomic() => Diagnosis::likely(
            "atomic-not-allowed",
            format!(
                "{peer} refused an atomic as invalid: likely qp_access_flags of its queue pair lack \
                 IBV_ACCESS_REMOTE_ATOMIC, the address is no multiple of 8, or its max_dest_rd_atomic is below the \
                 max_rd_atomic {} of this one",
                record.attr.max_rd_atomic
            ),
            look_there(record, "set both on the peer's queue pair (INIT and RTR)"),
        ),
        Some(op @ (WrOpcode::Write | WrOpcode::WriteImm))
            if !full || !succeeded(op) && !only_small_passed =>
        {
            Diagnosis::likely(
                "write-not-allowed",
                format!(
                    "{peer} refused a WRITE of {len} bytes as invalid: likely qp_access_flags of its queue pair \
                     lack IBV_ACCESS_REMOTE_WRITE{}",
                    if full {
                        ", or its path MTU is not this one's"
                    } else {
                        ""
                    }
                ),
                look_there(record, "set it when the peer's queue pair goes to INIT"),
            )
        }
        _ if only_small_passed => Diagnosis::likely(
            "path-mtu-mismatch",
            format!(
                "{peer} refused the first packet of a {name} of {len} bytes as invalid, the first that fills the \
                 path MTU of {mtu}{}: likely the path MTUs of the two queue pairs differ{}",
                match record.evidence.largest {
                    0 => String::new(),
                    n => format!(", while messages of up to {n} bytes passed"),
                },
                if name == "SEND" {
                    ", or its receive request is shorter than the message"
                } else {
                    ""
                }
            ),
            look_there(record, &same_mtu),
        ),
        _ => Diagnosis::likely(
            "receive-too-short",
            format!(
                "{peer} refused a {name} of {len} bytes as invalid: likely its receive request is shorter (its \
                 completion then says IBV_WC_LOC_LEN_ERR), or its path MTU is smaller than the {mtu} of this queue \
                 pair"
            ),
            look_there(
                record,
                "post receives at the peer that hold the longest message",
            ),
        ),
    }
}
