//! The polling threads of a daemon, and what belongs to each: mailbox, wake-up, watchdog, CPU.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use super::DaemonError;
use super::pools::Share;
use crate::config::{Config, Idle};
use crate::fabric::Fabric;
use crate::lcore::{IdlePolicy, Lcore, LcoreConfig, Lcores, Mailbox, NicConfig, Tuning};
use crate::memory::helper::{HelperCpus, LcoreWake, restrict_to};
use crate::neighbour::pipe::Pipe;
use crate::port::Eal;
use crate::watchdog::{Heart, Watchdog};

/// A polling thread that has not started.
pub(super) struct Seat {
    config: LcoreConfig,
    tuning: Tuning,
    mailbox: Arc<Mailbox>,
    wake: Arc<LcoreWake>,
    watchdog: Duration,
}

/// What a polling thread runs.
pub(super) struct Work {
    /// Its NICs.
    pub nics: Vec<NicConfig>,
    /// Its switches.
    pub fabric: Option<Fabric>,
    /// Its packets.
    pub share: Share,
}

/// Whom the polling threads tell of things.
pub(super) struct Listeners {
    /// Ends the daemon when a thread has ended.
    pub signals: signal_hook::iterator::Handle,
    /// Woken when a queue pair has failed.
    pub failures: Option<Thread>,
    /// Frames that are not RoCE, by NIC index.
    pub pipes: Vec<Arc<Pipe>>,
    /// Woken when there are some.
    pub neighbours: Option<Thread>,
}

/// A place for each lcore of the configuration, in their order.
pub(super) fn seats(config: &Config) -> Result<Vec<Seat>, DaemonError> {
    let polling = CpuPlan::new(config, crate::config::allowed_cpus());
    (0..config.lcores.len())
        .map(|number| {
            let lcore = polling.lcore(config, number);
            let wake = Arc::new(LcoreWake {
                sleeping: AtomicU32::new(0),
                eventfd: eventfd().map_err(failed("eventfd"))?,
            });
            let helpers = HelperCpus {
                // They are started by control threads, which may not run where lcores poll.
                cpus: match (lcore.helper_cpus.is_empty(), lcore.cpu) {
                    (true, Some(cpu)) => Arc::new([cpu]),
                    _ => Arc::clone(&lcore.helper_cpus),
                },
                shared: lcore.helper_cpus.is_empty(),
            };
            Ok(Seat {
                config: lcore,
                tuning: config.lcores[number].tuning,
                mailbox: Arc::new(Mailbox::new(Arc::clone(&wake), helpers)),
                wake,
                watchdog: Duration::from_secs(config.lcores[number].watchdog_s.into()),
            })
        })
        .collect()
}

/// The way to lcores with these seats.
pub(super) fn way_to(seats: &[Seat], config: &Config) -> Lcores {
    let mailboxes = seats.iter().map(|seat| Arc::clone(&seat.mailbox));
    let numbers = |lcores: &[usize]| lcores.iter().map(|&lcore| lcore as u32).collect();
    let serving = config.nics.iter().map(|nic| numbers(&nic.lcores));
    Lcores::new(mailboxes.collect(), serving.collect())
}

/// The CPUs of polling threads.
struct CpuPlan {
    allowed: Vec<usize>,
    polled: BTreeSet<usize>,
}

impl CpuPlan {
    fn new(config: &Config, allowed: Vec<usize>) -> CpuPlan {
        CpuPlan {
            allowed,
            polled: config.lcores.iter().filter_map(|l| l.cpu).collect(),
        }
    }

    /// Those on which nobody polls.
    fn free(&self) -> Vec<usize> {
        let free = self.allowed.iter().filter(|cpu| !self.polled.contains(cpu));
        free.copied().collect()
    }

    fn lcore(&self, config: &Config, number: usize) -> LcoreConfig {
        let own = &config.lcores[number];
        // With a core to spare, the threads that reach programs' memory run beside the loop; on two cores the other one
        // belongs to the programs.
        let helper_cpus = match own.cpu {
            Some(_) if self.allowed.len() > 2 => self.free(),
            _ => Vec::new(),
        };
        // The others want to poll, too. Two on one CPU give way to each other as on a machine that has no other.
        let beside =
            |other: &&crate::config::LcoreConfig| other.cpu.is_some() && other.cpu == own.cpu;
        let cpus = match config.lcores.iter().filter(beside).count() {
            0 | 1 => self
                .allowed
                .len()
                .saturating_sub(config.lcores.len() - 1)
                .max(1),
            _ => 1,
        };
        LcoreConfig {
            cpu: own.cpu,
            helper_cpus: helper_cpus.into(),
            cpus,
            requests_per_poll: config.limits.requests_per_poll,
            idle: match own.idle {
                Idle::Spin => IdlePolicy::Spin,
                Idle::Adaptive => IdlePolicy::Adaptive,
            },
        }
    }
}

/// Keeps this thread, and those that it starts from now on, off the polling threads' CPUs if there is another. Programs that ask
/// without end would otherwise take time of them from everybody's packets.
pub(super) fn leave_to_lcores(config: &Config) {
    let plan = CpuPlan::new(config, crate::config::allowed_cpus());
    if !plan.polled.is_empty() {
        // Empty: nothing changes.
        restrict_to(&plan.free());
    }
}

type Handle = JoinHandle<Result<(), DaemonError>>;

/// The polling threads of a daemon. Dropping it stops them, too.
pub(super) struct Polling {
    stop: Arc<AtomicBool>,
    threads: Vec<(Arc<LcoreWake>, Handle)>,
    watchdogs: Vec<Watchdog>,
}

impl Polling {
    /// None yet.
    pub(super) fn new() -> Polling {
        Polling {
            stop: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
            watchdogs: Vec::new(),
        }
    }

    /// Starts the thread of lcore `number`.
    pub(super) fn start(
        &mut self,
        number: usize,
        seat: Seat,
        work: Work,
        eal: Eal,
        listeners: &Listeners,
    ) -> Result<(), DaemonError> {
        let Seat {
            config,
            tuning,
            mailbox,
            wake,
            watchdog,
        } = seat;
        let heart = Arc::new(Heart::default());
        let watched = Watchdog::start(Arc::clone(&heart), watchdog, number);
        self.watchdogs
            .push(watched.map_err(failed("watchdog thread"))?);
        let closer = CloseOnDrop(listeners.signals.clone());
        let (failures, neighbours) = (listeners.failures.clone(), listeners.neighbours.clone());
        let pipes = listeners.pipes.clone();
        let (woken, stop) = (Arc::clone(&wake), Arc::clone(&self.stop));
        let run = move || {
            // Whatever ends this thread must end the daemon too.
            let _closer = closer;
            let _eal_thread = eal.register_thread();
            let Work {
                nics,
                fabric,
                share: Share { pool, sharers },
            } = work;
            let mut lcore =
                Lcore::new(config, nics, pool, mailbox, wake).map_err(failed("polling thread"))?;
            lcore.share_pool(sharers);
            lcore.tune(tuning);
            if let Some(fabric) = fabric {
                lcore.own_fabric(fabric);
            }
            lcore.tell_failures(failures);
            if neighbours.is_some() {
                lcore.hand_over_others(&pipes, neighbours);
            }
            lcore.watch_by(heart);
            lcore.run(&stop);
            Ok(())
        };
        let thread = thread::Builder::new().name(format!("lcore{number}"));
        let thread = thread.spawn(run).map_err(failed("polling thread"))?;
        self.threads.push((woken, thread));
        Ok(())
    }

    /// Ends them all, and waits for it. The first error is returned.
    pub(super) fn stop(mut self) -> Result<(), DaemonError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), DaemonError> {
        self.stop.store(true, Ordering::SeqCst);
        for (wake, _) in &self.threads {
            wake.ring();
        }
        let ends = self.threads.drain(..).map(|(_, thread)| thread.join());
        // All of them, before one error is looked at.
        let ends: Vec<_> = ends.collect();
        ends.into_iter()
            .try_for_each(|end| end.unwrap_or(Err(DaemonError::LcoreDied)))
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        // On the way out with another error; that is the one to be told.
        let _ = self.end();
    }
}

struct CloseOnDrop(signal_hook::iterator::Handle);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> DaemonError {
    move |source| DaemonError::System { what, source }
}

fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor that becomes ours.
    unsafe {
        match libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}
