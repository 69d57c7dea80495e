//! Virtual time: NICs' engines, the links between them, and the order in which things happen. No byte moves and no clock is
//! read, so a link may have any rate, and the same seed gives the same run.
//!
//! **In** flow nodes, links with their impairments ([`Link::rules`]), connected QPs and what programs want sent ([`Node::write`]).
//! **Out** come what the programs have got done ([`Node::flow`]), and the counters of engines and links. [`Sim`] owns it
//! all; a node knows nothing of the others, a link nothing of nodes.
//!
//! Time is whole nanoseconds; a link keeps its own clock in picoseconds, so that a packet of 334.4 ns takes just that. Events of
//! one moment happen in the order in which they were planned.

pub mod link;
pub mod loss;
pub mod node;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use roceline_engine::Nanos;
use roceline_engine::verbs::{QpAttr, QpId};
use slab::Slab;

pub use link::{Frame, Link, LinkConfig};
pub use node::{Flow, Node, NodeConfig};

/// Number of a node, in the order of [`Sim::add_node`].
pub type NodeId = usize;

/// What happens at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The last bit of the frame at the head of a link's queue has left.
    Left(usize),
    /// Frames that a link's impairments kept back go on.
    Release(usize),
    /// A frame, by its place in `frames`, is at the end of a link.
    Arrives { link: usize, frame: usize },
    /// A node's engine has a timer that is due.
    Timer(NodeId),
}

/// All that there is.
#[derive(Default)]
pub struct Sim {
    now: Nanos,
    nodes: Vec<Node>,
    links: Vec<Link>,
    /// Earliest event first; the serial number keeps the order within a moment.
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    serial: u64,
    /// Frames on their way.
    frames: Slab<Frame>,
    /// Of use within one event: what impairments let through.
    through: Vec<Frame>,
}

impl Sim {
    /// Nothing yet, at time zero.
    pub fn new() -> Sim {
        Sim::default()
    }

    /// The present moment.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Adds a NIC.
    pub fn add_node(&mut self, config: &NodeConfig) -> NodeId {
        let id = self.nodes.len();
        self.nodes.push(Node::new(id, config));
        id
    }

    /// Joins two nodes by a link, alike in both directions. Each node has one link.
    ///
    /// # Panics
    /// If one of them has a link already, or does not exist.
    pub fn join(&mut self, a: NodeId, b: NodeId, config: &LinkConfig) {
        for (from, to) in [(a, b), (b, a)] {
            let node = &mut self.nodes[from];
            assert!(node.uplink.is_none(), "node {from} has a link already");
            node.uplink = Some(self.links.len());
            self.links.push(Link::new(from, to, config));
        }
    }

    /// A node.
    ///
    /// # Panics
    /// If there is none with this number.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    /// The direction of its link that a node sends on.
    ///
    /// # Panics
    /// If there is no such node, or it has no link.
    pub fn link(&mut self, from: NodeId) -> &mut Link {
        let link = self.nodes[from].uplink.expect("the node was joined");
        &mut self.links[link]
    }

    /// A QP on each of two nodes, connected to one another with the same attributes. Addresses and QPNs are filled in.
    ///
    /// # Panics
    /// If a node has no room for a QP, or the attributes allow none.
    pub fn connect(&mut self, a: NodeId, b: NodeId, attr: &QpAttr) -> [QpId; 2] {
        let ids = [self.nodes[a].create_qp(), self.nodes[b].create_qp()];
        for (own, other, at) in [(a, b, 0), (b, a, 1)] {
            let (gid, rkey) = self.nodes[other].address();
            let peer = node::Peer {
                gid,
                rkey,
                qpn: ids[1 - at].0,
            };
            self.nodes[own].connect(ids[at], peer, attr, self.now);
        }
        ids
    }

    /// A program on a node keeps `depth` WRITEs of `len` bytes under way on a QP, for ever. Its number, for [`Node::flow`].
    ///
    /// # Panics
    /// If there is no such node or QP.
    pub fn write(&mut self, node: NodeId, qp: QpId, len: u32, depth: u32) -> usize {
        let flow = self.nodes[node].write(qp, len, depth);
        self.serve(node);
        flow
    }

    /// Goes on until `done` says so, which is asked after each event, or nothing happens any more. True if it said so.
    pub fn run(&mut self, mut done: impl FnMut(&Sim) -> bool) -> bool {
        while !done(self) {
            let Some(Reverse((at, _, event))) = self.events.pop() else {
                return false;
            };
            self.now = at;
            self.happen(event);
        }
        true
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Left(link) => {
                if let Some(frame) = self.links[link].left() {
                    self.impair(link, frame);
                }
                self.send(link);
                self.serve(self.links[link].from);
            }
            // Of what was planned and then planned earlier, the earlier counts.
            Event::Release(link) => {
                if self.links[link].release_planned == Some(self.now) {
                    self.links[link].release_planned = None;
                    self.release(link);
                }
            }
            Event::Arrives { link, frame } => {
                let frame = self.frames.remove(frame);
                let to = self.links[link].to;
                self.nodes[to].receive(&frame, self.now);
                self.serve(to);
            }
            Event::Timer(node) => {
                if self.nodes[node].timer_planned == Some(self.now) {
                    self.nodes[node].timer_planned = None;
                    self.nodes[node].advance(self.now);
                    self.serve(node);
                }
            }
        }
    }

    fn plan(&mut self, at: Nanos, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((at, self.serial, event)));
    }

    /// A node may have something to send, or a new deadline.
    fn serve(&mut self, node: NodeId) {
        let Some(link) = self.nodes[node].uplink else {
            return;
        };
        loop {
            let link = &mut self.links[link];
            while let Some(frame) = self.nodes[node].out_queue.pop_front() {
                link.push(frame);
            }
            // Requests are asked for one at a time when the link has nothing else: none grows stale in a queue
            // while a NAK is on its way.
            if !link.is_idle() || !self.nodes[node].emit(self.now) {
                break;
            }
        }
        self.send(link);
        let due = self.nodes[node].next_deadline().map(|at| at.max(self.now));
        let planned = self.nodes[node].timer_planned;
        if let Some(at) = due.filter(|&at| planned.is_none_or(|planned| at < planned)) {
            self.nodes[node].timer_planned = Some(at);
            self.plan(at, Event::Timer(node));
        }
    }

    /// Starts the next frame on a link that is free.
    fn send(&mut self, link: usize) {
        if let Some(at) = self.links[link].start(self.now) {
            self.plan(at, Event::Left(link));
        }
    }

    /// A frame is on the wire: its impairments decide what becomes of it.
    fn impair(&mut self, link: usize, frame: Frame) {
        let now = self.now;
        if self.links[link].is_clean() {
            return self.arrive(link, frame);
        }
        let mut through = std::mem::take(&mut self.through);
        self.links[link].offer(frame, now, &mut through);
        for frame in through.drain(..) {
            self.arrive(link, frame);
        }
        self.through = through;
        self.release(link);
    }

    fn release(&mut self, link: usize) {
        while let Some(frame) = self.links[link].release(self.now) {
            self.arrive(link, frame);
        }
        let due = self.links[link].next_release();
        let planned = self.links[link].release_planned;
        if let Some(at) = due.filter(|&at| planned.is_none_or(|planned| at < planned)) {
            self.links[link].release_planned = Some(at);
            self.plan(at, Event::Release(link));
        }
    }

    fn arrive(&mut self, link: usize, frame: Frame) {
        let at = self.now + self.links[link].delay;
        let frame = self.frames.insert(frame);
        self.plan(at, Event::Arrives { link, frame });
    }
}

#[cfg(test)]
mod tests {
    use roceline_engine::fabric::impair::{
        Action, Chance, Delay, Matcher, Probability, Reorder, Rule, RuleId, When,
    };
    use roceline_engine::memory::Access;
    use roceline_engine::verbs::Mtu;

    use super::*;

    fn pair(delay: Nanos) -> Sim {
        let mut sim = Sim::new();
        let ends = [0, 1].map(|_| sim.add_node(&NodeConfig::default()));
        let link = LinkConfig {
            bits_per_s: 25_000_000_000,
            delay,
            queue_bytes: 1 << 16,
        };
        sim.join(ends[0], ends[1], &link);
        sim
    }

    fn attr() -> QpAttr {
        QpAttr {
            access: Access(Access::REMOTE_WRITE.0),
            path_mtu: Mtu::M1024,
            timeout: 8,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        }
    }

    #[test]
    fn flows_of_several_qps_share_a_link() {
        let mut sim = pair(Nanos::from_micros(2));
        let flows = [0; 3].map(|_| {
            let [qp, _] = sim.connect(0, 1, &attr());
            sim.write(0, qp, 8192, 16)
        });
        let end = Nanos::from_millis(5);
        sim.run(|sim| sim.now() >= end);
        let goodputs = flows.map(|flow| sim.node(0).flow(flow).goodput());
        let all: f64 = goodputs.iter().sum();
        // 1024 of 1106 bytes of link time are payload.
        assert!(
            (0.95..1.001).contains(&(all / 25e9 / (1024.0 / 1106.0))),
            "{goodputs:?}"
        );
        for goodput in goodputs {
            assert!((0.9..1.1).contains(&(goodput * 3.0 / all)), "{goodputs:?}");
        }
        assert_eq!(sim.link(0).overflowed, 0);
    }

    #[test]
    fn late_and_doubled_packets_arrive_and_messages_get_done() {
        let mut sim = pair(Nanos::from_micros(2));
        let actions = [
            Action::Delay(Delay::Uniform {
                min: Nanos::ZERO,
                max: Nanos::from_micros(3),
            }),
            Action::Duplicate {
                copies: 2,
                after: Some(Delay::Constant(Nanos(700))),
            },
            Action::Reorder(Reorder::Packets {
                count: 3,
                within: Nanos::from_micros(50),
            }),
        ];
        for (number, action) in (1..).zip(actions) {
            let chance = Chance::Each(Probability::ratio(1, 100));
            let rule = Rule {
                id: RuleId(number),
                name: String::new(),
                matcher: Matcher::default(),
                when: When {
                    chance,
                    ..When::default()
                },
                action,
                seed: number.into(),
            };
            sim.link(0).rules.add(rule).expect("a good rule");
        }
        let [qp, _] = sim.connect(0, 1, &attr());
        let flow = sim.write(0, qp, 8192, 16);
        assert!(sim.run(|sim| sim.node(0).flow(flow).messages >= 2000));
        assert_eq!(sim.node(0).flow(flow).failed, None);
        for (rule, counts) in sim.link(0).rules.rules() {
            assert!(counts.hit > 0, "{rule:?}");
        }
        let receiver = sim.node(1).counters();
        assert!(receiver.duplicate_request > 0 && receiver.out_of_sequence > 0);
    }

    /// Each frame on its way is an event; beside them there are a few for the links, and the engines' timers.
    #[test]
    fn what_was_planned_in_vain_does_not_pile_up() {
        let mut sim = pair(Nanos::from_micros(2));
        let rule = Rule {
            id: RuleId(1),
            name: String::new(),
            matcher: Matcher::default(),
            when: When::default(),
            action: Action::Reorder(Reorder::Delay(Delay::Uniform {
                min: Nanos::ZERO,
                max: Nanos::from_micros(3),
            })),
            seed: 1,
        };
        sim.link(0).rules.add(rule).expect("a good rule");
        let [qp, _] = sim.connect(0, 1, &attr());
        sim.write(0, qp, 8192, 16);
        let mut most = 0;
        let end = Nanos::from_millis(5);
        sim.run(|sim| {
            most = most.max(sim.events.len() - sim.frames.len());
            sim.now() >= end
        });
        assert!(most < 64, "{most} events beside frames");
    }

    #[test]
    fn a_qp_whose_peer_is_cut_off_fails_and_nothing_more_happens() {
        let mut sim = pair(Nanos::from_micros(2));
        let rule = Rule {
            id: RuleId(1),
            name: String::new(),
            matcher: Matcher::default(),
            when: When::default(),
            action: Action::Drop,
            seed: 1,
        };
        sim.link(0).rules.add(rule).expect("a good rule");
        let [qp, _] = sim.connect(0, 1, &attr());
        let flow = sim.write(0, qp, 8192, 16);
        assert!(!sim.run(|_| false), "an end of all events");
        let flow = sim.node(0).flow(flow);
        assert_eq!(
            flow.failed,
            Some(roceline_engine::verbs::WcStatus::RetryExcErr)
        );
        assert_eq!(flow.messages, 0);
    }
}
