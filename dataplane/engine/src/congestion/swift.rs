//! Swift: a target for the round trip.
//!
//! **Signal**: round trips of acknowledgements that were asked for (AckReq), and the bytes they acknowledge. Marks and
//! CNPs are ignored.
//!
//! Source: Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the Datacenter" (SIGCOMM
//! 2020), algorithm 1 and section 3.5: below the target a window grows by `ai` packets per round trip; above it, and
//! at most once per round trip, it shrinks by `beta` times the excess' share of the round trip, by `max_mdf` at most.
//! The target grows as the window becomes small (flow scaling: from 100 packets down to 0.1, by 1/sqrt(window), up to
//! `fs_range`). The engine paces, so the window is kept as a number and its quotient with the round trip is the rate.
//! Not there: the target's term for the number of hops, which nothing tells, the separate window for the host's delay,
//! and everything about losses, which is RC's. The paper gives no values; these are those of the htsim simulator, whose
//! authors call them guesses.

use super::{AckSignal, CongestionConfig, Controller, Rate};
use crate::time::Nanos;

/// A packet, in units of the window.
const PACKET: u128 = 1 << 20;
/// Smallest and largest window at which the target depends on it, in packets: 0.1 and 100.
const FS_MIN: u128 = PACKET / 10;
const FS_MAX: u128 = PACKET * 100;
/// 1/sqrt of these in 1/1024: of 0.1, and of 100.
const FS_MIN_INVERSE: u64 = 3238;
const FS_MAX_INVERSE: u64 = 102;

/// The state of one queue pair.
#[derive(Clone, Debug)]
pub struct Swift {
    current: u64,
    /// In 1/2^20 packets; 0 before the first round trip.
    window: u128,
    /// Bits of the largest packet so far.
    packet: u64,
    rtt: Nanos,
    decreased: Nanos,
    target: u64,
    fs_range: u64,
    /// In 1/1024: packets, shares.
    ai: u128,
    beta: u128,
    max_mdf: u128,
    min: u64,
    max: u64,
}

impl Swift {
    /// A queue pair at full speed.
    pub fn new(config: &CongestionConfig) -> Swift {
        let mut state = Swift {
            current: 0,
            window: 0,
            packet: 1,
            rtt: Nanos(1),
            decreased: Nanos::ZERO,
            target: 0,
            fs_range: 0,
            ai: 0,
            beta: 0,
            max_mdf: 0,
            min: 0,
            max: 0,
        };
        state.configure(config);
        state.current = state.max;
        state
    }

    /// Takes over changed parameters.
    pub fn configure(&mut self, config: &CongestionConfig) {
        let p = &config.swift;
        self.max = config.max_rate().0.max(1);
        self.min = config.min_rate().0;
        self.current = self.current.clamp(self.min, self.max);
        self.target = Nanos::from_micros(u64::from(p.base_target)).0;
        self.fs_range = Nanos::from_micros(u64::from(p.fs_range)).0;
        self.ai = u128::from(p.ai);
        self.beta = u128::from(p.beta);
        self.max_mdf = u128::from(p.max_mdf.min(1024));
    }

    /// The rate, where the queue pair is held back.
    #[inline]
    pub fn limit(&self) -> Option<Rate> {
        (self.current < self.max).then_some(Rate(self.current))
    }

    /// The round trip aimed at with the present window, in nanoseconds.
    fn target(&self) -> u64 {
        let window = self.window.clamp(FS_MIN, FS_MAX);
        // 1024 / sqrt(packets), as sqrt(2^20 / packets).
        let inverse = ((PACKET << 20) / window).isqrt() as u64;
        let above = inverse.saturating_sub(FS_MAX_INVERSE);
        let scaled = u128::from(self.fs_range) * u128::from(above)
            / u128::from(FS_MIN_INVERSE - FS_MAX_INVERSE);
        self.target + (scaled as u64).min(self.fs_range)
    }

    /// The window at which the rate is `rate` with this round trip.
    fn window_of(&self, rate: u64, rtt: u64) -> u128 {
        u128::from(rate) * u128::from(rtt) / 1_000_000_000 * PACKET / u128::from(self.packet)
    }

    fn update(&mut self, bytes: u64, rtt: u64, now: Nanos) {
        if self.window == 0 {
            self.window = self.window_of(self.current, rtt);
        }
        let target = self.target();
        if rtt < target {
            let acked = u128::from(bytes) * 8 * PACKET / u128::from(self.packet);
            let step = self.ai * PACKET / 1024 * acked;
            self.window += step / self.window.max(PACKET);
        } else if now.saturating_sub(self.decreased) >= self.rtt {
            let excess = u128::from(rtt - target) * 1024 / u128::from(rtt.max(1));
            let share = (self.beta * excess / 1024).min(self.max_mdf);
            self.window -= self.window * share / 1024;
            self.decreased = now;
        }
        self.rtt = Nanos(rtt.max(1));
        let (least, most) = (self.window_of(self.min, rtt), self.window_of(self.max, rtt));
        self.window = self.window.clamp(least.max(1), most.max(1));
        let bits = self.window * u128::from(self.packet) / PACKET;
        let rate = bits * 1_000_000_000 / u128::from(rtt.max(1));
        self.current = (rate.min(u128::from(self.max)) as u64).max(self.min);
    }
}

impl Controller for Swift {
    fn on_ack(&mut self, ack: &AckSignal, now: Nanos) {
        if let Some(bytes) = ack.bytes.checked_div(ack.packets) {
            self.packet = self.packet.max(u64::from(bytes) * 8);
        }
        // An hour is no round trip.
        if let Some(Nanos(rtt)) = ack.rtt {
            self.update(u64::from(ack.bytes), rtt.min(3_600_000_000_000), now);
        }
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
            line_rate: Rate::from_gbps(100),
            ..CongestionConfig::paper()
        };
        config.swift.fs_range = 0;
        config
    }

    fn ack(bytes: u32, rtt_us: u64) -> AckSignal {
        AckSignal {
            packets: 1,
            bytes,
            rtt: Some(Nanos::from_micros(rtt_us)),
        }
    }

    #[test]
    fn above_the_target_the_excess_lowers_the_rate_once_per_round_trip() {
        let mut swift = Swift::new(&config());
        // 25 us against 20: a fifth is too much, 0.8 of it goes: 16 %.
        swift.on_ack(&ack(1250, 25), Nanos::from_micros(25));
        let rate = swift.rate().0 as f64 / 1e9;
        assert!((rate - 84.0).abs() < 0.2, "{rate}");
        swift.on_ack(&ack(1250, 25), Nanos::from_micros(26));
        assert_eq!(swift.rate().0 as f64 / 1e9, rate);
        // 200 us would take 72 %: half at most, and the same window takes longer.
        swift.on_ack(&ack(1250, 200), Nanos::from_micros(250));
        let window = rate * 25.0 / 2.0;
        assert!((swift.rate().0 as f64 / 1e9 - window / 200.0).abs() < 0.1);
    }

    #[test]
    fn below_the_target_the_window_grows_by_a_packet_per_round_trip() {
        let mut swift = Swift::new(&config());
        swift.packet = 10_000;
        swift.window = 50 * PACKET;
        let mut now = 4000;
        let packets = |swift: &Swift| swift.window as f64 / PACKET as f64;
        let before = packets(&swift);
        for _ in 0..before as u64 {
            now += 1;
            swift.on_ack(&ack(1250, 10), Nanos::from_micros(now));
        }
        assert!(
            (packets(&swift) - before - 1.0).abs() < 0.05,
            "{before} {}",
            packets(&swift)
        );
    }

    #[test]
    fn a_small_window_has_a_longer_target() {
        let mut config = config();
        config.swift.fs_range = 100;
        let mut swift = Swift::new(&config);
        let mut target = |packets: f64| {
            swift.window = (packets * PACKET as f64) as u128;
            swift.target() as f64 / 1000.0
        };
        assert!((target(100.0) - 20.0).abs() < 0.1);
        assert!((target(1000.0) - 20.0).abs() < 0.1);
        assert!((target(0.1) - 120.0).abs() < 0.1);
        assert!((target(0.01) - 120.0).abs() < 0.1);
        // 1/sqrt: (1 - 0.1) / (3.162 - 0.1) of the range.
        assert!((target(1.0) - 20.0 - 100.0 * 0.9 / 3.062).abs() < 0.3);
    }

    #[test]
    fn nonsense_does_not_leave_the_bounds() {
        let mut swift = Swift::new(&config());
        let mut now = 0;
        for rtt in [0, 1, u64::MAX / 1000, 5, 0, 1_000_000_000, 1] {
            for bytes in [0, 1, u32::MAX] {
                swift.on_ack(&ack(bytes, rtt), Nanos(now));
                now += 1_000_000;
                assert!(swift.rate() >= Rate::from_mbps(1) && swift.rate() <= Rate::from_gbps(100));
            }
        }
    }
}
