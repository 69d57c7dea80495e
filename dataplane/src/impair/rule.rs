//! From keys to a rule: when it hits and what it does.

use roceline_engine::fabric::impair::{
    Action, Chance, Corruption, RateLimit, Rule, RuleError, RuleId, When,
};

use super::spec::{Spec, SpecError};
use super::{effects, units};

/// All keys of a rule; the command line has an option for each.
pub const KEYS: &[&str] = &[
    "name",
    "nic",
    "side",
    "link",
    "from",
    "class",
    "opcode",
    "qpn",
    "psn",
    "psn_modulo",
    "message",
    "ack_req",
    "syndrome",
    "dscp",
    "ecn",
    "priority",
    "sport",
    "length",
    "probability",
    "burst",
    "skip",
    "count",
    "repeat",
    "seed",
    "drop",
    "duplicate",
    "reorder",
    "delay",
    "corrupt",
    "reseal",
    "truncate",
    "mark_ce",
    "rate",
    "queue",
    "allowance",
    "observe",
];

/// Of which a rule has one.
const ACTIONS: [&str; 9] = [
    "drop",
    "duplicate",
    "reorder",
    "delay",
    "corrupt",
    "truncate",
    "mark_ce",
    "rate",
    "observe",
];

/// Two of the largest frames, so that a rate is met by packets of any size.
const ALLOWANCE: u32 = 8 << 10;
/// No frame is shorter than its Ethernet header.
const ETHERNET: u64 = roceline_engine::wire::ethernet::LEN as u64;
/// At 1 Gb/s two milliseconds.
const QUEUE: u32 = 256 << 10;

impl Spec {
    /// Understands the keys. The rule gets the number `id`; without a name it is called `rule` and its number, and
    /// without a seed the number is its seed, so that rules differ in what they hit.
    ///
    /// # Errors
    /// When a key does not exist, a value is none, or they do not fit together.
    pub fn compile(&self, id: u32) -> Result<Rule, SpecError> {
        if let Some(key) = self.keys().find(|key| !KEYS.contains(key)) {
            return Err(SpecError::Unknown { key: key.into() });
        }
        let rule = Rule {
            id: RuleId(id),
            name: self
                .get("name")
                .map_or_else(|| format!("rule{id}"), String::from),
            matcher: self.matcher()?,
            when: self.when()?,
            action: self.action()?,
            seed: self.parse("seed", units::number)?.unwrap_or(id.into()),
        };
        rule.check().map_err(|error| self.refused(&error, &rule))?;
        Ok(rule)
    }

    /// The engine's refusal, as an error about the key that it is about.
    fn refused(&self, error: &RuleError, rule: &Rule) -> SpecError {
        let key = match error {
            RuleError::TooMany | RuleError::Exists(_) => None,
            RuleError::NoChange if matches!(&rule.action, Action::Corrupt(c) if c.reseal) => {
                let problem =
                    "would make the ICRC right again, so that nothing is corrupted: leave it out";
                return self.bad("reseal", problem);
            }
            RuleError::Classes(..) => Some("class"),
            RuleError::MessageZero => Some("message"),
            RuleError::Modulo { .. } => Some("psn_modulo"),
            RuleError::NoCount => Some("count"),
            RuleError::RepeatWithoutCount => Some("repeat"),
            // All of these were bounded when their values were read, which says more.
            RuleError::TooLarge { .. }
            | RuleError::EmptyRange { .. }
            | RuleError::Copies(_)
            | RuleError::NoHold
            | RuleError::TooLong(_)
            | RuleError::Shape
            | RuleError::Scale
            | RuleError::EmptyTrace
            | RuleError::NoRate
            | RuleError::NoChange => ACTIONS.into_iter().find(|key| self.get(key).is_some()),
        };
        match key {
            Some(key) => self.bad(key, error.to_string()),
            None => SpecError::Whole(error.to_string()),
        }
    }

    fn when(&self) -> Result<When, SpecError> {
        let small = |text: &str| units::number_to(text, u64::from(u32::MAX)).map(|n| n as u32);
        let chance = match (self.get("probability"), self.get("burst")) {
            (Some(_), Some(_)) => {
                return Err(self.bad("burst", "a rule has a `probability` or a `burst`, not both"));
            }
            (Some(_), None) => self
                .parse("probability", effects::probability)?
                .map(Chance::Each),
            (None, Some(_)) => self.parse("burst", effects::bursts)?.map(Chance::Bursts),
            (None, None) => None,
        };
        let when = When {
            skip: self.parse("skip", small)?.unwrap_or(0),
            count: self.parse("count", |text| {
                units::number_in(text, 1..=u64::from(u32::MAX))
                    .map(|n| n as u32)
                    .map_err(|problem| format!("{problem}; leave it out for no limit"))
            })?,
            repeat: self.flag("repeat")?,
            chance: chance.unwrap_or(Chance::Always),
        };
        if when.repeat && when.count.is_none() {
            return Err(self.bad("repeat", "starts over after `count` hits: give a `count`"));
        }
        Ok(when)
    }

    fn action(&self) -> Result<Action, SpecError> {
        let mut given = Vec::new();
        for key in ACTIONS {
            let is_flag = matches!(key, "drop" | "mark_ce" | "observe");
            let set = if is_flag {
                self.flag(key)?
            } else {
                self.get(key).is_some()
            };
            given.extend(set.then_some(key));
        }
        let [action] = given[..] else {
            let all = ACTIONS.join(", ");
            return Err(SpecError::Whole(match given.as_slice() {
                [] => format!("a rule has to do something: give it one of {all}"),
                several => format!(
                    "a rule does one thing, not {}: make a rule for each",
                    several.join(" and ")
                ),
            }));
        };
        let goes_with = [
            ("reseal", &["corrupt", "truncate"][..]),
            ("queue", &["rate"]),
            ("allowance", &["rate"]),
        ];
        for (key, actions) in goes_with {
            if self.get(key).is_some() && !actions.contains(&action) {
                return Err(self.bad(key, format!("goes with {}", actions.join(" or "))));
            }
        }
        let reseal = self.flag("reseal")?;
        let made = match action {
            "drop" => Some(Action::Drop),
            "mark_ce" => Some(Action::MarkCe),
            "duplicate" => self.parse(action, effects::duplicate)?,
            "reorder" => self.parse(action, effects::reorder)?.map(Action::Reorder),
            "delay" => self.parse(action, effects::delay)?.map(Action::Delay),
            "corrupt" => self
                .parse(action, effects::change)?
                .map(|change| Action::Corrupt(Corruption { change, reseal })),
            "truncate" => self
                .parse(action, |text| units::number_in(text, ETHERNET..=0xffff))?
                .map(|len| Action::Truncate {
                    len: len as u32,
                    reseal,
                }),
            "rate" => self.rate()?,
            _ => Some(Action::Count),
        };
        Ok(made.unwrap_or(Action::Count))
    }

    fn rate(&self) -> Result<Option<Action>, SpecError> {
        let allowance = self.parse("allowance", |text| units::bytes(text, 1))?;
        let queue = self.parse("queue", |text| units::bytes(text, 0))?;
        let rate = self.parse("rate", units::rate)?;
        Ok(rate.map(|bits_per_sec| {
            Action::Rate(RateLimit {
                bits_per_sec,
                burst: allowance.unwrap_or(ALLOWANCE),
                queue: queue.unwrap_or(QUEUE),
            })
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::impair::effects::OVERTAKEN_WITHIN;
    use crate::impair::{RuleArgs, Text};
    use roceline_engine::Nanos;
    use roceline_engine::fabric::impair::{
        Change, Delay, Field, FieldChange, Probability, Region, Reorder, Where,
    };

    fn rule(text: &str) -> Result<Rule, String> {
        let spec: Spec = toml::from_str(text).unwrap();
        spec.compile(1).map_err(|error| error.to_string())
    }

    fn action(text: &str) -> Action {
        rule(text).unwrap().action
    }

    #[test]
    fn every_option_of_the_command_line_is_a_key() {
        use clap::Args as _;
        let command = RuleArgs::augment_args(clap::Command::new("add"));
        let mut options: Vec<&str> = command
            .get_arguments()
            .map(|arg| arg.get_id().as_str())
            .collect();
        options.retain(|option| !matches!(*option, "tx" | "rx"));
        options.push("side");
        options.sort_unstable();
        let mut keys = KEYS.to_vec();
        keys.sort_unstable();
        assert_eq!(options, keys);
    }

    #[test]
    fn when_a_rule_hits() {
        assert_eq!(rule("drop = true").unwrap().when, When::default());
        let when = rule("drop = true\nskip = 255\ncount = 1\nrepeat = true\nprobability = '50%'")
            .unwrap()
            .when;
        assert_eq!((when.skip, when.count, when.repeat), (255, Some(1), true));
        assert_eq!(when.chance, Chance::Each(Probability::ratio(1, 2)));
        let when = rule("drop = true\nburst = 'p=25%, r=50%, bad=1/2'")
            .unwrap()
            .when;
        let Chance::Bursts(model) = when.chance else {
            panic!("{when:?}");
        };
        assert_eq!(model.good_to_bad, Probability::ratio(1, 4));
        assert_eq!(model.hit_in_bad, Probability::ratio(1, 2));
        assert_eq!(model.hit_in_good, Probability::NEVER);
    }

    #[test]
    fn what_a_rule_does() {
        let us = Nanos::from_micros;
        assert_eq!(action("drop = true"), Action::Drop);
        assert_eq!(action("observe = true"), Action::Count);
        assert_eq!(action("mark_ce = true"), Action::MarkCe);
        let twice = |after| Action::Duplicate { copies: 2, after };
        assert_eq!(action("duplicate = 2"), twice(None));
        let late = Delay::Constant(Nanos(20_000));
        assert_eq!(action("duplicate = '2,20us'"), twice(Some(late)));
        let overtaken = |count, within| Action::Reorder(Reorder::Packets { count, within });
        assert_eq!(action("reorder = 3"), overtaken(3, OVERTAKEN_WITHIN));
        assert_eq!(action("reorder = '3, 2us'"), overtaken(3, us(2)));
        assert_eq!(
            action("reorder = '20us'"),
            Action::Reorder(Reorder::Delay(Delay::Constant(us(20))))
        );
        let delayed = |text: &str| match action(&format!("delay = '{text}'")) {
            Action::Delay(delay) => delay,
            other => panic!("{other:?}"),
        };
        assert_eq!(delayed("20us"), Delay::Constant(us(20)));
        assert_eq!(
            delayed("10us..50us"),
            Delay::Uniform {
                min: us(10),
                max: us(50)
            }
        );
        assert_eq!(
            delayed("normal:50us, 10us"),
            Delay::Normal {
                mean: us(50),
                std_dev: us(10)
            }
        );
        let tail = Delay::Pareto {
            min: us(10),
            shape_milli: 1500,
            max: us(10_000),
        };
        assert_eq!(delayed("pareto:10us,1.5,10ms"), tail);
        assert_eq!(delayed("pareto:10us,1.5"), tail);
        assert_eq!(
            delayed("list:1us,2000"),
            Delay::Trace(vec![us(1), us(2)].into())
        );
        assert_eq!(
            action("truncate = 60\nreseal = true"),
            Action::Truncate {
                len: 60,
                reseal: true
            }
        );
        assert_eq!(
            action("rate = '1Gb/s'\nqueue = '64KiB'\nallowance = 9000"),
            Action::Rate(RateLimit {
                bits_per_sec: 1_000_000_000,
                burst: 9000,
                queue: 65536
            })
        );
    }

    #[test]
    fn what_is_corrupted() {
        let changed = |text: &str| match action(&format!("corrupt = '{text}'")) {
            Action::Corrupt(corruption) => corruption.change,
            other => panic!("{other:?}"),
        };
        let at = |region, offset| Where { region, offset };
        assert_eq!(changed("icrc"), Change::Icrc);
        assert_eq!(changed("bit"), Change::Bit(at(Region::Transport, None)));
        assert_eq!(
            changed("payload.byte:7"),
            Change::Byte(at(Region::Payload, Some(7)))
        );
        assert_eq!(
            changed("frame.bit:112"),
            Change::Bit(at(Region::Frame, Some(112)))
        );
        assert_eq!(
            changed("psn"),
            Change::Field(Field::Psn, FieldChange::Random)
        );
        assert_eq!(
            changed("psn+1"),
            Change::Field(Field::Psn, FieldChange::Add(1))
        );
        assert_eq!(
            changed("dest-qpn=0x12"),
            Change::Field(Field::DestQpn, FieldChange::Set(18))
        );
        assert_eq!(
            changed("opcode^0x01"),
            Change::Field(Field::Opcode, FieldChange::Flip(1))
        );
    }

    #[test]
    fn what_is_no_rule_is_said_with_the_remedy() {
        for (text, said) in [
            ("qpn = 1", "give it one of drop, duplicate"),
            (
                "drop = true\nmark_ce = true",
                "one thing, not drop and mark_ce",
            ),
            ("drop = false", "has to do something"),
            ("dorp = true", "unknown key `dorp`"),
            (
                "drop = true\nprobability = '2'",
                "probability = \"2\": must be a probability",
            ),
            (
                "drop = true\nprobability = 1\nburst = 'p=1,r=1'",
                "not both",
            ),
            ("drop = true\nburst = 'p=1%'", "p=…,r=…"),
            ("drop = true\nburst = 'p=1%,r=1%,p=2%'", "p=…,r=…"),
            ("drop = true\ncount = 0", "from 1 to 4294967295"),
            ("drop = true\nrepeat = true", "give a `count`"),
            (
                "drop = true\nreseal = true",
                "goes with corrupt or truncate",
            ),
            ("drop = true\nqueue = 1", "goes with rate"),
            (
                "drop = true\nprobability = '1e-12'",
                "probability = \"1e-12\": is so small",
            ),
            ("drop = true\nburst = 'p=1e-12,r=1'", "would never hit"),
            ("drop = true\nskip = -1", "from 0 to 4294967295"),
            ("drop = true\ncount = -1", "from 1 to 4294967295"),
            ("drop = true\nqpn = -3", "from 0 to 16777215 (0xffffff)"),
            ("drop = true\npsn_modulo = '7:7'", "(100 alone is 100:0)"),
            (
                "drop = true\nclass = 'first,last'",
                "class = \"first,last\": no packet is both",
            ),
            ("duplicate = 0", "from 1 to 16"),
            ("duplicate = '16,61s'", "61s is too long: 60s at most"),
            ("reorder = 0", "from 1 to 65535 packets"),
            ("reorder = 99999999", "from 1 to 65535 packets"),
            ("reorder = '3,'", "must be a time with its unit"),
            ("reorder = '3,61s'", "61s is too long: 60s at most"),
            ("reorder = '61s'", "61s is too long: 60s at most"),
            ("delay = '61s'", "61s is too long: 60s at most"),
            ("delay = '99999999999999999999s'", "60s at most"),
            ("delay = '1s..61s'", "61s is too long: 60s at most"),
            ("delay = 'normal:61s,1s'", "61s is too long: 60s at most"),
            ("delay = 'list:1us,61s'", "61s is too long: 60s at most"),
            ("delay = 'soon'", "60s at most"),
            (
                "corrupt = 'psn=0x1000000'",
                "corrupt = \"psn=0x1000000\": what is behind `=` must be a whole number from 0 to 16777215 (0xffffff)",
            ),
            ("corrupt = 'psn+0'", "from 1 to 16777215"),
            ("corrupt = 'opcode^0'", "from 1 to 255"),
            ("truncate = 99999", "from 14 to 65535"),
            ("truncate = 13", "from 14 to 65535"),
            ("rate = '1Gb/s'\nqueue = '4GiB'", "from 0 to 4294967295"),
            ("rate = '1Gb/s'\nallowance = 0", "from 1 to 4294967295"),
            ("rate = '1b/s'", "from 1kb/s to 1Tb/s"),
            ("reorder = 'soon'", "a number of packets"),
            ("delay = 10", "must be a time (20us)"),
            ("delay = '50us..10us'", "empty range"),
            ("delay = 'normal:50us'", "normal:MEAN"),
            ("delay = 'pareto:10us,0'", "pareto:LEAST"),
            ("delay = 'pareto:0us,1'", "above 0"),
            ("delay = 'list:'", "delay = \"list:\""),
            ("corrupt = 'header.bit'", "frame, packet"),
            ("corrupt = 'pnn'", "psn"),
            ("corrupt = 'psn=x'", "whole number"),
            (
                "corrupt = 'icrc'\nreseal = true",
                "reseal = \"true\": would make the ICRC right again",
            ),
            ("rate = '1'", "with its unit"),
            ("seed = -1\ndrop = true", "seed = \"-1\""),
        ] {
            let error = rule(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    /// Whoever may open the control socket may send anything.
    #[test]
    fn no_text_is_too_strange() {
        use proptest::prelude::*;
        let value = "[-a-z0-9.,:=+^%/ µ…]{0,12}|(list|normal|pareto|payload|p|psn)[:=.+][0-9.,us%=pr]{0,20}|[0-9]{1,40}(us|%|Gb/s)?";
        let pair = (proptest::sample::select(KEYS), value);
        let rules = proptest::collection::vec(pair, 0..6);
        proptest!(|(pairs in rules)| {
            let pairs = pairs.into_iter().map(|(key, value)| (key.to_string(), Text(value)));
            let spec = Spec::new(pairs);
            // An error or a rule: either is an answer, and both can be printed.
            let _ = format!("{spec} {:?}", spec.compile(1));
        });
    }
}
