//! Carrying out what the engine asked for: placements, completions to the CQs, packets to the port.
//!
//! In flows [`roceline_engine::Outputs`], filled by any engine call; it is empty afterwards.
//!
//! Memory that is mapped here is copied to and from at once; the rest is the memory thread's. A payload is placed at once only if
//! nothing of its QP and side waits for that thread, or it would overtake what came before it. For the same reason the
//! payload of a READ response is fetched by the thread while requests before it are being placed there.

use roceline_abi::queue::{Cqe, Origin};
use roceline_engine::verbs::{AsyncKind, Completion, Event, QpId, WcStatus};
use roceline_engine::wire::{Opcode, atomic_eth, icrc};
use roceline_engine::{Engine, MemSlice, NO_AH, Outcome, Outputs, Payload, Place, Side, TxDesc};

use super::atomic::{self, Deed};
use super::context::{Context, LostBehind, Mr, Op, OpEnd, Qp, Then, side_index};
use super::nic::{Fetched, LOOPBACK_LIMIT, Nic, Placed, Shared, TX_LIMIT};
use super::overflow;
use super::pause;
use super::queue::CqFull;
use super::srq;
use super::{cnp, multicast};
use crate::memory::helper::{CAPACITY, Direction, Piece};
use crate::memory::{AtomicOp, Window};
use crate::port::{Mbuf, Mempool};

/// Bytes in front of the IP header of the packets that we build.
const L3_OFFSET: usize = 14;

/// Empties `shared.out`, and tells the engine of what was placed and fetched on the way.
pub fn drain(nic: &mut Nic, shared: &mut Shared) {
    while !shared.out.is_empty() || !shared.placed.is_empty() || !shared.fetched.is_empty() {
        carry_out(nic, shared);
        let mut told = 0;
        while let Some(&placed) = shared.placed.get(told) {
            let Placed {
                outcome,
                qp,
                epoch,
                side,
            } = placed;
            told += 1;
            let (now, out) = (shared.now, &mut shared.out);
            nic.engine
                .placed(qp, epoch, side, outcome, now, &mut nic.qps, out);
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
        match *event {
            Event::Completion(completion) => complete(nic, shared, &completion),
            Event::Retired { qp, count } => {
                if let Some(qp) = nic.qps.get_mut(qp) {
                    qp.sq.retire(count);
                }
            }
            Event::Async { qp, kind } => asynchronous(nic, shared, qp, kind),
        }
    }
    for desc in &out.tx {
        build(nic, shared, desc, &out.slices);
    }
    out.clear();
    shared.out = out;
}

fn begin_place(nic: &mut Nic, shared: &mut Shared, place: &Place, slices: &[MemSlice]) {
    let Some(qp) = nic.qps.get_mut(place.qp) else {
        return;
    };
    let Some(mut slot) = nic
        .rx_slots
        .get_mut(place.packet as usize)
        .and_then(Option::take)
    else {
        return;
    };
    let slices = &slices[place.first as usize..][..usize::from(place.count)];
    let Some(deed) = atomic::prepare(place.kind, &mut slot) else {
        return;
    };
    let placing = &mut qp.placing[side_index(place.side)];
    if *placing == 0 {
        let outcome = match deed {
            Deed::Copy(start) => {
                let bytes = slot.mbuf.data().get(start..).unwrap_or_default();
                place_now(&nic.mrs, slices, bytes).then_some(Outcome::Done)
            }
            Deed::Word(op) => atomic::execute_now(&nic.mrs, slices, op),
        };
        if let Some(outcome) = outcome {
            shared.placed.push(Placed {
                outcome,
                qp: place.qp,
                epoch: place.epoch,
                side: place.side,
            });
            return;
        }
    }
    *placing += 1;
    let context = &mut shared.contexts[qp.context];
    context.placing += 1;
    let end = OpEnd {
        qp: place.qp,
        epoch: place.epoch,
        side: place.side,
        psn: slot.psn,
        mbuf: slot.mbuf,
        then: Then::Placed,
        tell_fetched: false,
    };
    let (key, mrs) = (qp.context, &mut nic.mrs);
    let first = match deed {
        Deed::Copy(start) => begin(context, mrs, Direction::Place, slices, start, end),
        Deed::Word(AtomicOp::Store(_)) => {
            let start = slot.payload_offset;
            begin(context, mrs, Direction::Store, slices, start, end)
        }
        Deed::Word(op) => {
            let at = slot.payload_offset - atomic_eth::LEN;
            atomic::begin(context, mrs, slices, op, at, end)
        }
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

/// Reads a payload from mapped memory. False if not all of it is mapped.
#[inline]
fn fetch_now(mrs: &[Option<Mr>], slices: &[MemSlice], payload: &mut [u8]) -> bool {
    let mut rest = payload;
    windows(mrs, slices, |window, len| {
        let here = rest.len().min(len);
        let (piece, after) = std::mem::take(&mut rest).split_at_mut(here);
        rest = after;
        window.read(piece)
    })
}

/// Calls `copy` with the window of each slice, and its length, until one is not mapped or cannot be copied: then false.
#[inline(always)]
fn windows(
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
fn begin(
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
    let mut qp = nic.qps.get_mut(c.qp);
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
    // Before the completion is seen: who sees it may post again.
    if let Some(qp) = &mut qp {
        if c.recv {
            qp.rq.retire();
        } else {
            qp.sq.retire(c.retire);
        }
    }
    let Some(cq) = shared.cqs.get_mut(c.cq as usize) else {
        return;
    };
    match written {
        Some(Ok(())) => cq.queue.publish(),
        Some(Err(CqFull)) => {
            // What is flushed because it overflowed is no news.
            let news = !cq.failed || c.status != WcStatus::WrFlushErr;
            if news && !cq.ignore_overrun {
                overflow::note(cq, c.cq, &mut shared.failed_cqs);
            }
            return;
        }
        None => return,
    }
    let Some(channel) = cq.channel else { return };
    let key = cq.context;
    let context = &mut shared.contexts[key];
    let solicited = c.solicited || c.status as u32 != 0;
    if cq.fires(&context.file, c.cq, solicited) {
        let handle = channel;
        if let Some(channel) = context.channels.get_mut(handle as usize) {
            // One that waits for room in the pipe will be read after this completion was written: it says enough.
            let told = channel.events.waits(cq.last_event);
            if !told && channel.events.push(cq.user_handle.to_ne_bytes()) {
                cq.last_event = channel.events.newest();
                cq.comp_events += 1;
                context.note_channel(handle);
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

fn build(nic: &mut Nic, shared: &mut Shared, desc: &TxDesc, slices: &[MemSlice]) {
    let waits = build_packet(nic, shared, desc, slices);
    if desc.tell_fetched && !waits {
        let (id, epoch) = (desc.qp, desc.epoch);
        match nic.qps.get_mut(id).filter(|qp| qp.tx_waiting > 0) {
            // It was lost, but is not the oldest of those that the engine waits for.
            Some(qp) => LostBehind::add(&mut qp.lost_behind, epoch),
            None => shared.fetched.push(Fetched { qp: id, epoch }),
        }
    }
}

/// True if the packet waits for its payload, or behind one that does; false if it is on its way, or lost for want of a buffer.
fn build_packet(nic: &mut Nic, shared: &mut Shared, desc: &TxDesc, slices: &[MemSlice]) -> bool {
    if desc.opcode == Opcode::CNP {
        cnp::build(nic, shared, desc);
        return false;
    }
    let Some(qp) = nic.qps.get_mut(desc.qp) else {
        return false;
    };
    let template = match desc.ah {
        NO_AH => qp.template.as_ref(),
        ah => nic
            .ahs
            .get(ah as usize)
            .and_then(Option::as_ref)
            .map(|ah| &ah.template),
    };
    let Some(template) = template else {
        return false;
    };
    let Some(mut mbuf) = shared.pool.alloc() else {
        nic.counts.tx_no_mbuf += 1;
        return false;
    };
    let context = &mut shared.contexts[qp.context];
    let payload = desc.len as usize;
    let total = template.frame_len(desc.opcode, desc.len);
    let written = mbuf
        .set_len(total)
        .and_then(|frame| template.write(desc, qp.ip_id, frame));
    let Some(header_len) = written else {
        // The path MTU was checked against the port's, so every packet fits an mbuf.
        nic.counts.tx_no_mbuf += 1;
        return false;
    };
    if desc.ah != NO_AH {
        template.set_dest_qpn(mbuf.data_mut(), desc.dest_qpn);
    }
    if nic.tags {
        let priority = match desc.ah {
            NO_AH => nic.engine.priority(desc.qp),
            ah => nic
                .ahs
                .get(ah as usize)
                .and_then(Option::as_ref)
                .map(|ah| ah.path.sl),
        };
        mbuf.set_tci(u16::from(priority.unwrap_or(0)) << pause::PCP_SHIFT);
    }
    qp.ip_id = qp.ip_id.wrapping_add(1);
    // Pad bytes are zero and under the ICRC.
    mbuf.data_mut()[header_len + payload..].fill(0);
    let mut end = OpEnd {
        qp: desc.qp,
        epoch: desc.epoch,
        side: desc.side,
        psn: desc.psn,
        mbuf,
        then: Then::Send,
        tell_fetched: desc.tell_fetched,
    };
    match desc.payload {
        Payload::None => {}
        Payload::Inline { slot, offset } => {
            let into = &mut end.mbuf.data_mut()[header_len..header_len + payload];
            if !qp.sq.copy_inline(slot, offset, into) {
                return false;
            }
        }
        Payload::Memory { first, count } => {
            let slices = &slices[first as usize..][..usize::from(count)];
            let ordered = desc.side == Side::Requester || qp.placing[side_index(desc.side)] == 0;
            let into = &mut end.mbuf.data_mut()[header_len..header_len + payload];
            if !(ordered && fetch_now(&nic.mrs, slices, into)) {
                if context.ops.len() + slices.len() > CAPACITY {
                    nic.counts.tx_memory_overrun += 1;
                    return false;
                }
                let (direction, mrs) = (Direction::Fetch, &mut nic.mrs);
                if begin(context, mrs, direction, slices, header_len, end) {
                    shared.kicks.push(qp.context);
                }
                qp.tx_waiting += 1;
                pause_if_many(&mut nic.engine, qp, context);
                return true;
            }
        }
    }
    if qp.tx_waiting > 0 {
        // Behind a packet of the same QP that waits for its payload.
        if context.ops.len() >= CAPACITY {
            nic.counts.tx_memory_overrun += 1;
            return false;
        }
        qp.tx_waiting += 1;
        context.ops.push_back(Op {
            mr: None,
            refused: false,
            end: Some(end),
        });
        pause_if_many(&mut nic.engine, qp, context);
        return true;
    }
    finish(nic, &shared.pool, end.qp, end.mbuf);
    false
}

/// A QP sends nothing more while its program has very many operations under way.
fn pause_if_many(engine: &mut Engine, qp: &mut Qp, context: &mut Context) {
    if context.ops.len() > context.room && !qp.paused {
        qp.paused = true;
        context.paused.push(qp.id);
        engine.pause_tx(qp.id, true);
    }
}

/// Stores the ICRC and queues the packet for the port.
pub fn finish(nic: &mut Nic, pool: &Mempool, id: QpId, mut mbuf: Mbuf) {
    let len = mbuf.len() as u64;
    let frame = mbuf.data_mut();
    icrc::seal(frame, L3_OFFSET);
    let own = frame[..6] == nic.info.mac && nic.part.is_own(frame);
    let group = frame[0] & 1 != 0;
    // Rules between here and the port, and groups, cost a NIC without them no branch of their own.
    if own | group | nic.impair.sending {
        if group & !nic.impair.sending {
            multicast::loop_back(&nic.groups, &mut nic.loopback, pool, &mbuf);
        }
        let (queue, limit) = match (nic.impair.sending, own) {
            (true, _) => (&mut nic.impair.staged, TX_LIMIT),
            (false, true) => (&mut nic.loopback, LOOPBACK_LIMIT),
            (false, false) => (&mut nic.tx, TX_LIMIT),
        };
        if queue.len() >= limit {
            nic.counts.tx_queue_full += 1;
            return;
        }
        nic.counts.tx_multicast += u64::from(group);
        queue.push_back(mbuf);
    } else {
        if nic.tx.len() >= TX_LIMIT {
            nic.counts.tx_queue_full += 1;
            return;
        }
        nic.tx.push_back(mbuf);
    }
    let counters = nic.engine.counters_mut();
    counters.rdma_tx_packets += 1;
    counters.rdma_tx_bytes += len;
    if let Some(qp) = nic.qps.get_mut(id) {
        qp.packets.tx += 1;
        qp.packets.tx_bytes += len;
    }
}
