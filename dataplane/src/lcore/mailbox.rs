//! How control threads reach an lcore: a bounded queue and an eventfd.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::message::{Command, Request};
use crate::control::{LcorePort, SendError};
use crate::memory::helper::{HelperCpus, LcoreWake, MemHelper};

/// Requests that may wait at once; each control thread has at most one.
const CAPACITY: usize = 4096;

/// The queue of one lcore.
#[derive(Debug)]
pub struct Mailbox {
    queue: ArrayQueue<Request>,
    wake: Arc<LcoreWake>,
    /// Where threads that reach programs' memory run.
    helpers: HelperCpus,
}

impl Mailbox {
    /// An empty queue.
    pub fn new(wake: Arc<LcoreWake>, helpers: HelperCpus) -> Mailbox {
        Mailbox {
            queue: ArrayQueue::new(CAPACITY),
            wake,
            helpers,
        }
    }

    /// Does what the sender has time for, and the lcore has not.
    fn prepare(&self, request: &mut Request) {
        if let Command::Open(new) = &mut request.command {
            let (wake, lock) = (Arc::clone(&self.wake), Arc::clone(&new.lock));
            let (cpus, context) = (self.helpers.clone(), request.context.0);
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
    pub fn pop(&self) -> Option<Request> {
        self.queue.pop()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl LcorePort for Mailbox {
    fn send(&self, _nic: u32, mut request: Request) -> Result<(), SendError> {
        self.prepare(&mut request);
        self.queue.push(request).map_err(|_| SendError)?;
        self.wake.wake();
        Ok(())
    }
}
