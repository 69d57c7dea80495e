//! Responses: ACKs, NAKs and READ responses move `una` forward or call for a retry.

use super::answered::on_atomic_ack;
use super::retry::{implied_nak, refused, rnr_nak, sequence_nak};
use super::{Requester, SendWqe, complete};
use crate::descriptor::{MemSlice, Place, PlaceKind, Side, put};
use crate::memory::{Access, AccessError, MrTable};
use crate::transport::env::{Env, count};
use crate::transport::journal::Cause;
use crate::transport::qp::Qp;
use crate::wire::aeth::{Aeth, NakCode, Syndrome};
use crate::wire::{Opcode, Operation, Packet, Psn};

/// A response arrived. `tag` names the packet to whoever places its payload.
pub(crate) fn on_response(qp: &mut Qp, packet: &Packet, tag: u32, env: &mut Env<'_>) {
    let r = &qp.req;
    // Stale, or for something never sent: ghosts of an earlier connection, duplicates.
    if !qp.can_send() || r.ahead(packet.psn) >= r.ahead(r.max) {
        // Nothing was ever acknowledged: do the ends agree on the first PSN?
        if packet.opcode == Opcode::RC_ACK && r.una == qp.cold.attr.sq_psn {
            qp.journal.astray(packet.psn, packet.ext.aeth);
        }
        count!(qp, env, rx_dropped);
        return;
    }
    let before = r.una;
    let operation = packet.opcode.info().operation;
    match operation {
        Operation::ReadResponse => on_read_response(qp, packet, tag, env),
        Operation::Ack => on_ack(qp, packet, env),
        Operation::AtomicAck => on_atomic_ack(qp, packet, tag, env),
        _ => count!(qp, env, rx_dropped),
    }
    if qp.hears_acks {
        tell_reaction(qp, before, operation == Operation::Ack, packet.psn, env);
    }
}

/// Congestion control hears of what a response to `psn` has acknowledged: the packets from `before` on.
fn tell_reaction(qp: &mut Qp, before: Psn, is_ack: bool, psn: Psn, env: &mut Env<'_>) {
    let una = qp.req.una;
    // The last packet of a message may be shorter; nobody keeps the lengths of packets.
    let mut packets = una.sub(before.get()).get();
    if packets == 0 {
        return;
    }
    if !is_ack {
        // It comes when the peer has its answer, and for a PSN that was no packet of data: neither is of the path that is asked for.
        env.nic.reaction.forget_probe(qp.slot);
        packets = packets.min(psn.sub(before.get()).get());
    }
    if packets > 0 {
        env.nic.reaction.on_ack(qp, packets, una, env.now);
    }
}

fn on_ack(qp: &mut Qp, packet: &Packet, env: &mut Env<'_>) {
    let Some(Aeth { syndrome, .. }) = Aeth::from_raw(packet.ext.aeth) else {
        count!(qp, env, rx_dropped);
        return;
    };
    // A NAK acknowledges what is before its PSN.
    let is_ack = matches!(syndrome, Syndrome::Ack { .. });
    let upto = packet.psn.add(u32::from(is_ack));
    acknowledge(qp, upto, env);
    if !qp.can_send() {
        return;
    }
    match syndrome {
        // Credits are not used: a request that finds no receive gets an RNR NAK.
        Syndrome::Ack { .. } if qp.req.una != upto => implied_nak(qp, env),
        Syndrome::Ack { .. } => {}
        Syndrome::Rnr { timer } => rnr_nak(qp, upto, timer, env),
        Syndrome::Nak(NakCode::PsnSequence) => sequence_nak(qp, upto, env),
        Syndrome::Nak(NakCode::InvalidRequest) => {
            count!(qp, env, req_remote_invalid_request);
            refused(qp, upto, NakCode::InvalidRequest, env);
        }
        Syndrome::Nak(NakCode::RemoteAccess) => {
            count!(qp, env, req_remote_access_errors);
            refused(qp, upto, NakCode::RemoteAccess, env);
        }
        Syndrome::Nak(code @ (NakCode::RemoteOperational | NakCode::InvalidRd)) => {
            refused(qp, upto, code, env);
        }
    }
}

/// All PSNs before `upto` are acknowledged, but a READ or the like only by its own responses: it holds `una` back.
/// Completes what that allows.
pub(super) fn acknowledge(qp: &mut Qp, upto: Psn, env: &mut Env<'_>) {
    let r = &mut qp.req;
    let target = r.ahead(upto);
    let mut reached = 0;
    while reached < target && !r.stopped_at(r.una_wqe) {
        let w = r.wqe(r.una_wqe);
        if w.op.is_answered() {
            break;
        }
        let end = r.ahead(w.end());
        if target < end {
            reached = target;
            break;
        }
        reached = end;
        r.step_una_wqe();
    }
    if reached > 0 {
        r.advance_una(reached);
        progress(qp, true, env);
    }
}

/// What every step forward brings. `completes`: a request may be complete now.
#[inline]
fn progress(qp: &mut Qp, completes: bool, env: &mut Env<'_>) {
    let r = &mut qp.req;
    r.retry_left = r.retry_cnt;
    r.rnr_left = r.rnr_retry;
    r.expired = 0;
    r.implied_nak_armed = true;
    // This also ends an RNR wait: the request it was for has arrived.
    r.restart_ack_timer(env.now, &mut env.nic.timers, qp.slot);
    if completes {
        complete(qp, env);
    }
    if qp.req.has_unsent() {
        env.nic.lists.ready.push(qp.slot);
    }
}

impl Requester {
    /// `una` goes on by `n`; `una_wqe` is already right. What a retry was about to send again and need
    /// not is skipped.
    fn advance_una(&mut self, n: u32) {
        let unsent = self.ahead(self.snd) < n;
        self.una = self.una.add(n);
        if unsent {
            self.snd = self.una;
            self.cur = self.una_wqe;
        }
    }
}

/// The request whose answer is due, if that is this one. Whatever it is, it acknowledges all before it.
pub(super) fn in_turn(qp: &mut Qp, packet: &Packet, env: &mut Env<'_>) -> Option<(u32, SendWqe)> {
    acknowledge(qp, packet.psn, env);
    // `acknowledge` may have ended in an error.
    if !qp.can_send() {
        return None;
    }
    let r = &qp.req;
    let index = r.una_wqe;
    if r.stopped_at(index) || index == r.started {
        count!(qp, env, rx_dropped);
        return None;
    }
    if r.una != packet.psn {
        // Responses are missing (IBTA 9.7.6: an implied NAK); what follows the gap is of no use.
        count!(qp, env, rx_dropped);
        implied_nak(qp, env);
        return None;
    }
    Some((index, *qp.req.wqe(index)))
}

/// The answer that was due is good; `last` if its request is answered in full.
pub(super) fn answered(qp: &mut Qp, index: u32, last: bool, env: &mut Env<'_>) {
    let r = &mut qp.req;
    // Sent in this round of retries, or answered by an older request before that?
    if r.cur != index {
        r.read_psns -= 1;
        r.reads_out -= u32::from(last);
    }
    if last {
        r.wqe_mut(index).place_end = r.place_issued;
        r.step_una_wqe();
    }
    r.advance_una(1);
    // What was before it was completed when it was acknowledged; it is when its bytes are placed, if it has brought any.
    let placed = r.place_done == r.place_issued;
    progress(qp, placed, env);
}

impl Requester {
    /// Appends the checked memory for the `len` bytes at `offset` of the answer to the request at `index`; the first slice and their
    /// number.
    #[inline]
    pub(super) fn target(
        &mut self,
        index: u32,
        offset: u32,
        len: u32,
        pd: u32,
        mrs: &MrTable,
        slices: &mut Vec<MemSlice>,
    ) -> Result<(u32, u8), AccessError> {
        let right = Access::LOCAL_WRITE;
        match self.rx_sges(index) {
            // It is as long as the answer.
            (_, [one]) => {
                let addr = one.addr.wrapping_add(u64::from(offset));
                let slice = mrs.check(one.lkey, pd, addr, len, right)?;
                put(slices, slice);
                Ok((slices.len() as u32 - 1, 1))
            }
            (cursor, sges) => {
                cursor.seek(index, sges, offset);
                cursor.slice(sges, len, right, pd, mrs, slices)
            }
        }
    }
}

/// Hands the bytes of an answer to the caller.
pub(super) fn place(
    qp: &mut Qp,
    kind: PlaceKind,
    tag: u32,
    len: u32,
    (first, count): (u32, u8),
    env: &mut Env<'_>,
) {
    let place = Place {
        kind,
        qp: qp.id,
        epoch: qp.place_epoch,
        side: Side::Requester,
        packet: tag,
        len,
        first,
        count,
    };
    put(&mut env.out.place, place);
    qp.req.place_issued = qp.req.place_issued.wrapping_add(1);
}

/// A READ response; ATOMIC WRITE and FLUSH are answered by an empty one (IBTA A19.4).
fn on_read_response(qp: &mut Qp, packet: &Packet, tag: u32, env: &mut Env<'_>) {
    let Some((index, w)) = in_turn(qp, packet, env) else {
        return;
    };
    let mtu = qp.mtu();
    let r = &mut qp.req;
    let answered_before = r.una.sub(w.first.get()).get();
    let offset = answered_before << qp.mtu_shift;
    let expected = w.op.is_answered() && !w.op.is_atomic();
    let rest = if expected { w.read_len() - offset } else { 0 };
    let last = answered_before + 1 == w.psns;
    // After a retry the same response may come as FIRST or MIDDLE, as LAST or ONLY.
    let position = packet.opcode.info().position;
    let fits = packet.payload_len == rest.min(mtu) && position.ends() == last;
    if w.is_read() && !fits {
        let journal = &mut qp.journal;
        journal.misfit(packet.payload_len, rest.min(mtu));
    }
    if !expected || !fits || !r.can_place() {
        count!(qp, env, rx_dropped);
        return;
    }
    if packet.payload_len > 0 {
        let len = packet.payload_len;
        match r.target(index, offset, len, qp.pd, &env.nic.mrs, &mut env.out.slices) {
            Ok(cut) => place(qp, PlaceKind::Payload, tag, len, cut, env),
            Err(error) => {
                r.set_error(index, Cause::LocalKey(error));
                complete(qp, env);
                return;
            }
        }
    }
    answered(qp, index, last, env);
}
