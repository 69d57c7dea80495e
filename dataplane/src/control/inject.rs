//! Packets of `roceline replay` on their way to a NIC.
//!
//! Payload of a request: the index of the NIC (u32), then frames, each with its length (u32) in front, in native byte
//! order. The answer is an [`Injected`].

use super::error::CommandError;
use super::server::Shared;
use crate::capture::request::Injected;
use crate::lcore::message::{Command, Reply};

/// Ethernet header and one VLAN tag in front of the IP packet that the MTU bounds.
const LINK_HEADERS: usize = 18;

/// Serves a request.
pub fn answer(shared: &Shared, payload: &[u8]) -> Result<Vec<u8>, CommandError> {
    const CUT: CommandError = CommandError::Message("frames that end before their length");
    let mut rest = payload;
    let nic = word(&mut rest).ok_or(CUT)?;
    let Some(info) = shared.config.nics.iter().find(|info| info.index == nic) else {
        return Err(CommandError::Device(format!("NIC {nic}")));
    };
    let longest = info.port_mtu as usize + LINK_HEADERS;
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let len = word(&mut rest).ok_or(CUT)? as usize;
        let (frame, after) = rest.split_at_checked(len).ok_or(CUT)?;
        if len > longest {
            return Err(CommandError::Capture(format!(
                "a frame of {len} bytes is longer than {} allows: {longest}",
                info.name
            )));
        }
        frames.push(frame.into());
        rest = after;
    }
    let lcore = shared.lcores.serving(nic).first().copied().unwrap_or(0);
    match shared.ask_lcore(lcore, Command::Inject { nic, frames })? {
        Reply::Injected { taken, waiting } => serde_json::to_vec(&Injected { taken, waiting })
            .map_err(|error| CommandError::Query(error.to_string())),
        other => Err(CommandError::BadAnswer("Inject", format!("{other:?}"))),
    }
}

fn word(rest: &mut &[u8]) -> Option<u32> {
    let (word, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u32::from_ne_bytes(*word))
}
