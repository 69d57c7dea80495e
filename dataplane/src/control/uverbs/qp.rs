//! Queue pairs: sizes rounded as the rxe driver rounds them. Attributes of MODIFY_QP are [`super::qp_attr`]'s.

use roceline_abi::control::Plain;
use roceline_abi::layout::QP_SLOT_SHIFT;
use roceline_abi::objects::{Place, QpRecord};
use roceline_abi::queue::{RECV_WQE_SGES, SEND_WQE_SGES, Sge};
use roceline_engine::verbs::{QpAttr, QpInit, QpState, QpType, SrqRef, mask};
use roceline_engine::wire::Gid;

use super::abi::{
    CreateQp, CreateQpResp, Destroy, ExCreateQp, ExModifyQp, ExTail, MmapInfo, ModifyQp, OneWord,
    QpDest, QpMmapInfo, QpParams, QueryQp, QueryQpResp,
};
use super::cq::mmap_info;
use super::{Answer, Call, qp_attr};
use crate::control::context::{Context, QpQueues};
use crate::control::error::CommandError;
use crate::control::limits::DeviceLimits;
use crate::control::queue_memory::{Queue, Shape};
use crate::control::quota::Resource;
use crate::lcore::message::{Command, Reply};

/// The bits before RATE_LIMIT: `IB_QP_ATTR_STANDARD_BITS`.
const STANDARD_BITS: u32 = (1 << 21) - 1;
const SGE_BYTES: u32 = size_of::<Sge>() as u32;

pub fn create_qp(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    let request: CreateQp = call.request()?;
    let (response, mmap) = new_qp(context, call, &request.params)?;
    Ok(call.answer(response.as_bytes(), mmap.as_bytes()))
}

pub fn ex_create_qp(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    let request: ExCreateQp = call.request()?;
    if request.comp_mask != 0 {
        return Err(CommandError::Unsupported(
            "a QP with a receive indirection table (RSS)",
        ));
    }
    if request.create_flags != 0 {
        return Err(CommandError::Unsupported("a QP with create flags"));
    }
    let (response, mmap) = new_qp(context, call, &request.params)?;
    let size = size_of::<CreateQpResp>() + size_of::<ExTail>();
    let tail = ExTail {
        comp_mask: 0,
        response_length: size as u32,
    };
    Ok(call.answer(
        &[response.as_bytes(), tail.as_bytes()].concat(),
        mmap.as_bytes(),
    ))
}

/// `enum ibv_qp_type`.
fn qp_type(number: u8) -> Result<QpType, CommandError> {
    match number {
        2 => Ok(QpType::Rc),
        3 => Ok(QpType::Uc),
        4 => Ok(QpType::Ud),
        8 => Err(CommandError::QpType("raw packet")),
        9 | 10 => Err(CommandError::QpType("XRC")),
        _ => Err(CommandError::Limit {
            name: "qp_type",
            value: number.into(),
            limit: 10,
        }),
    }
}

/// Sizes of a QP's queues, and what the program is told of them.
struct Sizes {
    sq: Shape,
    rq: Shape,
    max_send_sge: u32,
    max_inline: u32,
}

/// rxe's rule (`rxe_qp_init_sq`, `rxe_qp_init_rq`): SGEs and inline bytes share the space behind the WQE's header,
/// so who has room for one has it for the other, and both are reported. More inline space than was asked for would
/// double the stride.
fn sizes(params: &QpParams, limits: &DeviceLimits) -> Result<Sizes, CommandError> {
    for (name, value, limit) in [
        ("max_send_wr", params.max_send_wr, limits.max_qp_wr),
        ("max_recv_wr", params.max_recv_wr, limits.max_qp_wr),
        ("max_send_sge", params.max_send_sge, limits.max_sge),
        ("max_recv_sge", params.max_recv_sge, limits.max_sge),
        ("max_inline_data", params.max_inline_data, limits.max_inline),
    ] {
        if value > limit {
            return Err(CommandError::Limit {
                name,
                value: value.into(),
                limit: limit.into(),
            });
        }
    }
    let space = (params.max_send_sge * SGE_BYTES).max(params.max_inline_data);
    let recv = u64::from(params.max_recv_sge * SGE_BYTES);
    Ok(Sizes {
        sq: Shape::new(params.max_send_wr, SEND_WQE_SGES + u64::from(space)),
        rq: Shape::new(params.max_recv_wr, RECV_WQE_SGES + recv),
        max_send_sge: space / SGE_BYTES,
        max_inline: space,
    })
}

fn new_qp(
    context: &mut Context,
    call: &Call<'_>,
    params: &QpParams,
) -> Result<(CreateQpResp, QpMmapInfo), CommandError> {
    context.ready()?;
    let limits = *context.limits();
    call.need_driver_out(size_of::<QpMmapInfo>())?;
    let qp_type = qp_type(params.qp_type)?;
    let pd = context.pd(params.pd_handle)?;
    let send_cq = context.cq(params.send_cq_handle)?;
    let recv_cq = context.cq(params.recv_cq_handle)?;
    // A QP with a shared queue has no receive queue, whatever size it asks for (rxe, mlx5).
    let srq = match params.is_srq {
        0 => None,
        _ => Some(context.srq(params.srq_handle)?),
    };
    let mut params = *params;
    if srq.is_some() {
        params.max_recv_wr = 0;
        params.max_recv_sge = 0;
    }
    let sizes = sizes(&params, &limits)?;
    let charge = context.charge(Resource::Qps, 1)?;
    // In the order in which rdma-core's rxe provider maps them, so that a program's mappings join (`queue_memory`): the
    // receive queue first, which it maps even when it was asked for with no entries.
    let rq = match srq {
        Some(_) => None,
        None => Some(context.queues.alloc(&context.file, sizes.rq)?),
    };
    let sq = match context.queues.alloc(&context.file, sizes.sq) {
        Ok(sq) => sq,
        Err(error) => {
            if let Some(rq) = rq {
                context.queues.free(&context.file, rq);
            }
            return Err(error);
        }
    };
    let init = QpInit {
        qp_type,
        pd,
        send_cq,
        recv_cq,
        sq_sig_all: params.sq_sig_all != 0,
        max_send_wr: sq.entries(),
        max_send_sge: sizes.max_send_sge,
        max_recv_sge: params.max_recv_sge,
        max_inline: sizes.max_inline,
        // The owner knows its PD.
        srq: srq.map(|number| SrqRef { number, pd: 0 }),
    };
    let max_recv_wr = rq.as_ref().map_or(0, Queue::entries);
    let command = Command::CreateQp {
        init,
        sq: sq.loc(),
        rq: rq.as_ref().map(Queue::loc),
        max_recv_wr,
        user_handle: params.user_handle,
    };
    let reply = context.call(command).and_then(|reply| match reply {
        Reply::Qp { handle, qpn } => Ok((handle, qpn)),
        other => Err(context.unexpected("CreateQp", &other)),
    });
    let (handle, qpn) = match reply {
        Ok(created) => created,
        Err(error) => {
            context.free_after(&error, [Some(sq), rq].into_iter().flatten());
            return Err(error);
        }
    };
    let record = QpRecord {
        qpn,
        send_cq,
        recv_cq,
        sq: sq.place(),
        rq: rq.as_ref().map_or(Place::default(), Queue::place),
    };
    record.publish(&context.file.view(), doorbell_index(handle));
    let response = CreateQpResp {
        qp_handle: handle,
        qpn,
        max_send_wr: init.max_send_wr,
        max_recv_wr,
        max_send_sge: init.max_send_sge,
        max_recv_sge: init.max_recv_sge,
        max_inline_data: init.max_inline,
        reserved: 0,
    };
    let mmap = QpMmapInfo {
        rq: rq.as_ref().map_or(MmapInfo::default(), mmap_info),
        sq: mmap_info(&sq),
    };
    context.qps.insert(handle, QpQueues { qpn, sq, rq });
    charge.keep();
    Ok((response, mmap))
}

fn doorbell_index(handle: u32) -> u32 {
    handle & ((1 << QP_SLOT_SHIFT) - 1)
}

pub fn destroy_qp(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    let qp = context.qp(call.request::<Destroy>()?.handle)?;
    match context.call(Command::DestroyQp { qp })? {
        Reply::Events { asynchronous, .. } => {
            QpRecord::withdraw(&context.file.view(), doorbell_index(qp));
            if let Some(QpQueues { sq, rq, .. }) = context.qps.remove(&qp) {
                context.account.give(Resource::Qps, 1);
                for queue in [Some(sq), rq].into_iter().flatten() {
                    context.queues.free(&context.file, queue);
                }
            }
            Ok(call.answer(
                OneWord {
                    value: asynchronous,
                }
                .as_bytes(),
                &[],
            ))
        }
        other => Err(context.unexpected("DestroyQp", &other)),
    }
}

pub fn modify_qp(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    connect(context, &call.request::<ModifyQp>()?)?;
    Ok(Answer::default())
}

pub fn ex_modify_qp(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    let request: ExModifyQp = call.request()?;
    connect(context, &request.base)?;
    let response = ExTail {
        comp_mask: 0,
        response_length: size_of::<ExTail>() as u32,
    };
    Ok(call.answer(response.as_bytes(), &[]))
}

/// Why a queue pair does not get to RTR or RTS is kept, since the program only gets an errno.
fn connect(context: &mut Context, request: &ModifyQp) -> Result<(), CommandError> {
    let result = modify(context, request);
    let names_state = request.attr_mask & mask::STATE != 0;
    let to = match QpState::from_raw(request.qp_state.into()) {
        Some(QpState::Rtr) if names_state => "RTR",
        Some(QpState::Rts) if names_state => "RTS",
        _ => return result,
    };
    if let Err(error) = &result {
        context.keep_refusal(request.qp_handle, to, error);
    }
    result
}

fn modify(context: &mut Context, request: &ModifyQp) -> Result<(), CommandError> {
    context.ready()?;
    let qp = context.qp(request.qp_handle)?;
    let attr_mask = request.attr_mask;
    if attr_mask & mask::RATE_LIMIT != 0 {
        return Err(CommandError::Unsupported("a rate limit on a QP"));
    }
    if attr_mask & !STANDARD_BITS != 0 {
        return Err(CommandError::Unsupported(
            "an attribute mask with unknown bits",
        ));
    }
    if attr_mask & mask::ALT_PATH != 0 {
        return Err(CommandError::Unsupported("an alternate path (APM)"));
    }
    let attr = qp_attr::decode(context, request)?;
    if attr_mask & mask::CUR_STATE != 0 {
        check_current_state(context, qp, request.cur_qp_state.into())?;
    }
    context.done(Command::ModifyQp {
        qp,
        attr: Box::new(attr),
        mask: attr_mask,
    })
}

/// The program says in which state it believes the QP to be (IBTA 11.2.5.2, "current QP state").
fn check_current_state(context: &Context, qp: u32, claimed: u32) -> Result<(), CommandError> {
    let claimed_state = QpState::from_raw(claimed).ok_or(CommandError::QpState(claimed))?;
    let (attr, ..) = state_of(context, qp)?;
    if attr.state != claimed_state {
        return Err(CommandError::CurrentState {
            qp,
            state: attr.state,
            claimed: claimed_state,
        });
    }
    Ok(())
}

fn state_of(context: &Context, qp: u32) -> Result<(QpAttr, QpInit, u32), CommandError> {
    match context.call(Command::QueryQp { qp })? {
        Reply::QpState {
            attr,
            init,
            max_recv_wr,
        } => Ok((*attr, *init, max_recv_wr)),
        other => Err(context.unexpected("QueryQp", &other)),
    }
}

pub fn query_qp(context: &mut Context, call: &Call<'_>) -> Result<Answer, CommandError> {
    context.ready()?;
    let qp = context.qp(call.request::<QueryQp>()?.qp_handle)?;
    let (attr, init, max_recv_wr) = state_of(context, qp)?;
    let path = &attr.path;
    let response = QueryQpResp {
        dest: QpDest {
            dgid: path.dgid.0,
            flow_label: path.flow_label,
            sgid_index: path.sgid_index,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            sl: path.sl,
            is_global: u8::from(path.dgid != Gid::default()),
            port_num: attr.port,
            ..Default::default()
        },
        max_send_wr: init.max_send_wr,
        max_recv_wr,
        max_send_sge: init.max_send_sge,
        max_recv_sge: init.max_recv_sge,
        max_inline_data: init.max_inline,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn.get(),
        sq_psn: attr.sq_psn.get(),
        dest_qp_num: attr.dest_qpn,
        qp_access_flags: attr.access.0,
        pkey_index: attr.pkey_index,
        qp_state: attr.state as u8,
        cur_qp_state: attr.state as u8,
        path_mtu: attr.path_mtu as u8,
        sq_draining: u8::from(attr.sq_draining),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        sq_sig_all: u8::from(init.sq_sig_all),
        ..Default::default()
    };
    Ok(call.answer(response.as_bytes(), &[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(wr: u32, sge: u32, inline: u32) -> QpParams {
        QpParams {
            max_send_wr: wr,
            max_recv_wr: wr,
            max_send_sge: sge,
            max_recv_sge: sge,
            max_inline_data: inline,
            ..Default::default()
        }
    }

    #[test]
    fn sizes_are_rounded_as_the_rxe_driver_rounds_them() {
        let limits = DeviceLimits::default();
        for (sge, inline, sges, bytes, stride) in [
            (1, 0, 1, 16, 256),
            (1, 48, 3, 48, 256),
            (1, 49, 3, 49, 512),
            (0, 0, 0, 0, 256),
            (32, 0, 32, 512, 1024),
            (1, 512, 32, 512, 1024),
            (2, 20, 2, 32, 256),
        ] {
            let s = sizes(&params(100, sge, inline), &limits).unwrap();
            assert_eq!(
                (s.max_send_sge, s.max_inline),
                (sges, bytes),
                "{sge} {inline}"
            );
            assert_eq!(s.sq, Shape::new(100, stride));
            assert_eq!(s.sq.entries(), 127);
        }
        let s = sizes(&params(0, 1, 0), &limits).unwrap();
        assert_eq!((s.rq, s.rq.entries()), (Shape::new(0, 64), 1));
    }

    #[test]
    fn what_the_device_does_not_report_it_does_not_give() {
        let limits = DeviceLimits::default();
        for bad in [
            params(limits.max_qp_wr + 1, 1, 0),
            params(1, 33, 0),
            params(1, 1, 513),
        ] {
            assert_eq!(sizes(&bad, &limits).err().unwrap().errno(), libc::EINVAL);
        }
        assert!(sizes(&params(limits.max_qp_wr, 32, 512), &limits).is_ok());
        assert!(sizes(&params(u32::MAX, u32::MAX, u32::MAX), &limits).is_err());
    }

    #[test]
    fn rc_uc_and_ud_are_supported() {
        assert_eq!(qp_type(2).unwrap(), QpType::Rc);
        assert_eq!(qp_type(3).unwrap(), QpType::Uc);
        assert_eq!(qp_type(4).unwrap(), QpType::Ud);
        for number in [8, 9, 10] {
            assert_eq!(qp_type(number).unwrap_err().errno(), libc::EOPNOTSUPP);
        }
        for number in [0, 1, 5, 7, 11, 255] {
            assert_eq!(qp_type(number).unwrap_err().errno(), libc::EINVAL);
        }
    }
}
