//! Numbers of messages: which message of its flow a packet belongs to. A message is counted at its FIRST or ONLY
//! packet, from 1. Of each flow the PSNs at which the last [`STARTS`] messages began are kept, so a packet that
//! is sent again is found in its message and does not count as a new one; also a READ response that
//! starts in the middle of its message.

use crate::wire::{Operation, Psn};

use super::PacketView;

/// Messages of a flow whose beginning is remembered.
const STARTS: usize = 16;
/// Flows that are followed at once; beyond them those that were quiet longest are forgotten.
const FLOWS: usize = 256;
/// Slots in which a flow may be.
const WAYS: usize = 8;
/// A start so far before all remembered ones is no repetition: the QP was reset, and its count goes on.
const FAR: i32 = 1 << 15;

#[derive(Clone, Copy, Default)]
struct Flow {
    /// 0: none.
    key: u64,
    used: u64,
    /// Number of the newest message.
    newest: u32,
    /// Remembered starts, the newest at index `newest % STARTS`.
    kept: u8,
    /// The furthest PSN seen.
    furthest: Psn,
    starts: [Psn; STARTS],
}

impl Flow {
    fn start(&self, back: u32) -> Psn {
        self.starts[self.newest.wrapping_sub(back) as usize % STARTS]
    }

    fn begin(&mut self, psn: Psn) -> u32 {
        self.newest = self.newest.wrapping_add(1);
        self.starts[self.newest as usize % STARTS] = psn;
        self.kept = (self.kept + 1).min(STARTS as u8);
        self.newest
    }

    fn number(&mut self, psn: Psn, starts: bool) -> Option<u32> {
        let kept = u32::from(self.kept);
        let new = kept == 0 || self.furthest.before(psn);
        if new && (starts || kept > 0) {
            self.furthest = psn;
        }
        if new && starts {
            return Some(self.begin(psn));
        }
        let found = (0..kept).find(|&back| !psn.before(self.start(back)));
        if let Some(back) = found {
            return Some(self.newest.wrapping_sub(back));
        }
        if starts && psn.distance(self.start(kept - 1)) < -FAR {
            self.kept = 0;
            self.furthest = psn;
            return Some(self.begin(psn));
        }
        None
    }
}

/// All flows of a place.
pub(super) struct Messages {
    flows: Box<[Flow; FLOWS]>,
    clock: u64,
}

impl Messages {
    pub fn new() -> Messages {
        Messages {
            flows: Box::new([Flow::default(); FLOWS]),
            clock: 0,
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.flows.fill(Flow::default());
        self.clock = 0;
    }

    /// Number of the packet's message; counts a new one. `None` for packets of no message, and for those of a
    /// message that began before counting did, or too long ago.
    #[inline]
    pub fn number(&mut self, view: &PacketView) -> Option<u32> {
        let roce = view.roce.as_ref()?;
        let info = view.opcode()?.info();
        let answer = match info.operation {
            Operation::Ack | Operation::Cnp => return None,
            Operation::ReadResponse | Operation::AtomicAck => true,
            _ => false,
        };
        // Bits 56 to 61 of a flow are free, and bit 63 is set for RoCE, so no key is 0.
        let key = view.flow() | u64::from(answer) << 61;
        let flow = self.flow(key);
        flow.number(roce.psn, info.position.starts())
    }

    fn flow(&mut self, key: u64) -> &mut Flow {
        self.clock += 1;
        let hash = (key ^ key >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let first = hash as usize % FLOWS / WAYS * WAYS;
        let ways = &mut self.flows[first..first + WAYS];
        let known = ways.iter().position(|f| f.key == key);
        let at = known.unwrap_or_else(|| {
            // Unused slots were used at 0, before all others.
            let oldest = (0..WAYS).min_by_key(|&i| ways[i].used).unwrap_or(0);
            ways[oldest] = Flow {
                key,
                ..Flow::default()
            };
            oldest
        });
        ways[at].used = self.clock;
        &mut ways[at]
    }
}
