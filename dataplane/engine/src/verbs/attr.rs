//! Attributes and states of a queue pair.

use crate::memory::Access;
use crate::wire::{Gid, Psn};

/// A queue pair number: 24 bits, unique among the live and the recently dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpId(pub u32);

/// Transport service type (`enum ibv_qp_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
}

/// `enum ibv_qp_state`.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpState {
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Sqd = 4,
    Sqe = 5,
    Err = 6,
}

impl QpState {
    /// The state with this number.
    pub const fn from_raw(v: u32) -> Option<QpState> {
        use QpState::*;
        Some(match v {
            0 => Reset,
            1 => Init,
            2 => Rtr,
            3 => Rts,
            4 => Sqd,
            5 => Sqe,
            6 => Err,
            _ => return None,
        })
    }
}

/// Path MTU (`enum ibv_mtu`): payload bytes of a full packet.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Mtu {
    M256 = 1,
    M512 = 2,
    M1024 = 3,
    M2048 = 4,
    M4096 = 5,
}

impl Mtu {
    /// Payload bytes.
    pub const fn bytes(self) -> u32 {
        128 << self as u8
    }

    /// The MTU with this number.
    pub const fn from_raw(v: u32) -> Option<Mtu> {
        Some(match v {
            1 => Mtu::M256,
            2 => Mtu::M512,
            3 => Mtu::M1024,
            4 => Mtu::M2048,
            5 => Mtu::M4096,
            _ => return None,
        })
    }

    /// The largest MTU whose frame fits a port MTU of `port` bytes: rxe's rule, which leaves 80 bytes
    /// for IPv6, UDP, BTH, the longest extended headers and ICRC. `None` below 336.
    pub const fn for_port(port: u32) -> Option<Mtu> {
        let room = port.saturating_sub(80);
        Some(match room {
            4096.. => Mtu::M4096,
            2048.. => Mtu::M2048,
            1024.. => Mtu::M1024,
            512.. => Mtu::M512,
            256.. => Mtu::M256,
            _ => return None,
        })
    }
}

/// What is fixed when a QP is created.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Transport.
    pub qp_type: QpType,
    /// Protection domain (the caller's number).
    pub pd: u32,
    /// CQ of the send queue (the caller's number).
    pub send_cq: u32,
    /// CQ of the receive queue.
    pub recv_cq: u32,
    /// Every send request is signalled.
    pub sq_sig_all: bool,
    /// Send requests outstanding at most.
    pub max_send_wr: u32,
    /// Entries of a send request at most.
    pub max_send_sge: u32,
    /// Entries of a receive request at most.
    pub max_recv_sge: u32,
    /// Inline bytes of a send request at most.
    pub max_inline: u32,
    /// Receive requests come from a shared receive queue, not from a queue of the QP's own.
    pub srq: Option<SrqRef>,
}

/// A shared receive queue as a QP sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqRef {
    /// The caller's number.
    pub number: u32,
    /// Its protection domain (the caller's number): that of its requests' keys, whatever the QP's is (IBTA 10.2.3).
    pub pd: u32,
}

/// The address of the peer and how to get there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Own GID (IPv4 as ::ffff:a.b.c.d).
    pub sgid: Gid,
    /// The peer's GID.
    pub dgid: Gid,
    /// Index of `sgid`.
    pub sgid_index: u8,
    /// Own MAC.
    pub smac: [u8; 6],
    /// Next hop's MAC.
    pub dmac: [u8; 6],
    /// IPv6 flow label; its fold is the UDP source port.
    pub flow_label: u32,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// TTL.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
}

/// Which fields of a [`QpAttr`] are set: bits of `enum ibv_qp_attr_mask`.
#[allow(missing_docs)]
pub mod mask {
    pub const STATE: u32 = 1 << 0;
    pub const CUR_STATE: u32 = 1 << 1;
    pub const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub const ACCESS_FLAGS: u32 = 1 << 3;
    pub const PKEY_INDEX: u32 = 1 << 4;
    pub const PORT: u32 = 1 << 5;
    pub const QKEY: u32 = 1 << 6;
    pub const AV: u32 = 1 << 7;
    pub const PATH_MTU: u32 = 1 << 8;
    pub const TIMEOUT: u32 = 1 << 9;
    pub const RETRY_CNT: u32 = 1 << 10;
    pub const RNR_RETRY: u32 = 1 << 11;
    pub const RQ_PSN: u32 = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: u32 = 1 << 13;
    pub const ALT_PATH: u32 = 1 << 14;
    pub const MIN_RNR_TIMER: u32 = 1 << 15;
    pub const SQ_PSN: u32 = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: u32 = 1 << 17;
    pub const PATH_MIG_STATE: u32 = 1 << 18;
    pub const CAP: u32 = 1 << 19;
    pub const DEST_QPN: u32 = 1 << 20;
    pub const RATE_LIMIT: u32 = 1 << 25;

    /// Each bit that a modify call of today's interface can set, with its name in `infiniband/verbs.h`.
    pub const NAMES: [(u32, &str); 21] = [
        (STATE, "IBV_QP_STATE"),
        (CUR_STATE, "IBV_QP_CUR_STATE"),
        (EN_SQD_ASYNC_NOTIFY, "IBV_QP_EN_SQD_ASYNC_NOTIFY"),
        (ACCESS_FLAGS, "IBV_QP_ACCESS_FLAGS"),
        (PKEY_INDEX, "IBV_QP_PKEY_INDEX"),
        (PORT, "IBV_QP_PORT"),
        (QKEY, "IBV_QP_QKEY"),
        (AV, "IBV_QP_AV"),
        (PATH_MTU, "IBV_QP_PATH_MTU"),
        (TIMEOUT, "IBV_QP_TIMEOUT"),
        (RETRY_CNT, "IBV_QP_RETRY_CNT"),
        (RNR_RETRY, "IBV_QP_RNR_RETRY"),
        (RQ_PSN, "IBV_QP_RQ_PSN"),
        (MAX_QP_RD_ATOMIC, "IBV_QP_MAX_QP_RD_ATOMIC"),
        (ALT_PATH, "IBV_QP_ALT_PATH"),
        (MIN_RNR_TIMER, "IBV_QP_MIN_RNR_TIMER"),
        (SQ_PSN, "IBV_QP_SQ_PSN"),
        (MAX_DEST_RD_ATOMIC, "IBV_QP_MAX_DEST_RD_ATOMIC"),
        (PATH_MIG_STATE, "IBV_QP_PATH_MIG_STATE"),
        (CAP, "IBV_QP_CAP"),
        (DEST_QPN, "IBV_QP_DEST_QPN"),
    ];
}

/// Bits of [`mask`] by their names, for messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrNames(pub u32);

impl core::fmt::Display for AttrNames {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut rest = self.0;
        let mut between = "";
        for (bit, name) in mask::NAMES {
            if self.0 & bit != 0 {
                rest &= !bit;
                write!(f, "{between}{name}")?;
                between = ", ";
            }
        }
        if rest != 0 || self.0 == 0 {
            write!(f, "{between}{rest:#x}")?;
        }
        Ok(())
    }
}

/// The way of a QP from RESET to RTS: each state with what must be given to get there, beside [`mask::STATE`] (IBTA
/// 11.2.5.2, table "QP state transition properties").
pub type Steps = [(QpState, u32); 3];

impl QpType {
    /// `RC`, `UC` or `UD`.
    pub const fn name(self) -> &'static str {
        match self {
            QpType::Rc => "RC",
            QpType::Uc => "UC",
            QpType::Ud => "UD",
        }
    }

    /// The way of a QP of this type.
    pub const fn steps(self) -> &'static Steps {
        match self {
            QpType::Rc => &RC_STEPS,
            QpType::Uc => &UC_STEPS,
            QpType::Ud => &UD_STEPS,
        }
    }
}

/// [`Steps`] of an RC QP.
pub const RC_STEPS: Steps = [
    (
        QpState::Init,
        mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS,
    ),
    (
        QpState::Rtr,
        mask::AV
            | mask::PATH_MTU
            | mask::DEST_QPN
            | mask::RQ_PSN
            | mask::MAX_DEST_RD_ATOMIC
            | mask::MIN_RNR_TIMER,
    ),
    (
        QpState::Rts,
        mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::SQ_PSN | mask::MAX_QP_RD_ATOMIC,
    ),
];

/// [`Steps`] of a UC QP.
pub const UC_STEPS: Steps = [
    (
        QpState::Init,
        mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS,
    ),
    (
        QpState::Rtr,
        mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN,
    ),
    (QpState::Rts, mask::SQ_PSN),
];

/// [`Steps`] of a UD QP.
pub const UD_STEPS: Steps = [
    (QpState::Init, mask::PKEY_INDEX | mask::PORT | mask::QKEY),
    (QpState::Rtr, 0),
    (QpState::Rts, mask::SQ_PSN),
];

/// Attributes that `modify_qp` sets and `query_qp` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttr {
    /// State.
    pub state: QpState,
    /// Rights of peers on this QP.
    pub access: Access,
    /// P_Key index; only 0 exists.
    pub pkey_index: u16,
    /// Port; only 1 exists.
    pub port: u8,
    /// Q_Key (UD).
    pub qkey: u32,
    /// Address vector.
    pub path: Path,
    /// Payload bytes of a full packet.
    pub path_mtu: Mtu,
    /// Local ACK timeout code, 0 to 31: 4.096 us times 2^code, 0 endless.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors, 0 to 7.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs, 0 to 6; 7 is endless.
    pub rnr_retry: u8,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// First PSN sent.
    pub sq_psn: Psn,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics outstanding as responder.
    pub max_dest_rd_atomic: u8,
    /// Code of the time that RNR NAKs ask the peer to wait.
    pub min_rnr_timer: u8,
    /// The peer's QPN.
    pub dest_qpn: u32,
    /// An SQ_DRAINED event is wanted.
    pub sqd_async_notify: bool,
    /// Query only: in SQD, and requests that had started are not complete.
    pub sq_draining: bool,
}

impl Default for QpAttr {
    fn default() -> QpAttr {
        QpAttr {
            state: QpState::Reset,
            access: Access(0),
            pkey_index: 0,
            port: 1,
            qkey: 0,
            path: Path::default(),
            path_mtu: Mtu::M1024,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            dest_qpn: 0,
            sqd_async_notify: false,
            sq_draining: false,
        }
    }
}

/// Why a QP could not be created or modified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QpError {
    /// All numbers are in use.
    #[error("no queue pair left: {0} exist")]
    Full(u32),
    /// Not supported (yet).
    #[error("{0} is not supported")]
    Unsupported(&'static str),
    /// No such QP.
    #[error("queue pair {0:#x} does not exist")]
    Unknown(u32),
    /// The transition does not exist.
    #[error("a queue pair cannot go from {from:?} to {to:?}")]
    Transition {
        /// Present state.
        from: QpState,
        /// State asked for.
        to: QpState,
    },
    /// Attributes missing or not allowed in this transition (IBTA table "QP state transition properties").
    #[error("going from {from:?} to {to:?}{}", Lists(*.missing, *.excess))]
    Mask {
        /// Present state.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// Required mask bits that were not set.
        missing: u32,
        /// Mask bits that are not allowed here.
        excess: u32,
    },
    /// SQD, and what had started is not complete: only RESET and ERR can be reached, and nothing be changed (IBTA
    /// 10.3.1).
    #[error(
        "a queue pair in SQD cannot be modified before its send queue is drained; wait for IBV_EVENT_SQ_DRAINED"
    )]
    Draining,
    /// A value out of range.
    #[error("{name} {value} is out of range: {limit} at most")]
    Value {
        /// Attribute.
        name: &'static str,
        /// Value given.
        value: u64,
        /// Largest value allowed.
        limit: u64,
    },
}

/// What is wrong with a mask, as the end of a sentence.
struct Lists(u32, u32);

impl core::fmt::Display for Lists {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Lists(missing, excess) = *self;
        if missing != 0 {
            write!(f, " takes {}, not given", AttrNames(missing))?;
        }
        match (missing, excess) {
            (_, 0) => Ok(()),
            (0, _) => write!(f, " takes no {}", AttrNames(excess)),
            _ => write!(f, ", and no {}", AttrNames(excess)),
        }
    }
}
