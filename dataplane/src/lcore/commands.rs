//! Serving the messages of control threads between bursts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use roceline_abi::flush;
use roceline_abi::layout::{ARM_OFFSET, MAX_CQS, MAX_QPS};
use roceline_engine::memory::MrAttr;
use roceline_engine::verbs::{QpAttr, QpError, QpId, QpInit, QpState, mask};
use roceline_engine::wire::{HeaderTemplate, udp_sport};
use roceline_engine::{Nanos, Owner};
use slab::Slab;

use super::Lcore;
use super::context::{Channel, Context, ContextKey, Cq, Mr, Pd, Qp, QpPackets};
use super::doorbell::Doorbells;
use super::drain::drain;
use super::events::EventWriter;
use super::impair;
use super::inject;
use super::message::{Command, EventPipe, NewContext, QueueLoc, Reply, Request};
use super::nic::{Nic, Shared};
use super::post_mortems::post_mortems;
use super::queue::{CompletionQueue, RecvQueue, SendQueue};
use super::snapshot::{counters, snapshot};
use super::tap;
use crate::memory::Reach;
use crate::memory::helper::{CAPACITY, MemHelper};

/// Lcore slot of the one lcore of this version.
const SLOT: u32 = 0;

/// Queue pairs of a program that goes without destroying them of which a record is kept.
const BURIED: usize = 8;

/// Why a command failed: errno and a sentence.
type Failure = (i32, String);
type Served = Result<Reply, Failure>;

fn failed<T>(errno: i32, reason: impl Into<String>) -> Result<T, Failure> {
    Err((errno, reason.into()))
}

/// Serves one request. The reply may come later, when memory operations have ended.
pub fn serve(lcore: &mut Lcore, request: Request, now: Nanos) {
    let Request {
        context,
        command,
        reply,
    } = request;
    let served = match command {
        Command::Open(new) => open(lcore, context, *new),
        Command::Snapshot => Ok(Reply::Snapshot(Box::new(snapshot(lcore)))),
        Command::Impair(command) => impair::serve(lcore, command),
        Command::Counters => Ok(Reply::Snapshot(Box::new(counters(lcore)))),
        Command::PostMortems => Ok(Reply::PostMortems(post_mortems(lcore, now))),
        Command::AddTap(tap) => tap::add(lcore, tap),
        Command::RemoveTap(id) => tap::remove(lcore, id),
        Command::Fatal => {
            fatal(lcore);
            Ok(Reply::Done)
        }
        Command::Inject { nic, frames } => inject::serve(lcore, nic, &frames),
        command => match lcore.ids.get(&context).copied() {
            None => failed(libc::EIO, format!("context {} does not exist", context.0)),
            Some(key) => {
                let nic = &mut lcore.nics[lcore.shared.contexts[key].nic];
                match command {
                    Command::Close => {
                        lcore.ids.remove(&context);
                        let gone = close(nic, &mut lcore.shared, key, reply, now);
                        if let Some(context) = gone {
                            lcore.forget(context);
                        }
                        return;
                    }
                    Command::DeregMr { mr } => {
                        match dereg_mr(nic, &mut lcore.shared, key, mr, &reply) {
                            Ok(true) => Ok(Reply::Done),
                            Ok(false) => return,
                            Err(failure) => Err(failure),
                        }
                    }
                    command => in_context(nic, &mut lcore.shared, key, command, now),
                }
            }
        },
    };
    let answer = served.unwrap_or_else(|(errno, reason)| Reply::Failed { errno, reason });
    // A control thread that no longer waits has closed its session; nothing to tell it.
    let _ = reply.try_send(answer);
}

fn in_context(
    nic: &mut Nic,
    shared: &mut Shared,
    key: ContextKey,
    command: Command,
    now: Nanos,
) -> Served {
    match command {
        Command::AllocPd => {
            let pd = shared.pds.insert(Pd {
                context: key,
                users: 0,
            });
            Ok(Reply::Handle(pd as u32))
        }
        Command::DeallocPd { pd } => {
            let users = own_pd(shared, key, pd)?.users;
            if users > 0 {
                return failed(
                    libc::EBUSY,
                    format!("PD {pd} still has {users} regions or QPs"),
                );
            }
            shared.pds.remove(pd as usize);
            Ok(Reply::Done)
        }
        Command::RegMr {
            pd,
            addr,
            iova,
            len,
            access,
            reach,
        } => reg_mr(
            nic,
            shared,
            key,
            MrAttr {
                pd,
                addr,
                iova,
                len,
                access,
            },
            reach,
        ),
        Command::SetReach { mr, reach } => set_reach(nic, key, mr, reach),
        Command::AddChannel(pipe) => Ok(add_channel(shared, key, pipe)),
        Command::RemoveChannel { channel } => {
            match shared.contexts[key].channels.try_remove(channel as usize) {
                Some(_) => {
                    for (_, cq) in shared.cqs.iter_mut() {
                        if cq.context == key && cq.channel == Some(channel) {
                            cq.channel = None;
                        }
                    }
                    Ok(Reply::Done)
                }
                None => failed(
                    libc::EINVAL,
                    format!("completion channel {channel} does not exist"),
                ),
            }
        }
        Command::CreateCq {
            queue,
            channel,
            user_handle,
        } => create_cq(shared, key, queue, channel, user_handle),
        Command::DestroyCq { cq } => destroy_cq(shared, key, cq),
        Command::CreateQp {
            init,
            sq,
            rq,
            max_recv_wr,
            user_handle,
        } => create_qp(
            nic,
            shared,
            key,
            NewQp {
                init,
                sq,
                rq,
                max_recv_wr,
                user_handle,
            },
        ),
        Command::ModifyQp { qp, attr, mask } => modify_qp(nic, shared, key, qp, &attr, mask, now),
        Command::QueryQp { qp } => {
            let id = own_qp(shared, key, qp)?;
            let max_recv_wr = nic.qps.get(id).map_or(0, |qp| qp.max_recv_wr);
            match nic.engine.query_qp(id) {
                Ok((attr, init)) => Ok(Reply::QpState {
                    attr: Box::new(attr),
                    init: Box::new(init),
                    max_recv_wr,
                }),
                Err(error) => failed(libc::EINVAL, error.to_string()),
            }
        }
        Command::DestroyQp { qp } => {
            let id = own_qp(shared, key, qp)?;
            let (written, user_handle) = destroy_qp(nic, shared, key, id);
            let unread = take_back_async(shared, key, user_handle);
            Ok(Reply::Events {
                comp: 0,
                asynchronous: written.saturating_sub(unread),
            })
        }
        Command::Open(_)
        | Command::Close
        | Command::DeregMr { .. }
        | Command::Snapshot
        | Command::Counters
        | Command::Impair(_)
        | Command::PostMortems
        | Command::AddTap(_)
        | Command::RemoveTap(_)
        | Command::Fatal
        | Command::Inject { .. } => failed(libc::EINVAL, "command out of place"),
    }
}

fn open(lcore: &mut Lcore, id: super::message::ContextId, new: NewContext) -> Served {
    if new.nic as usize >= lcore.nics.len() {
        return failed(libc::ENODEV, format!("NIC {} does not exist", new.nic));
    }
    let helper = match MemHelper::start(
        new.mem,
        Arc::clone(&lcore.wake),
        Arc::clone(&lcore.helper_cpus),
    ) {
        Ok(helper) => helper,
        Err(error) => return failed(libc::EAGAIN, format!("no memory thread: {error}")),
    };
    lcore.idle.watch(&new.wake);
    let context = Context {
        nic: new.nic as usize,
        pid: new.pid,
        comm: new.comm,
        bells: Doorbells::new(Arc::clone(&new.file), SLOT),
        file: new.file,
        wake: new.wake,
        helper,
        kick: false,
        ops: VecDeque::with_capacity(CAPACITY * 2),
        placing: 0,
        fault: false,
        progress: Nanos::ZERO,
        async_events: EventWriter::new(new.async_events, 64),
        channels: Slab::new(),
        qps: Slab::new(),
        bell_limit: 0,
        sends: VecDeque::with_capacity(64),
        paused: Vec::with_capacity(64),
        closing: None,
    };
    let key = lcore.shared.contexts.insert(context);
    lcore.ids.insert(id, key);
    Ok(Reply::Done)
}

fn own_pd(shared: &mut Shared, key: ContextKey, pd: u32) -> Result<&mut Pd, Failure> {
    match shared.pds.get_mut(pd as usize) {
        Some(found) if found.context == key => Ok(found),
        _ => failed(libc::EINVAL, format!("PD handle {pd} does not exist")),
    }
}

fn own_qp(shared: &Shared, key: ContextKey, handle: u32) -> Result<QpId, Failure> {
    match shared.contexts[key].qps.get(handle as usize) {
        Some(id) => Ok(*id),
        None => failed(libc::EINVAL, format!("QP handle {handle} does not exist")),
    }
}

fn own_cq(shared: &mut Shared, key: ContextKey, cq: u32) -> Result<&mut Cq, Failure> {
    match shared.cqs.get_mut(cq as usize) {
        Some(found) if found.context == key => Ok(found),
        _ => failed(libc::EINVAL, format!("CQ handle {cq} does not exist")),
    }
}

fn reg_mr(
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
        // Keys in quarantine have indices of their own.
        nic.mrs.resize_with(index + 1, || None);
    }
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
fn set_reach(nic: &mut Nic, key: ContextKey, handle: u32, reach: Reach) -> Served {
    let mr = nic.mrs.get_mut(handle as usize).and_then(Option::as_mut);
    match mr.filter(|mr| mr.context == key && mr.dereg.is_none()) {
        Some(mr) => {
            mr.reach = reach;
            Ok(Reply::Done)
        }
        None => failed(libc::EINVAL, format!("MR handle {handle} does not exist")),
    }
}

/// True if it is done, false if the reply comes later.
fn dereg_mr(
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
    let _ = nic.engine.deregister(mr.info.lkey);
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

fn add_channel(shared: &mut Shared, key: ContextKey, pipe: EventPipe) -> Reply {
    let channel = Channel {
        events: EventWriter::new(pipe, 1024),
    };
    Reply::Handle(shared.contexts[key].channels.insert(channel) as u32)
}

fn create_cq(
    shared: &mut Shared,
    key: ContextKey,
    queue: QueueLoc,
    channel: Option<u32>,
    user_handle: u64,
) -> Served {
    if shared.cqs.len() >= MAX_CQS {
        return failed(libc::ENOMEM, format!("no CQ left: {MAX_CQS} exist"));
    }
    let context = &shared.contexts[key];
    if let Some(channel) = channel {
        if !context.channels.contains(channel as usize) {
            return failed(
                libc::EINVAL,
                format!("completion channel {channel} does not exist"),
            );
        }
    }
    let file = Arc::clone(&context.file);
    let handle = shared.cqs.insert(Cq {
        context: key,
        queue: CompletionQueue::new(Arc::clone(&file), queue),
        channel,
        user_handle,
        comp_events: 0,
        async_events: 0,
        failed: false,
        users: 0,
    });
    // A handle is used again: its arm word may be left set.
    file.store_u32(ARM_OFFSET + 4 * handle as u64, 0);
    Ok(Reply::Handle(handle as u32))
}

fn destroy_cq(shared: &mut Shared, key: ContextKey, handle: u32) -> Served {
    let users = own_cq(shared, key, handle)?.users;
    if users > 0 {
        return failed(
            libc::EBUSY,
            format!("CQ {handle} still serves {users} queues of QPs"),
        );
    }
    let cq = shared.cqs.remove(handle as usize);
    let mut unread = 0;
    if let Some(channel) = cq
        .channel
        .and_then(|c| shared.contexts[key].channels.get_mut(c as usize))
    {
        unread = channel
            .events
            .take_back(|r| u64::from_ne_bytes(*r) == cq.user_handle);
        if channel.events.has_pending() {
            shared.note_events(key);
        }
    }
    let unread_async = take_back_async(shared, key, cq.user_handle);
    Ok(Reply::Events {
        comp: cq.comp_events.saturating_sub(unread),
        asynchronous: cq.async_events.saturating_sub(unread_async),
    })
}

/// Takes the unread asynchronous events of an object back; gives their number.
fn take_back_async(shared: &mut Shared, key: ContextKey, element: u64) -> u32 {
    let events = &mut shared.contexts[key].async_events;
    let unread = events.take_back(|record| record[..8] == element.to_ne_bytes());
    if events.has_pending() {
        shared.note_events(key);
    }
    unread
}

struct NewQp {
    init: QpInit,
    sq: QueueLoc,
    rq: QueueLoc,
    max_recv_wr: u32,
    user_handle: u64,
}

fn create_qp(nic: &mut Nic, shared: &mut Shared, key: ContextKey, new: NewQp) -> Served {
    let mut init = new.init;
    own_pd(shared, key, init.pd)?;
    own_cq(shared, key, init.send_cq)?;
    own_cq(shared, key, init.recv_cq)?;
    if shared.contexts[key].qps.len() >= MAX_QPS {
        return failed(
            libc::ENOMEM,
            format!("no QP left: the context has {MAX_QPS}"),
        );
    }
    // As many requests as the shared queue holds, so that the engine's queue is never the fuller one.
    init.max_send_wr = new.sq.mask;
    let id = match nic.engine.create_qp(&init) {
        Ok(id) => id,
        Err(error @ QpError::Full(_)) => {
            return failed(libc::ENOMEM, error.to_string());
        }
        Err(error) => return failed(libc::EOPNOTSUPP, error.to_string()),
    };
    let Context { pid, comm, .. } = shared.contexts[key];
    nic.engine.set_owner(id, Owner { pid, name: comm });
    own_pd(shared, key, init.pd)?.users += 1;
    own_cq(shared, key, init.send_cq)?.users += 1;
    own_cq(shared, key, init.recv_cq)?.users += 1;
    let context = &mut shared.contexts[key];
    let handle = context.qps.insert(id) as u32;
    context.bell_limit = context.bell_limit.max(handle + 1);
    // The hot loop must not grow these: every QP can be in each of them once.
    context.sends.reserve(context.qps.len());
    context.paused.reserve(context.qps.len());
    nic.qps.insert(Box::new(Qp {
        id,
        context: key,
        handle,
        pd: init.pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        user_handle: new.user_handle,
        async_events: 0,
        sq: SendQueue::new(
            Arc::clone(&context.file),
            new.sq,
            init.max_send_sge,
            init.max_inline,
        ),
        rq: RecvQueue::new(Arc::clone(&context.file), new.rq, init.max_recv_sge),
        max_recv_wr: new.max_recv_wr,
        template: None,
        ip_id: 0,
        tx_waiting: 0,
        placing: [0; 2],
        in_sends: false,
        paused: false,
        packets: QpPackets::default(),
    }));
    Ok(Reply::Qp { handle, qpn: id.0 })
}

fn modify_qp(
    nic: &mut Nic,
    shared: &mut Shared,
    key: ContextKey,
    handle: u32,
    attr: &QpAttr,
    attr_mask: u32,
    now: Nanos,
) -> Served {
    let id = own_qp(shared, key, handle)?;
    if attr_mask & mask::PATH_MTU != 0 && attr.path_mtu > nic.info.active_mtu {
        return failed(
            libc::EINVAL,
            format!(
                "path MTU {} is more than the active MTU {} of {}; ask for less, or raise `mtu` of the NIC",
                attr.path_mtu.bytes(),
                nic.info.active_mtu.bytes(),
                nic.info.name
            ),
        );
    }
    if let Err(error) = nic
        .engine
        .modify_qp(id, attr, attr_mask, now, &mut shared.out)
    {
        return failed(
            libc::EINVAL,
            format!("QP {:#x} of {}: {error}", id.0, nic.info.name),
        );
    }
    drain(nic, shared);
    nic.more_due = true;
    let Ok((current, _)) = nic.engine.query_qp(id) else {
        return Ok(Reply::Done);
    };
    let Some(qp) = nic.qps.get_mut(id) else {
        return Ok(Reply::Done);
    };
    if attr_mask & (mask::AV | mask::DEST_QPN) != 0 {
        let path = &current.path;
        let sport = udp_sport(path.flow_label, id.0, current.dest_qpn);
        qp.template = Some(HeaderTemplate::new(path, sport, current.dest_qpn, 0xffff));
    }
    if attr_mask & mask::STATE != 0 && current.state == QpState::Reset {
        qp.sq.reset();
        qp.rq.reset();
        qp.template = None;
    } else if !qp.in_sends {
        // Requests may have been posted before the state allowed them to be read.
        qp.in_sends = true;
        shared.contexts[key].sends.push_back(id);
    }
    Ok(Reply::Done)
}

/// The end of all devices, where no supervisor is left to tell of it after this process: what that would do.
fn fatal(lcore: &mut Lcore) {
    let Lcore { nics, shared, .. } = lcore;
    let keys: Vec<ContextKey> = shared.contexts.iter().map(|(key, _)| key).collect();
    for key in keys {
        let nic = &mut nics[shared.contexts[key].nic];
        let qps: Vec<_> = shared.contexts[key].qps.iter().map(|(_, id)| *id).collect();
        for id in qps {
            // From here on nothing of ours touches its queues.
            destroy_qp(nic, shared, key, id);
        }
        let Context {
            file,
            channels,
            async_events,
            ..
        } = &mut shared.contexts[key];
        let mut notify = |channel: u32, user_handle: u64| {
            if let Some(channel) = channels.get_mut(channel as usize) {
                channel.events.push(user_handle.to_ne_bytes());
            }
            true
        };
        while flush::pass(&file.view(), true, &mut notify).is_some_and(|pass| pass.cut) {}
        async_events.push(flush::DEVICE_FATAL_RECORD);
        shared.note_events(key);
    }
    lcore.write_events(Nanos::ZERO);
}

/// Frees a QP; gives the number of its asynchronous events and their element.
fn destroy_qp(nic: &mut Nic, shared: &mut Shared, key: ContextKey, id: QpId) -> (u32, u64) {
    let _ = nic.engine.destroy_qp(id);
    let Some(qp) = nic.qps.remove(id) else {
        return (0, 0);
    };
    let context = &mut shared.contexts[key];
    context.qps.try_remove(qp.handle as usize);
    context.sends.retain(|&q| q != id);
    context.paused.retain(|&q| q != id);
    if let Some(pd) = shared.pds.get_mut(qp.pd as usize) {
        pd.users = pd.users.saturating_sub(1);
    }
    for cq in [qp.send_cq, qp.recv_cq] {
        if let Some(cq) = shared.cqs.get_mut(cq as usize) {
            cq.users = cq.users.saturating_sub(1);
        }
    }
    (qp.async_events, qp.user_handle)
}

/// Frees all that a context has. The context itself goes when its last memory operation has ended.
fn close(
    nic: &mut Nic,
    shared: &mut Shared,
    key: ContextKey,
    reply: SyncSender<Reply>,
    now: Nanos,
) -> Option<Context> {
    let qps: Vec<_> = shared.contexts[key].qps.iter().map(|(_, id)| *id).collect();
    for &id in qps.iter().take(BURIED) {
        nic.engine.bury_qp(id, now);
    }
    for id in qps {
        destroy_qp(nic, shared, key, id);
    }
    for slot in &mut nic.mrs {
        if let Some(mr) = slot.as_mut().filter(|mr| mr.context == key) {
            if mr.dereg.is_none() {
                let _ = nic.engine.deregister(mr.info.lkey);
            }
            if mr.in_flight == 0 {
                *slot = None;
            }
        }
    }
    shared.cqs.retain(|_, cq| cq.context != key);
    shared.pds.retain(|_, pd| pd.context != key);
    shared.event_contexts.retain(|&k| k != key);
    shared.contexts[key].closing = Some(reply);
    finish_close(nic, shared, key)
}

/// Takes out a closing context of which nothing is under way any more.
pub fn finish_close(nic: &mut Nic, shared: &mut Shared, key: ContextKey) -> Option<Context> {
    let context = &shared.contexts[key];
    if context.closing.is_none() || !context.ops.is_empty() {
        return None;
    }
    for slot in &mut nic.mrs {
        if slot.as_ref().is_some_and(|mr| mr.context == key) {
            *slot = None;
        }
    }
    Some(shared.contexts.remove(key))
}
