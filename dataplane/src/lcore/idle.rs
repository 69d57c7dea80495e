//! What an lcore does when a poll found nothing.
//!
//! `spin` polls on. `adaptive` polls on for a moment, then gives up its time slice on each empty poll where the machine
//! is overcommitted (on some of them while nobody takes it) or a memory thread has work for us, then sleeps on an epoll of eventfds. Two threads that
//! spin on one core hand over once a time slice (16 ms); two that yield, in 2.4 us (`docs/performance.md`).

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use roceline_engine::Nanos;

use super::Lcore;
use crate::memory::helper::LcoreWake;

/// Policy of an lcore without work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdlePolicy {
    /// Polls on.
    Spin,
    /// Spins, then yields, then sleeps.
    #[default]
    Adaptive,
}

/// Sleep only after this long without work.
const QUIET: Nanos = Nanos::from_micros(300);
/// Longest sleep while a port has to be polled.
const POLLED_PORT: Nanos = Nanos::from_micros(50);
/// Longest sleep at all: bounds the harm of a program that does not ring.
const LONGEST: Nanos = Nanos::from_millis(100);
/// A switch that has something to do so soon is waited for awake.
const SHORT: Nanos = Nanos::from_micros(60);
/// Longest sleep while receives may be posted to failed QPs, which ring no bell.
const ERRORED: Nanos = Nanos::from_millis(1);

/// A yield that takes longer has let another thread run. To and back are two switches, 2 us; a yield alone is 0.4 us.
const SWITCH: u64 = 1_000;
/// How long a CPU that nobody else wanted counts as ours alone.
const ALONE: Nanos = Nanos::from_micros(5);

/// Operations under way beyond which a busy lcore lets memory threads run that share its CPU.
const HELPER_BACKLOG: usize = 64;

/// The means to sleep.
#[derive(Debug)]
pub struct Idle {
    policy: IdlePolicy,
    epoll: OwnedFd,
    wake: Arc<LcoreWake>,
    cpus: usize,
    last_work: Nanos,
    /// Until then nobody else is thought to want the CPU.
    alone_until: Nanos,
    sleeps: u64,
    /// The CPU was given to others since this was asked last.
    away: bool,
}

impl Idle {
    /// An lcore's; `wake` is its own eventfd. `cpus`: how many the machine has.
    pub fn new(policy: IdlePolicy, wake: Arc<LcoreWake>, cpus: usize) -> io::Result<Idle> {
        // SAFETY: a new descriptor that becomes ours.
        let epoll = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let idle = Idle {
            policy,
            epoll,
            wake,
            cpus,
            last_work: Nanos::ZERO,
            alone_until: Nanos::ZERO,
            sleeps: 0,
            away: false,
        };
        idle.watch(&idle.wake.eventfd);
        Ok(idle)
    }

    /// Times slept.
    pub fn sleeps(&self) -> u64 {
        self.sleeps
    }

    /// Whether the CPU was given to others since this was asked last.
    #[inline]
    pub fn was_away(&mut self) -> bool {
        std::mem::take(&mut self.away)
    }

    /// Lets others have the CPU.
    fn give_way(&mut self) {
        self.away = true;
        std::thread::yield_now();
    }

    /// Wakes on this eventfd too.
    pub fn watch(&self, fd: &impl AsFd) {
        self.control(libc::EPOLL_CTL_ADD, fd);
    }

    /// No longer wakes on it. Closing our copy is not enough: the program has one.
    pub fn unwatch(&self, fd: &impl AsFd) {
        self.control(libc::EPOLL_CTL_DEL, fd);
    }

    fn control(&self, op: i32, fd: &impl AsFd) {
        // Edge-triggered: a program that never stops writing wakes us once a write, and nobody has to read.
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLET) as u32,
            u64: 0,
        };
        let fd = fd.as_fd().as_raw_fd();
        // SAFETY: plain system call with a local event. A failure means no wake by this fd; the longest sleep bounds it.
        unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), op, fd, &raw mut event) };
    }

    fn wait(&mut self, timeout: Nanos) {
        self.sleeps += 1;
        self.away = true;
        let timeout = libc::timespec {
            tv_sec: (timeout.0 / 1_000_000_000) as i64,
            tv_nsec: (timeout.0 % 1_000_000_000) as i64,
        };
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 64];
        // SAFETY: the arrays are valid for the lengths given. epoll_pwait2 (Linux 5.11) takes nanoseconds.
        let n = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.epoll.as_raw_fd() as libc::c_long,
                events.as_mut_ptr(),
                events.len() as libc::c_long,
                &raw const timeout,
                std::ptr::null::<libc::sigset_t>(),
                0 as libc::c_long,
            )
        };
        if n < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// The end of a poll that did `work` things.
pub fn rest(lcore: &mut Lcore, work: usize, now: Nanos) {
    if work > 0 {
        lcore.idle.last_work = now;
        // Memory threads that share our CPU run when we let them: often enough to keep up, seldom enough to batch.
        if lcore.helper_cpus.is_empty()
            && lcore
                .shared
                .contexts
                .iter()
                .any(|(_, c)| c.ops.len() > HELPER_BACKLOG)
        {
            std::thread::yield_now();
        }
        return;
    }
    lcore.empty_polls += 1;
    let waiting = lcore.shared.programs.wait();
    if lcore.idle.policy == IdlePolicy::Spin {
        // Even then memory threads that share our CPU must run.
        if waiting && lcore.helper_cpus.is_empty() {
            lcore.idle.give_way();
        } else {
            std::hint::spin_loop();
        }
        return;
    }
    let quiet = now.saturating_sub(lcore.idle.last_work);
    if quiet >= QUIET {
        sleep(lcore, now);
    } else if waiting {
        lcore.idle.give_way();
    } else if lcore.overcommitted() {
        share(lcore, now);
    } else {
        std::hint::spin_loop();
    }
}

/// Gives the CPU to whoever else waits for it. While nobody does, that is a system call for nothing, during which no work is
/// seen: then it is done now and then only.
fn share(lcore: &mut Lcore, now: Nanos) {
    if now < lcore.idle.alone_until {
        std::hint::spin_loop();
        return;
    }
    let before = lcore.clock.machine();
    lcore.idle.give_way();
    let away = lcore.clock.machine() - before;
    if away < SWITCH {
        lcore.idle.alone_until = now + ALONE;
    } else {
        lcore.idle.alone_until = Nanos::ZERO;
        lcore.quiet.end();
    }
}

impl Lcore {
    /// Whether more threads may want to poll than there are CPUs: this one and a program for each context. A machine
    /// of two CPUs always counts as such, since a second daemon there shares our CPU and cannot be seen from here.
    fn overcommitted(&self) -> bool {
        let cpus = self.idle.cpus;
        cpus <= 2 || self.shared.contexts.len() + 1 > cpus
    }
}

fn sleep(lcore: &mut Lcore, now: Nanos) {
    let mut longest = LONGEST;
    for nic in &lcore.nics {
        if !nic.tx.is_empty()
            || !nic.tx_burst.is_empty()
            || nic.more_due
            || nic.impair.has_work()
            || !nic.injected.is_empty()
        {
            lcore.idle.give_way();
            return;
        }
        if let Some(pause) = &nic.pause {
            if pause.has_work() {
                lcore.idle.give_way();
                return;
            }
            if let Some(deadline) = pause.next_deadline() {
                longest = longest.min(deadline.saturating_sub(now));
            }
        }
        if nic.polled {
            longest = longest.min(POLLED_PORT);
        }
        if nic.engine.has_errored_qps() {
            longest = longest.min(ERRORED);
        }
        if let Some(deadline) = nic.engine.next_deadline() {
            longest = longest.min(deadline.saturating_sub(now));
        }
        if let Some(deadline) = nic.impair.next_deadline() {
            longest = longest.min(deadline.saturating_sub(now));
        }
    }
    if lcore.fabric.as_ref().is_some_and(|f| f.is_polled()) {
        longest = longest.min(POLLED_PORT);
    }
    if let Some(deadline) = lcore.fabric.as_ref().and_then(|f| f.next_deadline()) {
        let left = deadline.saturating_sub(now);
        if left < SHORT {
            // Over before a sleep would be.
            lcore.idle.give_way();
            return;
        }
        longest = longest.min(left);
    }
    if lcore.shared.has_events() || !lcore.shared.closing.is_empty() {
        longest = longest.min(Nanos::from_millis(1));
    }
    set_sleeping(lcore, true);
    fence(Ordering::SeqCst);
    let awake = !lcore.mailbox.is_empty()
        || lcore.shared.contexts.iter().any(|(_, c)| {
            c.bells.any(c.bell_limit) || !c.sends.is_empty() || c.helper.has_outcome()
        })
        || !arm(lcore);
    if !awake && longest > Nanos::ZERO {
        lcore.clock.will_sleep(longest);
        lcore.idle.wait(longest);
    }
    disarm(lcore);
    set_sleeping(lcore, false);
    // It may have been a timer that ended it.
    lcore.quiet.end();
}

/// Lets what arrives from other lcores end the sleep. False if something has arrived.
fn arm(lcore: &mut Lcore) -> bool {
    let mut quiet = true;
    for nic in lcore.nics.iter_mut().filter(|nic| nic.signalled) {
        quiet &= nic.port.arm_rx();
    }
    if let Some(fabric) = &mut lcore.fabric {
        quiet &= fabric.arm();
    }
    quiet
}

/// The sleep is over, or there was none.
fn disarm(lcore: &mut Lcore) {
    for nic in lcore.nics.iter_mut().filter(|nic| nic.signalled) {
        nic.port.disarm_rx();
    }
    if let Some(fabric) = &mut lcore.fabric {
        fabric.disarm();
    }
}

fn set_sleeping(lcore: &Lcore, sleeping: bool) {
    lcore
        .wake
        .sleeping
        .store(u32::from(sleeping), Ordering::SeqCst);
    for (_, context) in &lcore.shared.contexts {
        context.bells.set_sleeping(sleeping);
    }
}
