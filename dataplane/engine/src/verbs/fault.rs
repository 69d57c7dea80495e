//! The table of what can go wrong with a request or a queue pair, and what each fault looks like at both ends: who is told
//! what, by which completion status, NAK, event and counter, and in which state the queue pairs are afterwards.
//!
//! The state machines take their answers from here. `docs/conformance.md` prints the table; a test compares the two, one
//! brings each row about in virtual time, one with real programs.

use super::work::{AsyncKind, WcStatus};
use crate::wire::aeth::NakCode;

/// A fault. Where it is found decides who hears of it: what a requester finds wrong with its own request never reaches the
/// peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// A send request that the queue pair cannot carry out: opcode, entries, inline READ.
    BadRequest,
    /// A READ or atomic while `max_rd_atomic` is 0.
    NoReadCredits,
    /// A memory window that cannot be bound so.
    WindowBind,
    /// A key that cannot be invalidated.
    LocalInvalidate,
    /// A send request longer than a message, or inline data, may be; an atomic without room for 8 bytes.
    TooLong,
    /// A send request names local memory that it may not use.
    LocalKey,
    /// Local memory of a send request that is registered and cannot be reached.
    LocalMemory,
    /// Nothing was acknowledged in spite of all retries.
    RetriesExceeded,
    /// The peer had no receive request in spite of all RNR retries.
    RnrExceeded,
    /// A request that breaks the rules: order, length, operation, number of READs, rights of the queue pair.
    InvalidRequest,
    /// A request whose remote key, range, protection domain or right does not fit.
    RemoteAccess,
    /// A SEND with invalidate of a key that cannot be invalidated.
    RemoteInvalidate,
    /// A SEND longer than its receive request.
    SendTooLong,
    /// A receive request names memory that it may not use.
    ReceiveKey,
    /// A receive request with more entries than the queue pair allows.
    ReceiveEntries,
    /// Memory of a receive request that is registered and cannot be reached.
    ReceiveMemory,
    /// Memory of a WRITE, READ or atomic that is registered at the responder and cannot be reached.
    TargetMemory,
    /// A completion queue was full when the next completion came.
    CqOverflow,
    /// The program moved the queue pair to ERR, or it failed by one of the others: what is still posted.
    Flushed,
}

/// What a fault looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRow {
    /// The fault.
    pub fault: Fault,
    /// In a few words.
    pub name: &'static str,
    /// The rule: a section of IBTA volume 1, or where else it is from.
    pub clause: &'static str,
    /// The requester's send request completes with this.
    pub requester: Option<WcStatus>,
    /// The responder answers with this NAK.
    pub nak: Option<NakCode>,
    /// The responder's receive request completes with this, if the message had taken one.
    pub receive: Option<WcStatus>,
    /// The requester's queue pair goes to ERR.
    pub requester_fails: bool,
    /// The responder's queue pair goes to ERR.
    pub responder_fails: bool,
    /// Event of the queue pair at the end that has no completion to tell it by.
    pub event: Option<AsyncKind>,
    /// What the requester counts, besides `req_cqe_error` for the completion.
    pub requester_counts: Option<&'static str>,
    /// What the responder counts, besides `resp_cqe_error` for the completion.
    pub responder_counts: Option<&'static str>,
}

/// What a fault of the requester's own looks like.
const fn local(
    fault: Fault,
    name: &'static str,
    status: WcStatus,
    clause: &'static str,
) -> FaultRow {
    FaultRow {
        fault,
        name,
        clause,
        requester: Some(status),
        nak: None,
        receive: None,
        requester_fails: true,
        responder_fails: false,
        event: None,
        requester_counts: None,
        responder_counts: None,
    }
}

/// What a request looks like that the responder refuses with `nak`.
const fn refused(fault: Fault, name: &'static str, nak: NakCode, clause: &'static str) -> FaultRow {
    let (status, count) = match nak {
        NakCode::InvalidRequest => (WcStatus::RemInvReqErr, Some("req_remote_invalid_request")),
        NakCode::RemoteAccess => (WcStatus::RemAccessErr, Some("req_remote_access_errors")),
        _ => (WcStatus::RemOpErr, None),
    };
    FaultRow {
        nak: Some(nak),
        responder_fails: true,
        requester_counts: count,
        ..local(fault, name, status, clause)
    }
}

/// The table, in the order of [`Fault`].
pub const FAULTS: [FaultRow; 19] = {
    use Fault::*;
    use WcStatus::*;
    [
        local(
            BadRequest,
            "send request with an opcode that the QP does not have, too many entries, or an inline READ",
            LocQpOpErr,
            "9.9.2, 11.6.2",
        ),
        local(
            NoReadCredits,
            "READ or atomic while `max_rd_atomic` is 0",
            LocQpOpErr,
            "own: it could never be sent",
        ),
        local(
            WindowBind,
            "memory window bound against one of its rules",
            MwBindErr,
            "10.6.7, C10-72 to C10-75",
        ),
        local(
            LocalInvalidate,
            "invalidation of what is no bound window of type 2 of the QP",
            LocQpOpErr,
            "10.6.7, o10-37.2.26",
        ),
        local(
            TooLong,
            "send request, or inline data, longer than may be; atomic without room for 8 bytes",
            LocLenErr,
            "9.9.2, 11.6.2",
        ),
        local(
            LocalKey,
            "send request with a local key, range, PD or right that does not fit",
            LocProtErr,
            "9.9.2, 11.6.2",
        ),
        local(
            LocalMemory,
            "send request whose registered memory cannot be reached",
            LocProtErr,
            "9.9.2, 11.6.2",
        ),
        FaultRow {
            requester_counts: Some("req_transport_retries_exceeded"),
            ..local(
                RetriesExceeded,
                "no acknowledgement in spite of `retry_cnt` retries",
                RetryExcErr,
                "9.7.6.1, 9.9.2",
            )
        },
        FaultRow {
            requester_counts: Some("req_rnr_retries_exceeded"),
            ..local(
                RnrExceeded,
                "no receive request in spite of `rnr_retry` retries",
                RnrRetryExcErr,
                "9.7.5.2.8, 9.9.2",
            )
        },
        FaultRow {
            event: Some(AsyncKind::QpReqErr),
            ..refused(
                InvalidRequest,
                "request out of order, of a wrong length, of an operation or right that the QP does not have, one READ \
                 or atomic more than `max_dest_rd_atomic`, or an atomic at an address that is no multiple of 8",
                NakCode::InvalidRequest,
                "9.7.4.1, 9.9.3, 11.6.3",
            )
        },
        FaultRow {
            event: Some(AsyncKind::QpAccessErr),
            responder_counts: Some("resp_remote_access_errors"),
            ..refused(
                RemoteAccess,
                "request with a remote key, range, PD or right that does not fit",
                NakCode::RemoteAccess,
                "9.7.4.1.3, 9.9.3, 11.6.3",
            )
        },
        FaultRow {
            receive: Some(RemInvReqErr),
            responder_counts: Some("resp_remote_access_errors"),
            ..refused(
                RemoteInvalidate,
                "SEND with invalidate of what is no bound window of type 2 of the QP",
                NakCode::RemoteAccess,
                "9.7.4.1.3, see the ruling",
            )
        },
        FaultRow {
            receive: Some(LocLenErr),
            responder_counts: Some("resp_local_length_error"),
            ..refused(
                SendTooLong,
                "SEND longer than its receive request",
                NakCode::InvalidRequest,
                "9.9.3, see the ruling",
            )
        },
        FaultRow {
            receive: Some(LocProtErr),
            ..refused(
                ReceiveKey,
                "receive request with a local key, range, PD or right that does not fit",
                NakCode::RemoteOperational,
                "9.9.3",
            )
        },
        FaultRow {
            receive: Some(LocQpOpErr),
            ..refused(
                ReceiveEntries,
                "receive request with too many entries",
                NakCode::RemoteOperational,
                "9.9.3",
            )
        },
        FaultRow {
            receive: Some(LocProtErr),
            ..refused(
                ReceiveMemory,
                "receive request whose registered memory cannot be reached",
                NakCode::RemoteOperational,
                "9.9.3",
            )
        },
        FaultRow {
            event: Some(AsyncKind::QpFatal),
            ..refused(
                TargetMemory,
                "WRITE, READ or atomic whose registered memory cannot be reached",
                NakCode::RemoteOperational,
                "9.9.3, 11.6.3",
            )
        },
        FaultRow {
            requester: None,
            event: Some(AsyncKind::QpFatal),
            ..local(
                CqOverflow,
                "completion queue full, after CQ_ERR of that queue",
                GeneralErr,
                "11.6.3",
            )
        },
        FaultRow {
            receive: Some(WrFlushErr),
            ..local(
                Flushed,
                "what is posted to a QP in ERR",
                WrFlushErr,
                "10.3.1, 11.6.2",
            )
        },
    ]
};

const _: () = {
    let mut i = 0;
    while i < FAULTS.len() {
        assert!(
            FAULTS[i].fault as usize == i,
            "the rows are in the order of the faults"
        );
        i += 1;
    }
};

impl Fault {
    /// Whether it lies in the receive request itself, whatever the peer sent.
    pub(crate) const fn is_receivers(self) -> bool {
        matches!(self, Fault::ReceiveKey | Fault::ReceiveEntries)
    }

    /// Its row.
    pub const fn row(self) -> &'static FaultRow {
        &FAULTS[self as usize]
    }

    /// The fault that a requester knows of when it is answered with this NAK: the peer does not say more.
    pub const fn answered(nak: NakCode) -> Fault {
        match nak {
            NakCode::InvalidRequest => Fault::InvalidRequest,
            NakCode::RemoteAccess => Fault::RemoteAccess,
            // A sequence error is no fault but a call for a retry; there are no reliable datagrams.
            NakCode::PsnSequence | NakCode::RemoteOperational | NakCode::InvalidRd => {
                Fault::TargetMemory
            }
        }
    }

    /// How the send request completes with which the requester fails.
    pub const fn status(self) -> WcStatus {
        match self.row().requester {
            Some(status) => status,
            None => WcStatus::GeneralErr,
        }
    }
}

/// The row as `docs/conformance.md` has it, without its last cell, the test.
impl core::fmt::Display for FaultRow {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let status = |status: Option<WcStatus>| match status {
            Some(s) => format!("{} {:#04x}", s.name(), s.vendor_err()),
            None => "–".into(),
        };
        let states = match (self.requester_fails, self.responder_fails) {
            (true, true) => "both",
            (true, false) => "own",
            (false, true) => "responder",
            (false, false) => "–",
        };
        let event = match (self.event, self.nak) {
            (Some(kind), Some(_)) => format!("{} at the responder", kind.name()),
            (Some(kind), None) => kind.name().into(),
            (None, _) => "–".into(),
        };
        let counts: Vec<_> = [self.requester_counts, self.responder_counts]
            .into_iter()
            .flatten()
            .map(|name| format!("`{name}`"))
            .collect();
        let counts = match counts.is_empty() {
            true => "–".into(),
            false => counts.join(", "),
        };
        write!(
            f,
            "| {} | {} | {} | {} | {} | {states} | {event} | {counts} |",
            self.name,
            self.clause,
            status(self.requester),
            self.nak.map_or("–", NakCode::name),
            status(self.receive),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nak_tells_the_requester_what_every_row_with_it_says() {
        for row in &FAULTS {
            if let Some(nak) = row.nak {
                assert_eq!(
                    row.requester,
                    Some(Fault::answered(nak).status()),
                    "{row:?}"
                );
            }
        }
    }

    #[test]
    fn whoever_fails_is_told_once() {
        for row in &FAULTS {
            let told = row.receive.is_some() || row.event.is_some();
            assert!(!row.responder_fails || told, "{row:?}");
            assert!(!row.requester_fails || row.requester.is_some() || row.event.is_some());
            // What the requester finds out by itself does not reach the peer.
            assert_eq!(row.responder_fails, row.nak.is_some(), "{row:?}");
        }
    }
}
