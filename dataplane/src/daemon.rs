//! Putting a worker together: EAL, mbufs, ports, lcore threads, the control socket; and taking it apart
//! again in the reverse order when a signal says so. The supervisor ([`crate::supervisor`]) starts it.

mod lcores;
mod pools;
mod ports;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use roceline_engine::wire::ethernet;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::Config;
use crate::control::counter_files::CounterFiles;
use crate::control::machine::Machine;
use crate::control::tree::Draft;
use crate::control::{ControlConfig, ControlError, DeviceLimits, LcorePort, Listener};
use crate::fabric::FabricError;
use crate::failures::FailureLog;
use crate::lcore::NicConfig;
use crate::lcore::message::{Command, ContextId, Request};
use crate::neighbour::Neighbours;
use crate::neighbour::pipe::Pipe;
use crate::neighbour::service::NeighbourThread;
use crate::nic::NicInfo;
use crate::port::{Eal, PortError};
use crate::supervisor::Inherited;
use lcores::{Listeners, Polling, Work};

/// Why a daemon did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// DPDK.
    #[error(transparent)]
    Port(#[from] PortError),
    /// Switches.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The control socket.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The files that programs read.
    #[error("cannot write the device tree beside {socket}: {source}")]
    Tree {
        /// Where.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A system call.
    #[error("{what}: {source}")]
    System {
        /// Which.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// No socket was chosen.
    #[error("no control socket: name one with --socket")]
    NoSocket,
    /// The lcore thread ended by itself.
    #[error("a polling thread stopped unexpectedly; please report the log above")]
    LcoreDied,
}

/// What a worker has from its supervisor.
#[derive(Debug)]
pub struct Start {
    /// The way to it, and the listening socket.
    pub inherited: Inherited,
    /// How the worker before ended.
    pub last_end: Option<String>,
}

/// Says what the configuration may say and yet is hardly meant.
fn warn(config: &Config) {
    if let Some((one, other)) = config.fabric.apart() {
        tracing::warn!(
            "there are NICs on the switches {one} and {other}, and no way between the two: where their NICs are to reach \
             each other, name {other} in the `uplinks` of {one}, or a switch that leads there"
        );
    }
    for nic in &config.nics {
        if let Some(warning) = nic.congestion.warning() {
            tracing::warn!(nic = nic.name, "{warning}");
        }
    }
}

/// Runs a worker until SIGINT or SIGTERM. `ready` is called once programs can use it.
pub fn run(config: Config, from: Start, ready: impl FnOnce()) -> Result<(), DaemonError> {
    // Before there is another thread.
    Eal::prepare();
    let socket = config.control.socket.clone().ok_or(DaemonError::NoSocket)?;
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|source| DaemonError::System {
        what: "signal handlers",
        source,
    })?;
    let machine = Machine::from_environment();
    warn(&config);
    let mut infos = config.nic_infos();
    let first = machine.first_uverbs();
    infos.iter_mut().for_each(|nic| nic.uverbs += first);
    let infos: Arc<[NicInfo]> = infos.into();
    let links = infos.iter().map(|nic| nic.link.clone()).collect();
    let neighbours = Arc::new(Neighbours::new(config.networks(&infos), links));
    let Inherited {
        keeper,
        socket: listening,
        restarts,
        ..
    } = from.inherited;
    let keeper = Arc::new(keeper);
    let control = ControlConfig {
        socket: socket.clone(),
        socket_mode: config.control.mode,
        nics: Arc::clone(&infos),
        switch_ports: config.fabric.ports().into(),
        neighbours: Arc::clone(&neighbours),
        limits: DeviceLimits::default(),
        quotas: config.limits.quotas,
        allowed_users: config.control.users.clone(),
        operators: config.control.operators.clone(),
        wiring: config.wiring(),
        impair: config.impair.clone(),
        keeper: Some(Arc::clone(&keeper)),
        restarts,
        last_end: from.last_end,
    };
    let listener = Listener::inherited(control, listening);
    let starting = StartWatch::begin()?;
    if signals.pending().next().is_some() {
        // It came before the watch began.
        return Ok(());
    }

    let failed = |what| move |source| DaemonError::System { what, source };
    // Beside EAL's start.
    let draft = {
        let (socket, infos) = (socket.clone(), Arc::clone(&infos));
        thread::Builder::new()
            .name("tree".into())
            .spawn(move || Draft::write(machine, &socket, &infos))
            .map_err(failed("thread for the device tree"))?
    };
    let eal = Eal::init(&ports::eal_config(&config))?;
    let pools = pools::pools(&eal, &config)?;
    let (mut fabrics, ends) = ports::fabrics(&config, &pools)?;
    let mut work: Vec<Vec<NicConfig>> = config.lcores.iter().map(|_| Vec::new()).collect();
    let nics = ports::nics(&config, &infos, &eal, &pools, ends)?;
    for (nic, parts) in config.nics.iter().zip(nics) {
        for (&lcore, part) in nic.lcores.iter().zip(parts) {
            work[lcore].push(part);
        }
    }

    let seats = lcores::seats(&config)?;
    let way: Arc<dyn LcorePort> = Arc::new(lcores::way_to(&seats, &config));
    let failures = FailureLog::start(Arc::clone(&way)).map_err(failed("failure log thread"))?;
    let pipes: Vec<Arc<Pipe>> = infos
        .iter()
        .map(|nic| Arc::new(Pipe::new(nic.port_mtu as usize + ethernet::LEN)))
        .collect();
    let neighbour_thread = match neighbours.any_wired() {
        false => None,
        true => {
            let started = NeighbourThread::start(neighbours, pipes.clone(), Arc::clone(&way));
            Some(started.map_err(failed("neighbour thread"))?)
        }
    };
    let listeners = Listeners {
        signals: signals.handle(),
        failures: failures.thread(),
        pipes,
        neighbours: neighbour_thread.as_ref().and_then(NeighbourThread::thread),
    };
    let mut polling = Polling::new();
    let seats = seats.into_iter().zip(work).zip(pools);
    for (number, ((seat, nics), share)) in seats.enumerate() {
        let work = Work {
            nics,
            fabric: fabrics.remove(&number),
            share,
        };
        polling.start(number, seat, work, eal.clone(), &listeners)?;
    }

    // From here on there is more to tidy up, and nothing that takes long.
    drop(starting);
    lcores::leave_to_lcores(&config);
    let draft = draft.join().unwrap_or_else(|_| {
        Err(io::Error::other(
            "its thread ended; please report the log above",
        ))
    });
    let tree = draft.and_then(|draft| draft.publish(&infos));
    let mut tree = tree.map_err(|source| DaemonError::Tree {
        socket: socket.clone(),
        source,
    })?;
    tree.stay();
    let counters = CounterFiles::start(tree, Arc::clone(&infos), Arc::clone(&way))
        .map_err(failed("counter thread"))?;
    let server = listener.start(Arc::clone(&way))?;
    tracing::info!(socket = %socket.display(), "ready");
    keeper.ready();
    ready();

    let signalled = signals.forever().next();
    if let Some(signal) = signalled {
        tracing::info!(signal, "stopping");
    }
    if keeper.is_alone() {
        tracing::error!("the supervisor died: the devices end");
        end_devices(&*way);
    }
    // New opens end first, then sessions, then the loop; EAL and its ports go last, by their owners' drop.
    drop(counters);
    drop(failures);
    // Programs that wait for an address are let go.
    drop(neighbour_thread);
    server.stop();
    polling.stop()?;
    keeper.stopped();
    if signalled.is_none() {
        Err(DaemonError::LcoreDied)
    } else {
        Ok(())
    }
}

/// Ends the process when a signal comes while the daemon starts: EAL and drivers may take long (hugepages to clear, a
/// device that does not answer), and cannot be interrupted. What is there by then is a draft of the device tree, which the
/// supervisor removes.
struct StartWatch {
    signals: signal_hook::iterator::Handle,
    thread: Option<JoinHandle<()>>,
}

impl StartWatch {
    fn begin() -> Result<StartWatch, DaemonError> {
        let failed = |what| move |source| DaemonError::System { what, source };
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed("signal handlers"))?;
        let handle = signals.handle();
        let thread = thread::Builder::new()
            .name("start-watch".into())
            .spawn(move || {
                if signals.forever().next().is_some() {
                    tracing::info!("stopped while starting");
                    // SAFETY: ends the process. Exit handlers are left out: DPDK's would run beside its start.
                    unsafe { libc::_exit(0) };
                }
            })
            .map_err(failed("signal thread"))?;
        Ok(StartWatch {
            signals: handle,
            thread: Some(thread),
        })
    }
}

impl Drop for StartWatch {
    fn drop(&mut self) {
        self.signals.close();
        if let Some(thread) = self.thread.take() {
            // It does nothing that could fail.
            let _ = thread.join();
        }
    }
}

/// How long the polling threads have to tell programs of the end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Lets the polling threads tell all programs that their devices are gone.
fn end_devices(lcores: &dyn LcorePort) {
    let asked = (0..lcores.count()).map(|lcore| {
        let (reply, answer) = sync_channel(1);
        let request = Request {
            context: ContextId::NONE,
            command: Command::Fatal,
            reply,
        };
        lcores.send(lcore, request).is_ok().then_some(answer)
    });
    // First all are asked.
    let asked: Vec<_> = asked.collect();
    let end = Instant::now() + LAST_WORDS;
    let told = asked.into_iter().all(|answer| {
        let left = end.saturating_duration_since(Instant::now());
        answer.is_some_and(|answer| answer.recv_timeout(left).is_ok())
    });
    if !told {
        tracing::error!("a polling thread does not answer: programs see the end of their pipes");
    }
}
