//! A NIC with its programs: an engine and what a poll loop does for it, without the bytes. Placements are done at once, payload
//! is always at hand. In flow frames and time; out flow frames, into the queues of its link, and what programs got done.

mod pauses;

use roceline_engine::congestion::pfc::{PauseReceiver, PfcSettings};
use roceline_engine::congestion::priority::PriorityMask;
use roceline_engine::congestion::{CongestionConfig, Rate};
use roceline_engine::memory::{Access, MrAttr, MrInfo};
use roceline_engine::verbs::{
    Event, MAX_SGE, QpAttr, QpId, QpInit, QpType, RC_STEPS, RecvQueues, RecvWr, SendWr, Sge,
    WcStatus, mask,
};
use roceline_engine::wire::{Gid, Opcode, udp, udp_sport};
use roceline_engine::{
    AckPolicy, Counters, Engine, EngineConfig, Nanos, Outcome, Outputs, Retransmission, TxDesc,
};

use super::alarm::Alarm;
use super::flow::Flow;
use super::frame::{Frame, FrameId, Frames, address};
use super::ingress::Ingress;
use super::{FlowId, NodeId};

/// The only protection domain.
const PD: u32 = 1;
/// Where all memory begins, as programs and peers name it.
pub const BASE: u64 = 1 << 40;
/// As much memory as there are addresses for: nobody touches it.
const MEMORY: u64 = 1 << 40;
/// More than anybody needs; memory is taken for those that exist.
const MAX_QPS: u32 = 1 << 20;

/// How to make a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeConfig {
    /// Packets that a requester may have unacknowledged.
    pub window: u32,
    /// When responders acknowledge.
    pub ack_policy: AckPolicy,
    /// How requesters time their retries.
    pub retransmission: Retransmission,
    /// Congestion control. Its line rate is that of the node's link, whatever it says.
    pub congestion: CongestionConfig,
    /// Pauses that it obeys and asks for.
    pub pfc: PfcSettings,
    /// How fast it takes received frames in, bits per second of link time; `None`: as they come. What waits is in the buffer that
    /// `pfc` speaks of.
    pub receive_bits_per_s: Option<u64>,
    /// Of QPNs and keys.
    pub seed: u64,
}

impl Default for NodeConfig {
    /// As the daemon has them.
    fn default() -> NodeConfig {
        NodeConfig {
            window: 256,
            ack_policy: AckPolicy::Coalesced,
            retransmission: Retransmission::Spec,
            congestion: CongestionConfig::default(),
            pfc: PfcSettings::default(),
            receive_bits_per_s: None,
            seed: 1,
        }
    }
}

/// Who is at the other end of a QP, and how its packets look.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub flow: FlowId,
    pub node: NodeId,
    pub rkey: u32,
    pub qpn: u32,
    pub udp_sport: u16,
    pub traffic_class: u8,
    pub flow_hash: u32,
}

/// What all nodes share during a call.
pub(super) struct Shared {
    pub frames: Frames,
    pub flows: Vec<Flow>,
    /// Flows that have come to their end since somebody looked.
    pub ended: Vec<FlowId>,
    /// Frames that a node sends, in order.
    pub sent: Vec<FrameId>,
    out: Outputs,
    /// Takes the engine's place to write to while `out` is worked off.
    spare: Outputs,
}

impl Default for Shared {
    fn default() -> Shared {
        Shared {
            frames: Frames::default(),
            flows: Vec::new(),
            ended: Vec::new(),
            sent: Vec::new(),
            out: Outputs::new(),
            spare: Outputs::new(),
        }
    }
}

/// Receive requests never run out, while there are SENDs to take them.
struct Receives {
    lkey: u32,
}

/// What is left of them when a QP has failed and its receive queue is flushed.
struct NoReceives;

impl RecvQueues for NoReceives {
    fn take(&mut self, _qp: QpId, _wr: &mut RecvWr) -> bool {
        false
    }
}

impl RecvQueues for Receives {
    fn take(&mut self, _qp: QpId, wr: &mut RecvWr) -> bool {
        let sge = Sge {
            addr: BASE,
            length: u32::MAX >> 1,
            lkey: self.lkey,
        };
        *wr = RecvWr {
            wr_id: 0,
            num_sge: 1,
            sges: [sge; MAX_SGE],
        };
        true
    }
}

/// A NIC.
pub struct Node {
    /// The link that it sends on.
    pub(super) uplink: Option<usize>,
    /// Events for [`Node::advance`].
    pub(super) alarm: Alarm,
    id: NodeId,
    engine: Engine,
    config: NodeConfig,
    pauses: PauseReceiver,
    pub(super) ingress: Option<Box<Ingress>>,
    paused: PriorityMask,
    mr: MrInfo,
    /// By the index in the QPN.
    peers: Vec<Option<Peer>>,
}

impl Node {
    pub(super) fn new(id: NodeId, config: &NodeConfig) -> Node {
        let mut engine = Engine::new(EngineConfig {
            max_qps: MAX_QPS,
            max_mrs: 16,
            window: config.window,
            ack_policy: config.ack_policy,
            retransmission: config.retransmission,
            owner: 0,
            owner_bits: 0,
            congestion: config.congestion,
            seed: config.seed.wrapping_add(id as u64),
        });
        let attr = MrAttr {
            pd: PD,
            addr: BASE,
            iova: BASE,
            len: MEMORY,
            access: Access(Access::LOCAL_WRITE.0 | Access::REMOTE_WRITE.0 | Access::REMOTE_READ.0),
        };
        let mr = engine.register(attr).expect("an empty table has room");
        Node {
            uplink: None,
            alarm: Alarm::default(),
            id,
            engine,
            config: *config,
            // Made anew when the rate of its link is known.
            pauses: PauseReceiver::new(&config.pfc, 1),
            paused: 0,
            ingress: None,
            mr,
            peers: Vec::new(),
        }
    }

    /// What its engine counted.
    pub fn counters(&self) -> &Counters {
        self.engine.counters()
    }

    /// What it counted for a QP, while that exists.
    pub fn qp_counters(&self, qp: QpId) -> Option<&Counters> {
        self.engine.qp_counters(qp)
    }

    /// What congestion control allows a QP at the present moment of its simulation.
    pub fn qp_rate(&self, qp: QpId, now: Nanos) -> Option<Rate> {
        self.engine.qp_rate(qp, now)
    }

    /// Goes by another configuration of congestion control from now on.
    pub(super) fn set_congestion(&mut self, config: &CongestionConfig, now: Nanos) {
        let line_rate = self.config.congestion.line_rate;
        self.config.congestion = CongestionConfig {
            line_rate,
            ..*config
        };
        self.engine.set_congestion(&self.config.congestion, now);
    }

    /// Its address.
    pub fn gid(&self) -> Gid {
        address(self.id)
    }

    /// Its link is there.
    pub(super) fn joined(&mut self, uplink: usize, bits_per_s: u64) {
        self.uplink = Some(uplink);
        let pfc = &self.config.pfc;
        self.pauses = PauseReceiver::new(pfc, bits_per_s);
        self.config.congestion.line_rate = Rate(bits_per_s);
        self.engine
            .set_congestion(&self.config.congestion, Nanos::ZERO);
        let slow = |rate| Box::new(Ingress::new(rate, pfc, bits_per_s));
        self.ingress = self.config.receive_bits_per_s.map(slow);
    }

    /// The key to its memory.
    pub(super) fn rkey(&self) -> u32 {
        self.mr.rkey
    }

    /// A QP on which a program may have `depth` requests under way.
    pub(super) fn create_qp(&mut self, depth: u32) -> QpId {
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: PD,
            send_cq: 0,
            recv_cq: 0,
            sq_sig_all: true,
            max_send_wr: depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            srq: None,
        };
        self.engine
            .create_qp(&init)
            .expect("a node has room for a million QPs")
    }

    pub(super) fn connect(
        &mut self,
        qp: QpId,
        flow: FlowId,
        (node, rkey, peer): (NodeId, u32, QpId),
        attr: &QpAttr,
        now: Nanos,
        shared: &mut Shared,
    ) {
        let index = self.index(qp);
        if self.peers.len() <= index {
            self.peers.resize(index + 1, None);
        }
        let udp_sport = udp_sport(attr.path.flow_label, qp.0, peer.0);
        self.peers[index] = Some(Peer {
            flow,
            node,
            rkey,
            qpn: peer.0,
            udp_sport,
            traffic_class: self.engine.ecn_of(attr.path.traffic_class, attr.path.sl),
            flow_hash: hash(self.id as u64, node as u64, udp_sport.into()),
        });
        let mut attr = *attr;
        attr.path.sgid = address(self.id);
        attr.path.dgid = address(node);
        attr.dest_qpn = peer.0;
        for (state, what) in RC_STEPS {
            attr.state = state;
            self.engine
                .modify_qp(qp, &attr, mask::STATE | what, now, &mut shared.out)
                .expect("the steps from RESET to RTS are allowed");
        }
        self.collect(now, shared);
    }

    /// A QP is of no more use.
    pub(super) fn destroy_qp(&mut self, qp: QpId) {
        // One that does not exist has been destroyed already.
        let _ = self.engine.destroy_qp(qp);
    }

    fn index(&self, qp: QpId) -> usize {
        let (owner_bits, index_bits) = self.engine.qpn_layout();
        (qp.0 >> owner_bits) as usize & ((1 << index_bits) - 1)
    }

    fn peer(&self, qp: QpId) -> Option<&Peer> {
        self.peers.get(self.index(qp))?.as_ref()
    }

    /// One more message of a flow, if it has one.
    pub(super) fn post(&mut self, number: FlowId, flows: &mut [Flow]) {
        let flow = &mut flows[number];
        let Some([qp, _]) = flow.qps else { return };
        let Some(&Peer { rkey, .. }) = self.peer(qp) else {
            return;
        };
        let Some(length) = flow.next_message() else {
            return;
        };
        let wr = SendWr {
            wr_id: number as u64,
            opcode: Some(flow.config.operation.opcode()),
            signaled: true,
            num_sge: 1,
            length: length.into(),
            rkey,
            remote_addr: BASE,
            ..SendWr::default()
        };
        let sge = Sge {
            addr: BASE,
            length,
            lkey: self.mr.lkey,
        };
        // Never full: a flow posts when one of its messages has ended, and after a failure not at all.
        let _ = self.engine.post_send(qp, &wr, &[sge]);
    }

    /// A frame has arrived.
    pub(super) fn receive(&mut self, frame: &Frame, now: Nanos, shared: &mut Shared) {
        if let Some(peer) = self.peer(QpId(frame.dest_qpn)) {
            shared.flows[peer.flow].received += u64::from(frame.payload);
        }
        let queues = &mut Receives { lkey: self.mr.lkey };
        self.engine
            .rx(&frame.packet(), 0, now, queues, &mut shared.out);
        self.collect(now, shared);
        self.engine.rx_end(now, &mut shared.out);
        self.collect(now, shared);
    }

    /// Timers that are due.
    pub(super) fn advance(&mut self, now: Nanos, shared: &mut Shared) {
        self.obey(now);
        while self.engine.advance(now, &mut NoReceives, &mut shared.out) {
            self.collect(now, shared);
        }
        self.collect(now, shared);
    }

    /// Asks for one packet; whether there was one.
    pub(super) fn emit(&mut self, now: Nanos, shared: &mut Shared) -> bool {
        self.engine.tx(1, now, &mut shared.out);
        let any = !shared.out.tx.is_empty();
        self.collect(now, shared);
        any
    }

    /// When the engine must be called even if nothing else happens.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        let ingress = self.ingress.as_ref();
        let asked = ingress.and_then(|ingress| ingress.next_deadline());
        let pauses = [self.pauses.next_deadline(), asked];
        let all = pauses.into_iter().chain([self.engine.next_deadline()]);
        all.flatten().min()
    }

    /// Carries out what the engine asked for, and what comes of that.
    fn collect(&mut self, now: Nanos, shared: &mut Shared) {
        while !shared.out.is_empty() {
            std::mem::swap(&mut shared.out, &mut shared.spare);
            for at in 0..shared.spare.tx.len() {
                let desc = &shared.spare.tx[at];
                let Some(peer) = self.peer(desc.qp) else {
                    continue;
                };
                shared.flows[peer.flow].sent += u64::from(desc.len);
                let id = shared.frames.insert(self.frame(desc, peer));
                shared.sent.push(id);
            }
            for place in &shared.spare.place {
                let (qp, epoch, side) = (place.qp, place.epoch, place.side);
                let (done, queues, out) = (Outcome::Done, &mut NoReceives, &mut shared.out);
                self.engine.placed(qp, epoch, side, done, now, queues, out);
            }
            for at in 0..shared.spare.events.len() {
                let event = shared.spare.events[at];
                self.event(&event, now, shared);
            }
            shared.spare.clear();
        }
    }

    fn event(&mut self, event: &Event, now: Nanos, shared: &mut Shared) {
        let Event::Completion(completion) = event else {
            return;
        };
        if completion.recv {
            return;
        }
        let number = completion.wr_id as FlowId;
        let flow = &mut shared.flows[number];
        if completion.status != WcStatus::Success {
            flow.failed.get_or_insert(completion.status);
        } else if flow.completed(now) {
            shared.ended.push(number);
        } else {
            self.post(number, &mut shared.flows);
        }
    }

    fn frame(&self, desc: &TxDesc, peer: &Peer) -> Frame {
        let (traffic_class, udp_sport) = match desc.opcode {
            Opcode::CNP => (self.engine.np_params().traffic_class(), udp::CNP_SRC_PORT),
            _ => (peer.traffic_class, peer.udp_sport),
        };
        Frame {
            ext: desc.ext,
            src: self.id as u32,
            dst: peer.node as u32,
            dest_qpn: peer.qpn,
            psn: desc.psn,
            payload: desc.len,
            flow_hash: peer.flow_hash,
            udp_sport,
            opcode: desc.opcode,
            traffic_class,
            ack_req: desc.ack_req,
            solicited: desc.solicited,
        }
    }
}

/// Mixes what tells flows apart (the finalizer of splitmix64).
fn hash(src: u64, dst: u64, sport: u64) -> u32 {
    let mut v = (src << 40 ^ dst << 16 ^ sport).wrapping_add(0x9e37_79b9_7f4a_7c15);
    v = (v ^ v >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    v = (v ^ v >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (v ^ v >> 31) as u32
}

#[cfg(test)]
pub(super) mod tests {
    use roceline_engine::verbs::Mtu;

    use super::super::flow::FlowConfig;
    use super::super::frame::Arrived;
    use super::*;

    /// A full packet.
    pub fn frame(mtu: Mtu) -> Frame {
        let mut shared = Shared::default();
        let mut node = Node::new(0, &NodeConfig::default());
        let mut config = FlowConfig::new(0, 1);
        config.attr.path_mtu = mtu;
        let qp = node.create_qp(1);
        let peer = (1, node.rkey(), QpId(1));
        node.connect(qp, 0, peer, &config.attr, Nanos::ZERO, &mut shared);
        shared.flows.push(Flow::new(&config));
        shared.flows[0].qps = Some([qp, QpId(1)]);
        node.post(0, &mut shared.flows);
        assert!(node.emit(Nanos::ZERO, &mut shared));
        match shared.frames.take(shared.sent[0]) {
            Arrived::Roce(frame) => frame,
            Arrived::Pause(_) => unreachable!("an engine sends packets"),
        }
    }
}
