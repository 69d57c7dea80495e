//! A core for each NIC and its program: two threads over a fabric link, or two processes over a port of DPDK. The requester's half is
//! this thread's, the other one a [`Far`].

use std::io;
use std::time::Duration;

use serde::Serialize;

use super::end::End;
use super::far::{Ask, Far};
use super::load::{Load, Requester};
use super::machine::{Distance, PING_PONG, Seen, Unknown};
use super::ping_pong::{self, Latency};
use super::stats::Spread;
use crate::lcore::probe::{NoProbe, tsc};

/// Polls without progress after which a load is taken to hang.
const STUCK: u32 = 50_000_000;
/// Before the first round.
const WARM_UP: Duration = Duration::from_millis(50);
/// Times that a case is measured again because the CPUs moved meanwhile.
const AGAIN: usize = 2;

/// A case measured.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The operation.
    pub op: super::load::Op,
    /// Bytes of a message.
    pub bytes: u32,
    /// QPs.
    pub qps: usize,
    /// Messages in a second.
    pub messages_per_s: Spread,
    /// Payload of these, in Gb/s.
    pub gbps: Spread,
    /// Share of polls' time in which the requester's NIC found something to do.
    pub requester_busy: f64,
    /// And the responder's.
    pub responder_busy: f64,
    /// Times that something was sent again.
    pub retries: u64,
    /// How far the CPUs were from each other before and after.
    pub distance: [Seen; 2],
    /// They moved, again and again: the figures are of no use.
    pub moved: bool,
}

/// What passed between two reports.
struct Sample {
    messages_per_s: f64,
    requester_busy: f64,
    responder_busy: f64,
    retries: u64,
}

/// Two connected halves.
pub struct TwoCores {
    a: End,
    far: Far,
    mtu: u32,
    cpus: Option<(usize, usize)>,
    tsc_hz: f64,
    /// How far the CPUs were from each other after the last case.
    seen: Option<Seen>,
}

impl TwoCores {
    /// Connects them. `cpus`: where the two run, if they are pinned.
    ///
    /// # Errors
    /// When an lcore refuses.
    pub fn new(
        mut a: End,
        mut far: Far,
        mtu: u32,
        cpus: Option<(usize, usize)>,
        tsc_hz: f64,
    ) -> io::Result<TwoCores> {
        let peer = far.introduction().clone();
        a.connect(&peer)?;
        far.tell(Ask::Connect(a.introduction()))?;
        Ok(TwoCores {
            a,
            far,
            mtu,
            cpus,
            tsc_hz,
            seen: None,
        })
    }

    /// Measures a load, again if the CPUs move meanwhile.
    ///
    /// # Errors
    /// When the other half is gone, or requests are never completed.
    pub fn measure(&mut self, load: Load, rounds: usize, round: Duration) -> io::Result<Outcome> {
        let mut before = match self.seen.take() {
            Some(seen) => seen,
            None => self.distance()?,
        };
        for again in 0.. {
            let samples = self.rounds(load, rounds, round)?;
            let after = self.distance()?;
            self.seen = Some(after.clone());
            let moved = before.moved(&after);
            if moved && again < AGAIN {
                before = after;
                continue;
            }
            let rate = Spread::of(samples.iter().map(|s| s.messages_per_s));
            let median = |of: fn(&Sample) -> f64| Spread::of(samples.iter().map(of)).median;
            return Ok(Outcome {
                op: load.op,
                bytes: load.len,
                qps: self.a.qps.len(),
                messages_per_s: rate,
                gbps: rate.map(|rate| rate * f64::from(load.len) * 8.0 / 1e9),
                requester_busy: median(|s| s.requester_busy),
                responder_busy: median(|s| s.responder_busy),
                retries: samples.iter().map(|s| s.retries).sum(),
                distance: [before, after],
                moved,
            });
        }
        unreachable!("the last go returns")
    }

    /// Half round trips of WRITEs of `len` bytes.
    ///
    /// # Errors
    /// When the other half is gone.
    pub fn latency(&mut self, len: u32, rounds: u64) -> io::Result<Latency> {
        self.far.tell(Ask::Echo(len))?;
        let peer = self.far.introduction();
        let measured = ping_pong::ping_pong(&mut self.a, peer, len, rounds, self.tsc_hz, || {});
        // First of all, as there is no answer from a half that is gone.
        self.far.tell(Ask::Echo(0))?;
        measured
    }

    /// How far the two CPUs are from each other.
    ///
    /// # Errors
    /// When the other half is gone.
    pub fn distance(&mut self) -> io::Result<Seen> {
        let Some((a, b)) = self.cpus else {
            return Ok(Seen(Err(Unknown::Anywhere)));
        };
        self.far
            .meanwhile(2 * PING_PONG, || Distance::between(a, b))
    }

    fn rounds(&mut self, load: Load, rounds: usize, round: Duration) -> io::Result<Vec<Sample>> {
        self.far.tell(Ask::Prepare(load))?;
        let mut requester = Requester::new(load, self.far.introduction().clone());
        self.sample(&mut requester, &load, WARM_UP)?;
        let samples = (0..rounds.max(1))
            .map(|_| self.sample(&mut requester, &load, round))
            .collect::<io::Result<_>>()?;
        self.finish(&mut requester)?;
        Ok(samples)
    }

    fn sample(
        &mut self,
        requester: &mut Requester,
        load: &Load,
        time: Duration,
    ) -> io::Result<Sample> {
        let before = self.far.report()?;
        let own_retries = self.a.retries();
        let until = (time.as_secs_f64() * self.tsc_hz) as u64;
        let begin = tsc();
        let (mut all, mut busy) = (0, 0);
        loop {
            requester.step(&mut self.a);
            let start = tsc();
            let work = self.a.lcore.turn(&mut NoProbe);
            let end = tsc();
            all += end - start;
            if work > 0 {
                busy += end - start;
            }
            if end - begin >= until {
                break;
            }
        }
        // Requests to a half that is gone fail, so it is asked before they are looked at.
        let after = self.far.report()?;
        requester.check()?;
        let seconds = (tsc() - begin) as f64 / self.tsc_hz;
        let requests = (after.packets - before.packets) as f64;
        Ok(Sample {
            messages_per_s: requests / load.requests(self.mtu) as f64 / seconds,
            requester_busy: busy as f64 / all as f64,
            responder_busy: (after.busy - before.busy) as f64
                / (after.all - before.all).max(1) as f64,
            retries: after.retries - before.retries + self.a.retries() - own_retries,
        })
    }

    fn finish(&mut self, requester: &mut Requester) -> io::Result<()> {
        for _ in 0..STUCK {
            requester.reap(&mut self.a);
            if requester.is_done(&self.a) {
                requester.reap(&mut self.a);
                self.far.report()?;
                return requester.check();
            }
            self.a.lcore.turn(&mut NoProbe);
        }
        self.far.report()?;
        Err(io::Error::other("requests were never completed"))
    }
}
