//! Packets that rules dropped on their way out of a NIC that a capture listens to.
//!
//! In flow packets from the rules, each with its place among those that go to the port; out they flow to the captures, at
//! that place, and back to the pool. So that a capture shows them where they would have been on the wire: the
//! packets in front of them are recorded only when the port takes them.

use std::collections::VecDeque;

use roceline_engine::fabric::impair::RuleId;

use super::notes::Notes;
use super::tap::{Packet, Taps};
use crate::port::Mbuf;

/// Packets that may wait; a port that takes nothing makes older ones be recorded before their turn.
const LIMIT: usize = 256;

/// A packet that a rule dropped.
struct Dropped {
    mbuf: Mbuf,
    rule: RuleId,
    /// Packets that go to the port between the one dropped before and this one.
    ahead: usize,
}

/// Those of a NIC that are not recorded yet.
#[derive(Default)]
pub struct DroppedPackets {
    waiting: VecDeque<Dropped>,
    /// Sum of what is ahead of them.
    ahead: usize,
}

impl DroppedPackets {
    /// Allocates what it will need.
    pub fn reserve(&mut self) {
        self.waiting.reserve(LIMIT);
    }

    /// Whether none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Lets all go, unrecorded.
    pub fn clear(&mut self) {
        self.waiting.clear();
        self.ahead = 0;
    }

    /// Adds a packet, with the rule's note on it, that was dropped behind the `queued` packets that go to the port.
    pub fn add(&mut self, mbuf: Mbuf, rule: RuleId, queued: usize, nic: usize, taps: &mut Taps) {
        if self.waiting.len() >= LIMIT {
            self.record_first(nic, taps);
        }
        // The port's queue only shrinks by what `record_among` saw.
        let ahead = queued.saturating_sub(self.ahead);
        self.ahead += ahead;
        self.waiting.push_back(Dropped { mbuf, rule, ahead });
    }

    /// Records packets that go to the port now, and the dropped ones among and right behind them.
    pub fn record_among<'a>(
        &mut self,
        sent: impl Iterator<Item = &'a Mbuf>,
        nic: usize,
        taps: &mut Taps,
    ) {
        self.record_due(nic, taps);
        for mbuf in sent {
            record_sent(taps, nic, mbuf, None);
            if let Some(first) = self.waiting.front_mut() {
                first.ahead = first.ahead.saturating_sub(1);
                self.ahead = self.ahead.saturating_sub(1);
            }
            self.record_due(nic, taps);
        }
    }

    fn record_due(&mut self, nic: usize, taps: &mut Taps) {
        while self.waiting.front().is_some_and(|first| first.ahead == 0) {
            self.record_first(nic, taps);
        }
    }

    fn record_first(&mut self, nic: usize, taps: &mut Taps) {
        let Some(first) = self.waiting.pop_front() else {
            return;
        };
        match self.waiting.front_mut() {
            Some(next) => next.ahead += first.ahead,
            None => self.ahead = 0,
        }
        record_sent(taps, nic, &first.mbuf, Some(first.rule));
    }
}

/// Records a packet of a NIC that has rules for what it sends, with what they noted on it.
pub fn record_sent(taps: &mut Taps, nic: usize, mbuf: &Mbuf, dropped_by: Option<RuleId>) {
    let notes = Notes::of(mbuf);
    let packet = Packet {
        outbound: true,
        frame: mbuf.data(),
        notes: notes.as_slice(),
        dropped_by,
    };
    taps.record_one(nic, &packet);
}
