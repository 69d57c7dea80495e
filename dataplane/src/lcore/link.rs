//! Links that come and go. In: what the ports say, and orders to take a link down or up. Out: the state that whoever asks
//! for a port sees, an event for each program that has the device open, and a count.
//!
//! Queue pairs stay as they are: what is lost while a link is down is sent again, until retries are used up, as when
//! somebody pulls a cable.

use roceline_engine::verbs::AsyncKind;

use super::Lcore;
use super::drain::async_record;
use super::message::Reply;
use super::nic::Shared;

/// The only port of a device, which is what port events name.
const PORT: u64 = 1;

/// Takes a NIC's link down or up.
pub fn order(lcore: &mut Lcore, nic: u32, up: bool) -> Result<Reply, (i32, String)> {
    let Some(ordered) = lcore.nic(nic) else {
        return Err((libc::ENODEV, format!("NIC {nic} does not exist")));
    };
    ordered.info.link.order_down(!up);
    ordered.port.set_link(up);
    // At once, also for the NIC at the other end.
    follow(lcore);
    Ok(Reply::Done)
}

/// Tells of links that changed since the last look.
pub fn follow(lcore: &mut Lcore) {
    let Lcore { nics, shared, .. } = lcore;
    for (index, nic) in nics.iter_mut().enumerate() {
        let up = nic.port.link().up;
        if nic.link_up == up {
            continue;
        }
        nic.link_up = up;
        // First the state, then the event: who gets one and asks finds the other.
        nic.info.link.set(up);
        nic.counts.link_downed += u64::from(!up && nic.part.number == 0);
        let kind = if up {
            AsyncKind::PortActive
        } else {
            AsyncKind::PortErr
        };
        tell(shared, index, kind);
    }
}

/// Tells each program that has the NIC at this place open of something about its port.
pub(super) fn tell(shared: &mut Shared, place: usize, kind: AsyncKind) {
    let Shared {
        contexts,
        due_events,
        ..
    } = shared;
    for (key, context) in contexts {
        if context.nic != place || context.closing.is_some() {
            continue;
        }
        if context.async_events.push(async_record(PORT, kind)) {
            context.note_events(key, due_events);
        }
    }
}
