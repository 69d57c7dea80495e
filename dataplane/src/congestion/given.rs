//! Which parameters somebody set, so that a profile leaves them alone: a bit for each, by its place in the engine's table.

use roceline_engine::congestion::{CongestionConfig, Group, Param};

/// A set of parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Given(u64);

impl Given {
    /// Somebody set this one.
    pub(super) fn add(&mut self, param: &Param) {
        for (bit, _) in of_profiles().filter(|(_, known)| known.name == param.name) {
            self.0 |= 1 << bit;
        }
    }

    /// Puts the parameters that somebody set into `after`, as they were `before`.
    pub(super) fn keep(self, before: &CongestionConfig, after: &mut CongestionConfig) {
        for (_, param) in of_profiles().filter(|(bit, _)| self.0 >> bit & 1 != 0) {
            // In range, as it was.
            let _ = param.set(after, param.get(before));
        }
    }
}

/// The parameters that profiles have values of, with their places.
fn of_profiles() -> impl Iterator<Item = (usize, &'static Param)> {
    Param::all()
        .iter()
        .enumerate()
        .filter(|(_, param)| param.group != Group::Own)
}
