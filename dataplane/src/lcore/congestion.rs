//! Congestion control and pauses of a NIC, changed while it runs: a message between two bursts.

use roceline_engine::Nanos;

use super::Lcore;
use super::message::Reply;
use crate::congestion::Settings;

/// Lets a NIC go by other settings from now on.
pub fn set(
    lcore: &mut Lcore,
    nic: u32,
    settings: &Settings,
    now: Nanos,
) -> Result<Reply, (i32, String)> {
    let Some(nic) = lcore.nics.get_mut(nic as usize) else {
        return Err((libc::ENODEV, format!("NIC {nic} does not exist")));
    };
    nic.settings = *settings;
    nic.set_pause(&settings.pfc, now);
    nic.engine.set_congestion(&settings.congestion, now);
    // Whether packets can be marked depends on it.
    nic.render_headers();
    Ok(Reply::Done)
}
