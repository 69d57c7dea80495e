//! Both NICs on one core, each on an lcore of its own that one thread polls in turns, so that cycles are known by NIC and
//! stage: what a core would do that only sent, or only received.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use roceline_engine::Nanos;

use super::end::{End, EndConfig};
use super::load::{Load, Requester, Responder};
use crate::lcore::Lcore;
use crate::lcore::probe::{CycleProbe, NoProbe, Probe, Stage, Stages, tsc};
use crate::port::{FabricLink, FabricLinkConfig, Mempool, Port};

/// Polls of an empty loop that are measured at once.
const EMPTY_POLLS: u64 = 20_000;
/// A turn of the clock that steps.
const STEP: Nanos = Nanos::from_micros(1);
/// Polls without progress after which a load is taken to hang.
const STUCK: u32 = 20_000_000;

/// Cycles of a NIC.
#[derive(Clone, Debug, Default)]
pub struct Cycles {
    /// In polls.
    pub all: u64,
    /// By stage, if they were looked at.
    pub stages: Stages,
    /// Polls.
    pub polls: u64,
    /// Packets that it sent and received meanwhile.
    pub packets: u64,
}

/// What is measured while a load runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measured {
    /// Whole polls.
    Plain,
    /// Their stages, too: to look at the clock between them costs some.
    Staged,
    /// Whole polls, as long as somebody looks at the loop with `roceline top`.
    Watched,
}

/// What happened in a stretch of time.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Messages; a part of one counts as such.
    pub messages: f64,
    /// Cycles that passed, those of the programs included.
    pub cycles: u64,
    /// Of the requester's NIC.
    pub requester: Cycles,
    /// Of the responder's.
    pub responder: Cycles,
    /// Times that something was sent again.
    pub retries: u64,
}

/// Two NICs joined by a fabric link.
pub struct OneCore {
    a: End,
    b: End,
    responder: Responder,
    mtu: u32,
    /// The clock of [`OneCore::exactly`]: ahead of what setting up took.
    steps: Nanos,
}

impl OneCore {
    /// Builds it; `config`'s side is not looked at.
    ///
    /// # Errors
    /// When memory or an lcore refuses; the error says why.
    pub fn new(config: &EndConfig, pool: &Arc<Mempool>) -> io::Result<OneCore> {
        let link = FabricLinkConfig {
            capacity_packets: config.ring as usize,
            ..FabricLinkConfig::default()
        };
        let (end_a, end_b) = FabricLink::pair(&link).map_err(io::Error::other)?;
        let end = |side, port| {
            let config = EndConfig {
                side,
                ..config.clone()
            };
            End::new(&config, Port::new(port), Arc::clone(pool))
        };
        let (mut a, mut b) = (end(0, end_a)?, end(1, end_b)?);
        a.connect(&b.introduction())?;
        b.connect(&a.introduction())?;
        Ok(OneCore {
            a,
            b,
            responder: Responder::default(),
            mtu: config.mtu,
            steps: Nanos::from_millis(3_600_000),
        })
    }

    /// A requester for `load`, and a responder that is ready for it.
    pub fn begin(&mut self, load: Load) -> Requester {
        self.responder.prepare(&load, &mut self.b);
        Requester::new(load, self.b.introduction())
    }

    /// Runs for a while.
    pub fn sample(
        &mut self,
        requester: &mut Requester,
        load: &Load,
        time: Duration,
        tsc_hz: f64,
        measured: Measured,
    ) -> Sample {
        let until = (time.as_secs_f64() * tsc_hz) as u64;
        match measured {
            Measured::Plain => return self.run(requester, load, until, &mut Plain, &mut Plain),
            Measured::Watched => {
                return self.run(requester, load, until, &mut Watched, &mut Watched);
            }
            Measured::Staged => {}
        }
        let (mut of_a, mut of_b) = (CycleProbe::new(1), CycleProbe::new(1));
        let mut sample = self.run(requester, load, until, &mut of_a, &mut of_b);
        for stage in Stage::ALL {
            sample.requester.stages[stage] = of_a.cycles(stage);
            sample.responder.stages[stage] = of_b.cycles(stage);
        }
        sample
    }

    fn run<P: Polling>(
        &mut self,
        requester: &mut Requester,
        load: &Load,
        until: u64,
        of_a: &mut P,
        of_b: &mut P,
    ) -> Sample {
        let (packets, retries) = (self.b.packets(), self.retries());
        let before = [&self.a, &self.b].map(End::all_packets);
        let mut sample = Sample::default();
        let begin = tsc();
        loop {
            requester.step(&mut self.a);
            of_a.resume();
            let start = tsc();
            of_a.turn(&mut self.a.lcore);
            let middle = tsc();
            of_a.pause();
            of_b.resume();
            of_b.turn(&mut self.b.lcore);
            let end = tsc();
            of_b.pause();
            self.responder.step(&mut self.b);
            sample.requester.all += middle - start;
            sample.responder.all += end - middle;
            sample.requester.polls += 1;
            sample.responder.polls += 1;
            sample.cycles = end - begin;
            if sample.cycles >= until {
                break;
            }
        }
        sample.requester.packets = self.a.all_packets() - before[0];
        sample.responder.packets = self.b.all_packets() - before[1];
        let requests = (self.b.packets() - packets) as f64;
        sample.messages = requests / load.requests(self.mtu) as f64;
        sample.retries = self.retries() - retries;
        sample
    }

    /// Lets all that is outstanding come to its end.
    ///
    /// # Errors
    /// When it does not, or something was completed with an error.
    pub fn finish(&mut self, requester: &mut Requester) -> io::Result<()> {
        for _ in 0..STUCK {
            requester.reap(&mut self.a);
            self.a.lcore.turn(&mut NoProbe);
            self.b.lcore.turn(&mut NoProbe);
            self.responder.step(&mut self.b);
            if requester.is_done(&self.a) {
                requester.reap(&mut self.a);
                requester.check()?;
                return self.responder.check();
            }
        }
        requester.check()?;
        Err(io::Error::other("requests were never completed"))
    }

    /// Exactly so many messages, `watched` as by `roceline top` or not, with a clock that steps by as much each turn: the same instructions in every run, which a simulated CPU
    /// can count (`valgrind --tool=callgrind --toggle-collect='*OneCore*exactly*'`).
    ///
    /// # Errors
    /// When they are never completed, or with an error.
    #[inline(never)]
    pub fn exactly(
        &mut self,
        requester: &mut Requester,
        messages: u64,
        watched: bool,
    ) -> io::Result<()> {
        let mut now = self.steps;
        let end = requester.posted() + messages;
        for _ in 0..STUCK {
            let left = end - requester.posted();
            requester.post(&mut self.a, left.min(64) as usize);
            now = now + STEP;
            for lcore in [&mut self.a.lcore, &mut self.b.lcore] {
                match watched {
                    false => lcore.poll(now, &mut NoProbe),
                    true => lcore.watched_poll(now),
                };
            }
            self.responder.step(&mut self.b);
            requester.reap(&mut self.a);
            if requester.posted() == end && requester.is_done(&self.a) {
                self.steps = now;
                requester.check()?;
                return self.responder.check();
            }
        }
        requester.check()?;
        Err(io::Error::other("requests were never completed"))
    }

    /// The responder's half.
    pub fn responder(&mut self) -> &mut End {
        &mut self.b
    }

    /// Cycles of a poll in which nothing happens, least of several goes.
    pub fn empty_poll(&mut self) -> f64 {
        let go = || {
            let start = tsc();
            for _ in 0..EMPTY_POLLS {
                self.a.lcore.turn(&mut NoProbe);
            }
            (tsc() - start) as f64 / EMPTY_POLLS as f64
        };
        std::iter::repeat_with(go)
            .take(9)
            .fold(f64::INFINITY, f64::min)
    }

    fn retries(&self) -> u64 {
        self.a.retries() + self.b.retries()
    }
}

/// How an lcore is polled, and what is measured of it.
trait Polling {
    /// It is polled from now on.
    fn resume(&mut self) {}
    /// One poll.
    fn turn(&mut self, lcore: &mut Lcore);
    /// And no longer.
    fn pause(&mut self) {}
}

/// As by a daemon at which nobody looks.
struct Plain;

impl Polling for Plain {
    #[inline]
    fn turn(&mut self, lcore: &mut Lcore) {
        lcore.turn(&mut NoProbe);
    }
}

/// As by a daemon at which `roceline top` looks.
struct Watched;

impl Polling for Watched {
    #[inline]
    fn turn(&mut self, lcore: &mut Lcore) {
        let now = lcore.now();
        lcore.watched_poll(now);
    }
}

/// A probe's clock stands still while another NIC is polled.
impl Polling for CycleProbe {
    #[inline]
    fn resume(&mut self) {
        CycleProbe::resume(self);
    }
    #[inline]
    fn turn(&mut self, lcore: &mut Lcore) {
        lcore.turn(self);
    }
    #[inline]
    fn pause(&mut self) {
        // What was measured since the last stage began belongs to it.
        self.begin(Stage::End);
    }
}
