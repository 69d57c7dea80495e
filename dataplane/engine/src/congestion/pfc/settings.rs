//! What of pauses can be set for a NIC, and which settings go together. Plain data: whoever reads it, from a file or a command,
//! checks it with [`PfcSettings::validate`] before it reaches a port.

use thiserror::Error;

use super::super::priority::{PriorityMap, PriorityMask};
use super::{Threshold, headroom};
use crate::Nanos;

/// Which kind of pause frames a port sends and obeys. The two exclude each other (IEEE 802.1Q 36.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PauseMode {
    /// None.
    #[default]
    Off,
    /// PFC: by priority.
    Pfc,
    /// PAUSE of 802.3x: all priorities at once.
    Global,
}

/// What happens to packets of a priority whose pause the watchdog no longer believes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StormAction {
    /// They are sent, against the pause.
    #[default]
    Forward,
    /// They are dropped, as a switch does to get rid of what fills its buffer.
    Drop,
}

/// Limits to pauses that do not end. A limit of 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog {
    /// Received pauses: a priority that was paused so long without a break is in a storm, and pauses of it are ignored.
    pub rx_limit: Nanos,
    /// Until none has come for so long.
    pub rx_restore: Nanos,
    /// What becomes of its packets then.
    pub rx_action: StormAction,
    /// Sent pauses: after so long without a break no more are sent for the priority, and what finds no room is dropped, until it has
    /// drained.
    pub tx_limit: Nanos,
}

impl Watchdog {
    /// The part of `tx_limit` after which there is a warning (Linux, mlx5 `en_ethtool.c`: 85 %).
    pub const WARNING_PERCENT: u64 = 85;
}

impl Default for Watchdog {
    /// Received: 200 ms and 200 ms (Junos: polled every 100 ms, detected after two polls, restored after 200 ms). Sent: 8 s (Linux, mlx5:
    /// PFC stall prevention by default; its range is 80 to 8000 ms).
    fn default() -> Watchdog {
        Watchdog {
            rx_limit: Nanos::from_millis(200),
            rx_restore: Nanos::from_millis(200),
            rx_action: StormAction::Forward,
            tx_limit: Nanos::from_millis(8_000),
        }
    }
}

/// Pauses of a NIC's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PfcSettings {
    /// Kind of pause frames.
    pub mode: PauseMode,
    /// With [`PauseMode::Pfc`]: the priorities that pause and are paused; the others are lossy.
    pub priorities: PriorityMask,
    /// Which priority a frame has.
    pub map: PriorityMap,
    /// Bytes of received frames that may wait in the NIC, shared evenly by `priorities`.
    pub buffer_bytes: u32,
    /// Bytes of one priority (of all, with [`PauseMode::Global`]) above which the other end is to stop. None: its share of the buffer
    /// without the headroom and a frame.
    pub xoff_bytes: Option<u32>,
    /// Bytes at which it may go on. None: two frames below `xoff_bytes`.
    pub xon_bytes: Option<u32>,
    /// Metres of cable, for the headroom.
    pub cable_m: u32,
    /// Bytes of one priority for what still comes after XOFF. None: worked out from rate, MTU and cable ([`headroom`]).
    pub headroom_bytes: Option<u32>,
    /// Time that a pause frame of ours asks for, in quanta of 512 bit times. It is asked for again after half of it.
    pub quanta: u16,
    /// Limits to pauses that do not end.
    pub watchdog: Watchdog,
}

impl Default for PfcSettings {
    /// Off; when it is turned on without more words, priority 3 is lossless (the convention of RoCE deployments), by DSCP.
    fn default() -> PfcSettings {
        PfcSettings {
            mode: PauseMode::Off,
            priorities: 1 << 3,
            map: PriorityMap::default(),
            buffer_bytes: 256 << 10,
            xoff_bytes: None,
            xon_bytes: None,
            cable_m: 5,
            headroom_bytes: None,
            quanta: u16::MAX,
            watchdog: Watchdog::default(),
        }
    }
}

/// Settings that do not go together.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PfcError {
    /// PFC for no priority.
    #[error("PFC is on for no priority; name at least one (RoCE usually has 3), or turn it off")]
    NoPriority,
    /// A pause of no time.
    #[error("quanta = 0 would ask for no pause; 1 to 65535 are allowed")]
    NoQuanta,
    /// No room behind XOFF.
    #[error(
        "xoff_bytes = {xoff} leaves no room: the share of a priority is {share} bytes and {headroom} of them must be free when it stops \
         ({why}); raise buffer_bytes, or lower xoff_bytes{or}"
    )]
    NoHeadroom {
        /// Bytes at which it stops.
        xoff: u64,
        /// Bytes of the priority.
        share: u64,
        /// Bytes that come after that.
        headroom: u64,
        /// What these are.
        why: &'static str,
        /// What else could be lowered.
        or: &'static str,
    },
    /// A buffer that cannot hold what comes after XOFF.
    #[error(
        "buffer_bytes = {buffer} is too small for {priorities} lossless priorities at this rate: each needs {needed} bytes"
    )]
    SmallBuffer {
        /// Bytes of all.
        buffer: u32,
        /// How many share it.
        priorities: u32,
        /// Bytes that one needs.
        needed: u64,
    },
    /// Goes on before it stops.
    #[error("xon_bytes = {xon} is above xoff_bytes = {xoff}; it must be at or below")]
    XonAboveXoff {
        /// Where it goes on.
        xon: u64,
        /// Where it stops.
        xoff: u64,
    },
    /// A watchdog that would take every pause for a storm.
    #[error("{name} = {value} us is out of range: 0 (no watchdog) or 1000 to 60000000 us")]
    Watchdog {
        /// The limit.
        name: &'static str,
        /// Its microseconds.
        value: u64,
    },
}

impl PfcSettings {
    /// Whether it changes anything.
    pub fn is_on(&self) -> bool {
        self.mode != PauseMode::Off
    }

    /// Where to stop and to go on, for a link of `rate` bits per second with IP packets up to `mtu` bytes.
    ///
    /// # Errors
    ///
    /// When the buffer does not hold the headroom behind XOFF, or XON lies above XOFF.
    pub fn threshold(&self, rate: u64, mtu: u32) -> Result<Threshold, PfcError> {
        let priorities = match self.mode {
            PauseMode::Pfc => self.priorities.count_ones().max(1),
            PauseMode::Off | PauseMode::Global => 1,
        };
        let share = u64::from(self.buffer_bytes / priorities);
        let set = self.headroom_bytes.map(u64::from);
        let headroom = set.unwrap_or_else(|| headroom(rate, mtu, self.cable_m));
        let frame = u64::from(mtu) + super::FRAME_OVERHEAD;
        // A frame is counted when all of it is there, so the one that passes XOFF comes on top.
        let room = share.saturating_sub(headroom + frame);
        let xoff = match self.xoff_bytes {
            Some(xoff) => u64::from(xoff),
            // Less than this, and every frame would stop the link.
            None if room < 2 * frame => {
                return Err(PfcError::SmallBuffer {
                    buffer: self.buffer_bytes,
                    priorities,
                    needed: headroom + 3 * frame,
                });
            }
            None => room,
        };
        if xoff > room {
            return Err(PfcError::NoHeadroom {
                xoff,
                share,
                headroom,
                why: match set {
                    Some(_) => "headroom_bytes",
                    None => "two frames, the response time, and what cable_m metres of cable hold",
                },
                or: match set {
                    Some(_) => " or headroom_bytes",
                    None => " or cable_m",
                },
            });
        }
        let xon = self
            .xon_bytes
            .map_or(xoff.saturating_sub(2 * frame), u64::from);
        if xon > xoff {
            return Err(PfcError::XonAboveXoff { xon, xoff });
        }
        Ok(Threshold { xoff, xon })
    }

    /// Checks them all, for a link of `rate` bits per second with IP packets up to `mtu` bytes.
    ///
    /// # Errors
    ///
    /// Says which setting does not go with which, and what to change. Settings that are off are not checked.
    pub fn validate(&self, rate: u64, mtu: u32) -> Result<(), PfcError> {
        if !self.is_on() {
            return Ok(());
        }
        if self.mode == PauseMode::Pfc && self.priorities == 0 {
            return Err(PfcError::NoPriority);
        }
        self.validate_times()?;
        self.threshold(rate, mtu).map(|_| ())
    }

    /// Checks how long pauses last, and how long they may.
    ///
    /// # Errors
    ///
    /// As [`PfcSettings::validate`].
    pub fn validate_times(&self) -> Result<(), PfcError> {
        if self.quanta == 0 {
            return Err(PfcError::NoQuanta);
        }
        let Watchdog {
            rx_limit,
            rx_restore,
            tx_limit,
            ..
        } = self.watchdog;
        for (name, limit, may_be_off) in [
            ("watchdog rx_limit", rx_limit, true),
            ("watchdog rx_restore", rx_restore, false),
            ("watchdog tx_limit", tx_limit, true),
        ] {
            let value = limit.0 / 1000;
            if !((may_be_off && limit == Nanos::ZERO) || (1_000..=60_000_000).contains(&value)) {
                return Err(PfcError::Watchdog { name, value });
            }
        }
        Ok(())
    }
}
