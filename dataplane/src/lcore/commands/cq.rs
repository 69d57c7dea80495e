//! Completion queues: made, moved to a queue of another size, and freed for the context that asks.

use std::sync::Arc;

use roceline_abi::layout::{ARM_OFFSET, MAX_CQS};

use super::objects::{own_cq, take_back_async};
use super::{Served, failed};
use crate::lcore::context::{ContextKey, Cq};
use crate::lcore::message::{QueueLoc, Reply};
use crate::lcore::nic::Shared;
use crate::lcore::queue::CompletionQueue;

pub(super) fn create_cq(
    shared: &mut Shared,
    key: ContextKey,
    queue: QueueLoc,
    channel: Option<u32>,
    user_handle: u64,
    ignore_overrun: bool,
    srqs: usize,
) -> Served {
    if shared.cqs.len() >= MAX_CQS {
        return failed(libc::ENOMEM, format!("no CQ left: {MAX_CQS} exist"));
    }
    let context = &mut shared.contexts[key];
    if let Some(channel) = channel {
        if !context.channels.contains(channel as usize) {
            return failed(
                libc::EINVAL,
                format!("completion channel {channel} does not exist"),
            );
        }
    }
    let file = Arc::clone(&context.file);
    // Each CQ has one event at most that waits for room in the pipe: the hot loop must not grow these.
    let cqs = context.owned.cqs.len() + 1;
    let events = channel.and_then(|c| context.channels.get_mut(c as usize));
    if let Some(channel) = events {
        channel.events.expect(cqs);
    }
    let channels = context.channels.len();
    context.due_channels.reserve(channels);
    context.full_channels.reserve(channels);
    let handle = shared.cqs.insert(Cq {
        context: key,
        queue: CompletionQueue::new(Arc::clone(&file), queue),
        channel,
        user_handle,
        comp_events: 0,
        last_event: 0,
        async_events: 0,
        ignore_overrun,
        failed: false,
        unpublished: false,
        solicited: false,
        failing: None,
        users: 0,
    });
    let context = &mut shared.contexts[key];
    context.owned.cqs.insert(handle as u32);
    context.expect_events(srqs);
    // The hot loop must not grow it: every CQ can be in it once.
    shared.failed_cqs.reserve(shared.cqs.len());
    // A handle is used again: its arm word may be left set.
    file.store_u32(ARM_OFFSET + 4 * handle as u64, 0);
    Ok(Reply::Handle(handle as u32))
}

pub(super) fn destroy_cq(shared: &mut Shared, key: ContextKey, handle: u32) -> Served {
    let users = own_cq(shared, key, handle)?.users;
    if users > 0 {
        return failed(
            libc::EBUSY,
            format!("CQ {handle} still serves {users} queues of QPs"),
        );
    }
    let cq = shared.cqs.remove(handle as usize);
    shared.contexts[key].owned.cqs.remove(&handle);
    // The handle may be given out again.
    if cq.failing.is_some() {
        shared.failed_cqs.retain(|&failed| failed != handle);
    }
    let mut unread = 0;
    if let Some(channel) = cq
        .channel
        .and_then(|c| shared.contexts[key].channels.get_mut(c as usize))
    {
        unread = channel
            .events
            .take_back(|r| u64::from_ne_bytes(*r) == cq.user_handle);
        if channel.events.has_pending() {
            if let Some(handle) = cq.channel {
                shared.contexts[key].note_channel(handle);
            }
            shared.note_events(key);
        }
    }
    let unread_async = take_back_async(shared, key, cq.user_handle);
    Ok(Reply::Events {
        comp: cq.comp_events.saturating_sub(unread),
        asynchronous: cq.async_events.saturating_sub(unread_async),
    })
}

/// Goes over to the new queue. Who armed the CQ stays armed, and its events stay counted.
pub(super) fn resize_cq(
    shared: &mut Shared,
    key: ContextKey,
    handle: u32,
    queue: QueueLoc,
    entries: u32,
) -> Served {
    let cq = own_cq(shared, key, handle)?;
    match cq.queue.move_to(queue, entries) {
        Ok((first, count)) => Ok(Reply::Resized { first, count }),
        Err(count) => failed(
            libc::EINVAL,
            format!(
                "CQ {handle} cannot be resized to {entries} entries: it holds {count} completions that were not polled"
            ),
        ),
    }
}
