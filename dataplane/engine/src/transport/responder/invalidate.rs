//! SEND with invalidate: the key goes when everything before the message, and its own payload, is in memory, and before
//! its completion is seen.

use super::effects::{Received, complete, fatal, note_receive};
use crate::memory::AccessError;
use crate::transport::env::{Env, count};
use crate::transport::journal::Cause;
use crate::transport::qp::Qp;
use crate::wire::Psn;

/// Invalidates the key of a message that has arrived; false if that cannot be, and the QP is in ERR. The peer hears of a
/// remote access error; the receive request completes with what soft-RoCE gives it.
pub(super) fn carry_out(
    qp: &mut Qp,
    psn: Psn,
    key: u32,
    received: &Received,
    env: &mut Env<'_>,
) -> bool {
    qp.resp.invalidating -= 1;
    let Err(error) = env.mrs.invalidate(key, (qp.pd, qp.id)) else {
        return true;
    };
    count!(qp, env, resp_remote_access_errors);
    let cause = Cause::RemoteInvalidate(error);
    qp.cold.journal.refusal = Some(cause);
    let row = cause.fault().row();
    if let Some(status) = row.receive {
        note_receive(qp, received.wr_id, received.byte_len.into(), status);
    }
    fatal(qp, psn, row.fault, None, env);
    if let Some(status) = row.receive {
        complete(qp, received, status, env);
    }
    false
}

/// Whether a request may use `key`, as far as SENDs before it are concerned that wait to invalidate it.
#[inline]
pub(super) fn allows(qp: &Qp, key: u32) -> Result<(), AccessError> {
    if qp.resp.invalidating > 0 && qp.resp.effects.invalidates(key) {
        return Err(AccessError::UnknownKey(key));
    }
    Ok(())
}
