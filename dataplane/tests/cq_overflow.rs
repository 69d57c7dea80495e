//! A completion queue that overflows takes down the QPs that complete to it, on whichever NIC they are.

use std::time::{Duration, Instant};

use roceline::bench::Pair;
use roceline::lcore::message::{Command, Reply};
use roceline::lcore::probe::NoProbe;
use roceline_engine::AckPolicy;
use roceline_engine::verbs::{Mtu, QpState, Sge, WrOpcode};

#[test]
fn an_overflow_on_the_second_nic_fails_its_qp() {
    let mut pair = Pair::new(AckPolicy::Coalesced, Mtu::M4096, 6).unwrap();
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        assert!(Instant::now() < end, "the QP is still not in ERR");
        // Empty SENDs; nobody polls the receiver's CQ of 4,095 entries.
        for _ in 0..32 {
            pair.b.producer.post_recv(&mut pair.b.qp, Sge::default());
            if pair.a.producer.can_send(&pair.a.qp) {
                let (opcode, flags) = (WrOpcode::Send, 0);
                let (sge, remote) = (Sge::default(), (0, 0));
                pair.a
                    .producer
                    .post_send(&mut pair.a.qp, opcode, flags, sge, remote, None);
            }
        }
        pair.a.producer.ring(&pair.a.qp);
        for _ in 0..8 {
            pair.lcore.turn(&mut NoProbe);
        }
        let command = Command::QueryQp {
            qp: pair.b.qp.handle,
        };
        let lcore = &mut pair.lcore;
        let reply = pair.b.producer.command(command, &mut || {
            lcore.turn(&mut NoProbe);
        });
        match reply.unwrap() {
            Reply::QpState { attr, .. } if attr.state == QpState::Err => return,
            Reply::QpState { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}
