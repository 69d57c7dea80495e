//! What a program does: messages of some length on a QP of its own, so many under way at a time, from a start to an end. In flow
//! completions; out flow the lengths of further messages, and figures for whoever asks.

use roceline_engine::memory::Access;
use roceline_engine::verbs::{Mtu, QpAttr, QpId, WcStatus, WrOpcode};
use roceline_engine::{Nanos, verbs};

use super::NodeId;

/// What the messages of a flow are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operation {
    /// RDMA WRITE: data goes with the requests.
    #[default]
    Write,
    /// RDMA READ: data comes with the responses.
    Read,
    /// SEND: as WRITE, into receive requests that never run out.
    Send,
}

impl Operation {
    pub(super) fn opcode(self) -> WrOpcode {
        match self {
            Operation::Write => WrOpcode::Write,
            Operation::Read => WrOpcode::Read,
            Operation::Send => WrOpcode::Send,
        }
    }
}

/// How to make a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowConfig {
    /// The node whose program posts requests.
    pub from: NodeId,
    /// The node at the other end.
    pub to: NodeId,
    /// What it posts.
    pub operation: Operation,
    /// Attributes of both QPs; addresses and QPNs are filled in. The traffic class of the path is that of data and ACKs: its DSCP
    /// decides the priority, its ECN field whether switches may mark; with congestion control that heeds marks they may anyway.
    pub attr: QpAttr,
    /// Bytes of a message; the last one of a flow may be shorter.
    pub message: u32,
    /// Messages that the program keeps under way.
    pub depth: u32,
    /// Bytes of all messages; `None`: without end.
    pub bytes: Option<u64>,
    /// When the program begins, and its QPs come into being.
    pub start: Nanos,
    /// When it posts no more.
    pub stop: Option<Nanos>,
}

impl FlowConfig {
    /// WRITEs of 64 KiB without end, from the beginning, 16 at a time, in 4096-byte packets that switches may
    /// mark, with the DSCP that deployments of RoCE mostly use, 26, which is of priority 3.
    pub fn new(from: NodeId, to: NodeId) -> FlowConfig {
        FlowConfig {
            from,
            to,
            operation: Operation::Write,
            attr: QpAttr {
                access: Access(Access::REMOTE_WRITE.0 | Access::REMOTE_READ.0),
                path: verbs::Path {
                    traffic_class: 26 << 2 | ECT0,
                    ..verbs::Path::default()
                },
                path_mtu: Mtu::M4096,
                timeout: 8,
                retry_cnt: 7,
                rnr_retry: 7,
                max_rd_atomic: 16,
                max_dest_rd_atomic: 16,
                ..QpAttr::default()
            },
            message: 1 << 16,
            depth: 16,
            bytes: None,
            start: Nanos::ZERO,
            stop: None,
        }
    }

    /// The same in the priority with this number, 0 to 7: its class selector becomes the DSCP.
    pub fn priority(mut self, priority: u8) -> FlowConfig {
        let class = &mut self.attr.path.traffic_class;
        *class = priority << 5 | *class & 3;
        self
    }
}

/// ECN field of a packet that switches may mark (RFC 3168).
const ECT0: u8 = 2;

/// A program, and what came of it.
#[derive(Clone, Debug)]
pub struct Flow {
    /// How it was made.
    pub config: FlowConfig,
    /// Its QPs at both ends, while they exist.
    pub qps: Option<[QpId; 2]>,
    /// Payload bytes that were sent, at whichever end that is, retransmissions included.
    pub sent: u64,
    /// Payload bytes that have arrived, duplicates included.
    pub received: u64,
    /// Messages that are complete.
    pub messages: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// When the first of them was complete.
    pub first: Nanos,
    /// When the last of them was.
    pub last: Nanos,
    /// When all bytes were there, for a flow that has an end.
    pub finished: Option<Nanos>,
    /// How its QP failed, if it did.
    pub failed: Option<WcStatus>,
    /// Bytes of messages that were posted.
    pub(super) posted: u64,
    /// It posts no more.
    pub(super) stopped: bool,
}

impl Flow {
    pub(super) fn new(config: &FlowConfig) -> Flow {
        Flow {
            config: *config,
            qps: None,
            messages: 0,
            bytes: 0,
            sent: 0,
            received: 0,
            first: Nanos::ZERO,
            last: Nanos::ZERO,
            finished: None,
            failed: None,
            posted: 0,
            stopped: false,
        }
    }

    /// Completed bits per second, from the first completion to the last.
    pub fn goodput(&self) -> f64 {
        let first = self.length_at(0);
        let bits = self.bytes.saturating_sub(first) as f64 * 8.0;
        let time = self.last.saturating_sub(self.first).0.max(1);
        bits * 1e9 / time as f64
    }

    /// From its start to its last byte's completion, for a flow that has come to its end.
    pub fn completion_time(&self) -> Option<Nanos> {
        Some(self.finished?.saturating_sub(self.config.start))
    }

    /// Length of the message that begins at a byte of the flow; 0 behind its end.
    fn length_at(&self, byte: u64) -> u64 {
        let left = self
            .config
            .bytes
            .map_or(u64::MAX, |all| all - byte.min(all));
        left.min(self.config.message.into())
    }

    /// Length of the next message to post, if there is one.
    pub(super) fn next_message(&mut self) -> Option<u32> {
        let length = self.length_at(self.posted);
        if length == 0 || self.stopped || self.failed.is_some() || self.finished.is_some() {
            return None;
        }
        self.posted += length;
        Some(length as u32)
    }

    /// Its oldest message is complete; whether that was all.
    pub(super) fn completed(&mut self, now: Nanos) -> bool {
        if self.messages == 0 {
            self.first = now;
        }
        self.bytes += self.length_at(self.bytes);
        self.messages += 1;
        self.last = now;
        if self.config.bytes == Some(self.bytes) {
            self.finished = Some(now);
        }
        self.finished.is_some()
    }
}
