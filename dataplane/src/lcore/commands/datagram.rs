//! What only datagrams need: address handles, and queue pairs attached to multicast groups; for the context that asks, and for
//! no other's handle.

use roceline_engine::verbs::{Path, QpId, QpType};
use roceline_engine::wire::Gid;

use super::objects::own_pd;
use super::{Failure, Served, failed};
use crate::lcore::ah::Ah;
use crate::lcore::context::ContextKey;
use crate::lcore::message::{MulticastLimits, Reply};
use crate::lcore::nic::{Nic, Shared};

pub(super) fn create_ah(
    nic: &mut Nic,
    shared: &mut Shared,
    key: ContextKey,
    pd: u32,
    path: &Path,
) -> Served {
    own_pd(shared, key, pd)?;
    let info = match nic.engine.create_ah(pd) {
        Ok(info) => info,
        Err(error) => return failed(libc::ENOMEM, error.to_string()),
    };
    own_pd(shared, key, pd)?.users += 1;
    shared.contexts[key].owned.ahs.insert(info.number);
    let sent = nic.ecn_path(path);
    nic.put_ah(info.index, Ah::new(key, pd, path, &sent));
    Ok(Reply::Handle(info.number))
}

pub(super) fn destroy_ah(nic: &mut Nic, shared: &mut Shared, key: ContextKey, ah: u32) -> Served {
    let Some(found) = nic.free_ah(ah, key) else {
        let reason = format!("address handle {ah:#x} does not exist");
        return failed(libc::EINVAL, reason);
    };
    shared.contexts[key].owned.ahs.remove(&ah);
    if let Some(pd) = shared.pds.get_mut(found.pd as usize) {
        pd.users = pd.users.saturating_sub(1);
    }
    Ok(Reply::Done)
}

pub(super) fn attach_mcast(nic: &mut Nic, id: QpId, gid: Gid, limits: MulticastLimits) -> Served {
    match nic.engine.query_qp(id) {
        Ok((_, init)) if init.qp_type == QpType::Ud => {}
        _ => {
            let reason = format!("QP {:#x} is not UD: only datagrams can be multicast", id.0);
            return failed(libc::EINVAL, reason);
        }
    }
    let MulticastLimits { groups, members } = limits;
    let (max_groups, max_members) = (groups as usize, members as usize);
    if let Some(qp) = nic.qps.get_mut(id) {
        let of_qp = &mut qp.groups;
        let attached = nic.groups.attach(gid, id, of_qp, max_groups, max_members);
        if attached.is_ok() {
            return Ok(Reply::Done);
        }
    }
    failed(
        libc::ENOMEM,
        format!(
            "no room for QP {:#x} in multicast group {}: a device has {groups} groups of {members} QPs",
            id.0,
            gid.to_ip()
        ),
    )
}

pub(super) fn detach_mcast(nic: &mut Nic, id: QpId, gid: Gid) -> Served {
    if let Some(qp) = nic.qps.get_mut(id) {
        if nic.groups.detach(gid, id, &mut qp.groups) {
            return Ok(Reply::Done);
        }
    }
    failed(
        libc::EINVAL,
        format!(
            "QP {:#x} is not attached to multicast group {}",
            id.0,
            gid.to_ip()
        ),
    )
}

/// A QP that is attached to groups stays: the program must detach it first, as with the kernel's `ib_uverbs_destroy_qp`.
pub(super) fn not_attached(nic: &Nic, id: QpId) -> Result<(), Failure> {
    match nic.qps.get(id) {
        Some(qp) if !qp.groups.is_empty() => failed(
            libc::EBUSY,
            format!(
                "QP {:#x} is attached to multicast groups: detach it first",
                id.0
            ),
        ),
        _ => Ok(()),
    }
}
