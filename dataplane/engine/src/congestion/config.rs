//! The configuration of congestion control, and the named profiles of it.

use core::fmt;
use core::str::FromStr;

use super::params::{CnpModeration, DcqcnParams, DctcpParams, NpParams, SwiftParams, TimelyParams};
use super::{Param, Rate};

/// Which algorithm a NIC's queue pairs run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AlgorithmKind {
    /// None: line rate.
    #[default]
    None,
    /// The configured rate.
    FixedRate,
    /// DCQCN.
    Dcqcn,
    /// DCTCP as a rate.
    Dctcp,
    /// TIMELY.
    Timely,
    /// Swift.
    Swift,
}

impl AlgorithmKind {
    /// All of them.
    pub const ALL: [AlgorithmKind; 6] = [
        AlgorithmKind::None,
        AlgorithmKind::FixedRate,
        AlgorithmKind::Dcqcn,
        AlgorithmKind::Dctcp,
        AlgorithmKind::Timely,
        AlgorithmKind::Swift,
    ];

    /// The name in configuration files.
    pub const fn name(self) -> &'static str {
        match self {
            AlgorithmKind::None => "none",
            AlgorithmKind::FixedRate => "fixed-rate",
            AlgorithmKind::Dcqcn => "dcqcn",
            AlgorithmKind::Dctcp => "dctcp",
            AlgorithmKind::Timely => "timely",
            AlgorithmKind::Swift => "swift",
        }
    }
}

impl fmt::Display for AlgorithmKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is none of those known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} \"{name}\" is not known: use one of {known}")]
pub struct UnknownName {
    what: &'static str,
    name: String,
    known: String,
}

impl FromStr for AlgorithmKind {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<AlgorithmKind, UnknownName> {
        AlgorithmKind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| UnknownName {
                what: "congestion control algorithm",
                name: name.to_owned(),
                known: AlgorithmKind::ALL.map(AlgorithmKind::name).join(", "),
            })
    }
}

/// Everything that congestion control of one NIC goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionConfig {
    /// What the queue pairs run.
    pub algorithm: AlgorithmKind,
    /// The port's rate: where every queue pair starts, and what none exceeds.
    pub line_rate: Rate,
    /// The rate of `fixed-rate`; 0: line rate.
    pub fixed_rate: Rate,
    /// Bit p: queue pairs of priority p react (`ecn/roce_rp/enable/p`).
    pub rp_enable: u8,
    /// Bit p: marked packets of priority p are answered by CNPs (`ecn/roce_np/enable/p`).
    pub np_enable: u8,
    /// DCQCN's reaction point.
    pub dcqcn: DcqcnParams,
    /// The notification point.
    pub np: NpParams,
    /// DCTCP as a rate.
    pub dctcp: DctcpParams,
    /// TIMELY.
    pub timely: TimelyParams,
    /// Swift.
    pub swift: SwiftParams,
}

/// Names of the profiles, for [`CongestionConfig::profile`].
pub const PROFILES: [&str; 3] = ["paper", "connectx", "ionic"];

/// Why a configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A parameter is out of its range.
    #[error("{name} = {value} is out of range: {min} to {max}{}{unit}", if .unit.is_empty() { "" } else { " " })]
    Range {
        /// The parameter.
        name: &'static str,
        /// Its value.
        value: u64,
        /// Smallest that is allowed.
        min: u64,
        /// Largest that is allowed.
        max: u64,
        /// Unit of these.
        unit: &'static str,
    },
    /// No rate to start from.
    #[error("line_rate = 0: give the port's rate in bits per second")]
    NoLineRate,
    /// A floor above the ceiling.
    #[error("rpg_min_rate = {min} Mb/s is above {what} = {} Mb/s: lower it", Mbps(*.max))]
    MinAboveMax {
        /// The floor, in megabits per second.
        min: u32,
        /// What the ceiling is: `rpg_max_rate` or `line_rate`.
        what: &'static str,
        /// The ceiling, in bits per second.
        max: u64,
    },
    /// `rpg_max_rate` is above line rate.
    #[error("rpg_max_rate = {max} Mb/s is above line_rate = {} Mb/s: lower it, or set 0, which is the line rate", Mbps(*.line))]
    MaxAboveLine {
        /// The ceiling, in megabits per second.
        max: u32,
        /// The line rate, in bits per second.
        line: u64,
    },
    /// `fixed_rate` is above line rate.
    #[error("fixed_rate = {rate} bit/s is above the line rate of {line} bit/s: lower it")]
    FixedAboveLine {
        /// The fixed rate, in bits per second.
        rate: u64,
        /// The line rate, in bits per second.
        line: u64,
    },
}

/// Bits per second, written in megabits.
struct Mbps(u64);

impl fmt::Display for Mbps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = format!("{:06}", self.0 % 1_000_000);
        match part.trim_end_matches('0') {
            "" => write!(f, "{}", self.0 / 1_000_000),
            part => write!(f, "{}.{part}", self.0 / 1_000_000),
        }
    }
}

impl Default for CongestionConfig {
    /// Profile `connectx`, at 100 Gb/s, with algorithm `none`.
    fn default() -> CongestionConfig {
        CongestionConfig::connectx()
    }
}

impl CongestionConfig {
    /// The parameters of the paper "Congestion Control for Large-Scale RDMA Deployments" (SIGCOMM 2015, figure 14
    /// and section 5.2): g 1/256, timer and alpha 55 us, 10 MB, F 5, R_AI 40 Mb/s, a CNP per 50 us. It names no
    /// R_HAI and no floor: 200 Mb/s as the authors' simulator sets it, and 1 Mb/s.
    pub const fn paper() -> CongestionConfig {
        CongestionConfig {
            algorithm: AlgorithmKind::None,
            line_rate: Rate::from_gbps(100),
            fixed_rate: Rate(0),
            rp_enable: 0xff,
            np_enable: 0xff,
            dcqcn: DcqcnParams {
                dce_tcp_g: 1020,
                dce_tcp_rtt: 55,
                initial_alpha_value: 1024,
                rate_reduce_monitor_period: 0,
                rate_to_set_on_first_cnp: 0,
                min_dec_fac: 0,
                min_rate: 1,
                max_rate: 0,
                gd: 11,
                clamp_tgt_rate: true,
                clamp_tgt_rate_after_time_inc: true,
                threshold: 5,
                time_reset: 55,
                byte_reset: 156_250,
                ai_rate: 40,
                hai_rate: 200,
            },
            np: NpParams {
                min_time_between_cnps: 50,
                cnp_dscp: 48,
                cnp_802p_prio: 6,
                cnp_prio_of_qp: false,
                cnp_delay: 0,
                rtt_resp_dscp_valid: false,
                rtt_resp_dscp: 0,
                cnp_moderation: CnpModeration::PerQp,
            },
            // g of RFC 8257; the increase is the HPCC simulator's.
            dctcp: DctcpParams {
                g: 64,
                ai_rate: 1000,
                rtt: 20,
            },
            // Section 4.4 of TIMELY's paper, and the HPCC simulator's weight.
            timely: TimelyParams {
                ewma: 896,
                beta: 819,
                t_low: 50,
                t_high: 500,
                min_rtt: 20,
                delta: 10,
            },
            // The htsim simulator's.
            swift: SwiftParams {
                base_target: 20,
                fs_range: 100,
                ai: 1024,
                beta: 819,
                max_mdf: 512,
            },
        }
    }

    /// The defaults of ConnectX firmware: NVIDIA's page "DCQCN CC Parameters" and public dumps of `mlxconfig -d …
    /// query` agree on them.
    pub const fn connectx() -> CongestionConfig {
        CongestionConfig {
            dcqcn: DcqcnParams {
                dce_tcp_g: 1019,
                dce_tcp_rtt: 1,
                initial_alpha_value: 1023,
                rate_reduce_monitor_period: 4,
                rate_to_set_on_first_cnp: 0,
                min_dec_fac: 50,
                min_rate: 1,
                max_rate: 0,
                gd: 11,
                clamp_tgt_rate: false,
                clamp_tgt_rate_after_time_inc: true,
                threshold: 1,
                time_reset: 300,
                byte_reset: 32767,
                ai_rate: 5,
                hai_rate: 50,
            },
            np: NpParams {
                min_time_between_cnps: 4,
                ..CongestionConfig::paper().np
            },
            ..CongestionConfig::paper()
        }
    }

    /// The defaults of AMD's ionic driver as posted to linux-rdma in 2026 (`ionic_dcqcn.c`). Its timer counts in
    /// periods of alpha, here 1 us; its 431,068 bytes are rounded down to a unit of 64. It has no least time
    /// between CNPs; here it is ConnectX's.
    pub const fn ionic() -> CongestionConfig {
        CongestionConfig {
            dcqcn: DcqcnParams {
                dce_tcp_g: 512,
                dce_tcp_rtt: 1,
                initial_alpha_value: 64,
                rate_reduce_monitor_period: 1,
                rate_to_set_on_first_cnp: 0,
                min_dec_fac: 50,
                min_rate: 1,
                max_rate: 0,
                gd: 11,
                clamp_tgt_rate: false,
                clamp_tgt_rate_after_time_inc: true,
                threshold: 1,
                time_reset: 1,
                byte_reset: 6735,
                ai_rate: 160,
                hai_rate: 300,
            },
            np: NpParams {
                cnp_dscp: 46,
                ..CongestionConfig::connectx().np
            },
            ..CongestionConfig::paper()
        }
    }

    /// A profile by its name, one of [`PROFILES`].
    pub fn profile(name: &str) -> Result<CongestionConfig, UnknownName> {
        match name {
            "paper" => Ok(CongestionConfig::paper()),
            "connectx" => Ok(CongestionConfig::connectx()),
            "ionic" => Ok(CongestionConfig::ionic()),
            _ => Err(UnknownName {
                what: "congestion profile",
                name: name.to_owned(),
                known: PROFILES.join(", "),
            }),
        }
    }

    /// Whether queue pairs of `priority` react to congestion.
    #[inline]
    pub const fn rp_enabled(&self, priority: u8) -> bool {
        self.rp_enable >> (priority & 7) & 1 != 0
    }

    /// Whether marked packets of `priority` are answered by CNPs.
    #[inline]
    pub const fn np_enabled(&self, priority: u8) -> bool {
        self.np_enable >> (priority & 7) & 1 != 0
    }

    /// The most that a queue pair can have: `rpg_max_rate`, but no more than line rate.
    pub fn max_rate(&self) -> Rate {
        match self.dcqcn.max_rate {
            0 => self.line_rate,
            mbps => Rate::from_mbps(u64::from(mbps)).min(self.line_rate),
        }
    }

    /// What no queue pair's rate falls below: `rpg_min_rate`.
    pub fn min_rate(&self) -> Rate {
        Rate::from_mbps(u64::from(self.dcqcn.min_rate)).clamp(Rate(1), self.max_rate().max(Rate(1)))
    }

    /// The rate of `fixed-rate`.
    pub(super) fn effective_fixed_rate(&self) -> Rate {
        match self.fixed_rate {
            Rate(0) => self.line_rate,
            rate => rate.min(self.line_rate),
        }
    }

    /// Whether every value is in its range and the values go together.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.line_rate.0 == 0 {
            return Err(ConfigError::NoLineRate);
        }
        for param in Param::all() {
            param.check(param.get(self))?;
        }
        if Rate::from_mbps(u64::from(self.dcqcn.max_rate)) > self.line_rate {
            return Err(ConfigError::MaxAboveLine {
                max: self.dcqcn.max_rate,
                line: self.line_rate.0,
            });
        }
        let max = self.max_rate();
        if Rate::from_mbps(u64::from(self.dcqcn.min_rate)) > max {
            return Err(ConfigError::MinAboveMax {
                min: self.dcqcn.min_rate,
                what: match self.dcqcn.max_rate {
                    0 => "line_rate",
                    _ => "rpg_max_rate",
                },
                max: max.0,
            });
        }
        if self.fixed_rate > self.line_rate {
            return Err(ConfigError::FixedAboveLine {
                rate: self.fixed_rate.0,
                line: self.line_rate.0,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_is_valid_and_found_by_its_name() {
        for name in PROFILES {
            let config = CongestionConfig::profile(name).unwrap();
            assert_eq!(config.validate(), Ok(()), "{name}");
        }
        let error = CongestionConfig::profile("papper").unwrap_err();
        assert_eq!(
            error.to_string(),
            "congestion profile \"papper\" is not known: use one of paper, connectx, ionic"
        );
    }

    #[test]
    fn algorithms_are_found_by_their_names() {
        for kind in AlgorithmKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert!("dcqcm".parse::<AlgorithmKind>().is_err());
    }

    #[test]
    fn values_that_do_not_go_together_are_refused() {
        let mut config = CongestionConfig {
            line_rate: Rate::from_mbps(10),
            ..CongestionConfig::paper()
        };
        config.dcqcn.min_rate = 11;
        assert!(matches!(
            config.validate(),
            Err(ConfigError::MinAboveMax { min: 11, .. })
        ));
        let error = config.validate().unwrap_err().to_string();
        assert_eq!(
            error,
            "rpg_min_rate = 11 Mb/s is above line_rate = 10 Mb/s: lower it"
        );
        config.dcqcn.max_rate = 9;
        let error = config.validate().unwrap_err().to_string();
        assert_eq!(
            error,
            "rpg_min_rate = 11 Mb/s is above rpg_max_rate = 9 Mb/s: lower it"
        );
        config.line_rate = Rate(8_500_000);
        let error = config.validate().unwrap_err().to_string();
        assert!(
            error.starts_with("rpg_max_rate = 9 Mb/s is above line_rate = 8.5 Mb/s: "),
            "{error}"
        );
        config.line_rate = Rate::from_mbps(10);
        config.dcqcn.max_rate = 0;
        config.dcqcn.min_rate = 10;
        assert_eq!(config.validate(), Ok(()));
        config.fixed_rate = Rate::from_mbps(11);
        assert!(matches!(
            config.validate(),
            Err(ConfigError::FixedAboveLine { .. })
        ));
        config.line_rate = Rate(0);
        assert_eq!(config.validate(), Err(ConfigError::NoLineRate));
    }
}
