//! Every number of [`CongestionConfig`], once: name, unit, range, meaning, and how to read and change it.

use super::params::CnpModeration;
use super::{ConfigError, CongestionConfig, Rate};

/// Where a parameter belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The reaction point: `[nic.dcqcn]`, `ecn/roce_rp`.
    Rp,
    /// The notification point: `[nic.np]`, `ecn/roce_np`.
    Np,
    /// Neither mlx5 nor sysfs knows it.
    Own,
}

/// A parameter. Booleans are 0 and 1.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Its name in configuration files, in sysfs, and in commands: OFED's in `ecn/roce_rp` and `ecn/roce_np`.
    pub name: &'static str,
    /// Its name in mlx5's debugfs directory `cc_params`; empty where that has none.
    pub debugfs: &'static str,
    /// Where it belongs.
    pub group: Group,
    /// Unit of the value; empty for a plain number.
    pub unit: &'static str,
    /// Smallest value.
    pub min: u64,
    /// Largest value.
    pub max: u64,
    /// One sentence on what it is.
    pub doc: &'static str,
    get: fn(&CongestionConfig) -> u64,
    set: fn(&mut CongestionConfig, u64),
}

impl Param {
    /// All of them, reaction point first.
    pub fn all() -> &'static [Param] {
        &TABLE
    }

    /// The one of that name, in sysfs or in debugfs.
    pub fn find(name: &str) -> Option<&'static Param> {
        TABLE.iter().find(|param| {
            param.name == name || (!param.debugfs.is_empty() && param.debugfs == name)
        })
    }

    /// The value in `config`.
    pub fn get(&self, config: &CongestionConfig) -> u64 {
        (self.get)(config)
    }

    /// Changes the value in `config`; [`CongestionConfig::validate`] tells whether it goes with the others.
    pub fn set(&self, config: &mut CongestionConfig, value: u64) -> Result<(), ConfigError> {
        self.check(value)?;
        (self.set)(config, value);
        Ok(())
    }

    /// Whether the value is in range.
    pub fn check(&self, value: u64) -> Result<(), ConfigError> {
        if (self.min..=self.max).contains(&value) {
            return Ok(());
        }
        Err(ConfigError::Range {
            name: self.name,
            value,
            min: self.min,
            max: self.max,
            unit: self.unit,
        })
    }
}

/// An entry whose value is an integer field of a sub-structure.
macro_rules! param {
    ($group:ident, $name:literal, $debugfs:literal, $part:ident . $field:ident : $ty:ty, $unit:literal, $range:expr, $doc:literal) => {
        Param {
            name: $name,
            debugfs: $debugfs,
            group: Group::$group,
            unit: $unit,
            min: *$range.start(),
            max: *$range.end(),
            doc: $doc,
            get: |config| u64::from(config.$part.$field),
            // In range, so nothing is cut off: every range fits the field (a test says so).
            set: |config, value| config.$part.$field = value as $ty,
        }
    };
}

/// An entry whose value is a switch.
macro_rules! switch {
    ($name:literal, $debugfs:literal, $field:ident, $doc:literal) => {
        Param {
            name: $name,
            debugfs: $debugfs,
            group: Group::Rp,
            unit: "",
            min: 0,
            max: 1,
            doc: $doc,
            get: |config| u64::from(config.dcqcn.$field),
            set: |config, value| config.dcqcn.$field = value != 0,
        }
    };
}

/// Megabits per second that a rate may have: 4 Tb/s.
const MBPS: u64 = 4_000_000;
/// Microseconds that a timer may have: what mlx5 has bits for, 17 of them.
const MICROS: u64 = 131_071;

static TABLE: [Param; 41] = [
    switch!(
        "clamp_tgt_rate",
        "rp_clamp_tgt_rate",
        clamp_tgt_rate,
        "Each rate reduction makes the current rate the target rate."
    ),
    switch!(
        "clamp_tgt_rate_after_time_inc",
        "rp_clamp_tgt_rate_ati",
        clamp_tgt_rate_after_time_inc,
        "A rate reduction makes the current rate the target rate if the timer raised the rate since the last one."
    ),
    param!(
        Rp, "rpg_time_reset", "rp_time_reset", dcqcn.time_reset: u32, "us", 1..=MICROS,
        "Time without a rate reduction between two increases."
    ),
    param!(
        Rp, "rpg_byte_reset", "rp_byte_reset", dcqcn.byte_reset: u32, "64 B", 0..=(1 << 25),
        "Bytes sent without a rate reduction between two increases; 0: bytes do not count."
    ),
    param!(
        Rp, "rpg_threshold", "rp_threshold", dcqcn.threshold: u32, "", 1..=31,
        "Increases by timer or by bytes that are fast recovery, before additive increase; hyper increase once both passed it."
    ),
    param!(
        Rp, "rpg_ai_rate", "rp_ai_rate", dcqcn.ai_rate: u32, "Mb/s", 1..=MBPS,
        "What an additive increase adds to the target rate."
    ),
    param!(
        Rp, "rpg_max_rate", "rp_max_rate", dcqcn.max_rate: u32, "Mb/s", 0..=MBPS,
        "Rate at which a queue pair is no longer limited; 0: line rate."
    ),
    param!(
        Rp, "rpg_hai_rate", "rp_hai_rate", dcqcn.hai_rate: u32, "Mb/s", 1..=MBPS,
        "What a hyper increase adds to the target rate."
    ),
    param!(
        Rp, "rpg_min_dec_fac", "rp_min_dec_fac", dcqcn.min_dec_fac: u32, "%", 0..=100,
        "Share of the rate that a single reduction leaves at least."
    ),
    param!(
        Rp, "rpg_min_rate", "rp_min_rate", dcqcn.min_rate: u32, "Mb/s", 1..=MBPS,
        "Rate below which no reduction goes."
    ),
    param!(
        Rp, "rate_to_set_on_first_cnp", "rp_rate_to_set_on_first_cnp", dcqcn.rate_to_set_on_first_cnp: u32, "Mb/s", 0..=MBPS,
        "Rate at the first CNP of a queue pair at full speed; 0: an ordinary reduction."
    ),
    param!(
        Rp, "dce_tcp_g", "rp_dce_tcp_g", dcqcn.dce_tcp_g: u32, "1/1024", 0..=1023,
        "Weight of the old alpha in an update: the paper's g is (1024 - dce_tcp_g) / 1024."
    ),
    param!(
        Rp, "dce_tcp_rtt", "rp_dce_tcp_rtt", dcqcn.dce_tcp_rtt: u32, "us", 1..=MICROS,
        "Time between two updates of alpha."
    ),
    param!(
        Rp, "rate_reduce_monitor_period", "rp_rate_reduce_monitor_period", dcqcn.rate_reduce_monitor_period: u32, "us", 0..=MICROS,
        "Time between two rate reductions at least; 0: each CNP reduces the rate and raises alpha, as in the paper."
    ),
    param!(
        Rp, "initial_alpha_value", "rp_initial_alpha_value", dcqcn.initial_alpha_value: u32, "1/1024", 0..=1024,
        "Alpha at the first CNP."
    ),
    param!(
        Rp, "rpg_gd", "rp_gd", dcqcn.gd: u32, "", 1..=11,
        "A reduction takes rate * alpha / 2^gd, alpha in 1/1024: 11 takes alpha/2, 10 takes alpha."
    ),
    Param {
        name: "rp_enable",
        debugfs: "",
        group: Group::Own,
        unit: "",
        min: 0,
        max: 255,
        doc: "Mask of the priorities whose queue pairs react to congestion; in sysfs ecn/roce_rp/enable/0 to 7.",
        get: |config| u64::from(config.rp_enable),
        set: |config, value| config.rp_enable = value as u8,
    },
    Param {
        name: "np_enable",
        debugfs: "",
        group: Group::Own,
        unit: "",
        min: 0,
        max: 255,
        doc: "Mask of the priorities whose marked packets are answered by CNPs; in sysfs ecn/roce_np/enable/0 to 7.",
        get: |config| u64::from(config.np_enable),
        set: |config, value| config.np_enable = value as u8,
    },
    Param {
        name: "fixed_rate",
        debugfs: "",
        group: Group::Own,
        unit: "Mb/s",
        min: 0,
        max: MBPS,
        doc: "Rate of each queue pair with the algorithm fixed-rate; 0: line rate.",
        get: |config| config.fixed_rate.0 / 1_000_000,
        set: |config, value| config.fixed_rate = Rate::from_mbps(value),
    },
    param!(
        Np, "min_time_between_cnps", "np_min_time_between_cnps", np.min_time_between_cnps: u32, "us", 0..=MICROS,
        "Time between two CNPs of a flow at least; 0: a CNP for each marked packet."
    ),
    param!(
        Np, "cnp_dscp", "np_cnp_dscp", np.cnp_dscp: u8, "", 0..=63,
        "DSCP of CNPs."
    ),
    Param {
        name: "cnp_802p_prio",
        debugfs: "np_cnp_prio",
        group: Group::Np,
        unit: "",
        min: 0,
        max: 7,
        doc: "802.1p priority of CNPs, where frames have a tag; to set it also sets cnp_prio_mode to 0, as mlx5 does.",
        get: |config| config.np.cnp_802p_prio.into(),
        set: |config, value| {
            config.np.cnp_802p_prio = value as u8;
            config.np.cnp_prio_of_qp = false;
        },
    },
    Param {
        name: "cnp_prio_mode",
        debugfs: "np_cnp_prio_mode",
        group: Group::Np,
        unit: "",
        min: 0,
        max: 1,
        doc: "Which 802.1p priority CNPs have: 0 cnp_802p_prio, 1 that of the queue pair they are about.",
        get: |config| config.np.cnp_prio_of_qp.into(),
        set: |config, value| config.np.cnp_prio_of_qp = value != 0,
    },
    Param {
        name: "rtt_resp_dscp_valid",
        debugfs: "rtt_resp_dscp_valid",
        group: Group::Np,
        unit: "",
        min: 0,
        max: 1,
        doc: "ACKs, by which round trips are measured, have rtt_resp_dscp; 0: the DSCP of their queue pair.",
        get: |config| config.np.rtt_resp_dscp_valid.into(),
        set: |config, value| config.np.rtt_resp_dscp_valid = value != 0,
    },
    param!(
        Np, "rtt_resp_dscp", "rtt_resp_dscp", np.rtt_resp_dscp: u8, "", 0..=63,
        "DSCP of ACKs, where rtt_resp_dscp_valid is 1."
    ),
    param!(
        Np, "cnp_delay", "", np.cnp_delay: u32, "ns", 0..=1_000_000_000,
        "Time from a marked packet to its CNP."
    ),
    Param {
        name: "cnp_moderation",
        debugfs: "",
        group: Group::Np,
        unit: "",
        min: 0,
        max: 1,
        doc: "Whose CNPs min_time_between_cnps counts for: 0 each queue pair's, 1 each peer address's.",
        get: |config| u64::from(config.np.cnp_moderation == CnpModeration::PerIp),
        set: |config, value| {
            config.np.cnp_moderation = match value {
                0 => CnpModeration::PerQp,
                _ => CnpModeration::PerIp,
            }
        },
    },
    param!(Own, "dctcp_g", "", dctcp.g: u32, "1/1024", 1..=1024, "DCTCP: weight of a window's share of marked packets in alpha."),
    param!(Own, "dctcp_ai_rate", "", dctcp.ai_rate: u32, "Mb/s", 1..=MBPS, "DCTCP: what a window without marks adds to the rate."),
    param!(Own, "dctcp_rtt", "", dctcp.rtt: u32, "us", 1..=MICROS, "DCTCP: length of a window before a round trip was measured."),
    param!(Own, "timely_ewma", "", timely.ewma: u32, "1/1024", 1..=1024, "TIMELY: weight of a new difference of round trips."),
    param!(Own, "timely_beta", "", timely.beta: u32, "1/1024", 1..=1024, "TIMELY: share of the gradient, or of the excess above timely_t_high, taken from the rate."),
    param!(Own, "timely_t_low", "", timely.t_low: u32, "us", 0..=MICROS, "TIMELY: round trip below which the rate always rises."),
    param!(Own, "timely_t_high", "", timely.t_high: u32, "us", 1..=MICROS, "TIMELY: round trip above which the rate always falls."),
    param!(Own, "timely_min_rtt", "", timely.min_rtt: u32, "us", 1..=MICROS, "TIMELY: what gradients are relative to; also the time between two updates."),
    param!(Own, "timely_delta", "", timely.delta: u32, "Mb/s", 1..=MBPS, "TIMELY: an increase."),
    param!(Own, "swift_base_target", "", swift.base_target: u32, "us", 1..=MICROS, "Swift: round trip that large windows aim at."),
    param!(Own, "swift_fs_range", "", swift.fs_range: u32, "us", 0..=MICROS, "Swift: what small windows add to that at most."),
    param!(Own, "swift_ai", "", swift.ai: u32, "1/1024", 1..=1_048_576, "Swift: packets that a round trip below the target adds to the window."),
    param!(Own, "swift_beta", "", swift.beta: u32, "1/1024", 1..=1024, "Swift: share of the excess taken from the window."),
    param!(Own, "swift_max_mdf", "", swift.max_mdf: u32, "1/1024", 1..=1024, "Swift: share of the window that a reduction takes at most."),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Also shows that a range fits its field: the largest value comes back.
    #[test]
    fn each_value_comes_back_and_changes_nothing_else() {
        for param in Param::all() {
            for value in [param.min, param.max] {
                let before = CongestionConfig::connectx();
                let mut config = before;
                param.set(&mut config, value).unwrap();
                assert_eq!(param.get(&config), value, "{}", param.name);
                for other in Param::all().iter().filter(|other| other.name != param.name) {
                    assert_eq!(
                        other.get(&config),
                        other.get(&before),
                        "{} changes {}",
                        param.name,
                        other.name
                    );
                }
            }
        }
    }

    #[test]
    fn names_are_unique_and_found() {
        for param in Param::all() {
            assert_eq!(Param::find(param.name).unwrap().name, param.name);
            let namesakes = Param::all().iter().filter(|other| {
                other.name == param.name
                    || (!param.debugfs.is_empty() && other.debugfs == param.debugfs)
            });
            assert_eq!(namesakes.count(), 1, "{}", param.name);
        }
        assert_eq!(
            Param::find("rp_clamp_tgt_rate_ati").unwrap().name,
            "clamp_tgt_rate_after_time_inc"
        );
        assert!(Param::find("").is_none());
    }

    #[test]
    fn a_value_out_of_range_is_named_with_its_range() {
        let mut config = CongestionConfig::connectx();
        let error = Param::find("cnp_dscp")
            .unwrap()
            .set(&mut config, 64)
            .unwrap_err();
        assert_eq!(error.to_string(), "cnp_dscp = 64 is out of range: 0 to 63");
        config.dcqcn.dce_tcp_g = 1024;
        assert!(matches!(
            config.validate(),
            Err(ConfigError::Range {
                name: "dce_tcp_g",
                value: 1024,
                ..
            })
        ));
    }
}
