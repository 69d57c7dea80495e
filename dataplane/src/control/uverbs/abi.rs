//! Layouts of the uverbs `write()` interface, version 6, and of the rxe driver's part of it, version 2: facts of
//! `rdma/ib_user_verbs.h` and `rdma/rdma_user_rxe.h`. Requests of the plain form begin with the address of the
//! response, which only the shim uses.

use roceline_abi::control::Plain;

/// Declares a struct of the interface with its size, and proves that it has no padding.
macro_rules! plain {
    ($($(#[$doc:meta])* $name:ident, $size:literal { $($field:ident: $ty:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $(pub $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() == $size);
        const _: () = assert!(0 $(+ size_of::<$ty>())* == $size);
        // SAFETY: repr(C), integers and such structs only; the sum of the fields is the size, so there is no padding.
        unsafe impl Plain for $name {}
    )*};
}

plain! {
    /// In front of every command.
    CmdHdr, 8 { command: u32, in_words: u16, out_words: u16, }
    /// After it, in front of every extended command.
    ExCmdHdr, 16 { response: u64, provider_in_words: u16, provider_out_words: u16, reserved: u32, }

    /// A command without parameters of its own: GET_CONTEXT, QUERY_DEVICE, ALLOC_PD, CREATE_COMP_CHANNEL.
    Empty, 8 { response: u64, }
    /// Response with one number: a PD handle, a descriptor, the events of a QP.
    OneWord, 4 { value: u32, }
    /// A command that names one object: DEALLOC_PD, DEREG_MR.
    OneHandle, 4 { handle: u32, }

    /// GET_CONTEXT.
    GetContextResp, 8 { async_fd: u32, num_comp_vectors: u32, }

    /// QUERY_DEVICE.
    QueryDeviceResp, 176 {
        fw_ver: u64, node_guid: [u8; 8], sys_image_guid: [u8; 8], max_mr_size: u64, page_size_cap: u64,
        vendor_id: u32, vendor_part_id: u32, hw_ver: u32, max_qp: u32, max_qp_wr: u32,
        device_cap_flags: u32, max_sge: u32, max_sge_rd: u32, max_cq: u32, max_cqe: u32, max_mr: u32,
        max_pd: u32, max_qp_rd_atom: u32, max_ee_rd_atom: u32, max_res_rd_atom: u32,
        max_qp_init_rd_atom: u32, max_ee_init_rd_atom: u32, atomic_cap: u32, max_ee: u32, max_rdd: u32,
        max_mw: u32, max_raw_ipv6_qp: u32, max_raw_ethy_qp: u32, max_mcast_grp: u32,
        max_mcast_qp_attach: u32, max_total_mcast_qp_attach: u32, max_ah: u32, max_fmr: u32,
        max_map_per_fmr: u32, max_srq: u32, max_srq_wr: u32, max_srq_sge: u32, max_pkeys: u16,
        local_ca_ack_delay: u8, phys_port_cnt: u8, reserved: [u8; 4],
    }
    /// Extended QUERY_DEVICE.
    ExQueryDevice, 8 { comp_mask: u32, reserved: u32, }
    /// What its response has after [`QueryDeviceResp`]. All optional features are zero: absent.
    ExQueryDeviceTail, 128 {
        comp_mask: u32, response_length: u32, odp_caps: [u64; 3], timestamp_mask: u64,
        hca_core_clock: u64, device_cap_flags_ex: u64, rss_caps: [u32; 4], max_wq_type_rq: u32,
        raw_packet_caps: u32, tm_caps: [u32; 6], cq_moderation_caps: [u32; 2], max_dm_size: u64,
        xrc_odp_caps: u32, reserved: u32,
    }

    /// QUERY_PORT.
    QueryPort, 16 { response: u64, port_num: u8, reserved: [u8; 7], }
    /// QUERY_PORT.
    QueryPortResp, 40 {
        port_cap_flags: u32, max_msg_sz: u32, bad_pkey_cntr: u32, qkey_viol_cntr: u32, gid_tbl_len: u32,
        pkey_tbl_len: u16, lid: u16, sm_lid: u16, state: u8, max_mtu: u8, active_mtu: u8, lmc: u8,
        max_vl_num: u8, sm_sl: u8, subnet_timeout: u8, init_type_reply: u8, active_width: u8,
        active_speed: u8, phys_state: u8, link_layer: u8, flags: u8, reserved: u8,
    }

    /// REG_MR.
    RegMr, 40 {
        response: u64, start: u64, length: u64, hca_va: u64, pd_handle: u32, access_flags: u32,
    }
    /// REG_MR.
    RegMrResp, 12 { mr_handle: u32, lkey: u32, rkey: u32, }

    /// ALLOC_MW.
    AllocMw, 16 { response: u64, pd_handle: u32, mw_type: u8, reserved: [u8; 3], }
    /// ALLOC_MW.
    AllocMwResp, 8 { mw_handle: u32, rkey: u32, }

    /// CREATE_CQ.
    CreateCq, 32 {
        response: u64, user_handle: u64, cqe: u32, comp_vector: u32, comp_channel: i32, reserved: u32,
    }
    /// Extended CREATE_CQ.
    ExCreateCq, 32 {
        user_handle: u64, cqe: u32, comp_vector: u32, comp_channel: i32, comp_mask: u32, flags: u32,
        reserved: u32,
    }
    /// CREATE_CQ.
    CreateCqResp, 8 { cq_handle: u32, cqe: u32, }
    /// RESIZE_CQ.
    ResizeCq, 16 { response: u64, cq_handle: u32, cqe: u32, }
    /// RESIZE_CQ.
    ResizeCqResp, 8 { cqe: u32, reserved: u32, }
    /// What extended CREATE_CQ and CREATE_QP have after the plain response.
    ExTail, 8 { comp_mask: u32, response_length: u32, }
    /// REQ_NOTIFY_CQ.
    ReqNotify, 8 { cq_handle: u32, solicited_only: u32, }
    /// DESTROY_CQ and DESTROY_QP.
    Destroy, 16 { response: u64, handle: u32, reserved: u32, }
    /// DESTROY_CQ.
    DestroyCqResp, 8 { comp_events_reported: u32, async_events_reported: u32, }

    /// What CREATE_QP and its extended form have in common.
    QpParams, 48 {
        user_handle: u64, pd_handle: u32, send_cq_handle: u32, recv_cq_handle: u32, srq_handle: u32,
        max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32, max_inline_data: u32,
        sq_sig_all: u8, qp_type: u8, is_srq: u8, reserved: u8,
    }
    /// CREATE_QP.
    CreateQp, 56 { response: u64, params: QpParams, }
    /// Extended CREATE_QP.
    ExCreateQp, 64 {
        params: QpParams, comp_mask: u32, create_flags: u32, rwq_ind_tbl_handle: u32, source_qpn: u32,
    }
    /// CREATE_QP.
    CreateQpResp, 32 {
        qp_handle: u32, qpn: u32, max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32,
        max_recv_sge: u32, max_inline_data: u32, reserved: u32,
    }

    /// An address vector in MODIFY_QP and QUERY_QP.
    QpDest, 32 {
        dgid: [u8; 16], flow_label: u32, dlid: u16, reserved: u16, sgid_index: u8, hop_limit: u8,
        traffic_class: u8, sl: u8, src_path_bits: u8, static_rate: u8, is_global: u8, port_num: u8,
    }
    /// CREATE_AH: the address vector is one of `struct ib_uverbs_ah_attr`, in another order than [`QpDest`].
    CreateAh, 56 {
        response: u64, user_handle: u64, pd_handle: u32, reserved: u32, dgid: [u8; 16], flow_label: u32,
        sgid_index: u8, hop_limit: u8, traffic_class: u8, grh_reserved: u8, dlid: u16, sl: u8,
        src_path_bits: u8, static_rate: u8, is_global: u8, port_num: u8, attr_reserved: u8,
    }
    /// CREATE_AH.
    CreateAhResp, 4 { ah_handle: u32, }
    /// ATTACH_MCAST and DETACH_MCAST.
    Mcast, 24 { gid: [u8; 16], qp_handle: u32, mlid: u16, reserved: u16, }
    /// MODIFY_QP.
    ModifyQp, 112 {
        dest: QpDest, alt_dest: QpDest, qp_handle: u32, attr_mask: u32, qkey: u32, rq_psn: u32,
        sq_psn: u32, dest_qp_num: u32, qp_access_flags: u32, pkey_index: u16, alt_pkey_index: u16,
        qp_state: u8, cur_qp_state: u8, path_mtu: u8, path_mig_state: u8, en_sqd_async_notify: u8,
        max_rd_atomic: u8, max_dest_rd_atomic: u8, min_rnr_timer: u8, port_num: u8, timeout: u8,
        retry_cnt: u8, rnr_retry: u8, alt_port_num: u8, alt_timeout: u8, reserved: [u8; 2],
    }
    /// Extended MODIFY_QP.
    ExModifyQp, 120 { base: ModifyQp, rate_limit: u32, reserved: u32, }
    /// QUERY_QP.
    QueryQp, 16 { response: u64, qp_handle: u32, attr_mask: u32, }
    /// QUERY_QP.
    QueryQpResp, 128 {
        dest: QpDest, alt_dest: QpDest, max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32,
        max_recv_sge: u32, max_inline_data: u32, qkey: u32, rq_psn: u32, sq_psn: u32, dest_qp_num: u32,
        qp_access_flags: u32, pkey_index: u16, alt_pkey_index: u16, qp_state: u8, cur_qp_state: u8,
        path_mtu: u8, path_mig_state: u8, sq_draining: u8, max_rd_atomic: u8, max_dest_rd_atomic: u8,
        min_rnr_timer: u8, port_num: u8, timeout: u8, retry_cnt: u8, rnr_retry: u8, alt_port_num: u8,
        alt_timeout: u8, sq_sig_all: u8, reserved: [u8; 5],
    }

    /// CREATE_SRQ.
    CreateSrq, 32 {
        response: u64, user_handle: u64, pd_handle: u32, max_wr: u32, max_sge: u32, srq_limit: u32,
    }
    /// CREATE_XSRQ.
    CreateXsrq, 48 {
        response: u64, user_handle: u64, srq_type: u32, pd_handle: u32, max_wr: u32, max_sge: u32,
        srq_limit: u32, max_num_tags: u32, xrcd_handle: u32, cq_handle: u32,
    }
    /// CREATE_SRQ and CREATE_XSRQ.
    CreateSrqResp, 16 { srq_handle: u32, max_wr: u32, max_sge: u32, srqn: u32, }
    /// MODIFY_SRQ, with rxe's part: where the provider wants to read what to give to `mmap`.
    ModifySrq, 24 { srq_handle: u32, attr_mask: u32, max_wr: u32, srq_limit: u32, mmap_info_addr: u64, }
    /// QUERY_SRQ.
    QuerySrq, 16 { response: u64, srq_handle: u32, reserved: u32, }
    /// QUERY_SRQ.
    QuerySrqResp, 16 { max_wr: u32, max_sge: u32, srq_limit: u32, reserved: u32, }

    /// rxe's answer to CREATE_CQ and RESIZE_CQ, and each half of that to CREATE_QP: what to give to `mmap`.
    MmapInfo, 16 { offset: u64, size: u32, pad: u32, }
    /// rxe's answer to CREATE_QP.
    QpMmapInfo, 32 { rq: MmapInfo, sq: MmapInfo, }
    /// rxe's answer to CREATE_SRQ.
    SrqMmapInfo, 24 { queue: MmapInfo, srq_num: u32, reserved: u32, }
}

/// `IB_USER_VERBS_CMD_FLAG_EXTENDED`.
pub const FLAG_EXTENDED: u32 = 0x8000_0000;
/// `IB_USER_VERBS_CMD_COMMAND_MASK`.
pub const COMMAND_MASK: u32 = 0xff;
