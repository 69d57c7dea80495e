//! Carrying out what the engine asked for: placements, completions to the CQs, packets to be built ([`super::build`]).
//!
//! In flows [`roceline_engine::Outputs`], filled by any engine call; it is empty afterwards.
//!
//! Memory that is mapped here is copied to and from at once; the rest is the memory thread's. A payload is placed at once only if
//! nothing of its QP and side waits for that thread, or it would overtake what came before it. For the same reason the
//! payload of a READ response is fetched by the thread while requests before it are being placed there.

use roceline_abi::queue::{Cqe, Origin};
use roceline_engine::verbs::{AsyncKind, Completion, Event, QpId, WcOpcode, WcStatus};
use roceline_engine::wire::atomic_eth;
use roceline_engine::{MemSlice, Outcome, Outputs, Place};

use super::atomic::{self, Deed};
use super::build::build_all;
use super::context::{Context, Mr, OpEnd, Qp, Then, side_index};
use super::nic::{Fetched, Nic, Placed, Shared};
use super::overflow;
use super::queue::CqFull;
use super::srq;
use crate::memory::helper::{Direction, Piece};
use crate::memory::{AtomicOp, Window};

/// Empties `shared.out`, and tells the engine of what was placed and fetched on the way.
pub fn drain(nic: &mut Nic, shared: &mut Shared) {
    while !shared.out.is_empty() || !shared.placed.is_empty() || !shared.fetched.is_empty() {
        carry_out(nic, shared);
        let mut told = 0;
        while let Some(placed) = shared.placed.get_mut(told) {
            let Placed {
                outcome,
                qp,
                epoch,
                side,
                ..
            } = *placed;
            let count = std::mem::take(&mut placed.count);
            told += 1;
            let (now, out) = (shared.now, &mut shared.out);
            match outcome {
                Outcome::Done => nic.engine.all_placed(qp, epoch, side, count, now, out),
                _ => {
                    let qps = &mut nic.qps;
                    nic.engine.placed(qp, epoch, side, outcome, now, qps, out);
                }
            }
            if !shared.out.has_room() {
                carry_out(nic, shared);
            }
        }
        shared.placed.clear();
        let mut told = 0;
        while let Some(&Fetched { qp, epoch }) = shared.fetched.get(told) {
            told += 1;
            nic.engine.fetched(qp, epoch, shared.now, &mut shared.out);
            if !shared.out.has_room() {
                carry_out(nic, shared);
            }
        }
        shared.fetched.clear();
    }
    srq::tell(nic, shared);
}

fn carry_out(nic: &mut Nic, shared: &mut Shared) {
    let mut out = std::mem::replace(&mut shared.out, Outputs::hollow());
    for place in &out.place {
        begin_place(nic, shared, place, &out.slices);
    }
    for event in &out.events {
        match event {
            // As it lies there: what was just written in pieces is not copied as a whole.
            Event::Completion(completion) => complete(nic, shared, completion),
            &Event::Retired { qp, count } => {
                if let Some(qp) = nic.qps.get_mut(qp) {
                    qp.sq.retire(count);
                    note_unshown(qp, false, &mut shared.unshown);
                }
            }
            &Event::Async { qp, kind } => asynchronous(nic, shared, qp, kind),
        }
    }
    show(nic, shared);
    if !out.tx.is_empty() {
        build_all(nic, shared, &out.tx, &out.slices);
    }
    out.clear();
    shared.out = out;
}

/// Notes that requests were taken off a queue of a QP, which [`show`] shows.
#[inline]
fn note_unshown(qp: &mut Qp, recv: bool, unshown: &mut Vec<QpId>) {
    if qp.unshown == [false; 2] {
        unshown.push(qp.id);
    }
    qp.unshown[usize::from(recv)] = true;
}

/// Shows programs what was taken off work queues, then the completions that were written: one store for each queue. In this
/// order, as who sees a completion may post again.
#[inline]
fn show(nic: &mut Nic, shared: &mut Shared) {
    while let Some(id) = shared.unshown.pop() {
        let Some(qp) = nic.qps.get_mut(id) else {
            continue;
        };
        let [sends, receives] = std::mem::take(&mut qp.unshown);
        if sends {
            qp.sq.show();
        }
        if receives {
            qp.rq.show();
        }
    }
    // In the order of their first completions.
    for at in 0..shared.unpublished.len() {
        publish(shared, shared.unpublished[at]);
    }
    shared.unpublished.clear();
}

fn begin_place(nic: &mut Nic, shared: &mut Shared, place: &Place, slices: &[MemSlice]) {
    let Some(qp) = nic.qps.get_mut(place.qp) else {
        return;
    };
    let Some((mbuf, packet)) = nic.received.get_mut(place.packet) else {
        return;
    };
    let slices = &slices[place.first as usize..][..usize::from(place.count)];
    let at = packet.payload_offset as usize;
    let Some(deed) = atomic::prepare(place.kind, mbuf.data_mut(), at) else {
        return;
    };
    let placing = &mut qp.placing[side_index(place.side)];
    if *placing == 0 {
        let outcome = match deed {
            Deed::Copy(start) => {
                let bytes = mbuf.data().get(start..).unwrap_or_default();
                place_now(&nic.mrs, slices, bytes).then_some(Outcome::Done)
            }
            Deed::Word(op) => atomic::execute_now(&nic.mrs, slices, op),
        };
        if let Some(outcome) = outcome {
            Placed::note(&mut shared.placed, outcome, place);
            return;
        }
    }
    let psn = packet.psn;
    let Some(mbuf) = nic.received.take(place.packet) else {
        return;
    };
    *placing += 1;
    let context = &mut shared.contexts[qp.context];
    context.placing += 1;
    let end = OpEnd {
        qp: place.qp,
        epoch: place.epoch,
        side: place.side,
        psn,
        mbuf,
        then: Then::Placed,
        tell_fetched: false,
    };
    let (key, mrs) = (qp.context, &mut nic.mrs);
    let first = match deed {
        Deed::Copy(start) => begin(context, mrs, Direction::Place, slices, start, end),
        Deed::Word(AtomicOp::Store(_)) => begin(context, mrs, Direction::Store, slices, at, end),
        Deed::Word(op) => atomic::begin(context, mrs, slices, op, at - atomic_eth::LEN, end),
    };
    if first {
        shared.kicks.push(key);
    }
}

/// Writes a payload to mapped memory. False if not all of it is mapped; then nothing counts as written.
#[inline]
fn place_now(mrs: &[Option<Mr>], slices: &[MemSlice], payload: &[u8]) -> bool {
    let mut rest = payload;
    windows(mrs, slices, |window, len| {
        let (piece, after) = rest.split_at(rest.len().min(len));
        rest = after;
        window.write(piece)
    })
}

/// Calls `copy` with the window of each slice, and its length, until one is not mapped or cannot be copied: then false.
#[inline(always)]
pub(super) fn windows(
    mrs: &[Option<Mr>],
    slices: &[MemSlice],
    mut copy: impl FnMut(Window<'_>, usize) -> bool,
) -> bool {
    slices.iter().all(|slice| {
        let mr = mrs.get(slice.mr as usize).and_then(Option::as_ref);
        let window = mr.and_then(|mr| mr.reach.at(slice.addr, slice.len));
        window.is_some_and(|window| copy(window, slice.len as usize))
    })
}

/// Hands the pieces of an operation to the memory thread. The payload lies in `end`'s mbuf from `start` on; the mbuf stays
/// with the last piece, so the bytes outlive the thread's use of them. True if the thread was not to be kicked already.
pub(super) fn begin(
    context: &mut Context,
    mrs: &mut [Option<Mr>],
    direction: Direction,
    slices: &[MemSlice],
    start: usize,
    mut end: OpEnd,
) -> bool {
    let mut rest = end.mbuf.data_mut().get_mut(start..).unwrap_or_default();
    for slice in slices {
        // The engine's slices add up to the payload; were they longer, the bytes beyond the packet stay untouched.
        let (piece, after) = rest.split_at_mut(rest.len().min(slice.len as usize));
        let piece = Piece {
            direction,
            len: piece.len() as u32,
            addr: slice.addr,
            buf: piece.as_mut_ptr(),
        };
        rest = after;
        if !context.hand_over(mrs, slice.mr, piece) {
            context.refuse(end);
            return !std::mem::replace(&mut context.kick, true);
        }
    }
    if let Some(op) = context.ops.back_mut() {
        op.end = Some(end);
    }
    !std::mem::replace(&mut context.kick, true)
}

fn complete(nic: &mut Nic, shared: &mut Shared, c: &Completion) {
    if !matches!(c.status, WcStatus::Success | WcStatus::WrFlushErr) {
        failed(nic, shared, c.qp, c.status);
    }
    let qp = nic.qps.get_mut(c.qp);
    let mut written = None;
    if let (Some(qp), Some(cq)) = (&qp, shared.cqs.get_mut(c.cq as usize)) {
        let cqe = Cqe {
            wr_id: c.wr_id,
            status: c.status as u32,
            opcode: c.opcode as u32,
            vendor_err: c.status.vendor_err(),
            byte_len: c.byte_len,
            imm_or_rkey: c.imm_or_rkey,
            qp_num: c.qp.0,
            src_qp: c.src_qp,
            wc_flags: c.flags,
            sl: c.sl,
            ..Cqe::default()
        };
        let origin = Origin {
            qp: qp.handle,
            recv: c.recv,
            retired: if c.recv {
                qp.rq.retired_after()
            } else {
                qp.sq.retired_after(c.retire)
            },
        };
        written = Some(cq.queue.write(&cqe, origin));
    }
    if let Some(qp) = qp {
        if c.recv {
            qp.rq.retire();
            let is_send = c.opcode == WcOpcode::Recv && c.status == WcStatus::Success;
            nic.counts.rx_sends += u64::from(is_send);
        } else {
            qp.sq.retire(c.retire);
        }
        note_unshown(qp, c.recv, &mut shared.unshown);
    }
    let Some(cq) = shared.cqs.get_mut(c.cq as usize) else {
        return;
    };
    match written {
        Some(Ok(())) => {
            if !std::mem::replace(&mut cq.unpublished, true) {
                shared.unpublished.push(c.cq);
            }
            cq.solicited |= c.solicited || c.status as u32 != 0;
        }
        Some(Err(CqFull)) => {
            // What is flushed because it overflowed is no news.
            let news = !cq.failed || c.status != WcStatus::WrFlushErr;
            if news && !cq.ignore_overrun {
                overflow::note(cq, c.cq, &mut shared.failed_cqs);
            }
        }
        None => {}
    }
}

/// Shows the completions of a CQ that were written; an event follows if the program wants one.
fn publish(shared: &mut Shared, handle: u32) {
    let Some(cq) = shared.cqs.get_mut(handle as usize) else {
        return;
    };
    cq.queue.publish();
    cq.unpublished = false;
    let solicited = std::mem::take(&mut cq.solicited);
    let Some(channel) = cq.channel else { return };
    let key = cq.context;
    let context = &mut shared.contexts[key];
    if cq.fires(&context.file, handle, solicited) {
        let on = channel;
        if let Some(channel) = context.channels.get_mut(on as usize) {
            // One that waits for room in the pipe will be read after these completions were written: it says enough.
            let told = channel.events.waits(cq.last_event);
            if !told && channel.events.push(cq.user_handle.to_ne_bytes()) {
                cq.last_event = channel.events.newest();
                cq.comp_events += 1;
                context.note_channel(on);
                shared.note_events(key);
            }
        }
    }
}

/// `struct ib_uverbs_async_event_desc`: element (u64), event type (u32), reserved (u32).
pub fn async_record(element: u64, kind: AsyncKind) -> [u8; 16] {
    let mut record = [0; 16];
    record[..8].copy_from_slice(&element.to_ne_bytes());
    record[8..12].copy_from_slice(&(kind as u32).to_ne_bytes());
    record
}

fn asynchronous(nic: &mut Nic, shared: &mut Shared, qp: QpId, kind: AsyncKind) {
    use AsyncKind::{CommEst, QpLastWqeReached, SqDrained};
    if !matches!(kind, CommEst | SqDrained | QpLastWqeReached) {
        failed(nic, shared, qp, WcStatus::Success);
    }
    let Some(qp) = nic.qps.get_mut(qp) else {
        return;
    };
    let record = async_record(qp.user_handle, kind);
    if shared.contexts[qp.context].async_events.push(record) {
        qp.async_events += 1;
        shared.note_events(qp.context);
    }
}

/// A QP has failed by itself: captures that wait for it are told, and requests that are posted from now on are flushed,
/// also where it never was in RTS.
#[cold]
fn failed(nic: &mut Nic, shared: &mut Shared, id: QpId, status: WcStatus) {
    if nic.tapped {
        shared.taps.qp_failed(nic, id, status);
    }
    if let Some(qp) = nic.qps.get(id) {
        shared.contexts[qp.context].close_sends(qp.handle, false);
    }
}
