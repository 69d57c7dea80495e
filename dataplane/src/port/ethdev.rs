//! Ethdevs: ports behind a DPDK poll-mode driver, with one rx and one tx queue. The burst calls are those of
//! `rte_ethdev.h`, written out here over the exported `rte_eth_fp_ops`, so that they are inlined.
//!
//! What drivers do differently is levelled here: frames of several segments are made one (or counted and
//! dropped), frames for a link that is down do not wait for ever, a net_memif client finds its server again.

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
use super::{Burst, Counters, Driver, Eal, Mempool, PortError, RX_BURST, memif};

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
    /// Entry of `rte_eth_fp_ops`, where the driver keeps its burst functions.
    ops: *const sys::rte_eth_fp_ops,
    device: String,
    driver: String,
    /// Name of the virtual device if `open` made it; it goes when the port does.
    made: Option<CString>,
    /// Longest frame that may be sent; 0 leaves the judgement to the driver.
    max_frame: usize,
    memif: Option<memif::Role>,
    started: bool,
    /// When a net_memif client last tried to connect.
    tried: Option<Instant>,
    /// As `maintain` last saw it.
    up: bool,
    /// The hardware was told to send and obey pause frames.
    pauses: bool,
    count: Count,
    /// Fills the rx ring; freed after the port was closed.
    _pool: Arc<Mempool>,
    _eal: Eal,
}

// SAFETY: a port's queues may be polled by any thread, one at a time, which `&mut self` sees to; `ops` points to
// a static array.
unsafe impl Send for Ethdev {}

/// Kept by the lcore that polls.
#[derive(Debug, Default)]
struct Count {
    tx_packets: u64,
    tx_bytes: u64,
    rx_packets: u64,
    rx_bytes: u64,
    tx_oversize: u64,
    rx_oversize: u64,
    rx_linearized: u64,
    tx_backpressure: u64,
    tx_link_down: u64,
    reconnects: u64,
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
        let mut ethdev = Ethdev {
            port,
            // SAFETY: the address of an element of a static array; the port number is below its length.
            ops: unsafe {
                (&raw const sys::rte_eth_fp_ops)
                    .cast::<sys::rte_eth_fp_ops>()
                    .add(port.into())
            },
            device: device.clone(),
            driver: String::new(),
            made,
            max_frame: if config.mtu == 0 {
                0
            } else {
                config.mtu.saturating_add(FRAME_OVERHEAD) as usize
            },
            memif,
            started: false,
            tried: None,
            up: false,
            pauses: false,
            count: Count::default(),
            _pool: Arc::clone(pool),
            _eal: eal.clone(),
        };
        // From here on an error drops `ethdev`, which closes the port.
        ethdev.start(config, pool)?;
        Ok(ethdev)
    }

    fn start(&mut self, config: &EthdevConfig, pool: &Mempool) -> Result<(), PortError> {
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
        check_mtu(config, &self.driver, info.max_mtu, pool)?;

        // The driver refuses to start a client without a server; `maintain` will.
        let awaits_server =
            self.memif == Some(memif::Role::Client) && !memif::server_listens(&self.device);
        let conf = sys::rl_port_conf {
            start: (!awaits_server).into(),
            mtu: config.mtu,
            rx_desc: config.rx_descriptors,
            tx_desc: config.tx_descriptors,
        };
        let mut stage = sys::RL_PORT_CONFIGURE;
        // SAFETY: a valid port and pool.
        let ret = unsafe {
            sys::rl_port_setup(self.port, &raw const conf, pool.as_ptr(), &raw mut stage)
        };
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
        Ok(())
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

    /// `rte_eth_rx_burst` of queue 0.
    #[inline(always)]
    fn receive(&self, mbufs: *mut *mut sys::rte_mbuf, count: u16) -> u16 {
        // SAFETY: for every port DPDK keeps valid functions and queues here, dummies while it is stopped;
        // `mbufs` has room for `count`.
        unsafe {
            let ops = &*self.ops;
            match ops.rx_pkt_burst {
                Some(rx) => rx(*ops.rxq.data, mbufs, count),
                None => 0,
            }
        }
    }

    /// `rte_eth_tx_burst` of queue 0.
    #[inline(always)]
    fn send(&self, mbufs: *mut *mut sys::rte_mbuf, count: u16) -> u16 {
        // SAFETY: as in `receive`; `mbufs` are `count` owned packets.
        unsafe {
            let ops = &*self.ops;
            match ops.tx_pkt_burst {
                Some(tx) => tx(*ops.txq.data, mbufs, count),
                None => 0,
            }
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
            self.count.reconnects += u64::from(self.started);
        }
    }

    /// Makes packets from `start` on one segment each, or drops them. Returns how many are left.
    #[cold]
    fn linearize_from(&mut self, burst: &mut Burst, start: usize) -> usize {
        let mut at = start;
        while let Some(mbuf) = burst.get_mut(at) {
            if mbuf.segments() == 1 {
                at += 1;
            } else if mbuf.linearize() {
                self.count.rx_linearized += 1;
                at += 1;
            } else {
                self.count.rx_oversize += 1;
                drop(burst.take(at));
            }
        }
        at - start
    }

    /// Drops packets longer than the MTU allows. Returns how many.
    #[cold]
    fn drop_oversize(&mut self, burst: &mut Burst) -> usize {
        let before = burst.len();
        let mut at = 0;
        while let Some(mbuf) = burst.get(at) {
            if mbuf.len() > self.max_frame {
                drop(burst.take(at));
            } else {
                at += 1;
            }
        }
        let dropped = before - burst.len();
        self.count.tx_oversize += dropped as u64;
        dropped
    }
}

impl Driver for Ethdev {
    #[inline]
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let wanted = burst.room().min(RX_BURST);
        if !self.enter() {
            return 0;
        }
        let start = burst.len();
        let mut got = usize::from(self.receive(burst.spare(), wanted as u16));
        self.leave();
        if got == 0 {
            return 0;
        }
        // SAFETY: the driver wrote `got` owned packets.
        unsafe { burst.grow(got) };
        if burst.as_slice()[start..].iter().any(|m| m.segments() != 1) {
            got = self.linearize_from(burst, start);
        }
        self.count.rx_packets += got as u64;
        self.count.rx_bytes += bytes(&burst.as_slice()[start..]);
        got
    }

    #[inline]
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let mut taken = 0;
        if self.max_frame != 0 && burst.iter().any(|m| m.len() > self.max_frame) {
            taken = self.drop_oversize(burst);
        }
        let offered = burst.len();
        if offered == 0 {
            return taken;
        }
        let offered_bytes = bytes(burst.as_slice());
        let mut sent = 0;
        if self.enter() {
            sent = usize::from(self.send(burst.front(), offered as u16));
            self.leave();
        }
        // SAFETY: the driver took over the first `sent`.
        unsafe { burst.forget_front(sent) };
        self.count.tx_packets += sent as u64;
        self.count.tx_bytes += offered_bytes - bytes(burst.as_slice());
        taken += sent;
        if sent < offered {
            if sent == 0 && !self.up {
                self.count.tx_link_down += offered as u64;
                burst.clear();
                taken += offered;
            } else {
                self.count.tx_backpressure += 1;
            }
        }
        taken
    }

    fn counters(&self) -> Counters {
        let (own, driver) = (&self.count, self.stats());
        vec![
            ("tx_packets", own.tx_packets),
            ("tx_bytes", own.tx_bytes),
            ("rx_packets", own.rx_packets),
            ("rx_bytes", own.rx_bytes),
            ("tx_oversize", own.tx_oversize),
            ("rx_oversize", own.rx_oversize),
            ("rx_linearized", own.rx_linearized),
            ("tx_backpressure", own.tx_backpressure),
            ("tx_link_down", own.tx_link_down),
            ("tx_errors", driver.oerrors),
            ("rx_errors", driver.ierrors),
            ("rx_missed", driver.imissed),
            ("mbuf_alloc_failed", driver.rx_nombuf),
            ("reconnects", own.reconnects),
        ]
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
        let memory = if self.made.is_some() {
            " (virtual)"
        } else {
            ""
        };
        format!("{} on {}{memory}", self.device, self.driver)
    }
}

impl Drop for Ethdev {
    fn drop(&mut self) {
        let made = self.made.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        // SAFETY: a valid port, not used after this; the pool behind its rx ring is still there.
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

/// Bytes of some packets.
#[inline(always)]
fn bytes(mbufs: &[super::Mbuf]) -> u64 {
    mbufs.iter().map(|m| m.len() as u64).sum()
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
