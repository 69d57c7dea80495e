//! What a run gave, before anybody judges it: transfers, series, counters. Plain data, the same for the same scenario and seed.

use std::collections::BTreeMap;

use roceline_engine::Nanos;

/// Everything about a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// In the order of the plan.
    pub transfers: Vec<Done>,
    /// Ends of the intervals that the series are about.
    pub times: Vec<Nanos>,
    /// Each as long as `times`.
    pub series: Vec<Series>,
    /// Queues of switches that ever held something, in the order of switches, ports and priorities.
    pub queues: Vec<QueueDepth>,
    /// Counters of all devices together, in the measured time, by the name of the metric.
    pub counters: BTreeMap<&'static str, u64>,
    /// The fullest link, in the measured time, as a part of its rate.
    pub utilization: f64,
    /// Packets that left or arrived.
    pub packet_events: u64,
}

/// What became of a transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// When it began; `None`: not at all.
    pub start: Option<Nanos>,
    /// When its last byte was acknowledged.
    pub end: Option<Nanos>,
    /// Bytes acknowledged.
    pub bytes: u64,
    /// Of these, within the measured time.
    pub measured: u64,
    /// How its QP failed, if it did.
    pub failed: Option<String>,
}

/// What a series is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// Payload of a transfer or a group that arrived, duplicates included, in bits per second.
    Throughput,
    /// Bits per second that a transfer's congestion control allows.
    Rate,
    /// Bytes in a queue of a switch, at the end of the interval.
    Queue,
    /// CNPs that a NIC sent.
    Cnps,
    /// Pause frames that a device sent.
    Pauses,
}

impl Quantity {
    /// All, in the order of reports.
    pub const ALL: [Quantity; 5] = [
        Quantity::Throughput,
        Quantity::Rate,
        Quantity::Queue,
        Quantity::Cnps,
        Quantity::Pauses,
    ];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Quantity::Throughput => "throughput",
            Quantity::Rate => "rate",
            Quantity::Queue => "queue",
            Quantity::Cnps => "cnps",
            Quantity::Pauses => "pauses",
        }
    }

    /// What it is, with its unit.
    pub fn title(self) -> &'static str {
        match self {
            Quantity::Throughput => "payload that arrived",
            Quantity::Rate => "allowed rate",
            Quantity::Queue => "queue depth",
            Quantity::Cnps => "CNPs sent, per interval",
            Quantity::Pauses => "pause frames sent, per interval",
        }
    }
}

/// A quantity over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// What it is about.
    pub quantity: Quantity,
    /// Whose.
    pub name: String,
    /// A value for each of [`Outcome::times`].
    pub values: Vec<u64>,
}

/// How deep a queue was in the measured time, at the sampled moments; the maximum is of all moments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueDepth {
    /// Switch, port and priority.
    pub name: String,
    /// Median, in bytes.
    pub p50: u64,
    /// 99th percentile, in bytes.
    pub p99: u64,
    /// The most, in bytes.
    pub max: u64,
    /// Packets marked CE.
    pub marks: u64,
    /// Packets dropped.
    pub drops: u64,
}
