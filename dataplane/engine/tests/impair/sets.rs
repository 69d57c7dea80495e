//! Rules together: order, composition, counts, and the same again for the same seed.

use super::*;
use roceline_engine::Nanos;

fn all() -> Matcher {
    Matcher::default()
}

#[test]
fn a_drop_ends_the_evaluation_and_everything_else_composes() {
    let ack = Matcher::of([Class::Ack]);
    let twice = |copies| Action::Duplicate {
        copies,
        after: Some(Delay::Constant(Nanos(7))),
    };
    let late = |ns| Action::Delay(Delay::Constant(Nanos(ns)));
    let mut s = set([
        rule(1, all(), late(100)),
        rule(2, all(), twice(1)),
        rule(3, ack, Action::Drop),
        rule(4, all(), late(20)),
        rule(5, all(), Action::MarkCe),
        rule(6, all(), twice(15)),
    ]);
    let v = s.offer(&packet(Opcode::RC_SEND_ONLY, 1), Nanos(5));
    assert!(!v.drop && !v.is_pass());
    assert_eq!((v.delay, v.copies, v.hits), (Nanos(120), 16, 5));
    assert_eq!(v.of_copy().delay, Nanos(134));
    assert_eq!(v.edits().len(), 1);
    // The first four are named.
    let named: Vec<u32> = v.notes().iter().map(|n| n.rule.0).collect();
    assert_eq!(named, [1, 2, 4, 5]);
    assert_eq!(v.notes()[3].action, ActionKind::MarkCe);

    let v = s.offer(&answer(0x1f, 1), Nanos(6));
    assert!(v.drop);
    assert_eq!(v.notes().last().map(|n| n.action.name()), Some("drop"));
    let want = [
        [2, 2, 2, 0],
        [2, 2, 2, 0],
        [2, 1, 1, 1],
        [1, 1, 1, 0],
        [1, 1, 1, 0],
        [1, 1, 1, 0],
    ];
    assert_eq!(counts(&s), want);
    assert!(RuleSet::new().offer(&answer(0x1f, 1), Nanos(0)).is_pass());
}

/// Open Traffic Generator's drop: class, skip_count, drop_count.
#[test]
fn skip_and_count_are_of_the_matched() {
    let mut r = rule(1, Matcher::of([Class::Middle]), Action::Drop);
    r.when.skip = 2;
    r.when.count = Some(2);
    let mut s = set([r]);
    let mut dropped = vec![];
    for psn in 0..20 {
        let opcode = match psn % 2 {
            0 => Opcode::RC_WRITE_MIDDLE,
            _ => Opcode::RC_SEND_ONLY,
        };
        if s.offer(&packet(opcode, psn), Nanos(0)).drop {
            dropped.push(psn);
        }
    }
    assert_eq!(dropped, [4, 6]);
    assert_eq!(counts(&s), [[20, 10, 2, 2]]);
}

/// Sends packets through rules and a line, one a microsecond; what comes out, in order, by its PSN.
fn through(s: &mut RuleSet, packets: impl IntoIterator<Item = PacketView>) -> Vec<u32> {
    let mut line = Line::new(1_024);
    let mut out = vec![];
    let mut now = Nanos(0);
    for view in packets {
        now = now + Nanos(1_000);
        out.extend(std::iter::from_fn(|| line.release(now)));
        let verdict = s.offer(&view, now);
        if verdict.drop {
            continue;
        }
        let psn = view.roce.expect("RoCE").psn.get();
        for i in 0..=verdict.copies {
            let verdict = if i == 0 { verdict } else { verdict.of_copy() };
            match line.push(psn, &verdict, now) {
                Pushed::Pass(p) => out.push(p),
                Pushed::Kept => {}
                Pushed::Full(p) => panic!("no room for {p}"),
            }
            out.extend(std::iter::from_fn(|| line.release(now)));
        }
    }
    while let Some(t) = line.next_deadline() {
        out.extend(std::iter::from_fn(|| line.release(t)));
    }
    out
}

fn sends(psns: core::ops::Range<u32>) -> impl Iterator<Item = PacketView> {
    psns.map(|psn| packet(Opcode::RC_SEND_ONLY, psn))
}

/// Open Traffic Generator's reorder: `reorder_count` packets come out behind `hold_count` others.
#[test]
fn reorder_by_count() {
    let reorder = |packets, hold, skip| {
        let mut r = rule(
            1,
            all(),
            Action::Reorder(Reorder::Packets {
                count: hold,
                within: Nanos::from_millis(10),
            }),
        );
        r.when.skip = skip;
        r.when.count = Some(packets);
        r
    };
    let mut s = set([reorder(3, 2, 1)]);
    assert_eq!(through(&mut s, sends(0..8)), [0, 4, 5, 1, 2, 3, 6, 7]);
    // As far as it goes: together below 512.
    let mut s = set([reorder(255, 256, 0)]);
    let want: Vec<u32> = (255..511).chain(0..255).chain(511..600).collect();
    assert_eq!(through(&mut s, sends(0..600)), want);
    // With too few behind it, it comes when its time is over.
    let mut s = set([reorder(1, 100, 0)]);
    assert_eq!(through(&mut s, sends(0..3)), [1, 2, 0]);
}

#[test]
fn delay_keeps_the_order_and_reorder_by_delay_does_not() {
    let spread = || Delay::Uniform {
        min: Nanos(0),
        max: Nanos(50_000),
    };
    let mut s = set([rule(1, all(), Action::Delay(spread()))]);
    assert!(through(&mut s, sends(0..200)).into_iter().eq(0..200));
    let mut s = set([rule(1, all(), Action::Reorder(Reorder::Delay(spread())))]);
    let mut out = through(&mut s, sends(0..200));
    assert!(!out.iter().copied().eq(0..200));
    out.sort_unstable();
    assert!(out.into_iter().eq(0..200));
}

#[test]
fn copies_come_behind_and_may_come_later() {
    let twice = |after| Action::Duplicate { copies: 2, after };
    let mut s = set([rule(1, all(), twice(None))]);
    assert_eq!(through(&mut s, sends(0..2)), [0, 0, 0, 1, 1, 1]);
    let late = Some(Delay::Constant(Nanos(1_500)));
    let mut s = set([rule(1, all(), twice(late))]);
    assert_eq!(through(&mut s, sends(0..3)), [0, 1, 0, 0, 2, 1, 1, 2, 2]);
}

/// Frames of 122 bytes at 1 Gb/s take 976 ns: 1000 ns apart they pass, 488 ns apart half of them.
#[test]
fn a_rate_delays_then_drops() {
    let limit = RateLimit {
        bits_per_sec: 1_000_000_000,
        burst: 200,
        queue: 1_220,
    };
    let run = |gap: u64| {
        let mut s = set([rule(1, all(), Action::Rate(limit))]);
        let mut last = Nanos(0);
        for i in 0..1_000 {
            let now = Nanos(i * gap);
            let v = s.offer(&packet(Opcode::RC_SEND_ONLY, i as u32), now);
            assert!(v.delay <= Nanos(9_760));
            if !v.drop {
                assert!(now + v.delay >= last, "in order");
                last = now + v.delay;
            }
        }
        counts(&s)[0]
    };
    assert_eq!(run(1_000), [1_000, 1_000, 0, 0]);
    let [_, _, hit, dropped] = run(488);
    assert!((485..=500).contains(&dropped), "{dropped}");
    assert!(hit > 980, "{hit}");
}

/// The hits of a rule are its own affair: other rules, earlier or later, do not change them, unless they drop.
#[test]
fn the_same_seed_and_packets_give_the_same_hits() {
    let chance = |id, matcher, action, seed| {
        let mut r = rule(id, matcher, action);
        r.when.chance = Chance::Each(Probability::ratio(1, 10));
        r.seed = seed;
        r
    };
    let hits = |s: &mut RuleSet, id: u32| -> Vec<u32> {
        let hit = |psn: &u32| {
            let v = s.offer(&packet(Opcode::RC_SEND_ONLY, *psn), Nanos(u64::from(*psn)));
            v.notes().iter().any(|n| n.rule == RuleId(id))
        };
        (0..2_000).filter(hit).collect()
    };
    let ours = || chance(7, all(), Action::MarkCe, 99);
    let alone = hits(&mut set([ours()]), 7);
    assert!((150..250).contains(&alone.len()));
    let spread = Delay::Uniform {
        min: Nanos(1),
        max: Nanos(9),
    };
    let mut s = set([
        chance(1, all(), Action::Delay(spread), 99),
        ours(),
        chance(2, all(), Action::Drop, 5),
    ]);
    assert_eq!(hits(&mut s, 7), alone);
    let other_seed = hits(&mut set([chance(7, all(), Action::MarkCe, 98)]), 7);
    assert_ne!(other_seed, alone);
}

#[test]
fn rules_come_and_go_and_the_others_keep_their_state() {
    let mut first = rule(1, all(), Action::Count);
    first.when.skip = 3;
    let mut s = set([first, rule(2, all(), Action::Count)]);
    let p = packet(Opcode::RC_SEND_ONLY, 1);
    for _ in 0..2 {
        let _ = s.offer(&p, Nanos(0));
    }
    s.add(rule(3, all(), Action::Count)).expect("room");
    let (gone, seen) = s.remove(RuleId(2)).expect("it is there");
    assert_eq!((gone.id, seen.hit), (RuleId(2), 2));
    assert!(s.remove(RuleId(2)).is_none());
    for _ in 0..2 {
        let _ = s.offer(&p, Nanos(0));
    }
    assert_eq!(counts(&s), [[4, 4, 1, 0], [2, 2, 2, 0]]);
    assert_eq!((s.len(), s.is_empty()), (2, false));
    s.clear();
    assert!(s.is_empty() && s.offer(&p, Nanos(0)).is_pass());
}
