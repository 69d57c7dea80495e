//! Virtual time: NICs' engines, the links between them, and the order in which things happen. No byte moves and no clock is
//! read, so a link may have any rate, and the same seed gives the same run.
//!
//! **In** flow nodes, links with their impairments ([`Link::rules`]) and what programs do ([`FlowConfig`]). **Out** come what the
//! programs have got done ([`Flow`]), and the counters of engines and links. [`Sim`] owns it
//! all; a node knows nothing of the others, a link nothing of nodes.
//!
//! Time is whole nanoseconds; a link keeps its own clock in picoseconds, so that a packet of 334.4 ns takes just that. Events of
//! one moment happen in the order in which they were planned.

mod flow;
pub mod frame;
pub mod link;
pub mod loss;
pub mod node;
mod queue;

use roceline_engine::Nanos;

pub use flow::{Flow, FlowConfig, Operation};
pub use frame::Frame;
use frame::FrameId;
pub use link::{Link, LinkConfig};
use node::Shared;
pub use node::{Node, NodeConfig};
use queue::EventQueue;

/// Number of a node, in the order of [`Sim::add_node`].
pub type NodeId = usize;
/// Number of a flow, in the order of [`Sim::add_flow`].
pub type FlowId = usize;

/// How long the QPs of a flow stay after its end: what is still on its way finds them.
const LINGER: Nanos = Nanos::from_millis(1);

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// A NIC.
    Node(NodeId),
}

/// What happens at a moment.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The last bit of the frame that a link sends has left.
    Left(u32),
    /// Frames that a link's impairments kept back go on.
    Release(u32),
    /// A frame is at the end of a link.
    Arrives { link: u32, frame: FrameId },
    /// A node's engine has a timer that is due.
    Timer(u32),
    /// A flow begins.
    Start(u32),
    /// A flow posts no more.
    Stop(u32),
    /// A flow's QPs go.
    Close(u32),
}

/// All that there is.
#[derive(Default)]
pub struct Sim {
    now: Nanos,
    nodes: Vec<Node>,
    /// Both directions of a link follow one another.
    links: Vec<Link>,
    events: EventQueue<Event>,
    shared: Shared,
    packet_events: u64,
    /// Of use within one event: what impairments let through.
    through: Vec<FrameId>,
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
            let link = Link::new(Point::Node(from), Point::Node(to), config);
            self.links.push(link);
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

    /// Adds a flow: a program that posts requests, and a QP at each end.
    ///
    /// # Panics
    /// If a node does not exist, or the attributes allow no QP.
    pub fn add_flow(&mut self, config: &FlowConfig) -> FlowId {
        assert!(config.from < self.nodes.len() && config.to < self.nodes.len());
        let id = self.shared.flows.len();
        self.shared.flows.push(Flow::new(config));
        if config.start > self.now {
            self.events.push(config.start, Event::Start(id as u32));
        } else {
            self.start(id);
        }
        if let Some(at) = config.stop {
            self.events.push(at, Event::Stop(id as u32));
        }
        id
    }

    /// A flow.
    ///
    /// # Panics
    /// If there is none with this number.
    pub fn flow(&self, id: FlowId) -> &Flow {
        &self.shared.flows[id]
    }

    /// All flows, in the order of their numbers.
    pub fn flows(&self) -> &[Flow] {
        &self.shared.flows
    }

    /// Packets that have left or arrived at a node so far.
    pub fn packet_events(&self) -> u64 {
        self.packet_events
    }

    /// Goes on until `done` says so, which is asked after each event, or nothing happens any more. True if it said so.
    pub fn run(&mut self, mut done: impl FnMut(&Sim) -> bool) -> bool {
        while !done(self) {
            if !self.step(Nanos(u64::MAX)) {
                return false;
            }
        }
        true
    }

    /// Goes on to a moment, what happens in it included. False if nothing will happen any more.
    pub fn run_until(&mut self, end: Nanos) -> bool {
        while self.step(end) {}
        self.now = self.now.max(end);
        self.events.len() > 0
    }

    /// The next event, if it is not after `limit`.
    fn step(&mut self, limit: Nanos) -> bool {
        let Some((at, event)) = self.events.pop(limit) else {
            return false;
        };
        self.now = at;
        self.happen(event);
        true
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Left(link) => {
                let at = link as usize;
                self.packet_events += 1;
                if let Some(frame) = self.links[at].left() {
                    self.impair(at, frame);
                }
                self.serve(self.links[at].from);
            }
            // Of what was planned and then planned earlier, the earlier counts.
            Event::Release(link) => {
                let link = link as usize;
                if self.links[link].release_planned == Some(self.now) {
                    self.links[link].release_planned = None;
                    self.release(link);
                }
            }
            Event::Arrives { link, frame } => {
                self.packet_events += 1;
                let to = self.links[link as usize].to;
                match to {
                    Point::Node(node) => {
                        let frame = self.shared.frames.remove(frame);
                        self.nodes[node].receive(&frame, self.now, &mut self.shared);
                    }
                }
                self.serve(to);
            }
            Event::Timer(node) => {
                let at = node as usize;
                if self.nodes[at].timer_planned == Some(self.now) {
                    self.nodes[at].timer_planned = None;
                    self.nodes[at].advance(self.now, &mut self.shared);
                    self.serve(Point::Node(at));
                }
            }
            Event::Start(flow) => self.start(flow as FlowId),
            Event::Stop(flow) => self.shared.flows[flow as FlowId].stopped = true,
            Event::Close(flow) => self.close(flow as FlowId),
        }
        while let Some(flow) = self.shared.ended.pop() {
            let close = Event::Close(flow as u32);
            self.events.push(self.now + LINGER, close);
        }
    }

    /// A flow begins: its QPs are made and connected, and the first messages posted.
    fn start(&mut self, id: FlowId) {
        let config = self.shared.flows[id].config;
        let ends = [config.from, config.to];
        let depth = config.depth.max(1);
        let qps = [
            self.nodes[ends[0]].create_qp(depth),
            self.nodes[ends[1]].create_qp(1),
        ];
        self.shared.flows[id].qps = Some(qps);
        for (own, other) in [(0, 1), (1, 0)] {
            let peer = (ends[other], self.nodes[ends[other]].rkey(), qps[other]);
            let node = &mut self.nodes[ends[own]];
            node.connect(qps[own], peer, &config.attr, self.now, &mut self.shared);
        }
        for _ in 0..depth {
            self.nodes[config.from].post(id, &mut self.shared.flows);
        }
        self.serve(Point::Node(config.from));
    }

    /// The QPs of a flow go.
    fn close(&mut self, id: FlowId) {
        let flow = &mut self.shared.flows[id];
        let ends = [flow.config.from, flow.config.to];
        for (qp, node) in flow.qps.take().into_iter().flatten().zip(ends) {
            self.nodes[node].destroy_qp(qp);
        }
    }

    /// Somebody may have something to send, or a new deadline.
    fn serve(&mut self, point: Point) {
        match point {
            Point::Node(node) => self.serve_node(node),
        }
    }

    fn serve_node(&mut self, id: NodeId) {
        let Some(at) = self.nodes[id].uplink else {
            return;
        };
        let (node, link) = (&mut self.nodes[id], &mut self.links[at]);
        let shared = &mut self.shared;
        loop {
            for frame in shared.sent.drain(..) {
                link.push(frame, &mut shared.frames);
            }
            if link.is_busy() {
                break;
            }
            if let Some(frame) = link.next(&shared.frames) {
                let left = link.send(frame, &shared.frames, self.now);
                self.events.push(left, Event::Left(at as u32));
                break;
            }
            // Requests are asked for one at a time when the link has nothing else: none grows stale in a queue
            // while a NAK is on its way.
            if !node.emit(self.now, shared) {
                break;
            }
        }
        let due = node.next_deadline().map(|at| at.max(self.now));
        let planned = node.timer_planned;
        if let Some(at) = due.filter(|&at| planned.is_none_or(|planned| at < planned)) {
            node.timer_planned = Some(at);
            self.events.push(at, Event::Timer(id as u32));
        }
    }

    /// A frame is on the wire: its impairments decide what becomes of it.
    fn impair(&mut self, link: usize, frame: FrameId) {
        if self.links[link].is_clean() {
            return self.arrive(link, frame);
        }
        let mut through = std::mem::take(&mut self.through);
        self.links[link].offer(frame, &mut self.shared.frames, self.now, &mut through);
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
            self.events.push(at, Event::Release(link as u32));
        }
    }

    fn arrive(&mut self, link: usize, frame: FrameId) {
        let at = self.now + self.links[link].config().delay;
        let link = link as u32;
        self.events.push(at, Event::Arrives { link, frame });
    }
}

#[cfg(test)]
mod tests {
    use roceline_engine::fabric::impair::{
        Action, Chance, Delay, Matcher, Probability, Reorder, Rule, RuleId, When,
    };
    use roceline_engine::verbs::{Mtu, WcStatus};

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

    fn writes() -> FlowConfig {
        let mut flow = FlowConfig::new(0, 1);
        flow.message = 8192;
        flow.attr.path_mtu = Mtu::M1024;
        flow
    }

    #[test]
    fn flows_of_several_qps_share_a_link() {
        let mut sim = pair(Nanos::from_micros(2));
        let flows = [0; 3].map(|_| sim.add_flow(&writes()));
        let end = Nanos::from_millis(5);
        sim.run(|sim| sim.now() >= end);
        let goodputs = flows.map(|flow| sim.flow(flow).goodput());
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
            sim.link(0).rules().add(rule).expect("a good rule");
        }
        let flow = sim.add_flow(&writes());
        assert!(sim.run(|sim| sim.flow(flow).messages >= 2000));
        assert_eq!(sim.flow(flow).failed, None);
        for (rule, counts) in sim.link(0).rules().rules() {
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
        sim.link(0).rules().add(rule).expect("a good rule");
        sim.add_flow(&writes());
        let mut most = 0;
        let end = Nanos::from_millis(5);
        sim.run(|sim| {
            most = most.max(sim.events.len().saturating_sub(sim.shared.frames.len()));
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
        sim.link(0).rules().add(rule).expect("a good rule");
        let flow = sim.add_flow(&writes());
        assert!(!sim.run(|_| false), "an end of all events");
        let flow = sim.flow(flow);
        assert_eq!(flow.failed, Some(WcStatus::RetryExcErr));
        assert_eq!(flow.messages, 0);
    }
}
