//! Shared receive queues: made, changed and freed for the context that asks, and for no other's handle.

use std::sync::Arc;

use super::objects::{own_pd, take_back_async};
use super::{Failure, Served, failed};
use crate::lcore::context::ContextKey;
use crate::lcore::message::{QueueLoc, Reply, SrqPlace};
use crate::lcore::nic::{Nic, Shared};
use crate::lcore::srq::{Srq, tell};

fn own(nic: &mut Nic, key: ContextKey, handle: u32) -> Result<&mut Srq, Failure> {
    match nic.qps.srqs.get_mut(handle, key) {
        Some(srq) => Ok(srq),
        None => failed(libc::EINVAL, format!("SRQ handle {handle} does not exist")),
    }
}

/// The PD of a queue.
pub(super) fn pd(nic: &mut Nic, key: ContextKey, handle: u32) -> Result<u32, Failure> {
    Ok(own(nic, key, handle)?.pd)
}

/// A QP begins to take from a queue.
pub(super) fn attach(nic: &mut Nic, key: ContextKey, handle: u32) {
    if let Some(srq) = nic.qps.srqs.get_mut(handle, key) {
        srq.users += 1;
    }
}

/// A QP ends.
pub(super) fn detach(nic: &mut Nic, key: ContextKey, handle: u32) {
    if let Some(srq) = nic.qps.srqs.get_mut(handle, key) {
        srq.users = srq.users.saturating_sub(1);
    }
}

pub(super) fn create(
    nic: &mut Nic,
    shared: &mut Shared,
    key: ContextKey,
    pd: u32,
    queue: QueueLoc,
    max_sge: u32,
    user_handle: u64,
) -> Served {
    own_pd(shared, key, pd)?.users += 1;
    let file = Arc::clone(&shared.contexts[key].file);
    let srq = Srq::new(key, pd, user_handle, file, queue, max_sge);
    let handle = nic.qps.srqs.insert(srq);
    shared.contexts[key].expect_events(nic.qps.srqs.len());
    shared.contexts[key].owned.srqs.insert(handle);
    Ok(Reply::Handle(handle))
}

pub(super) fn modify(
    nic: &mut Nic,
    shared: &mut Shared,
    key: ContextKey,
    handle: u32,
    limit: Option<u32>,
    resize: Option<SrqPlace>,
) -> Served {
    own(nic, key, handle)?;
    match nic.qps.srqs.modify(handle, limit, resize) {
        Ok(()) => {
            tell(nic, shared);
            Ok(Reply::Done)
        }
        Err(error) => failed(libc::EINVAL, error.to_string()),
    }
}

pub(super) fn query(nic: &mut Nic, key: ContextKey, handle: u32) -> Served {
    let limit = own(nic, key, handle)?.limit();
    Ok(Reply::SrqLimit(limit))
}

pub(super) fn destroy(nic: &mut Nic, shared: &mut Shared, key: ContextKey, handle: u32) -> Served {
    let srq = own(nic, key, handle)?;
    if srq.users > 0 {
        let users = srq.users;
        return failed(
            libc::EBUSY,
            format!("SRQ {handle} still serves {users} queue pairs"),
        );
    }
    let (pd, user_handle) = (srq.pd, srq.user_handle);
    tell(nic, shared);
    let written = own(nic, key, handle)?.async_events;
    nic.qps.srqs.remove(handle);
    shared.contexts[key].owned.srqs.remove(&handle);
    if let Some(pd) = shared.pds.get_mut(pd as usize) {
        pd.users = pd.users.saturating_sub(1);
    }
    let unread = take_back_async(shared, key, user_handle);
    Ok(Reply::Events {
        comp: 0,
        asynchronous: written.saturating_sub(unread),
    })
}
