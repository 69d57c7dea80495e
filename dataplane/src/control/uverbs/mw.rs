//! Memory windows. Binding them is a send request, also where the program calls `ibv_bind_mw`.

use roceline_abi::control::Plain;
use roceline_engine::memory::WindowType;

use super::abi::{AllocMw, AllocMwResp, OneHandle};
use super::{Answer, Call};
use crate::control::context::Context;
use crate::control::error::CommandError;
use crate::control::quota::Resource;
use crate::lcore::message::{Command, Reply};

pub fn alloc_mw(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    let request: AllocMw = call.request()?;
    let pd = context.pd(request.pd_handle)?;
    let Some(kind) = WindowType::from_raw(request.mw_type) else {
        return Err(CommandError::Field {
            command: call.name,
            field: "mw_type",
            value: request.mw_type.into(),
        });
    };
    let charge = context.charge(Resource::Mws, 1)?;
    match context.call(Command::AllocMw { pd, kind })? {
        Reply::Mw { handle, rkey } => {
            context.mws.insert(handle);
            charge.keep();
            let response = AllocMwResp {
                mw_handle: handle,
                rkey,
            };
            Ok(call.answer(response.as_bytes(), &[]))
        }
        other => Err(context.unexpected("AllocMw", &other)),
    }
}

pub fn dealloc_mw(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    let mw = call.request::<OneHandle>()?.handle;
    if !context.mws.contains(&mw) {
        return Err(CommandError::Handle {
            kind: "memory window",
            handle: mw,
        });
    }
    context.done(Command::DeallocMw { mw })?;
    context.mws.remove(&mw);
    context.account.give(Resource::Mws, 1);
    Ok(Answer::default())
}
