//! Changes to bytes: what they touch, what they leave, and what the receiver then thinks of the packet.

use super::*;
use roceline_engine::Nanos;
use roceline_engine::wire::{Malformed, ParseError, parse};

/// The frame after a rule with this action, if the rule hit it.
fn changed(frame: &[u8], action: Action, seed: u64) -> Option<Vec<u8>> {
    let mut r = rule(1, Matcher::default(), action);
    r.seed = seed;
    let verdict = set([r]).offer(&view(frame), Nanos(0));
    if verdict.hits == 0 {
        assert!(verdict.is_pass());
        return None;
    }
    let mut out = frame.to_vec();
    let len = verdict.apply(&mut out);
    out.truncate(len);
    Some(out)
}

fn corrupt(change: Change, reseal: bool) -> Action {
    Action::Corrupt(Corruption { change, reseal })
}

fn at(region: Region, offset: Option<u32>) -> Where {
    Where { region, offset }
}

/// Offsets of the bytes that differ.
fn difference(a: &[u8], b: &[u8]) -> Vec<usize> {
    assert_eq!(a.len(), b.len());
    (0..a.len()).filter(|&i| a[i] != b[i]).collect()
}

fn icrc_ok(frame: &[u8]) -> bool {
    parse(frame).is_ok_and(|p| icrc::verify(frame, &p))
}

#[test]
fn a_bit_anywhere_in_the_payload_fails_the_icrc_and_nothing_else() {
    for v6 in [false, true] {
        let original = frame_of(&desc(Opcode::RC_SEND_ONLY, 1, 61), v6);
        let l = view(&original).layout;
        let mut touched = std::collections::BTreeSet::new();
        for seed in 0..2_000 {
            let action = corrupt(Change::Bit(at(Region::Payload, None)), false);
            let out = changed(&original, action, seed).expect("it has payload");
            let diff = difference(&original, &out);
            assert_eq!(diff.len(), 1);
            let flipped = original[diff[0]] ^ out[diff[0]];
            assert_eq!(flipped.count_ones(), 1);
            touched.insert(diff[0] as u32);
            assert!(parse(&out).is_ok() && !icrc_ok(&out));
        }
        assert!(
            touched.iter().copied().eq(l.payload..l.end - 4),
            "all of it"
        );
    }
}

#[test]
fn a_packet_without_payload_has_its_icrc_spoilt() {
    let ack = frame(Opcode::RC_ACK, 1, 0);
    for change in [
        Change::Bit(at(Region::Payload, None)),
        Change::Byte(at(Region::Payload, None)),
        Change::Icrc,
    ] {
        for seed in 0..50 {
            let out = changed(&ack, corrupt(change, false), seed).expect("it has an ICRC");
            assert!(difference(&ack, &out)[0] >= ack.len() - 4);
            assert!(parse(&out).is_ok() && !icrc_ok(&out));
        }
    }
}

#[test]
fn named_offsets_are_kept_to() {
    let original = frame(Opcode::RC_SEND_ONLY, 1, 64);
    let one = |change| changed(&original, corrupt(change, false), 3);
    for (place, byte) in [
        (at(Region::Frame, Some(7)), 7),
        (at(Region::Packet, Some(0)), 14),
        (at(Region::Transport, Some(11)), 42 + 11),
        (at(Region::Payload, Some(5)), 54 + 5),
    ] {
        let out = one(Change::Byte(place)).expect("it is there");
        assert_eq!(difference(&original, &out), [byte]);
        let bits = at(place.region, place.offset.map(|o| 8 * o + 1));
        let out = one(Change::Bit(bits)).expect("it is there");
        assert_eq!(out[byte], original[byte] ^ 0x40);
    }
    // What is not there cannot change, so the rule does not match.
    assert_eq!(one(Change::Byte(at(Region::Payload, Some(64)))), None);
    let any = corrupt(Change::Byte(at(Region::Transport, None)), false);
    assert_eq!(changed(&arp(), any, 1), None);
    assert_eq!(changed(&arp(), corrupt(Change::Icrc, false), 1), None);
}

/// Each field of each packet that has it: only its bits change, and resealed the packet is as the parser would
/// have it but for that field.
#[test]
fn every_field_changes_alone() {
    let mut seen = std::collections::BTreeSet::new();
    for v6 in [false, true] {
        for &opcode in Opcode::ALL {
            let mut d = desc(opcode, 0x12_3456, 16);
            d.ext.va = 0x1122_3344_5566_7788;
            d.ext.dma_len = 0x99aa_bbcc;
            let original = frame_of(&d, v6);
            for &field in Field::ALL {
                let Some(span) = field.span(&view(&original)) else {
                    continue;
                };
                seen.insert(field.name());
                let old = span.get(&original).expect("inside");
                let value = old ^ span.max();
                let change = Change::Field(field, FieldChange::Set(value));
                let out = changed(&original, corrupt(change, false), 1).expect("it has it");
                assert_eq!(span.get(&out), Some(value), "{opcode:?} {field:?}");
                let mut back = out.clone();
                span.set(&mut back, old);
                assert_eq!(back, original, "{opcode:?} {field:?}");
            }
        }
    }
    assert_eq!(seen.len(), Field::ALL.len(), "{seen:?}");
    for field in Field::ALL {
        assert_eq!(field.name().parse(), Ok(*field));
    }
    assert!("sequence".parse::<Field>().is_err());
}

#[test]
fn a_resealed_field_reaches_the_transport() {
    for v6 in [false, true] {
        let mut d = desc(Opcode::RC_WRITE_ONLY, 5, 16);
        d.ext.rkey = 0x10;
        let original = frame_of(&d, v6);
        let go = |field, change| {
            let out = changed(&original, corrupt(Change::Field(field, change), true), 1);
            let out = out.expect("it has it");
            assert!(icrc_ok(&out), "{field:?}");
            parse(&out).expect("well formed").packet
        };
        assert_eq!(go(Field::Psn, FieldChange::Add(3)).psn, Psn::new(8));
        assert_eq!(go(Field::RKey, FieldChange::Flip(0xff)).ext.rkey, 0xef);
        assert_eq!(go(Field::DmaLength, FieldChange::Set(7)).ext.dma_len, 7);
        assert_eq!(
            go(Field::Dscp, FieldChange::Set(46)).traffic_class,
            46 << 2 | 2
        );
        assert_ne!(go(Field::Psn, FieldChange::Random).psn, Psn::new(5));
        let out = go(Field::Opcode, FieldChange::Set(0x0b));
        assert_eq!(out.opcode, Opcode::RC_WRITE_ONLY_IMM);
    }
    // Wider than the field: it wraps.
    let original = frame(Opcode::RC_SEND_ONLY, 0xff_ffff, 4);
    let add = Change::Field(Field::Psn, FieldChange::Add(2));
    let out = changed(&original, corrupt(add, true), 1).expect("it has it");
    assert_eq!(parse(&out).map(|p| p.packet.psn), Ok(Psn::new(1)));
}

#[test]
fn unsealed_fields_are_noticed_where_something_covers_them() {
    let original = frame(Opcode::RC_SEND_ONLY, 5, 16);
    let go = |field| {
        let change = Change::Field(field, FieldChange::Flip(1));
        changed(&original, corrupt(change, false), 1).expect("it has it")
    };
    assert!(!icrc_ok(&go(Field::Psn)));
    let ttl = parse(&go(Field::Ttl)).expect_err("checksum");
    assert_eq!(ttl, ParseError::Malformed(Malformed::IpChecksum));
    // The ICRC leaves these out, so that switches may change them.
    assert!(icrc_ok(&go(Field::Becn)) && icrc_ok(&go(Field::Fecn)));
}

#[test]
fn a_mark_is_as_a_switch_makes_it() {
    for v6 in [false, true] {
        let original = frame_of(&desc(Opcode::RC_SEND_ONLY, 5, 16), v6);
        let out = changed(&original, Action::MarkCe, 1).expect("it is IP");
        assert!(icrc_ok(&out));
        let p = parse(&out).expect("well formed").packet;
        assert!(p.ce && p.traffic_class == 26 << 2 | 3);
        assert_eq!(changed(&out, Action::MarkCe, 1), Some(out.clone()));
    }
    assert_eq!(changed(&arp(), Action::MarkCe, 1), None);
    // A wrong checksum stays wrong.
    let mut wrong = frame(Opcode::RC_SEND_ONLY, 5, 16);
    wrong[24] ^= 1;
    let out = changed(&wrong, Action::MarkCe, 1).expect("it is IP");
    let error = parse(&out).expect_err("checksum");
    assert_eq!(error, ParseError::Malformed(Malformed::IpChecksum));
}

#[test]
fn truncation_cuts_or_makes_a_shorter_packet() {
    for v6 in [false, true] {
        let original = frame_of(&desc(Opcode::RC_SEND_ONLY, 5, 64), v6);
        let cut = |len, reseal| changed(&original, Action::Truncate { len, reseal }, 1);
        let out = cut(100, false).expect("it is longer");
        assert_eq!(out, original[..100]);
        assert!(parse(&out).is_err());
        assert_eq!(cut(0, false).map(|o| o.len()), Some(14));
        assert_eq!(cut(original.len() as u32, false), None);
        let header = view(&original).layout.payload;
        for (len, payload) in [(header + 4 + 30, 28), (header + 4, 0), (20, 0)] {
            let out = cut(len, true).expect("it has payload");
            assert!(icrc_ok(&out), "{len}");
            let p = parse(&out).expect("well formed");
            assert_eq!((p.packet.payload_len, p.packet.psn), (payload, Psn::new(5)));
            assert_eq!(out.len() as u32, header + 4 + payload);
        }
    }
    let ack = frame(Opcode::RC_ACK, 5, 0);
    let to = Action::Truncate {
        len: 30,
        reseal: true,
    };
    assert_eq!(changed(&ack, to, 1), None);
}

#[test]
fn changes_are_made_in_the_order_of_the_rules() {
    let original = frame(Opcode::RC_SEND_ONLY, 5, 16);
    let psn = |reseal| corrupt(Change::Field(Field::Psn, FieldChange::Set(9)), reseal);
    let m = Matcher::default;
    // The later reseal mends the earlier damage, and not the other way round.
    for (actions, ok) in [
        ([corrupt(Change::Icrc, false), psn(true)], true),
        ([psn(true), corrupt(Change::Icrc, false)], false),
    ] {
        let rules = actions.into_iter().zip(1..).map(|(a, i)| rule(i, m(), a));
        let verdict = set(rules).offer(&view(&original), Nanos(0));
        assert!(verdict.spoils() && !verdict.marks_ce());
        let mut out = original.clone();
        assert_eq!(verdict.apply(&mut out), original.len());
        assert_eq!(icrc_ok(&out), ok);
    }
    // One more change than fits does not match.
    let rules = (0..MAX_EDITS as u32 + 1).map(|i| rule(i, m(), Action::MarkCe));
    let mut set = set(rules);
    let verdict = set.offer(&view(&original), Nanos(0));
    assert_eq!((verdict.edits().len(), verdict.hits), (MAX_EDITS, 8));
    assert_eq!(counts(&set).last(), Some(&[1, 0, 0, 0]));
}
