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
    // The window of one QP is 64 packets: it can use its half of 128, but for a turn of 16 KiB that has begun.
    assert!(sent[1] <= 64 && sent[1] >= 64 - 16, "{sent:?}");
    assert_eq!(sent[0] + sent[1], 4 * 32, "nothing is left unused");
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

/// IEEE 802.1Qbb: a paused priority sends nothing, the others go on; DSCP 26 is of priority 3.
#[test]
fn queue_pairs_of_a_paused_priority_have_no_turns() {
    let mut b = Bench::new();
    let lossless = QpAttr {
        path: Path {
            traffic_class: 26 << 2,
            ..Path::default()
        },
        ..default_attr()
    };
    let paused = b.w.connect_default(&lossless)[0];
    let other = b.ids[0];
    assert_eq!(b.node(0).engine.priority(paused), Some(3));
    assert_eq!(b.node(0).engine.priority(other), Some(0));
    for id in [paused, other] {
        b.ids[0] = id;
        b.post(WrOpcode::Write, 8 << 10);
    }
    let now = b.w.now;
    let mut out = Outputs::new();
    let mut sent = |b: &mut Bench, priorities: u8| {
        let engine = &mut b.node(0).engine;
        engine.set_paused(priorities);
        let more = engine.tx(128, now, &mut out);
        assert!(!more, "a paused queue pair is not ready");
        let of = |id| out.tx.iter().filter(|desc| desc.qp == id).count();
        let counts = [of(paused), of(other)];
        out.clear();
        counts
    };
    assert_eq!(sent(&mut b, 1 << 3), [0, 8]);
    b.ids[0] = other;
    b.post(WrOpcode::Write, 8 << 10);
    assert_eq!(sent(&mut b, 0xff), [0, 0]);
    assert_eq!(sent(&mut b, 1), [8, 0]);
    assert_eq!(sent(&mut b, 0), [0, 8]);
}

/// Bytes of link time are shared, not packets: one QP sends packets of 256 bytes, the other of 1,024.
#[test]
fn a_queue_pair_of_large_packets_gets_no_more_of_the_link_than_one_of_small_ones() {
    let mut b = Bench::new();
    let small = QpAttr {
        path_mtu: Mtu::M256,
        ..default_attr()
    };
    let ids = [b.ids[0], b.w.connect_default(&small)[0]];
    for id in ids {
        b.ids[0] = id;
        b.post(WrOpcode::Write, 64 << 10);
    }
    let now = b.w.now;
    let mut out = Outputs::new();
    let mut bytes = [0, 0];
    // Both windows are 64 packets: 21 KB of link time of the small ones.
    while bytes[0] + bytes[1] < 32_000 {
        b.node(0).engine.tx(1, now, &mut out);
        for desc in out.tx.drain(..) {
            let ext = u32::from(desc.opcode.info().ext_len);
            bytes[usize::from(desc.qp == ids[1])] += desc.len + ext + 82;
        }
        out.clear();
    }
    let [large, small] = bytes.map(i64::from);
    assert!((large - small).abs() <= (16 << 10) + 1106, "{bytes:?}");
}

#[test]
fn a_new_qp_and_one_in_reset_have_the_priority_of_the_map() {
    use roceline_engine::congestion::priority::{PriorityMap, Trust};

    let mut attr = default_attr();
    attr.path.traffic_class = 26 << 2;
    let mut b = Bench::with_attr(attr);
    let (id, now) = (b.ids[0], b.w.now);
    let engine = &mut b.node(0).engine;
    assert_eq!(engine.priority(id), Some(3));
    let mut map = PriorityMap::new(Trust::Dscp);
    map.set_dscp(0, 5);
    engine.set_priority_map(map, now);
    // A UD QP may get no address vector ever.
    let made = engine.create_qp(&default_init()).expect("room");
    assert_eq!(engine.priority(made), Some(5));
    b.node(0).enter(id, QpState::Reset, now);
    assert_eq!(b.node(0).engine.priority(id), Some(5));
}
