//! Packets of `roceline replay` on their way to a NIC.
//!
//! Payload of a request: the index of the NIC (u32), then frames, each with its length (u32) in front, in native byte
//! order. The answer is an [`Injected`].

use super::error::CommandError;
use super::server::Shared;
use crate::capture::request::Injected;
use crate::lcore::message::{Command, Reply};
use crate::port::spread::{Owner, PartOf};

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
    let mut frames: Vec<Box<[u8]>> = Vec::new();
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
    let injected = match frames.is_empty() {
        true => waiting(shared, nic),
        false => inject(shared, nic, &frames),
    };
    serde_json::to_vec(&injected?).map_err(|error| CommandError::Query(error.to_string()))
}

/// What the NIC has not looked at yet.
fn waiting(shared: &Shared, nic: u32) -> Result<Injected, CommandError> {
    let mut all = Injected::default();
    let frames = Vec::new;
    for reply in shared.ask_nic(nic, || Command::Inject {
        nic,
        frames: frames(),
    })? {
        all.waiting += injected(reply)?.waiting;
    }
    Ok(all)
}

/// Gives each frame to the lcore that owns the queue pair which it is for; what is for a group, only the first one gets.
fn inject(shared: &Shared, nic: u32, frames: &[Box<[u8]>]) -> Result<Injected, CommandError> {
    let serving = shared.lcores.serving(nic);
    let part = PartOf::new(0, serving.len());
    let lcore = |frame: &[u8]| {
        let number = match part.owner(frame) {
            Owner::Part(number) => number as usize,
            Owner::All => 0,
        };
        let owner = serving.get(number).or(serving.first());
        owner.copied().unwrap_or(0)
    };
    let mut all = Injected::default();
    // In their order: as many at once as come one after another for the same lcore.
    for run in frames.chunk_by(|a, b| lcore(a) == lcore(b)) {
        let Some(first) = run.first() else { break };
        let frames = run.to_vec();
        let reply = shared.ask_lcore(lcore(first), Command::Inject { nic, frames })?;
        let Injected { taken, waiting } = injected(reply)?;
        all.taken += taken;
        all.waiting = waiting;
        if (taken as usize) < run.len() {
            break;
        }
    }
    Ok(all)
}

fn injected(reply: Reply) -> Result<Injected, CommandError> {
    match reply {
        Reply::Injected { taken, waiting } => Ok(Injected { taken, waiting }),
        other => Err(CommandError::BadAnswer("Inject", format!("{other:?}"))),
    }
}

fn word(rest: &mut &[u8]) -> Option<u32> {
    let (word, after) = rest.split_first_chunk()?;
    *rest = after;
    Some(u32::from_ne_bytes(*word))
}
