//! Pause frames that came, and which priorities may not send because of them.

use super::tally::Tally;
use super::{PauseCounts, PauseMode, PfcSettings, StormAction, Watchdog, quanta_time};
use crate::Nanos;
use crate::congestion::priority::{PriorityMask, each};
use crate::wire::PauseFrame;
use crate::wire::pause::PRIORITIES;

/// The pauses of a port that sends.
#[derive(Clone, Debug)]
pub struct PauseReceiver {
    mode: PauseMode,
    /// Priorities whose pauses are obeyed.
    enabled: PriorityMask,
    /// Of the link, bits per second.
    rate: u64,
    watchdog: Watchdog,
    paused: PriorityMask,
    /// In a storm: no pause is believed.
    ignored: PriorityMask,
    /// When each pause ends by itself.
    until: [Nanos; PRIORITIES],
    /// When pauses are believed again.
    ignored_until: [Nanos; PRIORITIES],
    tally: Tally,
    storms: [u64; PRIORITIES],
    unexpected: u64,
}

impl PauseReceiver {
    /// For a link of `rate` bits per second.
    pub fn new(settings: &PfcSettings, rate: u64) -> PauseReceiver {
        PauseReceiver {
            mode: settings.mode,
            enabled: match settings.mode {
                PauseMode::Off => 0,
                PauseMode::Pfc => settings.priorities,
                PauseMode::Global => PriorityMask::MAX,
            },
            rate,
            watchdog: settings.watchdog,
            paused: 0,
            ignored: 0,
            until: [Nanos::ZERO; PRIORITIES],
            ignored_until: [Nanos::ZERO; PRIORITIES],
            tally: Tally::default(),
            storms: [0; PRIORITIES],
            unexpected: 0,
        }
    }

    /// Takes other settings, from now on; counts stay, and so do pauses that are still obeyed.
    pub fn configure(&mut self, settings: &PfcSettings, rate: u64, now: Nanos) {
        self.advance(now);
        let new = PauseReceiver::new(settings, rate);
        let obeyed = if new.mode == self.mode {
            new.enabled
        } else {
            0
        };
        for p in each(self.paused & !obeyed) {
            self.resume(p, now);
        }
        *self = PauseReceiver {
            paused: self.paused,
            ignored: self.ignored & obeyed,
            until: self.until,
            ignored_until: self.ignored_until,
            tally: self.tally,
            storms: self.storms,
            unexpected: self.unexpected,
            ..new
        };
    }

    /// A frame came. A time replaces the one before (IEEE 802.3 31B.3.3), 0 ends it.
    pub fn on_frame(&mut self, frame: &PauseFrame, now: Nanos) {
        self.advance(now);
        match (*frame, self.mode) {
            (PauseFrame::Global { quanta }, PauseMode::Global) => {
                self.tally.frame(0);
                for p in 0..PRIORITIES {
                    self.apply(p, quanta, now);
                }
            }
            (PauseFrame::Priority { enabled, quanta }, PauseMode::Pfc) => {
                for p in each(enabled & self.enabled) {
                    self.tally.frame(p);
                    self.apply(p, quanta[p], now);
                }
            }
            _ => self.unexpected += 1,
        }
    }

    fn apply(&mut self, p: usize, quanta: u16, now: Nanos) {
        let bit = 1 << p;
        if self.ignored & bit != 0 {
            if quanta > 0 {
                self.ignored_until[p] = now + self.watchdog.rx_restore;
            }
        } else if quanta > 0 {
            if self.paused & bit == 0 {
                self.paused |= bit;
                self.tally.begin(p, now);
            }
            self.until[p] = now + quanta_time(quanta, self.rate);
        } else if self.paused & bit != 0 {
            self.resume(p, now);
        }
    }

    /// A pause ends.
    fn resume(&mut self, p: usize, at: Nanos) {
        self.paused &= !(1 << p);
        // With 802.3x all priorities pause as one, whose counts are those of priority 0.
        if self.mode == PauseMode::Pfc || p == 0 {
            self.tally.end(p, at);
        }
    }

    /// When a pause ends, and whether the watchdog ends it.
    fn end(&self, p: usize) -> (Nanos, bool) {
        let limit = match self.watchdog.rx_limit {
            Nanos::ZERO => Nanos(u64::MAX),
            limit => self.tally.since(p) + limit,
        };
        (self.until[p].min(limit), limit <= self.until[p])
    }

    /// Ends what time has ended; gives the priorities that are paused at `now`.
    #[inline]
    pub fn advance(&mut self, now: Nanos) -> PriorityMask {
        if self.paused | self.ignored != 0 {
            self.expire(now);
        }
        self.paused
    }

    fn expire(&mut self, now: Nanos) {
        for p in each(self.paused) {
            let (end, storm) = self.end(p);
            if end > now {
                continue;
            }
            self.resume(p, end);
            if storm {
                if self.mode == PauseMode::Pfc || p == 0 {
                    self.storms[p] += 1;
                }
                self.ignored |= 1 << p;
                self.ignored_until[p] = end + self.watchdog.rx_restore;
            }
        }
        for p in each(self.ignored) {
            if self.ignored_until[p] <= now {
                self.ignored &= !(1 << p);
            }
        }
    }

    /// The priorities that were paused when time was last looked at.
    #[inline]
    pub fn paused(&self) -> PriorityMask {
        self.paused
    }

    /// The priorities of which packets are to be dropped: in a storm, if that is the watchdog's way.
    #[inline]
    pub fn discarding(&self) -> PriorityMask {
        match self.watchdog.rx_action {
            StormAction::Drop => self.ignored,
            StormAction::Forward => 0,
        }
    }

    /// The priorities whose pauses are not believed at present.
    pub fn in_storm(&self) -> PriorityMask {
        self.ignored
    }

    /// When [`PauseReceiver::advance`] has something to do.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let ends = each(self.paused).map(|p| self.end(p).0);
        let restored = each(self.ignored).map(|p| self.ignored_until[p]);
        ends.chain(restored).min()
    }

    /// What was counted for a priority (0 to 7) with PFC, up to `now`; nothing with 802.3x.
    pub fn counts(&self, priority: usize, now: Nanos) -> PauseCounts {
        let under_way = |p| self.under_way(p, now);
        self.tally.of_priority(self.mode, priority, under_way)
    }

    /// What was counted with 802.3x, up to `now`.
    pub fn global_counts(&self, now: Nanos) -> PauseCounts {
        self.tally.of_all(self.mode, |p| self.under_way(p, now))
    }

    /// Up to when the pause of a priority counts, if there is one.
    fn under_way(&self, p: usize, now: Nanos) -> Option<Nanos> {
        (self.paused >> p & 1 == 1).then(|| self.end(p).0.min(now))
    }

    /// Storms found, by priority (with 802.3x all are of priority 0).
    pub fn storms(&self) -> &[u64; PRIORITIES] {
        &self.storms
    }

    /// Pause frames of the kind that is not on.
    pub fn unexpected(&self) -> u64 {
        self.unexpected
    }
}
