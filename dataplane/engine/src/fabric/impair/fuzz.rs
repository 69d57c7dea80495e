//! Rules, frames and verdicts by chance, and what must hold for them. Ordinary functions, so that stable tests
//! run them over captures, property tests over pairs of engines, and `scripts/fuzz` for long.

use crate::Nanos;
use crate::wire::Psn;

use super::*;

/// What random rules may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Whatever an honest network may do: lose, double, reorder, delay, spoil so that the receiver notices, mark.
    /// Reliable transport must deliver every message intact over it, or give up.
    Network,
    /// Changed bytes with right checksums too, as no network makes them.
    Anything,
}

/// A rule. Its delays are around `time`.
pub fn rule(random: &mut Random, id: u32, scope: Scope, time: Nanos) -> Rule {
    Rule {
        id: RuleId(id),
        name: String::new(),
        matcher: matcher(random),
        when: when(random),
        action: action(random, scope, time),
        seed: random.next_u64(),
    }
}

fn one_in(random: &mut Random, n: u64) -> bool {
    random.below(n) == 0
}

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.below(from.len() as u64) as usize]
}

/// Mostly wide, so that rules have something to hit.
fn matcher(random: &mut Random) -> Matcher {
    let mut m = Matcher::default();
    if one_in(random, 2) {
        m.classes = ClassSet::of(pick(random, Class::ALL));
    }
    if one_in(random, 8) {
        let first = random.next_u32();
        m.psn = Some(Range::new(
            Psn::new(first),
            Psn::new(first.wrapping_add(pick(random, &[0, 5, 1 << 23]))),
        ));
    }
    if one_in(random, 6) {
        let divisor = 1 + random.below(9) as u32;
        m.psn_modulo = Some(Modulo {
            divisor,
            remainder: random.below(divisor.into()) as u32,
        });
    }
    if one_in(random, 6) {
        let first = 1 + random.below(6) as u32;
        m.message = Some(Range::new(first, first + random.below(4) as u32));
    }
    if one_in(random, 10) {
        m.ack_req = Some(one_in(random, 2));
    }
    if one_in(random, 10) {
        let first = random.below(1_500) as u32;
        m.len = Some(Range::new(first, first + random.below(4_000) as u32));
    }
    if one_in(random, 20) {
        m.syndrome = Some(pick(random, &[0x1f, 0x60, 0x21]));
    }
    if one_in(random, 20) {
        m.opcode = Some(random.below(24) as u8);
    }
    m
}

fn probability(random: &mut Random) -> Probability {
    Probability::ratio(1, pick(random, &[1, 2, 3, 10, 50, 200]))
}

fn when(random: &mut Random) -> When {
    let count = match random.below(4) {
        0 => Some(1 + random.below(4) as u32),
        _ => None,
    };
    let chance = match random.below(8) {
        0 => Chance::Always,
        1 => Chance::Bursts(GilbertElliott {
            good_to_bad: probability(random),
            bad_to_good: probability(random),
            hit_in_bad: probability(random),
            hit_in_good: Probability::NEVER,
        }),
        _ => Chance::Each(probability(random)),
    };
    When {
        skip: pick(random, &[0, 0, 0, 1, 10]),
        count,
        repeat: count.is_some() && one_in(random, 2),
        chance,
    }
}

/// A delay of about `time`, of any distribution.
pub fn delay(random: &mut Random, time: Nanos) -> Delay {
    let some = |random: &mut Random| Nanos(random.below(time.0.saturating_mul(2)));
    let (a, b) = (some(random), some(random));
    let (min, max) = (a.min(b), a.max(b));
    match random.below(5) {
        0 => Delay::Constant(a),
        1 => Delay::Uniform { min, max },
        2 => Delay::Normal {
            mean: a,
            std_dev: Nanos(b.0 / 2),
        },
        3 => Delay::Pareto {
            min: Nanos(min.0 / 8 + 1),
            shape_milli: 500 + random.below(2_500) as u32,
            max: Nanos(max.0.saturating_mul(4) + 1),
        },
        _ => Delay::Trace([a, Nanos::ZERO, b].into()),
    }
}

fn action(random: &mut Random, scope: Scope, time: Nanos) -> Action {
    match random.below(10) {
        0 => Action::Count,
        1 | 2 => Action::Drop,
        3 => Action::Duplicate {
            copies: 1 + random.below(3) as u8,
            after: one_in(random, 2).then(|| delay(random, time)),
        },
        4 => Action::Reorder(Reorder::Packets {
            count: 1 + random.below(8) as u16,
            within: Nanos(1 + random.below(time.0 * 2)),
        }),
        5 => Action::Reorder(Reorder::Delay(delay(random, time))),
        6 => Action::Delay(delay(random, time)),
        7 => corrupt_or_cut(random, scope),
        8 => Action::MarkCe,
        _ => Action::Rate(RateLimit {
            bits_per_sec: pick(random, &[1_000_000_000, 10_000_000_000, 100_000_000_000]),
            burst: pick(random, &[0, 1_500, 100_000]),
            queue: pick(random, &[0, 20_000, 1_000_000]),
        }),
    }
}

fn corrupt_or_cut(random: &mut Random, scope: Scope) -> Action {
    let reseal = scope == Scope::Anything && one_in(random, 2);
    let place = Where {
        region: pick(
            random,
            &[
                Region::Frame,
                Region::Packet,
                Region::Transport,
                Region::Payload,
            ],
        ),
        offset: one_in(random, 3).then(|| random.below(2_000) as u32),
    };
    let field = pick(random, Field::ALL);
    let change = match random.below(5) {
        0 => Change::Bit(place),
        1 => Change::Byte(place),
        2 => Change::Field(field, FieldChange::Random),
        3 => Change::Field(field, FieldChange::Add(1)),
        _ if one_in(random, 2) => {
            return Action::Truncate {
                len: random.below(2_000) as u32,
                reseal,
            };
        }
        _ => Change::Icrc,
    };
    Action::Corrupt(Corruption {
        change,
        reseal: reseal && change != Change::Icrc,
    })
}

/// A frame through a view, random rules and their verdicts; panics only where the code is wrong. The seed decides the
/// rules, so a failing case is its seed and its frame.
pub fn frame(frame: &[u8], seed: u64) {
    let mut random = Random::new(seed);
    let mut set = RuleSet::new();
    for id in 0..1 + random.below(12) as u32 {
        let rule = rule(&mut random, id, Scope::Anything, Nanos(10_000));
        let checked = rule.check();
        assert_eq!(checked, Ok(()), "a random rule that is none: {rule:?}");
        assert_eq!(set.add(rule), checked);
    }
    let mut line = Line::new(8);
    let (mut kept, mut out, mut now) = (0u32, 0u32, Nanos(0));
    for _ in 0..4 {
        now = now + Nanos(random.below(20_000));
        let view = PacketView::parse(Direction::Rx, frame);
        check_view(&view, frame);
        let verdict = set.offer(&view, now);
        let mut bytes = frame.to_vec();
        let len = verdict.apply(&mut bytes);
        assert!(len <= frame.len(), "a change makes no frame longer");
        // Changes fit other frames too, in that they do no harm.
        let mut other = bytes[..len / 2].to_vec();
        assert!(verdict.apply(&mut other) <= len / 2);
        assert!(verdict.copies <= MAX_COPIES);
        let packets = if verdict.drop { 0 } else { 1 + verdict.copies };
        for i in 0..packets {
            let verdict = if i == 0 { verdict } else { verdict.of_copy() };
            match line.push(len, &verdict, now) {
                Pushed::Pass(_) => out += 1,
                Pushed::Kept => kept += 1,
                Pushed::Full(_) => {}
            }
        }
        while line.release(now).is_some() {
            out += 1;
            kept -= 1;
        }
        assert!(line.next_deadline().is_none_or(|t| t > now));
    }
    while let Some(t) = line.next_deadline() {
        assert!(t > now, "what is due was released");
        now = t;
        while line.release(now).is_some() {
            kept -= 1;
        }
    }
    assert!(kept == 0 && line.is_empty() && out <= 4 * (1 + u32::from(MAX_COPIES)));
    for (_, counts) in set.rules() {
        assert!(counts.seen <= 4 && counts.matched <= counts.seen);
        assert!(counts.hit <= counts.matched && counts.dropped <= counts.hit);
    }
}

/// Parts are in their order and inside the frame; where the parser accepts the frame, both say the same.
fn check_view(view: &PacketView, frame: &[u8]) {
    let l = &view.layout;
    assert!(l.l3 <= l.udp && l.udp <= l.bth && l.bth <= l.payload && l.payload <= l.end);
    assert!(l.end as usize <= frame.len() && view.len as usize == frame.len());
    let Ok(parsed) = crate::wire::parse(frame) else {
        return;
    };
    let (p, roce) = (&parsed.packet, view.roce.expect("the parser found RoCE"));
    assert_eq!(
        (roce.opcode, roce.dest_qpn, roce.psn, roce.ack_req),
        (p.opcode.raw(), p.dest_qpn, p.psn, p.ack_req)
    );
    assert_eq!(
        (view.udp_sport, view.dscp, view.ecn),
        (parsed.udp_sport, p.traffic_class >> 2, p.traffic_class & 3)
    );
    assert_eq!((l.l3, l.payload), (parsed.l3_offset, p.payload_offset));
    assert_eq!(l.end, parsed.icrc_offset + 4);
}
