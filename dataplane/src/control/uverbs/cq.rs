//! Completion queues: made, resized under traffic, freed.
//!
//! **Resizing.** The provider holds its lock on the CQ while RESIZE_CQ runs, so nobody polls. The owner goes over to the
//! new queue at once, leaving room at its front for what is not polled; that is copied here, in order, and only then is
//! the program told where its queue lies. The lcore's part takes no longer for a long queue than for a short one.

use std::sync::atomic::Ordering;

use roceline_abi::control::Plain;
use roceline_abi::layout::{ARM_NEXT, ARM_NONE, ARM_OFFSET, ARM_SOLICITED};
use roceline_abi::objects::{CqRecord, NO_CHANNEL};
use roceline_abi::queue::CQE_LOG2;

use super::abi::{
    CreateCq, CreateCqResp, Destroy, DestroyCqResp, ExCreateCq, ExTail, MmapInfo, ReqNotify,
    ResizeCq, ResizeCqResp,
};
use super::{Answer, Call};
use crate::control::context::{Context, CqQueue};
use crate::control::error::CommandError;
use crate::control::queue_memory::{Queue, Shape};
use crate::control::quota::{Charge, Resource};
use crate::lcore::message::{Command, Reply};

/// `IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN`.
const IGNORE_OVERRUN: u32 = 1 << 1;

/// What both forms of CREATE_CQ say.
struct CqParams {
    user_handle: u64,
    cqe: u32,
    comp_vector: u32,
    comp_channel: i32,
    ignore_overrun: bool,
}

pub fn create_cq(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    let r: CreateCq = call.request()?;
    let params = CqParams {
        user_handle: r.user_handle,
        cqe: r.cqe,
        comp_vector: r.comp_vector,
        comp_channel: r.comp_channel,
        ignore_overrun: false,
    };
    let (response, mmap) = new_cq(context, call, &params)?;
    Ok(call.answer(response.as_bytes(), mmap.as_bytes()))
}

pub fn ex_create_cq(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    let r: ExCreateCq = call.request()?;
    for (field, value) in [("comp_mask", r.comp_mask), ("reserved", r.reserved)] {
        if value != 0 {
            return Err(CommandError::Field {
                command: call.name,
                field,
                value: value.into(),
            });
        }
    }
    if r.flags & !IGNORE_OVERRUN != 0 {
        return Err(CommandError::Unsupported(
            "a CQ with flags other than IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN (time stamps)",
        ));
    }
    let params = CqParams {
        user_handle: r.user_handle,
        cqe: r.cqe,
        comp_vector: r.comp_vector,
        comp_channel: r.comp_channel,
        ignore_overrun: r.flags & IGNORE_OVERRUN != 0,
    };
    let (response, mmap) = new_cq(context, call, &params)?;
    let size = size_of::<CreateCqResp>() + size_of::<ExTail>();
    let tail = ExTail {
        comp_mask: 0,
        response_length: size as u32,
    };
    Ok(call.answer(
        &[response.as_bytes(), tail.as_bytes()].concat(),
        mmap.as_bytes(),
    ))
}

/// Checks how many entries are asked for, as ib_core and rxe do.
fn check_entries(context: &Context, cqe: u32) -> Result<(), CommandError> {
    if cqe == 0 {
        return Err(CommandError::Zero { name: "cqe" });
    }
    let limit = context.limits().max_cqe;
    if cqe > limit {
        let quota = cqe <= context.device_limits().max_cqe;
        return Err(CommandError::Limit {
            name: match quota {
                true => "cqe (bounded by `cqes` in [limits])",
                false => "cqe",
            },
            value: cqe.into(),
            limit: limit.into(),
        });
    }
    Ok(())
}

fn new_cq(
    context: &mut Context,
    call: &Call<'_>,
    params: &CqParams,
) -> Result<(CreateCqResp, MmapInfo), CommandError> {
    context.ready()?;
    let limits = *context.limits();
    call.need_driver_out(size_of::<MmapInfo>())?;
    check_entries(context, params.cqe)?;
    if params.comp_vector >= limits.comp_vectors {
        return Err(CommandError::Limit {
            name: "comp_vector",
            value: params.comp_vector.into(),
            limit: u64::from(limits.comp_vectors) - 1,
        });
    }
    let channel = u32::try_from(params.comp_channel).ok();
    if let Some(handle) = channel.filter(|c| !context.channels.contains(c)) {
        return Err(CommandError::Handle {
            kind: "completion channel",
            handle,
        });
    }
    let shape = Shape::new(params.cqe, 1 << CQE_LOG2);
    let charges = [
        context.charge(Resource::Cqs, 1)?,
        context.charge(Resource::Cqes, shape.entries().into())?,
    ];
    let queue = context.queues.alloc(&context.file, shape)?;
    let user_handle = params.user_handle;
    let command = Command::CreateCq {
        queue: queue.loc(),
        channel,
        user_handle,
        ignore_overrun: params.ignore_overrun,
    };
    let handle = match context.handle(command) {
        Ok(handle) => handle,
        Err(error) => {
            context.free_after(&error, [queue]);
            return Err(error);
        }
    };
    // The program does not know the handle yet, so nobody else writes its arm word.
    context
        .file
        .store_u32(ARM_OFFSET + 4 * u64::from(handle), ARM_NONE);
    let response = CreateCqResp {
        cq_handle: handle,
        cqe: queue.entries(),
    };
    let mmap = mmap_info(&queue);
    let cq = CqQueue {
        queue,
        channel: channel.unwrap_or(NO_CHANNEL),
        user_handle,
    };
    publish(context, handle, &cq);
    context.cqs.insert(handle, cq);
    charges.into_iter().for_each(Charge::keep);
    Ok((response, mmap))
}

/// Writes down where a CQ lies, for whoever finds it when this process is dead.
fn publish(context: &Context, handle: u32, cq: &CqQueue) {
    let record = CqRecord {
        channel: cq.channel,
        user_handle: cq.user_handle,
        queue: cq.queue.place(),
    };
    record.publish(&context.file.view(), handle);
}

/// What a program gives to `mmap`. No queue within the limits has 4 GiB.
pub fn mmap_info(queue: &Queue) -> MmapInfo {
    MmapInfo {
        offset: queue.offset(),
        size: queue.bytes() as u32,
        pad: 0,
    }
}

pub fn resize_cq(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    call.need_driver_out(size_of::<MmapInfo>())?;
    let request: ResizeCq = call.request()?;
    let handle = context.cq(request.cq_handle)?;
    check_entries(context, request.cqe)?;
    let shape = Shape::new(request.cqe, 1 << CQE_LOG2);
    // For a moment there are both.
    let charge = context.charge(Resource::Cqes, shape.entries().into())?;
    let new = context.queues.alloc(&context.file, shape)?;
    let command = Command::ResizeCq {
        cq: handle,
        queue: new.loc(),
        entries: request.cqe,
    };
    let reply = context.call(command).and_then(|reply| match reply {
        Reply::Resized { first, count } => Ok((first, count)),
        other => Err(context.unexpected("ResizeCq", &other)),
    });
    let (first, count) = match reply {
        Ok(moved) => moved,
        Err(error) => {
            context.free_after(&error, [new]);
            return Err(error);
        }
    };
    let response = ResizeCqResp {
        cqe: new.entries(),
        reserved: 0,
    };
    let mmap = mmap_info(&new);
    if let Some(mut cq) = context.cqs.remove(&handle) {
        cq.queue.copy_to(&new, &context.file, first, count);
        let old = std::mem::replace(&mut cq.queue, new);
        publish(context, handle, &cq);
        context.cqs.insert(handle, cq);
        charge.keep();
        context.account.give(Resource::Cqes, old.entries().into());
        context.queues.free(&context.file, old);
    }
    Ok(call.answer(response.as_bytes(), mmap.as_bytes()))
}

pub fn destroy_cq(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    let cq = context.cq(call.request::<Destroy>()?.handle)?;
    match context.call(Command::DestroyCq { cq })? {
        Reply::Events { comp, asynchronous } => {
            CqRecord::withdraw(&context.file.view(), cq);
            if let Some(cq) = context.cqs.remove(&cq) {
                context.account.give(Resource::Cqs, 1);
                context
                    .account
                    .give(Resource::Cqes, cq.queue.entries().into());
                context.queues.free(&context.file, cq.queue);
            }
            let response = DestroyCqResp {
                comp_events_reported: comp,
                async_events_reported: asynchronous,
            };
            Ok(call.answer(response.as_bytes(), &[]))
        }
        other => Err(context.unexpected("DestroyCq", &other)),
    }
}

/// The shim arms in shared memory; this is for whoever sends the command all the same.
pub fn req_notify(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    let request: ReqNotify = call.request()?;
    let cq = context.cq(request.cq_handle)?;
    let wanted = if request.solicited_only != 0 {
        ARM_SOLICITED
    } else {
        ARM_NEXT
    };
    // "Next" includes "solicited", so a later, weaker request does not take it back.
    const _: () = assert!(ARM_NONE < ARM_SOLICITED && ARM_SOLICITED < ARM_NEXT);
    context
        .file
        .atomic_u32(ARM_OFFSET + 4 * u64::from(cq))
        .fetch_max(wanted, Ordering::SeqCst);
    Ok(Answer::default())
}
