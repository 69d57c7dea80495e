//! The whole datapath between two programs inside the process: rates, and cycles by NIC and stage. In flow cases, out flow
//! figures; what is printed of them is the command line's.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::end::EndConfig;
use super::limit;
use super::load::Load;
use super::machine::tsc_hz;
use super::one_core::{Cycles, Measured, OneCore, Sample};
use super::stats::Spread;
use crate::config::LINK_PACKETS;
use crate::lcore::Tuning;
use crate::lcore::probe::Stage;
use crate::port::{Eal, EalConfig, Mempool, MempoolConfig};

/// How to measure.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Path MTU.
    pub mtu: u32,
    /// Memory is mapped; otherwise it is reached through the kernel.
    pub mapped: bool,
    /// An ACK for each message.
    pub ack_per_message: bool,
    /// Congestion control as in the preset, for a line of 1 Tb/s.
    pub congestion_control: bool,
    /// Rounds; the median counts.
    pub rounds: usize,
    /// Length of a round.
    pub round: Duration,
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// What the requester does.
    pub load: Load,
    /// QPs that take turns.
    pub qps: usize,
}

/// What a NIC needs.
#[derive(Clone, Debug, Serialize)]
pub struct Cost {
    /// Cycles of a message.
    pub cycles: Spread,
    /// Messages in a second of a core that does nothing else.
    pub messages_per_s: Spread,
    /// Payload of these, in Gb/s.
    pub gbps: Spread,
    /// The least that copying and ICRC would cost, as a share of that.
    pub share_of_limit: f64,
    /// Cycles of a packet with data, or with the request of an answer without, by stage.
    pub stages: Vec<(String, f64)>,
}

/// A case measured.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The operation, as the command line spells it.
    pub op: super::load::Op,
    /// Bytes of a message.
    pub bytes: u32,
    /// QPs.
    pub qps: usize,
    /// Packets that bring a message.
    pub packets: u64,
    /// Of the requester's NIC.
    pub requester: Cost,
    /// Of the responder's.
    pub responder: Cost,
    /// Messages in a second when one core does all, the programs included.
    pub together_per_s: Spread,
    /// Times that something was sent again; more than a few spoil the figures.
    pub retries: u64,
}

/// What it costs that `roceline top` looks.
#[derive(Clone, Debug, Serialize)]
pub struct Watching {
    /// The operation, as the command line spells it.
    pub op: super::load::Op,
    /// Bytes of a message.
    pub bytes: u32,
    /// QPs.
    pub qps: usize,
    /// Cycles of a message at the requester's NIC while nobody looks.
    pub requester_cycles: Spread,
    /// Per cent that it takes more while somebody does.
    pub requester_more_percent: Spread,
    /// The same of the responder's.
    pub responder_cycles: Spread,
    /// Likewise.
    pub responder_more_percent: Spread,
}

/// What a NIC needs beside another with one QP.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// Cycles of a message.
    pub cycles: Spread,
    /// Of that with one QP.
    pub one_cycles: Spread,
    /// How many times as much.
    pub ratio: Spread,
    /// Cycles of a packet, sent or received.
    pub packet_cycles: Spread,
    /// Of that with one QP.
    pub one_packet_cycles: Spread,
    /// How many times as much.
    pub packet_ratio: Spread,
}

impl Side {
    /// From rounds of one QP and of many, each pair of which was measured right after one another.
    fn of(pairs: &[(Sample, Sample)], of: fn(&Sample) -> &Cycles) -> Side {
        let message = |s: &Sample| of(s).all as f64 / s.messages;
        let packet = |s: &Sample| of(s).all as f64 / of(s).packets as f64;
        let spread = |f: &dyn Fn(&(Sample, Sample)) -> f64| Spread::of(pairs.iter().map(f));
        Side {
            cycles: spread(&|(_, many)| message(many)),
            one_cycles: spread(&|(one, _)| message(one)),
            ratio: spread(&|(one, many)| message(many) / message(one)),
            packet_cycles: spread(&|(_, many)| packet(many)),
            one_packet_cycles: spread(&|(one, _)| packet(one)),
            packet_ratio: spread(&|(one, many)| packet(many) / packet(one)),
        }
    }
}

/// Many QPs beside one.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The requester's NIC.
    pub requester: Side,
    /// The responder's.
    pub responder: Side,
    /// Times that something was sent again; more than a few spoil the figures.
    pub retries: u64,
}

/// Both NICs on one core.
pub struct Datapath {
    settings: Settings,
    pool: Arc<Mempool>,
    tsc_hz: f64,
    // The two NICs with as many QPs as the last case had.
    current: Option<(usize, usize, OneCore)>,
    // Last: what is above uses its memory.
    eal: Eal,
}

/// Mbufs: as many as a daemon has.
pub const MBUFS: u32 = 8192;
/// Before the first round.
const WARM_UP: Duration = Duration::from_millis(20);
/// Rounds in which stages are measured.
const STAGED: usize = 3;
/// The buffer has at least so many bytes.
const LEAST_BUFFER: usize = 4096;

/// Slots of the queues of `qps` QPs, as a power of two: 10,000 QPs with queues like one would not fit the memory of small
/// machines.
pub fn log2_depth(qps: usize) -> u32 {
    match qps {
        0..=64 => 8,
        65..=1024 => 6,
        _ => 4,
    }
}

/// Bytes of a buffer for messages of `len` bytes.
pub fn least_bytes(len: usize) -> usize {
    len.max(LEAST_BUFFER)
}

/// A half with so many QPs and bytes of memory.
pub fn end_config(settings: &Settings, qps: usize, bytes: usize) -> EndConfig {
    EndConfig {
        side: 0,
        qps,
        log2_depth: log2_depth(qps),
        bytes,
        mapped: settings.mapped,
        mtu: settings.mtu,
        ack_per_message: settings.ack_per_message,
        congestion_control: settings.congestion_control,
        tuning: Tuning::default(),
        ring: LINK_PACKETS,
    }
}

impl Datapath {
    /// Initialises EAL, so once in a process.
    ///
    /// # Errors
    /// When EAL refuses.
    pub fn new(settings: Settings) -> io::Result<Datapath> {
        let eal = Eal::init(&EalConfig::default()).map_err(io::Error::other)?;
        let pool = MempoolConfig {
            count: MBUFS,
            ..MempoolConfig::default()
        };
        Ok(Datapath {
            settings,
            pool: Mempool::new(&eal, &pool).map_err(io::Error::other)?,
            tsc_hz: tsc_hz(),
            current: None,
            eal,
        })
    }

    /// Whether memory of packets is of hugepages.
    pub fn has_hugepages(&self) -> bool {
        self.eal.has_hugepages()
    }

    /// Ticks of the time stamp counter in a second.
    pub fn tsc_hz(&self) -> f64 {
        self.tsc_hz
    }

    /// Two connected NICs with so many QPs and bytes of memory.
    ///
    /// # Errors
    /// When memory or an lcore refuses.
    pub fn ends(&mut self, qps: usize, bytes: usize) -> io::Result<&mut OneCore> {
        let bytes = least_bytes(bytes);
        let fits = |&(has, room, _): &(usize, usize, OneCore)| has == qps && room == bytes;
        let kept = self.current.take().filter(fits);
        let ends = match kept {
            Some((_, _, ends)) => ends,
            None => OneCore::new(&end_config(&self.settings, qps, bytes), &self.pool)?,
        };
        Ok(&mut self.current.insert((qps, bytes, ends)).2)
    }

    /// Two connected NICs with one QP, for [`Datapath::compare`].
    ///
    /// # Errors
    /// When memory or an lcore refuses.
    pub fn one(&self, bytes: usize) -> io::Result<OneCore> {
        OneCore::new(
            &end_config(&self.settings, 1, least_bytes(bytes)),
            &self.pool,
        )
    }

    /// Measures a case beside `one`: rounds of both in turns, so that what the machine does meanwhile, clocks and neighbours above
    /// all, is the same for both, and the ratio is that of rounds next to each other.
    ///
    /// # Errors
    /// When it cannot be set up, or hangs.
    pub fn compare(&mut self, case: &Case, one: &mut OneCore) -> io::Result<Comparison> {
        let (load, hz) = (case.load, self.tsc_hz);
        let Settings { rounds, round, .. } = self.settings;
        let many = self.ends(case.qps, load.len as usize)?;
        let mut of_one = one.begin(load);
        let mut of_many = many.begin(load);
        one.sample(&mut of_one, &load, WARM_UP, hz, Measured::Plain);
        many.sample(&mut of_many, &load, WARM_UP, hz, Measured::Plain);
        let mut pairs = Vec::new();
        for pair in 0..rounds.max(1) {
            let mut few = || one.sample(&mut of_one, &load, round, hz, Measured::Plain);
            let mut all = || many.sample(&mut of_many, &load, round, hz, Measured::Plain);
            // Each comes first as often as the other: what changes with time is for both alike.
            pairs.push(match pair % 2 {
                0 => {
                    let first = few();
                    (first, all())
                }
                _ => {
                    let first = all();
                    (few(), first)
                }
            });
        }
        one.finish(&mut of_one)?;
        many.finish(&mut of_many)?;
        Ok(Comparison {
            requester: Side::of(&pairs, |s| &s.requester),
            responder: Side::of(&pairs, |s| &s.responder),
            retries: pairs
                .iter()
                .map(|(one, many)| one.retries + many.retries)
                .sum(),
        })
    }

    /// Measures a case.
    ///
    /// # Errors
    /// When it cannot be set up, or hangs.
    pub fn measure(&mut self, case: &Case) -> io::Result<Outcome> {
        let (load, hz) = (case.load, self.tsc_hz);
        let Settings {
            mtu, rounds, round, ..
        } = self.settings;
        let ends = self.ends(case.qps, load.len as usize)?;
        let mut requester = ends.begin(load);
        ends.sample(&mut requester, &load, WARM_UP, hz, Measured::Plain);
        let plain: Vec<Sample> = (0..rounds.max(1))
            .map(|_| ends.sample(&mut requester, &load, round, hz, Measured::Plain))
            .collect();
        let staged: Vec<Sample> = (0..STAGED)
            .map(|_| ends.sample(&mut requester, &load, round, hz, Measured::Staged))
            .collect();
        ends.finish(&mut requester)?;
        let limit = limit::copy_and_icrc(load.len, mtu);
        let packets = load.packets(mtu);
        let cost = |of: fn(&Sample) -> &Cycles| {
            let cycles = plain.iter().map(|s| of(s).all as f64 / s.messages);
            let cycles = Spread::of(cycles);
            let stage = |stage: Stage| {
                let share = |s: &Sample| of(s).stages[stage] as f64 / (s.messages * packets as f64);
                let spread = Spread::of(staged.iter().map(share));
                (stage.name().to_string(), spread.median)
            };
            let messages_per_s = cycles.map(|cycles| hz / cycles);
            Cost {
                cycles,
                messages_per_s,
                gbps: messages_per_s.map(|rate| rate * f64::from(load.len) * 8.0 / 1e9),
                share_of_limit: limit / cycles.median,
                stages: Stage::ALL.into_iter().map(stage).collect(),
            }
        };
        Ok(Outcome {
            op: load.op,
            bytes: load.len,
            qps: case.qps,
            packets,
            requester: cost(|s| &s.requester),
            responder: cost(|s| &s.responder),
            together_per_s: Spread::of(plain.iter().map(|s| s.messages / s.cycles as f64 * hz)),
            retries: plain.iter().chain(&staged).map(|s| s.retries).sum(),
        })
    }

    /// Measures what a case costs more while `roceline top` looks: rounds in turns with it and without.
    ///
    /// # Errors
    /// When it cannot be set up, or hangs.
    pub fn watched(&mut self, case: &Case) -> io::Result<Watching> {
        let (load, hz) = (case.load, self.tsc_hz);
        let Settings { rounds, round, .. } = self.settings;
        let ends = self.ends(case.qps, load.len as usize)?;
        let mut requester = ends.begin(load);
        ends.sample(&mut requester, &load, WARM_UP, hz, Measured::Plain);
        let mut all = Vec::new();
        for pair in 0..rounds.max(1) {
            let mut one = |measured| {
                let sample = ends.sample(&mut requester, &load, round, hz, measured);
                [&sample.requester, &sample.responder].map(|of| of.all as f64 / sample.messages)
            };
            // Each comes first as often as the other: what changes with time is for both alike.
            let (plain, watched) = if pair % 2 == 0 {
                let plain = one(Measured::Plain);
                (plain, one(Measured::Watched))
            } else {
                let watched = one(Measured::Watched);
                (one(Measured::Plain), watched)
            };
            all.push((plain, watched));
        }
        ends.finish(&mut requester)?;
        let more = |side: usize| {
            let ratios = all
                .iter()
                .map(|(plain, watched)| watched[side] / plain[side]);
            Spread::of(ratios.map(|ratio| 100.0 * (ratio - 1.0)))
        };
        let cycles = |side: usize| Spread::of(all.iter().map(|(plain, _)| plain[side]));
        Ok(Watching {
            op: load.op,
            bytes: load.len,
            qps: case.qps,
            requester_cycles: cycles(0),
            requester_more_percent: more(0),
            responder_cycles: cycles(1),
            responder_more_percent: more(1),
        })
    }

    /// Moves exactly so many messages ([`OneCore::exactly`]).
    ///
    /// # Errors
    /// When it cannot be set up, or hangs.
    pub fn exactly(&mut self, case: &Case, messages: u64, watched: bool) -> io::Result<()> {
        let ends = self.ends(case.qps, case.load.len as usize)?;
        let mut requester = ends.begin(case.load);
        ends.finish(&mut requester)?;
        ends.exactly(&mut requester, messages, watched)
    }

    /// Lets go of the NICs of earlier cases.
    pub fn forget(&mut self) {
        self.current = None;
    }

    /// Registers the responder's memory `count` times, of which requests of the following cases name one at random; gives the
    /// seconds that it took.
    ///
    /// # Errors
    /// When there are no NICs yet ([`Datapath::ends`]), or the lcore refuses.
    pub fn register(&mut self, count: usize) -> io::Result<f64> {
        let (_, _, ends) = self
            .current
            .as_mut()
            .ok_or_else(|| io::Error::other("no NICs yet"))?;
        let begin = Instant::now();
        ends.responder().register_more(count)?;
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Nanoseconds of a poll in which nothing happens, with so many idle QPs.
    ///
    /// # Errors
    /// When it cannot be set up.
    pub fn empty_poll(&mut self, qps: usize) -> io::Result<f64> {
        let cycles = self.ends(qps, LEAST_BUFFER)?.empty_poll();
        Ok(cycles / self.tsc_hz * 1e9)
    }
}
