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
        context.events = write(context, CHANNELS_PER_POLL);
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
        context.events = match write(context, CHANNELS_PER_RETRY) {
            EventTurn::Quiet => EventTurn::Quiet,
            EventTurn::Due | EventTurn::Stuck => {
                shared.stuck_events.push_back(key);
                EventTurn::Stuck
            }
        };
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

/// Writes what fits: asynchronous events, and those of the next `channels` channels.
fn write(context: &mut Context, channels: usize) -> EventTurn {
    context.async_events.flush();
    let mut full = context.async_events.has_pending();
    for _ in 0..channels.min(context.due_channels.len()) {
        let Some(handle) = context.due_channels.pop_front() else {
            break;
        };
        // Closed by now: nobody waits there.
        let Some(channel) = context.channels.get_mut(handle as usize) else {
            continue;
        };
        channel.events.flush();
        channel.due = channel.events.has_pending();
        if channel.due {
            full = true;
            context.due_channels.push_back(handle);
        }
    }
    match (full, context.due_channels.is_empty()) {
        (true, _) => EventTurn::Stuck,
        (false, true) => EventTurn::Quiet,
        (false, false) => EventTurn::Due,
    }
}
