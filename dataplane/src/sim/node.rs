//! A NIC with its programs: an engine and what a poll loop does for it, without the bytes. Placements are done at once, payload
//! is always at hand. In flow frames and time; out flow frames, in [`Node::out_queue`], and what programs got done.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;

use roceline_engine::fabric::impair::{Direction, PacketView, PathView};
use roceline_engine::memory::{Access, MrAttr, MrInfo};
use roceline_engine::verbs::{
    Event, QpAttr, QpId, QpInit, QpType, RC_STEPS, RecvQueues, RecvWr, SendWr, Sge, WcStatus,
    WrOpcode, mask,
};
use roceline_engine::wire::{Gid, Packet};
use roceline_engine::{
    AckPolicy, Counters, Engine, EngineConfig, Nanos, Outcome, Outputs, Retransmission, TxDesc,
};

use super::link::Frame;

/// The only protection domain.
const PD: u32 = 1;
/// Where all memory begins, as programs and peers name it.
const BASE: u64 = 1 << 40;
/// As much memory as there are addresses for: nobody touches it.
const MEMORY: u64 = 1 << 40;
/// Requests that a program may have under way.
const MAX_SEND: u32 = 1024;

/// How to make a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeConfig {
    /// Packets that a requester may have unacknowledged.
    pub window: u32,
    /// When responders acknowledge.
    pub ack_policy: AckPolicy,
    /// How requesters time their retries.
    pub retransmission: Retransmission,
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
            seed: 1,
        }
    }
}

/// Who is at the other end of a QP.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer {
    pub gid: Gid,
    pub rkey: u32,
    pub qpn: u32,
}

/// A program that writes, and what came of it.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Its QP.
    pub qp: QpId,
    /// Bytes of a message.
    pub len: u32,
    /// Messages that are acknowledged.
    pub messages: u64,
    /// When the first of them was.
    pub first: Nanos,
    /// When the last of them was.
    pub last: Nanos,
    /// How its QP failed, if it did.
    pub failed: Option<WcStatus>,
}

impl Flow {
    /// Acknowledged bits per second, from the first acknowledgement to the last.
    pub fn goodput(&self) -> f64 {
        let bits = self.messages.saturating_sub(1) as f64 * f64::from(self.len) * 8.0;
        let time = self.last.saturating_sub(self.first).0.max(1);
        bits * 1e9 / time as f64
    }
}

/// Nobody receives: WRITEs need no receive request.
struct NoReceives;

impl RecvQueues for NoReceives {
    fn take(&mut self, _qp: QpId, _wr: &mut RecvWr) -> bool {
        false
    }
}

/// A NIC.
pub struct Node {
    /// The link that it sends on.
    pub(super) uplink: Option<usize>,
    /// Frames for it, in order.
    pub(super) out_queue: VecDeque<Frame>,
    /// An event for [`Node::advance`] is planned.
    pub(super) timer_planned: Option<Nanos>,
    engine: Engine,
    out: Outputs,
    /// Takes the engine's place to write to while `out` is worked off.
    spare: Outputs,
    gid: Gid,
    mr: MrInfo,
    peers: BTreeMap<QpId, Peer>,
    flows: Vec<Flow>,
}

impl Node {
    pub(super) fn new(number: usize, config: &NodeConfig) -> Node {
        let mut engine = Engine::new(EngineConfig {
            max_qps: 1024,
            max_mrs: 16,
            window: config.window,
            ack_policy: config.ack_policy,
            retransmission: config.retransmission,
            owner: 0,
            owner_bits: 0,
            seed: config.seed.wrapping_add(number as u64),
        });
        let attr = MrAttr {
            pd: PD,
            addr: BASE,
            iova: BASE,
            len: MEMORY,
            access: Access(Access::LOCAL_WRITE.0 | Access::REMOTE_WRITE.0 | Access::REMOTE_READ.0),
        };
        let mr = engine.register(attr).expect("an empty table has room");
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 1)) + number as u32);
        Node {
            uplink: None,
            out_queue: VecDeque::new(),
            timer_planned: None,
            engine,
            out: Outputs::new(),
            spare: Outputs::new(),
            gid: Gid::from_ip(address.into()),
            mr,
            peers: BTreeMap::new(),
            flows: Vec::new(),
        }
    }

    /// What its engine counted.
    pub fn counters(&self) -> &Counters {
        self.engine.counters()
    }

    /// What a program has got done.
    ///
    /// # Panics
    /// If there is none with this number.
    pub fn flow(&self, number: usize) -> &Flow {
        &self.flows[number]
    }

    /// Its address, and the key to its memory.
    pub(super) fn address(&self) -> (Gid, u32) {
        (self.gid, self.mr.rkey)
    }

    pub(super) fn create_qp(&mut self) -> QpId {
        let init = QpInit {
            qp_type: QpType::Rc,
            pd: PD,
            send_cq: 0,
            recv_cq: 0,
            sq_sig_all: true,
            max_send_wr: MAX_SEND,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            srq: None,
        };
        self.engine
            .create_qp(&init)
            .expect("a node has room for a thousand QPs")
    }

    pub(super) fn connect(&mut self, qp: QpId, peer: Peer, attr: &QpAttr, now: Nanos) {
        self.peers.insert(qp, peer);
        let mut attr = *attr;
        attr.path.sgid = self.gid;
        attr.path.dgid = peer.gid;
        attr.dest_qpn = peer.qpn;
        for (state, what) in RC_STEPS {
            attr.state = state;
            self.engine
                .modify_qp(qp, &attr, mask::STATE | what, now, &mut self.out)
                .expect("the steps from RESET to RTS are allowed");
        }
    }

    pub(super) fn write(&mut self, qp: QpId, len: u32, depth: u32) -> usize {
        assert!(self.peers.contains_key(&qp), "the QP is not of this node");
        self.flows.push(Flow {
            qp,
            len,
            messages: 0,
            first: Nanos::ZERO,
            last: Nanos::ZERO,
            failed: None,
        });
        let number = self.flows.len() - 1;
        for _ in 0..depth.min(MAX_SEND) {
            self.post(number);
        }
        number
    }

    /// One more message of a flow.
    fn post(&mut self, flow: usize) {
        let Flow { qp, len, .. } = self.flows[flow];
        let wr = SendWr {
            wr_id: flow as u64,
            opcode: Some(WrOpcode::Write),
            signaled: true,
            num_sge: 1,
            length: len.into(),
            rkey: self.peers[&qp].rkey,
            remote_addr: BASE,
            ..SendWr::default()
        };
        let sge = Sge {
            addr: BASE,
            length: len,
            lkey: self.mr.lkey,
        };
        // Never full: a flow posts when one of its messages has ended, and after a failure not at all.
        let _ = self.engine.post_send(qp, &wr, &[sge]);
    }

    /// A frame has arrived.
    pub(super) fn receive(&mut self, frame: &Frame, now: Nanos) {
        self.engine
            .rx(&frame.packet, 0, now, &mut NoReceives, &mut self.out);
        self.collect(now);
        self.engine.rx_end(now, &mut self.out);
        self.collect(now);
    }

    /// Timers that are due.
    pub(super) fn advance(&mut self, now: Nanos) {
        while self.engine.advance(now, &mut NoReceives, &mut self.out) {
            self.collect(now);
        }
        self.collect(now);
    }

    /// Asks for one packet of a requester; whether there was one.
    pub(super) fn emit(&mut self, now: Nanos) -> bool {
        self.engine.tx(1, now, &mut self.out);
        let any = !self.out.tx.is_empty();
        self.collect(now);
        any
    }

    /// When the engine must be called even if nothing else happens.
    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        self.engine.next_deadline()
    }

    /// Carries out what the engine asked for, and what comes of that.
    fn collect(&mut self, now: Nanos) {
        while !self.out.is_empty() {
            let spare = std::mem::replace(&mut self.spare, Outputs::hollow());
            let mut out = std::mem::replace(&mut self.out, spare);
            for desc in &out.tx {
                let frame = self.frame(desc);
                self.out_queue.push_back(frame);
            }
            for place in &out.place {
                let (qp, epoch, side) = (place.qp, place.epoch, place.side);
                let (done, queues) = (Outcome::Done, &mut NoReceives);
                self.engine
                    .placed(qp, epoch, side, done, now, queues, &mut self.out);
            }
            for event in &out.events {
                self.event(event, now);
            }
            out.clear();
            self.spare = out;
        }
    }

    fn event(&mut self, event: &Event, now: Nanos) {
        let Event::Completion(completion) = event else {
            return;
        };
        let number = completion.wr_id as usize;
        let flow = &mut self.flows[number];
        if completion.status == WcStatus::Success {
            if flow.messages == 0 {
                flow.first = now;
            }
            flow.messages += 1;
            flow.last = now;
            self.post(number);
        } else {
            flow.failed.get_or_insert(completion.status);
        }
    }

    fn frame(&self, desc: &TxDesc) -> Frame {
        let peer = self.peers[&desc.qp];
        let path = PathView {
            direction: Direction::Tx,
            dst: peer.gid,
            traffic_class: 0,
            udp_sport: 0xc000,
            dest_qpn: peer.qpn,
        };
        Frame {
            packet: Packet {
                src: self.gid,
                dst: peer.gid,
                opcode: desc.opcode,
                solicited: desc.solicited,
                ack_req: desc.ack_req,
                becn: false,
                ce: false,
                pkey: 0xffff,
                dest_qpn: peer.qpn,
                psn: desc.psn,
                ext: desc.ext,
                payload_len: desc.len,
                payload_offset: 0,
                traffic_class: 0,
            },
            view: PacketView::of_desc(desc, &path),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use roceline_engine::verbs::Mtu;
    use roceline_engine::wire::Psn;

    use super::*;

    /// The first packet of a WRITE of so many bytes.
    pub fn frame(len: u32) -> Frame {
        let mut node = Node::new(0, &NodeConfig::default());
        let qp = node.create_qp();
        let (gid, rkey) = node.address();
        let attr = QpAttr {
            path_mtu: Mtu::M4096,
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            ..QpAttr::default()
        };
        node.connect(qp, Peer { gid, rkey, qpn: 1 }, &attr, Nanos::ZERO);
        node.write(qp, len, 1);
        assert!(node.emit(Nanos::ZERO));
        node.out_queue.pop_front().expect("a packet")
    }
}
