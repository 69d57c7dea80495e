//! Why a QP failed, in a sentence: one test a cause, each with the sentence that the user reads.

use roceline_engine::diagnosis::{Diagnosis, diagnose};
use roceline_engine::memory::{Access, MrAttr};
use roceline_engine::transport::journal::{Cause, Kind};
use roceline_engine::verbs::*;
use roceline_engine::wire::{Gid, Opcode};
use roceline_engine::{EngineConfig, Owner, PostMortem, Retransmission};

use super::*;
use crate::node::{MemoryFaults, PD};
use WrOpcode::{Read, Send, Write};

impl Bench {
    /// The newest record of a node.
    fn record(&mut self, n: usize) -> PostMortem {
        let records = self.node(n).engine.post_mortems();
        *records.iter().max_by_key(|r| r.number).expect("a record")
    }

    /// A pair whose ends differ.
    fn unlike(requester: QpAttr, responder: QpAttr) -> Bench {
        let mut w = World::new(default_config(1), Faults::default(), 4 << 20);
        let init = default_init();
        let ids = w.connect([&init, &init], [&requester, &responder]);
        Bench {
            w,
            ids,
            next: [0, 1000],
        }
    }

    /// The peer of node `n` as sentences name it.
    fn peer(&self, n: usize) -> String {
        format!("10.0.0.{} QP {:#08x}", 2 - n, self.ids[1 - n].0)
    }

    /// Checks name, sentence (`PEER` stands for the peer) and certainty of the newest record of node `n`.
    #[track_caller]
    fn expect(&mut self, n: usize, name: &str, sentence: &str) -> Diagnosis {
        let d = diagnose(&self.record(n));
        let want = sentence.replace("PEER", &self.peer(n));
        assert_eq!((d.name, d.sentence.as_str()), (name, want.as_str()));
        assert_eq!(d.likely, d.sentence.contains("likely"), "{d:?}");
        assert!(!d.remedy.is_empty());
        d
    }
}

fn quick() -> QpAttr {
    QpAttr {
        retry_cnt: 2,
        ..default_attr()
    }
}

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
         over TCP pass looks like this), or its queue pair does not exist or is not yet in RTR",
    );
    assert!(d.remedy.contains("tcpdump udp port 4791"));
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
         the way there, or back only for answers",
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
         the queue pair went to ERR, its host died, or the path broke"
    );
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

#[test]
fn path_mtus_differ() {
    let small = QpAttr {
        path_mtu: Mtu::M512,
        ..quick()
    };
    for (a, b) in [(quick(), small), (small, quick())] {
        let (ours, theirs) = (a.path_mtu.bytes(), b.path_mtu.bytes());
        let mut b = Bench::unlike(a, b);
        b.post(Write, 300);
        b.run();
        b.post(Write, 4096);
        b.run();
        b.expect(
            0,
            "path-mtu-mismatch",
            &format!(
                "PEER refused the first packet of a WRITE of 4096 bytes as invalid, the first that fills the path MTU \
                 of {ours}, while messages of up to 300 bytes passed: likely the path MTUs of the two queue pairs differ"
            ),
        );
        b.expect(
            1,
            "path-mtu-mismatch",
            &format!(
                "PEER sent RC_WRITE_FIRST with {ours} bytes of payload, but the path MTU of this queue pair is {theirs}: \
                 the two ends have different path MTUs"
            ),
        );
    }
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

#[test]
fn no_receive_and_no_rnr_retry() {
    let mut b = Bench::with_attr(QpAttr {
        rnr_retry: 0,
        ..quick()
    });
    b.post(Send, 64);
    b.run();
    b.expect(
        0,
        "rnr-retry-0",
        "PEER had no receive request posted, and rnr_retry of this queue pair is 0: the first RNR NAK ends it",
    );
}

#[test]
fn rnr_retries_used_up() {
    let mut b = Bench::with_attr(QpAttr {
        rnr_retry: 3,
        ..quick()
    });
    // Two RNR NAKs that led to success are not among those that ended it.
    b.post(Send, 64);
    while b.node(0).engine.counters().rnr_nak_retry_err < 2 {
        b.w.run_for(Nanos::from_micros(1));
    }
    b.receive(64);
    b.run();
    b.post(Send, 64);
    b.run();
    b.expect(
        0,
        "rnr-exhausted",
        "PEER had no receive request posted: it answered RNR NAK 4 times without progress, and rnr_retry allows 3 \
         retries",
    );
}

/// A region of node 1 that allows `access` only, in protection domain `pd`.
fn region(b: &mut Bench, pd: u32, access: Access) -> (u64, u32) {
    let at = b.node(1).memory.alloc(64);
    let attr = MrAttr {
        pd,
        addr: at,
        iova: at,
        len: 64,
        access,
    };
    (at, b.node(1).engine.register(attr).expect("room").rkey)
}

#[test]
fn keys_of_the_peer() {
    let all = Access(Access::LOCAL_WRITE.0 | Access::REMOTE_WRITE.0);
    for case in ["key", "range", "pd", "right"] {
        let mut b = Bench::with_attr(quick());
        let (at, key) = match case {
            "pd" => region(&mut b, PD + 1, all),
            "right" => region(&mut b, PD, Access::LOCAL_WRITE),
            _ => region(&mut b, PD, all),
        };
        if case == "key" {
            b.node(1).engine.deregister(key).expect("registered");
        }
        let (mut wr, list) = b.wr(Write, 64);
        wr.rkey = key;
        wr.remote_addr = at + u64::from(case == "range");
        b.post_wr(wr, &list);
        b.run();
        let (at, key) = (format!("{:#x}", wr.remote_addr), format!("{key:#010x}"));
        b.expect(
            0,
            "remote-access",
            &format!(
                "PEER refused rkey {key} for a WRITE of 64 bytes at {at} (NAK remote access error): the key is wrong or \
                 stale, the range is not inside its memory region, the region belongs to another protection domain, or \
                 it lacks IBV_ACCESS_REMOTE_WRITE"
            ),
        );
        let whose = format!("a WRITE of PEER (64 bytes at {at})");
        let sentence = match case {
            "key" => format!(
                "{whose} names rkey {key}, which is no memory region here: it is wrong, or the region was deregistered"
            ),
            "range" => format!("{whose} reaches beyond its memory region: 64 bytes at {at}"),
            "pd" => format!(
                "{whose} names rkey {key}, whose memory region belongs to another protection domain"
            ),
            _ => format!(
                "{whose} needs IBV_ACCESS_REMOTE_WRITE, which its memory region does not have"
            ),
        };
        b.expect(1, "remote-key", &sentence);
    }
}

#[test]
fn a_receive_with_a_bad_key() {
    let mut b = Bench::with_attr(quick());
    let at = b.node(1).memory.alloc(64);
    b.receive_at(&sges(&[(at, 64)], 0x5a00));
    b.post(Send, 64);
    b.run();
    b.expect(
        0,
        "remote-operational",
        "PEER could not carry out the SEND of 64 bytes (NAK remote operational error): likely its receive request names \
         memory that it may not use, or the memory of its program could not be reached",
    );
    b.expect(
        1,
        "receive-key",
        "the receive request with wr_id 0x3e8 names lkey 0x00005a00, which is no memory region here: it is wrong, or the \
         region was deregistered",
    );
    assert_eq!(
        b.record(1).request.map(|r| r.status),
        Some(WcStatus::LocProtErr)
    );
}

#[test]
fn a_receive_that_is_too_short() {
    let mut b = Bench::with_attr(quick());
    b.receive(64);
    b.post(Send, 100);
    b.run();
    b.expect(
        0,
        "receive-too-short",
        "PEER refused a SEND of 100 bytes as invalid: likely its receive request is shorter (its completion then says \
         IBV_WC_LOC_LEN_ERR), or its path MTU is smaller than the 1024 of this queue pair",
    );
    b.expect(
        1,
        "receive-too-short",
        "PEER sent at least 100 bytes, but the receive request with wr_id 0x3e8 holds 64",
    );
}

#[test]
fn access_flags_of_the_queue_pair() {
    for (op, name, word, flag) in [
        (
            Write,
            "write-not-allowed",
            "WRITE",
            "IBV_ACCESS_REMOTE_WRITE",
        ),
        (Read, "read-not-allowed", "READ", "IBV_ACCESS_REMOTE_READ"),
    ] {
        let mut b = Bench::unlike(
            quick(),
            QpAttr {
                access: Access(0),
                ..quick()
            },
        );
        b.post(op, 64);
        b.run();
        let d = diagnose(&b.record(0));
        assert_eq!(d.name, name);
        let start = format!(
            "{} refused a {word} of 64 bytes as invalid: likely qp_access_flags of its queue pair lack {flag}",
            b.peer(0)
        );
        assert!(d.sentence.starts_with(&start), "{}", d.sentence);
        let d = b.expect(
            1,
            "qp-access-flags",
            &format!(
                "PEER asked for a {word}, which qp_access_flags of this queue pair do not allow"
            ),
        );
        assert!(d.remedy.contains(flag));
    }
}

#[test]
fn more_reads_than_the_peer_takes() {
    let mut b = Bench::unlike(
        quick(),
        QpAttr {
            max_dest_rd_atomic: 1,
            ..quick()
        },
    );
    // Two in one burst; on the link they would be answered one by one.
    let ext = b.reth(64);
    let now = b.w.now;
    for psn in [0x100, 0x101] {
        let frame = b.frame(Opcode::RC_READ_REQUEST, psn, 0, ext);
        b.w.inject(1, frame, now);
    }
    b.filter(|from, _, _| {
        if from == 0 {
            Verdict::Drop
        } else {
            Verdict::Pass
        }
    });
    b.post(Read, 64);
    b.post(Read, 64);
    b.run();
    b.expect(
        0,
        "read-not-allowed",
        "PEER refused a READ of 64 bytes as invalid: likely qp_access_flags of its queue pair lack \
         IBV_ACCESS_REMOTE_READ, or its max_dest_rd_atomic is below the max_rd_atomic 4 of this one",
    );
    b.expect(
        1,
        "too-many-reads",
        "PEER had more READs outstanding than max_dest_rd_atomic of this queue pair allows (1)",
    );
}

#[test]
fn requests_that_are_wrong_in_themselves() {
    let mut b = Bench::with_attr(quick());
    let (wr, mut list) = b.wr(Send, 64);
    list[0].lkey = 0x5a00;
    b.post_wr(wr, &list);
    b.run();
    b.expect(
        0,
        "local-protection",
        "the SEND with wr_id 0x0 names lkey 0x00005a00, which is no memory region here: it is wrong, or the region was \
         deregistered",
    );

    let mut b = Bench::with_attr(QpAttr {
        max_rd_atomic: 0,
        ..quick()
    });
    b.post(Read, 64);
    b.run();
    b.expect(
        0,
        "no-read-credits",
        "the READ with wr_id 0x0 can never be sent, since max_rd_atomic of the queue pair is 0",
    );

    let mut b = Bench::with_attr(quick());
    let (mut wr, list) = b.wr(Send, 64);
    wr.opcode = None;
    b.post_wr(wr, &list);
    b.run();
    assert_eq!(diagnose(&b.record(0)).name, "bad-request");

    let mut b = Bench::with_attr(quick());
    let (mut wr, list) = b.wr(Send, 64);
    (wr.inline, wr.length, wr.num_sge) = (true, 4096, 0);
    b.post_wr(wr, &list);
    b.run();
    assert_eq!(diagnose(&b.record(0)).name, "too-long");
}

#[test]
fn memory_that_cannot_be_reached() {
    let faults = MemoryFaults {
        fault: 1000,
        ..MemoryFaults::default()
    };
    let mut b = Bench::with_attr(quick());
    b.node(0).memory_faults = faults;
    b.post(Write, 64);
    b.run();
    b.expect(
        0,
        "local-memory",
        "the memory of the WRITE with wr_id 0x0 could not be reached, although it is registered: it was unmapped, its \
         file was truncated, or the program has exited",
    );
    for op in [Write, Send, Read] {
        let mut b = Bench::with_attr(quick());
        b.node(1).memory_faults = faults;
        b.receive(64);
        b.post(op, 64);
        b.run();
        b.expect(
            1,
            "responder-memory",
            "the memory that a request of PEER is for could not be reached, although it is registered: it was unmapped, \
             its file was truncated, or the program has exited",
        );
    }
}

#[test]
fn the_program_ends_its_queue_pair() {
    let mut b = Bench::with_attr(no_timeout());
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Send, 64);
    b.w.run_for(Nanos::from_micros(5));
    let owner = Owner {
        pid: 42,
        name: *b"ib_send_bw\0\0\0\0\0\0",
    };
    let (qp, now) = (b.ids[0], b.w.now);
    b.node(0).engine.set_owner(qp, owner);
    b.enter(0, QpState::Err);
    b.expect(
        0,
        "program-ended",
        "the program itself moved the queue pair to ERR (ibv_modify_qp); 1 send requests were not complete",
    );
    let r = b.record(0);
    assert_eq!((r.owner.pid, r.owner.name().as_str()), (42, "ib_send_bw"));
    // The oldest request that was cut short.
    assert_eq!(r.request.map(|q| q.status), Some(WcStatus::WrFlushErr));

    let gone = b.ids[1];
    b.node(1).engine.bury_qp(gone, now);
    b.node(1).engine.destroy_qp(gone).expect("it exists");
    b.expect(
        1,
        "program-gone",
        "the program closed its device, or died, while this queue pair was connected to PEER; 0 send requests were not \
         complete",
    );
    // It has failed and has its record.
    b.node(0).engine.bury_qp(qp, now);
    assert_eq!(b.node(0).engine.post_mortems().last(), 1);
}

#[test]
fn a_cq_that_overflowed() {
    let mut b = Bench::with_attr(quick());
    let (qp, now) = (b.ids[0], b.w.now);
    let mut out = roceline_engine::Outputs::new();
    b.node(0).engine.fail_qp(qp, now, &mut out);
    b.expect(
        0,
        "cq-overflow",
        "a completion queue of this queue pair was full when the next completion came",
    );
}

#[test]
fn a_message_that_goes_on_wrongly_and_what_is_not_there() {
    let mut b = Bench::with_attr(quick());
    b.inject(Opcode::RC_SEND_MIDDLE, 0x100, 1024, NO_HEADERS);
    assert_eq!(diagnose(&b.record(1)).name, "peer-order");
    let mut b = Bench::with_attr(quick());
    b.inject(Opcode::RC_SEND_ONLY_INV, 0x100, 0, NO_HEADERS);
    b.expect(
        1,
        "peer-operation",
        "PEER sent RC_SEND_ONLY_INV, an operation that this version does not have",
    );
    let mut b = Bench::with_attr(quick());
    let ext = b.reth(64);
    b.inject(Opcode::RC_WRITE_ONLY, 0x100, 32, ext);
    b.expect(
        1,
        "peer-length",
        "PEER sent a packet with 32 bytes where its request still announced 64",
    );
}

/// Records outlive their QPs; the oldest leave; those of orderly ends push no failure out.
#[test]
fn records_are_kept_and_bounded() {
    let mut b = Bench::with_attr(quick());
    let init = default_init();
    let mut out = roceline_engine::Outputs::new();
    let now = b.w.now;
    let mut end = |b: &mut Bench, fail: bool| {
        let ids = b.w.connect([&init, &init], [&quick(), &quick()]);
        if fail {
            b.node(0).engine.fail_qp(ids[0], now, &mut out);
            out.clear();
        } else {
            b.node(0).enter(ids[0], QpState::Err, now);
        }
        for (n, &qp) in ids.iter().enumerate() {
            b.node(n).engine.destroy_qp(qp).expect("it exists");
        }
        ids[0]
    };
    let first = end(&mut b, true);
    for _ in 0..100 {
        end(&mut b, false);
    }
    let kept = |b: &mut Bench, orderly: bool| {
        let records = b.node(0).engine.post_mortems();
        let kept = records.iter().filter(|r| r.cause.is_orderly() == orderly);
        kept.map(|r| r.qp).collect::<Vec<_>>()
    };
    assert_eq!(kept(&mut b, false), [first]);
    assert_eq!(kept(&mut b, true).len(), 16);
    for _ in 0..60 {
        end(&mut b, true);
    }
    assert_eq!(kept(&mut b, false).len(), 48);
    assert!(!kept(&mut b, false).contains(&first));
    assert_eq!(b.node(0).engine.post_mortems().last(), 161);
}

/// A QP that starts anew knows nothing of its first life.
#[test]
fn a_reset_forgets() {
    let mut b = Bench::with_attr(quick());
    b.receive(64);
    b.post(Send, 64);
    b.run();
    b.enter(0, QpState::Reset);
    let (qp, now) = (b.ids[0], b.w.now);
    let attr = QpAttr {
        dest_qpn: b.ids[1].0,
        ..quick()
    };
    b.node(0).connect(qp, &attr, now);
    b.filter(|_, _, _| Verdict::Drop);
    b.post(Send, 64);
    b.run();
    let r = b.record(0);
    assert_eq!((r.traffic.sent, r.traffic.responses), (3, 0));
    assert!(matches!(r.cause, Cause::RetriesExceeded(_)));
    assert_eq!(diagnose(&r).name, "peer-silent");
}
