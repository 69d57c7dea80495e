//! Requests that are carried out at this end alone: binding and invalidating memory windows.
//!
//! Each is carried out when its turn to start comes, so everything behind it finds it done (IBTA 10.8.3.3); it completes
//! when those before it have. What was posted before it may still be on its way, so a program that takes a key away from
//! such a request sets the fence: here it waits for all requests before it, not for READs and atomics only.

use crate::memory::{Access, Binding};
use crate::transport::env::Env;
use crate::transport::journal::Cause;
use crate::transport::qp::Qp;
use crate::verbs::WrOpcode;

/// Carries the request at `index` out.
pub(super) fn execute(qp: &mut Qp, index: u32, env: &mut Env<'_>) -> Result<(), Cause> {
    let owner = (qp.pd, qp.id);
    let w = qp.req.wqe(index);
    if w.op != WrOpcode::BindMw {
        return env
            .nic
            .mrs
            .invalidate(w.imm, owner)
            .map_err(Cause::LocalInvalidate);
    }
    let [len, region_access] = qp.req.operands[qp.req.at(index)];
    let binding = Binding {
        window: w.imm,
        new_key: w.rkey,
        region: region_access as u32,
        addr: w.remote_addr,
        len,
        access: Access((region_access >> 32) as u32),
    };
    env.nic.mrs.bind(&binding, owner).map_err(Cause::Bind)
}
