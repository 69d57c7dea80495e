//! The responder: request packets in; placements, ACKs, READ responses and receive completions out.
//!
//! A request is judged when it arrives (`request`). What it brings about waits in a FIFO (`effects`) until all
//! placements before it are done, so that no ACK and no completion ever speaks of data that is not yet in
//! the program's memory, and so that everything goes out in PSN order. READs at the front of the FIFO
//! become active and are answered by `read`; nothing behind them leaves meanwhile.

mod atomic;
mod datagram;
mod effects;
mod invalidate;
mod read;
mod request;
mod unreliable;

pub(crate) use datagram::on_datagram;
pub(crate) use effects::{all_placed, flush, placed};
pub(crate) use invalidate::may_invalidate;
pub(crate) use read::{emit, fetch_fault};
pub(crate) use request::on_request;
pub(crate) use unreliable::on_unreliable;

use super::MAX_PENDING;
use super::sge::Cursor;
use super::state::MAX_RD_ATOMIC;
use crate::Nanos;
use crate::descriptor::{Side, add};
use crate::transport::env::Env;
use crate::transport::prefetch;
use crate::transport::qp::Qp;
use crate::verbs::{QpAttr, RecvWr};
use crate::wire::aeth::{Aeth, Syndrome};
use crate::wire::{Opcode, Operation, Psn};
use effects::Effects;
use read::ReadJob;

const NEVER: Nanos = Nanos(u64::MAX);

/// The responder half of a QP. What packets touch comes first, in two cache lines; messages of several packets, and SENDs, take
/// a third.
#[repr(C, align(64))]
pub(crate) struct Responder {
    /// PSN expected next.
    pub epsn: Psn,
    /// Newest PSN that is wholly done: placed, or answered.
    done: Psn,
    /// From then on requests may have to wait for a local invalidation: [`invalidate::holds`].
    hold_from: Nanos,
    /// A duplicate asked for an ACK of this PSN, whose effect was still waiting.
    late_ack: Option<Psn>,
    /// Messages completed, 24 bits.
    msn: u32,
    /// The message in the middle of which we are.
    message: Option<Operation>,
    /// Something is done since RTR, so there is something to acknowledge again.
    any_done: bool,
    /// A NAK has gone out for `epsn`: silence until it arrives.
    nak_sent: bool,
    /// A fatal NAK is in the FIFO or has gone out: deaf.
    dead: bool,
    /// A coalesced ACK is owed.
    ack_owed: bool,
    /// A duplicate wants `done` acknowledged once no READ is active.
    reack: bool,
    /// COMM_EST was reported.
    established: bool,
    /// A receive request was taken and its message is not complete.
    recv_taken: bool,
    /// LAST_WQE_REACHED was reported.
    last_wqe_told: bool,
    min_rnr_timer: u8,
    max_reads: u8,
    /// READs and the like accepted and not answered in full.
    reads_pending: u8,
    /// Where the next READ or the like goes in `reads`.
    next_read: u8,
    /// Bit i: `reads[i]` is being answered.
    active: u16,
    /// SENDs with invalidate in the FIFO.
    invalidating: u16,
    /// SEND in progress: bytes so far.
    received: u32,
    effects: Effects,
    recv: Box<RecvWr>,
    /// Bytes that the receive request holds.
    recv_space: u64,
    recv_cursor: Cursor,
    /// WRITE in progress: where its next byte goes, and how many are to come.
    write_va: u64,
    write_rkey: u32,
    write_left: u32,
    /// The last READs, oldest first from `next_read`, kept to be executed again; atomics and the like with their answers.
    reads: Box<[ReadJob; MAX_RD_ATOMIC as usize]>,
}

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(Responder, received) < 64);
    assert!(offset_of!(Responder, effects) + effects::HOT <= 128);
    assert!(offset_of!(Responder, effects) + size_of::<Effects>() <= 192);
};

impl Responder {
    pub fn new() -> Responder {
        Responder {
            epsn: Psn::new(0),
            done: Psn::new(0),
            hold_from: NEVER,
            msn: 0,
            message: None,
            any_done: false,
            nak_sent: false,
            dead: false,
            ack_owed: false,
            reack: false,
            established: false,
            recv_taken: false,
            last_wqe_told: false,
            min_rnr_timer: 0,
            max_reads: 0,
            reads_pending: 0,
            next_read: 0,
            active: 0,
            invalidating: 0,
            late_ack: None,
            write_va: 0,
            write_rkey: 0,
            write_left: 0,
            received: 0,
            recv_space: 0,
            recv_cursor: Cursor::default(),
            effects: Effects::new(),
            reads: Box::new([ReadJob::NONE; MAX_RD_ATOMIC as usize]),
            recv: Box::new(RecvWr::empty()),
        }
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.set_psn(Psn::new(0));
        self.hold_from = NEVER;
        self.msn = 0;
        self.message = None;
        self.any_done = false;
        self.nak_sent = false;
        self.dead = false;
        self.established = false;
        self.recv_taken = false;
        self.last_wqe_told = false;
        self.reads_pending = 0;
        self.next_read = 0;
        self.late_ack = None;
        self.effects.clear();
        *self.reads = [ReadJob::NONE; MAX_RD_ATOMIC as usize];
        self.active = 0;
        self.invalidating = 0;
        self.ack_owed = false;
        self.reack = false;
    }

    /// The first PSN of the connection.
    pub fn set_psn(&mut self, psn: Psn) {
        self.epsn = psn;
        self.done = psn.sub(1);
    }

    pub fn take_attributes(&mut self, attr: &QpAttr) {
        self.min_rnr_timer = attr.min_rnr_timer;
        self.max_reads = attr.max_dest_rd_atomic;
    }

    /// Asks for the cache lines that a SEND touches behind pointers.
    #[inline]
    pub fn prefetch_receive(&self) {
        self.effects.prefetch();
        prefetch::line(&raw const *self.recv);
    }

    /// Whether something that requests have brought is still on its way into memory.
    pub fn is_placing(&self) -> bool {
        self.effects.is_placing()
    }

    /// Whether something may be left to emit.
    #[inline]
    pub fn has_unsent(&self) -> bool {
        self.active != 0 || self.reack || self.effects.front_is_ready()
    }
}

/// Emits an ACK or NAK. What it says covers everything before it.
fn emit_ack(qp: &mut Qp, psn: Psn, syndrome: Syndrome, env: &mut Env<'_>) {
    let r = &mut qp.resp;
    r.ack_owed = false;
    r.reack = false;
    let msn = r.msn;
    let desc = add(&mut env.out.tx);
    desc.qp = qp.id;
    desc.epoch = qp.tx_epoch;
    desc.side = Side::Responder;
    desc.opcode = Opcode::RC_ACK;
    desc.psn = psn;
    desc.ext.aeth = Aeth { syndrome, msn }.raw();
    let journal = &mut qp.journal;
    journal.sent(env.now, Opcode::RC_ACK, psn, syndrome.raw(), false);
}

/// Emits the coalesced ACK that a QP owes: the newest PSN that is done.
pub(crate) fn emit_owed_ack(qp: &mut Qp, env: &mut Env<'_>) {
    if !qp.can_receive() || !qp.resp.ack_owed {
        return;
    }
    if qp.resp.active != 0 {
        // Responses go first: an ACK now would tell the peer that they were lost. New ones also acknowledge
        // what is before them; repeated ones do not.
        qp.resp.ack_owed = false;
        qp.resp.reack = !qp.resp.answers_anew();
        return;
    }
    emit_ack(qp, qp.resp.done, Syndrome::ACK, env);
}

/// Acknowledges `psn` now or, when ACKs are coalesced, at the end of the burst.
fn acknowledge(qp: &mut Qp, psn: Psn, env: &mut Env<'_>) {
    if env.nic.coalesce {
        qp.resp.ack_owed = true;
        env.nic.lists.acks.push(qp.slot);
    } else {
        emit_ack(qp, psn, Syndrome::ACK, env);
    }
}
