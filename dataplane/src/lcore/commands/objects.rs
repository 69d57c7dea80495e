//! Protection domains, memory regions and completion channels: made, changed and freed for the context that asks, and
//! for no other's handle.

use std::sync::mpsc::SyncSender;

use roceline_engine::memory::{AccessError, MrAttr, WindowType};

use super::{Failure, Served, failed};
use crate::lcore::context::{Channel, ContextKey, Cq, Mr, Pd};
use crate::lcore::events::EventWriter;
use crate::lcore::message::{EventPipe, Reply};
use crate::lcore::nic::{Nic, Shared};
use crate::memory::Reach;

pub(super) fn own_pd(shared: &mut Shared, key: ContextKey, pd: u32) -> Result<&mut Pd, Failure> {
    match shared.pds.get_mut(pd as usize) {
        Some(found) if found.context == key => Ok(found),
        _ => failed(libc::EINVAL, format!("PD handle {pd} does not exist")),
    }
}

pub(super) fn own_cq(shared: &mut Shared, key: ContextKey, cq: u32) -> Result<&mut Cq, Failure> {
    match shared.cqs.get_mut(cq as usize) {
        Some(found) if found.context == key => Ok(found),
        _ => failed(libc::EINVAL, format!("CQ handle {cq} does not exist")),
    }
}

pub(super) fn reg_mr(
    nic: &mut Nic,
    shared: &mut Shared,
    key: ContextKey,
    attr: MrAttr,
    reach: Reach,
) -> Served {
    own_pd(shared, key, attr.pd)?;
    let info = match nic.engine.register(attr) {
        Ok(info) => info,
        Err(error) => return failed(libc::ENOMEM, error.to_string()),
    };
    own_pd(shared, key, attr.pd)?.users += 1;
    let MrAttr {
        pd,
        addr,
        len,
        access,
        ..
    } = attr;
    let index = info.index as usize;
    if index >= nic.mrs.len() {
        nic.mrs.resize_with(index + 1, || None);
    }
    shared.contexts[key].owned.mrs.insert(info.index);
    nic.mrs[index] = Some(Mr {
        context: key,
        pd,
        info,
        addr,
        len,
        access,
        reach,
        in_flight: 0,
        dereg: None,
    });
    Ok(Reply::Mr {
        handle: info.index,
        lkey: info.lkey,
        rkey: info.rkey,
    })
}

/// Copies to and from mapped memory never outlast a poll, so the old mappings are no longer used when this returns.
pub(super) fn set_reach(nic: &mut Nic, key: ContextKey, handle: u32, reach: Reach) -> Served {
    let mr = nic.mrs.get_mut(handle as usize).and_then(Option::as_mut);
    match mr.filter(|mr| mr.context == key && mr.dereg.is_none()) {
        Some(mr) => {
            mr.reach = reach;
            Ok(Reply::Done)
        }
        None => failed(libc::EINVAL, format!("MR handle {handle} does not exist")),
    }
}

pub(super) fn alloc_mw(
    nic: &mut Nic,
    shared: &mut Shared,
    key: ContextKey,
    pd: u32,
    kind: WindowType,
) -> Served {
    own_pd(shared, key, pd)?;
    match nic.mws.alloc(&mut nic.engine, key, pd, kind) {
        Ok(made) => {
            own_pd(shared, key, pd)?.users += 1;
            shared.contexts[key].owned.mws.insert(made.index);
            Ok(Reply::Mw {
                handle: made.index,
                rkey: made.rkey,
            })
        }
        Err(error) => failed(libc::ENOMEM, error.to_string()),
    }
}

pub(super) fn dealloc_mw(
    nic: &mut Nic,
    shared: &mut Shared,
    key: ContextKey,
    handle: u32,
) -> Served {
    match nic.mws.dealloc(&mut nic.engine, key, handle) {
        Some(pd) => {
            shared.contexts[key].owned.mws.remove(&handle);
            if let Some(pd) = shared.pds.get_mut(pd as usize) {
                pd.users = pd.users.saturating_sub(1);
            }
            Ok(Reply::Done)
        }
        None => failed(libc::EINVAL, format!("MW handle {handle} does not exist")),
    }
}

/// True if it is done, false if the reply comes later.
pub(super) fn dereg_mr(
    nic: &mut Nic,
    shared: &mut Shared,
    key: ContextKey,
    handle: u32,
    reply: &SyncSender<Reply>,
) -> Result<bool, Failure> {
    let slot = match nic.mrs.get_mut(handle as usize) {
        Some(slot)
            if slot
                .as_ref()
                .is_some_and(|m| m.context == key && m.dereg.is_none()) =>
        {
            slot
        }
        _ => return failed(libc::EINVAL, format!("MR handle {handle} does not exist")),
    };
    let Some(mr) = slot else { return Ok(true) };
    // From here no new operation can name the region; those under way still write to it, so the program may
    // not have it back yet.
    if let Err(error @ AccessError::WindowsBound(_)) = nic.engine.deregister(mr.info.lkey) {
        // It stays the context's: it goes with that at the latest.
        return failed(libc::EBUSY, error.to_string());
    }
    shared.contexts[key].owned.mrs.remove(&handle);
    if let Some(pd) = shared.pds.get_mut(mr.pd as usize) {
        pd.users = pd.users.saturating_sub(1);
    }
    if mr.in_flight == 0 {
        *slot = None;
        return Ok(true);
    }
    mr.dereg = Some(reply.clone());
    Ok(false)
}

pub(super) fn add_channel(shared: &mut Shared, key: ContextKey, pipe: EventPipe) -> Reply {
    let channel = Channel {
        events: EventWriter::new(pipe, 1024),
        due: false,
    };
    Reply::Handle(shared.contexts[key].channels.insert(channel) as u32)
}

/// Takes the unread asynchronous events of an object back; gives their number.
pub(super) fn take_back_async(shared: &mut Shared, key: ContextKey, element: u64) -> u32 {
    let events = &mut shared.contexts[key].async_events;
    let unread = events.take_back(|record| record[..8] == element.to_ne_bytes());
    if events.has_pending() {
        shared.note_events(key);
    }
    unread
}
