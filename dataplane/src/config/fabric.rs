//! `[fabric]`: switches and what joins them. A NIC is on a switch if its port names it.

use roceline_engine::Nanos;
use roceline_engine::fabric::impair::Probability;
use roceline_engine::fabric::switch::{Alpha, ClassConfig, Red, Turn};
use roceline_engine::wire::pause::PRIORITIES;
use toml::Spanned;

use super::check::Checker;
use super::file;
use super::{ConfigError, NicConfig, PortSpec};
use crate::fabric::plan::{Plan, Station, SwitchPlan};
use crate::impair::units;

/// Shared buffer of a switch unless set.
const BUFFER: u64 = 2 << 20;
/// Switches at most.
const MAX_SWITCHES: usize = 64;
/// Slowest link. Times of bytes are counted for links down to 7.45 kb/s, which leaves some room.
const MIN_RATE: u64 = 10_000;
/// Longest delay of a cable: half around the earth, and then some.
const MAX_DELAY: Nanos = Nanos::from_millis(100);
/// RoCE's priority by convention: DSCP 26 is in class 3.
const LOSSLESS: u8 = 3;
/// That of CNPs: DSCP 48 is in class 6.
const STRICT: u8 = 6;

impl Checker<'_> {
    /// Checks the switches and what joins them. NICs are put on them afterwards.
    pub(super) fn fabric(&self, fabric: Option<file::Fabric>) -> Result<Plan, ConfigError> {
        let Some(fabric) = fabric else {
            return Ok(Plan::default());
        };
        let mut plan = Plan::default();
        if let Some(seed) = &fabric.seed {
            plan.seed = u64::from(self.number("seed", seed, 0..=u32::MAX)?);
        }
        let mut uplinks = Vec::new();
        for section in &fabric.switch {
            let switch = section.as_ref();
            for name in switch.name.as_ref().as_slice() {
                let bad = |problem: &str| {
                    self.bad("name", format!("{name:?}"), switch.name.span(), problem)
                };
                let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
                if name.is_empty() || !name.chars().all(letters) {
                    return Err(bad("a switch's name has letters, digits, `-` and `_`"));
                }
                if plan.switch(name).is_some() {
                    return Err(bad("is the name of two switches; rename one"));
                }
                if plan.switches.len() == MAX_SWITCHES {
                    return Err(bad("is one too many: 64 switches at most"));
                }
                if let Some(to) = &switch.uplinks {
                    uplinks.push((plan.switches.len(), to));
                }
                plan.switches.push(self.switch(name, &fabric, switch)?);
            }
        }
        for (from, to) in uplinks {
            for name in to.as_ref().as_slice() {
                let bad =
                    |problem: &str| self.bad("uplinks", format!("{name:?}"), to.span(), problem);
                match plan.switch(name) {
                    Some(other) if other != from => plan.cables.push((from, other)),
                    Some(_) => return Err(bad("is the switch itself")),
                    None => return Err(bad("there is no [[fabric.switch]] of this name")),
                }
            }
        }
        Ok(plan)
    }

    /// Puts NICs on their switches.
    pub(super) fn stations(&self, plan: &mut Plan, nics: &[NicConfig]) -> Result<(), ConfigError> {
        for (index, nic) in (0..).zip(nics) {
            let PortSpec::Fabric(link) = &nic.port else {
                continue;
            };
            if let Some(switch) = plan.switch(link) {
                plan.stations.push(Station {
                    nic: index,
                    name: nic.name.clone(),
                    mac: nic.mac,
                    switch,
                    mtu: nic.mtu,
                });
            }
        }
        crate::fabric::check(plan).map_err(|problem| self.whole(problem.to_string()))
    }

    /// One switch: its own words, else those for all.
    fn switch(
        &self,
        name: &str,
        all: &file::Fabric,
        own: &file::Switch,
    ) -> Result<SwitchPlan, ConfigError> {
        macro_rules! of {
            ($key:ident) => {
                own.$key.as_ref().or(all.$key.as_ref())
            };
        }
        let rate = of!(rate).map(|text| {
            self.unit("rate", text, |text| match units::rate(text) {
                Ok(rate) if rate < MIN_RATE => {
                    Err("must be at least 10kb/s; leave it out for no limit".into())
                }
                other => other,
            })
        });
        let rate = rate.transpose()?;
        let delay = match of!(delay) {
            Some(text) => self.unit("delay", text, |text| match units::time(text) {
                Ok(delay) if delay > MAX_DELAY => Err("must be at most 100ms".into()),
                other => other,
            })?,
            None => Nanos::ZERO,
        };
        let size = |text: &str| {
            units::large_bytes(text)
                .filter(|bytes| (1 << 14..=1 << 30).contains(bytes))
                .ok_or_else(|| "must be bytes from 16KiB to 1GiB, such as \"2MiB\"".to_owned())
        };
        let buffer = match of!(buffer) {
            Some(text) => self.unit("buffer", text, size)?,
            None => BUFFER,
        };
        let alpha = match of!(alpha) {
            Some(text) => self.unit("alpha", text, alpha)?,
            None => ClassConfig::lossless().alpha,
        };
        let threshold = |text: &str| units::bytes(text, 0);
        let mut red = Red::at_rate(rate.unwrap_or(100_000_000_000));
        if let Some(text) = of!(kmin) {
            red.kmin = self.unit("kmin", text, threshold)?;
        }
        if let Some(text) = of!(kmax) {
            red.kmax = self.unit("kmax", text, threshold)?;
        }
        if let Some(text) = of!(pmax) {
            red.pmax = self.unit("pmax", text, |text| {
                text.parse::<Probability>()
                    .map_err(|error| error.to_string())
            })?;
        }
        let priorities = |key, list: Option<&Spanned<Vec<Spanned<i64>>>>, usual: u8| {
            let Some(list) = list else {
                return Ok(1u8 << usual);
            };
            let number = |p| self.number(key, p, 0..=7);
            let mut list = list.as_ref().iter().map(number);
            list.try_fold(0, |mask, p| p.map(|p| mask | 1 << p))
        };
        let lossless = priorities("lossless", of!(lossless), LOSSLESS)?;
        let strict = priorities("strict", of!(strict), STRICT)?;
        // Where nothing is lossless, the usual priority still marks: congestion control needs no pauses.
        let ecn = match of!(ecn) {
            Some(list) => priorities("ecn", Some(list), LOSSLESS)?,
            None if lossless == 0 => 1 << LOSSLESS,
            None => lossless,
        };
        let mut classes = [ClassConfig::lossy(); PRIORITIES];
        for (p, class) in classes.iter_mut().enumerate() {
            if lossless >> p & 1 == 1 {
                *class = ClassConfig {
                    alpha,
                    ..ClassConfig::lossless()
                };
            }
            class.red = (ecn >> p & 1 == 1).then_some(red);
            if strict >> p & 1 == 1 {
                class.turn = Turn::Strict;
            }
        }
        Ok(SwitchPlan {
            name: name.into(),
            rate,
            delay,
            buffer,
            classes,
        })
    }

    fn unit<T>(
        &self,
        key: &'static str,
        text: &Spanned<String>,
        read: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, ConfigError> {
        read(text.as_ref()).map_err(|problem| {
            let value = format!("{:?}", text.as_ref());
            self.bad(key, value, text.span(), problem)
        })
    }
}

/// `"1/8"` or `"2"`.
fn alpha(text: &str) -> Result<Alpha, String> {
    let (over, under) = text.split_once('/').unwrap_or((text, "1"));
    let number = |text: &str| text.trim().parse::<u32>().ok();
    match (number(over), number(under)) {
        (Some(over), Some(under)) if over > 0 && under > 0 && over <= 64 && under <= 1024 => {
            Ok(Alpha::ratio(over, under))
        }
        _ => Err("must be a ratio from 1/1024 to 64, such as \"1/8\"".into()),
    }
}

#[cfg(test)]
mod tests {
    use roceline_engine::congestion::pfc::PauseMode;

    use super::super::Config;

    fn nics(ports: &[&str]) -> String {
        let nic = |(n, port): (usize, &&str)| {
            format!(
                "[[nic]]\nname = \"roce{n}\"\naddresses = [\"10.0.0.{}/24\"]\nport = \"fabric:{port}\"\n",
                n + 1
            )
        };
        ports.iter().enumerate().map(nic).collect()
    }

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse("f.toml", text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_star_takes_three_lines() {
        let text =
            nics(&["tor"; 3]) + "[fabric]\nrate = \"1Gb/s\"\nswitch = [{ name = \"tor\" }]\n";
        let config = parse(&text).unwrap();
        let plan = &config.fabric;
        assert_eq!((plan.switches.len(), plan.stations.len()), (1, 3));
        assert_eq!(plan.switches[0].rate, Some(1_000_000_000));
        assert_eq!(plan.switches[0].lossless(), 1 << 3);
        assert_eq!(plan.switches[0].red().unwrap().kmax, 16_000);
        // NICs are told what their switch is like.
        let settings = config.nics[2].congestion;
        assert_eq!(settings.congestion.line_rate.0, 1_000_000_000);
        assert_eq!(
            (settings.pfc.mode, settings.pfc.priorities),
            (PauseMode::Pfc, 1 << 3)
        );
        let own = text.replace(
            "fabric:tor\"\n",
            "fabric:tor\"\nline_rate = \"2Gb/s\"\npfc = { mode = \"off\" }\n",
        );
        let settings = parse(&own).unwrap().nics[2].congestion;
        assert_eq!(settings.congestion.line_rate.0, 2_000_000_000);
        assert_eq!(settings.pfc.mode, PauseMode::Off);
        // All on a fabric know each other.
        let infos = config.nic_infos();
        let networks = config.networks(&infos);
        for from in &networks {
            for to in &infos {
                let next = from.next_hop(to.addrs[0].0);
                assert_eq!(next, crate::neighbour::NextHop::Known(to.mac));
            }
        }
    }

    #[test]
    fn leaves_and_spines_take_a_few() {
        let text = nics(&["leaf0", "leaf1"])
            + "[fabric]\nrate = \"10Gb/s\"\ndelay = \"1us\"\n\
               [[fabric.switch]]\nname = [\"leaf0\", \"leaf1\"]\nuplinks = [\"spine0\", \"spine1\"]\n\
               [[fabric.switch]]\nname = [\"spine0\", \"spine1\"]\nrate = \"40Gb/s\"\nkmin = \"50KiB\"\nkmax = \"100KiB\"\n\
               pmax = \"1%\"\nlossless = []\nalpha = \"2\"\nbuffer = \"4MiB\"\n";
        let plan = parse(&text).unwrap().fabric;
        assert_eq!(plan.cables, [(0, 2), (0, 3), (1, 2), (1, 3)]);
        let spine = &plan.switches[2];
        assert_eq!((spine.rate, spine.lossless()), (Some(40_000_000_000), 0));
        assert_eq!(spine.red().unwrap().kmin, 50 << 10);
        assert_eq!(spine.buffer, 4 << 20);
    }

    #[test]
    fn mistakes_are_named() {
        let fabric = |more: &str| nics(&["a", "a"]) + "[fabric]\n" + more;
        for (more, says) in [
            ("[[fabric.switch]]\nname = \"\"\n", "letters"),
            (
                "[[fabric.switch]]\nname = [\"a\", \"a\"]\n",
                "name of two switches",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\nuplinks = \"b\"\n",
                "no [[fabric.switch]] of this name",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\nuplinks = \"a\"\n",
                "the switch itself",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\nrate = \"fast\"\n",
                "rate = \"fast\"",
            ),
            (
                "rate = \"9.99kb/s\"\nswitch = [{ name = \"a\" }]\n",
                "at least 10kb/s",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\nkmin = \"9KiB\"\nkmax = \"1KiB\"\n",
                "Kmin 9216 is above Kmax 1024",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\nlossless = [8]\n",
                "must be from 0 to 7",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\nalpha = \"0\"\n",
                "must be a ratio",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\ndelay = \"1s\"\n",
                "at most 100ms",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\nbufer = \"1MiB\"\n",
                "did you mean `buffer`",
            ),
        ] {
            let error = parse(&fabric(more)).unwrap_err();
            assert!(error.contains(says), "{error}\nnot: {says}");
        }
        // A link of two stays what it is beside switches.
        let text = nics(&["a", "a", "b"]) + "[[fabric.switch]]\nname = \"b\"\n";
        assert_eq!(parse(&text).unwrap().fabric.stations.len(), 1);
    }
}
