//! One end: an engine with its caller, as a poll loop would be, and a program's memory and queues.

use std::collections::{BTreeMap, VecDeque};

use roceline_engine::memory::{Access, MrAttr, MrInfo};
use roceline_engine::verbs::*;
use roceline_engine::wire::{ExtHeaders, Gid, Opcode, Psn};
use roceline_engine::{
    Engine, EngineConfig, MemSlice, NO_AH, Nanos, Outcome, Outputs, Payload, PlaceKind, Side,
    TxDesc,
};

use crate::ledger::{Books, causes};
use crate::link::Frame;
use crate::memory::{IOVA_SHIFT, Memory};
use crate::rng::Rng;

pub const PD: u32 = 7;

/// Receive queues of all QPs of a node, and the one that some of them share.
#[derive(Default)]
pub struct Queues(pub BTreeMap<QpId, VecDeque<RecvWr>>, pub VecDeque<RecvWr>);

impl RecvQueues for Queues {
    fn take(&mut self, qp: QpId, wr: &mut RecvWr) -> bool {
        let queue = match self.0.get_mut(&qp) {
            Some(own) => own,
            None => &mut self.1,
        };
        match queue.pop_front() {
            Some(found) => {
                *wr = found;
                true
            }
            None => false,
        }
    }
}

/// How memory behaves; probabilities in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryFaults {
    pub pending: u32,
    /// Longest time that a pending operation takes.
    pub pending_ns: u64,
    pub fault: u32,
}

impl MemoryFaults {
    /// Every operation is pending, for at most so long.
    pub const fn slow(pending_ns: u64) -> MemoryFaults {
        MemoryFaults {
            pending: 1000,
            pending_ns,
            fault: 0,
        }
    }
}

/// A descriptor that waits for its payload, or for one before it.
struct Outgoing {
    desc: TxDesc,
    slices: Vec<MemSlice>,
    ready_at: Nanos,
    fault: bool,
}

/// A placement that waits.
struct Placing {
    epoch: u32,
    slices: Vec<MemSlice>,
    payload: Vec<u8>,
    ready_at: Nanos,
    fault: bool,
    kind: PlaceKind,
    opcode: Opcode,
    ext: ExtHeaders,
}

/// What the caller of the engine knows of a QP.
#[derive(Default)]
struct Connection {
    dest_qpn: u32,
    outgoing: VecDeque<Outgoing>,
    placing: [VecDeque<Placing>; 2],
    /// Occupied send queue slots, oldest first, with inline data.
    slots: VecDeque<(u32, Vec<u8>)>,
    next_slot: u32,
}

/// One end.
pub struct Node {
    pub engine: Engine,
    pub memory: Memory,
    pub queues: Queues,
    pub gid: Gid,
    pub peer_gid: Gid,
    /// The one region of everything, with all rights.
    pub mr: MrInfo,
    pub rx: VecDeque<Frame>,
    pub completions: Vec<Completion>,
    pub events: Vec<(QpId, AsyncKind)>,
    pub memory_faults: MemoryFaults,
    /// Frames for the wire.
    pub sent: Vec<Frame>,
    /// What came of it all.
    pub books: Books,
    connections: BTreeMap<QpId, Connection>,
    out: Outputs,
    burst: Vec<Frame>,
    rng: Rng,
}

impl Node {
    pub fn new(config: EngineConfig, number: u8, memory: usize, seed: u64) -> Node {
        let gid = |n: u8| Gid::from_ip([10, 0, 0, n].into());
        let mut engine = Engine::new(config);
        let memory = Memory::new(memory);
        let (addr, len) = memory.extent();
        let access = Access(0xf | Access::MW_BIND.0 | Access::FLUSH_GLOBAL.0);
        let attr = MrAttr {
            pd: PD,
            addr,
            iova: addr + IOVA_SHIFT,
            len,
            access,
        };
        let mr = engine.register(attr).expect("an empty table");
        Node {
            engine,
            memory,
            queues: Queues::default(),
            gid: gid(number),
            peer_gid: gid(3 - number),
            mr,
            rx: VecDeque::new(),
            completions: Vec::new(),
            events: Vec::new(),
            memory_faults: MemoryFaults::default(),
            sent: Vec::new(),
            books: Books::default(),
            connections: BTreeMap::new(),
            out: Outputs::new(),
            burst: Vec::new(),
            rng: Rng::new(seed ^ u64::from(number) << 32),
        }
    }

    pub fn create_qp(&mut self, init: &QpInit) -> QpId {
        let id = self.engine.create_qp(init).expect("room for a QP");
        self.connections.insert(id, Connection::default());
        if init.srq.is_none() {
            self.queues.0.insert(id, VecDeque::new());
        }
        id
    }

    pub fn modify(
        &mut self,
        qp: QpId,
        attr: &QpAttr,
        mask: u32,
        now: Nanos,
    ) -> Result<(), QpError> {
        if mask & mask::DEST_QPN != 0 {
            self.connection(qp).dest_qpn = attr.dest_qpn;
        }
        let result = self.engine.modify_qp(qp, attr, mask, now, &mut self.out);
        self.collect(now);
        result
    }

    /// To INIT, RTR and RTS.
    pub fn connect(&mut self, qp: QpId, attr: &QpAttr, now: Nanos) {
        let mut attr = *attr;
        attr.path.sgid = self.gid;
        attr.path.dgid = self.peer_gid;
        let (_, init) = self.engine.query_qp(qp).expect("it exists");
        for &(state, given) in init.qp_type.steps() {
            attr.state = state;
            self.modify(qp, &attr, mask::STATE | given, now)
                .expect("the usual way up");
        }
    }

    /// To ERR or RESET.
    pub fn enter(&mut self, qp: QpId, state: QpState, now: Nanos) {
        if state == QpState::Reset {
            // The caller's own queues are emptied with the QP.
            let c = self.connection(qp);
            c.slots.clear();
            self.books.forget(qp);
            if let Some(own) = self.queues.0.get_mut(&qp) {
                own.clear();
            }
        }
        let attr = QpAttr {
            state,
            ..QpAttr::default()
        };
        self.modify(qp, &attr, mask::STATE, now)
            .expect("allowed from everywhere");
    }

    pub fn post_recv(&mut self, qp: QpId, wr_id: u64, sges: &[Sge]) {
        let mut wr = RecvWr {
            wr_id,
            num_sge: sges.len() as u32,
            ..RecvWr::empty()
        };
        wr.sges[..sges.len()].copy_from_slice(sges);
        match self.queues.0.get_mut(&qp) {
            Some(own) => own.push_back(wr),
            None => self.queues.1.push_back(wr),
        }
    }

    /// Posts, as the poll loop does that finds a WQE in slot `next_slot`.
    pub fn post_send(&mut self, qp: QpId, mut wr: SendWr, sges: &[Sge], inline: &[u8]) -> bool {
        let slot = self.connection(qp).next_slot;
        wr.slot = slot;
        if self.engine.post_send(qp, &wr, sges).is_err() {
            return false;
        }
        let c = self.connection(qp);
        c.next_slot = c.next_slot.wrapping_add(1);
        c.slots.push_back((slot, inline.to_vec()));
        true
    }

    /// Send queue slots in use.
    pub fn occupied(&self, qp: QpId) -> usize {
        self.connections[&qp].slots.len()
    }

    /// The oldest packet that waits for its payload is lost for want of a buffer, which nothing has told the engine yet.
    pub fn lose_outgoing(&mut self, qp: QpId) {
        let lost = self.connection(qp).outgoing.pop_front();
        assert!(lost.is_some(), "none waits");
    }

    fn connection(&mut self, qp: QpId) -> &mut Connection {
        self.connections.get_mut(&qp).expect("a QP of this node")
    }

    /// One turn of a poll loop. False if there was nothing to do.
    pub fn poll(&mut self, now: Nanos) -> bool {
        self.finish_placements(now);
        let burst = self.rx.len().min(32);
        let eager = self.rng.permille(500);
        for _ in 0..burst {
            let Some(frame) = self.rx.pop_front() else {
                break;
            };
            let packet = frame.packet();
            self.books.hears(&frame);
            let before = causes(self.engine.counters());
            self.burst.push(frame);
            let tag = self.burst.len() as u32 - 1;
            self.engine
                .rx(&packet, tag, now, &mut self.queues, &mut self.out);
            let retries = causes(self.engine.counters()) - before;
            assert!(retries <= 1, "a packet is the cause of one retry");
            // Placements may be made one by one or after the burst, as room allows.
            if eager || !self.out.has_room() {
                self.collect(now);
            }
        }
        self.collect(now);
        self.burst.clear();
        self.engine.rx_end(now, &mut self.out);
        self.collect(now);
        let mut more = self.engine.advance(now, &mut self.queues, &mut self.out);
        self.collect(now);
        let budget = 1 + self.rng.below(64) as usize;
        more |= self.engine.tx(budget, now, &mut self.out);
        self.collect(now);
        self.flush_outgoing(now);
        more || burst > 0
    }

    /// When the node has something to do by itself.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let pending = self.connections.values().flat_map(|c| {
            let fetch = c.outgoing.front().map(|o| o.ready_at);
            let place = c
                .placing
                .iter()
                .filter_map(|p| p.front().map(|p| p.ready_at));
            fetch.into_iter().chain(place)
        });
        pending.chain(self.engine.next_deadline()).min()
    }

    /// Memory operations under way.
    pub fn pending(&self) -> usize {
        let of = |c: &Connection| c.outgoing.len() + c.placing[0].len() + c.placing[1].len();
        self.connections.values().map(of).sum()
    }

    /// Carries out what the engine asked for, and what comes of that.
    fn collect(&mut self, now: Nanos) {
        assert!(
            self.out.tx.capacity() == Outputs::TX && self.out.place.capacity() == Outputs::PLACE
        );
        assert!(self.out.slices.capacity() == Outputs::SLICES);
        assert!(self.out.events.capacity() == Outputs::EVENTS);
        loop {
            for event in core::mem::take(&mut self.out.events).drain(..) {
                self.event(event);
            }
            self.out.events = Vec::with_capacity(Outputs::EVENTS);
            let slices = self.out.slices.clone();
            let at = |first: u32, count: u8| {
                slices[first as usize..first as usize + usize::from(count)].to_vec()
            };
            for desc in self.out.tx.clone() {
                let (slices, roll) = match desc.payload {
                    Payload::Memory { first, count } => (at(first, count), true),
                    _ => (vec![], false),
                };
                let (ready_at, fault) = self.roll(now, roll);
                let c = self.connection(desc.qp);
                c.outgoing.push_back(Outgoing {
                    desc,
                    slices,
                    ready_at,
                    fault,
                });
            }
            let places = self.out.place.clone();
            self.out.clear();
            for p in places {
                let (ready_at, fault) = self.roll(now, true);
                let frame = &self.burst[p.packet as usize];
                let (kind, opcode, ext) = (p.kind, frame.opcode, frame.ext);
                let mut payload = match p.kind {
                    PlaceKind::Datagram => frame.grh().to_vec(),
                    _ => vec![],
                };
                payload.extend(&frame.payload);
                payload.truncate(p.len as usize);
                let (epoch, slices) = (p.epoch, at(p.first, p.count));
                let queue = &mut self.connection(p.qp).placing[p.side as usize];
                queue.push_back(Placing {
                    kind,
                    opcode,
                    ext,
                    epoch,
                    slices,
                    payload,
                    ready_at,
                    fault,
                });
            }
            if !self.finish_placements(now) {
                break;
            }
        }
        self.flush_outgoing(now);
    }

    fn roll(&mut self, now: Nanos, memory: bool) -> (Nanos, bool) {
        let f = self.memory_faults;
        let pending = memory && self.rng.permille(f.pending);
        let wait = if pending {
            1 + self.rng.below(f.pending_ns)
        } else {
            0
        };
        (now + Nanos(wait), memory && self.rng.permille(f.fault))
    }

    /// Reports placements that are done, in order; whether there was one.
    fn finish_placements(&mut self, now: Nanos) -> bool {
        let ids: Vec<QpId> = self.connections.keys().copied().collect();
        let mut any = false;
        for qp in ids {
            for side in [Side::Requester, Side::Responder] {
                loop {
                    if !self.out.has_room() {
                        return true;
                    }
                    // As a poll loop tells them: runs of what is done at once, anything else by itself.
                    let (mut run, mut other) = ((0, 0), None);
                    while other.is_none() {
                        let queue = &mut self.connection(qp).placing[side as usize];
                        if queue.front().is_none_or(|p| p.ready_at > now) {
                            break;
                        }
                        let Some(p) = queue.pop_front() else { break };
                        let outcome = match p.fault {
                            true => Outcome::Fault,
                            false => {
                                let (slices, payload) = (&p.slices, &p.payload);
                                self.memory
                                    .carry_out(p.kind, p.opcode, &p.ext, slices, payload)
                            }
                        };
                        match outcome {
                            Outcome::Done if run.1 == 0 || run.0 == p.epoch => {
                                run = (p.epoch, run.1 + 1);
                            }
                            _ => other = Some((p.epoch, outcome)),
                        }
                    }
                    let (queues, out) = (&mut self.queues, &mut self.out);
                    if run.1 > 0 {
                        let (epoch, count) = run;
                        self.engine.all_placed(qp, epoch, side, count, now, out);
                    }
                    if let Some((epoch, outcome)) = other {
                        self.engine
                            .placed(qp, epoch, side, outcome, now, queues, out);
                    } else if run.1 == 0 {
                        break;
                    }
                    any = true;
                }
            }
        }
        any
    }

    /// Sends what is fetched, in the order of each QP.
    fn flush_outgoing(&mut self, now: Nanos) {
        let ids: Vec<QpId> = self.connections.keys().copied().collect();
        for qp in ids {
            loop {
                let c = self.connection(qp);
                if c.outgoing.front().is_none_or(|o| o.ready_at > now) {
                    break;
                }
                let Some(o) = c.outgoing.pop_front() else {
                    break;
                };
                let TxDesc {
                    epoch, side, psn, ..
                } = o.desc;
                if !self.engine.is_current(qp, epoch, side) {
                    continue;
                }
                let c = self.connection(qp);
                if o.fault {
                    c.outgoing.retain(|later| later.desc.epoch != epoch);
                    self.engine
                        .fetch_fault(qp, epoch, side, psn, now, &mut self.out);
                    self.collect(now);
                    continue;
                }
                let frame = self.build(&o);
                self.keep_books(qp, &frame);
                self.sent.push(frame);
                if o.desc.tell_fetched {
                    self.engine.fetched(qp, epoch, now, &mut self.out);
                    self.collect(now);
                }
            }
        }
    }

    /// Where memory fails, packets behind the failure go out again for that, which is no retry.
    fn keep_books(&mut self, qp: QpId, frame: &Frame) {
        if self.memory_faults.fault > 0 {
            return;
        }
        let (attr, _) = self.engine.query_qp(qp).expect("it exists");
        let counted = self.engine.qp_counters(qp).expect("it exists");
        let (mtu, causes) = (attr.path_mtu.bytes(), causes(counted));
        self.books.requests(qp, frame, mtu, causes);
    }

    fn build(&mut self, o: &Outgoing) -> Frame {
        let d = &o.desc;
        let c = &self.connections[&d.qp];
        let payload = match d.payload {
            Payload::None => vec![],
            Payload::Memory { .. } => self.memory.fetch(&o.slices),
            // A resent packet may still wait here when its request is acknowledged and the slot is free
            // again; whatever it carries then, the peer has seen that PSN.
            Payload::Inline { slot, offset } => match c.slots.iter().find(|(s, _)| *s == slot) {
                Some((_, data)) => data[offset as usize..(offset + d.len) as usize].to_vec(),
                None => vec![0xbb; d.len as usize],
            },
        };
        assert_eq!(payload.len(), d.len as usize);
        let (dst, dest_qpn) = match (d.cnp_address(), d.ah) {
            (Some(address), _) => address,
            (None, NO_AH) => (self.peer_gid, c.dest_qpn),
            (None, _) => (self.peer_gid, d.dest_qpn),
        };
        Frame {
            src: self.gid,
            dst,
            dest_qpn,
            opcode: d.opcode,
            psn: d.psn,
            ack_req: d.ack_req,
            solicited: d.solicited,
            ext: d.ext,
            traffic_class: 0,
            payload,
        }
    }

    fn event(&mut self, event: Event) {
        if std::env::var_os("ROCELINE_TRACE").is_some() {
            println!("                 {:?} {event:?}", self.gid.to_ip());
        }
        match event {
            Event::Completion(c) => {
                if c.recv {
                    assert_eq!(c.retire, 0);
                } else {
                    assert!(c.retire >= 1);
                    self.retire(c.qp, c.retire);
                }
                self.books.completes(&c);
                self.completions.push(c);
            }
            Event::Retired { qp, count } => {
                assert!(count > 0);
                self.retire(qp, count);
            }
            Event::Async { qp, kind } => self.events.push((qp, kind)),
        }
    }

    fn retire(&mut self, qp: QpId, count: u32) {
        let slots = &mut self.connection(qp).slots;
        assert!(count as usize <= slots.len(), "a slot is retired once");
        slots.drain(..count as usize);
    }
}

/// Attributes of INIT to RTR.
pub const RTR: u32 = RC_STEPS[1].1;
/// Attributes of RTR to RTS.
pub const RTS: u32 = RC_STEPS[2].1;

/// What most tests use.
pub fn default_attr() -> QpAttr {
    QpAttr {
        access: Access(0xe | Access::FLUSH_GLOBAL.0),
        path_mtu: Mtu::M1024,
        timeout: 5,
        retry_cnt: 7,
        rnr_retry: 7,
        rq_psn: Psn::new(0x100),
        sq_psn: Psn::new(0x100),
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        ..QpAttr::default()
    }
}
