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
/// Rounds of a point; the median counts.
const ROUNDS: usize = 5;
/// Length of a round.
const ROUND: Duration = Duration::from_millis(400);
/// The rule's number.
const RULE: u32 = 1;

/// A point of the curve.
pub struct Point {
    /// Acknowledged bits per second.
    pub goodput: f64,
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
        let place = Place {
            nic: 1,
            point: At::Rx,
        };
        let rule = Rule {
            id: RuleId(RULE),
            name: String::new(),
            matcher: Matcher::of([Class::Data]),
            when: When {
                chance: Chance::Each(loss),
                ..When::default()
            },
            action: Action::Drop,
            seed: 1,
        };
        let rule = Box::new(rule);
        self.impair(ImpairCommand::Add { place, rule })?;
        // Into the steady state first.
        let mut failed = self.write_for(ROUND / 4);
        let mut rounds = [0.0; ROUNDS];
        for round in &mut rounds {
            if failed.is_some() {
                break;
            }
            let (before, begin) = (self.done, Instant::now());
            failed = self.write_for(ROUND);
            let bytes = (self.done - before) * u64::from(LEN);
            *round = bytes as f64 * 8.0 / begin.elapsed().as_secs_f64();
        }
        rounds.sort_by(f64::total_cmp);
        let lost = match self.impair(ImpairCommand::Report)? {
            Reply::Impair(places) => places
                .iter()
                .flat_map(|place| &place.rules)
                .map(|(_, counts)| counts.dropped)
                .sum(),
            other => return Err(format!("unexpected reply {other:?}")),
        };
        self.impair(ImpairCommand::Remove { place, id: RULE })?;
        if failed.is_some() {
            // Its successors have a QP that works.
            (self.a, self.b, self.keys) =
                programs(&mut self.pair, &self.from, &self.to).map_err(|e| e.to_string())?;
            self.posted = self.done;
        }
        Ok(Point {
            goodput: rounds[ROUNDS / 2],
            lost,
            failed,
        })
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

    /// Keeps WRITEs under way for so long, or until one fails with this status.
    fn write_for(&mut self, time: Duration) -> Option<u32> {
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
            if self.pair.lcore.turn(&mut NoProbe) == 0 {
                // The helpers share our cores.
                std::thread::yield_now();
            }
            while let Some(done) = producer.poll_cq() {
                if done.status != 0 {
                    return Some(done.status);
                }
                self.done += 1;
            }
        }
        None
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
