//! CE marks make CNPs, and CNPs reach the congestion control of the queue pair they are for (IBTA annex A17).

use roceline_engine::congestion::{AlgorithmKind, CnpModeration, CongestionConfig, Rate};
use roceline_engine::wire::Gid;
use roceline_engine::{Counters, Outputs};

use super::*;

/// Traffic class of a packet that a switch has marked: CE, and DSCP 0.
const CE: u8 = 3;

fn bench(change: impl FnOnce(&mut CongestionConfig)) -> Bench {
    let mut congestion = CongestionConfig {
        algorithm: AlgorithmKind::Dcqcn,
        ..CongestionConfig::connectx()
    };
    congestion.np.min_time_between_cnps = 50;
    change(&mut congestion);
    Bench::with_config(EngineConfig {
        congestion,
        ..default_config(1)
    })
}

/// A marked empty WRITE at node 1, with the next PSN.
fn marked(b: &mut Bench, n: u32) {
    let mut frame = b.frame(Opcode::RC_WRITE_ONLY, 0x100 + n, 0, NO_HEADERS);
    frame.traffic_class = CE;
    inject(b, frame);
}

fn inject(b: &mut Bench, frame: Frame) {
    let now = b.w.now;
    b.w.inject(1, frame, now);
    while b.w.poll() {}
}

/// CNPs that node 1 sent since the last look.
fn cnps(b: &mut Bench) -> Vec<Frame> {
    let is_cnp = |l: &(usize, Nanos, Frame)| l.0 == 1 && l.2.opcode == Opcode::CNP;
    let found = b.w.log.iter().filter(|l| is_cnp(l));
    let found = found.map(|l| l.2.clone()).collect();
    b.w.log.clear();
    found
}

fn counters(b: &Bench, n: usize) -> &Counters {
    b.w.nodes[n].engine.counters()
}

#[test]
fn a_mark_makes_one_cnp_for_the_senders_queue_pair_and_slows_it_down() {
    let mut b = bench(|_| {});
    marked(&mut b, 0);
    let [cnp] = &cnps(&mut b)[..] else {
        panic!("one CNP")
    };
    assert_eq!(cnp.dest_qpn, b.ids[0].0);
    assert_eq!(
        (cnp.psn, cnp.ack_req, cnp.solicited),
        (Psn::new(0), false, false)
    );
    assert_eq!((cnp.dst, cnp.payload.len()), (b.w.nodes[0].gid, 0));
    let line = Rate::from_gbps(100);
    let (qp, now) = (b.ids[0], b.w.now);
    assert_eq!(b.node(0).engine.qp_rate(qp, now), Some(line));
    b.w.run_for(Nanos::from_micros(5));
    let now = b.w.now;
    let rate = b.node(0).engine.qp_rate(qp, now).expect("it exists");
    assert!(rate < line, "{rate:?}");
    let (sender, receiver) = (counters(&b, 0), counters(&b, 1));
    assert_eq!(receiver.np_ecn_marked_roce_packets, 1);
    assert_eq!((receiver.np_cnp_sent, receiver.np_cnp_dropped), (1, 0));
    assert_eq!((sender.rp_cnp_handled, sender.rp_cnp_ignored), (1, 0));
    // And for each queue pair.
    let of = |n: usize| {
        *b.w.nodes[n]
            .engine
            .qp_counters(b.ids[n])
            .expect("it exists")
    };
    assert_eq!((of(0).rp_cnp_handled, of(1).np_cnp_sent), (1, 1));
    assert_eq!(of(1).np_ecn_marked_roce_packets, 1);
}

#[test]
fn a_flow_is_notified_once_in_an_interval_however_many_marks_there_are() {
    let mut b = bench(|_| {});
    for n in 0..20 {
        marked(&mut b, n);
        b.w.run_for(Nanos::from_micros(10));
    }
    // At 0, 50, 100 and 150 us.
    assert_eq!(cnps(&mut b).len(), 4);
    assert_eq!(counters(&b, 1).np_ecn_marked_roce_packets, 20);
    // Interval 0: one for each.
    let mut b = bench(|c| c.np.min_time_between_cnps = 0);
    for n in 0..20 {
        marked(&mut b, n);
    }
    assert_eq!(cnps(&mut b).len(), 20);
}

#[test]
fn packets_of_a_connection_that_are_no_requests_in_turn_tell_of_congestion_all_the_same() {
    let mut b = bench(|c| c.np.min_time_between_cnps = 0);
    // Ahead, a duplicate, an ACK of nothing; but a CNP makes none.
    for (opcode, psn) in [
        (Opcode::RC_WRITE_ONLY, 0x120),
        (Opcode::RC_WRITE_ONLY, 0xf0),
        (Opcode::RC_ACK, 0x99),
        (Opcode::CNP, 0),
    ] {
        let mut frame = b.frame(opcode, psn, 0, NO_HEADERS);
        frame.traffic_class = CE;
        inject(&mut b, frame);
    }
    assert_eq!(cnps(&mut b).len(), 3);
    // Nor does a stranger's packet, nor one for nobody.
    let mut frame = b.frame(Opcode::RC_WRITE_ONLY, 0x100, 0, NO_HEADERS);
    frame.traffic_class = CE;
    frame.src = Gid::from_ip([10, 0, 0, 9].into());
    inject(&mut b, frame.clone());
    frame.dest_qpn = 0x3333;
    inject(&mut b, frame);
    assert_eq!(cnps(&mut b).len(), 0);
    assert_eq!(counters(&b, 1).np_ecn_marked_roce_packets, 3);
}

#[test]
fn the_processing_delay_passes_before_a_cnp_leaves() {
    let mut b = bench(|c| c.np.cnp_delay = 55_000);
    let start = b.w.now;
    marked(&mut b, 0);
    assert_eq!(
        b.node(1).engine.next_deadline(),
        Some(start + Nanos(55_000))
    );
    b.w.run_for(Nanos(54_999));
    assert_eq!(cnps(&mut b).len(), 0);
    b.w.run_for(Nanos(1));
    assert_eq!(cnps(&mut b).len(), 1);
    // Of a queue pair that ends meanwhile none leaves, nor is one counted.
    marked(&mut b, 1);
    b.enter(1, QpState::Err);
    b.w.run_for(Nanos::from_millis(1));
    assert_eq!(cnps(&mut b).len(), 0);
    assert_eq!(counters(&b, 1).np_cnp_sent, 1);
}

#[test]
fn by_ip_all_queue_pairs_of_a_peer_are_one_flow() {
    let pairs = |moderation| {
        let mut b = bench(|c| c.np.cnp_moderation = moderation);
        let other = b.w.connect_default(&default_attr());
        for ids in [b.ids, other, b.ids, other] {
            b.ids = ids;
            let mut frame = b.frame(Opcode::RC_WRITE_ONLY, 0x100, 0, NO_HEADERS);
            frame.traffic_class = CE;
            inject(&mut b, frame);
        }
        let cnps: Vec<u32> = cnps(&mut b).iter().map(|cnp| cnp.dest_qpn).collect();
        (cnps, other)
    };
    let (cnps, _) = pairs(CnpModeration::PerQp);
    assert_eq!(cnps.len(), 2);
    let (cnps, other) = pairs(CnpModeration::PerIp);
    assert_eq!(cnps.len(), 1);
    assert_ne!(cnps[0], other[0].0, "the first to be marked is told");
}

#[test]
fn priorities_may_be_left_out_at_either_end() {
    let mut b = bench(|c| (c.np_enable, c.rp_enable) = (!(1 << 3), !1));
    let mut frame = b.frame(Opcode::RC_WRITE_ONLY, 0x100, 0, NO_HEADERS);
    frame.traffic_class = 26 << 2 | CE;
    inject(&mut b, frame);
    assert_eq!(cnps(&mut b).len(), 0);
    assert_eq!(counters(&b, 1).np_ecn_marked_roce_packets, 1);
    marked(&mut b, 1);
    assert_eq!(cnps(&mut b).len(), 1);
    b.w.run_for(Nanos::from_micros(5));
    let sender = counters(&b, 0);
    assert_eq!((sender.rp_cnp_handled, sender.rp_cnp_ignored), (0, 1));
}

#[test]
fn cnps_that_nobody_waits_for_are_ignored_and_counted() {
    let mut b = bench(|_| {});
    let cnp = |b: &Bench| Frame {
        ack_req: false,
        ..b.frame(Opcode::CNP, 0, 0, NO_HEADERS)
    };
    // A stranger's is dropped, as any of its packets.
    let mut frame = cnp(&b);
    frame.src = Gid::from_ip([10, 0, 0, 9].into());
    inject(&mut b, frame);
    assert_eq!(counters(&b, 1).rx_dropped, 1);
    let mut frame = cnp(&b);
    frame.dest_qpn = 0x3333;
    inject(&mut b, frame);
    assert_eq!(counters(&b, 1).rp_cnp_ignored, 1);
    let frame = cnp(&b);
    inject(&mut b, frame.clone());
    assert_eq!(counters(&b, 1).rp_cnp_handled, 1);
    b.enter(1, QpState::Err);
    inject(&mut b, frame.clone());
    let mut off = CongestionConfig::connectx();
    off.algorithm = AlgorithmKind::None;
    let mut b = bench(|c| *c = off);
    inject(&mut b, frame);
    assert_eq!(counters(&b, 1).rp_cnp_ignored, 1);
    assert_eq!(counters(&b, 1).rp_cnp_handled, 0);
}

/// Neither for want of room in one call, nor while CNPs' own priority is paused.
#[test]
fn a_cnp_that_cannot_leave_now_leaves_later() {
    let mut b = bench(|c| c.np.min_time_between_cnps = 0);
    let frame = {
        // An ACK, so that nothing else comes out.
        let mut frame = b.frame(Opcode::RC_ACK, 0x99, 0, NO_HEADERS);
        frame.traffic_class = CE;
        frame.packet()
    };
    let now = b.w.now;
    let node = b.node(1);
    let mut out = Outputs::new();
    for _ in 0..50 {
        node.engine.rx(&frame, 0, now, &mut node.queues, &mut out);
    }
    assert!(out.tx.is_empty(), "nothing before the end of the burst");
    node.engine.rx_end(now, &mut out);
    assert_eq!(out.tx.len(), Outputs::TX_PER_CALL);
    out.clear();
    // DSCP 48 is of priority 6.
    node.engine.set_paused(1 << 6);
    node.engine.tx(128, now, &mut out);
    assert!(out.tx.is_empty());
    assert_eq!(node.engine.next_deadline(), None);
    node.engine.set_paused(0);
    assert_eq!(node.engine.next_deadline(), Some(now));
    node.engine.tx(10, now, &mut out);
    node.engine.tx(128, now, &mut out);
    assert_eq!(out.tx.len(), 50 - Outputs::TX_PER_CALL);
    out.clear();
    // What is beyond all room is counted.
    for _ in 0..1100 {
        node.engine.rx(&frame, 0, now, &mut node.queues, &mut out);
        out.clear();
    }
    for _ in 0..100 {
        node.engine.rx_end(now, &mut out);
        out.clear();
    }
    let c = node.engine.counters();
    assert_eq!(c.np_ecn_marked_roce_packets, 1150);
    assert_eq!((c.np_cnp_sent, c.np_cnp_dropped), (50 + 1024, 76));
}

/// RFC 3168: with CE from the program each packet would be marked from the start.
#[test]
fn ecn_bits_are_the_programs_only_where_nobody_heeds_marks() {
    let mut b = bench(|_| {});
    for ecn in 0..4 {
        let asked = 26 << 2 | ecn;
        assert_eq!(b.node(0).engine.ecn_of(asked, 0), 26 << 2 | 2, "{ecn}");
    }
    let mut b = bench(|c| c.algorithm = AlgorithmKind::None);
    for ecn in 0..4 {
        let asked = 26 << 2 | ecn;
        assert_eq!(b.node(0).engine.ecn_of(asked, 0), asked);
    }
}
