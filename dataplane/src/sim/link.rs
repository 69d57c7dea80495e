//! One direction of a link: queues, a sender of some rate, what the impairments do, and a delay. In flow the numbers of frames from
//! the end at its beginning; out flow those that arrive, at times that [`super::Sim`] plans.

use std::collections::VecDeque;

use roceline_engine::Nanos;
use roceline_engine::congestion::priority::PriorityMask;
use roceline_engine::fabric::impair::{Line, Pushed, RuleSet, Verdict};
use roceline_engine::wire::pause::PRIORITIES;

use super::Point;
use super::alarm::Alarm;
use super::frame::{FrameId, Frames};

/// Frames that impairments can keep back on one direction of a link.
const LINE_CAPACITY: usize = 4096;
/// Picoseconds of a second.
const PS_PER_S: u64 = 1_000_000_000_000;

/// How to make a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Rate, bits per second.
    pub bits_per_s: u64,
    /// From the last bit at one end to the last bit at the other.
    pub delay: Nanos,
    /// Bytes that may wait at a NIC for their turn; a frame beyond is dropped.
    pub queue_bytes: u64,
}

impl LinkConfig {
    /// How long frames of so many bytes, FCS and gaps included, take, in picoseconds.
    pub fn picoseconds(&self, wire_bytes: u64) -> u64 {
        picoseconds(wire_bytes, self.bits_per_s)
    }
}

/// Time of so many bytes at a rate.
pub(super) fn picoseconds(bytes: u64, bits_per_s: u64) -> u64 {
    let rate = bits_per_s.max(1);
    match bytes.checked_mul(8 * PS_PER_S) {
        Some(bits) => bits / rate,
        None => {
            let ps = u128::from(bytes) * u128::from(8 * PS_PER_S) / u128::from(rate);
            u64::try_from(ps).unwrap_or(u64::MAX)
        }
    }
}

/// Made when the first rule is added: most links have none.
struct Impaired {
    rules: RuleSet,
    line: Line<FrameId>,
}

/// One direction.
pub struct Link {
    /// Frames that were sent, dropped ones included.
    pub sent: u64,
    /// Frames that the rules dropped, or spoilt so that their receiver would.
    pub lost: u64,
    /// Bytes of link time that they took.
    pub bytes: u64,
    /// Frames for which the queue had no room.
    pub overflowed: u64,
    pub(super) from: Point,
    pub(super) to: Point,
    /// The recordings at its beginning and its end.
    pub(super) recorded: [Option<u32>; 2],
    /// Events for [`Link::release`].
    pub(super) alarm: Alarm,
    config: LinkConfig,
    pauses: VecDeque<FrameId>,
    queues: [VecDeque<FrameId>; PRIORITIES],
    /// Bit p: the queue of priority p holds something.
    waiting: u8,
    queued_bytes: u64,
    /// The frame that is being sent.
    sending: Option<FrameId>,
    /// When the sender was, or will be, free.
    free_ps: u64,
    impaired: Option<Box<Impaired>>,
}

impl Link {
    pub(super) fn new(from: Point, to: Point, config: &LinkConfig) -> Link {
        Link {
            sent: 0,
            lost: 0,
            bytes: 0,
            overflowed: 0,
            from,
            to,
            recorded: [None; 2],
            alarm: Alarm::default(),
            config: *config,
            pauses: VecDeque::new(),
            queues: Default::default(),
            waiting: 0,
            queued_bytes: 0,
            sending: None,
            free_ps: 0,
            impaired: None,
        }
    }

    /// What it leads from, and to.
    pub fn ends(&self) -> [Point; 2] {
        [self.from, self.to]
    }

    /// Bytes that wait at a NIC for their turn, FCS and gaps included.
    pub fn queued_bytes(&self) -> u64 {
        self.queued_bytes
    }

    /// How it was made.
    pub fn config(&self) -> &LinkConfig {
        &self.config
    }

    /// What happens to frames on it, in their order on the wire. Without rules it loses nothing.
    pub fn rules(&mut self) -> &mut RuleSet {
        let impaired = self.impaired.get_or_insert_with(|| {
            Box::new(Impaired {
                rules: RuleSet::new(),
                line: Line::new(LINE_CAPACITY),
            })
        });
        &mut impaired.rules
    }

    /// Whether a frame is being sent.
    pub(super) fn is_busy(&self) -> bool {
        self.sending.is_some()
    }

    /// A frame waits for its turn in the queue of its priority, if there is room.
    pub(super) fn push(&mut self, id: FrameId, frames: &mut Frames) {
        let frame = frames.roce(id);
        let (bytes, priority) = (u64::from(frame.wire_bytes()), frame.priority());
        if self.queued_bytes + bytes > self.config.queue_bytes {
            self.overflowed += 1;
            frames.drop(id);
            return;
        }
        self.queued_bytes += bytes;
        self.queues[priority].push_back(id);
        self.waiting |= 1 << priority;
    }

    /// A pause frame goes before all that waits.
    pub(super) fn push_pause(&mut self, id: FrameId) {
        self.pauses.push_back(id);
    }

    /// Takes the next pause frame.
    pub(super) fn next_pause(&mut self) -> Option<FrameId> {
        self.pauses.pop_front()
    }

    /// Takes the first frame of the highest priority that waits and is not `paused`.
    pub(super) fn next(&mut self, paused: PriorityMask, frames: &Frames) -> Option<FrameId> {
        let ready = self.waiting & !paused;
        let priority = ready.checked_ilog2()? as usize;
        let id = self.queues[priority].pop_front()?;
        if self.queues[priority].is_empty() {
            self.waiting &= !(1 << priority);
        }
        self.queued_bytes -= u64::from(frames.wire_bytes(id));
        Some(id)
    }

    /// Starts to send a frame; when its last bit will have left. The sender must be free.
    pub(super) fn send(&mut self, id: FrameId, frames: &Frames, now: Nanos) -> Nanos {
        let bytes = u64::from(frames.wire_bytes(id));
        self.bytes += bytes;
        self.sent += 1;
        self.sending = Some(id);
        // Back to back, frames follow each other to the picosecond.
        let now_ps = now.0.saturating_mul(1000);
        let start = if now_ps.saturating_sub(self.free_ps) < 1000 {
            self.free_ps
        } else {
            now_ps
        };
        self.free_ps = start + self.config.picoseconds(bytes);
        Nanos(self.free_ps.div_ceil(1000))
    }

    /// The last bit of the frame that was being sent has left.
    pub(super) fn left(&mut self) -> Option<FrameId> {
        self.sending.take()
    }

    /// Whether all frames go on as they are.
    pub(super) fn is_clean(&self) -> bool {
        match &self.impaired {
            None => true,
            Some(impaired) => impaired.rules.is_empty() && impaired.line.is_empty(),
        }
    }

    /// What goes on now of a frame that has left, after the rules: the frame and its copies, or nothing.
    pub(super) fn offer(
        &mut self,
        id: FrameId,
        frames: &mut Frames,
        now: Nanos,
        through: &mut Vec<FrameId>,
    ) {
        let Some(impaired) = &mut self.impaired else {
            return through.push(id);
        };
        if Frames::is_pause(id) {
            return through.push(id);
        }
        let verdict = impaired.rules.offer(&frames.roce(id).view(), now);
        if verdict.drop || verdict.spoils() {
            self.lost += 1;
            frames.drop(id);
            return;
        }
        if verdict.marks_ce() {
            frames.mark(id);
        }
        let copy = *frames.roce(id);
        for _ in 0..verdict.copies {
            let id = frames.insert(copy);
            self.keep_or_pass(id, &verdict.of_copy(), frames, now, through);
        }
        self.keep_or_pass(id, &verdict, frames, now, through);
    }

    fn keep_or_pass(
        &mut self,
        id: FrameId,
        verdict: &Verdict,
        frames: &mut Frames,
        now: Nanos,
        through: &mut Vec<FrameId>,
    ) {
        let Some(impaired) = &mut self.impaired else {
            return;
        };
        match impaired.line.push(id, verdict, now) {
            Pushed::Pass(id) => through.push(id),
            Pushed::Kept => {}
            Pushed::Full(id) => {
                self.lost += 1;
                frames.drop(id);
            }
        }
    }

    /// The next frame that was kept back and goes on now.
    pub(super) fn release(&mut self, now: Nanos) -> Option<FrameId> {
        self.impaired.as_mut()?.line.release(now)
    }

    /// When the next one does.
    pub(super) fn next_release(&self) -> Option<Nanos> {
        self.impaired.as_ref()?.line.next_deadline()
    }
}

#[cfg(test)]
mod tests {
    use roceline_engine::verbs::Mtu;
    use roceline_engine::wire::pause::PauseFrame;

    use super::super::frame::Frame;
    use super::super::node::tests::frame;
    use super::*;

    const ENDS: [Point; 2] = [Point::Node(0), Point::Node(1)];

    #[test]
    fn frames_take_their_time_to_the_picosecond() {
        let config = LinkConfig {
            bits_per_s: 100_000_000_000,
            delay: Nanos(10),
            queue_bytes: 1 << 20,
        };
        // 4096 bytes and 84 around them: 334.4 ns.
        assert_eq!(config.picoseconds(4180), 334_400);
        let terabytes = 1 << 40;
        assert_eq!(config.picoseconds(terabytes), terabytes * 80);
        let mut link = Link::new(ENDS[0], ENDS[1], &config);
        let mut frames = Frames::default();
        assert_eq!(link.next(0, &frames), None, "nothing waits");
        let frame = frame(Mtu::M4096);
        let bytes = u64::from(frame.wire_bytes());
        let mut at = Nanos(5);
        for n in 1..=10 {
            link.push(frames.insert(frame), &mut frames);
            let id = link.next(0, &frames).expect("one waits");
            at = link.send(id, &frames, at);
            assert!(link.is_busy());
            assert_eq!(at.0, (5000 + n * config.picoseconds(bytes)).div_ceil(1000));
            assert_eq!(link.left(), Some(id));
        }
    }

    #[test]
    fn a_full_queue_drops_and_counts() {
        let frame = frame(Mtu::M1024);
        let config = LinkConfig {
            bits_per_s: 1,
            delay: Nanos::ZERO,
            queue_bytes: 2 * u64::from(frame.wire_bytes()),
        };
        let mut link = Link::new(ENDS[0], ENDS[1], &config);
        let mut frames = Frames::default();
        for _ in 0..5 {
            link.push(frames.insert(frame), &mut frames);
        }
        assert_eq!((frames.len(), link.overflowed), (2, 3));
    }

    #[test]
    fn the_highest_priority_goes_first_and_each_in_order() {
        let config = LinkConfig {
            bits_per_s: 1,
            delay: Nanos::ZERO,
            queue_bytes: 1 << 20,
        };
        let mut link = Link::new(ENDS[0], ENDS[1], &config);
        let mut frames = Frames::default();
        let ids = [3, 0, 6, 3, 7].map(|priority| {
            let id = frames.insert(Frame {
                traffic_class: priority << 5,
                ..frame(Mtu::M1024)
            });
            link.push(id, &mut frames);
            id
        });
        let pause = frames.insert_pause(PauseFrame::Global { quanta: 1 });
        link.push_pause(pause);
        assert_eq!(link.next_pause(), Some(pause));
        assert_eq!(link.next_pause(), None);
        assert_eq!(link.next(0b1100_0000, &frames), Some(ids[0]));
        let order: Vec<_> = std::iter::from_fn(|| link.next(0, &frames)).collect();
        assert_eq!(order, [4, 2, 3, 1].map(|at| ids[at]));
    }
}
