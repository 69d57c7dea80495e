//! Looks between polls.
//!
//! Most polls of a loop that waits find nothing, and most of what they look at only a poll can change. So a poll that leaves
//! nothing to do behind it is followed by a few looks at what comes from outside: requests of control threads, frames at
//! ports, doorbells. They read no clock and walk through no stage, so that what comes is seen sooner; the next poll is still
//! so near that timers do not notice.

use roceline_engine::Nanos;

use super::Lcore;
use super::nic::Nic;

/// Looks that follow a poll, at most.
const LOOKS: u32 = 7;
/// Ports that are looked at between two polls. To look at a ring takes no longer than a miss in the cache; drivers that
/// make a system call of it take longer, and timers of their NICs are later by that.
const PORTS: u32 = 2 * LOOKS;
/// What is due so soon is waited for by polls: longer than to look at [`PORTS`] takes.
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

/// How many looks follow a poll of so many ports.
#[inline]
fn looks(ports: usize) -> u32 {
    LOOKS.min(PORTS / u32::try_from(ports).unwrap_or(u32::MAX).max(1))
}

impl Quiet {
    /// The next turn is a poll: time has passed, which looks do not see.
    #[inline]
    pub fn end(&mut self) {
        self.left = 0;
    }

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
        self.quiet.left = match at_rest {
            true => looks(self.nics.len()),
            false => 0,
        };
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use roceline_engine::AckPolicy;

    use super::*;
    use crate::bench::pair::{engine, lcore_with, nic_of};
    use crate::config::{Config, Preset};
    use crate::lcore::{IdlePolicy, LcoreConfig};
    use crate::port::{Eal, FabricLink, FabricLinkConfig, Mempool, MempoolConfig, Port};

    /// Whatever ends a sleep, maybe a timer: what is due is not behind looks.
    #[test]
    fn a_poll_follows_a_sleep() {
        let pool = MempoolConfig {
            name: "quiet".into(),
            ..MempoolConfig::default()
        };
        let pool = Mempool::new(Eal::of_tests(), &pool).unwrap();
        let infos = Config::preset(Preset::Pair).unwrap().nic_infos();
        let (ours, _end) = FabricLink::pair(&FabricLinkConfig::default()).unwrap();
        let nic = nic_of(&infos[0], Port::new(ours), engine(AckPolicy::Coalesced));
        let config = LcoreConfig {
            cpu: None,
            helper_cpus: Arc::new([]),
            cpus: 1,
            idle: IdlePolicy::Adaptive,
            requests_per_poll: 64,
        };
        let (mut lcore, _, _) = lcore_with(config, vec![nic], pool).unwrap();
        // Of itself it sleeps when it has found nothing for a while.
        while lcore.idle.sleeps() == 0 {
            lcore.step();
        }
        assert_eq!(lcore.quiet.left, 0);
    }

    #[test]
    fn more_ports_are_looked_at_less_often() {
        assert_eq!([1, 2, 3, 7, 8, 14, 15].map(looks), [7, 7, 4, 2, 1, 1, 0]);
        assert_eq!(looks(0), LOOKS);
        assert_eq!(looks(usize::MAX), 0);
        assert!((1..100).all(|ports| looks(ports) * ports as u32 <= PORTS));
    }
}
