//! Transfers whose beginnings are a Poisson process at each node, to another node at random, of sizes by a distribution: the
//! open loop of the field's flow-completion benchmarks (as in DCTCP, pFabric, HPCC).

use roceline_engine::Nanos;
use roceline_engine::fabric::impair::Random;

use super::sizes::Sizes;
use super::{Manner, Plan, Transfer, stream};
use crate::scenario::document::Section;
use crate::scenario::error::ScenarioError;
use crate::scenario::nodes;
use crate::scenario::topology::Topology;
use crate::scenario::units;

/// `[[traffic]] kind = "poisson"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Poisson {
    from: Vec<usize>,
    to: Vec<usize>,
    /// Payload that a node sends on average, in 2^-32 of its link's rate.
    load: u64,
    sizes: Sizes,
    start: Nanos,
    stop: Option<Nanos>,
    manner: Manner,
}

impl Poisson {
    pub fn read(section: &Section, topology: &Topology) -> Result<Poisson, ScenarioError> {
        let count = topology.nodes();
        let load = section.needed("load", units::fraction(0.0001, 1.0))?;
        let group = nodes::group(section, "nodes", count)?;
        let poisson = Poisson {
            from: nodes::nodes(section, "from", count)?.unwrap_or_else(|| group.clone()),
            to: nodes::nodes(section, "to", count)?.unwrap_or(group),
            load: (load * (1u64 << 32) as f64) as u64,
            sizes: section.needed("sizes", Sizes::read)?,
            start: section.or("start", Nanos::ZERO, units::time)?,
            stop: section.value("stop", units::time)?,
            manner: Manner::read(section)?,
        };
        section.end()?;
        let alone = |from: &usize| poisson.to.iter().all(|to| to == from);
        match poisson.from.iter().find(|from| alone(from)) {
            Some(node) => {
                Err(section.whole(format!("node {node} has nobody but itself to send to")))
            }
            None => Ok(poisson),
        }
    }

    pub fn plan(
        &self,
        group: usize,
        topology: &Topology,
        duration: Nanos,
        mut random: Random,
        plan: &mut Plan,
    ) {
        let end = self.stop.unwrap_or(duration).min(duration);
        // Picoseconds between two beginnings of a node: 8 * mean / (load * rate).
        let bits = u128::from(self.sizes.mean()) * 8 * 1_000_000_000_000;
        let mean =
            ((bits << 32) / (u128::from(topology.rate) * u128::from(self.load).max(1))) as u64;
        let mut transfers = Vec::new();
        for &from in &self.from {
            let mut random = stream(random.next_u64(), from as u64);
            let mut at = u128::from(self.start.0) * 1000;
            loop {
                at += u128::from(exponential(mean, &mut random));
                let start = Nanos((at / 1000).min(u128::from(u64::MAX)) as u64);
                if start >= end {
                    break;
                }
                let others = self.to.iter().filter(|&&to| to != from).count();
                let pick = random.below(others as u64) as usize;
                let to = self.to.iter().filter(|&&to| to != from).nth(pick);
                transfers.push(Transfer {
                    group,
                    from,
                    to: to.copied().unwrap_or(from),
                    bytes: Some(self.sizes.draw(&mut random)),
                    manner: self.manner,
                    start,
                    stop: None,
                    after: Vec::new(),
                });
                if transfers.len() > super::MOST_TRANSFERS {
                    break;
                }
            }
        }
        transfers.sort_by_key(|transfer| (transfer.start, transfer.from));
        plan.transfers.append(&mut transfers);
    }
}

/// A time of exponential distribution: `-mean * ln(u)`, by binary digits of the logarithm, so that it is the same on
/// every machine.
fn exponential(mean: u64, random: &mut Random) -> u64 {
    let u = random.next_u64() | 1;
    let zeros = u.leading_zeros();
    // u = m * 2^-zeros with m in [1/2, 1): -log2(u) = zeros - log2(m), and log2(m) = log2(2m) - 1.
    let mut mantissa = u << zeros;
    let mut log = 0u64;
    for _ in 0..32 {
        // (1.f)^2 in 2.126 bits; one or two before the point.
        let square = u128::from(mantissa) * u128::from(mantissa);
        let two = square >> 127 == 1;
        log = (log << 1) | u64::from(two);
        mantissa = (square >> (63 + u32::from(two))) as u64;
    }
    let log2 = (u64::from(zeros + 1) << 32) - log;
    // ln 2 in 2^-32.
    let ln = (u128::from(log2) * 2_977_044_472) >> 32;
    ((u128::from(mean) * ln) >> 32) as u64
}

#[cfg(test)]
mod tests {
    use super::super::tests::plan;
    use super::*;

    #[test]
    fn times_are_exponential() {
        let mut random = Random::new(3);
        let count = 40_000;
        let mean = 1_000_000;
        let mut times: Vec<u64> = (0..count).map(|_| exponential(mean, &mut random)).collect();
        let sum: u64 = times.iter().sum();
        let average = sum as f64 / f64::from(count) / mean as f64;
        assert!((average - 1.0).abs() < 0.02, "{average}");
        times.sort_unstable();
        for part in [0.1, 0.5, 0.9, 0.99] {
            let found = times[(f64::from(count) * part) as usize] as f64 / mean as f64;
            let wanted = -(1.0f64 - part).ln();
            assert!(
                (found / wanted - 1.0).abs() < 0.06,
                "{part}: {found} {wanted}"
            );
        }
    }

    #[test]
    fn a_logarithm_is_right_to_nine_digits() {
        // The generator's own numbers, against the floating point of this machine.
        let (mut a, mut b) = (Random::new(9), Random::new(9));
        for _ in 0..1000 {
            let u = (a.next_u64() | 1) as f64 / 2f64.powi(64);
            let found = exponential(1 << 40, &mut b) as f64 / (1u64 << 40) as f64;
            assert!((found + u.ln()).abs() < 1e-8, "{u} {found}");
        }
    }

    #[test]
    fn the_load_is_what_was_asked_for() {
        let text = "[[traffic]]\nkind = 'poisson'\nload = 0.5\nsizes = '10KB'\n";
        let made = plan(text, 1).unwrap();
        let bytes: u64 = made.transfers.iter().filter_map(|t| t.bytes).sum();
        let offered = bytes as f64 * 8.0 / 0.010 / (8.0 * 10e9);
        assert!((offered - 0.5).abs() < 0.02, "{offered}");
        assert!(made.transfers.iter().all(|t| t.from != t.to));
        assert_eq!(made, plan(text, 1).unwrap());
        assert_ne!(made, plan(text, 2).unwrap());
        assert!(made.transfers.is_sorted_by_key(|t| t.start));
    }

    #[test]
    fn nobody_sends_to_himself() {
        let text =
            "[[traffic]]\nkind = 'poisson'\nload = 0.5\nsizes = 'hadoop'\nfrom = 1\nto = 1\n";
        assert!(plan(text, 1).unwrap_err().contains("nobody but itself"));
    }
}
