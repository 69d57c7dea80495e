//! What people and programs get to see of runs: JSON, CSV files, plots (the table is in `cli`). In flow [`Run`]s and [`Verdict`]s; out flow bytes
//! that depend on nothing else.
//!
//! [`Run`]: super::runs::Run
//! [`Verdict`]: super::verdict::Verdict

pub mod csv;
pub mod json;
pub mod plots;

use super::runs::Run;

/// Whether runs differ in their seeds.
pub fn several_seeds(runs: &[Run]) -> bool {
    let seed = |run: &Run| run.job.scenario.seed;
    runs.windows(2).any(|two| seed(&two[0]) != seed(&two[1]))
}
