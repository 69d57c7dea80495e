//! Completions of send requests, in their order.

use super::Requester;
use super::unacknowledged::packet_fetched;
use crate::descriptor::{Outcome, put};
use crate::transport::env::{Env, count};
use crate::transport::journal::Cause;
use crate::transport::qp::Qp;
use crate::verbs::{AsyncKind, Completion, Event, QpState, WcOpcode, WcStatus, WrOpcode};
use crate::wire::Transport;

/// Completes what is done at the head of the queue. What a call has no room for goes on in `advance`.
pub(crate) fn complete(qp: &mut Qp, env: &mut Env<'_>) {
    if !qp.can_send() {
        return;
    }
    while qp.req.head != qp.req.started {
        if !env.event_room() {
            env.nic.lists.work.push(qp.slot);
            break;
        }
        let r = &mut qp.req;
        let w = r.wqe(r.head);
        if let Some(status) = w.error() {
            // Nothing is written to the program's memory after the completion that says so.
            if r.place_done == r.place_issued {
                let failed = w.failed(status);
                report(qp, status, env);
                count!(qp, env, req_cqe_error);
                qp.journal.fails(failed);
                qp.fail_sending(qp.req.cause, env);
            }
            break;
        }
        if r.head == r.una_wqe {
            break;
        }
        let (op, len, signaled) = (w.op, w.len, w.signaled());
        if op.is_answered() {
            let placed = r.place_done.wrapping_sub(w.place_end) as i32 >= 0;
            if !placed {
                break;
            }
            r.reads_open -= 1;
        }
        let size = match op {
            WrOpcode::Flush => 0,
            _ => len.min(qp.mtu()),
        };
        qp.journal.succeeded(op, size);
        if signaled {
            report(qp, WcStatus::Success, env);
        } else {
            let r = &mut qp.req;
            r.head = r.head.wrapping_add(1);
            r.retired += 1;
        }
    }
    retire(qp, env);
    drained(qp, env);
}

/// The last payload of the oldest request that is not acknowledged was fetched, or, in UC, that of its next packet. Where
/// nobody acknowledges, that is all there is to wait for.
pub(crate) fn fetched(qp: &mut Qp, env: &mut Env<'_>) {
    if qp.transport == Transport::Uc {
        packet_fetched(qp, env);
    } else if qp.req.una_wqe != qp.req.cur {
        qp.req.una_wqe = qp.req.una_wqe.wrapping_add(1);
        complete(qp, env);
    }
}

/// Reports slots that no completion took along.
pub(crate) fn retire(qp: &mut Qp, env: &mut Env<'_>) {
    if qp.req.retired > 0 {
        let count = core::mem::take(&mut qp.req.retired);
        env.out.events.push(Event::Retired { qp: qp.id, count });
    }
}

/// Completes the request at the head.
#[inline]
pub(super) fn report(qp: &mut Qp, status: WcStatus, env: &mut Env<'_>) {
    let r = &mut qp.req;
    let retire = core::mem::take(&mut r.retired) + 1;
    let w = r.wqe(r.head);
    let ok = status == WcStatus::Success;
    put(
        &mut env.out.events,
        Event::Completion(Completion {
            qp: qp.id,
            cq: qp.send_cq,
            recv: false,
            retire,
            wr_id: w.wr_id,
            status,
            opcode: wc_opcode(w.op),
            byte_len: if ok { w.len } else { 0 },
            flags: 0,
            imm_or_rkey: 0,
            src_qp: 0,
            sl: 0,
            solicited: false,
        }),
    );
    r.head = r.head.wrapping_add(1);
}

fn wc_opcode(op: WrOpcode) -> WcOpcode {
    match op {
        WrOpcode::Send | WrOpcode::SendImm | WrOpcode::SendInv => WcOpcode::Send,
        WrOpcode::Write | WrOpcode::WriteImm => WcOpcode::RdmaWrite,
        WrOpcode::Read => WcOpcode::RdmaRead,
        WrOpcode::CmpSwap => WcOpcode::CompSwap,
        WrOpcode::FetchAdd => WcOpcode::FetchAdd,
        WrOpcode::LocalInv => WcOpcode::LocalInv,
        WrOpcode::BindMw => WcOpcode::BindMw,
        WrOpcode::Flush => WcOpcode::Flush,
        WrOpcode::AtomicWrite => WcOpcode::AtomicWrite,
    }
}

/// SQD: reports, once, that all that had started is complete.
pub(crate) fn drained(qp: &mut Qp, env: &mut Env<'_>) {
    if qp.req.drain_wanted && qp.state == QpState::Sqd && !qp.req.is_draining() {
        qp.req.drain_wanted = false;
        env.event(qp, AsyncKind::SqDrained);
    }
}

/// The oldest placement of an answer ended.
pub(crate) fn placed(qp: &mut Qp, outcome: Outcome, env: &mut Env<'_>) {
    let r = &mut qp.req;
    if r.place_done == r.place_issued || outcome == Outcome::Pending {
        return;
    }
    let number = r.place_done;
    r.place_done = number.wrapping_add(1);
    if qp.state == QpState::Err {
        env.nic.lists.work.push(qp.slot);
        return;
    }
    if outcome == Outcome::Fault {
        if let Some(index) = r.read_of(number) {
            r.set_error(index, Cause::LocalMemory);
        }
    }
    complete(qp, env);
    // A fence may have waited for it.
    if qp.req.has_unsent() {
        env.nic.lists.ready.push(qp.slot);
    }
}

/// The `count` oldest placements of answers are done.
#[inline]
pub(crate) fn all_placed(qp: &mut Qp, count: u32, env: &mut Env<'_>) {
    let r = &mut qp.req;
    let open = r.place_issued.wrapping_sub(r.place_done);
    if open == 0 {
        return;
    }
    r.place_done = r.place_done.wrapping_add(count.min(open));
    if qp.state == QpState::Err {
        env.nic.lists.work.push(qp.slot);
        return;
    }
    complete(qp, env);
    // A fence may have waited for it.
    if qp.req.has_unsent() {
        env.nic.lists.ready.push(qp.slot);
    }
}

impl Requester {
    /// The request to which a placement belongs.
    fn read_of(&self, number: u32) -> Option<u32> {
        let waiting = self.una_wqe.wrapping_sub(self.head);
        (0..=waiting)
            .map(|i| self.head.wrapping_add(i))
            .filter(|&i| i != self.started && self.wqe(i).op.is_answered())
            .find(|&i| i == self.una_wqe || self.wqe(i).place_end.wrapping_sub(number) as i32 > 0)
    }

    /// SQD was entered: is the event wanted?
    pub(crate) fn want_drained(&mut self, wanted: bool) {
        self.drain_wanted = wanted;
    }
}

/// Flushes what is left of the send queue of a QP in ERR or SQE; false when it has to go on in another call.
pub(crate) fn flush(qp: &mut Qp, env: &mut Env<'_>) -> bool {
    if qp.req.place_done != qp.req.place_issued {
        // `placed` comes back to it.
        return true;
    }
    let end = qp.req.flush_end.unwrap_or(qp.req.tail);
    while qp.req.head != end {
        if !env.event_room() {
            return false;
        }
        report(qp, WcStatus::WrFlushErr, env);
        count!(qp, env, req_cqe_flush_error);
    }
    let r = &mut qp.req;
    r.started = r.head;
    r.cur = r.head;
    r.una_wqe = r.head;
    r.stop = None;
    r.flush_end = None;
    true
}
