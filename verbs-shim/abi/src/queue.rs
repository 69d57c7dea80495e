//! Work and completion queues as the rxe provider of rdma-core lays them out (`rdma_user_rxe.h`,
//! driver ABI 2): a header, then `index_mask + 1` elements of `1 << log2_elem_size` bytes.
//!
//! Indices always lie in `0..=index_mask`; the queue is full when `producer + 1 == consumer`.

/// Byte offset of `log2_elem_size` (u32) in the queue header.
pub const Q_LOG2_ELEM_SIZE: u64 = 0;
/// Byte offset of `index_mask` (u32).
pub const Q_INDEX_MASK: u64 = 4;
/// Byte offset of the producer index (u32).
pub const Q_PRODUCER: u64 = 128;
/// Byte offset, in a CQ's header, of how many completions were ever published (u32, wrapping). With the producer index it
/// is one aligned 8-byte word, stored at once; providers know of neither count.
pub const Q_PUBLISHED: u64 = Q_PRODUCER + 4;
/// Byte offset of the consumer index (u32).
pub const Q_CONSUMER: u64 = 256;
/// Byte offset, in a work queue's header, of how many requests were ever taken off (u32, wrapping). With the consumer
/// index it is one aligned 8-byte word, stored at once.
pub const Q_RETIRED: u64 = Q_CONSUMER + 4;
/// Byte offset of the first element.
pub const Q_DATA: u64 = 384;

/// Scatter/gather entries that a work request may have.
pub const MAX_SGE: usize = 32;
/// Inline bytes that a send work request may have.
pub const MAX_INLINE: usize = 512;
/// Work requests that a queue may hold.
pub const MAX_WR: u32 = 1 << 14;
/// Completions that a CQ may hold.
pub const MAX_CQE: u32 = 1 << 20;

/// One scatter/gather entry: `struct rxe_sge`, the same as `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address in the program.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Local key.
    pub lkey: u32,
}

/// The `wr` union of `struct rxe_send_wr`, as plain words. Which fields mean something depends on
/// the opcode; see the accessors.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SendWr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Not used.
    pub reserved: u32,
    /// `enum ibv_wr_opcode`.
    pub opcode: u32,
    /// `enum ibv_send_flags`.
    pub send_flags: u32,
    /// Immediate data as it goes on the wire (big-endian bytes), or the rkey to invalidate.
    pub imm_or_rkey: u32,
    /// The union; the words past the fourth hold a UD address vector.
    pub union: [u64; 15],
}

impl SendWr {
    /// RDMA READ/WRITE and atomics: remote virtual address.
    pub fn remote_addr(&self) -> u64 {
        self.union[0]
    }
    /// RDMA READ/WRITE: remote key.
    pub fn rdma_rkey(&self) -> u32 {
        self.union[1] as u32
    }
    /// Atomics: compare value, or the number to add.
    pub fn compare_add(&self) -> u64 {
        self.union[1]
    }
    /// Atomics: swap value.
    pub fn swap(&self) -> u64 {
        self.union[2]
    }
    /// Atomics: remote key.
    pub fn atomic_rkey(&self) -> u32 {
        self.union[3] as u32
    }
    /// FLUSH: bytes of the range.
    pub fn flush_length(&self) -> u32 {
        self.union[1] as u32
    }
    /// FLUSH: remote key.
    pub fn flush_rkey(&self) -> u32 {
        (self.union[1] >> 32) as u32
    }
    /// FLUSH: placement types, bits of `enum ibv_placement_type`.
    pub fn flush_type(&self) -> u8 {
        self.union[2] as u8
    }
    /// FLUSH: selectivity (`enum ibv_selectivity_level`).
    pub fn flush_level(&self) -> u8 {
        (self.union[2] >> 8) as u8
    }
    /// BIND_MW: bytes of the window; its first is [`SendWr::remote_addr`].
    pub fn mw_length(&self) -> u64 {
        self.union[1]
    }
    /// BIND_MW: lkey of the region.
    pub fn mw_region(&self) -> u32 {
        self.union[2] as u32
    }
    /// BIND_MW: present key of the window.
    pub fn mw_rkey(&self) -> u32 {
        (self.union[2] >> 32) as u32
    }
    /// BIND_MW: new key of the window.
    pub fn mw_new_rkey(&self) -> u32 {
        self.union[3] as u32
    }
    /// BIND_MW: rights (`enum ibv_access_flags`).
    pub fn mw_access(&self) -> u32 {
        (self.union[3] >> 32) as u32
    }
    /// UD: destination QPN.
    pub fn ud_remote_qpn(&self) -> u32 {
        self.union[0] as u32
    }
    /// UD: Q_Key.
    pub fn ud_remote_qkey(&self) -> u32 {
        (self.union[0] >> 32) as u32
    }
    /// UD: number of the address handle.
    pub fn ud_ah_num(&self) -> u32 {
        (self.union[1] >> 32) as u32
    }
}

/// `struct rxe_dma_info` without its flexible array.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DmaInfo {
    /// Total length as the provider summed it (the daemon recomputes it from the entries).
    pub length: u32,
    /// Not used by the daemon.
    pub resid: u32,
    /// Not used by the daemon.
    pub cur_sge: u32,
    /// Entries that follow.
    pub num_sge: u32,
    /// Not used by the daemon.
    pub sge_offset: u32,
    /// Not used.
    pub reserved: u32,
}

/// `struct rxe_send_wqe` up to its flexible array of SGEs or inline bytes at [`SEND_WQE_SGES`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SendWqe {
    /// The request.
    pub wr: SendWr,
    /// Not used by the daemon.
    pub status: u32,
    /// Not used by the daemon.
    pub state: u32,
    /// Not used by the daemon.
    pub iova: u64,
    /// Not used by the daemon: mask, first_psn, last_psn, ack_length, ssn, has_rd_atomic.
    pub scratch: [u32; 6],
    /// Lengths and number of entries.
    pub dma: DmaInfo,
}

/// Offset of the SGEs, or of the inline bytes, in a send WQE.
pub const SEND_WQE_SGES: u64 = 208;
/// Offset of the SGEs in a receive WQE.
pub const RECV_WQE_SGES: u64 = 40;

/// `struct rxe_recv_wqe` up to its SGEs at [`RECV_WQE_SGES`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RecvWqe {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Not used.
    pub reserved: [u32; 2],
    /// Lengths and number of entries.
    pub dma: DmaInfo,
}

/// `struct ib_uverbs_wc`, which has the layout of `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cqe {
    /// Of the work request.
    pub wr_id: u64,
    /// `enum ibv_wc_status`.
    pub status: u32,
    /// `enum ibv_wc_opcode`.
    pub opcode: u32,
    /// Vendor syndrome, mlx5's values.
    pub vendor_err: u32,
    /// Bytes received, read or fetched.
    pub byte_len: u32,
    /// Immediate data (big-endian bytes) or invalidated rkey.
    pub imm_or_rkey: u32,
    /// Local QP.
    pub qp_num: u32,
    /// Remote QP (UD).
    pub src_qp: u32,
    /// `enum ibv_wc_flags`.
    pub wc_flags: u32,
    /// P_Key index.
    pub pkey_index: u16,
    /// Zero on RoCE.
    pub slid: u16,
    /// UD receive: which headers the packet had, as ConnectX NICs tell it here.
    pub sl: u8,
    /// Zero on RoCE.
    pub dlid_path_bits: u8,
    /// Zero, as the rxe kernel driver leaves it.
    pub port_num: u8,
    /// Zero.
    pub reserved: u8,
}

/// log2 of a CQ element's size: 64 bytes, one cache line.
pub const CQE_LOG2: u32 = 6;
/// Byte offset, in a CQ element, of its [`Origin`]: behind what programs read.
pub const CQE_ORIGIN: u64 = 48;
/// Byte offset, in a CQ element, of its number: what [`Q_PUBLISHED`] becomes when it is published (u64, of which the
/// lower half counts). Written last, so an element with the next number is complete although nobody was told of it.
pub const CQE_NUMBER: u64 = 56;

/// Which work queue a completion came from, and how many requests have been taken off that queue with it. A completion
/// is written in four steps: the element, its number, the work queue's consumer index, the CQ's producer index. The
/// consumer index must come first of the two, or a program could see the completion and find no room to post; and whoever
/// finds the queues after the daemon died between the two knows by this what was about to be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Index of the QP's record (its doorbell index).
    pub qp: u32,
    /// It was a receive request.
    pub recv: bool,
    /// [`Q_RETIRED`] of that queue afterwards.
    pub retired: u32,
}

impl Origin {
    /// As it is stored.
    pub fn to_word(self) -> u64 {
        u64::from(self.retired) | u64::from(self.qp << 1 | u32::from(self.recv)) << 32
    }

    /// As it was stored.
    pub fn from_word(word: u64) -> Origin {
        let high = (word >> 32) as u32;
        Origin {
            qp: high >> 1,
            recv: high & 1 != 0,
            retired: word as u32,
        }
    }
}

const _: () = assert!(size_of::<SendWr>() == 144);
const _: () = assert!(size_of::<DmaInfo>() == 24);
const _: () = assert!(size_of::<SendWqe>() as u64 == SEND_WQE_SGES);
const _: () = assert!(size_of::<RecvWqe>() as u64 == RECV_WQE_SGES);
const _: () = assert!(size_of::<Cqe>() as u64 == CQE_ORIGIN);
const _: () = assert!(CQE_NUMBER + 8 == 1 << CQE_LOG2);
const _: () = assert!(Q_PRODUCER % 8 == 0 && Q_CONSUMER % 8 == 0);
