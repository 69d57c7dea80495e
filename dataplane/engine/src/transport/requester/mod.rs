//! The requester: work requests in, request packets out; responses in, completions out.
//!
//! The send queue is a ring with five marks, each at or after the one before:
//! `head` (oldest not completed), `una_wqe` (first not wholly acknowledged), `cur` (being emitted),
//! `started` (first without PSNs), `tail` (where the next request goes). Likewise PSNs: `una` (oldest not
//! acknowledged), `snd` (next to emit; a retry sets it back to `una`), `max` (one past the newest ever
//! emitted), `alloc` (for the next request that starts). They are compared by their distance from `una`.
//!
//! What is carried out here alone (`local`) takes no PSN: `una_wqe` never stays at such a request.
//!
//! A request that cannot succeed is given its error, and `stop` is set to it: nothing of it or behind it is
//! emitted, and it completes in its turn, when those before it have.

mod adaptive;
mod answered;
mod complete;
mod datagram;
mod emit;
mod local;
mod post;
mod response;
mod retry;
mod unacknowledged;
mod wqe;

use core::mem::offset_of;

pub(crate) use complete::{all_placed, complete, drained, fetched, flush, placed};
pub(crate) use datagram::emit_datagrams;
pub(crate) use emit::emit;
pub(crate) use response::on_response;
pub(crate) use retry::{fetch_fault, on_timer};
pub(crate) use wqe::SendWqe;

use super::journal::{Cause, FailedRequest};
use super::prefetch;
use super::sge::Cursor;
use super::{MAX_PENDING, Retransmission};
use crate::time::Nanos;
use crate::timers::TimerWheel;
use crate::verbs::{MAX_SGE, QpAttr, QpInit, QpType, Sge, WcStatus, WrOpcode};
use crate::wire::{Psn, aeth};
use wqe::entries;

/// PSNs that may lie between the oldest unacknowledged and the next: half the PSN space, so that the
/// responder can tell duplicates from new requests.
const MAX_OUTSTANDING: u32 = 1 << 23;

/// Transport bits of an opcode (IBTA 9.2.1).
const UC_OPCODES: u8 = 0x20;
const UD_OPCODES: u8 = 0x60;

/// What the one timer of a QP waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Nothing.
    None,
    /// An acknowledgement; then requests are sent again.
    Ack,
    /// The end of an RNR wait; until then nothing is sent.
    Rnr,
}

/// The requester half of a QP. Fields that packets touch come first, by cache lines.
#[repr(C, align(64))]
pub(crate) struct Requester {
    pub una: Psn,
    pub snd: Psn,
    pub max: Psn,
    pub alloc: Psn,
    head: u32,
    una_wqe: u32,
    cur: u32,
    started: u32,
    tail: u32,
    ring_mask: u32,
    ring: Box<[SendWqe]>,
    /// The newest PSN that an ACK was asked for; before `una` if there is none.
    asked: Psn,
    /// Packets emitted since the last that asked for an ACK.
    since_ack_req: u32,
    /// The request at which emission stops because it has an error.
    stop: Option<u32>,
    capacity: u32,
    /// READs, and other requests that are answered, emitted and not answered in full.
    reads_out: u32,
    /// PSNs of those that are still to come.
    read_psns: u32,
    /// READs and the like started and not completed: what a fence waits for.
    reads_open: u32,
    place_issued: u32,
    place_done: u32,
    /// Unsignalled requests completed and not yet reported.
    retired: u32,
    wait: Wait,
    /// A gap in READ responses may trigger a retry: once per position, like the responder's one NAK per gap.
    implied_nak_armed: bool,
    drain_wanted: bool,
    retry_left: u8,
    rnr_left: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    max_rd_atomic: u8,
    /// What it sends is acknowledged.
    reliable: bool,
    /// The transport in the opcodes of its packets.
    opcode_bits: u8,
    /// Each request names its destination: UD.
    datagrams: bool,
    sig_all: bool,
    profile: Retransmission,
    /// Entries of a list at most: so many places each request has in `sges`.
    max_sge: u8,
    /// ACK waits that have expired since the last progress.
    expired: u32,
    /// What the wheel is armed for, `u64::MAX` when it is not. It may be earlier than `deadline`: progress only
    /// moves the deadline, and the wheel is armed again when it fires too early.
    wheel_at: u64,
    /// When `wait` ends.
    deadline: Nanos,
    /// ACK timeout, 0 for none.
    timeout: Nanos,
    /// When the ACK of `asked` was asked for.
    asked_at: Nanos,
    tx_cursor: Cursor,
    rx_cursor: Cursor,
    max_inline: u32,
    /// How long the waits of `expired` were together.
    stalled: Nanos,
    /// What is wrong with the request at `stop`.
    cause: Cause,
    /// What lies before this request is still to be flushed, though the QP has left SQE.
    flush_end: Option<u32>,
    /// Lists of more than one entry.
    sges: Box<[Sge]>,
    /// [`SendWr::compare_add`] and [`SendWr::swap`], of the few requests that have them.
    operands: Box<[[u64; 2]]>,
}

const _: () = {
    // Two lines for posting, three for sending and acknowledgements.
    assert!(offset_of!(Requester, since_ack_req) < 64);
    assert!(offset_of!(Requester, wheel_at) < 128);
    assert!(offset_of!(Requester, asked_at) < 192);
};

impl Requester {
    pub fn new(init: &QpInit) -> Requester {
        let capacity = init.max_send_wr.clamp(1, 1 << 20);
        let size = capacity.next_power_of_two();
        let max_sge = init.max_send_sge.min(MAX_SGE as u32);
        let mut r = Requester {
            una: Psn::new(0),
            snd: Psn::new(0),
            max: Psn::new(0),
            alloc: Psn::new(0),
            head: 0,
            una_wqe: 0,
            cur: 0,
            started: 0,
            tail: 0,
            stop: None,
            cause: Cause::BadRequest,
            flush_end: None,
            ring_mask: size - 1,
            capacity,
            since_ack_req: 0,
            asked: Psn::new(0),
            asked_at: Nanos::ZERO,
            reads_out: 0,
            read_psns: 0,
            reads_open: 0,
            place_issued: 0,
            place_done: 0,
            retired: 0,
            wait: Wait::None,
            implied_nak_armed: true,
            drain_wanted: false,
            retry_left: 0,
            rnr_left: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            max_rd_atomic: 0,
            // READs and atomics need acknowledgements.
            reliable: init.qp_type == QpType::Rc,
            opcode_bits: match init.qp_type {
                QpType::Rc => 0,
                QpType::Uc => UC_OPCODES,
                QpType::Ud => UD_OPCODES,
            },
            datagrams: init.qp_type == QpType::Ud,
            sig_all: init.sq_sig_all,
            deadline: Nanos::ZERO,
            wheel_at: u64::MAX,
            timeout: Nanos::ZERO,
            profile: Retransmission::Spec,
            expired: 0,
            stalled: Nanos::ZERO,
            tx_cursor: Cursor::default(),
            rx_cursor: Cursor::default(),
            max_sge: max_sge as u8,
            max_inline: init.max_inline,
            ring: vec![SendWqe::EMPTY; size as usize].into_boxed_slice(),
            sges: vec![Sge::default(); (size * max_sge) as usize].into_boxed_slice(),
            operands: vec![[0; 2]; size as usize].into_boxed_slice(),
        };
        r.reset();
        r
    }

    /// Forgets everything but its size. The wheel is the caller's to disarm.
    pub fn reset(&mut self) {
        self.set_psn(Psn::new(0));
        self.head = 0;
        self.una_wqe = 0;
        self.cur = 0;
        self.started = 0;
        self.tail = 0;
        self.stop = None;
        self.flush_end = None;
        self.since_ack_req = 0;
        self.asked_at = Nanos::ZERO;
        self.reads_out = 0;
        self.read_psns = 0;
        self.reads_open = 0;
        self.place_issued = 0;
        self.place_done = 0;
        self.retired = 0;
        self.wait = Wait::None;
        self.expired = 0;
        self.implied_nak_armed = true;
        self.drain_wanted = false;
        self.wheel_at = u64::MAX;
        self.tx_cursor = Cursor::default();
        self.rx_cursor = Cursor::default();
    }

    /// How retries are timed; stays over resets.
    pub fn set_profile(&mut self, profile: Retransmission) {
        self.profile = profile;
    }

    /// The first PSN of the connection.
    pub fn set_psn(&mut self, psn: Psn) {
        self.una = psn;
        self.snd = psn;
        self.max = psn;
        self.alloc = psn;
        self.asked = psn.sub(1);
    }

    pub fn take_attributes(&mut self, attr: &QpAttr) {
        self.timeout = aeth::ack_timeout(attr.timeout).unwrap_or(Nanos::ZERO);
        self.retry_cnt = attr.retry_cnt;
        self.rnr_retry = attr.rnr_retry;
        self.retry_left = attr.retry_cnt;
        self.rnr_left = attr.rnr_retry;
        self.max_rd_atomic = attr.max_rd_atomic;
    }

    /// Stops all waiting: the QP is dead or reset. If it is dead, all that is left is flushed.
    pub fn quiet(&mut self, timers: &mut TimerWheel, slot: u32) {
        self.wait = Wait::None;
        self.flush_end = None;
        self.wheel_at = u64::MAX;
        timers.cancel(slot);
    }

    /// Whether another request fits.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.tail.wrapping_sub(self.head) < self.capacity
    }

    /// Whether something may be left to emit.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.cur != self.tail && self.wait != Wait::Rnr && !self.stopped_at(self.cur)
    }

    #[inline]
    fn wqe(&self, index: u32) -> &SendWqe {
        &self.ring[(index & self.ring_mask) as usize]
    }

    #[inline]
    fn wqe_mut(&mut self, index: u32) -> &mut SendWqe {
        &mut self.ring[(index & self.ring_mask) as usize]
    }

    /// The list of a request.
    #[inline]
    fn sges(&self, index: u32) -> &[Sge] {
        entries(&self.ring, &self.sges, self.at(index), self.max_sge)
    }

    /// The same beside the cursor of requests, which goes over it.
    #[inline]
    fn tx_sges(&mut self, index: u32) -> (&mut Cursor, &[Sge]) {
        let sges = entries(&self.ring, &self.sges, self.at(index), self.max_sge);
        (&mut self.tx_cursor, sges)
    }

    /// The same beside the cursor of answers.
    #[inline]
    fn rx_sges(&mut self, index: u32) -> (&mut Cursor, &[Sge]) {
        let sges = entries(&self.ring, &self.sges, self.at(index), self.max_sge);
        (&mut self.rx_cursor, sges)
    }

    /// Asks for the cache line into which the next request goes.
    #[inline]
    pub fn prefetch_posted(&self) {
        prefetch::line(&raw const *self.wqe(self.tail));
    }

    /// Asks for the cache line of the request that is emitted next.
    #[inline]
    pub fn prefetch_next(&self) {
        prefetch::line(&raw const *self.wqe(self.cur));
    }

    /// Asks for the cache line of the oldest request that is not acknowledged.
    #[inline]
    pub fn prefetch_acknowledged(&self) {
        prefetch::line(&raw const *self.wqe(self.una_wqe));
    }

    /// Its place in the ring.
    #[inline]
    fn at(&self, index: u32) -> usize {
        (index & self.ring_mask) as usize
    }

    /// The oldest unacknowledged request is acknowledged.
    #[inline]
    fn step_una_wqe(&mut self) {
        self.una_wqe = self.una_wqe.wrapping_add(1);
        self.skip_local();
    }

    /// Nothing comes back for what was carried out here.
    #[inline]
    fn skip_local(&mut self) {
        while self.una_wqe != self.started
            && self.wqe(self.una_wqe).op.is_local()
            && !self.stopped_at(self.una_wqe)
        {
            self.una_wqe = self.una_wqe.wrapping_add(1);
        }
    }

    /// Whether the next request to start invalidates a key.
    #[inline]
    pub fn waits_to_invalidate(&self) -> bool {
        self.cur == self.started
            && self.cur != self.tail
            && self.wqe(self.cur).op == WrOpcode::LocalInv
    }

    /// PSNs from `una` to `psn`.
    #[inline]
    fn ahead(&self, psn: Psn) -> u32 {
        psn.sub(self.una.get()).get()
    }

    /// Packets on their way: a READ counts as one, however many responses it brings.
    #[inline]
    fn outstanding(&self) -> u32 {
        self.ahead(self.snd) - self.read_psns + self.reads_out
    }

    /// Whether an answer is still to come that matters.
    #[inline]
    fn awaits_response(&self) -> bool {
        self.snd != self.una && !self.stopped_at(self.una_wqe)
    }

    /// Whether the request at `index`, or one before it, has an error.
    #[inline]
    fn stopped_at(&self, index: u32) -> bool {
        self.stop
            .is_some_and(|stop| index.wrapping_sub(self.head) >= stop.wrapping_sub(self.head))
    }

    /// Gives a request its error, unless it or one before it has one.
    fn set_error(&mut self, index: u32, cause: Cause) {
        if !self.stopped_at(index) {
            self.stop = Some(index);
            self.wqe_mut(index).set_error(cause.fault().status());
            self.cause = cause;
        }
    }

    /// Retries left of `retry_cnt` and of `rnr_retry`.
    pub fn retries_left(&self) -> (u8, u8) {
        (self.retry_left, self.rnr_left)
    }

    /// Whether requests that have started are not complete: what SQD waits for.
    pub fn is_draining(&self) -> bool {
        self.head != self.started
    }

    /// What its timer waits for.
    pub fn waits(&self) -> Wait {
        self.wait
    }

    /// Requests that are not complete.
    pub fn open(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    /// The oldest request that is not complete, as one that the end of the QP cuts short.
    pub fn oldest(&self) -> Option<FailedRequest> {
        (self.head != self.tail).then(|| self.wqe(self.head).failed(WcStatus::WrFlushErr))
    }

    /// Whether another placement may be given to the caller.
    #[inline]
    fn can_place(&self) -> bool {
        self.place_issued.wrapping_sub(self.place_done) < MAX_PENDING
    }

    /// Starts or moves the timer.
    #[inline]
    fn wait_for(&mut self, wait: Wait, deadline: Nanos, timers: &mut TimerWheel, slot: u32) {
        self.wait = wait;
        self.deadline = deadline;
        if deadline.0 < self.wheel_at {
            self.wheel_at = deadline.0;
            timers.arm(slot, deadline);
        }
    }

    /// The packet that is emitted now, the last of whose PSNs is `psn`, asks for an ACK.
    #[inline]
    fn asks(&mut self, psn: Psn, now: Nanos) {
        self.since_ack_req = 0;
        self.asked = psn;
        self.asked_at = now;
    }

    /// Whether an ACK that was asked for is still to come. Else nothing has to come, as long as more packets will be sent that
    /// ask: those of a QP that congestion control holds back may be far apart (IBTA 9.7.6.1: the timer is that of requests
    /// with AckReq).
    #[inline]
    fn awaits_ack(&self) -> bool {
        self.ahead(self.asked) < self.ahead(self.snd)
    }

    /// After progress: waits anew for what is still to come.
    #[inline]
    fn restart_ack_timer(&mut self, now: Nanos, timers: &mut TimerWheel, slot: u32) {
        if self.awaits_response() && self.awaits_ack() && self.timeout != Nanos::ZERO {
            self.wait_for(Wait::Ack, now + self.ack_wait(), timers, slot);
        } else {
            self.wait = Wait::None;
        }
    }
}
