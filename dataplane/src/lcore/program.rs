//! Programs that share the polling thread. Each has one turn in a poll, however many contexts it has, and its part of the
//! packet buffers that wait for programs' memory, however slow that is.
//!
//! A program here is what the control threads say is one ([`NewContext::program`](super::message::NewContext)), on one NIC.

use slab::Slab;

use super::context::{Context, ContextKey, ROOM};

/// Contexts of a program that one poll looks at; those beyond are looked at in the next.
const CONTEXTS_PER_POLL: usize = 8;
/// Packet buffers that may wait for the memory of all programs together: half of the lcore's.
const BUFFERS: usize = 4096;
/// Buffers that a context may always have waiting.
const LEAST: usize = 32;

/// A program.
#[derive(Debug)]
struct Program {
    nic: usize,
    number: u32,
    contexts: Vec<ContextKey>,
    /// The one to be looked at first.
    next: usize,
    /// Operations of its contexts under way, each with a buffer at most.
    waiting: usize,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Programs {
    all: Slab<Program>,
    /// Their keys, in the order of their turns.
    order: Vec<usize>,
    waiting: usize,
}

impl Programs {
    /// Notes a new context; gives the key of its program.
    pub fn enter(&mut self, nic: usize, number: u32, key: ContextKey) -> usize {
        let known = self
            .all
            .iter()
            .find(|(_, p)| p.nic == nic && p.number == number);
        match known.map(|(at, _)| at) {
            Some(at) => {
                self.all[at].contexts.push(key);
                at
            }
            None => {
                let at = self.all.insert(Program {
                    nic,
                    number,
                    contexts: vec![key],
                    next: 0,
                    waiting: 0,
                });
                self.order.push(at);
                at
            }
        }
    }

    /// A context is gone, and with it its operations.
    pub fn leave(&mut self, context: &Context, key: ContextKey) {
        let at = context.program;
        let Some(program) = self.all.get_mut(at) else {
            return;
        };
        program.contexts.retain(|&k| k != key);
        program.waiting = program.waiting.saturating_sub(context.counted);
        self.waiting = self.waiting.saturating_sub(context.counted);
        if program.contexts.is_empty() {
            self.all.remove(at);
            self.order.retain(|&k| k != at);
        }
    }

    /// The key of the `n`th program, if there are so many.
    #[inline]
    pub fn nth(&self, n: usize) -> Option<usize> {
        self.order.get(n).copied()
    }

    /// How many contexts of a program a poll looks at.
    #[inline]
    pub fn turn(&self, at: usize) -> usize {
        self.all[at].contexts.len().min(CONTEXTS_PER_POLL)
    }

    /// The next context of a program.
    #[inline]
    pub fn next(&mut self, at: usize) -> ContextKey {
        let program = &mut self.all[at];
        if program.next >= program.contexts.len() {
            program.next = 0;
        }
        let key = program.contexts[program.next];
        program.next += 1;
        key
    }

    /// Counts anew what a context has under way, and says how much it may have: a part of what others leave, so that some is
    /// left for those who come. With one slow program that is [`ROOM`]; with N of them, each has an (N + 2)th of all.
    #[inline]
    pub fn count(&mut self, context: &mut Context) {
        let Some(program) = self.all.get_mut(context.program) else {
            return;
        };
        let (own, before) = (context.ops.len(), context.counted);
        program.waiting = program.waiting + own - before;
        self.waiting = self.waiting + own - before;
        context.counted = own;
        let share = BUFFERS.saturating_sub(self.waiting) / 2;
        let others = program.waiting - own;
        context.room = share.saturating_sub(others).clamp(LEAST, ROOM);
    }
}
