//! What pauses do to a NIC: it holds the priorities back that its neighbour has paused, and pauses its neighbour where it takes frames in
//! too slowly itself.

use roceline_engine::Nanos;
use roceline_engine::congestion::pfc::PauseCounts;
use roceline_engine::congestion::priority::PriorityMask;
use roceline_engine::wire::pause::{PRIORITIES, PauseFrame};

use super::Node;

impl Node {
    /// Pauses that it was asked for, of one priority, up to `now`.
    pub fn pauses(&self, priority: u8, now: Nanos) -> PauseCounts {
        self.pauses.counts(priority.into(), now)
    }

    /// Pauses that it was asked for, of all priorities, up to `now`: of PFC and of 802.3x together.
    pub fn all_pauses(&self, now: Nanos) -> PauseCounts {
        let mut all = self.pauses.global_counts(now);
        for priority in 0..PRIORITIES {
            all.add(&self.pauses.counts(priority, now));
        }
        all
    }

    /// Pauses that it asked for, of all priorities, up to `now`.
    pub fn asked_pauses(&self, now: Nanos) -> PauseCounts {
        let ingress = self.ingress.as_ref();
        ingress.map_or(PauseCounts::default(), |ingress| ingress.pauses(now))
    }

    /// Bytes of received frames that wait to be taken in, and how many frames found no room.
    pub fn received(&self) -> (u64, u64) {
        let ingress = self.ingress.as_ref();
        ingress.map_or((0, 0), |ingress| (ingress.bytes(), ingress.dropped()))
    }

    /// Which priorities are paused.
    pub fn paused(&self) -> PriorityMask {
        self.paused
    }

    /// A pause frame has arrived.
    pub(in crate::sim) fn on_pause(&mut self, frame: &PauseFrame, now: Nanos) {
        self.pauses.on_frame(frame, now);
        self.obey(now);
    }

    pub(super) fn obey(&mut self, now: Nanos) {
        let paused = self.pauses.advance(now);
        if paused != self.paused {
            self.paused = paused;
            self.engine.set_paused(paused);
        }
    }
}
