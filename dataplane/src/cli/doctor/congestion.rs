//! What of congestion control is off, and why.

use super::Finding;
use crate::control::congestion::{CongestionReply, DeviceCongestion};

/// Whether queue pairs slow down for CNPs, and marked packets make CNPs.
pub(super) fn control(reply: &CongestionReply) -> Finding {
    const WHAT: &str = "congestion control";
    let missing: Vec<String> = reply.devices.iter().flat_map(missing).collect();
    if !missing.is_empty() {
        let remedy = "`roceline congestion set algorithm=dcqcn rp_enable=255 np_enable=255`, or `congestion` of [[nic]], \
                      `rp_enable` of [nic.dcqcn] and `np_enable` of [nic.np]";
        return Finding::off(WHAT, missing.join("; "), remedy);
    }
    let how = |device: &DeviceCongestion| {
        format!(
            "{}: {} ({})",
            device.name,
            device.value("algorithm"),
            device.value("profile")
        )
    };
    let all: Vec<String> = reply.devices.iter().map(how).collect();
    Finding::ok(WHAT, all.join(", "))
}

/// What a device does not do.
fn missing(device: &DeviceCongestion) -> Vec<String> {
    let name = &device.name;
    let mut all = Vec::new();
    match device.value("algorithm") {
        "none" => all.push(format!(
            "no queue pair of {name} slows down (algorithm none)"
        )),
        "fixed-rate" => all.push(format!(
            "queue pairs of {name} send at a fixed rate, whatever the network says"
        )),
        _ => {
            if let Some(off) = off(device.value("rp_enable")) {
                all.push(format!("{name} ignores CNPs of {off}"));
            }
        }
    }
    if let Some(off) = off(device.value("np_enable")) {
        all.push(format!("{name} sends no CNPs for {off}"));
    }
    all
}

/// The priorities that a mask leaves out.
fn off(mask: &str) -> Option<String> {
    let mask: u8 = mask.parse().ok()?;
    let off: Vec<String> = (0..8)
        .filter(|p| mask >> p & 1 == 0)
        .map(|p: u8| p.to_string())
        .collect();
    match off.len() {
        0 => None,
        8 => Some("any priority".into()),
        1 => Some(format!("priority {}", off[0])),
        _ => Some(format!("priorities {}", off.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;
    use crate::control::congestion::SettingLine;

    fn reply(values: &[(&str, &str)]) -> CongestionReply {
        let setting = |(key, value): (&str, &str)| SettingLine {
            key: key.into(),
            value: value.into(),
            unit: String::new(),
            default: String::new(),
            from: "default".into(),
            range: String::new(),
            doc: String::new(),
        };
        let mut all = std::collections::BTreeMap::from([
            ("algorithm", "dcqcn"),
            ("profile", "connectx"),
            ("rp_enable", "255"),
            ("np_enable", "255"),
        ]);
        all.extend(values.iter().copied());
        CongestionReply {
            devices: vec![DeviceCongestion {
                name: "roce0".into(),
                settings: all.into_iter().map(setting).collect(),
            }],
        }
    }

    #[test]
    fn what_is_off_is_said_with_its_remedy() {
        let found = |values: &[(&str, &str)]| {
            let finding = control(&reply(values));
            (finding.state, finding.found)
        };
        assert_eq!(found(&[]), (State::Ok, "roce0: dcqcn (connectx)".into()));
        for (values, says) in [
            ([("algorithm", "none")], "no queue pair of roce0 slows down"),
            ([("algorithm", "fixed-rate")], "at a fixed rate"),
            ([("rp_enable", "247")], "roce0 ignores CNPs of priority 3"),
            ([("np_enable", "0")], "roce0 sends no CNPs for any priority"),
            ([("np_enable", "243")], "priorities 2, 3"),
        ] {
            let (state, text) = found(&values);
            assert_eq!(state, State::Off, "{values:?}");
            assert!(text.contains(says), "{text}");
        }
    }
}
