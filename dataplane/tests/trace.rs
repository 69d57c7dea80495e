//! One trace through both drivers of the engine: the same work requests, losses and marks go through the poll loop (two NICs of
//! one lcore and a fabric link, with real bytes) and through the simulator (no bytes, no clock), and the packets that come out of
//! each NIC are the same, field by field.

#[path = "support/shared_bytes.rs"]
mod shared_bytes;

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use pcap_file::pcapng::{Block, PcapNgReader};
use roceline::bench::producer::SIGNALED;
use roceline::bench::{Pair, Side};
use roceline::capture::chunks::{Drainer, stream};
use roceline::capture::filter::Filter;
use roceline::capture::record::decode;
use roceline::capture::request::Counts;
use roceline::control::LcorePort;
use roceline::impair::{MatchArgs, Place, Point};
use roceline::lcore::message::{Command, ContextId, Reply, Request};
use roceline::lcore::probe::NoProbe;
use roceline::lcore::tap::{Clock, Store, Tap, TapId};
use roceline::sim::node::BASE;
use roceline::sim::{FlowConfig, LinkConfig, NodeConfig, Operation, Sim};
use roceline_engine::fabric::impair::{Action, Class, Matcher, Range, Rule, RuleId, When};
use roceline_engine::verbs::{Mtu, QpId, Sge, WrOpcode};
use roceline_engine::wire::{ExtHeaders, HeaderSet, Opcode, Psn, parse};
use roceline_engine::{AckPolicy, Nanos};
use shared_bytes::SharedBytes;

const MTU: Mtu = Mtu::M1024;
/// 268 ms: no thread is kept from its processor for so long.
const TIMEOUT: u8 = 16;
/// Bytes that messages are made of at either end.
const BUFFER: usize = 1 << 16;

/// What happens to a packet on its way.
struct Fate {
    /// From the requester to the responder, or back.
    forth: bool,
    class: Class,
    psn: u32,
    action: Action,
}

/// Messages on a QP of their own, all posted at once.
struct Step {
    operation: Operation,
    len: u32,
    count: u32,
    fate: Option<Fate>,
}

fn steps() -> Vec<Step> {
    let step = |operation, len, count, fate| Step {
        operation,
        len,
        count,
        fate,
    };
    let lost = |forth, class, psn| {
        Some(Fate {
            forth,
            class,
            psn,
            action: Action::Drop,
        })
    };
    vec![
        step(Operation::Write, 1, 1, None),
        step(Operation::Write, 8 * 1024, 1, None),
        step(Operation::Write, 1025, 5, None),
        step(Operation::Send, 3000, 4, None),
        step(Operation::Read, 5000, 3, None),
        // A gap: a NAK, and from there on again.
        step(Operation::Write, 8 * 1024, 1, lost(true, Class::Data, 3)),
        step(Operation::Send, 4 * 1024, 2, lost(true, Class::Data, 1)),
        // A response is missing: the READ goes on from there.
        step(Operation::Read, 8 * 1024, 1, lost(false, Class::Data, 2)),
        // Congestion on the way: a CNP comes back.
        step(
            Operation::Write,
            8 * 1024,
            1,
            Some(Fate {
                forth: true,
                class: Class::Data,
                psn: 2,
                action: Action::MarkCe,
            }),
        ),
        // Nobody answers: the timer.
        step(
            Operation::Write,
            2 * 1024,
            1,
            lost(false, Class::Response, 1),
        ),
    ]
}

impl Fate {
    fn rule(&self, id: u32) -> Rule {
        Rule {
            id: RuleId(id),
            name: String::new(),
            matcher: Matcher {
                psn: Some(Range::new(Psn::new(self.psn), Psn::new(self.psn))),
                ..Matcher::of([self.class])
            },
            when: When {
                count: Some(1),
                ..When::default()
            },
            action: self.action.clone(),
            seed: 1,
        }
    }
}

/// A packet without what two runs may have different: addresses, keys and QPNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    opcode: Opcode,
    psn: u32,
    ack_req: bool,
    solicited: bool,
    becn: bool,
    traffic_class: u8,
    pkey: u16,
    payload: u32,
    ext: ExtHeaders,
    bytes: usize,
}

/// What a NIC sent, in order.
fn seen(frame: &[u8], base: u64, dest_qpn: u32) -> Seen {
    let packet = parse(frame).expect("a RoCE packet").packet;
    assert_eq!(packet.dest_qpn, dest_qpn);
    let mut ext = packet.ext;
    if packet.opcode.info().headers.has(HeaderSet::RETH) {
        assert_ne!(ext.rkey, 0);
        (ext.va, ext.rkey) = (ext.va - base, 0);
    }
    Seen {
        opcode: packet.opcode,
        psn: packet.psn.get(),
        ack_req: packet.ack_req,
        solicited: packet.solicited,
        becn: packet.becn,
        traffic_class: packet.traffic_class,
        pkey: packet.pkey,
        payload: packet.payload_len,
        ext,
        bytes: frame.len(),
    }
}

/// Of one step: what the requester's NIC sent, and what the responder's; CNPs of either, which overtake what waits, come last.
type Trace = [Vec<Seen>; 2];

fn cnps_last(mut trace: Trace) -> Trace {
    for sent in &mut trace {
        sent.sort_by_key(|packet| packet.opcode == Opcode::CNP);
    }
    trace
}

/// The poll loop.
struct Real {
    pair: Pair,
    heard: Drainer,
    from: Vec<u8>,
    to: Vec<u8>,
    rules: u32,
}

impl Real {
    fn new() -> Real {
        let mut pair = Pair::new(AckPolicy::PerMessage, MTU, 6).expect("an lcore");
        let (filler, heard) = stream(1 << 22);
        let args = MatchArgs {
            class: Some("roce".into()),
            ..MatchArgs::default()
        };
        let tap = Tap {
            id: TapId(1),
            nics: [true, true].into(),
            inbound: false,
            outbound: true,
            snaplen: 4218,
            filter: Filter::new(&args.spec(), 2).expect("a filter"),
            store: Store::Stream(filler),
            counts: [Counts::default(); 2].into(),
            clock: Clock::start(),
            state: Arc::default(),
        };
        let (reply, answer) = sync_channel(1);
        let request = Request {
            context: ContextId(0),
            command: Command::AddTap(Box::new(tap)),
            reply,
        };
        pair.mailbox().send(0, request).expect("room");
        pair.lcore.turn(&mut NoProbe);
        assert!(matches!(answer.try_recv(), Ok(Reply::Done)));
        Real {
            pair,
            heard,
            from: vec![7; BUFFER],
            to: vec![0; BUFFER],
            rules: 0,
        }
    }

    fn run(&mut self, step: &Step) -> Trace {
        let (mut a, mut b) = self
            .pair
            .more_with_timeout(MTU, 6, TIMEOUT)
            .expect("programs");
        if let Some(fate) = &step.fate {
            self.rules += 1;
            let place = Place {
                nic: u16::from(fate.forth).into(),
                point: Point::Rx,
            };
            self.pair
                .impair(place, fate.rule(self.rules))
                .expect("a rule");
        }
        let pair = &mut self.pair;
        let mut poll = || {
            pair.lcore.turn(&mut NoProbe);
        };
        let (from, to) = (self.from.as_ptr() as u64, self.to.as_mut_ptr() as u64);
        let key = |side: &Side, addr, poll: &mut dyn FnMut()| {
            let registered = side.producer.register(addr, BUFFER as u64, poll);
            registered.expect("a region")
        };
        let keys = (key(&a, from, &mut poll), key(&b, to, &mut poll));
        let entry = |addr, lkey| Sge {
            addr,
            length: step.len,
            lkey,
        };
        let opcode = match step.operation {
            Operation::Write => WrOpcode::Write,
            Operation::Read => WrOpcode::Read,
            Operation::Send => WrOpcode::Send,
        };
        for _ in 0..step.count {
            b.producer.post_recv(&mut b.qp, entry(to, keys.1));
        }
        for _ in 0..step.count {
            let local = entry(from, keys.0);
            a.producer
                .post_send(&mut a.qp, opcode, SIGNALED, local, (to, keys.1), None);
        }
        a.producer.ring(&a.qp);
        let end = Instant::now() + Duration::from_secs(60);
        let mut done = 0;
        while done < step.count {
            assert!(Instant::now() < end, "{done} of {} are done", step.count);
            poll();
            while let Some(cqe) = a.producer.poll_cq() {
                assert_eq!((cqe.status, cqe.vendor_err), (0, 0));
                done += 1;
            }
        }
        // The tap hands on what it has at the end of a turn, if what it handed on before was read.
        let mut records = Vec::new();
        // Not each turn is a poll, which hands on.
        let mut silent = 0;
        while silent < 32 {
            poll();
            silent = match self.heard.read(&mut records) {
                true => 0,
                false => silent + 1,
            };
        }
        let mut trace = Trace::default();
        let mut rest = &records[..];
        while let Some(record) = decode(&mut rest) {
            let nic = usize::from(record.nic);
            let qpn = [b.qp.qpn, a.qp.qpn][nic];
            trace[nic].push(seen(record.data, to, qpn));
        }
        cnps_last(trace)
    }
}

/// The simulator: messages that are posted at once leave before the first answer is there, as in a burst of the poll loop.
fn simulated(step: &Step) -> Trace {
    let mut sim = Sim::new();
    let node = NodeConfig {
        ack_policy: AckPolicy::PerMessage,
        ..NodeConfig::default()
    };
    let nodes = [0, 1].map(|_| sim.add_node(&node));
    let link = LinkConfig {
        bits_per_s: 100_000_000_000,
        delay: Nanos::from_micros(50),
        queue_bytes: 1 << 20,
    };
    sim.join(nodes[0], nodes[1], &link);
    let files = nodes.map(|node| {
        let file = SharedBytes::default();
        sim.record(node, Box::new(file.clone()), 65_535)
            .expect("memory");
        file
    });
    if let Some(fate) = &step.fate {
        let from = nodes[usize::from(!fate.forth)];
        sim.link(from).rules().add(fate.rule(1)).expect("a rule");
    }
    let mut flow = FlowConfig {
        operation: step.operation,
        message: step.len,
        depth: step.count,
        bytes: Some(u64::from(step.len) * u64::from(step.count)),
        ..FlowConfig::new(nodes[0], nodes[1])
    };
    flow.attr.path_mtu = MTU;
    flow.attr.path.traffic_class = 0;
    flow.attr.timeout = TIMEOUT;
    flow.attr.min_rnr_timer = 12;
    let flow = sim.add_flow(&flow);
    let qps = sim.flow(flow).qps.expect("it has begun");
    assert!(sim.run(|sim| sim.flow(flow).finished.is_some()));
    sim.finish_records().expect("memory");
    let sent = |node: usize| {
        let file = files[node].now();
        let QpId(qpn) = qps[1 - node];
        let gid = sim.node(nodes[node]).gid();
        frames(&file)
            .filter(|frame| parse(frame).is_ok_and(|parsed| parsed.packet.src == gid))
            .map(|frame| seen(&frame, BASE, qpn))
            .collect()
    };
    cnps_last([sent(0), sent(1)])
}

fn frames(file: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let mut reader = PcapNgReader::new(file).expect("a pcapng file");
    let mut frames = Vec::new();
    while let Some(block) = reader.next_block() {
        if let Block::EnhancedPacket(packet) = block.expect("a block") {
            frames.push(packet.data.into_owned());
        }
    }
    frames.into_iter()
}

#[test]
fn both_drivers_send_the_same_packets() {
    let mut real = Real::new();
    for (number, step) in steps().iter().enumerate() {
        let (a, b) = (real.run(step), simulated(step));
        for (nic, (real, simulated)) in a.iter().zip(&b).enumerate() {
            assert!(!simulated.is_empty());
            let marks = matches!(&step.fate, Some(fate) if fate.action == Action::MarkCe);
            let cnps = simulated
                .iter()
                .filter(|packet| packet.opcode == Opcode::CNP);
            assert_eq!(
                cnps.count(),
                usize::from(marks && nic == 1),
                "step {number}"
            );
            for (at, (real, simulated)) in real.iter().zip(simulated).enumerate() {
                assert_eq!(real, simulated, "step {number}, NIC {nic}, packet {at}");
            }
            assert_eq!(real.len(), simulated.len(), "step {number}, NIC {nic}");
        }
    }
}
