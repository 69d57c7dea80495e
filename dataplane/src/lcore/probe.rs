//! Where the time of a poll goes. The loop is generic over a [`Probe`]; with [`NoProbe`] nothing is left of it.
//!
//! `roceline bench datapath` measures each poll with a [`CycleProbe`]; a daemon that is looked at by `roceline top` does so with
//! one poll in many ([`super::usage`]).

use std::ops::{Index, IndexMut};

/// A stage of the poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Messages of control threads.
    Messages,
    /// Receive burst: parse, ICRC, engine, hand-over of placements, ACKs built.
    Receive,
    /// Ended memory operations: engine told, fetched packets finished.
    Memory,
    /// Doorbells and send queues read.
    Doorbells,
    /// Timers and flushes.
    Timers,
    /// Engine's packets built, burst to the port.
    Transmit,
    /// Kicks, events, upkeep.
    End,
    /// Switches.
    Fabric,
}

impl Stage {
    /// Of every loop, in the order of a poll. [`Stage::Fabric`] is only where switches are, before `Receive`.
    pub const ALL: [Stage; 7] = [
        Stage::Messages,
        Stage::Receive,
        Stage::Memory,
        Stage::Doorbells,
        Stage::Timers,
        Stage::Transmit,
        Stage::End,
    ];

    /// All there are.
    pub const COUNT: usize = Stage::ALL.len() + 1;

    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Messages => "messages",
            Stage::Receive => "receive",
            Stage::Memory => "memory",
            Stage::Doorbells => "doorbells",
            Stage::Timers => "timers",
            Stage::Transmit => "transmit",
            Stage::End => "end",
            Stage::Fabric => "fabric",
        }
    }
}

/// Cycles by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages([u64; Stage::COUNT]);

impl Stages {
    /// Adds other cycles.
    pub fn add(&mut self, other: &Stages) {
        self.0.iter_mut().zip(other.0).for_each(|(a, b)| *a += b);
    }

    /// Stage by stage, those that are not everywhere last.
    pub fn iter(&self) -> impl Iterator<Item = (Stage, u64)> + use<> {
        let all = Stage::ALL.into_iter().chain([Stage::Fabric]);
        let cycles = *self;
        all.map(move |stage| (stage, cycles[stage]))
    }
}

impl Index<Stage> for Stages {
    type Output = u64;

    fn index(&self, stage: Stage) -> &u64 {
        &self.0[stage as usize]
    }
}

impl IndexMut<Stage> for Stages {
    fn index_mut(&mut self, stage: Stage) -> &mut u64 {
        &mut self.0[stage as usize]
    }
}

/// Is told when a stage begins.
pub trait Probe {
    /// `stage` begins now, of the loop as a whole; the one before it has ended.
    fn begin(&mut self, stage: Stage);

    /// `stage` begins now, of the `nic`th NIC of the loop.
    fn begin_of(&mut self, stage: Stage, nic: usize);

    /// So many requests of programs of the `nic`th NIC were read.
    fn requests(&mut self, nic: usize, count: usize);
}

/// Measures nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProbe;

impl Probe for NoProbe {
    #[inline(always)]
    fn begin(&mut self, _stage: Stage) {}
    #[inline(always)]
    fn begin_of(&mut self, _stage: Stage, _nic: usize) {}
    #[inline(always)]
    fn requests(&mut self, _nic: usize, _count: usize) {}
}

/// Adds up TSC cycles by stage, and requests, of the loop and of each of its NICs.
#[derive(Clone, Debug)]
pub struct CycleProbe {
    /// The loop's, then those of NICs by their places.
    parts: Vec<Part>,
    /// The part and the stage that run.
    running: (usize, Stage),
    since: u64,
    marks: u32,
}

/// What a part of the loop did.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    stages: Stages,
    requests: u64,
}

impl CycleProbe {
    /// Starts to measure a loop with so many NICs. What there are more of them counts as the loop's.
    pub fn new(nics: usize) -> CycleProbe {
        CycleProbe {
            parts: vec![Part::default(); 1 + nics],
            running: (0, Stage::End),
            since: tsc(),
            marks: 0,
        }
    }

    /// What passed since the last stage began is forgotten: the loop was not running.
    #[inline]
    pub fn resume(&mut self) {
        self.since = tsc();
    }

    /// Cycles spent in `stage` so far.
    pub fn cycles(&self, stage: Stage) -> u64 {
        self.parts.iter().map(|part| part.stages[stage]).sum()
    }

    /// Cycles of the loop itself.
    pub fn of_loop(&self) -> &Stages {
        &self.parts[0].stages
    }

    /// Cycles of each NIC, and requests read.
    pub fn of_nics(&self) -> impl Iterator<Item = (&Stages, u64)> {
        let nics = self.parts.iter().skip(1);
        nics.map(|part| (&part.stages, part.requests))
    }

    /// Stages that have begun since the last call of [`CycleProbe::clear`].
    pub fn marks(&self) -> u32 {
        self.marks
    }

    /// Begins anew.
    pub fn clear(&mut self) {
        self.parts.fill(Part::default());
        self.marks = 0;
        self.running = (0, Stage::End);
        self.resume();
    }

    #[inline]
    fn turn_to(&mut self, part: usize, stage: Stage) {
        let now = tsc();
        let (was, before) = self.running;
        if let Some(part) = self.parts.get_mut(was) {
            part.stages[before] += now.wrapping_sub(self.since);
        }
        self.running = (part, stage);
        self.since = now;
        self.marks += 1;
    }

    #[inline]
    fn part(&self, nic: usize) -> usize {
        match nic + 1 < self.parts.len() {
            true => nic + 1,
            false => 0,
        }
    }
}

impl Probe for CycleProbe {
    #[inline]
    fn begin(&mut self, stage: Stage) {
        self.turn_to(0, stage);
    }

    #[inline]
    fn begin_of(&mut self, stage: Stage, nic: usize) {
        self.turn_to(self.part(nic), stage);
    }

    #[inline]
    fn requests(&mut self, nic: usize, count: usize) {
        let part = self.part(nic);
        self.parts[part].requests += count as u64;
    }
}

/// The time stamp counter.
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: every x86-64 CPU has RDTSC; reading it changes nothing.
    unsafe { core::arch::x86_64::_rdtsc() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycles_are_those_of_the_part_whose_stage_ran() {
        let mut probe = CycleProbe::new(2);
        probe.begin(Stage::Messages);
        probe.begin_of(Stage::Receive, 1);
        // Of a NIC that was not told of.
        probe.begin_of(Stage::Transmit, 7);
        probe.requests(1, 3);
        probe.begin(Stage::End);
        assert_eq!(probe.marks(), 4);
        let nics: Vec<_> = probe.of_nics().collect();
        assert!(nics[1].0[Stage::Receive] > 0 && nics[1].1 == 3);
        assert_eq!(*nics[0].0, Stages::default());
        assert!(probe.of_loop()[Stage::Transmit] > 0);
        let all: u64 = probe.of_loop().iter().map(|(_, cycles)| cycles).sum();
        let by_stage: u64 = Stage::ALL.into_iter().map(|s| probe.cycles(s)).sum();
        assert_eq!(all + nics[1].0[Stage::Receive], by_stage);
        probe.clear();
        assert_eq!((probe.marks(), probe.cycles(Stage::Receive)), (0, 0));
    }

    #[test]
    fn every_stage_has_its_place() {
        let stages = Stages::default();
        let places: Vec<usize> = stages.iter().map(|(stage, _)| stage as usize).collect();
        assert_eq!(places, (0..Stage::COUNT).collect::<Vec<_>>());
    }
}
