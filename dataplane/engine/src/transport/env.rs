//! What a state machine of one QP may touch besides the QP, for the length of one engine call.

use super::ah::AhTable;
use super::journal::PostMortems;
use super::lists::Lists;
use super::qp::Qp;
use super::reaction::Reaction;
use crate::counters::Counters;
use crate::descriptor::Outputs;
use crate::memory::MrTable;
use crate::time::Nanos;
use crate::timers::TimerWheel;
use crate::verbs::{AsyncKind, Event};
use crate::wire::{self, Opcode};

/// Room for the events that end a step (an error completion, a retirement, an asynchronous event), kept
/// free by everything that emits many.
const LAST_EVENTS: usize = 8;

/// What a turn may still send, in bytes of link time, and what it has sent. Without a turn, or where nobody counts, it is
/// endless.
pub(crate) struct Meter {
    left: i64,
    on: bool,
    /// Descriptors before this one are counted.
    counted: usize,
    bytes: u32,
}

impl Meter {
    /// Counts nothing and allows everything.
    pub const OFF: Meter = Meter {
        left: i64::MAX,
        on: false,
        counted: 0,
        bytes: 0,
    };

    /// Allows packets until they have taken `left` bytes; the last may go beyond. The next descriptor will be number `next`.
    #[inline]
    pub fn new(left: i64, next: usize) -> Meter {
        Meter {
            left,
            on: true,
            counted: next,
            bytes: 0,
        }
    }

    /// Bytes of link time that were counted.
    #[inline]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }
}

/// What all QPs of an engine share.
pub(crate) struct Nic {
    pub mrs: MrTable,
    pub ahs: AhTable,
    pub timers: TimerWheel,
    pub lists: Lists,
    pub reaction: Reaction,
    pub counters: Counters,
    pub post_mortems: PostMortems,
    /// Packets a requester may have unacknowledged.
    pub window: u32,
    /// ACKs are coalesced.
    pub coalesce: bool,
}

/// The surroundings of a QP in one call.
pub(crate) struct Env<'a> {
    pub nic: &'a mut Nic,
    pub out: &'a mut Outputs,
    pub now: Nanos,
    /// `out.tx` may grow to this length.
    pub tx_end: usize,
    /// `out.events` may grow to this length.
    pub events_end: usize,
    /// What requests and READ responses may take of the link in this call.
    pub meter: Meter,
}

/// Counts one event of a QP: for the QP and for its NIC.
macro_rules! count {
    ($qp:expr, $env:expr, $name:ident) => {{
        $qp.counters.$name += 1;
        $env.nic.counters.$name += 1;
    }};
}
pub(crate) use count;

/// The rest of an engine as the surroundings of one of its QPs.
macro_rules! env {
    ($engine:ident, $now:expr, $out:expr) => {
        env!($engine, $now, $out, $out.tx.len() + Outputs::TX_PER_CALL)
    };
    ($engine:ident, $now:expr, $out:expr, $tx_end:expr) => {{
        let tx_end = Outputs::TX.min($tx_end);
        let events_end = Outputs::EVENTS.min($out.events.len() + Outputs::EVENTS_PER_CALL);
        Env {
            nic: &mut $engine.nic,
            now: $now,
            tx_end,
            events_end,
            meter: $crate::transport::env::Meter::OFF,
            out: $out,
        }
    }};
}
pub(crate) use env;

impl Env<'_> {
    /// Whether another packet may be emitted in this call, with as many slices as it may need.
    #[inline]
    pub fn tx_room(&self) -> bool {
        self.out.tx.len() < self.tx_end
            && self.out.slices.len() + crate::verbs::MAX_SGE <= Outputs::SLICES
    }

    /// Whether another packet of the turn may be emitted: there is room for it, and its time has come.
    #[inline]
    pub fn may_send(&self) -> bool {
        self.meter.left > 0 && self.tx_room()
    }

    /// Counts the packet that was emitted last, of a QP whose packets are of this IP version.
    #[inline]
    pub fn count_packet(&mut self, ipv6: bool, opcode: Opcode, len: u32) {
        if self.meter.on {
            let bytes = wire::link_bytes(ipv6, opcode, len);
            self.meter.bytes += bytes;
            self.meter.left -= i64::from(bytes);
            self.meter.counted = self.out.tx.len();
        }
    }

    /// Counts what was emitted since the last call, of a QP whose packets are of this IP version.
    #[inline]
    pub fn count_sent(&mut self, ipv6: bool) {
        if !self.meter.on {
            return;
        }
        let mut bytes = 0;
        for desc in self.out.tx.iter().skip(self.meter.counted) {
            bytes += wire::link_bytes(ipv6, desc.opcode, desc.len);
        }
        self.meter.bytes += bytes;
        self.meter.left -= i64::from(bytes);
        self.meter.counted = self.out.tx.len();
    }

    /// Whatever was emitted since the last call counts for nothing.
    #[inline]
    pub fn leave_uncounted(&mut self) {
        self.meter.counted = self.out.tx.len();
    }

    /// Whether another completion may be emitted in this call.
    #[inline]
    pub fn event_room(&self) -> bool {
        self.out.events.len() + LAST_EVENTS < self.events_end
    }

    /// Reports an asynchronous event.
    pub fn event(&mut self, qp: &Qp, kind: AsyncKind) {
        self.out.events.push(Event::Async { qp: qp.id, kind });
    }
}
