//! Shared receive queues: sizes as the rxe driver rounds them (`rxe_srq.c`), and the queue memory behind them.
//!
//! Resizing is the one command whose answer does not go into the response: rxe writes where the new queue is to an address
//! that the provider gives, and so does this, before anything else is changed.

use roceline_abi::control::Plain;
use roceline_abi::queue::{RECV_WQE_SGES, Sge};

use super::abi::{
    CreateSrq, CreateSrqResp, CreateXsrq, Destroy, ModifySrq, OneWord, QuerySrq, QuerySrqResp,
    SrqMmapInfo,
};
use super::cq::mmap_info;
use super::{Answer, Call};
use crate::control::context::{Context, SrqQueue};
use crate::control::error::CommandError;
use crate::control::queue_memory::Shape;
use crate::control::quota::Resource;
use crate::lcore::message::{Command, Reply, SrqPlace};

/// `IBV_SRQT_BASIC`.
const BASIC: u32 = 0;
/// `IBV_SRQ_MAX_WR`.
const MAX_WR: u32 = 1 << 0;
/// `IBV_SRQ_LIMIT`.
const LIMIT: u32 = 1 << 1;

/// What both forms of CREATE_SRQ say. The limit is none of it: `ibv_create_srq(3)` calls it irrelevant, and IBTA 11.2.3.1 has
/// it armed by Modify only.
struct SrqParams {
    user_handle: u64,
    pd_handle: u32,
    max_wr: u32,
    max_sge: u32,
}

pub fn create_srq(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    let r: CreateSrq = call.request()?;
    let params = SrqParams {
        user_handle: r.user_handle,
        pd_handle: r.pd_handle,
        max_wr: r.max_wr,
        max_sge: r.max_sge,
    };
    new_srq(context, call, &params)
}

pub fn create_xsrq(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    let r: CreateXsrq = call.request()?;
    if r.srq_type != BASIC {
        return Err(CommandError::Unsupported(
            "a shared receive queue for XRC or tag matching",
        ));
    }
    let params = SrqParams {
        user_handle: r.user_handle,
        pd_handle: r.pd_handle,
        max_wr: r.max_wr,
        max_sge: r.max_sge,
    };
    new_srq(context, call, &params)
}

fn within(name: &'static str, value: u32, limit: u32) -> Result<u32, CommandError> {
    if value > limit {
        return Err(CommandError::Limit {
            name,
            value: value.into(),
            limit: limit.into(),
        });
    }
    Ok(value)
}

/// The form of a queue for so many requests with so many entries each.
fn shape(context: &Context, max_wr: u32, max_sge: u32) -> Result<Shape, CommandError> {
    if max_wr == 0 {
        return Err(CommandError::Zero { name: "max_wr" });
    }
    within("max_wr", max_wr, context.limits().max_srq_wr)?;
    let entries = u64::from(max_sge) * size_of::<Sge>() as u64;
    Ok(Shape::new(max_wr, RECV_WQE_SGES + entries))
}

fn new_srq(
    context: &mut Context,
    call: &Call<'_>,
    params: &SrqParams,
) -> Result<Answer, CommandError> {
    context.ready()?;
    call.need_driver_out(size_of::<SrqMmapInfo>())?;
    let limits = *context.limits();
    let pd = context.pd(params.pd_handle)?;
    let max_sge = within("max_sge", params.max_sge, limits.max_srq_sge)?.max(1);
    let shape = shape(context, params.max_wr, max_sge)?;
    let charge = context.charge(Resource::Srqs, 1)?;
    let queue = context.queues.alloc(&context.file, shape)?;
    let created = context.handle(Command::CreateSrq {
        pd,
        queue: queue.loc(),
        max_sge,
        user_handle: params.user_handle,
    });
    let handle = match created {
        Ok(handle) => handle,
        Err(error) => {
            context.free_after(&error, [queue]);
            return Err(error);
        }
    };
    let response = CreateSrqResp {
        srq_handle: handle,
        max_wr: queue.entries(),
        max_sge,
        srqn: handle,
    };
    let mmap = SrqMmapInfo {
        queue: mmap_info(&queue),
        srq_num: handle,
        reserved: 0,
    };
    context.srqs.insert(handle, SrqQueue { queue, max_sge });
    charge.keep();
    Ok(call.answer(response.as_bytes(), mmap.as_bytes()))
}

pub fn modify_srq(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    let r: ModifySrq = call.request()?;
    let srq = context.srq(r.srq_handle)?;
    if r.attr_mask & !(MAX_WR | LIMIT) != 0 {
        return Err(CommandError::Field {
            command: call.name,
            field: "attr_mask",
            value: r.attr_mask.into(),
        });
    }
    let limit = (r.attr_mask & LIMIT != 0).then_some(r.srq_limit);
    if r.attr_mask & MAX_WR == 0 {
        let resize = None;
        context.done(Command::ModifySrq { srq, limit, resize })?;
        return Ok(Answer::default());
    }
    let max_sge = context.srqs.get(&srq).map_or(1, |srq| srq.max_sge);
    let shape = shape(context, r.max_wr, max_sge)?;
    let queue = context.queues.alloc(&context.file, shape)?;
    let told = context
        .program
        .write(r.mmap_info_addr, mmap_info(&queue).as_bytes());
    let changed = told.and_then(|()| {
        // Here and not on the polling thread, which would do nothing else meanwhile. The provider posts nothing until it has the
        // answer; what is taken meanwhile is taken from the old place.
        let old = context.srqs.get(&srq);
        let (first, count) = old.map_or((0, 0), |old| {
            let (first, count) = old.queue.waiting(&context.file);
            old.queue.copy_to(&queue, &context.file, first, count);
            (first, count)
        });
        let resize = Some(SrqPlace {
            loc: queue.loc(),
            first,
            count,
        });
        context.done(Command::ModifySrq { srq, limit, resize })
    });
    if let Err(error) = changed {
        context.free_after(&error, [queue]);
        return Err(error);
    }
    let old = context.srqs.insert(srq, SrqQueue { queue, max_sge });
    if let Some(SrqQueue { queue, .. }) = old {
        context.queues.free(&context.file, queue);
    }
    Ok(Answer::default())
}

pub fn query_srq(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    let srq = context.srq(call.request::<QuerySrq>()?.srq_handle)?;
    let srq_limit = match context.call(Command::QuerySrq { srq })? {
        Reply::SrqLimit(limit) => limit,
        other => return Err(context.unexpected("QuerySrq", &other)),
    };
    let (max_wr, max_sge) = context
        .srqs
        .get(&srq)
        .map_or((0, 0), |srq| (srq.queue.entries(), srq.max_sge));
    let response = QuerySrqResp {
        max_wr,
        max_sge,
        srq_limit,
        reserved: 0,
    };
    Ok(call.answer(response.as_bytes(), &[]))
}

pub fn destroy_srq(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    let srq = context.srq(call.request::<Destroy>()?.handle)?;
    match context.call(Command::DestroySrq { srq })? {
        Reply::Events { asynchronous, .. } => {
            if let Some(SrqQueue { queue, .. }) = context.srqs.remove(&srq) {
                context.account.give(Resource::Srqs, 1);
                context.queues.free(&context.file, queue);
            }
            let response = OneWord {
                value: asynchronous,
            };
            Ok(call.answer(response.as_bytes(), &[]))
        }
        other => Err(context.unexpected("DestroySrq", &other)),
    }
}
