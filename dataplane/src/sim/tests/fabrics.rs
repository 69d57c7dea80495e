//! Switches, routes and pauses under virtual time.

use roceline_engine::Nanos;
use roceline_engine::congestion::{AlgorithmKind, CongestionConfig};

use super::super::topology::Fabric;
use super::super::*;

/// Eight to one at a switch: the link to the one is full, all get the same, and with PFC nothing is lost.
#[test]
fn an_incast_over_pfc_loses_nothing_and_without_it_does() {
    let run = |fabric: Fabric| {
        let mut sim = fabric.star(9).expect("a good switch");
        let flows: Vec<_> = (1..9)
            .map(|n| sim.add_flow(&FlowConfig::new(n, 0)))
            .collect();
        sim.run_until(Nanos::from_millis(3));
        let bits = |&flow| sim.flow(flow).bytes as f64 * 8.0 / 3e-3;
        let goodputs: Vec<f64> = flows.iter().map(bits).collect();
        (sim, goodputs)
    };
    let small = Fabric {
        shared_bytes: 256 << 10,
        ..Fabric::new(100_000_000_000)
    };
    let (sim, goodputs) = run(small.clone());
    let switch = sim.switch(0);
    assert_eq!(switch.dropped(), 0);
    assert!(switch.pauses_sent(sim.now()) > 0);
    for node in sim.nodes() {
        assert_eq!(node.counters().out_of_sequence, 0);
        assert_eq!(node.counters().local_ack_timeout_err, 0);
    }
    let all: f64 = goodputs.iter().sum();
    let line = 100e9 * 4096.0 / 4180.0;
    assert!((0.95..1.001).contains(&(all / line)), "{goodputs:?}");
    for goodput in goodputs {
        assert!((0.9..1.1).contains(&(goodput * 8.0 / all)));
    }
    let (sim, goodputs) = run(small.lossy());
    assert!(sim.switch(0).dropped() > 0);
    assert_eq!(sim.switch(0).pauses_sent(sim.now()), 0);
    let naks = |node: &Node| node.counters().packet_seq_err;
    assert!(sim.nodes().iter().map(naks).sum::<u64>() > 0);
    // Whose packets find room is chance, and go-back-N makes the unlucky ones start over.
    let least = goodputs.iter().copied().fold(f64::MAX, f64::min);
    assert!(least < 0.5 * all / 8.0, "{goodputs:?}");
}

/// Every NIC of each fabric reaches every other.
#[test]
fn fabrics_lead_from_everybody_to_everybody() {
    let fabric = Fabric::new(100_000_000_000);
    let fabrics = [
        ("star", fabric.star(4), 4, 2),
        ("dumbbell", fabric.dumbbell(2, 3), 5, 3),
        ("parking lot", fabric.parking_lot(3, 1), 3, 4),
        ("leaf-spine", fabric.leaf_spine(3, 2, 2), 6, 4),
        ("fat tree", fabric.fat_tree(4), 16, 6),
    ];
    for (name, sim, nodes, longest) in fabrics {
        let mut sim = sim.expect(name);
        assert_eq!(sim.nodes().len(), nodes, "{name}");
        let mut hops = 0;
        for (from, to) in (0..nodes).flat_map(|a| (0..nodes).map(move |b| (a, b))) {
            if from == to {
                continue;
            }
            let before = sim.packet_events();
            let flow = FlowConfig {
                bytes: Some(64),
                start: sim.now() + Nanos(1),
                ..FlowConfig::new(from, to)
            };
            let flow = sim.add_flow(&flow);
            sim.run(|sim| sim.flow(flow).finished.is_some());
            assert!(sim.flow(flow).finished.is_some(), "{name}: {from} to {to}");
            // Leaves and arrives at each link, there and back.
            hops = hops.max((sim.packet_events() - before) / 4);
        }
        assert_eq!(hops, longest, "{name}");
        assert!(sim.switches().iter().all(|switch| switch.dropped() == 0));
    }
}

/// As many NICs and as fast links as there may be, and the same again to the last nanosecond.
#[test]
fn a_thousand_nics_at_800_gbps_share_a_fat_tree() {
    let mut fabric = Fabric::new(800_000_000_000);
    // Short cables, so that the time of a round trip is little.
    fabric.host.delay = Nanos(100);
    fabric.trunk.delay = Nanos(100);
    let run = || {
        let mut sim = fabric.fat_tree(16).expect("good switches");
        let nodes = sim.nodes().len();
        assert_eq!(nodes, 1024);
        let flows: Vec<_> = (0..nodes)
            .map(|from| {
                // To the same place in another pod, so that nobody shares a receiver.
                let flow = FlowConfig {
                    bytes: Some(256 << 10),
                    ..FlowConfig::new(from, (from + 64) % nodes)
                };
                sim.add_flow(&flow)
            })
            .collect();
        sim.run_until(Nanos::from_micros(100));
        assert!(sim.switches().iter().all(|switch| switch.dropped() == 0));
        assert!(sim.packet_events() > 500_000, "{}", sim.packet_events());
        let end = |flow: &FlowId| sim.flow(*flow).finished.expect("all end in time");
        flows.iter().map(end).collect::<Vec<_>>()
    };
    let ends = run();
    // 64 packets take 2.7 us of a link. ECMP puts several flows on some and none on others.
    let (first, last) = (ends.iter().min(), ends.iter().max());
    let range = Some(&Nanos(3_000))..=Some(&Nanos(60_000));
    assert!(
        range.contains(&first) && range.contains(&last),
        "{first:?} {last:?}"
    );
    assert_eq!(ends, run());
}

/// What went in is what came out and what is still there.
#[test]
fn nothing_appears_or_vanishes_on_the_way() {
    let mut fabric = Fabric::new(25_000_000_000).lossy();
    fabric.shared_bytes = 128 << 10;
    let mut sim = fabric.leaf_spine(2, 2, 3).expect("good switches");
    for n in 0..5 {
        sim.add_flow(&FlowConfig::new(n, 5));
        sim.add_flow(&FlowConfig {
            operation: Operation::Read,
            ..FlowConfig::new(n, 5)
        });
    }
    sim.run_until(Nanos::from_millis(2));
    let at_switches: u64 = sim.switches().iter().map(|s| s.dropped()).sum();
    assert!(at_switches > 0);
    for (id, switch) in sim.switches().iter().enumerate() {
        let ports = 0..switch.ports() as u16;
        let queues = || {
            ports
                .clone()
                .flat_map(|port| (0..8).map(move |p| (port, p)))
        };
        let came: u64 = queues()
            .map(|(port, p)| switch.ingress(port, p).rx_frames)
            .sum();
        let went = switch.sum(|queue| queue.tx_frames);
        let waits: u64 = queues()
            .map(|(port, p)| u64::from(switch.frames(port, p)))
            .sum();
        assert_eq!(came, went + waits + switch.dropped(), "switch {id}");
    }
}

fn digest(sim: &Sim) -> Vec<u64> {
    let mut all = vec![sim.packet_events(), sim.now().0];
    for flow in sim.flows() {
        all.extend([flow.bytes, flow.last.0, flow.finished.map_or(0, |at| at.0)]);
    }
    for switch in sim.switches() {
        all.extend([
            switch.sum(|q| q.ce_marked),
            switch.sum(|q| q.max_depth),
            switch.dropped(),
        ]);
    }
    all
}

#[test]
fn a_run_is_the_same_on_any_thread_and_another_with_another_seed() {
    let run = |seed| {
        let mut fabric = Fabric::new(100_000_000_000);
        fabric.switch.seed = seed;
        let mut sim = fabric.leaf_spine(2, 2, 4).expect("good switches");
        for n in 0..7 {
            let flow = FlowConfig {
                bytes: Some(2_000_000 + n * 1000),
                start: Nanos(n * 777),
                ..FlowConfig::new(n as usize, 7)
            };
            sim.add_flow(&flow);
        }
        sim.run_until(Nanos::from_millis(2));
        digest(&sim)
    };
    let here = run(1);
    let there = std::thread::scope(|scope| {
        let threads = [1, 1, 2].map(|seed| scope.spawn(move || run(seed)));
        threads.map(|thread| thread.join().expect("a run"))
    });
    assert_eq!(there[0], here);
    assert_eq!(there[1], here);
    assert_ne!(there[2], here);
}

/// A NIC that is too slow pauses its switch, which pauses all who send to it, and nobody loses anything; without PFC
/// its buffer overflows.
#[test]
fn a_slow_receiver_pauses_all_the_way_back() {
    let run = |mut fabric: Fabric| {
        fabric.shared_bytes = 256 << 10;
        fabric.node.receive_bits_per_s = Some(20_000_000_000);
        let mut sim = fabric.dumbbell(2, 1).expect("good switches");
        let flows = [0, 1].map(|n| sim.add_flow(&FlowConfig::new(n, 2)));
        sim.run_until(Nanos::from_millis(3));
        let bits = flows.map(|flow| sim.flow(flow).received as f64 * 8.0 / 3e-3);
        (sim, bits)
    };
    let (sim, bits) = run(Fabric::new(100_000_000_000));
    let lost = |sim: &Sim| -> u64 {
        let at_nodes = sim.nodes().iter().map(|node| node.received().1);
        at_nodes
            .chain(sim.switches().iter().map(|s| s.dropped()))
            .sum()
    };
    assert_eq!(lost(&sim), 0);
    let line = 20e9 * 4096.0 / 4180.0;
    let all = bits[0] + bits[1];
    assert!((0.95..1.01).contains(&(all / line)), "{bits:?}");
    assert!((0.45..0.55).contains(&(bits[0] / all)), "{bits:?}");
    let now = sim.now();
    assert!(sim.node(2).asked_pauses(now).frames > 0);
    for switch in sim.switches() {
        assert!(switch.pauses_sent(now) > 0);
    }
    for sender in [0, 1] {
        assert!(sim.node(sender).all_pauses(now).duration > Nanos::from_millis(2));
    }
    let (sim, _) = run(Fabric::new(100_000_000_000).lossy());
    assert!(lost(&sim) > 0);
    assert_eq!(sim.node(2).asked_pauses(sim.now()).frames, 0);
}

/// A buffer that cannot hold what is on the cable after a stop: it asks for stops all the same.
#[test]
fn a_slow_receiver_with_too_small_a_buffer_pauses_at_once() {
    let mut fabric = Fabric::new(100_000_000_000);
    fabric.host.delay = Nanos::from_micros(50);
    fabric.node.receive_bits_per_s = Some(20_000_000_000);
    fabric.node.pfc.buffer_bytes = 256 << 10;
    let mut sim = fabric.dumbbell(2, 1).expect("good switches");
    for n in [0, 1] {
        sim.add_flow(&FlowConfig::new(n, 2));
    }
    sim.run_until(Nanos::from_millis(3));
    assert!(sim.node(2).asked_pauses(sim.now()).frames > 0);
}

/// With DCQCN the eight of an incast share the link without losing or pausing much; the counters agree with one another.
#[test]
fn dcqcn_slows_the_senders_of_an_incast_down() {
    let mut fabric = Fabric::new(40_000_000_000);
    fabric.node.congestion = CongestionConfig::paper();
    fabric.node.congestion.algorithm = AlgorithmKind::Dcqcn;
    let mut sim = fabric.star(9).expect("a switch");
    let flows: Vec<_> = (1..9)
        .map(|n| sim.add_flow(&FlowConfig::new(n, 0)))
        .collect();
    sim.run_until(Nanos::from_millis(10));
    let early: Vec<u64> = flows.iter().map(|&flow| sim.flow(flow).received).collect();
    let pauses = sim.switch(0).pauses_sent(sim.now());
    sim.run_until(Nanos::from_millis(60));
    let late = flows.iter().map(|&flow| sim.flow(flow).received);
    let bits: Vec<f64> = late
        .zip(early)
        .map(|(l, e)| (l - e) as f64 * 8.0 / 50e-3)
        .collect();
    let all: f64 = bits.iter().sum();
    assert!(all > 0.9 * 40e9 * 4096.0 / 4180.0, "{bits:?}");
    for flow in &bits {
        assert!((0.8..1.2).contains(&(flow * 8.0 / all)), "{bits:?}");
    }
    assert_eq!(
        sim.switch(0).pauses_sent(sim.now()),
        pauses,
        "none after the beginning"
    );
    for &flow in &flows {
        assert!(sim.allowed(flow).expect("a QP").0 < 20_000_000_000);
    }
    let (marks, receiver) = (
        sim.switch(0).sum(|queue| queue.ce_marked),
        sim.node(0).counters(),
    );
    let handled: u64 = (1..9).map(|n| sim.node(n).counters().rp_cnp_handled).sum();
    assert!(receiver.np_ecn_marked_roce_packets <= marks);
    assert!(receiver.np_cnp_sent <= receiver.np_ecn_marked_roce_packets);
    // A few are on their way.
    assert!(handled <= receiver.np_cnp_sent && receiver.np_cnp_sent - handled < 8);
    assert!(handled > 0);
}
