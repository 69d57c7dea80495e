//! What a device can do, said once: `query_device` and `query_port` report these numbers and the commands are
//! checked against the same ones.

use roceline_abi::layout::{MAX_CQS, MAX_QPS};
use roceline_abi::queue::{MAX_CQE, MAX_INLINE, MAX_SGE, MAX_WR};

/// Limits of a device and quotas of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Bytes of a memory region: the user half of an x86-64 address space with four page-table levels.
    pub max_mr_size: u64,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests in a send or receive queue.
    pub max_qp_wr: u32,
    /// Scatter/gather entries of a work request.
    pub max_sge: u32,
    /// Inline bytes of a send request. Verbs has no attribute for it; a create command beyond it is refused.
    pub max_inline: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue, so chosen that the ring with its one empty slot is a power of two.
    pub max_cqe: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Receive requests in a shared receive queue.
    pub max_srq_wr: u32,
    /// Scatter/gather entries of such a request.
    pub max_srq_sge: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Multicast groups of a device.
    pub max_mcast_grp: u32,
    /// Queue pairs attached to a multicast group.
    pub max_mcast_qp_attach: u32,
    /// Completion channels; each costs three file descriptors.
    pub max_channels: u32,
    /// READs outstanding on a QP, in either role.
    pub max_qp_rd_atom: u8,
    /// Expected delay of an ACK as `4.096 us << n`: rxe's 15 (134 ms). A software NIC may be descheduled.
    pub local_ca_ack_delay: u8,
    /// Completion vectors: one, as one lcore serves a context.
    pub comp_vectors: u32,
    /// Bytes of queue memory that the contexts of one process may have together.
    pub max_queue_bytes: u64,
    /// Memory objects that a program's regions may lie in.
    pub max_memory_objects: u32,
    /// Mappings of such objects; memory beyond them is reached through the kernel.
    pub max_mappings: u32,
    /// Memory regions of all programs together.
    pub all_mrs: u32,
    /// Connections at once: each is a thread here.
    pub max_connections: usize,
    /// Connections at once of one process.
    pub max_connections_per_process: usize,
}

impl Default for DeviceLimits {
    fn default() -> DeviceLimits {
        DeviceLimits {
            max_mr_size: 1 << 47,
            max_qp: MAX_QPS as u32,
            max_qp_wr: MAX_WR,
            max_sge: MAX_SGE as u32,
            max_inline: MAX_INLINE as u32,
            max_cq: MAX_CQS as u32,
            max_cqe: MAX_CQE - 1,
            max_srq: 1 << 16,
            // What serves many queue pairs has to hold more than the queue of one.
            max_srq_wr: 2 * MAX_WR,
            max_srq_sge: MAX_SGE as u32,
            max_mr: 1 << 20,
            max_mw: 1 << 16,
            max_pd: 1 << 15,
            max_ah: 1 << 16,
            max_mcast_grp: 8192,
            max_mcast_qp_attach: 56,
            max_channels: 1024,
            max_qp_rd_atom: 16,
            local_ca_ack_delay: 15,
            comp_vectors: 1,
            max_queue_bytes: 4 << 30,
            max_memory_objects: 1 << 12,
            max_mappings: 1 << 13,
            all_mrs: 1 << 20,
            max_connections: 4096,
            max_connections_per_process: 2048,
        }
    }
}

/// Vendor id: 24 bits of an OUI; this is the value by which software devices (rxe) say "none".
pub const VENDOR_ID: u32 = 0xff_ffff;
/// Part id: that of a ConnectX-5. perftest switches inline data off for parts that it does not know
/// (`ctx_set_max_inline` in its `perftest_parameters.c`), whatever the device says it can do.
pub const VENDOR_PART_ID: u32 = 4119;
/// Page sizes: 4 KiB and all larger powers of two.
pub const PAGE_SIZE_CAP: u64 = 0xffff_f000;
/// Longest message.
pub const MAX_MSG_SIZE: u32 = roceline_engine::verbs::MAX_MESSAGE;
/// The only port.
pub const PORT: u8 = 1;

/// The daemon's version in the form that the rxe provider prints as `fw_ver`: 16 bits each of major, minor, patch.
pub fn fw_version() -> u64 {
    let part = |text: &str| text.parse::<u64>().unwrap_or(0) & 0xffff;
    part(env!("CARGO_PKG_VERSION_MAJOR")) << 32
        | part(env!("CARGO_PKG_VERSION_MINOR")) << 16
        | part(env!("CARGO_PKG_VERSION_PATCH"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_queues_fit_a_contexts_quota() {
        let limits = DeviceLimits::default();
        assert!(
            limits
                .max_cqe
                .checked_add(1)
                .is_some_and(u32::is_power_of_two)
        );
        // One send queue of the largest size: 2^15 slots of 1 KiB.
        assert!(u64::from(limits.max_qp_wr) * 2 * 1024 < limits.max_queue_bytes);
        assert!(u64::from(limits.max_srq_wr) * 2 * 1024 < limits.max_queue_bytes);
        assert!(u64::from(limits.max_cqe) * 64 < limits.max_queue_bytes);
    }
}
