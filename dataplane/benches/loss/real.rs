//! The same in the real loop: two NICs on one lcore, joined by a fabric link, the in-process producer, and a rule at the receiving NIC
//! as `roceline impair` would put there.

use std::io;
use std::time::{Duration, Instant};

use roceline::bench::producer::SIGNALED;
use roceline::bench::{Pair, Side};
use roceline::impair::{Place, Point as At};
use roceline::lcore::message::{Command, ImpairCommand, Reply};
use roceline::lcore::probe::NoProbe;
use roceline_engine::AckPolicy;
use roceline_engine::fabric::impair::{
    Action, Chance, Class, Matcher, Probability, Rule, RuleId, When,
};
use roceline_engine::verbs::{Mtu, Sge, WrOpcode};

/// ACK timeout as verbs codes it: 16.8 ms. With the 1.05 ms of virtual time a thread that loses its CPU for a time slice is
/// taken for a loss.
pub const TIMEOUT: u8 = 12;
/// Bytes of a message.
const LEN: u32 = 1 << 16;
/// Messages under way.
const DEPTH: u32 = 64;
/// Rounds of a point, each with loss and, right before, without. The median of their ratios counts: how fast the loop is
/// changes by the second with where the kernel runs the memory threads.
pub const ROUNDS: usize = 9;
/// Length of a round, with loss and without.
const ROUND: Duration = Duration::from_millis(250);
/// The rule's number.
const RULE: u32 = 1;
/// Where it is.
const PLACE: Place = Place {
    nic: 1,
    point: At::Rx,
};

/// A point of the curve.
pub struct Point {
    /// Acknowledged bits per second, the median of the rounds.
    pub goodput: f64,
    /// Goodput as a part of that without loss, side by side: median, least and most of the rounds.
    pub part: [f64; 3],
    /// Packets that the rule dropped.
    pub lost: u64,
    /// Status with which the QP failed, if it did.
    pub failed: Option<u32>,
}

/// Two connected programs.
pub struct Loop {
    pair: Pair,
    a: Side,
    b: Side,
    from: Vec<u8>,
    to: Vec<u8>,
    keys: (u32, u32),
    posted: u64,
    done: u64,
}

impl Loop {
    /// Initialises EAL, so once in a process.
    pub fn new() -> io::Result<Loop> {
        let mut pair = Pair::new(AckPolicy::Coalesced, Mtu::M4096, 8)?;
        let (from, to) = (vec![7; LEN as usize], vec![0; LEN as usize]);
        let (a, b, keys) = programs(&mut pair, &from, &to)?;
        Ok(Loop {
            pair,
            a,
            b,
            from,
            to,
            keys,
            posted: 0,
            done: 0,
        })
    }

    /// Measures with this loss on data.
    pub fn point(&mut self, loss: Probability) -> Result<Point, String> {
        // Into the steady state first.
        let mut failed = self.write_for(ROUND).err();
        let mut goodputs = Vec::new();
        let mut parts = Vec::new();
        let mut lost = 0;
        while failed.is_none() && parts.len() < ROUNDS {
            let clean = self.round()?;
            self.lose(loss)?;
            let lossy = self.round()?;
            lost += self.lose_no_more()?;
            match (clean, lossy) {
                (Ok(clean), Ok(lossy)) => {
                    goodputs.push(lossy);
                    parts.push(lossy / clean);
                }
                (Err(status), _) | (_, Err(status)) => failed = Some(status),
            }
        }
        if failed.is_some() {
            // Its successors have a QP that works.
            (self.a, self.b, self.keys) =
                programs(&mut self.pair, &self.from, &self.to).map_err(|e| e.to_string())?;
            self.posted = self.done;
        }
        goodputs.sort_by(f64::total_cmp);
        parts.sort_by(f64::total_cmp);
        let at = |of: &[f64], index: usize| of.get(index).copied().unwrap_or(0.0);
        let (middle, last) = (parts.len() / 2, parts.len().saturating_sub(1));
        Ok(Point {
            goodput: at(&goodputs, middle),
            part: [at(&parts, middle), at(&parts, 0), at(&parts, last)],
            lost,
            failed,
        })
    }

    /// Goodput of one round, from and to a moment when nothing is under way; or the status with which the QP failed.
    fn round(&mut self) -> Result<Result<f64, u32>, String> {
        let (before, begin) = (self.done, Instant::now());
        let ended = self.write_for(ROUND).and_then(|()| self.finish());
        let bytes = (self.done - before) * u64::from(LEN);
        let goodput = bytes as f64 * 8.0 / begin.elapsed().as_secs_f64();
        Ok(ended.map(|()| goodput))
    }

    fn lose(&mut self, loss: Probability) -> Result<(), String> {
        let rule = Rule {
            id: RuleId(RULE),
            name: String::new(),
            matcher: Matcher::of([Class::Data]),
            when: When {
                chance: Chance::Each(loss),
                ..When::default()
            },
            action: Action::Drop,
            // Another sequence each time: with the same one every round would lose the same packets.
            seed: self.done,
        };
        let rule = Box::new(rule);
        self.impair(ImpairCommand::Add { place: PLACE, rule })?;
        Ok(())
    }

    /// Gives the number of packets that were lost.
    fn lose_no_more(&mut self) -> Result<u64, String> {
        let lost = match self.impair(ImpairCommand::Report)? {
            Reply::Impair(places) => places
                .iter()
                .flat_map(|place| &place.rules)
                .map(|(_, counts)| counts.dropped)
                .sum(),
            other => return Err(format!("unexpected reply {other:?}")),
        };
        let (place, id) = (PLACE, RULE);
        self.impair(ImpairCommand::Remove { place, id })?;
        Ok(lost)
    }

    fn impair(&mut self, command: ImpairCommand) -> Result<Reply, String> {
        let lcore = &mut self.pair.lcore;
        let mut poll = || {
            lcore.turn(&mut NoProbe);
        };
        let command = Command::Impair(command);
        let reply = self.b.producer.command(command, &mut poll);
        reply.map_err(|error| error.to_string())
    }

    /// Keeps WRITEs under way for so long; fails with the status of one that does.
    fn write_for(&mut self, time: Duration) -> Result<(), u32> {
        let local = Sge {
            addr: self.from.as_ptr() as u64,
            length: LEN,
            lkey: self.keys.0,
        };
        let remote = (self.to.as_ptr() as u64, self.keys.1);
        let begin = Instant::now();
        while begin.elapsed() < time {
            let Side { producer, qp, .. } = &mut self.a;
            let mut rang = false;
            while producer.can_send(qp) && self.posted - self.done < u64::from(DEPTH) {
                producer.post_send(qp, WrOpcode::Write, SIGNALED, local, remote, None);
                self.posted += 1;
                rang = true;
            }
            if rang {
                producer.ring(qp);
            }
            self.turn()?;
        }
        Ok(())
    }

    /// Until nothing is under way.
    fn finish(&mut self) -> Result<(), u32> {
        while self.done < self.posted {
            self.turn()?;
        }
        Ok(())
    }

    /// One poll of the NICs, and of the CQ.
    fn turn(&mut self) -> Result<(), u32> {
        if self.pair.lcore.turn(&mut NoProbe) == 0 {
            // The helpers share our cores.
            std::thread::yield_now();
        }
        while let Some(done) = self.a.producer.poll_cq() {
            if done.status != 0 {
                return Err(done.status);
            }
            self.done += 1;
        }
        Ok(())
    }
}

/// Two programs with a connected QP, and the keys of their memory.
fn programs(pair: &mut Pair, from: &[u8], to: &[u8]) -> io::Result<(Side, Side, (u32, u32))> {
    let (a, b) = pair.more_with_timeout(Mtu::M4096, 8, TIMEOUT)?;
    let mut poll = || {
        pair.lcore.turn(&mut NoProbe);
    };
    let mut register = |side: &Side, bytes: &[u8]| {
        let at = bytes.as_ptr() as u64;
        side.producer.register(at, LEN.into(), &mut poll)
    };
    let keys = (register(&a, from)?, register(&b, to)?);
    Ok((a, b, keys))
}
