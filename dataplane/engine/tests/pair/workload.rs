//! Random programs on both ends of several QPs, and the rules that every run must keep:
//! each message is delivered once, in order, byte for byte, with one completion on each side that wants
//! one; or the QP fails with the right status and everything behind is flushed in order.

mod checks;

use std::collections::{BTreeMap, VecDeque};

use roceline_engine::congestion::CongestionConfig;
use roceline_engine::fabric::impair::Random;
use roceline_engine::fabric::impair::fuzz::{self, Scope};
use roceline_engine::memory::Access;
use roceline_engine::verbs::*;
use roceline_engine::wire::Psn;
use roceline_engine::{AckPolicy, EngineConfig, Nanos, Retransmission};

use crate::link::Faults;
use crate::memory::{IOVA_SHIFT, sges};
use crate::node::{MemoryFaults, default_attr};
use crate::rng::Rng;
use crate::world::{World, default_config, default_init};

/// A message's bytes after the program is done with them: later writes by the engine would show.
const USED: u8 = 0xee;

type Pieces = Vec<(u64, u32)>;

struct Message {
    op: WrOpcode,
    len: u32,
    signaled: bool,
    solicited: bool,
    imm: u32,
    inline: bool,
    fence: bool,
    data: Vec<u8>,
    /// The sender's buffer; for a READ where the data goes.
    local: Pieces,
    /// WRITE: where it goes; READ: where it comes from.
    remote: u64,
    /// SEND: the receiver's buffer.
    receive: Pieces,
}

impl Message {
    fn takes_receive(&self) -> bool {
        matches!(
            self.op,
            WrOpcode::Send | WrOpcode::SendImm | WrOpcode::WriteImm
        )
    }
}

/// The messages of one direction of a QP.
struct Flow {
    from: usize,
    qp: QpId,
    peer: QpId,
    messages: Vec<Message>,
    posted: usize,
    /// Posted and not completed, oldest first: index of the message.
    open: VecDeque<usize>,
    receives: Vec<usize>,
    receives_posted: usize,
    received: usize,
    failed: Option<WcStatus>,
}

/// What a run may do.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub seed: u64,
    pub qps: usize,
    pub messages: usize,
    pub faults: Faults,
    /// So many random rules in each direction, besides.
    pub rules: u32,
    pub memory: MemoryFaults,
    /// Receives are posted late, so that RNR NAKs happen.
    pub late_receives: bool,
    /// Retries are few, so that QPs may fail.
    pub few_retries: bool,
    pub max_packets: u64,
}

struct Run {
    world: World,
    flows: Vec<Flow>,
    plan: Plan,
    rng: Rng,
    used: [Pieces; 2],
}

/// Prints how to repeat a failing run.
struct Seed(Plan);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with {:?}", self.0);
            eprintln!(
                "repeat with ROCELINE_SEED={} (and ROCELINE_TRACE=1 for the wire)",
                self.0.seed
            );
        }
    }
}

/// What there was to see in runs that kept all rules.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Packets that rules hit, by what the rules do.
    pub hits: BTreeMap<&'static str, u64>,
    /// Directions of QPs on which everything was delivered.
    pub delivered: usize,
    /// Those that failed.
    pub failed: BTreeMap<&'static str, usize>,
}

/// Runs one plan to its end and checks everything.
pub fn run(plan: Plan, seen: &mut Seen) {
    let _seed = Seed(plan);
    let mut run = Run::new(plan);
    run.go();
    run.check_end();
    for way in &run.world.link.ways {
        for (rule, counts) in way.rules.rules() {
            *seen.hits.entry(rule.action.kind().name()).or_default() += counts.hit;
        }
    }
    for f in &run.flows {
        match f.failed {
            None => seen.delivered += 1,
            Some(WcStatus::RetryExcErr) => *seen.failed.entry("retries").or_default() += 1,
            Some(WcStatus::RnrRetryExcErr) => *seen.failed.entry("rnr").or_default() += 1,
            Some(WcStatus::WrFlushErr) => *seen.failed.entry("flushed").or_default() += 1,
            Some(_) => *seen.failed.entry("other").or_default() += 1,
        }
    }
}

impl Run {
    fn new(plan: Plan) -> Run {
        let mut rng = Rng::new(plan.seed);
        let config = EngineConfig {
            window: rng.pick(&[1, 2, 3, 16, 64, 256]),
            ack_policy: rng.pick(&[AckPolicy::PerMessage, AckPolicy::Coalesced]),
            retransmission: rng.pick(&[Retransmission::Spec, Retransmission::Adaptive]),
            owner: 1,
            owner_bits: 2,
            congestion: CongestionConfig::default(),
            ..default_config(plan.seed)
        };
        let bytes = plan.qps * plan.messages * (plan.max_packets as usize + 2) * 4096 * 3;
        let mut world = World::new(config, plan.faults, bytes.min(96 << 20));
        world.keep_log = false;
        let mut of_rules = Random::new(plan.seed);
        for (from, way) in world.link.ways.iter_mut().enumerate() {
            for id in 0..plan.rules {
                let rule = fuzz::rule(&mut of_rules, id, Scope::Network, Nanos(20_000));
                if world.trace {
                    println!("node {from}: {rule:?}");
                }
                way.rules.add(rule).expect("a good rule");
            }
        }
        for node in &mut world.nodes {
            node.memory_faults = plan.memory;
        }
        let mut run = Run {
            world,
            flows: vec![],
            plan,
            rng,
            used: [vec![], vec![]],
        };
        for _ in 0..plan.qps {
            run.add_qp();
        }
        run
    }

    fn add_qp(&mut self) {
        let rng = &mut self.rng;
        let init = QpInit {
            sq_sig_all: rng.permille(300),
            max_send_wr: 1 + rng.below(20) as u32,
            max_send_sge: rng.pick(&[1, 3, 32]),
            ..default_init()
        };
        let few = self.plan.few_retries;
        let mtu = rng.pick(&[Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096]);
        let psns =
            [0, 1].map(|_| Psn::new(rng.pick(&[0, 1, 0xff_fff0, 0xff_ffff, 0x7f_fffa, 0x80_0001])));
        let reads = 1 + rng.below(16) as u8;
        let rnr = rng.pick(&[1, 2, 12]);
        let attr = |n: usize, rng: &mut Rng| QpAttr {
            access: Access(Access::REMOTE_WRITE.0 | Access::REMOTE_READ.0),
            path_mtu: mtu,
            timeout: rng.pick(&[4, 5, 6]),
            retry_cnt: if few { rng.below(3) as u8 } else { 7 },
            rnr_retry: if few { rng.below(4) as u8 } else { 7 },
            sq_psn: psns[n],
            rq_psn: psns[1 - n],
            max_rd_atomic: reads,
            max_dest_rd_atomic: reads,
            min_rnr_timer: rnr,
            ..default_attr()
        };
        let attrs = [attr(0, rng), attr(1, rng)];
        let ids = self.world.connect([&init, &init], [&attrs[0], &attrs[1]]);
        for from in 0..2 {
            let messages: Vec<Message> = (0..self.plan.messages)
                .map(|_| self.message(from, mtu, &init))
                .collect();
            let receives = messages
                .iter()
                .enumerate()
                .filter(|m| m.1.takes_receive())
                .map(|m| m.0)
                .collect();
            self.flows.push(Flow {
                from,
                qp: ids[from],
                peer: ids[1 - from],
                messages,
                posted: 0,
                open: VecDeque::new(),
                receives,
                receives_posted: 0,
                received: 0,
                failed: None,
            });
        }
    }

    fn message(&mut self, from: usize, mtu: Mtu, init: &QpInit) -> Message {
        let rng = &mut self.rng;
        let mtu = u64::from(mtu.bytes());
        use WrOpcode::*;
        let op = rng.pick(&[Send, Send, SendImm, Write, Write, WriteImm, Read, Read]);
        let packets = rng.below(self.plan.max_packets);
        let any = rng.below(mtu);
        let len = rng.pick(&[
            0,
            1,
            any,
            mtu - 1,
            mtu,
            mtu + 1,
            packets * mtu,
            packets * mtu + any,
        ]) as u32;
        let inline = op != Read && len <= init.max_inline && rng.permille(300);
        let data: Vec<u8> = (0..len).map(|_| rng.next() as u8 & 0x7f).collect();
        let max = init.max_send_sge as usize;
        let mine = &mut self.world.nodes[from].memory;
        let local = mine.alloc_pieces(if inline { 0 } else { len }, max, rng);
        if op != Read && !inline {
            mine.scatter(&local, &data);
        }
        let theirs = &mut self.world.nodes[1 - from].memory;
        let remote = theirs.alloc(len);
        self.used[1 - from].push((remote, len));
        if op == Read {
            theirs.write(remote, &data);
        }
        let slack = rng.below(64) as u32;
        let receive = match op {
            Send | SendImm => theirs.alloc_pieces(len + slack, 32, rng),
            _ => vec![],
        };
        self.used[from].extend(&local);
        self.used[1 - from].extend(&receive);
        Message {
            op,
            len,
            signaled: rng.permille(600),
            solicited: rng.permille(300),
            imm: rng.next() as u32,
            inline,
            fence: rng.permille(100),
            data,
            local,
            remote,
            receive,
        }
    }

    fn go(&mut self) {
        let mut steps = 0u64;
        loop {
            steps += 1;
            assert!(
                steps < 3_000_000,
                "the run does not come to an end: {}",
                self.progress()
            );
            let acted = self.act();
            let polled = self.world.poll();
            self.check_completions();
            if acted || polled {
                continue;
            }
            let next = self.world.next_time();
            let wish = self
                .wants_to_act()
                .then(|| self.world.now + Nanos(1 + self.rng.below(20_000)));
            match next.into_iter().chain(wish).min() {
                // A poll loop is never exactly in time.
                Some(t) => {
                    self.world.now = self.world.now.max(t) + Nanos(self.rng.below(300));
                }
                None => break,
            }
        }
    }

    fn progress(&self) -> String {
        let of = |f: &Flow| {
            format!(
                "{:?}: posted {} open {} received {} of {}; ",
                f.qp,
                f.posted,
                f.open.len(),
                f.received,
                f.messages.len()
            )
        };
        self.flows.iter().map(of).collect()
    }

    fn wants_to_act(&self) -> bool {
        self.flows
            .iter()
            .any(|f| f.posted < f.messages.len() || f.receives_posted < f.receives.len())
    }

    /// The programs post a little.
    fn act(&mut self) -> bool {
        let mut any = false;
        for i in 0..self.flows.len() {
            let hesitates = if self.plan.late_receives { 995 } else { 0 };
            let f = &self.flows[i];
            let pending = f.receives_posted < f.receives.len();
            if pending && !self.rng.permille(hesitates) {
                self.post_receive(i);
                any = true;
            }
            if self.rng.permille(500) {
                any |= self.post_send(i);
            }
        }
        any
    }

    fn post_receive(&mut self, i: usize) {
        let f = &mut self.flows[i];
        let number = f.receives_posted;
        f.receives_posted += 1;
        let node = &mut self.world.nodes[1 - f.from];
        let pieces = &f.messages[f.receives[number]].receive;
        let list = sges(pieces, node.mr.lkey);
        node.post_recv(f.peer, number as u64, &list);
    }

    fn post_send(&mut self, i: usize) -> bool {
        let f = &mut self.flows[i];
        let Some(m) = f.messages.get(f.posted) else {
            return false;
        };
        let keys = [self.world.nodes[0].mr.rkey, self.world.nodes[1].mr.rkey];
        let wr = SendWr {
            wr_id: f.posted as u64,
            opcode: Some(m.op),
            signaled: m.signaled,
            solicited: m.solicited,
            fence: m.fence,
            inline: m.inline,
            num_sge: if m.inline { 0 } else { m.local.len() as u32 },
            length: m.len.into(),
            imm_or_rkey: m.imm,
            // Empty messages need no key.
            rkey: if m.len == 0 {
                0xdead_be00
            } else {
                keys[1 - f.from]
            },
            remote_addr: m.remote + IOVA_SHIFT,
            ..SendWr::default()
        };
        let list = if m.inline {
            vec![]
        } else {
            sges(&m.local, keys[f.from])
        };
        let inline = if m.inline { &m.data[..] } else { &[] };
        let node = &mut self.world.nodes[f.from];
        let wanted = node.engine.wants_sends(f.qp);
        let taken = node.post_send(f.qp, wr, &list, inline);
        assert_eq!(taken, wanted);
        if taken {
            f.open.push_back(f.posted);
            f.posted += 1;
        }
        taken
    }
}
