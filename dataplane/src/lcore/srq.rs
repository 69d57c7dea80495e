//! Shared receive queues: receive requests that any QP of a context takes, in the order in which they were posted.
//!
//! In flow requests that a program writes into the shared queue; out flow, one by one, those that QPs take, and the events
//! "limit reached" and "error", each once. A request is off the queue when it is taken: it is the QP's from then on, and
//! neither comes back nor is flushed with others (IBTA 10.2.9). Owned by the lcore of the context, like its QPs.

use std::sync::Arc;

use roceline_engine::verbs::{AsyncKind, RecvWr};
use slab::Slab;

use super::context::ContextKey;
use super::drain::async_record;
use super::message::{QueueLoc, SrqPlace};
use super::nic::{Nic, Shared};
use super::queue::RecvQueue;
use crate::memory::ContextFile;

/// One shared receive queue.
#[derive(Debug)]
pub struct Srq {
    /// Whose.
    pub context: ContextKey,
    /// PD handle: that of its requests' keys.
    pub pd: u32,
    /// What events name it by.
    pub user_handle: u64,
    /// Asynchronous events written.
    pub async_events: u32,
    /// QPs that take from it.
    pub users: u32,
    queue: RecvQueue,
    /// An event is wanted once fewer requests than this are left; 0: none is.
    limit: u32,
    /// Its pages hold what no provider writes: nothing is taken from it any more.
    failed: bool,
}

/// Why a queue could not be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SrqError {
    /// See [`AsyncKind::SrqErr`].
    #[error("the shared receive queue is in error: its pages were overwritten")]
    Failed,
    /// More requests are posted than the new size holds.
    #[error("{posted} receive requests are posted, which {size} places do not hold")]
    TooSmall {
        /// Requests posted.
        posted: u32,
        /// Places asked for.
        size: u32,
    },
    /// The requests that were copied are not those that are posted.
    #[error("receive requests were posted while the queue was resized; post none meanwhile")]
    Changed,
    /// The limit would be above the size.
    #[error("limit {limit} is more than the {size} requests that the queue holds")]
    Limit {
        /// Limit in force or asked for.
        limit: u32,
        /// Places.
        size: u32,
    },
}

/// The shared receive queues of a NIC on this lcore, by handle.
#[derive(Debug, Default)]
pub struct Srqs {
    slab: Slab<Srq>,
    /// Events that are still to be told. One of each kind and queue at most, for which there is room.
    fired: Vec<(u32, AsyncKind)>,
}

impl Srq {
    /// A new, empty queue.
    pub fn new(
        context: ContextKey,
        pd: u32,
        user_handle: u64,
        file: Arc<ContextFile>,
        loc: QueueLoc,
        max_sge: u32,
    ) -> Srq {
        Srq {
            context,
            pd,
            user_handle,
            async_events: 0,
            users: 0,
            queue: RecvQueue::new(file, loc, max_sge),
            limit: 0,
            failed: false,
        }
    }

    /// The limit that is armed, 0 if none is.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Takes the oldest request; with it may come an event.
    fn take(&mut self, wr: &mut RecvWr) -> (bool, Option<AsyncKind>) {
        if self.failed {
            return (false, None);
        }
        let Some(posted) = self.queue.posted() else {
            self.failed = true;
            return (false, Some(AsyncKind::SrqErr));
        };
        if posted == 0 || !self.queue.take(wr) {
            return (false, None);
        }
        // Who posts needs the place; who completes the request may be another QP's turn.
        self.queue.retire();
        self.queue.show();
        (true, self.reached(posted - 1))
    }

    /// The limit has been reached: once each time that it is armed.
    fn reached(&mut self, left: u32) -> Option<AsyncKind> {
        let reached = left < self.limit;
        if reached {
            self.limit = 0;
        }
        reached.then_some(AsyncKind::SrqLimitReached)
    }

    /// Arms the limit and goes on at another place, to which the requests were copied, as far as asked for; all or nothing. Where fewer requests than
    /// the limit are there already, the event comes at once.
    fn modify(
        &mut self,
        limit: Option<u32>,
        resize: Option<SrqPlace>,
    ) -> Result<Option<AsyncKind>, SrqError> {
        let posted = self.queue.posted().filter(|_| !self.failed);
        let posted = posted.ok_or(SrqError::Failed)?;
        let size = resize.map_or(self.queue.size(), |to| to.loc.mask);
        let limit = limit.unwrap_or(self.limit);
        if limit > size {
            return Err(SrqError::Limit { limit, size });
        }
        if posted > size {
            return Err(SrqError::TooSmall { posted, size });
        }
        if let Some(SrqPlace { loc, first, count }) = resize {
            let taken = self.queue.taken_since(first, count);
            let taken = taken.ok_or(SrqError::Changed)?;
            if count > size {
                // They were too many when they were copied.
                let posted = count;
                return Err(SrqError::TooSmall { posted, size });
            }
            self.queue.move_to(loc, taken, count);
        }
        self.limit = limit;
        Ok(self.reached(posted))
    }
}

impl Srqs {
    /// Adds one; its handle.
    pub fn insert(&mut self, srq: Srq) -> u32 {
        let handle = self.slab.insert(srq) as u32;
        self.fired.reserve(2 * self.slab.len());
        handle
    }

    /// The one with this handle, if it is of this context.
    pub fn get_mut(&mut self, handle: u32, context: ContextKey) -> Option<&mut Srq> {
        let srq = self.slab.get_mut(handle as usize);
        srq.filter(|srq| srq.context == context)
    }

    /// Takes one out.
    pub fn remove(&mut self, handle: u32) {
        self.fired.retain(|fired| fired.0 != handle);
        self.slab.try_remove(handle as usize);
    }

    /// How many a NIC's contexts have.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Takes the oldest request of a queue.
    #[inline]
    pub fn take(&mut self, handle: u32, wr: &mut RecvWr) -> bool {
        let Some(srq) = self.slab.get_mut(handle as usize) else {
            return false;
        };
        let (taken, event) = srq.take(wr);
        if let Some(kind) = event {
            self.fired.push((handle, kind));
        }
        taken
    }

    /// See [`Srq::modify`].
    pub fn modify(
        &mut self,
        handle: u32,
        limit: Option<u32>,
        resize: Option<SrqPlace>,
    ) -> Result<(), SrqError> {
        if let Some(srq) = self.slab.get_mut(handle as usize) {
            if let Some(kind) = srq.modify(limit, resize)? {
                self.fired.push((handle, kind));
            }
        }
        Ok(())
    }
}

/// Where a QP's receive requests come from.
#[derive(Debug)]
pub enum Receives {
    /// A queue of its own.
    Own(RecvQueue),
    /// The shared queue with this handle.
    Shared(u32),
}

impl Receives {
    /// A completion frees a place in the QP's own queue; a shared one was free when the request was taken.
    #[inline]
    pub fn retire(&mut self) {
        if let Receives::Own(queue) = self {
            queue.retire();
        }
    }

    /// Shows the program what is free in the QP's own queue.
    #[inline]
    pub fn show(&self) {
        if let Receives::Own(queue) = self {
            queue.show();
        }
    }

    /// Requests taken off the QP's own queue once one more is; means nothing for a shared one.
    #[inline]
    pub fn retired_after(&self) -> u32 {
        match self {
            Receives::Own(queue) => queue.retired_after(),
            Receives::Shared(_) => 0,
        }
    }

    /// QP to RESET. Nothing in a shared queue is the QP's.
    pub fn reset(&mut self) {
        if let Receives::Own(queue) = self {
            queue.reset();
        }
    }
}

/// Writes the events that have been waiting.
#[inline]
pub fn tell(nic: &mut Nic, shared: &mut Shared) {
    if nic.qps.srqs.fired.is_empty() {
        return;
    }
    for i in 0..nic.qps.srqs.fired.len() {
        let (handle, kind) = nic.qps.srqs.fired[i];
        if let Some(srq) = nic.qps.srqs.slab.get_mut(handle as usize) {
            let (key, record) = (srq.context, async_record(srq.user_handle, kind));
            if shared.contexts[key].async_events.push(record) {
                srq.async_events += 1;
                shared.note_events(key);
            }
        }
    }
    nic.qps.srqs.fired.clear();
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use roceline_abi::layout::FILE_BYTES;
    use roceline_abi::queue::{Q_CONSUMER, Q_DATA, Q_PRODUCER};

    use super::*;

    const SIZE: u32 = 7;

    fn loc(place: u64, mask: u32) -> QueueLoc {
        QueueLoc {
            offset: FILE_BYTES - (place << 20),
            log2_elem: 6,
            mask,
        }
    }

    struct Bench {
        file: Arc<ContextFile>,
        srqs: Srqs,
        srq: u32,
        loc: QueueLoc,
        posted: u32,
    }

    impl Bench {
        fn new() -> Bench {
            let file = Arc::new(ContextFile::create().unwrap());
            let mut srqs = Srqs::default();
            let loc = loc(1, SIZE);
            let srq = srqs.insert(Srq::new(0, 0, 0, Arc::clone(&file), loc, 1));
            Bench {
                file,
                srqs,
                srq,
                loc,
                posted: 0,
            }
        }

        /// Posts requests numbered on, as the provider does.
        fn post(&mut self, count: u32) {
            for _ in 0..count {
                let at = self.loc.offset + Q_PRODUCER;
                let index = self.file.atomic_u32(at).load(Ordering::Relaxed);
                let slot = self.loc.offset + Q_DATA + (u64::from(index) << self.loc.log2_elem);
                self.file
                    .atomic_u64(slot)
                    .store(self.posted.into(), Ordering::Relaxed);
                self.file.store_u32(at, (index + 1) & self.loc.mask);
                self.posted += 1;
            }
        }

        /// Takes one: its number.
        fn take(&mut self) -> Option<u64> {
            let mut wr = RecvWr::empty();
            self.srqs.take(self.srq, &mut wr).then_some(wr.wr_id)
        }

        fn events(&mut self) -> Vec<AsyncKind> {
            self.srqs.fired.drain(..).map(|fired| fired.1).collect()
        }

        fn modify(&mut self, limit: Option<u32>, to: Option<QueueLoc>) -> Result<(), SrqError> {
            let to = to.map(|to| self.copy(to));
            self.srqs.modify(self.srq, limit, to)
        }

        /// Copies the requests to another place, as the control thread does.
        fn copy(&self, to: QueueLoc) -> SrqPlace {
            let index = |at| {
                self.file
                    .atomic_u32(self.loc.offset + at)
                    .load(Ordering::Relaxed)
            };
            let first = index(Q_CONSUMER);
            let count = index(Q_PRODUCER).wrapping_sub(first) & self.loc.mask;
            for n in 0..count.min(to.mask) {
                let slot = |loc: QueueLoc, n: u32| {
                    loc.offset + Q_DATA + (u64::from(n & loc.mask) << loc.log2_elem)
                };
                let from = slot(self.loc, first + n);
                let id = self.file.atomic_u64(from).load(Ordering::Relaxed);
                self.file
                    .atomic_u64(slot(to, n))
                    .store(id, Ordering::Relaxed);
            }
            SrqPlace {
                loc: to,
                first,
                count,
            }
        }
    }

    #[test]
    fn requests_come_in_order_and_their_places_are_free_when_they_are_taken() {
        let mut b = Bench::new();
        assert_eq!(b.take(), None);
        for round in 0..5 {
            b.post(SIZE);
            for n in 0..SIZE {
                assert_eq!(b.take(), Some((round * SIZE + n).into()));
                let consumer = b.file.atomic_u32(b.loc.offset + Q_CONSUMER);
                let taken = round * SIZE + n + 1;
                assert_eq!(consumer.load(Ordering::Relaxed), taken & SIZE);
            }
            assert_eq!(b.take(), None);
        }
        assert!(b.events().is_empty());
    }

    #[test]
    fn the_limit_event_comes_once_each_time_that_the_limit_is_armed() {
        let mut b = Bench::new();
        b.post(7);
        b.modify(Some(5), None).unwrap();
        b.take();
        b.take();
        assert!(b.events().is_empty(), "5 are left");
        b.take();
        assert_eq!(b.events(), [AsyncKind::SrqLimitReached]);
        b.take();
        b.post(3);
        b.take();
        assert!(b.events().is_empty(), "it is not armed any more");
        assert_eq!(b.srqs.get_mut(b.srq, 0).unwrap().limit(), 0);
        // Armed above what is there: at once.
        b.modify(Some(7), None).unwrap();
        assert_eq!(b.events(), [AsyncKind::SrqLimitReached]);
        b.modify(Some(1), None).unwrap();
        b.modify(Some(0), None).unwrap();
        while b.take().is_some() {}
        assert!(b.events().is_empty(), "disarmed");
    }

    #[test]
    fn resizing_keeps_what_is_posted_in_order_and_refuses_what_does_not_fit() {
        let mut b = Bench::new();
        b.post(7);
        for n in 0..5 {
            assert_eq!(b.take(), Some(n));
        }
        b.post(4);
        // 6 requests, around the end of the ring.
        let small = loc(2, 3);
        let error = SrqError::TooSmall { posted: 6, size: 3 };
        assert_eq!(b.modify(None, Some(small)), Err(error));
        let error = SrqError::Limit {
            limit: 16,
            size: 15,
        };
        assert_eq!(b.modify(Some(16), Some(loc(2, 15))), Err(error));
        assert_eq!(
            b.srqs.get_mut(b.srq, 0).unwrap().limit(),
            0,
            "nothing of it"
        );
        let large = loc(3, 15);
        b.modify(Some(2), Some(large)).unwrap();
        b.loc = large;
        b.post(9);
        for n in 5..5 + 6 + 9 {
            assert_eq!(b.take(), Some(n));
        }
        assert_eq!(b.take(), None);
        assert_eq!(b.events(), [AsyncKind::SrqLimitReached]);
        let tiny = loc(4, 1);
        b.modify(None, Some(tiny)).unwrap();
        b.loc = tiny;
        b.post(1);
        assert_eq!((b.take(), b.take()), (Some(20), None));
    }

    #[test]
    fn requests_may_be_taken_while_they_are_copied_but_not_posted() {
        let mut b = Bench::new();
        b.post(7);
        for n in 0..5 {
            assert_eq!(b.take(), Some(n));
        }
        b.post(4);
        let large = b.copy(loc(2, 15));
        assert_eq!((b.take(), b.take()), (Some(5), Some(6)));
        b.srqs.modify(b.srq, None, Some(large)).unwrap();
        b.loc = large.loc;
        b.post(11);
        for n in 7..22 {
            assert_eq!(b.take(), Some(n));
        }
        assert_eq!(b.take(), None);
        // All of them.
        b.post(3);
        let other = b.copy(loc(3, 3));
        while b.take().is_some() {}
        b.srqs.modify(b.srq, None, Some(other)).unwrap();
        b.loc = other.loc;
        assert_eq!(b.take(), None);
        b.post(3);
        assert_eq!((b.take(), b.take()), (Some(25), Some(26)));
        let late = b.copy(loc(4, 7));
        b.post(1);
        let error = b.srqs.modify(b.srq, None, Some(late));
        assert_eq!(error, Err(SrqError::Changed));
        assert_eq!((b.take(), b.take()), (Some(27), Some(28)));
    }

    #[test]
    fn an_index_that_no_provider_writes_is_the_end_of_the_queue() {
        let mut b = Bench::new();
        b.post(3);
        assert_eq!(b.take(), Some(0));
        b.file.store_u32(b.loc.offset + Q_PRODUCER, SIZE + 1);
        assert_eq!((b.take(), b.take()), (None, None));
        assert_eq!(b.events(), [AsyncKind::SrqErr]);
        b.file.store_u32(b.loc.offset + Q_PRODUCER, 3);
        assert_eq!(b.take(), None, "it stays so");
        assert_eq!(b.modify(Some(1), None), Err(SrqError::Failed));
        assert!(b.events().is_empty());
    }

    #[test]
    fn handles_are_of_their_context() {
        let mut b = Bench::new();
        assert!(b.srqs.get_mut(b.srq, 1).is_none());
        b.modify(Some(1), None).unwrap();
        b.srqs.remove(b.srq);
        assert!(b.events().is_empty() && b.srqs.len() == 0);
        assert_eq!(b.take(), None);
    }
}
