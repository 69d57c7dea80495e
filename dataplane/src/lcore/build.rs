//! Building packets for the port, a burst at a time: headers of all from their templates, then payloads, which are copied while their
//! ICRCs are computed, several at once.
//!
//! In flow the engine's descriptors, out flow packets in the queue for the port. One whose payload must be fetched by the memory
//! thread, and those of the same QP behind it, wait with the operations of the context, and are finished one by one ([`finish`]).

use roceline_engine::verbs::QpId;
use roceline_engine::wire::Opcode;
use roceline_engine::wire::icrc::{self, Seal};
use roceline_engine::{Engine, MemSlice, NO_AH, Payload, Side, TxDesc};

use super::context::{Context, LostBehind, Mr, Op, OpEnd, Qp, Then, side_index};
use super::drain::{begin, windows};
use super::few::Few;
use super::nic::{Fetched, LOOPBACK_LIMIT, Nic, Shared, TX_LIMIT};
use super::pause;
use super::{cnp, multicast};
use crate::memory::Mark;
use crate::memory::helper::{CAPACITY, Direction};
use crate::port::{Burst, Mbuf, Mempool};

/// Bytes in front of the IP header of the packets that we build.
const L3_OFFSET: usize = 14;

/// Payload of so many bytes begins at a cache line; with less, one more line for headers would cost what that saves.
const ALIGNED: usize = 512;

/// Builds the packets that are described.
pub fn build_all(nic: &mut Nic, shared: &mut Shared, descs: &[TxDesc], slices: &[MemSlice]) {
    for descs in descs.chunks(Burst::CAPACITY) {
        // What cannot be had at once is looked for one by one.
        shared.pool.alloc_bulk(&mut shared.fresh, descs.len());
        let mut last = None;
        for desc in descs {
            if last.replace(desc.qp) != Some(desc.qp) {
                nic.qps.prefetch_packet(desc.qp);
            }
        }
        for desc in descs {
            build(nic, shared, desc, slices);
        }
        send_built(nic, shared);
        shared.fresh.clear();
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
    let fresh = shared.fresh.pop().or_else(|| shared.pool.alloc());
    let Some(mut mbuf) = fresh else {
        nic.counts.tx_no_mbuf += 1;
        return false;
    };
    let context = &mut shared.contexts[qp.context];
    let payload = desc.len as usize;
    let total = template.frame_len(desc.opcode, desc.len);
    if payload >= ALIGNED {
        mbuf.align_behind(template.header_len(desc.opcode), total);
    }
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
    if desc.opcode == Opcode::RC_ACK {
        let np = nic.engine.np_params();
        if np.rtt_resp_dscp_valid {
            template.set_dscp(mbuf.data_mut(), np.rtt_resp_dscp);
        }
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
    let mut end = OpEnd {
        qp: desc.qp,
        epoch: desc.epoch,
        side: desc.side,
        psn: desc.psn,
        mbuf,
        then: Then::Send,
        tell_fetched: desc.tell_fetched,
    };
    // Behind a packet of the same QP that waits for its payload.
    let late = qp.tx_waiting > 0;
    let mut plan = Plan {
        qp: desc.qp,
        header_len,
        len: payload,
        source: None,
    };
    match desc.payload {
        Payload::None => fill_pad(&mut end.mbuf, header_len + payload),
        Payload::Inline { slot, offset } if late => {
            fill_pad(&mut end.mbuf, header_len + payload);
            let into = &mut end.mbuf.data_mut()[header_len..header_len + payload];
            if !qp.sq.copy_inline(slot, offset, into) {
                return false;
            }
        }
        Payload::Inline { slot, offset } => {
            let Some(at) = qp.sq.inline(slot, offset, payload) else {
                return false;
            };
            plan.source = Some((at, None));
        }
        Payload::Memory { first, count } => {
            let slices = &slices[first as usize..][..usize::from(count)];
            let ordered = desc.side == Side::Requester || qp.placing[side_index(desc.side)] == 0;
            match source(&nic.mrs, slices, payload).filter(|_| ordered && !late) {
                Some((at, mark)) => plan.source = Some((at, Some(mark))),
                None => {
                    fill_pad(&mut end.mbuf, header_len + payload);
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
        }
    }
    if late {
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
    qp.packets.tx += 1;
    qp.packets.tx_bytes += total as u64;
    let pushed = shared.built.push(end.mbuf);
    debug_assert!(pushed.is_ok(), "no more at once than fit");
    shared.plans.push(plan);
    false
}

/// Pad bytes are zero and under the ICRC. They, and the ICRC, are what is behind the payload.
#[inline]
fn fill_pad(mbuf: &mut Mbuf, behind: usize) {
    mbuf.data_mut()[behind..].fill(0);
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

/// How a packet that was built is finished.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Whose packet counts it is in.
    qp: QpId,
    header_len: usize,
    /// Bytes of payload.
    len: usize,
    /// Where they are, if they are not in the packet, and whether they are still what they were.
    source: Option<(*const u8, Option<Mark>)>,
}

// SAFETY: a plan has meaning only within a stage: between two of them there is none.
unsafe impl Send for Plan {}

/// Where a payload is, if it is one piece of mapped memory.
#[inline]
fn source(mrs: &[Option<Mr>], slices: &[MemSlice], len: usize) -> Option<(*const u8, Mark)> {
    let [slice] = slices else { return None };
    let mr = mrs.get(slice.mr as usize)?.as_ref()?;
    let window = mr.reach.at(slice.addr, slice.len)?;
    (slice.len as usize == len).then(|| window.source())
}

/// A QP sends nothing more while its program has very many operations under way.
fn pause_if_many(engine: &mut Engine, qp: &mut Qp, context: &mut Context) {
    if context.ops.len() > context.room && !qp.paused {
        qp.paused = true;
        context.paused.push(qp.id);
        engine.pause_tx(qp.id, true);
    }
}

/// Gets the payload of the packets that were built, stores their ICRCs, and queues them for the port.
fn send_built(nic: &mut Nic, shared: &mut Shared) {
    let mut seals = Few::<Seal<'_>, { Burst::CAPACITY }>::new();
    for (mbuf, plan) in shared.built.iter_mut().zip(&shared.plans) {
        let frame = mbuf.data_mut();
        let seal = match plan.source {
            None => Seal::in_place(frame),
            // SAFETY: the bytes are in a region's mapping or in a context file. Those live until a message ends them, and none is
            // served before the end of this stage.
            Some((at, _)) => unsafe { Seal::copy_from(frame, plan.header_len, at, plan.len) },
        };
        // Never none: the frame was made for them.
        if let Some(seal) = seal {
            seals.push(seal);
        }
    }
    icrc::seal_burst(seals.as_mut_slice());
    let (mut packets, mut bytes) = (0, 0);
    for (mbuf, plan) in shared.built.drain().zip(shared.plans.drain(..)) {
        if let Some((_, Some(mark))) = plan.source {
            if !mark.is_alive() {
                // The program cut the object while it was read. As if the packet were lost on the way: if it is sent again, its payload
                // is fetched through the kernel.
                nic.counts.tx_memory_overrun += 1;
                uncount(nic, plan.qp, mbuf.len() as u64);
                continue;
            }
        }
        let len = mbuf.len() as u64;
        if queue(nic, &shared.pool, mbuf) {
            packets += 1;
            bytes += len;
        } else {
            uncount(nic, plan.qp, len);
        }
    }
    let counters = nic.engine.counters_mut();
    counters.rdma_tx_packets += packets;
    counters.rdma_tx_bytes += bytes;
}

/// A packet that was counted when it was built is not sent.
#[cold]
fn uncount(nic: &mut Nic, id: QpId, len: u64) {
    if let Some(qp) = nic.qps.get_mut(id) {
        qp.packets.tx -= 1;
        qp.packets.tx_bytes -= len;
    }
}

/// Stores the ICRC and queues the packet for the port.
pub fn finish(nic: &mut Nic, pool: &Mempool, id: QpId, mut mbuf: Mbuf) {
    let len = mbuf.len() as u64;
    icrc::seal(mbuf.data_mut(), L3_OFFSET);
    if !queue(nic, pool, mbuf) {
        return;
    }
    let counters = nic.engine.counters_mut();
    counters.rdma_tx_packets += 1;
    counters.rdma_tx_bytes += len;
    if let Some(qp) = nic.qps.get_mut(id) {
        qp.packets.tx += 1;
        qp.packets.tx_bytes += len;
    }
}

/// Queues a finished packet for the port, or for the NIC itself. False if the queue is full: the packet is lost, as on a NIC
/// whose queue is.
#[inline]
fn queue(nic: &mut Nic, pool: &Mempool, mbuf: Mbuf) -> bool {
    let frame = mbuf.data();
    let own = frame[..6] == nic.info.mac && nic.part.is_own(frame);
    let group = frame[0] & 1 != 0;
    // Rules between here and the port, and groups, cost a NIC without them no branch of their own.
    let (queue, limit) = if own | group | nic.impair.sending {
        if group & !nic.impair.sending {
            multicast::loop_back(&nic.groups, &mut nic.loopback, pool, &mbuf);
        }
        match (nic.impair.sending, own) {
            (true, _) => (&mut nic.impair.staged, TX_LIMIT),
            (false, true) => (&mut nic.loopback, LOOPBACK_LIMIT),
            (false, false) => (&mut nic.tx, TX_LIMIT),
        }
    } else {
        let mbuf = match nic.sends_at_once() {
            true => match nic.tx_burst.push(mbuf) {
                Ok(()) => return true,
                Err(mbuf) => mbuf,
            },
            false => mbuf,
        };
        if nic.tx.len() >= TX_LIMIT {
            nic.counts.tx_queue_full += 1;
            return false;
        }
        nic.tx.push_back(mbuf);
        return true;
    };
    if queue.len() >= limit {
        nic.counts.tx_queue_full += 1;
        return false;
    }
    queue.push_back(mbuf);
    nic.counts.tx_multicast += u64::from(group);
    true
}
