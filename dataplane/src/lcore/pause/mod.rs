//! Pauses of a NIC's port, in both directions: obeying those that come, and asking for them when received packets wait.
//!
//! Received packets go from the port into a queue by priority ([`ingress`]), where their bytes are counted, and from there to the parser; as
//! long as nothing holds it up they stay for no time. Where a program's memory cannot keep up they do, and pause frames follow
//! from how many. Where several lcores serve the NIC, each has such queues for its part of the port, and the first speaks for all
//! ([`crate::port::PausePart`]). In the other direction finished packets of paused priorities leave the queue to the port and wait aside
//! ([`egress`]). A NIC with pauses off has none of this and pays one branch a stage.

mod counts;
mod egress;
mod ingress;

use std::collections::VecDeque;

use roceline_engine::Nanos;
use roceline_engine::congestion::pfc::{
    PauseMode, PauseReceiver, PauseSender, PfcSettings, Threshold,
};
use roceline_engine::congestion::priority::{PriorityMask, Trust};
use roceline_engine::wire::PauseFrame;
use roceline_engine::wire::pause::PRIORITIES;

pub use counts::PauseReport;
pub use egress::{PCP_SHIFT, obey, set_aside, tell};
pub use ingress::receive;

use super::Lcore;
use super::nic::{Nic, TX_LIMIT};
use crate::port::{Burst, Mbuf, PausePart, PauseState, RX_BURST};
use counts::Traffic;

/// A waiting packet counts as so many bytes at least, as in the cells of a switch's buffer.
const CELL: u64 = 128;
/// Received packets that may wait: NICs of one lcore share their buffers.
const QUEUE_LIMIT: usize = 1024;
/// Of them, packets of lossy priorities: these send no pauses, and must not fill what lossless ones stop the other end by.
const LOSSY_LIMIT: usize = QUEUE_LIMIT / 4;
/// Bursts that are read from a port in one poll at most. The parser takes one, so a port by which more come than that fills its queue,
/// and the queue stops the other end, while nothing is lost in front of it.
const BURSTS: usize = 8;
/// So many small ones of lossless priorities stop the other end, whatever bytes they have.
const QUEUE_XOFF: u64 = (QUEUE_LIMIT - LOSSY_LIMIT) as u64;
/// Packets to send that may wait for the end of a pause. The engine sends nothing of a paused priority by itself, so these are answers and
/// what had been built before the pause came.
const HELD_LIMIT: usize = 1024;
/// Ethernet header and tag of a packet.
const AROUND_IP: u64 = 18;
/// By settings that are not checked every packet would stop the link, which is safe.
const STOP_AT_ONCE: Threshold = Threshold { xoff: 0, xon: 0 };

/// The pauses of a NIC whose port has them.
pub struct NicPause {
    settings: PfcSettings,
    /// `line_rate`, which quanta are counted by, in bits per second.
    rate: u64,
    receiver: PauseReceiver,
    sender: PauseSender,
    /// Of a port that several lcores share, and what it said when it was looked at last. Only the first part's receiver and sender are in use.
    part: Option<PausePart>,
    state: PauseState,
    /// What of our part is above XOFF, and not yet down to XON.
    full_slots: PriorityMask,
    threshold: Threshold,
    /// Bytes of one priority that may wait.
    share: u64,
    /// Bytes that a waiting packet counts as, at least.
    cell: u64,
    /// Of the longest packet.
    longest: u64,
    /// Received packets by priority.
    queues: [VecDeque<Mbuf>; PRIORITIES],
    /// Their bytes.
    bytes: [u64; PRIORITIES],
    /// How many there are.
    waiting: usize,
    /// Whose turn it is first.
    turn: usize,
    /// Packets to send, of priorities that are paused.
    held: [Held; PRIORITIES],
    /// Priorities that have some.
    holding: PriorityMask,
    /// How many there are.
    held_count: usize,
    /// What the engine was last told.
    told: PriorityMask,
    /// Of former settings: who was told to stop is told to go on.
    last: Option<PauseFrame>,
    /// Pause frames on their way.
    frames: Burst,
    traffic: [Traffic; PRIORITIES],
    /// Pause frames that came, and that went.
    control: [u64; 2],
    /// Polls that read nothing from the port, since a lossless priority had no room.
    full: u64,
    /// Packets dropped in a storm of received pauses.
    storm_drops: u64,
}

/// Packets that wait for a pause to end.
#[derive(Default)]
struct Held {
    packets: VecDeque<Mbuf>,
    /// So many in front were offered to the port before, and are in captures.
    offered: usize,
}

impl NicPause {
    fn new(settings: &PfcSettings, rate: u64, mtu: u32, part: Option<PausePart>) -> Box<NicPause> {
        let mut pause = Box::new(NicPause {
            settings: *settings,
            rate,
            receiver: PauseReceiver::new(settings, rate),
            sender: PauseSender::new(settings, rate),
            part,
            state: PauseState::default(),
            full_slots: 0,
            threshold: STOP_AT_ONCE,
            share: 0,
            cell: CELL,
            longest: 0,
            queues: [const { VecDeque::new() }; PRIORITIES],
            bytes: [0; PRIORITIES],
            waiting: 0,
            turn: 0,
            held: Default::default(),
            holding: 0,
            held_count: 0,
            told: 0,
            last: None,
            frames: Burst::new(),
            traffic: [Traffic::default(); PRIORITIES],
            control: [0; 2],
            full: 0,
            storm_drops: 0,
        });
        for queue in &mut pause.queues {
            queue.reserve(QUEUE_LIMIT + 2 * RX_BURST);
        }
        for held in &mut pause.held {
            held.packets.reserve(HELD_LIMIT);
        }
        pause.size(mtu);
        pause
    }

    /// Limits for the present settings.
    fn size(&mut self, mtu: u32) {
        let settings = &self.settings;
        let priorities = match settings.mode {
            PauseMode::Pfc => settings.priorities.count_ones().max(1),
            PauseMode::Off | PauseMode::Global => 1,
        };
        self.share = u64::from(settings.buffer_bytes / priorities);
        self.longest = u64::from(mtu) + AROUND_IP;
        self.threshold = settings.threshold(self.rate, mtu).unwrap_or(STOP_AT_ONCE);
        let packets = QUEUE_XOFF / u64::from(priorities);
        self.cell = CELL.max(self.threshold.xoff.div_ceil(packets));
    }

    /// Whether packets or pause frames wait for the next poll. Those that wait for a pause to end do not.
    pub fn has_work(&self) -> bool {
        self.waiting > 0
            || !self.frames.is_empty()
            || self.last.is_some()
            || self.holding & !self.paused() != 0
    }

    /// The part of a port by which another one speaks with the other end.
    #[inline]
    fn spoken_for(&self) -> Option<&PausePart> {
        self.part.as_ref().filter(|part| !part.is_first())
    }

    /// The priorities that are paused.
    #[inline]
    fn paused(&self) -> PriorityMask {
        match self.spoken_for() {
            Some(_) => self.state.paused,
            None => self.receiver.paused(),
        }
    }

    /// Those whose packets are dropped, in a storm.
    #[inline]
    fn discarding(&self) -> PriorityMask {
        match self.spoken_for() {
            Some(_) => self.state.discarding,
            None => self.receiver.discarding(),
        }
    }

    /// Slots that have stopped the other end for too long.
    #[inline]
    fn in_storm(&self) -> PriorityMask {
        match self.spoken_for() {
            Some(_) => self.state.in_storm,
            None => self.sender.in_storm(),
        }
    }

    /// Ends what time has ended, and hears and says what is to be said among parts.
    #[inline]
    fn advance(&mut self, now: Nanos) -> PriorityMask {
        let paused = self.receiver.advance(now);
        let Some(part) = &self.part else {
            return paused;
        };
        if part.is_first() {
            self.state = PauseState {
                paused,
                discarding: self.receiver.discarding(),
                in_storm: self.sender.in_storm(),
            };
            part.tell(self.state);
        } else {
            self.state = part.state();
        }
        self.state.paused
    }

    /// When there is something to do though nothing comes.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let ends = [self.receiver.next_deadline(), self.sender.next_deadline()];
        ends.into_iter().flatten().min()
    }
}

impl Lcore {
    /// Lets NIC `nic` go by these settings of pauses from now on. They were checked ([`PfcSettings::validate`]).
    ///
    /// # Panics
    /// If there is no such NIC.
    pub fn set_pause(&mut self, nic: usize, settings: &PfcSettings) {
        self.nics[nic].set_pause(settings, self.shared.now);
    }
}

impl Nic {
    /// Goes by other settings of pauses from now on. They were checked ([`PfcSettings::validate`]) for `line_rate` and the MTU of the port.
    pub fn set_pause(&mut self, settings: &PfcSettings, now: Nanos) {
        // Not what the driver says of its link: it may say it only later, or otherwise, and nobody has checked the settings for that.
        let rate = self.settings.congestion.line_rate.0;
        let mtu = self.info.port_mtu;
        self.tags = settings.is_on() && settings.map.trust() == Trust::Pcp;
        let threshold = settings.threshold(rate, mtu);
        self.port_pauses = self
            .port
            .set_pause(settings, threshold.unwrap_or(STOP_AT_ONCE));
        let off = PfcSettings {
            mode: PauseMode::Off,
            ..*settings
        };
        let settings = if self.port_pauses { &off } else { settings };
        self.engine.set_priority_map(settings.map, now);
        match &mut self.pause {
            None if !settings.is_on() => {}
            None => {
                let part = self.port.pause_part();
                self.pause = Some(NicPause::new(settings, rate, mtu, part));
                // Packets that were held go in front of those that wait for the port.
                self.tx.reserve(TX_LIMIT + RX_BURST + HELD_LIMIT);
            }
            Some(pause) => {
                pause.settings = *settings;
                pause.rate = rate;
                pause.size(mtu);
                pause.receiver.configure(settings, rate, now);
                pause.forget_levels();
                pause.last = pause.sender.configure(settings, rate, now).or(pause.last);
            }
        }
    }

    /// Which pauses are on, and who sends and obeys them.
    pub fn describe_pauses(&self) -> &'static str {
        match (self.settings.pfc.mode, self.port_pauses) {
            (PauseMode::Off, _) => "off",
            (PauseMode::Pfc, false) => "pfc",
            (PauseMode::Pfc, true) => "pfc by the hardware",
            (PauseMode::Global, false) => "global",
            (PauseMode::Global, true) => "global by the hardware",
        }
    }
}
