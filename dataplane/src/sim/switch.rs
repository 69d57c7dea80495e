//! A switch in virtual time: the engine's switch with the links that its ports send on. It works with the numbers of frames; who
//! carries them, and when, is [`super::Sim`]'s affair.

use roceline_engine::Nanos;
use roceline_engine::congestion::pfc::PauseCounts;
use roceline_engine::fabric::switch::{
    FrameInfo, IngressCounters, QueueCounters, Switch, SwitchConfig, SwitchError,
};
use roceline_engine::wire::pause::{PRIORITIES, PauseFrame};

use super::alarm::Alarm;
use super::frame::{Frame, FrameId, Frames};

/// A switch.
pub struct SwitchNode {
    /// By port: the link that it sends on.
    pub(super) links: Vec<Option<usize>>,
    /// Events for what time alone changes.
    pub(super) alarm: Alarm,
    pub(super) switch: Switch<FrameId>,
    /// Frames that it dropped.
    dropped: u64,
}

impl SwitchNode {
    pub(super) fn new(config: &SwitchConfig) -> Result<SwitchNode, SwitchError> {
        Ok(SwitchNode {
            links: vec![None; config.ports.len()],
            alarm: Alarm::default(),
            switch: Switch::new(config)?,
            dropped: 0,
        })
    }

    /// Number of ports.
    pub fn ports(&self) -> usize {
        self.switch.ports()
    }

    /// Bytes that wait in one priority of an egress port.
    pub fn depth(&self, port: u16, priority: u8) -> u64 {
        self.switch.depth(port, priority)
    }

    /// Frames that wait there.
    pub fn frames(&self, port: u16, priority: u8) -> u32 {
        self.switch.frames(port, priority)
    }

    /// Counters of an egress queue.
    pub fn queue(&self, port: u16, priority: u8) -> &QueueCounters {
        self.switch.queue_counters(port, priority)
    }

    /// Counters of a priority of an ingress port.
    pub fn ingress(&self, port: u16, priority: u8) -> &IngressCounters {
        self.switch.ingress_counters(port, priority)
    }

    /// Pauses of a priority at a port up to `now`: those that the switch asked for, and those that it was asked for.
    pub fn pauses(&self, port: u16, priority: u8, now: Nanos) -> [PauseCounts; 2] {
        self.switch.pause_counts(port, priority, now)
    }

    /// The same of 802.3x, which has no priorities.
    pub fn global_pauses(&self, port: u16, now: Nanos) -> [PauseCounts; 2] {
        self.switch.global_pause_counts(port, now)
    }

    /// Bytes of the shared buffer in use, and the most that were.
    pub fn shared(&self) -> (u64, u64) {
        self.switch.shared()
    }

    /// Frames that it dropped, for whatever reason.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// A sum over all egress queues.
    pub fn sum(&self, count: impl Fn(&QueueCounters) -> u64) -> u64 {
        let ports = 0..self.ports() as u16;
        let queues = ports.flat_map(|port| (0..PRIORITIES as u8).map(move |p| (port, p)));
        queues.map(|(port, p)| count(self.queue(port, p))).sum()
    }

    /// Pause frames that it has sent.
    pub fn pauses_sent(&self, now: Nanos) -> u64 {
        let ports = 0..self.ports() as u16;
        let queues = ports.flat_map(|port| (0..PRIORITIES as u8).map(move |p| (port, p)));
        let by_priority = queues.map(|(port, p)| self.pauses(port, p, now)[0].frames);
        let global = (0..self.ports() as u16).map(|port| self.global_pauses(port, now)[0].frames);
        by_priority.sum::<u64>() + global.sum::<u64>()
    }

    /// A packet has arrived; the port at which it waits now.
    pub(super) fn receive(
        &mut self,
        port: u16,
        id: FrameId,
        frames: &mut Frames,
        now: Nanos,
    ) -> Option<u16> {
        let info = info(frames.roce(id));
        match self.switch.receive(port, &info, id, now) {
            Ok(egress) => Some(egress),
            Err((id, _)) => {
                self.dropped += 1;
                frames.drop(id);
                None
            }
        }
    }

    /// A pause frame has arrived.
    pub(super) fn on_pause(&mut self, port: u16, frame: &PauseFrame, now: Nanos) {
        self.switch.on_pause(port, frame, now);
    }

    /// The frame that a port sends next, marked if it is to be.
    pub(super) fn transmit(
        &mut self,
        port: u16,
        frames: &mut Frames,
        now: Nanos,
    ) -> Option<FrameId> {
        let departure = self.switch.transmit(port, now)?;
        if departure.mark_ce {
            frames.mark(departure.frame);
        }
        Some(departure.frame)
    }
}

fn info(frame: &Frame) -> FrameInfo {
    FrameInfo {
        bytes: frame.bytes(),
        priority: frame.priority() as u8,
        ecn_capable: frame.traffic_class & 3 != 0,
        dst: frame.dst,
        flow_hash: frame.flow_hash,
    }
}
