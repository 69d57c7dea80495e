//! READ responses, and the other answers that are kept to be given again: those to atomics, ATOMIC WRITE and FLUSH.
//! Several jobs may be active at once after duplicates; they are answered in PSN order.

use super::Responder;
use super::effects::{drain, fatal};
use crate::descriptor::{Payload, Side, add, put};
use crate::memory::Access;
use crate::transport::env::{Env, count};
use crate::transport::journal::Cause;
use crate::transport::qp::Qp;
use crate::transport::state::MAX_RD_ATOMIC;
use crate::verbs::AsyncKind;
use crate::wire::aeth::{Aeth, Syndrome};
use crate::wire::{Opcode, Operation, Packet, Psn};

/// A READ, or another request that has an answer of its own, that was accepted.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadJob {
    pub operation: Operation,
    pub first: Psn,
    /// Responses; 0 if there is no job.
    pub psns: u32,
    pub va: u64,
    pub rkey: u32,
    /// Bytes that the responses bring: none but for a READ.
    pub len: u32,
    /// Atomics: what was there before.
    pub value: u64,
    /// Responses from here on belong to the present execution.
    pub start: Psn,
    /// Next response to send.
    pub next: Psn,
    /// It has left the FIFO: a duplicate may start it again.
    pub executed: bool,
    /// All responses were sent once.
    pub answered: bool,
}

impl ReadJob {
    pub const NONE: ReadJob = ReadJob {
        operation: Operation::ReadRequest,
        first: Psn::new(0),
        psns: 0,
        va: 0,
        rkey: 0,
        len: 0,
        value: 0,
        start: Psn::new(0),
        next: Psn::new(0),
        executed: false,
        answered: false,
    };

    /// A job with one response, which brings no bytes.
    pub fn brief(packet: &Packet) -> ReadJob {
        ReadJob {
            operation: packet.opcode.info().operation,
            first: packet.psn,
            psns: 1,
            va: packet.ext.va,
            rkey: packet.ext.rkey,
            start: packet.psn,
            next: packet.psn,
            ..ReadJob::NONE
        }
    }
}

const SLOTS: u8 = MAX_RD_ATOMIC;

impl Responder {
    /// Keeps a new job in place of the oldest; its number.
    pub(super) fn add_read(&mut self, job: ReadJob) -> u8 {
        let slot = self.next_read;
        self.next_read = (slot + 1) % SLOTS;
        self.active &= !(1 << slot);
        self.reads[usize::from(slot)] = job;
        self.reads_pending += 1;
        slot
    }

    /// Whether a READ is being answered for the first time.
    pub(super) fn answers_anew(&self) -> bool {
        let active = |slot: usize| self.active & 1 << slot != 0;
        (0..self.reads.len()).any(|slot| active(slot) && !self.reads[slot].answered)
    }

    /// The newest job of which `wanted` is true. An older one may have had the same PSN, one round of PSNs before.
    fn newest(&self, wanted: impl Fn(&ReadJob) -> bool) -> Option<usize> {
        (1..=SLOTS)
            .map(|back| usize::from((self.next_read + SLOTS - back) % SLOTS))
            .find(|&slot| wanted(&self.reads[slot]))
    }

    /// The active job with the lowest PSN: slots are taken in PSN order, the oldest is at `next_read`.
    fn oldest_active(&self) -> usize {
        let from_oldest = self.active.rotate_right(u32::from(self.next_read));
        (from_oldest.trailing_zeros() + u32::from(self.next_read)) as usize % usize::from(SLOTS)
    }
}

const _: () = assert!(SLOTS == 16, "`active` has one bit a job");

/// A job's turn has come: everything before it is done, and so is what it does to memory.
pub(super) fn activate(qp: &mut Qp, slot: u8) {
    qp.resp.reads[usize::from(slot)].executed = true;
    qp.resp.active |= 1 << slot;
    qp.answers = true;
}

/// A duplicate of a READ: it is executed again from the PSN asked for, which may be in its middle (IBTA 9.7.5.1). What
/// else is kept is not: its answer goes out again as it was. One that is no longer kept is dropped, as is one that
/// asks for something else than it did at first.
pub(super) fn repeat(qp: &mut Qp, packet: &Packet, env: &mut Env<'_>) {
    let shift = qp.mtu_shift;
    let r = &mut qp.resp;
    let operation = packet.opcode.info().operation;
    let is_read = operation == Operation::ReadRequest;
    let found = r.newest(|job| {
        let at = packet.psn.sub(job.first.get()).get();
        at < job.psns && {
            let offset = at << shift;
            job.executed
                && operation == job.operation
                && packet.ext.va == job.va.wrapping_add(u64::from(offset))
                && (!is_read || packet.ext.dma_len == job.len - offset)
                && packet.ext.rkey == job.rkey
        }
    });
    let Some(slot) = found else {
        count!(qp, env, rx_dropped);
        return;
    };
    let job = &mut r.reads[slot];
    job.start = packet.psn;
    job.next = packet.psn;
    r.active |= 1 << slot;
    qp.answers = true;
    env.nic.lists.ready.push(qp.slot);
}

/// Emits READ responses, then whatever they held back, up to `quota` packets; how many it were.
pub(crate) fn emit(qp: &mut Qp, quota: usize, env: &mut Env<'_>) -> usize {
    let before = env.out.tx.len();
    let end = env.tx_end;
    env.tx_end = end.min(before + quota);
    while qp.can_receive() && env.tx_room() {
        if qp.resp.active != 0 {
            if !env.may_send() {
                break;
            }
            respond(qp, env);
            env.count_sent(qp.ipv6);
        } else if qp.resp.has_unsent() && env.event_room() {
            drain(qp, env);
            // ACKs are not paced.
            env.leave_uncounted();
        } else {
            break;
        }
    }
    env.tx_end = end;
    qp.answers = qp.resp.has_unsent();
    env.out.tx.len() - before
}

/// One response packet.
fn respond(qp: &mut Qp, env: &mut Env<'_>) {
    let slot = qp.resp.oldest_active();
    let (mtu, shift) = (qp.mtu(), qp.mtu_shift);
    let r = &mut qp.resp;
    let job = &mut r.reads[slot];
    let psn = job.next;
    let at = psn.sub(job.first.get()).get();
    let offset = at << shift;
    let len = (job.len - offset).min(mtu);
    let mut memory = None;
    if len > 0 {
        let va = job.va.wrapping_add(u64::from(offset));
        let (key, owner) = (job.rkey, (qp.pd, qp.id));
        match env
            .nic
            .mrs
            .check_remote(key, owner, va, len, Access::REMOTE_READ)
        {
            Ok(slice) => memory = Some(slice),
            // The region went away since the request was accepted.
            Err(error) => {
                count!(qp, env, resp_remote_access_errors);
                let cause = Cause::RemoteKey {
                    rkey: job.rkey,
                    addr: va,
                    len,
                    right: Access::REMOTE_READ,
                    error,
                };
                qp.journal.rest.refusal = Some(cause);
                fatal(qp, psn, cause.fault(), None, env);
                return;
            }
        }
    }
    let (first, last) = (psn == job.start, at + 1 == job.psns);
    let is_atomic = matches!(job.operation, Operation::CompareSwap | Operation::FetchAdd);
    let opcode = match (first, last) {
        _ if is_atomic => Opcode::RC_ATOMIC_ACK,
        (true, true) => Opcode::RC_READ_RESP_ONLY,
        (true, false) => Opcode::RC_READ_RESP_FIRST,
        (false, false) => Opcode::RC_READ_RESP_MIDDLE,
        (false, true) => Opcode::RC_READ_RESP_LAST,
    };
    job.next = psn.add(1);
    let answered = job.answered;
    job.answered |= last;
    let out = &mut *env.out;
    let desc = add(&mut out.tx);
    desc.qp = qp.id;
    desc.epoch = qp.tx_epoch;
    desc.side = Side::Responder;
    desc.opcode = opcode;
    desc.psn = psn;
    desc.len = len;
    if let Some(slice) = memory {
        let first = out.slices.len() as u32;
        put(&mut out.slices, slice);
        desc.payload = Payload::Memory { first, count: 1 };
    }
    if is_atomic {
        desc.ext.compare = job.value;
    }
    if first || last {
        desc.ext.aeth = Aeth {
            syndrome: Syndrome::ACK,
            msn: r.msn,
        }
        .raw();
    }
    if last {
        r.active &= !(1 << slot);
        if !answered {
            r.reads_pending -= 1;
            r.done = psn;
            r.any_done = true;
        }
    }
    if !answered {
        // It acknowledges everything before it.
        r.ack_owed = false;
        r.reack = false;
    }
    qp.journal.sent(env.now, opcode, psn, 0, answered);
}

/// The payload of a READ response could not be read. The caller has dropped that descriptor and those behind
/// it, so a NAK for its PSN is the next that the peer hears.
pub(crate) fn fetch_fault(qp: &mut Qp, psn: Psn, env: &mut Env<'_>) {
    qp.tx_epoch = qp.tx_epoch.wrapping_add(1);
    if !qp.can_receive() {
        return;
    }
    let cause = Cause::ResponderMemory;
    qp.journal.rest.refusal = Some(cause);
    if env.tx_room() {
        fatal(qp, psn, cause.fault(), None, env);
    } else {
        qp.fail_with(AsyncKind::QpFatal, cause, env);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_jobs_with_one_psn_the_newest_is_found() {
        let mut r = Responder::new();
        for value in 0..u64::from(SLOTS) + 3 {
            r.add_read(ReadJob {
                psns: 1,
                value,
                ..ReadJob::NONE
            });
            let found = r
                .newest(|job| job.psns == 1)
                .map(|slot| r.reads[slot].value);
            assert_eq!(found, Some(value));
        }
        assert_eq!(r.newest(|job| job.psns == 2), None);
    }
}
