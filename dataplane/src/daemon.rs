//! Putting a worker together: EAL, mbufs, ports, one lcore thread, the control socket; and taking it apart
//! again in the reverse order when a signal says so. The supervisor ([`crate::supervisor`]) starts it.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use roceline_engine::EngineConfig;
use roceline_engine::wire::ethernet;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::config::{Config, Hugepages, Idle, PortSpec};
use crate::control::counter_files::CounterFiles;
use crate::control::machine::Machine;
use crate::control::tree::Tree;
use crate::control::{ControlConfig, ControlError, DeviceLimits, LcorePort, Listener};
use crate::fabric::plan::Plan;
use crate::fabric::{Fabric, FabricError};
use crate::failures::FailureLog;
use crate::lcore::message::{Command, ContextId, Request};
use crate::lcore::{IdlePolicy, Lcore, LcoreConfig, Mailbox, NicConfig};
use crate::memory::helper::{HelperCpus, LcoreWake, restrict_to};
use crate::neighbour::Neighbours;
use crate::neighbour::pipe::Pipe;
use crate::neighbour::service::NeighbourThread;
use crate::nic::NicInfo;
use crate::port::{
    Eal, EalConfig, Ethdev, EthdevConfig, FabricEnd, FabricLink, FabricLinkConfig, Huge, Mempool,
    MempoolConfig, Port, PortError,
};
use crate::supervisor::Inherited;
use crate::watchdog::{Heart, Watchdog};

/// Packets that a requester may have unacknowledged.
const WINDOW: u32 = 256;
/// Packets that a fabric link holds in each direction.
pub(crate) const LINK_PACKETS: usize = 1024;
/// Mbufs of the lcore: what two NICs have in links, bursts and memory operations.
const MBUFS: u32 = 8192;

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
    #[error("the polling thread stopped unexpectedly; please report the log above")]
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

/// Runs a worker until SIGINT or SIGTERM. `ready` is called once programs can use it.
pub fn run(config: Config, from: Start, ready: impl FnOnce()) -> Result<(), DaemonError> {
    let socket = config.control.socket.clone().ok_or(DaemonError::NoSocket)?;
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|source| DaemonError::System {
        what: "signal handlers",
        source,
    })?;
    let machine = Machine::from_environment();
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

    let eal = Eal::init(&eal_config(&config))?;
    let pool = Mempool::new(
        &eal,
        &MempoolConfig {
            count: mbufs(&config.fabric),
            ..MempoolConfig::default()
        },
    )?;
    let (fabric, ends) = fabric(&config.fabric, &pool)?;
    let nics = nics(&config, &infos, &eal, &pool, ends)?;

    // SAFETY: a new descriptor that becomes ours.
    let eventfd = unsafe {
        use std::os::fd::{FromRawFd, OwnedFd};
        let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
        if fd < 0 {
            return Err(DaemonError::System {
                what: "eventfd",
                source: io::Error::last_os_error(),
            });
        }
        OwnedFd::from_raw_fd(fd)
    };
    let wake = Arc::new(LcoreWake {
        sleeping: AtomicU32::new(0),
        eventfd,
    });
    let lcore_config = lcore_config(&config);
    let helpers = HelperCpus {
        // They are started by control threads, which may not run where the lcore polls.
        cpus: match (lcore_config.helper_cpus.is_empty(), lcore_config.cpu) {
            (true, Some(cpu)) => Arc::new([cpu]),
            _ => Arc::clone(&lcore_config.helper_cpus),
        },
        shared: lcore_config.helper_cpus.is_empty(),
    };
    let mailbox = Arc::new(Mailbox::new(Arc::clone(&wake), helpers));
    let stop = Arc::new(AtomicBool::new(false));
    let lcore_cpu = lcore_config.cpu;

    let signal_handle = signals.handle();
    let failures =
        FailureLog::start(Arc::clone(&mailbox)).map_err(|source| DaemonError::System {
            what: "failure log thread",
            source,
        })?;
    let failure_log = failures.thread();
    let pipes: Vec<Arc<Pipe>> = infos
        .iter()
        .map(|nic| Arc::new(Pipe::new(nic.port_mtu as usize + ethernet::LEN)))
        .collect();
    let neighbour_thread = match neighbours.any_wired() {
        false => None,
        true => {
            let lcores = Arc::<Mailbox>::clone(&mailbox);
            let started = NeighbourThread::start(neighbours, pipes.clone(), lcores);
            Some(started.map_err(|source| DaemonError::System {
                what: "neighbour thread",
                source,
            })?)
        }
    };
    let neighbour_answers = neighbour_thread.as_ref().and_then(NeighbourThread::thread);
    let heart = Arc::new(Heart::default());
    let limit = Duration::from_secs(config.lcores[0].watchdog_s.into());
    let watchdog =
        Watchdog::start(Arc::clone(&heart), limit).map_err(|source| DaemonError::System {
            what: "watchdog thread",
            source,
        })?;
    let lcore = {
        let (mailbox, wake, stop) = (Arc::clone(&mailbox), Arc::clone(&wake), Arc::clone(&stop));
        let eal = eal.clone();
        let handle = signal_handle.clone();
        thread::Builder::new().name("lcore".into()).spawn(move || {
            // Whatever ends this thread must end the daemon too.
            let _closer = CloseOnDrop(handle);
            let _eal_thread = eal.register_thread();
            let mut lcore =
                Lcore::new(lcore_config, nics, pool, mailbox, wake).map_err(|source| {
                    DaemonError::System {
                        what: "polling thread",
                        source,
                    }
                })?;
            if let Some(fabric) = fabric {
                lcore.own_fabric(fabric);
            }
            lcore.tell_failures(failure_log);
            if neighbour_answers.is_some() {
                lcore.hand_over_others(&pipes, neighbour_answers);
            }
            lcore.watch_by(heart);
            lcore.run(&stop);
            Ok::<(), DaemonError>(())
        })
    }
    .map_err(|source| DaemonError::System {
        what: "polling thread",
        source,
    })?;

    // From here on there is more to tidy up, and nothing that takes long.
    drop(starting);
    leave_to_lcore(lcore_cpu);
    let mut tree =
        Tree::create_beside(machine, &socket, &infos).map_err(|source| DaemonError::Tree {
            socket: socket.clone(),
            source,
        })?;
    tree.stay();
    let counters =
        CounterFiles::start(tree, Arc::clone(&infos), mailbox.clone()).map_err(|source| {
            DaemonError::System {
                what: "counter thread",
                source,
            }
        })?;
    let server = listener.start(Arc::<Mailbox>::clone(&mailbox))?;
    tracing::info!(socket = %socket.display(), "ready");
    keeper.ready();
    ready();

    let signalled = signals.forever().next();
    if let Some(signal) = signalled {
        tracing::info!(signal, "stopping");
    }
    if keeper.is_alone() {
        tracing::error!("the supervisor died: the devices end");
        end_devices(&mailbox);
    }
    // New opens end first, then sessions, then the loop; EAL and its ports go last, by their owners' drop.
    drop(counters);
    drop(failures);
    // Programs that wait for an address are let go.
    drop(neighbour_thread);
    server.stop();
    stop.store(true, Ordering::SeqCst);
    wake.ring();
    match lcore.join() {
        Ok(result) => result?,
        Err(_) => return Err(DaemonError::LcoreDied),
    }
    drop(watchdog);
    keeper.stopped();
    if signalled.is_none() {
        Err(DaemonError::LcoreDied)
    } else {
        Ok(())
    }
}

/// Ends the process when a signal comes while the daemon starts: EAL and drivers may take long (hugepages to clear, a
/// device that does not answer), and cannot be interrupted. Nothing is there yet to be tidied up.
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

/// How long the polling thread has to tell programs of the end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Lets the polling thread tell all programs that their devices are gone.
fn end_devices(lcore: &Mailbox) {
    let (reply, answer) = sync_channel(1);
    let request = Request {
        context: ContextId(0),
        command: Command::Fatal,
        reply,
    };
    let told = lcore.send(0, request).is_ok() && answer.recv_timeout(LAST_WORDS).is_ok();
    if !told {
        tracing::error!("the polling thread does not answer: programs see the end of their pipes");
    }
}

/// Keeps this thread, and those that it starts from now on, off the polling thread's CPU if there is another. Programs that ask
/// without end would otherwise take time of it from everybody's packets.
fn leave_to_lcore(lcore: Option<usize>) {
    let Some(own) = lcore else { return };
    let mut cpus = crate::config::allowed_cpus();
    cpus.retain(|&cpu| cpu != own);
    // Empty: nothing changes.
    restrict_to(&cpus);
}

struct CloseOnDrop(signal_hook::iterator::Handle);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

fn eal_config(config: &Config) -> EalConfig {
    let specs = || config.nics.iter().map(|nic| &nic.port);
    EalConfig {
        huge: match config.eal.hugepages {
            Hugepages::Auto => Huge::Auto,
            Hugepages::Always => Huge::Always,
            Hugepages::Never => Huge::Never,
        },
        mem_mb: config.eal.memory_mb,
        single_file_segments: specs().any(|spec| match spec {
            PortSpec::Vdev(args) => {
                args.starts_with("net_vhost")
                    || args.starts_with("net_virtio_user")
                    || args.contains("zero-copy=yes")
            }
            _ => false,
        }),
        pci: specs()
            .filter_map(|spec| match spec {
                PortSpec::Pci(device) => Some(device.clone()),
                _ => None,
            })
            .collect(),
        extra_args: config.eal.args.clone(),
        ..EalConfig::default()
    }
}

/// Mbufs of a daemon: what its NICs need, and what its switches can hold.
fn mbufs(fabric: &Plan) -> u32 {
    u32::try_from(u64::from(MBUFS) + Fabric::mbufs(fabric)).unwrap_or(u32::MAX)
}

/// The switches of a plan, if it has any, and the ends of links for NICs by NIC index.
fn fabric(
    plan: &Plan,
    pool: &Arc<Mempool>,
) -> Result<(Option<Fabric>, BTreeMap<u32, FabricEnd>), DaemonError> {
    if plan.switches.is_empty() {
        return Ok((None, BTreeMap::new()));
    }
    let (fabric, ends) = Fabric::new(plan, Arc::clone(pool))?;
    let nics = plan.stations.iter().map(|station| station.nic);
    Ok((Some(fabric), nics.zip(ends).collect()))
}

fn nics(
    config: &Config,
    infos: &[NicInfo],
    eal: &Eal,
    pool: &Arc<Mempool>,
    mut on_switches: BTreeMap<u32, FabricEnd>,
) -> Result<Vec<NicConfig>, DaemonError> {
    let mut open_links: BTreeMap<&str, FabricEnd> = BTreeMap::new();
    let mut nics = Vec::new();
    for (nic, info) in config.nics.iter().zip(infos) {
        let port = match &nic.port {
            PortSpec::Fabric(name) => {
                let on_switch = on_switches.remove(&info.index);
                let end = match on_switch.or_else(|| open_links.remove(name.as_str())) {
                    Some(end) => end,
                    None => {
                        let (ours, theirs) = FabricLink::pair(&FabricLinkConfig {
                            mtu: nic.mtu,
                            capacity_packets: LINK_PACKETS,
                            ..FabricLinkConfig::default()
                        })?;
                        open_links.insert(name, theirs);
                        ours
                    }
                };
                Port::new(end)
            }
            PortSpec::Vdev(name) | PortSpec::Pci(name) => Port::new(Ethdev::open(
                eal,
                pool,
                &EthdevConfig {
                    device: name.clone(),
                    promiscuous: filters_addresses(&nic.port),
                    ..EthdevConfig::default()
                },
            )?),
        };
        let up = port.link().up;
        info.link.set(up);
        tracing::info!(nic = nic.name, port = port.describe(), up, "port");
        nics.push(NicConfig {
            info: Arc::new(info.clone()),
            port,
            polled: !matches!(nic.port, PortSpec::Fabric(_)),
            engine: EngineConfig {
                max_qps: 1 << 16,
                max_mrs: DeviceLimits::default().all_mrs,
                window: WINDOW,
                ack_policy: nic.ack_policy,
                retransmission: nic.retransmission,
                owner: 0,
                owner_bits: 0,
                congestion: info.congestion.now().congestion,
                seed: u64::from(info.index) + 1,
            },
        });
    }
    Ok(nics)
}

/// Whether what is behind the port passes on only frames for its own MAC address, which is not the NIC's, and for multicast
/// groups that somebody joined. Other virtual devices pass on everything.
fn filters_addresses(port: &PortSpec) -> bool {
    match port {
        PortSpec::Pci(_) => true,
        PortSpec::Vdev(args) => args.starts_with("net_af_packet"),
        PortSpec::Fabric(_) => false,
    }
}

fn lcore_config(config: &Config) -> LcoreConfig {
    let cpus = crate::config::allowed_cpus();
    let lcore = &config.lcores[0];
    // With a core to spare, the threads that reach programs' memory run beside the loop; on two cores the other one
    // belongs to the programs.
    let helper_cpus: Vec<usize> = match lcore.cpu {
        Some(own) if cpus.len() > 2 => cpus.iter().copied().filter(|&cpu| cpu != own).collect(),
        _ => Vec::new(),
    };
    LcoreConfig {
        cpu: lcore.cpu,
        helper_cpus: helper_cpus.into(),
        cpus: cpus.len(),
        requests_per_poll: config.limits.requests_per_poll,
        idle: match lcore.idle {
            Idle::Spin => IdlePolicy::Spin,
            Idle::Adaptive => IdlePolicy::Adaptive,
        },
    }
}
