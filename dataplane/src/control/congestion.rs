//! Congestion control and pauses of the NICs, shown and changed while they run. In: questions and orders of the command
//! line, and what programs write to files of a device. Out: messages to lcores, files, answers.
//!
//! A change is made of all keys or of none: all values are checked, for all NICs that it is about, before the first lcore
//! hears of it. What was changed lasts as long as the daemon's process.

use std::collections::BTreeMap;
use std::path::Path;

use roceline_engine::congestion::Param;
use serde::{Deserialize, Serialize};

use super::ask::Step;
use super::error::CommandError;
use super::seqpacket::Peer;
use super::server::Shared;
use super::tree::{Tree, attributes};
use crate::congestion::{Attribute, Settings, State, given_twice};
use crate::impair::{SpecError, Text};
use crate::lcore::message::Command;
use crate::nic::NicInfo;

/// Answer to `congestion` and `congestion-set`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CongestionReply {
    /// By index; those that were asked for.
    pub devices: Vec<DeviceCongestion>,
}

/// What a device goes by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCongestion {
    /// Its name.
    pub name: String,
    /// Every key.
    pub settings: Vec<SettingLine>,
}

impl DeviceCongestion {
    /// The value of a key; empty if there is no such key.
    pub fn value(&self, key: &str) -> &str {
        let found = self.settings.iter().find(|setting| setting.key == key);
        found.map_or("", |setting| setting.value.as_str())
    }
}

/// A key with its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettingLine {
    /// The key, as `congestion-set` takes it.
    pub key: String,
    /// Its value.
    pub value: String,
    /// Unit of the value; empty for a word or a plain number.
    pub unit: String,
    /// What it is unless somebody says otherwise, with the profile in use; of the profile itself, that of a NIC that names none.
    pub default: String,
    /// Who said otherwise: `default` (nobody), `configuration` or `set` (since the start).
    pub from: String,
    /// What it may be.
    pub range: String,
    /// What it is.
    pub doc: String,
}

/// Keys with their values.
pub type Pairs = BTreeMap<String, Text>;

/// What NICs go by; of one, or of all.
pub fn reply(shared: &Shared, device: Option<&str>) -> Result<CongestionReply, CommandError> {
    let nics = named(shared, device)?;
    let devices = nics.into_iter().map(|nic| DeviceCongestion {
        name: nic.name.clone(),
        settings: lines(&nic.congestion.hold()),
    });
    Ok(CongestionReply {
        devices: devices.collect(),
    })
}

fn lines(state: &State) -> Vec<SettingLine> {
    let mut default = Settings::default();
    let profile = default.profile;
    default.take_profile(state.now.profile);
    // The others' defaults are this profile's; its own is that of the NIC that names none.
    default.profile = profile;
    let values = state.now.values().into_iter();
    let values = values.zip(default.values()).zip(state.configured.values());
    values
        .map(|((now, default), configured)| SettingLine {
            from: match () {
                () if now.value != configured.value => "set",
                () if now.value != default.value => "configuration",
                () => "default",
            }
            .into(),
            key: now.key,
            value: now.value,
            unit: now.unit.into(),
            default: default.value,
            range: now.range,
            doc: now.doc.into(),
        })
        .collect()
}

/// Sets keys of one NIC, or of all.
pub fn set(
    shared: &Shared,
    device: Option<&str>,
    pairs: &Pairs,
) -> Result<CongestionReply, CommandError> {
    if pairs.is_empty() {
        let problem = "nothing to set: name keys and values, such as rpg_ai_rate=5";
        return Err(CommandError::Rule(problem.into()));
    }
    once(pairs)?;
    change(shared, named(shared, device)?, |settings| {
        // What others go by comes first.
        let first = |key: &str| key != "profile";
        let mut sorted: Vec<_> = pairs.iter().collect();
        sorted.sort_by_key(|(key, _)| first(key));
        sorted
            .into_iter()
            .try_for_each(|(key, text)| settings.set(key, &text.0).map_err(|e| whole_key(key, e)))
    })?;
    reply(shared, device)
}

/// An error that names the key as it was written, `pfc.mode` and not `mode`.
fn whole_key(written: &str, error: SpecError) -> SpecError {
    match error {
        SpecError::Value {
            key,
            value,
            problem,
        } if written.contains('.') && written.ends_with(key) => {
            SpecError::Whole(format!("{written} = {value}: {problem}"))
        }
        other => other,
    }
}

/// Whether each parameter is there by one of its names only.
fn once(pairs: &Pairs) -> Result<(), CommandError> {
    let parameter = |key: &str| Param::find(key).map_or("", |param| param.name);
    for key in pairs.keys() {
        let name = parameter(key);
        if name != key && pairs.contains_key(name) {
            let problem = given_twice(name, key);
            return Err(CommandError::Rule(format!("{name} {problem}")));
        }
    }
    Ok(())
}

/// A program writes to a file of a device: its path, a NUL, and the text. Without text it only asks whether it may.
pub(super) fn attribute(shared: &Shared, peer: Peer, payload: &[u8]) -> Result<(), CommandError> {
    let text = std::str::from_utf8(payload).map_err(|_| CommandError::Message("no text"))?;
    let (path, text) = text
        .split_once('\0')
        .ok_or(CommandError::Message("an attribute without a text"))?;
    let (device, attribute) =
        Attribute::of_path(Path::new(path)).ok_or_else(|| CommandError::Attribute(path.into()))?;
    let nics = named(shared, Some(device))?;
    if !shared.may_operate(peer.uid) {
        return Err(CommandError::NotOperator {
            uid: peer.uid,
            what: "change congestion control",
        });
    }
    if text.is_empty() {
        return Ok(());
    }
    change(shared, nics, |settings| attribute.set(settings, text))
}

/// A file of a device, by its path in sysfs, was written without the shim.
pub(super) fn written(shared: &Shared, path: &Path, text: &str) -> Result<(), CommandError> {
    let (device, attribute) = Attribute::of_path(path)
        .ok_or_else(|| CommandError::Attribute(path.display().to_string()))?;
    let nics = named(shared, Some(device))?;
    change(shared, nics, |settings| attribute.set(settings, text))
}

fn named<'s>(shared: &'s Shared, device: Option<&str>) -> Result<Vec<&'s NicInfo>, CommandError> {
    let nics = shared.config.nics.iter();
    let wanted = |nic: &&NicInfo| device.is_none_or(|device| nic.name == device);
    let found: Vec<&NicInfo> = nics.filter(wanted).collect();
    match (found.is_empty(), device) {
        (true, Some(device)) => Err(CommandError::Device(device.into())),
        _ => Ok(found),
    }
}

/// Changes the settings of NICs, of all or of none.
fn change(
    shared: &Shared,
    nics: Vec<&NicInfo>,
    by: impl Fn(&mut Settings) -> Result<(), SpecError>,
) -> Result<(), CommandError> {
    // In the order of their indices, as everybody who holds more than one.
    let mut held: Vec<_> = nics
        .into_iter()
        .map(|nic| (nic, nic.congestion.hold()))
        .collect();
    let mut wanted = Vec::new();
    for (nic, state) in &held {
        let mut settings = state.now;
        by(&mut settings)
            .and_then(|()| settings.validate(nic.port_mtu))
            .map_err(|error| CommandError::Rule(format!("{}: {}", nic.name, explained(&error))))?;
        wanted.push(settings);
    }
    let changes = held.iter().zip(&wanted).map(|((nic, state), wanted)| {
        let index = nic.index;
        (index, (index, state.now, *wanted))
    });
    shared.change(&shared.parts(changes), |&(nic, before, wanted), step| {
        Command::SetCongestion {
            nic,
            settings: Box::new(match step {
                Step::Make => wanted,
                Step::TakeBack => before,
            }),
        }
    })?;
    let tree = Tree::path(&shared.config.socket);
    for ((nic, state), settings) in held.iter_mut().zip(wanted) {
        tracing::info!(
            nic = nic.name,
            "congestion: {}",
            difference(&state.now, &settings)
        );
        if let Err(error) = attributes::update(&tree, &nic.name, &state.now, &settings) {
            tracing::warn!(%error, nic = nic.name, "cannot write the files of its congestion control; they have old values");
        }
        if let Some(warning) = settings.warning() {
            tracing::warn!(nic = nic.name, "{warning}");
        }
        state.now = settings;
    }
    Ok(())
}

/// The error, and for a key that does not exist what is near.
fn explained(error: &SpecError) -> String {
    let SpecError::Unknown { key } = error else {
        return error.to_string();
    };
    let values = Settings::default().values();
    let known: Vec<&str> = values.iter().map(|value| value.key.as_str()).collect();
    let near = crate::config::nearest(key, &known)
        .map_or_else(String::new, |near| format!(", did you mean `{near}`?"));
    format!("{error}{near}; `roceline congestion show --all` lists all keys")
}

/// The keys that differ, with their new values.
fn difference(before: &Settings, now: &Settings) -> String {
    let both = now.values().into_iter().zip(before.values());
    let changed = both.filter(|(now, before)| now.value != before.value);
    let texts: Vec<String> = changed
        .map(|(now, before)| format!("{} = {} (was {})", now.key, now.value, before.value))
        .collect();
    match texts.is_empty() {
        true => "as it was".into(),
        false => texts.join(", "),
    }
}

#[cfg(test)]
mod tests;
