//! Queue pairs: made, moved from state to state, and freed for the context that asks, and for no other's handle.

use std::sync::Arc;

use roceline_abi::layout::MAX_QPS;
use roceline_engine::verbs::{QpAttr, QpError, QpId, QpInit, QpState, mask};
use roceline_engine::{Nanos, Owner};

use super::objects::{own_cq, own_pd};
use super::{Failure, Served, failed, srq};
use crate::lcore::context::{Context, ContextKey, Qp, QpPackets};
use crate::lcore::drain::drain;
use crate::lcore::message::{QueueLoc, Reply};
use crate::lcore::nic::{Nic, Shared};
use crate::lcore::queue::{RecvQueue, SendQueue};
use crate::lcore::srq::Receives;

pub(super) fn own_qp(shared: &Shared, key: ContextKey, handle: u32) -> Result<QpId, Failure> {
    match shared.contexts[key].qps.get(handle as usize) {
        Some(id) => Ok(*id),
        None => failed(libc::EINVAL, format!("QP handle {handle} does not exist")),
    }
}

/// What a new queue pair is made of: see [`Command::CreateQp`](crate::lcore::message::Command::CreateQp).
pub(super) struct NewQp {
    pub(super) init: QpInit,
    pub(super) sq: QueueLoc,
    pub(super) rq: Option<QueueLoc>,
    pub(super) max_recv_wr: u32,
    pub(super) user_handle: u64,
}

pub(super) fn create_qp(nic: &mut Nic, shared: &mut Shared, key: ContextKey, new: NewQp) -> Served {
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
    let receives = match (init.srq, new.rq) {
        (Some(of), _) => Receives::Shared(of.number),
        (None, Some(loc)) => {
            let file = Arc::clone(&shared.contexts[key].file);
            Receives::Own(RecvQueue::new(file, loc, init.max_recv_sge))
        }
        (None, None) => return failed(libc::EINVAL, "a QP without a receive queue"),
    };
    if let Some(of) = &mut init.srq {
        of.pd = srq::pd(nic, key, of.number)?;
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
    if let Receives::Shared(handle) = receives {
        srq::attach(nic, key, handle);
    }
    nic.engine.set_owner(id, Owner { pid, name: comm });
    nic.engine
        .set_group(id, shared.contexts[key].program as u32);
    own_pd(shared, key, init.pd)?.users += 1;
    own_cq(shared, key, init.send_cq)?.users += 1;
    own_cq(shared, key, init.recv_cq)?.users += 1;
    let context = &mut shared.contexts[key];
    let handle = context.qps.insert(id) as u32;
    context.bell_limit = context.bell_limit.max(handle + 1);
    context.close_sends(handle, true);
    context.expect_events(nic.qps.srqs.len());
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
        rq: receives,
        max_recv_wr: new.max_recv_wr,
        template: None,
        ip_id: 0,
        tx_waiting: 0,
        lost_behind: None,
        placing: [0; 2],
        in_sends: false,
        unshown: [false; 2],
        _apart: [0; 4],
        paused: false,
        groups: Vec::new(),
        packets: QpPackets::default(),
    }));
    Ok(Reply::Qp { handle, qpn: id.0 })
}

pub(super) fn modify_qp(
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
    let from = nic.engine.query_qp(id).ok().map(|(attr, _)| attr.state);
    if let Err(error) = nic
        .engine
        .modify_qp(id, attr, attr_mask, now, &mut shared.out)
    {
        return failed(
            libc::EINVAL,
            format!("QP {:#x} of {}: {error}", id.0, nic.info.name),
        );
    }
    let closes = matches!(attr.state, QpState::Reset | QpState::Init | QpState::Rtr);
    let changes = attr_mask & mask::STATE != 0;
    if changes && closes {
        // Before anything can fail the QP, which opens it again.
        shared.contexts[key].close_sends(handle, true);
    }
    drain(nic, shared);
    nic.more_due = true;
    let reaches_rts = changes && attr.state == QpState::Rts;
    let Ok((current, _)) = nic.engine.query_qp(id) else {
        return Ok(Reply::Done);
    };
    let routed = attr_mask & (mask::AV | mask::DEST_QPN) != 0;
    let headers = routed.then(|| nic.headers(id, &current.path, current.dest_qpn));
    let Some(qp) = nic.qps.get_mut(id) else {
        return Ok(Reply::Done);
    };
    if headers.is_some() {
        qp.template = headers;
    }
    if changes && current.state == QpState::Reset {
        qp.sq.reset();
        qp.rq.reset();
        qp.template = None;
        return Ok(Reply::Done);
    }
    if reaches_rts && from == Some(QpState::Rtr) {
        // What was posted before was refused, so it is not carried out either.
        qp.sq.reset();
    }
    if changes && !closes {
        // What is posted from here on is read.
        shared.contexts[key].close_sends(handle, false);
    }
    if !qp.in_sends {
        // Requests may have been posted before the state allowed them to be read.
        qp.in_sends = true;
        shared.contexts[key].sends.push_back(id);
    }
    Ok(Reply::Done)
}

/// Frees a QP; gives the number of its asynchronous events and their element.
pub(super) fn destroy_qp(
    nic: &mut Nic,
    shared: &mut Shared,
    key: ContextKey,
    id: QpId,
) -> (u32, u64) {
    let _ = nic.engine.destroy_qp(id);
    let Some(qp) = nic.qps.remove(id) else {
        return (0, 0);
    };
    nic.groups.leave_all(id, &qp.groups);
    if let Receives::Shared(handle) = qp.rq {
        srq::detach(nic, key, handle);
    }
    let context = &mut shared.contexts[key];
    context.qps.try_remove(qp.handle as usize);
    context.close_sends(qp.handle, false);
    if qp.in_sends {
        context.sends.retain(|&q| q != id);
    }
    if qp.paused {
        context.paused.retain(|&q| q != id);
    }
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
