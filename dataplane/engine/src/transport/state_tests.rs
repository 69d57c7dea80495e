//! The whole table, by hand from IBTA's, against what the code says: every kind of QP, every two states, every attribute.

use super::*;
use crate::verbs::AttrNames;

/// Kind, from, to: attributes that must be given, attributes that may be. What is not here does not exist, but for the
/// ways to RESET and to ERR.
const TABLE: &[(&str, &str, &str)] = &[
    ("RC Reset Init", "PKEY_INDEX PORT ACCESS_FLAGS", ""),
    ("RC Init Init", "", "PKEY_INDEX PORT ACCESS_FLAGS"),
    (
        "RC Init Rtr",
        "AV PATH_MTU DEST_QPN RQ_PSN MAX_DEST_RD_ATOMIC MIN_RNR_TIMER",
        "ALT_PATH ACCESS_FLAGS PKEY_INDEX",
    ),
    (
        "RC Rtr Rts",
        "TIMEOUT RETRY_CNT RNR_RETRY SQ_PSN MAX_QP_RD_ATOMIC",
        "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE",
    ),
    (
        "RC Rts Rts",
        "",
        "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE",
    ),
    ("RC Rts Sqd", "", "EN_SQD_ASYNC_NOTIFY"),
    (
        "RC Sqd Rts",
        "",
        "CUR_STATE ALT_PATH ACCESS_FLAGS MIN_RNR_TIMER PATH_MIG_STATE",
    ),
    (
        "RC Sqd Sqd",
        "",
        "PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC MAX_DEST_RD_ATOMIC ALT_PATH ACCESS_FLAGS \
         PKEY_INDEX MIN_RNR_TIMER PATH_MIG_STATE",
    ),
    ("UC Reset Init", "PKEY_INDEX PORT ACCESS_FLAGS", ""),
    ("UC Init Init", "", "PKEY_INDEX PORT ACCESS_FLAGS"),
    (
        "UC Init Rtr",
        "AV PATH_MTU DEST_QPN RQ_PSN",
        "ALT_PATH ACCESS_FLAGS PKEY_INDEX",
    ),
    (
        "UC Rtr Rts",
        "SQ_PSN",
        "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE",
    ),
    (
        "UC Rts Rts",
        "",
        "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE",
    ),
    ("UC Rts Sqd", "", "EN_SQD_ASYNC_NOTIFY"),
    (
        "UC Sqd Rts",
        "",
        "CUR_STATE ALT_PATH ACCESS_FLAGS PATH_MIG_STATE",
    ),
    (
        "UC Sqd Sqd",
        "",
        "AV ALT_PATH ACCESS_FLAGS PKEY_INDEX PATH_MIG_STATE",
    ),
    ("UC Sqe Rts", "", "CUR_STATE ACCESS_FLAGS"),
    ("UD Reset Init", "PKEY_INDEX PORT QKEY", ""),
    ("UD Init Init", "", "PKEY_INDEX PORT QKEY"),
    ("UD Init Rtr", "", "PKEY_INDEX QKEY"),
    ("UD Rtr Rts", "SQ_PSN", "CUR_STATE QKEY"),
    ("UD Rts Rts", "", "CUR_STATE QKEY"),
    ("UD Rts Sqd", "", "EN_SQD_ASYNC_NOTIFY"),
    ("UD Sqd Rts", "", "CUR_STATE QKEY"),
    ("UD Sqd Sqd", "", "PKEY_INDEX QKEY"),
    ("UD Sqe Rts", "", "CUR_STATE QKEY"),
];

const KINDS: [(&str, QpType); 3] = [("RC", QpType::Rc), ("UC", QpType::Uc), ("UD", QpType::Ud)];

fn states() -> impl Iterator<Item = QpState> {
    (0..7).filter_map(QpState::from_raw)
}

fn bits(names: &str) -> u32 {
    names
        .split_whitespace()
        .map(|name| {
            let full = format!("IBV_QP_{name}");
            let found = mask::NAMES.iter().find(|(_, n)| *n == full);
            found.unwrap_or_else(|| panic!("no attribute {name}")).0
        })
        .sum()
}

fn expected(kind: &str, from: QpState, to: QpState) -> Option<(u32, u32)> {
    let name = format!("{kind} {from:?} {to:?}");
    match TABLE.iter().find(|row| row.0 == name) {
        Some(row) => Some((bits(row.1), bits(row.2))),
        None if to == QpState::Reset => Some((0, 0)),
        None if to == QpState::Err && from != QpState::Reset => Some((0, 0)),
        None => None,
    }
}

/// Values that are in range.
fn attr(state: QpState) -> QpAttr {
    QpAttr {
        state,
        ..QpAttr::default()
    }
}

#[test]
fn every_attribute_of_every_transition_of_every_kind() {
    let mut checked = 0;
    for (name, kind) in KINDS {
        for from in states() {
            for to in states() {
                let a = attr(to);
                let Some((must, may)) = expected(name, from, to) else {
                    let no = Err(QpError::Transition { from, to });
                    assert_eq!(check(kind, from, &a, mask::STATE), no, "{name}");
                    continue;
                };
                let given = must | mask::STATE;
                assert_eq!(check(kind, from, &a, given), Ok(to), "{name} {from:?}");
                for (bit, attribute) in mask::NAMES {
                    let context = format!("{name} {from:?} {to:?} {attribute}");
                    let mask_error = |missing, excess| QpError::Mask {
                        from,
                        to,
                        missing,
                        excess,
                    };
                    if bit == mask::STATE {
                        continue;
                    } else if must & bit != 0 {
                        let r = check(kind, from, &a, given & !bit);
                        assert_eq!(r, Err(mask_error(bit, 0)), "{context}");
                        assert!(r.unwrap_err().to_string().contains(attribute), "{context}");
                    } else if bit == mask::ALT_PATH && may & bit != 0 {
                        let r = check(kind, from, &a, given | bit);
                        assert_eq!(r, Err(QpError::Unsupported("an alternate path")));
                    } else if may & bit != 0 {
                        assert_eq!(check(kind, from, &a, given | bit), Ok(to), "{context}");
                    } else {
                        let r = check(kind, from, &a, given | bit);
                        assert_eq!(r, Err(mask_error(0, bit)), "{context}");
                        assert!(r.unwrap_err().to_string().contains(attribute), "{context}");
                    }
                    checked += 1;
                }
            }
        }
    }
    // 26 rows, 7 states to RESET and 6 to ERR for each kind, 20 attributes.
    assert_eq!(checked, (26 + 3 * 13) * 20);
}

#[test]
fn without_a_state_the_present_one_stays() {
    for (name, kind) in KINDS {
        for from in states() {
            // Another state, which the mask does not name, means nothing.
            let r = check(kind, from, &attr(QpState::Err), 0);
            match expected(name, from, from) {
                Some(_) => assert_eq!(r, Ok(from), "{name}"),
                None => assert_eq!(r, Err(QpError::Transition { from, to: from }), "{name}"),
            }
        }
    }
}

#[test]
fn the_message_names_what_is_missing_and_what_is_too_much() {
    let given = mask::STATE | mask::PORT | mask::ACCESS_FLAGS | mask::SQ_PSN;
    let r = check(QpType::Rc, QpState::Reset, &attr(QpState::Init), given);
    assert_eq!(
        r.unwrap_err().to_string(),
        "going from Reset to Init takes IBV_QP_PKEY_INDEX, not given, and no IBV_QP_SQ_PSN"
    );
    let r = check(
        QpType::Ud,
        QpState::Rts,
        &attr(QpState::Rts),
        mask::AV | mask::PATH_MTU,
    );
    assert_eq!(
        r.unwrap_err().to_string(),
        "going from Rts to Rts takes no IBV_QP_AV, IBV_QP_PATH_MTU"
    );
    assert_eq!(
        AttrNames(mask::PORT | 1 << 30).to_string(),
        "IBV_QP_PORT, 0x40000000"
    );
}

#[test]
fn values_have_limits() {
    type Set = fn(&mut QpAttr, u8);
    let limits: [(&str, u64, u32, Set); 6] = [
        ("timeout", 31, mask::TIMEOUT, |a, v| a.timeout = v),
        ("retry_cnt", 7, mask::RETRY_CNT, |a, v| a.retry_cnt = v),
        ("rnr_retry", 7, mask::RNR_RETRY, |a, v| a.rnr_retry = v),
        ("min_rnr_timer", 31, mask::MIN_RNR_TIMER, |a, v| {
            a.min_rnr_timer = v
        }),
        ("max_rd_atomic", 16, mask::MAX_QP_RD_ATOMIC, |a, v| {
            a.max_rd_atomic = v
        }),
        (
            "max_dest_rd_atomic",
            16,
            mask::MAX_DEST_RD_ATOMIC,
            |a, v| a.max_dest_rd_atomic = v,
        ),
    ];
    for (name, limit, bit, set) in limits {
        let mut a = attr(QpState::Sqd);
        set(&mut a, limit as u8);
        assert!(check(QpType::Rc, QpState::Sqd, &a, bit).is_ok(), "{name}");
        set(&mut a, limit as u8 + 1);
        let value = limit + 1;
        let error = Err(QpError::Value { name, value, limit });
        assert_eq!(check(QpType::Rc, QpState::Sqd, &a, bit), error);
    }
    for port in [0, 2] {
        let a = QpAttr {
            port,
            ..attr(QpState::Init)
        };
        assert!(check(QpType::Rc, QpState::Init, &a, mask::PORT).is_err());
    }
    let a = QpAttr {
        pkey_index: 1,
        ..attr(QpState::Init)
    };
    assert!(check(QpType::Ud, QpState::Init, &a, mask::PKEY_INDEX).is_err());
}
