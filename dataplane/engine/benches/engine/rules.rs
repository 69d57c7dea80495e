//! What impairment rules add to a packet.

use roceline_engine::Nanos;
use roceline_engine::fabric::impair::{
    Action, Chance, Class, Direction, Matcher, PacketView, Probability, Rule, RuleId, RuleSet, When,
};
use serde_json::{Value, json};

use crate::clock::{Spread, cycles};

const ROUNDS: u64 = 2_000;

/// Cycles a packet.
struct Costs {
    rules: u32,
    of_this_qp: bool,
    view: Spread,
    offer: Spread,
}

/// Measures, prints unless `quiet`, and gives the figures.
pub fn run(quiet: bool) -> Vec<Value> {
    if !quiet {
        println!("\ncycles a packet               view    offer");
    }
    let cases = [(0, true), (1, false), (1, true), (8, false), (8, true)];
    let costs = cases.map(|(rules, of_this_qp)| measure(rules, of_this_qp));
    let show = |c: &Costs| {
        let what = if c.of_this_qp {
            "that match"
        } else {
            "of another QP"
        };
        let (view, offer) = (c.view.median, c.offer.median);
        if !quiet {
            println!("{} rules {what:<20} {view:>8.1} {offer:>8.1}", c.rules);
        }
        json!({
            "rules": c.rules, "match": c.of_this_qp, "view": c.view.json(), "offer": c.offer.json(),
        })
    };
    costs.iter().map(show).collect()
}

/// A WRITE middle of 1 KiB through rules that lose one in a million of such packets, or look for another QP.
fn measure(rules: u32, of_this_qp: bool) -> Costs {
    let mut frame = vec![0; 14 + 20 + 8 + 12 + 1024 + 4];
    let bth = [7, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 0];
    frame[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    frame[16..18].copy_from_slice(&(20u16 + 8 + 12 + 1024 + 4).to_be_bytes());
    frame[23] = 17;
    frame[36..38].copy_from_slice(&4791u16.to_be_bytes());
    frame[42..54].copy_from_slice(&bth);
    let mut set = RuleSet::new();
    for id in 0..rules {
        let rule = Rule {
            id: RuleId(id),
            name: String::new(),
            matcher: Matcher {
                qpn: Some(if of_this_qp { 0x11 } else { 0x12 }),
                ..Matcher::of([Class::Middle])
            },
            when: When {
                chance: Chance::Each(Probability::ratio(1, 1_000_000)),
                ..When::default()
            },
            action: Action::Drop,
            seed: id.into(),
        };
        set.add(rule).expect("a good rule");
    }
    let (mut view, mut offer) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        const BURST: u64 = 32;
        let start = cycles();
        for _ in 0..BURST {
            std::hint::black_box(PacketView::parse(
                Direction::Tx,
                std::hint::black_box(&frame),
            ));
        }
        let parsed = cycles();
        let seen = PacketView::parse(Direction::Tx, &frame);
        let offers = cycles();
        for _ in 0..BURST {
            std::hint::black_box(set.offer(std::hint::black_box(&seen), Nanos(round)).drop);
        }
        let end = cycles();
        view.push((parsed - start) as f64 / BURST as f64);
        offer.push((end - offers) as f64 / BURST as f64);
    }
    Costs {
        rules,
        of_this_qp,
        view: Spread::of(view),
        offer: Spread::of(offer),
    }
}
