//! Attributes of MODIFY_QP: in range as ib_core and rxe check them, and the path to the peer resolved. Whether a
//! transition is allowed is the engine's business.

use roceline_engine::memory::Access;
use roceline_engine::verbs::{Mtu, Path, QpAttr, QpState, mask};
use roceline_engine::wire::{Gid, Psn};

use super::abi::{ModifyQp, QpDest};
use super::lid;
use crate::addresses::Table;
use crate::control::context::Context;
use crate::control::error::CommandError;
use crate::control::limits;
use crate::lcore::multicast;
use crate::nic::NicInfo;

/// Hop limit of every packet: the kernel's default, which ib_core takes from the route and puts in place of the
/// program's (`ib_resolve_unicast_gid_dmac`). ibv_rc_pingpong asks for 1, perftest for 255.
const HOP_LIMIT: u8 = 64;
/// Q_Keys with this bit are for the privileged (IBTA 10.2.5; Linux `ib_uverbs_modify_qp`).
const PRIVILEGED_QKEY: u32 = 1 << 31;
/// Flags of regions without a meaning for queue pairs: binding of windows, zero base, on-demand paging, huge pages, relaxed
/// ordering and other options (`enum ib_access_flags`).
const ACCESS_OF_REGIONS: u32 = 0xf0 | 0x3ff0_0000;
/// The attributes that the mask names, in range; all others keep their defaults and mean nothing.
pub fn decode(context: &Context, request: &ModifyQp) -> Result<QpAttr, CommandError> {
    let mut attr = QpAttr::default();
    let set = |bit: u32| request.attr_mask & bit != 0;
    let within = |name, value: u8, limit: u8| {
        if value > limit {
            return Err(CommandError::Limit {
                name,
                value: value.into(),
                limit: limit.into(),
            });
        }
        Ok(value)
    };
    if set(mask::STATE) {
        let state = u32::from(request.qp_state);
        attr.state = QpState::from_raw(state).ok_or(CommandError::QpState(state))?;
    }
    if set(mask::EN_SQD_ASYNC_NOTIFY) {
        attr.sqd_async_notify = request.en_sqd_async_notify != 0;
    }
    if set(mask::ACCESS_FLAGS) {
        // A QP's rights are the remote ones; local write is often given along and means nothing.
        let rights = 0xf | Access::FLUSH_GLOBAL.0 | Access::FLUSH_PERSISTENT.0;
        attr.access = Access(request.qp_access_flags & rights);
        // Linux drops the others without a word, mlx5 and rxe alike; those of regions are often given along.
        let strange = request.qp_access_flags & !(rights | ACCESS_OF_REGIONS);
        if strange != 0 {
            context.warn(format_args!(
                "modify_qp: qp_access_flags {:#x} have bits that mean nothing ({strange:#x}) and are ignored",
                request.qp_access_flags
            ));
        }
    }
    if set(mask::PKEY_INDEX) {
        if request.pkey_index != 0 {
            let value = request.pkey_index.into();
            return Err(CommandError::Limit {
                name: "pkey_index",
                value,
                limit: 0,
            });
        }
        attr.pkey_index = 0;
    }
    if set(mask::PORT) {
        if request.port_num != limits::PORT {
            return Err(CommandError::Port(request.port_num));
        }
        attr.port = request.port_num;
    }
    if set(mask::QKEY) {
        if request.qkey & PRIVILEGED_QKEY != 0 && !context.may_use_privileged_qkey() {
            return Err(CommandError::PrivilegedQkey(request.qkey));
        }
        attr.qkey = request.qkey;
    }
    if set(mask::AV) {
        attr.path = path(context, &request.dest)?;
    }
    if set(mask::PATH_MTU) {
        attr.path_mtu = path_mtu(context, request.path_mtu.into())?;
    }
    if set(mask::TIMEOUT) {
        attr.timeout = within("timeout", request.timeout, 31)?;
    }
    if set(mask::RETRY_CNT) {
        attr.retry_cnt = within("retry_cnt", request.retry_cnt, 7)?;
    }
    if set(mask::RNR_RETRY) {
        attr.rnr_retry = within("rnr_retry", request.rnr_retry, 7)?;
    }
    if set(mask::RQ_PSN) {
        attr.rq_psn = psn(context, "rq_psn", request.rq_psn);
    }
    if set(mask::SQ_PSN) {
        attr.sq_psn = psn(context, "sq_psn", request.sq_psn);
    }
    let rd_atom = context.limits().max_qp_rd_atom;
    if set(mask::MAX_QP_RD_ATOMIC) {
        attr.max_rd_atomic = within("max_rd_atomic", request.max_rd_atomic, rd_atom)?;
    }
    if set(mask::MAX_DEST_RD_ATOMIC) {
        attr.max_dest_rd_atomic =
            within("max_dest_rd_atomic", request.max_dest_rd_atomic, rd_atom)?;
    }
    if set(mask::MIN_RNR_TIMER) {
        attr.min_rnr_timer = within("min_rnr_timer", request.min_rnr_timer, 31)?;
    }
    if set(mask::PATH_MIG_STATE) {
        // 0 is "migrated", the only state without an alternate path.
        within("path_mig_state", request.path_mig_state, 0)?;
    }
    if set(mask::DEST_QPN) {
        if request.dest_qp_num > 0xff_ffff {
            let value = request.dest_qp_num.into();
            return Err(CommandError::Limit {
                name: "dest_qp_num",
                value,
                limit: 0xff_ffff,
            });
        }
        attr.dest_qpn = request.dest_qp_num;
    }
    Ok(attr)
}

/// A PSN has 24 bits (IBTA 9.2). What is beyond is cut off, and said: so does Linux (`_ib_modify_qp`), and programs draw 32 random
/// bits and tell their peer 24 of them.
fn psn(context: &Context, name: &str, value: u32) -> Psn {
    let psn = Psn::new(value);
    if psn.get() != value {
        context.warn(format_args!(
            "modify_qp: {name} {value:#x} has more than 24 bits, and {:#x} is taken",
            psn.get()
        ));
    }
    psn
}

fn path_mtu(context: &Context, number: u32) -> Result<Mtu, CommandError> {
    let mtu = Mtu::from_raw(number).ok_or(CommandError::MtuNumber(number))?;
    let nic = context.nic();
    if mtu > nic.active_mtu {
        return Err(CommandError::PathMtu {
            device: nic.name.clone(),
            asked: mtu.bytes(),
            active: nic.active_mtu.bytes(),
            port: nic.port_mtu,
        });
    }
    Ok(mtu)
}

/// Resolves the address vector of a connection: once, here, as the kernel does.
fn path(context: &Context, dest: &QpDest) -> Result<Path, CommandError> {
    let address = Gid(dest.dgid).to_ip();
    match address.is_multicast() {
        true => Err(CommandError::DestinationGid(address)),
        false => destination(context, dest),
    }
}

/// Resolves an address vector, which may be that of a multicast group.
pub fn destination(context: &Context, dest: &QpDest) -> Result<Path, CommandError> {
    let nic = context.nic();
    if dest.port_num != limits::PORT {
        return Err(CommandError::Port(dest.port_num));
    }
    let dest = &lid::resolve(nic, dest);
    if dest.is_global == 0 {
        return Err(CommandError::NotGlobal);
    }
    let table = nic.addresses.now();
    let sgid = table
        .gid(dest.sgid_index.into())
        .ok_or_else(|| CommandError::GidIndex {
            device: nic.name.clone(),
            index: dest.sgid_index,
        })?;
    let dgid = Gid(dest.dgid);
    let address = dgid.to_ip();
    if address.is_unspecified() {
        return Err(CommandError::DestinationGid(address));
    }
    if address.is_multicast() {
        return group_path(nic, &table, dest, sgid);
    }
    if sgid.ipv4().is_some() != dgid.ipv4().is_some() {
        let index = dest.sgid_index;
        return Err(CommandError::GidFamily {
            sgid: sgid.to_ip(),
            dgid: address,
            index,
        });
    }
    let dmac = context.neighbour(dgid)?;
    Ok(Path {
        sgid,
        dgid,
        sgid_index: dest.sgid_index,
        smac: nic.mac,
        dmac,
        flow_label: dest.flow_label & 0xf_ffff,
        traffic_class: dest.traffic_class,
        hop_limit: HOP_LIMIT,
        sl: dest.sl & 0x7,
    })
}

/// The path to a multicast group. From an IPv4 address an IPv4 group is reached as such, however it is written
/// ([`multicast::canonical`]). Where group and GID are of different families, as with perftest's default group, the NIC's
/// first GID of the group's family is the source: the packet can have no other.
fn group_path(
    nic: &NicInfo,
    table: &Table,
    dest: &QpDest,
    given: Gid,
) -> Result<Path, CommandError> {
    let is_ipv4 = |gid: Gid| gid.ipv4().is_some();
    let group = Gid(dest.dgid);
    let dgid = match is_ipv4(given) {
        true => multicast::canonical(group),
        false => group,
    };
    let suits = |gid: &Gid| is_ipv4(*gid) == is_ipv4(dgid);
    let mut own = table.gids().map(|(_, gid)| gid);
    let sgid = match suits(&given) {
        true => Some(given),
        false => own.find(suits),
    };
    let sgid = sgid.ok_or_else(|| CommandError::GidFamily {
        sgid: given.to_ip(),
        dgid: dgid.to_ip(),
        index: dest.sgid_index,
    })?;
    Ok(Path {
        sgid,
        dgid,
        sgid_index: dest.sgid_index,
        smac: nic.mac,
        dmac: multicast::mac_of(dgid),
        flow_label: dest.flow_label & 0xf_ffff,
        traffic_class: dest.traffic_class,
        hop_limit: dest.hop_limit,
        sl: dest.sl & 0x7,
    })
}
