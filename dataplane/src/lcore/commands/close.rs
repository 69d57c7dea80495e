//! The end of a context: all that it has is freed, so much in each poll that nobody notices, and then, when no memory
//! operation of it is left, the context itself goes back to its control thread.

use std::sync::mpsc::SyncSender;

use roceline_engine::Nanos;

use super::qp::destroy_qp;
use crate::lcore::context::{Context, ContextKey};
use crate::lcore::message::Reply;
use crate::lcore::nic::{Nic, Shared};

/// Queue pairs of a program that goes without destroying them of which a record is kept.
const BURIED: usize = 8;
/// Objects that a poll frees, of all contexts that go.
pub const PER_POLL: usize = 64;

/// From here on its doorbells are not heard.
pub fn begin(
    nic: &mut Nic,
    shared: &mut Shared,
    key: ContextKey,
    reply: SyncSender<Reply>,
    now: Nanos,
) {
    let context = &mut shared.contexts[key];
    for (_, &id) in context.qps.iter().take(BURIED) {
        nic.engine.bury_qp(id, now);
    }
    context.sends.clear();
    context.closing = Some(reply);
    shared.closing.push(key);
}

/// Frees some more, `left` at most, which becomes less by as many. The context, once nothing is left of it.
pub fn go_on(
    nic: &mut Nic,
    shared: &mut Shared,
    key: ContextKey,
    left: &mut usize,
) -> Option<Context> {
    while *left > 0 {
        let context = &mut shared.contexts[key];
        let Some(index) = context.bell_limit.checked_sub(1) else {
            break;
        };
        context.bell_limit = index;
        *left -= 1;
        if let Some(&id) = context.qps.get(index as usize) {
            // It leaves its multicast groups one by one.
            let groups = nic.qps.get(id).map_or(0, |qp| qp.groups.len());
            *left = left.saturating_sub(groups / 16);
            destroy_qp(nic, shared, key, id);
        }
    }
    let Shared {
        contexts,
        cqs,
        pds,
        failed_cqs,
        ..
    } = &mut *shared;
    let context = &mut contexts[key];
    // Windows go before the regions that they are bound to.
    while *left > 0 && context.qps.is_empty() {
        let Some(mw) = context.owned.mws.pop_first() else {
            break;
        };
        nic.mws.dealloc(&mut nic.engine, key, mw);
        *left -= 1;
    }
    if context.qps.is_empty() && context.owned.mws.is_empty() {
        let is_done = context.ops.is_empty();
        // Regions go when no operation can use them any more; their keys mean nothing from the first poll on.
        let mut next = 0;
        while *left > 0 {
            let Some(&handle) = context.owned.mrs.range(next..).next() else {
                break;
            };
            *left -= 1;
            next = handle + 1;
            let Some(slot) = nic.mrs.get_mut(handle as usize) else {
                continue;
            };
            if let Some(mr) = slot.as_mut().filter(|mr| mr.context == key) {
                if mr.dereg.is_none() {
                    let _ = nic.engine.deregister(mr.info.lkey);
                }
                if mr.in_flight > 0 && !is_done {
                    continue;
                }
                *slot = None;
            }
            context.owned.mrs.remove(&handle);
        }
        while *left > 0 {
            let Some(cq) = context.owned.cqs.pop_first() else {
                break;
            };
            let gone = cqs.try_remove(cq as usize);
            // The handle may be given out again.
            if gone.is_some_and(|cq| cq.failing.is_some()) {
                failed_cqs.retain(|&failed| failed != cq);
            }
            *left -= 1;
        }
        while *left > 0 {
            let Some(ah) = context.owned.ahs.pop_first() else {
                break;
            };
            nic.free_ah(ah, key);
            *left -= 1;
        }
        while *left > 0 {
            let Some(srq) = context.owned.srqs.pop_first() else {
                break;
            };
            nic.qps.srqs.remove(srq);
            *left -= 1;
        }
        while *left > 0 {
            let Some(pd) = context.owned.pds.pop_first() else {
                break;
            };
            pds.try_remove(pd as usize);
            *left -= 1;
        }
    }
    let owned = &context.owned;
    let nothing = context.qps.is_empty()
        && owned.mws.is_empty()
        && owned.mrs.is_empty()
        && owned.cqs.is_empty()
        && owned.ahs.is_empty()
        && owned.srqs.is_empty()
        && owned.pds.is_empty();
    if !(nothing && context.ops.is_empty()) {
        return None;
    }
    let context = contexts.remove(key);
    shared.programs.leave(&context, key);
    Some(context)
}
