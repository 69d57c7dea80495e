//! Ports: where frames enter and leave a NIC. A [`Port`] is one [`Driver`], an [`Ethdev`] (a DPDK poll-mode driver)
//! or a [`FabricEnd`] (one end of a link inside the daemon), reached through one burst function pointer per
//! direction that is captured when the port is made.
//!
//! Frames are [`Mbuf`]s from a [`Mempool`], passed in [`Burst`]s. A port belongs to one lcore; the two ends of a
//! fabric link may belong to different ones. A port that several lcores share is made into parts ([`spread`]), each a port to
//! its lcore.
//!
//! **Who outlives whom.** Ports and mempools hold a share of [`Eal`], ethdevs a share of the mempool that fills
//! their rx ring: whatever the order in which the owners drop their handles, ports close first, then pools are
//! freed, then EAL is cleaned up. A pool whose mbufs are still held somewhere is never freed, nor is EAL
//! under it.

mod board;
mod eal;
mod error;
mod ethdev;
mod fabric_link;
mod mbuf;
mod memif;
mod mempool;
pub mod spread;
pub(crate) mod spsc;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use roceline_engine::congestion::pfc::{PfcSettings, Threshold};

pub use board::{PausePart, PauseState};
pub use eal::{Eal, EalConfig, EalThread, Huge};
pub use error::PortError;
pub use ethdev::{Ethdev, EthdevConfig, EthdevQueue, LinkStatus};
pub use fabric_link::{FabricEnd, FabricLink, FabricLinkConfig, priority_of};
pub use mbuf::{Burst, Drain, Mbuf, prefetch_line, prefetch_line_to_write};
pub use mempool::{Mempool, MempoolConfig};

/// Packets that one receive call appends at most, and unless a burst wants fewer.
pub const RX_BURST: usize = 32;

/// Counters by name; see [`Driver::counters`].
pub type Counters = Vec<(&'static str, u64)>;

/// What moves frames.
pub trait Driver: Send + 'static {
    /// Appends up to [`Burst::wanted`] received packets, each of one segment; returns how many. Leave that much room:
    /// drivers that receive with vector instructions may deliver nothing into less.
    fn rx_burst(&mut self, burst: &mut Burst) -> usize;

    /// As [`Driver::rx_burst`], but only frames for the link itself (MAC control), where the driver has them apart: for a
    /// receiver without room for others, which would else not hear that it is to pause.
    fn rx_control(&mut self, _burst: &mut Burst) -> usize {
        0
    }

    /// Takes packets from the front of `burst`, in order, as long as there is room for them; returns how many it
    /// took, those that it counted and dropped (oversize, link down) included. What it did not take stays, in
    /// order, at the front.
    fn tx_burst(&mut self, burst: &mut Burst) -> usize;

    /// So many packets at the front of the burst that is offered next were offered before. For callers that change what was not taken
    /// before they offer it again, or offer another burst in between; else it is what was left the last time.
    fn offered_before(&mut self, _count: usize) {}

    /// Counters by name, always in the same order. Not for the hot loop. Common names:
    ///
    /// | name | counts |
    /// | --- | --- |
    /// | `tx_packets`, `tx_bytes`, `rx_packets`, `rx_bytes` | what passed |
    /// | `tx_oversize`, `rx_oversize` | dropped: longer than the MTU (or, received, than an mbuf) allows |
    /// | `tx_backpressure` | bursts of which a part was not taken |
    /// | `tx_link_down` | dropped: nobody at the other end, or the link is down by order |
    /// | `rx_link_down` | dropped: they came while the link was down by order |
    /// | `rx_missed` | dropped by the driver's own ring in front of us |
    /// | `mbuf_alloc_failed` | the driver found the mempool empty |
    fn counters(&self) -> Counters;

    /// Whether frames can get through.
    fn link(&self) -> LinkStatus;

    /// Takes the link down, or up again, as far as the driver can: whoever is at its other end is to see it. Frames are
    /// kept back by [`Port`] in any case.
    fn set_link(&mut self, _up: bool) {}

    /// Lets the hardware send and obey pause frames by itself, or no longer. False if it cannot: whoever owns the port then does it,
    /// and sees the pause frames that come. True: the hardware does it, by what stands in its own rings.
    fn set_pause(&mut self, _settings: &PfcSettings, _threshold: Threshold) -> bool {
        false
    }

    /// Where a part of a port that several lcores share finds what the others say of its pauses.
    fn pause_part(&self) -> Option<PausePart> {
        None
    }

    /// The MAC address of the hardware, if there is any.
    fn mac(&self) -> Option<[u8; 6]>;

    /// Becomes readable when packets arrive on an armed port; `None` if the driver cannot tell.
    fn rx_event(&self) -> Option<BorrowedFd<'_>>;

    /// Whether packets come of which no event tells: the port must be looked at now and then.
    fn is_polled(&self) -> bool {
        self.rx_event().is_none()
    }

    /// Asks for an event at the next arrival. False if packets may be waiting already: poll, do not sleep. After
    /// true, poll once more before sleeping, as not every driver tells of what came just before.
    fn arm_rx(&mut self) -> bool;

    /// Ends what [`Driver::arm_rx`] began and clears the event.
    fn disarm_rx(&mut self);

    /// Slow things that must be done now and then, such as finding a peer again. Call it a few times a second,
    /// from the lcore that polls.
    fn maintain(&mut self) {}

    /// One line for people.
    fn describe(&self) -> String;
}

type BurstFn = unsafe fn(NonNull<()>, &mut Burst) -> usize;

/// One driver behind two captured function pointers.
pub struct Port {
    this: NonNull<()>,
    rx: BurstFn,
    tx: BurstFn,
    driver: NonNull<dyn Driver>,
    /// Taken down by order: what comes and goes is lost, as on a cable that is not plugged in.
    down: bool,
    lost: Lost,
}

/// Frames that were lost while the link was down by order.
#[derive(Clone, Copy, Debug, Default)]
struct Lost {
    tx: u64,
    rx: u64,
}

// SAFETY: a Port owns its driver, and drivers are Send.
unsafe impl Send for Port {}

/// # Safety
///
/// `this` points to a `D` that nobody else uses.
unsafe fn rx_burst<D: Driver>(this: NonNull<()>, burst: &mut Burst) -> usize {
    // SAFETY: the caller's promise.
    unsafe { this.cast::<D>().as_mut() }.rx_burst(burst)
}

/// # Safety
///
/// `this` points to a `D` that nobody else uses.
unsafe fn tx_burst<D: Driver>(this: NonNull<()>, burst: &mut Burst) -> usize {
    // SAFETY: the caller's promise.
    unsafe { this.cast::<D>().as_mut() }.tx_burst(burst)
}

impl Port {
    /// A port that works through `driver`.
    pub fn new<D: Driver>(driver: D) -> Port {
        let driver = NonNull::from(Box::leak(Box::new(driver)));
        Port {
            this: driver.cast(),
            rx: rx_burst::<D>,
            tx: tx_burst::<D>,
            driver,
            down: false,
            lost: Lost::default(),
        }
    }

    /// See [`Driver::rx_burst`].
    #[inline(always)]
    pub fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        if self.down {
            return self.lose_received(burst);
        }
        // SAFETY: `rx` was made for the type behind `this`, which is owned.
        unsafe { (self.rx)(self.this, burst) }
    }

    /// See [`Driver::rx_control`].
    pub fn rx_control(&mut self, burst: &mut Burst) -> usize {
        if self.down {
            return self.lose_received(burst);
        }
        self.driver_mut().rx_control(burst)
    }

    /// See [`Driver::tx_burst`].
    #[inline(always)]
    pub fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        if burst.is_empty() {
            return 0;
        }
        if self.down {
            let lost = burst.len();
            burst.clear();
            self.lost.tx += lost as u64;
            return lost;
        }
        // SAFETY: `tx` was made for the type behind `this`, which is owned.
        unsafe { (self.tx)(self.this, burst) }
    }

    /// See [`Driver::offered_before`].
    pub fn offered_before(&mut self, count: usize) {
        self.driver_mut().offered_before(count);
    }

    /// Takes from the driver what arrives at a port that is down, so that it does not come when the port is up again.
    #[cold]
    fn lose_received(&mut self, burst: &mut Burst) -> usize {
        // SAFETY: `rx` was made for the type behind `this`, which is owned.
        let arrived = unsafe { (self.rx)(self.this, burst) };
        for _ in 0..arrived {
            drop(burst.pop());
        }
        self.lost.rx += arrived as u64;
        0
    }

    /// Takes the link down by order, or up again. Down, the port sends and receives nothing.
    pub fn set_link(&mut self, up: bool) {
        self.down = !up;
        self.driver_mut().set_link(up);
    }

    fn driver(&self) -> &dyn Driver {
        // SAFETY: owned, alive until dropped.
        unsafe { self.driver.as_ref() }
    }

    fn driver_mut(&mut self) -> &mut dyn Driver {
        // SAFETY: owned, alive until dropped.
        unsafe { self.driver.as_mut() }
    }

    /// See [`Driver::counters`]; what an order to be down has cost is in `tx_link_down` and `rx_link_down`.
    pub fn counters(&self) -> Counters {
        let mut all = self.driver().counters();
        match all.iter_mut().find(|(name, _)| *name == "tx_link_down") {
            Some((_, count)) => *count += self.lost.tx,
            None => all.push(("tx_link_down", self.lost.tx)),
        }
        all.push(("rx_link_down", self.lost.rx));
        all
    }

    /// See [`Driver::link`]; down while it is down by order.
    pub fn link(&self) -> LinkStatus {
        let mut link = self.driver().link();
        link.up &= !self.down;
        link
    }

    /// See [`Driver::set_pause`].
    pub fn set_pause(&mut self, settings: &PfcSettings, threshold: Threshold) -> bool {
        self.driver_mut().set_pause(settings, threshold)
    }

    /// See [`Driver::pause_part`].
    pub fn pause_part(&self) -> Option<PausePart> {
        self.driver().pause_part()
    }

    /// See [`Driver::mac`].
    pub fn mac(&self) -> Option<[u8; 6]> {
        self.driver().mac()
    }

    /// Whether an lcore may sleep on this port for long: see [`Port::rx_event`].
    pub fn has_rx_interrupt(&self) -> bool {
        self.rx_event().is_some()
    }

    /// See [`Driver::rx_event`].
    pub fn rx_event(&self) -> Option<BorrowedFd<'_>> {
        self.driver().rx_event()
    }

    /// See [`Driver::is_polled`].
    pub fn is_polled(&self) -> bool {
        self.driver().is_polled()
    }

    /// See [`Driver::arm_rx`].
    pub fn arm_rx(&mut self) -> bool {
        self.driver_mut().arm_rx()
    }

    /// See [`Driver::disarm_rx`].
    pub fn disarm_rx(&mut self) {
        self.driver_mut().disarm_rx();
    }

    /// See [`Driver::maintain`].
    pub fn maintain(&mut self) {
        self.driver_mut().maintain();
    }

    /// See [`Driver::describe`].
    pub fn describe(&self) -> String {
        self.driver().describe()
    }
}

impl From<Ethdev> for Port {
    fn from(driver: Ethdev) -> Port {
        Port::new(driver)
    }
}

impl From<FabricEnd> for Port {
    fn from(driver: FabricEnd) -> Port {
        Port::new(driver)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        // SAFETY: made by `Box::leak` in `new`, freed once.
        drop(unsafe { Box::from_raw(self.driver.as_ptr()) });
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({})", self.describe())
    }
}
