//! What is counted of the pauses of one direction: those that ended, and the one of each priority that has not.

use super::{PauseCounts, PauseMode};
use crate::Nanos;
use crate::wire::pause::PRIORITIES;

/// Counts by priority; those of 802.3x, where all pause as one, are of priority 0.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    since: [Nanos; PRIORITIES],
    counts: [PauseCounts; PRIORITIES],
}

impl Tally {
    /// A frame that names the priority.
    pub fn frame(&mut self, priority: usize) {
        self.counts[priority].frames += 1;
    }

    /// A pause begins.
    pub fn begin(&mut self, priority: usize, now: Nanos) {
        self.since[priority] = now;
    }

    /// When the last pause began.
    pub fn since(&self, priority: usize) -> Nanos {
        self.since[priority]
    }

    /// It ends.
    pub fn end(&mut self, priority: usize, at: Nanos) {
        let counts = &mut self.counts[priority];
        counts.duration = counts.duration + at.saturating_sub(self.since[priority]);
        counts.transitions += 1;
    }

    /// What was counted under a name of PFC: nothing with 802.3x. `under_way` says up to when a pause counts that has not ended.
    pub fn of_priority(
        &self,
        mode: PauseMode,
        priority: usize,
        under_way: impl FnOnce(usize) -> Option<Nanos>,
    ) -> PauseCounts {
        match mode {
            PauseMode::Global => PauseCounts::default(),
            _ => self.live(priority, under_way),
        }
    }

    /// The same under the name of 802.3x.
    pub fn of_all(
        &self,
        mode: PauseMode,
        under_way: impl FnOnce(usize) -> Option<Nanos>,
    ) -> PauseCounts {
        match mode {
            PauseMode::Global => self.live(0, under_way),
            _ => PauseCounts::default(),
        }
    }

    fn live(&self, priority: usize, under_way: impl FnOnce(usize) -> Option<Nanos>) -> PauseCounts {
        let Some(&(mut counts)) = self.counts.get(priority) else {
            return PauseCounts::default();
        };
        if let Some(until) = under_way(priority) {
            counts.duration = counts.duration + until.saturating_sub(self.since[priority]);
        }
        counts
    }
}
