//! Requests into packets: segmentation, AckReq, window, fence, READ credits.

use super::{MAX_OUTSTANDING, SendWqe, Wait, answered, complete, local};
use crate::descriptor::{NO_AH, Payload, Side, TxDesc};
use crate::memory::Access;
use crate::time::Nanos;
use crate::transport::env::Env;
use crate::transport::journal::Cause;
use crate::transport::qp::Qp;
use crate::transport::{responder, sge};
use crate::verbs::{QpState, WcStatus, WrOpcode};
use crate::wire::{ExtHeaders, HeaderSet, Opcode};

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
        if qp.req.cur == qp.req.started && !start(qp, env) {
            break;
        }
        let op = qp.req.wqe(qp.req.cur).op;
        if op.is_local() {
            // Carried out when it started.
            qp.req.cur = qp.req.cur.wrapping_add(1);
            local += 1;
            continue;
        }
        if qp.req.outstanding() >= env.window {
            break;
        }
        let sent = match op {
            WrOpcode::Read => emit_read(qp, env),
            _ if op.is_answered() => answered::emit(qp, env),
            _ => emit_data(qp, env),
        };
        if !sent {
            break;
        }
        env.count_sent(qp.ipv6);
        emitted += 1;
    }
    if emitted > 0 && qp.req.wait == Wait::None {
        qp.req.restart_ack_timer(env.now, env.timers, qp.slot);
    }
    emitted + local
}

/// Gives the next request its PSNs, if it may start now and is sound.
fn start(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    // SQD: what has started goes on, nothing new starts (IBTA 10.3.1).
    if qp.state != QpState::Rts {
        return false;
    }
    let index = qp.req.started;
    let w = *qp.req.wqe(index);
    if w.fence && (qp.req.reads_open > 0 || (w.op.is_local() && qp.req.head != index)) {
        return false;
    }
    if w.op == WrOpcode::LocalInv && !responder::may_invalidate(qp, env.now) {
        return false;
    }
    let error = match w.error {
        Some(WcStatus::LocLenErr) => Some(Cause::TooLong),
        Some(_) => Some(Cause::BadRequest),
        None if w.op.is_local() => local::execute(qp, index, &w, env).err(),
        None => refuse(qp, index, &w, env),
    };
    let psns = match w.op {
        _ if error.is_some() || w.op.is_local() => 0,
        WrOpcode::Flush => 1,
        _ => qp.packets(w.len),
    };
    let r = &mut qp.req;
    let used = r.ahead(r.alloc);
    if used > 0 && used + psns > MAX_OUTSTANDING {
        return false;
    }
    let first = r.alloc;
    r.alloc = first.add(psns);
    r.started = r.started.wrapping_add(1);
    let w = r.wqe_mut(index);
    w.first = first;
    w.psns = psns;
    if let Some(cause) = error {
        r.set_error(index, cause);
        complete(qp, env);
        return false;
    }
    if w.op.is_answered() {
        r.reads_open += 1;
    } else if w.op.is_local() {
        r.skip_local();
        complete(qp, env);
    }
    true
}

/// Why a request that is sound in itself may not start.
fn refuse(qp: &Qp, index: u32, w: &SendWqe, env: &Env<'_>) -> Option<Cause> {
    let access = if w.is_read() || w.op.is_atomic() {
        Access::LOCAL_WRITE
    } else {
        Access::LOCAL_READ
    };
    if w.op.is_answered() && qp.req.max_rd_atomic == 0 {
        return Some(Cause::NoReadCredits);
    }
    let sges = &qp.req.sges[qp.req.sge_range(index)];
    sge::check_all(sges, access, qp.pd, env.mrs)
        .err()
        .map(Cause::LocalKey)
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

/// One packet of a SEND or WRITE.
fn emit_data(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    let index = qp.req.cur;
    let (mtu, shift) = (qp.mtu(), qp.mtu_shift);
    let r = &mut qp.req;
    let w = r.ring[(index & r.ring_mask) as usize];
    let packet = r.snd.sub(w.first.get()).get();
    // The last packet's offset is below the length, so this fits 31 bits.
    let offset = packet << shift;
    let rest = w.len - offset;
    let len = rest.min(mtu);
    let (first, last) = (packet == 0, packet + 1 == w.psns);
    let payload = if len == 0 {
        Payload::None
    } else if w.inline {
        Payload::Inline {
            slot: w.slot,
            offset,
        }
    } else {
        let range = r.sge_range(index);
        let sges = &r.sges[range];
        r.tx_cursor.seek(index, sges, offset);
        let out = &mut env.out.slices;
        match r
            .tx_cursor
            .slice(sges, len, Access::LOCAL_READ, qp.pd, env.mrs, out)
        {
            Ok((first, count)) => Payload::Memory { first, count },
            // The region went away since the request started.
            Err(error) => {
                r.set_error(index, Cause::LocalKey(error));
                complete(qp, env);
                return false;
            }
        }
    };
    let opcode = opcode(w.op, first, last).of_transport(r.opcode_bits);
    let headers = opcode.info().headers;
    let mut ext = ExtHeaders::default();
    if headers.has(HeaderSet::RETH) {
        ext.va = w.remote_addr;
        ext.rkey = w.rkey;
        ext.dma_len = w.len;
    }
    if headers.has(HeaderSet::IMM) || headers.has(HeaderSet::IETH) {
        ext.imm_or_rkey = w.imm;
    }
    let window_closes = r.outstanding() + 1 >= env.window;
    let overdue = qp.limited && env.now.saturating_sub(r.asked_at) >= ACK_REQ_AFTER;
    let wanted = last || window_closes || overdue || r.since_ack_req + 1 >= ACK_REQ_EVERY;
    let ack_req = wanted & r.reliable;
    if ack_req {
        r.asks(r.snd, env.now);
        if qp.hears_acks && r.snd == r.max {
            env.reaction.asked(qp.slot, r.snd, env.now);
        }
    } else {
        r.since_ack_req += 1;
    }
    env.out.tx.push(TxDesc {
        qp: qp.id,
        ah: NO_AH,
        dest_qpn: 0,
        epoch: qp.tx_epoch,
        side: Side::Requester,
        opcode,
        ack_req,
        // The event at the peer comes with the completion, hence with the last packet, and only where the
        // peer has a completion.
        solicited: last && w.solicited && w.op != WrOpcode::Write,
        psn: r.snd,
        ext,
        len,
        payload,
        tell_fetched: !r.reliable,
    });
    let (psn, again) = (r.snd, r.snd != r.max);
    qp.cold.journal.sent(env.now, opcode, psn, 0, again);
    r.snd = r.snd.add(1);
    if r.ahead(r.snd) > r.ahead(r.max) {
        r.max = r.snd;
    }
    if last {
        r.cur = r.cur.wrapping_add(1);
    }
    true
}

/// The request of a READ, or of what a retry still misses of it. It takes the PSNs of all its responses.
fn emit_read(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    let shift = qp.mtu_shift;
    let r = &mut qp.req;
    if r.reads_out >= u32::from(r.max_rd_atomic) {
        return false;
    }
    let w = r.ring[(r.cur & r.ring_mask) as usize];
    let answered = r.snd.sub(w.first.get()).get();
    let offset = answered << shift;
    let psns = w.psns - answered;
    env.out.tx.push(TxDesc {
        qp: qp.id,
        ah: NO_AH,
        dest_qpn: 0,
        epoch: qp.tx_epoch,
        side: Side::Requester,
        opcode: Opcode::RC_READ_REQUEST,
        ack_req: true,
        solicited: false,
        psn: r.snd,
        ext: ExtHeaders {
            va: w.remote_addr.wrapping_add(u64::from(offset)),
            rkey: w.rkey,
            dma_len: w.len - offset,
            ..ExtHeaders::default()
        },
        len: 0,
        payload: Payload::None,
        tell_fetched: false,
    });
    r.asks(r.snd.add(psns - 1), env.now);
    let (psn, again) = (r.snd, r.snd != r.max);
    let opcode = Opcode::RC_READ_REQUEST;
    qp.cold.journal.sent(env.now, opcode, psn, 0, again);
    r.reads_out += 1;
    r.read_psns += psns;
    r.snd = r.snd.add(psns);
    if r.ahead(r.snd) > r.ahead(r.max) {
        r.max = r.snd;
    }
    r.cur = r.cur.wrapping_add(1);
    true
}
