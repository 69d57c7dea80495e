//! What programs have, and may have, for `roceline show programs`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::quota::{Level, Limits, Resource};
use super::server::Shared;

/// Numbers by key of the configuration; what has no limit is not there.
pub type Amounts = BTreeMap<String, u64>;

/// Answer to [`Query::Programs`](super::query::Query::Programs).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramsReply {
    /// By process and device.
    pub programs: Vec<ProgramLine>,
    /// What all together have of each device.
    pub devices: Vec<DeviceLine>,
    /// What one program may have of a device.
    pub program_limits: Amounts,
    /// What the programs of one user may have of a device.
    pub user_limits: Amounts,
    /// What all together may have of a device.
    pub device_limits: Amounts,
}

/// A program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramLine {
    /// Its process.
    pub pid: u32,
    /// Its name as the kernel knows it.
    pub name: String,
    /// Number of its user.
    pub uid: u32,
    /// The device.
    pub device: String,
    /// What it has of it.
    pub used: Amounts,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceLine {
    /// Its name.
    pub device: String,
    /// What programs have of it.
    pub used: Amounts,
}

/// What there is now.
pub(super) fn reply(shared: &Shared) -> ProgramsReply {
    let (accounts, nics) = (&shared.accounts, &shared.config.nics);
    let programs = accounts.programs().into_iter().map(|program| ProgramLine {
        pid: program.owner.pid,
        name: program.owner.name(),
        uid: program.uid,
        device: nics[program.nic as usize].name.clone(),
        used: amounts(&program.used),
    });
    let devices = (0..).zip(nics.iter()).map(|(index, nic)| DeviceLine {
        device: nic.name.clone(),
        used: amounts(&accounts.device(index)),
    });
    ProgramsReply {
        programs: programs.collect(),
        devices: devices.collect(),
        program_limits: most(accounts.limits(Level::Program)),
        user_limits: most(accounts.limits(Level::User)),
        device_limits: most(accounts.limits(Level::Device)),
    }
}

fn amounts(used: &[u64; Resource::COUNT]) -> Amounts {
    let key = |resource: Resource| (resource.key().into(), used[resource as usize]);
    Resource::ALL.into_iter().map(key).collect()
}

fn most(limits: &Limits) -> Amounts {
    Resource::ALL
        .into_iter()
        .map(|resource| (resource.key().into(), limits.most(resource)))
        .filter(|(_, most)| *most != u64::MAX)
        .collect()
}
