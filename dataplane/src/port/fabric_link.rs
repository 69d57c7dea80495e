//! A link of the fabric inside the daemon: a cable between two ports, or from a port to itself. Each direction is
//! a queue of mbufs between one producer and one consumer, bounded in packets and in bytes; no byte of a frame
//! is copied. The link owns the MTU, the byte occupancy per priority and the wake-up of a receiver that sleeps.
//!
//! A full link pushes back: the sender keeps the frame. A frame longer than the MTU, and any frame for an end
//! that is gone, is counted and dropped.
//!
//! Frames for the link itself (MAC control: pauses) have a lane of their own in each direction. They pass what waits on the
//! link, as on a cable, where nothing waits, they would be sent next; and a receiver without room for more frames can still hear
//! them ([`Driver::rx_control`]).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};

use crossbeam_utils::CachePadded;

use roceline_engine::wire::pause::{PRIORITIES, is_mac_control};

use super::spsc::{self, Consumer, Producer};
use super::{Burst, Counters, Driver, LinkStatus, Mbuf, PortError};

/// Frames of MAC control under way in one direction: a receiver that polls leaves one or two.
const CONTROL_PACKETS: usize = 64;
/// Bytes of an Ethernet header.
const ETHER: usize = 14;
/// Bytes of an 802.1Q tag.
const VLAN: usize = 4;

/// What a link is like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricLinkConfig {
    /// Bytes of the longest IP packet.
    pub mtu: u32,
    /// Packets under way in one direction, rounded up to a power of two.
    pub capacity_packets: usize,
    /// Bytes under way in one direction.
    pub capacity_bytes: u64,
}

impl Default for FabricLinkConfig {
    fn default() -> FabricLinkConfig {
        FabricLinkConfig {
            mtu: 4200,
            capacity_packets: 1024,
            capacity_bytes: 2 << 20,
        }
    }
}

/// Makes links.
#[derive(Debug)]
pub struct FabricLink;

impl FabricLink {
    /// A cable between two ports.
    ///
    /// # Errors
    ///
    /// When the config is out of range or the process has no file descriptors left.
    pub fn pair(config: &FabricLinkConfig) -> Result<(FabricEnd, FabricEnd), PortError> {
        FabricLink::joined(config, config)
    }

    /// A cable whose directions differ: each end sends as its config says.
    ///
    /// # Errors
    ///
    /// As [`FabricLink::pair`].
    pub fn joined(
        a: &FabricLinkConfig,
        b: &FabricLinkConfig,
    ) -> Result<(FabricEnd, FabricEnd), PortError> {
        let (tx_a, rx_b) = lane(a)?;
        let (tx_b, rx_a) = lane(b)?;
        Ok((
            FabricEnd::new(a, tx_a, rx_a, false),
            FabricEnd::new(b, tx_b, rx_b, false),
        ))
    }

    /// A plug that returns to a port what it sends.
    ///
    /// # Errors
    ///
    /// As [`FabricLink::pair`].
    pub fn looped(config: &FabricLinkConfig) -> Result<FabricEnd, PortError> {
        let (tx, rx) = lane(config)?;
        Ok(FabricEnd::new(config, tx, rx, true))
    }
}

/// The priority of a frame: PCP of its 802.1Q tag, else the class selector (the upper three bits of DSCP,
/// RFC 2474) of its IP header, else 0.
#[inline]
pub fn priority_of(frame: &[u8]) -> u8 {
    let Some(&[t0, t1, b14, b15]) = frame.get(12..16) else {
        return 0;
    };
    match u16::from_be_bytes([t0, t1]) {
        0x8100 | 0x88a8 => b14 >> 5,
        0x0800 => b15 >> 5,
        // The traffic class lies across the nibbles of the first two bytes.
        0x86dd => (b14 & 0x0f) >> 1,
        _ => 0,
    }
}

/// A frame under way, with what its accounting needs.
struct Entry {
    mbuf: Mbuf,
    len: u32,
    priority: u8,
}

/// Bytes by priority, counted without end by one side.
#[derive(Debug, Default)]
struct ByteCount {
    by_priority: [AtomicU64; PRIORITIES],
    total: AtomicU64,
}

/// One side's own copy of a [`ByteCount`].
#[derive(Debug, Default)]
struct LocalCount {
    by_priority: [u64; PRIORITIES],
    total: u64,
    /// Bit per priority that was not published yet.
    changed: u8,
}

impl LocalCount {
    #[inline(always)]
    fn add(&mut self, priority: u8, len: u64) {
        self.by_priority[usize::from(priority & 7)] += len;
        self.total += len;
        self.changed |= 1 << (priority & 7);
    }

    #[inline(always)]
    fn publish(&mut self, shared: &ByteCount) {
        while self.changed != 0 {
            let p = self.changed.trailing_zeros() as usize;
            shared.by_priority[p].store(self.by_priority[p], Ordering::Release);
            self.changed &= self.changed - 1;
        }
        shared.total.store(self.total, Ordering::Release);
    }
}

/// What the two sides of one direction share besides the queue.
#[derive(Debug)]
struct Lane {
    sent: CachePadded<ByteCount>,
    received: CachePadded<ByteCount>,
    /// The receiver wants an event at the next arrival.
    armed: CachePadded<AtomicBool>,
    event: OwnedFd,
    sender_gone: AtomicBool,
    /// For good, or since its link is down by order.
    receiver_gone: AtomicBool,
}

impl Lane {
    fn occupancy(&self) -> [u64; PRIORITIES] {
        std::array::from_fn(|p| {
            // Received first: what is sent in between then counts as under way, never as negative.
            let received = self.received.by_priority[p].load(Ordering::Acquire);
            let sent = self.sent.by_priority[p].load(Ordering::Acquire);
            sent.saturating_sub(received)
        })
    }
}

#[derive(Debug)]
struct TxSide {
    queue: Producer<Entry>,
    control: Producer<Mbuf>,
    lane: Arc<Lane>,
    sent: LocalCount,
    /// `lane.received.total` when last looked at.
    received_total: u64,
}

#[derive(Debug)]
struct RxSide {
    queue: Consumer<Entry>,
    control: Consumer<Mbuf>,
    lane: Arc<Lane>,
    received: LocalCount,
}

fn lane(config: &FabricLinkConfig) -> Result<(TxSide, RxSide), PortError> {
    let longest = u64::from(config.mtu) + (ETHER + VLAN) as u64;
    let out_of_range = |setting, value, remedy| {
        Err(PortError::FabricConfig {
            setting,
            value,
            remedy,
        })
    };
    // RFC 791: every host accepts 576 bytes; an mbuf's length has 16 bits.
    if !(576..=65_000).contains(&config.mtu) {
        return out_of_range("mtu", config.mtu.into(), "576 to 65000 are allowed");
    }
    if config.capacity_packets == 0 || config.capacity_packets > 1 << 20 {
        let remedy = "1 to 1048576 are allowed";
        return out_of_range("capacity_packets", config.capacity_packets as u64, remedy);
    }
    if config.capacity_bytes < longest {
        let remedy = "a frame of the MTU (mtu + 18 bytes) must fit";
        return out_of_range("capacity_bytes", config.capacity_bytes, remedy);
    }
    let (producer, consumer) = spsc::channel(config.capacity_packets);
    let (control_tx, control_rx) = spsc::channel(CONTROL_PACKETS);
    let lane = Arc::new(Lane {
        sent: CachePadded::default(),
        received: CachePadded::default(),
        armed: CachePadded::new(AtomicBool::new(false)),
        event: eventfd().map_err(|source| PortError::System {
            what: "eventfd",
            source,
        })?,
        sender_gone: AtomicBool::new(false),
        receiver_gone: AtomicBool::new(false),
    });
    Ok((
        TxSide {
            queue: producer,
            control: control_tx,
            lane: Arc::clone(&lane),
            sent: LocalCount::default(),
            received_total: 0,
        },
        RxSide {
            queue: consumer,
            control: control_rx,
            lane,
            received: LocalCount::default(),
        },
    ))
}

pub(super) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: a new descriptor, owned from here on.
    unsafe {
        match libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Whether `membarrier(2)` can order our memory accesses with those of all running threads of the process. The first call waits
/// until all CPUs have been through the kernel, some 15 ms, unless the process has one thread only.
pub(super) fn have_membarrier() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
    // SAFETY: takes no pointers.
    *REGISTERED.get_or_init(|| unsafe {
        libc::syscall(libc::SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0
    })
}

/// Every thread of the process passes a full barrier before this returns.
pub(super) fn membarrier() -> bool {
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    // SAFETY: takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) == 0 }
}

/// One end of a link: what an lcore holds.
#[derive(Debug)]
pub struct FabricEnd {
    tx: TxSide,
    rx: RxSide,
    mtu: u32,
    capacity_bytes: u64,
    looped: bool,
    has_event: bool,
    count: Count,
}

/// Kept by the lcore that owns the end.
#[derive(Debug, Default)]
struct Count {
    tx_packets: u64,
    tx_bytes: u64,
    rx_packets: u64,
    rx_bytes: u64,
    tx_oversize: u64,
    tx_backpressure: u64,
    tx_link_down: u64,
}

/// Why a frame was not put on the link.
enum Refused {
    Full(Mbuf),
    Oversize(Mbuf),
}

impl FabricEnd {
    fn new(config: &FabricLinkConfig, tx: TxSide, rx: RxSide, looped: bool) -> FabricEnd {
        FabricEnd {
            tx,
            rx,
            mtu: config.mtu,
            capacity_bytes: config.capacity_bytes,
            looped,
            has_event: have_membarrier(),
            count: Count::default(),
        }
    }

    /// The link's MTU: bytes of an IP packet.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Bytes under way from here, by priority.
    pub fn tx_occupancy(&self) -> [u64; PRIORITIES] {
        self.tx.lane.occupancy()
    }

    /// Bytes under way to here, by priority.
    pub fn rx_occupancy(&self) -> [u64; PRIORITIES] {
        self.rx.lane.occupancy()
    }

    /// Whether a frame is longer than the MTU allows; a VLAN tag is not counted.
    #[inline(always)]
    fn is_oversize(&self, frame: &[u8]) -> bool {
        let untagged = self.mtu as usize + ETHER;
        frame.len() > untagged
            && !(frame.len() <= untagged + VLAN && matches!(frame.get(12..14), Some([0x81, 0x00])))
    }

    #[inline(always)]
    fn enqueue(&mut self, mbuf: Mbuf) -> Result<(), Refused> {
        let len = mbuf.len() as u64;
        if self.is_oversize(mbuf.data()) {
            return Err(Refused::Oversize(mbuf));
        }
        let tx = &mut self.tx;
        if is_mac_control(mbuf.data()) {
            tx.control.push(mbuf).map_err(Refused::Full)?;
            self.count.tx_bytes += len;
            return Ok(());
        }
        if tx.sent.total - tx.received_total + len > self.capacity_bytes {
            tx.received_total = tx.lane.received.total.load(Ordering::Acquire);
            if tx.sent.total - tx.received_total + len > self.capacity_bytes {
                return Err(Refused::Full(mbuf));
            }
        }
        let priority = priority_of(mbuf.data());
        match tx.queue.push(Entry {
            mbuf,
            len: len as u32,
            priority,
        }) {
            Ok(()) => {
                tx.sent.add(priority, len);
                Ok(())
            }
            Err(entry) => Err(Refused::Full(entry.mbuf)),
        }
    }

    /// Makes a sleeping receiver's descriptor readable.
    #[inline(always)]
    fn wake_receiver(&self) {
        // The receiver arms, runs membarrier, then looks at the queue: either it sees the packets that were
        // flushed before this line, or this line sees it armed. That spares each burst a full barrier here.
        compiler_fence(Ordering::SeqCst);
        if self.tx.lane.armed.load(Ordering::Relaxed) {
            self.write_event();
        }
    }

    #[cold]
    fn write_event(&self) {
        if self.tx.lane.armed.swap(false, Ordering::AcqRel) {
            let one = 1u64.to_ne_bytes();
            // A full counter is readable, too, so a refused write changes nothing.
            // SAFETY: an open eventfd and eight readable bytes.
            unsafe {
                libc::write(
                    self.tx.lane.event.as_raw_fd(),
                    one.as_ptr().cast(),
                    one.len(),
                );
            }
        }
    }
}

impl Driver for FabricEnd {
    #[inline]
    fn rx_burst(&mut self, burst: &mut Burst) -> usize {
        let wanted = burst.room().min(burst.wanted());
        let first = self.rx_control(burst);
        let rx = &mut self.rx;
        let mut taken = first;
        let mut bytes = 0;
        while taken < wanted {
            let Some(entry) = rx.queue.pop() else { break };
            // The sender may be another core.
            entry.mbuf.prefetch_head();
            let len = u64::from(entry.len);
            rx.received.add(entry.priority, len);
            bytes += len;
            taken += 1;
            let pushed = burst.push(entry.mbuf);
            debug_assert!(pushed.is_ok(), "room was checked");
        }
        if taken > first {
            rx.queue.flush();
            rx.received.publish(&rx.lane.received);
            self.count.rx_packets += (taken - first) as u64;
            self.count.rx_bytes += bytes;
        }
        taken
    }

    #[inline]
    fn rx_control(&mut self, burst: &mut Burst) -> usize {
        let wanted = burst.room().min(burst.wanted());
        let mut taken = 0;
        while taken < wanted {
            let Some(mbuf) = self.rx.control.pop() else {
                break;
            };
            taken += 1;
            self.count.rx_packets += 1;
            self.count.rx_bytes += mbuf.len() as u64;
            let pushed = burst.push(mbuf);
            debug_assert!(pushed.is_ok(), "room was checked");
        }
        if taken > 0 {
            self.rx.control.flush();
        }
        taken
    }

    #[inline]
    fn tx_burst(&mut self, burst: &mut Burst) -> usize {
        let offered = burst.len();
        if self.tx.lane.receiver_gone.load(Ordering::Relaxed) {
            self.count.tx_link_down += offered as u64;
            burst.clear();
            return offered;
        }
        let before = self.tx.sent.total;
        let mut sent = 0;
        let mut oversize = 0;
        burst.send_front(|mbuf| match self.enqueue(mbuf) {
            Ok(()) => {
                sent += 1;
                None
            }
            Err(Refused::Oversize(mbuf)) => {
                oversize += 1;
                drop(mbuf);
                None
            }
            Err(Refused::Full(mbuf)) => Some(mbuf),
        });
        if sent > 0 {
            self.tx.sent.publish(&self.tx.lane.sent);
            self.tx.queue.flush();
            self.tx.control.flush();
            self.count.tx_packets += sent;
            self.count.tx_bytes += self.tx.sent.total - before;
            self.wake_receiver();
        }
        self.count.tx_oversize += oversize;
        self.count.tx_backpressure += u64::from(!burst.is_empty());
        offered - burst.len()
    }

    fn counters(&self) -> Counters {
        let c = &self.count;
        vec![
            ("tx_packets", c.tx_packets),
            ("tx_bytes", c.tx_bytes),
            ("rx_packets", c.rx_packets),
            ("rx_bytes", c.rx_bytes),
            ("tx_oversize", c.tx_oversize),
            ("tx_backpressure", c.tx_backpressure),
            ("tx_link_down", c.tx_link_down),
        ]
    }

    fn link(&self) -> LinkStatus {
        LinkStatus {
            up: !self.tx.lane.receiver_gone.load(Ordering::Relaxed),
            speed_mbps: None,
        }
    }

    /// An end that is down takes nothing, which is what the other end sees as a link that is down.
    fn set_link(&mut self, up: bool) {
        self.rx.lane.receiver_gone.store(!up, Ordering::Relaxed);
    }

    fn mac(&self) -> Option<[u8; 6]> {
        None
    }

    fn rx_event(&self) -> Option<BorrowedFd<'_>> {
        self.has_event.then(|| self.rx.lane.event.as_fd())
    }

    fn arm_rx(&mut self) -> bool {
        if !self.has_event {
            return false;
        }
        self.rx.lane.armed.store(true, Ordering::SeqCst);
        if membarrier() && self.rx.queue.is_empty() && self.rx.control.is_empty() {
            return true;
        }
        self.disarm_rx();
        false
    }

    fn disarm_rx(&mut self) {
        self.rx.lane.armed.store(false, Ordering::Release);
        let mut count = [0u8; 8];
        // SAFETY: an open eventfd and eight writable bytes; without an event it returns at once.
        unsafe {
            libc::read(
                self.rx.lane.event.as_raw_fd(),
                count.as_mut_ptr().cast(),
                count.len(),
            );
        }
    }

    fn describe(&self) -> String {
        let kind = if self.looped {
            "fabric loop"
        } else {
            "fabric link"
        };
        let peer = if self.rx.lane.sender_gone.load(Ordering::Relaxed) {
            ", peer gone"
        } else {
            ""
        };
        format!(
            "{kind}, mtu {}, {} bytes deep{peer}",
            self.mtu, self.capacity_bytes
        )
    }
}

impl Drop for FabricEnd {
    fn drop(&mut self) {
        self.tx.lane.sender_gone.store(true, Ordering::Relaxed);
        self.rx.lane.receiver_gone.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priority_comes_from_the_tag_then_from_dscp() {
        let mut frame = [0u8; 64];
        assert_eq!(priority_of(&frame), 0);
        frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 26 << 2]);
        assert_eq!(priority_of(&frame), 3, "DSCP 26 (AF31) is class 3");
        frame[12..16].copy_from_slice(&[0x08, 0x00, 0x45, 48 << 2]);
        assert_eq!(priority_of(&frame), 6, "DSCP 48 (CS6) is class 6");
        // IPv6, traffic class 0xc2 (CS6 with ECT(0)): 6 c2 0 0 0 00
        frame[12..16].copy_from_slice(&[0x86, 0xdd, 0x6c, 0x20]);
        assert_eq!(priority_of(&frame), 6);
        frame[12..16].copy_from_slice(&[0x81, 0x00, 0xa0, 0x05]);
        assert_eq!(priority_of(&frame), 5);
        assert_eq!(priority_of(&frame[..15]), 0);
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let good = FabricLinkConfig::default();
        for (config, setting) in [
            (
                FabricLinkConfig {
                    mtu: 100,
                    ..good.clone()
                },
                "mtu",
            ),
            (
                FabricLinkConfig {
                    capacity_packets: 0,
                    ..good.clone()
                },
                "capacity_packets",
            ),
            (
                FabricLinkConfig {
                    capacity_bytes: 4217,
                    ..good.clone()
                },
                "capacity_bytes",
            ),
        ] {
            let error = FabricLink::pair(&config).unwrap_err();
            assert!(error.to_string().contains(setting), "{error}");
        }
    }
}
