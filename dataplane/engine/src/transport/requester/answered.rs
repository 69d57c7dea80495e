//! Requests of one packet that an answer of their own acknowledges: atomics, ATOMIC WRITE and FLUSH. Like READs they take
//! one of `max_rd_atomic`, and what is behind a lost answer is sent again.

use super::complete;
use super::response::{answered, in_turn};
use crate::descriptor::{Payload, PlaceKind, Side, TxDesc};
use crate::memory::Access;
use crate::transport::env::{Env, count};
use crate::transport::journal::Cause;
use crate::transport::qp::Qp;
use crate::verbs::WrOpcode;
use crate::wire::{ExtHeaders, Opcode, Packet};

/// Bytes that an atomic, or an ATOMIC WRITE, is about.
pub(super) const ATOMIC_BYTES: u32 = 8;

/// Whether a request of this length cannot be: ATOMIC WRITE has 8 bytes (IBTA A19.4.5); an atomic needs room for 8, more
/// room stays as it is (soft-RoCE has it so, and refuses less when it is posted).
pub(super) fn wrong_length(op: WrOpcode, len: u64) -> bool {
    let bytes = u64::from(ATOMIC_BYTES);
    match op {
        WrOpcode::CmpSwap | WrOpcode::FetchAdd => len < bytes,
        WrOpcode::AtomicWrite => len != bytes,
        _ => false,
    }
}

/// The request, if there is a credit for it.
pub(super) fn emit(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    let index = qp.req.cur;
    let r = &mut qp.req;
    if r.reads_out >= u32::from(r.max_rd_atomic) {
        return false;
    }
    let at = r.at(index);
    let w = r.ring[at];
    let mut ext = ExtHeaders {
        va: w.remote_addr,
        rkey: w.rkey,
        ..ExtHeaders::default()
    };
    let mut payload = Payload::None;
    let mut len = 0;
    let opcode = match w.op {
        WrOpcode::CmpSwap => {
            [ext.compare, ext.swap_add] = r.operands[at];
            Opcode::RC_CMP_SWAP
        }
        WrOpcode::FetchAdd => {
            [ext.swap_add, _] = r.operands[at];
            Opcode::RC_FETCH_ADD
        }
        WrOpcode::Flush => {
            ext.qkey = w.imm;
            ext.dma_len = w.len;
            Opcode::RC_FLUSH
        }
        _ => {
            ext.dma_len = w.len;
            len = w.len;
            payload = match atomic_write_payload(qp, index, env) {
                Ok(payload) => payload,
                Err(cause) => {
                    qp.req.set_error(index, cause);
                    complete(qp, env);
                    return false;
                }
            };
            Opcode::RC_ATOMIC_WRITE
        }
    };
    let r = &mut qp.req;
    env.out.tx.push(TxDesc {
        qp: qp.id,
        epoch: qp.tx_epoch,
        side: Side::Requester,
        opcode,
        ack_req: true,
        solicited: false,
        psn: r.snd,
        ext,
        len,
        payload,
        ..TxDesc::default()
    });
    r.asks(r.snd, env.now);
    let (psn, again) = (r.snd, r.snd != r.max);
    qp.journal.sent(env.now, opcode, psn, 0, again);
    r.reads_out += 1;
    r.read_psns += 1;
    r.snd = r.snd.add(1);
    if r.ahead(r.snd) > r.ahead(r.max) {
        r.max = r.snd;
    }
    r.cur = r.cur.wrapping_add(1);
    true
}

/// Its 8 bytes lie in the queue slot, or where one entry says.
fn atomic_write_payload(qp: &mut Qp, index: u32, env: &mut Env<'_>) -> Result<Payload, Cause> {
    let r = &mut qp.req;
    let w = r.wqe(index);
    if w.inline() {
        return Ok(Payload::Inline {
            slot: w.slot,
            offset: 0,
        });
    }
    let (cursor, sges) = r.tx_sges(index);
    cursor.seek(index, sges, 0);
    let (right, out) = (Access::LOCAL_READ, &mut env.out.slices);
    let cut = cursor.slice(sges, ATOMIC_BYTES, right, qp.pd, &env.nic.mrs, out);
    let (first, count) = cut.map_err(Cause::LocalKey)?;
    Ok(Payload::Memory { first, count })
}

/// The answer to an atomic: the value that was there before goes where the request says.
pub(super) fn on_atomic_ack(qp: &mut Qp, packet: &Packet, tag: u32, env: &mut Env<'_>) {
    let Some((index, w)) = in_turn(qp, packet, env) else {
        return;
    };
    let r = &mut qp.req;
    if !w.op.is_atomic() || !r.can_place() {
        count!(qp, env, rx_dropped);
        return;
    }
    let (mrs, slices) = (&env.nic.mrs, &mut env.out.slices);
    let cut = r.target(index, 0, ATOMIC_BYTES, qp.pd, mrs, slices);
    match cut {
        Ok((first, count)) => {
            let len = ATOMIC_BYTES;
            super::response::place(qp, PlaceKind::AtomicAck, tag, len, (first, count), env);
        }
        Err(error) => {
            r.set_error(index, Cause::LocalKey(error));
            complete(qp, env);
            return;
        }
    }
    answered(qp, index, true, env);
}
