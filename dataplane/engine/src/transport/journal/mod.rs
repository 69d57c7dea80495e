//! What a queue pair remembers of itself, and the record that is kept when it fails.
//!
//! In flow, from the state machines, what was sent and received, why something was sent again, and what
//! was found wrong. Out flows a [`PostMortem`] when the QP goes to ERR; [`crate::diagnosis`] makes sentences
//! of it. Each QP owns its [`Journal`], the engine owns the records.
//!
//! The last packets are kept per QP and not per NIC: a QP that dies of timeouts has been silent for
//! seconds, in which its neighbours would have overwritten a common ring many times. Packets of a run (the middle
//! of a message, ACKs without news) share one entry, so that a few entries reach back a long way and a
//! stream of packets stays in one cache line.

mod cause;
mod post_mortem;

pub use cause::{Cause, Retry};
pub use post_mortem::{
    Astray, Evidence, FailedRequest, Foreign, Misfit, Owner, PortHints, PostMortem, PostMortems,
};

use crate::counters::Counters;
use crate::time::Nanos;
use crate::transport::prefetch;
use crate::verbs::WrOpcode;
use crate::wire::{Gid, Opcode, Packet, Psn};

/// Entries that a QP keeps.
pub const ENTRIES: usize = 32;

/// What an entry tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Nothing: the place was never used.
    Empty = 0,
    /// Packets sent for the first time.
    Sent = 1,
    /// Packets sent again.
    Resent = 2,
    /// Packets received.
    Received = 3,
    /// The ACK timer expired; `detail` retries are left.
    Timeout = 4,
    /// A NAK "PSN sequence error" asked for a retry; `detail` retries are left.
    SequenceNak = 5,
    /// A response was missing, which asks for a retry; `detail` retries are left.
    ImpliedNak = 6,
    /// An RNR NAK asked to wait; `detail` RNR retries are left (7: endless).
    RnrNak = 7,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Empty,
        Kind::Sent,
        Kind::Resent,
        Kind::Received,
        Kind::Timeout,
        Kind::SequenceNak,
        Kind::ImpliedNak,
        Kind::RnrNak,
    ];

    /// Whether the entry tells of packets.
    pub const fn is_packet(self) -> bool {
        matches!(self, Kind::Sent | Kind::Resent | Kind::Received)
    }
}

/// One entry, or a run of like packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When; of a run, its newest packet.
    at: Nanos,
    /// PSN in the low 24 bits (of a run, its newest), kind above.
    kind_psn: u32,
    /// Opcode of a packet below; above, AETH syndrome of an ACK, or retries left.
    tag: u16,
    /// Packets in the run.
    count: u16,
}

impl Entry {
    const EMPTY: Entry = Entry {
        at: Nanos::ZERO,
        kind_psn: 0,
        tag: 0,
        count: 0,
    };

    /// When it happened, in the engine's time; of a run, its newest packet.
    pub fn at(&self) -> Nanos {
        self.at
    }

    /// What it tells of.
    pub fn kind(&self) -> Kind {
        let number = (self.kind_psn >> 24) as usize;
        Kind::ALL.get(number).copied().unwrap_or(Kind::Empty)
    }

    /// PSN of the packet; of a run, of its newest; of a retry, where it begins.
    pub fn psn(&self) -> Psn {
        Psn::new(self.kind_psn)
    }

    /// Packets in the run, 65,535 at most.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Opcode of the packets.
    pub fn opcode(&self) -> Option<Opcode> {
        self.kind()
            .is_packet()
            .then(|| Opcode::from_raw(self.tag as u8))
            .flatten()
    }

    /// AETH syndrome of an ACK; retries left after a retry.
    pub fn detail(&self) -> u8 {
        (self.tag >> 8) as u8
    }
}

/// Packets of a QP since it came out of RESET.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets sent, repeated ones included.
    pub sent: u64,
    /// Packets sent again: of requests, and READ responses that were asked for again.
    pub resent: u64,
    /// Requests of the peer received.
    pub requests: u64,
    /// Responses of the peer received: ACKs, NAKs, READ responses.
    pub responses: u64,
}

/// What one QP remembers: what every packet touches in one cache line, behind it the entries, to which one is added when a run
/// ends.
#[repr(C, align(64))]
pub(crate) struct Journal {
    sent: u64,
    requests: u64,
    responses: u64,
    /// When the peer was last heard.
    heard: Nanos,
    /// The newest entry.
    last: Entry,
    /// Entries ever begun.
    next: u32,
    /// Payload bytes of the largest packet of a request that succeeded.
    largest: u16,
    /// Bit n: a request with opcode n succeeded.
    succeeded: u16,
    pub rest: Box<Rest>,
    /// Those before it.
    entries: [Entry; ENTRIES],
}

const _: () = assert!(core::mem::offset_of!(Journal, entries) == 64);

/// What few packets touch.
pub(crate) struct Rest {
    resent: u64,
    /// When the last series of retries began, and at which PSN it stood still.
    trouble: Option<(Nanos, Psn)>,
    /// What the port had counted then, or when the QP came to RTS.
    before: PortHints,
    foreign: Option<Foreign>,
    misfit: Option<Misfit>,
    astray: Option<Astray>,
    /// The request that ends the QP.
    failed: Option<FailedRequest>,
    /// What is wrong with a request of the peer; the QP fails when its turn comes.
    pub refusal: Option<Cause>,
    /// Whose QP it is.
    pub owner: Owner,
}

impl Rest {
    const fn new(owner: Owner) -> Rest {
        Rest {
            resent: 0,
            trouble: None,
            before: PortHints::NONE,
            foreign: None,
            misfit: None,
            astray: None,
            failed: None,
            refusal: None,
            owner,
        }
    }
}

impl Journal {
    pub fn new() -> Journal {
        Journal::of(Box::new(Rest::new(Owner::default())))
    }

    fn of(rest: Box<Rest>) -> Journal {
        Journal {
            sent: 0,
            requests: 0,
            responses: 0,
            heard: Nanos::ZERO,
            last: Entry::EMPTY,
            next: 0,
            largest: 0,
            succeeded: 0,
            rest,
            entries: [Entry::EMPTY; ENTRIES],
        }
    }

    /// A QP in RESET remembers only whose it is.
    pub fn reset(&mut self) {
        *self.rest = Rest::new(self.rest.owner);
        (self.sent, self.requests, self.responses) = (0, 0, 0);
        self.heard = Nanos::ZERO;
        self.last = Entry::EMPTY;
        self.entries = [Entry::EMPTY; ENTRIES];
        self.next = 0;
        (self.largest, self.succeeded) = (0, 0);
    }

    /// Asks for the cache line of the entry that the next run pushes out.
    #[inline]
    pub fn prefetch(&self) {
        let number = self.next.wrapping_sub(1) as usize % ENTRIES;
        prefetch::line(&raw const self.entries[number]);
    }

    /// Packets so far.
    fn traffic(&self) -> Traffic {
        Traffic {
            sent: self.sent,
            resent: self.rest.resent,
            requests: self.requests,
            responses: self.responses,
        }
    }

    /// The entries by their numbers, modulo how many are kept.
    fn entries(&self) -> [Entry; ENTRIES] {
        let mut entries = self.entries;
        if self.next > 0 {
            entries[(self.next - 1) as usize % ENTRIES] = self.last;
        }
        entries
    }

    /// Notes a packet that goes out.
    #[inline]
    pub fn sent(&mut self, now: Nanos, opcode: Opcode, psn: Psn, syndrome: u8, again: bool) {
        self.sent += 1;
        let mut kind = Kind::Sent;
        if again {
            self.rest.resent += 1;
            kind = Kind::Resent;
        }
        self.packet(now, kind, opcode, psn, syndrome);
    }

    /// Notes a packet of the peer, a request or a response.
    #[inline]
    pub fn received(&mut self, now: Nanos, packet: &Packet, is_request: bool) {
        self.requests += u64::from(is_request);
        self.responses += u64::from(!is_request);
        self.heard = now;
        let syndrome = match packet.opcode {
            Opcode::RC_ACK => (packet.ext.aeth >> 24) as u8,
            _ => 0,
        };
        self.packet(now, Kind::Received, packet.opcode, packet.psn, syndrome);
    }

    #[inline]
    fn packet(&mut self, now: Nanos, kind: Kind, opcode: Opcode, psn: Psn, syndrome: u8) {
        let kind_psn = (kind as u32) << 24 | psn.get();
        let tag = u16::from(syndrome) << 8 | u16::from(opcode.raw());
        let last = &mut self.last;
        // A run goes on with the next PSN; ACKs that say the same may skip some.
        let follows = match opcode {
            Opcode::RC_ACK => last.kind_psn >> 24 == kind as u32,
            _ => last.kind_psn.wrapping_add(1) == kind_psn && psn.get() != 0,
        };
        if last.tag == tag && follows && last.count != u16::MAX {
            last.at = now;
            last.kind_psn = kind_psn;
            last.count += 1;
            return;
        }
        self.push(Entry {
            at: now,
            kind_psn,
            tag,
            count: 1,
        });
    }

    #[inline]
    fn push(&mut self, entry: Entry) {
        // Before the first one that is an empty one, where the newest will not be looked for.
        let number = self.next.wrapping_sub(1) as usize % ENTRIES;
        self.entries[number] = self.last;
        self.last = entry;
        self.next = self.next.wrapping_add(1);
    }

    /// Notes why something is sent again from `psn` on, or would be if retries were left.
    pub fn note(&mut self, now: Nanos, kind: Kind, psn: Psn, left: u8) {
        self.push(Entry {
            at: now,
            kind_psn: (kind as u32) << 24 | psn.get(),
            tag: u16::from(left) << 8,
            count: 1,
        });
    }

    /// A retry from `unacked` on. If it is the first since the last progress, then from here on what goes wrong at
    /// the port is of interest.
    pub fn trouble(&mut self, now: Nanos, unacked: Psn, counters: &Counters) {
        if self.rest.trouble.is_none_or(|(_, psn)| psn != unacked) {
            self.rest.trouble = Some((now, unacked));
            self.rest.before = PortHints::of(counters);
        }
    }

    /// The QP is connected.
    pub fn connected(&mut self, counters: &Counters) {
        self.rest.before = PortHints::of(counters);
    }

    /// A request succeeded whose largest packet had `size` bytes of payload.
    #[inline]
    pub fn succeeded(&mut self, op: WrOpcode, size: u32) {
        self.succeeded |= 1 << op as u16;
        // A path MTU is 4096 at most.
        let size = size as u16;
        if size > self.largest {
            self.largest = size;
        }
    }

    /// A packet with this QP's number, but not between its two addresses.
    pub fn foreign(&mut self, src: Gid, dst: Gid) {
        let count = self.rest.foreign.map_or(0, |f| f.count).wrapping_add(1);
        self.rest.foreign = Some(Foreign { count, src, dst });
    }

    /// A READ response whose payload is not as long as this QP's path MTU makes it.
    pub fn misfit(&mut self, got: u32, want: u32) {
        let count = self.rest.misfit.map_or(0, |m| m.count).wrapping_add(1);
        self.rest.misfit = Some(Misfit { count, got, want });
    }

    /// An ACK or NAK for a PSN that this QP, of whose requests none was ever acknowledged, did not send. The first one
    /// counts.
    #[cold]
    pub fn astray(&mut self, psn: Psn, aeth: u32) {
        let syndrome = (aeth >> 24) as u8;
        self.rest.astray.get_or_insert(Astray { psn, syndrome });
    }

    /// The failure is in a record, and the QP lives on: the next one is another.
    pub fn recorded(&mut self) {
        self.rest.failed = None;
    }

    /// The request because of which the QP is about to fail; the first one counts.
    pub fn fails(&mut self, request: FailedRequest) {
        self.rest.failed.get_or_insert(request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(j: &Journal) -> Vec<(Kind, u32, u16)> {
        let first = j.next.saturating_sub(ENTRIES as u32);
        let entries = j.entries();
        (first..j.next)
            .map(|i| entries[i as usize % ENTRIES])
            .map(|e| (e.kind(), e.psn().get(), e.count()))
            .collect()
    }

    #[test]
    fn the_middle_of_a_message_is_one_entry() {
        let mut j = Journal::new();
        let mut send =
            |opcode, psn: u32, again| j.sent(Nanos(psn.into()), opcode, Psn::new(psn), 0, again);
        send(Opcode::RC_WRITE_FIRST, 5, false);
        for psn in 6..100 {
            send(Opcode::RC_WRITE_MIDDLE, psn, false);
        }
        send(Opcode::RC_WRITE_LAST, 100, false);
        send(Opcode::RC_WRITE_MIDDLE, 6, true);
        send(Opcode::RC_WRITE_MIDDLE, 7, true);
        assert_eq!(
            kinds(&j),
            [
                (Kind::Sent, 5, 1),
                (Kind::Sent, 99, 94),
                (Kind::Sent, 100, 1),
                (Kind::Resent, 7, 2)
            ]
        );
        assert_eq!((j.traffic().sent, j.traffic().resent), (98, 2));
    }

    #[test]
    fn acks_that_say_the_same_are_one_entry_and_others_are_not() {
        let mut j = Journal::new();
        for (psn, syndrome) in [(1, 0x1f), (9, 0x1f), (9, 0x60), (9, 0x1f)] {
            j.sent(Nanos(1), Opcode::RC_ACK, Psn::new(psn), syndrome, false);
        }
        let sent = |psn, count| (Kind::Sent, psn, count);
        assert_eq!(kinds(&j), [sent(9, 2), sent(9, 1), sent(9, 1)]);
    }

    #[test]
    fn the_oldest_entries_leave_and_a_run_ends_at_psn_zero() {
        let mut j = Journal::new();
        for psn in [0xff_fffe, 0xff_ffff, 0, 1] {
            j.sent(Nanos(1), Opcode::RC_SEND_MIDDLE, Psn::new(psn), 0, false);
        }
        assert_eq!(kinds(&j), [(Kind::Sent, 0xff_ffff, 2), (Kind::Sent, 1, 2)]);
        for left in 0..40 {
            j.note(Nanos(2), Kind::Timeout, Psn::new(3), left);
        }
        let kept = kinds(&j);
        assert_eq!(kept.len(), ENTRIES);
        assert!(kept.iter().all(|e| e.0 == Kind::Timeout));
    }

    #[test]
    fn they_stay_small() {
        assert_eq!(size_of::<Entry>(), 16);
        let rest = size_of::<Rest>();
        assert!(rest <= 256, "{rest}");
        let record = size_of::<PostMortem>();
        assert!(record <= 1536, "{record}");
    }
}
