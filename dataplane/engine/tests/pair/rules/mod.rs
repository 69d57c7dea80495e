//! One test a rule, named after it. Most run a pair over a link on which the test drops or holds frames by
//! hand; some hand crafted packets to one end.

mod acks;
mod adaptive;
mod atomics;
mod checks;
mod fairness;
mod faults;
mod impaired;
mod notification;
mod post_mortem;
mod requester;
mod responder;
mod retries;
mod shared;
mod sqe;
mod states;
mod unreliable;
mod windows;

use std::cell::Cell;
use std::rc::Rc;

use roceline_engine::verbs::*;
use roceline_engine::wire::{ExtHeaders, Opcode, Psn};
use roceline_engine::{EngineConfig, Nanos};

use crate::link::{Faults, Frame, Verdict};
use crate::memory::{IOVA_SHIFT, sges};
use crate::node::{Node, default_attr};
use crate::world::{World, default_config, default_init};

/// A connected pair: node 0 asks, node 1 answers.
pub struct Bench {
    pub w: World,
    pub ids: [QpId; 2],
    next: [u64; 2],
}

impl Bench {
    pub fn new() -> Bench {
        Bench::with(default_config(1), &default_attr(), &default_init())
    }

    pub fn with_attr(attr: QpAttr) -> Bench {
        Bench::with(default_config(1), &attr, &default_init())
    }

    pub fn with_config(config: EngineConfig) -> Bench {
        Bench::with(config, &default_attr(), &default_init())
    }

    pub fn with(config: EngineConfig, attr: &QpAttr, init: &QpInit) -> Bench {
        let mut w = World::new(config, Faults::default(), 4 << 20);
        let ids = w.connect([init, init], [attr, attr]);
        Bench {
            w,
            ids,
            next: [0, 1000],
        }
    }

    pub fn node(&mut self, n: usize) -> &mut Node {
        &mut self.w.nodes[n]
    }

    /// A request of node 0 as most tests post it: signalled, with its own buffers.
    pub fn wr(&mut self, op: WrOpcode, len: u32) -> (SendWr, Vec<Sge>) {
        let local = self.node(0).memory.alloc(len);
        let remote = self.node(1).memory.alloc(len);
        let (lkey, rkey) = (self.node(0).mr.lkey, self.node(1).mr.rkey);
        let wr = SendWr {
            wr_id: self.next[0],
            opcode: Some(op),
            signaled: true,
            num_sge: 1,
            length: len.into(),
            imm_or_rkey: 0x0100_feca,
            rkey,
            remote_addr: remote + IOVA_SHIFT,
            ..SendWr::default()
        };
        self.next[0] += 1;
        (wr, sges(&[(local, len)], lkey))
    }

    /// Posts a request at node 0; its number.
    pub fn post(&mut self, op: WrOpcode, len: u32) -> u64 {
        let (wr, list) = self.wr(op, len);
        self.post_wr(wr, &list)
    }

    pub fn post_wr(&mut self, wr: SendWr, list: &[Sge]) -> u64 {
        let qp = self.ids[0];
        assert!(self.node(0).post_send(qp, wr, list, &[]));
        wr.wr_id
    }

    /// Posts a receive of `len` bytes at node 1; its number, from 1000.
    pub fn receive(&mut self, len: u32) -> u64 {
        let at = self.node(1).memory.alloc(len);
        let lkey = self.node(1).mr.lkey;
        self.receive_at(&sges(&[(at, len)], lkey))
    }

    pub fn receive_at(&mut self, list: &[Sge]) -> u64 {
        let (qp, number) = (self.ids[1], self.next[1]);
        self.next[1] += 1;
        self.node(1).post_recv(qp, number, list);
        number
    }

    /// Number and status of the completions of a node since the last look.
    pub fn done(&mut self, n: usize) -> Vec<(u64, WcStatus)> {
        self.w
            .completions(n)
            .iter()
            .map(|c| (c.wr_id, c.status))
            .collect()
    }

    pub fn events(&mut self, n: usize) -> Vec<AsyncKind> {
        core::mem::take(&mut self.node(n).events)
            .iter()
            .map(|e| e.1)
            .collect()
    }

    pub fn state(&mut self, n: usize) -> QpState {
        self.query(n).state
    }

    pub fn query(&mut self, n: usize) -> QpAttr {
        let qp = self.ids[n];
        self.node(n).engine.query_qp(qp).expect("it exists").0
    }

    pub fn enter(&mut self, n: usize, state: QpState) {
        let (qp, now) = (self.ids[n], self.w.now);
        self.node(n).enter(qp, state, now);
    }

    /// Runs until nothing happens any more.
    pub fn run(&mut self) {
        self.w.run();
    }

    /// Decides about each frame by its sender, and its number among all since now.
    pub fn filter(&mut self, mut f: impl FnMut(usize, usize, &Frame) -> Verdict + 'static) {
        let mut number = 0;
        self.w.filter = Some(Box::new(move |from, frame| {
            number += 1;
            f(from, number - 1, frame)
        }));
    }

    /// Loses the first `times` frames of node `from` that have this opcode and PSN.
    pub fn lose(&mut self, from: usize, opcode: Opcode, psn: u32, times: u32) {
        let left = Rc::new(Cell::new(times));
        self.filter(move |node, _, f| {
            if node == from && f.opcode == opcode && f.psn.get() == psn && left.get() > 0 {
                left.set(left.get() - 1);
                return Verdict::Drop;
            }
            Verdict::Pass
        });
    }

    /// What node `n` sent, one line a frame, since the last look.
    pub fn sent(&mut self, n: usize) -> Vec<String> {
        let lines = self.w.sent_by(n);
        self.w.log.retain(|l| l.0 != n);
        lines
    }

    /// When node `n` sent frames, since the last look.
    pub fn times(&mut self, n: usize) -> Vec<Nanos> {
        self.w
            .log
            .iter()
            .filter(|l| l.0 == n)
            .map(|l| l.1)
            .collect()
    }

    /// When the last frame was sent, in nanoseconds.
    pub fn log_end(&self) -> u64 {
        self.w.log.last().map_or(0, |l| l.1.0)
    }

    /// Hands node 1 a packet as if from node 0.
    pub fn inject(&mut self, opcode: Opcode, psn: u32, payload: u32, ext: ExtHeaders) {
        let frame = self.frame(opcode, psn, payload, ext);
        let now = self.w.now;
        self.w.inject(1, frame, now);
        while self.w.poll() {}
    }

    /// Hands node 0 a packet as if from node 1.
    pub fn respond(&mut self, opcode: Opcode, psn: u32, payload: u32, aeth: u32) {
        let ext = ExtHeaders {
            aeth,
            ..ExtHeaders::default()
        };
        let mut frame = self.frame(opcode, psn, payload, ext);
        core::mem::swap(&mut frame.src, &mut frame.dst);
        frame.dest_qpn = self.ids[0].0;
        let now = self.w.now;
        self.w.inject(0, frame, now);
        while self.w.poll() {}
    }

    pub fn frame(&self, opcode: Opcode, psn: u32, payload: u32, ext: ExtHeaders) -> Frame {
        Frame {
            src: self.w.nodes[0].gid,
            dst: self.w.nodes[1].gid,
            dest_qpn: self.ids[1].0,
            opcode,
            psn: Psn::new(psn),
            ack_req: true,
            solicited: false,
            ext,
            traffic_class: 0,
            payload: vec![7; payload as usize],
        }
    }

    /// A RETH for node 1's memory.
    pub fn reth(&mut self, len: u32) -> ExtHeaders {
        let va = self.node(1).memory.alloc(len) + IOVA_SHIFT;
        ExtHeaders {
            va,
            rkey: self.node(1).mr.rkey,
            dma_len: len,
            ..ExtHeaders::default()
        }
    }
}

/// Extended headers of a packet that has none.
pub const NO_HEADERS: ExtHeaders = ExtHeaders {
    va: 0,
    rkey: 0,
    dma_len: 0,
    aeth: 0,
    imm_or_rkey: 0,
    qkey: 0,
    src_qpn: 0,
    swap_add: 0,
    compare: 0,
};

/// A connection without an ACK timeout.
pub fn no_timeout() -> QpAttr {
    QpAttr {
        timeout: 0,
        ..default_attr()
    }
}

/// Only opcodes and PSNs.
pub fn short(lines: &[String]) -> Vec<String> {
    let words = |l: &String| l.split(' ').take(2).collect::<Vec<_>>().join(" ");
    lines
        .iter()
        .map(|l| words(l).replace("RC_", "").replace("psn=", ""))
        .collect()
}
