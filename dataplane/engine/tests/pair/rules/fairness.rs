//! Programs share the engine by turns, however many QPs each of them has.

use roceline_engine::Outputs;

use super::*;

/// QPs of the program that has many.
const MANY: usize = 40;

/// A node with many QPs of one program and one of another, in this order, all connected.
fn crowd() -> (Bench, Vec<QpId>) {
    let mut b = Bench::new();
    let mut ids = Vec::new();
    for n in 0..=MANY {
        let id = b.w.connect_default(&default_attr())[0];
        let group = if n < MANY { 1 } else { 2 };
        b.node(0).engine.set_group(id, group);
        ids.push(id);
    }
    (b, ids)
}

#[test]
fn a_program_of_many_qps_gets_no_more_turns_than_one_of_a_single_qp() {
    let (mut b, ids) = crowd();
    for &id in &ids {
        b.ids[0] = id;
        for _ in 0..4 {
            b.post(WrOpcode::Write, 16 << 10);
        }
    }
    let mut sent = [0, 0];
    let mut out = Outputs::new();
    let now = b.w.now;
    for _ in 0..4 {
        b.node(0).engine.tx(32, now, &mut out);
        for desc in &out.tx {
            sent[usize::from(Some(&desc.qp) == ids.last())] += 1;
        }
        out.clear();
    }
    // The window of one QP is 64 packets: it can use its half of 128.
    assert_eq!(sent, [64, 64]);
}

#[test]
fn receives_of_a_failed_qp_are_flushed_in_its_turn_beside_many_failed_ones() {
    let (mut b, ids) = crowd();
    let now = b.w.now;
    for &id in &ids {
        b.node(0).enter(id, QpState::Err, now);
    }
    b.w.run_for(Nanos::from_millis(1));
    b.w.completions(0);
    let last = ids[MANY];
    b.node(0).post_recv(last, 77, &[]);
    // Four QPs a look, of which every second is the other program's.
    let mut node_out = Outputs::new();
    let mut looks = 0;
    let node = b.node(0);
    while node_out.events.is_empty() {
        looks += 1;
        assert!(looks <= 2, "its turn does not come");
        node.engine.advance(now, &mut node.queues, &mut node_out);
    }
    assert!(matches!(node_out.events[0], Event::Completion(c) if c.wr_id == 77 && c.qp == last));
}
