//! DCTCP as a rate: the share of packets that were marked, once per round trip.
//!
//! **Signal**: CNPs, one for each marked packet, so the receivers' `min_time_between_cnps` has to be 0; the number of
//! packets that acknowledgements are for; and round trips of those that were asked for (AckReq), which give the length of a
//! window. Of unreliable queue pairs, whose packets nobody acknowledges, the packets that were sent while it was held back and one
//! for each CNP, so that the share is taken for too small by half at most, and windows as long as `dctcp_rtt`.
//!
//! Source: RFC 8257 and Alizadeh et al., "Data Center TCP (DCTCP)" (SIGCOMM 2010): alpha moves towards the share F of
//! marked packets by g, and a window with marks takes alpha/2. Where TCP adds a segment to its window, `dctcp_ai_rate`
//! is added to the rate, as in the rate-based form of the HPCC simulator; and as RoCE does, it starts at line rate.

use super::{AckSignal, CongestionConfig, Controller, Rate};
use crate::time::Nanos;

/// One, in units of alpha.
const ONE: u64 = 1 << 20;

/// The state of one queue pair.
#[derive(Clone, Debug)]
pub struct Dctcp {
    current: u64,
    /// In 1/2^20.
    alpha: u64,
    packets: u64,
    marked: u64,
    window_ends: Nanos,
    rtt: Nanos,
    g: u64,
    ai: u64,
    min: u64,
    max: u64,
}

impl Dctcp {
    /// A queue pair at full speed; alpha is 1, so that the first window with marks halves the rate (RFC 8257, 3.3).
    pub fn new(config: &CongestionConfig) -> Dctcp {
        let mut state = Dctcp {
            current: 0,
            alpha: ONE,
            packets: 0,
            marked: 0,
            window_ends: Nanos::ZERO,
            rtt: Nanos::ZERO,
            g: 0,
            ai: 0,
            min: 0,
            max: 0,
        };
        state.configure(config);
        state.current = state.max;
        state
    }

    /// Takes over changed parameters.
    pub fn configure(&mut self, config: &CongestionConfig) {
        let p = &config.dctcp;
        self.max = config.max_rate().0.max(1);
        self.min = config.min_rate().0;
        self.current = self.current.clamp(self.min, self.max);
        self.g = u64::from(p.g).min(1024);
        self.ai = Rate::from_mbps(u64::from(p.ai_rate)).0;
        if self.rtt == Nanos::ZERO {
            self.rtt = Nanos::from_micros(u64::from(p.rtt));
        }
    }

    /// The rate, where the queue pair is held back.
    #[inline]
    pub fn limit(&self) -> Option<Rate> {
        (self.current < self.max).then_some(Rate(self.current))
    }

    /// The estimate of the share of marked packets, in 1/2^20.
    pub fn alpha(&self) -> u64 {
        self.alpha
    }

    /// Ends the window if its time is over. One without packets says nothing.
    fn turn(&mut self, now: Nanos) {
        if now < self.window_ends {
            return;
        }
        if let Some(share) = (self.marked * ONE).checked_div(self.packets) {
            // More CNPs than packets: marks of the window before.
            let share = share.min(ONE);
            self.alpha = (self.alpha * (1024 - self.g) + share * self.g) / 1024;
            self.current = match self.marked {
                0 => self.current.saturating_add(self.ai).min(self.max),
                _ => {
                    let cut =
                        u128::from(self.current) * u128::from(self.alpha) / (2 * u128::from(ONE));
                    (self.current - cut as u64).max(self.min)
                }
            };
        }
        self.packets = 0;
        self.marked = 0;
        self.window_ends = now + self.rtt;
    }
}

impl Controller for Dctcp {
    fn on_cnp(&mut self, now: Nanos) {
        self.turn(now);
        self.marked += 1;
    }

    fn on_ack(&mut self, ack: &AckSignal, now: Nanos) {
        if let Some(rtt) = ack.rtt {
            // Smoothed as RFC 6298 does.
            self.rtt = Nanos(
                (self.rtt.0 - self.rtt.0 / 8)
                    .saturating_add(rtt.0 / 8)
                    .max(1),
            );
        }
        self.turn(now);
        self.packets += u64::from(ack.packets);
    }

    #[inline]
    fn rate(&self) -> Rate {
        Rate(self.current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> CongestionConfig {
        let mut config = CongestionConfig {
            line_rate: Rate::from_gbps(10),
            ..CongestionConfig::paper()
        };
        config.dctcp.rtt = 10;
        config
    }

    /// A window of 16 packets, `marked` of them.
    fn window(dctcp: &mut Dctcp, from: u64, marked: u32) {
        for _ in 0..marked {
            dctcp.on_cnp(Nanos(from + 100));
        }
        let ack = AckSignal {
            packets: 16,
            bytes: 16_000,
            ..AckSignal::default()
        };
        dctcp.on_ack(&ack, Nanos(from + 200));
    }

    #[test]
    fn a_window_takes_half_of_alpha_where_something_was_marked_and_adds_where_nothing_was() {
        let mut dctcp = Dctcp::new(&config());
        assert_eq!(dctcp.limit(), None);
        window(&mut dctcp, 0, 4);
        window(&mut dctcp, 10_000, 0);
        // The second window ended the first one: F 1/4, g 1/16.
        let alpha = 1.0 + (0.25 - 1.0) / 16.0;
        assert!((dctcp.alpha() as f64 / ONE as f64 - alpha).abs() < 1e-5);
        assert!((dctcp.rate().0 as f64 - 1e10 * (1.0 - alpha / 2.0)).abs() < 1e5);
        let before = dctcp.rate();
        window(&mut dctcp, 20_000, 0);
        assert_eq!(dctcp.rate(), Rate(before.0 + 1_000_000_000));
    }

    #[test]
    fn an_idle_window_changes_nothing_and_rates_stay_in_bounds() {
        let mut dctcp = Dctcp::new(&config());
        for i in 0..2000 {
            window(&mut dctcp, i * 10_000, 16);
        }
        assert_eq!(dctcp.rate(), Rate::from_mbps(1));
        let rate = dctcp.rate();
        dctcp.on_ack(&AckSignal::default(), Nanos::from_millis(100));
        dctcp.on_ack(&AckSignal::default(), Nanos::from_millis(200));
        assert_eq!(dctcp.rate(), rate);
        for i in 0..2000 {
            window(&mut dctcp, 200_000_000 + i * 10_000, 0);
        }
        assert_eq!((dctcp.rate(), dctcp.limit()), (Rate::from_gbps(10), None));
    }
}
