//! The switches of a scenario, all alike: `[switch]`.

use roceline_engine::congestion::pfc::PauseMode;
use roceline_engine::fabric::impair::Probability;
use roceline_engine::fabric::switch::{Alpha, Red};

use super::document::Section;
use super::error::ScenarioError;
use super::units;

/// How every switch is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// Bytes that all queues of a switch share, beside the headroom.
    pub buffer: u64,
    /// Priorities that PFC protects; the others drop what finds no room.
    pub lossless: u8,
    /// Priorities in which packets are marked.
    pub marked: u8,
    /// Share of the free buffer that an ingress port may have in a lossless priority before its upstream is paused.
    pub alpha: Alpha,
    /// Share of the free buffer that an egress queue may have in another priority.
    pub lossy_alpha: Alpha,
    /// Kind of pauses of lossless priorities.
    pub pause: PauseMode,
    /// Where marking begins and ends; `None`: in proportion to the rate of a port.
    pub red: Option<Red>,
}

impl Switches {
    pub(super) fn read(section: &Section) -> Result<Switches, ScenarioError> {
        let alpha = |text: &str| {
            let number = units::fraction(1.0 / 1024.0, 64.0)(text)?;
            Ok(Alpha::ratio((number * 1024.0).round() as u32, 1024))
        };
        let threshold = |text: &str| {
            let bytes = if text == "0" { 0 } else { units::bytes(text)? };
            u32::try_from(bytes).map_err(|_| "must be below 4 GiB".to_string())
        };
        let (kmin, kmax) = (
            section.value("kmin", threshold)?,
            section.value("kmax", threshold)?,
        );
        let pmax = section.value("pmax", units::fraction(0.0, 1.0))?;
        let red = match (kmin, kmax) {
            (Some(kmin), Some(kmax)) if kmin <= kmax => Some(Red {
                kmin,
                kmax,
                pmax: Probability::ratio((pmax.unwrap_or(0.2) * 1e6).round() as u32, 1_000_000),
            }),
            (Some(_), Some(_)) => return Err(section.bad("kmin", "must not be above `kmax`")),
            (None, None) if pmax.is_some() => {
                return Err(section.bad("pmax", "needs `kmin` and `kmax` beside it"));
            }
            (None, None) => None,
            _ => return Err(section.whole("`kmin` and `kmax` belong together: give both")),
        };
        let switches = Switches {
            buffer: section.or("buffer", 4 << 20, units::bytes)?,
            lossless: priorities(section, "lossless", 1 << 3)?,
            marked: priorities(section, "marked", 1 << 3)?,
            alpha: section.or("alpha", Alpha::ratio(1, 8), alpha)?,
            lossy_alpha: section.or("lossy_alpha", Alpha::ratio(1, 1), alpha)?,
            pause: section.or("pause", PauseMode::Pfc, |text| match text {
                "pfc" => Ok(PauseMode::Pfc),
                "global" => Ok(PauseMode::Global),
                _ => Err("must be pfc or global; lossless = [] is for none".into()),
            })?,
            red,
        };
        section.end()?;
        Ok(switches)
    }
}

/// A list of priorities as a mask.
fn priorities(section: &Section, key: &str, default: u8) -> Result<u8, ScenarioError> {
    if !section.has(key) {
        return Ok(default);
    }
    let mut mask = 0;
    for text in section.list(key)? {
        let priority = crate::impair::number_in(&text, 0..=7).map_err(|_| {
            section.bad(
                key,
                "must be a list of priorities from 0 to 7, such as [3], or []",
            )
        })?;
        mask |= 1 << priority;
    }
    Ok(mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Switches, String> {
        let file = Section::parse("f.toml", text).unwrap();
        Switches::read(&file).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_those_of_a_deployment_and_lists_may_be_empty() {
        let default = read("").unwrap();
        assert_eq!(
            (default.lossless, default.marked, default.red),
            (8, 8, None)
        );
        let set = read(
            "lossless = []\nmarked = [0, 3]\nalpha = '1/16'\nkmin = 0\nkmax = '200KB'\npmax = '1%'",
        );
        let set = set.unwrap();
        assert_eq!((set.lossless, set.marked), (0, 9));
        assert_eq!(set.alpha, Alpha::ratio(1, 16));
        assert_eq!(set.red.map(|red| (red.kmin, red.kmax)), Some((0, 200_000)));
    }

    #[test]
    fn slips_are_told() {
        for (text, says) in [
            ("lossless = [8]", "from 0 to 7"),
            ("kmin = '5KB'", "belong together"),
            ("pmax = '1%'", "needs `kmin` and `kmax`"),
            ("kmin = '5KB'\nkmax = '1KB'", "above `kmax`"),
            ("alpha = 0", "must be a number"),
            ("ecn = true", "unknown key `ecn`"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
