//! TIMELY: the gradient of the round trip.
//!
//! **Signal**: round trips of acknowledgements that were asked for (AckReq). Marks and CNPs are ignored.
//!
//! Source: Mittal et al., "TIMELY: RTT-based Congestion Control for the Datacenter" (SIGCOMM 2015), algorithm 1, with
//! the values of the HPCC simulator's TIMELY where the paper leaves them open (EWMA weight 0.875). As the paper updates
//! once per completion of 16 to 64 KB, an update here takes at least `timely_min_rtt`, however many probes come; and a
//! reduction takes half the rate at most, as in the authors' snippet that eRPC uses. Known to be unfair: Zhu et al.
//! (CoNEXT 2016) show that any division of the link is a fixed point.

use super::{AckSignal, CongestionConfig, Controller, Rate};
use crate::time::Nanos;

/// One, in units of gradients and of beta.
const ONE: i128 = 1 << 16;
/// Samples with a falling round trip in a row before increases are five-fold (the paper's N).
const HYPER_AFTER: u32 = 5;

/// The state of one queue pair.
#[derive(Clone, Debug)]
pub struct Timely {
    current: u64,
    /// The last round trip, in nanoseconds; 0 before the first one.
    last: u64,
    /// Smoothed difference of round trips, in 1/2^16 ns.
    difference: i64,
    falling: u32,
    updated: Nanos,
    low: u64,
    high: u64,
    min_rtt: u64,
    /// Weight of a new difference and multiplicative factor, in 1/1024.
    weight: i64,
    beta: i128,
    delta: u64,
    min: u64,
    max: u64,
}

impl Timely {
    /// A queue pair at full speed.
    pub fn new(config: &CongestionConfig) -> Timely {
        let mut state = Timely {
            current: 0,
            last: 0,
            difference: 0,
            falling: 0,
            updated: Nanos::ZERO,
            low: 0,
            high: 0,
            min_rtt: 1,
            weight: 0,
            beta: 0,
            delta: 0,
            min: 0,
            max: 0,
        };
        state.configure(config);
        state.current = state.max;
        state
    }

    /// Takes over changed parameters.
    pub fn configure(&mut self, config: &CongestionConfig) {
        let p = &config.timely;
        let micros = |us: u32| Nanos::from_micros(u64::from(us)).0;
        self.max = config.max_rate().0.max(1);
        self.min = config.min_rate().0;
        self.current = self.current.clamp(self.min, self.max);
        self.low = micros(p.t_low);
        self.high = micros(p.t_high).max(self.low);
        self.min_rtt = micros(p.min_rtt).max(1);
        self.weight = i64::from(p.ewma).min(1024);
        self.beta = i128::from(p.beta.min(1024)) * ONE / 1024;
        self.delta = Rate::from_mbps(u64::from(p.delta)).0;
    }

    /// The rate, where the queue pair is held back.
    #[inline]
    pub fn limit(&self) -> Option<Rate> {
        (self.current < self.max).then_some(Rate(self.current))
    }

    fn raise(&mut self, times: u64) {
        self.current = self
            .current
            .saturating_add(self.delta * times)
            .min(self.max);
    }

    /// Takes a share, in 1/2^16, of the rate.
    fn lower(&mut self, share: i128) {
        let share = share.clamp(0, ONE / 2);
        let cut = i128::from(self.current) * share / ONE;
        self.current = (self.current - cut as u64).max(self.min);
    }

    fn update(&mut self, rtt: u64) {
        let step = (rtt as i64).saturating_sub(self.last as i64);
        self.last = rtt;
        // A step of a minute at most: what is longer is no round trip.
        let step = i128::from(step.clamp(-(1 << 36), 1 << 36)) * ONE;
        let weight = i128::from(self.weight);
        self.difference =
            ((i128::from(self.difference) * (1024 - weight) + step * weight) / 1024) as i64;
        let gradient = i128::from(self.difference) / i128::from(self.min_rtt);
        self.falling = if gradient <= 0 {
            self.falling.saturating_add(1)
        } else {
            0
        };
        if rtt < self.low {
            self.raise(1);
        } else if rtt > self.high {
            let above = ONE - i128::from(self.high) * ONE / i128::from(rtt);
            self.lower(self.beta * above / ONE);
        } else if gradient <= 0 {
            self.raise(if self.falling >= HYPER_AFTER { 5 } else { 1 });
        } else {
            self.lower(self.beta * gradient / ONE);
        }
    }
}

impl Controller for Timely {
    fn on_ack(&mut self, ack: &AckSignal, now: Nanos) {
        let Some(Nanos(rtt)) = ack.rtt else { return };
        if self.last == 0 {
            self.last = rtt;
            self.updated = now;
            return;
        }
        if now.saturating_sub(self.updated).0 < self.min_rtt {
            return;
        }
        self.updated = now;
        self.update(rtt);
    }

    #[inline]
    fn rate(&self) -> Rate {
        Rate(self.current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Run {
        timely: Timely,
        now: Nanos,
    }

    impl Run {
        fn at(rate: u64) -> Run {
            let config = CongestionConfig {
                line_rate: Rate::from_gbps(10),
                ..CongestionConfig::paper()
            };
            let mut timely = Timely::new(&config);
            timely.current = Rate::from_gbps(rate).0;
            Run {
                timely,
                now: Nanos::from_millis(1),
            }
        }

        fn rtt(&mut self, us: u64) -> f64 {
            self.now = self.now + Nanos::from_micros(20);
            let ack = AckSignal {
                rtt: Some(Nanos::from_micros(us)),
                ..AckSignal::default()
            };
            self.timely.on_ack(&ack, self.now);
            self.timely.rate().0 as f64 / 1e6
        }
    }

    #[test]
    fn below_t_low_and_above_t_high_the_gradient_does_not_matter() {
        let mut run = Run::at(5);
        run.rtt(30);
        // Rising, but below 50 us: 10 Mb/s more.
        assert_eq!(run.rtt(49), 5010.0);
        // 1000 us against 500: 0.8 * (1 - 1/2) of the rate go.
        assert!((run.rtt(1000) - 5010.0 * 0.6).abs() < 1.0);
        // Falling, but still above.
        assert!((run.rtt(625) - 5010.0 * 0.6 * (1.0 - 0.8 * 0.2)).abs() < 1.0);
    }

    #[test]
    fn between_them_a_rising_round_trip_lowers_the_rate_by_its_gradient() {
        let mut run = Run::at(5);
        run.rtt(100);
        // 2 us more, weight 0.875, over 20 us: gradient 0.0875, times 0.8.
        assert!((run.rtt(102) - 5000.0 * (1.0 - 0.8 * 0.0875)).abs() < 0.5);
        // A jump of 100 us takes half.
        let before = run.timely.rate().0 as f64 / 1e6;
        assert!((run.rtt(202) - before / 2.0).abs() < 0.01);
    }

    #[test]
    fn a_round_trip_that_does_not_rise_raises_it_and_the_fifth_time_five_fold() {
        let mut run = Run::at(5);
        run.rtt(100);
        for i in 1..5 {
            assert_eq!(run.rtt(100), 5000.0 + 10.0 * f64::from(i));
        }
        assert_eq!(run.rtt(100), 5090.0);
    }

    #[test]
    fn more_probes_than_one_per_least_round_trip_are_not_used() {
        let mut run = Run::at(5);
        run.rtt(30);
        let rate = run.rtt(30);
        let ack = AckSignal {
            rtt: Some(Nanos::from_micros(30)),
            ..AckSignal::default()
        };
        run.timely.on_ack(&ack, run.now + Nanos(19_999));
        assert_eq!(run.timely.rate().0 as f64 / 1e6, rate);
    }

    #[test]
    fn nonsense_does_not_leave_the_bounds() {
        let mut run = Run::at(5);
        for us in [
            1,
            u64::MAX / 2000,
            1,
            u64::MAX / 1000,
            0,
            300,
            400,
            u64::MAX / 1000,
            1,
        ] {
            run.rtt(us);
            let rate = run.timely.rate();
            assert!(rate >= Rate::from_mbps(1) && rate <= Rate::from_gbps(10));
        }
    }
}
