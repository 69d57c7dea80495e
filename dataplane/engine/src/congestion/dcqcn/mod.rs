//! DCQCN's reaction point (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section
//! 3.1 and algorithm 1; the increase is that of QCN, IEEE 802.1Qau).
//!
//! In flow CNPs, bytes sent and `now`; out flows the rate of one queue pair. A queue pair starts at full speed, not
//! limited. A CNP limits it; when its rate is back at the most it may have, the limiter is released.
//!
//! Alpha estimates how congested the path is. Each reduction takes `alpha/2` of the rate (`rpg_gd`, `rpg_min_dec_fac`)
//! and makes the rate before it the target. Then the timer (`rpg_time_reset`) and the bytes sent (`rpg_byte_reset`)
//! each count stages, and each stage increases the rate, half the way to the target: below `rpg_threshold` stages of
//! both without moving the target (fast recovery), above it of both with `rpg_hai_rate` added to the target (hyper
//! increase), otherwise with `rpg_ai_rate` added (additive increase).
//!
//! What a CNP does at once differs:
//!
//! * In the paper (`rate_reduce_monitor_period` 0) it reduces the rate, then raises alpha; without CNPs for
//!   `dce_tcp_rtt` alpha falls.
//! * In ConnectX it sets two flags. At the end of each `dce_tcp_rtt` alpha rises if the one is set, and falls if not;
//!   every `rate_reduce_monitor_period` the rate is reduced if the other one is. The first CNP of a limited time
//!   reduces at once, or sets the rate (`rate_to_set_on_first_cnp`), and alpha starts again from
//!   `initial_alpha_value`. Google's isekai and Alibaba's HPCC simulator model it alike from NVIDIA's description;
//!   the target moves as in isekai, which knows the byte counter.
//!
//! **Lazy time.** Alpha is kept as the value at the last event that was not time, and the quiet periods since are a
//! power; timer increases are worked out at the next call, with runs of alike ones in one step. Both give exactly
//! what serving each timer on its tick gives (a test compares), and an update never takes more than some hundred
//! steps, however long the queue pair was idle.

mod alpha;

#[cfg(test)]
mod fluid;
#[cfg(test)]
mod tests;

use super::{BYTE_RESET_UNIT, CongestionConfig, Controller, Rate};
use crate::time::Nanos;
use alpha::Alpha;

/// No event.
const NEVER: Nanos = Nanos(u64::MAX);

/// The parameters as the arithmetic wants them.
#[derive(Clone, Debug)]
struct Params {
    /// Bits per second.
    max: u64,
    min: u64,
    first_cnp: u64,
    ai: u64,
    hai: u64,
    /// Nanoseconds; 0: at each CNP.
    monitor: u64,
    timer: u64,
    /// Bytes between increases; `u64::MAX`: none.
    bytes: u64,
    threshold: u32,
    gd: u32,
    /// Per cent.
    min_dec_fac: u32,
    clamp: bool,
    clamp_after_time: bool,
}

impl Params {
    fn new(config: &CongestionConfig) -> Params {
        let p = &config.dcqcn;
        let mbps = |mbps: u32| Rate::from_mbps(u64::from(mbps)).0;
        let max = config.max_rate().0.max(1);
        Params {
            max,
            min: config.min_rate().0,
            first_cnp: mbps(p.rate_to_set_on_first_cnp),
            ai: mbps(p.ai_rate).max(1),
            hai: mbps(p.hai_rate).max(1),
            monitor: Nanos::from_micros(u64::from(p.rate_reduce_monitor_period)).0,
            timer: Nanos::from_micros(u64::from(p.time_reset)).0.max(1),
            bytes: match u64::from(p.byte_reset) {
                0 => u64::MAX,
                units => units * BYTE_RESET_UNIT,
            },
            threshold: p.threshold,
            gd: p.gd.min(63),
            min_dec_fac: p.min_dec_fac.min(100),
            clamp: p.clamp_tgt_rate,
            clamp_after_time: p.clamp_tgt_rate_after_time_inc,
        }
    }
}

/// A source of increases.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Time,
    Bytes,
}

/// The reaction point of one queue pair.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    /// When time alone has something to do: the earlier of `decrease_at` and `increase_at`.
    next: Nanos,
    /// Whether the queue pair is held back at all.
    limited: bool,
    current: u64,
    target: u64,
    /// Bytes sent since the last stage or reduction.
    bytes: u64,
    time_stage: u32,
    byte_stage: u32,
    increase_at: Nanos,
    /// End of the monitor period in which a CNP came; [`NEVER`] if none did.
    decrease_at: Nanos,
    /// A boundary of monitor periods, from which the others follow.
    monitor_from: Nanos,
    alpha: Alpha,
    /// Whether a CNP ever came.
    seen: bool,
    params: Params,
}

impl Dcqcn {
    /// A queue pair at full speed.
    pub fn new(config: &CongestionConfig) -> Dcqcn {
        let params = Params::new(config);
        Dcqcn {
            next: NEVER,
            limited: false,
            current: params.max,
            target: params.max,
            bytes: 0,
            time_stage: 0,
            byte_stage: 0,
            increase_at: NEVER,
            decrease_at: NEVER,
            monitor_from: Nanos::ZERO,
            alpha: Alpha::new(&config.dcqcn),
            seen: false,
            params,
        }
    }

    /// Takes over changed parameters at `now`; the past is settled by the old ones.
    pub fn configure(&mut self, config: &CongestionConfig, now: Nanos) {
        self.advance(now);
        let params = Params::new(config);
        self.alpha.configure(&config.dcqcn, now);
        self.current = match self.limited {
            true => self.current.clamp(params.min, params.max),
            false => params.max,
        };
        self.target = self.target.clamp(self.current, params.max);
        if self.limited {
            self.increase_at = self.increase_at.min(now + Nanos(params.timer));
            if self.decrease_at != NEVER {
                self.decrease_at = self.decrease_at.min(now + Nanos(params.monitor));
            }
        }
        self.params = params;
        if self.current == self.params.max {
            self.release();
        }
        self.schedule();
    }

    /// The rate, where the queue pair is held back.
    #[inline]
    pub fn limit(&self) -> Option<Rate> {
        self.limited.then_some(Rate(self.current))
    }

    /// The rate that increases lead back to.
    pub fn target(&self) -> Rate {
        Rate(self.target)
    }

    /// Alpha at `now`, in units of 2^-30.
    pub fn alpha(&self, now: Nanos) -> u32 {
        self.alpha.at(now)
    }

    /// Stages since the last reduction: those of the timer, and those of bytes.
    pub fn stages(&self) -> (u32, u32) {
        (self.time_stage, self.byte_stage)
    }

    fn schedule(&mut self) {
        self.next = self.decrease_at.min(self.increase_at);
    }

    fn release(&mut self) {
        self.limited = false;
        self.current = self.params.max;
        self.target = self.params.max;
        self.bytes = 0;
        self.time_stage = 0;
        self.byte_stage = 0;
        self.increase_at = NEVER;
        self.decrease_at = NEVER;
        self.schedule();
    }

    /// A limited time starts at `now`.
    fn first_cnp(&mut self, now: Nanos) {
        self.limited = true;
        if self.params.monitor != 0 || !self.seen {
            self.alpha.start(now);
        }
        self.seen = true;
        self.monitor_from = now;
        match self.params.first_cnp {
            0 => self.decrease(now),
            rate => {
                self.current = rate.clamp(self.params.min, self.params.max);
                self.target = self.current;
                self.restart(now);
            }
        }
    }

    /// Reduces the rate by alpha.
    fn decrease(&mut self, now: Nanos) {
        let p = &self.params;
        if p.clamp || self.byte_stage > 0 || (p.clamp_after_time && self.time_stage > 0) {
            self.target = self.current;
        }
        let alpha = u128::from(self.alpha.at(now));
        // rate * (alpha in 1/1024) / 2^gd, alpha here being in 1/2^30.
        let cut = (u128::from(self.current) * alpha) >> (20 + p.gd);
        let most = u128::from(self.current) * u128::from(100 - p.min_dec_fac) / 100;
        self.current = (self.current - cut.min(most) as u64).max(p.min);
        self.restart(now);
    }

    /// Stages, bytes and timer start again after a reduction.
    fn restart(&mut self, now: Nanos) {
        self.bytes = 0;
        self.time_stage = 0;
        self.byte_stage = 0;
        self.increase_at = now + Nanos(self.params.timer);
        self.decrease_at = NEVER;
        self.schedule();
    }

    /// `count` stages of one kind, each with its increase. Stops where the limiter is released.
    fn increase(&mut self, stage: Stage, mut count: u64) {
        while count > 0 {
            let threshold = self.params.threshold;
            let step = if self.time_stage.max(self.byte_stage) < threshold {
                0
            } else if self.time_stage.min(self.byte_stage) > threshold {
                self.params.hai
            } else {
                self.params.ai
            };
            let behind = self.target - self.current;
            self.target = self.target.saturating_add(step).min(self.params.max);
            // Rounded up, so that it gets there.
            self.current = self.target - (self.target - self.current) / 2;
            let mut done = 1;
            if step > 0 && self.target - self.current == behind && !self.phase_ends(stage) {
                // From here on every stage adds `step` to both, until the target meets the top.
                done += ((self.params.max - self.target) / step).min(count - 1);
                self.target += step * (done - 1);
                self.current += step * (done - 1);
            }
            count -= done;
            let stages = match stage {
                Stage::Time => &mut self.time_stage,
                Stage::Bytes => &mut self.byte_stage,
            };
            *stages = stages.saturating_add(u32::try_from(done).unwrap_or(u32::MAX));
            if self.current == self.params.max {
                self.release();
                return;
            }
        }
    }

    /// Whether more stages of this kind can lead from additive to hyper increase.
    fn phase_ends(&self, stage: Stage) -> bool {
        let threshold = self.params.threshold;
        match stage {
            Stage::Time => self.byte_stage > threshold && self.time_stage <= threshold,
            Stage::Bytes => self.time_stage > threshold && self.byte_stage <= threshold,
        }
    }

    /// Serves what is due up to `now`, in the order of time; a reduction before an increase of the same moment.
    fn catch_up(&mut self, now: Nanos) {
        while self.next <= now {
            if self.decrease_at <= self.increase_at {
                let at = self.decrease_at;
                self.monitor_from = at;
                self.decrease(at);
                continue;
            }
            // All increases before the reduction, if one comes.
            let end = now.min(Nanos(self.decrease_at.0 - 1));
            let count = (end.0 - self.increase_at.0) / self.params.timer + 1;
            self.increase_at = self.increase_at + Nanos(count * self.params.timer);
            self.increase(Stage::Time, count);
            self.schedule();
        }
    }
}

impl Controller for Dcqcn {
    fn on_cnp(&mut self, now: Nanos) {
        self.advance(now);
        if !self.limited {
            self.first_cnp(now);
            if self.params.monitor == 0 {
                self.alpha.raise(now);
            }
            return;
        }
        if self.params.monitor == 0 {
            self.decrease(now);
            self.alpha.raise(now);
            return;
        }
        self.alpha.flag(now);
        if self.decrease_at == NEVER {
            let period = self.params.monitor;
            let periods = now.saturating_sub(self.monitor_from).0 / period + 1;
            self.decrease_at = self.monitor_from + Nanos(periods * period);
            self.schedule();
        }
    }

    #[inline]
    fn on_sent(&mut self, bytes: u32, now: Nanos) {
        if !self.limited {
            return;
        }
        self.advance(now);
        if !self.limited {
            return;
        }
        self.bytes += u64::from(bytes);
        if self.bytes >= self.params.bytes {
            let count = self.bytes / self.params.bytes;
            self.bytes %= self.params.bytes;
            self.increase(Stage::Bytes, count);
        }
    }

    #[inline]
    fn advance(&mut self, now: Nanos) {
        if self.next <= now {
            self.catch_up(now);
        }
    }

    #[inline]
    fn rate(&self) -> Rate {
        Rate(self.current)
    }

    fn next_change(&self) -> Option<Nanos> {
        (self.next != NEVER).then_some(self.next)
    }
}
