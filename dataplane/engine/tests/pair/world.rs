//! Two nodes, the link between them, and the time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use roceline_engine::congestion::CongestionConfig;
use roceline_engine::verbs::{Completion, QpAttr, QpId, QpInit, QpType};
use roceline_engine::{AckPolicy, EngineConfig, Nanos, Retransmission};

use crate::link::{Faults, Frame, Link, Verdict};
use crate::node::Node;

/// Decides about a frame by hand: from which node, and the frame.
pub type Filter = Box<dyn FnMut(usize, &Frame) -> Verdict>;

struct InFlight {
    to: usize,
    frame: Frame,
}

/// All of it.
pub struct World {
    pub now: Nanos,
    pub nodes: [Node; 2],
    pub link: Link,
    pub filter: Option<Filter>,
    /// Every frame as it was sent: from which node, when.
    pub log: Vec<(usize, Nanos, Frame)>,
    pub keep_log: bool,
    flight: BinaryHeap<Reverse<(Nanos, u64)>>,
    frames: std::collections::BTreeMap<u64, InFlight>,
    serial: u64,
    pub trace: bool,
}

/// What most tests use.
pub fn default_config(seed: u64) -> EngineConfig {
    EngineConfig {
        max_qps: 64,
        max_mrs: 64,
        window: 64,
        ack_policy: AckPolicy::PerMessage,
        retransmission: Retransmission::Spec,
        owner: 0,
        owner_bits: 0,
        congestion: CongestionConfig::default(),
        seed,
    }
}

/// A QP with room for most tests.
pub fn default_init() -> QpInit {
    QpInit {
        qp_type: QpType::Rc,
        pd: crate::node::PD,
        send_cq: 1,
        recv_cq: 2,
        sq_sig_all: false,
        max_send_wr: 64,
        max_send_sge: 32,
        max_recv_sge: 32,
        max_inline: 512,
        srq: None,
    }
}

impl World {
    pub fn new(config: EngineConfig, faults: Faults, memory: usize) -> World {
        let node = |n| Node::new(config, n, memory, config.seed);
        World {
            now: Nanos::from_micros(1),
            nodes: [node(1), node(2)],
            link: Link::new(faults, config.seed),
            filter: None,
            log: Vec::new(),
            keep_log: true,
            flight: BinaryHeap::new(),
            frames: Default::default(),
            serial: 0,
            trace: std::env::var_os("ROCELINE_TRACE").is_some(),
        }
    }

    /// A QP on each node, connected to one another.
    pub fn connect(&mut self, inits: [&QpInit; 2], attrs: [&QpAttr; 2]) -> [QpId; 2] {
        let ids = [
            self.nodes[0].create_qp(inits[0]),
            self.nodes[1].create_qp(inits[1]),
        ];
        for n in 0..2 {
            let attr = QpAttr {
                dest_qpn: ids[1 - n].0,
                ..*attrs[n]
            };
            self.nodes[n].connect(ids[n], &attr, self.now);
        }
        ids
    }

    /// Both ends with the same attributes.
    pub fn connect_default(&mut self, attr: &QpAttr) -> [QpId; 2] {
        let init = default_init();
        self.connect([&init, &init], [attr, attr])
    }

    /// Puts a frame on the wire to node `to`, to arrive at `at`.
    pub fn inject(&mut self, to: usize, frame: Frame, at: Nanos) {
        self.serial += 1;
        self.flight.push(Reverse((at, self.serial)));
        self.frames.insert(self.serial, InFlight { to, frame });
    }

    /// Lets both nodes do what they can at this moment. False if neither could.
    pub fn poll(&mut self) -> bool {
        while let Some(&Reverse((at, serial))) = self.flight.peek() {
            if at > self.now {
                break;
            }
            self.flight.pop();
            if let Some(InFlight { to, frame }) = self.frames.remove(&serial) {
                self.nodes[to].rx.push_back(frame);
            }
        }
        let mut any = false;
        for n in 0..2 {
            while let Some(frame) = self.link.ways[n].release(self.now) {
                any = true;
                self.put_on_wire(n, frame, Nanos::ZERO);
            }
            any |= self.nodes[n].poll(self.now);
            for frame in core::mem::take(&mut self.nodes[n].sent) {
                any = true;
                self.transmit(n, frame);
            }
        }
        any
    }

    fn transmit(&mut self, from: usize, frame: Frame) {
        let verdict = self
            .filter
            .as_mut()
            .map_or(Verdict::Pass, |f| f(from, &frame));
        if self.keep_log {
            self.log.push((from, self.now, frame.clone()));
        }
        if self.trace {
            println!("{:>12} {from}: {} {verdict:?}", self.now.0, frame.line());
        }
        let late = match verdict {
            Verdict::Drop => {
                self.nodes[from].books.sends(&frame, 0);
                return;
            }
            Verdict::Delay(by) => by,
            Verdict::Pass => Nanos::ZERO,
        };
        let (now_on, copies) = self.link.ways[from].pass(&frame, self.now);
        self.nodes[from].books.sends(&frame, copies);
        for frame in now_on {
            self.put_on_wire(from, frame, late);
        }
    }

    fn put_on_wire(&mut self, from: usize, frame: Frame, late: Nanos) {
        let at = self.link.arrival(from, self.now) + late;
        if self.trace {
            let arrow = ["-->", "<--"][from];
            println!(
                "{:>12} {arrow} {:06x} {} at {}",
                self.now.0,
                frame.dest_qpn,
                frame.line(),
                at.0
            );
        }
        self.inject(1 - from, frame, at);
    }

    /// When something happens next.
    pub fn next_time(&self) -> Option<Nanos> {
        let flight = self.flight.peek().map(|Reverse((at, _))| *at);
        let nodes = self.nodes.iter().filter_map(Node::next_deadline);
        let kept = self.link.next_deadline();
        flight.into_iter().chain(nodes).chain(kept).min()
    }

    /// Goes on until nothing happens any more, or `until`.
    pub fn run_until(&mut self, until: Nanos) {
        loop {
            while self.poll() {}
            match self.next_time() {
                Some(t) if t <= until => self.now = self.now.max(t),
                _ => break,
            }
        }
        if until != Nanos(u64::MAX) {
            self.now = self.now.max(until);
            while self.poll() {}
        }
    }

    /// Goes on until nothing happens any more.
    pub fn run(&mut self) {
        self.run_until(Nanos(u64::MAX));
    }

    /// Goes on for so long.
    pub fn run_for(&mut self, time: Nanos) {
        self.run_until(self.now + time);
    }

    /// Frames that node `from` sent, as opcode names.
    pub fn sent_by(&self, from: usize) -> Vec<String> {
        self.log
            .iter()
            .filter(|l| l.0 == from)
            .map(|l| l.2.line())
            .collect()
    }

    /// Takes the completions of a node.
    pub fn completions(&mut self, node: usize) -> Vec<Completion> {
        core::mem::take(&mut self.nodes[node].completions)
    }

    /// Whether nothing is left anywhere: frames, memory operations, timers, ready QPs.
    pub fn is_idle(&mut self) -> bool {
        self.flight.is_empty()
            && self.link.is_empty()
            && self
                .nodes
                .iter()
                .all(|n| n.pending() == 0 && n.next_deadline().is_none())
            && !self.poll()
    }
}
