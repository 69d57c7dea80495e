//! CQs that overflowed: a CQ error for each, once, then its QPs go to ERR (IBTA 11.6.3), so many in a poll that no other program
//! waits long.
//!
//! In flow CQs that a completion found full; out flow events and flushed requests. The CQs take turns; each notes how far it is.

use std::collections::VecDeque;

use roceline_engine::Nanos;
use roceline_engine::verbs::AsyncKind;

use super::context::{Cq, Failing};
use super::drain::{async_record, drain};
use super::nic::{Nic, Shared};

/// What a poll of a NIC does at most: a QP that is looked at counts one.
const PER_POLL: u32 = 256;
/// What a QP that is failed counts more: its requests are flushed. So a poll fails 64 at most.
const FAIL: u32 = 3;

/// A completion for the CQ found no room.
#[cold]
pub fn note(cq: &mut Cq, handle: u32, failed_cqs: &mut VecDeque<u32>) {
    match &mut cq.failing {
        Some(failing) => failing.again = true,
        None => {
            cq.failing = Some(Failing::default());
            failed_cqs.push_back(handle);
        }
    }
}

/// Goes on with CQs of the NIC; gives how many things it did.
pub fn fail_overflowed(nic: &mut Nic, shared: &mut Shared, now: Nanos) -> usize {
    let mut left = PER_POLL;
    let mut done = 0;
    for _ in 0..shared.failed_cqs.len().min(PER_POLL as usize) {
        if left == 0 {
            break;
        }
        let Some(handle) = shared.failed_cqs.pop_front() else {
            break;
        };
        let Some(cq) = shared.cqs.get_mut(handle as usize) else {
            continue;
        };
        let key = cq.context;
        if shared.contexts[key].nic != nic.place {
            // Its QPs are on another NIC, whose turn comes.
            shared.failed_cqs.push_back(handle);
            continue;
        }
        done += 1;
        if !std::mem::replace(&mut cq.failed, true) {
            let record = async_record(cq.user_handle, AsyncKind::CqErr);
            if shared.contexts[key].async_events.push(record) {
                cq.async_events += 1;
                shared.note_events(key);
            }
        }
        if !fail_qps(nic, shared, handle, &mut left, now) {
            shared.failed_cqs.push_back(handle);
        }
    }
    done
}

/// Fails QPs of a CQ. False if there are more to be looked at.
fn fail_qps(nic: &mut Nic, shared: &mut Shared, handle: u32, left: &mut u32, now: Nanos) -> bool {
    let cq = &mut shared.cqs[handle as usize];
    let key = cq.context;
    let mut next = cq.failing.unwrap_or_default().next;
    while *left > 0 && next < shared.contexts[key].bell_limit {
        *left -= 1;
        let qp = shared.contexts[key].qps.get(next as usize).copied();
        next += 1;
        let hit = qp
            .and_then(|id| nic.qps.get(id))
            .is_some_and(|qp| qp.send_cq == handle || qp.recv_cq == handle);
        if let (Some(id), true) = (qp, hit) {
            *left = left.saturating_sub(FAIL);
            nic.engine.fail_qp(id, now, &mut shared.out);
            drain(nic, shared);
        }
    }
    let ended = next >= shared.contexts[key].bell_limit;
    let cq = &mut shared.cqs[handle as usize];
    let again = cq.failing.is_some_and(|failing| failing.again);
    cq.failing = match (ended, again) {
        (false, again) => Some(Failing { next, again }),
        (true, true) => Some(Failing::default()),
        (true, false) => None,
    };
    cq.failing.is_none()
}
