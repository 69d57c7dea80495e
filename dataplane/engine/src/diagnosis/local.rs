//! The program did it, or a request of it could not be carried out at this end.

use super::{Diagnosis, key, operation, peer};
use crate::memory::Access;
use crate::transport::journal::{Cause, PostMortem};
use crate::verbs::WrOpcode;

/// The program or its completion queue ended the QP.
pub(super) fn ended(record: &PostMortem) -> Diagnosis {
    let open = record.evidence.sends_open;
    match record.cause {
        Cause::CqOverflow => Diagnosis::certain(
            "cq-overflow",
            "a completion queue of this queue pair was full when the next completion came".into(),
            "give ibv_create_cq room for all requests that may be outstanding on its queue pairs, or poll it \
             more often",
        ),
        Cause::Closed => Diagnosis::certain(
            "program-gone",
            format!(
                "the program closed its device, or died, while this queue pair was connected to {}; {open} send \
                 requests were not complete",
                peer(record)
            ),
            format!(
                "see how process {} ended: its exit status, a signal, the kernel's out-of-memory messages",
                record.owner.pid
            ),
        ),
        _ => Diagnosis::certain(
            "program-ended",
            format!(
                "the program itself moved the queue pair to ERR (ibv_modify_qp); {open} send requests were not \
                 complete"
            ),
            "nothing, if it meant to disconnect; what was posted completes with IBV_WC_WR_FLUSH_ERR",
        ),
    }
}

/// A send request of the program is no good.
pub(super) fn request(record: &PostMortem) -> Diagnosis {
    let request = record.request;
    let op = request.and_then(|r| r.op);
    let wr_id = request.map_or(0, |r| r.wr_id);
    let whose = format!("the {} with wr_id {wr_id:#x}", operation(op));
    match record.cause {
        Cause::LocalKey(error) => {
            let right = match op {
                Some(WrOpcode::Read | WrOpcode::CmpSwap | WrOpcode::FetchAdd) => {
                    Access::LOCAL_WRITE
                }
                _ => Access::LOCAL_READ,
            };
            let (sentence, remedy) = key(&whose, "lkey", error, right);
            Diagnosis::certain("local-protection", sentence, remedy)
        }
        Cause::LocalMemory => Diagnosis::certain(
            "local-memory",
            format!(
                "the memory of {whose} could not be reached, although it is registered: it was unmapped, its file \
                 was truncated, or the program has exited"
            ),
            "keep memory mapped until its region is deregistered",
        ),
        Cause::NoReadCredits => Diagnosis::certain(
            "no-read-credits",
            format!("{whose} can never be sent, since max_rd_atomic of the queue pair is 0"),
            "set max_rd_atomic to 1 or more when the queue pair goes to RTS",
        ),
        Cause::TooLong if op.is_some_and(WrOpcode::is_atomic) => Diagnosis::certain(
            "atomic-length",
            format!("{whose} has no room for the 8 bytes that were there before"),
            "give it one scatter/gather entry of 8 bytes",
        ),
        Cause::AddressHandle(number) => Diagnosis::certain(
            "address-handle",
            format!(
                "{whose} names address handle {number:#x}, which does not exist, or belongs to another protection domain"
            ),
            "create the address handle with the protection domain of the queue pair, and destroy it after the last \
             request that uses it is complete",
        ),
        Cause::DatagramTooLong { len, mtu } => Diagnosis::certain(
            "datagram-too-long",
            format!(
                "{whose} has {len} bytes, but a datagram is one packet: {mtu} bytes at most, the active MTU of the port"
            ),
            "post it in pieces, or raise `mtu` of the NICs at both ends",
        ),
        Cause::TooLong => Diagnosis::certain(
            "too-long",
            format!(
                "{whose} is longer than a message may be (2 GiB), or its inline data longer than max_inline_data of the queue pair"
            ),
            "post it in pieces, or without IBV_SEND_INLINE",
        ),
        _ => Diagnosis::certain(
            "bad-request",
            format!(
                "{whose} is one that this queue pair cannot carry out: an opcode that it does not have \
                 (READ and atomics need RC), an inline READ, or more scatter/gather entries than max_send_sge"
            ),
            "check the opcode against the queue pair's type; compare num_sge with what ibv_create_qp returned",
        ),
    }
}
