//! Flows that wait for others to end. In flow ends; out flow those that may begin.

use std::collections::BTreeMap;

use super::FlowId;

/// Who waits for whom.
#[derive(Default)]
pub(super) struct Followers {
    /// How many flows each that waits still waits for.
    missing: BTreeMap<FlowId, usize>,
    /// Who waits for a flow.
    of: BTreeMap<FlowId, Vec<FlowId>>,
}

impl Followers {
    /// A flow waits for others, none of which has ended.
    pub fn add(&mut self, flow: FlowId, others: &[FlowId]) {
        self.missing.insert(flow, others.len());
        for &other in others {
            self.of.entry(other).or_default().push(flow);
        }
    }

    /// A flow has ended: those that wait for nothing more, in the order in which they were added.
    pub fn ended(&mut self, flow: FlowId) -> Vec<FlowId> {
        let mut ready = self.of.remove(&flow).unwrap_or_default();
        ready.retain(|follower| match self.missing.get_mut(follower) {
            Some(missing) => {
                *missing -= 1;
                *missing == 0
            }
            None => false,
        });
        for follower in &ready {
            self.missing.remove(follower);
        }
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_those_waited_for_lets_a_flow_begin() {
        let mut followers = Followers::default();
        followers.add(5, &[1, 2]);
        followers.add(6, &[2]);
        assert!(followers.ended(3).is_empty());
        assert_eq!(followers.ended(2), [6]);
        assert_eq!(followers.ended(1), [5]);
        assert!(followers.ended(1).is_empty());
        assert!(followers.missing.is_empty() && followers.of.is_empty());
    }
}
