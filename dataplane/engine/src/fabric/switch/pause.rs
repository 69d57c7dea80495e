//! Pauses at the ports of a switch: those that its upstreams are told of, and those that the stations beyond its ports ask
//! for. The state machines are those of a NIC's port ([`crate::congestion::pfc`]); here is when each of many ports needs
//! a look.

use std::collections::VecDeque;

use super::config::SwitchConfig;
use crate::congestion::pfc::{PauseCounts, PauseReceiver, PauseSender, Threshold};
use crate::time::Nanos;
use crate::timers::TimerWheel;
use crate::wire::pause::PauseFrame;

/// Of whatever waits, one byte is too much: what is too much is decided by the shared buffer.
const ANY: Threshold = Threshold { xoff: 0, xon: 0 };

struct Port {
    sender: PauseSender,
    receiver: PauseReceiver,
    /// Priorities of which too much has come, a bit each.
    over: u8,
    /// It stands in `owing`.
    owes: bool,
}

/// Of all ports.
pub(super) struct Pauses {
    ports: Vec<Port>,
    /// Timer 2n: something changes for port n as a receiver of pauses; 2n + 1: as a sender.
    timers: TimerWheel,
    /// Ports that may have a frame to send.
    owing: VecDeque<u16>,
}

impl Pauses {
    pub(super) fn new(config: &SwitchConfig) -> Pauses {
        let settings = config.pause_settings();
        let port = |rate| Port {
            sender: PauseSender::new(&settings, rate),
            receiver: PauseReceiver::new(&settings, rate),
            over: 0,
            owes: false,
        };
        let ports: Vec<Port> = config.ports.iter().map(|p| port(p.bits_per_s)).collect();
        Pauses {
            timers: TimerWheel::new(2 * ports.len() as u32),
            owing: VecDeque::with_capacity(ports.len()),
            ports,
        }
    }

    /// Too much of a priority has come by a port, or no longer.
    pub(super) fn set_over(&mut self, port: usize, priority: usize, over: bool, now: Nanos) {
        let state = &mut self.ports[port];
        match over {
            true => state.over |= 1 << priority,
            false => state.over &= !(1 << priority),
        }
        let Some(slot) = state.sender.slot(priority as u8) else {
            return;
        };
        // With PAUSE one slot stands for all priorities.
        let any = (0..8).any(|p| state.over >> p & 1 == 1 && state.sender.slot(p) == Some(slot));
        state.sender.level(slot, any.into(), ANY, now);
        self.owe(port);
    }

    fn owe(&mut self, port: usize) {
        if !std::mem::replace(&mut self.ports[port].owes, true) {
            self.owing.push_back(port as u16);
        }
    }

    /// The next frame to send.
    #[inline]
    pub(super) fn next(&mut self, now: Nanos) -> Option<(u16, PauseFrame)> {
        while let Some(&port) = self.owing.front() {
            let state = &mut self.ports[usize::from(port)];
            if let Some(frame) = state.sender.poll(now) {
                return Some((port, frame));
            }
            state.owes = false;
            self.owing.pop_front();
            let timer = 2 * u32::from(port) + 1;
            arm(&mut self.timers, timer, state.sender.next_deadline());
        }
        None
    }

    pub(super) fn receive(&mut self, port: usize, frame: &PauseFrame, now: Nanos) {
        let receiver = &mut self.ports[port].receiver;
        receiver.on_frame(frame, now);
        arm(&mut self.timers, 2 * port as u32, receiver.next_deadline());
    }

    /// The priorities that may not be sent at a port.
    #[inline]
    pub(super) fn stopped(&mut self, port: usize, now: Nanos) -> u8 {
        self.ports[port].receiver.advance(now)
    }

    /// The priorities whose frames are to be dropped at a port.
    #[inline]
    pub(super) fn discarding(&self, port: usize) -> u8 {
        self.ports[port].receiver.discarding()
    }

    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        self.timers.next_deadline()
    }

    pub(super) fn advance(&mut self, now: Nanos, mut ended: impl FnMut(u16)) {
        while let Some(timer) = self.timers.pop_due(now) {
            let port = (timer / 2) as usize;
            if timer % 2 == 1 {
                self.owe(port);
                continue;
            }
            let receiver = &mut self.ports[port].receiver;
            receiver.advance(now);
            arm(&mut self.timers, timer, receiver.next_deadline());
            ended(port as u16);
        }
    }

    /// Of what a port sent of a priority, and of what it got.
    pub(super) fn counts(&self, port: usize, priority: usize, now: Nanos) -> [PauseCounts; 2] {
        let Port {
            sender, receiver, ..
        } = &self.ports[port];
        [sender.counts(priority, now), receiver.counts(priority, now)]
    }

    /// The same of PAUSE.
    pub(super) fn global_counts(&self, port: usize, now: Nanos) -> [PauseCounts; 2] {
        let Port {
            sender, receiver, ..
        } = &self.ports[port];
        [sender.global_counts(now), receiver.global_counts(now)]
    }

    /// Pauses that did not end: of ours, and of theirs.
    pub(super) fn storms(&self, port: usize) -> [u64; 2] {
        let Port {
            sender, receiver, ..
        } = &self.ports[port];
        [sender.storms().1, receiver.storms().iter().sum()]
    }
}

fn arm(timers: &mut TimerWheel, timer: u32, at: Option<Nanos>) {
    match at {
        Some(at) => timers.arm(timer, at),
        None => timers.cancel(timer),
    }
}
