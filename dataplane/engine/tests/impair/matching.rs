//! Each condition of a matcher, and which rules are refused.

use super::*;
use roceline_engine::Nanos;

/// Whether a rule with this matcher hits a packet.
fn hits(matcher: Matcher, view: &PacketView) -> bool {
    let mut set = set([rule(1, matcher, Action::Count)]);
    set.offer(view, Nanos(0)).hits == 1
}

fn with(change: impl FnOnce(&mut Matcher)) -> Matcher {
    let mut m = Matcher::default();
    change(&mut m);
    m
}

#[test]
fn each_condition_fits_what_it_says() {
    let send = packet(Opcode::RC_SEND_MIDDLE, 100);
    let mut asks = desc(Opcode::RC_SEND_ONLY, 100, 8);
    asks.ack_req = true;
    let asks = view(&frame_of(&asks, false));
    let nak = answer(0x60, 100);
    let other = view(&arp());
    type Change = fn(&mut Matcher);
    // What fits, and what does not.
    let cases: [(Change, &PacketView, &PacketView); 13] = [
        (|m| m.classes = ClassSet::of(Class::Middle), &send, &asks),
        (|m| m.classes = ClassSet::of(Class::Nak), &nak, &asks),
        (|m| m.classes = ClassSet::of(Class::Other), &other, &send),
        (|m| m.opcode = Some(1), &send, &asks),
        (|m| m.qpn = Some(QPN), &send, &other),
        (|m| m.ack_req = Some(true), &asks, &send),
        (|m| m.ack_req = Some(false), &send, &asks),
        (|m| m.syndrome = Some(0x60), &nak, &send),
        (|m| m.dscp = Some(26), &send, &other),
        (|m| m.ecn = Some(2), &send, &other),
        (|m| m.priority = Some(3), &send, &other),
        (|m| m.udp_sport = Some(SPORT), &send, &other),
        (|m| m.len = Some(Range::new(100, 200)), &send, &asks),
    ];
    for (i, (change, fits, fails)) in cases.into_iter().enumerate() {
        assert!(hits(with(change), fits), "case {i}");
        assert!(!hits(with(change), fails), "case {i}");
    }
    assert!(hits(Matcher::default(), &other) && hits(Matcher::default(), &send));
    // All that is given must fit.
    let write_middle = Matcher::of([Class::Write, Class::Middle]);
    assert!(!hits(write_middle, &send));
    assert!(hits(write_middle, &packet(Opcode::RC_WRITE_MIDDLE, 0)));
}

#[test]
fn psn_ranges_are_circular() {
    let range = |first, last| with(|m| m.psn = Some(Range::new(Psn::new(first), Psn::new(last))));
    for (m, inside, outside) in [
        (range(5, 7), vec![5, 6, 7], vec![4, 8, 0x80_0006]),
        (
            range(0xff_fffe, 1),
            vec![0xff_fffe, 0xff_ffff, 0, 1],
            vec![0xff_fffd, 2],
        ),
        (range(9, 9), vec![9], vec![8, 10]),
    ] {
        for psn in inside {
            assert!(hits(m, &packet(Opcode::RC_SEND_ONLY, psn)), "{m:?} {psn}");
        }
        for psn in outside {
            assert!(!hits(m, &packet(Opcode::RC_SEND_ONLY, psn)), "{m:?} {psn}");
        }
    }
    let third = with(|m| {
        m.psn_modulo = Some(Modulo {
            divisor: 3,
            remainder: 1,
        });
    });
    let hit = |psn| hits(third, &packet(Opcode::RC_SEND_ONLY, psn));
    assert_eq!([0, 1, 2, 3, 4].map(hit), [false, true, false, false, true]);
}

/// Numbers that the packets of a direction have, by a rule for each number.
fn numbers(packets: &[PacketView]) -> Vec<Option<u32>> {
    let mut set = set((1..=30).map(|n| {
        let m = with(|m| m.message = Some(Range::one(n)));
        rule(n, m, Action::Count)
    }));
    let number = |p: &PacketView| {
        let v = set.offer(p, Nanos(0));
        assert!(v.hits <= 1);
        v.notes().first().map(|n| n.rule.0)
    };
    packets.iter().map(number).collect()
}

#[test]
fn messages_are_numbered_from_their_first_packet() {
    use Opcode as O;
    let p = packet;
    let sequence = [
        // The tail of a message that began before.
        p(O::RC_SEND_MIDDLE, 8),
        p(O::RC_SEND_LAST, 9),
        p(O::RC_SEND_FIRST, 10),
        p(O::RC_SEND_MIDDLE, 11),
        p(O::RC_SEND_LAST, 12),
        p(O::RC_WRITE_ONLY, 13),
        // Acknowledgements belong to none, READ responses are counted by themselves.
        answer(0x1f, 500),
        p(O::RC_READ_RESP_FIRST, 700),
        p(O::RC_READ_RESP_LAST, 701),
        p(O::RC_READ_REQUEST, 14),
        // Sent again from the middle of the first on, then on.
        p(O::RC_SEND_MIDDLE, 11),
        p(O::RC_SEND_LAST, 12),
        p(O::RC_WRITE_ONLY, 13),
        p(O::RC_READ_REQUEST, 14),
        p(O::RC_SEND_ONLY, 17),
        // A READ response sent again from its middle begins there.
        p(O::RC_READ_RESP_ONLY, 701),
        p(O::RC_READ_RESP_ONLY, 702),
        // After a reset of the QP.
        p(O::RC_SEND_ONLY, 0x90_0000),
    ];
    let n = Some;
    let want = [
        None,
        None,
        n(1),
        n(1),
        n(1),
        n(2),
        None,
        n(1),
        n(1),
        n(3),
        n(1),
        n(1),
        n(2),
        n(3),
        n(4),
        n(1),
        n(2),
        n(5),
    ];
    assert_eq!(numbers(&sequence), want);
}

#[test]
fn flows_are_numbered_apart_and_the_oldest_forgotten() {
    let to = |qpn: u32, psn: u32| {
        let mut v = packet(Opcode::RC_SEND_ONLY, psn);
        if let Some(r) = &mut v.roce {
            r.dest_qpn = qpn;
        }
        v
    };
    let mut other_way = to(1, 5);
    other_way.direction = Direction::Rx;
    let mut other_peer = to(1, 5);
    if let Some(r) = &mut other_peer.roce {
        r.dst += 1;
    }
    let some = [
        to(1, 5),
        to(1, 6),
        to(2, 6),
        other_way,
        other_peer,
        to(1, 7),
    ];
    let n = Some;
    assert_eq!(numbers(&some), [n(1), n(2), n(1), n(1), n(1), n(3)]);
    // A thousand flows later the first begins again.
    let many: Vec<_> = (1..1_000).map(|q| to(q, 5)).chain([to(1, 6)]).collect();
    assert_eq!(numbers(&many).last(), Some(&n(1)));
}

#[test]
fn senseless_rules_are_refused_with_the_remedy() {
    let m = Matcher::default;
    let refused = |matcher: Matcher, action: Action, text: &str| {
        let error = rule(1, matcher, action).check().expect_err(text);
        assert!(error.to_string().contains(text), "{error}");
    };
    refused(
        with(|m| m.qpn = Some(1 << 24)),
        Action::Drop,
        "QPN 16777216",
    );
    refused(with(|m| m.dscp = Some(64)), Action::Drop, "largest is 63");
    refused(with(|m| m.ecn = Some(4)), Action::Drop, "ECN 4");
    refused(with(|m| m.priority = Some(8)), Action::Drop, "priority 8");
    let range = Some(Range::new(2, 1));
    refused(with(|m| m.len = range), Action::Drop, "smaller one first");
    let zero = Some(Range::new(0, 1));
    refused(with(|m| m.message = zero), Action::Drop, "from 1");
    let modulo = Some(Modulo {
        divisor: 3,
        remainder: 3,
    });
    refused(
        with(|m| m.psn_modulo = modulo),
        Action::Drop,
        "modulo 3 is 3",
    );
    let both = Matcher::of([Class::Ack, Class::Nak]);
    refused(both, Action::Drop, "both `ack` and `nak`");
    let copies = |copies| Action::Duplicate {
        copies,
        after: None,
    };
    refused(m(), copies(0), "1 to 16");
    refused(m(), copies(17), "1 to 16");
    let hold = Action::Reorder(Reorder::Packets {
        count: 0,
        within: Nanos(1),
    });
    refused(m(), hold, "at least 1");
    let corrupt = |change, reseal| Action::Corrupt(Corruption { change, reseal });
    refused(m(), corrupt(Change::Icrc, true), "leave every packet");
    let psn = Change::Field(Field::Psn, FieldChange::Set(1 << 24));
    refused(m(), corrupt(psn, false), "psn 16777216");
    let nothing = Change::Field(Field::Psn, FieldChange::Flip(0));
    refused(m(), corrupt(nothing, false), "leave every packet");

    let mut set = set([rule(1, m(), Action::Drop)]);
    let again = set.add(rule(1, m(), Action::Drop));
    assert_eq!(again, Err(RuleError::Exists(RuleId(1))));
    for id in 2..=MAX_RULES as u32 {
        set.add(rule(id, m(), Action::Drop)).expect("room");
    }
    let one_more = set.add(rule(1_000, m(), Action::Drop));
    assert_eq!(one_more, Err(RuleError::TooMany));
}
