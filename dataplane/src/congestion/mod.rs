//! What a NIC's congestion control and its pauses go by, as people write it. In: keys and values of the configuration, of
//! `roceline congestion set` and of files in sysfs. Out: [`Settings`], plain data that an lcore takes over, and what to
//! show of them. All three have the same keys, units and errors.
//!
//! What the parameters do is the engine's (`roceline_engine::congestion`), which also has the table of them; docs/congestion.md is
//! the reference for people.

pub(crate) mod ets;
mod files;
mod given;
mod keys;
mod live;
mod pfc;

use roceline_engine::congestion::ets::Ets;
use roceline_engine::congestion::pfc::PfcSettings;
use roceline_engine::congestion::{AlgorithmKind, CongestionConfig, PROFILES};

use crate::impair::SpecError;

use given::Given;

pub use ets::ETS_KEYS;
pub use files::{Attribute, FOLDERS, files};
pub use keys::{NP_KEYS, RP_KEYS, given_twice, keys_of};
pub use live::{Live, State};
pub use pfc::PFC_KEYS;

/// What keys of pauses begin with where they stand beside others.
pub const PFC_PREFIX: &str = "pfc.";
/// And those of transmission selection.
pub const ETS_PREFIX: &str = "ets.";

/// All that can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where the values of parameters come from unless they were set: one of [`PROFILES`].
    pub profile: &'static str,
    /// The parameters that somebody set, which no profile changes.
    given: Given,
    /// Congestion control.
    pub congestion: CongestionConfig,
    /// Pauses.
    pub pfc: PfcSettings,
    /// Transmission selection.
    pub ets: Ets,
}

impl Default for Settings {
    /// As a ConnectX comes: DCQCN on for all priorities, no pauses.
    fn default() -> Settings {
        Settings {
            profile: "connectx",
            given: Given::default(),
            congestion: CongestionConfig {
                algorithm: AlgorithmKind::Dcqcn,
                ..CongestionConfig::connectx()
            },
            pfc: PfcSettings::default(),
            ets: Ets::default(),
        }
    }
}

impl Settings {
    /// Sets what `key` names.
    ///
    /// # Errors
    /// When there is no such key, or the value makes no sense for it alone.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), SpecError> {
        if let Some(key) = key.strip_prefix(PFC_PREFIX) {
            pfc::set(&mut self.pfc, key, text)
        } else if let Some(key) = key.strip_prefix(ETS_PREFIX) {
            ets::set(&mut self.ets, key, text)
        } else {
            keys::set(self, key, text)
        }
    }

    /// Takes over the parameters of a profile, those that nobody set; algorithm, rates and which priorities are on stay, and so does
    /// whose CNPs are counted together, which is of no profile.
    pub fn take_profile(&mut self, name: &'static str) {
        let Ok(profile) = CongestionConfig::profile(name) else {
            return;
        };
        self.profile = name;
        let before = self.congestion;
        self.congestion.dcqcn = profile.dcqcn;
        self.congestion.np = profile.np;
        self.congestion.np.cnp_moderation = before.np.cnp_moderation;
        self.given.keep(&before, &mut self.congestion);
    }

    /// What is allowed and yet is not what anybody wants, with the remedy.
    pub fn warning(&self) -> Option<&'static str> {
        let dctcp = self.congestion.algorithm == AlgorithmKind::Dctcp;
        (dctcp && self.congestion.np.min_time_between_cnps != 0).then_some(DCTCP_NEEDS)
    }

    /// Checks that the values go together, for a port with IP packets up to `mtu` bytes.
    ///
    /// # Errors
    /// Says which do not, and what to change.
    pub fn validate(&self, mtu: u32) -> Result<(), SpecError> {
        let congestion = self.congestion.validate();
        congestion.map_err(|error| SpecError::Whole(error.to_string()))?;
        let pfc = self.pfc.validate(self.congestion.line_rate.0, mtu);
        pfc.map_err(|error| SpecError::Whole(error.to_string()))?;
        let ets = self.ets.validate();
        ets.map_err(|error| SpecError::Whole(error.to_string()))
    }

    /// Each key with its value, as it is written.
    pub fn values(&self) -> Vec<Value> {
        let mut all = keys::values(self);
        all.extend(pfc::values(&self.pfc));
        all.extend(ets::values(&self.ets));
        all
    }
}

/// What DCTCP needs of the receivers, where they do not do it.
pub const DCTCP_NEEDS: &str = "algorithm = dctcp counts CNPs as marked packets, and min_time_between_cnps is not 0, so it \
    hears of few of them: set min_time_between_cnps = 0 at all NICs that receive";

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The key, as `roceline congestion set` takes it.
    pub key: String,
    /// Its value.
    pub value: String,
    /// Unit of it; empty for a plain number or a word.
    pub unit: &'static str,
    /// What it may be.
    pub range: String,
    /// What it is.
    pub doc: &'static str,
}

/// The profile of this name.
fn profile_named(text: &str) -> Result<&'static str, String> {
    PROFILES
        .into_iter()
        .find(|name| *name == text)
        .ok_or_else(|| format!("must be one of {}", PROFILES.join(", ")))
}

#[cfg(test)]
mod tests;
