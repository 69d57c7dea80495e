//! What a polling thread counts of its own time: only while somebody looks, every turn and request then, and stages now and then.

use std::sync::mpsc::sync_channel;

use roceline::bench::Pair;
use roceline::bench::producer::SIGNALED;
use roceline::control::LcorePort;
use roceline::lcore::message::{Command, ContextId, Reply, Request};
use roceline::lcore::probe::Stage;
use roceline::lcore::usage::{LONGEST, LoopUse, NicUse};
use roceline_engine::verbs::{Mtu, Sge, WrOpcode};
use roceline_engine::{AckPolicy, Nanos, Waiting};

/// Looks, for so long from now on. The lcore takes a turn to answer.
fn look(pair: &mut Pair, how_long: Nanos) -> LoopUse {
    let (reply, answer) = sync_channel(1);
    let request = Request {
        context: ContextId::NONE,
        command: Command::Usage { how_long },
        reply,
    };
    pair.mailbox().send(0, request).unwrap();
    pair.lcore.step();
    match answer.try_recv() {
        Ok(Reply::Usage(used)) => *used,
        other => panic!("{other:?}"),
    }
}

fn steps(pair: &mut Pair, count: usize) {
    (0..count).for_each(|_| pair.lcore.step());
}

/// SENDs without payload, one after the other; turns of the loop as long as it takes.
fn messages(pair: &mut Pair, count: usize) {
    for _ in 0..count {
        pair.b.producer.post_recv(&mut pair.b.qp, Sge::default());
        let (producer, qp) = (&pair.a.producer, &mut pair.a.qp);
        producer.post_send(qp, WrOpcode::Send, SIGNALED, Sge::default(), (0, 0), None);
        producer.ring(qp);
        let (mut sent, mut received) = (false, false);
        while !sent || !received {
            pair.lcore.step();
            sent |= pair.a.producer.poll_cq().is_some();
            received |= pair.b.producer.poll_cq().is_some();
        }
    }
}

/// EAL is initialised once in a process, so one after the other.
#[test]
fn a_loop_that_is_looked_at_counts_what_it_does() {
    let mut pair = Pair::new(AckPolicy::Coalesced, Mtu::M4096, 6).unwrap();
    it_ends_by_itself(&mut pair);
    time_is_counted_while_somebody_looks(&mut pair);
    few_turns_are_timed_and_tell_of_every_stage(&mut pair);
    queue_pairs_are_asked_what_they_wait_for(&mut pair);
}

fn it_ends_by_itself(pair: &mut Pair) {
    messages(pair, 10);
    let first = look(pair, Nanos::ZERO);
    assert_eq!((first.sessions, first.turns, first.looks), (1, 0, 0));
    // Nobody has looked so far, so only what is always counted is known.
    assert_eq!(
        (first.nics[0].messages_out, first.nics[1].messages_in),
        (0, 10)
    );
    steps(pair, 50);
    let second = look(pair, Nanos::ZERO);
    assert_eq!(second.sessions, 2, "{second:?}");
    assert!(second.turns <= 1 && second.looks <= 1, "{second:?}");
    steps(pair, 50);
}

fn time_is_counted_while_somebody_looks(pair: &mut Pair) {
    let first = look(pair, LONGEST);
    assert_eq!(first.sessions, 3);
    // Turns are known when the next one begins; the one that answers is under way.
    steps(pair, 100);
    let second = look(pair, LONGEST);
    assert_eq!(second.turns - first.turns, 100);
    assert_eq!(second.busy_turns, first.busy_turns);
    assert!(second.empty > first.empty && second.busy == first.busy);

    messages(pair, 500);
    let third = look(pair, LONGEST);
    let [a, b] = &third.nics[..] else {
        panic!("two NICs: {third:?}")
    };
    assert_eq!((a.index, b.index), (0, 1));
    assert_eq!((a.messages_out, a.messages_in), (500, 0));
    assert_eq!((b.messages_out, b.messages_in), (0, 510));
    assert!(
        a.packets[1] >= 510 && a.packets[1] == b.packets[0],
        "{third:?}"
    );
    assert!(
        third.busy_turns >= 500 && third.busy > Nanos::ZERO,
        "{third:?}"
    );
    assert!(third.turns - second.turns >= third.busy_turns - second.busy_turns);

    // A shorter question does not end a longer one.
    look(pair, Nanos::ZERO);
    steps(pair, 10);
    assert_eq!(look(pair, LONGEST).sessions, 3);
}

/// No stage may be timed more often than a turn in [`TURNS`] has stages: that bounds what it costs.
fn few_turns_are_timed_and_tell_of_every_stage(pair: &mut Pair) {
    const TURNS: u64 = 16;
    // Messages, two NICs' receive, memory and doorbells of two programs, two NICs' timers and transmit, end.
    const MARKS: u64 = 12;
    let before = look(pair, LONGEST);
    messages(pair, 4000);
    steps(pair, 1000);
    let used = look(pair, LONGEST);
    let (turns, looks) = (used.turns - before.turns, used.looks - before.looks);
    assert!(looks <= turns / (TURNS * MARKS) + 1, "{used:?}");
    assert!(looks >= turns / (2 * TURNS * MARKS), "{used:?}");
    assert!(used.timed > 0 && used.timed <= used.looks, "{used:?}");
    assert!(used.stages[Stage::Messages] > 0 && used.stages[Stage::End] > 0);
    assert_eq!(used.stages[Stage::Fabric], 0, "there are no switches");
    for nic in &used.nics {
        for stage in [
            Stage::Receive,
            Stage::Memory,
            Stage::Doorbells,
            Stage::Timers,
            Stage::Transmit,
        ] {
            assert!(nic.stages[stage] > 0, "{stage:?}: {nic:?}");
        }
        let packets: u64 = nic.timed_packets.iter().sum();
        assert!(
            packets > 0 && nic.bursts.iter().sum::<u64>() <= packets,
            "{nic:?}"
        );
    }
}

fn queue_pairs_are_asked_what_they_wait_for(pair: &mut Pair) {
    let before = look(pair, LONGEST);
    steps(pair, 2000);
    let idle = look(pair, LONGEST);
    let program = Waiting::Program as usize;
    for (before, nic) in before.nics.iter().zip(&idle.nics) {
        let looks = |nic: &NicUse| nic.waiting.iter().sum::<u64>();
        let new = nic.waiting[program] - before.waiting[program];
        assert!(new > 0, "{nic:?}");
        assert_eq!(new, looks(nic) - looks(before), "{nic:?}");
    }
    // Nobody posts a receive.
    let (producer, qp) = (&pair.a.producer, &mut pair.a.qp);
    producer.post_send(qp, WrOpcode::Send, SIGNALED, Sge::default(), (0, 0), None);
    producer.ring(qp);
    let receiver = Waiting::Receiver as usize;
    let waited = |used: &LoopUse| used.nics[0].waiting[receiver];
    let before = waited(&idle);
    while waited(&look(pair, LONGEST)) < before + 3 {}
    assert!(pair.lcore.counters(0).rnr_nak_retry_err > 0);
}
