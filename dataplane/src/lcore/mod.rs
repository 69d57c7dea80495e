//! The poll loop and its stages.
//!
//! One [`Lcore`] runs on one pinned thread and owns its NICs, their contexts, QPs and CQs. Each poll serves
//! messages of control threads, then for each NIC receives a burst, takes ended memory operations, reads doorbells,
//! fires timers and transmits; at its end helpers are kicked and events are written. Nothing in a poll blocks, and
//! with no message to serve nothing in it allocates.

mod ah;
mod atomic;
mod build;
mod clock;
mod cnp;
mod commands;
mod congestion;
mod context;
mod doorbell;
mod drain;
mod dropped;
mod events;
mod few;
mod gids;
mod idle;
mod impair;
mod inject;
mod link;
mod mailbox;
pub mod message;
pub mod multicast;
mod mw;
mod nic;
mod notes;
mod notify;
mod others;
mod overflow;
mod pause;
mod post_mortems;
pub mod probe;
mod program;
mod qp_table;
mod queue;
mod quiet;
mod received;
mod router;
pub(crate) mod slice;
mod snapshot;
mod srq;
mod stages;
pub mod tap;
mod tuning;
pub mod usage;
mod wqe;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;

use roceline_engine::{Counters, EngineConfig, Nanos, Outputs};
use slab::Slab;

pub use idle::IdlePolicy;
pub use mailbox::Mailbox;
pub use nic::NicCounts;
pub use pause::PauseReport;
pub use router::Lcores;
pub use tuning::Tuning;

use crate::fabric::Fabric;
use crate::fabric::report::FabricReport;
use crate::memory::helper::LcoreWake;
use crate::nic::NicInfo;
use crate::port::{Burst, Mempool, Port};
use crate::watchdog::Heart;
use clock::Clock;
use commands::close;
use context::{Context, ContextKey};
use idle::Idle;
use message::{ContextId, Remains, Reply};
use nic::{Nic, Shared};
use notify::{write_due, write_stuck};
use probe::{NoProbe, Probe, Stage};
use program::Programs;
use quiet::Quiet;
use tap::Taps;
use usage::Usage;

/// Requests served in one poll, so that data never waits long for control.
const REQUESTS_PER_POLL: usize = 4;
/// How often events of programs that do not read them are tried again.
const EVENT_RETRY: Nanos = Nanos::from_millis(1);

/// How often ports do their slow things.
const MAINTAIN: Nanos = Nanos::from_millis(250);

/// What an lcore needs to know.
#[derive(Debug)]
pub struct LcoreConfig {
    /// CPU to be pinned to.
    pub cpu: Option<usize>,
    /// CPUs for the threads that reach programs' memory; empty: the lcore's own.
    pub helper_cpus: Arc<[usize]>,
    /// CPUs of the machine that this process may use.
    pub cpus: usize,
    /// Without work.
    pub idle: IdlePolicy,
    /// Send requests read for one program in one poll.
    pub requests_per_poll: u32,
}

/// A NIC to run.
#[derive(Debug)]
pub struct NicConfig {
    /// Name, addresses, limits.
    pub info: Arc<NicInfo>,
    /// Where its packets go.
    pub port: Port,
    /// The port's other end is not on this lcore: packets come even when all is quiet here.
    pub polled: bool,
    /// Its transport.
    pub engine: EngineConfig,
}

/// The NIC of this index among all of the daemon, if it is one of these.
fn of_index(nics: &mut [Nic], index: u32) -> Option<&mut Nic> {
    nics.iter_mut().find(|nic| nic.info.index == index)
}

/// One lcore with all it owns.
pub struct Lcore {
    nics: Vec<Nic>,
    /// Switches that it owns, too.
    fabric: Option<Box<Fabric>>,
    shared: Shared,
    ids: HashMap<ContextId, ContextKey>,
    mailbox: Arc<Mailbox>,
    wake: Arc<LcoreWake>,
    idle: Idle,
    quiet: Quiet,
    helper_cpus: Arc<[usize]>,
    cpu: Option<usize>,
    clock: Clock,
    event_retry: Nanos,
    maintain_at: Nanos,
    polls: u64,
    empty_polls: u64,
    /// Things done since the load was told of last.
    done: u64,
    /// Records of failed queue pairs that `failure_log` was told of.
    failures: u64,
    /// Woken when there are more.
    failure_log: Option<Thread>,
    /// Woken when there are frames that are not RoCE.
    others_thread: Option<Thread>,
    /// Beats as long as polls end.
    heart: Arc<Heart>,
    /// What it does with its time, while somebody looks.
    usage: Usage,
}

impl Lcore {
    /// An lcore that has not started. To be called on its own thread: it is pinned here.
    pub fn new(
        config: LcoreConfig,
        nics: Vec<NicConfig>,
        pool: Arc<Mempool>,
        mailbox: Arc<Mailbox>,
        wake: Arc<LcoreWake>,
    ) -> io::Result<Lcore> {
        if let Some(cpu) = config.cpu {
            if !core_affinity::set_for_current(core_affinity::CoreId { id: cpu }) {
                return Err(io::Error::other(format!(
                    "cannot pin the lcore to CPU {cpu}; choose a CPU that this process may use"
                )));
            }
        }
        slice::shorten();
        let held_most = pool.config().count as usize / 2;
        let idle = Idle::new(config.idle, Arc::clone(&wake), config.cpus)?;
        let nics: Vec<Nic> = nics
            .into_iter()
            .enumerate()
            .map(|(place, n)| {
                let mut nic = Nic::new(n.info, place, n.port, n.polled, n.engine);
                let pause = nic.settings.pfc;
                nic.set_pause(&pause, Nanos::ZERO);
                if pause.is_on() {
                    let by = match nic.port_pauses {
                        true => "the port's hardware",
                        false => "the polling thread",
                    };
                    tracing::info!(nic = nic.info.name, by, mode = ?pause.mode, "pauses on");
                }
                if let Some(event) = nic.port.rx_event().filter(|_| nic.signalled) {
                    idle.watch(&event);
                }
                nic
            })
            .collect();
        Ok(Lcore {
            usage: Usage::new(&nics),
            nics,
            fabric: None,
            shared: Shared {
                contexts: Slab::new(),
                cqs: Slab::new(),
                pds: Slab::new(),
                pool,
                out: Outputs::new(),
                fresh: Burst::new(),
                built: Burst::new(),
                plans: Vec::with_capacity(Burst::CAPACITY),
                unshown: Vec::with_capacity(Outputs::EVENTS),
                unpublished: Vec::with_capacity(Outputs::EVENTS),
                ends: Vec::with_capacity(128),
                placed: Vec::with_capacity(2 * Outputs::PLACE),
                fetched: Vec::with_capacity(2 * Outputs::TX),
                now: Nanos::ZERO,
                programs: Programs::default(),
                kicks: Vec::with_capacity(1024),
                closing: Vec::new(),
                due_events: VecDeque::with_capacity(1024),
                stuck_events: VecDeque::with_capacity(1024),
                failed_cqs: VecDeque::with_capacity(64),
                held: 0,
                held_most,
                taps: Taps::new(),
                requests_per_poll: config.requests_per_poll as usize,
                tuning: Tuning::default(),
            },
            ids: HashMap::new(),
            mailbox,
            idle,
            quiet: Quiet::default(),
            wake,
            helper_cpus: config.helper_cpus,
            cpu: config.cpu,
            clock: Clock::new(),
            event_retry: Nanos::ZERO,
            maintain_at: Nanos::ZERO,
            polls: 0,
            empty_polls: 0,
            done: 0,
            failures: 0,
            failure_log: None,
            others_thread: None,
            heart: Arc::default(),
        })
    }

    /// Wakes `thread` at the end of each poll in which a queue pair failed.
    pub fn tell_failures(&mut self, thread: Option<Thread>) {
        self.failure_log = thread;
    }

    /// Its pool is that of so many lcores: impairments hold back no more than its share.
    pub fn share_pool(&mut self, lcores: usize) {
        self.shared.held_most /= lcores.max(1);
    }

    /// Gives it switches to own.
    pub fn own_fabric(&mut self, fabric: Fabric) {
        for event in fabric.rx_events() {
            self.idle.watch(&event);
        }
        self.fabric = Some(Box::new(fabric));
    }

    /// The NIC of this index among all of the daemon, if it is one of ours.
    fn nic(&mut self, index: u32) -> Option<&mut Nic> {
        of_index(&mut self.nics, index)
    }

    /// What its switches have done.
    pub fn fabric_report(&self, now: Nanos) -> FabricReport {
        let fabric = self.fabric.as_ref();
        fabric.map_or_else(FabricReport::default, |fabric| fabric.report(now))
    }

    /// Lets `heart` beat while this runs.
    pub fn watch_by(&mut self, heart: Arc<Heart>) {
        self.heart = heart;
    }

    /// Polls until `stop` is set (and the lcore woken).
    pub fn run(&mut self, stop: &AtomicBool) {
        self.heart.begin();
        while !stop.load(Ordering::Relaxed) {
            self.step();
        }
        self.heart.end();
    }

    /// One turn at the present time and the rest after it, as [`Lcore::run`] has them. While somebody looks at the loop each turn is a
    /// poll.
    #[inline]
    pub fn step(&mut self) {
        if !self.usage.is_on() && self.is_quiet() {
            return;
        }
        let now = self.clock.now();
        let work = match self.usage.is_on() {
            false => self.poll(now, &mut NoProbe),
            true => usage::poll(self, now),
        };
        idle::rest(self, work, now);
    }

    /// The present time, as polls take it.
    #[inline]
    pub fn now(&mut self) -> Nanos {
        self.clock.now()
    }

    /// One poll as while somebody looks at the loop ([`usage`]); gives the number of things done.
    #[inline]
    pub fn watched_poll(&mut self, now: Nanos) -> usize {
        if !self.usage.is_on() {
            self.usage.ask(now, usage::LONGEST);
        }
        usage::poll(self, now)
    }

    /// One turn of the loop at the present time: a poll, or a look that finds nothing ([`quiet`]); gives the number of things done.
    /// For callers that are the loop themselves.
    pub fn turn<P: Probe>(&mut self, probe: &mut P) -> usize {
        if self.is_quiet() {
            return 0;
        }
        let now = self.clock.now();
        self.poll(now, probe)
    }

    /// One poll; gives the number of things done.
    pub fn poll<P: Probe>(&mut self, now: Nanos, probe: &mut P) -> usize {
        self.polls += 1;
        self.shared.now = now;
        probe.begin(Stage::Messages);
        let mut work = match self.quiet.take_frames() {
            false => self.messages(now),
            true => 0,
        };
        if let Some(fabric) = &mut self.fabric {
            probe.begin(Stage::Fabric);
            // Before NICs look at the clock, so that after a poll that is late a pause which was to last is told again before it has run out.
            work += fabric.poll(now, &mut self.shared.taps);
        }
        for nic in &mut self.nics {
            probe.begin_of(Stage::Receive, nic.place);
            work += stages::receive(nic, &mut self.shared, now);
        }
        let mut n = 0;
        while let Some(program) = self.shared.programs.nth(n) {
            n += 1;
            let mut budget = self.shared.requests_per_poll;
            for _ in 0..self.shared.programs.turn(program) {
                let key = self.shared.programs.next(program);
                let nic = &mut self.nics[self.shared.contexts[key].nic];
                probe.begin_of(Stage::Memory, nic.place);
                work += stages::operations(nic, &mut self.shared, key, now);
                if budget > 0 {
                    probe.begin_of(Stage::Doorbells, nic.place);
                    let taken = stages::doorbells(nic, &mut self.shared, key, budget);
                    probe.requests(nic.place, taken);
                    budget = budget.saturating_sub(taken);
                    work += taken;
                }
            }
        }
        for nic in &mut self.nics {
            probe.begin_of(Stage::Timers, nic.place);
            work += stages::timers(nic, &mut self.shared, now);
            probe.begin_of(Stage::Transmit, nic.place);
            work += stages::transmit(nic, &mut self.shared, now);
        }
        probe.begin(Stage::End);
        work += self.end_poll(now);
        self.done += work as u64;
        if now >= self.maintain_at {
            self.maintain_at = now + MAINTAIN;
            let load = self.mailbox.load();
            load.set(self.shared.contexts.len(), std::mem::take(&mut self.done));
            self.heart.beat();
            for nic in &mut self.nics {
                nic.port.maintain();
            }
            link::follow(self);
        }
        self.plan_looks(work, now);
        work
    }

    /// Counters of NIC `nic`.
    ///
    /// # Panics
    /// If there is no such NIC.
    pub fn counters(&self, nic: usize) -> &Counters {
        self.nics[nic].engine.counters()
    }

    /// What NIC `nic` counted outside its transport.
    ///
    /// # Panics
    /// If there is no such NIC.
    pub fn nic_counts(&self, nic: usize) -> NicCounts {
        self.nics[nic].counts
    }

    fn messages(&mut self, now: Nanos) -> usize {
        let mut served = 0;
        let mut changes = 0;
        while served < REQUESTS_PER_POLL {
            let Some(request) = self.mailbox.pop() else {
                break;
            };
            // Who only reads counters, ten times a second, is no sign that there will be work: an idle loop goes back to
            // sleep at once.
            changes += usize::from(!request.command.only_counts());
            commands::serve(self, request, now);
            served += 1;
        }
        changes
    }

    /// Kicks helpers, writes events, and goes on taking down contexts. Gives what is left to be done at once.
    fn end_poll(&mut self, now: Nanos) -> usize {
        self.shared.taps.settle();
        while let Some(key) = self.shared.kicks.pop() {
            // It may be gone by now.
            if let Some(context) = self.shared.contexts.get_mut(key) {
                context.kick = false;
                context.helper.kick();
                self.shared.programs.count(context);
            }
        }
        let mut left = 0;
        let mut objects = close::PER_POLL;
        if self.shared.closing.len() > 1 {
            // Another one comes first in each poll.
            self.shared.closing.rotate_left(1);
        }
        for at in (0..self.shared.closing.len()).rev() {
            let key = self.shared.closing[at];
            left += usize::from(self.shared.contexts[key].ops.is_empty());
            let nic = &mut self.nics[self.shared.contexts[key].nic];
            if let Some(gone) = close::go_on(nic, &mut self.shared, key, &mut objects) {
                self.shared.closing.swap_remove(at);
                self.forget(gone);
            }
        }
        if !self.shared.due_events.is_empty() {
            write_due(&mut self.shared);
        }
        if !self.shared.stuck_events.is_empty() && now >= self.event_retry {
            self.event_retry = now + EVENT_RETRY;
            write_stuck(&mut self.shared);
        }
        self.wake_others();
        let last = |nic: &Nic| nic.engine.post_mortems().last();
        let failures = self.nics.iter().map(last).sum();
        if failures != self.failures {
            self.failures = failures;
            if let Some(thread) = &self.failure_log {
                thread.unpark();
            }
        }
        left + self.shared.due_events.len()
    }

    fn forget(&mut self, context: Context) {
        let load = self.mailbox.load();
        load.set_contexts(self.shared.contexts.len());
        self.idle.unwatch(&context.wake);
        if let Some(reply) = context.closing.clone() {
            // To free it takes system calls, to unmap its file more than a few. The control thread has time for that; if it
            // has given up, it is done here.
            let _ = reply.try_send(Reply::Gone(Remains::of(context)));
        }
    }
}
