//! What the lcore keeps for each open of a device, each CQ and each QP.

use std::collections::{BTreeSet, VecDeque};
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::SyncSender;

use roceline_abi::layout::{ARM_NEXT, ARM_NONE, ARM_OFFSET, ARM_SOLICITED, QP_SLOT_SHIFT};
use roceline_abi::objects::close_sends;
use roceline_engine::memory::{Access, MrInfo};
use roceline_engine::verbs::{MAX_SGE, QpId};
use roceline_engine::wire::{Gid, HeaderTemplate, Operation, Packet, Psn};
use roceline_engine::{MAX_PENDING, Nanos, Side};
use slab::Slab;

use super::doorbell::Doorbells;
use super::events::EventWriter;
use super::message::{NewContext, Reply};
use super::queue::{CompletionQueue, SendQueue};
use super::srq::Receives;
use crate::memory::helper::{CAPACITY, MemHelper, Moved, Piece};
use crate::memory::{ContextFile, Reach};
use crate::port::{Mbuf, RX_BURST, prefetch_line};

/// Operations that a context may have under way at most: beyond, its QPs send nothing more and its NIC receives nothing.
/// [`Context::room`] may be less.
pub const ROOM: usize = 1024;
/// Room is left for a burst, and for what is being sent.
const _: () = assert!(2 * ROOM + 2 * RX_BURST * MAX_SGE <= CAPACITY);
/// Nor while a program has this many packets to be placed: no QP of it then has more of them than the engine holds.
pub const PLACING_LIMIT: u32 = MAX_PENDING - 2 * RX_BURST as u32;
/// How long a NIC's receive side waits for a program at most; then what does not fit is dropped.
const PATIENCE: Nanos = Nanos::from_millis(20);
/// What each of its operations that ends adds to that. Ten times what one takes, so that only a program that blocks its own
/// memory, or lets a byte through now and then, runs out of it.
const EARNED: Nanos = Nanos::from_micros(20);

/// Asynchronous events of a context itself that may wait: those of its port.
const EVENTS: usize = 64;
/// And of a QP: communication established, send queue drained, last WQE reached, and why it failed.
const EVENTS_OF_QP: usize = 4;
/// And of a shared receive queue: limit reached, and error.
const EVENTS_OF_SRQ: usize = 2;

/// Key of a context in the lcore's slab.
pub type ContextKey = usize;

/// One open of a device by one program.
#[derive(Debug)]
pub struct Context {
    /// NIC on this lcore.
    pub nic: usize,
    /// Key of its program in [`Programs`](super::program::Programs).
    pub program: usize,
    /// For messages only.
    pub pid: u32,
    /// Name of the program, for messages only.
    pub comm: [u8; 16],
    /// The shared file.
    pub file: Arc<ContextFile>,
    /// Its doorbells.
    pub bells: Doorbells,
    /// Written by the program to wake a sleeping lcore.
    pub wake: OwnedFd,
    /// Reaches its memory.
    pub helper: MemHelper,
    /// Pieces were handed to the helper in this poll.
    pub kick: bool,
    /// Memory operations and what waits behind them, oldest first.
    pub ops: VecDeque<Op>,
    /// Packets to be placed among them.
    pub placing: u32,
    /// The worst outcome of the pieces of the operation at the front so far.
    pub worst: Moved,
    /// Operations that it may have under way: [`super::program::Programs::count`].
    pub room: usize,
    /// Operations under way when they were last counted.
    pub counted: usize,
    /// How long its NIC would wait for it: what is left of [`PATIENCE`].
    patience: Nanos,
    /// When that was last reckoned, while its NIC waits.
    held_since: Option<Nanos>,
    /// Asynchronous events.
    pub async_events: EventWriter<16>,
    /// Completion channels by handle.
    pub channels: Slab<Channel>,
    /// QPs by doorbell index.
    pub qps: Slab<QpId>,
    /// Doorbell indices ever in use are below this.
    pub bell_limit: u32,
    /// QPs whose send queues are to be read.
    pub sends: VecDeque<QpId>,
    /// QPs that may send no packets until operations are done.
    pub paused: Vec<QpId>,
    /// What it has besides QPs and channels, so that nobody must search for it.
    pub owned: Owned,
    /// Whether events of it wait to be written.
    pub events: EventTurn,
    /// Channels with events to be written.
    pub due_channels: VecDeque<u32>,
    /// Those of which the pipe was full.
    pub full_channels: VecDeque<u32>,
    /// Replied to when the last operation is done.
    pub closing: Option<SyncSender<Reply>>,
}

/// Handles of objects of a context.
#[derive(Debug, Default)]
pub struct Owned {
    /// Memory regions.
    pub mrs: BTreeSet<u32>,
    /// Memory windows.
    pub mws: BTreeSet<u32>,
    /// Address handles.
    pub ahs: BTreeSet<u32>,
    /// Completion queues.
    pub cqs: BTreeSet<u32>,
    /// Shared receive queues.
    pub srqs: BTreeSet<u32>,
    /// Protection domains.
    pub pds: BTreeSet<u32>,
}

/// Where a context stands with its events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventTurn {
    /// None wait.
    #[default]
    Quiet,
    /// Some are to be written at the end of a poll.
    Due,
    /// A pipe was full: they are tried again later.
    Stuck,
}

impl Context {
    /// A context of which nothing exists yet.
    pub fn new(
        new: NewContext,
        nic: usize,
        helper: MemHelper,
        bells: Doorbells,
        program: usize,
    ) -> Context {
        Context {
            nic,
            program,
            pid: new.pid,
            comm: new.comm,
            bells,
            file: new.file,
            wake: new.wake,
            helper,
            kick: false,
            ops: VecDeque::with_capacity(CAPACITY * 2),
            placing: 0,
            worst: Moved::Done,
            room: ROOM,
            counted: 0,
            patience: PATIENCE,
            held_since: None,
            async_events: EventWriter::new(new.async_events, EVENTS),
            channels: Slab::new(),
            qps: Slab::new(),
            bell_limit: 0,
            sends: VecDeque::with_capacity(64),
            paused: Vec::with_capacity(64),
            owned: Owned::default(),
            events: EventTurn::Quiet,
            due_channels: VecDeque::with_capacity(16),
            full_channels: VecDeque::with_capacity(16),
            closing: None,
        }
    }

    /// Whether it has so many operations under way that its NIC should receive nothing more for the moment. Others of the NIC
    /// wait with it, so it pays for that with time, which operations that end earn: `ended` of them since the last call.
    pub fn holds_receive(&mut self, now: Nanos, ended: usize) -> bool {
        let since = self
            .held_since
            .map_or(Nanos::ZERO, |since| now.saturating_sub(since));
        let earned = EARNED.0.saturating_mul(ended as u64);
        let left = self.patience.0.saturating_sub(since.0);
        self.patience = Nanos(left.saturating_add(earned).min(PATIENCE.0));
        let full = self.ops.len() > self.room || self.placing > PLACING_LIMIT;
        let holds = full && self.patience > Nanos::ZERO;
        self.held_since = holds.then_some(now);
        holds
    }

    /// Whether a packet that may become an operation is taken in.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.ops.len() <= self.room
    }

    /// Hands a piece in region `mr` to the memory thread, and notes it as an operation. False if the thread has no room: then
    /// nothing is noted, since each outcome belongs to the oldest operation.
    #[must_use]
    pub fn hand_over(&mut self, mrs: &mut [Option<Mr>], mr: u32, piece: Piece) -> bool {
        if !self.helper.push(piece) {
            return false;
        }
        self.ops.push_back(Op {
            mr: Some(mr),
            refused: false,
            end: None,
        });
        if let Some(mr) = mrs.get_mut(mr as usize).and_then(Option::as_mut) {
            mr.in_flight += 1;
        }
        true
    }

    /// Ends, in its turn, as a fault what could not be handed over. Its packet stays until then: pieces before it may use it.
    pub fn refuse(&mut self, end: OpEnd) {
        self.ops.push_back(Op {
            mr: None,
            refused: true,
            end: Some(end),
        });
    }

    /// Whether nothing but its program gives it something to do.
    #[inline]
    pub fn waits_for_program(&self) -> bool {
        self.ops.is_empty() && self.counted == 0 && self.sends.is_empty()
    }

    /// Nothing of it is under way.
    pub fn is_at_rest(&mut self) {
        self.held_since = None;
        self.patience = PATIENCE;
    }

    /// Notes that it, known as `key`, has events to be written.
    pub fn note_events(&mut self, key: ContextKey, due: &mut VecDeque<ContextKey>) {
        if self.events == EventTurn::Quiet {
            self.events = EventTurn::Due;
            due.push_back(key);
        }
    }

    /// Tells its program whether the QP with this handle takes no sends. Nobody but the lcore says so, which knows in which
    /// state the QP is: another thread's word could come after the QP has failed.
    pub fn close_sends(&self, handle: u32, closed: bool) {
        let index = handle & ((1 << QP_SLOT_SHIFT) - 1);
        close_sends(&self.file.view(), index, closed);
    }

    /// Takes memory for the asynchronous events of all that it has, and of `srqs` shared receive queues, so that the hot loop
    /// needs none when everything fails in one poll.
    pub fn expect_events(&mut self, srqs: usize) {
        let objects = EVENTS_OF_QP * self.qps.len() + self.owned.cqs.len() + EVENTS_OF_SRQ * srqs;
        self.async_events.expect(EVENTS + objects);
    }

    /// Notes that a channel has events to be written.
    pub fn note_channel(&mut self, handle: u32) {
        if let Some(channel) = self.channels.get_mut(handle as usize) {
            if !channel.due {
                channel.due = true;
                self.due_channels.push_back(handle);
            }
        }
    }
}

/// A completion channel.
#[derive(Debug)]
pub struct Channel {
    /// Its events.
    pub events: EventWriter<8>,
    /// In `Context::due_channels` or `Context::full_channels`.
    pub due: bool,
}

/// A memory operation under way, or a packet that waits behind one. One entry for each piece of memory.
#[derive(Debug)]
pub struct Op {
    /// Region that is in use meanwhile; none if no memory is touched.
    pub mr: Option<u32>,
    /// The memory thread had no room for it or what follows it: that counts as a fault.
    pub refused: bool,
    /// Set on the last piece.
    pub end: Option<OpEnd>,
}

/// How to go on after an operation.
#[derive(Debug)]
pub struct OpEnd {
    /// Whose.
    pub qp: QpId,
    /// Its epoch.
    pub epoch: u32,
    /// Which half.
    pub side: Side,
    /// Of the packet.
    pub psn: Psn,
    /// The packet.
    pub mbuf: Mbuf,
    /// What to do with it.
    pub then: Then,
    /// The engine waits to hear that the payload was fetched.
    pub tell_fetched: bool,
}

/// What follows an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The payload was fetched: send the packet.
    Send,
    /// The payload was placed: tell the engine.
    Placed,
    /// An atomic was executed: what was there before lies here in the packet.
    Executed {
        /// Offset.
        at: usize,
    },
}

/// A memory region.
#[derive(Debug)]
pub struct Mr {
    /// Whose.
    pub context: ContextKey,
    /// PD.
    pub pd: u32,
    /// Keys.
    pub info: MrInfo,
    /// First byte in the program.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Rights.
    pub access: Access,
    /// How its bytes are reached.
    pub reach: Reach,
    /// Operations that use it.
    pub in_flight: u32,
    /// Deregistered: replied to when the last operation is done.
    pub dereg: Option<SyncSender<Reply>>,
}

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    /// Whose.
    pub context: ContextKey,
    /// Regions, windows and QPs in it.
    pub users: u32,
}

/// A CQ.
#[derive(Debug)]
pub struct Cq {
    /// Whose.
    pub context: ContextKey,
    /// The queue.
    pub queue: CompletionQueue,
    /// Where events go.
    pub channel: Option<u32>,
    /// What events name it by.
    pub user_handle: u64,
    /// Completion events written.
    pub comp_events: u32,
    /// The newest of them, as its writer counts.
    pub last_event: u64,
    /// Asynchronous events written.
    pub async_events: u32,
    /// What finds it full is lost, and nobody is told.
    pub ignore_overrun: bool,
    /// It overflowed.
    pub failed: bool,
    /// Completions were written that the program does not see yet.
    pub unpublished: bool,
    /// A solicited one, or one with an error, is among them.
    pub solicited: bool,
    /// Its QPs are being failed: see [`super::overflow`].
    pub failing: Option<Failing>,
    /// Queues of QPs that complete here.
    pub users: u32,
}

/// How far the failing of a CQ's QPs is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Failing {
    /// Doorbell index of the QP to be looked at next.
    pub next: u32,
    /// It overflowed again meanwhile: maybe by a QP that was looked at before.
    pub again: bool,
}

impl Cq {
    /// Whether a completion now calls for an event; disarms if so. To be called after the producer index was
    /// written: the program arms first and then looks at the index, so one of the two sees the other.
    pub fn fires(&self, file: &ContextFile, handle: u32, solicited: bool) -> bool {
        let word = file.atomic_u32(ARM_OFFSET + 4 * u64::from(handle));
        fence(Ordering::SeqCst);
        match word.load(Ordering::Relaxed) {
            ARM_NEXT => {}
            ARM_SOLICITED if solicited => {}
            _ => return false,
        }
        word.swap(ARM_NONE, Ordering::SeqCst) != ARM_NONE
    }
}

/// A QP as the lcore sees it, by cache lines: what every packet needs; what requests need; what receives need; in two lines the
/// headers of packets to send.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Qp {
    /// Number.
    pub id: QpId,
    /// QP handle.
    pub handle: u32,
    /// Whose.
    pub context: ContextKey,
    /// Packets that came and went.
    pub packets: QpPackets,
    /// Packets whose payload the memory thread is placing, by [`side_index`].
    pub placing: [u32; 2],
    /// Packets that wait for their payload, or behind one that does.
    pub tx_waiting: u32,
    /// IPv4 identification of the next packet.
    pub ip_id: u16,
    /// Requests were taken off its send queue, its receive queue, and the program does not see it yet.
    pub unshown: [bool; 2],
    /// Send queue.
    pub sq: SendQueue,
    /// In `Context::sends`.
    pub in_sends: bool,
    /// In `Context::paused`.
    pub paused: bool,
    /// PD handle.
    pub pd: u32,
    /// CQ handles.
    pub send_cq: u32,
    /// Receive queue.
    pub rq: Receives,
    /// CQ handles.
    pub recv_cq: u32,
    /// Receive requests at most.
    pub max_recv_wr: u32,
    /// What events name it by.
    pub user_handle: u64,
    /// Asynchronous events written.
    pub async_events: u32,
    /// Fills the line.
    pub _apart: [u8; 4],
    /// Packet headers, once the path is known.
    pub template: Option<HeaderTemplate>,
    /// Packets of which the engine waits to hear, and that were lost here behind others that wait for their payload.
    pub lost_behind: Option<LostBehind>,
    /// Multicast groups that it is attached to, for [`Groups`](super::multicast::Groups).
    pub groups: Vec<Gid>,
}

impl Qp {
    /// Asks the cache for what comes of a received packet: the header of the ACK that it asks for, the receive that it takes, the
    /// place where the program sees what is acknowledged.
    #[inline]
    pub fn prefetch_effects(&self, packet: &Packet) {
        let info = packet.opcode.info();
        if !info.is_request() {
            self.sq.prefetch_shown();
            return;
        }
        if packet.ack_req {
            let template = std::ptr::from_ref(&self.template).cast::<u8>();
            prefetch_line(template);
            prefetch_line(template.wrapping_add(64));
        }
        if let (Operation::Send, Receives::Own(queue)) = (info.operation, &self.rq) {
            queue.prefetch();
        }
    }

    /// The CQ that a received packet is likely to bring a completion to.
    #[inline]
    pub fn completes(&self, packet: &Packet) -> Option<u32> {
        let info = packet.opcode.info();
        match info.is_request() {
            false => Some(self.send_cq),
            true => (info.operation == Operation::Send).then_some(self.recv_cq),
        }
    }
}

const _: () = {
    assert!(offset_of!(Qp, sq) == 64);
    assert!(offset_of!(Qp, rq) == 128);
    assert!(offset_of!(Qp, template) == 192);
    assert!(size_of::<Option<HeaderTemplate>>() <= 128);
};

/// RoCE packets of a QP, and their bytes as Ethernet frames without FCS.
#[derive(Clone, Copy, Debug, Default)]
pub struct QpPackets {
    /// Sent.
    pub tx: u64,
    /// Bytes of them.
    pub tx_bytes: u64,
    /// Received with its number and a good ICRC.
    pub rx: u64,
    /// Bytes of them.
    pub rx_bytes: u64,
}

/// Packets whose payload the engine believes to be under way; they were given up for want of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct LostBehind {
    epoch: u32,
    count: usize,
}

impl LostBehind {
    /// One more, of this epoch.
    pub fn add(lost: &mut Option<LostBehind>, epoch: u32) {
        let before = lost.map_or(0, |lost| lost.of(epoch));
        *lost = Some(LostBehind {
            epoch,
            count: before + 1,
        });
    }

    /// How many of this epoch; older ones are of no interest any more.
    pub fn of(&self, epoch: u32) -> usize {
        if self.epoch == epoch { self.count } else { 0 }
    }
}

/// Where a side stands in arrays of two.
pub fn side_index(side: Side) -> usize {
    match side {
        Side::Requester => 0,
        Side::Responder => 1,
    }
}
