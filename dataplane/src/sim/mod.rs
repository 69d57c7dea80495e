//! Virtual time: NICs' engines, the links between them, and the order in which things happen. No byte moves and no clock is
//! read, so a link may have any rate, and the same seed gives the same run.
//!
//! **In** flow nodes, links with their impairments ([`Link::rules`]) and what programs do ([`FlowConfig`]). **Out** come what the
//! programs have got done ([`Flow`]), and the counters of engines and links. [`Sim`] owns it
//! all; a node knows nothing of the others, a link nothing of nodes.
//!
//! Time is whole nanoseconds; a link keeps its own clock in picoseconds, so that a packet of 334.4 ns takes just that. Events of
//! one moment happen in the order in which they were planned.

mod alarm;
mod events;
mod flow;
mod followers;
pub mod frame;
mod ingress;
pub mod link;
pub mod loss;
pub mod node;
mod queue;
mod record;
mod routes;
pub mod switch;
#[cfg(test)]
mod tests;
pub mod topology;

use roceline_engine::Nanos;
use roceline_engine::congestion::{CongestionConfig, Rate};

use events::Event;
pub use flow::{Flow, FlowConfig, Operation};
use followers::Followers;
pub use frame::Frame;
use frame::FrameId;
pub use link::{Link, LinkConfig};
use node::Shared;
pub use node::{Node, NodeConfig};
use queue::EventQueue;
use record::Recorder;
use roceline_engine::fabric::switch::{SwitchConfig, SwitchError};
pub use switch::SwitchNode;

/// Number of a node, in the order of [`Sim::add_node`].
pub type NodeId = usize;
/// Number of a switch, in the order of [`Sim::add_switch`].
pub type SwitchId = usize;
/// Number of a flow, in the order of [`Sim::add_flow`].
pub type FlowId = usize;

/// An end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// A NIC.
    Node(NodeId),
    /// A port of a switch.
    Port(SwitchId, u16),
}

impl From<NodeId> for Point {
    fn from(node: NodeId) -> Point {
        Point::Node(node)
    }
}

impl From<(SwitchId, u16)> for Point {
    fn from((switch, port): (SwitchId, u16)) -> Point {
        Point::Port(switch, port)
    }
}

/// All that there is.
#[derive(Default)]
pub struct Sim {
    now: Nanos,
    nodes: Vec<Node>,
    switches: Vec<SwitchNode>,
    /// Both directions of a link follow one another.
    links: Vec<Link>,
    events: EventQueue<Event>,
    shared: Shared,
    /// Flows that begin when others have ended.
    followers: Followers,
    packet_events: u64,
    recorders: Vec<Recorder>,
    /// Of use within one event: what impairments let through.
    through: Vec<FrameId>,
    /// The same: ports of a switch whose pause has ended.
    ended: Vec<u16>,
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

    /// Adds a switch. It needs links and routes ([`Sim::set_routes`]).
    ///
    /// # Errors
    /// If the configuration makes no sense.
    pub fn add_switch(&mut self, config: &SwitchConfig) -> Result<SwitchId, SwitchError> {
        let id = self.switches.len();
        self.switches.push(SwitchNode::new(config)?);
        Ok(id)
    }

    /// Joins two NICs or ports of switches by a link, alike in both directions. Each has one link.
    ///
    /// # Panics
    /// If one of them has a link already, or does not exist.
    pub fn join(&mut self, a: impl Into<Point>, b: impl Into<Point>, config: &LinkConfig) {
        let (a, b) = (a.into(), b.into());
        for (from, to) in [(a, b), (b, a)] {
            let link = self.links.len();
            assert!(self.link_at(from).is_none(), "{from:?} has a link already");
            match from {
                Point::Node(node) => self.nodes[node].joined(link, config.bits_per_s),
                Point::Port(switch, port) => {
                    self.switches[switch].links[usize::from(port)] = Some(link);
                }
            }
            self.links.push(Link::new(from, to, config));
        }
    }

    /// Number of the direction of a link that somebody sends on.
    fn link_at(&self, from: Point) -> Option<usize> {
        match from {
            Point::Node(node) => self.nodes[node].uplink,
            Point::Port(switch, port) => self.switches[switch].links[usize::from(port)],
        }
    }

    /// A switch.
    ///
    /// # Panics
    /// If there is none with this number.
    pub fn switch(&self, id: SwitchId) -> &SwitchNode {
        &self.switches[id]
    }

    /// All switches, in the order of their numbers.
    pub fn switches(&self) -> &[SwitchNode] {
        &self.switches
    }

    /// All NICs, in the order of their numbers.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// All directions of links: a link's two follow one another, in the order of [`Sim::join`].
    pub fn links(&self) -> &[Link] {
        &self.links
    }

    /// A node.
    ///
    /// # Panics
    /// If there is none with this number.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    /// The direction of its link that a NIC, or a port of a switch, sends on.
    ///
    /// # Panics
    /// If it does not exist, or has no link.
    pub fn link(&mut self, from: impl Into<Point>) -> &mut Link {
        let link = self.link_at(from.into()).expect("it was joined");
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

    /// Adds a flow that begins, at its start or later, when others have come to their ends. If one of those fails, it never does.
    ///
    /// # Panics
    /// If a node or one of the others does not exist, or the attributes allow no QP.
    pub fn add_flow_after(&mut self, config: &FlowConfig, others: &[FlowId]) -> FlowId {
        let flows = &self.shared.flows;
        let open = |&other: &FlowId| flows[other].finished.is_none();
        let open: Vec<FlowId> = others.iter().copied().filter(open).collect();
        if open.is_empty() {
            return self.add_flow(config);
        }
        let id = self.shared.flows.len();
        assert!(config.from < self.nodes.len() && config.to < self.nodes.len());
        self.shared.flows.push(Flow::new(config));
        self.followers.add(id, &open);
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

    /// What congestion control allows the sender of a flow's data now: the other end for READs. `None` while the flow has no QP.
    pub fn allowed(&self, id: FlowId) -> Option<Rate> {
        let Flow { config, qps, .. } = &self.shared.flows[id];
        let [from, to] = (*qps)?;
        match config.operation {
            Operation::Read => self.nodes[config.to].qp_rate(to, self.now),
            _ => self.nodes[config.from].qp_rate(from, self.now),
        }
    }

    /// A NIC goes by another configuration of congestion control from now on; the line rate stays that of its link.
    ///
    /// # Panics
    /// If there is none with this number.
    pub fn set_congestion(&mut self, node: NodeId, config: &CongestionConfig) {
        self.nodes[node].set_congestion(config, self.now);
        self.serve(Point::Node(node));
    }

    /// Frames that have left or arrived at a NIC or switch so far.
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
}
