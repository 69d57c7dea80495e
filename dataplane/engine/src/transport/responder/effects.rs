//! What accepted requests bring about, in PSN order, once the placements before it are done.

use super::{MAX_PENDING, acknowledge, emit_ack};
use crate::descriptor::Outcome;
use crate::transport::env::{Env, count};
use crate::transport::journal::{Cause, FailedRequest};
use crate::transport::qp::Qp;
use crate::verbs::{
    AsyncKind, Completion, Event, Fault, QpState, RecvQueues, SL_IPV4, SL_IPV6, WC_GRH,
    WC_WITH_IMM, WC_WITH_INV, WcOpcode, WcStatus,
};
use crate::wire::Psn;
use crate::wire::aeth::Syndrome;

/// What kind of thing waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A packet of a SEND.
    Send,
    /// A packet of a WRITE.
    Write,
    /// A READ or FLUSH, to be answered; the number of its job.
    Read(u8),
    /// An atomic or ATOMIC WRITE, likewise, once it was executed.
    Atomic(u8),
    /// A NAK after which the QP goes on: sequence error, RNR.
    SoftNak(Syndrome),
    /// A NAK after which the QP is in ERR; the fault's row says which, how the receive request in progress completes
    /// and what is reported where no completion says it.
    FatalNak(Fault),
}

/// The receive completion that comes with the last packet of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub wr_id: u64,
    pub byte_len: u32,
    pub imm: Option<u32>,
    /// The key that is invalidated first.
    pub invalidate: Option<u32>,
    pub opcode: WcOpcode,
    pub solicited: bool,
    /// The sender of a datagram, which lies behind its GRH area.
    pub from: Option<Sender>,
}

/// Who sent a datagram, as far as its completion says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sender {
    pub qpn: u32,
    pub ipv4: bool,
}

/// One entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effect {
    pub psn: Psn,
    pub kind: Kind,
    /// Its payload is being placed.
    pub placing: bool,
    /// Its payload could not be placed.
    pub fault: bool,
    /// The peer asked for an ACK.
    pub ack: bool,
    /// A message ends here.
    pub ends: bool,
    pub received: Option<Received>,
}

impl Effect {
    /// One that waits for nothing and does nothing by itself.
    pub const fn new(psn: Psn, kind: Kind) -> Effect {
        Effect {
            psn,
            kind,
            placing: false,
            fault: false,
            ack: false,
            ends: false,
            received: None,
        }
    }
}

/// The FIFO.
pub(super) struct Effects {
    /// Holds [`MAX_PENDING`] entries without growing, and as many as were ever in use at once: the memory behind them is
    /// not touched, so a queue pair whose placements end at once, as nearly all do, costs a page and not the whole ring.
    ring: Vec<Effect>,
    head: u32,
    tail: u32,
    /// Entries before this one wait for no placement.
    place: u32,
}

impl Effects {
    pub fn new() -> Effects {
        Effects {
            ring: Vec::with_capacity(MAX_PENDING as usize),
            head: 0,
            tail: 0,
            place: 0,
        }
    }

    pub fn clear(&mut self) {
        self.head = 0;
        self.tail = 0;
        self.place = 0;
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Whether a request may still be accepted: the last place is kept for a NAK.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.tail.wrapping_sub(self.head) < MAX_PENDING - 1
    }

    fn has_room_for_nak(&self) -> bool {
        self.tail.wrapping_sub(self.head) < MAX_PENDING
    }

    #[inline]
    fn at(&mut self, index: u32) -> &mut Effect {
        &mut self.ring[(index & (MAX_PENDING - 1)) as usize]
    }

    #[inline]
    pub fn front_is_ready(&self) -> bool {
        !self.is_empty() && !self.ring[(self.head & (MAX_PENDING - 1)) as usize].placing
    }

    #[inline]
    pub fn push(&mut self, effect: Effect) {
        if self.is_empty() {
            // An empty FIFO starts over, so that the same few entries stay in the cache.
            self.clear();
        }
        // The tail goes up one by one and restarts at 0, so it is never beyond the end.
        if (self.tail & (MAX_PENDING - 1)) as usize == self.ring.len() {
            self.ring.push(effect);
        } else {
            *self.at(self.tail) = effect;
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// Puts a NAK at the end. False if there is no room: then silence, and the peer's timer, must do.
    pub fn push_nak(&mut self, psn: Psn, kind: Kind) -> bool {
        let room = self.has_room_for_nak();
        if room {
            self.push(Effect::new(psn, kind));
        }
        room
    }

    /// Takes back a NAK that waits at the end: what it would ask for has arrived.
    pub fn revoke_nak(&mut self) {
        if self.is_empty() {
            return;
        }
        let last = self.tail.wrapping_sub(1);
        if matches!(self.at(last).kind, Kind::SoftNak(_)) {
            self.tail = last;
            if self.place.wrapping_sub(self.head) > self.tail.wrapping_sub(self.head) {
                self.place = self.tail;
            }
        }
    }

    #[inline]
    fn pop(&mut self) {
        if self.place == self.head {
            self.place = self.head.wrapping_add(1);
        }
        self.head = self.head.wrapping_add(1);
    }

    /// The completion of the receive request that the message has taken in which the FIFO begins, if it is there. In UC
    /// that message may be broken, and others without a receive request have ended behind it; the next that needed one
    /// was given this.
    fn take_end(&mut self) -> Option<Received> {
        let end = (self.head..self.tail).find(|&i| self.at(i).received.is_some())?;
        self.at(end).received.take()
    }

    /// Whether an entry waits for its placement.
    pub fn is_placing(&self) -> bool {
        (self.head..self.tail).any(|i| self.ring[(i & (MAX_PENDING - 1)) as usize].placing)
    }

    /// Whether a SEND that waits here invalidates `key`.
    pub fn invalidates(&self, key: u32) -> bool {
        let invalidates = |effect: &Effect| {
            let received = effect.received.as_ref();
            received.is_some_and(|r| r.invalidate == Some(key))
        };
        (self.head..self.tail).any(|i| invalidates(&self.ring[(i & (MAX_PENDING - 1)) as usize]))
    }

    /// The oldest entry whose placement is not reported; it counts as reported from now on.
    fn next_placing(&mut self) -> Option<&mut Effect> {
        while self.place != self.tail {
            let index = self.place;
            self.place = index.wrapping_add(1);
            if self.at(index).placing {
                let entry = self.at(index);
                entry.placing = false;
                return Some(entry);
            }
        }
        None
    }
}

/// Lets out of the FIFO what waits for nothing. What a call has no room for goes on in `tx`.
pub(crate) fn drain(qp: &mut Qp, env: &mut Env<'_>) {
    while qp.can_receive() && qp.resp.has_unsent() {
        if qp.resp.active != 0 || !env.tx_room() || !env.event_room() {
            env.lists.ready.push(qp.slot);
            return;
        }
        if qp.resp.reack {
            emit_ack(qp, qp.resp.done, Syndrome::ACK, env);
            continue;
        }
        let head = qp.resp.effects.head;
        let effect = *qp.resp.effects.at(head);
        qp.resp.effects.pop();
        match effect.kind {
            Kind::Send | Kind::Write if effect.fault => fault(qp, &effect, env),
            Kind::Send | Kind::Write => data(qp, &effect, env),
            Kind::Atomic(_) if effect.fault => fault(qp, &effect, env),
            Kind::Read(job) | Kind::Atomic(job) => {
                count_message(qp);
                super::read::activate(qp, job);
            }
            Kind::SoftNak(syndrome) => emit_ack(qp, effect.psn, syndrome, env),
            Kind::FatalNak(fault) => {
                fatal(qp, effect.psn, fault, fault.row().receive, env);
            }
        }
    }
}

#[inline]
fn count_message(qp: &mut Qp) {
    qp.resp.msn = (qp.resp.msn + 1) & 0xff_ffff;
}

#[inline]
fn data(qp: &mut Qp, effect: &Effect, env: &mut Env<'_>) {
    qp.resp.done = effect.psn;
    qp.resp.any_done = true;
    if effect.ends {
        if let Some(received) = &effect.received {
            if let Some(key) = received.invalidate {
                if !super::invalidate::carry_out(qp, effect.psn, key, received, env) {
                    return;
                }
            }
            count_message(qp);
            complete(qp, received, WcStatus::Success, env);
        } else {
            count_message(qp);
        }
    }
    if effect.ack || qp.resp.late_ack == Some(effect.psn) {
        qp.resp.late_ack = None;
        acknowledge(qp, effect.psn, env);
    }
}

/// Payload could not be written to the program's memory. For the peer the operation failed at this end
/// (IBTA 9.7.5.2: remote operational error); here the receive request of a SEND did, or else the QP.
fn fault(qp: &mut Qp, effect: &Effect, env: &mut Env<'_>) {
    if effect.kind != Kind::Send {
        qp.cold.journal.refusal = Some(Cause::ResponderMemory);
        fatal(qp, effect.psn, Fault::TargetMemory, None, env);
        if let Some(received) = &effect.received {
            complete(qp, received, WcStatus::WrFlushErr, env);
        }
        return;
    }
    let cause = Cause::ReceiveMemory;
    qp.cold.journal.refusal = Some(cause);
    let (fault, status) = (cause.fault(), cause.fault().row().receive);
    // The message may have arrived to its end, or not yet.
    let received = effect.received.or_else(|| qp.resp.effects.take_end());
    let ended = received.as_ref().zip(status);
    if let Some((received, status)) = ended {
        note_receive(qp, received.wr_id, received.byte_len.into(), status);
    }
    let in_progress = if ended.is_none() { status } else { None };
    fatal(qp, effect.psn, fault, in_progress, env);
    if let Some((received, status)) = ended {
        complete(qp, received, status, env);
    }
}

/// The NAK after which the QP is in ERR; the receive request in progress completes with `recv`.
pub(super) fn fatal(
    qp: &mut Qp,
    psn: Psn,
    fault: Fault,
    recv: Option<WcStatus>,
    env: &mut Env<'_>,
) {
    let row = fault.row();
    // Nobody listens for one in UC.
    if let Some(code) = row.nak.filter(|_| qp.reliable) {
        emit_ack(qp, psn, Syndrome::Nak(code), env);
    }
    if let Some(status) = recv {
        if qp.resp.recv_taken {
            let (wr_id, space) = (qp.resp.recv.wr_id, qp.resp.recv_space);
            note_receive(qp, wr_id, space, status);
        }
        fail_receive(qp, status, env);
    }
    let cause = qp.cold.journal.refusal.unwrap_or(Cause::ResponderMemory);
    match row.event {
        Some(kind) => qp.fail_with(kind, cause, env),
        None => qp.fail(cause, env),
    }
}

/// Keeps, for the record, the receive request with which the QP fails.
pub(super) fn note_receive(qp: &mut Qp, wr_id: u64, len: u64, status: WcStatus) {
    qp.cold.journal.fails(FailedRequest {
        wr_id,
        op: None,
        len,
        status,
        first: qp.resp.done.add(1),
        packets: 0,
        remote_addr: 0,
        rkey: 0,
    });
}

/// Completes the receive request in progress with an error.
fn fail_receive(qp: &mut Qp, status: WcStatus, env: &mut Env<'_>) {
    if core::mem::replace(&mut qp.resp.recv_taken, false) {
        let received = Received {
            wr_id: qp.resp.recv.wr_id,
            byte_len: 0,
            imm: None,
            invalidate: None,
            opcode: WcOpcode::Recv,
            solicited: false,
            from: None,
        };
        complete(qp, &received, status, env);
    }
}

pub(super) fn complete(qp: &mut Qp, received: &Received, status: WcStatus, env: &mut Env<'_>) {
    match status {
        WcStatus::Success => {}
        WcStatus::WrFlushErr => count!(qp, env, resp_cqe_flush_error),
        _ => count!(qp, env, resp_cqe_error),
    }
    let ok = status == WcStatus::Success;
    let (flags, imm_or_rkey) = match (received.imm, received.invalidate) {
        (Some(imm), _) if ok => (WC_WITH_IMM, imm),
        (None, Some(key)) if ok => (WC_WITH_INV, key),
        _ => (0, 0),
    };
    let (grh, sl) = match received.from {
        Some(sender) if ok => (WC_GRH, if sender.ipv4 { SL_IPV4 } else { SL_IPV6 }),
        _ => (0, 0),
    };
    env.out.events.push(Event::Completion(Completion {
        qp: qp.id,
        cq: qp.recv_cq,
        recv: true,
        retire: 0,
        wr_id: received.wr_id,
        status,
        opcode: received.opcode,
        byte_len: if ok { received.byte_len } else { 0 },
        flags: flags | grh,
        imm_or_rkey,
        src_qp: received.from.map_or(0, |sender| sender.qpn),
        sl,
        solicited: received.solicited,
    }));
}

/// The oldest placement of this side ended.
pub(crate) fn placed(qp: &mut Qp, outcome: Outcome, env: &mut Env<'_>) {
    if outcome == Outcome::Pending {
        return;
    }
    if let Some(effect) = qp.resp.effects.next_placing() {
        effect.fault = outcome == Outcome::Fault;
        if let (Kind::Atomic(job), Outcome::Value(value)) = (effect.kind, outcome) {
            qp.resp.reads[usize::from(job)].value = value;
        }
    }
    if qp.state == QpState::Err {
        env.lists.work.push(qp.slot);
    } else {
        drain(qp, env);
        // An invalidation may have waited for it.
        if qp.req.waits_to_invalidate() && !qp.resp.is_placing() {
            env.lists.ready.push(qp.slot);
        }
    }
}

/// A QP in ERR takes nothing more off its shared receive queue, and what it had taken is complete: said once (IBTA
/// 11.6.3.2). What is left in the queue is for the other QPs.
fn last_wqe_reached(qp: &mut Qp, env: &mut Env<'_>) {
    if !core::mem::replace(&mut qp.resp.last_wqe_told, true) {
        env.event(qp, AsyncKind::QpLastWqeReached);
    }
}

/// Flushes the receive side of a QP in ERR: what waits in the FIFO, the receive request in progress, then the
/// queue. False when it has to go on in another call.
pub(crate) fn flush<Q: RecvQueues>(qp: &mut Qp, queues: &mut Q, env: &mut Env<'_>) -> bool {
    while !qp.resp.effects.is_empty() {
        if !qp.resp.effects.front_is_ready() {
            // `placed` comes back to it.
            return true;
        }
        if !env.event_room() {
            return false;
        }
        let head = qp.resp.effects.head;
        let effect = *qp.resp.effects.at(head);
        qp.resp.effects.pop();
        if let Some(received) = &effect.received {
            complete(qp, received, WcStatus::WrFlushErr, env);
        }
    }
    fail_receive(qp, WcStatus::WrFlushErr, env);
    if qp.shared_receives {
        last_wqe_reached(qp, env);
        return true;
    }
    loop {
        if !env.event_room() {
            return false;
        }
        if !queues.take(qp.id, &mut qp.resp.recv) {
            return true;
        }
        qp.resp.recv_taken = true;
        fail_receive(qp, WcStatus::WrFlushErr, env);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_at_once_uses_one_entry_and_no_use_makes_it_grow() {
        let mut effects = Effects::new();
        let effect = Effect::new(Psn::new(0), Kind::Write);
        let capacity = effects.ring.capacity();
        for _ in 0..3 * MAX_PENDING {
            effects.push(effect);
            effects.pop();
        }
        assert_eq!(effects.ring.len(), 1);
        // Full, and then round and round with one left.
        while effects.has_room_for_nak() {
            effects.push(effect);
        }
        for i in 0..3 * MAX_PENDING {
            effects.pop();
            let psn = Psn::new(i);
            effects.push(Effect::new(psn, Kind::Write));
            assert_eq!(effects.at(effects.tail.wrapping_sub(1)).psn, psn);
        }
        assert_eq!(effects.ring.len(), MAX_PENDING as usize);
        assert_eq!(effects.ring.capacity(), capacity);
    }
}
