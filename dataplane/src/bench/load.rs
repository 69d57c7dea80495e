//! What the programs of a benchmark do: the requester keeps requests outstanding on all its QPs in turns, and with many waits
//! for the one whose turn it is; the responder keeps receives posted. Both work between polls of the lcore, and neither allocates while
//! it runs.

use std::fmt;
use std::io;

use roceline_engine::verbs::{Sge, WrOpcode};
use serde::{Deserialize, Serialize};

use super::end::{End, Introduction};
use super::producer::{INLINE, SIGNALED};

/// Requests posted before the lcore is polled again: as many as it reads of one program in a poll.
const BATCH: usize = 64;
/// Requests outstanding on all QPs together, as far as each has at least one; perftest's depth of a send queue.
const OUTSTANDING: usize = 128;
/// Of a QP's requests one in so many is signalled.
const SIGNAL_EVERY: u64 = 16;
/// Inline bytes that fit a slot of the producer.
pub const MAX_INLINE: u32 = 48;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// RDMA WRITE
    Write,
    /// RDMA WRITE of inline bytes, 48 at most
    WriteInline,
    /// SEND
    Send,
    /// RDMA READ
    Read,
    /// Fetch and add of 8 bytes
    FetchAdd,
    /// Compare and swap of 8 bytes
    CompareSwap,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Op::Write => "WRITE",
            Op::WriteInline => "WRITE inline",
            Op::Send => "SEND",
            Op::Read => "READ",
            Op::FetchAdd => "fetch and add",
            Op::CompareSwap => "compare and swap",
        })
    }
}

/// What a requester does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// The operation.
    pub op: Op,
    /// Bytes of a message.
    pub len: u32,
}

impl Load {
    /// Packets that bring a message: of the request, or of the answer of a READ.
    pub fn packets(&self, mtu: u32) -> u64 {
        u64::from(self.len.div_ceil(mtu).max(1))
    }

    /// Packets of a message that the responder receives.
    pub fn requests(&self, mtu: u32) -> u64 {
        match self.op {
            Op::Read | Op::FetchAdd | Op::CompareSwap => 1,
            _ => self.packets(mtu),
        }
    }
}

/// The program that posts requests.
#[derive(Debug)]
pub struct Requester {
    load: Load,
    peer: Introduction,
    /// Of each QP.
    depth: u32,
    /// The QP whose turn it is.
    turn: usize,
    /// Requests posted.
    posted: u64,
    /// Requests posted to each QP before its turn ends.
    run: usize,
    inline: [u8; MAX_INLINE as usize],
    /// Status of the first completion with an error.
    failed: Option<u32>,
}

impl Requester {
    /// For `load` towards `peer`.
    pub fn new(load: Load, peer: Introduction) -> Requester {
        let qps = peer.qpns.len().max(1);
        Requester {
            load,
            peer,
            depth: (OUTSTANDING / qps).max(1) as u32,
            turn: 0,
            posted: 0,
            run: BATCH / qps.min(BATCH),
            inline: [7; MAX_INLINE as usize],
            failed: None,
        }
    }

    /// Requests posted so far.
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// Whether all went well so far. Where a peer may end, look first whether it is there.
    ///
    /// # Errors
    /// When a request was completed with an error.
    pub fn check(&self) -> io::Result<()> {
        completed(self.failed, "a request")
    }

    /// Posts what there is room for, rings, and takes completions.
    pub fn step(&mut self, end: &mut End) {
        self.post(end, BATCH);
        self.reap(end);
    }

    /// Posts at most `budget` requests; gives the number.
    pub fn post(&mut self, end: &mut End, budget: usize) -> usize {
        let (mut left, mut seen) = (budget, 0);
        let qps = end.qps.len();
        while left > 0 && seen < qps {
            let qp = &mut end.qps[self.turn];
            let room = self.depth.min(qp.sq.mask) - end.producer.outstanding(qp).min(self.depth);
            let run = (room as usize).min(self.run).min(left);
            // Of few QPs one without room is passed over. With many it is waited for: who looks through thousands for one that is free has
            // the indices of all of them in the cache in place of what is measured.
            if run == 0 && qps > BATCH {
                break;
            }
            seen += 1;
            self.turn = if self.turn + 1 == qps {
                0
            } else {
                self.turn + 1
            };
            for _ in 0..run {
                let offset = self.offset(&end.buffer);
                let sge = Sge {
                    addr: end.buffer.addr() + offset,
                    length: self.load.len,
                    lkey: end.key,
                };
                let remote = (self.peer.addr + offset, self.remote_key());
                let mut flags = match self.posted % SIGNAL_EVERY {
                    0 => SIGNALED,
                    _ => 0,
                };
                self.posted += 1;
                let opcode = match self.load.op {
                    Op::Write | Op::WriteInline => WrOpcode::Write,
                    Op::Send => WrOpcode::Send,
                    Op::Read => WrOpcode::Read,
                    Op::FetchAdd => {
                        end.producer.post_fetch_add(qp, sge, remote);
                        continue;
                    }
                    Op::CompareSwap => {
                        end.producer.post_compare_swap(qp, sge, remote);
                        continue;
                    }
                };
                let inline = (self.load.op == Op::WriteInline).then(|| {
                    flags |= INLINE;
                    &self.inline[..self.load.len.min(MAX_INLINE) as usize]
                });
                end.producer
                    .post_send(qp, opcode, flags, sge, remote, inline);
            }
            if run > 0 {
                end.producer.ring(qp);
                left -= run;
            }
        }
        budget - left
    }

    /// Takes completions; gives the number.
    pub fn reap(&mut self, end: &mut End) -> usize {
        let mut taken = 0;
        while let Some(cqe) = end.producer.poll_cq() {
            if cqe.status != 0 {
                self.failed.get_or_insert(cqe.status);
            }
            taken += 1;
        }
        taken
    }

    /// Whether all requests are completed.
    pub fn is_done(&self, end: &End) -> bool {
        let done = |qp| end.producer.outstanding(qp) == 0;
        end.qps.iter().all(done)
    }

    /// The key that the next request names: the only one, or a random one of many.
    fn remote_key(&self) -> u32 {
        match &*self.peer.more_keys {
            [] => self.peer.key,
            keys => {
                // Multiplicative hashing (Knuth, TAOCP 6.4): all keys come in turns that caches cannot foresee.
                let mixed = self.posted.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                keys[(mixed % keys.len() as u64) as usize]
            }
        }
    }

    /// Where the next message lies: within a page for short ones, as perftest does it.
    fn offset(&self, buffer: &super::memory::Buffer) -> u64 {
        let stride = u64::from(self.load.len).next_multiple_of(64).max(64);
        let places = (buffer.len() as u64).min(4096.max(stride)) / stride;
        (self.posted % places.max(1)) * stride
    }
}

/// The program that answers.
#[derive(Debug, Default)]
pub struct Responder {
    filled: bool,
    /// Status of the first completion with an error.
    failed: Option<u32>,
}

impl Responder {
    /// Gets ready for `load`.
    pub fn prepare(&mut self, load: &Load, end: &mut End) {
        if load.op != Op::Send || self.filled {
            return;
        }
        self.filled = true;
        for index in 0..end.qps.len() {
            for _ in 0..end.qps[index].rq.mask {
                receive(end, index);
            }
        }
    }

    /// Takes completions and posts a receive for each that brought something.
    pub fn step(&mut self, end: &mut End) {
        while let Some(cqe) = end.producer.poll_cq() {
            if cqe.status != 0 {
                self.failed.get_or_insert(cqe.status);
                continue;
            }
            receive(end, cqe.wr_id as usize);
        }
    }

    /// Whether all went well so far.
    ///
    /// # Errors
    /// When a receive was completed with an error.
    pub fn check(&self) -> io::Result<()> {
        completed(self.failed, "a receive")
    }
}

fn completed(failed: Option<u32>, what: &str) -> io::Result<()> {
    failed.map_or(Ok(()), |status| {
        let problem = format!("{what} was completed with the error status {status} of ibv_wc_status: the case has no figure");
        Err(io::Error::other(problem))
    })
}

/// Posts a receive of the whole buffer.
fn receive(end: &mut End, index: usize) {
    let sge = Sge {
        addr: end.buffer.addr(),
        length: end.buffer.len() as u32,
        lkey: end.key,
    };
    let qp = &mut end.qps[index];
    end.producer.post_recv_as(qp, sge, index as u64);
}
