//! How control threads reach an lcore: a bounded queue and an eventfd.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;

use super::message::Request;
use crate::control::{LcorePort, SendError};
use crate::memory::helper::LcoreWake;

/// Requests that may wait at once; each control thread has at most one.
const CAPACITY: usize = 4096;

/// The queue of one lcore.
#[derive(Debug)]
pub struct Mailbox {
    queue: ArrayQueue<Request>,
    wake: Arc<LcoreWake>,
}

impl Mailbox {
    /// An empty queue.
    pub fn new(wake: Arc<LcoreWake>) -> Mailbox {
        Mailbox {
            queue: ArrayQueue::new(CAPACITY),
            wake,
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
    fn send(&self, _nic: u32, request: Request) -> Result<(), SendError> {
        self.queue.push(request).map_err(|_| SendError)?;
        self.wake.wake();
        Ok(())
    }
}
