//! Many to one at once, again and again: the pattern of a partition/aggregate query or a storage stripe.

use roceline_engine::Nanos;
use roceline_engine::fabric::impair::Random;

use super::sizes::Sizes;
use super::{Manner, Plan, Transfer};
use crate::scenario::document::Section;
use crate::scenario::error::ScenarioError;
use crate::scenario::nodes;
use crate::scenario::topology::Topology;
use crate::scenario::units;

/// `[[traffic]] kind = "incast"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Incast {
    from: Vec<usize>,
    /// The receiver; `None`: another one by chance each time.
    to: Option<usize>,
    fan_in: usize,
    sizes: Sizes,
    start: Nanos,
    stop: Option<Nanos>,
    every: Option<Nanos>,
    manner: Manner,
}

impl Incast {
    pub fn read(section: &Section, topology: &Topology) -> Result<Incast, ScenarioError> {
        let count = topology.nodes();
        let to = section.value("to", |text| match text {
            "random" => Ok(None),
            _ => units::whole(0, count as u64 - 1)(text).map(|to| Some(to as usize)),
        })?;
        let to = to.ok_or_else(|| section.whole("`to` is missing: a node, or \"random\""))?;
        let mut from =
            nodes::nodes(section, "from", count)?.unwrap_or_else(|| (0..count).collect());
        from.retain(|&from| Some(from) != to);
        let most = from.len() - usize::from(to.is_none()).min(from.len());
        if most == 0 {
            return Err(section.whole("nobody is left to send to the receiver"));
        }
        let incast = Incast {
            to,
            fan_in: section.or("fan_in", most as u64, units::whole(1, most as u64))? as usize,
            from,
            sizes: section.needed("bytes", Sizes::read)?,
            start: section.or("start", Nanos::ZERO, units::time)?,
            stop: section.value("stop", units::time)?,
            every: section.value("every", units::span)?,
            manner: Manner::read(section)?,
        };
        section.end()?;
        Ok(incast)
    }

    pub fn plan(&self, group: usize, duration: Nanos, mut random: Random, plan: &mut Plan) {
        let end = self.stop.unwrap_or(duration).min(duration);
        let mut start = self.start;
        while start < end && plan.transfers.len() <= super::MOST_TRANSFERS {
            let mut from = self.from.clone();
            let to = self.to.unwrap_or_else(|| {
                let pick = random.below(from.len() as u64) as usize;
                from.remove(pick)
            });
            // The first so many of a shuffle (Fisher and Yates).
            for at in 0..self.fan_in {
                let pick = at + random.below((from.len() - at) as u64) as usize;
                from.swap(at, pick);
            }
            let senders = &mut from[..self.fan_in];
            senders.sort_unstable();
            for &mut from in senders {
                plan.transfers.push(Transfer {
                    group,
                    from,
                    to,
                    bytes: Some(self.sizes.draw(&mut random)),
                    manner: self.manner,
                    start,
                    stop: None,
                    after: Vec::new(),
                });
            }
            match self.every {
                Some(every) => start = start + every,
                None => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::plan;

    #[test]
    fn everybody_or_some_send_to_one() {
        let once = plan("[[traffic]]\nkind = 'incast'\nto = 7\nbytes = '1MB'\n", 1).unwrap();
        let pairs: Vec<_> = once.transfers.iter().map(|t| (t.from, t.to)).collect();
        assert_eq!(pairs, (0..7).map(|from| (from, 7)).collect::<Vec<_>>());

        let text = "[[traffic]]\nkind = 'incast'\nto = 'random'\nfan_in = 3\nbytes = '1MB'\nevery = '1ms'\n";
        let some = plan(text, 1).unwrap();
        assert_eq!(some.transfers.len(), 30);
        for burst in some.transfers.chunks(3) {
            let to = burst[0].to;
            assert!(
                burst
                    .iter()
                    .all(|t| t.to == to && t.from != to && t.start == burst[0].start)
            );
            assert!(burst.is_sorted_by(|a, b| a.from < b.from));
        }
        assert_ne!(some, plan(text, 2).unwrap());
    }

    #[test]
    fn slips_are_told() {
        for (text, says) in [
            ("bytes = 5", "`to` is missing"),
            ("bytes = 5\nto = 3\nfrom = 3", "nobody is left"),
            ("bytes = 5\nto = 3\nfan_in = 8", "from 1 to 7"),
            ("bytes = 5\nto = 3\nevery = '0s'", "longer than nothing"),
        ] {
            let error = plan(&format!("[[traffic]]\nkind = 'incast'\n{text}\n"), 1).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
