//! Commands about the device and its event channels.

use roceline_abi::control::Plain;
use roceline_engine::verbs::Mtu;

use super::abi::{
    ExQueryDevice, ExQueryDeviceTail, GetContextResp, OneWord, QueryDeviceResp, QueryPort,
    QueryPortResp,
};
use super::{Answer, Call};
use crate::addresses::GID_TABLE_LEN;
use crate::control::context::Context;
use crate::control::error::CommandError;
use crate::control::limits::{self, DeviceLimits};
use crate::control::tree::{PKEY_TABLE_LEN, PORT_CAP_FLAGS};
use crate::lcore::message::{Command, Reply};
use crate::nic::NicInfo;

/// `IB_UVERBS_DEVICE_BAD_QKEY_CNTR`: a port counts datagrams with a wrong Q_Key.
const CAP_BAD_QKEY_CNTR: u32 = 1 << 2;
/// `IB_UVERBS_DEVICE_UD_AV_PORT_ENFORCE`: an address handle names its port.
const CAP_UD_AV_PORT_ENFORCE: u32 = 1 << 6;
/// `IB_UVERBS_DEVICE_PORT_ACTIVE_EVENT`: programs hear when a port comes up.
const CAP_PORT_ACTIVE_EVENT: u32 = 1 << 10;
/// `IB_UVERBS_DEVICE_SYS_IMAGE_GUID`.
const CAP_SYS_IMAGE_GUID: u32 = 1 << 11;
/// `IB_UVERBS_DEVICE_RC_RNR_NAK_GEN`.
const CAP_RC_RNR_NAK_GEN: u32 = 1 << 12;
/// `IB_UVERBS_DEVICE_MEM_WINDOW`: windows of type 1.
const CAP_MEM_WINDOW: u32 = 1 << 17;
/// `IB_UVERBS_DEVICE_MEM_MGT_EXTENSIONS`: local and remote invalidation.
const CAP_MEM_MGT_EXTENSIONS: u32 = 1 << 21;
/// `IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2B`.
const CAP_MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
/// `IB_UVERBS_DEVICE_FLUSH_GLOBAL`, in the longer flags.
const CAP_EX_FLUSH_GLOBAL: u64 = 1 << 38;
/// `IB_UVERBS_DEVICE_ATOMIC_WRITE`, in the longer flags.
const CAP_EX_ATOMIC_WRITE: u64 = 1 << 40;
/// `IB_ATOMIC_HCA`: atomic among the operations of the device. In mapped memory atomics are so for the program's CPUs too,
/// but a program cannot choose (docs/memory.md).
const ATOMIC_HCA: u32 = 1;
/// `IB_UVERBS_PCF_IP_BASED_GIDS`, which ib_core adds for every RoCE port.
const PORT_IP_BASED_GIDS: u32 = 1 << 26;
/// `IB_UVERBS_QPF_GRH_REQUIRED`, likewise.
const PORT_GRH_REQUIRED: u8 = 1;
/// `IB_UVERBS_DEVICE_SRQ_RESIZE`.
const CAP_SRQ_RESIZE: u32 = 1 << 13;
/// `IB_PORT_DOWN`.
const STATE_DOWN: u8 = 1;
/// `IB_PORT_ACTIVE`.
const STATE_ACTIVE: u8 = 4;
/// Physical state "polling".
const PHYS_POLLING: u8 = 2;
/// Physical state "link up".
const PHYS_LINK_UP: u8 = 5;
/// 4 lanes of EDR: 100 Gb/s, as the `rate` file in the sysfs tree says.
const WIDTH_4X: u8 = 2;
const SPEED_EDR: u8 = 32;
/// `IBV_LINK_LAYER_ETHERNET`.
const LINK_ETHERNET: u8 = 2;

pub fn get_context(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    let fd = context.take_async_fd()?;
    let comp_vectors = context.limits().comp_vectors;
    let response = GetContextResp {
        async_fd: 0,
        num_comp_vectors: comp_vectors,
    };
    Ok(Answer {
        fd: Some(fd),
        ..call.answer(response.as_bytes(), &[])
    })
}

pub fn query_device(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    Ok(call.answer(
        device_response(context.nic(), context.limits()).as_bytes(),
        &[],
    ))
}

pub fn ex_query_device(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    let request: ExQueryDevice = call.request()?;
    for (field, value) in [
        ("comp_mask", request.comp_mask),
        ("reserved", request.reserved),
    ] {
        if value != 0 {
            return Err(CommandError::Field {
                command: call.name,
                field,
                value: value.into(),
            });
        }
    }
    let base = device_response(context.nic(), context.limits());
    let full = size_of::<QueryDeviceResp>() + size_of::<ExQueryDeviceTail>();
    let tail = ExQueryDeviceTail {
        response_length: call.core_out().min(full) as u32,
        device_cap_flags_ex: u64::from(base.device_cap_flags)
            | CAP_EX_FLUSH_GLOBAL
            | CAP_EX_ATOMIC_WRITE,
        ..Default::default()
    };
    Ok(call.answer(&[base.as_bytes(), tail.as_bytes()].concat(), &[]))
}

fn device_response(nic: &NicInfo, limits: &DeviceLimits) -> QueryDeviceResp {
    let rd_atom = u32::from(limits.max_qp_rd_atom);
    QueryDeviceResp {
        fw_ver: limits::fw_version(),
        node_guid: nic.node_guid,
        sys_image_guid: nic.node_guid,
        max_mr_size: limits.max_mr_size,
        page_size_cap: limits::PAGE_SIZE_CAP,
        vendor_id: limits::VENDOR_ID,
        vendor_part_id: limits::VENDOR_PART_ID,
        max_qp: limits.max_qp,
        max_qp_wr: limits.max_qp_wr,
        device_cap_flags: CAP_BAD_QKEY_CNTR
            | CAP_UD_AV_PORT_ENFORCE
            | CAP_PORT_ACTIVE_EVENT
            | CAP_SYS_IMAGE_GUID
            | CAP_RC_RNR_NAK_GEN
            | CAP_SRQ_RESIZE
            | CAP_MEM_WINDOW
            | CAP_MEM_MGT_EXTENSIONS
            | CAP_MEM_WINDOW_TYPE_2B,
        max_sge: limits.max_sge,
        max_sge_rd: limits.max_sge,
        max_cq: limits.max_cq,
        max_cqe: limits.max_cqe,
        max_mr: limits.max_mr,
        max_pd: limits.max_pd,
        max_srq: limits.max_srq,
        max_srq_wr: limits.max_srq_wr,
        max_srq_sge: limits.max_srq_sge,
        max_qp_rd_atom: rd_atom,
        max_res_rd_atom: rd_atom.saturating_mul(limits.max_qp),
        max_qp_init_rd_atom: rd_atom,
        atomic_cap: ATOMIC_HCA,
        max_mw: limits.max_mw,
        max_ah: limits.max_ah,
        max_mcast_grp: limits.max_mcast_grp,
        max_mcast_qp_attach: limits.max_mcast_qp_attach,
        max_total_mcast_qp_attach: limits
            .max_mcast_grp
            .saturating_mul(limits.max_mcast_qp_attach),
        max_pkeys: PKEY_TABLE_LEN as u16,
        local_ca_ack_delay: limits.local_ca_ack_delay,
        phys_port_cnt: 1,
        ..Default::default()
    }
}

/// The counter is 16 bits wide and stays at its end (IBTA 14.2.5.6, PortInfo).
fn qkey_violations(context: &Context) -> Result<u32, CommandError> {
    let reply = context.call(Command::Counters)?;
    let Reply::Snapshot(counted) = &reply else {
        return Err(context.unexpected("Counters", &reply));
    };
    let ours = counted
        .nics
        .iter()
        .find(|nic| nic.name == context.nic().name);
    let count = ours.map_or(0, |nic| nic.counters.rx_qkey_violations);
    Ok(count.min(0xffff) as u32)
}

pub fn query_port(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    let request: QueryPort = call.request()?;
    if request.port_num != limits::PORT {
        return Err(CommandError::Port(request.port_num));
    }
    let up = context.nic().link.is_up();
    let response = QueryPortResp {
        port_cap_flags: PORT_CAP_FLAGS | PORT_IP_BASED_GIDS,
        max_msg_sz: limits::MAX_MSG_SIZE,
        qkey_viol_cntr: qkey_violations(context)?,
        gid_tbl_len: GID_TABLE_LEN as u32,
        pkey_tbl_len: PKEY_TABLE_LEN as u16,
        state: if up { STATE_ACTIVE } else { STATE_DOWN },
        max_mtu: Mtu::M4096 as u8,
        active_mtu: context.nic().active_mtu as u8,
        max_vl_num: 1,
        active_width: WIDTH_4X,
        active_speed: SPEED_EDR,
        phys_state: if up { PHYS_LINK_UP } else { PHYS_POLLING },
        link_layer: LINK_ETHERNET,
        lid: context.nic().lid,
        // Where there are LIDs, an address vector may do without.
        flags: if context.nic().lid == 0 {
            PORT_GRH_REQUIRED
        } else {
            0
        },
        ..Default::default()
    };
    Ok(call.answer(response.as_bytes(), &[]))
}

/// The response carries the channel's handle where the shim puts the descriptor's number
/// (`roceline_abi::control`).
pub fn create_comp_channel(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    let (handle, fd) = context.new_channel()?;
    Ok(Answer {
        fd: Some(fd),
        ..call.answer(OneWord { value: handle }.as_bytes(), &[])
    })
}
