//! `[fabric]`: switches and what joins them. A NIC is on a switch if its port names it.

use roceline_engine::Nanos;
use roceline_engine::congestion::Rate;
use roceline_engine::congestion::ets::Ets;
use roceline_engine::congestion::pfc::PauseMode;
use roceline_engine::fabric::impair::Probability;
use roceline_engine::fabric::switch::{Alpha, ClassConfig, Red, Turn};
use roceline_engine::wire::pause::PRIORITIES;
use toml::Spanned;

use super::check::Checker;
use super::file;
use super::lcores::Spread;
use super::{ConfigError, NicConfig, PortSpec};
use crate::congestion::{Settings, ets};
use crate::fabric::plan::{Cable, LinkPlan, Plan, PortPlan, RoutePlan, Station, SwitchPlan};
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
    pub(super) fn fabric(
        &self,
        fabric: Option<file::Fabric>,
        spread: &Spread,
    ) -> Result<Plan, ConfigError> {
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
                let line = section.span().start;
                let lcore = match &switch.lcore {
                    Some(lcore) => self.lcore(lcore, spread.lcores())?,
                    None => spread.of_switch(plan.switches.len()),
                };
                let made = self.switch(name, line, &fabric, switch)?;
                plan.switches.push(SwitchPlan { lcore, ..made });
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

    /// Puts NICs on their switches, and looks whether all that switches name is there.
    pub(super) fn stations(&self, plan: &mut Plan, nics: &[NicConfig]) -> Result<(), ConfigError> {
        plan.nics = nics.len();
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
        self.names_of_links(plan)?;
        crate::fabric::check(plan).map_err(|problem| self.whole(problem.to_string()))
    }

    /// Whether links and ways that are written by hand are of NICs and switches that are there.
    fn names_of_links(&self, plan: &Plan) -> Result<(), ConfigError> {
        for (n, switch) in plan.switches.iter().enumerate() {
            let own = &switch.name;
            let on_it = |name: &str| {
                plan.stations
                    .iter()
                    .any(|s| s.switch == n && s.name == name)
            };
            let beside = |name: &str| {
                let other = plan.switch(name);
                let joined = |&(a, b): &Cable| Some(a ^ b ^ n) == other && (a == n || b == n);
                other.is_some() && plan.cables.iter().any(joined)
            };
            let section = |key: &str, of: &str, name: &str, problem: &str| {
                self.whole(format!(
                    "[[fabric.switch]] {own:?}: {key} = {name:?} of a {of}: {problem}"
                ))
            };
            for port in &switch.ports {
                if !on_it(&port.to) && !beside(&port.to) {
                    let problem = "is neither a NIC on this switch nor a switch that it has a cable to; name one of them";
                    return Err(section("to", "port", &port.to, problem));
                }
            }
            for route in &switch.routes {
                for to in &route.to {
                    if on_it(to) {
                        let problem =
                            "is on this switch itself, which has no other way to it; leave it out";
                        return Err(section("to", "route", to, problem));
                    }
                    if !plan.stations.iter().any(|station| &station.name == to) {
                        let problem = "is no NIC on a switch; name a [[nic]]";
                        return Err(section("to", "route", to, problem));
                    }
                }
                if let Some(via) = route.via.iter().find(|via| !beside(via)) {
                    let problem = "is no switch that this one has a cable to; name one, or add it to `uplinks`";
                    return Err(section("via", "route", via, problem));
                }
            }
        }
        match plan.round() {
            None => Ok(()),
            Some((to, names)) => Err(self.whole(format!(
                "[[fabric.switch.route]]: frames for {to} would go round for ever, {}; change `via` at one of them",
                names.join(" -> ")
            ))),
        }
    }

    /// One switch: its own words, else those for all.
    fn switch(
        &self,
        name: &str,
        line: usize,
        all: &file::Fabric,
        own: &file::Switch,
    ) -> Result<SwitchPlan, ConfigError> {
        macro_rules! of {
            ($key:ident) => {
                own.$key.as_ref().or(all.$key.as_ref())
            };
        }
        let unlimited = LinkPlan {
            rate: None,
            delay: Nanos::ZERO,
        };
        let link = self.link_plan(of!(rate), of!(delay), unlimited)?;
        let mut ports = Vec::new();
        for port in &own.port {
            let link = self.link_plan(port.rate.as_ref(), port.delay.as_ref(), link)?;
            let to = port.to.as_ref().as_slice().iter();
            ports.extend(to.map(|to| PortPlan {
                to: to.clone(),
                link,
            }));
        }
        let routes = own.route.iter().map(|route| RoutePlan {
            to: route.to.as_ref().as_slice().to_vec(),
            via: route.via.as_ref().as_slice().to_vec(),
        });
        let size = |text: &str| {
            units::large_bytes(text)
                .filter(|bytes| (1 << 14..=1 << 30).contains(bytes))
                .ok_or_else(|| "must be bytes from 16KiB to 1GiB, such as \"2MiB\"".to_owned())
        };
        let buffer = match of!(buffer) {
            Some(text) => self.unit("buffer", text, size)?,
            None => BUFFER,
        };
        let headroom = of!(headroom).map(|text| {
            self.unit("headroom", text, |text| {
                let bytes = units::bytes(text, 0)?;
                let fits = bytes <= 1 << 26;
                fits.then_some(bytes).ok_or_else(|| {
                    "must be 64MiB at most; leave it out to have it worked out".into()
                })
            })
        });
        let of_lossy = match of!(lossy_alpha) {
            Some(text) => self.unit("lossy_alpha", text, alpha)?,
            None => ClassConfig::lossy().alpha,
        };
        let alpha = match of!(alpha) {
            Some(text) => self.unit("alpha", text, alpha)?,
            None => ClassConfig::lossless().alpha,
        };
        let threshold = |text: &str| units::bytes(text, 0);
        let mut red = Red::at_rate(link.rate.unwrap_or(100_000_000_000));
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
        let mut selection = Ets {
            strict,
            ..Ets::default()
        };
        if let Some(text) = of!(bandwidth) {
            let set = ets::set_bandwidth(&mut selection, &text.as_ref().text());
            set.and_then(|()| selection.validate().map_err(|error| error.to_string()))
                .map_err(|problem| {
                    let value = format!("{:?}", text.as_ref().text());
                    self.bad("bandwidth", value, text.span(), problem)
                })?;
        }
        let weights = selection.weights();
        let mut classes = [ClassConfig::lossy(); PRIORITIES];
        for (p, class) in classes.iter_mut().enumerate() {
            class.alpha = of_lossy;
            if lossless >> p & 1 == 1 {
                *class = ClassConfig {
                    alpha,
                    ..ClassConfig::lossless()
                };
            }
            class.red = (ecn >> p & 1 == 1).then_some(red);
            class.turn = match strict >> p & 1 {
                1 => Turn::Strict,
                _ => Turn::Weighted(weights[p]),
            };
        }
        // As a NIC's pauses are written, so are those of a switch.
        let mut settings = Settings::default();
        settings.congestion.line_rate = Rate(link.rate.unwrap_or(100_000_000_000));
        for (key, value) in [
            ("pfc.trust", of!(trust)),
            ("pfc.dscp", of!(dscp)),
            ("pfc.quanta", of!(quanta)),
            ("pfc.watchdog_rx_limit", of!(watchdog_rx_limit)),
            ("pfc.watchdog_rx_restore", of!(watchdog_rx_restore)),
            ("pfc.watchdog_rx_action", of!(watchdog_rx_action)),
            ("pfc.watchdog_tx_limit", of!(watchdog_tx_limit)),
        ] {
            if let Some(value) = value {
                self.take(&mut settings, key, &value.as_ref().text(), value.span())?;
            }
        }
        let pause = match of!(pause) {
            None => PauseMode::Pfc,
            Some(value) => match value.as_ref().text().as_str() {
                "pfc" => PauseMode::Pfc,
                "global" => PauseMode::Global,
                text => {
                    let problem = "must be pfc (by priority) or global (802.3x, all at once); lossless = [] is for none";
                    return Err(self.bad("pause", format!("{text:?}"), value.span(), problem));
                }
            },
        };
        let mut pfc = settings.pfc;
        pfc.mode = PauseMode::Global;
        pfc.validate_times()
            .map_err(|error| self.of_section("fabric.switch", line, error.to_string()))?;
        Ok(SwitchPlan {
            name: name.into(),
            lcore: 0,
            link,
            ports,
            routes: routes.collect(),
            buffer,
            headroom: headroom.transpose()?,
            classes,
            marks_by_rate: of!(kmin).is_none() && of!(kmax).is_none(),
            map: pfc.map,
            pause,
            quanta: pfc.quanta,
            watchdog: pfc.watchdog,
        })
    }

    /// Rate and delay of a link; what is not written is as `usual`.
    fn link_plan(
        &self,
        rate: Option<&Spanned<String>>,
        delay: Option<&Spanned<String>>,
        usual: LinkPlan,
    ) -> Result<LinkPlan, ConfigError> {
        let rate = rate.map(|text| {
            self.unit("rate", text, |text| match text {
                "none" => Ok(None),
                _ => match units::rate(text) {
                    Ok(rate) if rate < MIN_RATE => {
                        Err("must be at least 10kb/s; \"none\" is for no limit".into())
                    }
                    other => other.map(Some),
                },
            })
        });
        let delay = delay.map(|text| {
            self.unit("delay", text, |text| match units::time(text) {
                Ok(delay) if delay > MAX_DELAY => Err("must be at most 100ms".into()),
                other => other,
            })
        });
        Ok(LinkPlan {
            rate: rate.transpose()?.unwrap_or(usual.rate),
            delay: delay.transpose()?.unwrap_or(usual.delay),
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
    use roceline_engine::Nanos;
    use roceline_engine::congestion::pfc::{PauseMode, StormAction};
    use roceline_engine::congestion::priority::Trust;
    use roceline_engine::fabric::switch::{Alpha, Turn};

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
        assert_eq!(plan.switches[0].link.rate, Some(1_000_000_000));
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
                let first = to.addresses.now().get(0).map(|address| address.ip);
                let next = from.next_hop(first.unwrap());
                assert_eq!(next, crate::neighbour::NextHop::Known(to.mac));
            }
        }
    }

    #[test]
    fn leaves_and_spines_take_a_few() {
        let text = nics(&["leaf0", "leaf1"])
            + "[fabric]\nrate = \"10Gb/s\"\ndelay = \"1us\"\n\
               [[fabric.switch]]\nname = [\"leaf0\", \"leaf1\"]\nuplinks = [\"spine0\", \"spine1\"]\n\
               [[fabric.switch]]\nname = [\"spine0\", \"spine1\"]\nrate = \"40Gb/s\"\nkmin = \"50KB\"\nkmax = \"100KiB\"\n\
               pmax = \"1%\"\nlossless = []\nalpha = \"2\"\nbuffer = \"4MiB\"\n";
        let plan = parse(&text).unwrap().fabric;
        assert_eq!(plan.cables, [(0, 2), (0, 3), (1, 2), (1, 3)]);
        let spine = &plan.switches[2];
        assert_eq!(
            (spine.link.rate, spine.lossless()),
            (Some(40_000_000_000), 0)
        );
        assert_eq!(spine.red().unwrap().kmin, 50_000);
        assert_eq!(plan.apart(), None);
        assert_eq!(spine.buffer, 4 << 20);
    }

    #[test]
    fn every_key_of_a_switch_arrives() {
        let text = nics(&["leaf", "leaf", "far"])
            + "[fabric]\nrate = \"10Gb/s\"\ndelay = \"1us\"\ntrust = \"pcp\"\npause = \"global\"\n\
               [[fabric.switch]]\nname = \"leaf\"\nuplinks = [\"spine0\", \"spine1\"]\nheadroom = \"32KiB\"\n\
               lossy_alpha = \"1/2\"\nstrict = [6, 7]\nbandwidth = [\"0:20\", \"3:70\"]\nquanta = 1000\n\
               watchdog_rx_limit = \"300ms\"\nwatchdog_rx_action = \"drop\"\ndscp = [\"46:3\"]\n\
               [[fabric.switch.port]]\nto = [\"roce1\", \"spine1\"]\nrate = \"1Gb/s\"\n\
               [[fabric.switch.port]]\nto = \"spine0\"\nrate = \"none\"\ndelay = \"0us\"\n\
               [[fabric.switch.route]]\nto = \"roce2\"\nvia = \"spine1\"\n\
               [[fabric.switch]]\nname = [\"spine0\", \"spine1\"]\nuplinks = \"far\"\n\
               [[fabric.switch]]\nname = \"far\"\n";
        let config = parse(&text).unwrap();
        let plan = &config.fabric;
        let leaf = &plan.switches[0];
        assert_eq!((leaf.headroom, leaf.quanta), (Some(32 << 10), 1000));
        assert_eq!(leaf.pause, PauseMode::Global);
        assert_eq!(leaf.map.trust(), Trust::Pcp);
        assert_eq!(leaf.map.of_dscp(46), 3);
        assert_eq!(leaf.watchdog.rx_limit, Nanos::from_millis(300));
        assert_eq!(leaf.watchdog.rx_action, StormAction::Drop);
        assert_eq!(leaf.classes[0].alpha, Alpha::ratio(1, 2));
        assert_eq!(leaf.classes[3].alpha, Alpha::ratio(1, 8));
        let turns = leaf.classes.map(|class| class.turn);
        // 20 and 70, and 10 for the four others: 2.5 each.
        assert_eq!(turns[0], Turn::Weighted(8));
        assert_eq!(
            turns[1..4],
            [Turn::Weighted(1), Turn::Weighted(1), Turn::Weighted(28)]
        );
        assert_eq!(turns[6..], [Turn::Strict; 2]);
        let gbps = |name: &str| leaf.link_to(name).rate.map(|rate| rate / 1_000_000_000);
        assert_eq!(
            ["roce0", "roce1", "spine0", "spine1"].map(gbps),
            [Some(10), Some(1), None, Some(1)]
        );
        assert_eq!(leaf.link_to("spine0").delay, Nanos::ZERO);
        assert_eq!(leaf.link_to("roce1").delay, Nanos(1_000));
        // Two NICs, then spine0 and spine1.
        assert_eq!(plan.routing()[0].routes[2], [3]);
        let rate = |n: usize| config.nics[n].congestion.congestion.line_rate.0 / 1_000_000_000;
        assert_eq!([0, 1, 2].map(rate), [10, 1, 10]);
        let pfc = config.nics[0].congestion.pfc;
        assert_eq!((pfc.mode, pfc.map.trust()), (PauseMode::Global, Trust::Pcp));
        assert_eq!(plan.switches[1].headroom, None);
        assert!(crate::fabric::check(plan).is_ok());
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
                "[[fabric.switch]]\nname = \"a\"\ntrust = \"dcsp\"\n",
                "must be one of dscp, pcp",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\npause = \"off\"\n",
                "lossless = [] is for none",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\nquanta = 0\n",
                "from 1 to 65535",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\nwatchdog_rx_limit = \"5us\"\n",
                "f.toml:10: [[fabric.switch]]: watchdog rx_limit = 5 us",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\nheadroom = \"1GiB\"\n",
                "must be 64MiB at most",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\nbandwidth = [\"6:10\"]\n",
                "take it out of `strict` or out of `bandwidth`",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\nport = [{ to = \"roce9\" }]\n",
                "[[fabric.switch]] \"a\": to = \"roce9\" of a port: is neither a NIC on this switch",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\nport = [{ to = \"roce0\", rat = \"1Gb/s\" }]\n",
                "did you mean `rate`",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\nroute = [{ to = \"roce0\", via = \"b\" }]\n",
                "is on this switch itself",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\nroute = [{ to = \"roce7\", via = \"b\" }]\n",
                "to = \"roce7\" of a route: is no NIC on a switch",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\n[[fabric.switch]]\nname = \"b\"\nroute = [{ to = \"roce0\", via = \"a\" }]\n",
                "via = \"a\" of a route: is no switch that this one has a cable to",
            ),
            (
                "[[fabric.switch]]\nname = \"a\"\n\
                 [[fabric.switch]]\nname = \"b\"\nuplinks = [\"a\", \"c\"]\nroute = [{ to = \"roce0\", via = \"c\" }]\n\
                 [[fabric.switch]]\nname = \"c\"\n",
                "frames for roce0 would go round for ever, b -> c -> b",
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
        // Two switches without a way between them are taken, and named in a warning.
        let text = nics(&["a", "b"]) + "[fabric]\nswitch = [{ name = [\"a\", \"b\"] }]\n";
        assert_eq!(parse(&text).unwrap().fabric.apart(), Some(("a", "b")));
        // A link of two stays what it is beside switches.
        let text = nics(&["a", "a", "b"]) + "[[fabric.switch]]\nname = \"b\"\n";
        assert_eq!(parse(&text).unwrap().fabric.stations.len(), 1);
    }
}
