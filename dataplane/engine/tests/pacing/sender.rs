//! One engine, and a peer that is no engine: it acknowledges what asks for it, a round trip later.

use std::collections::VecDeque;

use roceline_engine::congestion::CongestionConfig;
use roceline_engine::memory::{Access, MrAttr};
use roceline_engine::verbs::*;
use roceline_engine::wire::{ExtHeaders, Gid, Opcode, Packet, Psn, link_bytes};
use roceline_engine::{
    AckPolicy, Engine, EngineConfig, Nanos, Outcome, Outputs, Retransmission, Side,
};

const BASE: u64 = 1 << 32;
/// Of the syndrome in the high byte of an AETH: ACK without credit count, NAK of a PSN out of sequence.
const ACK: u32 = 0x1f << 24;
const SEQUENCE_NAK: u32 = 0x60 << 24;

/// What is to be tried.
pub struct Setup {
    pub qp_type: QpType,
    pub qps: usize,
    pub mtu: Mtu,
    pub congestion: CongestionConfig,
    pub retransmission: Retransmission,
    pub timeout: u8,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            qp_type: QpType::Rc,
            qps: 1,
            mtu: Mtu::M1024,
            congestion: CongestionConfig::default(),
            retransmission: Retransmission::Spec,
            timeout: 14,
        }
    }
}

/// Nobody receives.
struct NoReceives;

impl RecvQueues for NoReceives {
    fn take(&mut self, _: QpId, _: &mut RecvWr) -> bool {
        false
    }
}

/// A queue pair as the peer sees it.
pub struct Qp {
    pub id: QpId,
    /// One past the newest request PSN.
    next: Psn,
    /// Of the peer's own requests.
    request: Psn,
}

/// The engine and what came out of it.
pub struct Sender {
    pub engine: Engine,
    pub now: Nanos,
    pub qps: Vec<Qp>,
    /// Requests and READ responses: when, whose, bytes of link time.
    pub log: Vec<(Nanos, QpId, u32)>,
    /// ACKs of the engine.
    pub acks: u64,
    pub events: Vec<Event>,
    /// The peer answers nothing.
    pub silent: bool,
    /// Until an ACK is back.
    pub round_trip: Nanos,
    out: Outputs,
    /// ACKs on their way, by when they arrive.
    answers: VecDeque<(Nanos, usize, Psn)>,
    key: u32,
    open: u32,
    gids: [Gid; 2],
}

impl Sender {
    pub fn new(setup: &Setup) -> Sender {
        let mut engine = Engine::new(EngineConfig {
            max_qps: 1 << 12,
            max_mrs: 4,
            window: 256,
            ack_policy: AckPolicy::PerMessage,
            retransmission: setup.retransmission,
            owner: 0,
            owner_bits: 0,
            congestion: setup.congestion,
            seed: 1,
        });
        let attr = MrAttr {
            pd: 1,
            addr: BASE,
            iova: BASE,
            len: 1 << 30,
            access: Access(0xf),
        };
        let key = engine.register(attr).expect("an empty table").lkey;
        let gids = [1, 2].map(|n| Gid::from_ip([10, 0, 0, n].into()));
        let mut out = Outputs::new();
        let mut qps = Vec::new();
        for _ in 0..setup.qps {
            let init = QpInit {
                qp_type: setup.qp_type,
                pd: 1,
                send_cq: 1,
                recv_cq: 2,
                sq_sig_all: true,
                max_send_wr: 16,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
                srq: None,
            };
            let id = engine.create_qp(&init).expect("room");
            let mut attr = QpAttr {
                access: Access(0xe),
                path_mtu: setup.mtu,
                timeout: setup.timeout,
                retry_cnt: 7,
                rnr_retry: 7,
                sq_psn: Psn::new(0),
                rq_psn: Psn::new(0),
                max_rd_atomic: 4,
                max_dest_rd_atomic: 4,
                dest_qpn: id.0,
                ..QpAttr::default()
            };
            attr.path.sgid = gids[0];
            attr.path.dgid = gids[1];
            for &(state, given) in setup.qp_type.steps() {
                attr.state = state;
                let given = given | mask::STATE;
                engine
                    .modify_qp(id, &attr, given, Nanos::ZERO, &mut out)
                    .expect("the usual way up");
            }
            qps.push(Qp {
                id,
                next: Psn::new(0),
                request: Psn::new(0),
            });
        }
        Sender {
            engine,
            now: Nanos::from_micros(1),
            qps,
            log: Vec::new(),
            acks: 0,
            events: Vec::new(),
            silent: false,
            round_trip: Nanos::from_micros(1),
            out,
            answers: VecDeque::new(),
            key,
            open: 0,
            gids,
        }
    }

    /// Posts a request; false if there is no room.
    pub fn post(&mut self, qp: usize, op: WrOpcode, len: u32) -> bool {
        let wr = SendWr {
            opcode: Some(op),
            signaled: true,
            num_sge: 1,
            length: len.into(),
            rkey: 1,
            remote_addr: BASE,
            ..SendWr::default()
        };
        let sge = Sge {
            addr: BASE,
            length: len,
            lkey: self.key,
        };
        let posted = self.engine.post_send(self.qps[qp].id, &wr, &[sge]).is_ok();
        self.open += u32::from(posted);
        posted
    }

    /// Requests that are not complete.
    pub fn open(&self) -> u32 {
        self.open
    }

    /// Retries of all kinds.
    pub fn retries(&self) -> u64 {
        let c = self.engine.counters();
        c.local_ack_timeout_err + c.roce_adp_retrans + c.packet_seq_err + c.implied_nak_seq_err
    }

    /// Goes on for so long, asking `each` before each moment at which something happens.
    pub fn run_for(&mut self, time: Nanos, mut each: impl FnMut(&mut Sender)) {
        let end = self.now + time;
        loop {
            each(self);
            self.poll();
            let answer = self.answers.front().map(|a| a.0);
            let next = [answer, self.engine.next_deadline()];
            let Some(next) = next.into_iter().flatten().min().filter(|&t| t <= end) else {
                break;
            };
            assert!(
                next > self.now,
                "nothing more is to be done at {:?}: {answer:?}, {:?}",
                self.now,
                self.engine.next_deadline()
            );
            self.now = next;
        }
        self.now = end;
    }

    /// All that can be done now.
    pub fn poll(&mut self) {
        while self.answers.front().is_some_and(|a| a.0 <= self.now) {
            if let Some((_, qp, psn)) = self.answers.pop_front() {
                self.respond(qp, psn, ACK);
            }
        }
        while self
            .engine
            .advance(self.now, &mut NoReceives, &mut self.out)
        {
            self.collect();
        }
        self.collect();
        while self.engine.tx(32, self.now, &mut self.out) || !self.out.tx.is_empty() {
            self.collect();
        }
    }

    /// What arrives now, and one call that may emit `budget` packets.
    pub fn poll_some(&mut self, budget: usize) {
        while self.answers.front().is_some_and(|a| a.0 <= self.now) {
            if let Some((_, qp, psn)) = self.answers.pop_front() {
                self.respond(qp, psn, ACK);
            }
        }
        self.engine.tx(budget, self.now, &mut self.out);
        self.collect();
    }

    /// A NAK: the packet so many before the newest was lost.
    pub fn nak(&mut self, qp: usize, back: u32) {
        let psn = self.qps[qp].next.sub(back);
        self.respond(qp, psn, SEQUENCE_NAK);
        // What was acknowledged beyond it was not.
        self.answers.retain(|a| a.1 != qp || a.2.before(psn));
    }

    fn respond(&mut self, qp: usize, psn: Psn, aeth: u32) {
        let ext = ExtHeaders {
            aeth,
            ..ExtHeaders::default()
        };
        self.arrives(qp, Opcode::RC_ACK, psn, ext);
    }

    /// An ACK of the newest packet.
    pub fn acknowledge(&mut self, qp: usize) {
        let psn = self.qps[qp].next.sub(1);
        self.respond(qp, psn, ACK);
    }

    /// The answer to the newest packet, a READ of nothing. It acknowledges all before.
    pub fn answer(&mut self, qp: usize) {
        let psn = self.qps[qp].next.sub(1);
        let ext = ExtHeaders {
            aeth: ACK,
            ..ExtHeaders::default()
        };
        self.arrives(qp, Opcode::RC_READ_RESP_ONLY, psn, ext);
    }

    /// A CNP from the peer.
    pub fn cnp(&mut self, qp: usize) {
        self.arrives(qp, Opcode::CNP, Psn::new(0), ExtHeaders::default());
    }

    /// A request of the peer without payload, and the end of its burst.
    pub fn request(&mut self, qp: usize, opcode: Opcode, dma_len: u32, at: u64) {
        let psn = self.qps[qp].request;
        let ext = ExtHeaders {
            va: BASE + at,
            rkey: self.key,
            dma_len,
            ..ExtHeaders::default()
        };
        self.arrives(qp, opcode, psn, ext);
        let mtu = 1024;
        let psns = match opcode {
            Opcode::RC_READ_REQUEST => dma_len.div_ceil(mtu).max(1),
            _ => 1,
        };
        self.qps[qp].request = psn.add(psns);
        self.engine.rx_end(self.now, &mut self.out);
        self.collect();
    }

    fn arrives(&mut self, qp: usize, opcode: Opcode, psn: Psn, ext: ExtHeaders) {
        let packet = Packet {
            src: self.gids[1],
            dst: self.gids[0],
            opcode,
            solicited: false,
            ack_req: true,
            becn: opcode == Opcode::CNP,
            ce: false,
            pkey: 0xffff,
            dest_qpn: self.qps[qp].id.0,
            psn,
            ext,
            payload_len: 0,
            payload_offset: 0,
            traffic_class: 0,
        };
        self.engine
            .rx(&packet, 0, self.now, &mut NoReceives, &mut self.out);
        self.collect();
    }

    fn collect(&mut self) {
        let mut at = 0;
        while let Some(&place) = self.out.place.get(at) {
            at += 1;
            let (qp, epoch, side) = (place.qp, place.epoch, place.side);
            let (done, queues) = (Outcome::Done, &mut NoReceives);
            self.engine
                .placed(qp, epoch, side, done, self.now, queues, &mut self.out);
        }
        // Unreliable requests complete when their bytes were fetched.
        let mut at = 0;
        while let Some(desc) = self.out.tx.get(at) {
            at += 1;
            if desc.tell_fetched {
                let (qp, epoch) = (desc.qp, desc.epoch);
                self.engine.fetched(qp, epoch, self.now, &mut self.out);
            }
        }
        for desc in &self.out.tx {
            if desc.opcode == Opcode::RC_ACK {
                self.acks += 1;
                continue;
            }
            let bytes = link_bytes(false, desc.opcode, desc.len);
            self.log.push((self.now, desc.qp, bytes));
            if desc.side == Side::Responder {
                continue;
            }
            let Some(number) = self.qps.iter().position(|qp| qp.id == desc.qp) else {
                continue;
            };
            self.qps[number].next = desc.psn.add(1);
            if desc.ack_req && !self.silent {
                let arrival = self.now + self.round_trip;
                self.answers.push_back((arrival, number, desc.psn));
            }
        }
        for event in &self.out.events {
            if let Event::Completion(_) = event {
                self.open -= 1;
            }
        }
        self.events.extend_from_slice(&self.out.events);
        self.out.clear();
    }
}
