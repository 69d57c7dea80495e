//! What the command line asks of a session about captures and replays, as JSON, and the answers. Records and frames
//! themselves travel as bytes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::impair::Spec;

/// What to record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Names of NICs; none, and no switches: all.
    pub nics: Vec<String>,
    /// Emulated switches, as `tor`, or single ports of them, as `tor.port3`, or `tor.roce1` for the one to roce1.
    #[serde(default)]
    pub switches: Vec<String>,
    /// What these receive.
    pub inbound: bool,
    /// What these send.
    pub outbound: bool,
    /// Bytes of a frame that are kept.
    pub snaplen: u32,
    /// Bytes of buffer between lcore and reader.
    pub buffer: u64,
    /// Keep the last packets only, this many, until a QP fails.
    pub last: Option<u32>,
    /// Conditions on packets: the keys of [`crate::impair::MatchArgs`].
    #[serde(default)]
    pub filter: Spec,
}

/// A request. A connection has one capture at most.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Capture {
    /// -> [`Started`]
    Start(Start),
    /// -> records as [`super::record`] has them, after a moment's wait for some. None of them after [`Capture::Stop`]:
    /// that was all.
    Next,
    /// -> [`Status`], after a moment's wait for a QP to fail.
    Status,
    /// -> [`RuleNames`]
    Rules,
    /// Ends the recording; what was recorded can still be fetched. -> [`Stopped`]
    Stop,
}

/// The tap is in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// The NICs and ports that it records; records name them by [`Interface::index`].
    pub interfaces: Vec<Interface>,
    /// Bytes of a frame that are kept.
    pub snaplen: u32,
}

/// A NIC in a capture, or a port of a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its index in the daemon; ports are counted behind NICs.
    pub index: u16,
    /// Its name.
    pub name: String,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Its addresses, as `10.77.0.1/24`; of a port, what is beyond.
    pub addrs: Vec<String>,
}

/// How a capture of last packets stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The QP that failed; the recording stopped there.
    pub failed: Option<FailedQp>,
}

/// [`FailedQp::cause`] where no completion tells more.
pub const EVENT: &str = "asynchronous event of the QP";

/// A QP that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedQp {
    /// Its NIC.
    pub nic: String,
    /// Its number.
    pub qpn: u32,
    /// Why, in words.
    pub cause: String,
}

/// What people call the impairment rules that records name by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleNames {
    /// By number, rules that were removed included; those without a name of their own are not among them.
    pub names: BTreeMap<u32, String>,
}

/// Totals of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// By NIC, in the order of [`Started::interfaces`].
    pub counts: Vec<Counts>,
}

/// What a tap saw of a NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Packets in the directions asked for.
    pub seen: u64,
    /// Of those, the ones that the filter let pass.
    pub accepted: u64,
    /// Of those, the ones lost since the reader was too slow.
    pub lost: u64,
}

/// What became of frames that were to be replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Injected {
    /// Frames that the NIC took, from the first on.
    pub taken: u32,
    /// Frames that it has taken and not looked at yet.
    pub waiting: u32,
}
