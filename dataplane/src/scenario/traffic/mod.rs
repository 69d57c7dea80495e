//! What the programs of a scenario send to whom and when. In flow `[[flow]]` and `[[traffic]]` and a seed; out flows a
//! [`Plan`], a list of transfers. Nothing of it depends on how the network behaves, so one seed means one plan.

mod collective;
mod incast;
mod poisson;
pub mod sizes;

use roceline_engine::Nanos;
use roceline_engine::fabric::impair::Random;

use super::document::Section;
use super::error::ScenarioError;
use super::nodes::nodes;
use super::topology::Topology;
use super::units;

use collective::Collective;
use incast::Incast;
use poisson::Poisson;

/// More transfers than this are a slip of the pen.
const MOST_TRANSFERS: usize = 1_000_000;
/// Others that the transfers of a collective operation wait for, all together. It grows with the cube of the nodes.
const MOST_WAITS: u64 = 10_000_000;

/// How transfers are made, whoever makes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// Bytes of a message; the last one of a transfer may be shorter.
    pub message: u32,
    /// Messages that a program keeps under way.
    pub depth: u32,
    /// Priority, 0 to 7: the upper three bits of the DSCP.
    pub priority: u8,
}

impl Manner {
    fn read(section: &Section) -> Result<Manner, ScenarioError> {
        Ok(Manner {
            message: section.or("message", 1 << 16, units::message)?,
            depth: section.or("depth", 16, units::whole(1, 1024))? as u32,
            priority: section.or("priority", 3, units::whole(0, 7))? as u8,
        })
    }
}

/// Bytes from one node to another, on a QP of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Its group, by number in [`Plan::groups`].
    pub group: usize,
    /// The sender.
    pub from: usize,
    /// The receiver.
    pub to: usize,
    /// How much; `None`: without end.
    pub bytes: Option<u64>,
    /// How.
    pub manner: Manner,
    /// When it begins at the earliest.
    pub start: Nanos,
    /// When the program posts no more messages, if an end is set.
    pub stop: Option<Nanos>,
    /// It begins when these, by number in [`Plan::transfers`], are acknowledged in full.
    pub after: Vec<usize>,
}

/// All that will be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Names of the groups: one for each `[[flow]]` and each `[[traffic]]`.
    pub groups: Vec<String>,
    /// Transfers, in an order that only the scenario and its seed decide.
    pub transfers: Vec<Transfer>,
}

/// `[[flow]]`: transfers that are written down.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Flow {
    pairs: Vec<(usize, usize)>,
    bytes: Option<u64>,
    qps: u32,
    start: Nanos,
    stop: Option<Nanos>,
    every: Nanos,
    manner: Manner,
}

impl Flow {
    fn read(section: &Section, topology: &Topology) -> Result<Flow, ScenarioError> {
        let ends = |key: &str| {
            nodes(section, key, topology.nodes())?.ok_or_else(|| {
                section.whole(format!("`{key}` is missing: nodes, such as 0 or \"0..3\""))
            })
        };
        let (from, to) = (ends("from")?, ends("to")?);
        let pairs: Vec<(usize, usize)> = match (from.len(), to.len()) {
            (_, 1) => from.iter().map(|&from| (from, to[0])).collect(),
            (1, _) => to.iter().map(|&to| (from[0], to)).collect(),
            (a, b) if a == b => from.into_iter().zip(to).collect(),
            (a, b) => {
                return Err(section.whole(format!(
                    "it goes from {a} nodes to {b}: one of the two must be one node, or both as many, which are then \
                     paired in their order"
                )));
            }
        };
        if let Some((node, _)) = pairs.iter().find(|(from, to)| from == to) {
            return Err(section.whole(format!("node {node} would send to itself")));
        }
        let flow = Flow {
            pairs,
            bytes: section
                .value("bytes", |text| match text {
                    "endless" => Ok(None),
                    _ => units::bytes(text).map(Some),
                })?
                .flatten(),
            qps: section.or("qps", 1, units::whole(1, 1024))? as u32,
            start: section.or("start", Nanos::ZERO, units::time)?,
            stop: section.value("stop", units::time)?,
            every: section.or("every", Nanos::ZERO, units::time)?,
            manner: Manner::read(section)?,
        };
        section.end()?;
        match flow.stop {
            Some(stop) if stop <= flow.start => {
                Err(section.bad("stop", "must be later than `start`"))
            }
            _ => Ok(flow),
        }
    }

    fn plan(&self, group: usize, plan: &mut Plan) {
        let mut start = self.start;
        for &(from, to) in &self.pairs {
            for _ in 0..self.qps {
                plan.transfers.push(Transfer {
                    group,
                    from,
                    to,
                    bytes: self.bytes,
                    manner: self.manner,
                    start,
                    stop: self.stop,
                    after: Vec::new(),
                });
            }
            start = start + self.every;
        }
    }
}

/// Where transfers come from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Source {
    Flow(Flow),
    Poisson(Poisson),
    Incast(Incast),
    Collective(Collective),
}

/// All `[[flow]]` and `[[traffic]]` of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    sources: Vec<(String, Source)>,
}

impl Traffic {
    pub(super) fn read(file: &Section, topology: &Topology) -> Result<Traffic, ScenarioError> {
        let mut sources: Vec<(String, Source)> = Vec::new();
        for section in file.sections("flow")? {
            let name = name(&section, &format!("flow{}", sources.len()), &sources)?;
            sources.push((name, Source::Flow(Flow::read(&section, topology)?)));
        }
        for section in file.sections("traffic")? {
            let kind = section.needed("kind", |text| Ok(text.to_string()))?;
            let name = name(&section, &kind, &sources)?;
            let source = match kind.as_str() {
                "poisson" => Source::Poisson(Poisson::read(&section, topology)?),
                "incast" => Source::Incast(Incast::read(&section, topology)?),
                "all-to-all" | "ring-allreduce" => {
                    Source::Collective(Collective::read(&section, topology, &kind)?)
                }
                _ => {
                    return Err(section.bad(
                        "kind",
                        "must be poisson, incast, all-to-all or ring-allreduce",
                    ));
                }
            };
            sources.push((name, source));
        }
        if sources.is_empty() {
            return Err(file.whole("nothing is sent: it needs a [[flow]] or a [[traffic]]"));
        }
        Ok(Traffic { sources })
    }

    /// Names of the groups.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.sources.iter().map(|(name, _)| name.as_str())
    }

    /// Names of those that begin when it is over.
    pub fn late(&self, duration: Nanos) -> impl Iterator<Item = &str> {
        self.sources.iter().filter_map(move |(name, source)| {
            let late = matches!(source, Source::Flow(flow) if flow.start >= duration);
            late.then_some(name.as_str())
        })
    }

    /// What they send within `duration`, with the chance of `seed`.
    ///
    /// # Errors
    /// If it is too much.
    pub fn plan(&self, topology: &Topology, duration: Nanos, seed: u64) -> Result<Plan, String> {
        let mut plan = Plan::default();
        for (group, (name, source)) in self.sources.iter().enumerate() {
            plan.groups.push(name.clone());
            let random = stream(seed, group as u64);
            match source {
                Source::Flow(flow) => flow.plan(group, &mut plan),
                Source::Poisson(poisson) => {
                    poisson.plan(group, topology, duration, random, &mut plan);
                }
                Source::Incast(incast) => incast.plan(group, duration, random, &mut plan),
                Source::Collective(collective) => {
                    // What is too much does not fit into memory either, so it is counted before it is made.
                    let (transfers, waits) = collective.size();
                    if plan.transfers.len() as u64 + transfers > MOST_TRANSFERS as u64 {
                        return Err(format!(
                            "`{name}` makes the transfers {transfers}, more than {MOST_TRANSFERS}: take fewer nodes or rounds"
                        ));
                    }
                    if waits > MOST_WAITS {
                        return Err(format!(
                            "the transfers of `{name}` wait for {waits} others in all, more than {MOST_WAITS}: take fewer \
                             nodes or rounds, or order = \"shifted\""
                        ));
                    }
                    collective.plan(group, &mut plan);
                }
            }
            if plan.transfers.len() > MOST_TRANSFERS {
                return Err(format!(
                    "`{name}` makes the transfers {}, more than {MOST_TRANSFERS}: shorten the duration, or lower the load",
                    plan.transfers.len()
                ));
            }
        }
        Ok(plan)
    }
}

/// Names of the groups of a file that may be wrong otherwise; [`Traffic::read`] says what is.
pub(super) fn groups(file: &Section) -> Vec<String> {
    let text = |section: &Section, key: &str| section.text(key).ok().flatten();
    let flows = file.sections("flow").unwrap_or_default();
    let flows = flows
        .iter()
        .enumerate()
        .map(|(number, flow)| text(flow, "name").unwrap_or_else(|| format!("flow{number}")));
    let traffic = file.sections("traffic").unwrap_or_default();
    let traffic = traffic
        .iter()
        .filter_map(|traffic| text(traffic, "name").or_else(|| text(traffic, "kind")));
    flows.chain(traffic).collect()
}

/// A stream of chance of its own for each number.
fn stream(seed: u64, number: u64) -> Random {
    let mut random = Random::new(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17));
    Random::new(random.next_u64())
}

fn name(
    section: &Section,
    default: &str,
    taken: &[(String, Source)],
) -> Result<String, ScenarioError> {
    let name = section.or("name", default.to_string(), super::word)?;
    match taken.iter().any(|(other, _)| *other == name) {
        true => Err(section.whole(format!(
            "the name `{name}` is taken already: give it another `name`"
        ))),
        false => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn traffic(nodes: usize, text: &str) -> Result<(Topology, Traffic), String> {
        let head = format!("[topology]\nkind = 'star'\nnodes = {nodes}\nrate = '10Gb/s'\n");
        let file = Section::parse("f.toml", &format!("{head}{text}")).unwrap();
        let topology = Topology::read(&file.section("topology").unwrap()).unwrap();
        let traffic = Traffic::read(&file, &topology).map_err(|error| error.to_string())?;
        assert_eq!(groups(&file), traffic.names().collect::<Vec<_>>());
        Ok((topology, traffic))
    }

    pub(super) fn plan(text: &str, seed: u64) -> Result<Plan, String> {
        plan_among(8, text, seed)
    }

    pub(super) fn plan_among(nodes: usize, text: &str, seed: u64) -> Result<Plan, String> {
        let (topology, traffic) = traffic(nodes, text)?;
        traffic.plan(&topology, Nanos::from_millis(10), seed)
    }

    #[test]
    fn flows_go_from_many_to_one_or_in_pairs() {
        let pairs = |from: &str, to: &str| {
            let plan = plan(&format!("[[flow]]\nfrom = {from}\nto = {to}\n"), 1)?;
            let pairs = plan.transfers.iter().map(|t| (t.from, t.to));
            Ok::<Vec<_>, String>(pairs.collect())
        };
        assert_eq!(pairs("\"0..2\"", "7").unwrap(), [(0, 7), (1, 7), (2, 7)]);
        assert_eq!(pairs("0", "[1, 2]").unwrap(), [(0, 1), (0, 2)]);
        assert_eq!(pairs("[0, 1]", "[2, 3]").unwrap(), [(0, 2), (1, 3)]);
        assert!(pairs("[0, 1]", "[2, 3, 4]").unwrap_err().contains("paired"));
        assert!(pairs("\"0..2\"", "1").unwrap_err().contains("itself"));
    }

    #[test]
    fn each_of_several_qps_is_a_transfer() {
        let plan = plan(
            "[[flow]]\nfrom = 0\nto = 1\nqps = 3\nbytes = '1MB'\nstart = '5us'\n[[flow]]\nname = 'b'\nfrom = [1, 2]\nto = 0\nevery = '1us'\n",
            1,
        )
        .unwrap();
        assert_eq!(plan.groups, ["flow0", "b"]);
        assert_eq!(plan.transfers.len(), 5);
        assert_eq!(plan.transfers[2].bytes, Some(1_000_000));
        assert_eq!(plan.transfers[2].start, Nanos::from_micros(5));
        let (_, traffic) = traffic(2, "[[flow]]\nfrom = 0\nto = 1\nstart = '5us'\n").unwrap();
        assert_eq!(traffic.late(Nanos::from_micros(6)).count(), 0);
        let late: Vec<&str> = traffic.late(Nanos::from_micros(5)).collect();
        assert_eq!(late, ["flow0"]);
        assert_eq!(plan.transfers[4].start, Nanos::from_micros(1));
        assert_eq!(
            (plan.transfers[4].bytes, plan.transfers[4].group),
            (None, 1)
        );
    }

    #[test]
    fn slips_are_told() {
        for (text, says) in [
            ("", "nothing is sent"),
            ("[[flow]]\nfrom = 0\n", "`to` is missing"),
            ("[[flow]]\nfrom = 0\nto = 1\nstop = '0us'\n", "later than"),
            ("[[flow]]\nfrom = 0\nto = 1\npriority = 8\n", "from 0 to 7"),
            (
                "[[flow]]\nname = 'a'\nfrom = 0\nto = 1\n[[flow]]\nname = 'a'\nfrom = 0\nto = 1\n",
                "taken",
            ),
            ("[[traffic]]\nkind = 'burst'\n", "poisson, incast"),
        ] {
            let error = plan(text, 1).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
