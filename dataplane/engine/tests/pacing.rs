//! Rates that congestion control sets, in virtual time: exact on average, shared fairly, without bursts, for whatever is sent; and
//! retries that do not take a slow queue pair for a dead one.

#[path = "pacing/sender.rs"]
mod sender;

use std::collections::BTreeMap;

use roceline_engine::congestion::ets::Ets;
use roceline_engine::congestion::{AlgorithmKind, CongestionConfig, Rate};
use roceline_engine::verbs::{Event, Mtu, QpId, QpType, WcStatus, WrOpcode};
use roceline_engine::wire::{Opcode, link_bytes};
use roceline_engine::{Nanos, Retransmission, Waiting};
use sender::{Sender, Setup};

/// Every queue pair at one rate.
fn fixed(rate: Rate) -> CongestionConfig {
    CongestionConfig {
        algorithm: AlgorithmKind::FixedRate,
        line_rate: Rate::from_gbps(400),
        fixed_rate: rate,
        ..CongestionConfig::default()
    }
}

/// Bits per second of link time in a log, from its first packet to its last, which does not count.
fn rate_of(log: &[(Nanos, QpId, u32)]) -> f64 {
    let (first, last) = (log[0].0, log[log.len() - 1].0);
    let bytes: u64 = log[..log.len() - 1].iter().map(|l| u64::from(l.2)).sum();
    bytes as f64 * 8e9 / (last.0 - first.0) as f64
}

/// Within 1 % over the larger of 100 ms and 1,000 packets. (Of the fastest with the smallest packets, 100 ms are left out: they
/// are tens of millions of packets.)
#[test]
fn the_average_is_the_rate_from_1_mbps_to_line_rate() {
    for mbps in [1, 7, 100, 1_000, 9_999, 40_000, 100_000, 399_000] {
        for mtu in [Mtu::M256, Mtu::M1024, Mtu::M4096] {
            let rate = Rate::from_mbps(mbps);
            let packet = link_bytes(false, Opcode::RC_WRITE_MIDDLE, mtu.bytes());
            let of_1000 = rate.picos(1000 * u64::from(packet)) / 1000;
            let span = match mtu {
                Mtu::M4096 => of_1000.max(100_000_000),
                _ if mbps <= 10_000 => of_1000.max(100_000_000),
                _ => of_1000.max(10_000_000),
            };
            let mut s = Sender::new(&Setup {
                mtu,
                congestion: fixed(rate),
                ..Setup::default()
            });
            s.post(0, WrOpcode::Write, 1 << 20);
            s.run_for(Nanos(span), |s| {
                // Always something to send.
                while s.open() < 8 && s.post(0, WrOpcode::Write, 1 << 20) {}
            });
            let got = rate_of(&s.log);
            let off = got / rate.0 as f64 - 1.0;
            assert!(
                off.abs() < 0.01,
                "{mbps} Mb/s, {mtu:?}: {:.3} %",
                off * 100.0
            );
            assert!(s.log.len() >= 999, "{mbps} Mb/s, {mtu:?}");
            assert_eq!(s.retries(), 0, "{mbps} Mb/s, {mtu:?}");
        }
    }
}

#[test]
fn thousands_of_queue_pairs_each_have_their_rate() {
    const QPS: usize = 3_000;
    let mut s = Sender::new(&Setup {
        qps: QPS,
        congestion: fixed(Rate::from_mbps(10)),
        ..Setup::default()
    });
    for qp in 0..QPS {
        assert!(s.post(qp, WrOpcode::Write, 1 << 20));
    }
    // 45 packets of 1,106 bytes each.
    s.run_for(Nanos::from_millis(40), |_| {});
    let mut bytes = BTreeMap::new();
    for &(_, qp, n) in &s.log {
        *bytes.entry(qp).or_insert(0) += n;
    }
    assert_eq!(bytes.len(), QPS);
    let most = 40_000_000 / 800 + 1106 + 16;
    for (qp, bytes) in bytes {
        assert!(
            bytes <= most && bytes + 1106 >= most - 1106,
            "{qp:?}: {bytes}"
        );
    }
}

/// Nothing is saved up by a queue pair that has nothing to send.
#[test]
fn a_queue_pair_that_was_idle_starts_without_a_burst() {
    let mut s = Sender::new(&Setup {
        congestion: fixed(Rate::from_mbps(100)),
        ..Setup::default()
    });
    for _ in 0..3 {
        s.run_for(Nanos::from_millis(500), |_| {});
        let start = s.now;
        s.log.clear();
        s.post(0, WrOpcode::Write, 100 << 10);
        s.run_for(Nanos::from_millis(100), |_| {});
        assert_eq!(s.log.len(), 100);
        assert_eq!(s.log[0].0, start);
        // 1,106 bytes at 100 Mb/s: 88.5 us.
        for pair in s.log.windows(2) {
            let gap = pair[1].0.saturating_sub(pair[0].0);
            assert!(gap >= Nanos(88_480 - 256), "{gap:?}");
        }
    }
}

/// A poll loop comes when it comes; a queue pair makes up for that, and no further than 64 KiB.
#[test]
fn what_a_late_caller_holds_up_is_made_up_for_within_bounds() {
    let rate = Rate::from_gbps(10);
    let mut s = Sender::new(&Setup {
        mtu: Mtu::M4096,
        congestion: fixed(rate),
        ..Setup::default()
    });
    for _ in 0..8 {
        s.post(0, WrOpcode::Write, 1 << 20);
    }
    // 20 us are 25 KB.
    for _ in 0..1000 {
        s.now = s.now + Nanos::from_micros(20);
        s.poll();
        while s.open() < 8 && s.post(0, WrOpcode::Write, 1 << 20) {}
    }
    let off = rate_of(&s.log) / rate.0 as f64 - 1.0;
    assert!(off.abs() < 0.01, "{off}");
    s.log.clear();
    s.now = s.now + Nanos::from_millis(50);
    s.poll();
    let burst: u32 = s.log.iter().map(|l| l.2).sum();
    assert!((60_000..=65_536 + 4178).contains(&burst), "{burst}");
}

/// Half the packets are lost and sent again; the rate on the wire is what it was.
#[test]
fn packets_that_are_sent_again_are_paced_too() {
    let rate = Rate::from_mbps(500);
    let mut s = Sender::new(&Setup {
        congestion: fixed(rate),
        ..Setup::default()
    });
    s.post(0, WrOpcode::Write, 1 << 20);
    let mut rounds = 0;
    s.run_for(Nanos::from_millis(100), |s| {
        while s.open() < 8 && s.post(0, WrOpcode::Write, 1 << 20) {}
        rounds += 1;
        if rounds % 40 == 0 {
            // Back by twenty packets.
            s.nak(0, 20);
        }
    });
    let off = rate_of(&s.log) / rate.0 as f64 - 1.0;
    assert!(off.abs() < 0.01, "{off}");
    assert!(s.engine.counters().packet_seq_err > 10);
}

#[test]
fn read_responses_are_paced_and_acknowledgements_are_not() {
    let rate = Rate::from_mbps(200);
    let mut s = Sender::new(&Setup {
        congestion: fixed(rate),
        ..Setup::default()
    });
    s.request(0, Opcode::RC_READ_REQUEST, 1 << 20, 0);
    s.run_for(Nanos::from_millis(40), |_| {});
    let off = rate_of(&s.log) / rate.0 as f64 - 1.0;
    assert!(off.abs() < 0.01, "{off}");
    assert!(s.log.len() > 800, "{}", s.log.len());
    // A READ that waits for its time holds ACKs of its own queue pair back (they are in the order of PSNs), no other's.
    s.run_for(Nanos::from_millis(40), |_| {});
    s.log.clear();
    s.post(0, WrOpcode::Write, 64 << 10);
    s.poll();
    let sent = s.log.len();
    assert!(sent <= 1);
    s.request(0, Opcode::RC_WRITE_ONLY, 0, 0);
    s.poll();
    assert_eq!(
        s.acks, 1,
        "the queue pair waits for its time, its ACK does not"
    );
}

/// At 1 Mb/s a packet of 4 KiB takes 33 ms, and the adaptive profile sends again after 2.
#[test]
fn a_slow_queue_pair_is_not_taken_for_a_lost_one() {
    for retransmission in [Retransmission::Spec, Retransmission::Adaptive] {
        for (timeout, len) in [(14, 1 << 20), (8, 1 << 20), (14, 4096), (8, 10_000)] {
            let mut s = Sender::new(&Setup {
                mtu: Mtu::M4096,
                congestion: fixed(Rate::from_mbps(1)),
                retransmission,
                timeout,
                ..Setup::default()
            });
            for _ in 0..4 {
                s.post(0, WrOpcode::Write, len);
            }
            s.run_for(Nanos::from_millis(6_000), |_| {});
            let sent = s.log.len();
            let want = (4 * u64::from(len).div_ceil(4096)).min(179);
            assert!(sent as u64 >= want, "{retransmission:?}, {timeout}: {sent}");
            assert_eq!(s.retries(), 0, "{retransmission:?}, {timeout}, {len}");
        }
    }
}

/// And a dead peer is noticed while its packets are far apart.
#[test]
fn a_slow_queue_pair_notices_that_its_peer_is_gone() {
    for retransmission in [Retransmission::Spec, Retransmission::Adaptive] {
        let mut s = Sender::new(&Setup {
            mtu: Mtu::M4096,
            congestion: fixed(Rate::from_mbps(1)),
            retransmission,
            ..Setup::default()
        });
        s.silent = true;
        s.post(0, WrOpcode::Write, 1 << 20);
        let failed = |s: &Sender| {
            s.events
                .iter()
                .any(|e| matches!(e, Event::Completion(c) if c.status == WcStatus::RetryExcErr))
        };
        // Eight waits of 67 ms, and as many packets.
        let end = s.now + Nanos::from_millis(8 * (68 + 34) + 100);
        while !failed(&s) && s.now < end {
            s.run_for(Nanos::from_millis(10), |_| {});
        }
        assert!(failed(&s), "{retransmission:?}");
    }
}

/// Whatever CNPs do to the rate, also while a queue pair waits for its time, what is sent is the integral of it.
#[test]
fn what_is_sent_is_the_integral_of_the_rate() {
    // Microseconds of a step, and in how many of them a CNP comes, at first and then: so often that none is let go.
    for (profile, step, often) in [
        ("paper", 5, [24, 200]),
        ("connectx", 5, [24, 200]),
        ("ionic", 1, [3, 4]),
    ] {
        let mut s = Sender::new(&Setup {
            congestion: CongestionConfig {
                algorithm: AlgorithmKind::Dcqcn,
                line_rate: Rate::from_gbps(40),
                ..CongestionConfig::profile(profile).expect("it exists")
            },
            ..Setup::default()
        });
        s.cnp(0);
        for _ in 0..8 {
            s.post(0, WrOpcode::Write, 1 << 20);
        }
        s.poll();
        let qp = s.qps[0].id;
        let (mut bits, mut random, mut slowest) = (0.0, 1u64, u64::MAX);
        let step = Nanos::from_micros(step);
        let from = s.now;
        for _ in 0..20_000 {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let late = s.now.0 - from.0 > 10_000 * step.0;
            let wanted = often[usize::from(late)];
            if (random >> 33) % wanted == 0 {
                s.cnp(0);
            }
            let rate = s.engine.qp_rate(qp, s.now).expect("it exists").0;
            slowest = slowest.min(rate);
            bits += rate as f64 * step.0 as f64 / 1e9;
            s.run_for(step, |s| {
                while s.open() < 8 && s.post(0, WrOpcode::Write, 1 << 20) {}
            });
        }
        let sent: f64 = s.log.iter().map(|l| f64::from(l.2) * 8.0).sum();
        // A rate that is sampled only once in a step, and a packet that is late.
        assert!(
            (sent / bits - 1.0).abs() < 0.02,
            "{profile}: {sent} of {bits}"
        );
        assert!(slowest < 10_000_000_000, "{profile}: {slowest}");
        assert_eq!(s.engine.counters().rp_cnp_ignored, 0);
        assert!(s.engine.counters().rp_cnp_handled > 100);
    }
}

/// A rate that is taken off, or put on, counts at once, also for a queue pair that waits.
/// Two queue pairs of one program, and a third of another, on a port that others keep busy: each call brings a few packets.
#[test]
fn a_selection_gives_priorities_their_part_of_the_port() {
    let mut sender = Sender::new(&Setup {
        qps: 3,
        ..Setup::default()
    });
    let now = sender.now;
    for (n, priority) in [0, 3, 6].into_iter().enumerate() {
        let id = sender.qps[n].id;
        sender.engine.set_priority(id, priority, now);
    }
    let mut ets = Ets {
        strict: 1 << 6,
        ..Ets::default()
    };
    ets.bandwidth[3] = 75;
    sender.engine.set_transmission_selection(&ets);
    let sent = |sender: &Sender, n: usize| {
        let of = sender.log.iter().filter(|l| l.1 == sender.qps[n].id);
        of.map(|l| u64::from(l.2)).sum::<u64>()
    };
    for n in 0..6_000 {
        for qp in [0, 1] {
            while sender.post(qp, WrOpcode::Write, 8_192) {}
        }
        if n % 100 == 99 {
            let before = sender.log.len();
            assert!(sender.post(2, WrOpcode::Write, 100));
            sender.poll_some(4);
            assert_eq!(sender.log[before].1, sender.qps[2].id, "it is strict");
        }
        sender.now = sender.now + Nanos(2_000);
        sender.poll_some(4);
    }
    let [low, high] = [0, 1].map(|n| sent(&sender, n) as f64);
    // Six other priorities have nothing to say, so what is theirs goes to those that have: 75 to 25/6.
    let wanted = 75.0 / (75.0 + 25.0 / 6.0);
    let got = high / (high + low);
    assert!((got / wanted - 1.0).abs() < 0.02, "{got}, not {wanted}");
}

#[test]
fn another_configuration_counts_at_once() {
    let mut s = Sender::new(&Setup {
        congestion: fixed(Rate::from_mbps(1)),
        ..Setup::default()
    });
    s.post(0, WrOpcode::Write, 64 << 10);
    s.run_for(Nanos::from_millis(1), |_| {});
    assert_eq!(s.log.len(), 1);
    let now = s.now;
    s.engine.set_congestion(&fixed(Rate::from_gbps(1)), now);
    s.run_for(Nanos::from_millis(1), |_| {});
    // All but the time that the first packet still had to pay for, at the new rate: 9 us.
    assert_eq!(s.log.len(), 64);
    s.engine.set_congestion(&CongestionConfig::default(), s.now);
    s.log.clear();
    s.post(0, WrOpcode::Write, 64 << 10);
    s.poll();
    assert_eq!(s.log.len(), 64);
    let qp = s.qps[0].id;
    assert_eq!(s.engine.qp_rate(qp, s.now), Some(Rate::from_gbps(100)));
}

fn timely() -> Sender {
    let mut s = Sender::new(&Setup {
        congestion: CongestionConfig {
            algorithm: AlgorithmKind::Timely,
            ..CongestionConfig::default()
        },
        ..Setup::default()
    });
    s.round_trip = Nanos::from_micros(20);
    s
}

/// TIMELY lowers its rate above 500 us.
#[test]
fn round_trips_reach_the_algorithms_that_go_by_them() {
    let mut s = timely();
    let qp = s.qps[0].id;
    let line = Rate::from_gbps(100);
    let busy = |s: &mut Sender| while s.open() < 8 && s.post(0, WrOpcode::Write, 1 << 20) {};
    s.run_for(Nanos::from_millis(5), busy);
    assert_eq!(s.engine.qp_rate(qp, s.now), Some(line));
    s.round_trip = Nanos::from_micros(900);
    s.run_for(Nanos::from_millis(20), busy);
    let rate = s.engine.qp_rate(qp, s.now).expect("it exists");
    assert!(rate.0 < line.0 / 4, "{rate:?}");
    assert_eq!(s.retries(), 0);
}

/// Karn and Partridge: the ACK of a packet that was sent twice could be of either.
#[test]
fn packets_that_were_sent_again_tell_nothing_of_the_round_trip() {
    let mut s = timely();
    let qp = s.qps[0].id;
    for _ in 0..20 {
        s.silent = true;
        assert!(s.post(0, WrOpcode::Write, 8 << 10));
        s.run_for(Nanos::from_millis(5), |_| {});
        s.silent = false;
        s.nak(0, 8);
        s.run_for(Nanos::from_millis(1), |_| {});
    }
    assert_eq!(s.open(), 0);
    assert_eq!(s.engine.counters().packet_seq_err, 20);
    assert_eq!(s.engine.qp_rate(qp, s.now), Some(Rate::from_gbps(100)));
}

/// A READ's answer acknowledges what was before it; the time until the next ACK is no round trip.
#[test]
fn what_an_answer_acknowledges_tells_nothing_of_the_round_trip() {
    let mut s = timely();
    let qp = s.qps[0].id;
    for _ in 0..20 {
        s.silent = true;
        assert!(s.post(0, WrOpcode::Write, 1 << 10));
        assert!(s.post(0, WrOpcode::Read, 0));
        s.poll();
        s.answer(0);
        assert_eq!(s.open(), 0);
        s.run_for(Nanos::from_millis(5), |_| {});
        s.silent = false;
        assert!(s.post(0, WrOpcode::Write, 1 << 10));
        s.run_for(Nanos::from_millis(1), |_| {});
        assert_eq!(s.open(), 0);
    }
    assert_eq!(s.retries(), 0);
    assert_eq!(s.engine.qp_rate(qp, s.now), Some(Rate::from_gbps(100)));
}

/// What was asked for while another algorithm held is no measure for the next.
#[test]
fn an_algorithm_that_starts_measures_afresh() {
    let of = |algorithm| CongestionConfig {
        algorithm,
        ..CongestionConfig::default()
    };
    let mut s = Sender::new(&Setup {
        congestion: of(AlgorithmKind::Swift),
        ..Setup::default()
    });
    let qp = s.qps[0].id;
    s.silent = true;
    assert!(s.post(0, WrOpcode::Write, 1 << 10));
    s.poll();
    s.engine.set_congestion(&of(AlgorithmKind::None), s.now);
    s.acknowledge(0);
    assert_eq!(s.open(), 0);
    s.run_for(Nanos::from_millis(5), |_| {});
    s.engine.set_congestion(&of(AlgorithmKind::Swift), s.now);
    s.silent = false;
    assert!(s.post(0, WrOpcode::Write, 1 << 10));
    s.run_for(Nanos::from_millis(1), |_| {});
    assert_eq!(s.open(), 0);
    assert_eq!(s.engine.qp_rate(qp, s.now), Some(Rate::from_gbps(100)));
}

/// UC: each CNP is for a packet that arrived, and what leaves while the queue pair is held back counts as arrived, too.
#[test]
fn dctcp_slows_down_and_recovers_where_nobody_acknowledges() {
    let mut s = Sender::new(&Setup {
        qp_type: QpType::Uc,
        congestion: CongestionConfig {
            algorithm: AlgorithmKind::Dctcp,
            ..CongestionConfig::paper()
        },
        ..Setup::default()
    });
    let qp = s.qps[0].id;
    let line = Rate::from_gbps(100);
    for _ in 0..2 {
        s.cnp(0);
        s.run_for(Nanos::from_micros(25), |_| {});
    }
    let cut = s.engine.qp_rate(qp, s.now).expect("it exists");
    assert_eq!(cut, Rate(line.0 / 2));
    // The window of the second CNP takes its share, too; those after it have no marks.
    assert!(s.post(0, WrOpcode::Write, 4 << 20));
    s.run_for(Nanos::from_micros(60), |_| {});
    let lowest = s.engine.qp_rate(qp, s.now).expect("it exists");
    assert!(lowest < cut, "{lowest:?}");
    s.run_for(Nanos::from_micros(400), |_| {});
    let rate = s.engine.qp_rate(qp, s.now).expect("it exists");
    assert!(rate.0 > lowest.0 + 10_000_000_000, "{lowest:?}, {rate:?}");
    assert_eq!(s.engine.counters().rp_cnp_handled, 2);
}

/// Also where they leave in the same turn: those of requests that a READ holds back come after its answer.
#[test]
fn acknowledgements_take_nothing_from_the_rate() {
    let rate = Rate::from_gbps(1);
    let mut s = Sender::new(&Setup {
        congestion: fixed(rate),
        ..Setup::default()
    });
    for _ in 0..8 {
        s.post(0, WrOpcode::Write, 1 << 20);
    }
    s.poll();
    for _ in 0..1000 {
        s.request(0, Opcode::RC_READ_REQUEST, 16, 0);
        for _ in 0..8 {
            s.request(0, Opcode::RC_WRITE_ONLY, 0, 0);
        }
        // 2,500 bytes.
        s.now = s.now + Nanos::from_micros(20);
        s.poll();
    }
    assert!(s.acks > 7_900, "{}", s.acks);
    let off = rate_of(&s.log) / rate.0 as f64 - 1.0;
    assert!(off.abs() < 0.01, "{off}");
}

/// What a queue pair waits for is told to whoever asks.
#[test]
fn what_a_queue_pair_waits_for_is_said() {
    let mut s = Sender::new(&Setup {
        congestion: fixed(Rate::from_mbps(100)),
        ..Setup::default()
    });
    let waiting = |s: &Sender| s.engine.waiting(0);
    assert_eq!(waiting(&s), Some(Waiting::Program));
    assert_eq!(s.engine.waiting(1), None, "there is no other");
    let id = s.qps[0].id;

    // Its priority is paused before its first packet.
    s.engine.set_paused(0xff);
    assert!(s.post(0, WrOpcode::Write, 1 << 20));
    assert_eq!(waiting(&s), Some(Waiting::Pause));
    s.engine.set_paused(0);
    assert_eq!(waiting(&s), Some(Waiting::Turn));

    // A MiB at 100 Mb/s: nearly always between two packets.
    s.run_for(Nanos::from_millis(1), |_| {});
    assert_eq!(waiting(&s), Some(Waiting::Rate));
    s.engine.pause_tx(id, true);
    assert_eq!(waiting(&s), Some(Waiting::Memory));
    s.engine.pause_tx(id, false);

    // All is sent, and nobody answers.
    let mut s = Sender::new(&Setup::default());
    s.silent = true;
    assert!(s.post(0, WrOpcode::Write, 1000));
    s.poll();
    assert_eq!(waiting(&s), Some(Waiting::Peer));
}
