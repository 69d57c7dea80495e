//! Congestion control and pauses of a NIC, changed while it runs: a message between two bursts.

use roceline_engine::Nanos;
use roceline_engine::congestion::AlgorithmKind;
use roceline_engine::congestion::priority::PriorityMap;

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
    let Some(nic) = lcore.nic(nic) else {
        return Err((libc::ENODEV, format!("NIC {nic} does not exist")));
    };
    let old = std::mem::replace(&mut nic.settings, *settings);
    // A call of the driver, which may take its time.
    if (old.pfc, old.congestion.line_rate) != (settings.pfc, settings.congestion.line_rate) {
        nic.set_pause(&settings.pfc, now);
    }
    if old.ets != settings.ets {
        nic.engine.set_transmission_selection(&settings.ets);
    }
    nic.engine.set_congestion(&settings.congestion, now);
    // All headers of the NIC are rendered, so only where it may change them. CNPs get theirs when they are built.
    if markable(&old) != markable(settings) {
        nic.render_headers();
    }
    Ok(Reply::Done)
}

/// What decides which packets say that they can be marked.
fn markable(settings: &Settings) -> (AlgorithmKind, u8, PriorityMap) {
    let congestion = &settings.congestion;
    (congestion.algorithm, congestion.rp_enable, settings.pfc.map)
}
