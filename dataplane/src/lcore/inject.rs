//! Packets of a replay: they come from the control socket and enter a NIC as if they had come from its port.
//!
//! In flow frames by message, between bursts, as many as fit [`LIMIT`]; the receive stage takes them along with what
//! the port brings. A NIC that nobody replays to pays one branch per burst.

use super::message::Reply;
use super::{Lcore, of_index};

/// Packets of a replay that may wait on a NIC.
const LIMIT: usize = 256;

/// Serves [`super::message::Command::Inject`]: takes frames from the front until one finds no room.
pub fn serve(lcore: &mut Lcore, nic: u32, frames: &[Box<[u8]>]) -> Result<Reply, (i32, String)> {
    let Some(nic) = of_index(&mut lcore.nics, nic) else {
        return Err((libc::ENODEV, format!("NIC {nic} does not exist")));
    };
    // Once; the loop itself never lets it grow.
    nic.injected
        .reserve(LIMIT.saturating_sub(nic.injected.len()));
    let mut taken = 0;
    for frame in frames {
        if nic.injected.len() >= LIMIT {
            break;
        }
        let Some(mut mbuf) = lcore.shared.pool.alloc() else {
            break;
        };
        let Some(room) = mbuf.set_len(frame.len()) else {
            let reason = format!(
                "a frame of {} bytes does not fit a packet buffer",
                frame.len()
            );
            return Err((libc::EMSGSIZE, reason));
        };
        room.copy_from_slice(frame);
        nic.injected.push_back(mbuf);
        taken += 1;
    }
    Ok(Reply::Injected {
        taken,
        waiting: nic.injected.len() as u32,
    })
}
