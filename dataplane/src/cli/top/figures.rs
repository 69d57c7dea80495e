//! What happened between two looks, in figures that mean something by themselves: shares, rates, cycles.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::control::query::{DeviceStat, LcoreTop, NicTop, StatReply, TopReply, Traffic};

/// Answers of a daemon at one moment.
#[derive(Clone, Debug)]
pub(super) struct Look {
    /// Of the polling threads.
    pub top: TopReply,
    /// Of the devices.
    pub stat: StatReply,
}

/// Between two looks.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Figures {
    /// How long that was.
    pub seconds: f64,
    /// By number.
    pub lcores: Vec<Lcore>,
    /// By index.
    pub devices: Vec<Device>,
}

/// A polling thread. Shares are of its time, from 0 to 1.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Lcore {
    /// Number.
    pub lcore: u32,
    /// Its CPU.
    pub cpu: Option<usize>,
    /// Had something to do.
    pub busy: f64,
    /// Polled and found nothing.
    pub polling: f64,
    /// Gave the CPU to others, or slept.
    pub away: f64,
    /// Was kept from running.
    pub lost: f64,
    /// Polls.
    pub polls_per_s: f64,
    /// Of them, those with something to do.
    pub busy_polls_per_s: f64,
    /// Times that it slept.
    pub sleeps_per_s: f64,
    /// Packets.
    pub packets_per_s: Both,
    /// Packets of a poll that received, or sent, any.
    pub burst: BothMeasured,
    /// Cycles by stage for each packet received or sent; none if no packet was met by a timed poll.
    pub cycles_per_packet: BTreeMap<String, f64>,
    /// Timed polls with something to do that these figures are of.
    pub timed_polls: u64,
    /// Share of looks that found memory being reached through the kernel.
    pub memory_waits: f64,
    /// Its devices.
    pub devices: Vec<String>,
}

/// What is received and what is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Both {
    /// Received.
    pub received: f64,
    /// Sent.
    pub sent: f64,
}

/// The same where there may be nothing to tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct BothMeasured {
    /// Received.
    pub received: Option<f64>,
    /// Sent.
    pub sent: Option<f64>,
}

/// A device, all its polling threads together.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Device {
    /// Its name.
    pub name: String,
    /// Its polling threads.
    pub lcores: Vec<u32>,
    /// Bits of RoCE packets, in billions.
    pub gbps: Both,
    /// Messages: SENDs, WRITEs, READs and atomics of peers; requests of its programs.
    pub messages_per_s: Both,
    /// Packets.
    pub packets_per_s: Both,
    /// Cycles of the stage `receive` for each packet received, and of `transmit` for each sent.
    pub cycles_per_packet: BothMeasured,
    /// What its queue pairs waited for: shares of the looks at them.
    pub waiting: BTreeMap<String, f64>,
    /// Share of the looks that found packets waiting for the port.
    pub port_waits: f64,
    /// Share of time in which a priority, or all, might not send: of the one that was paused longest.
    pub paused: f64,
    /// What it dropped, by counter.
    pub drops_per_s: BTreeMap<String, f64>,
    /// Times that something was sent again for want of an answer, or since the peer missed it.
    pub retries_per_s: f64,
    /// RNR NAKs that it got.
    pub rnr_naks_per_s: f64,
    /// Packets for which its programs had posted no receive.
    pub no_receive_per_s: f64,
    /// CNPs that slowed it down.
    pub cnps_per_s: f64,
    /// Queue pairs that congestion control holds back, if some wait for their rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<Held>,
}

/// Queue pairs that congestion control holds back.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Held {
    /// The algorithm, as the configuration spells it.
    pub algorithm: String,
    /// How many of them.
    pub queue_pairs: usize,
    /// The least and the most that they may send, in bits per second.
    pub rates: (u64, u64),
}

/// Counters of what got lost here, by their groups in [`DeviceStat`].
const DROPS_HW: [&str; 6] = [
    "rx_icrc_encapsulated",
    "rx_malformed",
    "rx_unknown_qp",
    "rx_qkey_violations",
    "rx_dropped",
    "np_cnp_dropped",
];
/// Of the port, those whose names do not say so.
const DROPS_PORT: [&str; 7] = [
    "rx_memory_overrun",
    "tx_memory_overrun",
    "rx_link_down",
    "tx_link_down",
    "tx_no_way",
    "lcore_lost",
    "lcore_nobody",
];
/// And parts of names that do.
const DROPS_WORDS: [&str; 6] = [
    "missed",
    "dropped",
    "discard",
    "no_mbuf",
    "queue_full",
    "errors",
];
/// Retries, each by its cause.
const RETRIES: [&str; 4] = [
    "packet_seq_err",
    "implied_nak_seq_err",
    "local_ack_timeout_err",
    "roce_adp_retrans",
];

impl Figures {
    /// Of what happened `seconds` long between two looks; `None` if some of it was not counted.
    pub fn between(before: &Look, after: &Look, seconds: f64) -> Option<Figures> {
        let (old, new) = (&before.top.lcores, &after.top.lcores);
        let same = |(old, new): (&LcoreTop, &LcoreTop)| {
            old.lcore == new.lcore && old.sessions == new.sessions && old.turns <= new.turns
        };
        if old.len() != new.len() || !old.iter().zip(new).all(same) {
            return None;
        }
        let pairs = || old.iter().zip(new);
        let lcores = pairs().map(|(old, new)| lcore(old, new)).collect();
        let devices = after.stat.devices.iter().map(|new| {
            let old = before.stat.devices.iter().find(|old| old.name == new.name);
            let parts = pairs().flat_map(|(old, new)| parts(old, new));
            let own = parts.filter(|part| part.new.device == new.name);
            device(old.unwrap_or(new), new, own, seconds)
        });
        Some(Figures {
            seconds,
            lcores,
            devices: devices.collect(),
        })
    }
}

/// Counted between two looks.
fn grown(old: u64, new: u64) -> f64 {
    new.saturating_sub(old) as f64
}

/// A part of something, 0 of nothing.
fn share(part: f64, whole: f64) -> f64 {
    match whole > 0.0 {
        true => part / whole,
        false => 0.0,
    }
}

/// So much for each of `count`, if there were any.
fn each(sum: f64, count: f64) -> Option<f64> {
    (count > 0.0).then(|| sum / count)
}

/// Adds what was counted by name.
fn add(sums: &mut BTreeMap<String, f64>, old: &BTreeMap<String, u64>, new: &BTreeMap<String, u64>) {
    for (name, &now) in new {
        let before = old.get(name).copied().unwrap_or(0);
        *sums.entry(name.clone()).or_default() += grown(before, now);
    }
}

/// Nanoseconds of a polling thread between two looks.
fn time(old: &LcoreTop, new: &LcoreTop) -> f64 {
    grown(old.busy_ns, new.busy_ns)
        + grown(old.empty_ns, new.empty_ns)
        + grown(old.away_ns, new.away_ns)
        + grown(old.lost_ns, new.lost_ns)
}

fn lcore(old: &LcoreTop, new: &LcoreTop) -> Lcore {
    let time = time(old, new);
    let of_time = |old, new| share(grown(old, new), time);
    let per_s = |old, new| share(grown(old, new), time / 1e9);
    let mut stages = BTreeMap::new();
    add(&mut stages, &old.stages, &new.stages);
    let (mut packets, mut timed, mut bursts) = ([0.0; 2], [0.0; 2], [0.0; 2]);
    for (old, new) in old.nics.iter().zip(&new.nics) {
        add(&mut stages, &old.stages, &new.stages);
        let sides = [(old.received, new.received), (old.sent, new.sent)];
        for (side, (old, new)) in sides.into_iter().enumerate() {
            packets[side] += grown(old.packets, new.packets);
            timed[side] += grown(old.timed_packets, new.timed_packets);
            bursts[side] += grown(old.bursts, new.bursts);
        }
    }
    let all = timed[0] + timed[1];
    let per_packet = |(stage, cycles)| Some((stage, each(cycles, all)?));
    let looks = grown(old.looks, new.looks);
    Lcore {
        lcore: new.lcore,
        cpu: new.cpu,
        busy: of_time(old.busy_ns, new.busy_ns),
        polling: of_time(old.empty_ns, new.empty_ns),
        away: of_time(old.away_ns, new.away_ns),
        lost: of_time(old.lost_ns, new.lost_ns),
        polls_per_s: per_s(old.turns, new.turns),
        busy_polls_per_s: per_s(old.busy_turns, new.busy_turns),
        sleeps_per_s: per_s(old.sleeps, new.sleeps),
        packets_per_s: Both {
            received: share(packets[0], time / 1e9),
            sent: share(packets[1], time / 1e9),
        },
        burst: BothMeasured {
            received: each(timed[0], bursts[0]),
            sent: each(timed[1], bursts[1]),
        },
        cycles_per_packet: stages.into_iter().filter_map(per_packet).collect(),
        timed_polls: new.timed.saturating_sub(old.timed),
        memory_waits: share(grown(old.memory_waits, new.memory_waits), looks),
        devices: new.nics.iter().map(|nic| nic.device.clone()).collect(),
    }
}

/// What a polling thread has of a NIC, at two looks.
struct Part<'a> {
    lcore: u32,
    /// Seconds of the thread, and its looks.
    seconds: f64,
    looks: f64,
    old: &'a NicTop,
    new: &'a NicTop,
}

fn parts<'a>(old: &'a LcoreTop, new: &'a LcoreTop) -> impl Iterator<Item = Part<'a>> {
    let (seconds, looks) = (time(old, new) / 1e9, grown(old.looks, new.looks));
    let lcore = new.lcore;
    old.nics.iter().zip(&new.nics).map(move |(old, new)| Part {
        lcore,
        seconds,
        looks,
        old,
        new,
    })
}

fn device<'a>(
    old: &DeviceStat,
    new: &DeviceStat,
    parts: impl Iterator<Item = Part<'a>>,
    seconds: f64,
) -> Device {
    let mut device = counted(old, new, seconds);
    let (mut waiting, mut port, mut looks) = (BTreeMap::new(), 0.0, 0.0);
    let (mut cycles, mut timed) = ([0.0; 2], [0.0; 2]);
    for part in parts {
        let (old, new) = (part.old, part.new);
        device.lcores.push(part.lcore);
        add(&mut waiting, &old.waiting, &new.waiting);
        port += grown(old.port_waits, new.port_waits);
        looks += part.looks;
        let per_s = |old, new| share(grown(old, new), part.seconds);
        let add_rates = |of: fn(&Traffic) -> u64, sums: &mut Both, unit: f64| {
            sums.received += per_s(of(&old.received), of(&new.received)) * unit;
            sums.sent += per_s(of(&old.sent), of(&new.sent)) * unit;
        };
        add_rates(|t| t.bytes, &mut device.gbps, 8e-9);
        add_rates(|t| t.messages, &mut device.messages_per_s, 1.0);
        add_rates(|t| t.packets, &mut device.packets_per_s, 1.0);
        let sides = [
            ("receive", &old.received, &new.received),
            ("transmit", &old.sent, &new.sent),
        ];
        for (side, (stage, before, now)) in sides.into_iter().enumerate() {
            let of = |nic: &NicTop| nic.stages.get(stage).copied().unwrap_or(0);
            cycles[side] += grown(of(old), of(new));
            timed[side] += grown(before.timed_packets, now.timed_packets);
        }
    }
    device.cycles_per_packet = BothMeasured {
        received: each(cycles[0], timed[0]),
        sent: each(cycles[1], timed[1]),
    };
    let all: f64 = waiting.values().sum();
    let shares = waiting.into_iter().map(|(what, n)| (what, share(n, all)));
    device.waiting = shares.collect();
    device.port_waits = share(port, looks);
    device
}

/// What the counters say.
fn counted(old: &DeviceStat, new: &DeviceStat, seconds: f64) -> Device {
    let rate = |old: &BTreeMap<String, u64>, new: &BTreeMap<String, u64>, name: &str| {
        let of = |all: &BTreeMap<String, u64>| all.get(name).copied().unwrap_or(0);
        share(grown(of(old), of(new)), seconds)
    };
    let hw = |name: &str| rate(&old.hw_counters, &new.hw_counters, name);
    let dropped_hw = DROPS_HW.iter().map(|name| (name.to_string(), hw(name)));
    let is_drop = |name: &&String| {
        DROPS_PORT.contains(&name.as_str()) || DROPS_WORDS.iter().any(|word| name.contains(word))
    };
    let dropped_port = new.port.keys().filter(is_drop);
    let dropped_port = dropped_port.map(|name| (name.clone(), rate(&old.port, &new.port, name)));
    let is_discard = |name: &&String| name.ends_with("_discards") || name.ends_with("storm_drops");
    let discards = new.ethtool.keys().filter(is_discard);
    let discards = discards.map(|name| (name.clone(), rate(&old.ethtool, &new.ethtool, name)));
    let drops = dropped_hw.chain(dropped_port).chain(discards);
    let pauses = new.ethtool.keys();
    let pauses = pauses.filter(|name| name.starts_with("rx_") && name.ends_with("pause_duration"));
    // Microseconds in a second.
    let paused = pauses.map(|name| rate(&old.ethtool, &new.ethtool, name) / 1e6);
    Device {
        name: new.name.clone(),
        paused: paused.fold(0.0, f64::max),
        drops_per_s: drops.filter(|(_, rate)| *rate > 0.0).collect(),
        retries_per_s: RETRIES.into_iter().map(hw).sum(),
        rnr_naks_per_s: hw("rnr_nak_retry_err"),
        no_receive_per_s: hw("out_of_buffer"),
        cnps_per_s: hw("rp_cnp_handled"),
        ..Device::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts<const N: usize>(pairs: [(&str, u64); N]) -> BTreeMap<String, u64> {
        pairs.map(|(name, n)| (name.to_string(), n)).into()
    }

    /// A moment at which everything has been counted `n` times.
    fn moment(n: u64) -> Look {
        let traffic = |packets: u64| Traffic {
            packets: packets * n,
            bytes: 1000 * packets * n,
            messages: 5 * n,
            timed_packets: 8 * n,
            bursts: 2 * n,
        };
        let nic = NicTop {
            device: "roce0".into(),
            received: traffic(10),
            sent: traffic(20),
            stages: counts([("receive", 800 * n), ("transmit", 1600 * n)]),
            port_waits: n,
            waiting: counts([("peer", 3 * n), ("turn", n)]),
        };
        let lcore = LcoreTop {
            cpu: Some(1),
            sessions: 1,
            busy_ns: 600 * n,
            empty_ns: 200 * n,
            away_ns: 100 * n,
            lost_ns: 100 * n,
            turns: 50 * n,
            busy_turns: 25 * n,
            looks: 4 * n,
            timed: 3 * n,
            memory_waits: n,
            stages: counts([("end", 160 * n)]),
            nics: vec![nic],
            ..LcoreTop::default()
        };
        let stat = DeviceStat {
            name: "roce0".into(),
            hw_counters: counts([
                ("rx_icrc_encapsulated", n),
                ("packet_seq_err", 2 * n),
                ("roce_adp_retrans", n),
                ("rnr_nak_retry_err", 4 * n),
                ("rx_write_requests", n),
            ]),
            counters: BTreeMap::new(),
            ethtool: counts([
                ("rx_prio3_pause_duration", 500_000 * n),
                ("rx_prio4_pause_duration", 1000 * n),
                ("tx_prio3_pause_duration", 900_000 * n),
            ]),
            port: counts([("rx_missed", 7 * n), ("rx_packets", 10 * n)]),
        };
        Look {
            top: TopReply {
                lcores: vec![lcore],
            },
            stat: StatReply {
                devices: vec![stat],
                switches: Vec::new(),
            },
        }
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6 * b.abs().max(1.0)
    }

    #[test]
    fn shares_rates_and_cycles_are_those_between_the_looks() {
        let figures = Figures::between(&moment(3), &moment(5), 2.0).unwrap();
        let l = &figures.lcores[0];
        let shares = [l.busy, l.polling, l.away, l.lost];
        assert!(
            shares
                .iter()
                .zip([0.6, 0.2, 0.1, 0.1])
                .all(|(&a, b)| close(a, b)),
            "{l:?}"
        );
        // 1,000 ns each time.
        assert!(
            close(l.polls_per_s, 50e6) && close(l.busy_polls_per_s, 25e6),
            "{l:?}"
        );
        assert!(close(l.packets_per_s.sent, 20e6), "{l:?}");
        assert_eq!(l.burst.received, Some(4.0));
        let cycles = [("end", 10.0), ("receive", 50.0), ("transmit", 100.0)];
        assert_eq!(
            l.cycles_per_packet,
            cycles.map(|(s, n)| (s.to_string(), n)).into()
        );
        assert!(close(l.memory_waits, 0.25), "{l:?}");

        let d = &figures.devices[0];
        assert_eq!((&d.name[..], &d.lcores[..]), ("roce0", &[0][..]));
        assert!(
            close(d.gbps.received, 80.0) && close(d.gbps.sent, 160.0),
            "{d:?}"
        );
        assert!(close(d.messages_per_s.received, 5e6), "{d:?}");
        assert_eq!(d.cycles_per_packet.received, Some(100.0));
        assert_eq!(d.cycles_per_packet.sent, Some(200.0));
        assert!(
            close(d.waiting["peer"], 0.75) && close(d.port_waits, 0.25),
            "{d:?}"
        );
        // Counters by the seconds of who asks.
        assert!(
            close(d.retries_per_s, 3.0) && close(d.rnr_naks_per_s, 4.0),
            "{d:?}"
        );
        assert!(close(d.paused, 0.5), "the longest of those received: {d:?}");
        let names: Vec<&str> = d.drops_per_s.keys().map(String::as_str).collect();
        assert_eq!(names, ["rx_icrc_encapsulated", "rx_missed"]);
        assert!(close(d.drops_per_s["rx_missed"], 7.0), "{d:?}");
    }

    #[test]
    fn parts_of_a_device_are_summed() {
        let both = |n| {
            let mut look = moment(n);
            let mut other = look.top.lcores[0].clone();
            other.lcore = 1;
            look.top.lcores.push(other);
            look
        };
        let figures = Figures::between(&both(0), &both(1), 1.0).unwrap();
        let d = &figures.devices[0];
        assert_eq!(d.lcores, [0, 1]);
        assert!(close(d.gbps.received, 160.0), "{d:?}");
        assert_eq!(d.cycles_per_packet.received, Some(100.0));
        assert!(close(d.waiting["turn"], 0.25), "{d:?}");
    }

    #[test]
    fn nothing_is_said_of_time_that_was_not_all_counted() {
        let (before, mut after) = (moment(1), moment(2));
        after.top.lcores[0].sessions = 2;
        assert!(Figures::between(&before, &after, 1.0).is_none());
        let (before, after) = (moment(2), moment(1));
        assert!(
            Figures::between(&before, &after, 1.0).is_none(),
            "another process"
        );
    }

    #[test]
    fn a_thread_that_did_nothing_has_no_cycles_and_no_bursts() {
        let figures = Figures::between(&moment(0), &moment(0), 1.0).unwrap();
        let l = &figures.lcores[0];
        assert!(l.cycles_per_packet.is_empty() && l.burst == BothMeasured::default());
        assert_eq!(l.busy, 0.0);
    }
}
