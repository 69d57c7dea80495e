//! The NICs of a scenario, all alike: `[nic]`.

use roceline_engine::congestion::{AlgorithmKind, CongestionConfig, Rate};
use roceline_engine::verbs::Mtu;
use roceline_engine::{AckPolicy, Retransmission};

use super::document::Section;
use super::error::ScenarioError;
use super::units;
use crate::congestion::{NP_KEYS, RP_KEYS, Settings, keys_of};
use crate::impair::SpecError;

/// How every NIC is set up.
#[derive(Clone, Copy, Debug)]
pub struct Nic {
    /// Payload of the longest packet.
    pub mtu: Mtu,
    /// Packets that a requester may have unacknowledged.
    pub window: u32,
    /// When responders acknowledge.
    pub ack_policy: AckPolicy,
    /// How requesters time their retries.
    pub retransmission: Retransmission,
    /// ACK timeout as verbs codes it: 4.096 us times two to this; 0: never.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors before a QP fails; 7 as verbs has it is seven, not for ever.
    pub retry_cnt: u8,
    /// Congestion control; at the rate of the link.
    pub congestion: CongestionConfig,
}

impl Nic {
    pub(super) fn read(section: &Section, rate: u64) -> Result<Nic, ScenarioError> {
        let nic =
            Nic {
                mtu: section.or("mtu", Mtu::M4096, mtu)?,
                window: section.or("window", 256, units::whole(1, 1 << 16))? as u32,
                ack_policy: section.or("ack_policy", AckPolicy::Coalesced, |text| match text {
                    "coalesced" => Ok(AckPolicy::Coalesced),
                    "per-message" => Ok(AckPolicy::PerMessage),
                    _ => Err("must be coalesced or per-message".into()),
                })?,
                retransmission: section.or("retransmission", Retransmission::Spec, |text| {
                    match text {
                        "spec" => Ok(Retransmission::Spec),
                        "adaptive" => Ok(Retransmission::Adaptive),
                        _ => Err("must be spec or adaptive".into()),
                    }
                })?,
                timeout: section.or("timeout", 8, units::whole(0, 31))? as u8,
                retry_cnt: section.or("retry_cnt", 7, units::whole(0, 7))? as u8,
                congestion: congestion(section, rate)?,
            };
        section.end()?;
        Ok(nic)
    }
}

fn mtu(text: &str) -> Result<Mtu, String> {
    let all = [Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096];
    all.into_iter()
        .find(|mtu| mtu.bytes().to_string() == text)
        .ok_or_else(|| "must be 256, 512, 1024, 2048 or 4096".into())
}

/// Congestion control: `congestion`, `[nic.dcqcn]`, `[nic.np]` and the sections of other algorithms as in the daemon's
/// configuration, where nothing is said none.
fn congestion(section: &Section, rate: u64) -> Result<CongestionConfig, ScenarioError> {
    let mut settings = Settings::default();
    settings.congestion.algorithm = AlgorithmKind::None;
    settings.congestion.line_rate = Rate(rate);
    let mut take = |section: &Section, key: &str, name: &str| {
        let taken = section.value(key, |text| {
            settings.set(name, text).map_err(|error| match error {
                SpecError::Value { problem, .. } => problem,
                other => other.to_string(),
            })
        });
        taken.map(|_| ())
    };
    let (rp, np) = (section.section("dcqcn")?, section.section("np")?);
    take(&rp, "profile", "profile")?;
    take(section, "congestion", "algorithm")?;
    take(section, "fixed_rate", "fixed_rate")?;
    for algorithm in ["dctcp", "timely", "swift"] {
        let section = section.section(algorithm)?;
        for key in keys_of(algorithm) {
            take(&section, key, key)?;
        }
        section.end()?;
    }
    for (section, keys) in [(&rp, &*RP_KEYS), (&np, &*NP_KEYS)] {
        for key in keys.iter().filter(|key| **key != "profile") {
            take(section, key, key)?;
        }
        section.end()?;
    }
    let checked = settings.congestion.validate();
    checked.map_err(|error| section.whole(error.to_string()))?;
    Ok(settings.congestion)
}
