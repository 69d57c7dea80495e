//! Ethdevs: ports behind a DPDK poll-mode driver, with one rx and one tx queue for each lcore that shares them.
//!
//! What drivers do differently is levelled here: frames of several segments are made one (or counted and
//! dropped), frames for a link that is down do not wait for ever, a net_memif client finds its server again.

mod queue;

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dpdk_sys as sys;
use roceline_engine::congestion::pfc::{PauseMode, PfcSettings, Threshold};

use super::eal::strerror;
use super::{Burst, Counters, Driver, Eal, Mempool, PortError, memif};
use queue::Queue;

pub use queue::EthdevQueue;

/// Ethernet header and FCS-less VLAN tag: what a frame adds to the MTU.
const FRAME_OVERHEAD: u32 = 18;

/// How long a net_memif client's hand-shake may take.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// Ports that have an owner.
static OPEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Which device, and how to run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EthdevConfig {
    /// A device that EAL knows (`net_null0`, `0000:03:00.0`), or a virtual device to make, with its arguments
    /// (`net_memif0,role=server,socket=/run/x.sock,socket-abstract=no,bsize=4352`).
    pub device: String,
    /// Rx descriptors; rounded to what the driver can.
    pub rx_descriptors: u16,
    /// Tx descriptors; rounded to what the driver can.
    pub tx_descriptors: u16,
    /// Bytes of the longest IP packet; 0 leaves the driver's setting alone. net_memif and net_af_packet do not
    /// take more than 1500 here: leave it 0 and size their buffers, `bsize=4352` or
    /// `framesz=4352,blocksz=69632,framecnt=512` (a block holds whole frames and whole pages, and a frame must
    /// not exceed the mempool's data room).
    pub mtu: u32,
    /// Whether to receive frames for other MAC addresses.
    pub promiscuous: bool,
}

impl Default for EthdevConfig {
    fn default() -> EthdevConfig {
        EthdevConfig {
            device: String::new(),
            rx_descriptors: 512,
            tx_descriptors: 512,
            mtu: 0,
            promiscuous: false,
        }
    }
}

/// State of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// Whether frames get through.
    pub up: bool,
    /// Speed, where the driver knows one.
    pub speed_mbps: Option<u32>,
}

/// A started port.
#[derive(Debug)]
pub struct Ethdev {
    port: u16,
    /// The first one.
    queue: Queue,
    device: String,
    driver: String,
    memif: Option<memif::Role>,
    started: bool,
    /// When a net_memif client last tried to connect.
    tried: Option<Instant>,
    /// As `maintain` last saw it.
    up: bool,
    /// The hardware was told to send and obey pause frames.
    pauses: bool,
    reconnects: u64,
    open: Arc<Open>,
}

/// What is closed when nobody polls a queue of the port any more.
#[derive(Debug)]
pub(super) struct Open {
    port: u16,
    /// Name of the virtual device if `open` made it; it goes when the port does.
    made: Option<CString>,
    /// Fill the rx rings; freed after the port was closed.
    _pools: Vec<Arc<Mempool>>,
    _eal: Eal,
}

impl Ethdev {
    /// Opens, configures and starts a port whose rx ring is filled from `pool`.
    ///
    /// A net_memif client whose server is not there yet opens with its link down, and connects in
    /// [`Driver::maintain`].
    ///
    /// # Errors
    ///
    /// When there is no such device or it is open already, when the MTU does not suit the driver or the mempool, and when the driver
    /// refuses to start.
    pub fn open(
        eal: &Eal,
        pool: &Arc<Mempool>,
        config: &EthdevConfig,
    ) -> Result<Ethdev, PortError> {
        let (ethdev, _) = Ethdev::open_for(eal, std::slice::from_ref(pool), config)?;
        Ok(ethdev)
    }

    /// Opens a port that several lcores share: with a queue for each pool if the device has as many, else with one. Gives the
    /// port with its first queue, and the others.
    ///
    /// # Errors
    ///
    /// As [`Ethdev::open`].
    pub fn open_for(
        eal: &Eal,
        pools: &[Arc<Mempool>],
        config: &EthdevConfig,
    ) -> Result<(Ethdev, Vec<EthdevQueue>), PortError> {
        let [pool, ..] = pools else {
            return Err(PortError::NoDevice {
                device: config.device.clone(),
                reason: "there is no mempool for it".into(),
            });
        };
        let device = &config.device;
        let nul = |_| PortError::Nul {
            what: "device",
            value: device.escape_debug().to_string(),
        };
        let name = device.split(',').next().unwrap_or(device);
        let c_device = CString::new(device.as_str()).map_err(nul)?;
        let c_name = CString::new(name).map_err(nul)?;
        // What is known beforehand is refused before a device is made: virtual ones are named after their driver.
        check_mtu(
            config,
            name.trim_end_matches(|c: char| c.is_ascii_digit()),
            u16::MAX,
            pool,
        )?;
        let memif = memif::role(device);
        if memif == Some(memif::Role::Server) {
            memif::remove_stale_socket(device);
        }
        let (port, made) = match port_by_name(&c_name) {
            Some(port) => (port, None),
            None => {
                // SAFETY: EAL is initialised; the string is copied.
                let ret = unsafe { sys::rl_port_probe(c_device.as_ptr()) };
                let port = (ret == 0).then(|| port_by_name(&c_name)).flatten();
                let Some(port) = port else {
                    let reason = if ret == 0 {
                        "no port came of it".into()
                    } else {
                        strerror(ret)
                    };
                    return Err(PortError::NoDevice {
                        device: device.clone(),
                        reason,
                    });
                };
                (port, is_virtual(name).then_some(c_name))
            }
        };
        if !OPEN
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(port)
        {
            return Err(PortError::InUse {
                device: device.clone(),
            });
        }
        let max_frame = match config.mtu {
            0 => 0,
            mtu => mtu.saturating_add(FRAME_OVERHEAD) as usize,
        };
        let mut ethdev = Ethdev {
            port,
            queue: Queue::new(port, 0, max_frame),
            device: device.clone(),
            driver: String::new(),
            memif,
            started: false,
            tried: None,
            up: false,
            pauses: false,
            reconnects: 0,
            open: Arc::new(Open {
                port,
                made,
                _pools: pools.to_vec(),
                _eal: eal.clone(),
            }),
        };
        // From here on an error drops `ethdev`, which closes the port.
        let queues = ethdev.start(config, pools)?;
        let others = (1..queues).map(|number| EthdevQueue {
            queue: Queue::new(port, number, max_frame),
            name: format!("queue {number} of {device}"),
            _open: Arc::clone(&ethdev.open),
        });
        let others = others.collect();
        Ok((ethdev, others))
    }

    /// Gives the number of its queues.
    fn start(&mut self, config: &EthdevConfig, pools: &[Arc<Mempool>]) -> Result<u16, PortError> {
        let mut info = MaybeUninit::<sys::rl_port_info>::zeroed();
        // SAFETY: a valid port; all-zero is a valid value of the struct, which is filled on success.
        let (ret, info) = unsafe {
            let ret = sys::rl_port_info(self.port, info.as_mut_ptr());
            (ret, info.assume_init())
        };
        if ret != 0 {
            return Err(PortError::NoDevice {
                device: self.device.clone(),
                reason: strerror(ret),
            });
        }
        if !info.driver.is_null() {
            // SAFETY: drivers' names are static strings.
            self.driver = unsafe { CStr::from_ptr(info.driver) }
                .to_string_lossy()
                .into_owned();
        }
        check_mtu(config, &self.driver, info.max_mtu, &pools[0])?;
        // A peer of net_memif comes and goes, and all queues with it, which only one thread may see.
        let queues = match self.memif {
            Some(_) => 1,
            None => info.max_rx_queues.min(info.max_tx_queues).max(1),
        };
        let queues = match pools.len() <= usize::from(queues) {
            true => pools.len() as u16,
            false => 1,
        };
        let raw: Vec<_> = pools.iter().map(|pool| pool.as_ptr()).collect();

        // The driver refuses to start a client without a server; `maintain` will.
        let awaits_server =
            self.memif == Some(memif::Role::Client) && !memif::server_listens(&self.device);
        let conf = sys::rl_port_conf {
            start: (!awaits_server).into(),
            queues,
            mtu: config.mtu,
            rx_desc: config.rx_descriptors,
            tx_desc: config.tx_descriptors,
        };
        let mut stage = sys::RL_PORT_CONFIGURE;
        // SAFETY: a valid port, and valid pools, one for each queue.
        let ret =
            unsafe { sys::rl_port_setup(self.port, &raw const conf, raw.as_ptr(), &raw mut stage) };
        if ret != 0 {
            return Err(self.setup_error(stage, ret));
        }
        self.started = !awaits_server;
        self.tried = Some(Instant::now());
        if config.promiscuous {
            // SAFETY: a configured port.
            let ret = unsafe { sys::rte_eth_promiscuous_enable(self.port) };
            if ret != 0 && ret != -libc::ENOTSUP {
                return Err(PortError::Setup {
                    device: self.device.clone(),
                    driver: self.driver.clone(),
                    step: "promiscuous mode",
                    reason: strerror(ret),
                    remedy: "set promiscuous = false",
                });
            }
        }
        // Groups come and go with programs, and are few: the NIC passes all, the receive stage finds members. A driver that
        // cannot be asked has no filter.
        // SAFETY: a configured port.
        unsafe { sys::rte_eth_allmulticast_enable(self.port) };
        self.up = self.link().up;
        Ok(queues)
    }

    fn setup_error(&self, stage: sys::rl_port_stage, ret: i32) -> PortError {
        let (step, remedy) = match stage {
            sys::RL_PORT_CONFIGURE => ("configuration", "check mtu and the number of descriptors"),
            sys::RL_PORT_RX_QUEUE => ("rx queue", "lower rx_descriptors or use a larger mempool"),
            sys::RL_PORT_TX_QUEUE => ("tx queue", "lower tx_descriptors"),
            _ => (
                "start",
                "see the driver's lines above; log_level = 8 shows more",
            ),
        };
        PortError::Setup {
            device: self.device.clone(),
            driver: self.driver.clone(),
            step,
            reason: strerror(ret),
            remedy,
        }
    }

    /// DPDK's number of the port.
    pub fn port_id(&self) -> u16 {
        self.port
    }

    /// Name of the driver, `net_memif`.
    pub fn driver_name(&self) -> &str {
        &self.driver
    }

    /// What the driver itself counts.
    pub fn stats(&self) -> sys::rte_eth_stats {
        let mut stats = MaybeUninit::<sys::rte_eth_stats>::zeroed();
        // SAFETY: a valid port; all-zero is a valid value of the struct, which is what a failure leaves.
        unsafe {
            sys::rte_eth_stats_get(self.port, stats.as_mut_ptr());
            stats.assume_init()
        }
    }

    /// Whether the port may be touched now; [`Ethdev::leave`] ends it. Only net_memif ever refuses.
    #[inline(always)]
    fn enter(&self) -> bool {
        // SAFETY: a valid port.
        self.memif.is_none() || (self.started && unsafe { sys::rl_memif_enter(self.port) != 0 })
    }

    #[inline(always)]
    fn leave(&self) {
        if self.memif.is_some() {
            // SAFETY: a valid port that was entered.
            unsafe { sys::rl_memif_leave(self.port) }
        }
    }

    /// Starts a net_memif client again whose server went and came back, or was not there at first.
    #[cold]
    fn reconnect(&mut self) {
        // The hand-shake runs on EAL's interrupt thread; a restart would break it off.
        let waited = self.tried.is_none_or(|at| at.elapsed() >= RECONNECT_AFTER);
        if (waited || !self.started) && memif::server_listens(&self.device) {
            self.tried = Some(Instant::now());
            // SAFETY: a configured port that this thread alone polls.
            self.started = unsafe { sys::rl_port_restart(self.port) } == 0;
            self.reconnects += u64::from(self.started);
        }
    }
}

impl Driver for Ethdev {
    #[inline]
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        if !self.enter() {
            return 0;
        }
        let got = self.queue.receive(burst);
        self.leave();
        match got {
            0 => 0,
            got => self.queue.received(burst, got),
        }
    }

    #[inline]
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let taken = self.queue.drop_oversize(burst);
        let mut sent = 0;
        let offered = burst.len();
        if offered > 0 && self.enter() {
            sent = self.queue.send(burst);
            self.leave();
        }
        taken + self.queue.sent(burst, offered, sent, self.up)
    }

    fn counters(&self) -> Counters {
        let driver = self.stats();
        let mut all = self.queue.counters();
        all.extend([
            ("tx_errors", driver.oerrors),
            ("rx_errors", driver.ierrors),
            ("rx_missed", driver.imissed),
            ("mbuf_alloc_failed", driver.rx_nombuf),
            ("reconnects", self.reconnects),
        ]);
        all
    }

    fn link(&self) -> LinkStatus {
        let mut link = sys::rl_link {
            speed_mbps: 0,
            up: 0,
        };
        // SAFETY: a valid port; filled on success.
        let known = self.started && unsafe { sys::rl_port_link(self.port, &raw mut link) == 0 };
        LinkStatus {
            up: known && link.up != 0,
            speed_mbps: (known && !matches!(link.speed_mbps, 0 | u32::MAX))
                .then_some(link.speed_mbps),
        }
    }

    /// Drivers that cannot do it (`ENOTSUP`) leave the other end in the belief that the link is up.
    fn set_link(&mut self, up: bool) {
        if !self.started {
            return;
        }
        // SAFETY: a valid port.
        unsafe {
            if up {
                sys::rte_eth_dev_set_link_up(self.port);
            } else {
                sys::rte_eth_dev_set_link_down(self.port);
            }
        }
    }

    fn set_pause(&mut self, settings: &PfcSettings, threshold: Threshold) -> bool {
        if !settings.is_on() && !self.pauses {
            // The driver's own setting is left alone.
            return false;
        }
        let bytes = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        let pause = sys::rl_pause {
            mode: match settings.mode {
                PauseMode::Off => sys::RL_PAUSE_OFF,
                PauseMode::Pfc => sys::RL_PAUSE_PRIORITY,
                PauseMode::Global => sys::RL_PAUSE_GLOBAL,
            },
            priorities: settings.priorities,
            quanta: settings.quanta,
            xoff: bytes(threshold.xoff),
            xon: bytes(threshold.xon),
        };
        // SAFETY: a configured port; the settings are only read.
        let ret = unsafe { sys::rl_port_pause(self.port, &raw const pause) };
        self.pauses = ret == 0 && settings.is_on();
        self.pauses
    }

    fn mac(&self) -> Option<[u8; 6]> {
        let mut mac = sys::rte_ether_addr { addr_bytes: [0; 6] };
        // SAFETY: a valid port; filled on success.
        let ret = unsafe { sys::rte_eth_macaddr_get(self.port, &raw mut mac) };
        (ret == 0 && mac.addr_bytes != [0; 6]).then_some(mac.addr_bytes)
    }

    /// None: the virtual drivers that offer receive interrupts do not keep them safe. net_virtio_user leaves its
    /// handler registered when it is closed, and net_vhost's descriptor, once readable, stays so.
    fn rx_event(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm_rx(&mut self) -> bool {
        false
    }

    fn disarm_rx(&mut self) {}

    fn maintain(&mut self) {
        self.up = self.link().up;
        if self.memif == Some(memif::Role::Client) && !self.up {
            self.reconnect();
        }
    }

    fn describe(&self) -> String {
        let memory = if self.open.made.is_some() {
            " (virtual)"
        } else {
            ""
        };
        format!("{} on {}{memory}", self.device, self.driver)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let made = self.made.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        // SAFETY: a valid port, not used after this; the pools behind its rx rings are still there.
        unsafe { sys::rl_port_close(self.port, made) }
        OPEN.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&self.port);
    }
}

/// Whether the driver and the pool's mbufs can carry the configured MTU.
fn check_mtu(
    config: &EthdevConfig,
    driver: &str,
    driver_max: u16,
    pool: &Mempool,
) -> Result<(), PortError> {
    let mtu = config.mtu;
    if mtu == 0 {
        return Ok(());
    }
    let (max, remedy) = match driver {
        "net_memif" => (1500, "set mtu = 0 and give the device bsize=4352"),
        "net_af_packet" => (
            1500,
            "set mtu = 0 and give the device framesz=4352,blocksz=69632,framecnt=512",
        ),
        _ => (
            u32::from(driver_max).min(u32::from(u16::MAX) - FRAME_OVERHEAD),
            "lower mtu, or set it to 0 to leave the driver's setting alone",
        ),
    };
    let device = || config.device.clone();
    if mtu > max {
        return Err(PortError::Mtu {
            device: device(),
            driver: driver.into(),
            mtu,
            max,
            remedy,
        });
    }
    let (frame, data_room) = (mtu + FRAME_OVERHEAD, pool.config().data_room);
    if frame > data_room {
        return Err(PortError::DataRoom {
            device: device(),
            mtu,
            frame,
            data_room,
        });
    }
    Ok(())
}

fn port_by_name(name: &CStr) -> Option<u16> {
    let mut port = 0;
    // SAFETY: EAL is initialised; the name is only read.
    let ret =
        unsafe { sys::rte_eth_dev_get_port_by_name(name.as_ptr().cast::<c_char>(), &raw mut port) };
    (ret == 0).then_some(port)
}

/// Whether a device name is one of the virtual bus.
fn is_virtual(name: &str) -> bool {
    name.starts_with("net_") || name.starts_with("eth_")
}
