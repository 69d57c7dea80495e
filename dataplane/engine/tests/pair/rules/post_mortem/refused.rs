//! What one end refused: the sentences of both ends.

use super::*;

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
        "PEER had more READs and atomics outstanding than max_dest_rd_atomic of this queue pair allows (1)",
    );
}

#[test]
fn a_message_that_goes_on_wrongly_and_what_is_not_there() {
    let mut b = Bench::with_attr(quick());
    b.inject(Opcode::RC_SEND_MIDDLE, 0x100, 1024, NO_HEADERS);
    assert_eq!(diagnose(&b.record(1)).name, "peer-order");
    let mut b = Bench::with_attr(quick());
    let mut ext = b.reth(64);
    ext.va = ext.va.next_multiple_of(8) + 4;
    b.inject(Opcode::RC_FETCH_ADD, 0x100, 0, ext);
    let va = ext.va;
    b.expect(
        1,
        "misaligned-atomic",
        &format!("PEER asked for an atomic at {va:#x}, which is no multiple of 8"),
    );
    let mut b = Bench::with_attr(quick());
    b.inject(Opcode::RC_FLUSH, 0x100, 0, NO_HEADERS);
    b.expect(
        1,
        "flush-kind",
        "PEER asked for a FLUSH of a kind that does not exist (FETH 0x00000000)",
    );
    let mut b = Bench::with_attr(quick());
    b.receive(64);
    b.inject(Opcode::RC_SEND_ONLY_INV, 0x100, 8, NO_HEADERS);
    b.expect(
        1,
        "memory-window",
        "a SEND with invalidate of PEER: key 0x0 is no bound memory window of type 2: nothing else can be invalidated",
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
