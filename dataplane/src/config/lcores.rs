//! `[[lcore]]`: polling threads, where they run, and which of them serves what.

use toml::Spanned;

use super::check::{Checker, cpu_problem};
use super::file::{self, NumberOrWord, Numbers};
use super::{ConfigError, Idle, LcoreConfig};
use crate::lcore::Tuning;
use crate::port::RX_BURST;
use crate::port::spread::MAX_PARTS;

/// Ten times as long as anything that a polling thread does on purpose, and then some.
const WATCHDOG_S: u32 = 60;
/// Polling threads at most: more than one NIC process has use for, and few enough for a byte and EAL's own limit of threads.
const MAX_LCORES: usize = 64;

/// Which lcore the next NIC is for, where the configuration does not say: they take turns.
pub(super) struct Spread {
    lcores: usize,
    /// The lcore of the switches, if the configuration says which.
    fabric: Option<usize>,
    next: usize,
}

impl Spread {
    pub(super) fn new(lcores: usize, fabric: Option<usize>) -> Spread {
        Spread {
            lcores,
            fabric,
            next: 0,
        }
    }

    /// How many lcores there are.
    pub(super) fn lcores(&self) -> usize {
        self.lcores
    }

    /// The lcore of switch `number`, where its section names none: that of all switches, or they take turns.
    pub(super) fn of_switch(&self, number: usize) -> usize {
        self.fabric.unwrap_or(number % self.lcores)
    }

    /// The next one. An lcore that was chosen for switches has no NICs but those that name it.
    pub(super) fn next(&mut self) -> usize {
        let mut chosen = self.next;
        if self.fabric == Some(chosen) {
            chosen = (chosen + 1) % self.lcores;
        }
        self.next = (chosen + 1) % self.lcores;
        chosen
    }
}

impl Checker<'_> {
    /// The polling threads; one if the text says nothing of any.
    pub(super) fn lcores(
        &self,
        sections: Vec<Spanned<file::Lcore>>,
    ) -> Result<Vec<LcoreConfig>, ConfigError> {
        if sections.is_empty() {
            return Ok(vec![LcoreConfig {
                cpu: self.auto_cpu(&[]),
                idle: Idle::Adaptive,
                watchdog_s: WATCHDOG_S,
                tuning: Tuning::default(),
            }]);
        }
        if sections.len() > MAX_LCORES {
            return Err(self.whole(format!(
                "{} [[lcore]] sections: {MAX_LCORES} are allowed",
                sections.len()
            )));
        }
        // Those that are named are left to those who named them.
        let named =
            sections
                .iter()
                .filter_map(|lcore| match lcore.as_ref().cpu.as_ref()?.as_ref() {
                    NumberOrWord::Number(n) => usize::try_from(*n).ok(),
                    NumberOrWord::Word(_) => None,
                });
        let mut taken: Vec<usize> = named.collect();
        let mut lcores: Vec<LcoreConfig> = Vec::new();
        for section in &sections {
            let lcore = section.as_ref();
            let cpu = match &lcore.cpu {
                None => self.auto_cpu(&taken),
                Some(value) => self.cpu(value, &taken)?,
            };
            let watchdog_s = match &lcore.watchdog_s {
                None => WATCHDOG_S,
                Some(value) => self.number("watchdog_s", value, 0..=86_400)?,
            };
            let idle = lcore.idle.unwrap_or(Idle::Adaptive);
            let spins = |other: &LcoreConfig| idle == Idle::Spin || other.idle == Idle::Spin;
            if let Some(cpu) = cpu {
                if lcores
                    .iter()
                    .any(|other| other.cpu == Some(cpu) && spins(other))
                {
                    // Two of which one spins hand over once a time slice.
                    let problem = "another lcore is on this CPU, and one of the two never leaves it to the other: use \
                                   idle = \"adaptive\" for both, or another CPU";
                    let span = lcore.cpu.as_ref().map_or(section.span(), Spanned::span);
                    return Err(self.bad("cpu", cpu, span, problem));
                }
            }
            taken.extend(cpu);
            lcores.push(LcoreConfig {
                cpu,
                idle,
                watchdog_s,
                tuning: self.tuning(lcore)?,
            });
        }
        Ok(lcores)
    }

    fn tuning(&self, lcore: &file::Lcore) -> Result<Tuning, ConfigError> {
        let default = Tuning::default();
        let most = RX_BURST as u32;
        let number = |key, value: &Option<Spanned<i64>>, range, default| match value {
            Some(value) => self.number(key, value, range),
            None => Ok(default),
        };
        let mut tuning = Tuning {
            // Judged below, with all that may be wrong with it.
            rx_burst: default.rx_burst,
            tx_burst: number("tx_burst", &lcore.tx_burst, 1..=most, default.tx_burst)?,
            rx_prefetch: number(
                "rx_prefetch",
                &lcore.rx_prefetch,
                0..=most,
                default.rx_prefetch,
            )?,
            tx_prefetch: number(
                "tx_prefetch",
                &lcore.tx_prefetch,
                0..=Tuning::MAX_TX_PREFETCH,
                default.tx_prefetch,
            )?,
        };
        if let Some(value) = &lcore.rx_burst {
            let fits = |n: &u32| (8..=most).contains(n) && n % 8 == 0;
            let Some(burst) = u32::try_from(*value.as_ref()).ok().filter(fits) else {
                let problem = "must be 8, 16, 24 or 32: drivers that use vector instructions receive in eights";
                return Err(self.bad("rx_burst", value.as_ref(), value.span(), problem));
            };
            tuning.rx_burst = burst;
        }
        Ok(tuning)
    }

    /// The last CPU that is left, because interrupts and everything unpinned tend to the first; none at all when programs
    /// would have no other.
    fn auto_cpu(&self, taken: &[usize]) -> Option<usize> {
        let mut from_the_end = self.cpus().iter().skip(1).rev().copied();
        from_the_end.find(|cpu| !taken.contains(cpu))
    }

    fn cpu(
        &self,
        value: &Spanned<NumberOrWord>,
        taken: &[usize],
    ) -> Result<Option<usize>, ConfigError> {
        match value.as_ref() {
            NumberOrWord::Word(word) if word == "auto" => Ok(self.auto_cpu(taken)),
            NumberOrWord::Word(word) if word == "any" => Ok(None),
            NumberOrWord::Word(word) => {
                let problem = "must be a CPU number, \"auto\" or \"any\"";
                Err(self.bad("cpu", word, value.span(), problem))
            }
            NumberOrWord::Number(n) => match usize::try_from(*n) {
                Ok(cpu) if self.cpus().contains(&cpu) => Ok(Some(cpu)),
                _ => Err(self.bad("cpu", n, value.span(), cpu_problem(self.cpus()))),
            },
        }
    }

    /// The lcores of a NIC.
    pub(super) fn serving(
        &self,
        value: &Spanned<Numbers>,
        lcores: usize,
    ) -> Result<Vec<usize>, ConfigError> {
        let numbers = value.as_ref().as_slice();
        let bad = |shown: String, problem: &str| self.bad("lcore", shown, value.span(), problem);
        if numbers.is_empty() || numbers.len() > MAX_PARTS {
            let problem = format!("a NIC is served by 1 to {MAX_PARTS} lcores");
            return Err(bad(format!("{numbers:?}"), &problem));
        }
        let mut serving = Vec::new();
        for &number in numbers {
            let lcore = usize::try_from(number).ok().filter(|n| *n < lcores);
            let Some(lcore) = lcore else {
                return Err(bad(number.to_string(), &not_there(lcores)));
            };
            if serving.contains(&lcore) {
                return Err(bad(number.to_string(), "is named twice"));
            }
            serving.push(lcore);
        }
        Ok(serving)
    }

    /// The number of an lcore.
    pub(super) fn lcore(&self, value: &Spanned<i64>, lcores: usize) -> Result<usize, ConfigError> {
        let number = usize::try_from(*value.as_ref()).ok();
        number.filter(|number| *number < lcores).ok_or_else(|| {
            let problem = not_there(lcores);
            self.bad("lcore", value.as_ref(), value.span(), problem)
        })
    }
}

/// What is said of an lcore that is none of so many.
fn not_there(lcores: usize) -> String {
    match lcores {
        1 => "there is one [[lcore]], number 0: add sections".into(),
        n => format!(
            "must be from 0 to {}: there are {n} sections [[lcore]]",
            n - 1
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::file;
    use super::*;

    fn parse_on(cpus: &[usize], text: &str) -> Result<super::super::Config, String> {
        let raw = file::parse("f.toml", text).map_err(|error| error.to_string())?;
        Checker::new("f.toml", text, Path::new(""), cpus.to_vec())
            .check(raw)
            .map_err(|error| error.to_string())
    }

    fn nics(ports: &[&str]) -> String {
        let nic = |(n, more): (usize, &&str)| {
            format!(
                "[[nic]]\nname = \"roce{n}\"\naddresses = [\"10.0.0.{}/24\"]\nport = \"fabric:tor\"\n{more}",
                n + 1
            )
        };
        ports.iter().enumerate().map(nic).collect()
    }

    fn of_nics(text: &str) -> Vec<usize> {
        let config = parse_on(&[0, 1, 2, 3], text).unwrap();
        config.nics.iter().map(|nic| nic.lcores[0]).collect()
    }

    #[test]
    fn several_serve_one_nic() {
        let all = |lcore: &str| {
            nics(&[lcore, ""]) + &"[[lcore]]\n".repeat(9) + "[[fabric.switch]]\nname = \"tor\"\n"
        };
        let config = parse_on(&[0, 1], &all("lcore = [2, 0]\n")).unwrap();
        assert_eq!(config.nics[0].lcores, [2, 0]);
        for nic in &config.nics {
            assert!(nic.congestion.pfc.is_on(), "the switch loses nothing");
        }
        for (lcore, says) in [
            (
                "lcore = []\n",
                "lcore = []: a NIC is served by 1 to 8 lcores",
            ),
            ("lcore = [0, 1, 0]\n", "lcore = 0: is named twice"),
            ("lcore = [0, 9]\n", "lcore = 9: must be from 0 to 8"),
            ("lcore = [0, -1]\n", "lcore = -1: must be from 0 to 8"),
            ("lcore = \"all\"\n", "must be a number or a list of numbers"),
        ] {
            let error = parse_on(&[0, 1], &all(lcore)).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn nics_take_turns_unless_they_name_their_lcore() {
        let switch = "[[fabric.switch]]\nname = \"tor\"\n";
        let lcores = "[[lcore]]\n[[lcore]]\n[[lcore]]\n";
        let text = nics(&[""; 4]) + lcores + switch;
        assert_eq!(of_nics(&text), [0, 1, 2, 0]);
        let text = nics(&["", "lcore = 0\n", "", ""]) + lcores + switch;
        assert_eq!(of_nics(&text), [0, 0, 1, 2]);
        // Switches with an lcore of their own have it for themselves.
        let text = nics(&["", "lcore = 1\n", "", ""]) + lcores + "[fabric]\nlcore = 1\n" + switch;
        assert_eq!(of_nics(&text), [0, 1, 2, 0]);
        let text = nics(&["", ""]) + "[fabric]\nlcore = 0\n" + switch;
        assert_eq!(of_nics(&text), [0, 0], "there is no other");
        let refused = |text: &str, says: &str| {
            let error = parse_on(&[0, 1], text).unwrap_err();
            assert!(error.contains(says), "{error}");
        };
        refused(
            &(nics(&["lcore = 2\n", ""]) + "[[lcore]]\n[[lcore]]\n" + switch),
            "lcore = 2: must be from 0 to 1",
        );
        // So do switches, unless an lcore is chosen for all, or for one.
        let of_switches = |text: &str| {
            let all = nics(&["", ""]) + lcores + text;
            let config = parse_on(&[0, 1, 2, 3], &all).unwrap();
            let switches = config.fabric.switches.iter();
            switches.map(|switch| switch.lcore).collect::<Vec<_>>()
        };
        let four = "[[fabric.switch]]\nname = \"tor\"\n\
                     [[fabric.switch]]\nname = [\"b\", \"c\", \"d\"]\nuplinks = \"tor\"\n";
        assert_eq!(of_switches(four), [0, 1, 2, 0]);
        let of_all = "[fabric]\nlcore = 1\n".to_owned() + four;
        assert_eq!(of_switches(&of_all), [1; 4]);
        let of_one = of_all + "[[fabric.switch]]\nname = \"e\"\nuplinks = \"tor\"\nlcore = 2\n";
        assert_eq!(of_switches(&of_one), [1, 1, 1, 1, 2]);
        refused(
            &(nics(&["", ""]) + switch + "lcore = 1\n"),
            "lcore = 1: there is one [[lcore]], number 0: add sections",
        );
        refused(
            &(nics(&["", ""]) + "[fabric]\nlcore = 1\n" + switch),
            "lcore = 1: there is one [[lcore]], number 0: add sections",
        );
    }

    #[test]
    fn each_has_a_cpu_as_long_as_there_are_some() {
        let text = |lcores: &str| nics(&["", ""]) + lcores + "[[fabric.switch]]\nname = \"tor\"\n";
        let cpus = |cpus: &[usize], lcores: &str| {
            let config = parse_on(cpus, &text(lcores)).unwrap();
            config
                .lcores
                .iter()
                .map(|lcore| lcore.cpu)
                .collect::<Vec<_>>()
        };
        let two = "[[lcore]]\n[[lcore]]\n";
        assert_eq!(cpus(&[0, 1, 2, 3], two), [Some(3), Some(2)]);
        assert_eq!(cpus(&[0, 1], two), [Some(1), None], "programs have a CPU");
        let named = "[[lcore]]\n[[lcore]]\ncpu = 3\n";
        assert_eq!(cpus(&[0, 1, 2, 3], named), [Some(2), Some(3)]);
        let same = "[[lcore]]\ncpu = 1\n[[lcore]]\ncpu = 1\n";
        assert_eq!(cpus(&[0, 1], same), [Some(1), Some(1)]);
        for spins in [
            "idle = \"spin\"\n[[lcore]]\ncpu = 1\n",
            "[[lcore]]\ncpu = 1\nidle = \"spin\"\n",
        ] {
            let error =
                parse_on(&[0, 1], &text(&format!("[[lcore]]\ncpu = 1\n{spins}"))).unwrap_err();
            assert!(
                error.contains("cpu = 1: another lcore is on this CPU"),
                "{error}"
            );
        }
        let many = "[[lcore]]\n".repeat(65);
        assert!(
            parse_on(&[0], &text(&many))
                .unwrap_err()
                .contains("64 are allowed")
        );
    }

    #[test]
    fn bursts_and_distances_have_bounds_and_defaults() {
        let tuning = |keys: &str| {
            let config = parse_on(
                &[0, 1],
                &(nics(&["", ""]) + &format!("[[lcore]]\n{keys}\n")),
            );
            config.map(|config| config.lcores[0].tuning)
        };
        assert_eq!(tuning("").unwrap(), Tuning::default());
        let small = tuning("rx_burst = 8\ntx_burst = 1\ntx_prefetch = 16").unwrap();
        assert_eq!(
            (small.rx_burst, small.tx_burst, small.tx_prefetch),
            (8, 1, 16)
        );
        for (keys, says) in [
            ("rx_burst = 12", "rx_burst = 12: must be 8, 16, 24 or 32"),
            ("rx_burst = 7", "rx_burst = 7: must be 8, 16, 24 or 32"),
            ("rx_burst = 64", "rx_burst = 64: must be 8, 16, 24 or 32"),
            ("tx_burst = 0", "must be from 1 to 32"),
            ("rx_prefetch = 33", "must be from 0 to 32"),
            ("tx_prefetch = -1", "must be from 0 to 16"),
        ] {
            let error = tuning(keys).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
