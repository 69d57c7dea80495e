//! Memory regions and QPs: made, changed, asked about and taken away. What these calls do to a connection that is
//! alive, packets find done at their next turn.

use super::ah::{AhError, AhInfo};
use super::env::{Env, env};
use super::journal::Cause;
use super::{Engine, requester, state};
use crate::descriptor::Outputs;
use crate::memory::{AccessError, MrAttr, MrInfo, MwInfo, WindowType};
use crate::time::Nanos;
use crate::verbs::{AsyncKind, Mtu, QpAttr, QpError, QpId, QpInit, QpState, QpType, mask};

impl Engine {
    /// Registers a memory region.
    pub fn register(&mut self, attr: MrAttr) -> Result<MrInfo, AccessError> {
        self.nic.mrs.register(attr)
    }

    /// Makes a memory window; send requests bind it.
    pub fn alloc_window(&mut self, pd: u32, kind: WindowType) -> Result<MwInfo, AccessError> {
        self.nic.mrs.alloc_window(pd, kind)
    }

    /// Frees a memory window, bound or not. False if there is none with that index.
    pub fn dealloc_window(&mut self, index: u32) -> bool {
        self.nic.mrs.dealloc_window(index)
    }

    /// Takes a memory region out; slices that were given out before keep naming its index. Refused while windows are
    /// bound to it.
    pub fn deregister(&mut self, lkey: u32) -> Result<MrInfo, AccessError> {
        self.nic.mrs.deregister(lkey)
    }

    /// The port's active MTU, which limits datagrams of UD QPs that are created from now on.
    pub fn set_datagram_mtu(&mut self, mtu: Mtu) {
        self.datagram_mtu = mtu;
    }

    /// Makes an address handle for UD QPs in a protection domain (the caller's number).
    pub fn create_ah(&mut self, pd: u32) -> Result<AhInfo, AhError> {
        self.nic.ahs.create(pd)
    }

    /// The index of an address handle, if it exists.
    pub fn ah_index(&self, number: u32) -> Option<u32> {
        self.nic.ahs.index(number)
    }

    /// Frees an address handle; its index. Requests that name it and have not been sent fail.
    pub fn destroy_ah(&mut self, number: u32) -> Result<u32, AhError> {
        self.nic.ahs.destroy(number)
    }

    /// Creates a QP in RESET.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<QpId, QpError> {
        let id = self.qps.create(init)?;
        self.nic.timers.grow(self.qps.slots() as u32);
        self.nic.lists.grow(self.qps.slots());
        if let Some(qp) = self.qps.get_mut(id) {
            qp.req.set_profile(self.retransmission);
            qp.priority = qp.priority_by(&self.priorities);
            self.nic.lists.ready.set_priority(qp.slot, qp.priority);
            self.nic.reaction.start(qp);
            // A datagram has no path of its own that could limit it.
            if init.qp_type == QpType::Ud {
                qp.cold.attr.path_mtu = self.datagram_mtu;
            }
        }
        Ok(id)
    }

    /// Changes state and attributes. That an address vector's path and the path MTU suit the port is the
    /// caller's to check.
    pub fn modify_qp(
        &mut self,
        qp: QpId,
        attr: &QpAttr,
        mask: u32,
        now: Nanos,
        out: &mut Outputs,
    ) -> Result<(), QpError> {
        let qp = self.qps.get_mut(qp).ok_or(QpError::Unknown(qp.0))?;
        let from = qp.state;
        let to = state::check(qp.cold.init.qp_type, from, attr, mask)?;
        let ends = matches!(to, QpState::Reset | QpState::Err);
        if from == QpState::Sqd && !ends && qp.req.is_draining() {
            return Err(QpError::Draining);
        }
        let mut env = env!(self, now, out);
        match to {
            QpState::Reset => {
                qp.req.quiet(&mut env.nic.timers, qp.slot);
                qp.reset();
                qp.priority = qp.priority_by(&self.priorities);
                env.nic.lists.ready.set_priority(qp.slot, qp.priority);
                env.nic.reaction.start(qp);
                return Ok(());
            }
            QpState::Err => {
                qp.fail(Cause::Modified, &mut env);
                return Ok(());
            }
            _ => {}
        }
        state::apply(&mut qp.cold.attr, attr, mask);
        qp.take_attributes();
        if mask & mask::AV != 0 {
            qp.priority = qp.priority_by(&self.priorities);
            env.nic.lists.ready.set_priority(qp.slot, qp.priority);
            env.nic.reaction.configure(qp, now);
        }
        qp.state = to;
        match (from, to) {
            (QpState::Init, QpState::Rtr) => qp.resp.set_psn(qp.cold.attr.rq_psn),
            (QpState::Rtr, QpState::Rts) => {
                qp.req.set_psn(qp.cold.attr.sq_psn);
                qp.journal.connected(&env.nic.counters);
            }
            (QpState::Sqd, QpState::Rts) => env.nic.lists.ready.push(qp.slot),
            (QpState::Sqe, QpState::Rts) => {
                qp.req.resume();
                env.nic.lists.work.push(qp.slot);
            }
            (QpState::Rts, QpState::Sqd) => {
                let wanted = mask & mask::EN_SQD_ASYNC_NOTIFY != 0 && attr.sqd_async_notify;
                qp.req.want_drained(wanted);
                requester::drained(qp, &mut env);
            }
            _ => {}
        }
        Ok(())
    }

    /// The peer, or the router to it, has another MAC address. The caller's templates are its own to change.
    pub fn set_dmac(&mut self, qp: QpId, mac: crate::wire::ethernet::Mac) {
        if let Some(qp) = self.qps.get_mut(qp) {
            qp.cold.attr.path.dmac = mac;
        }
    }

    /// Says that a QP is of `group` (0 unless said otherwise): groups take turns where QPs wait for each other, and QPs
    /// within their group. Groups should be dense from 0. To be called before the QP leaves RESET.
    pub fn set_group(&mut self, qp: QpId, group: u32) {
        if let Some(qp) = self.qps.get(qp) {
            self.nic.lists.assign(qp.slot, group);
        }
    }

    /// What was set, with the live PSNs and state.
    pub fn query_qp(&self, qp: QpId) -> Result<(QpAttr, QpInit), QpError> {
        let qp = self.qps.get(qp).ok_or(QpError::Unknown(qp.0))?;
        let mut attr = qp.cold.attr;
        attr.state = qp.state;
        attr.sq_draining = qp.state == QpState::Sqd && qp.req.is_draining();
        if qp.can_receive() || qp.state == QpState::Err {
            attr.rq_psn = qp.resp.epsn;
        }
        if qp.can_send() || qp.state == QpState::Err {
            attr.sq_psn = qp.req.max;
        }
        Ok((attr, qp.cold.init))
    }

    /// Drops a QP and all it has.
    pub fn destroy_qp(&mut self, qp: QpId) -> Result<(), QpError> {
        let slot = self.qps.destroy(qp).ok_or(QpError::Unknown(qp.0))?;
        self.nic.mrs.unbind_all_of(qp);
        self.nic.timers.cancel(slot);
        self.nic.reaction.stop(slot);
        Ok(())
    }

    /// A CQ of the QP overflowed: it goes to ERR.
    pub fn fail_qp(&mut self, qp: QpId, now: Nanos, out: &mut Outputs) {
        if let Some(qp) = self.qps.get_mut(qp) {
            let cause = Cause::CqOverflow;
            qp.fail_with(AsyncKind::QpFatal, cause, &mut env!(self, now, out));
        }
    }
}
