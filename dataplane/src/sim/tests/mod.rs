//! Nodes and links under virtual time.

mod fabrics;
mod recorded;

use roceline_engine::congestion::{AlgorithmKind, Rate};
use roceline_engine::fabric::impair::{
    Action, Chance, Delay, Matcher, Probability, Reorder, Rule, RuleId, When,
};
use roceline_engine::verbs::{Mtu, WcStatus};

use super::*;

fn pair(delay: Nanos) -> Sim {
    let mut sim = Sim::new();
    let ends = [0, 1].map(|_| sim.add_node(&NodeConfig::default()));
    let link = LinkConfig {
        bits_per_s: 25_000_000_000,
        delay,
        queue_bytes: 1 << 16,
    };
    sim.join(ends[0], ends[1], &link);
    sim
}

fn writes() -> FlowConfig {
    let mut flow = FlowConfig::new(0, 1);
    flow.message = 8192;
    flow.attr.path_mtu = Mtu::M1024;
    flow
}

#[test]
fn flows_of_several_qps_share_a_link() {
    let mut sim = pair(Nanos::from_micros(2));
    let flows = [0; 3].map(|_| sim.add_flow(&writes()));
    let end = Nanos::from_millis(5);
    sim.run(|sim| sim.now() >= end);
    let goodputs = flows.map(|flow| sim.flow(flow).goodput());
    let all: f64 = goodputs.iter().sum();
    // 1024 of 1106 bytes of link time are payload.
    assert!(
        (0.95..1.001).contains(&(all / 25e9 / (1024.0 / 1106.0))),
        "{goodputs:?}"
    );
    for goodput in goodputs {
        assert!((0.9..1.1).contains(&(goodput * 3.0 / all)), "{goodputs:?}");
    }
    assert_eq!(sim.link(0).overflowed, 0);
}

#[test]
fn late_and_doubled_packets_arrive_and_messages_get_done() {
    let mut sim = pair(Nanos::from_micros(2));
    let actions = [
        Action::Delay(Delay::Uniform {
            min: Nanos::ZERO,
            max: Nanos::from_micros(3),
        }),
        Action::Duplicate {
            copies: 2,
            after: Some(Delay::Constant(Nanos(700))),
        },
        Action::Reorder(Reorder::Packets {
            count: 3,
            within: Nanos::from_micros(50),
        }),
    ];
    for (number, action) in (1..).zip(actions) {
        let chance = Chance::Each(Probability::ratio(1, 100));
        let rule = Rule {
            id: RuleId(number),
            name: String::new(),
            matcher: Matcher::default(),
            when: When {
                chance,
                ..When::default()
            },
            action,
            seed: number.into(),
        };
        sim.link(0).rules().add(rule).expect("a good rule");
    }
    let flow = sim.add_flow(&writes());
    assert!(sim.run(|sim| sim.flow(flow).messages >= 2000));
    assert_eq!(sim.flow(flow).failed, None);
    for (rule, counts) in sim.link(0).rules().rules() {
        assert!(counts.hit > 0, "{rule:?}");
    }
    let receiver = sim.node(1).counters();
    assert!(receiver.duplicate_request > 0 && receiver.out_of_sequence > 0);
}

/// Each frame on its way is an event; beside them there are a few for the links, and the engines' timers.
#[test]
fn what_was_planned_in_vain_does_not_pile_up() {
    let mut sim = pair(Nanos::from_micros(2));
    let rule = Rule {
        id: RuleId(1),
        name: String::new(),
        matcher: Matcher::default(),
        when: When::default(),
        action: Action::Reorder(Reorder::Delay(Delay::Uniform {
            min: Nanos::ZERO,
            max: Nanos::from_micros(3),
        })),
        seed: 1,
    };
    sim.link(0).rules().add(rule).expect("a good rule");
    sim.add_flow(&writes());
    let mut most = 0;
    let end = Nanos::from_millis(5);
    sim.run(|sim| {
        most = most.max(sim.events.len().saturating_sub(sim.shared.frames.len()));
        sim.now() >= end
    });
    assert!(most < 64, "{most} events beside frames");
}

/// A pacer's deadlines come and go while ACK timeouts wait far behind them.
#[test]
fn deadlines_that_come_and_go_do_not_pile_up() {
    let mut sim = Sim::new();
    let mut node = NodeConfig::default();
    node.congestion.algorithm = AlgorithmKind::FixedRate;
    node.congestion.fixed_rate = Rate::from_gbps(5);
    let ends = [0, 1].map(|_| sim.add_node(&node));
    let link = LinkConfig {
        bits_per_s: 25_000_000_000,
        delay: Nanos::from_micros(2),
        queue_bytes: 1 << 16,
    };
    sim.join(ends[0], ends[1], &link);
    let mut flow = writes();
    flow.attr.timeout = 14;
    // One message at a time: in between only the timeout is left to wait for.
    flow.depth = 1;
    let flow = sim.add_flow(&flow);
    let mut most = 0;
    let end = Nanos::from_millis(20);
    sim.run(|sim| {
        most = most.max(sim.events.len().saturating_sub(sim.shared.frames.len()));
        sim.now() >= end
    });
    assert!(most < 32, "{most} events beside frames");
    assert!(sim.flow(flow).messages > 500);
}

#[test]
fn a_qp_whose_peer_is_cut_off_fails_and_nothing_more_happens() {
    let mut sim = pair(Nanos::from_micros(2));
    let rule = Rule {
        id: RuleId(1),
        name: String::new(),
        matcher: Matcher::default(),
        when: When::default(),
        action: Action::Drop,
        seed: 1,
    };
    sim.link(0).rules().add(rule).expect("a good rule");
    let flow = sim.add_flow(&writes());
    assert!(!sim.run(|_| false), "an end of all events");
    let flow = sim.flow(flow);
    assert_eq!(flow.failed, Some(WcStatus::RetryExcErr));
    assert_eq!(flow.messages, 0);
}

#[test]
fn a_flow_that_waits_for_others_begins_when_the_last_of_them_has_ended() {
    let mut sim = pair(Nanos::from_micros(2));
    let mut config = FlowConfig::new(0, 1);
    config.bytes = Some(1 << 20);
    let first = sim.add_flow(&config);
    let second = sim.add_flow_after(&config, &[first]);
    config.start = Nanos::from_millis(5);
    let late = sim.add_flow_after(&config, &[first, second]);
    sim.run_until(Nanos::from_millis(10));
    let [first, second, late] = [first, second, late].map(|id| sim.flow(id));
    assert_eq!(Some(second.config.start), first.finished);
    assert!(second.finished.is_some());
    assert_eq!(late.config.start, Nanos::from_millis(5));
    assert_eq!(late.completion_time(), first.completion_time());
}
