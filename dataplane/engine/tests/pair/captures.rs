//! The captures of soft-RoCE in lockstep: two engines play the two ends, and at each packet of a capture the
//! engine at that end must have the same packet to send: opcode, PSN, A and SE bits, lengths, immediate, AETH.
//! Packets travel from capture to engine, so each end is judged by itself.

use std::collections::VecDeque;

use roceline_engine::memory::{Access, MrAttr, WindowType};
use roceline_engine::verbs::*;
use roceline_engine::wire::{
    ExtHeaders, HeaderSet, Opcode, Operation, Packet, Psn, Transport, parse,
};
use roceline_engine::{
    AckPolicy, Engine, EngineConfig, Nanos, Outcome, Outputs, PlaceKind, Side, TxDesc,
};

use crate::captured;
use crate::node::{PD, Queues, default_attr};
use crate::world::{default_config, default_init};

/// Where everything is, in both programs.
const BASE: u64 = 0x10_0000;

struct End {
    engine: Engine,
    qp: QpId,
    queues: Queues,
    out: Outputs,
    lkey: u32,
    /// Answers that are due.
    answers: VecDeque<TxDesc>,
    statuses: Vec<(bool, WcStatus)>,
    /// What atomics are for, and the packet that came last.
    word: u64,
    received: Option<Packet>,
}

/// How a capture was made, as far as it matters here.
#[derive(Clone, Copy)]
struct Setup {
    transport: Transport,
    mtu: Mtu,
    access: Access,
    /// Keys of the requests are replaced by good ones.
    good_keys: bool,
    timeout: u8,
    retry_cnt: u8,
    /// Receives are posted after this packet of the capture.
    receive_after: usize,
    /// Packets that did not arrive.
    lost: &'static [usize],
    /// WRITEs of the capture go through a window that the peer has bound.
    window: bool,
    /// Status of the last send request.
    status: WcStatus,
}

const USUAL: Setup = Setup {
    transport: Transport::Rc,
    mtu: Mtu::M1024,
    access: Access(6),
    good_keys: true,
    timeout: 0,
    retry_cnt: 7,
    receive_after: 0,
    lost: &[],
    window: false,
    status: WcStatus::Success,
};

const UNRELIABLE: Setup = Setup {
    transport: Transport::Uc,
    ..USUAL
};

impl End {
    fn new(transport: Transport) -> End {
        let config = EngineConfig {
            ack_policy: AckPolicy::PerMessage,
            ..default_config(0)
        };
        let mut engine = Engine::new(config);
        let attr = MrAttr {
            pd: PD,
            addr: BASE,
            iova: BASE,
            len: 1 << 20,
            access: Access(0xf | Access::MW_BIND.0),
        };
        let lkey = engine.register(attr).expect("an empty table").lkey;
        let init = QpInit {
            qp_type: match transport {
                Transport::Uc => QpType::Uc,
                _ => QpType::Rc,
            },
            ..default_init()
        };
        let qp = engine.create_qp(&init).expect("an empty table");
        End {
            engine,
            qp,
            queues: Queues::default(),
            out: Outputs::new(),
            lkey,
            answers: VecDeque::new(),
            statuses: vec![],
            word: 0x1122_3344_5566_7788,
            received: None,
        }
    }

    fn connect(&mut self, mine: &Packet, peer: QpId, psns: [Psn; 2], setup: &Setup) {
        let mut attr = QpAttr {
            access: setup.access,
            path_mtu: setup.mtu,
            timeout: setup.timeout,
            retry_cnt: setup.retry_cnt,
            sq_psn: psns[0],
            rq_psn: psns[1],
            dest_qpn: peer.0,
            min_rnr_timer: 17,
            ..default_attr()
        };
        attr.path.sgid = mine.src;
        attr.path.dgid = mine.dst;
        let (_, init) = self.engine.query_qp(self.qp).expect("it exists");
        for &(state, given) in init.qp_type.steps() {
            attr.state = state;
            let given = given | mask::STATE;
            self.engine
                .modify_qp(self.qp, &attr, given, Nanos::ZERO, &mut self.out)
                .expect("the usual way up");
        }
    }

    /// Placements succeed at once; answers and statuses are kept.
    fn settle(&mut self, now: Nanos) {
        while !self.out.place.is_empty() || !self.out.tx.is_empty() || !self.out.events.is_empty() {
            let places = self.out.place.clone();
            let fetched = self.out.tx.iter().filter(|d| d.tell_fetched).count();
            self.answers.extend(self.out.tx.iter().copied());
            for event in &self.out.events {
                if let Event::Completion(c) = event {
                    self.statuses.push((c.recv, c.status));
                }
            }
            self.out.clear();
            for p in places {
                let outcome = match p.kind {
                    PlaceKind::Atomic => Outcome::Value(self.execute()),
                    _ => Outcome::Done,
                };
                let (queues, out) = (&mut self.queues, &mut self.out);
                self.engine
                    .placed(p.qp, p.epoch, p.side, outcome, now, queues, out);
            }
            for _ in 0..fetched {
                self.engine.fetched(self.qp, 0, now, &mut self.out);
            }
        }
    }

    fn execute(&mut self) -> u64 {
        let packet = self.received.expect("an atomic");
        let before = self.word;
        match packet.opcode {
            Opcode::RC_FETCH_ADD => self.word = before.wrapping_add(packet.ext.swap_add),
            _ if before == packet.ext.compare => self.word = packet.ext.swap_add,
            _ => {}
        }
        before
    }

    /// Binds a window of type 2 to everything; its key.
    fn bind(&mut self) -> u32 {
        let mw = self.engine.alloc_window(PD, WindowType::Two).expect("room");
        let key = mw.rkey & !0xff | 0x13;
        let rights = Access::REMOTE_WRITE.0;
        let wr = SendWr {
            opcode: Some(WrOpcode::BindMw),
            imm_or_rkey: mw.rkey,
            rkey: key,
            remote_addr: BASE,
            compare_add: 1 << 20,
            swap: u64::from(self.lkey) | u64::from(rights) << 32,
            ..SendWr::default()
        };
        self.engine.post_send(self.qp, &wr, &[]).expect("room");
        self.engine.tx(1, Nanos::ZERO, &mut self.out);
        self.settle(Nanos::ZERO);
        key
    }

    fn receive(&mut self, packet: &Packet, now: Nanos) {
        self.received = Some(*packet);
        self.engine
            .rx(packet, 0, now, &mut self.queues, &mut self.out);
        self.settle(now);
    }

    /// The next packet of one side that this end sends.
    fn next(&mut self, side: Side, now: Nanos) -> Option<TxDesc> {
        self.engine.advance(now, &mut self.queues, &mut self.out);
        self.settle(now);
        if !self.answers.iter().any(|d| d.side == side) {
            self.engine.tx(1, now, &mut self.out);
            self.settle(now);
        }
        let at = self.answers.iter().position(|d| d.side == side)?;
        self.answers.remove(at)
    }

    fn post(&mut self, message: &Message, remote_key: u32, good_keys: bool) {
        let wr = SendWr {
            opcode: Some(message.op),
            signaled: true,
            solicited: message.solicited,
            num_sge: 1,
            length: message.len.into(),
            imm_or_rkey: match message.op {
                WrOpcode::SendInv => remote_key,
                _ => message.imm,
            },
            rkey: if good_keys { remote_key } else { 0xbad_0000 },
            remote_addr: BASE,
            compare_add: message.operands[0],
            swap: message.operands[1],
            ..SendWr::default()
        };
        let sge = Sge {
            addr: BASE,
            length: message.len,
            lkey: self.lkey,
        };
        self.engine.post_send(self.qp, &wr, &[sge]).expect("room");
    }
}

/// A message as its first packets show it.
struct Message {
    op: WrOpcode,
    len: u32,
    imm: u32,
    solicited: bool,
    /// Of an atomic, as [`SendWr`] has them.
    operands: [u64; 2],
}

/// The messages that `from` sent, each once.
fn messages(packets: &[Packet], from: &Packet) -> Vec<Message> {
    let mut list: Vec<Message> = Vec::new();
    let mut next: Option<Psn> = None;
    for p in packets
        .iter()
        .filter(|p| p.src == from.src && p.opcode.info().is_request())
    {
        if next.is_some_and(|next| p.psn.before(next)) {
            continue;
        }
        let info = p.opcode.info();
        let read = info.operation == Operation::ReadRequest;
        let psns = if read { p.ext.dma_len.div_ceil(256) } else { 1 };
        next = Some(p.psn.add(psns));
        if info.position.starts() {
            let op = match info.operation {
                Operation::Send => WrOpcode::Send,
                Operation::Write => WrOpcode::Write,
                Operation::CompareSwap => WrOpcode::CmpSwap,
                Operation::FetchAdd => WrOpcode::FetchAdd,
                _ => WrOpcode::Read,
            };
            let len = match op {
                WrOpcode::Read => p.ext.dma_len,
                _ if op.is_atomic() => 8,
                _ => 0,
            };
            list.push(Message {
                op,
                len,
                imm: 0,
                solicited: false,
                operands: match op {
                    WrOpcode::FetchAdd => [p.ext.swap_add, 0],
                    _ => [p.ext.compare, p.ext.swap_add],
                },
            });
        }
        let m = list
            .last_mut()
            .expect("a message begins with its first packet");
        m.len += p.payload_len;
        m.solicited |= p.solicited;
        if p.ext.imm_or_rkey != 0 {
            m.imm = p.ext.imm_or_rkey;
            let inv = p.opcode.info().headers.has(HeaderSet::IETH);
            m.op = match m.op {
                WrOpcode::Send if inv => WrOpcode::SendInv,
                WrOpcode::Send => WrOpcode::SendImm,
                WrOpcode::Write => WrOpcode::WriteImm,
                other => other,
            };
        }
    }
    list
}

/// What must be equal.
fn shape(p: &Packet) -> String {
    format!(
        "{:?} psn={:x} A={} SE={} pay={} dmalen={} imm={:x} aeth={:08x} operands={:x},{:x}",
        p.opcode,
        p.psn.get(),
        p.ack_req,
        p.solicited,
        p.payload_len,
        p.ext.dma_len,
        immediate(p.opcode, &p.ext),
        p.ext.aeth,
        p.ext.swap_add,
        p.ext.compare
    )
}

/// Keys are the programs' own.
fn immediate(opcode: Opcode, ext: &ExtHeaders) -> u32 {
    match opcode.info().headers.has(HeaderSet::IMM) {
        true => ext.imm_or_rkey,
        false => 0,
    }
}

fn shape_of(d: &TxDesc) -> String {
    format!(
        "{:?} psn={:x} A={} SE={} pay={} dmalen={} imm={:x} aeth={:08x} operands={:x},{:x}",
        d.opcode,
        d.psn.get(),
        d.ack_req,
        d.solicited,
        d.len,
        d.ext.dma_len,
        immediate(d.opcode, &d.ext),
        d.ext.aeth,
        d.ext.swap_add,
        d.ext.compare
    )
}

/// Plays the packets of a capture's connection.
fn play(name: &str, setup: Setup) {
    let captured: Vec<(usize, Nanos, Packet)> = captured::read(name)
        .iter()
        .filter_map(|c| Some((c.number, c.time, parse(&c.frame).ok()?.packet)))
        .filter(|(_, _, p)| p.opcode.info().transport == setup.transport)
        .collect();
    let packets: Vec<Packet> = captured.iter().map(|c| c.2).collect();
    let first = packets[0];
    let back = Packet {
        src: first.dst,
        dst: first.src,
        ..first
    };
    let mut ends = [End::new(setup.transport), End::new(setup.transport)];
    let ids = [ends[0].qp, ends[1].qp];
    let psn = |from: &Packet| {
        let requests = |p: &&Packet| p.src == from.src && p.opcode.info().is_request();
        packets
            .iter()
            .find(requests)
            .map_or(Psn::new(0x200), |p| p.psn)
    };
    let psns = [psn(&first), psn(&back)];
    ends[0].connect(&first, ids[1], psns, &setup);
    ends[1].connect(&back, ids[0], [psns[1], psns[0]], &setup);
    for (i, from) in [first, back].iter().enumerate() {
        let key = match setup.window && i == 0 {
            true => ends[1 - i].bind(),
            false => ends[1 - i].lkey,
        };
        for m in messages(&packets, from) {
            ends[i].post(&m, key, setup.good_keys);
        }
    }
    for (number, time, packet) in captured {
        let at = format!("{name}, packet {number}");
        let from = usize::from(packet.src != first.src);
        let request = packet.opcode.info().is_request();
        let side = if request {
            Side::Requester
        } else {
            Side::Responder
        };
        let desc = ends[from]
            .next(side, time)
            .unwrap_or_else(|| panic!("{at}: nothing to send"));
        assert_eq!(shape_of(&desc), shape(&packet), "{at}");
        if number > setup.receive_after {
            top_up(&mut ends);
        }
        if setup.lost.contains(&number) {
            continue;
        }
        let mut arriving = packet;
        arriving.dest_qpn = ids[1 - from].0;
        if request {
            // The programs' addresses and keys are the only things that differ.
            arriving.ext.va = desc.ext.va;
            arriving.ext.rkey = desc.ext.rkey;
            if arriving.opcode.info().headers.has(HeaderSet::IETH) {
                arriving.ext.imm_or_rkey = desc.ext.imm_or_rkey;
            }
        }
        ends[1 - from].receive(&arriving, time);
    }
    for end in &mut ends {
        end.engine
            .advance(Nanos::from_millis(60_000), &mut end.queues, &mut end.out);
        end.settle(Nanos::ZERO);
        assert!(
            end.answers.is_empty(),
            "{name}: more to send than was sent: {:?}",
            end.answers
        );
    }
    let sends: Vec<WcStatus> = ends[0]
        .statuses
        .iter()
        .filter(|s| !s.0)
        .map(|s| s.1)
        .collect();
    let asked = messages(&packets, &first).len();
    assert_eq!(sends.len(), asked, "{name}: {sends:?}");
    assert_eq!(sends.last(), Some(&setup.status), "{name}");
}

/// One receive at each end, big enough for all.
fn top_up(ends: &mut [End; 2]) {
    for end in ends {
        let queue = end.queues.0.entry(end.qp).or_default();
        if queue.is_empty() {
            let mut wr = RecvWr {
                num_sge: 1,
                ..RecvWr::empty()
            };
            wr.sges[0] = Sge {
                addr: BASE,
                length: 1 << 16,
                lkey: end.lkey,
            };
            queue.push_back(wr);
        }
    }
}

/// How a capture is replayed, or what it waits for.
fn setup(name: &str) -> Result<Setup, &'static str> {
    let bad_key = Setup {
        good_keys: false,
        status: WcStatus::RemAccessErr,
        ..USUAL
    };
    Ok(match name {
        "rc_read_multi_mtu256" => Setup {
            mtu: Mtu::M256,
            ..USUAL
        },
        "rc_send_multi_mtu4096" | "rc_write_multi_mtu4096" => Setup {
            mtu: Mtu::M4096,
            ..USUAL
        },
        "loss_write_middle" => Setup {
            lost: &[3],
            ..USUAL
        },
        "loss_write_ack" => Setup {
            lost: &[6],
            timeout: 13,
            ..USUAL
        },
        "loss_read_req" => Setup {
            lost: &[1],
            timeout: 13,
            ..USUAL
        },
        "rnr_nak_then_ok" => Setup {
            receive_after: 2,
            ..USUAL
        },
        "retry_exceeded_no_peer" => Setup {
            lost: &[1, 2, 3],
            timeout: 11,
            retry_cnt: 2,
            status: WcStatus::RetryExcErr,
            ..USUAL
        },
        "nak_rae_write_bad_rkey" | "nak_rae_read_bad_rkey" => bad_key,
        "nak_inv_read_not_allowed" => Setup {
            access: Access::REMOTE_WRITE,
            status: WcStatus::RemInvReqErr,
            ..USUAL
        },
        "app_uc_pingpong" | "uc_send" | "uc_send_imm" | "uc_write" => UNRELIABLE,
        "loss_uc_send_middle" => Setup {
            lost: &[2],
            ..UNRELIABLE
        },
        "app_ud_pingpong" | "ud_bad_qkey" | "ud_send" | "ud_send_imm" => Setup {
            transport: Transport::Ud,
            ..USUAL
        },
        "rc_cmp_swap" | "rc_fetch_add" => Setup {
            access: Access(0xe),
            ..USUAL
        },
        "rc_send_with_inv" => Setup {
            window: true,
            status: WcStatus::RemAccessErr,
            ..USUAL
        },
        // The connection manager's datagrams in `cm_*` are left out; their RC packets are replayed.
        _ => USUAL,
    })
}

/// Every capture, but for those of operations that do not exist here yet.
#[test]
fn every_capture_of_an_operation_that_exists_is_replayed() {
    let mut waiting = Vec::new();
    let mut replayed = 0;
    for name in captured::names() {
        match setup(&name) {
            Ok(setup) => {
                match setup.transport {
                    Transport::Ud => crate::datagrams::captures::play(&name),
                    _ => play(&name, setup),
                }
                replayed += 1;
            }
            Err(operation) => waiting.push((name, operation)),
        }
    }
    assert_eq!((replayed, waiting.len()), (45, 0), "{waiting:?}");
}
