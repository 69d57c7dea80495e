//! Serving the messages of control threads between bursts: here what is about an lcore or a whole context, below it the
//! objects of one.

pub(super) mod close;
mod cq;
mod datagram;
mod objects;
mod qp;
mod srq;

use std::sync::Arc;

use roceline_abi::flush;
use roceline_engine::Nanos;
use roceline_engine::memory::MrAttr;

use self::cq::{create_cq, destroy_cq, resize_cq};
use self::datagram::{attach_mcast, create_ah, destroy_ah, detach_mcast, not_attached};
use self::objects::{
    add_channel, alloc_mw, dealloc_mw, dereg_mr, own_pd, reg_mr, set_reach, take_back_async,
};
use self::qp::{NewQp, create_qp, destroy_qp, modify_qp, own_qp};
use super::Lcore;
use super::congestion;
use super::context::{Context, ContextKey, Pd};
use super::doorbell::Doorbells;
use super::gids;
use super::impair;
use super::inject;
use super::link;
use super::message::{Command, NewContext, Reply, Request};
use super::nic::{Nic, Shared};
use super::notify::write_all;
use super::others;
use super::post_mortems::post_mortems;
use super::snapshot::{counters, snapshot};
use super::tap;
use super::usage;

/// Lcore slot of a context in its file: it belongs to one lcore.
const SLOT: u32 = 0;

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
        Command::Snapshot(from) => Ok(Reply::Snapshot(Box::new(snapshot(lcore, from)))),
        Command::Impair(command) => impair::serve(lcore, command),
        Command::Counters => Ok(Reply::Snapshot(Box::new(counters(lcore)))),
        Command::Usage { how_long } => {
            Ok(Reply::Usage(Box::new(usage::serve(lcore, now, how_long))))
        }
        Command::Fabric => Ok(Reply::Fabric(Box::new(lcore.fabric_report(now)))),
        Command::PostMortems => Ok(Reply::PostMortems(post_mortems(lcore, now))),
        Command::AddTap(tap) => tap::add(lcore, tap),
        Command::RemoveTap(id) => tap::remove(lcore, id),
        Command::Fatal => {
            fatal(lcore);
            Ok(Reply::Done)
        }
        Command::Inject { nic, frames } => inject::serve(lcore, nic, &frames),
        Command::SetLink { nic, up } => link::order(lcore, nic, up),
        Command::SetCongestion { nic, settings } => congestion::set(lcore, nic, &settings, now),
        Command::SetGids { nic, gids } => gids::set(lcore, nic, gids),
        Command::GidsChanged { nic } => gids::changed(lcore, nic),
        Command::GidsHeld { nic } => gids::held(lcore, nic),
        Command::Transmit { nic, frames } => others::transmit(lcore, nic, &frames),
        Command::PeerMoved {
            nic,
            moved,
            network,
        } => others::peer_moved(lcore, nic, moved, &network),
        command => match lcore.ids.get(&context).copied() {
            None => failed(libc::EIO, format!("context {} does not exist", context.0)),
            Some(key) => {
                let nic = &mut lcore.nics[lcore.shared.contexts[key].nic];
                match command {
                    Command::Close => {
                        lcore.ids.remove(&context);
                        close::begin(nic, &mut lcore.shared, key, reply, now);
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
            shared.contexts[key].owned.pds.insert(pd as u32);
            Ok(Reply::Handle(pd as u32))
        }
        Command::DeallocPd { pd } => {
            let users = own_pd(shared, key, pd)?.users;
            if users > 0 {
                return failed(
                    libc::EBUSY,
                    format!("PD {pd} still has {users} regions, windows or QPs"),
                );
            }
            shared.pds.remove(pd as usize);
            shared.contexts[key].owned.pds.remove(&pd);
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
        Command::AllocMw { pd, kind } => alloc_mw(nic, shared, key, pd, kind),
        Command::DeallocMw { mw } => dealloc_mw(nic, shared, key, mw),
        Command::SetReach { mr, reach } => set_reach(nic, key, mr, reach),
        Command::AddChannel(pipe) => Ok(add_channel(shared, key, pipe)),
        Command::RemoveChannel { channel } => {
            let Context {
                due_channels,
                full_channels,
                ..
            } = &mut shared.contexts[key];
            // Its handle is used again.
            due_channels.retain(|&due| due != channel);
            full_channels.retain(|&full| full != channel);
            match shared.contexts[key].channels.try_remove(channel as usize) {
                Some(_) => {
                    let Shared { contexts, cqs, .. } = shared;
                    for &cq in &contexts[key].owned.cqs {
                        let cq = cqs.get_mut(cq as usize);
                        if let Some(cq) = cq.filter(|cq| cq.channel == Some(channel)) {
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
            ignore_overrun,
        } => {
            let srqs = nic.qps.srqs.len();
            create_cq(
                shared,
                key,
                queue,
                channel,
                user_handle,
                ignore_overrun,
                srqs,
            )
        }
        Command::ResizeCq { cq, queue, entries } => resize_cq(shared, key, cq, queue, entries),
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
            not_attached(nic, id)?;
            let (written, user_handle) = destroy_qp(nic, shared, key, id);
            let unread = take_back_async(shared, key, user_handle);
            Ok(Reply::Events {
                comp: 0,
                asynchronous: written.saturating_sub(unread),
            })
        }
        Command::CreateSrq {
            pd,
            queue,
            max_sge,
            user_handle,
        } => srq::create(nic, shared, key, pd, queue, max_sge, user_handle),
        Command::ModifySrq { srq, limit, resize } => {
            srq::modify(nic, shared, key, srq, limit, resize)
        }
        Command::QuerySrq { srq } => srq::query(nic, key, srq),
        Command::DestroySrq { srq } => srq::destroy(nic, shared, key, srq),
        Command::CreateAh { pd, path } => create_ah(nic, shared, key, pd, &path),
        Command::DestroyAh { ah } => destroy_ah(nic, shared, key, ah),
        Command::AttachMcast { qp, group, limits } => {
            attach_mcast(nic, own_qp(shared, key, qp)?, group, limits)
        }
        Command::DetachMcast { qp, group } => detach_mcast(nic, own_qp(shared, key, qp)?, group),
        Command::Open(_)
        | Command::Close
        | Command::DeregMr { .. }
        | Command::Snapshot(_)
        | Command::Counters
        | Command::Usage { .. }
        | Command::Fabric
        | Command::Impair(_)
        | Command::PostMortems
        | Command::AddTap(_)
        | Command::RemoveTap(_)
        | Command::Fatal
        | Command::SetLink { .. }
        | Command::SetCongestion { .. }
        | Command::SetGids { .. }
        | Command::GidsChanged { .. }
        | Command::GidsHeld { .. }
        | Command::Inject { .. }
        | Command::Transmit { .. }
        | Command::PeerMoved { .. } => failed(libc::EINVAL, "command out of place"),
    }
}

fn open(lcore: &mut Lcore, id: super::message::ContextId, mut new: NewContext) -> Served {
    let Some(nic) = lcore.nic(new.nic).map(|nic| nic.place) else {
        return failed(libc::ENODEV, format!("NIC {} does not exist", new.nic));
    };
    let Some(helper) = new.helper.take() else {
        return failed(libc::EAGAIN, "no memory thread could be started");
    };
    lcore.idle.watch(&new.wake);
    let bells = Doorbells::new(Arc::clone(&new.file), SLOT);
    let number = new.program;
    let contexts = &mut lcore.shared.contexts;
    let entry = contexts.vacant_entry();
    let key = entry.key();
    let program = lcore.shared.programs.enter(nic, number, key);
    entry.insert(Context::new(new, nic, helper, bells, program));
    // The poll's lists do not grow while it runs.
    let most = contexts.len();
    lcore.shared.kicks.reserve(most);
    lcore.shared.due_events.reserve(most);
    lcore.shared.stuck_events.reserve(most);
    lcore.mailbox.load().set_contexts(most);
    lcore.ids.insert(id, key);
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
                return channel.events.push(user_handle.to_ne_bytes());
            }
            true
        };
        while flush::pass(&file.view(), true, &mut notify).is_some_and(|pass| pass.cut) {}
        async_events.push(flush::DEVICE_FATAL_RECORD);
        shared.note_events(key);
    }
    write_all(&mut lcore.shared);
}
