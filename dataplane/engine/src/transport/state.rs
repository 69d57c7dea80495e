//! Which attributes `modify_qp` takes in which transition: IBTA 11.2.5.2, table "QP state transition properties", as
//! Linux checks them (`ib_modify_qp_is_ok`).

use crate::memory::Access;
use crate::verbs::{QpAttr, QpError, QpState, QpType, RC_STEPS, Steps, UC_STEPS, UD_STEPS, mask};

/// READs and atomics that a QP may have outstanding, in either direction.
pub(crate) const MAX_RD_ATOMIC: u8 = 16;

/// A transition: from, to, bits that must be set, bits that may be set.
struct Transition(QpState, QpState, u32, u32);

const EN_SQD: u32 = mask::EN_SQD_ASYNC_NOTIFY;
/// What a connection, reliable or not, may change while it lives.
const CONNECTED: u32 = mask::ACCESS_FLAGS | mask::ALT_PATH | mask::PATH_MIG_STATE;
const RC_LIVE: u32 = CONNECTED | mask::CUR_STATE | mask::MIN_RNR_TIMER;
const UC_LIVE: u32 = CONNECTED | mask::CUR_STATE;
const UD_LIVE: u32 = mask::CUR_STATE | mask::QKEY;

const fn given(steps: &Steps, step: usize) -> u32 {
    steps[step].1
}

#[rustfmt::skip]
const RC: &[Transition] = {
    use QpState::*;
    &[
        Transition(Reset, Init, given(&RC_STEPS, 0), 0),
        Transition(Init, Init, 0, given(&RC_STEPS, 0)),
        Transition(Init, Rtr, given(&RC_STEPS, 1), mask::ALT_PATH | mask::ACCESS_FLAGS | mask::PKEY_INDEX),
        Transition(Rtr, Rts, given(&RC_STEPS, 2), RC_LIVE),
        Transition(Rts, Rts, 0, RC_LIVE),
        Transition(Rts, Sqd, 0, EN_SQD),
        Transition(Sqd, Rts, 0, RC_LIVE),
        Transition(Sqd, Sqd, 0,
            CONNECTED | mask::PORT | mask::AV | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY
                | mask::MAX_QP_RD_ATOMIC | mask::MAX_DEST_RD_ATOMIC | mask::PKEY_INDEX | mask::MIN_RNR_TIMER),
    ]
};

#[rustfmt::skip]
const UC: &[Transition] = {
    use QpState::*;
    &[
        Transition(Reset, Init, given(&UC_STEPS, 0), 0),
        Transition(Init, Init, 0, given(&UC_STEPS, 0)),
        Transition(Init, Rtr, given(&UC_STEPS, 1), mask::ALT_PATH | mask::ACCESS_FLAGS | mask::PKEY_INDEX),
        Transition(Rtr, Rts, given(&UC_STEPS, 2), UC_LIVE),
        Transition(Rts, Rts, 0, UC_LIVE),
        Transition(Rts, Sqd, 0, EN_SQD),
        Transition(Sqd, Rts, 0, UC_LIVE),
        Transition(Sqd, Sqd, 0, CONNECTED | mask::AV | mask::PKEY_INDEX),
        Transition(Sqe, Rts, 0, mask::CUR_STATE | mask::ACCESS_FLAGS),
    ]
};

#[rustfmt::skip]
const UD: &[Transition] = {
    use QpState::*;
    &[
        Transition(Reset, Init, given(&UD_STEPS, 0), 0),
        Transition(Init, Init, 0, given(&UD_STEPS, 0)),
        Transition(Init, Rtr, given(&UD_STEPS, 1), mask::PKEY_INDEX | mask::QKEY),
        Transition(Rtr, Rts, given(&UD_STEPS, 2), UD_LIVE),
        Transition(Rts, Rts, 0, UD_LIVE),
        Transition(Rts, Sqd, 0, EN_SQD),
        Transition(Sqd, Rts, 0, UD_LIVE),
        Transition(Sqd, Sqd, 0, mask::PKEY_INDEX | mask::QKEY),
        Transition(Sqe, Rts, 0, UD_LIVE),
    ]
};

/// Bits that must be set and bits that may be set, if there is such a transition.
fn transition(kind: QpType, from: QpState, to: QpState) -> Option<(u32, u32)> {
    // From every state to RESET, and from all but RESET to ERR, without attributes.
    if to == QpState::Reset || (to == QpState::Err && from != QpState::Reset) {
        return Some((0, 0));
    }
    let table = match kind {
        QpType::Rc => RC,
        QpType::Uc => UC,
        QpType::Ud => UD,
    };
    let found = table.iter().find(|t| t.0 == from && t.1 == to)?;
    Some((found.2, found.3))
}

/// The state that a modify call leads to, if its mask suits the transition and its values are in range.
pub(crate) fn check(
    kind: QpType,
    from: QpState,
    attr: &QpAttr,
    given: u32,
) -> Result<QpState, QpError> {
    let to = if given & mask::STATE != 0 {
        attr.state
    } else {
        from
    };
    let (required, optional) =
        transition(kind, from, to).ok_or(QpError::Transition { from, to })?;
    let missing = required & !given;
    let excess = given & !(required | optional | mask::STATE);
    if missing != 0 || excess != 0 {
        return Err(QpError::Mask {
            from,
            to,
            missing,
            excess,
        });
    }
    values(attr, given)?;
    Ok(to)
}

fn values(attr: &QpAttr, given: u32) -> Result<(), QpError> {
    if given & mask::ALT_PATH != 0 {
        return Err(QpError::Unsupported("an alternate path"));
    }
    if given & mask::PORT != 0 && attr.port == 0 {
        return Err(QpError::Value {
            name: "port",
            value: 0,
            limit: 1,
        });
    }
    let limits: [(u32, &'static str, u64, u64); 9] = [
        (mask::PORT, "port", attr.port.into(), 1),
        (mask::PKEY_INDEX, "pkey_index", attr.pkey_index.into(), 0),
        (mask::TIMEOUT, "timeout", attr.timeout.into(), 31),
        (mask::RETRY_CNT, "retry_cnt", attr.retry_cnt.into(), 7),
        (mask::RNR_RETRY, "rnr_retry", attr.rnr_retry.into(), 7),
        (
            mask::MIN_RNR_TIMER,
            "min_rnr_timer",
            attr.min_rnr_timer.into(),
            31,
        ),
        (mask::DEST_QPN, "dest_qpn", attr.dest_qpn.into(), 0xff_ffff),
        (
            mask::MAX_QP_RD_ATOMIC,
            "max_rd_atomic",
            attr.max_rd_atomic.into(),
            MAX_RD_ATOMIC.into(),
        ),
        (
            mask::MAX_DEST_RD_ATOMIC,
            "max_dest_rd_atomic",
            attr.max_dest_rd_atomic.into(),
            MAX_RD_ATOMIC.into(),
        ),
    ];
    for (bit, name, value, limit) in limits {
        if given & bit != 0 && value > limit {
            return Err(QpError::Value { name, value, limit });
        }
    }
    Ok(())
}

/// Copies the attributes that `given` names.
pub(crate) fn apply(to: &mut QpAttr, from: &QpAttr, given: u32) {
    macro_rules! copy {
        ($($bit:ident $field:ident,)*) => {
            $(if given & mask::$bit != 0 { to.$field = from.$field; })*
        };
    }
    copy! {
        ACCESS_FLAGS access, PKEY_INDEX pkey_index, PORT port, QKEY qkey, AV path, PATH_MTU path_mtu,
        TIMEOUT timeout, RETRY_CNT retry_cnt, RNR_RETRY rnr_retry, RQ_PSN rq_psn, SQ_PSN sq_psn,
        MAX_QP_RD_ATOMIC max_rd_atomic, MAX_DEST_RD_ATOMIC max_dest_rd_atomic,
        MIN_RNR_TIMER min_rnr_timer, DEST_QPN dest_qpn, EN_SQD_ASYNC_NOTIFY sqd_async_notify,
    }
    // Only the rights of peers mean something on a QP.
    let remote = Access::REMOTE_WRITE.0
        | Access::REMOTE_READ.0
        | Access::REMOTE_ATOMIC.0
        | Access::FLUSH_GLOBAL.0
        | Access::FLUSH_PERSISTENT.0;
    to.access = Access(to.access.0 & (remote | Access::LOCAL_WRITE.0));
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
