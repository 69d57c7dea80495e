//! Events written to programs at the end of a poll. Each costs a system call, so one poll writes to so many contexts and
//! channels only; those of programs that do not read theirs are tried again seldom, and a few at a time.

use super::context::{Context, EventTurn};
use super::nic::Shared;

/// Contexts that one poll writes to.
const DUE_PER_POLL: usize = 16;
/// Channels of a context that one poll writes to.
const CHANNELS_PER_POLL: usize = 8;
/// Contexts with full pipes that one retry looks at.
const STUCK_PER_RETRY: usize = 4;
/// Channels of each of them.
const CHANNELS_PER_RETRY: usize = 2;

/// Writes to those that got events in this poll or wait for their turn.
pub fn write_due(shared: &mut Shared) {
    for _ in 0..shared.due_events.len().min(DUE_PER_POLL) {
        let Some(key) = shared.due_events.pop_front() else {
            return;
        };
        let Some(context) = shared.contexts.get_mut(key) else {
            continue;
        };
        // A key that is another context's by now finds that one's state.
        if context.events != EventTurn::Due {
            continue;
        }
        context.events = write(context);
        match context.events {
            EventTurn::Quiet => {}
            EventTurn::Due => shared.due_events.push_back(key),
            EventTurn::Stuck => shared.stuck_events.push_back(key),
        }
    }
}

/// Writes to those whose pipes were full.
pub fn write_stuck(shared: &mut Shared) {
    for _ in 0..shared.stuck_events.len().min(STUCK_PER_RETRY) {
        let Some(key) = shared.stuck_events.pop_front() else {
            return;
        };
        let Some(context) = shared.contexts.get_mut(key) else {
            continue;
        };
        if context.events != EventTurn::Stuck {
            continue;
        }
        for _ in 0..context.full_channels.len().min(CHANNELS_PER_RETRY) {
            if let Some(handle) = context.full_channels.pop_front() {
                write_channel(context, handle);
            }
        }
        context.async_events.flush();
        context.events = turn(context);
        match context.events {
            EventTurn::Quiet => {}
            EventTurn::Due => shared.due_events.push_back(key),
            EventTurn::Stuck => shared.stuck_events.push_back(key),
        }
    }
}

/// Writes everything, whatever it takes: at the end of the devices.
pub fn write_all(shared: &mut Shared) {
    for (_, context) in &mut shared.contexts {
        context.async_events.flush();
        for (_, channel) in &mut context.channels {
            channel.events.flush();
        }
    }
}

/// Writes what fits: asynchronous events, and those of the next channels.
fn write(context: &mut Context) -> EventTurn {
    context.async_events.flush();
    for _ in 0..context.due_channels.len().min(CHANNELS_PER_POLL) {
        if let Some(handle) = context.due_channels.pop_front() {
            write_channel(context, handle);
        }
    }
    turn(context)
}

/// Writes what fits of a channel that is in neither list. One whose pipe is full does not keep the others from their turn.
fn write_channel(context: &mut Context, handle: u32) {
    // Closed by now: nobody waits there.
    let Some(channel) = context.channels.get_mut(handle as usize) else {
        return;
    };
    channel.events.flush();
    channel.due = channel.events.has_pending();
    if channel.due {
        context.full_channels.push_back(handle);
    }
}

/// What is left for it to do.
fn turn(context: &Context) -> EventTurn {
    if !context.due_channels.is_empty() {
        EventTurn::Due
    } else if context.async_events.has_pending() || !context.full_channels.is_empty() {
        EventTurn::Stuck
    } else {
        EventTurn::Quiet
    }
}
