//! How much waits by priority, and the pause frames that follow from it.

use super::tally::Tally;
use super::{PauseCounts, PauseMode, PfcSettings, Threshold, Watchdog, quanta_time};
use crate::Nanos;
use crate::congestion::priority::{PriorityMask, each};
use crate::wire::PauseFrame;

/// The pauses of a port that receives.
#[derive(Clone, Debug)]
pub struct PauseSender {
    mode: PauseMode,
    enabled: PriorityMask,
    quanta: u16,
    /// A pause is asked for again after this time: half of what it asks for, so that one lost frame costs nothing.
    refresh: Nanos,
    watchdog: Watchdog,
    /// Above XOFF and not yet down to XON.
    stopped: PriorityMask,
    /// The other end is still to be told.
    owed: PriorityMask,
    /// Stopped for too long: the other end may send.
    silenced: PriorityMask,
    /// Warned of that.
    warned: PriorityMask,
    refresh_at: Nanos,
    tally: Tally,
    storm_warnings: u64,
    storm_errors: u64,
}

impl PauseSender {
    /// For a link of `rate` bits per second.
    pub fn new(settings: &PfcSettings, rate: u64) -> PauseSender {
        PauseSender {
            mode: settings.mode,
            enabled: match settings.mode {
                PauseMode::Off => 0,
                PauseMode::Pfc => settings.priorities,
                PauseMode::Global => 1,
            },
            quanta: settings.quanta,
            refresh: Nanos(quanta_time(settings.quanta, rate).0 / 2),
            watchdog: settings.watchdog,
            stopped: 0,
            owed: 0,
            silenced: 0,
            warned: 0,
            refresh_at: Nanos::ZERO,
            tally: Tally::default(),
            storm_warnings: 0,
            storm_errors: 0,
        }
    }

    /// Takes other settings, from now on; counts stay. What is stopped and no longer may be is told to go on, by a frame of the
    /// kind that stopped it, which the caller sends before all others.
    pub fn configure(
        &mut self,
        settings: &PfcSettings,
        rate: u64,
        now: Nanos,
    ) -> Option<PauseFrame> {
        let new = PauseSender::new(settings, rate);
        let kept = if new.mode == self.mode {
            new.enabled
        } else {
            0
        };
        let told = self.stopped & !self.silenced & !self.owed & !kept;
        for p in each(self.stopped & !kept) {
            self.go(p, now);
        }
        let last = (told != 0).then(|| self.frame(told));
        *self = PauseSender {
            stopped: self.stopped,
            owed: self.owed & kept,
            silenced: self.silenced & kept,
            warned: self.warned & kept,
            refresh_at: self.refresh_at.min(now + new.refresh),
            tally: self.tally,
            storm_warnings: self.storm_warnings,
            storm_errors: self.storm_errors,
            ..new
        };
        last
    }

    /// Under which number bytes of `priority` are counted: their own with PFC, that of all with 802.3x; none if they are lossy.
    #[inline]
    pub fn slot(&self, priority: u8) -> Option<usize> {
        match self.mode {
            PauseMode::Off => None,
            PauseMode::Pfc => {
                (self.enabled >> (priority & 7) & 1 == 1).then_some(usize::from(priority & 7))
            }
            PauseMode::Global => Some(0),
        }
    }

    /// So many bytes of `slot` (see [`PauseSender::slot`]) wait now.
    #[inline]
    pub fn level(&mut self, slot: usize, bytes: u64, threshold: Threshold, now: Nanos) {
        let bit = (1u16 << (slot & 7)) as PriorityMask & self.enabled;
        if bytes > threshold.xoff {
            if self.stopped & bit != bit {
                self.stopped |= bit;
                self.owed |= bit;
                self.tally.begin(slot & 7, now);
            }
        } else if bytes <= threshold.xon && self.stopped & bit != 0 {
            self.go(slot & 7, now);
        }
    }

    fn go(&mut self, slot: usize, now: Nanos) {
        let bit = 1 << slot;
        let silent = self.silenced & bit != 0;
        self.stopped &= !bit;
        self.silenced &= !bit;
        self.warned &= !bit;
        if !silent {
            self.tally.end(slot, now);
            self.owed |= bit;
        }
    }

    /// A frame that is to be sent now, in front of all others. Ask until there is none.
    #[inline]
    pub fn poll(&mut self, now: Nanos) -> Option<PauseFrame> {
        if self.stopped | self.owed == 0 {
            return None;
        }
        self.due(now)
    }

    fn due(&mut self, now: Nanos) -> Option<PauseFrame> {
        self.watch(now);
        let holding = self.stopped & !self.silenced;
        let refresh = holding != 0 && now >= self.refresh_at;
        if self.owed == 0 && !refresh {
            return None;
        }
        // Whatever is stopped is asked for again with it: fewer frames.
        let told = self.owed | holding;
        self.owed = 0;
        self.refresh_at = now + self.refresh;
        Some(self.frame(told))
    }

    /// The frame that says how it is with these priorities.
    fn frame(&mut self, told: PriorityMask) -> PauseFrame {
        let holding = told & self.stopped & !self.silenced;
        for p in each(told) {
            self.tally.frame(p);
        }
        let time = |p: usize| match holding >> p & 1 {
            1 => self.quanta,
            _ => 0,
        };
        match self.mode {
            PauseMode::Global => PauseFrame::Global { quanta: time(0) },
            PauseMode::Off | PauseMode::Pfc => PauseFrame::Priority {
                enabled: told,
                quanta: core::array::from_fn(time),
            },
        }
    }

    /// Looks for pauses of ours that do not end.
    fn watch(&mut self, now: Nanos) {
        let limit = self.watchdog.tx_limit;
        if limit == Nanos::ZERO {
            return;
        }
        for p in each(self.stopped & !self.silenced) {
            let bit = 1 << p;
            if self.warned & bit == 0 && now >= self.tally.since(p) + warning(limit) {
                self.warned |= bit;
                self.storm_warnings += 1;
            }
            if now >= self.tally.since(p) + limit {
                self.silenced |= bit;
                self.owed |= bit;
                self.storm_errors += 1;
                self.tally.end(p, now);
            }
        }
    }

    /// When [`PauseSender::poll`] has something to give, if nothing changes before. Zero: now.
    pub fn next_deadline(&self) -> Option<Nanos> {
        if self.owed != 0 {
            return Some(Nanos::ZERO);
        }
        let holding = self.stopped & !self.silenced;
        if holding == 0 {
            return None;
        }
        let limit = self.watchdog.tx_limit;
        let watched = each(holding).filter(|_| limit > Nanos::ZERO).map(|p| {
            let warned = self.warned >> p & 1 == 1;
            self.tally.since(p) + if warned { limit } else { warning(limit) }
        });
        watched.chain([self.refresh_at]).min()
    }

    /// The slots whose senders were told to stop, or are about to be.
    #[inline]
    pub fn stopped(&self) -> PriorityMask {
        self.stopped & !self.silenced
    }

    /// The slots that were stopped for too long: what finds no room is to be dropped.
    pub fn in_storm(&self) -> PriorityMask {
        self.silenced
    }

    /// What was counted for a priority (0 to 7) with PFC, up to `now`; nothing with 802.3x.
    pub fn counts(&self, priority: usize, now: Nanos) -> PauseCounts {
        self.tally
            .of_priority(self.mode, priority, |p| self.under_way(p, now))
    }

    /// What was counted with 802.3x, up to `now`.
    pub fn global_counts(&self, now: Nanos) -> PauseCounts {
        self.tally
            .of_all(self.mode, |slot| self.under_way(slot, now))
    }

    fn under_way(&self, slot: usize, now: Nanos) -> Option<Nanos> {
        (self.stopped() >> slot & 1 == 1).then_some(now)
    }

    /// Pauses that had lasted for [`Watchdog::WARNING_PERCENT`] of the limit, and those that reached it.
    pub fn storms(&self) -> (u64, u64) {
        (self.storm_warnings, self.storm_errors)
    }
}

fn warning(limit: Nanos) -> Nanos {
    Nanos(limit.0 / 100 * Watchdog::WARNING_PERCENT)
}
