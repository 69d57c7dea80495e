//! UD between two nodes: its rules one by one, many datagrams over a bad link, and the captures.

pub mod captures;
mod failures;
mod notification;
mod random;
mod rules;

use roceline_engine::verbs::*;
use roceline_engine::wire::{ExtHeaders, Opcode, Psn, grh};
use roceline_engine::{Counters, Nanos};

use crate::link::{Faults, Frame};
use crate::memory::sges;
use crate::node::{Node, PD};
use crate::world::{World, default_config, default_init};

const QKEY: u32 = 0x1234_5678;
const GRH: u32 = grh::LEN as u32;
/// The port's MTU in these tests.
const MTU: u32 = 1024;

/// A UD QP on each node; node 0 mostly sends.
struct Pair {
    w: World,
    ids: [QpId; 2],
    /// Address handle of either node for the other.
    ahs: [u32; 2],
    next: u64,
}

fn attr(state: QpState) -> QpAttr {
    QpAttr {
        state,
        qkey: QKEY,
        sq_psn: Psn::new(0xff_fffe),
        ..QpAttr::default()
    }
}

fn up(node: &mut Node, qp: QpId, attr: QpAttr, now: Nanos) {
    for (state, given) in UD_STEPS {
        node.modify(qp, &QpAttr { state, ..attr }, given | mask::STATE, now)
            .expect("the usual way up");
    }
}

impl Pair {
    fn new() -> Pair {
        Pair::over(Faults::default(), 1)
    }

    fn over(faults: Faults, seed: u64) -> Pair {
        Pair::with(faults, seed, [attr(QpState::Init); 2])
    }

    fn with(faults: Faults, seed: u64, attrs: [QpAttr; 2]) -> Pair {
        let mut w = World::new(default_config(seed), faults, 4 << 20);
        let init = QpInit {
            qp_type: QpType::Ud,
            ..default_init()
        };
        let mut ids = [QpId(0); 2];
        let mut ahs = [0; 2];
        for n in 0..2 {
            let node = &mut w.nodes[n];
            node.engine.set_datagram_mtu(Mtu::M1024);
            ids[n] = node.create_qp(&init);
            ahs[n] = node.engine.create_ah(PD).expect("an empty table").number;
            up(node, ids[n], attrs[n], Nanos::ZERO);
        }
        let next = 0;
        Pair { w, ids, ahs, next }
    }

    fn node(&mut self, n: usize) -> &mut Node {
        &mut self.w.nodes[n]
    }

    /// A SEND of node `n` to the other, signalled.
    fn wr(&mut self, n: usize, pieces: &[(u64, u32)]) -> (SendWr, Vec<Sge>) {
        self.next += 1;
        let wr = SendWr {
            wr_id: self.next,
            opcode: Some(WrOpcode::Send),
            signaled: true,
            num_sge: pieces.len() as u32,
            length: pieces.iter().map(|p| u64::from(p.1)).sum(),
            ah: self.ahs[n],
            dest_qpn: self.ids[1 - n].0,
            qkey: QKEY,
            ..SendWr::default()
        };
        (wr, sges(pieces, self.node(n).mr.lkey))
    }

    fn post(&mut self, n: usize, wr: SendWr, list: &[Sge]) {
        let qp = self.ids[n];
        assert!(self.node(n).post_send(qp, wr, list, &[]));
    }

    /// Sends `data` from node `n`; the number of the request.
    fn send(&mut self, n: usize, data: &[u8]) -> u64 {
        let at = self.node(n).memory.alloc(data.len() as u32);
        self.node(n).memory.write(at, data);
        let (wr, list) = self.wr(n, &[(at, data.len() as u32)]);
        self.post(n, wr, &list);
        wr.wr_id
    }

    /// Posts a receive with room for `len` bytes behind the GRH; where it is.
    fn receive(&mut self, n: usize, wr_id: u64, len: u32) -> u64 {
        let (qp, node) = (self.ids[n], &mut self.w.nodes[n]);
        let at = node.memory.alloc(GRH + len);
        node.post_recv(qp, wr_id, &sges(&[(at, GRH + len)], node.mr.lkey));
        at
    }

    /// Number and status of a node's completions since the last look.
    fn done(&mut self, n: usize) -> Vec<(u64, WcStatus)> {
        let all = self.w.completions(n);
        all.iter().map(|c| (c.wr_id, c.status)).collect()
    }

    fn counters(&self, n: usize) -> &Counters {
        self.w.nodes[n].engine.counters()
    }

    fn state(&self, n: usize) -> QpState {
        let found = self.w.nodes[n].engine.query_qp(self.ids[n]);
        found.expect("it exists").0.state
    }

    /// A datagram as a third node might send it.
    fn inject(&mut self, to: usize, change: impl FnOnce(&mut Frame)) {
        let mut frame = Frame {
            src: self.w.nodes[1 - to].gid,
            dst: self.w.nodes[to].gid,
            dest_qpn: self.ids[to].0,
            opcode: Opcode::UD_SEND_ONLY,
            psn: Psn::new(5),
            ack_req: false,
            solicited: false,
            ext: ExtHeaders {
                qkey: QKEY,
                src_qpn: 0x77,
                ..ExtHeaders::default()
            },
            traffic_class: 0,
            payload: vec![7; 8],
        };
        change(&mut frame);
        let now = self.w.now;
        self.w.inject(to, frame, now);
    }
}
