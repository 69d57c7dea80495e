//! Looks between polls.
//!
//! Most polls of a loop that waits find nothing, and most of what they look at only a poll can change. So a poll that leaves
//! nothing to do behind it is followed by a few looks at what comes from outside: requests of control threads, frames at
//! ports, doorbells. They read no clock and walk through no stage, so that what comes is seen sooner; the next poll is still
//! so near that timers do not notice.

use roceline_engine::Nanos;

use super::Lcore;
use super::nic::Nic;

/// Looks that follow a poll.
const LOOKS: u32 = 7;
/// What is due so soon is waited for by polls: far longer than [`LOOKS`] take.
const SOON: Nanos = Nanos::from_micros(1);
/// Contexts beyond which looks are not worth it: each has a doorbell of its own to look at.
const CONTEXTS: usize = 16;

/// Of an lcore.
#[derive(Debug, Default)]
pub struct Quiet {
    /// Looks before the next poll.
    left: u32,
    /// The last look has taken frames from a port.
    frames: bool,
}

impl Quiet {
    /// Whether the poll that begins has frames before it that came at a look. Nothing is to come between the two.
    #[inline]
    pub fn take_frames(&mut self) -> bool {
        std::mem::take(&mut self.frames)
    }
}

impl Lcore {
    /// A look, if this is the time for looks; true if nothing has come and the turn is over. What a port has received is in the
    /// NIC's burst, for the poll that follows.
    #[inline]
    pub(super) fn is_quiet(&mut self) -> bool {
        if self.quiet.left == 0 {
            return false;
        }
        self.quiet.left -= 1;
        let mut came = !self.mailbox.is_empty();
        for (_, context) in &self.shared.contexts {
            came |= context.bells.any(context.bell_limit);
        }
        for nic in &mut self.nics {
            nic.port.rx_burst(&mut nic.rx_burst);
            self.quiet.frames |= !nic.rx_burst.is_empty();
        }
        if came | self.quiet.frames {
            self.quiet.left = 0;
            return false;
        }
        self.polls += 1;
        self.empty_polls += 1;
        true
    }

    /// A poll did `work` things: if none, and it leaves none to be done either, looks follow.
    #[inline]
    pub(super) fn plan_looks(&mut self, work: usize, now: Nanos) {
        let soon = now + SOON;
        let shared = &self.shared;
        let at_rest = work == 0
            && self.fabric.is_none()
            && shared.contexts.len() <= CONTEXTS
            && shared.closing.is_empty()
            && shared.failed_cqs.is_empty()
            && !shared.has_events()
            && self.nics.iter().all(|nic| waits_for_port(nic, soon))
            && shared.contexts.iter().all(|(_, c)| c.waits_for_program());
        self.quiet.left = if at_rest { LOOKS } else { 0 };
    }
}

/// Whether nothing but a frame, or a program, gives this NIC something to do before `soon`.
#[inline]
fn waits_for_port(nic: &Nic, soon: Nanos) -> bool {
    nic.pause.is_none()
        && !nic.hold_receive
        && !nic.more_due
        && nic.loopback.is_empty()
        && nic.injected.is_empty()
        && nic.tx.is_empty()
        && nic.tx_burst.is_empty()
        && !nic.groups.has_copies()
        && !nic.impair.receiving
        && !nic.impair.sending
        && !nic.engine.has_errored_qps()
        && nic.engine.is_idle(soon)
}
