//! A load: requests of one kind over so many QPs, and the cycles that each end's engine takes for it by stage.

use roceline_engine::verbs::{Mtu, QpType, WrOpcode};
use roceline_engine::{AckPolicy, Nanos};

use crate::clock::{Spread, cycles, overhead};
use crate::ideal::{Ideal, Setup};

/// Packets of payload in a round: few enough to stay in the nearest cache, as those of a poll loop's bursts do.
const ROUND: u32 = 64;
/// Packets that an engine is given, or asked for, at once.
const BURST: usize = 32;
/// What a packet takes of virtual time, so that timers run as they would.
const PACKET_TIME: u64 = 200;

/// What is asked for.
#[derive(Clone, Copy)]
pub struct Load {
    pub op: WrOpcode,
    pub len: u32,
    pub ack_policy: AckPolicy,
    pub qps: u32,
    /// QPs come in a random order, the same in each run, and not by their numbers.
    pub random: bool,
    pub prefetch: bool,
}

/// Stages of the two ends.
pub const STAGES: [&str; 5] = ["post", "tx", "ack", "rx", "resp"];
const POST: usize = 0;
const TX: usize = 1;
const ACK: usize = 2;
const RX: usize = 3;
const RESP: usize = 4;

/// Cycles for each packet of payload.
pub struct Costs {
    pub stages: [Spread; 5],
    pub sender: Spread,
    pub receiver: Spread,
    pub all: Spread,
    /// Packets of all kinds for each packet of payload.
    pub packets: f64,
}

impl Load {
    /// Packets of payload in a request.
    fn packets(&self) -> u32 {
        self.len.div_ceil(4096).max(1)
    }

    /// Packets of payload in a round.
    pub fn payload_packets(&self) -> u32 {
        self.requests() * self.packets()
    }

    /// Requests in a round.
    fn requests(&self) -> u32 {
        (ROUND / self.packets()).max(1)
    }
}

/// A load under way.
pub struct Run {
    load: Load,
    pair: Ideal,
    /// Which QP comes next.
    order: Vec<u32>,
    next: usize,
    posted: u64,
    /// Packets on the wire so far.
    packets: u64,
    /// Cycles by stage.
    pub spent: [u64; 5],
    overhead: u64,
}

impl Run {
    pub fn new(load: Load) -> Run {
        let pair = Ideal::with(&Setup {
            qp_type: QpType::Rc,
            mtu: Mtu::M4096,
            ack_policy: load.ack_policy,
            qps: load.qps,
            send_wr: if load.qps == 1 { 256 } else { 16 },
        });
        let mut order: Vec<u32> = (0..load.qps).collect();
        if load.random {
            shuffle(&mut order);
        }
        Run {
            load,
            pair,
            order,
            next: 0,
            posted: 0,
            packets: 0,
            spent: [0; 5],
            overhead: overhead(),
        }
    }

    #[inline]
    fn charge(&mut self, stage: usize, from: u64) {
        self.spent[stage] += (cycles() - from).saturating_sub(self.overhead);
    }

    /// Posts a round of requests and lets both ends go on until all are complete.
    pub fn round(&mut self) {
        let start = cycles();
        for _ in 0..self.load.requests() {
            if self.load.prefetch {
                let ahead = |n: usize| self.order[(self.next + n) % self.order.len()] as usize;
                let end = &self.pair.ends[0];
                end.engine.prefetch_send(end.qps[ahead(8)]);
                end.engine.prefetch_send_behind(end.qps[ahead(4)]);
            }
            let qp = self.order[self.next] as usize;
            self.next = (self.next + 1) % self.order.len();
            assert!(self.pair.post_on(qp, self.load.op, self.load.len));
            self.posted += 1;
        }
        self.charge(POST, start);
        while self.pair.completions < self.posted {
            self.send(0, TX);
            self.deliver(1, RX);
            self.send(1, RESP);
            self.deliver(0, ACK);
        }
    }

    /// Lets one end send what it may.
    fn send(&mut self, n: usize, stage: usize) {
        let mut more = true;
        while more {
            let start = cycles();
            let (now, end) = (self.pair.now, &mut self.pair.ends[n]);
            let due = end.engine.next_timer().is_some_and(|at| at <= now);
            if due {
                end.engine.advance(now, &mut end.queues, &mut end.out);
            }
            more = self.pair.emit(n, BURST);
            self.charge(stage, start);
            // What has no room in the window is not to be asked for again before something came back.
            more &= !self.pair.ends[n].out.tx.is_empty();
            self.pair.collect(n);
        }
    }

    /// Gives one end what is on its way to it.
    fn deliver(&mut self, n: usize, stage: usize) {
        let mut packets = core::mem::take(&mut self.pair.wire[n]);
        for burst in packets.chunks(BURST) {
            self.pair.now = self.pair.now + Nanos(burst.len() as u64 * PACKET_TIME);
            let start = cycles();
            self.pair.burst(n, burst, self.load.prefetch);
            self.charge(stage, start);
            self.pair.collect(n);
        }
        self.packets += packets.len() as u64;
        packets.clear();
        self.pair.wire[n] = packets;
    }
}

/// Measures one load in `rounds` rounds, after each QP had its turn.
pub fn measure(load: Load, rounds: u32) -> Costs {
    let mut run = Run::new(load);
    for _ in 0..load.qps.div_ceil(load.requests()) + 10 {
        run.round();
    }
    run.packets = 0;
    let payload = f64::from(load.payload_packets());
    let mut samples: [Vec<f64>; 8] = Default::default();
    for _ in 0..rounds {
        run.spent = [0; 5];
        run.round();
        let spent = run.spent.map(|cycles| cycles as f64 / payload);
        let sender = spent[POST] + spent[TX] + spent[ACK];
        let receiver = spent[RX] + spent[RESP];
        let all = spent
            .into_iter()
            .chain([sender, receiver, sender + receiver]);
        samples
            .iter_mut()
            .zip(all)
            .for_each(|(s, value)| s.push(value));
    }
    let [post, tx, ack, rx, resp, sender, receiver, all] = samples.map(Spread::of);
    Costs {
        stages: [post, tx, ack, rx, resp],
        sender,
        receiver,
        all,
        packets: run.packets as f64 / (f64::from(rounds) * payload),
    }
}

/// Fisher and Yates, by a linear congruential generator (Knuth's MMIX) with a fixed seed.
fn shuffle(order: &mut [u32]) {
    let mut state = 1u64;
    for i in (1..order.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        order.swap(i, (state >> 33) as usize % (i + 1));
    }
}
