//! Marked datagrams: whoever sent them is told, each for itself.

use roceline_engine::Nanos;
use roceline_engine::wire::Gid;

use super::*;

/// One per sender and interval, to its address and queue pair.
#[test]
fn each_sender_of_marked_datagrams_hears_for_itself() {
    let mut p = Pair::new();
    let senders = [(2, 0x77), (2, 0x78), (9, 0x77)].map(|(host, qpn)| {
        let gid = Gid::from_ip([10, 0, 0, host].into());
        (gid, qpn)
    });
    for _ in 0..3 {
        for (src, qpn) in senders {
            p.inject(0, |frame| {
                (frame.src, frame.ext.src_qpn) = (src, qpn);
                frame.traffic_class = 3;
            });
        }
    }
    // One that is not welcome tells nobody.
    p.inject(0, |frame| {
        frame.ext.src_qpn = 0x79;
        frame.ext.qkey = 5;
        frame.traffic_class = 3;
    });
    // One whose sender says that it is nobody, likewise.
    p.inject(0, |frame| {
        frame.ext.src_qpn = 0;
        frame.traffic_class = 3;
    });
    p.w.run_for(Nanos(1));
    let cnps = p.w.log.iter().filter(|l| l.2.opcode == Opcode::CNP);
    let told: Vec<(Gid, u32)> = cnps.map(|l| (l.2.dst, l.2.dest_qpn)).collect();
    assert_eq!(told, senders);
    assert_eq!(p.counters(0).np_ecn_marked_roce_packets, 10);
    assert_eq!(p.counters(0).np_cnp_sent, 3);
}

#[test]
fn a_cnp_slows_a_datagram_queue_pair_down() {
    use roceline_engine::congestion::{AlgorithmKind, CongestionConfig, Rate};
    let mut p = Pair::new();
    let congestion = CongestionConfig {
        algorithm: AlgorithmKind::Dcqcn,
        ..CongestionConfig::connectx()
    };
    let (id, now) = (p.ids[0], p.w.now);
    p.node(0).engine.set_congestion(&congestion, now);
    // Down to the least, 1 Mb/s: a datagram of a kilobyte takes 9 ms.
    for _ in 0..100 {
        p.inject(0, |frame| frame.opcode = Opcode::CNP);
        p.w.run_for(Nanos::from_micros(4));
    }
    assert_eq!(p.counters(0).rp_cnp_handled, 100);
    let now = p.w.now;
    let rate = p.node(0).engine.qp_rate(id, now).expect("it exists");
    assert!(rate < Rate::from_mbps(100), "{rate:?}");
    p.w.log.clear();
    for _ in 0..3 {
        p.send(0, &[1; 1000]);
    }
    p.w.run_for(Nanos::from_micros(1));
    assert_eq!(p.w.log.len(), 1, "the others wait for their time");
    p.w.run_for(Nanos::from_millis(100));
    assert_eq!(p.w.log.len(), 3);
}
