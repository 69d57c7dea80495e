//! Multicast groups: UD queue pairs attached and detached. The LID of the request is InfiniBand's and not looked at, as RoCE has
//! none (IBTA annex A16).

use roceline_engine::wire::Gid;

use super::abi::Mcast;
use super::{Answer, Call};
use crate::control::context::Context;
use crate::control::error::CommandError;
use crate::control::quota::Resource;
use crate::lcore::message::{Command, MulticastLimits};
use crate::lcore::multicast::{canonical, is_group};

pub fn attach_mcast(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    let (qp, group) = group(context, call)?;
    let limits = context.limits();
    let limits = MulticastLimits {
        groups: limits.max_mcast_grp,
        members: limits.max_mcast_qp_attach,
    };
    // To attach once more does nothing.
    let new = (!context.mcasts.contains(&(qp, group)))
        .then(|| context.charge(Resource::Mcasts, 1))
        .transpose()?;
    context.done(Command::AttachMcast { qp, group, limits })?;
    if let Some(charge) = new {
        charge.keep();
        context.mcasts.insert((qp, group));
    }
    Ok(Answer::default())
}

pub fn detach_mcast(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    let (qp, group) = group(context, call)?;
    context.done(Command::DetachMcast { qp, group })?;
    if context.mcasts.remove(&(qp, group)) {
        context.account.give(Resource::Mcasts, 1);
    }
    Ok(Answer::default())
}

fn group(context: &Context, call: &Call<'_>) -> Result<(u32, Gid), CommandError> {
    context.ready()?;
    let request: Mcast = call.request()?;
    let qp = context.qp(request.qp_handle)?;
    let group = Gid(request.gid);
    match is_group(group) {
        true => Ok((qp, canonical(group))),
        false => Err(CommandError::MulticastGid(group.to_ip())),
    }
}
