//! A scenario through the simulator. In flow a [`Scenario`] and its [`Plan`]; out flows an [`Outcome`]. Nothing but this module and
//! its parts knows [`Sim`].
//!
//! A run goes from sample to sample, with a stop where measuring begins; what is read at these stops are plain counters, so
//! looking changes nothing.

mod network;
mod record;
mod sampler;
#[cfg(test)]
mod tests;

use roceline_engine::Nanos;

use super::outcome::{Done, Outcome};
use super::traffic::{Plan, Transfer};
use super::{Scenario, ScenarioError};
use crate::sim::{Flow, FlowConfig, FlowId, Sim};
use network::Network;
pub use record::Record;
use sampler::Sampler;

/// Runs a scenario to its end. `progress` is told simulated time as it passes.
pub fn drive(
    scenario: &Scenario,
    plan: &Plan,
    records: &[Record],
    progress: &dyn Fn(Nanos),
) -> Result<Outcome, ScenarioError> {
    let mut network = Network::new(scenario)?;
    for record in records {
        record.begin(&mut network.sim)?;
    }
    let flows = add_flows(&mut network.sim, scenario, plan);
    let mut sampler = Sampler::new(scenario, plan, &flows, &network);
    let mut before = Measured::default();
    let mut now = Nanos::ZERO;
    if scenario.warmup == now {
        before = Measured::at(&network, &flows);
    }
    let mut next_sample = scenario.sample;
    while now < scenario.duration {
        let to = next_sample.min(scenario.duration);
        let warms_up = now < scenario.warmup && scenario.warmup <= to;
        let to = if warms_up { scenario.warmup } else { to };
        network.sim.run_until(to);
        progress(to.saturating_sub(now));
        now = to;
        if warms_up {
            before = Measured::at(&network, &flows);
        }
        if now == next_sample {
            sampler.sample(&network);
            next_sample = next_sample + scenario.sample;
        }
    }
    if let Err((number, error)) = network.sim.finish_records() {
        return Err(records[number].wrong(error));
    }
    let after = Measured::at(&network, &flows);
    let transfers = flows.iter().enumerate().map(|(at, &flow)| {
        let flow = network.sim.flow(flow);
        let earlier = before.bytes.get(at).copied().unwrap_or(0);
        done(flow, earlier, scenario.duration)
    });
    let mut outcome = Outcome {
        transfers: transfers.collect(),
        utilization: network.utilization(&before.links, &after.links, scenario),
        packet_events: network.sim.packet_events(),
        ..Outcome::default()
    };
    for ((name, later), (_, earlier)) in after.counters.into_iter().zip(before.counters) {
        outcome.counters.insert(name, later - earlier);
    }
    sampler.finish(&network, &mut outcome);
    Ok(outcome)
}

/// What is subtracted from what it is at the end.
#[derive(Default)]
struct Measured {
    /// Acknowledged, by transfer.
    bytes: Vec<u64>,
    /// By metric.
    counters: Vec<(&'static str, u64)>,
    /// Link time of all directions of links, in bytes.
    links: Vec<u64>,
}

impl Measured {
    fn at(network: &Network, flows: &[FlowId]) -> Measured {
        let bytes = flows.iter().map(|&flow| network.sim.flow(flow).bytes);
        Measured {
            bytes: bytes.collect(),
            counters: network.counters(),
            links: network.link_bytes(),
        }
    }
}

fn add_flows(sim: &mut Sim, scenario: &Scenario, plan: &Plan) -> Vec<FlowId> {
    let mut flows: Vec<FlowId> = Vec::new();
    for transfer in &plan.transfers {
        let config = config(scenario, transfer);
        let after: Vec<FlowId> = transfer.after.iter().map(|&at| flows[at]).collect();
        flows.push(sim.add_flow_after(&config, &after));
    }
    flows
}

fn config(scenario: &Scenario, transfer: &Transfer) -> FlowConfig {
    let mut config = FlowConfig::new(transfer.from, transfer.to).priority(transfer.manner.priority);
    config.attr.path_mtu = scenario.nic.mtu;
    config.attr.timeout = scenario.nic.timeout;
    config.attr.retry_cnt = scenario.nic.retry_cnt;
    config.message = transfer.manner.message;
    config.depth = transfer.manner.depth;
    config.bytes = transfer.bytes;
    config.start = transfer.start;
    config.stop = transfer.stop;
    config
}

fn done(flow: &Flow, earlier: u64, duration: Nanos) -> Done {
    let began = flow.config.start <= duration && (flow.qps.is_some() || flow.messages > 0);
    Done {
        start: began.then_some(flow.config.start),
        end: flow.finished,
        bytes: flow.bytes,
        measured: flow.bytes - earlier,
        failed: flow.failed.map(|status| format!("{status:?}")),
    }
}
