//! How control threads reach an lcore: a bounded queue and an eventfd.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;

use super::message::{Command, Request};
use crate::control::{LcorePort, SendError};
use crate::memory::helper::{HelperCpus, LcoreWake, MemHelper};

/// Requests that may wait at once; each control thread has at most one.
const CAPACITY: usize = 4096;

/// What an lcore has to do, as it says itself: who places contexts goes by it.
#[derive(Debug, Default)]
pub struct Load {
    contexts: AtomicU32,
    done: AtomicU64,
}

impl Load {
    /// Contexts that are open, and things done in a quarter of a second.
    pub(super) fn set(&self, contexts: usize, done: u64) {
        self.set_contexts(contexts);
        self.done.store(done, Ordering::Relaxed);
    }

    /// Contexts that are open.
    pub(super) fn set_contexts(&self, contexts: usize) {
        self.contexts.store(contexts as u32, Ordering::Relaxed);
    }

    /// For comparison: the busier one is the greater one. What is little to do is nothing, so that among lcores which are
    /// as good as idle contexts count.
    pub(super) fn key(&self) -> (u64, u32) {
        let done = self.done.load(Ordering::Relaxed);
        (done >> LITTLE, self.contexts.load(Ordering::Relaxed))
    }
}

/// log2 of things in a quarter of a second that an lcore does along the way.
const LITTLE: u32 = 16;

/// The queue of one lcore.
#[derive(Debug)]
pub struct Mailbox {
    queue: ArrayQueue<Request>,
    wake: Arc<LcoreWake>,
    /// Where threads that reach programs' memory run.
    helpers: HelperCpus,
    load: Load,
}

impl Mailbox {
    /// An empty queue.
    pub fn new(wake: Arc<LcoreWake>, helpers: HelperCpus) -> Mailbox {
        Mailbox {
            queue: ArrayQueue::new(CAPACITY),
            wake,
            helpers,
            load: Load::default(),
        }
    }

    /// What its lcore has to do.
    pub(super) fn load(&self) -> &Load {
        &self.load
    }

    /// Does what the sender has time for, and the lcore has not.
    fn prepare(&self, request: &mut Request) {
        if let Command::Open(new) = &mut request.command {
            let (wake, lock) = (Arc::clone(&self.wake), Arc::clone(&new.lock));
            let (cpus, context) = (self.helpers.clone(), request.context.number());
            let helper = new
                .mem
                .try_clone()
                .and_then(|mem| MemHelper::start(mem, lock, wake, cpus, context));
            match helper {
                Ok(helper) => new.helper = Some(helper),
                // The lcore refuses a context without one.
                Err(error) => tracing::warn!(%error, "no thread for a program's memory"),
            }
        }
    }

    /// The oldest request.
    #[inline]
    pub fn pop(&self) -> Option<Request> {
        // To pop from an empty queue is a full fence; to look at it first is not, and every poll does.
        if self.queue.is_empty() {
            return None;
        }
        self.queue.pop()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl LcorePort for Mailbox {
    fn send(&self, _lcore: u32, mut request: Request) -> Result<(), SendError> {
        self.prepare(&mut request);
        self.queue.push(request).map_err(|_| SendError)?;
        self.wake.wake();
        Ok(())
    }
}
