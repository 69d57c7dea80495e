//! Requests into packets: segmentation, AckReq, window, fence, READ credits.

use super::{MAX_OUTSTANDING, Requester, SendWqe, Wait, answered, complete, local};
use crate::descriptor::{MemSlice, Payload, Side, TxDesc, add, put};
use crate::memory::{Access, AccessError, MrTable};
use crate::time::Nanos;
use crate::transport::env::Env;
use crate::transport::journal::Cause;
use crate::transport::qp::Qp;
use crate::transport::{responder, sge};
use crate::verbs::{QpState, WcStatus, WrOpcode};
use crate::wire::Opcode;

/// At least every so many packets one asks for an ACK, so that a long message moves the window.
const ACK_REQ_EVERY: u32 = 64;
/// And the first packet after so long, if congestion control holds the QP back: at 1 Mb/s 64 packets take seconds, in which
/// nobody would know whether the peer still lives.
const ACK_REQ_AFTER: Nanos = Nanos::from_millis(1);

/// Emits up to `quota` packets; how many it were.
pub(crate) fn emit(qp: &mut Qp, quota: usize, env: &mut Env<'_>) -> usize {
    if !qp.can_send() {
        return 0;
    }
    let (mut emitted, mut local) = (0, 0);
    while emitted + local < quota && env.may_send() && qp.req.has_unsent() {
        let index = qp.req.cur;
        // A copy: what is emitted may be anywhere, as far as the compiler knows.
        let mut w = *qp.req.wqe(index);
        let mut checked = None;
        if index == qp.req.started {
            match start(qp, &mut w, env) {
                Some(memory) => checked = memory,
                None => break,
            }
        }
        if w.op.is_local() {
            // Carried out when it started.
            qp.req.cur = index.wrapping_add(1);
            local += 1;
            continue;
        }
        if qp.req.outstanding() >= env.nic.window {
            break;
        }
        let sent = match w.op {
            WrOpcode::Read => usize::from(emit_read(qp, env)),
            _ if w.op.is_answered() => usize::from(answered::emit(qp, env)),
            _ => emit_data(qp, &w, quota - emitted - local, checked, env),
        };
        if sent == 0 {
            break;
        }
        env.count_sent(qp.ipv6);
        emitted += sent;
    }
    if emitted > 0 && qp.req.wait == Wait::None {
        let (now, timers) = (env.now, &mut env.nic.timers);
        qp.req.restart_ack_timer(now, timers, qp.slot);
    }
    emitted + local
}

/// Gives the next request, of which `w` is a copy, its PSNs, if it may start now and is sound. The memory of one that has a
/// single entry.
#[inline]
fn start(qp: &mut Qp, w: &mut SendWqe, env: &mut Env<'_>) -> Option<Option<MemSlice>> {
    // SQD: what has started goes on, nothing new starts (IBTA 10.3.1).
    if qp.state != QpState::Rts {
        return None;
    }
    let index = qp.req.started;
    let op = w.op;
    if w.fence() && (qp.req.reads_open > 0 || (op.is_local() && qp.req.head != index)) {
        return None;
    }
    if op == WrOpcode::LocalInv && !responder::may_invalidate(qp, env.now) {
        return None;
    }
    let judged = match w.error() {
        Some(WcStatus::LocLenErr) => Err(Cause::TooLong),
        Some(_) => Err(Cause::BadRequest),
        None if op.is_local() => local::execute(qp, index, env).map(|()| None),
        None => judge(qp, index, w, env),
    };
    let psns = match op {
        _ if judged.is_err() || op.is_local() => 0,
        WrOpcode::Flush => 1,
        _ => qp.packets(w.len),
    };
    let r = &mut qp.req;
    let used = r.ahead(r.alloc);
    if used > 0 && used + psns > MAX_OUTSTANDING {
        return None;
    }
    let first = r.alloc;
    r.alloc = first.add(psns);
    r.started = r.started.wrapping_add(1);
    (w.first, w.psns) = (first, psns);
    let kept = r.wqe_mut(index);
    (kept.first, kept.psns) = (first, psns);
    let memory = match judged {
        Ok(memory) => memory,
        Err(cause) => {
            r.set_error(index, cause);
            complete(qp, env);
            return None;
        }
    };
    if op.is_answered() {
        r.reads_open += 1;
    } else if op.is_local() {
        r.skip_local();
        complete(qp, env);
    }
    Some(memory)
}

/// Why a request that is sound in itself may not start; else the memory of its entry, if it has one and no more.
#[inline]
fn judge(qp: &Qp, index: u32, w: &SendWqe, env: &Env<'_>) -> Result<Option<MemSlice>, Cause> {
    let mut right = Access::LOCAL_READ;
    if w.op.is_answered() {
        if qp.req.max_rd_atomic == 0 {
            return Err(Cause::NoReadCredits);
        }
        if w.op == WrOpcode::Read || w.op.is_atomic() {
            right = Access::LOCAL_WRITE;
        }
    }
    let (mrs, pd) = (&env.nic.mrs, qp.pd);
    let judged = match w.num_sge {
        0 => Ok(None),
        1 if w.sge.length > 0 => mrs
            .check(w.sge.lkey, pd, w.sge.addr, w.sge.length, right)
            .map(Some),
        _ => sge::check_all(qp.req.sges(index), right, pd, mrs).map(|()| None),
    };
    judged.map_err(Cause::LocalKey)
}

/// Opcodes by place in the message: middle, first, last, only.
fn opcode(op: WrOpcode, first: bool, last: bool) -> Opcode {
    const SEND: [Opcode; 4] = [
        Opcode::RC_SEND_MIDDLE,
        Opcode::RC_SEND_FIRST,
        Opcode::RC_SEND_LAST,
        Opcode::RC_SEND_ONLY,
    ];
    const SEND_IMM: [Opcode; 4] = [
        Opcode::RC_SEND_MIDDLE,
        Opcode::RC_SEND_FIRST,
        Opcode::RC_SEND_LAST_IMM,
        Opcode::RC_SEND_ONLY_IMM,
    ];
    const SEND_INV: [Opcode; 4] = [
        Opcode::RC_SEND_MIDDLE,
        Opcode::RC_SEND_FIRST,
        Opcode::RC_SEND_LAST_INV,
        Opcode::RC_SEND_ONLY_INV,
    ];
    const WRITE: [Opcode; 4] = [
        Opcode::RC_WRITE_MIDDLE,
        Opcode::RC_WRITE_FIRST,
        Opcode::RC_WRITE_LAST,
        Opcode::RC_WRITE_ONLY,
    ];
    const WRITE_IMM: [Opcode; 4] = [
        Opcode::RC_WRITE_MIDDLE,
        Opcode::RC_WRITE_FIRST,
        Opcode::RC_WRITE_LAST_IMM,
        Opcode::RC_WRITE_ONLY_IMM,
    ];
    let table = match op {
        WrOpcode::SendImm => &SEND_IMM,
        WrOpcode::SendInv => &SEND_INV,
        WrOpcode::Write => &WRITE,
        WrOpcode::WriteImm => &WRITE_IMM,
        _ => &SEND,
    };
    table[usize::from(first) | usize::from(last) << 1]
}

/// Packets of one SEND or WRITE, up to `quota` and as far as the window reaches: at least one, unless the request fails.
/// `checked` is the memory of a request with a single entry that has just started.
#[inline]
fn emit_data(
    qp: &mut Qp,
    w: &SendWqe,
    quota: usize,
    checked: Option<MemSlice>,
    env: &mut Env<'_>,
) -> usize {
    let (mtu, shift) = (qp.mtu(), qp.mtu_shift);
    let r = &mut qp.req;
    let index = r.cur;
    let (op, total, psns) = (w.op, w.len, w.psns);
    let checked = checked.filter(|_| psns == 1);
    let writes = matches!(op, WrOpcode::Write | WrOpcode::WriteImm);
    // The event at the peer comes with the completion, hence with the last packet, and only where the
    // peer has a completion.
    let solicited = w.solicited() && op != WrOpcode::Write;
    let mut packet = r.snd.sub(w.first.get()).get();
    let mut outstanding = r.outstanding();
    let mut sent = 0;
    while packet < psns && sent < quota && outstanding < env.nic.window {
        if sent > 0 && !env.may_send() {
            break;
        }
        // The last packet's offset is below the length, so this fits 31 bits.
        let offset = packet << shift;
        let len = (total - offset).min(mtu);
        let (first, last) = (packet == 0, packet + 1 == psns);
        let out = &mut *env.out;
        let desc = add(&mut out.tx);
        if len > 0 {
            let (mrs, slices) = (&env.nic.mrs, &mut out.slices);
            let found = payload(desc, r, w, (offset, len), checked, (mrs, qp.pd), slices);
            // The region went away since the request started.
            if let Err(error) = found {
                out.tx.pop();
                r.set_error(index, Cause::LocalKey(error));
                complete(qp, env);
                break;
            }
        }
        outstanding += 1;
        packet += 1;
        sent += 1;
        let psn = r.snd;
        let wanted = last
            || outstanding >= env.nic.window
            || r.since_ack_req + 1 >= ACK_REQ_EVERY
            || (qp.limited && env.now.saturating_sub(r.asked_at) >= ACK_REQ_AFTER);
        let ack_req = wanted & r.reliable;
        let opcode = opcode(op, first, last).of_transport(r.opcode_bits);
        desc.qp = qp.id;
        desc.epoch = qp.tx_epoch;
        desc.side = Side::Requester;
        desc.opcode = opcode;
        desc.ack_req = ack_req;
        desc.solicited = last && solicited;
        desc.psn = psn;
        desc.len = len;
        desc.tell_fetched = !r.reliable;
        if first && writes {
            desc.ext.va = w.remote_addr;
            desc.ext.rkey = w.rkey;
            desc.ext.dma_len = total;
        }
        if last && !matches!(op, WrOpcode::Send | WrOpcode::Write) {
            desc.ext.imm_or_rkey = w.imm;
        }
        if ack_req {
            r.asks(psn, env.now);
            if qp.hears_acks && psn == r.max {
                env.nic.reaction.asked(qp.slot, psn, env.now);
            }
        } else {
            r.since_ack_req += 1;
        }
        let again = psn != r.max;
        qp.journal.sent(env.now, opcode, psn, 0, again);
        r.snd = psn.add(1);
        if !again {
            r.max = r.snd;
        }
        env.count_packet(qp.ipv6, opcode, len);
    }
    let r = &mut qp.req;
    if packet == psns && sent > 0 {
        r.cur = index.wrapping_add(1);
    }
    sent
}

/// Says where the `len` bytes at `offset` of the present request come from.
#[inline]
fn payload(
    desc: &mut TxDesc,
    r: &mut Requester,
    w: &SendWqe,
    (offset, len): (u32, u32),
    checked: Option<MemSlice>,
    (mrs, pd): (&MrTable, u32),
    slices: &mut Vec<MemSlice>,
) -> Result<(), AccessError> {
    if w.inline() {
        let slot = w.slot;
        desc.payload = Payload::Inline { slot, offset };
        return Ok(());
    }
    let right = Access::LOCAL_READ;
    let (first, count) = if w.num_sge == 1 {
        let first = slices.len() as u32;
        match checked {
            Some(slice) => put(slices, slice),
            None => {
                let addr = w.sge.addr.wrapping_add(u64::from(offset));
                put(slices, mrs.check(w.sge.lkey, pd, addr, len, right)?);
            }
        }
        (first, 1)
    } else {
        let index = r.cur;
        let (cursor, sges) = r.tx_sges(index);
        cursor.seek(index, sges, offset);
        cursor.slice(sges, len, right, pd, mrs, slices)?
    };
    desc.payload = Payload::Memory { first, count };
    Ok(())
}

/// The request of a READ, or of what a retry still misses of it. It takes the PSNs of all its responses.
fn emit_read(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    let shift = qp.mtu_shift;
    let r = &mut qp.req;
    if r.reads_out >= u32::from(r.max_rd_atomic) {
        return false;
    }
    let w = r.wqe(r.cur);
    let answered = r.snd.sub(w.first.get()).get();
    let offset = answered << shift;
    let psns = w.psns - answered;
    let (va, rkey, dma_len) = (
        w.remote_addr.wrapping_add(u64::from(offset)),
        w.rkey,
        w.len - offset,
    );
    let desc = add(&mut env.out.tx);
    desc.qp = qp.id;
    desc.epoch = qp.tx_epoch;
    desc.side = Side::Requester;
    desc.opcode = Opcode::RC_READ_REQUEST;
    desc.ack_req = true;
    desc.psn = r.snd;
    desc.ext.va = va;
    desc.ext.rkey = rkey;
    desc.ext.dma_len = dma_len;
    r.asks(r.snd.add(psns - 1), env.now);
    let (psn, again) = (r.snd, r.snd != r.max);
    let opcode = Opcode::RC_READ_REQUEST;
    qp.journal.sent(env.now, opcode, psn, 0, again);
    r.reads_out += 1;
    r.read_psns += psns;
    r.snd = r.snd.add(psns);
    if r.ahead(r.snd) > r.ahead(r.max) {
        r.max = r.snd;
    }
    r.cur = r.cur.wrapping_add(1);
    true
}
