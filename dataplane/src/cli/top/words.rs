//! What holds traffic up, in words: rules over the figures, each with its threshold. What bounds everything comes first.
//!
//! A thread that is busy is the bottleneck itself. One that is not waits for somebody, and its queue pairs, as they were looked at in the
//! meantime, say for whom: the receiver, memory, a pause, a rate, the port, the peer, or the program.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::figures::{Device, Figures, Held, Lcore};
use crate::impair::units::rounded_rate;

/// A thread that is busy for this share of its time has no more to give.
const BUSY: f64 = 0.9;
/// It was kept from running for this share of its time.
const LOST: f64 = 0.05;
/// What queue pairs wait for counts from this share of the looks at them on.
const WAITS: f64 = 0.2;
/// Queue pairs that wait for their peers, or programs, do so most of the time.
const MOSTLY: f64 = 0.5;
/// A priority was paused for this share of the time.
const PAUSED: f64 = 0.1;
/// Fewer packets a second are no traffic.
const TRAFFIC: f64 = 10.0;
/// Something happens so often that it is no exception.
const OFTEN: f64 = 1.0;
/// Packets with as many bytes are mostly payload that is copied and summed.
const LARGE: f64 = 1024.0;

/// Something that holds traffic up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Finding {
    /// A word for the rule.
    pub what: &'static str,
    /// The thread or the device.
    pub about: String,
    /// A sentence about it: what is, and what helps.
    pub text: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What holds traffic up, the first the most; nothing if there is no traffic and nothing waits.
pub(super) fn findings(figures: &Figures) -> Vec<Finding> {
    let lost = |lcore| lost(lcore, &figures.lcores);
    let mut all: Vec<Finding> = figures.lcores.iter().filter_map(lost).collect();
    let busy = figures.lcores.iter().filter(|lcore| is_busy(lcore));
    all.extend(busy.map(|lcore| too_busy(lcore, figures)));
    let rules = [
        no_receive, receiver, rate, pause, memory, port, retries, drops,
    ];
    for rule in rules {
        let found = figures.devices.iter().filter_map(|d| rule(d, figures));
        all.extend(found);
    }
    if all.is_empty() {
        // With nobody in the way.
        let found = figures
            .devices
            .iter()
            .filter_map(|d| peer_or_program(d, figures));
        all.extend(found);
    }
    all
}

/// What is said when nothing is found.
pub(super) fn nothing(figures: &Figures) -> &'static str {
    let packets = |d: &Device| d.packets_per_s.received + d.packets_per_s.sent;
    match figures.devices.iter().any(|d| packets(d) >= TRAFFIC) {
        true => "nothing stands out",
        false => "no traffic",
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn is_busy(lcore: &Lcore) -> bool {
    of_own_time(lcore) >= BUSY
}

/// The busy share of the time that others leave it.
fn of_own_time(lcore: &Lcore) -> f64 {
    lcore.busy / (1.0 - lcore.lost).max(f64::EPSILON)
}

/// Says of a thread what it does or what happens to it.
fn of_lcore(what: &'static str, lcore: &Lcore, text: &str) -> Finding {
    let about = format!("lcore {}", lcore.lcore);
    let text = format!("{about} {text}");
    Finding { what, about, text }
}

fn waits(device: &Device, what: &str) -> f64 {
    device.waiting.get(what).copied().unwrap_or(0.0)
}

fn sends(device: &Device) -> bool {
    device.packets_per_s.sent >= TRAFFIC && device.messages_per_s.sent >= TRAFFIC
}

/// Says of a device what it does or what happens to it.
fn found(what: &'static str, device: &Device, text: &str) -> Option<Finding> {
    let about = device.name.clone();
    let text = format!("{about} {text}");
    Some(Finding { what, about, text })
}

fn lost(lcore: &Lcore, all: &[Lcore]) -> Option<Finding> {
    if lcore.lost < LOST {
        return None;
    }
    let share = percent(lcore.lost);
    let same = |other: &&Lcore| other.lcore != lcore.lcore && other.cpu == lcore.cpu;
    if let Some((cpu, other)) = lcore.cpu.zip(all.iter().find(same)) {
        let text = format!(
            "was kept from running for {share} of the time: lcore {} polls on the same CPU {cpu}: give one of them another `cpu` in \
             [[lcore]]",
            other.lcore
        );
        return Some(of_lcore("lcore-lost", lcore, &text));
    }
    let cpu = lcore.cpu.map_or("a CPU of its own".into(), |cpu| {
        format!("CPU {cpu} to itself")
    });
    let text = format!(
        "was kept from running by other threads for {share} of the time: leave it {cpu} (other programs by taskset, or another \
         `cpu` in [[lcore]])"
    );
    Some(of_lcore("lcore-lost", lcore, &text))
}

fn too_busy(lcore: &Lcore, figures: &Figures) -> Finding {
    let stage = main_stage(&lcore.cycles_per_packet);
    let own = figures
        .devices
        .iter()
        .filter(|d| d.lcores.contains(&lcore.lcore));
    let (mut bits, mut packets) = (0.0, 0.0);
    for device in own {
        bits += (device.gbps.received + device.gbps.sent) * 1e9;
        packets += device.packets_per_s.received + device.packets_per_s.sent;
    }
    let bytes = match packets > 0.0 {
        true => bits / 8.0 / packets,
        false => 0.0,
    };
    let mut text = match lcore.lost < LOST {
        true => format!("is {} busy", percent(lcore.busy)),
        false => format!(
            "is busy {} of the time that it gets",
            percent(of_own_time(lcore))
        ),
    };
    if let Some((stage, share)) = stage {
        text += &format!(", most in {stage} ({} of its cycles", percent(share));
        text += &match doing(stage, bytes) {
            Some(doing) => format!(": {doing})"),
            None => ")".into(),
        };
    }
    let remedies = remedies(lcore, stage.map(|(stage, _)| stage), bytes);
    text += &format!(": {}", remedies.join(", or "));
    of_lcore("lcore-busy", lcore, &text)
}

/// The stage that takes most, and its share.
fn main_stage(cycles: &BTreeMap<String, f64>) -> Option<(&str, f64)> {
    let all: f64 = cycles.values().sum();
    let most = cycles.iter().max_by(|a, b| a.1.total_cmp(b.1))?;
    (all > 0.0).then(|| (most.0.as_str(), most.1 / all))
}

/// What takes the time of a stage, for packets of so many bytes.
fn doing(stage: &str, bytes: f64) -> Option<&'static str> {
    Some(match stage {
        "transmit" if bytes >= LARGE => "copying payload and its checksum",
        "transmit" => "building packets",
        "receive" if bytes >= LARGE => "checking payload and copying it",
        "receive" => "judging packets and completing requests",
        "memory" => "memory that is reached through the kernel",
        "doorbells" => "reading requests of programs",
        "timers" => "timeouts and flushes",
        "fabric" => "switches",
        "messages" => "commands of programs",
        _ => return None,
    })
}

fn remedies(lcore: &Lcore, stage: Option<&str>, bytes: f64) -> Vec<&'static str> {
    let mut all = Vec::new();
    match stage {
        Some("memory") => all.push("memory that is mapped (`roceline doctor` says why it is not)"),
        Some("fabric") => all.push("a [[lcore]] of their own for the switches (`[fabric] lcore`)"),
        Some("messages") => {
            all.push(
                "fewer registrations, queue pairs and the like made and destroyed while data flows",
            );
        }
        _ if bytes > 0.0 && bytes < LARGE => {
            all.push("larger messages (what a packet costs hardly depends on its size)");
        }
        _ => {}
    }
    all.push(match lcore.devices.len() {
        0 | 1 => "a second lcore for the NIC (`lcore = [0, 1]` in [[nic]])",
        _ => "a second lcore, so that each NIC has its own ([[lcore]])",
    });
    all
}

fn no_receive(device: &Device, _: &Figures) -> Option<Finding> {
    if device.no_receive_per_s < OFTEN {
        return None;
    }
    let text = format!(
        "gets {:.0} packets a second for which its program has posted no receive: post more receives, and earlier",
        device.no_receive_per_s
    );
    found("no-receive", device, &text)
}

fn receiver(device: &Device, _: &Figures) -> Option<Finding> {
    let share = waits(device, "receiver");
    if share < WAITS && device.rnr_naks_per_s < OFTEN {
        return None;
    }
    let text = format!(
        "waits for receivers that are not ready: {:.0} RNR NAKs a second, {} of the looks at its queue pairs found one \
         waiting: the program at the other end must post receives earlier, or min_rnr_timer be shorter",
        device.rnr_naks_per_s,
        percent(share)
    );
    found("receiver-not-ready", device, &text)
}

fn rate(device: &Device, _: &Figures) -> Option<Finding> {
    let share = waits(device, "rate");
    if share < WAITS {
        return None;
    }
    let mut text = match &device.held {
        Some(held) => held_at(held, &device.name),
        None => format!(
            "congestion control holds {}'s queue pairs back",
            device.name
        ),
    };
    text += &match device.cnps_per_s >= OFTEN {
        true => format!(
            ": {:.0} CNPs a second, as its packets are marked on the way (`roceline show fabric`)",
            device.cnps_per_s
        ),
        false => " (`roceline congestion` shows its settings)".into(),
    };
    Some(Finding {
        what: "rate",
        about: device.name.clone(),
        text,
    })
}

fn held_at(held: &Held, device: &str) -> String {
    let algorithm = match held.algorithm.as_str() {
        "dcqcn" | "dctcp" | "timely" => held.algorithm.to_uppercase(),
        _ => format!("congestion control ({})", held.algorithm),
    };
    let (least, most) = held.rates;
    let at = match least == most {
        true => rounded_rate(least),
        false => format!("{} to {}", rounded_rate(least), rounded_rate(most)),
    };
    let qps = match held.queue_pairs {
        1 => "a queue pair".into(),
        n => format!("{n} queue pairs"),
    };
    format!("{algorithm} holds {qps} of {device} at {at}")
}

fn pause(device: &Device, _: &Figures) -> Option<Finding> {
    let share = device.paused.max(waits(device, "pause"));
    let text = format!(
        "is paused {} of the time: the other end of its link, or what is behind it, takes no more (`roceline stat` has \
         pauses by priority, `roceline show fabric` those of switches)",
        percent(share.min(1.0))
    );
    (share >= PAUSED).then(|| found("paused", device, &text))?
}

fn memory(device: &Device, figures: &Figures) -> Option<Finding> {
    let share = waits(device, "memory");
    let own = figures
        .lcores
        .iter()
        .filter(|l| device.lcores.contains(&l.lcore));
    let looks = own.map(|lcore| lcore.memory_waits).fold(0.0, f64::max);
    // Of NICs that share a thread, those that have traffic.
    let has_traffic = device.packets_per_s.received + device.packets_per_s.sent >= TRAFFIC;
    if share < WAITS && (looks < WAITS || !has_traffic) {
        return None;
    }
    let text = format!(
        "waits for programs' memory: {} of the looks found some being reached through the kernel, page by page \
         (`roceline show mrs` says which, `roceline doctor` why)",
        percent(looks.max(share))
    );
    found("memory", device, &text)
}

fn port(device: &Device, _: &Figures) -> Option<Finding> {
    let text = format!(
        "has packets that wait for its port, {} of the looks found some: the link, its driver or the receiver at its end is slower \
         than this NIC",
        percent(device.port_waits)
    );
    (device.port_waits >= WAITS).then(|| found("port", device, &text))?
}

fn retries(device: &Device, _: &Figures) -> Option<Finding> {
    let text = format!(
        "sends again {:.0} times a second: packets or their ACKs get lost on the way (drops below, `roceline impair list`), \
         or come later than its ACK timeout",
        device.retries_per_s
    );
    (device.retries_per_s >= OFTEN).then(|| found("retries", device, &text))?
}

fn drops(device: &Device, _: &Figures) -> Option<Finding> {
    let often = device
        .drops_per_s
        .iter()
        .filter(|(_, rate)| **rate >= OFTEN);
    let named: Vec<String> = often
        .map(|(name, rate)| format!("{name} {rate:.0}"))
        .collect();
    let text = format!(
        "drops packets, in a second: {} (docs/counters.md says why)",
        named.join(", ")
    );
    (!named.is_empty()).then(|| found("drops", device, &text))?
}

/// Of a device that sends, when nobody is in its way.
fn peer_or_program(device: &Device, figures: &Figures) -> Option<Finding> {
    if !sends(device) {
        return None;
    }
    let own = figures
        .lcores
        .iter()
        .filter(|l| device.lcores.contains(&l.lcore));
    let idle = 1.0 - own.map(|lcore| lcore.busy).fold(0.0, f64::max);
    let (peer, program) = (waits(device, "peer"), waits(device, "program"));
    if peer >= MOSTLY {
        let text = format!(
            "waits for answers of its peers, {} of the looks at its queue pairs found one waiting: the window or the way there and back \
             bounds it: more queue pairs, or more requests under way",
            percent(peer)
        );
        return found("peer", device, &text);
    }
    if program >= MOSTLY && idle >= 1.0 - BUSY {
        let text = format!(
            "has nothing to send most of the time, its lcore is idle {}: the program posts too slowly: more requests at once, more queue \
             pairs or threads",
            percent(idle)
        );
        return found("program", device, &text);
    }
    None
}

#[cfg(test)]
mod tests;
