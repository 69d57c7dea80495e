//! The record of a queue pair that failed. It outlives the queue pair and its program.

use std::collections::VecDeque;

use super::{Cause, ENTRIES, Entry, Journal, Kind, Retry, Traffic};
use crate::counters::Counters;
use crate::time::Nanos;
use crate::transport::Engine;
use crate::transport::qp::Qp;
use crate::transport::qp_table::QpTable;
use crate::verbs::{QpAttr, QpId, QpState, QpType, WcStatus, WrOpcode};
use crate::wire::{Gid, Psn};

/// Records of QPs that failed.
const FAILED: usize = 48;
/// Records of QPs that their programs ended; they never push out one that failed.
const ORDERLY: usize = 16;

/// QPs that are asked whether they hear the peer of one that failed: few, so that many failures at once cost little.
const NEIGHBOURS: usize = 256;

/// Whose a QP is, as the caller of the engine knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Process, 0 where unknown.
    pub pid: u32,
    /// Name of the program as the kernel gives it (`comm`), padded with zeros.
    pub name: [u8; 16],
}

impl Owner {
    /// The name as text for a terminal: a program may call itself anything, so control characters are replaced.
    pub fn name(&self) -> String {
        let end = self.name.iter().position(|&b| b == 0).unwrap_or(16);
        let name = String::from_utf8_lossy(&self.name[..end]);
        name.replace(|c: char| c.is_control(), "?")
    }
}

/// The request because of which a QP failed, or the oldest one that its end cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedRequest {
    /// Of the program.
    pub wr_id: u64,
    /// What it asked for; `None` for a receive request.
    pub op: Option<WrOpcode>,
    /// Bytes; of a receive request, those that it holds.
    pub len: u64,
    /// How it completed, or will.
    pub status: WcStatus,
    /// First PSN and their number; 0 if it never had one.
    pub first: Psn,
    /// PSNs it takes.
    pub packets: u32,
    /// Remote address (WRITE, READ).
    pub remote_addr: u64,
    /// Remote key (WRITE, READ).
    pub rkey: u32,
}

/// What a port counted that may have to do with a silent peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortHints {
    /// Packets with a bad ICRC.
    pub bad_icrc: u64,
    /// Packets for QP numbers that nobody has.
    pub unknown_qp: u64,
    /// Packets that were malformed.
    pub malformed: u64,
}

impl PortHints {
    pub(super) const NONE: PortHints = PortHints {
        bad_icrc: 0,
        unknown_qp: 0,
        malformed: 0,
    };

    pub(super) fn of(c: &Counters) -> PortHints {
        PortHints {
            bad_icrc: c.rx_icrc_encapsulated,
            unknown_qp: c.rx_unknown_qp,
            malformed: c.rx_malformed,
        }
    }

    fn since(self, before: PortHints) -> PortHints {
        PortHints {
            bad_icrc: self.bad_icrc.wrapping_sub(before.bad_icrc),
            unknown_qp: self.unknown_qp.wrapping_sub(before.unknown_qp),
            malformed: self.malformed.wrapping_sub(before.malformed),
        }
    }
}

/// Packets with the QP's number that were not between its two addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// How many.
    pub count: u32,
    /// Source of the newest.
    pub src: Gid,
    /// Destination of the newest.
    pub dst: Gid,
}

/// READ responses whose payload does not have the length that the path MTU gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// How many.
    pub count: u32,
    /// Payload bytes of the newest.
    pub got: u32,
    /// Payload bytes that it should have had.
    pub want: u32,
}

/// An ACK or NAK for a PSN that was never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Astray {
    /// Its PSN.
    pub psn: Psn,
    /// Its AETH syndrome.
    pub syndrome: u8,
}

/// What else is known, for [`crate::diagnosis`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// When the peer was last heard; zero if never.
    pub heard: Nanos,
    /// When the last series of retries began.
    pub trouble: Option<Nanos>,
    /// What the port counted since then, or since RTS.
    pub port: PortHints,
    /// Packets of other addresses.
    pub foreign: Option<Foreign>,
    /// READ responses of the wrong length.
    pub misfit: Option<Misfit>,
    /// The first answer for a PSN that was never sent, before any request was acknowledged.
    pub astray: Option<Astray>,
    /// Payload bytes of the largest packet of a request that succeeded.
    pub largest: u32,
    /// Bit n: a request with opcode n succeeded.
    pub succeeded: u16,
    /// Send requests that were not complete.
    pub sends_open: u32,
    /// Another QP of this NIC heard the same address since `trouble`.
    pub peer_answers_others: bool,
}

/// All that is kept of a QP that went to ERR.
#[derive(Clone, Copy, Debug)]
pub struct PostMortem {
    /// Counts the records of the NIC from 1.
    pub number: u64,
    /// When, in the engine's time.
    pub at: Nanos,
    /// Its number.
    pub qp: QpId,
    /// Its program.
    pub owner: Owner,
    /// Its transport.
    pub qp_type: QpType,
    /// Its state before.
    pub state: QpState,
    /// Its state since: ERR, or SQE where only the send queue stopped.
    pub to: QpState,
    /// Its attributes: peer, path, timers, retries.
    pub attr: QpAttr,
    /// Oldest PSN not acknowledged.
    pub unacked: Psn,
    /// Next PSN to be sent.
    pub next: Psn,
    /// One past the newest PSN ever sent.
    pub newest: Psn,
    /// PSN expected from the peer.
    pub expected: Psn,
    /// Retries that were left of `retry_cnt`.
    pub retries_left: u8,
    /// Retries that were left of `rnr_retry`.
    pub rnr_left: u8,
    /// What it sent and received.
    pub traffic: Traffic,
    /// What it counted, under the names of the NIC's counters.
    pub counters: Counters,
    /// The request that failed.
    pub request: Option<FailedRequest>,
    /// The first cause.
    pub cause: Cause,
    /// What else is known.
    pub evidence: Evidence,
    entries: [Entry; ENTRIES],
    begun: u32,
}

impl PostMortem {
    /// The last packets and retries, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        let count = ENTRIES as u32;
        (0..count)
            .map(move |i| &self.entries[(self.begun.wrapping_add(i) % count) as usize])
            .filter(|e| e.kind() != Kind::Empty)
    }

    /// Whether adaptive retransmission gave the QP up: its time was used up, not a number of retries.
    pub fn by_time(&self) -> bool {
        self.cause == Cause::RetriesExceeded(Retry::Timeout)
            && self.counters.roce_adp_retrans_to > 0
    }

    fn of(qp: &Qp, to: QpState, cause: Cause, now: Nanos, counters: &Counters) -> PostMortem {
        let j: &Journal = &qp.journal;
        let rest = &j.rest;
        let request = rest.failed.or_else(|| qp.req.oldest());
        PostMortem {
            number: 0,
            at: now,
            qp: qp.id,
            owner: rest.owner,
            qp_type: qp.cold.init.qp_type,
            state: qp.state,
            to,
            attr: qp.cold.attr,
            unacked: qp.req.una,
            next: qp.req.snd,
            newest: qp.req.max,
            expected: qp.resp.epsn,
            retries_left: qp.req.retries_left().0,
            rnr_left: qp.req.retries_left().1,
            traffic: j.traffic(),
            counters: qp.counters,
            request,
            cause,
            evidence: Evidence {
                heard: j.heard,
                trouble: rest.trouble.map(|(at, _)| at),
                port: PortHints::of(counters).since(rest.before),
                foreign: rest.foreign,
                misfit: rest.misfit,
                astray: rest.astray,
                largest: j.largest.into(),
                succeeded: j.succeeded,
                sends_open: qp.req.open(),
                peer_answers_others: false,
            },
            entries: j.entries(),
            begun: j.next,
        }
    }
}

/// The records of one NIC on one lcore. Room for all of them is made at the start; the oldest leave.
pub struct PostMortems {
    failed: VecDeque<PostMortem>,
    orderly: VecDeque<PostMortem>,
    last: u64,
    /// Newest record that [`PostMortems::look_around`] has seen.
    looked: u64,
}

impl PostMortems {
    pub(crate) fn new() -> PostMortems {
        PostMortems {
            failed: VecDeque::with_capacity(FAILED),
            orderly: VecDeque::with_capacity(ORDERLY),
            last: 0,
            looked: 0,
        }
    }

    /// Keeps a record of `qp`, which is about to leave its state for `to`.
    #[cold]
    pub(crate) fn record(
        &mut self,
        qp: &Qp,
        to: QpState,
        cause: Cause,
        now: Nanos,
        counters: &Counters,
    ) {
        self.last += 1;
        let mut record = PostMortem::of(qp, to, cause, now, counters);
        record.number = self.last;
        let (records, room) = match cause.is_orderly() {
            true => (&mut self.orderly, ORDERLY),
            false => (&mut self.failed, FAILED),
        };
        if records.len() == room {
            records.pop_front();
        }
        records.push_back(record);
    }

    /// Whether there are records for [`PostMortems::look_around`].
    #[inline]
    pub(crate) fn is_fresh(&self) -> bool {
        self.looked != self.last
    }

    /// Adds to new records what the other QPs of the NIC know: whether the same address answers them.
    #[cold]
    pub(crate) fn look_around(&mut self, qps: &QpTable) {
        let looked = self.looked;
        for record in self.failed.iter_mut().rev() {
            if record.number <= looked {
                break;
            }
            let (peer, since) = (record.attr.path.dgid, record.evidence.trouble);
            record.evidence.peer_answers_others = qps.near(record.qp, NEIGHBOURS).any(|qp| {
                qp.dgid == peer && qp.id != record.qp && {
                    let heard = qp.journal.heard;
                    heard != Nanos::ZERO && Some(heard) >= since
                }
            });
        }
        self.looked = self.last;
    }

    /// Number of the newest record, 0 if there was none: to see whether there is a new one.
    #[inline]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The records that are kept, oldest first within failures and within orderly ends.
    pub fn iter(&self) -> impl Iterator<Item = &PostMortem> {
        self.failed.iter().chain(&self.orderly)
    }
}

impl Engine {
    /// Records whose a QP is; it says so in its [`PostMortem`].
    pub fn set_owner(&mut self, qp: QpId, owner: Owner) {
        if let Some(qp) = self.qps.get_mut(qp) {
            qp.journal.rest.owner = owner;
        }
    }

    /// Keeps a record of a QP that is about to be destroyed since its program went away; none of a QP that was
    /// not connected, or has failed and has one.
    pub fn bury_qp(&mut self, qp: QpId, now: Nanos) {
        if let Some(qp) = self.qps.get(qp).filter(|qp| qp.can_receive()) {
            self.nic
                .post_mortems
                .record(qp, QpState::Err, Cause::Closed, now, &self.nic.counters);
        }
    }

    /// Records of QPs that went to ERR.
    pub fn post_mortems(&self) -> &PostMortems {
        &self.nic.post_mortems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_cannot_write_to_the_terminal_by_its_name() {
        let named = |text: &[u8]| {
            let mut name = [0; 16];
            name[..text.len()].copy_from_slice(text);
            Owner { pid: 1, name }.name()
        };
        assert_eq!(named(b"ib_send_bw"), "ib_send_bw");
        assert_eq!(named(b"sixteen_letters_"), "sixteen_letters_");
        assert_eq!(named(b"\x1b[2J\n\xff"), "?[2J?\u{fffd}");
    }
}
