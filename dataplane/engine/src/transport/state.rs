//! Which attributes `modify_qp` takes in which transition of an RC QP: IBTA 11.2.5.2, table "QP state
//! transition properties", as kernels and rdma-core check it.

use crate::memory::Access;
use crate::verbs::{QpAttr, QpError, QpState, RC_STEPS, mask};

/// READs and atomics that a QP may have outstanding, in either direction.
pub(crate) const MAX_RD_ATOMIC: u8 = 16;

/// A transition: from, to, bits that must be set, bits that may be set.
struct Transition(QpState, QpState, u32, u32);

const INIT_ATTRS: u32 = RC_STEPS[0].1;
const RTR_ATTRS: u32 = RC_STEPS[1].1;
const RTS_ATTRS: u32 = RC_STEPS[2].1;
const LIVE_ATTRS: u32 = mask::CUR_STATE
    | mask::ACCESS_FLAGS
    | mask::ALT_PATH
    | mask::MIN_RNR_TIMER
    | mask::PATH_MIG_STATE;

#[rustfmt::skip]
const TRANSITIONS: &[Transition] = {
    use QpState::*;
    &[
        Transition(Reset, Init, INIT_ATTRS, 0),
        Transition(Init, Init, 0, INIT_ATTRS),
        Transition(Init, Rtr, RTR_ATTRS, mask::ALT_PATH | mask::ACCESS_FLAGS | mask::PKEY_INDEX),
        Transition(Rtr, Rts, RTS_ATTRS, LIVE_ATTRS),
        Transition(Rts, Rts, 0, LIVE_ATTRS),
        Transition(Rts, Sqd, 0, mask::EN_SQD_ASYNC_NOTIFY),
        Transition(Sqd, Rts, 0, LIVE_ATTRS),
        Transition(Sqd, Sqd, 0,
            mask::PORT | mask::AV | mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY
                | mask::MAX_QP_RD_ATOMIC | mask::MAX_DEST_RD_ATOMIC | mask::ALT_PATH
                | mask::ACCESS_FLAGS | mask::PKEY_INDEX | mask::MIN_RNR_TIMER | mask::PATH_MIG_STATE),
    ]
};

/// The state that a modify call leads to, if its mask suits the transition and its values are in range.
pub(crate) fn check(from: QpState, attr: &QpAttr, given: u32) -> Result<QpState, QpError> {
    let to = if given & mask::STATE != 0 {
        attr.state
    } else {
        from
    };
    let (required, optional) = match TRANSITIONS.iter().find(|t| t.0 == from && t.1 == to) {
        Some(t) => (t.2, t.3),
        // From every state to RESET and to ERR, without attributes.
        None if matches!(to, QpState::Reset | QpState::Err) && given & mask::STATE != 0 => (0, 0),
        None => return Err(QpError::Transition { from, to }),
    };
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
    let remote = Access::REMOTE_WRITE.0 | Access::REMOTE_READ.0 | Access::REMOTE_ATOMIC.0;
    to.access = Access(to.access.0 & (remote | Access::LOCAL_WRITE.0));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(state: QpState) -> QpAttr {
        QpAttr {
            state,
            ..QpAttr::default()
        }
    }

    #[test]
    fn the_usual_way_up() {
        use QpState::*;
        let init = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
        assert_eq!(check(Reset, &attr(Init), init), Ok(Init));
        let rtr = mask::STATE
            | mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::MIN_RNR_TIMER;
        assert_eq!(check(Init, &attr(Rtr), rtr), Ok(Rtr));
        let rts = mask::STATE
            | mask::TIMEOUT
            | mask::RETRY_CNT
            | mask::RNR_RETRY
            | mask::SQ_PSN
            | mask::MAX_QP_RD_ATOMIC;
        assert_eq!(check(Rtr, &attr(Rts), rts), Ok(Rts));
        assert_eq!(
            check(Rts, &attr(Sqd), mask::STATE | mask::EN_SQD_ASYNC_NOTIFY),
            Ok(Sqd)
        );
        assert_eq!(check(Sqd, &attr(Rts), mask::STATE), Ok(Rts));
    }

    #[test]
    fn missing_and_excess_attributes_are_named() {
        let given = mask::STATE | mask::PORT | mask::ACCESS_FLAGS | mask::SQ_PSN;
        assert_eq!(
            check(QpState::Reset, &attr(QpState::Init), given),
            Err(QpError::Mask {
                from: QpState::Reset,
                to: QpState::Init,
                missing: mask::PKEY_INDEX,
                excess: mask::SQ_PSN,
            })
        );
    }

    #[test]
    fn steps_cannot_be_skipped_and_sqe_is_not_for_rc() {
        use QpState::*;
        for (from, to) in [
            (Reset, Rtr),
            (Init, Rts),
            (Rtr, Sqd),
            (Err, Rts),
            (Rts, Init),
            (Rts, Sqe),
        ] {
            let r = check(from, &attr(to), mask::STATE);
            assert_eq!(
                r,
                core::result::Result::Err(QpError::Transition { from, to })
            );
        }
        // without STATE the state stays, which RESET, RTR and ERR do not allow
        assert!(check(Rtr, &attr(Rtr), mask::MIN_RNR_TIMER).is_err());
        assert!(check(Err, &attr(Err), 0).is_err());
        assert_eq!(check(Rts, &attr(Reset), mask::MIN_RNR_TIMER), Ok(Rts));
    }

    #[test]
    fn reset_and_error_are_reached_from_everywhere_without_attributes() {
        use QpState::*;
        for from in [Reset, Init, Rtr, Rts, Sqd, Sqe, Err] {
            for to in [Reset, Err] {
                assert_eq!(check(from, &attr(to), mask::STATE), Ok(to));
                assert!(check(from, &attr(to), mask::STATE | mask::PORT).is_err());
            }
        }
    }

    #[test]
    fn values_have_limits() {
        let a = QpAttr {
            min_rnr_timer: 32,
            ..attr(QpState::Rts)
        };
        let r = check(QpState::Rts, &a, mask::MIN_RNR_TIMER);
        assert_eq!(
            r,
            Err(QpError::Value {
                name: "min_rnr_timer",
                value: 32,
                limit: 31
            })
        );
        let a = QpAttr {
            port: 2,
            ..attr(QpState::Init)
        };
        assert!(check(QpState::Init, &a, mask::PORT).is_err());
        let a = QpAttr {
            max_rd_atomic: 17,
            ..attr(QpState::Sqd)
        };
        assert!(check(QpState::Sqd, &a, mask::MAX_QP_RD_ATOMIC).is_err());
    }
}
