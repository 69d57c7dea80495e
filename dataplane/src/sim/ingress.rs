//! A NIC that takes received frames in slower than its link brings them: they wait in its buffer, and with PFC its
//! neighbour is paused before the buffer is full. Of such a NIC storms of pauses come (Guo et al., "RDMA over
//! Commodity Ethernet at Scale", SIGCOMM 2016, section 4.3). In flow frames that have arrived; out flow those that the NIC
//! gets to see, and pause frames.

use std::collections::VecDeque;

use roceline_engine::Nanos;
use roceline_engine::congestion::pfc::{PauseCounts, PauseSender, PfcSettings, Threshold};
use roceline_engine::wire::pause::{PRIORITIES, PauseFrame};

use super::frame::{FrameId, Frames};
use super::link::picoseconds;

/// Longest IP packet.
const MTU: u32 = 4200;

/// The buffer.
pub(super) struct Ingress {
    bits_per_s: u64,
    buffer_bytes: u64,
    /// None without PFC.
    threshold: Option<Threshold>,
    sender: PauseSender,
    queue: VecDeque<FrameId>,
    /// By number of [`PauseSender::slot`].
    bytes: [u64; PRIORITIES],
    all_bytes: u64,
    /// When the one who takes frames in was, or will be, done.
    free_ps: u64,
    dropped: u64,
}

impl Ingress {
    /// Of a NIC that takes `bits_per_s` in, at a link of `link_bits_per_s`.
    pub fn new(bits_per_s: u64, pfc: &PfcSettings, link_bits_per_s: u64) -> Ingress {
        // A buffer that cannot hold what comes after a stop: stopped as soon as something waits, it loses the least.
        let at_once = Threshold { xoff: 0, xon: 0 };
        let threshold = pfc.threshold(link_bits_per_s, MTU).unwrap_or(at_once);
        Ingress {
            bits_per_s,
            buffer_bytes: pfc.buffer_bytes.into(),
            threshold: pfc.is_on().then_some(threshold),
            sender: PauseSender::new(pfc, link_bits_per_s),
            queue: VecDeque::new(),
            bytes: [0; PRIORITIES],
            all_bytes: 0,
            free_ps: 0,
            dropped: 0,
        }
    }

    /// A frame has arrived. When the first one will have been taken in, if this is the first.
    pub fn push(&mut self, id: FrameId, frames: &mut Frames, now: Nanos) -> Option<Nanos> {
        let frame = frames.roce(id);
        let (bytes, priority) = (u64::from(frame.bytes()), frame.priority() as u8);
        if self.all_bytes + bytes > self.buffer_bytes {
            self.dropped += 1;
            frames.drop(id);
            return None;
        }
        self.all_bytes += bytes;
        self.count(priority, |level| level + bytes, now);
        self.queue.push_back(id);
        match self.queue.len() {
            1 => self.next(frames, now),
            _ => None,
        }
    }

    /// The first frame has been taken in. It, and when the next one will have been.
    pub fn pop(&mut self, frames: &Frames, now: Nanos) -> Option<(FrameId, Option<Nanos>)> {
        let id = self.queue.pop_front()?;
        let frame = frames.roce(id);
        let (bytes, priority) = (u64::from(frame.bytes()), frame.priority() as u8);
        self.all_bytes -= bytes;
        self.count(priority, |level| level - bytes, now);
        Some((id, self.next(frames, now)))
    }

    fn next(&mut self, frames: &Frames, now: Nanos) -> Option<Nanos> {
        let &id = self.queue.front()?;
        let start = self
            .free_ps
            .max(now.0.saturating_mul(1000).saturating_sub(999));
        self.free_ps = start + picoseconds(frames.wire_bytes(id).into(), self.bits_per_s);
        Some(Nanos(self.free_ps.div_ceil(1000)))
    }

    fn count(&mut self, priority: u8, change: impl Fn(u64) -> u64, now: Nanos) {
        let (Some(slot), Some(threshold)) = (self.sender.slot(priority), self.threshold) else {
            return;
        };
        self.bytes[slot] = change(self.bytes[slot]);
        self.sender.level(slot, self.bytes[slot], threshold, now);
    }

    /// A pause frame to send before all others. Ask until there is none.
    pub fn next_pause(&mut self, now: Nanos) -> Option<PauseFrame> {
        self.sender.poll(now)
    }

    /// When there is one if nothing changes before.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.sender.next_deadline()
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> u64 {
        self.all_bytes
    }

    /// Frames that found no room.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Pauses that it asked for, of all priorities.
    pub fn pauses(&self, now: Nanos) -> PauseCounts {
        let mut all = self.sender.global_counts(now);
        for priority in 0..PRIORITIES {
            all.add(&self.sender.counts(priority, now));
        }
        all
    }
}
