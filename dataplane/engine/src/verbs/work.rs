//! Work requests in, completions and events out.

pub use roceline_abi::queue::{MAX_INLINE, MAX_SGE, Sge};

use super::attr::QpId;

/// Longest message: 2^31 bytes (IBTA 9.3.3). At a path MTU of 256 it takes half of the PSN space, the most that may be
/// outstanding.
pub const MAX_MESSAGE: u32 = 1 << 31;

/// What a send work request asks for (`enum ibv_wr_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WrOpcode {
    /// RDMA WRITE.
    Write = 0,
    /// RDMA WRITE with immediate data.
    WriteImm = 1,
    /// SEND.
    Send = 2,
    /// SEND with immediate data.
    SendImm = 3,
    /// RDMA READ.
    Read = 4,
    /// Compare and swap.
    CmpSwap = 5,
    /// Fetch and add.
    FetchAdd = 6,
    /// Invalidate a local key.
    LocalInv = 7,
    /// Bind a memory window.
    BindMw = 8,
    /// SEND with invalidate.
    SendInv = 9,
    /// Wait until what was written before is visible at the peer.
    Flush = 14,
    /// Write of 8 bytes at once.
    AtomicWrite = 15,
}

impl WrOpcode {
    /// The opcode with this number, if a send queue can hold it.
    pub const fn from_raw(v: u32) -> Option<WrOpcode> {
        use WrOpcode::*;
        Some(match v {
            0 => Write,
            1 => WriteImm,
            2 => Send,
            3 => SendImm,
            4 => Read,
            5 => CmpSwap,
            6 => FetchAdd,
            7 => LocalInv,
            8 => BindMw,
            9 => SendInv,
            14 => Flush,
            15 => AtomicWrite,
            _ => return None,
        })
    }

    /// Answered by a response of its own, and by nothing else acknowledged: READ, atomics, ATOMIC WRITE, FLUSH. Each
    /// takes one of `max_rd_atomic` (IBTA 9.7.7.1 for READs and atomics, A19.4 for the others).
    #[inline]
    pub const fn is_answered(self) -> bool {
        use WrOpcode::*;
        matches!(self, Read | CmpSwap | FetchAdd | Flush | AtomicWrite)
    }

    /// Compare and swap, or fetch and add.
    #[inline]
    pub const fn is_atomic(self) -> bool {
        matches!(self, WrOpcode::CmpSwap | WrOpcode::FetchAdd)
    }

    /// Carried out at this end alone.
    #[inline]
    pub const fn is_local(self) -> bool {
        matches!(self, WrOpcode::LocalInv | WrOpcode::BindMw)
    }
}

/// A send work request, copied from the program's queue once. The engine checks it; its lengths were
/// recomputed from the entries by whoever copied it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// `None`: a number that is no opcode. It completes with an error in its turn.
    pub opcode: Option<WrOpcode>,
    /// A completion is wanted.
    pub signaled: bool,
    /// The receiver's completion is solicited.
    pub solicited: bool,
    /// Wait for outstanding READs and atomics first.
    pub fence: bool,
    /// Payload is in the queue slot itself.
    pub inline: bool,
    /// Number of entries given beside this struct (0 when inline). More than the QP allows is an error in turn.
    pub num_sge: u32,
    /// Slot of the WQE in the send queue; comes back in [`crate::Payload::Inline`].
    pub slot: u32,
    /// Payload bytes: sum of the entries, or inline bytes; FLUSH: bytes of the range. More than [`MAX_MESSAGE`] is an
    /// error in its turn.
    pub length: u64,
    /// Immediate data (wire bytes in memory order); the key to invalidate; BIND_MW: the window's present key; FLUSH: the
    /// FETH ([`crate::wire::Feth`]).
    pub imm_or_rkey: u32,
    /// Remote key. BIND_MW: the window's new key.
    pub rkey: u32,
    /// Remote address. BIND_MW: first byte of the window, as its region names it.
    pub remote_addr: u64,
    /// Atomics: compare value or number to add. BIND_MW: bytes of the window.
    pub compare_add: u64,
    /// Atomics: swap value. BIND_MW: the region's lkey in the low half, rights in the high one.
    pub swap: u64,
    /// UD: number of the address handle.
    pub ah: u32,
    /// UD: destination QPN.
    pub dest_qpn: u32,
    /// UD: Q_Key, or with the top bit set: that of the QP.
    pub qkey: u32,
}

/// A receive work request, copied from the program's queue once.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Entries in use; more than [`MAX_SGE`] is an error in its turn.
    pub num_sge: u32,
    /// The entries.
    pub sges: [Sge; MAX_SGE],
}

impl RecvWr {
    /// An empty request, to be overwritten.
    pub const fn empty() -> RecvWr {
        RecvWr {
            wr_id: 0,
            num_sge: 0,
            sges: [Sge {
                addr: 0,
                length: 0,
                lkey: 0,
            }; MAX_SGE],
        }
    }
}

/// Where the responder takes receive work requests from. Implemented over shared memory by the poll
/// loop, over plain queues by tests.
pub trait RecvQueues {
    /// Takes the oldest receive work request of the QP's receive queue (or SRQ) into `wr`; false if there is none.
    fn take(&mut self, qp: QpId, wr: &mut RecvWr) -> bool;
}

/// `enum ibv_wc_status`.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WcStatus {
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocEecOpErr = 3,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    GeneralErr = 21,
}

impl WcStatus {
    /// The status with this number.
    pub const fn from_raw(v: u32) -> Option<WcStatus> {
        use WcStatus::*;
        Some(match v {
            0 => Success,
            1 => LocLenErr,
            2 => LocQpOpErr,
            3 => LocEecOpErr,
            4 => LocProtErr,
            5 => WrFlushErr,
            6 => MwBindErr,
            7 => BadRespErr,
            8 => LocAccessErr,
            9 => RemInvReqErr,
            10 => RemAccessErr,
            11 => RemOpErr,
            12 => RetryExcErr,
            13 => RnrRetryExcErr,
            21 => GeneralErr,
            _ => return None,
        })
    }

    /// `vendor_err` of a completion with this status, as users see it from mlx5: logs of users name 0x51 (linux-rdma/perftest
    /// issue 173), 0x68 (openucx/ucx issue 1151), 0x81 (openucx/ucx pull request 6871), 0x89 (openucx/ucx issue 5472), 0x8a
    /// (charmplusplus/charm issue 2532), 0x8e (kvcache-ai/Mooncake issue 3299) and 0xf9 (linux-nvme/nvme-cli issue 3268).
    /// Where no value is known, the CQE syndrome of `enum mlx5_cqe_syndrome`.
    pub const fn vendor_err(self) -> u32 {
        match self {
            WcStatus::LocLenErr => 0x8e,
            WcStatus::LocQpOpErr => 0x68,
            WcStatus::LocProtErr => 0x51,
            WcStatus::WrFlushErr => 0xf9,
            WcStatus::MwBindErr => 0x06,
            WcStatus::BadRespErr => 0x10,
            WcStatus::LocAccessErr => 0x11,
            WcStatus::RemInvReqErr => 0x8a,
            WcStatus::RemAccessErr => 0x88,
            WcStatus::RemOpErr => 0x89,
            WcStatus::RetryExcErr => 0x81,
            WcStatus::RnrRetryExcErr => 0x87,
            _ => 0,
        }
    }

    /// The name without `IBV_WC_`.
    pub const fn name(self) -> &'static str {
        match self {
            WcStatus::Success => "SUCCESS",
            WcStatus::LocLenErr => "LOC_LEN_ERR",
            WcStatus::LocQpOpErr => "LOC_QP_OP_ERR",
            WcStatus::LocEecOpErr => "LOC_EEC_OP_ERR",
            WcStatus::LocProtErr => "LOC_PROT_ERR",
            WcStatus::WrFlushErr => "WR_FLUSH_ERR",
            WcStatus::MwBindErr => "MW_BIND_ERR",
            WcStatus::BadRespErr => "BAD_RESP_ERR",
            WcStatus::LocAccessErr => "LOC_ACCESS_ERR",
            WcStatus::RemInvReqErr => "REM_INV_REQ_ERR",
            WcStatus::RemAccessErr => "REM_ACCESS_ERR",
            WcStatus::RemOpErr => "REM_OP_ERR",
            WcStatus::RetryExcErr => "RETRY_EXC_ERR",
            WcStatus::RnrRetryExcErr => "RNR_RETRY_EXC_ERR",
            WcStatus::GeneralErr => "GENERAL_ERR",
        }
    }
}

/// `enum ibv_wc_opcode`.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WcOpcode {
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvRdmaWithImm = 129,
}

/// `IBV_WC_WITH_IMM`.
pub const WC_WITH_IMM: u32 = 2;
/// Where a service level would be, ConnectX NICs tell which headers a datagram had, as IBTA A17.4.5.1 wants it told: bit 3 for
/// UDP, then 2 for IPv4 and 1 for IPv6. UCX takes datagrams by it.
pub const SL_IPV4: u8 = 0xa;
/// The same for IPv6.
pub const SL_IPV6: u8 = 0x9;
/// `IBV_WC_GRH`.
pub const WC_GRH: u32 = 1;
/// `IBV_WC_WITH_INV`.
pub const WC_WITH_INV: u32 = 8;

/// A work request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The QP (its number is the `qp_num` of the CQE).
    pub qp: QpId,
    /// The CQ (the caller's number).
    pub cq: u32,
    /// True for a receive request; it then consumed one receive WQE.
    pub recv: bool,
    /// Send only: slots of the send queue that are free with this completion, its own included.
    pub retire: u32,
    /// Of the request.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes received or read.
    pub byte_len: u32,
    /// `IBV_WC_*` flags.
    pub flags: u32,
    /// Immediate data (wire bytes in memory order) or invalidated key, as `flags` say.
    pub imm_or_rkey: u32,
    /// UD receive: QPN of the sender.
    pub src_qp: u32,
    /// UD receive: [`SL_IPV4`] or [`SL_IPV6`].
    pub sl: u8,
    /// The message had its SE bit set (receive), so a solicited-only channel fires. Errors fire always.
    pub solicited: bool,
}

/// `enum ibv_event_type`: what the engine and the port report.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AsyncKind {
    CqErr = 0,
    QpFatal = 1,
    QpReqErr = 2,
    QpAccessErr = 3,
    CommEst = 4,
    SqDrained = 5,
    PortActive = 9,
    PortErr = 10,
    SrqErr = 14,
    SrqLimitReached = 15,
    QpLastWqeReached = 16,
    GidChange = 18,
}

impl AsyncKind {
    /// The name without `IBV_EVENT_`.
    pub const fn name(self) -> &'static str {
        match self {
            AsyncKind::CqErr => "CQ_ERR",
            AsyncKind::QpFatal => "QP_FATAL",
            AsyncKind::QpReqErr => "QP_REQ_ERR",
            AsyncKind::QpAccessErr => "QP_ACCESS_ERR",
            AsyncKind::CommEst => "COMM_EST",
            AsyncKind::SqDrained => "SQ_DRAINED",
            AsyncKind::PortActive => "PORT_ACTIVE",
            AsyncKind::PortErr => "PORT_ERR",
            AsyncKind::SrqErr => "SRQ_ERR",
            AsyncKind::SrqLimitReached => "SRQ_LIMIT_REACHED",
            AsyncKind::QpLastWqeReached => "QP_LAST_WQE_REACHED",
            AsyncKind::GidChange => "GID_CHANGE",
        }
    }
}

/// What came out, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A completion to be written to its CQ.
    Completion(Completion),
    /// Send slots became free without a completion (unsignalled requests).
    Retired {
        /// The QP.
        qp: QpId,
        /// How many, oldest first.
        count: u32,
    },
    /// An asynchronous event of a QP.
    Async {
        /// The QP.
        qp: QpId,
        /// Which.
        kind: AsyncKind,
    },
}
