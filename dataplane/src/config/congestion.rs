//! `congestion` and its like of a NIC, `[nic.dcqcn]`, `[nic.np]` and `[nic.pfc]`. What keys and values mean is the business of
//! [`crate::congestion`]; here errors get their line.

use std::ops::Range;

use roceline_engine::congestion::Rate;
use toml::Spanned;

use super::ConfigError;
use super::check::Checker;
use super::error::nearest;
use super::file::{self, Keys, line_of};
use crate::congestion::{
    ETS_KEYS, ETS_PREFIX, NP_KEYS, PFC_KEYS, PFC_PREFIX, RP_KEYS, Settings, given_twice, keys_of,
};
use crate::fabric::plan::SwitchPlan;
use crate::impair::SpecError;

impl Checker<'_> {
    /// Checks what a NIC says of congestion, for IP packets up to `mtu` bytes. What it does not say follows from the switch that it
    /// is on: the rate of its link, pauses for what loses nothing there, and which priority a frame has.
    pub(super) fn congestion(
        &self,
        nic: &file::Nic,
        mtu: u32,
        switch: Option<&SwitchPlan>,
    ) -> Result<Settings, ConfigError> {
        let mut settings = Settings::default();
        if let Some(switch) = switch {
            if let Some(rate) = switch.link_to(nic.name.as_ref()).rate {
                settings.congestion.line_rate = Rate(rate);
            }
            if switch.lossless() != 0 {
                settings.pfc.mode = switch.pause;
                settings.pfc.priorities = switch.lossless();
            }
            settings.pfc.map = switch.map;
        }
        // First what the rest goes by.
        if let Some((_, profile)) = find(&nic.dcqcn, "profile") {
            self.take(
                &mut settings,
                "profile",
                &profile.as_ref().text(),
                profile.span(),
            )?;
        }
        let words = [
            ("algorithm", &nic.congestion),
            ("line_rate", &nic.line_rate),
            ("fixed_rate", &nic.fixed_rate),
        ];
        for (key, value) in words {
            if let Some(value) = value {
                self.take(&mut settings, key, value.as_ref(), value.span())?;
            }
        }
        let others = ["dctcp", "timely", "swift"].map(keys_of);
        let sections = [
            (&nic.dcqcn, "", RP_KEYS.as_slice()),
            (&nic.np, "", NP_KEYS.as_slice()),
            (&nic.pfc, PFC_PREFIX, PFC_KEYS.as_slice()),
            (&nic.ets, ETS_PREFIX, ETS_KEYS.as_slice()),
            (&nic.dctcp, "", others[0].as_slice()),
            (&nic.timely, "", others[1].as_slice()),
            (&nic.swift, "", others[2].as_slice()),
        ];
        for (keys, prefix, known) in sections {
            let mut seen: Vec<(&str, &str)> = Vec::new();
            for (key, value) in keys {
                let Some(name) = known.iter().find(|name| names(name, key.as_ref())) else {
                    return Err(self.unknown(key, known));
                };
                if let Some((_, first)) = seen.iter().find(|(known, _)| known == name) {
                    let other = match key.as_ref() == *name {
                        true => first,
                        false => key.as_ref().as_str(),
                    };
                    let problem = given_twice(name, other);
                    let value = format!("{:?}", value.as_ref().text());
                    return Err(self.bad(name, value, key.span(), problem));
                }
                seen.push((name, key.as_ref()));
                if *name == "profile" {
                    continue;
                }
                let text = value.as_ref().text();
                self.take(
                    &mut settings,
                    &format!("{prefix}{name}"),
                    &text,
                    value.span(),
                )?;
            }
        }
        let place = [&nic.dcqcn, &nic.np, &nic.pfc, &nic.ets]
            .into_iter()
            .flat_map(|keys| keys.keys())
            .map(|key| key.span().start)
            .min()
            .unwrap_or(nic.name.span().start);
        settings
            .validate(mtu)
            .map_err(|error| self.of_section("nic", place, error.to_string()))?;
        Ok(settings)
    }

    pub(super) fn take(
        &self,
        settings: &mut Settings,
        key: &str,
        text: &str,
        at: Range<usize>,
    ) -> Result<(), ConfigError> {
        settings.set(key, text).map_err(|error| match error {
            SpecError::Value {
                key: "algorithm",
                value,
                problem,
            } => self.bad("congestion", value, at, problem),
            SpecError::Value {
                key,
                value,
                problem,
            } => self.bad(key, value, at, problem),
            other => self.of_section("nic", at.start, other.to_string()),
        })
    }

    fn unknown(&self, key: &Spanned<String>, known: &[&'static str]) -> ConfigError {
        ConfigError::Unknown {
            file: self.label().into(),
            line: line_of(self.text(), key.span().start),
            kind: "key",
            of: None,
            nearest: nearest(key.as_ref(), known).map(Box::from),
            word: key.as_ref().clone(),
            known: known.join(", ").into(),
        }
    }

    /// What does not go together, with the line where it begins.
    pub(super) fn of_section(
        &self,
        section: &'static str,
        at: usize,
        problem: String,
    ) -> ConfigError {
        ConfigError::Section {
            file: self.label().into(),
            line: line_of(self.text(), at),
            section,
            problem,
        }
    }
}

fn find<'k>(
    keys: &'k Keys,
    wanted: &str,
) -> Option<(&'k Spanned<String>, &'k Spanned<file::Words>)> {
    keys.iter().find(|(key, _)| key.as_ref() == wanted)
}

/// Whether `written` is the key `name`, by that name or by the one that mlx5's debugfs has.
fn names(name: &str, written: &str) -> bool {
    name == written
        || roceline_engine::congestion::Param::find(written).is_some_and(|p| p.name == name)
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use crate::congestion::Settings;

    const NIC: &str =
        "[[nic]]\nname = \"roce0\"\naddresses = [\"10.0.0.1/24\"]\nport = \"vdev:net_null0\"\n";

    fn parse(more: &str) -> Result<Settings, String> {
        let config = Config::parse("f.toml", &format!("{NIC}{more}"));
        let config = config.map_err(|error| error.to_string())?;
        Ok(config.nics[0].congestion)
    }

    #[test]
    fn without_a_word_a_nic_is_as_a_connectx_comes() {
        assert_eq!(parse("").unwrap(), Settings::default());
    }

    #[test]
    fn every_key_arrives() {
        let settings = parse(
            "congestion = \"fixed-rate\"\nline_rate = \"40Gb/s\"\nfixed_rate = \"2Gb/s\"\n\
             [nic.dcqcn]\nrpg_ai_rate = 7\nprofile = \"paper\"\nclamp_tgt_rate = false\nrp_hai_rate = \"1Gb/s\"\n\
             rp_enable = 0x08\n\
             [nic.np]\nmin_time_between_cnps = \"10us\"\ncnp_dscp = 46\ncnp_moderation = \"per-ip\"\nnp_enable = 255\n\
             [nic.pfc]\nmode = \"pfc\"\npriorities = [3, 4]\ntrust = \"pcp\"\nxoff_bytes = \"16KiB\"\ncable_m = 2\n\
             watchdog_rx_action = \"drop\"\ndscp = [\"46:3\"]\nheadroom_bytes = 9000\n\
             [nic.ets]\nstrict = [6]\nbandwidth = [\"0:30\", \"3:60%\"]\n\
             [nic.dctcp]\ndctcp_rtt = 30\n[nic.swift]\nswift_beta = 512\n",
        )
        .unwrap();
        let value = |key: &str| {
            let values = settings.values();
            values.into_iter().find(|v| v.key == key).map(|v| v.value)
        };
        for (key, wanted) in [
            ("algorithm", "fixed-rate"),
            ("profile", "paper"),
            ("line_rate", "40Gb/s"),
            ("fixed_rate", "2Gb/s"),
            ("rpg_ai_rate", "7"),
            ("clamp_tgt_rate", "0"),
            ("rpg_hai_rate", "1000"),
            ("rpg_threshold", "5"),
            ("rp_enable", "8"),
            ("min_time_between_cnps", "10"),
            ("cnp_dscp", "46"),
            ("cnp_moderation", "per-ip"),
            ("dctcp_rtt", "30"),
            ("swift_beta", "512"),
            ("pfc.mode", "pfc"),
            ("pfc.priorities", "3,4"),
            ("pfc.trust", "pcp"),
            ("pfc.dscp", "46:3"),
            ("pfc.xoff_bytes", "16384"),
            ("pfc.watchdog_rx_action", "drop"),
            ("pfc.headroom_bytes", "9000"),
            ("ets.strict", "6"),
            ("ets.bandwidth", "0:30,3:60"),
        ] {
            assert_eq!(value(key).as_deref(), Some(wanted), "{key}");
        }
    }

    #[test]
    fn errors_name_line_key_value_and_remedy() {
        for (more, begins, contains) in [
            (
                "congestion = \"dcqnc\"\n",
                "f.toml:5: congestion = \"dcqnc\": ",
                "must be one of none, ",
            ),
            (
                "line_rate = \"fast\"\n",
                "f.toml:5: line_rate = \"fast\": ",
                "100Mb/s",
            ),
            (
                "[nic.dcqcn]\nrpg_ai_rat = 5\n",
                "f.toml:6: unknown key `rpg_ai_rat`, did you mean `rpg_ai_rate`?; known are profile, ",
                "rpg_gd",
            ),
            (
                "[nic.dcqcn]\n\nrpg_gd = 12\n",
                "f.toml:7: rpg_gd = \"12\": ",
                "from 1 to 11",
            ),
            (
                "[nic.dcqcn]\nrp_ai_rate = 5\nrpg_ai_rate = 6\n",
                "f.toml:",
                "is given twice (`rp_ai_rate` is another name of `rpg_ai_rate`)",
            ),
            (
                "[nic.np]\nprofile = \"paper\"\n",
                "f.toml:6: unknown key `profile`",
                "cnp_dscp",
            ),
            (
                "[nic.np]\nrpg_gd = 11\n",
                "f.toml:6: unknown key `rpg_gd`",
                "cnp_dscp",
            ),
            (
                "[nic.pfc]\npriority = 3\n",
                "f.toml:6: unknown key `priority`, did you mean `priorities`?",
                "cable_m",
            ),
            (
                "[nic.pfc]\nmode = \"pfc\"\nbuffer_bytes = 8192\n",
                "f.toml:6: [[nic]]: ",
                "buffer_bytes = 8192",
            ),
            (
                "[nic.pfc]\nmode = \"pfc\"\nxoff_bytes = 260000\nheadroom_bytes = 4096\n",
                "f.toml:6: [[nic]]: xoff_bytes = 260000 leaves no room",
                "4096 of them must be free when it stops (headroom_bytes)",
            ),
            (
                "[nic.ets]\nbandwidth = \"3\"\n",
                "f.toml:6: bandwidth = \"3\": ",
                "PRIORITY:PERCENT",
            ),
            (
                "[nic.ets]\nstrict = [3]\nbandwidth = [\"3:10\"]\n",
                "f.toml:6: [[nic]]: ",
                "priority 3 is strict and has a share",
            ),
            (
                "[nic.dcqcn]\nrpg_min_rate = \"200Gb/s\"\n",
                "f.toml:6: [[nic]]: ",
                "rpg_min_rate",
            ),
            (
                "[nic.dcqcn]\nrpg_gd = { a = 1 }\n",
                "f.toml:6: `rpg_gd` ",
                "must be a number",
            ),
        ] {
            let error = parse(more).unwrap_err();
            assert!(
                error.starts_with(begins) && error.contains(contains),
                "{more}{error}"
            );
        }
    }
}
