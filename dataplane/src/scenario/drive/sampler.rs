//! Series over time: read from the simulator at each sample, so that each point is about the interval before it, and queues as they
//! are at its end.

use roceline_engine::Nanos;
use roceline_engine::wire::pause::PRIORITIES;

use super::network::Network;
use crate::scenario::Scenario;
use crate::scenario::outcome::{Outcome, Quantity, QueueDepth, Series};
use crate::scenario::results::percentile;
use crate::scenario::traffic::Plan;
use crate::sim::FlowId;

/// Transfers of a group that have a series each; in a larger group only the sum has one.
const OWN_SERIES: usize = 64;

/// What is summed up in a series.
struct Line {
    series: Series,
    /// What it was at the last sample.
    last: u64,
    /// Bytes of transfers that have ended.
    ended: u64,
}

impl Line {
    fn new(quantity: Quantity, name: String) -> Line {
        Line {
            series: Series {
                quantity,
                name,
                values: Vec::new(),
            },
            last: 0,
            ended: 0,
        }
    }

    /// What it has grown by.
    fn growth(&mut self, now: u64) -> u64 {
        let growth = now - self.last;
        self.last = now;
        growth
    }
}

/// Collects series.
pub(super) struct Sampler {
    interval: Nanos,
    warmup: Nanos,
    times: Vec<Nanos>,
    arrivals: Vec<Line>,
    /// Transfers that have not ended, with the line that each is in.
    open: Vec<(FlowId, usize)>,
    /// By switch, port and priority; empty until something waits there at a sample.
    queues: Vec<Vec<u64>>,
    /// By switch.
    pauses: Vec<Line>,
    /// By NIC.
    cnps: Vec<Line>,
    /// Transfers whose allowed rate has a series.
    rates: Vec<(FlowId, Series)>,
}

impl Sampler {
    pub fn new(scenario: &Scenario, plan: &Plan, flows: &[FlowId], network: &Network) -> Sampler {
        let (arrivals, open) = lines(plan, flows);
        let switches = network.sim.switches();
        let queues: usize = switches.iter().map(|s| s.ports() * PRIORITIES).sum();
        let pauses = (0..switches.len())
            .map(|number| Line::new(Quantity::Pauses, format!("switch{number}")));
        let nodes = 0..network.sim.nodes().len();
        let cnps = nodes.map(|number| Line::new(Quantity::Cnps, format!("node{number}")));
        let own = arrivals.len() == flows.len();
        let names = arrivals.iter().map(|line| &line.series.name);
        let rates = flows
            .iter()
            .zip(names)
            .filter(|_| own)
            .map(|(&flow, name)| {
                let series = Line::new(Quantity::Rate, name.clone()).series;
                (flow, series)
            });
        let rates = rates.collect();
        Sampler {
            interval: scenario.sample,
            warmup: scenario.warmup,
            times: Vec::new(),
            arrivals,
            open,
            queues: vec![Vec::new(); queues],
            pauses: pauses.collect(),
            cnps: cnps.collect(),
            rates,
        }
    }

    /// The interval that ends now.
    pub fn sample(&mut self, network: &Network) {
        let now = network.sim.now();
        let mut sums: Vec<u64> = self.arrivals.iter().map(|line| line.ended).collect();
        let lines = &mut self.arrivals;
        self.open.retain(|&(flow, at)| {
            let flow = network.sim.flow(flow);
            sums[at] += flow.received;
            let open = flow.finished.is_none();
            if !open {
                lines[at].ended += flow.received;
            }
            open
        });
        for (line, sum) in lines.iter_mut().zip(sums) {
            let bits = u128::from(line.growth(sum)) * 8 * 1_000_000_000;
            let rate = bits / u128::from(self.interval.0);
            line.series.values.push(rate as u64);
        }
        let before = self.times.len();
        let mut queues = self.queues.iter_mut();
        for (switch, pauses) in network.sim.switches().iter().zip(&mut self.pauses) {
            for port in 0..switch.ports() as u16 {
                for (priority, queue) in (0..PRIORITIES as u8).zip(&mut queues) {
                    let depth = switch.depth(port, priority);
                    if depth > 0 || !queue.is_empty() {
                        queue.resize(before, 0);
                        queue.push(depth);
                    }
                }
            }
            let sent = pauses.growth(switch.pauses_sent(now));
            pauses.series.values.push(sent);
        }
        for (node, cnps) in network.sim.nodes().iter().zip(&mut self.cnps) {
            let sent = cnps.growth(node.counters().np_cnp_sent);
            cnps.series.values.push(sent);
        }
        for (flow, series) in &mut self.rates {
            let rate = network.sim.allowed(*flow);
            series.values.push(rate.map_or(0, |rate| rate.0));
        }
        self.times.push(now);
    }

    /// Hands over what was collected.
    pub fn finish(self, network: &Network, outcome: &mut Outcome) {
        let arrivals = self.arrivals.into_iter().map(|line| line.series);
        outcome.series.extend(arrivals);
        let first = self.times.partition_point(|&time| time <= self.warmup);
        let mut queues = self.queues.into_iter();
        for (number, switch) in network.sim.switches().iter().enumerate() {
            for port in 0..switch.ports() as u16 {
                for (priority, mut values) in (0..PRIORITIES as u8).zip(&mut queues) {
                    let counters = switch.queue(port, priority);
                    if counters.max_depth == 0 {
                        continue;
                    }
                    values.resize(self.times.len(), 0);
                    let mut measured = values[first..].to_vec();
                    measured.sort_unstable();
                    let part = |percent| match measured.is_empty() {
                        true => 0,
                        false => percentile(&measured, percent),
                    };
                    let name = format!("switch{number}.port{port}.prio{priority}");
                    outcome.queues.push(QueueDepth {
                        name: name.clone(),
                        p50: part(50),
                        p99: part(99),
                        max: counters.max_depth,
                        marks: counters.ce_marked,
                        drops: counters.dropped + counters.dropped_not_ect + counters.dropped_storm,
                    });
                    outcome.series.push(Series {
                        quantity: Quantity::Queue,
                        name,
                        values,
                    });
                }
            }
        }
        let pauses = self.pauses.into_iter().map(|line| line.series);
        outcome.series.extend(pauses);
        let cnps = self.cnps.into_iter().map(|line| line.series);
        outcome.series.extend(cnps);
        let rates = self.rates.into_iter().map(|(_, series)| series);
        outcome.series.extend(rates);
        outcome.times = self.times;
    }
}

/// A line for each transfer, or for each group that has many.
fn lines(plan: &Plan, flows: &[FlowId]) -> (Vec<Line>, Vec<(FlowId, usize)>) {
    let mut sizes = vec![0usize; plan.groups.len()];
    for transfer in &plan.transfers {
        sizes[transfer.group] += 1;
    }
    let mut lines: Vec<Line> = Vec::new();
    let mut open = Vec::new();
    // Of each group: its line, or the number of its next transfer.
    let mut of_group: Vec<Option<usize>> = vec![None; plan.groups.len()];
    let mut number = vec![0usize; plan.groups.len()];
    for (transfer, &flow) in plan.transfers.iter().zip(flows) {
        let group = transfer.group;
        let name = &plan.groups[group];
        let at = match sizes[group] {
            1 => {
                lines.push(Line::new(Quantity::Throughput, name.clone()));
                lines.len() - 1
            }
            2..=OWN_SERIES => {
                let name = format!("{name}.{}", number[group]);
                number[group] += 1;
                lines.push(Line::new(Quantity::Throughput, name));
                lines.len() - 1
            }
            _ => *of_group[group].get_or_insert_with(|| {
                lines.push(Line::new(Quantity::Throughput, name.clone()));
                lines.len() - 1
            }),
        };
        open.push((flow, at));
    }
    (lines, open)
}
