//! Collective operations of parallel programs: all-to-all, and all-reduce on a ring (reduce-scatter, then all-gather;
//! Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
//!
//! A step begins when what it builds on is acknowledged in full to whoever sent it, which is half a round trip later than its
//! receiver could know. Each transfer has a QP of its own, so its rate starts afresh.

use roceline_engine::Nanos;

use super::{Manner, Plan, Transfer};
use crate::scenario::document::Section;
use crate::scenario::error::ScenarioError;
use crate::scenario::nodes;
use crate::scenario::topology::Topology;
use crate::scenario::units;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Everything at once.
    AllToAll,
    /// Step by step: in step `k` each node sends to the `k`-th after it.
    Shifted,
    RingAllReduce,
}

/// `[[traffic]] kind = "all-to-all"` and `"ring-allreduce"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Collective {
    kind: Kind,
    nodes: Vec<usize>,
    bytes: u64,
    rounds: u64,
    start: Nanos,
    manner: Manner,
}

impl Collective {
    pub fn read(
        section: &Section,
        topology: &Topology,
        kind: &str,
    ) -> Result<Collective, ScenarioError> {
        let kind = match kind {
            "ring-allreduce" => Kind::RingAllReduce,
            _ => section.or("order", Kind::AllToAll, |text| match text {
                "at-once" => Ok(Kind::AllToAll),
                "shifted" => Ok(Kind::Shifted),
                _ => Err("must be at-once or shifted (step by step)".into()),
            })?,
        };
        let collective = Collective {
            kind,
            nodes: nodes::group(section, "nodes", topology.nodes())?,
            bytes: section.needed("bytes", units::bytes)?,
            rounds: section.or("rounds", 1, units::whole(1, 1000))?,
            start: section.or("start", Nanos::ZERO, units::time)?,
            manner: Manner::read(section)?,
        };
        section.end()?;
        Ok(collective)
    }

    /// Transfers, and how many others all of them together wait for.
    pub fn size(&self) -> (u64, u64) {
        let (nodes, rounds) = (self.nodes.len() as u64, self.rounds);
        let step = nodes * (nodes - 1);
        match self.kind {
            Kind::AllToAll => (rounds * step, (rounds - 1) * step * (nodes - 1)),
            Kind::Shifted => (rounds * step, rounds * step - nodes),
            Kind::RingAllReduce => (2 * rounds * step, 2 * (2 * rounds * step - nodes)),
        }
    }

    pub fn plan(&self, group: usize, plan: &mut Plan) {
        match self.kind {
            Kind::AllToAll | Kind::Shifted => self.all_to_all(group, plan),
            Kind::RingAllReduce => self.ring(group, plan),
        }
    }

    fn transfer(&self, group: usize, from: usize, to: usize, bytes: u64) -> Transfer {
        Transfer {
            group,
            from: self.nodes[from],
            to: self.nodes[to],
            bytes: Some(bytes.max(1)),
            manner: self.manner,
            start: self.start,
            stop: None,
            after: Vec::new(),
        }
    }

    /// Each node sends `bytes` to each other. The next round of a node begins when its own messages are delivered.
    fn all_to_all(&self, group: usize, plan: &mut Plan) {
        let count = self.nodes.len();
        // What a node's next transfers wait for.
        let mut waits: Vec<Vec<usize>> = vec![Vec::new(); count];
        for _ in 0..self.rounds {
            let mut sent: Vec<Vec<usize>> = vec![Vec::new(); count];
            for step in 1..count {
                for from in 0..count {
                    let mut transfer =
                        self.transfer(group, from, (from + step) % count, self.bytes);
                    transfer.after = waits[from].clone();
                    let number = plan.transfers.len();
                    plan.transfers.push(transfer);
                    match self.kind {
                        Kind::Shifted => waits[from] = vec![number],
                        _ => sent[from].push(number),
                    }
                }
            }
            if self.kind == Kind::AllToAll {
                waits = sent;
            }
        }
    }

    /// `2 (n - 1)` steps; in each, every node sends an `n`-th of the bytes to its neighbour.
    fn ring(&self, group: usize, plan: &mut Plan) {
        let count = self.nodes.len();
        let chunk = self.bytes.div_ceil(count as u64);
        let steps = 2 * (count - 1) * self.rounds as usize;
        for step in 0..steps {
            for from in 0..count {
                let mut transfer = self.transfer(group, from, (from + 1) % count, chunk);
                if step > 0 {
                    let before = plan.transfers.len() - from - count;
                    let neighbour = (from + count - 1) % count;
                    transfer.after = vec![before + from, before + neighbour];
                }
                plan.transfers.push(transfer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plan, plan_among};

    /// Each of these would take gigabytes if it were made first and counted then.
    #[test]
    fn what_is_too_much_is_refused_before_it_is_made() {
        for (nodes, text, says) in [
            (
                1024,
                "kind = 'ring-allreduce'\nrounds = 1000",
                "`ring-allreduce` makes the transfers 2095104000, more than 1000000: take fewer nodes",
            ),
            (
                1000,
                "kind = 'all-to-all'\nrounds = 2",
                "makes the transfers 1998000",
            ),
            (
                700,
                "kind = 'all-to-all'\nrounds = 2",
                "wait for 342020700 others in all, more than 10000000: take fewer nodes",
            ),
        ] {
            let text = format!("[[traffic]]\nbytes = 1000\n{text}\n");
            let error = plan_among(nodes, &text, 1).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn sizes_are_those_of_the_plans() {
        for kind in [
            "kind = 'all-to-all'",
            "kind = 'all-to-all'\norder = 'shifted'",
            "kind = 'ring-allreduce'",
        ] {
            for rounds in [1, 3] {
                let text = format!("[[traffic]]\nbytes = 1000\nrounds = {rounds}\n{kind}\n");
                let traffic = super::super::tests::traffic(8, &text).unwrap().1;
                let super::super::Source::Collective(collective) = &traffic.sources[0].1 else {
                    panic!("{kind}");
                };
                let plan = plan(&text, 1).unwrap();
                let waits: usize = plan.transfers.iter().map(|t| t.after.len()).sum();
                let made = (plan.transfers.len() as u64, waits as u64);
                assert_eq!(collective.size(), made, "{kind}, {rounds}");
            }
        }
    }

    #[test]
    fn all_to_all_is_all_pairs() {
        let text = "[[traffic]]\nkind = 'all-to-all'\nbytes = 1000\nnodes = '0..3'\n";
        let at_once = plan(text, 1).unwrap();
        let mut pairs: Vec<_> = at_once.transfers.iter().map(|t| (t.from, t.to)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        assert_eq!(pairs.len(), 12);
        assert!(at_once.transfers.iter().all(|t| t.after.is_empty()));

        let shifted = plan(&format!("{text}order = 'shifted'\nrounds = 2\n"), 1).unwrap();
        assert_eq!(shifted.transfers.len(), 24);
        for (number, transfer) in shifted.transfers.iter().enumerate() {
            let before = number.checked_sub(4);
            assert_eq!(transfer.after, before.into_iter().collect::<Vec<_>>());
        }
        let again = plan(&format!("{text}rounds = 2\n"), 1).unwrap();
        assert_eq!(again.transfers[12].after, [0, 4, 8]);
    }

    #[test]
    fn a_ring_passes_each_chunk_on() {
        let text = "[[traffic]]\nkind = 'ring-allreduce'\nbytes = 4001\nnodes = [1, 3, 5, 7]\n";
        let ring = plan(text, 1).unwrap();
        assert_eq!(ring.transfers.len(), 24);
        assert!(ring.transfers.iter().all(|t| t.bytes == Some(1001)));
        assert_eq!((ring.transfers[3].from, ring.transfers[3].to), (7, 1));
        // The second step of the first node: after its own first step, and that of its predecessor.
        assert_eq!(ring.transfers[4].after, [0, 3]);
        assert_eq!(ring.transfers[5].after, [1, 0]);
    }
}
