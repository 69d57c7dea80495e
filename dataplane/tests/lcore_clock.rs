//! A polling thread that the kernel keeps from running takes no packet for lost.

use std::thread;
use std::time::Duration;

use roceline::bench::Pair;
use roceline::lcore::probe::NoProbe;
use roceline_engine::AckPolicy;
use roceline_engine::verbs::{Mtu, Sge, WrOpcode};

/// Several times the ACK timeout of the pair's queue pairs, 67.1 ms. That it can be longer on a busy machine does not matter.
const AWAY: Duration = Duration::from_millis(200);

#[test]
fn time_in_which_it_does_not_run_brings_no_timeout() {
    let mut pair = Pair::new(AckPolicy::Coalesced, Mtu::M4096, 6).unwrap();
    for _ in 0..3 {
        pair.b.producer.post_recv(&mut pair.b.qp, Sge::default());
        let (opcode, sge) = (WrOpcode::Send, Sge::default());
        let a = &mut pair.a;
        a.producer
            .post_send(&mut a.qp, opcode, 0, sge, (0, 0), None);
        a.producer.ring(&a.qp);
        // The packet leaves; by the time that its ACK could be seen, the thread was away for longer than the timeout.
        pair.lcore.turn(&mut NoProbe);
        thread::sleep(AWAY);
        pair.lcore.turn(&mut NoProbe);
        thread::sleep(AWAY);
        while pair.b.producer.poll_cq().is_none() {
            pair.lcore.turn(&mut NoProbe);
        }
    }
    let sender = pair.lcore.counters(0);
    assert_eq!(sender.local_ack_timeout_err, 0);
    assert_eq!(pair.lcore.counters(1).duplicate_request, 0);
}
