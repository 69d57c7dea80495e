//! The reaction point: what each QP may send per second, and when the next packet of one that is held back may go.
//!
//! In flow CNPs, acknowledgements and what was sent; out flow, for [`super::transmit`], the bytes that a QP may send now, and the
//! slots of those whose time has come. The algorithms ([`crate::congestion::Algorithm`]) decide about rates, this about time.
//!
//! A QP that no algorithm holds back costs a look at [`Qp::limited`]. One that is held back has a credit in billionths of a bit
//! (rate times nanoseconds, so nothing is ever rounded): it grows with time at the rates of the time, packets take their bytes
//! of link time from it, and none leaves while it is negative. Its QP waits in a timing wheel until then. So the wheel's tick
//! makes a packet late, and the average stays exact. What a QP did not use since it had nothing to send is lost; what it could
//! not use, as others had their turn or the caller came late, it makes up for, up to [`BURST`].

use super::qp::Qp;
use crate::congestion::{AckSignal, Algorithm, CongestionConfig, Controller, Rate};
use crate::time::Nanos;
use crate::timers::TimerWheel;
use crate::wire::{Psn, Transport};

/// Billionths of a bit of a byte.
const BYTE: i64 = 8_000_000_000;
/// Bytes that a QP may make up for at once when it was kept waiting.
const BURST: i64 = 64 << 10;
/// How soon a QP that waits looks again at a rate that changes meanwhile, at the soonest.
const LOOK_AGAIN: Nanos = Nanos::from_micros(10);
/// Changes of a rate that are worked out one by one for a QP that is late; of more, the rest counts as one.
const STEPS: u32 = 64;

/// A packet whose acknowledgement is waited for.
#[derive(Clone, Copy)]
struct Probe {
    psn: Psn,
    sent: Nanos,
}

/// One QP's.
struct Flow {
    algorithm: Algorithm,
    /// Billionths of a bit that may be sent; negative: how many must pass first.
    credit: i64,
    /// What `credit` is reckoned up to.
    since: Nanos,
    /// It has something to send and waits for its time or its turn.
    held: bool,
    /// Nobody acknowledges its packets: it is of an unreliable queue pair.
    unheard: bool,
    probe: Option<Probe>,
}

impl Flow {
    fn new(config: &CongestionConfig, priority: u8) -> Flow {
        Flow {
            algorithm: Algorithm::new(config, priority),
            credit: 0,
            since: Nanos::ZERO,
            held: false,
            unheard: false,
            probe: None,
        }
    }

    /// Brings credit and algorithm up to `now`.
    fn settle(&mut self, now: Nanos) {
        let mut steps = if self.held { STEPS } else { 0 };
        while self.since < now {
            let change = self.algorithm.next_change().filter(|_| steps > 0);
            steps = steps.saturating_sub(1);
            let until = change.map_or(now, |at| at.clamp(self.since, now));
            match self.algorithm.limit() {
                Some(rate) => self.grow(rate, until.saturating_sub(self.since)),
                // Who is not held back owes nothing when that changes.
                None => self.credit = 0,
            }
            self.since = until;
            self.algorithm.advance(until);
        }
        if !self.held {
            self.credit = self.credit.min(0);
        }
    }

    fn grow(&mut self, rate: Rate, time: Nanos) {
        let gain = u128::from(rate.0) * u128::from(time.0);
        let gain = i64::try_from(gain).unwrap_or(i64::MAX);
        self.credit = self.credit.saturating_add(gain).min(BURST * BYTE);
    }

    /// Packets of a queue pair without acknowledgements left: for algorithms that go by shares of packets they count as arrived.
    fn count_unheard(&mut self, packets: u32, mtu: u32, now: Nanos) {
        if self.unheard && self.algorithm.hears_acks() {
            let signal = AckSignal {
                packets,
                bytes: packets.saturating_mul(mtu),
                rtt: None,
            };
            self.algorithm.on_ack(&signal, now);
        }
    }

    /// When credit is no longer negative, if the rate stays as it is.
    fn ready_at(&self, rate: Rate) -> Nanos {
        let missing = self.credit.min(0).unsigned_abs();
        self.since + Nanos(missing.div_ceil(rate.0.max(1)))
    }
}

/// What a QP may send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowance {
    /// As much as it wants.
    Free,
    /// Packets until they have taken so many bytes of link time.
    Bytes(i64),
    /// Nothing.
    Wait,
}

/// The reaction points of an engine's QPs.
pub(crate) struct Reaction {
    config: CongestionConfig,
    flows: Vec<Flow>,
    /// Slots that wait for their time.
    waiting: TimerWheel,
}

impl Reaction {
    pub fn new(config: &CongestionConfig) -> Reaction {
        Reaction {
            config: *config,
            flows: Vec::new(),
            waiting: TimerWheel::new(0),
        }
    }

    /// A QP that starts, in whatever slot.
    pub fn start(&mut self, qp: &mut Qp) {
        let slot = qp.slot as usize;
        while self.flows.len() <= slot {
            self.flows.push(Flow::new(&self.config, 0));
        }
        self.waiting.grow(self.flows.len() as u32);
        self.waiting.cancel(qp.slot);
        self.flows[slot] = Flow::new(&self.config, qp.priority);
        self.flows[slot].unheard = qp.transport != Transport::Rc;
        self.note(qp);
    }

    /// The QP in `slot` is gone.
    pub fn stop(&mut self, slot: u32) {
        self.waiting.cancel(slot);
    }

    /// Whether queue pairs of `priority` slow down when their packets are marked.
    pub fn heeds_marks(&self, priority: u8) -> bool {
        Algorithm::new(&self.config, priority).heeds_cnp()
    }

    /// Takes over another configuration; [`Reaction::configure`] must follow for each QP.
    pub fn set_config(&mut self, config: &CongestionConfig) {
        self.config = *config;
    }

    /// Goes by the present configuration, and by the QP's present priority, from `now` on.
    pub fn configure(&mut self, qp: &mut Qp, now: Nanos) {
        let flow = &mut self.flows[qp.slot as usize];
        flow.settle(now);
        flow.algorithm.configure(&self.config, qp.priority, now);
        // Of the time until somebody listens again, nobody tells what is acknowledged.
        flow.probe = None;
        self.note(qp);
    }

    /// Lets the QP know what its algorithm wants of it.
    fn note(&self, qp: &mut Qp) {
        let algorithm = &self.flows[qp.slot as usize].algorithm;
        qp.limited = algorithm.limit().is_some();
        qp.hears_acks = algorithm.hears_acks();
    }

    /// A CNP arrived for a QP. False if its algorithm does not care.
    pub fn on_cnp(&mut self, qp: &mut Qp, now: Nanos) -> bool {
        let flow = &mut self.flows[qp.slot as usize];
        if !flow.algorithm.heeds_cnp() {
            return false;
        }
        flow.settle(now);
        // One of its packets arrived, and as long as it is not held back nobody says more of them.
        flow.count_unheard(1, 1 << qp.mtu_shift, now);
        flow.algorithm.on_cnp(now);
        self.note(qp);
        true
    }

    /// A packet that was never sent before asks for an acknowledgement.
    pub fn asked(&mut self, slot: u32, psn: Psn, now: Nanos) {
        let probe = &mut self.flows[slot as usize].probe;
        if probe.is_none() {
            *probe = Some(Probe { psn, sent: now });
        }
    }

    /// Packets are sent again: an acknowledgement could be of either (Karn and Partridge, SIGCOMM 1987).
    pub fn forget_probe(&mut self, slot: u32) {
        self.flows[slot as usize].probe = None;
    }

    /// `packets` up to, but without, `una` were acknowledged.
    pub fn on_ack(&mut self, qp: &mut Qp, packets: u32, una: Psn, now: Nanos) {
        let flow = &mut self.flows[qp.slot as usize];
        let passed = flow.probe.filter(|probe| probe.psn.before(una));
        if passed.is_some() {
            flow.probe = None;
        }
        let signal = AckSignal {
            packets,
            bytes: packets << qp.mtu_shift,
            rtt: passed.map(|probe| now.saturating_sub(probe.sent)),
        };
        flow.settle(now);
        flow.algorithm.on_ack(&signal, now);
        self.note(qp);
    }

    /// What a QP that is held back may send now.
    pub fn allowance(&mut self, qp: &mut Qp, now: Nanos) -> Allowance {
        let flow = &mut self.flows[qp.slot as usize];
        flow.settle(now);
        if flow.algorithm.limit().is_none() {
            flow.held = false;
            qp.limited = false;
            return Allowance::Free;
        }
        match flow.credit {
            0.. => Allowance::Bytes(flow.credit / BYTE + 1),
            _ => Allowance::Wait,
        }
    }

    /// A QP that is held back has sent `bytes` of link time, and has more or not. True if its next packet may go now.
    pub fn sent(&mut self, qp: &Qp, bytes: u32, more: bool, now: Nanos) -> bool {
        let (slot, mtu) = (qp.slot, 1 << qp.mtu_shift);
        let flow = &mut self.flows[slot as usize];
        flow.credit = flow.credit.saturating_sub(i64::from(bytes) * BYTE);
        if bytes > 0 {
            flow.algorithm.on_sent(bytes, now);
            flow.count_unheard(bytes.div_ceil(mtu), mtu, now);
        }
        flow.held = more;
        if !more {
            return false;
        }
        let Some(rate) = flow.algorithm.limit() else {
            return true;
        };
        if flow.credit >= 0 {
            return true;
        }
        let mut at = flow.ready_at(rate);
        if let Some(change) = flow.algorithm.next_change() {
            at = at.min(change.max(now + LOOK_AGAIN));
        }
        self.waiting.arm(slot, at);
        false
    }

    /// A QP whose time to send, or to look at its rate again, has come.
    #[inline]
    pub fn pop_due(&mut self, now: Nanos) -> Option<u32> {
        // Also where nobody waits: the wheel's time goes on with it, and what is armed then lies where it should.
        self.waiting.pop_due(now)
    }

    /// When the next one comes.
    #[inline]
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.waiting.next_deadline()
    }

    /// Whether congestion control holds the QP in `slot` back.
    #[inline]
    pub fn is_limited(&self, slot: u32) -> bool {
        self.flows[slot as usize].algorithm.limit().is_some()
    }

    /// Whether the QP in `slot` has something to send and must wait for its time.
    pub fn holds(&self, slot: u32) -> bool {
        let flow = self.flows.get(slot as usize);
        flow.is_some_and(|flow| flow.held && flow.credit < 0)
    }

    /// The rate of the QP in `slot` at `now`, which may be later than all that has happened to it.
    pub fn rate(&self, slot: u32, now: Nanos) -> Rate {
        let mut algorithm = self.flows[slot as usize].algorithm.clone();
        algorithm.advance(now);
        algorithm.rate()
    }
}
