//! SEND with invalidate: the key goes when everything before the message, and its own payload, is in memory, and before
//! its completion is seen.

use super::NEVER;
use super::effects::{Received, complete, fatal, note_receive};
use crate::Nanos;
use crate::memory::AccessError;
use crate::transport::env::{Env, count};
use crate::transport::journal::Cause;
use crate::transport::qp::Qp;
use crate::verbs::QpState;
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
    let Err(error) = env.nic.mrs.invalidate(key, (qp.pd, qp.id)) else {
        return true;
    };
    count!(qp, env, resp_remote_access_errors);
    let cause = Cause::RemoteInvalidate(error);
    qp.journal.rest.refusal = Some(cause);
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

/// How long a local invalidation waits for a pause in what the peer sends.
const PATIENCE: Nanos = Nanos(10_000_000);

/// Whether a LOCAL_INV may start: what was let through the key before it is in memory first. If not, `placed` comes back to it;
/// should that take long, [`holds`] keeps the peer from adding more.
pub(crate) fn may_invalidate(qp: &mut Qp, now: Nanos) -> bool {
    let r = &mut qp.resp;
    let may = !r.is_placing();
    if may {
        r.hold_from = NEVER;
    } else if r.hold_from == NEVER {
        r.hold_from = now + PATIENCE;
    }
    may
}

/// Whether an arriving request is dropped, as if it had been lost, because a local invalidation has waited long enough. A peer
/// that always has something on its way, into memory that is slow to take it, would hold it up for ever.
#[cold]
pub(super) fn holds(qp: &mut Qp) -> bool {
    // Else it has failed, was flushed, or nothing new starts at the moment (SQD).
    let waits = qp.state == QpState::Rts && qp.req.waits_to_invalidate();
    if !waits {
        qp.resp.hold_from = NEVER;
    }
    waits && qp.resp.is_placing()
}

/// Whether a request may use `key`, as far as SENDs before it are concerned that wait to invalidate it.
#[inline]
pub(super) fn allows(qp: &Qp, key: u32) -> Result<(), AccessError> {
    if qp.resp.invalidating > 0 && qp.resp.effects.invalidates(key) {
        return Err(AccessError::UnknownKey(key));
    }
    Ok(())
}
