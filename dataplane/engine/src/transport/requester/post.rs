//! Posting: a send request goes into the ring, with what is wrong with it in itself.

use super::wqe::{FENCE, INLINE, SIGNALED, SOLICITED, SOUND};
use super::{Requester, SendWqe, answered};
use crate::transport::SqFull;
use crate::transport::journal::Cause;
use crate::verbs::{MAX_MESSAGE, SendWr, Sge, WrOpcode};
use crate::wire::Psn;

impl Requester {
    /// Puts a request into the ring. What is wrong with it in itself is noted now and reported in its turn.
    #[inline]
    pub fn post(&mut self, wr: &SendWr, sges: &[Sge]) -> Result<(), SqFull> {
        if !self.has_room() {
            return Err(SqFull);
        }
        let op = wr.opcode.unwrap_or(WrOpcode::Send);
        // These have no payload, whatever entries came along.
        let bare = op.is_local() || op == WrOpcode::Flush;
        let sges = sges.get(..wr.num_sge as usize).unwrap_or(sges);
        let no_entries = wr.inline || bare;
        let len = match sges {
            _ if no_entries => wr.length,
            [one] => u64::from(one.length),
            _ => sges.iter().map(|s| u64::from(s.length)).sum(),
        };
        let error = self.flaw(wr, op, sges.len(), len, no_entries);
        let at = (self.tail & self.ring_mask) as usize;
        let num_sge = if no_entries || error.is_some() {
            0
        } else {
            sges.len()
        };
        let mut sge = Sge::default();
        if num_sge == 1 {
            sge = sges[0];
        } else if num_sge > 1 {
            let base = at * usize::from(self.max_sge);
            self.sges[base..base + num_sge].copy_from_slice(&sges[..num_sge]);
        }
        let (remote_addr, rkey) = match self.datagrams {
            false => (wr.remote_addr, wr.rkey),
            true => (SendWqe::pack(wr.dest_qpn, wr.qkey), wr.ah),
        };
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        self.ring[at] = SendWqe {
            wr_id: wr.wr_id,
            remote_addr,
            sge,
            len: match error {
                Some(_) => 0,
                // The original value, however much room there is for it.
                None if op.is_atomic() => answered::ATOMIC_BYTES,
                None => len as u32,
            },
            first: Psn::new(0),
            psns: 0,
            rkey,
            imm: wr.imm_or_rkey,
            slot: wr.slot,
            place_end: 0,
            op,
            num_sge: num_sge as u8,
            flags: flag(wr.signaled | self.sig_all, SIGNALED)
                | flag(wr.solicited, SOLICITED)
                | flag(wr.fence, FENCE)
                | flag(wr.inline, INLINE),
            error: match error {
                None => SOUND,
                Some(cause) => cause.fault().status() as u8,
            },
        };
        if op.is_atomic() || op == WrOpcode::BindMw {
            self.operands[at] = [wr.compare_add, wr.swap];
        }
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// What is wrong with a request of `len` bytes in `entries` entries in itself.
    #[inline]
    fn flaw(
        &self,
        wr: &SendWr,
        op: WrOpcode,
        entries: usize,
        len: u64,
        no_entries: bool,
    ) -> Option<Cause> {
        let too_many = wr.num_sge > u32::from(self.max_sge) || entries < wr.num_sge as usize;
        let inline_answer = wr.inline && (op == WrOpcode::Read || op.is_atomic());
        // Of UC: SENDs, WRITEs, and what is carried out here (IBTA 9.8.2.1 and table "Transport functions").
        let supported = wr.opcode.is_some()
            && (self.reliable || !(op.is_answered() || op == WrOpcode::SendInv));
        if !supported || inline_answer || (too_many && !no_entries) {
            Some(Cause::BadRequest)
        } else if len > u64::from(MAX_MESSAGE)
            || (wr.inline && len > u64::from(self.max_inline) && op != WrOpcode::AtomicWrite)
            || answered::wrong_length(op, len)
        {
            Some(Cause::TooLong)
        } else {
            None
        }
    }
}
