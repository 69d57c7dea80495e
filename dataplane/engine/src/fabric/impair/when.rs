//! Which of the packets that a rule matches it hits: by count, by chance, or in bursts.

use core::fmt;
use core::str::FromStr;

use super::{Random, RuleError};

/// A probability in whole parts of 2^32, so that it means the same on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probability(u64);

impl Probability {
    /// Zero.
    pub const NEVER: Probability = Probability(0);
    /// One.
    pub const ALWAYS: Probability = Probability(1 << 32);

    /// So many parts of 2^32; more are one.
    pub const fn from_parts(parts: u64) -> Probability {
        Probability(if parts > 1 << 32 { 1 << 32 } else { parts })
    }

    /// `numerator / denominator`, rounded down; one if it is more, or if the denominator is 0.
    pub const fn ratio(numerator: u32, denominator: u32) -> Probability {
        match denominator {
            0 => Probability::ALWAYS,
            d => Probability::from_parts(((numerator as u64) << 32) / d as u64),
        }
    }

    /// Parts of 2^32.
    pub const fn parts(self) -> u64 {
        self.0
    }

    #[inline]
    pub(super) fn roll(self, random: &mut Random) -> bool {
        u64::from(random.next_u32()) < self.0
    }
}

/// Text that is no probability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbabilityError {
    /// Not a number from 0 to 1.
    #[error("`{0}` is no probability; write 1%, 0.01, 1e-6 or 1/256, between 0 and 1")]
    None(String),
    /// It would be rounded to zero, and never hit.
    #[error("`{0}` is less than half a part of 2^32; the least is 2.4e-10, and 0 means never")]
    TooSmall(String),
}

/// Reads `1%`, `0.01`, `1e-6` or `1/256`. Decimals are rounded to the nearest part of 2^32, but none above zero to zero.
impl FromStr for Probability {
    type Err = ProbabilityError;

    fn from_str(s: &str) -> Result<Probability, ProbabilityError> {
        let wrong = || ProbabilityError::None(s.to_owned());
        let number = |s: &str| s.trim().parse::<f64>().map_err(|_| wrong());
        let value = if let Some(percent) = s.strip_suffix('%') {
            number(percent)? / 100.0
        } else if let Some((over, under)) = s.split_once('/') {
            number(over)? / number(under)?
        } else {
            number(s)?
        };
        if !(0.0..=1.0).contains(&value) {
            return Err(wrong());
        }
        let parts = (value * 4_294_967_296.0).round() as u64;
        match parts == 0 && value > 0.0 {
            true => Err(ProbabilityError::TooSmall(s.to_owned())),
            false => Ok(Probability(parts)),
        }
    }
}

/// As a percentage.
impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A part of 2^32 is 2.3e-8 percent: this many digits tell all values from a user's text apart.
        let percent = self.0 as f64 / 42_949_672.96;
        let rounded = format!("{percent:.7}");
        write!(
            f,
            "{}%",
            rounded.trim_end_matches('0').trim_end_matches('.')
        )
    }
}

/// The Gilbert-Elliott model of bursts: a state, good or bad, changes after each matched packet. Of a long
/// sequence `good_to_bad / (good_to_bad + bad_to_good)` is in the bad state, in bursts of `1 / bad_to_good`
/// packets on average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GilbertElliott {
    /// From good to bad, often written p.
    pub good_to_bad: Probability,
    /// From bad to good, often written r.
    pub bad_to_good: Probability,
    /// That a packet is hit in the bad state (1 - h); one in the Gilbert model.
    pub hit_in_bad: Probability,
    /// That a packet is hit in the good state (1 - k); zero in the Gilbert model.
    pub hit_in_good: Probability,
}

impl GilbertElliott {
    /// The simple model: every packet of a bad phase is hit and no other.
    pub const fn simple(good_to_bad: Probability, bad_to_good: Probability) -> GilbertElliott {
        GilbertElliott {
            good_to_bad,
            bad_to_good,
            hit_in_bad: Probability::ALWAYS,
            hit_in_good: Probability::NEVER,
        }
    }
}

/// Chance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Chance {
    /// Every packet.
    #[default]
    Always,
    /// Each packet by itself.
    Each(Probability),
    /// In bursts.
    Bursts(GilbertElliott),
}

/// Which of the matched packets a rule hits. The first `skip` are left alone; of those behind them, `chance` decides,
/// until `count` were hit. Then the rule is spent, or starts over if it repeats. The default hits all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct When {
    /// Matched packets to leave alone first.
    pub skip: u32,
    /// The most that are hit; `None`: no limit.
    pub count: Option<u32>,
    /// Start over with `skip` after `count` hits: `skip` 255, `count` 1 and `repeat` hits every 256th.
    pub repeat: bool,
    /// Chance.
    pub chance: Chance,
}

impl When {
    pub(super) fn check(&self) -> Result<(), RuleError> {
        match self.count {
            Some(0) => Err(RuleError::NoCount),
            None if self.repeat => Err(RuleError::RepeatWithoutCount),
            _ => Ok(()),
        }
    }
}

/// Where a rule is in its `When`.
#[derive(Clone, Debug, Default)]
pub(super) struct WhenState {
    skipped: u32,
    hits: u32,
    bad: bool,
}

impl WhenState {
    /// Whether the next matched packet is to be hit. The caller says by [`WhenState::hit`] when it was.
    #[inline]
    pub fn due(&mut self, when: &When, random: &mut Random) -> bool {
        if self.skipped < when.skip {
            self.skipped += 1;
            return false;
        }
        if when.count.is_some_and(|most| self.hits >= most) {
            return false;
        }
        match &when.chance {
            Chance::Always => true,
            Chance::Each(p) => p.roll(random),
            Chance::Bursts(model) => {
                let (hit, change) = if self.bad {
                    (model.hit_in_bad, model.bad_to_good)
                } else {
                    (model.hit_in_good, model.good_to_bad)
                };
                let due = hit.roll(random);
                self.bad ^= change.roll(random);
                due
            }
        }
    }

    /// The packet was hit.
    #[inline]
    pub fn hit(&mut self, when: &When) {
        self.hits = self.hits.saturating_add(1);
        if when.repeat && when.count.is_some_and(|most| self.hits >= most) {
            self.skipped = 0;
            self.hits = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(when: &When, seed: u64, n: usize) -> Vec<bool> {
        when.check().expect("valid");
        let (mut state, mut random) = (WhenState::default(), Random::new(seed));
        let next = |_| {
            let due = state.due(when, &mut random);
            if due {
                state.hit(when);
            }
            due
        };
        (0..n).map(next).collect()
    }

    fn hits(when: &When, seed: u64, n: usize) -> usize {
        pattern(when, seed, n).into_iter().filter(|h| *h).count()
    }

    #[test]
    fn a_probability_above_zero_is_not_rounded_to_zero() {
        let read = |text: &str| text.parse::<Probability>();
        assert_eq!(read("2e-10").map(Probability::parts), Ok(1));
        assert_eq!(read("0").map(Probability::parts), Ok(0));
        for text in ["1e-12", "0.000000001%", "1/99999999999"] {
            assert_eq!(read(text), Err(ProbabilityError::TooSmall(text.into())));
        }
        for text in ["-1", "2", "101%", "1/0", "0/0", "often", ""] {
            assert_eq!(read(text), Err(ProbabilityError::None(text.into())));
        }
    }

    #[test]
    fn skip_then_count_then_silence() {
        let when = When {
            skip: 3,
            count: Some(2),
            ..When::default()
        };
        let want: Vec<bool> = (0..10).map(|i| i == 3 || i == 4).collect();
        assert_eq!(pattern(&when, 1, 10), want);
    }

    #[test]
    fn repeat_starts_over() {
        let when = When {
            skip: 2,
            count: Some(1),
            repeat: true,
            ..When::default()
        };
        let want: Vec<bool> = (0..9).map(|i| i % 3 == 2).collect();
        assert_eq!(pattern(&when, 1, 9), want);
        assert!(
            When {
                count: None,
                ..when
            }
            .check()
            .is_err()
        );
        let none = When {
            count: Some(0),
            repeat: false,
            ..when
        };
        assert!(none.check().is_err());
    }

    /// Standard deviation of a count of hits is sqrt(n p (1-p)); the bound is five of them.
    #[test]
    fn probabilities_are_met() {
        for (parts, n) in [
            (1u64 << 31, 100_000),
            (1 << 25, 1_000_000),
            (42_949_673, 500_000),
        ] {
            let p = parts as f64 / 4_294_967_296.0;
            let when = When {
                chance: Chance::Each(Probability::from_parts(parts)),
                ..When::default()
            };
            let got = hits(&when, 7, n) as f64;
            let (mean, dev) = (n as f64 * p, (n as f64 * p * (1.0 - p)).sqrt());
            assert!((got - mean).abs() < 5.0 * dev, "{p}: {got} of {n}");
        }
        let always = |p| When {
            chance: Chance::Each(p),
            ..When::default()
        };
        assert_eq!(hits(&always(Probability::ALWAYS), 1, 10_000), 10_000);
        assert_eq!(hits(&always(Probability::NEVER), 1, 10_000), 0);
    }

    #[test]
    fn chance_and_count_together() {
        let when = When {
            skip: 100,
            count: Some(5),
            chance: Chance::Each(Probability::ratio(1, 2)),
            repeat: false,
        };
        let pattern = pattern(&when, 3, 1_000);
        assert!(!pattern[..100].contains(&true));
        assert_eq!(pattern.iter().filter(|h| **h).count(), 5);
    }

    /// Share of the bad state p / (p + r); length of its runs 1 / r.
    #[test]
    fn bursts_have_their_rate_and_length() {
        let (p, r) = (Probability::ratio(1, 100), Probability::ratio(1, 5));
        let when = When {
            chance: Chance::Bursts(GilbertElliott::simple(p, r)),
            ..When::default()
        };
        let n = 400_000;
        let pattern = pattern(&when, 11, n);
        let hit = pattern.iter().filter(|h| **h).count();
        let starts = pattern.windows(2).filter(|w| !w[0] && w[1]).count();
        let share = hit as f64 / n as f64;
        assert!((share - 1.0 / 21.0).abs() < 0.002, "share {share}");
        let length = hit as f64 / starts as f64;
        assert!((length - 5.0).abs() < 0.2, "length {length}");
    }

    /// Elliott's extension: losses in both states.
    #[test]
    fn both_states_may_hit() {
        let when = When {
            chance: Chance::Bursts(GilbertElliott {
                good_to_bad: Probability::ratio(1, 50),
                bad_to_good: Probability::ratio(1, 10),
                hit_in_bad: Probability::ratio(1, 2),
                hit_in_good: Probability::ratio(1, 100),
            }),
            ..When::default()
        };
        let n = 300_000;
        let share = hits(&when, 5, n) as f64 / n as f64;
        let bad = 1.0 / 6.0;
        assert!(
            (share - (bad * 0.5 + (1.0 - bad) * 0.01)).abs() < 0.004,
            "{share}"
        );
    }

    #[test]
    fn probabilities_from_text() {
        let parts = |s: &str| s.parse::<Probability>().map(Probability::parts);
        assert_eq!(parts("100%"), Ok(1 << 32));
        assert_eq!(parts("1"), Ok(1 << 32));
        assert_eq!(parts("0"), Ok(0));
        assert_eq!(parts("1/256"), Ok(1 << 24));
        assert_eq!(parts("0.01"), parts("1%"));
        assert_eq!(parts("1e-6"), Ok(4295));
        for wrong in [
            "", "%", "x", "1.1", "-1%", "101%", "1/0", "nan", "0/0", "1/",
        ] {
            assert!(parts(wrong).is_err(), "{wrong}");
        }
        for shown in ["1%", "0.0001%", "50%", "100%", "0%", "0.39%"] {
            let p: Probability = shown.parse().expect("valid");
            assert_eq!(p.to_string(), shown);
        }
    }
}
