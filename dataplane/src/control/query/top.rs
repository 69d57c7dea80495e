//! What polling threads do with their time: the answer that `roceline top` puts into words.

use std::collections::BTreeMap;
use std::time::Duration;

use roceline_engine::{Nanos, Waiting};
use serde::{Deserialize, Serialize};

use crate::control::error::CommandError;
use crate::control::server::Shared;
use crate::lcore::message::{Command, Reply};
use crate::lcore::probe::Stages;
use crate::lcore::usage::{LoopUse, NicUse};

/// Answer to [`Query::Top`](super::Query::Top). All numbers grow from question to question; two answers with the same `sessions` are the
/// two ends of a stretch of time all of which was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopReply {
    /// By number.
    pub lcores: Vec<LcoreTop>,
}

/// A polling thread.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LcoreTop {
    /// Number.
    pub lcore: u32,
    /// CPU it is pinned to, if any.
    pub cpu: Option<usize>,
    /// Times that somebody began to look.
    pub sessions: u64,
    /// Nanoseconds of turns with something to do.
    pub busy_ns: u64,
    /// Of turns without, after which it polled on.
    pub empty_ns: u64,
    /// Of turns without, after which it gave the CPU to others or slept.
    pub away_ns: u64,
    /// Kept from running; not in the three above.
    pub lost_ns: u64,
    /// Turns.
    pub turns: u64,
    /// Of them, those with something to do.
    pub busy_turns: u64,
    /// Times that it slept.
    pub sleeps: u64,
    /// Turns of which the stages were timed.
    pub looks: u64,
    /// Of these, those with something to do that were not interrupted: `stages` are of them.
    pub timed: u64,
    /// Of the looks, those that found memory being reached through the kernel.
    pub memory_waits: u64,
    /// Cycles by stage that are of no single NIC.
    pub stages: BTreeMap<String, u64>,
    /// NICs, or their parts that this thread serves.
    pub nics: Vec<NicTop>,
}

/// A NIC, or a part of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicTop {
    /// Device name.
    pub device: String,
    /// What came: messages are SENDs, WRITEs, READs and atomics of peers.
    pub received: Traffic,
    /// What went: messages are requests of programs, counted while somebody looks.
    pub sent: Traffic,
    /// Cycles by stage, of timed turns with something to do.
    pub stages: BTreeMap<String, u64>,
    /// Looks that found packets waiting for the port.
    pub port_waits: u64,
    /// What queue pairs waited for, at the looks.
    pub waiting: BTreeMap<String, u64>,
}

/// One direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// RoCE packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Messages.
    pub messages: u64,
    /// Of timed turns: packets.
    pub timed_packets: u64,
    /// Of timed turns: those in which there were any.
    pub bursts: u64,
}

/// Asks every lcore, each of which goes on counting for so long.
pub(super) fn reply(shared: &Shared, how_long: Duration) -> Result<TopReply, CommandError> {
    let how_long = Nanos(u64::try_from(how_long.as_nanos()).unwrap_or(u64::MAX));
    let mut lcores = Vec::new();
    for lcore in shared.all_lcores() {
        let _turn = shared.questions.take();
        match shared.ask_lcore(lcore, Command::Usage { how_long })? {
            Reply::Usage(used) => lcores.push(lcore_top(shared, lcore, &used)),
            other => return Err(CommandError::BadAnswer("Usage", format!("{other:?}"))),
        }
    }
    Ok(TopReply { lcores })
}

fn lcore_top(shared: &Shared, lcore: u32, used: &LoopUse) -> LcoreTop {
    LcoreTop {
        lcore,
        cpu: used.cpu,
        sessions: used.sessions,
        busy_ns: used.busy.0,
        empty_ns: used.empty.0,
        away_ns: used.away.0,
        lost_ns: used.lost.0,
        turns: used.turns,
        busy_turns: used.busy_turns,
        sleeps: used.sleeps,
        looks: used.looks,
        timed: used.timed,
        memory_waits: used.memory_waits,
        stages: by_name(&used.stages),
        nics: used.nics.iter().map(|nic| nic_top(shared, nic)).collect(),
    }
}

fn nic_top(shared: &Shared, used: &NicUse) -> NicTop {
    let traffic = |side: usize, messages| Traffic {
        packets: used.packets[side],
        bytes: used.bytes[side],
        messages,
        timed_packets: used.timed_packets[side],
        bursts: used.bursts[side],
    };
    let waiting = Waiting::ALL.into_iter().zip(used.waiting);
    let info = shared.config.nics.get(used.index as usize);
    NicTop {
        device: info.map_or_else(String::new, |info| info.name.clone()),
        received: traffic(0, used.messages_in),
        sent: traffic(1, used.messages_out),
        stages: by_name(&used.stages),
        port_waits: used.port_waits,
        waiting: waiting.map(|(what, n)| (what.name().into(), n)).collect(),
    }
}

fn by_name(stages: &Stages) -> BTreeMap<String, u64> {
    stages
        .iter()
        .map(|(stage, cycles)| (stage.name().into(), cycles))
        .collect()
}
