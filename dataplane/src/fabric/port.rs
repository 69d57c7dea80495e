//! A port of a switch: the cable to a NIC or another switch, as both directions of it look from here.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use roceline_engine::wire::PauseFrame;
use roceline_engine::wire::pause;

use super::depths::Depths;
use super::frame::link_bytes;
use super::line::Line;
use super::plan::Beyond;
use crate::port::{Burst, Driver, FabricEnd, Mbuf, Mempool, RX_BURST};

/// Pause frames on their way over a cable, in one direction, at most: on top of frames, and few.
pub(super) const PAUSES: usize = 256;
/// Never: what no event is planned for.
pub(super) const NEVER: u64 = u64::MAX;

/// What travels on a cable.
#[derive(Debug)]
pub(super) enum Carried {
    Frame(Mbuf),
    /// Between switches a pause needs no bytes.
    Pause(PauseFrame),
}

/// What is at the other end.
#[derive(Debug)]
pub(super) enum Peer {
    /// A NIC, or a port of a switch of another lcore: the end of the link that is ours.
    Link(Box<LinkEnd>),
    /// A port of a switch of this lcore, by its place among the ports of the fabric.
    Port(usize),
}

/// The link to a NIC, or to a switch of another lcore, which is a NIC in all that follows.
#[derive(Debug)]
pub(super) struct LinkEnd {
    end: FabricEnd,
    /// The NIC as the sender that it would be on a cable of this rate; without one if a switch is there, which sends at the cable's.
    uplink: Line,
    /// Taken from the link, and not yet begun to be sent.
    staged: VecDeque<Mbuf>,
    /// Pause frames of the NIC on their way to us, in front of all that waits: when they are here.
    told: VecDeque<(u64, Mbuf)>,
    /// On its way to the NIC: when it is there.
    flight: VecDeque<(u64, Mbuf)>,
    /// Our pause frames on their way to it, which no frame that the NIC has no room for holds up.
    pauses: VecDeque<(u64, Mbuf)>,
    burst: Burst,
    /// The NIC is on another lcore.
    apart: bool,
    /// The NIC has not read what is on its link, which took not all that was due: somebody has to look when it does.
    full: bool,
}

/// A port.
#[derive(Debug)]
pub(super) struct FabricPort {
    /// Its switch.
    pub switch: usize,
    /// Its number there.
    pub number: u16,
    /// Its number among what can be captured.
    pub interface: usize,
    /// Of its pause frames.
    pub mac: [u8; 6],
    /// What is at the other end, by its names in the plan.
    pub beyond: Beyond,
    pub peer: Peer,
    /// Our direction.
    pub out: Line,
    /// On its way to us: when it is here.
    pub arriving: VecDeque<(u64, Carried)>,
    /// Frames on their way at most.
    pub flight: usize,
    /// The cable is full: sending goes on when something has left it.
    pub blocked: bool,
    /// The first of the frames that are here has no room in the switch, and can wait where it is: see [`FabricPort::can_wait`].
    pub stalled: bool,
    /// Frames for which there was no buffer: copies of those for everybody, and pause frames, also those that a NIC did not read in time.
    pub no_mbuf: u64,
    /// Depths of its queues.
    pub depths: Depths,
}

impl LinkEnd {
    pub(super) fn new(end: FabricEnd, uplink: Line, room: usize, apart: bool) -> LinkEnd {
        LinkEnd {
            end,
            uplink,
            staged: VecDeque::with_capacity(RX_BURST),
            told: VecDeque::with_capacity(PAUSES),
            flight: VecDeque::with_capacity(room),
            pauses: VecDeque::with_capacity(PAUSES),
            burst: Burst::new(),
            apart,
            full: false,
        }
    }

    /// Takes what the NIC has sent since `last`, as fast as its line is, and plans its arrival. All in picoseconds. Gives how many frames, pause
    /// frames aside.
    fn take(
        &mut self,
        arriving: &mut VecDeque<(u64, Carried)>,
        room: usize,
        last: u64,
        now: u64,
    ) -> usize {
        let mut taken = 0;
        if self.told.len() + RX_BURST <= PAUSES {
            self.end.rx_control(&mut self.burst);
            for mbuf in self.burst.drain() {
                let due = self.uplink.send(last, link_bytes(mbuf.len()));
                self.told.push_back((due, mbuf));
            }
        }
        loop {
            if self.staged.is_empty() {
                // Whatever waits stands here, so that it is seen whether something does.
                if self.end.rx_burst(&mut self.burst) == 0 {
                    break;
                }
                self.staged.extend(self.burst.drain());
            }
            if self.uplink.free() > now || arriving.len() >= room {
                break;
            }
            let Some(mbuf) = self.staged.pop_front() else {
                break;
            };
            // It came at some time since the last look; a line that was busy then goes on without a gap.
            let due = self.uplink.send(last, link_bytes(mbuf.len()));
            arriving.push_back((due, Carried::Frame(mbuf)));
            taken += 1;
        }
        taken
    }

    /// Gives the NIC the pause frames that are there by now: they pass what its link is full of.
    fn deliver_pauses(&mut self, now: u64) {
        while self.burst.room() > 0 && self.pauses.front().is_some_and(|p| p.0 <= now) {
            let pushed = self
                .pauses
                .pop_front()
                .map(|(_, mbuf)| self.burst.push(mbuf));
            debug_assert!(matches!(pushed, Some(Ok(()))), "there was room");
        }
        self.end.tx_burst(&mut self.burst);
        // The NIC has not read those before. These are newer, and may be what lets it go on.
        while let Some(mbuf) = self.burst.pop() {
            self.pauses.push_front((now, mbuf));
        }
    }

    /// Gives the NIC what is there by now. Gives how many frames, pause frames aside.
    fn deliver(&mut self, now: u64) -> usize {
        self.deliver_pauses(now);
        let mut given = 0;
        self.full = self.pauses.front().is_some_and(|p| p.0 <= now);
        loop {
            while self.burst.len() < RX_BURST && self.flight.front().is_some_and(|f| f.0 <= now) {
                let Some((due, mbuf)) = self.flight.pop_front() else {
                    break;
                };
                if let Err(mbuf) = self.burst.push(mbuf) {
                    self.flight.push_front((due, mbuf));
                    break;
                }
            }
            if self.burst.is_empty() {
                return given;
            }
            given += self.end.tx_burst(&mut self.burst);
            if !self.burst.is_empty() {
                // The link is full: what it did not take goes back to where it was, the last one first.
                while let Some(mbuf) = self.burst.pop() {
                    self.flight.push_front((now, mbuf));
                }
                self.full = true;
                return given;
            }
        }
    }
}

impl FabricPort {
    /// The link to the NIC, if that is on another lcore.
    fn far_end(&self) -> Option<&FabricEnd> {
        match &self.peer {
            Peer::Link(nic) if nic.apart => Some(&nic.end),
            _ => None,
        }
    }

    fn far_end_mut(&mut self) -> Option<&mut FabricEnd> {
        match &mut self.peer {
            Peer::Link(nic) if nic.apart => Some(&mut nic.end),
            _ => None,
        }
    }

    /// The NIC is on another lcore.
    pub(super) fn apart(&mut self) {
        if let Peer::Link(nic) = &mut self.peer {
            nic.apart = true;
        }
    }

    /// See [`Driver::rx_event`]; only where the NIC is on another lcore.
    pub(super) fn rx_event(&self) -> Option<BorrowedFd<'_>> {
        self.far_end().and_then(Driver::rx_event)
    }

    /// The NIC is on another lcore, and nothing tells when it sends, or when it reads what it has not read so far.
    pub(super) fn is_polled(&self) -> bool {
        match &self.peer {
            Peer::Link(nic) if nic.apart => {
                nic.end.rx_event().is_none() || nic.full || self.is_held_up()
            }
            _ => false,
        }
    }

    /// Frames of the NIC cannot be taken from its link, as the one that is first here has no room in the switch.
    fn is_held_up(&self) -> bool {
        match &self.peer {
            Peer::Link(nic) => self.stalled && !nic.staged.is_empty(),
            Peer::Port(_) => false,
        }
    }

    /// See [`Driver::arm_rx`]; true where nothing can be armed.
    pub(super) fn arm(&mut self) -> bool {
        if self.is_held_up() {
            // What is on the link has been seen, and waits for time, or for others.
            return true;
        }
        let end = self.far_end_mut().filter(|end| end.rx_event().is_some());
        end.is_none_or(Driver::arm_rx)
    }

    /// See [`Driver::disarm_rx`].
    pub(super) fn disarm(&mut self) {
        if let Some(end) = self.far_end_mut() {
            end.disarm_rx();
        }
    }

    /// Takes what the NIC sent; nothing at a cable between switches.
    pub(super) fn take(&mut self, last: u64, now: u64) -> usize {
        match &mut self.peer {
            Peer::Link(nic) => nic.take(&mut self.arriving, self.flight, last, now),
            Peer::Port(_) => 0,
        }
    }

    /// Gives the NIC what is there.
    pub(super) fn deliver(&mut self, now: u64) -> usize {
        match &mut self.peer {
            Peer::Link(nic) => nic.deliver(now),
            Peer::Port(_) => 0,
        }
    }

    /// When the next frame, or pause frame of the NIC, is here.
    pub(super) fn next_arrival(&self) -> u64 {
        let frame = match self.stalled {
            true => NEVER,
            false => self.arriving.front().map_or(NEVER, |a| a.0),
        };
        frame.min(self.next_told())
    }

    fn next_told(&self) -> u64 {
        match &self.peer {
            Peer::Link(nic) => nic.told.front().map_or(NEVER, |t| t.0),
            Peer::Port(_) => NEVER,
        }
    }

    /// A pause frame of the NIC that is here by `at`.
    pub(super) fn take_told(&mut self, at: u64) -> Option<Mbuf> {
        match &mut self.peer {
            Peer::Link(nic) if nic.told.front().is_some_and(|t| t.0 <= at) => {
                nic.told.pop_front().map(|(_, mbuf)| mbuf)
            }
            _ => None,
        }
    }

    /// Whether frames can wait on the way from the NIC. Where no rate is emulated there is no time at which a frame has to be
    /// here, and a NIC that hears of a pause late, as a thread was late, needs lose nothing.
    pub(super) fn can_wait(&self) -> bool {
        match &self.peer {
            Peer::Link(nic) => nic.uplink.is_free(),
            Peer::Port(_) => false,
        }
    }

    /// When something is to be done that no arrival at the switch and no turn of a queue brings: frames of the NIC
    /// that wait for their line, frames for the NIC. What waits for room needs no time but that of what makes room. In picoseconds.
    pub(super) fn next_at_nic(&self) -> u64 {
        let Peer::Link(nic) = &self.peer else {
            return NEVER;
        };
        let uplink = match nic.staged.is_empty() || self.arriving.len() >= self.flight {
            true => NEVER,
            false => nic.uplink.free(),
        };
        if nic.full {
            // Something was due, and it is the NIC's turn.
            return uplink;
        }
        let down = [&nic.flight, &nic.pauses].map(|q| q.front().map_or(NEVER, |f| f.0));
        uplink.min(down[0]).min(down[1])
    }

    /// Whether the cable takes another frame.
    pub(super) fn has_room(&self) -> bool {
        match &self.peer {
            Peer::Link(nic) => nic.flight.len() < self.flight,
            Peer::Port(_) => true,
        }
    }

    /// Puts a frame for the NIC on its way.
    pub(super) fn fly(&mut self, due: u64, mbuf: Mbuf) {
        if let Peer::Link(nic) = &mut self.peer {
            nic.flight.push_back((due, mbuf));
        }
    }

    /// Sends the NIC a pause frame, in front of all that waits.
    pub(super) fn pause_nic(&mut self, frame: &PauseFrame, at: u64, pool: &Mempool) {
        let mbuf = pool.alloc().and_then(|mut mbuf| {
            let bytes = mbuf
                .set_len(pause::LEN)?
                .first_chunk_mut::<{ pause::LEN }>()?;
            frame.emit(&self.mac, bytes);
            Some(mbuf)
        });
        match mbuf {
            Some(mbuf) => {
                let due = self.out.send(at, link_bytes(pause::LEN));
                if let Peer::Link(nic) = &mut self.peer {
                    if nic.pauses.len() >= PAUSES {
                        // As many as that wait only where nobody reads them: the oldest says least. If it was a stop, it is told again; if
                        // it was the end of one, that ends by itself.
                        nic.pauses.pop_front();
                        self.no_mbuf += 1;
                    }
                    nic.pauses.push_back((due, mbuf));
                }
            }
            None => self.no_mbuf += 1,
        }
    }
}
