//! Datagrams out: each send request becomes one packet to wherever its address handle points, and is complete once its payload
//! was fetched, since nobody acknowledges it (IBTA 9.8.3).

use super::{SendWqe, complete};
use crate::descriptor::{Payload, Side, TxDesc};
use crate::memory::Access;
use crate::transport::env::Env;
use crate::transport::journal::Cause;
use crate::transport::qp::Qp;
use crate::transport::sge::Cursor;
use crate::verbs::{QpState, WcStatus, WrOpcode};
use crate::wire::{ExtHeaders, Opcode, Psn};

/// With this bit in a request's Q_Key, the QP's own is sent (IBTA, controlled Q_Keys: only privileged
/// consumers may name such keys).
const USE_OWN_QKEY: u32 = 1 << 31;

/// Emits up to `quota` datagrams; how many it were.
pub(crate) fn emit_datagrams(qp: &mut Qp, quota: usize, env: &mut Env<'_>) -> usize {
    let mut emitted = 0;
    // SQD: nothing new starts, and what has started is out already (IBTA 10.3.1).
    while emitted < quota && qp.state == QpState::Rts && env.may_send() && qp.req.has_unsent() {
        if !emit_next(qp, env) {
            break;
        }
        env.count_sent(qp.ipv6);
        emitted += 1;
    }
    emitted
}

/// The next request's packet; false if the request fails instead.
fn emit_next(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    let index = qp.req.cur;
    let w = *qp.req.wqe(index);
    let judged = judge(qp, index, &w, env);
    let r = &mut qp.req;
    let psn = r.alloc;
    r.started = index.wrapping_add(1);
    r.wqe_mut(index).first = psn;
    let (ah, payload) = match judged {
        Ok(judged) => judged,
        Err(cause) => {
            r.set_error(index, cause);
            complete(qp, env);
            return false;
        }
    };
    r.wqe_mut(index).psns = 1;
    r.cur = r.started;
    r.set_psn(psn.add(1));
    let qkey = match w.qkey() {
        own if own & USE_OWN_QKEY != 0 => qp.qkey,
        qkey => qkey,
    };
    let (opcode, imm_or_rkey) = match w.op {
        WrOpcode::SendImm => (Opcode::UD_SEND_ONLY_IMM, w.imm),
        _ => (Opcode::UD_SEND_ONLY, 0),
    };
    env.out.tx.push(TxDesc {
        qp: qp.id,
        ah,
        dest_qpn: w.dest_qpn(),
        epoch: qp.tx_epoch,
        side: Side::Requester,
        opcode,
        ack_req: false,
        solicited: w.solicited(),
        psn,
        ext: ExtHeaders {
            imm_or_rkey,
            qkey,
            src_qpn: qp.id.0,
            ..ExtHeaders::default()
        },
        len: w.len,
        payload,
        tell_fetched: true,
    });
    qp.journal.sent(env.now, opcode, psn, 0, false);
    true
}

/// Where a request goes and its payload comes from, or what is wrong with it.
fn judge(qp: &Qp, index: u32, w: &SendWqe, env: &mut Env<'_>) -> Result<(u32, Payload), Cause> {
    match w.error() {
        None if matches!(w.op, WrOpcode::Send | WrOpcode::SendImm) => {}
        Some(WcStatus::LocLenErr) => return Err(Cause::TooLong),
        _ => return Err(Cause::BadRequest),
    }
    let Some(ah) = env.nic.ahs.find(w.ah(), qp.pd) else {
        return Err(Cause::AddressHandle(w.ah()));
    };
    if w.len > qp.mtu() {
        return Err(Cause::DatagramTooLong {
            len: w.len,
            mtu: qp.mtu(),
        });
    }
    let payload = if w.len == 0 {
        Payload::None
    } else if w.inline() {
        Payload::Inline {
            slot: w.slot,
            offset: 0,
        }
    } else {
        let sges = qp.req.sges(index);
        let (pd, slices) = (qp.pd, &mut env.out.slices);
        let (first, count) = Cursor::default()
            .slice(sges, w.len, Access::LOCAL_READ, pd, &env.nic.mrs, slices)
            .map_err(Cause::LocalKey)?;
        Payload::Memory { first, count }
    };
    Ok((ah, payload))
}

/// The payload of the datagram with `psn` could not be read; those behind it that were emitted have been dropped, too.
pub(super) fn fetch_fault(qp: &mut Qp, psn: Psn, env: &mut Env<'_>) {
    let r = &mut qp.req;
    let mut waiting = (0..r.started.wrapping_sub(r.una_wqe)).map(|i| r.una_wqe.wrapping_add(i));
    if let Some(index) = waiting.find(|&index| r.wqe(index).first == psn) {
        // A QP's operations end in their order, so those before it are done, also one that was lost here and has not been
        // told yet.
        r.una_wqe = index;
        r.set_error(index, Cause::LocalMemory);
    }
    complete(qp, env);
}
