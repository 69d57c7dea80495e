//! The engines' counters against what impairment rules say they did, one kind of rule after the other.

use roceline_engine::fabric::impair::{
    Action, Change, Class, Corruption, Counts, Delay, Field, FieldChange, Matcher, Range, Reorder,
    Rule, RuleId, When,
};

use super::*;
use WcStatus::*;
use WrOpcode::{Read, Send, Write};

impl Bench {
    /// Adds a rule to what node `from` sends.
    fn rule(&mut self, from: usize, matcher: Matcher, when: When, action: Action) {
        let rules = &mut self.w.link.ways[from].rules;
        let rule = Rule {
            id: RuleId(rules.len() as u32),
            name: String::new(),
            matcher,
            when,
            action,
            seed: 1,
        };
        rules.add(rule).expect("a good rule");
    }

    fn counts(&self, from: usize) -> Vec<Counts> {
        self.w.link.ways[from].rules.rules().map(|r| *r.1).collect()
    }
}

fn once(skip: u32) -> When {
    When {
        skip,
        count: Some(1),
        ..When::default()
    }
}

fn message(n: u32, classes: &[Class]) -> Matcher {
    Matcher {
        message: Some(Range::one(n)),
        ..Matcher::of(classes.iter().copied())
    }
}

fn field(field: Field, change: FieldChange) -> Action {
    Action::Corrupt(Corruption {
        change: Change::Field(field, change),
        reseal: true,
    })
}

/// Dropped 1, sent again what follows from it, and each counter says so once.
#[test]
fn one_dropped_packet_is_one_gap_and_one_nak() {
    let mut b = Bench::new();
    let all = Matcher::default();
    b.rule(0, all, When::default(), Action::Count);
    b.rule(0, message(2, &[Class::Middle]), once(1), Action::Drop);
    b.rule(1, Matcher::of([Class::Nak]), When::default(), Action::Count);
    for _ in 0..3 {
        b.post(Write, 6 * 1024);
    }
    b.run();
    assert_eq!(b.done(0), [(0, Success), (1, Success), (2, Success)]);
    let rules = b.counts(0);
    assert_eq!((rules[1].hit, rules[1].dropped), (1, 1));
    // The PSN of the second message's second middle was lost; all behind it was ahead of its time.
    let sent = b.sent(0);
    let again = sent.len() as u64 - 18;
    assert_eq!(rules[0].hit, sent.len() as u64);
    let (requester, responder) = (*b.node(0).engine.counters(), *b.node(1).engine.counters());
    assert_eq!(requester.packet_seq_err, 1);
    assert_eq!(requester.local_ack_timeout_err, 0);
    assert_eq!(b.counts(1)[0].hit, 1);
    // Each packet sent again came too early the first time, but for the lost one.
    assert_eq!(responder.out_of_sequence, again - 1);
    assert_eq!(responder.duplicate_request, 0);
}

/// "Drop the third READ response's middle": by message number, whatever else is on the link.
#[test]
fn a_read_response_is_lost_by_its_message_number() {
    let mut b = Bench::new();
    let third = message(3, &[Class::ReadResponse, Class::Middle]);
    b.rule(1, third, once(0), Action::Drop);
    for len in [3000, 10, 5000] {
        b.receive(10);
        b.post(Send, 10);
        b.post(Read, len);
    }
    b.run();
    assert!(b.done(0).iter().all(|d| d.1 == Success));
    assert_eq!(b.counts(1)[0].dropped, 1);
    let c = *b.node(0).engine.counters();
    assert_eq!((c.implied_nak_seq_err, c.local_ack_timeout_err), (1, 0));
}

/// A SEND sent again is acknowledged with the newest PSN, before the READ between them was answered again: to the
/// requester that READ is missed too. So each READ behind the lost response costs a round.
#[test]
fn a_lost_response_costs_a_round_for_each_read_between_sends() {
    for pairs in [1, 4, 16] {
        let mut b = Bench::with_attr(QpAttr {
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            ..default_attr()
        });
        let first = message(1, &[Class::ReadResponse]);
        b.rule(1, first, once(0), Action::Drop);
        for _ in 0..pairs {
            b.receive(10);
            b.post(Read, 10);
            b.post(Send, 10);
        }
        b.run();
        assert!(b.done(0).iter().all(|d| d.1 == Success));
        let c = *b.node(0).engine.counters();
        assert_eq!(c.implied_nak_seq_err, pairs);
        assert_eq!(c.local_ack_timeout_err, 0);
        // All 2n, then those from the missed READ on: two less each time.
        let requests = b.sent(0).len() as u64;
        assert_eq!(requests, 2 * pairs + pairs * (pairs + 1));
    }
}

#[test]
fn a_link_that_loses_every_ack_uses_the_retries_up() {
    let mut b = Bench::new();
    b.rule(1, Matcher::of([Class::Ack]), When::default(), Action::Drop);
    b.receive(10);
    b.post(Send, 10);
    b.run();
    assert_eq!(b.done(0), [(0, RetryExcErr)]);
    assert_eq!(b.done(1), [(1000, Success)]);
    let c = *b.node(1).engine.counters();
    // One arrived first, seven again; each was acknowledged, in vain.
    assert_eq!(c.duplicate_request, 7);
    assert_eq!(b.counts(1)[0].dropped, 8);
}

#[test]
fn ghosts_are_counted_and_done_once() {
    let mut b = Bench::new();
    let late = Action::Duplicate {
        copies: 2,
        after: Some(Delay::Constant(Nanos::from_micros(30))),
    };
    b.rule(0, Matcher::of([Class::Request]), When::default(), late);
    b.receive(2000);
    b.post(Send, 2000);
    b.post(Write, 10);
    b.run();
    assert_eq!(b.done(0), [(0, Success), (1, Success)]);
    assert_eq!(b.done(1), [(1000, Success)]);
    let copies = 2 * b.counts(0)[0].hit;
    assert_eq!(copies, 6);
    assert_eq!(b.node(1).engine.counters().duplicate_request, copies);
}

#[test]
fn a_packet_behind_three_others_is_a_gap_until_it_comes() {
    let mut b = Bench::new();
    let reorder = Action::Reorder(Reorder::Packets {
        count: 3,
        within: Nanos::from_millis(1),
    });
    b.rule(0, message(1, &[Class::Middle]), once(0), reorder);
    b.post(Write, 8 * 1024);
    b.run();
    assert_eq!(b.done(0), [(0, Success)]);
    let (requester, responder) = (*b.node(0).engine.counters(), *b.node(1).engine.counters());
    // The three make one gap; when the packet has filled it, those behind it make another.
    assert_eq!(requester.packet_seq_err, 2);
    assert!(responder.out_of_sequence >= 3, "{responder:?}");
    assert_eq!(b.counts(0)[0].hit, 1);
}

/// Changed and sealed again, a packet is judged by the transport, as no network error would be.
#[test]
fn a_resealed_field_is_refused_by_the_rule_it_breaks() {
    let write = Matcher::of([Class::Write]);
    let cases = [
        (Field::RKey, FieldChange::Flip(0xffff_0000), RemAccessErr),
        (Field::Va, FieldChange::Add(1 << 40), RemAccessErr),
        (Field::DmaLength, FieldChange::Add(1), RemInvReqErr),
    ];
    for (name, change, status) in cases {
        let mut b = Bench::new();
        b.rule(0, write, once(0), field(name, change));
        b.post(Write, 512);
        b.run();
        assert_eq!(b.done(0), [(0, status)], "{name:?}");
        assert_eq!(b.counts(0)[0].hit, 1);
    }
    // One that the receiver ignores is lost, and no more.
    let mut b = Bench::new();
    b.rule(
        0,
        write,
        once(0),
        field(Field::DestQpn, FieldChange::Flip(1)),
    );
    b.post(Write, 512);
    b.run();
    assert_eq!(b.done(0), [(0, Success)]);
    assert_eq!(b.node(0).engine.counters().local_ack_timeout_err, 1);
}

#[test]
fn a_rate_stretches_a_transfer_to_its_time() {
    use roceline_engine::fabric::impair::RateLimit;
    // The requester knows nothing of the queue, so its timer must leave time for it.
    let mut b = Bench::with_attr(QpAttr {
        timeout: 10,
        ..default_attr()
    });
    let limit = RateLimit {
        bits_per_sec: 1_000_000_000,
        burst: 2_000,
        queue: 1_000_000,
    };
    b.rule(0, Matcher::default(), When::default(), Action::Rate(limit));
    b.post(Write, 60 * 1024);
    b.run();
    assert_eq!(b.done(0), [(0, Success)]);
    // Each packet of 1024 bytes has 58 of headers and ICRC, and one a RETH; 8 ns a byte, but for the burst.
    let sent = b.counts(0)[0];
    let bytes = sent.matched * 1_082 + 16;
    assert!(
        b.w.now.0 >= (bytes - 2_000) * 8,
        "{:?} for {bytes}",
        b.w.now
    );
    assert_eq!((sent.matched, sent.dropped), (60, 0));
}
