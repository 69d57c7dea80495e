//! Addresses that a NIC gets and loses while it runs. In: its GIDs, as a message between two bursts. Out: what packets are taken for,
//! an event for each program that has the device open, and which indices are still held.
//!
//! Queue pairs and address handles stay as they are when their address goes: what they send still names it, so that the send path has
//! nothing to look at, and what is sent to it is dropped like packets for any other NIC's, until retries are used up.

use std::sync::Arc;

use roceline_engine::verbs::AsyncKind;
use roceline_engine::wire::Gid;

use super::message::Reply;
use super::{Lcore, link};

type Served = Result<Reply, (i32, String)>;

/// Lets a NIC take packets for these addresses, and for no others.
pub fn set(lcore: &mut Lcore, nic: u32, gids: Arc<[Gid]>) -> Served {
    let Some(nic) = lcore.nic(nic) else {
        return no_nic(nic);
    };
    // CNPs are sent from where the marked datagram went.
    nic.senders.keep(|own| gids.contains(&own));
    nic.gids = gids;
    Ok(Reply::Done)
}

/// Tells the programs of a NIC that its GID table has changed.
pub fn changed(lcore: &mut Lcore, nic: u32) -> Served {
    let Some(place) = lcore.nic(nic).map(|nic| nic.place) else {
        return no_nic(nic);
    };
    link::tell(&mut lcore.shared, place, AsyncKind::GidChange);
    Ok(Reply::Done)
}

/// Which indices of a NIC's GID table queue pairs and address handles hold: they keep an index whose address is gone from being
/// given to another (Linux, `free_gid_entry_locked` in `drivers/infiniband/core/cache.c`).
pub fn held(lcore: &mut Lcore, nic: u32) -> Served {
    let Some(nic) = lcore.nic(nic) else {
        return no_nic(nic);
    };
    let of_qps = nic.qps.iter().filter_map(|qp| {
        let (attr, _) = nic.engine.query_qp(qp.id).ok()?;
        Some(attr.path)
    });
    let of_ahs = nic.ahs.iter().flatten().map(|ah| ah.path);
    // One that never had a path has no address.
    let connected = of_qps
        .chain(of_ahs)
        .filter(|path| path.sgid != Gid::default());
    let indices = connected.filter_map(|path| 1u32.checked_shl(path.sgid_index.into()));
    Ok(Reply::GidsHeld(indices.fold(0, |all, index| all | index)))
}

fn no_nic<T>(nic: u32) -> Result<T, (i32, String)> {
    Err((libc::ENODEV, format!("NIC {nic} does not exist")))
}
