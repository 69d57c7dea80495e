//! What a polling thread does with its time, counted while somebody looks (`roceline top`).
//!
//! Each question ([`Usage::ask`]) counts for as long as it says; nobody has to say that it has seen enough. When it is
//! over, all that is left in the loop is the look whether it is on. While it is on, each turn of the loop costs the look at what the
//! last one was: time is that of the loop's clock, which reads the time stamp counter once a turn anyway. One turn in
//! [`TURNS`] times its number of stages is timed stage by stage, and in it is looked what queue pairs wait for. So many turns lie
//! between two of these, and never just so many, that a stage costs a turn less than two cycles however many programs there are, and
//! that loads which repeat themselves are not always met at the same place.
//!
//! All of it belongs to the polling thread. Who asks gets a copy by its mailbox, as of all counters.

use roceline_engine::{Nanos, Waiting};

use super::Lcore;
use super::clock::LONGEST_STEP;
use super::nic::Nic;
use super::probe::{CycleProbe, Probe, Stage, Stages};

/// A timed turn comes after so many others for each of its stages.
const TURNS: u32 = 16;
/// The longest that a question counts.
pub const LONGEST: Nanos = Nanos::from_millis(60_000);

/// What a loop did while it was looked at. All of it only grows.
#[derive(Clone, Debug, Default)]
pub struct LoopUse {
    /// CPU that the loop is pinned to, if any.
    pub cpu: Option<usize>,
    /// Times that somebody began to look: if it has grown, what lies between two answers was not all counted.
    pub sessions: u64,
    /// Time of turns that had something to do.
    pub busy: Nanos,
    /// Time of turns that had not, and polled on.
    pub empty: Nanos,
    /// Time of turns that had not, and gave the CPU to others or slept.
    pub away: Nanos,
    /// Time that the kernel gave to others unasked.
    pub lost: Nanos,
    /// Turns.
    pub turns: u64,
    /// Of them, those that had something to do.
    pub busy_turns: u64,
    /// Times that the loop slept.
    pub sleeps: u64,
    /// Timed turns.
    pub looks: u64,
    /// Of them, those that had something to do and were not interrupted: cycles are of these.
    pub timed: u64,
    /// Of all timed turns, those that found programs' memory being reached through the kernel.
    pub memory_waits: u64,
    /// Cycles of what is of no single NIC.
    pub stages: Stages,
    /// By their places in the loop.
    pub nics: Vec<NicUse>,
}

/// What a NIC did meanwhile.
#[derive(Clone, Debug, Default)]
pub struct NicUse {
    /// Its index among all of the daemon.
    pub index: u32,
    /// RoCE packets received and sent since the daemon runs, looked at or not.
    pub packets: [u64; 2],
    /// Bytes of them.
    pub bytes: [u64; 2],
    /// Messages received since the daemon runs: SEND, WRITE, READ and atomic requests.
    pub messages_in: u64,
    /// Requests read from programs' queues while it was looked at.
    pub messages_out: u64,
    /// Of timed turns: cycles.
    pub stages: Stages,
    /// Of timed turns: packets received and sent.
    pub timed_packets: [u64; 2],
    /// Of timed turns: those that received or sent any.
    pub bursts: [u64; 2],
    /// Timed turns at whose beginning packets waited for the port.
    pub port_waits: u64,
    /// What queue pairs waited for when they were looked at, in the order of [`Waiting::ALL`].
    pub waiting: [u64; Waiting::ALL.len()],
}

/// The books of a loop.
#[derive(Debug)]
pub struct Usage {
    /// Until then somebody looks.
    until: Option<Nanos>,
    /// Turns until one is timed.
    left: u32,
    /// When the last turn began, and whether it had something to do.
    last: Option<(Nanos, bool)>,
    /// Who times stages; elsewhere while it does.
    probe: Option<Box<CycleProbe>>,
    /// Who counts requests in other turns; likewise.
    counter: Counter,
    /// Of each NIC, packets received and sent at the beginning of a timed turn.
    packets: Vec<[u64; 2]>,
    /// The place of the next queue pair that is looked at.
    slot: u32,
    /// Differs each time.
    spread: u32,
    all: LoopUse,
}

/// Counts requests by NIC.
#[derive(Debug, Default)]
struct Counter(Vec<u64>);

impl Probe for Counter {
    #[inline(always)]
    fn begin(&mut self, _stage: Stage) {}
    #[inline(always)]
    fn begin_of(&mut self, _stage: Stage, _nic: usize) {}
    #[inline]
    fn requests(&mut self, nic: usize, count: usize) {
        if let Some(sum) = self.0.get_mut(nic) {
            *sum += count as u64;
        }
    }
}

impl Usage {
    /// Of a loop with these NICs.
    pub fn new(nics: &[Nic]) -> Usage {
        let of = |nic: &Nic| NicUse {
            index: nic.info.index,
            ..NicUse::default()
        };
        Usage {
            until: None,
            left: 0,
            last: None,
            probe: None,
            counter: Counter(vec![0; nics.len()]),
            packets: vec![[0; 2]; nics.len()],
            slot: 0,
            spread: 1,
            all: LoopUse {
                nics: nics.iter().map(of).collect(),
                ..LoopUse::default()
            },
        }
    }

    /// Whether somebody looks.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// Somebody looks from `now` on, for so long.
    pub fn ask(&mut self, now: Nanos, how_long: Nanos) {
        if self.until.is_none() {
            self.all.sessions += 1;
            self.last = None;
            self.left = 0;
            let nics = self.packets.len();
            let new = || Box::new(CycleProbe::new(nics));
            self.probe.get_or_insert_with(new);
        }
        self.until = self.until.max(Some(now + how_long.min(LONGEST)));
    }

    /// A turn begins; between it and the last one the CPU was given away, or not.
    #[inline]
    fn begin(&mut self, now: Nanos, away: bool) {
        let all = &mut self.all;
        if let Some((since, busy)) = self.last {
            let sum = match (busy, away) {
                (true, _) => &mut all.busy,
                (false, true) => &mut all.away,
                (false, false) => &mut all.empty,
            };
            *sum = *sum + now.saturating_sub(since);
            all.turns += 1;
            all.busy_turns += u64::from(busy);
        }
        if self.until.is_some_and(|until| until <= now) {
            self.until = None;
        }
    }

    /// How things stand at the beginning of a timed turn.
    fn look(&mut self, nics: &[Nic], memory_waits: bool) {
        self.all.looks += 1;
        self.all.memory_waits += u64::from(memory_waits);
        self.slot = self.slot.wrapping_add(1);
        for ((sums, packets), nic) in self.all.nics.iter_mut().zip(&mut self.packets).zip(nics) {
            *packets = packets_of(nic);
            let waits = !nic.tx.is_empty() || !nic.tx_burst.is_empty();
            sums.port_waits += u64::from(waits);
            let slots = nic.engine.qp_slots() as u32;
            let waiting = self.slot.checked_rem(slots);
            if let Some(waiting) = waiting.and_then(|slot| nic.engine.waiting(slot)) {
                sums.waiting[waiting as usize] += 1;
            }
        }
    }

    /// A timed turn has ended. What it measured counts if it is `told`.
    fn add(&mut self, nics: &[Nic], probe: &CycleProbe, told: bool) {
        let all = &mut self.all;
        for (((sums, before), nic), (stages, requests)) in all
            .nics
            .iter_mut()
            .zip(&self.packets)
            .zip(nics)
            .zip(probe.of_nics())
        {
            sums.messages_out += requests;
            if !told {
                continue;
            }
            sums.stages.add(stages);
            for (side, now) in packets_of(nic).into_iter().enumerate() {
                let new = now.wrapping_sub(before[side]);
                sums.timed_packets[side] += new;
                sums.bursts[side] += u64::from(new > 0);
            }
        }
        if told {
            all.timed += 1;
            all.stages.add(probe.of_loop());
        }
        let most = TURNS.saturating_mul(probe.marks()).max(1);
        // The generator of Knuth and Lewis (Numerical Recipes, 2nd ed., 7.1); its upper bits differ enough for this.
        let next = self.spread.wrapping_mul(1_664_525);
        self.spread = next.wrapping_add(1_013_904_223);
        self.left = most + (self.spread >> 16) % most.div_ceil(4);
    }
}

/// RoCE packets received and sent.
#[inline]
fn packets_of(nic: &Nic) -> [u64; 2] {
    let counters = nic.engine.counters();
    [counters.rdma_rx_packets, counters.rdma_tx_packets]
}

/// A poll of a loop that is looked at. Gives the number of things done, as [`Lcore::poll`].
pub fn poll(lcore: &mut Lcore, now: Nanos) -> usize {
    let away = lcore.idle.was_away();
    lcore.usage.begin(now, away);
    let work = match lcore.usage.left.checked_sub(1) {
        Some(left) => {
            lcore.usage.left = left;
            counted(lcore, now)
        }
        None => timed(lcore, now),
    };
    lcore.usage.last = Some((now, work > 0));
    work
}

fn counted(lcore: &mut Lcore, now: Nanos) -> usize {
    let mut counter = std::mem::take(&mut lcore.usage.counter);
    let work = lcore.poll(now, &mut counter);
    if work > 0 {
        for (sums, count) in lcore.usage.all.nics.iter_mut().zip(&mut counter.0) {
            sums.messages_out += std::mem::take(count);
        }
    }
    lcore.usage.counter = counter;
    work
}

#[inline(never)]
fn timed(lcore: &mut Lcore, now: Nanos) -> usize {
    let Some(mut probe) = lcore.usage.probe.take() else {
        return counted(lcore, now);
    };
    let memory_waits = lcore.shared.programs.wait();
    lcore.usage.look(&lcore.nics, memory_waits);
    let since = lcore.clock.machine();
    probe.clear();
    let work = lcore.poll(now, probe.as_mut());
    // What was measured since the last stage began belongs to it.
    probe.begin(Stage::End);
    // Of one that the kernel interrupted for longer than a poll takes, most cycles are somebody else's.
    let whole = lcore.clock.machine() - since <= LONGEST_STEP;
    lcore.usage.add(&lcore.nics, &probe, whole && work > 0);
    lcore.usage.probe = Some(probe);
    work
}

/// Answers whoever looks, and goes on counting for so long.
pub fn serve(lcore: &mut Lcore, now: Nanos, how_long: Nanos) -> LoopUse {
    lcore.usage.ask(now, how_long);
    let mut all = lcore.usage.all.clone();
    all.cpu = lcore.cpu;
    all.lost = lcore.clock.lost();
    all.sleeps = lcore.idle.sleeps();
    for (part, nic) in all.nics.iter_mut().zip(&lcore.nics) {
        let c = nic.engine.counters();
        part.packets = packets_of(nic);
        part.bytes = [c.rdma_rx_bytes, c.rdma_tx_bytes];
        let requests = [
            c.rx_write_requests,
            c.rx_read_requests,
            c.rx_atomic_requests,
        ];
        part.messages_in = nic.counts.rx_sends + requests.iter().sum::<u64>();
    }
    all
}
