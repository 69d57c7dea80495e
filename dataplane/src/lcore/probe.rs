//! Where the time of a poll goes. The loop is generic over a [`Probe`]; with [`NoProbe`] nothing is left of it.

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
}

impl Stage {
    /// All, in the order of a poll.
    pub const ALL: [Stage; 7] = [
        Stage::Messages,
        Stage::Receive,
        Stage::Memory,
        Stage::Doorbells,
        Stage::Timers,
        Stage::Transmit,
        Stage::End,
    ];
}

/// Is told when a stage begins.
pub trait Probe {
    /// `stage` begins now; the one before it has ended.
    fn begin(&mut self, stage: Stage);
}

/// Measures nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProbe;

impl Probe for NoProbe {
    #[inline(always)]
    fn begin(&mut self, _stage: Stage) {}
}

/// Adds up TSC cycles by stage.
#[derive(Clone, Copy, Debug)]
pub struct CycleProbe {
    cycles: [u64; Stage::ALL.len()],
    stage: Stage,
    since: u64,
}

impl CycleProbe {
    /// Starts to measure.
    pub fn new() -> CycleProbe {
        CycleProbe {
            cycles: [0; Stage::ALL.len()],
            stage: Stage::End,
            since: tsc(),
        }
    }

    /// What passed since the last stage began is forgotten: the loop was not running.
    #[inline]
    pub fn resume(&mut self) {
        self.since = tsc();
    }

    /// Cycles spent in `stage` so far.
    pub fn cycles(&self, stage: Stage) -> u64 {
        self.cycles[stage as usize]
    }
}

impl Default for CycleProbe {
    fn default() -> CycleProbe {
        CycleProbe::new()
    }
}

impl Probe for CycleProbe {
    #[inline]
    fn begin(&mut self, stage: Stage) {
        let now = tsc();
        self.cycles[self.stage as usize] += now.wrapping_sub(self.since);
        self.stage = stage;
        self.since = now;
    }
}

/// The time stamp counter.
#[inline]
pub fn tsc() -> u64 {
    // SAFETY: every x86-64 CPU has RDTSC; reading it changes nothing.
    unsafe { core::arch::x86_64::_rdtsc() }
}
