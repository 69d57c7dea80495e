//! What a fabric says of itself: plain numbers, for `roceline show fabric` and whoever else asks.

use roceline_engine::Nanos;
use roceline_engine::congestion::pfc::PauseCounts;
use serde::{Deserialize, Serialize};

use super::{Fabric, FabricPort};

/// A fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FabricReport {
    /// In the order of the configuration.
    pub switches: Vec<SwitchReport>,
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchReport {
    /// Its place in the configuration.
    #[serde(default)]
    pub number: usize,
    /// The lcore that polls it.
    #[serde(default)]
    pub lcore: usize,
    /// Its name.
    pub name: String,
    /// Rate of its links in bits per second; none: as fast as it goes.
    pub rate: Option<u64>,
    /// Delay of its links in nanoseconds.
    pub delay_ns: u64,
    /// Bytes of buffer that its queues share, those of them in use, and the most that were.
    pub buffer: u64,
    /// See `buffer`.
    pub used: u64,
    /// See `buffer`.
    pub max_used: u64,
    /// Bytes in a queue at which marks begin, if any class marks.
    pub kmin: Option<u32>,
    /// Bytes in a queue from which on all is marked.
    pub kmax: Option<u32>,
    /// By number.
    pub ports: Vec<PortReport>,
}

/// A port of a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReport {
    /// Its number.
    pub port: u16,
    /// The NIC or switch beyond.
    pub peer: String,
    /// Rate of its link in bits per second; none: as fast as it goes.
    #[serde(default)]
    pub rate: Option<u64>,
    /// Delay of its link in nanoseconds.
    #[serde(default)]
    pub delay_ns: u64,
    /// Copies for groups, and pause frames, for which there was no packet buffer.
    pub no_mbuf: u64,
    /// Pauses of the switch that did not end, and pauses that it was asked for that did not.
    pub storms: [u64; 2],
    /// Pauses of 802.3x, which have no priority: those that the switch asked for.
    #[serde(default)]
    pub global_pause_tx: PauseReport,
    /// Those that it was asked for.
    #[serde(default)]
    pub global_pause_rx: PauseReport,
    /// By priority: those that were used.
    pub queues: Vec<QueueReport>,
}

impl PortReport {
    /// Its counters by name, those of priorities as `ethtool -S` has them of a NIC's port. Durations are in microseconds.
    pub fn counters(&self) -> impl Iterator<Item = (String, u64)> {
        let of_port = [
            ("tx_global_pause", self.global_pause_tx.frames),
            (
                "tx_global_pause_duration",
                self.global_pause_tx.duration_ns / 1_000,
            ),
            ("rx_global_pause", self.global_pause_rx.frames),
            (
                "rx_global_pause_duration",
                self.global_pause_rx.duration_ns / 1_000,
            ),
            ("tx_pause_storms", self.storms[0]),
            ("rx_pause_storms", self.storms[1]),
            ("no_mbuf", self.no_mbuf),
        ];
        let of_port = of_port.map(|(name, value)| (name.to_string(), value));
        of_port
            .into_iter()
            .chain(self.queues.iter().flat_map(QueueReport::counters))
    }
}

/// A priority of a port: what left by it, and what came by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueReport {
    /// 0 to 7.
    pub priority: u8,
    /// Bytes that wait to leave.
    pub depth: u64,
    /// The most that did.
    pub max_depth: u64,
    /// Frames that left.
    pub tx_frames: u64,
    /// Bytes of them.
    pub tx_bytes: u64,
    /// Frames that left with a congestion mark of this switch.
    pub ce_marked: u64,
    /// Frames for this port that found no room.
    pub dropped: u64,
    /// Frames that could not be marked and were dropped instead.
    pub dropped_not_ect: u64,
    /// Frames dropped because the NIC beyond does not end its pause.
    pub dropped_storm: u64,
    /// Frames that came. One that goes on by several ports, as those for groups do, counts once for each copy, so that what
    /// came is what left, waits or was lost.
    pub rx_frames: u64,
    /// Bytes of them.
    pub rx_bytes: u64,
    /// Frames that came, of a lossless priority, for which not even headroom was left.
    pub rx_dropped: u64,
    /// Frames that came for somebody to whom no way leads.
    pub unroutable: u64,
    /// Bytes of buffer that frames from here hold, of a lossless priority.
    pub held: u64,
    /// The most bytes of headroom in use.
    pub max_headroom: u32,
    /// Pauses that the switch asked for.
    pub pause_tx: PauseReport,
    /// Pauses that the switch was asked for.
    pub pause_rx: PauseReport,
    /// Depths in bytes that frames found which came for this queue, and how many found each: of each class of depths, which
    /// is a sixteenth wide, the largest.
    #[serde(default)]
    pub depths: Vec<(u64, u64)>,
}

impl QueueReport {
    fn counters(&self) -> impl Iterator<Item = (String, u64)> + use<> {
        let p = self.priority;
        let values = [
            ("tx", "packets", self.tx_frames),
            ("tx", "bytes", self.tx_bytes),
            ("tx", "ecn_marked", self.ce_marked),
            (
                "tx",
                "discards",
                self.dropped + self.dropped_not_ect + self.dropped_storm,
            ),
            ("tx", "queue_max_bytes", self.max_depth),
            ("tx", "pause", self.pause_tx.frames),
            ("tx", "pause_duration", self.pause_tx.duration_ns / 1_000),
            ("tx", "pause_transition", self.pause_tx.transitions),
            ("rx", "packets", self.rx_frames),
            ("rx", "bytes", self.rx_bytes),
            ("rx", "discards", self.rx_dropped),
            ("rx", "unroutable", self.unroutable),
            ("rx", "pause", self.pause_rx.frames),
            ("rx", "pause_duration", self.pause_rx.duration_ns / 1_000),
            ("rx", "pause_transition", self.pause_rx.transitions),
        ];
        values
            .into_iter()
            .map(move |(side, what, value)| (format!("{side}_prio{p}_{what}"), value))
    }
}

/// Pauses in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseReport {
    /// Frames, those that end a pause included.
    pub frames: u64,
    /// Time in pause, in nanoseconds.
    pub duration_ns: u64,
    /// Pauses that ended.
    pub transitions: u64,
}

impl From<PauseCounts> for PauseReport {
    fn from(counts: PauseCounts) -> PauseReport {
        PauseReport {
            frames: counts.frames,
            duration_ns: counts.duration.0,
            transitions: counts.transitions,
        }
    }
}

impl Fabric {
    /// How it is now. Allocates: not for the loop.
    pub fn report(&self, now: Nanos) -> FabricReport {
        let mut switches = Vec::new();
        for (own, (&n, switch)) in self.numbers.iter().zip(&self.switches).enumerate() {
            let plan = &self.plan.switches[n];
            let (used, max_used) = switch.shared();
            let ports = self.ports.iter().filter(|port| port.switch == own);
            switches.push(SwitchReport {
                number: n,
                lcore: plan.lcore,
                name: plan.name.clone(),
                rate: plan.link.rate,
                delay_ns: plan.link.delay.0,
                buffer: plan.buffer,
                used,
                max_used,
                kmin: plan.red().map(|red| red.kmin),
                kmax: plan.red().map(|red| red.kmax),
                ports: ports
                    .map(|port| {
                        let link = self.plan.link(n, &port.beyond);
                        let [sent, received] = switch.global_pause_counts(port.number, now);
                        PortReport {
                            port: port.number,
                            peer: self.plan.peer(&port.beyond).into(),
                            rate: link.rate,
                            delay_ns: link.delay.0,
                            no_mbuf: port.no_mbuf,
                            storms: switch.storms(port.number),
                            global_pause_tx: sent.into(),
                            global_pause_rx: received.into(),
                            queues: (0..8).filter_map(|p| self.queue(port, p, now)).collect(),
                        }
                    })
                    .collect(),
            });
        }
        FabricReport { switches }
    }

    /// A priority of a port, if anything happened to it.
    fn queue(&self, port: &FabricPort, priority: u8, now: Nanos) -> Option<QueueReport> {
        let switch = &self.switches[port.switch];
        let out = switch.queue_counters(port.number, priority);
        let came = switch.ingress_counters(port.number, priority);
        let [sent, received] = switch.pause_counts(port.number, priority, now);
        let report = QueueReport {
            priority,
            depth: switch.depth(port.number, priority),
            max_depth: out.max_depth,
            tx_frames: out.tx_frames,
            tx_bytes: out.tx_bytes,
            ce_marked: out.ce_marked,
            dropped: out.dropped,
            dropped_not_ect: out.dropped_not_ect,
            dropped_storm: out.dropped_storm,
            rx_frames: came.rx_frames,
            rx_bytes: came.rx_bytes,
            rx_dropped: came.dropped,
            unroutable: came.unroutable,
            held: switch.held(port.number, priority),
            max_headroom: came.max_headroom,
            pause_tx: sent.into(),
            pause_rx: received.into(),
            depths: port.depths.counts(priority),
        };
        let idle = QueueReport {
            priority,
            ..QueueReport::default()
        };
        (report != idle).then_some(report)
    }
}
