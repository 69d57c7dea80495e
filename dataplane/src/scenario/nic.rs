//! The NICs of a scenario, all alike: `[nic]`.

use roceline_engine::congestion::pfc::{PauseMode, PfcSettings};
use roceline_engine::congestion::{AlgorithmKind, CongestionConfig, Rate};
use roceline_engine::verbs::Mtu;
use roceline_engine::{AckPolicy, Retransmission};

use super::document::Section;
use super::error::ScenarioError;
use super::switches::Switches;
use super::topology::Topology;
use super::{nodes, units};
use crate::congestion::{NP_KEYS, PFC_KEYS, PFC_PREFIX, RP_KEYS, Settings, keys_of};
use crate::impair::SpecError;
use crate::sim::topology::cable;

/// How every NIC is set up.
#[derive(Clone, Debug)]
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
    /// Pauses that it obeys and asks for.
    pub pfc: PfcSettings,
    /// How fast received frames are taken in, bits per second of link time; `None`: as they come.
    pub receive_rate: Option<u64>,
    /// The nodes that are so slow; `None`: all.
    pub receivers: Option<Vec<usize>>,
}

impl Nic {
    pub(super) fn read(
        section: &Section,
        topology: &Topology,
        switches: &Switches,
    ) -> Result<Nic, ScenarioError> {
        let receive_rate = section.value("receive_rate", units::rate)?;
        let settings = settings(section, topology, switches, receive_rate.is_some())?;
        let receivers = nodes::nodes(section, "receivers", topology.nodes())?;
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
                congestion: settings.congestion,
                pfc: settings.pfc,
                receive_rate,
                receivers,
            };
        if nic.receivers.is_some() && nic.receive_rate.is_none() {
            return Err(section.bad("receivers", "needs `receive_rate` beside it"));
        }
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

/// The longest IP packet that a link takes, which headroom goes by.
const PORT_MTU: u32 = 4200;

/// Congestion control and pauses: `congestion`, `[nic.dcqcn]`, `[nic.np]`, `[nic.pfc]` and the sections of other algorithms as in the
/// daemon's configuration. Where nothing is said there is no congestion control, and pauses are as the switches have them.
/// Of NICs that are `slow` frames wait in a buffer.
fn settings(
    section: &Section,
    topology: &Topology,
    switches: &Switches,
    slow: bool,
) -> Result<Settings, ScenarioError> {
    let mut settings = Settings::default();
    settings.congestion.algorithm = AlgorithmKind::None;
    settings.congestion.line_rate = Rate(topology.rate);
    settings.pfc.priorities = switches.lossless;
    settings.pfc.mode = match switches.lossless {
        0 => PauseMode::Off,
        _ => switches.pause,
    };
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
    let pfc = section.section("pfc")?;
    // How long cables are follows from their delay, and the priority of a frame is that of its flow.
    let given = ["cable_m", "trust", "dscp"];
    for key in PFC_KEYS.iter().filter(|key| !given.contains(key)) {
        take(&pfc, key, &format!("{PFC_PREFIX}{key}"))?;
    }
    pfc.end()?;
    if slow {
        // Only then does it matter that the buffer holds what the cable does.
        settings.pfc.cable_m = cable(topology.delay);
    }
    let checked = settings.validate(PORT_MTU);
    checked.map_err(|error| {
        let mut problem = error.to_string();
        if slow {
            let delay = "a cable with the `delay` of [topology] holds";
            problem = problem.replace("cable_m metres of cable hold", delay);
            problem = problem.replace("or cable_m", "or that `delay`");
        }
        section.whole(problem)
    })?;
    Ok(settings)
}
