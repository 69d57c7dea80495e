//! What accepted requests bring about, in PSN order, once the placements before it are done.

use super::{MAX_PENDING, NEVER, acknowledge, emit_ack};
use crate::descriptor::{Outcome, put};
use crate::transport::env::{Env, count};
use crate::transport::journal::{Cause, FailedRequest};
use crate::transport::prefetch;
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

impl Received {
    const NONE: Received = Received {
        wr_id: 0,
        byte_len: 0,
        imm: None,
        invalidate: None,
        opcode: WcOpcode::Recv,
        solicited: false,
        from: None,
    };
}

/// Who sent a datagram, as far as its completion says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sender {
    pub qpn: u32,
    pub ipv4: bool,
}

/// One entry. The completion that it may bring lies beside it ([`Effects::received`]).
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
    /// A receive request is complete with it.
    pub receives: bool,
}

const _: () = assert!(size_of::<Effect>() <= 16);

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
            receives: false,
        }
    }
}

/// Entries that lie in the queue pair itself.
const NEAR: usize = 4;

/// The FIFO, in this order: what each packet touches is one cache line.
#[repr(C)]
pub(super) struct Effects {
    head: u32,
    tail: u32,
    /// Entries before this one wait for no placement.
    place: u32,
    /// The first places of the ring: an empty FIFO starts over, so those of a QP with little on its way lie here.
    near: [Effect; NEAR],
    /// The ring, of which the first [`NEAR`] places are not used. Holds [`MAX_PENDING`] entries without growing, and as many as
    /// were ever in use at once: the memory behind them is not touched, so a queue pair whose placements end at once, as
    /// nearly all do, costs a page at most and not the whole ring.
    far: Vec<Effect>,
    /// The completions of those entries of the ring that have one, by the same places.
    received: Vec<Received>,
}

/// Bytes of it that are touched while few entries are in it.
pub(super) const HOT: usize = core::mem::offset_of!(Effects, far);

impl Effects {
    pub fn new() -> Effects {
        Effects {
            head: 0,
            tail: 0,
            place: 0,
            near: [Effect::new(Psn::new(0), Kind::Write); NEAR],
            far: Vec::with_capacity(MAX_PENDING as usize),
            received: Vec::with_capacity(MAX_PENDING as usize),
        }
    }

    /// Asks for the cache line of the next entry's completion.
    #[inline]
    pub fn prefetch(&self) {
        let at = if self.is_empty() { 0 } else { slot(self.tail) };
        prefetch::line(self.received.as_ptr().wrapping_add(at));
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
    fn at(&self, index: u32) -> &Effect {
        let slot = slot(index);
        match self.near.get(slot) {
            Some(effect) => effect,
            None => &self.far[slot],
        }
    }

    #[inline]
    fn at_mut(&mut self, index: u32) -> &mut Effect {
        let slot = slot(index);
        match self.near.get_mut(slot) {
            Some(effect) => effect,
            None => &mut self.far[slot],
        }
    }

    /// The completion that comes with the entry at `index`.
    #[inline]
    fn received(&self, index: u32) -> Option<&Received> {
        let receives = self.at(index).receives;
        receives.then(|| &self.received[slot(index)])
    }

    /// The oldest entry, if it waits for nothing.
    #[inline]
    fn ready(&self) -> Option<&Effect> {
        if self.is_empty() {
            return None;
        }
        Some(self.at(self.head)).filter(|effect| !effect.placing)
    }

    #[inline]
    pub fn front_is_ready(&self) -> bool {
        self.ready().is_some()
    }

    #[inline]
    pub fn push(&mut self, effect: Effect) {
        if self.is_empty() {
            // An empty FIFO starts over, so that the same few entries stay in the cache.
            self.clear();
        }
        let slot = slot(self.tail);
        if let Some(place) = self.near.get_mut(slot) {
            *place = effect;
        } else if let Some(place) = self.far.get_mut(slot) {
            *place = effect;
        } else {
            // The tail goes up one by one and restarts at 0, so that is the next place, or the first behind the near ones.
            self.far.resize(slot + 1, effect);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// The same for an entry that completes a receive request.
    #[inline(always)]
    pub fn push_received(&mut self, effect: Effect, received: Received) {
        let effect = Effect {
            receives: true,
            ..effect
        };
        self.push(effect);
        let at = slot(self.tail.wrapping_sub(1));
        if at >= self.received.len() {
            // Those before it, if any, had none.
            self.received.resize(at + 1, Received::NONE);
        }
        self.received[at] = received;
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

    /// Of all entries, oldest first. They go on from 2^32 - 1 to 0.
    fn indices(&self) -> impl Iterator<Item = u32> + use<> {
        let head = self.head;
        (0..self.tail.wrapping_sub(head)).map(move |i| head.wrapping_add(i))
    }

    /// The completion of the receive request that the message has taken in which the FIFO begins, if it is there. In UC
    /// that message may be broken, and others without a receive request have ended behind it; the next that needed one
    /// was given this.
    fn take_end(&mut self) -> Option<Received> {
        let end = self.indices().find(|&i| self.received(i).is_some())?;
        let received = self.received(end).copied();
        self.at_mut(end).receives = false;
        received
    }

    /// Whether an entry waits for its placement.
    pub fn is_placing(&self) -> bool {
        self.indices().any(|i| self.at(i).placing)
    }

    /// Whether a SEND that waits here invalidates `key`.
    pub fn invalidates(&self, key: u32) -> bool {
        let invalidates = |r: &Received| r.invalidate == Some(key);
        self.indices()
            .any(|i| self.received(i).is_some_and(invalidates))
    }

    /// The oldest entry whose placement is not reported; it counts as reported from now on.
    #[inline]
    fn next_placing(&mut self) -> Option<&mut Effect> {
        while self.place != self.tail {
            let index = self.place;
            self.place = index.wrapping_add(1);
            if self.at(index).placing {
                let entry = self.at_mut(index);
                entry.placing = false;
                return Some(entry);
            }
        }
        None
    }
}

/// Where an entry lies in the ring.
#[inline]
fn slot(index: u32) -> usize {
    (index & (MAX_PENDING - 1)) as usize
}

/// Takes the run of WRITE packets off the front of the FIFO that have nothing to say but, at its end, a coalesced ACK.
#[inline]
fn writes(qp: &mut Qp, env: &mut Env<'_>) {
    let r = &mut qp.resp;
    if r.active != 0 || r.reack || !env.nic.coalesce {
        return;
    }
    let (mut ended, mut asked, mut any) = (0, false, false);
    while let Some(effect) = r.effects.ready() {
        if effect.kind != Kind::Write || effect.fault || effect.receives {
            break;
        }
        ended += u32::from(effect.ends);
        asked |= effect.ack;
        r.done = effect.psn;
        any = true;
        if r.late_ack == Some(r.done) {
            r.late_ack = None;
            asked = true;
        }
        r.effects.pop();
    }
    r.any_done |= any;
    r.msn = (r.msn + ended) & 0xff_ffff;
    if asked {
        acknowledge(qp, qp.resp.done, env);
    }
}

/// Lets out of the FIFO what waits for nothing. What a call has no room for goes on in `tx`.
pub(crate) fn drain(qp: &mut Qp, env: &mut Env<'_>) {
    if qp.can_receive() {
        writes(qp, env);
    }
    while qp.can_receive() && qp.resp.has_unsent() {
        if qp.resp.active != 0 || !env.tx_room() || !env.event_room() {
            qp.answers = true;
            env.nic.lists.ready.push(qp.slot);
            return;
        }
        if qp.resp.reack {
            emit_ack(qp, qp.resp.done, Syndrome::ACK, env);
            continue;
        }
        let effects = &mut qp.resp.effects;
        let head = effects.head;
        let effect = *effects.at(head);
        let received = effects.received(head).copied();
        effects.pop();
        match effect.kind {
            Kind::Send | Kind::Write if effect.fault => fault(qp, &effect, received, env),
            Kind::Send | Kind::Write => data(qp, &effect, received, env),
            Kind::Atomic(_) if effect.fault => fault(qp, &effect, None, env),
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
fn data(qp: &mut Qp, effect: &Effect, received: Option<Received>, env: &mut Env<'_>) {
    qp.resp.done = effect.psn;
    qp.resp.any_done = true;
    if effect.ends {
        if let Some(received) = &received {
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
fn fault(qp: &mut Qp, effect: &Effect, received: Option<Received>, env: &mut Env<'_>) {
    if effect.kind != Kind::Send {
        qp.journal.rest.refusal = Some(Cause::ResponderMemory);
        fatal(qp, effect.psn, Fault::TargetMemory, None, env);
        if let Some(received) = &received {
            complete(qp, received, WcStatus::WrFlushErr, env);
        }
        return;
    }
    let cause = Cause::ReceiveMemory;
    qp.journal.rest.refusal = Some(cause);
    let (fault, status) = (cause.fault(), cause.fault().row().receive);
    // The message may have arrived to its end, or not yet.
    let received = received.or_else(|| qp.resp.effects.take_end());
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
    let cause = qp.journal.rest.refusal.unwrap_or(Cause::ResponderMemory);
    match row.event {
        Some(kind) => qp.fail_with(kind, cause, env),
        None => qp.fail(cause, env),
    }
}

/// Keeps, for the record, the receive request with which the QP fails.
pub(super) fn note_receive(qp: &mut Qp, wr_id: u64, len: u64, status: WcStatus) {
    qp.journal.fails(FailedRequest {
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

#[inline]
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
    let completion = Completion {
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
    };
    put(&mut env.out.events, Event::Completion(completion));
}

/// The oldest placement of this side ended.
#[inline]
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
    after_placement(qp, env);
}

/// The `count` oldest placements of this side are done.
#[inline]
pub(crate) fn all_placed(qp: &mut Qp, count: u32, env: &mut Env<'_>) {
    for _ in 0..count {
        if qp.resp.effects.next_placing().is_none() {
            break;
        }
    }
    after_placement(qp, env);
}

#[inline]
fn after_placement(qp: &mut Qp, env: &mut Env<'_>) {
    if qp.state == QpState::Err {
        env.nic.lists.work.push(qp.slot);
        return;
    }
    drain(qp, env);
    // An invalidation may have waited for it: then it has said from when on it must not wait.
    if qp.resp.hold_from != NEVER && qp.req.waits_to_invalidate() && !qp.resp.is_placing() {
        env.nic.lists.ready.push(qp.slot);
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
        let effects = &mut qp.resp.effects;
        let received = effects.received(effects.head).copied();
        effects.pop();
        if let Some(received) = &received {
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
        let capacity = effects.far.capacity();
        for _ in 0..3 * MAX_PENDING {
            effects.push(effect);
            effects.pop();
        }
        assert_eq!(effects.far.len(), 0);
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
        assert_eq!(effects.far.len(), MAX_PENDING as usize);
        assert_eq!(effects.far.capacity(), capacity);
    }
}
