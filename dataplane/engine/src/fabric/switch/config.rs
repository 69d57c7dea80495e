//! What a switch is like: ports, buffer, classes. Plain data, checked once when a switch is made.

use super::marking::Red;
use crate::congestion::pfc::{self, PauseMode, PfcSettings, Watchdog};
use crate::wire::pause::PRIORITIES;

/// The largest number of ports.
pub const MAX_PORTS: usize = 4096;
/// What the shortest frame takes on an Ethernet, preamble and gap included (IEEE 802.3).
const SHORTEST: u32 = 84;
/// The longest frame that a switch takes, in bytes.
pub const MAX_FRAME: u32 = 65_535;

/// How much of the free shared buffer one queue may have: the alpha of dynamic thresholds (Choudhury and Hahne,
/// "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM Trans. Networking 6(2), 1998). Kept in
/// 1/1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alpha(u32);

impl Alpha {
    /// `numerator / denominator`, to the next lower 1/1024; a denominator of 0 counts as 1.
    pub const fn ratio(numerator: u32, denominator: u32) -> Alpha {
        let d = if denominator == 0 { 1 } else { denominator };
        let parts = numerator as u64 * 1024 / d as u64;
        Alpha(if parts > u32::MAX as u64 {
            u32::MAX
        } else {
            parts as u32
        })
    }

    /// In 1/1024.
    pub const fn parts(self) -> u32 {
        self.0
    }

    /// The threshold while so many bytes are free.
    #[inline]
    pub(super) fn of(self, free: u64) -> u64 {
        // Saturates only where no threshold would be wanted.
        free.saturating_mul(u64::from(self.0)) >> 10
    }
}

/// How the frames of a class get their turn at an egress port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Before all weighted ones; the highest priority first.
    Strict,
    /// By deficit round robin (Shreedhar and Varghese, SIGCOMM 1995), with this share of 1 to 255.
    Weighted(u8),
}

/// What happens to the frames of one priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassConfig {
    /// The upstream is paused before a frame is lost (IEEE 802.1Qbb); else a frame without room is dropped.
    pub lossless: bool,
    /// Share of the free shared buffer: of an ingress port's frames if lossless, of an egress queue's if not.
    pub alpha: Alpha,
    /// Bytes that only it may use: per ingress port if lossless, per egress queue if not.
    pub reserved_bytes: u32,
    /// A paused upstream may go on once its frames are so far below the dynamic threshold, or gone.
    pub xon_offset_bytes: u32,
    /// Marking of packets that are ECN-capable.
    pub red: Option<Red>,
    /// With `red`, in a lossy class: packets that are not ECN-capable are dropped where others would be marked, as RFC 3168
    /// section 5 has it.
    pub drop_not_ect: bool,
    /// Its turn at the egress ports.
    pub turn: Turn,
}

impl ClassConfig {
    /// Best effort: frames without room are dropped; alpha 1, no marking.
    pub const fn lossy() -> ClassConfig {
        ClassConfig {
            lossless: false,
            alpha: Alpha::ratio(1, 1),
            reserved_bytes: 0,
            xon_offset_bytes: 0,
            red: None,
            drop_not_ect: false,
            turn: Turn::Weighted(1),
        }
    }

    /// Lossless, alpha 1/8 as is common for one or two such classes.
    pub const fn lossless() -> ClassConfig {
        ClassConfig {
            lossless: true,
            alpha: Alpha::ratio(1, 8),
            ..ClassConfig::lossy()
        }
    }
}

/// A port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Rate in bits per second: what a pause quantum (512 bit times, IEEE 802.3 31B) is.
    pub bits_per_s: u64,
    /// Bytes for what still comes after a pause was sent: of each lossless class.
    pub headroom_bytes: u32,
    /// Marking at this port instead of what its classes say, in those that mark.
    pub red: Option<Red>,
}

impl PortConfig {
    /// A port of `bits_per_s` with the headroom for IP packets of up to `mtu` bytes and a cable of `cable_m` metres, in
    /// cells of `cell` bytes. What comes after the pause may be frames of the least length, which take a whole cell each.
    pub const fn new(bits_per_s: u64, mtu: u32, cable_m: u32, cell: u32) -> PortConfig {
        let bytes = pfc::headroom(bits_per_s, mtu, cable_m);
        let cells = match cell > SHORTEST {
            true => bytes.saturating_mul(cell as u64) / SHORTEST as u64 + cell as u64,
            false => bytes,
        };
        PortConfig {
            bits_per_s,
            headroom_bytes: if cells > u32::MAX as u64 {
                u32::MAX
            } else {
                cells as u32
            },
            red: None,
        }
    }
}

/// A switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchConfig {
    /// Its ports.
    pub ports: Vec<PortConfig>,
    /// All of its packet memory in bytes: reserved, headroom and shared.
    pub buffer_bytes: u64,
    /// Memory is given out in cells of so many bytes; a frame takes whole ones. It bounds the number of frames, too.
    pub cell_bytes: u32,
    /// By priority.
    pub classes: [ClassConfig; PRIORITIES],
    /// Kind of pause frames that lossless classes use.
    pub pause: PauseMode,
    /// Time that a pause frame asks for, in quanta of 512 bit times.
    pub quanta: u16,
    /// Limits to pauses that do not end.
    pub watchdog: Watchdog,
    /// Of marking and of the choice among equal paths.
    pub seed: u64,
}

impl SwitchConfig {
    /// Bytes of a cell that are usual (real chips: 80 to 256).
    pub const CELL: u32 = 256;

    /// A switch as RoCE is deployed with: priority 3 lossless and marked, priority 6 (of CNPs) before all others, the rest
    /// best effort. Marks begin at 4 kB and end at 16 kB for each Gb/s of a port, at 20 % (as the ns-3 model of HPCC, SIGCOMM
    /// 2019, is configured: 400 kB, 1.6 MB at 100 Gb/s); `shared` bytes of buffer are for all.
    pub fn roce(ports: Vec<PortConfig>, shared: u64) -> SwitchConfig {
        let mut classes = [ClassConfig::lossy(); PRIORITIES];
        classes[3] = ClassConfig {
            red: Some(Red::at_rate(ports.first().map_or(0, |p| p.bits_per_s))),
            ..ClassConfig::lossless()
        };
        classes[6].turn = Turn::Strict;
        let ports = ports.into_iter().map(|port| PortConfig {
            red: port.red.or(Some(Red::at_rate(port.bits_per_s))),
            ..port
        });
        let mut config = SwitchConfig {
            ports: ports.collect(),
            buffer_bytes: 0,
            cell_bytes: SwitchConfig::CELL,
            classes,
            pause: PauseMode::Pfc,
            quanta: u16::MAX,
            watchdog: Watchdog::default(),
            seed: 0,
        };
        config.buffer_bytes = config.buffer_for(shared);
        config
    }

    /// The smallest buffer that holds all that is reserved, all headroom, and `shared` bytes beside them.
    pub fn buffer_for(&self, shared: u64) -> u64 {
        self.set_aside().saturating_add(shared)
    }

    /// Its lossless classes as ports understand them.
    pub(super) fn pause_settings(&self) -> PfcSettings {
        let lossless = self.classes.iter().enumerate().filter(|(_, c)| c.lossless);
        let priorities = lossless.fold(0, |mask, (p, _)| mask | 1 << p);
        PfcSettings {
            mode: match priorities {
                0 => PauseMode::Off,
                _ => self.pause,
            },
            priorities,
            quanta: self.quanta,
            watchdog: self.watchdog,
            ..PfcSettings::default()
        }
    }

    /// Bytes that are nobody's but one queue's.
    pub(super) fn set_aside(&self) -> u64 {
        let lossless = self.classes.iter().filter(|c| c.lossless).count() as u64;
        let reserved = self
            .classes
            .iter()
            .map(|c| u64::from(c.reserved_bytes))
            .sum::<u64>();
        let headroom = self.ports.iter().map(|p| u64::from(p.headroom_bytes));
        reserved * self.ports.len() as u64 + headroom.sum::<u64>() * lossless
    }

    /// Whether a switch can be made of it.
    ///
    /// # Errors
    /// What cannot be, and what would do.
    pub fn validate(&self) -> Result<(), SwitchError> {
        let out_of_range = |setting, value, remedy| {
            Err(SwitchError::Value {
                setting,
                value,
                remedy,
            })
        };
        if self.ports.is_empty() || self.ports.len() > MAX_PORTS {
            return out_of_range("ports", self.ports.len() as u64, "1 to 4096 are allowed");
        }
        if !(64..=MAX_FRAME).contains(&self.cell_bytes) {
            let value = self.cell_bytes.into();
            return out_of_range("cell_bytes", value, "64 to 65535 are allowed");
        }
        if self.buffer_bytes > 1 << 40 || self.frames() > 1 << 30 {
            let remedy = "1 TiB and 2^30 cells at most";
            return out_of_range("buffer_bytes", self.buffer_bytes, remedy);
        }
        if let Some(port) = self.ports.iter().find(|p| p.bits_per_s == 0) {
            return out_of_range("bits_per_s", port.bits_per_s, "more than 0 is needed");
        }
        if self.quanta == 0 {
            return out_of_range("quanta", 0, "1 to 65535 are allowed");
        }
        let weightless = |c: &ClassConfig| c.turn == Turn::Weighted(0);
        if self.classes.iter().any(weightless) {
            return out_of_range("weight", 0, "1 to 255 are allowed");
        }
        let reds = self.classes.iter().filter_map(|c| c.red);
        let mut reds = reds.chain(self.ports.iter().filter_map(|p| p.red));
        if let Some(Red { kmin, kmax, .. }) = reds.find(|red| red.kmin > red.kmax) {
            return Err(SwitchError::Marking { kmin, kmax });
        }
        let set_aside = self.set_aside();
        if self.buffer_bytes <= set_aside {
            return Err(SwitchError::Buffer {
                bytes: self.buffer_bytes,
                set_aside,
            });
        }
        Ok(())
    }

    /// Frames that there can be at most.
    pub(super) fn frames(&self) -> u64 {
        self.buffer_bytes / u64::from(self.cell_bytes.max(1))
    }
}

/// A switch that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SwitchError {
    /// Out of range.
    #[error("{setting} {value}: {remedy}")]
    Value {
        /// Which.
        setting: &'static str,
        /// As given.
        value: u64,
        /// What would do.
        remedy: &'static str,
    },
    /// Nothing is left to share.
    #[error(
        "a buffer of {bytes} bytes has no room to share beside {set_aside} bytes that are reserved or headroom; \
         make it larger, or have fewer lossless classes"
    )]
    Buffer {
        /// As given.
        bytes: u64,
        /// Reserved and headroom.
        set_aside: u64,
    },
    /// Marking that ends before it begins.
    #[error("Kmin {kmin} is above Kmax {kmax}; write the smaller one as Kmin")]
    Marking {
        /// Bytes.
        kmin: u32,
        /// Bytes.
        kmax: u32,
    },
    /// A route to nowhere.
    #[error("a route leads to port {port}, but there are {ports}; the first one is port 0")]
    Route {
        /// As given.
        port: u16,
        /// Ports of the switch.
        ports: usize,
    },
}
