//! Keys of pauses: `[nic.pfc]`, and with `pfc.` before them those of `roceline congestion set`.

use roceline_engine::Nanos;
use roceline_engine::congestion::pfc::{PauseMode, PfcSettings, StormAction};
use roceline_engine::congestion::priority::{PriorityMap, Trust};

use super::{PFC_PREFIX, Value};
use crate::impair::{SpecError, shortened, units};

/// A key.
struct Key {
    name: &'static str,
    range: &'static str,
    doc: &'static str,
    get: fn(&PfcSettings) -> String,
    set: fn(&mut PfcSettings, &str) -> Result<(), String>,
}

/// Names of all keys.
pub const PFC_KEYS: [&str; KEYS.len()] = {
    let mut names = [""; KEYS.len()];
    let mut i = 0;
    while i < KEYS.len() {
        names[i] = KEYS[i].name;
        i += 1;
    }
    names
};

const KEYS: [Key; 14] = [
    Key {
        name: "mode",
        range: "off, pfc, global",
        doc: "Pause frames that are sent and obeyed: none, by priority (802.1Qbb), or for all at once (802.3x).",
        get: |s| MODES[s.mode as usize].0.into(),
        set: |s, text| word(text, &MODES).map(|mode| s.mode = mode),
    },
    Key {
        name: "priorities",
        range: "list of 0 to 7",
        doc: "Priorities that pause and are paused; the others are lossy.",
        get: |s| listed(s.priorities),
        set: |s, text| priorities(text).map(|mask| s.priorities = mask),
    },
    Key {
        name: "trust",
        range: "dscp, pcp",
        doc: "What gives a frame its priority: the DSCP of its IP header, or the PCP of its 802.1Q tag.",
        get: |s| TRUST[s.map.trust() as usize].0.into(),
        set: |s, text| {
            let mut map = PriorityMap::new(word(text, &TRUST)?);
            for (dscp, priority) in moved(&s.map) {
                map.set_dscp(dscp, priority);
            }
            s.map = map;
            Ok(())
        },
    },
    Key {
        name: "dscp",
        range: "list of DSCP:PRIORITY",
        doc: "Priorities of single DSCPs; of the others it is DSCP / 8.",
        get: |s| {
            let pairs = moved(&s.map).map(|(dscp, priority)| format!("{dscp}:{priority}"));
            pairs.collect::<Vec<_>>().join(",")
        },
        set: |s, text| {
            let mut map = PriorityMap::new(s.map.trust());
            for pair in text
                .split(',')
                .map(str::trim)
                .filter(|pair| !pair.is_empty())
            {
                let (dscp, priority) = pair
                    .split_once(':')
                    .ok_or("must be a list of DSCP:PRIORITY, such as \"46:3,8:0\"")?;
                let dscp = units::number_to(dscp.trim(), 63)?;
                map.set_dscp(dscp as u8, units::number_to(priority.trim(), 7)? as u8);
            }
            s.map = map;
            Ok(())
        },
    },
    Key {
        name: "buffer_bytes",
        range: "4096 to 1 GiB",
        doc: "Bytes of received frames that may wait in the NIC, in equal parts for the lossless priorities.",
        get: |s| s.buffer_bytes.to_string(),
        set: |s, text| bytes(text, 4096).map(|bytes| s.buffer_bytes = bytes),
    },
    Key {
        name: "xoff_bytes",
        range: "auto, or bytes",
        doc: "Bytes of a priority above which the other end is to stop; auto: its part without the headroom and one frame.",
        get: |s| or_auto(s.xoff_bytes),
        set: |s, text| auto(text).map(|bytes| s.xoff_bytes = bytes),
    },
    Key {
        name: "xon_bytes",
        range: "auto, or bytes",
        doc: "Bytes at which it may go on; auto: two frames below xoff_bytes.",
        get: |s| or_auto(s.xon_bytes),
        set: |s, text| auto(text).map(|bytes| s.xon_bytes = bytes),
    },
    Key {
        name: "cable_m",
        range: "0 to 100000",
        doc: "Metres of cable, which the headroom depends on.",
        get: |s| s.cable_m.to_string(),
        set: |s, text| units::number_to(text, 100_000).map(|n| s.cable_m = n as u32),
    },
    Key {
        name: "headroom_bytes",
        range: "auto, or bytes",
        doc: "Bytes of a priority for what still comes after it was stopped; auto: worked out from line_rate, MTU and cable_m.",
        get: |s| or_auto(s.headroom_bytes),
        set: |s, text| auto(text).map(|bytes| s.headroom_bytes = bytes),
    },
    Key {
        name: "quanta",
        range: "1 to 65535",
        doc: "Time that a pause frame asks for, in quanta of 512 bit times.",
        get: |s| s.quanta.to_string(),
        set: |s, text| units::number_in(text, 1..=65_535).map(|n| s.quanta = n as u16),
    },
    Key {
        name: "watchdog_rx_limit",
        range: "0, or 1ms to 60s",
        doc: "A priority that was paused so long without a break is in a storm, and pauses of it are ignored; 0: never.",
        get: |s| units::written(s.watchdog.rx_limit),
        set: |s, text| limit(text).map(|time| s.watchdog.rx_limit = time),
    },
    Key {
        name: "watchdog_rx_restore",
        range: "1ms to 60s",
        doc: "The storm is over when no pause came for so long.",
        get: |s| units::written(s.watchdog.rx_restore),
        set: |s, text| limit(text).map(|time| s.watchdog.rx_restore = time),
    },
    Key {
        name: "watchdog_rx_action",
        range: "forward, drop",
        doc: "What becomes of packets of a priority in a storm.",
        get: |s| ACTIONS[s.watchdog.rx_action as usize].0.into(),
        set: |s, text| word(text, &ACTIONS).map(|action| s.watchdog.rx_action = action),
    },
    Key {
        name: "watchdog_tx_limit",
        range: "0, or 1ms to 60s",
        doc: "After so long without a break no more pauses are sent for a priority until it has drained; 0: never.",
        get: |s| units::written(s.watchdog.tx_limit),
        set: |s, text| limit(text).map(|time| s.watchdog.tx_limit = time),
    },
];

/// Words in the order of their values.
const MODES: [(&str, PauseMode); 3] = [
    ("off", PauseMode::Off),
    ("pfc", PauseMode::Pfc),
    ("global", PauseMode::Global),
];
const TRUST: [(&str, Trust); 2] = [("dscp", Trust::Dscp), ("pcp", Trust::Pcp)];
const ACTIONS: [(&str, StormAction); 2] = [
    ("forward", StormAction::Forward),
    ("drop", StormAction::Drop),
];

fn word<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, String> {
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        format!("must be one of {}", known.join(", "))
    })
}

/// DSCPs whose priority is not that of their class.
fn moved(map: &PriorityMap) -> impl Iterator<Item = (u8, u8)> + use<> {
    // By DSCP, whatever it trusts.
    let mut by_dscp = [0; 64];
    for dscp in 0..64u8 {
        by_dscp[usize::from(dscp)] = map.of_dscp(dscp);
    }
    (0..64u8)
        .map(move |dscp| (dscp, by_dscp[usize::from(dscp)]))
        .filter(|(dscp, priority)| dscp >> 3 != *priority)
}

pub(super) fn priorities(text: &str) -> Result<u8, String> {
    let mut mask = 0;
    for one in text.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        let problem = "must be a list of priorities, 0 to 7, such as 3 or \"3,4\"";
        mask |= 1 << units::number_to(one, 7).map_err(|_| problem)?;
    }
    Ok(mask)
}

pub(super) fn listed(mask: u8) -> String {
    let all = (0..8).filter(|p| mask >> p & 1 != 0);
    all.map(|p| p.to_string()).collect::<Vec<_>>().join(",")
}

fn bytes(text: &str, least: u32) -> Result<u32, String> {
    let bytes = units::bytes(text, least)?;
    match bytes <= 1 << 30 {
        true => Ok(bytes),
        false => Err("must be 1 GiB at most".into()),
    }
}

fn auto(text: &str) -> Result<Option<u32>, String> {
    match text {
        "auto" => Ok(None),
        _ => bytes(text, 0)
            .map(Some)
            .map_err(|problem| format!("{problem}, or auto")),
    }
}

fn or_auto(bytes: Option<u32>) -> String {
    bytes.map_or("auto".into(), |bytes| bytes.to_string())
}

fn limit(text: &str) -> Result<Nanos, String> {
    match text {
        "0" | "off" => Ok(Nanos::ZERO),
        _ => units::time(text),
    }
}

/// Sets what `key`, without a prefix, names.
pub fn set(settings: &mut PfcSettings, key: &str, text: &str) -> Result<(), SpecError> {
    let Some(found) = KEYS.iter().find(|known| known.name == key) else {
        return Err(SpecError::Unknown {
            key: format!("{PFC_PREFIX}{key}"),
        });
    };
    (found.set)(settings, text).map_err(|problem| SpecError::Value {
        key: found.name,
        value: format!("{:?}", shortened(text)),
        problem,
    })
}

/// All keys with their values.
pub fn values(settings: &PfcSettings) -> Vec<Value> {
    let value = |key: &Key| Value {
        key: format!("{PFC_PREFIX}{}", key.name),
        value: (key.get)(settings),
        unit: "",
        range: key.range.into(),
        doc: key.doc,
    };
    KEYS.iter().map(value).collect()
}
