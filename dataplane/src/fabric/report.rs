//! What a fabric says of itself: plain numbers, for `roceline show fabric` and whoever else asks.

use roceline_engine::Nanos;
use roceline_engine::congestion::pfc::PauseCounts;
use serde::{Deserialize, Serialize};

use super::plan::Beyond;
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
    /// Copies for groups, and pause frames, for which there was no packet buffer.
    pub no_mbuf: u64,
    /// Pauses of the switch that did not end, and pauses that it was asked for that did not.
    pub storms: [u64; 2],
    /// By priority: those that were used.
    pub queues: Vec<QueueReport>,
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
        for (n, plan) in self.plan.switches.iter().enumerate() {
            let switch = &self.switches[n];
            let (used, max_used) = switch.shared();
            let ports = self.ports.iter().filter(|port| port.switch == n);
            let beyond = |port: &FabricPort| match port.beyond {
                Beyond::Station(station) => self.plan.stations[station].name.clone(),
                Beyond::Switch(other, ..) => self.plan.switches[other].name.clone(),
            };
            switches.push(SwitchReport {
                name: plan.name.clone(),
                rate: plan.rate,
                delay_ns: plan.delay.0,
                buffer: plan.buffer,
                used,
                max_used,
                kmin: plan.red().map(|red| red.kmin),
                kmax: plan.red().map(|red| red.kmax),
                ports: ports
                    .map(|port| PortReport {
                        port: port.number,
                        peer: beyond(port),
                        no_mbuf: port.no_mbuf,
                        storms: switch.storms(port.number),
                        queues: (0..8).filter_map(|p| self.queue(port, p, now)).collect(),
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
