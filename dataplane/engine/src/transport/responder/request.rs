//! The judgement of an arriving request: PSN, order within the message, lengths, receive request, rights
//! (IBTA 9.7.4, in that order).
//!
//! `unreliable` uses the same checks for UC.

use super::effects::{Effect, Kind, Received, drain};
use super::read::{ReadJob, repeat};
use super::{acknowledge, atomic, invalidate};
use crate::descriptor::{MemSlice, Place, PlaceKind, Side, put};
use crate::memory::Access;
use crate::transport::env::{Env, count};
use crate::transport::journal::Cause;
use crate::transport::qp::Qp;
use crate::transport::sge::Cursor;
use crate::verbs::{AsyncKind, MAX_MESSAGE, MAX_SGE, QpState, RecvQueues, Sge, WcOpcode};
use crate::wire::aeth::{NakCode, Syndrome};
use crate::wire::{HeaderSet, OpcodeInfo, Operation, Packet, Position};

/// Why a request in its turn is not accepted.
pub(super) enum Refusal {
    /// No receive request is there: later.
    NotReady,
    /// Not like this, and not later either: [`Fault`](crate::verbs::Fault)'s table says what follows.
    Fatal(Cause),
}

impl Refusal {
    /// Key, range or rights.
    pub(super) fn access(cause: Cause, qp: &mut Qp, env: &mut Env<'_>) -> Refusal {
        count!(qp, env, resp_remote_access_errors);
        Refusal::Fatal(cause)
    }
}

/// Whether requests are heard at all; the first in RTR says that the connection is established (IBTA 11.6.3.1).
#[inline]
pub(super) fn listens(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    if qp.resp.dead || (env.now >= qp.resp.hold_from && invalidate::holds(qp)) {
        count!(qp, env, rx_dropped);
        return false;
    }
    if qp.state == QpState::Rtr && !qp.resp.established {
        qp.resp.established = true;
        env.event(qp, AsyncKind::CommEst);
    }
    true
}

/// A request arrived. `tag` names the packet to whoever places its payload.
pub(crate) fn on_request<Q: RecvQueues>(
    qp: &mut Qp,
    packet: &Packet,
    tag: u32,
    queues: &mut Q,
    env: &mut Env<'_>,
) {
    if !listens(qp, env) {
        return;
    }
    match packet.psn.distance(qp.resp.epsn) {
        0 => expected(qp, packet, tag, queues, env),
        1.. => ahead(qp, env),
        _ => duplicate(qp, packet, env),
    }
}

/// A request is missing before this one: one NAK for the gap, then silence until it arrives (IBTA 9.7.5.2).
fn ahead(qp: &mut Qp, env: &mut Env<'_>) {
    count!(qp, env, out_of_sequence);
    let r = &mut qp.resp;
    if r.nak_sent {
        return;
    }
    let nak = Kind::SoftNak(Syndrome::Nak(NakCode::PsnSequence));
    if r.effects.push_nak(r.epsn, nak) {
        r.nak_sent = true;
        drain(qp, env);
    }
}

/// Served already (IBTA 9.7.5.1): a SEND or WRITE is acknowledged again with the newest PSN that is done,
/// a READ is executed again.
fn duplicate(qp: &mut Qp, packet: &Packet, env: &mut Env<'_>) {
    count!(qp, env, duplicate_request);
    match packet.opcode.info().operation {
        Operation::Send | Operation::Write => {}
        Operation::ReadRequest
        | Operation::CompareSwap
        | Operation::FetchAdd
        | Operation::AtomicWrite
        | Operation::Flush => return repeat(qp, packet, env),
        _ => {
            count!(qp, env, rx_dropped);
            return;
        }
    }
    let r = &mut qp.resp;
    if r.done.before(packet.psn) {
        // Not done yet; its ACK will come, also if only this copy asks for one.
        if packet.ack_req {
            r.late_ack = Some(packet.psn);
        }
    } else if !r.any_done {
        // From before this connection.
        count!(qp, env, rx_dropped);
    } else if r.active != 0 {
        r.reack = true;
    } else if env.nic.coalesce {
        if packet.ack_req {
            acknowledge(qp, qp.resp.done, env);
        }
    } else {
        // As soft-RoCE does: each duplicate is answered, A bit or not.
        r.reack = true;
        drain(qp, env);
    }
}

/// The request whose turn it is.
fn expected<Q: RecvQueues>(
    qp: &mut Qp,
    packet: &Packet,
    tag: u32,
    queues: &mut Q,
    env: &mut Env<'_>,
) {
    if qp.resp.nak_sent {
        qp.resp.nak_sent = false;
        qp.resp.effects.revoke_nak();
    }
    if !qp.resp.effects.has_room() {
        // The peer sends it again.
        count!(qp, env, rx_dropped);
        return;
    }
    let info = packet.opcode.info();
    let verdict = if !in_sequence(qp.resp.message, info) {
        Err(Refusal::Fatal(Cause::PeerOrder(packet.opcode)))
    } else {
        match info.operation {
            Operation::Send => send(qp, packet, info, tag, queues, env),
            Operation::Write => {
                let verdict = write(qp, packet, info, tag, queues, env);
                // A WRITE that an RNR NAK puts off comes again, and is counted then.
                if info.position.starts() && !matches!(verdict, Err(Refusal::NotReady)) {
                    count!(qp, env, rx_write_requests);
                }
                verdict
            }
            Operation::ReadRequest => read(qp, packet, env),
            Operation::CompareSwap | Operation::FetchAdd => atomic::atomic(qp, packet, tag, env),
            Operation::AtomicWrite => atomic::write(qp, packet, tag, env),
            Operation::Flush => atomic::flush(qp, packet, env),
            _ => Err(Refusal::Fatal(Cause::PeerOperation(packet.opcode))),
        }
    };
    match verdict {
        Ok(()) => {}
        Err(Refusal::NotReady) => {
            count!(qp, env, out_of_buffer);
            let timer = qp.resp.min_rnr_timer;
            // Packets behind it are out of sequence now; the RNR NAK has said it for them.
            let nak = Kind::SoftNak(Syndrome::Rnr { timer });
            qp.resp.nak_sent = qp.resp.effects.push_nak(packet.psn, nak);
        }
        Err(Refusal::Fatal(cause)) => fail(qp, packet, cause),
    }
    drain(qp, env);
}

/// With this request the QP fails, once what came before it is done.
pub(super) fn fail(qp: &mut Qp, packet: &Packet, cause: Cause) {
    qp.resp.dead = true;
    qp.journal.rest.refusal = Some(cause);
    let nak = Kind::FatalNak(cause.fault());
    qp.resp.effects.push_nak(packet.psn, nak);
}

/// A message begins with FIRST or ONLY and goes on with packets of its own kind.
#[inline]
pub(super) fn in_sequence(message: Option<Operation>, info: &OpcodeInfo) -> bool {
    match message {
        None => info.position.starts(),
        Some(operation) => !info.position.starts() && info.operation == operation,
    }
}

/// FIRST and MIDDLE are full, LAST is not empty, none is longer than the path MTU (IBTA 9.7.4.1).
#[inline]
fn length_fits(position: Position, len: u32, mtu: u32) -> bool {
    match position {
        Position::First | Position::Middle => len == mtu,
        Position::Last => len >= 1 && len <= mtu,
        Position::Only => len <= mtu,
    }
}

/// Takes a receive request; the one that a broken message has left, where there is one (UC).
fn take_receive<Q: RecvQueues>(qp: &mut Qp, queues: &mut Q) -> Result<(), Refusal> {
    if !qp.resp.recv_taken && !queues.take(qp.id, &mut qp.resp.recv) {
        return Err(Refusal::NotReady);
    }
    let r = &mut qp.resp;
    r.recv_taken = true;
    r.recv_cursor = Cursor::default();
    r.received = 0;
    if r.recv.num_sge as usize > MAX_SGE {
        return Err(Refusal::Fatal(Cause::ReceiveEntries(r.recv.num_sge)));
    }
    r.recv_space = space(&r.recv.sges[..r.recv.num_sge as usize]);
    Ok(())
}

/// Bytes of a message that these entries take: however many they are, a message is no longer than one may be.
fn space(sges: &[Sge]) -> u64 {
    let sum: u64 = sges.iter().map(|s| u64::from(s.length)).sum();
    sum.min(u64::from(MAX_MESSAGE))
}

pub(super) fn send<Q: RecvQueues>(
    qp: &mut Qp,
    packet: &Packet,
    info: &OpcodeInfo,
    tag: u32,
    queues: &mut Q,
    env: &mut Env<'_>,
) -> Result<(), Refusal> {
    let len = packet.payload_len;
    if !length_fits(info.position, len, qp.mtu()) {
        return Err(Refusal::Fatal(wrong_length(qp, packet)));
    }
    if info.position.starts() {
        take_receive(qp, queues)?;
    }
    let r = &mut qp.resp;
    // Longer than the receive request. Sources differ in the NAK: soft-RoCE answers "remote operational
    // error"; IBTA 9.7.5.2 (NAK codes; inbound SEND longer than the receive buffer) "invalid
    // request", since it is the requester that sent too much. We follow the standard. The receive request
    // completes with a local length error in both.
    if u64::from(r.received) + u64::from(len) > r.recv_space {
        count!(qp, env, resp_local_length_error);
        return Err(Refusal::Fatal(Cause::ReceiveTooShort {
            got: u64::from(r.received) + u64::from(len),
            space: r.recv_space,
        }));
    }
    if len > 0 {
        let sges = &r.recv.sges[..r.recv.num_sge as usize];
        let (mrs, slices) = (&env.nic.mrs, &mut env.out.slices);
        let (pd, right) = (qp.recv_pd, Access::LOCAL_WRITE);
        let cut = match sges {
            // That it is long enough was checked.
            [one] => {
                let addr = one.addr.wrapping_add(u64::from(r.received));
                let first = slices.len() as u32;
                let checked = mrs.check(one.lkey, pd, addr, len, right);
                checked.map(|slice| {
                    put(slices, slice);
                    (first, 1)
                })
            }
            _ => r.recv_cursor.slice(sges, len, right, pd, mrs, slices),
        };
        let (first, count) = cut.map_err(|error| Refusal::Fatal(Cause::ReceiveKey(error)))?;
        place(qp, PlaceKind::Payload, len, tag, first, count, env);
    }
    let r = &mut qp.resp;
    r.received += len;
    let ends = info.position.ends();
    let received = ends.then(|| Received {
        wr_id: r.recv.wr_id,
        byte_len: r.received,
        imm: info
            .headers
            .has(HeaderSet::IMM)
            .then_some(packet.ext.imm_or_rkey),
        invalidate: info
            .headers
            .has(HeaderSet::IETH)
            .then_some(packet.ext.imm_or_rkey),
        opcode: WcOpcode::Recv,
        solicited: packet.solicited,
        from: None,
    });
    if info.headers.has(HeaderSet::IETH) {
        r.invalidating += 1;
    }
    accept(qp, packet, Kind::Send, ends, received);
    Ok(())
}

pub(super) fn write<Q: RecvQueues>(
    qp: &mut Qp,
    packet: &Packet,
    info: &OpcodeInfo,
    tag: u32,
    queues: &mut Q,
    env: &mut Env<'_>,
) -> Result<(), Refusal> {
    let (len, mtu) = (packet.payload_len, qp.mtu());
    let starts = info.position.starts();
    let (va, rkey, left) = match starts {
        true => (packet.ext.va, packet.ext.rkey, packet.ext.dma_len),
        false => (qp.resp.write_va, qp.resp.write_rkey, qp.resp.write_left),
    };
    // The last packet brings the rest, the others leave some.
    let total_fits = if info.position.ends() {
        left == len
    } else {
        left > len
    };
    if !length_fits(info.position, len, mtu) {
        return Err(Refusal::Fatal(wrong_length(qp, packet)));
    }
    if !total_fits || left > MAX_MESSAGE {
        return Err(Refusal::Fatal(Cause::MessageLength { left, got: len }));
    }
    if starts {
        // A QP that does not take WRITEs at all: the request is invalid for it, whatever its key
        // (IBTA 9.7.4.1, requested function not supported by this QP; soft-RoCE rules alike).
        if !qp.access.allows(Access::REMOTE_WRITE) {
            return Err(Refusal::Fatal(Cause::QpRight(Access::REMOTE_WRITE)));
        }
    }
    // At its start the whole range at once, so that nothing is written of a message that does not fit.
    let checked = if starts { left } else { len };
    let slice: Option<MemSlice> = match checked {
        0 => None,
        _ => {
            let slice = check_key(qp, rkey, va, checked, Access::REMOTE_WRITE, env)?;
            Some(MemSlice { len, ..slice })
        }
    };
    let imm = info
        .headers
        .has(HeaderSet::IMM)
        .then_some(packet.ext.imm_or_rkey);
    let total = if starts { len } else { qp.resp.received + len };
    if imm.is_some() {
        take_receive(qp, queues)?;
    }
    if let Some(slice) = slice {
        let first = env.out.slices.len() as u32;
        put(&mut env.out.slices, slice);
        place(qp, PlaceKind::Payload, len, tag, first, 1, env);
    }
    let r = &mut qp.resp;
    r.received = total;
    if !info.position.ends() {
        r.write_va = va.wrapping_add(u64::from(len));
        r.write_rkey = rkey;
        r.write_left = left - len;
    }
    let received = imm.map(|imm| Received {
        wr_id: r.recv.wr_id,
        byte_len: total,
        imm: Some(imm),
        invalidate: None,
        opcode: WcOpcode::RecvRdmaWithImm,
        solicited: packet.solicited,
        from: None,
    });
    accept(qp, packet, Kind::Write, info.position.ends(), received);
    Ok(())
}

fn read(qp: &mut Qp, packet: &Packet, env: &mut Env<'_>) -> Result<(), Refusal> {
    let len = packet.ext.dma_len;
    count!(qp, env, rx_read_requests);
    if packet.payload_len != 0 || len > MAX_MESSAGE {
        let (left, got) = (len, packet.payload_len);
        return Err(Refusal::Fatal(Cause::MessageLength { left, got }));
    }
    resource(qp)?;
    if !qp.access.allows(Access::REMOTE_READ) {
        return Err(Refusal::Fatal(Cause::QpRight(Access::REMOTE_READ)));
    }
    let (va, rkey) = (packet.ext.va, packet.ext.rkey);
    if len > 0 {
        check_key(qp, rkey, va, len, Access::REMOTE_READ, env)?;
    }
    let psns = qp.packets(len);
    let r = &mut qp.resp;
    let job = r.add_read(ReadJob {
        operation: Operation::ReadRequest,
        first: packet.psn,
        psns,
        va,
        rkey,
        len,
        value: 0,
        start: packet.psn,
        next: packet.psn,
        executed: false,
        answered: false,
    });
    r.effects.push(Effect::new(packet.psn, Kind::Read(job)));
    r.epsn = packet.psn.add(psns);
    Ok(())
}

/// Whether one of `max_dest_rd_atomic` resources is left for another READ, atomic or the like.
pub(super) fn resource(qp: &Qp) -> Result<(), Refusal> {
    let limit = qp.resp.max_reads;
    if qp.resp.reads_pending >= limit {
        return Err(Refusal::Fatal(Cause::TooManyReads { limit }));
    }
    Ok(())
}

/// The memory behind a range that the peer names.
#[inline]
pub(super) fn check_key(
    qp: &mut Qp,
    rkey: u32,
    addr: u64,
    len: u32,
    right: Access,
    env: &mut Env<'_>,
) -> Result<MemSlice, Refusal> {
    let checked = invalidate::allows(qp, rkey).and_then(|()| {
        let owner = (qp.pd, qp.id);
        env.nic.mrs.check_remote(rkey, owner, addr, len, right)
    });
    checked.map_err(|error| {
        let cause = Cause::RemoteKey {
            rkey,
            addr,
            len,
            right,
            error,
        };
        Refusal::access(cause, qp, env)
    })
}

/// What is wrong with a packet whose payload does not have the length of its place in the message.
fn wrong_length(qp: &Qp, packet: &Packet) -> Cause {
    Cause::PacketLength {
        opcode: packet.opcode,
        got: packet.payload_len,
        mtu: qp.mtu(),
    }
}

/// Hands to the caller what it is to do to memory.
#[inline]
pub(super) fn place(
    qp: &Qp,
    kind: PlaceKind,
    len: u32,
    tag: u32,
    first: u32,
    count: u8,
    env: &mut Env<'_>,
) {
    let place = Place {
        kind,
        qp: qp.id,
        epoch: qp.place_epoch,
        side: Side::Responder,
        packet: tag,
        len,
        first,
        count,
    };
    put(&mut env.out.place, place);
}

/// A packet of a SEND or WRITE is accepted.
#[inline]
fn accept(qp: &mut Qp, packet: &Packet, kind: Kind, ends: bool, received: Option<Received>) {
    let r = &mut qp.resp;
    let effect = Effect {
        placing: packet.payload_len > 0,
        ack: packet.ack_req & qp.reliable,
        ends,
        ..Effect::new(packet.psn, kind)
    };
    match received {
        None => r.effects.push(effect),
        Some(received) => {
            r.effects.push_received(effect, received);
            r.recv_taken = false;
        }
    }
    let operation = if kind == Kind::Send {
        Operation::Send
    } else {
        Operation::Write
    };
    r.message = (!ends).then_some(operation);
    r.epsn = packet.psn.add(1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_long_entries_take_no_longer_message_than_there_is() {
        let entry = |length| Sge {
            addr: 0,
            length,
            lkey: 0,
        };
        assert_eq!(space(&[]), 0);
        assert_eq!(space(&[entry(5), entry(7)]), 12);
        assert_eq!(space(&[entry(u32::MAX); 32]), u64::from(MAX_MESSAGE));
    }
}
