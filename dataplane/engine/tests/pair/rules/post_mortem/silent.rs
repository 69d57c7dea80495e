//! Retries that were used up: what was heard meanwhile, and before.

use super::*;

#[test]
fn nothing_ever_came_back() {
    let mut b = Bench::with_attr(quick());
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Send, 64);
    b.run();
    let d = b.expect(
        0,
        "peer-silent",
        "no packet ever came back from PEER (3 packets sent, 2 of them again): likely the peer cannot be reached at \
         that address, UDP port 4791 is filtered in one or both directions (a firewall that lets the connection set-up \
         over TCP pass looks like this), its queue pair does not exist or is not yet in RTR, or it drops what arrives: \
         something on the way changes packets, so that their ICRC is wrong; 10.0.0.1 is not the address that it was told \
         (another GID index, IPv4 instead of IPv6); or its rq_psn is above sq_psn here (256)",
    );
    assert!(d.remedy.contains("tcpdump udp port 4791"));
    assert!(
        d.remedy
            .contains("rx_icrc_encapsulated when packets were changed")
    );
    let r = b.record(0);
    assert_eq!(r.state, QpState::Rts);
    assert_eq!(
        (r.unacked.get(), r.next.get(), r.newest.get()),
        (0x100, 0x101, 0x101)
    );
    assert_eq!((r.retries_left, r.counters.local_ack_timeout_err), (0, 2));
    let request = r.request.expect("the SEND");
    assert_eq!(
        (request.wr_id, request.op, request.len),
        (0, Some(Send), 64)
    );
    assert_eq!(request.status, WcStatus::RetryExcErr);
    let kinds: Vec<(Kind, u8)> = r.entries().map(|e| (e.kind(), e.detail())).collect();
    use Kind::*;
    let again = [
        (Timeout, 1),
        (Resent, 0),
        (Timeout, 0),
        (Resent, 0),
        (Timeout, 0),
    ];
    assert_eq!(kinds, [&[(Sent, 0)][..], &again].concat());
}

/// Packets of the peer arrive, so the port is open in that direction.
#[test]
fn only_one_direction_is_filtered() {
    let mut b = Bench::with_attr(quick());
    b.filter(|from, _, _| {
        if from == 0 {
            Verdict::Drop
        } else {
            Verdict::Pass
        }
    });
    let (mut wr, _) = b.wr(Write, 64);
    let (local, remote) = (b.node(1).memory.alloc(64), b.node(0).memory.alloc(64));
    wr.remote_addr = remote + IOVA_SHIFT;
    wr.rkey = b.node(0).mr.rkey;
    let (qp, lkey) = (b.ids[1], b.node(1).mr.lkey);
    b.node(1)
        .post_send(qp, wr, &sges(&[(local, 64)], lkey), &[]);
    b.post(Send, 64);
    b.run();
    b.expect(
        0,
        "one-way",
        "packets of PEER arrive, but none of this queue pair's was ever answered: likely UDP port 4791 is filtered on \
         the way there, or back only for answers, or the peer drops them since something on the way makes their ICRC wrong \
         or 10.0.0.1 is not the address that it was told",
    );
}

#[test]
fn the_peer_answers_other_queue_pairs() {
    let mut b = Bench::with_attr(quick());
    let dead = b.ids;
    let init = default_init();
    b.ids = b.w.connect([&init, &init], [&quick(), &quick()]);
    b.node(1).engine.destroy_qp(dead[1]).expect("it exists");
    b.receive(64);
    b.post(Send, 64);
    let (wr, list) = b.wr(Send, 64);
    b.node(0).post_send(dead[0], wr, &list, &[]);
    b.w.run_for(Nanos::from_micros(200));
    b.receive(64);
    b.post(Send, 64);
    b.run();
    b.ids = dead;
    b.expect(
        0,
        "peer-qp-gone",
        "PEER never answered, while the same address answers other queue pairs: likely the peer's queue pair does not \
         exist any more, is not yet in RTR, or expects other addresses",
    );
}

#[test]
fn packets_for_queue_pairs_that_do_not_exist() {
    let mut b = Bench::with_attr(quick());
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Send, 64);
    b.w.run_for(Nanos::from_micros(300));
    let mut stray = b.frame(Opcode::RC_SEND_ONLY, 5, 0, NO_HEADERS);
    stray.dest_qpn = 0x12345;
    let now = b.w.now;
    b.w.inject(0, stray, now);
    b.run();
    b.expect(
        0,
        "unknown-qp",
        "PEER never answered, while 1 packets arrived here for queue pairs that do not exist: likely QP numbers were \
         exchanged wrongly, or the peer still talks to an older connection",
    );
}

#[test]
fn packets_come_from_another_address_than_the_peers() {
    let mut b = Bench::with_attr(quick());
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Send, 64);
    b.w.run_for(Nanos::from_micros(5));
    let mut ack = b.frame(Opcode::RC_ACK, 0x100, 0, NO_HEADERS);
    ack.src = Gid::from_ip("fd77::2".parse().expect("an address"));
    ack.dst = Gid::from_ip("fd77::1".parse().expect("an address"));
    ack.dest_qpn = b.ids[0].0;
    let now = b.w.now;
    b.w.inject(0, ack, now);
    b.run();
    b.expect(
        0,
        "wrong-gid",
        "packets for this queue pair came from fd77::2 to fd77::1, but it was told to talk from 10.0.0.1 to 10.0.0.2: \
         likely one end uses another GID index than the other believes",
    );
}

#[test]
fn a_link_local_gid_that_leads_nowhere() {
    let mut w = World::new(default_config(1), Faults::default(), 1 << 20);
    w.nodes[0].gid = Gid::from_ip("fe80::1".parse().expect("an address"));
    let init = default_init();
    let ids = w.connect([&init, &init], [&quick(), &quick()]);
    let mut b = Bench {
        w,
        ids,
        next: [0, 1000],
    };
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Send, 64);
    b.run();
    b.expect(
        0,
        "link-local-gid",
        "no packet ever came back from PEER, and the connection is between link-local addresses (fe80::1 and 10.0.0.2): \
         likely the wrong GID index was used",
    );
}

/// The ICRC is the caller's to check; the engine sees only its count.
#[test]
fn the_port_drops_packets_with_a_wrong_icrc_meanwhile() {
    let mut b = Bench::with_attr(quick());
    b.node(0).engine.counters_mut().rx_icrc_encapsulated = 5;
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Send, 64);
    b.w.run_for(Nanos::from_micros(300));
    b.node(0).engine.counters_mut().rx_icrc_encapsulated += 2;
    b.run();
    b.expect(
        0,
        "icrc-changed",
        "while PEER was not heard, this port dropped 2 packets with a wrong ICRC: likely something on the way changes \
         packets (address translation, a tunnel, a switch that rewrites fields under the ICRC) or damages them",
    );
}

#[test]
fn only_big_packets_vanish() {
    for (op, len) in [(Write, 4000), (Read, 4000), (Write, 1024)] {
        let mut b = Bench::with_attr(quick());
        b.post(op, 512);
        b.run();
        b.filter(|_, _, f| match f.payload.len() {
            0..=1000 => Verdict::Pass,
            _ => Verdict::Drop,
        });
        b.post(op, len);
        b.run();
        let name = if op == Read { "READ" } else { "WRITE" };
        let d = b.expect(
            0,
            "packet-too-big",
            &format!(
                "requests with packets of up to 512 bytes passed, but the first {name} with 1024 bytes in a packet \
                 never did: likely a link on the way carries no packets of that size"
            ),
        );
        assert!(d.remedy.contains("1104 or more"), "{}", d.remedy);
    }
}

#[test]
fn the_peer_went_silent() {
    let mut b = Bench::with_attr(quick());
    b.receive(64);
    b.post(Send, 64);
    b.run();
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Send, 64);
    b.run();
    let d = diagnose(&b.record(0));
    assert_eq!(d.name, "peer-went-silent");
    let (start, end) = d.sentence.split_once(" before the end").expect("a time");
    assert!(
        start.starts_with(&format!("{} answered until ", b.peer(0))),
        "{start}"
    );
    assert_eq!(
        end,
        " and then no more, for 2 retries with timeout 5 = 131 us: likely its program ended or destroyed the queue pair, \
         the queue pair went to ERR, its host died, the path broke, or something on the way began to change packets, so \
         that it drops them for a wrong ICRC"
    );
    assert!(d.remedy.contains("rx_icrc_encapsulated when"));
    assert!(d.remedy.contains("retry_cnt is 2"));
}

#[test]
fn heavy_loss_while_the_peer_answers() {
    let mut b = Bench::with_attr(quick());
    b.lose(0, Opcode::RC_SEND_ONLY, 0x100, u32::MAX);
    for _ in 0..2 {
        b.receive(64);
        b.post(Send, 64);
    }
    b.run();
    let c = b.record(0).counters;
    b.expect(
        0,
        "loss",
        &format!(
            "PEER answered meanwhile, but 2 retries in a row brought nothing through: likely heavy loss on the way ({} of 6 \
             packets sent again, {} timeouts, {} sequence NAKs)",
            4, c.local_ack_timeout_err, c.packet_seq_err
        ),
    );
}

/// With adaptive retransmission time is used up, not `retry_cnt` retries.
#[test]
fn silence_and_loss_with_adaptive_retransmission() {
    let config = EngineConfig {
        retransmission: Retransmission::Adaptive,
        ..default_config(1)
    };
    let attr = QpAttr {
        timeout: 10,
        ..quick()
    };
    let mut b = Bench::with(config, &attr, &default_init());
    b.receive(64);
    b.post(Send, 64);
    b.run();
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Send, 64);
    b.run();
    let d = diagnose(&b.record(0));
    assert_eq!(d.name, "peer-went-silent");
    let end = "and then no more, for 2 times the timeout 10 = 4.19 ms: likely its program";
    assert!(d.sentence.contains(end), "{}", d.sentence);

    // Every request is lost, and then an answer to something else comes.
    let mut b = Bench::with(config, &attr, &default_init());
    b.receive(64);
    b.post(Send, 64);
    b.run();
    b.filter(|from, _, _| match from {
        0 => Verdict::Drop,
        _ => Verdict::Pass,
    });
    b.post(Send, 64);
    while b.node(0).engine.counters().roce_adp_retrans < 1 {
        b.w.run_for(Nanos::from_micros(10));
    }
    b.respond(Opcode::RC_ACK, 0x100, 0, 0x1f00_0001);
    b.run();
    b.expect(
        0,
        "loss",
        "PEER answered meanwhile, but retries for retry_cnt times the ACK timeout brought nothing through: likely heavy \
         loss on the way (2 of 4 packets sent again, 2 timeouts, 0 sequence NAKs)",
    );
}

/// The responder answers a request that is ahead with one NAK for the PSN that it expects; that PSN is none that this end
/// ever sent.
#[test]
fn first_psns_differ() {
    for op in [Send, Write, Read] {
        let high = QpAttr {
            sq_psn: Psn::new(5000),
            ..quick()
        };
        let mut b = Bench::unlike(high, quick());
        b.receive(64);
        b.post(op, 64);
        b.run();
        let d = b.expect(
            0,
            "psn-mismatch",
            "PEER expects PSN 256, but this queue pair began at 5000: sq_psn here and rq_psn there differ",
        );
        assert!(d.remedy.contains("sq_psn is 5000"), "{}", d.remedy);
    }
    // Behind: duplicates of nothing that was done are not answered here, as the names of counters tell.
    let low = QpAttr {
        sq_psn: Psn::new(5),
        ..quick()
    };
    let mut b = Bench::unlike(low, quick());
    b.receive(64);
    b.post(Send, 64);
    b.run();
    let d = diagnose(&b.record(0));
    assert_eq!(d.name, "peer-silent");
    assert!(d.sentence.ends_with("its rq_psn is above sq_psn here (5)"));
    assert!(d.remedy.contains("duplicate_request when PSNs do not"));
    assert!(b.node(1).engine.counters().duplicate_request > 0);
    // Other responders acknowledge what they take for a duplicate.
    let mut b = Bench::unlike(low, quick());
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Send, 64);
    b.w.run_for(Nanos::from_micros(5));
    b.respond(Opcode::RC_ACK, 0xff, 0, 0x1f00_0000);
    b.run();
    b.expect(
        0,
        "psn-mismatch",
        "PEER acknowledges PSN 255, which this queue pair never sent: it began at 5, and likely sq_psn here is below \
         rq_psn there, so that its requests are taken for duplicates",
    );
}

/// ACKs of PSNs long acknowledged are ordinary: they say nothing about first PSNs.
#[test]
fn late_acks_are_no_other_first_psns() {
    let mut b = Bench::with_attr(quick());
    b.receive(64);
    b.post(Send, 64);
    b.run();
    b.filter(|_, _, _| Verdict::Drop);
    b.respond(Opcode::RC_ACK, 0x100, 0, 0x1f00_0001);
    b.respond(Opcode::RC_ACK, 0x50, 0, 0x6000_0001);
    b.post(Send, 64);
    b.run();
    assert_eq!(diagnose(&b.record(0)).name, "peer-went-silent");
}

#[test]
fn read_responses_of_another_path_mtu() {
    let small = QpAttr {
        path_mtu: Mtu::M512,
        ..quick()
    };
    let mut b = Bench::unlike(quick(), small);
    b.post(Read, 4096);
    b.run();
    b.expect(
        0,
        "path-mtu-mismatch",
        "READ responses of PEER carry 512 bytes where the path MTU of this queue pair (1024) makes it 1024: the two ends \
         have different path MTUs",
    );
}
