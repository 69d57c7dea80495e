//! One direction of a link: a queue, a sender of some rate, what the impairments do, and a delay. In flow frames from the
//! node at its beginning; out flow those that arrive, at times that [`super::Sim`] plans.

use std::collections::VecDeque;

use roceline_engine::Nanos;
use roceline_engine::fabric::impair::{Line, PacketView, Pushed, RuleSet, Verdict};
use roceline_engine::wire::Packet;

use super::NodeId;

/// What a frame takes on an Ethernet beside its own bytes: FCS, preamble and inter-packet gap (IEEE 802.3).
const WIRE_OVERHEAD: u32 = 24;
/// Frames that impairments can keep back on one direction of a link.
const LINE_CAPACITY: usize = 4096;
/// Picoseconds of a second.
const PS_PER_S: u128 = 1_000_000_000_000;

/// A packet without its bytes.
#[derive(Clone, Debug)]
pub struct Frame {
    /// As the receiver would parse it.
    pub packet: Packet,
    /// As impairments see it.
    pub view: PacketView,
}

impl Frame {
    /// Bytes of link time that it takes.
    pub fn wire_bytes(&self) -> u32 {
        self.view.len + WIRE_OVERHEAD
    }
}

/// How to make a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Rate, bits per second.
    pub bits_per_s: u64,
    /// From the last bit at one end to the last bit at the other.
    pub delay: Nanos,
    /// Bytes that may wait for their turn; a frame beyond is dropped.
    pub queue_bytes: u64,
}

impl LinkConfig {
    /// How long frames of so many bytes, FCS and gaps included, take, in picoseconds.
    pub fn picoseconds(&self, wire_bytes: u64) -> u64 {
        let ps = u128::from(wire_bytes) * 8 * PS_PER_S / u128::from(self.bits_per_s.max(1));
        u64::try_from(ps).unwrap_or(u64::MAX)
    }
}

/// One direction.
pub struct Link {
    /// What happens to frames on it, in their order on the wire. Without rules it loses nothing.
    pub rules: RuleSet,
    /// Frames that were sent, dropped ones included.
    pub sent: u64,
    /// Frames that the rules dropped, or spoilt so that their receiver would.
    pub lost: u64,
    /// Bytes of link time that they took.
    pub bytes: u64,
    /// Frames for which the queue had no room.
    pub overflowed: u64,
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) delay: Nanos,
    /// An event for [`Link::release`] is planned.
    pub(super) release_planned: Option<Nanos>,
    config: LinkConfig,
    queue: VecDeque<Frame>,
    queued_bytes: u64,
    /// The frame at the head of the queue is being sent.
    busy: bool,
    /// When the sender was, or will be, free.
    free_ps: u64,
    line: Line<Frame>,
}

impl Link {
    pub(super) fn new(from: NodeId, to: NodeId, config: &LinkConfig) -> Link {
        Link {
            rules: RuleSet::new(),
            sent: 0,
            lost: 0,
            bytes: 0,
            overflowed: 0,
            from,
            to,
            delay: config.delay,
            release_planned: None,
            config: *config,
            queue: VecDeque::new(),
            queued_bytes: 0,
            busy: false,
            free_ps: 0,
            line: Line::new(LINE_CAPACITY),
        }
    }

    /// Whether nothing is being sent and nothing waits.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }

    /// A frame waits for its turn, if there is room.
    pub(super) fn push(&mut self, frame: Frame) {
        let bytes = u64::from(frame.wire_bytes());
        if self.queued_bytes + bytes > self.config.queue_bytes {
            self.overflowed += 1;
            return;
        }
        self.queued_bytes += bytes;
        self.queue.push_back(frame);
    }

    /// Starts the next frame if the sender is free; when its last bit will have left.
    pub(super) fn start(&mut self, now: Nanos) -> Option<Nanos> {
        if self.busy {
            return None;
        }
        let bytes = u64::from(self.queue.front()?.wire_bytes());
        self.busy = true;
        // Back to back, frames follow each other to the picosecond.
        let now_ps = now.0.saturating_mul(1000);
        let start = if now_ps.saturating_sub(self.free_ps) < 1000 {
            self.free_ps
        } else {
            now_ps
        };
        self.free_ps = start + self.config.picoseconds(bytes);
        Some(Nanos(self.free_ps.div_ceil(1000)))
    }

    /// The last bit of the frame at the head has left.
    pub(super) fn left(&mut self) -> Option<Frame> {
        self.busy = false;
        let frame = self.queue.pop_front()?;
        let bytes = u64::from(frame.wire_bytes());
        self.queued_bytes -= bytes;
        self.bytes += bytes;
        self.sent += 1;
        Some(frame)
    }

    /// Whether all frames go on as they are.
    pub(super) fn is_clean(&self) -> bool {
        self.rules.is_empty() && self.line.is_empty()
    }

    /// What goes on now of a frame that has left, after the rules: the frame and its copies, or nothing.
    pub(super) fn offer(&mut self, frame: Frame, now: Nanos, through: &mut Vec<Frame>) {
        let verdict = self.rules.offer(&frame.view, now);
        if verdict.drop || verdict.spoils() {
            self.lost += 1;
            return;
        }
        let frame = marked(frame, &verdict);
        for _ in 0..verdict.copies {
            self.keep_or_pass(frame.clone(), &verdict.of_copy(), now, through);
        }
        self.keep_or_pass(frame, &verdict, now, through);
    }

    fn keep_or_pass(
        &mut self,
        frame: Frame,
        verdict: &Verdict,
        now: Nanos,
        through: &mut Vec<Frame>,
    ) {
        match self.line.push(frame, verdict, now) {
            Pushed::Pass(frame) => through.push(frame),
            Pushed::Kept => {}
            Pushed::Full(_) => self.lost += 1,
        }
    }

    /// The next frame that was kept back and goes on now.
    pub(super) fn release(&mut self, now: Nanos) -> Option<Frame> {
        self.line.release(now)
    }

    /// When the next one does.
    pub(super) fn next_release(&self) -> Option<Nanos> {
        self.line.next_deadline()
    }
}

/// The frame with its CE mark, if it gets one.
fn marked(mut frame: Frame, verdict: &Verdict) -> Frame {
    if verdict.marks_ce() {
        frame.packet.ce = true;
        frame.packet.traffic_class |= 3;
    }
    frame
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_take_their_time_to_the_picosecond() {
        let config = LinkConfig {
            bits_per_s: 100_000_000_000,
            delay: Nanos(10),
            queue_bytes: 1 << 20,
        };
        // 4096 bytes and 84 around them: 334.4 ns.
        assert_eq!(config.picoseconds(4180), 334_400);
        let mut link = Link::new(0, 1, &config);
        assert_eq!(link.start(Nanos(5)), None, "nothing waits");
        let frame = super::super::node::tests::frame(4096);
        let bytes = u64::from(frame.wire_bytes());
        let mut at = Nanos(5);
        for n in 1..=10 {
            link.push(frame.clone());
            at = link.start(at).expect("it is free");
            assert_eq!(link.start(at), None, "it is busy");
            assert_eq!(at.0, (5000 + n * config.picoseconds(bytes)).div_ceil(1000));
            assert!(link.left().is_some());
        }
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let frame = super::super::node::tests::frame(1024);
        let config = LinkConfig {
            bits_per_s: 1,
            delay: Nanos::ZERO,
            queue_bytes: 2 * u64::from(frame.wire_bytes()),
        };
        let mut link = Link::new(0, 1, &config);
        for _ in 0..5 {
            link.push(frame.clone());
        }
        assert_eq!((link.queue.len(), link.overflowed), (2, 3));
    }
}
