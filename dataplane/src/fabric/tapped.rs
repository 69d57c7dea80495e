//! What captures hear of the ports of switches: each frame when its turn to be sent begins, with the mark that it leaves with, and when it is
//! here, as it came. Pause frames are among them, also those between switches of one lcore, which are no bytes there.
//!
//! Times are those of the emulation, so a port that is shaped to a rate is seen to have it, however late a poll comes.

use std::time::{Duration, Instant};

use roceline_engine::wire::PauseFrame;
use roceline_engine::wire::pause;

use super::Fabric;
use super::plan::Beyond;
use crate::lcore::tap::{Packet, Taps};

/// Whether captures listen, and what time it is for them.
#[derive(Debug)]
pub(super) struct Ear {
    open: bool,
    /// When it was `now`, in picoseconds of the lcore's time.
    instant: Instant,
    now: u64,
    /// The newest time that was told since it is open: between two polls the thread's clock may stand still, and no time is told after
    /// a later one.
    newest: Option<Instant>,
}

impl Ear {
    pub(super) fn new() -> Ear {
        Ear {
            open: false,
            instant: Instant::now(),
            now: 0,
            newest: None,
        }
    }

    /// A poll begins.
    #[inline]
    pub(super) fn look(&mut self, now: u64) {
        if self.open {
            self.instant = Instant::now();
            self.now = now;
        }
    }

    /// The time of day, so to say, at `at`.
    fn when(&mut self, at: u64) -> Instant {
        let ago = Duration::from_nanos(self.now.saturating_sub(at) / 1_000);
        let when = self.instant.checked_sub(ago).unwrap_or(self.instant);
        *self
            .newest
            .insert(self.newest.map_or(when, |newest| newest.max(when)))
    }
}

impl Fabric {
    /// Looks which of its ports `taps` listen to. To be called when they change.
    pub fn listen(&mut self, taps: &Taps) {
        let open = self.ports.iter().any(|port| taps.hears(port.interface));
        if open && !self.ear.open {
            self.ear.newest = None;
        }
        self.ear.open = open;
    }

    /// A frame leaves by a port (`outbound`), or is here.
    #[inline]
    pub(super) fn hear(
        &mut self,
        taps: &mut Taps,
        place: usize,
        outbound: bool,
        frame: &[u8],
        at: u64,
    ) {
        if self.ear.open {
            self.record(taps, place, outbound, frame, at);
        }
    }

    #[cold]
    fn record(&mut self, taps: &mut Taps, place: usize, outbound: bool, frame: &[u8], at: u64) {
        let packet = Packet {
            outbound,
            frame,
            notes: &[],
            dropped_by: None,
        };
        let when = self.ear.when(at);
        taps.record_at(self.ports[place].interface, &packet, when);
    }

    /// A pause frame likewise.
    #[inline]
    pub(super) fn hear_pause(
        &mut self,
        taps: &mut Taps,
        place: usize,
        outbound: bool,
        pause: &PauseFrame,
        at: u64,
    ) {
        if self.ear.open {
            let mut bytes = [0; pause::LEN];
            let port = &self.ports[place];
            let from = match (outbound, port.beyond) {
                (false, Beyond::Switch(other, number, _)) => self.plan.port_mac(other, number),
                _ => port.mac,
            };
            pause.emit(&from, &mut bytes);
            self.record(taps, place, outbound, &bytes, at);
        }
    }
}
