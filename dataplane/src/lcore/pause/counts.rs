//! What is counted of pauses and priorities, under the names that `ethtool -S` shows for an mlx5 port (Linux
//! `Documentation/networking/device_drivers/ethernet/mellanox/mlx5/counters.rst`); `docs/counters.md` says what each counts.

use roceline_engine::Nanos;
use roceline_engine::congestion::pfc::PauseCounts;
use roceline_engine::wire::pause::PRIORITIES;

use super::NicPause;

/// Packets of a priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Received.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Of them, dropped for want of room.
    pub rx_discards: u64,
    /// Sent.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
}

/// What a port counted of its pauses and priorities; all zero while it never had any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseReport {
    rx: [PauseCounts; PRIORITIES],
    tx: [PauseCounts; PRIORITIES],
    rx_global: PauseCounts,
    tx_global: PauseCounts,
    traffic: [Traffic; PRIORITIES],
    control: [u64; 2],
    storms: (u64, u64),
    rx_storms: u64,
    storm_drops: u64,
    full: u64,
}

macro_rules! by_priority {
    ($($p:literal),*) => {
        [$([
            concat!("rx_prio", $p, "_bytes"),
            concat!("rx_prio", $p, "_packets"),
            concat!("rx_prio", $p, "_discards"),
            concat!("tx_prio", $p, "_bytes"),
            concat!("tx_prio", $p, "_packets"),
            concat!("rx_prio", $p, "_pause"),
            concat!("rx_prio", $p, "_pause_duration"),
            concat!("rx_prio", $p, "_pause_transition"),
            concat!("tx_prio", $p, "_pause"),
            concat!("tx_prio", $p, "_pause_duration"),
            concat!("tx_prio", $p, "_pause_transition"),
        ]),*]
    };
}

const BY_PRIORITY: [[&str; 11]; PRIORITIES] = by_priority!(0, 1, 2, 3, 4, 5, 6, 7);

fn micros(time: Nanos) -> u64 {
    time.0 / 1000
}

impl PauseReport {
    /// Names and values in a fixed order. Durations are in microseconds.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let all = *self;
        let of_priorities = (0..PRIORITIES).flat_map(move |p| {
            let (t, rx, tx) = (&all.traffic[p], &all.rx[p], &all.tx[p]);
            let values = [
                t.rx_bytes,
                t.rx_packets,
                t.rx_discards,
                t.tx_bytes,
                t.tx_packets,
                rx.frames,
                micros(rx.duration),
                rx.transitions,
                tx.frames,
                micros(tx.duration),
                tx.transitions,
            ];
            BY_PRIORITY[p].into_iter().zip(values)
        });
        let of_port = [
            ("rx_global_pause", all.rx_global.frames),
            ("rx_global_pause_duration", micros(all.rx_global.duration)),
            ("rx_global_pause_transition", all.rx_global.transitions),
            ("tx_global_pause", all.tx_global.frames),
            ("tx_global_pause_duration", micros(all.tx_global.duration)),
            ("tx_global_pause_transition", all.tx_global.transitions),
            ("rx_pause_ctrl_phy", all.control[0]),
            ("tx_pause_ctrl_phy", all.control[1]),
            ("tx_pause_storm_warning_events", all.storms.0),
            ("tx_pause_storm_error_events", all.storms.1),
            ("rx_pause_storms", all.rx_storms),
            ("tx_pause_storm_drops", all.storm_drops),
            ("rx_queue_full_polls", all.full),
        ];
        of_priorities.chain(of_port)
    }

    /// Adds what `other` counted.
    pub fn add(&mut self, other: &PauseReport) {
        for p in 0..PRIORITIES {
            self.rx[p].add(&other.rx[p]);
            self.tx[p].add(&other.tx[p]);
            let (sum, part) = (&mut self.traffic[p], &other.traffic[p]);
            sum.rx_packets += part.rx_packets;
            sum.rx_bytes += part.rx_bytes;
            sum.rx_discards += part.rx_discards;
            sum.tx_packets += part.tx_packets;
            sum.tx_bytes += part.tx_bytes;
        }
        self.rx_global.add(&other.rx_global);
        self.tx_global.add(&other.tx_global);
        self.control[0] += other.control[0];
        self.control[1] += other.control[1];
        self.storms.0 += other.storms.0;
        self.storms.1 += other.storms.1;
        self.rx_storms += other.rx_storms;
        self.storm_drops += other.storm_drops;
        self.full += other.full;
    }

    /// Storms of received pauses, and of our own.
    pub fn storms(&self) -> (u64, u64) {
        (self.rx_storms, self.storms.1)
    }
}

impl NicPause {
    /// What was counted up to `now`.
    pub fn report(&self, now: Nanos) -> PauseReport {
        let (rx, tx) = (&self.receiver, &self.sender);
        PauseReport {
            rx: std::array::from_fn(|p| rx.counts(p, now)),
            tx: std::array::from_fn(|p| tx.counts(p, now)),
            rx_global: rx.global_counts(now),
            tx_global: tx.global_counts(now),
            traffic: self.traffic,
            control: self.control,
            storms: tx.storms(),
            rx_storms: rx.storms().iter().sum(),
            storm_drops: self.storm_drops,
            full: self.full,
        }
    }
}
