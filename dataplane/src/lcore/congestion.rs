//! Congestion control and pauses of a NIC, changed while it runs: a message between two bursts.

use super::Lcore;
use super::message::Reply;
use crate::congestion::Settings;

/// Lets a NIC go by other settings from now on.
pub fn set(lcore: &mut Lcore, nic: u32, settings: &Settings) -> Result<Reply, (i32, String)> {
    let Some(nic) = lcore.nics.get_mut(nic as usize) else {
        return Err((libc::ENODEV, format!("NIC {nic} does not exist")));
    };
    nic.settings = *settings;
    nic.set_pause(&settings.pfc, lcore.shared.now);
    Ok(Reply::Done)
}
