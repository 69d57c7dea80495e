//! The rules that every run must keep: completions as they come, memory, and the engines' counters in the end.

use roceline_engine::verbs::*;

use super::{Run, USED};
use crate::ledger::Served;

impl Run {
    pub(super) fn check_completions(&mut self) {
        for n in 0..2 {
            for c in self.world.completions(n) {
                let mine = self.flows.iter().position(|f| match c.recv {
                    true => f.peer == c.qp && f.from == 1 - n,
                    false => f.qp == c.qp && f.from == n,
                });
                let i = mine.expect("a completion of a QP of this node");
                if c.recv {
                    self.check_receive(i, &c);
                } else {
                    self.check_send(i, &c);
                }
            }
        }
        // The slots that are free follow from the completions, and from what needs none.
        for i in 0..self.flows.len() {
            let f = &self.flows[i];
            let occupied = self.world.nodes[f.from].occupied(f.qp);
            assert!(occupied <= f.open.len());
            self.retire_unsignaled(i, occupied);
        }
    }

    /// Messages whose slots are free without a completion are unsignalled and done.
    fn retire_unsignaled(&mut self, i: usize, occupied: usize) {
        while self.flows[i].open.len() > occupied {
            let Some(m) = self.flows[i].open.pop_front() else {
                break;
            };
            assert!(
                !self.flows[i].messages[m].signaled,
                "message {m} wanted a completion"
            );
            self.delivered(i, m);
        }
    }

    fn check_send(&mut self, i: usize, c: &Completion) {
        // What came before and is not signalled rode along.
        let m = c.wr_id as usize;
        loop {
            let oldest = self.flows[i]
                .open
                .pop_front()
                .expect("a completion belongs to a request");
            if oldest == m {
                break;
            }
            assert!(c.status == WcStatus::Success || self.flows[i].failed.is_none());
            self.delivered(i, oldest);
        }
        let f = &mut self.flows[i];
        assert_eq!(c.cq, 1);
        match (c.status, f.failed) {
            (WcStatus::Success, None) => {
                assert_eq!(c.byte_len, f.messages[m].len);
                self.delivered(i, m);
            }
            (WcStatus::WrFlushErr, Some(_)) => {}
            // It failed as a responder, or the other end did: a READ asked for again may meet memory that is
            // gone, when the peer has all it wanted and would wait for ever.
            (WcStatus::WrFlushErr, None) => {
                f.failed = Some(c.status);
                self.take_peer_down(i);
            }
            (status, None) => {
                f.failed = Some(status);
                self.failed(i, status);
            }
            other => panic!("{other:?} after a failure"),
        }
    }

    /// A request is complete for the sender: its data is where it should be.
    fn delivered(&mut self, i: usize, m: usize) {
        let f = &self.flows[i];
        let message = &f.messages[m];
        let [here, there] = [f.from, 1 - f.from];
        match message.op {
            WrOpcode::Write | WrOpcode::WriteImm => {
                let memory = &mut self.world.nodes[there].memory;
                // The receiver of an immediate may have used the data already.
                let got = memory.read(message.remote, message.len);
                let used = message.takes_receive() && got.iter().all(|&b| b == USED);
                assert!(
                    used || got == message.data,
                    "WRITE {m} of {:?} is not intact",
                    f.qp
                );
                memory.fill(&[(message.remote, message.len)], USED);
            }
            WrOpcode::Read => {
                let memory = &mut self.world.nodes[here].memory;
                let intact = memory.gather(&message.local) == message.data;
                assert!(intact, "READ {m} of {:?} is not intact", f.qp);
            }
            _ => {}
        }
        self.world.nodes[here]
            .memory
            .fill(&message.local.clone(), USED);
    }

    fn check_receive(&mut self, i: usize, c: &Completion) {
        let f = &mut self.flows[i];
        assert_eq!(c.wr_id, f.received as u64, "receives complete in order");
        f.received += 1;
        assert_eq!(c.cq, 2);
        if c.status == WcStatus::Success {
            let message = &f.messages[f.receives[c.wr_id as usize]];
            let imm = matches!(message.op, WrOpcode::SendImm | WrOpcode::WriteImm);
            assert_eq!(c.byte_len, message.len);
            assert_eq!(c.flags & WC_WITH_IMM != 0, imm);
            assert_eq!(c.imm_or_rkey, if imm { message.imm } else { 0 });
            assert_eq!(c.solicited, message.solicited);
            let memory = &mut self.world.nodes[1 - f.from].memory;
            let pieces = match message.op {
                WrOpcode::WriteImm => {
                    assert_eq!(c.opcode, WcOpcode::RecvRdmaWithImm);
                    vec![(message.remote, message.len)]
                }
                _ => {
                    assert_eq!(c.opcode, WcOpcode::Recv);
                    message.receive.clone()
                }
            };
            let got = memory.gather(&pieces);
            let intact = got[..message.len as usize] == message.data[..];
            assert!(intact, "receive {} of {:?} is not intact", c.wr_id, c.qp);
            memory.fill(&pieces, USED);
        } else if c.status != WcStatus::WrFlushErr {
            assert!(self.plan.memory.fault > 0, "{c:?}");
            assert_eq!(c.status, WcStatus::LocProtErr);
        }
    }

    /// The requester's end of a QP failed: was that allowed? Its program takes the other end down too, as a
    /// connection manager would.
    fn failed(&mut self, i: usize, status: WcStatus) {
        let plan = &self.plan;
        let lossy = plan.faults.loss + plan.faults.corrupt + plan.faults.reorder > 0;
        // Rules may do anything, also lose every ACK, but only those that did something are an excuse.
        let disturbed = plan.rules > 0 && self.world.link.has_disturbed();
        match status {
            // RNR NAKs are no progress, so a long RNR phase on a lossy link uses retries up too.
            WcStatus::RetryExcErr => {
                let strained = plan.few_retries || plan.late_receives;
                assert!(lossy && strained || disturbed || plan.memory.fault > 0);
            }
            WcStatus::RnrRetryExcErr => assert!(plan.few_retries && plan.late_receives),
            WcStatus::LocProtErr | WcStatus::RemOpErr => assert!(plan.memory.fault > 0),
            other => panic!("a QP failed with {other:?}"),
        }
        self.explained(i, status);
        self.take_peer_down(i);
    }

    /// The record of a failed requester says nothing that is not so.
    fn explained(&self, i: usize, status: WcStatus) {
        let f = &self.flows[i];
        let records = self.world.nodes[f.from].engine.post_mortems();
        let mut own = records.iter().filter(|r| r.qp == f.qp);
        let record = own.next().expect("a record of the QP that failed");
        assert!(own.next().is_none(), "a QP fails once");
        assert_eq!(record.request.map(|r| r.status), Some(status));
        let name = roceline_engine::diagnose(record).name;
        let allowed: &[&str] = match status {
            // The link loses packets and the peer is where it should be, with the same path MTU.
            WcStatus::RetryExcErr => &[
                "peer-silent",
                "one-way",
                "peer-qp-gone",
                "packet-too-big",
                "loss",
                "peer-went-silent",
            ],
            WcStatus::RnrRetryExcErr => &["rnr-retry-0", "rnr-exhausted"],
            WcStatus::LocProtErr => &["local-memory"],
            _ => &["remote-operational"],
        };
        // Rules may change packets into evidence of anything.
        let honest = self.plan.rules == 0;
        assert!(!honest || allowed.contains(&name), "{name} for {status:?}");
    }

    fn take_peer_down(&mut self, i: usize) {
        let (there, peer) = (1 - self.flows[i].from, self.flows[i].peer);
        self.world.nodes[there].enter(peer, QpState::Err, self.world.now);
    }

    /// What node `n` had to serve, if no QP has failed.
    fn served(&self, n: usize) -> Option<Served> {
        let mut served = Served::default();
        for f in &self.flows {
            if f.failed.is_some() || self.plan.memory.fault > 0 {
                return None;
            }
            if f.from == n {
                continue;
            }
            let (attr, _) = self.world.nodes[n].engine.query_qp(f.peer).ok()?;
            let mtu = attr.path_mtu.bytes();
            for m in &f.messages {
                let read = m.op == WrOpcode::Read;
                served.reads += u64::from(read);
                served.writes += u64::from(matches!(m.op, WrOpcode::Write | WrOpcode::WriteImm));
                let packets = m.len.div_ceil(mtu).max(1);
                served.packets += u64::from(if read { 1 } else { packets });
            }
        }
        Some(served)
    }

    pub(super) fn check_end(&mut self) {
        for f in &self.flows {
            let what = format!("{:?} from node {}: {:?}", f.qp, f.from, f.failed);
            assert!(
                f.open.is_empty(),
                "{what}: {} requests are not complete",
                f.open.len()
            );
            assert_eq!(f.posted, f.messages.len(), "{what}");
            assert_eq!(self.world.nodes[f.from].occupied(f.qp), 0, "{what}");
            assert_eq!(f.received, f.receives_posted, "{what}: receives");
            let plan = &self.plan;
            let may_fail = plan.few_retries
                || plan.late_receives
                || plan.memory.fault > 0
                || plan.rules > 0 && self.world.link.has_disturbed();
            assert!(f.failed.is_none() || may_fail, "{what}");
        }
        for n in 0..2 {
            let [here, there] = [n, 1 - n].map(|n| &self.world.nodes[n]);
            let qps = self.flows.iter().filter(|f| f.from == n).map(|f| f.qp);
            crate::ledger::check(here, there, &qps.collect::<Vec<_>>(), self.served(n));
        }
        for n in 0..2 {
            assert!(
                self.world.nodes[n].memory.guards_intact(&self.used[n]),
                "node {n}: stray write"
            );
        }
        assert!(
            self.world.is_idle(),
            "timers, frames or memory operations are left"
        );
    }
}
