//! Protection domains and memory regions.

use roceline_abi::control::Plain;
use roceline_engine::memory::Access;

use super::abi::{OneHandle, OneWord, RegMr, RegMrResp};
use super::{Answer, Call};
use crate::control::context::Context;
use crate::control::error::CommandError;
use crate::control::quota::{Charge, Resource};
use crate::lcore::message::{Command, Reply};

/// Rights that a region can have: local write, remote write, remote read, remote atomic, binding of windows, FLUSH for
/// visibility; and the name 0 for its first byte.
const ACCESS_RIGHTS: u32 = 0xf | Access::MW_BIND.0 | Access::ZERO_BASED.0 | Access::FLUSH_GLOBAL.0;
/// `IBV_ACCESS_HUGETLB`: a hint.
const ACCESS_HUGETLB: u32 = 1 << 7;
/// `IB_ACCESS_OPTIONAL`: a driver may ignore these (relaxed ordering is one).
const ACCESS_OPTIONAL: u32 = 0x3ff0_0000;
/// `IBV_ACCESS_ON_DEMAND`.
const ACCESS_ON_DEMAND: u32 = 1 << 6;

pub fn alloc_pd(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    let charge = context.charge(Resource::Pds, 1)?;
    let handle = context.handle(Command::AllocPd)?;
    context.pds.insert(handle);
    charge.keep();
    Ok(call.answer(OneWord { value: handle }.as_bytes(), &[]))
}

pub fn dealloc_pd(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    let pd = context.pd(call.request::<OneHandle>()?.handle)?;
    context.done(Command::DeallocPd { pd })?;
    context.pds.remove(&pd);
    context.account.give(Resource::Pds, 1);
    Ok(Answer::default())
}

/// ib_core's checks (`ib_check_mr_access`, `ib_uverbs_reg_mr`) on what a program may ask for.
fn access(flags: u32) -> Result<Access, CommandError> {
    let persistent = Access::FLUSH_PERSISTENT.0;
    let known = ACCESS_RIGHTS | ACCESS_HUGETLB | ACCESS_OPTIONAL;
    if flags & !(known | ACCESS_ON_DEMAND | persistent) != 0 {
        return Err(CommandError::AccessBits(flags));
    }
    if flags & ACCESS_ON_DEMAND != 0 {
        return Err(CommandError::Unsupported("on-demand paging"));
    }
    if flags & persistent != 0 {
        return Err(CommandError::Unsupported(
            "a memory region that can be flushed for persistence",
        ));
    }
    let access = Access(flags & ACCESS_RIGHTS);
    let remote = Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0;
    if access.0 & remote != 0 && !access.allows(Access::LOCAL_WRITE) {
        return Err(CommandError::RemoteWithoutLocal(flags));
    }
    Ok(access)
}

pub fn reg_mr(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    let registered = register(context, call);
    context.mrs.forget_pieces();
    registered
}

fn register(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    let request: RegMr = call.request()?;
    let (addr, len, mut iova) = (request.start, request.length, request.hca_va);
    // ib_core compares offsets in a page, as hardware translates page by page.
    if (addr ^ iova) & 0xfff != 0 {
        return Err(CommandError::IovaOffset { addr, iova });
    }
    let access = access(request.access_flags)?;
    if access.allows(Access::ZERO_BASED) {
        iova = 0;
    }
    let pd = context.pd(request.pd_handle)?;
    let limits = context.limits();
    if len > limits.max_mr_size {
        return Err(CommandError::Limit {
            name: "length",
            value: len,
            limit: limits.max_mr_size,
        });
    }
    let charges = [
        context.charge(Resource::Mrs, 1)?,
        context.charge(Resource::Registered, len)?,
    ];
    // An iova is only a name, but its end must exist.
    if iova.checked_add(len).is_none() {
        return Err(CommandError::Range { addr: iova, len });
    }
    context
        .program
        .check(addr, len, access.allows(Access::LOCAL_WRITE))?;
    let (reach, mappings) = context.mrs.reach(addr, len)?.split();
    match context.call(Command::RegMr {
        pd,
        addr,
        iova,
        len,
        access,
        reach,
    })? {
        Reply::Mr { handle, lkey, rkey } => {
            context.mrs.insert(handle, addr, len, mappings);
            charges.into_iter().for_each(Charge::keep);
            Ok(call.answer(
                RegMrResp {
                    mr_handle: handle,
                    lkey,
                    rkey,
                }
                .as_bytes(),
                &[],
            ))
        }
        other => Err(context.unexpected("RegMr", &other)),
    }
}

pub fn dereg_mr(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    let mr = call.request::<OneHandle>()?.handle;
    let (_, len) = context.mrs.range(mr).ok_or(CommandError::Handle {
        kind: "memory region",
        handle: mr,
    })?;
    context.done(Command::DeregMr { mr })?;
    context.mrs.remove(mr);
    context.account.give(Resource::Mrs, 1);
    context.account.give(Resource::Registered, len);
    Ok(Answer::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_flags_follow_ib_core() {
        assert_eq!(access(0).unwrap(), Access(0));
        assert_eq!(access(0b111).unwrap(), Access(0b111));
        // Relaxed ordering and a huge page hint are no rights.
        assert_eq!(access(1 | 1 << 20 | 1 << 7).unwrap(), Access(1));
        // Binding windows, zero base and FLUSH for visibility are.
        let all = 0xf | 1 << 4 | 1 << 5 | 1 << 8;
        assert_eq!(access(all).unwrap(), Access(all));
        for remote in [2, 8, 2 | 4] {
            assert_eq!(access(remote).unwrap_err().errno(), libc::EINVAL);
        }
        assert_eq!(access(1 << 30).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(access(1 << 10).unwrap_err().errno(), libc::EINVAL);
        for unsupported in [1 << 6, 1 << 9] {
            assert_eq!(
                access(1 | unsupported).unwrap_err().errno(),
                libc::EOPNOTSUPP
            );
        }
    }
}
