//! Congestion control: what a queue pair may send per second, decided from what the network says.
//!
//! In flow CNPs, acknowledgements with a round trip and a mark, bytes sent, and `now`; out flows a [`Rate`]. One
//! [`Algorithm`] belongs to one queue pair and lies inside it: no allocation, no floating point, no clock. What time
//! alone changes is worked out when somebody asks ([`Controller::advance`]), and gives the same as if each timer had
//! been served on its tick, so an idle queue pair costs nothing.
//!
//! | algorithm | signal |
//! | --- | --- |
//! | `none` | nothing: line rate |
//! | `fixed-rate` | nothing: the configured rate |
//! | `dcqcn` | CNPs ([`dcqcn`]) |
//! | `dctcp` | share of marked packets: CNPs without a least time between them ([`dctcp`]) |
//! | `timely` | gradient of the round trip ([`timely`]) |
//! | `swift` | round trip against a target ([`swift`]) |
//!
//! [`CongestionConfig`] is plain data; [`Param::all`] lists every number in it once, for configuration files, sysfs,
//! the command line and the documentation. Pauses by priority between the two ends of a link are [`pfc`]'s, and which
//! priority a frame has is [`priority`]'s.

mod config;
pub mod dcqcn;
pub mod dctcp;
pub mod ets;
mod params;
pub mod pfc;
pub mod priority;
pub mod swift;
mod table;
pub mod timely;

pub use config::{AlgorithmKind, ConfigError, CongestionConfig, PROFILES, UnknownName};
pub use dcqcn::Dcqcn;
pub use dctcp::Dctcp;
pub use params::{
    BYTE_RESET_UNIT, CnpModeration, DcqcnParams, DctcpParams, NpParams, SwiftParams, TimelyParams,
};
pub use swift::Swift;
pub use table::{Group, Param};
pub use timely::Timely;

use crate::time::Nanos;

/// Bits per second, of what is on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(pub u64);

impl Rate {
    /// From megabits per second.
    pub const fn from_mbps(mbps: u64) -> Rate {
        Rate(mbps * 1_000_000)
    }

    /// From gigabits per second.
    pub const fn from_gbps(gbps: u64) -> Rate {
        Rate(gbps * 1_000_000_000)
    }

    /// Picoseconds that `bytes` take at this rate, rounded down; at rate 0 as at 1 bit per second.
    pub const fn picos(self, bytes: u64) -> u64 {
        let rate = if self.0 == 0 { 1 } else { self.0 } as u128;
        let picos = bytes as u128 * 8 * 1_000_000_000_000 / rate;
        if picos > u64::MAX as u128 {
            u64::MAX
        } else {
            picos as u64
        }
    }
}

/// What an acknowledgement tells a sender about the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckSignal {
    /// Packets newly acknowledged.
    pub packets: u32,
    /// Their payload in bytes.
    pub bytes: u32,
    /// Time from the departure of a packet with AckReq to its acknowledgement, where one was measured.
    pub rtt: Option<Nanos>,
}

/// What every algorithm answers to; to signals that it does not name it is deaf. `now` never goes backwards between calls.
pub trait Controller {
    /// A congestion notification packet arrived.
    fn on_cnp(&mut self, _now: Nanos) {}

    /// `bytes` on the wire were handed to the port, in one packet or more. Not called while nothing holds the queue pair back.
    fn on_sent(&mut self, _bytes: u32, _now: Nanos) {}

    /// Bytes were acknowledged.
    fn on_ack(&mut self, _ack: &AckSignal, _now: Nanos) {}

    /// Catches up with everything that time alone changes, up to and including `now`.
    fn advance(&mut self, _now: Nanos) {}

    /// The rate, as of the last call with a time.
    fn rate(&self) -> Rate;

    /// When the rate changes next if nothing happens; none if it does not.
    fn next_change(&self) -> Option<Nanos> {
        None
    }
}

/// The congestion control of one queue pair.
#[derive(Clone, Debug)]
pub enum Algorithm {
    /// Line rate, whatever happens.
    None(Rate),
    /// A rate that only the configuration changes.
    FixedRate(Rate),
    /// DCQCN's reaction point.
    Dcqcn(Dcqcn),
    /// DCTCP as a rate.
    Dctcp(Dctcp),
    /// TIMELY.
    Timely(Timely),
    /// Swift.
    Swift(Swift),
}

impl Algorithm {
    /// A queue pair's algorithm at its start. Where `priority`'s bit of `rp_enable` is not set, there is none.
    pub fn new(config: &CongestionConfig, priority: u8) -> Algorithm {
        let kind = match config.rp_enabled(priority) {
            true => config.algorithm,
            false => AlgorithmKind::None,
        };
        match kind {
            AlgorithmKind::None => Algorithm::None(config.line_rate),
            AlgorithmKind::FixedRate => Algorithm::FixedRate(config.effective_fixed_rate()),
            AlgorithmKind::Dcqcn => Algorithm::Dcqcn(Dcqcn::new(config)),
            AlgorithmKind::Dctcp => Algorithm::Dctcp(Dctcp::new(config)),
            AlgorithmKind::Timely => Algorithm::Timely(Timely::new(config)),
            AlgorithmKind::Swift => Algorithm::Swift(Swift::new(config)),
        }
    }

    /// Takes over a changed configuration at `now`. The past is settled by the old one; an algorithm that stays the
    /// same keeps its state, another one starts afresh.
    pub fn configure(&mut self, config: &CongestionConfig, priority: u8, now: Nanos) {
        let fresh = Algorithm::new(config, priority);
        match (&mut *self, &fresh) {
            (Algorithm::Dcqcn(state), Algorithm::Dcqcn(_)) => state.configure(config, now),
            (Algorithm::Dctcp(state), Algorithm::Dctcp(_)) => state.configure(config),
            (Algorithm::Timely(state), Algorithm::Timely(_)) => state.configure(config),
            (Algorithm::Swift(state), Algorithm::Swift(_)) => state.configure(config),
            _ => *self = fresh,
        }
    }

    /// The rate that holds the queue pair back; none where it may send as fast as the port.
    #[inline]
    pub fn limit(&self) -> Option<Rate> {
        match self {
            Algorithm::None(_) => None,
            Algorithm::FixedRate(rate) => Some(*rate),
            Algorithm::Dcqcn(state) => state.limit(),
            Algorithm::Dctcp(state) => state.limit(),
            Algorithm::Timely(state) => state.limit(),
            Algorithm::Swift(state) => state.limit(),
        }
    }

    /// Whether [`Controller::on_ack`] changes anything: only then somebody measures round trips for it.
    #[inline]
    pub fn hears_acks(&self) -> bool {
        !matches!(
            self,
            Algorithm::None(_) | Algorithm::FixedRate(_) | Algorithm::Dcqcn(_)
        )
    }

    /// Whether a CNP changes anything (`rp_cnp_handled`), or is ignored (`rp_cnp_ignored`).
    #[inline]
    pub fn heeds_cnp(&self) -> bool {
        matches!(self, Algorithm::Dcqcn(_) | Algorithm::Dctcp(_))
    }
}

impl Controller for Algorithm {
    #[inline]
    fn on_cnp(&mut self, now: Nanos) {
        match self {
            Algorithm::None(_) | Algorithm::FixedRate(_) => {}
            Algorithm::Dcqcn(state) => state.on_cnp(now),
            Algorithm::Dctcp(state) => state.on_cnp(now),
            Algorithm::Timely(state) => state.on_cnp(now),
            Algorithm::Swift(state) => state.on_cnp(now),
        }
    }

    #[inline]
    fn on_sent(&mut self, bytes: u32, now: Nanos) {
        match self {
            Algorithm::None(_) | Algorithm::FixedRate(_) => {}
            Algorithm::Dcqcn(state) => state.on_sent(bytes, now),
            Algorithm::Dctcp(state) => state.on_sent(bytes, now),
            Algorithm::Timely(state) => state.on_sent(bytes, now),
            Algorithm::Swift(state) => state.on_sent(bytes, now),
        }
    }

    #[inline]
    fn on_ack(&mut self, ack: &AckSignal, now: Nanos) {
        match self {
            Algorithm::None(_) | Algorithm::FixedRate(_) => {}
            Algorithm::Dcqcn(state) => state.on_ack(ack, now),
            Algorithm::Dctcp(state) => state.on_ack(ack, now),
            Algorithm::Timely(state) => state.on_ack(ack, now),
            Algorithm::Swift(state) => state.on_ack(ack, now),
        }
    }

    #[inline]
    fn advance(&mut self, now: Nanos) {
        match self {
            Algorithm::None(_) | Algorithm::FixedRate(_) => {}
            Algorithm::Dcqcn(state) => state.advance(now),
            Algorithm::Dctcp(state) => state.advance(now),
            Algorithm::Timely(state) => state.advance(now),
            Algorithm::Swift(state) => state.advance(now),
        }
    }

    #[inline]
    fn rate(&self) -> Rate {
        match self {
            Algorithm::None(rate) | Algorithm::FixedRate(rate) => *rate,
            Algorithm::Dcqcn(state) => state.rate(),
            Algorithm::Dctcp(state) => state.rate(),
            Algorithm::Timely(state) => state.rate(),
            Algorithm::Swift(state) => state.rate(),
        }
    }

    #[inline]
    fn next_change(&self) -> Option<Nanos> {
        match self {
            Algorithm::None(_) | Algorithm::FixedRate(_) => None,
            Algorithm::Dcqcn(state) => state.next_change(),
            Algorithm::Dctcp(state) => state.next_change(),
            Algorithm::Timely(state) => state.next_change(),
            Algorithm::Swift(state) => state.next_change(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_and_fixed_rate_change_for_nothing() {
        let mut config = CongestionConfig {
            fixed_rate: Rate::from_gbps(5),
            ..CongestionConfig::default()
        };
        for (kind, rate, limit) in [
            (AlgorithmKind::None, config.line_rate, None),
            (
                AlgorithmKind::FixedRate,
                Rate::from_gbps(5),
                Some(Rate::from_gbps(5)),
            ),
        ] {
            config.algorithm = kind;
            let mut algorithm = Algorithm::new(&config, 0);
            algorithm.on_cnp(Nanos(5));
            algorithm.on_sent(4096, Nanos(6));
            algorithm.on_ack(&AckSignal::default(), Nanos(7));
            algorithm.advance(Nanos::from_millis(1));
            assert_eq!(algorithm.rate(), rate, "{kind}");
            assert_eq!(algorithm.limit(), limit, "{kind}");
            assert_eq!(algorithm.next_change(), None, "{kind}");
            assert!(!algorithm.heeds_cnp(), "{kind}");
        }
    }

    #[test]
    fn a_priority_that_is_not_enabled_has_no_algorithm() {
        let config = CongestionConfig {
            algorithm: AlgorithmKind::Dcqcn,
            rp_enable: 1 << 3,
            ..CongestionConfig::default()
        };
        assert!(Algorithm::new(&config, 3).heeds_cnp());
        let other = Algorithm::new(&config, 4);
        assert!(!other.heeds_cnp());
        assert_eq!(other.limit(), None);
    }

    #[test]
    fn another_algorithm_starts_afresh_and_the_same_one_keeps_its_state() {
        let mut config = CongestionConfig {
            algorithm: AlgorithmKind::Dcqcn,
            ..CongestionConfig::default()
        };
        let mut algorithm = Algorithm::new(&config, 0);
        algorithm.on_cnp(Nanos(0));
        let cut = algorithm.rate();
        assert!(cut < config.line_rate);
        config.dcqcn.ai_rate = 7;
        algorithm.configure(&config, 0, Nanos(1));
        assert_eq!(algorithm.rate(), cut);
        config.algorithm = AlgorithmKind::None;
        algorithm.configure(&config, 0, Nanos(2));
        assert_eq!(algorithm.rate(), config.line_rate);
    }

    #[test]
    fn the_time_of_bytes_is_exact_at_round_rates_and_saturates() {
        assert_eq!(Rate::from_gbps(100).picos(1250), 100_000);
        assert_eq!(Rate::from_mbps(1).picos(125), 1_000_000_000);
        assert_eq!(Rate(0).picos(u64::MAX), u64::MAX);
    }

    /// It lies in each queue pair, of which there may be 65,536.
    #[test]
    fn the_state_of_a_queue_pair_is_small() {
        let size = size_of::<Algorithm>();
        assert!(size <= 240, "{size} bytes");
    }
}
