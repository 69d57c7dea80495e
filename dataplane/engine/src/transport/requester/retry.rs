//! What makes the requester send again, or give up: timeouts, sequence and RNR NAKs, gaps in READ
//! responses, refusals, and payload that could not be fetched.

use super::adaptive::Expiry;
use super::response::acknowledge;
use super::{Wait, complete};
use crate::transport::env::{Env, count};
use crate::transport::journal::{Cause, Kind, Retry};
use crate::transport::qp::Qp;
use crate::wire::aeth::NakCode;
use crate::wire::{Psn, Transport, aeth};

/// Retries left for an RNR NAK that mean "for ever".
const RNR_ENDLESS: u8 = 7;

/// Back to the oldest PSN that is not acknowledged (go-back-N). A READ goes on from the first response it
/// misses.
fn go_back(qp: &mut Qp, env: &mut Env<'_>) {
    let r = &mut qp.req;
    r.snd = r.una;
    r.cur = r.una_wqe;
    r.reads_out = 0;
    r.read_psns = 0;
    r.since_ack_req = 0;
    r.asked = r.una.sub(1);
    r.wait = Wait::None;
    if qp.hears_acks {
        env.nic.reaction.forget_probe(qp.slot);
    }
    if qp.req.has_unsent() {
        env.nic.lists.ready.push(qp.slot);
    }
}

/// Uses up one of `retry_cnt` retries and sends again; false if there was none left and the oldest request failed.
fn retry(qp: &mut Qp, why: Retry, env: &mut Env<'_>) -> bool {
    if qp.req.retry_left == 0 {
        exhausted(qp, why, env);
        return false;
    }
    qp.req.retry_left -= 1;
    again(qp, why, env);
    true
}

/// Sends again, and remembers why.
fn again(qp: &mut Qp, why: Retry, env: &mut Env<'_>) {
    let (una, left) = (qp.req.una, qp.req.retry_left);
    let journal = &mut qp.journal;
    journal.trouble(env.now, una, &env.nic.counters);
    journal.note(env.now, why.kind(), una, left);
    go_back(qp, env);
}

/// The oldest request was sent in vain as often, or for as long, as the QP allows.
fn exhausted(qp: &mut Qp, why: Retry, env: &mut Env<'_>) {
    count!(qp, env, req_transport_retries_exceeded);
    qp.journal.note(env.now, why.kind(), qp.req.una, 0);
    let (index, cause) = (qp.req.una_wqe, Cause::RetriesExceeded(why));
    give_up(qp, index, cause, env);
}

/// The request at `index` has failed; it says so in its turn.
fn give_up(qp: &mut Qp, index: u32, cause: Cause, env: &mut Env<'_>) {
    qp.req.set_error(index, cause);
    qp.req
        .restart_ack_timer(env.now, &mut env.nic.timers, qp.slot);
    complete(qp, env);
}

/// The timer of the QP fired.
pub(crate) fn on_timer(qp: &mut Qp, env: &mut Env<'_>) {
    qp.req.wheel_at = u64::MAX;
    if qp.req.wait == Wait::None {
        return;
    }
    if qp.req.deadline > env.now {
        let (wait, deadline) = (qp.req.wait, qp.req.deadline);
        qp.req
            .wait_for(wait, deadline, &mut env.nic.timers, qp.slot);
        return;
    }
    match core::mem::replace(&mut qp.req.wait, Wait::None) {
        // What should be answered may not have left.
        Wait::Ack if qp.tx_paused || env.nic.lists.ready.paused() >> qp.priority & 1 != 0 => {
            qp.req
                .restart_ack_timer(env.now, &mut env.nic.timers, qp.slot);
        }
        Wait::Ack => {
            qp.req.implied_nak_armed = true;
            ack_timeout(qp, env);
        }
        Wait::Rnr if qp.req.has_unsent() => env.nic.lists.ready.push(qp.slot),
        _ => {}
    }
}

/// Nothing was acknowledged for as long as the profile waits.
fn ack_timeout(qp: &mut Qp, env: &mut Env<'_>) {
    match qp.req.ack_wait_expired() {
        Expiry::RetryCount => {
            if retry(qp, Retry::Timeout, env) {
                count!(qp, env, local_ack_timeout_err);
            }
        }
        Expiry::Early => {
            count!(qp, env, roce_adp_retrans);
            again(qp, Retry::Timeout, env);
        }
        Expiry::Full => {
            count!(qp, env, local_ack_timeout_err);
            again(qp, Retry::Timeout, env);
        }
        Expiry::Total => {
            count!(qp, env, roce_adp_retrans_to);
            exhausted(qp, Retry::Timeout, env);
        }
    }
}

/// A response beyond one that is missing. The packets behind the gap say the same; they are not heard until
/// there is progress, or the timer has fired.
pub(crate) fn implied_nak(qp: &mut Qp, env: &mut Env<'_>) {
    let r = &mut qp.req;
    if !r.implied_nak_armed || !r.awaits_response() {
        return;
    }
    r.implied_nak_armed = false;
    if retry(qp, Retry::ImpliedNak, env) {
        count!(qp, env, implied_nak_seq_err);
    }
}

/// NAK "PSN sequence error": the responder waits for `psn`.
pub(crate) fn sequence_nak(qp: &mut Qp, psn: Psn, env: &mut Env<'_>) {
    if qp.req.una != psn {
        implied_nak(qp, env);
        return;
    }
    // Nothing of it is on its way: a retry is under way already.
    if !qp.req.awaits_response() {
        return;
    }
    if retry(qp, Retry::SequenceNak, env) {
        count!(qp, env, packet_seq_err);
    }
}

/// RNR NAK: the responder had no receive request for `psn`.
pub(crate) fn rnr_nak(qp: &mut Qp, psn: Psn, timer: u8, env: &mut Env<'_>) {
    if qp.req.una != psn {
        implied_nak(qp, env);
        return;
    }
    let r = &mut qp.req;
    if !r.awaits_response() {
        return;
    }
    if r.rnr_retry != RNR_ENDLESS {
        if r.rnr_left == 0 {
            count!(qp, env, req_rnr_retries_exceeded);
            qp.journal.note(env.now, Kind::RnrNak, psn, 0);
            let index = r.una_wqe;
            give_up(qp, index, Cause::RnrExceeded, env);
            return;
        }
        r.rnr_left -= 1;
    }
    let left = r.rnr_left;
    qp.journal.note(env.now, Kind::RnrNak, psn, left);
    count!(qp, env, rnr_nak_retry_err);
    go_back(qp, env);
    let until = env.now + aeth::rnr_timer(timer);
    qp.req
        .wait_for(Wait::Rnr, until, &mut env.nic.timers, qp.slot);
}

/// A NAK that is no call for a retry: the request with `psn` has failed.
pub(crate) fn refused(qp: &mut Qp, psn: Psn, code: NakCode, env: &mut Env<'_>) {
    let Some(index) = request_of(qp, psn) else {
        return;
    };
    give_up(qp, index, Cause::Refused(code), env);
    // Responses of a READ before it are missing and will not come by themselves.
    if qp.can_send() && qp.req.una != psn {
        implied_nak(qp, env);
    }
}

/// The payload of a packet could not be read. The caller has dropped that descriptor and those behind it.
pub(crate) fn fetch_fault(qp: &mut Qp, psn: Psn, env: &mut Env<'_>) {
    qp.tx_epoch = qp.tx_epoch.wrapping_add(1);
    if qp.transport == Transport::Ud {
        return super::datagram::fetch_fault(qp, psn, env);
    }
    if qp.transport == Transport::Uc {
        // A QP's operations end in their order: those before it are out, or were lost here and not told yet. To go back to
        // them would send them twice.
        acknowledge(qp, psn, env);
    }
    // It may have been a retry of something acknowledged in the meantime: then only the packets that were
    // dropped behind it have to go out again.
    if let Some(index) = request_of(qp, psn) {
        qp.req.set_error(index, Cause::LocalMemory);
    }
    // During an RNR wait it has gone back already.
    if qp.req.wait != Wait::Rnr {
        go_back(qp, env);
    }
    complete(qp, env);
}

/// The request that holds `psn`, if it is not acknowledged.
fn request_of(qp: &Qp, psn: Psn) -> Option<u32> {
    let r = &qp.req;
    let at = r.ahead(psn);
    if at >= r.ahead(r.max) {
        return None;
    }
    let mut index = r.una_wqe;
    while index != r.started {
        if at < r.ahead(r.wqe(index).end()) {
            return Some(index);
        }
        index = index.wrapping_add(1);
    }
    None
}
