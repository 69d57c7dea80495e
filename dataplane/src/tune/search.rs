//! Which settings are measured against each other, and when one counts as better.
//!
//! Coordinate descent: all settings that differ from the best one so far in one knob race against it; the winner is measured
//! anew, and adopted only if that shows a gain that is surely more than nothing; then the others race against the new one.
//! A race is successive halving (K. Jamieson, A. Talwalkar, Non-stochastic Best Arm Identification, 2016): all run a few turns, the
//! better half as many again, and so on. The best of many is always better in the race than it is, so no figure of a race is
//! believed: what is adopted was measured anew, and all that was adopted is measured together, anew, against the default.
//! With noise alone, only that last comparison decides, and it errs no more often than its interval.

use std::io;
use std::time::Duration;

use serde::Serialize;

use super::gain::{Gain, mean};

/// A setting: the place of the value of each knob.
pub type Setting = Vec<usize>;

/// What the search needs to know of the world.
pub trait Measure {
    /// Runs the workloads with a setting, with nothing left of earlier runs. A figure of each workload, the more the better.
    ///
    /// # Errors
    /// When it cannot be run.
    fn measure(&mut self, setting: &Setting) -> io::Result<Vec<f64>>;

    /// How long all that took so far.
    fn spent(&self) -> Duration;

    /// Whether somebody wants it to end now.
    fn is_interrupted(&self) -> bool {
        false
    }
}

/// How to search.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Plan {
    /// How long it may take. What is under way then is ended in good order, which takes a little longer.
    pub budget: Duration,
    /// A gain of less than this is not worth a key in a file.
    pub least: f64,
    /// Of the order of turns.
    pub seed: u64,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            budget: Duration::from_secs(60),
            least: 1.01,
            seed: 1,
        }
    }
}

/// Turns of each setting in the first round of a race.
const FIRST_ROUND: usize = 3;
/// Of those who come in first in a race so many are measured anew, one after the other, until one proves better.
const FINALISTS: usize = 2;
/// Turns in which a winner proves that it is better.
const PROOF: usize = 25;
/// Turns of the last comparison.
const LAST: std::ops::RangeInclusive<usize> = 25..=401;
/// Turns in which the default is measured against itself.
const NOISE: usize = 9;
/// Share of the time for the search; what is left is for the last comparison.
const SEARCH: f64 = 0.75;

/// What a race showed of a value.
#[derive(Clone, Debug, Serialize)]
pub struct Tried {
    /// Which knob.
    pub knob: usize,
    /// Place of the value.
    pub value: usize,
    /// How many values had been adopted by then.
    pub after: usize,
    /// Against the best setting so far, median.
    pub ratio: f64,
    /// Turns.
    pub turns: usize,
}

/// A value that was measured anew.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// Which knob.
    pub knob: usize,
    /// Place of the value.
    pub value: usize,
    /// Against the best setting so far.
    pub gain: Gain,
    /// Whether it was adopted.
    pub adopted: bool,
}

/// What came of a search.
#[derive(Clone, Debug, Serialize)]
pub struct Found {
    /// The best setting; the default if nothing is better.
    pub best: Setting,
    /// Whether it is better than the default.
    pub better: bool,
    /// Against the default, all workloads together: the last comparison, if there was anything to compare.
    pub gain: Option<Gain>,
    /// The same by workload.
    pub workloads: Vec<Gain>,
    /// The default against itself, which shows what cannot be seen.
    pub noise: Gain,
    /// Figures of the default by workload, median.
    pub figures: Vec<f64>,
    /// What was measured anew, in order.
    pub steps: Vec<Step>,
    /// What raced.
    pub tried: Vec<Tried>,
    /// What came in first in the last race and would have been measured anew, had the time not ended.
    pub undecided: Vec<Tried>,
    /// It was ended from outside, and the last comparison is missing.
    pub interrupted: bool,
    /// How long it took.
    pub spent: Duration,
}

/// A runner in a race.
struct Runner {
    knob: usize,
    setting: Setting,
    ratios: Vec<f64>,
}

/// Looks for the best setting. `sizes`: how many values each knob has; `default`: where to begin. `told` hears now and then how long
/// it took so far.
///
/// # Errors
/// When something cannot be measured.
pub fn search<M: Measure>(
    world: &mut M,
    sizes: &[usize],
    default: &Setting,
    plan: &Plan,
    told: &mut dyn FnMut(Duration),
) -> io::Result<Found> {
    let mut search = Search {
        world,
        told,
        random: Random::new(plan.seed),
        end: plan.budget.mul_f64(SEARCH),
        turn: false,
    };
    let begin = search.world.spent();
    search.end += begin;
    let (noise, figures) = search.noise(default)?;
    let per_turn = (search.world.spent() - begin).div_f64(NOISE as f64);
    let mut best = default.clone();
    let (mut steps, mut tried) = (Vec::new(), Vec::new());
    let undecided = loop {
        let adopted = steps.iter().filter(|step: &&Step| step.adopted);
        let set: Vec<usize> = adopted.map(|step| step.knob).collect();
        let field = neighbours(sizes, &best, &set);
        let winners = search.race(&best, field, set.len(), &mut tried)?;
        let mut found = false;
        let mut winners = winners.into_iter();
        while !search.is_over() {
            let Some((knob, winner)) = winners.next() else {
                break;
            };
            let turns = search.compare(&best, &winner, PROOF)?;
            let gain = Gain::of(turns.iter().map(|ratios| mean(ratios)));
            found = gain.is_at_least(plan.least);
            steps.push(Step {
                knob,
                value: winner[knob],
                gain,
                adopted: found,
            });
            if found {
                best = winner;
                break;
            }
        }
        if !found || search.is_over() {
            break winners
                .filter_map(|(knob, winner)| shown(&tried, knob, winner[knob]))
                .filter(|tried| tried.ratio >= plan.least)
                .collect();
        }
    };
    let interrupted = search.world.is_interrupted();
    let mut gain = None;
    let mut workloads = Vec::new();
    if best != *default && !interrupted {
        let left = (begin + plan.budget).saturating_sub(search.world.spent());
        let fit = left.as_secs_f64() / per_turn.as_secs_f64().max(1e-9);
        let turns = (fit as usize).clamp(*LAST.start(), *LAST.end());
        let turns = search.compare(default, &best, turns)?;
        gain = Some(Gain::of(turns.iter().map(|ratios| mean(ratios))));
        let of = |n: usize| Gain::of(turns.iter().map(|ratios| ratios[n]));
        workloads = (0..figures.len()).map(of).collect();
    }
    let interrupted = search.world.is_interrupted();
    let better = !interrupted && gain.is_some_and(|gain: Gain| gain.is_at_least(plan.least));
    Ok(Found {
        best: if better { best } else { default.clone() },
        better,
        gain,
        workloads,
        noise,
        figures,
        steps,
        tried,
        undecided,
        interrupted,
        spent: search.world.spent() - begin,
    })
}

/// What the last race showed of a value.
fn shown(tried: &[Tried], knob: usize, value: usize) -> Option<Tried> {
    let is = |tried: &&Tried| (tried.knob, tried.value) == (knob, value);
    tried.iter().rev().find(is).cloned()
}

/// Settings that differ from `best` in one knob, but for those that are set.
fn neighbours(sizes: &[usize], best: &Setting, set: &[usize]) -> Vec<Runner> {
    let knobs = (0..sizes.len()).filter(|knob| !set.contains(knob));
    let values = knobs.flat_map(|knob| (0..sizes[knob]).map(move |value| (knob, value)));
    let others = values.filter(|&(knob, value)| best[knob] != value);
    let runner = |(knob, value)| {
        let mut setting = best.clone();
        setting[knob] = value;
        Runner {
            knob,
            setting,
            ratios: Vec::new(),
        }
    };
    others.map(runner).collect()
}

struct Search<'a, M> {
    world: &'a mut M,
    told: &'a mut dyn FnMut(Duration),
    random: Random,
    /// When to stop searching, by [`Measure::spent`].
    end: Duration,
    /// Who of a pair is first this time.
    turn: bool,
}

impl<M: Measure> Search<'_, M> {
    fn is_over(&self) -> bool {
        self.world.is_interrupted() || self.world.spent() >= self.end
    }

    /// One turn of two settings: figures of both.
    fn turn(&mut self, base: &Setting, other: &Setting) -> io::Result<[Vec<f64>; 2]> {
        // Whoever is second finds caches, and a CPU's clock, as the first one left them.
        self.turn = !self.turn;
        let figures = match self.turn {
            true => {
                let base = self.world.measure(base)?;
                [base, self.world.measure(other)?]
            }
            false => {
                let other = self.world.measure(other)?;
                [self.world.measure(base)?, other]
            }
        };
        (self.told)(self.world.spent());
        Ok(figures)
    }

    /// Ratios by workload of so many turns, or of those until somebody wants an end; of one at least.
    fn compare(
        &mut self,
        base: &Setting,
        other: &Setting,
        turns: usize,
    ) -> io::Result<Vec<Vec<f64>>> {
        let mut all = Vec::with_capacity(turns);
        while all.len() < turns && (all.is_empty() || !self.world.is_interrupted()) {
            all.push(ratios(&self.turn(base, other)?));
        }
        Ok(all)
    }

    /// The default against itself, and its figures.
    fn noise(&mut self, default: &Setting) -> io::Result<(Gain, Vec<f64>)> {
        let mut turns = Vec::with_capacity(NOISE);
        while turns.len() < NOISE && (turns.is_empty() || !self.world.is_interrupted()) {
            turns.push(self.turn(default, default)?);
        }
        let gain = Gain::of(turns.iter().map(|turn| mean(&ratios(turn))));
        let workloads = turns.first().map_or(0, |[base, _]| base.len());
        let figure = |n: usize| {
            let figures = turns.iter().flat_map(|[a, b]| [a[n], b[n]]);
            Gain::of(figures).ratio
        };
        Ok((gain, (0..workloads).map(figure).collect()))
    }

    /// Those who come in first, the best one first.
    fn race(
        &mut self,
        base: &Setting,
        mut field: Vec<Runner>,
        after: usize,
        tried: &mut Vec<Tried>,
    ) -> io::Result<Vec<(usize, Setting)>> {
        let mut turns = FIRST_ROUND;
        loop {
            for _ in 0..turns {
                self.random.shuffle(&mut field);
                for runner in &mut field {
                    if self.is_over() {
                        break;
                    }
                    let figures = self.turn(base, &runner.setting)?;
                    runner.ratios.push(mean(&ratios(&figures)));
                }
            }
            // Who had no turn before the time was over has shown nothing.
            field.retain(|runner| !runner.ratios.is_empty());
            let mut order: Vec<(f64, Runner)> = field
                .into_iter()
                .map(|runner| (Gain::of(runner.ratios.iter().copied()).ratio, runner))
                .collect();
            order.sort_by(|a, b| b.0.total_cmp(&a.0));
            let left = match order.len() {
                n if self.is_over() => FINALISTS.min(n),
                n => n.div_ceil(2).max(FINALISTS.min(n)),
            };
            let last = left <= FINALISTS;
            let out = if last { 0 } else { left };
            tried.extend(order[out..].iter().map(|(ratio, runner)| Tried {
                knob: runner.knob,
                value: runner.setting[runner.knob],
                after,
                ratio: *ratio,
                turns: runner.ratios.len(),
            }));
            order.truncate(left);
            if last {
                let winners = order.into_iter().filter(|(ratio, _)| *ratio > 1.0);
                return Ok(winners
                    .map(|(_, runner)| (runner.knob, runner.setting))
                    .collect());
            }
            field = order.into_iter().map(|(_, runner)| runner).collect();
            turns *= 2;
        }
    }
}

/// Figures of the second by those of the first.
fn ratios([base, other]: &[Vec<f64>; 2]) -> Vec<f64> {
    let pairs = base.iter().zip(other);
    pairs.map(|(base, other)| other / base).collect()
}

/// SplitMix64 (G. Steele, D. Lea, C. Flood, Fast Splittable Pseudorandom Number Generators, 2014): enough to deal turns.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The same sequence for the same seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn shuffle<T>(&mut self, all: &mut [T]) {
        for n in (1..all.len()).rev() {
            all.swap(n, (self.bits() % (n as u64 + 1)) as usize);
        }
    }
}

#[cfg(test)]
mod tests;
