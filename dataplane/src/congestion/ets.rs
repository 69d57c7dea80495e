//! Keys of transmission selection: `[nic.ets]`, with `ets.` before them those of `roceline congestion set`, and without those of a switch.

use roceline_engine::congestion::ets::Ets;
use roceline_engine::congestion::priority::each;

use super::pfc::{listed, priorities};
use super::{ETS_PREFIX, Value};
use crate::impair::{SpecError, shortened, units};

/// Names of all keys.
pub const ETS_KEYS: [&str; 2] = ["strict", "bandwidth"];
const RANGES: [&str; 2] = ["list of 0 to 7", "list of PRIORITY:PERCENT"];
const DOCS: [&str; 2] = [
    "Priorities that are sent before all others, the highest first.",
    "Percent that priorities have of what strict ones leave; the others share the rest alike.",
];

/// Sets what `key`, without a prefix, names.
pub fn set(settings: &mut Ets, key: &str, text: &str) -> Result<(), SpecError> {
    let Some(name) = ETS_KEYS.into_iter().find(|name| *name == key) else {
        return Err(SpecError::Unknown {
            key: format!("{ETS_PREFIX}{key}"),
        });
    };
    let set = match name {
        "strict" => priorities(text).map(|mask| settings.strict = mask),
        _ => set_bandwidth(settings, text),
    };
    set.map_err(|problem| SpecError::Value {
        key: name,
        value: format!("{:?}", shortened(text)),
        problem,
    })
}

/// Reads shares.
pub fn set_bandwidth(settings: &mut Ets, text: &str) -> Result<(), String> {
    let mut bandwidth = [0; 8];
    for pair in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let problem = "must be a list of PRIORITY:PERCENT, such as [\"0:30\", \"3:60\"]";
        let (priority, share) = pair.split_once(':').ok_or(problem)?;
        let priority = units::number_to(priority.trim(), 7).map_err(|_| problem)?;
        let share = share.trim().trim_end_matches('%').trim_end();
        let share = units::number_in(share, 1..=100).map_err(|_| problem)?;
        bandwidth[priority as usize] = share as u8;
    }
    settings.bandwidth = bandwidth;
    Ok(())
}

/// All keys with their values.
pub fn values(settings: &Ets) -> Vec<Value> {
    let shares = each(0xff).filter(|p| settings.bandwidth[*p] > 0);
    let shares: Vec<String> = shares
        .map(|p| format!("{p}:{}", settings.bandwidth[p]))
        .collect();
    let texts = [listed(settings.strict), shares.join(",")];
    let all = ETS_KEYS.into_iter().zip(texts).zip(RANGES).zip(DOCS);
    let value = |(((key, value), range), doc): (((&str, String), &str), &'static str)| Value {
        key: format!("{ETS_PREFIX}{key}"),
        value,
        unit: "",
        range: range.into(),
        doc,
    };
    all.map(value).collect()
}
