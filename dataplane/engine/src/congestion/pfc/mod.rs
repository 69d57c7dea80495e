//! Pause by priority (PFC, IEEE 802.1Q clause 36) and for all (802.3x): what a NIC's port and a switch's port have in common.
//!
//! A [`PauseReceiver`] takes pause frames that came and says which priorities may not send. A [`PauseSender`] takes how many bytes
//! wait and says which frames are to be sent. Both are plain state of whoever owns the port: `now` goes in, the next deadline
//! comes out, and what only time changes is worked out when somebody asks. Both watch for storms, pauses that do not end.

mod receiver;
mod sender;
mod settings;
mod tally;
#[cfg(test)]
mod tests;

pub use receiver::PauseReceiver;
pub use sender::PauseSender;
pub use settings::{PauseMode, PfcError, PfcSettings, StormAction, Watchdog};

use crate::Nanos;

/// Bits whose time on the link is one quantum of pause (IEEE 802.3 31B.2).
pub const QUANTUM_BITS: u64 = 512;

/// Bytes that a frame takes on a link besides its IP packet: Ethernet header, 802.1Q tag, FCS, preamble and gap.
const FRAME_OVERHEAD: u64 = 14 + 4 + 4 + 8 + 12;
/// What a sender may send between the arrival of a pause frame and its obedience: 60 quanta, the allowance of the public derivations
/// of headroom (IEEE 802.3 31B.3.7 allows so many at 10 Gb/s, and more at higher rates, most of it for the physical layer).
const RESPONSE_BYTES: u64 = 60 * QUANTUM_BITS / 8;
/// Light in fibre and signals in copper: 5 ns for a metre.
const CABLE_PS_PER_METRE: u64 = 5_000;

/// How long `quanta` are on a link of `rate` bits per second, to the next nanosecond.
#[inline]
pub fn quanta_time(quanta: u16, rate: u64) -> Nanos {
    // At most 2^16 * 2^9 * 2^30, which fits.
    Nanos((u64::from(quanta) * QUANTUM_BITS * 1_000_000_000).div_ceil(rate.max(1)))
}

/// Bytes that can still arrive after XOFF was decided on, for a link of `rate` bits per second with IP packets up to `mtu` bytes
/// over a cable of `cable_m` metres: a frame of ours in front of the pause frame, the cable there and back, the sender's response, and a
/// frame that it had begun.
pub const fn headroom(rate: u64, mtu: u32, cable_m: u32) -> u64 {
    let frame = mtu as u64 + FRAME_OVERHEAD;
    let round_trip_ps = 2 * CABLE_PS_PER_METRE * cable_m as u64;
    let cable = (round_trip_ps as u128 * rate as u128).div_ceil(8_000_000_000_000);
    2 * frame + RESPONSE_BYTES + cable as u64
}

/// Where to stop and where to go on, in bytes that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Threshold {
    /// Above this many, the other end is to stop.
    pub xoff: u64,
    /// At this many or fewer it may go on. Never more than `xoff`.
    pub xon: u64,
}

impl Threshold {
    /// A queue may have as much as 2^`alpha_log2` times what is free of the buffer that it shares (Choudhury and Hahne, "Dynamic Queue
    /// Length Thresholds for Shared-Memory Packet Switches", 1998): few busy queues get much, many get little. The other end
    /// goes on `hysteresis` bytes below.
    pub const fn dynamic(free: u64, alpha_log2: i8, hysteresis: u64) -> Threshold {
        let shift = alpha_log2.unsigned_abs() as u32;
        let xoff = match (alpha_log2 < 0, shift < 16) {
            (_, false) => 0,
            (true, true) => free >> shift,
            (false, true) => free.saturating_mul(1 << shift),
        };
        Threshold {
            xoff,
            xon: xoff.saturating_sub(hysteresis),
        }
    }
}

/// What is counted of pauses, of one priority or all of them together, in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseCounts {
    /// Frames, those that say go on included.
    pub frames: u64,
    /// Time in pause.
    pub duration: Nanos,
    /// Pauses that ended.
    pub transitions: u64,
}

impl PauseCounts {
    /// Adds what `other` counted.
    pub fn add(&mut self, other: &PauseCounts) {
        self.frames += other.frames;
        self.duration = self.duration + other.duration;
        self.transitions += other.transitions;
    }
}
