//! A port in parts, for several lcores, with real mbufs: each part gets what is for its queue pairs and sends by the port's
//! one queue; what the NIC sends to itself and to groups crosses; a part that sleeps is woken. EAL starts once per process, so
//! this file is one test whose parts run in order.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use roceline::port::spread::{PartOf, spread};
use roceline::port::{
    Burst, Driver, Eal, FabricEnd, FabricLink, FabricLinkConfig, Mbuf, Mempool, PauseState, Port,
};
use roceline_engine::congestion::pfc::{PauseMode, PfcSettings, Threshold};
use roceline_engine::wire::{PauseFrame, pause};

#[path = "support/small_pool.rs"]
mod small_pool;

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];
const GROUP: [u8; 6] = [0x01, 0x00, 0x5e, 1, 2, 3];

#[test]
fn parts_of_a_port() {
    let (eal, pool) = small_pool::start();
    each_part_gets_what_is_its_own(&pool);
    assert_eq!(pool.available(), 4096);
    all_send_by_the_queue_of_the_first(&pool);
    assert_eq!(pool.available(), 4096);
    what_a_nic_sends_to_itself_crosses(&pool);
    assert_eq!(pool.available(), 4096);
    what_is_for_a_group_goes_to_all(&pool);
    assert_eq!(pool.available(), 4096);
    what_was_offered_before_is_told(&pool);
    assert_eq!(pool.available(), 4096);
    a_part_that_does_not_look_holds_up_nobody(&pool);
    assert_eq!(pool.available(), 4096);
    with_pauses_a_part_that_does_not_look_loses_nothing(&pool);
    assert_eq!(pool.available(), 4096);
    what_is_paused_stays_with_the_first(&pool);
    assert_eq!(pool.available(), 4096);
    what_is_behind_a_pause_is_no_work(&pool);
    assert_eq!(pool.available(), 4096);
    the_link_is_that_of_the_first(&pool);
    assert_eq!(pool.available(), 4096);
    a_sleeping_part_is_woken(&eal, &pool);
    assert_eq!(pool.available(), 4096);
}

/// The parts of one end of a link, and the other end.
fn parts(pool: &Arc<Mempool>, count: usize) -> (Vec<Port>, FabricEnd) {
    parts_of(pool, count, &FabricLinkConfig::default())
}

/// Two parts of a link that holds two frames.
fn parts_of_short_link(pool: &Arc<Mempool>) -> (Vec<Port>, Port) {
    let config = FabricLinkConfig {
        capacity_packets: 2,
        ..FabricLinkConfig::default()
    };
    let (parts, end) = parts_of(pool, 2, &config);
    (parts, Port::new(end))
}

fn parts_of(
    pool: &Arc<Mempool>,
    count: usize,
    config: &FabricLinkConfig,
) -> (Vec<Port>, FabricEnd) {
    let (ours, theirs) = FabricLink::pair(config).unwrap();
    let pools: Vec<_> = (0..count).map(|_| Arc::clone(pool)).collect();
    let parts = spread(std::iter::once(Port::new(ours)), OWN, &pools).unwrap();
    (parts, theirs)
}

/// RoCE v2 over IPv4, as far as anybody looks at it here.
fn frame(pool: &Mempool, to: [u8; 6], qpn: u32, mark: u8) -> Mbuf {
    let mut mbuf = pool.alloc().unwrap();
    let data = mbuf.append(80).unwrap();
    data.fill(0);
    data[..6].copy_from_slice(&to);
    data[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    data[23] = 17;
    data[36..38].copy_from_slice(&4791u16.to_be_bytes());
    data[46..50].copy_from_slice(&qpn.to_be_bytes());
    data[79] = mark;
    mbuf
}

fn send(port: &mut Port, mbufs: Vec<Mbuf>) {
    let mut burst = Burst::new();
    for mbuf in mbufs {
        assert!(burst.push(mbuf).is_ok());
    }
    let count = burst.len();
    assert_eq!(port.tx_burst(&mut burst), count);
}

fn send_end(end: &mut FabricEnd, mbufs: Vec<Mbuf>) {
    let mut burst = Burst::new();
    for mbuf in mbufs {
        assert!(burst.push(mbuf).is_ok());
    }
    end.tx_burst(&mut burst);
    assert!(burst.is_empty());
}

/// The marks of what has come.
fn marks(port: &mut Port) -> Vec<u8> {
    let mut burst = Burst::new();
    port.rx_burst(&mut burst);
    burst.iter().map(|mbuf| mbuf.data()[79]).collect()
}

fn counter(port: &Port, name: &str) -> u64 {
    let counters = port.counters();
    counters.iter().filter(|c| c.0 == name).map(|c| c.1).sum()
}

fn each_part_gets_what_is_its_own(pool: &Arc<Mempool>) {
    let (mut parts, mut end) = parts(pool, 3);
    let own = |number| PartOf::new(number, 3);
    assert_eq!(own(2).bits, 2);
    let frames = (0..24u8).map(|mark| frame(pool, OWN, 0x100 + u32::from(mark % 4), mark));
    let mut frames: Vec<_> = frames.collect();
    // Not RoCE: the first part's.
    frames[0].data_mut()[12..14].copy_from_slice(&[0x08, 0x06]);
    send_end(&mut end, frames);
    assert_eq!(marks(&mut parts[1]), [0; 0], "nobody has looked yet");
    assert_eq!(marks(&mut parts[0]), [0, 4, 8, 12, 16, 20]);
    assert_eq!(marks(&mut parts[2]), [2, 6, 10, 14, 18, 22]);
    assert_eq!(marks(&mut parts[1]), [1, 5, 9, 13, 17, 21]);
    assert_eq!(counter(&parts[0], "lcore_crossed"), 12);
    // Part 3 does not exist.
    assert_eq!(counter(&parts[0], "lcore_nobody"), 6);
}

fn all_send_by_the_queue_of_the_first(pool: &Arc<Mempool>) {
    let (mut parts, end) = parts(pool, 3);
    let mut end = Port::new(end);
    for (part, mark) in [(1, 1), (2, 2), (0, 3)] {
        send(&mut parts[part], vec![frame(pool, OTHER, 0x55, mark)]);
    }
    assert_eq!(marks(&mut end), [3], "the others wait for the first part");
    assert_eq!(marks(&mut parts[0]), [0; 0]);
    assert_eq!(marks(&mut end), [1, 2]);
    assert_eq!(counter(&parts[0], "tx_packets"), 3);
    // Order within a part, however many.
    let mut sent = 0..200u8;
    let mut got = Vec::new();
    while got.len() < 200 {
        let mbufs = sent.by_ref().take(20).map(|m| frame(pool, OTHER, 1, m));
        send(&mut parts[2], mbufs.collect());
        marks(&mut parts[0]);
        got.extend(marks(&mut end));
    }
    assert!(got.iter().copied().eq(0..200));
}

fn what_a_nic_sends_to_itself_crosses(pool: &Arc<Mempool>) {
    let (mut parts, end) = parts(pool, 2);
    let mut end = Port::new(end);
    let mixed = [
        (OWN, 0x10, 1),
        (OTHER, 0x10, 2),
        (OWN, 0x12, 3),
        (OTHER, 0x11, 4),
    ];
    let mixed = mixed.map(|(to, qpn, mark)| frame(pool, to, qpn, mark));
    send(&mut parts[1], mixed.into());
    assert_eq!(marks(&mut parts[0]), [1, 3]);
    assert_eq!(marks(&mut end), [2, 4]);
    send(&mut parts[0], vec![frame(pool, OWN, 0x11, 5)]);
    assert_eq!(marks(&mut parts[1]), [5]);
    assert_eq!(marks(&mut end), [0; 0]);
}

fn what_is_for_a_group_goes_to_all(pool: &Arc<Mempool>) {
    let (mut parts, end) = parts(pool, 3);
    let mut end = Port::new(end);
    send(&mut end, vec![frame(pool, GROUP, 0xff_ffff, 1)]);
    for part in &mut parts {
        assert_eq!(marks(part), [1]);
    }
    send(&mut parts[1], vec![frame(pool, GROUP, 0xff_ffff, 2)]);
    assert_eq!(marks(&mut parts[0]), [2]);
    assert_eq!(marks(&mut parts[2]), [2]);
    assert_eq!(
        marks(&mut parts[1]),
        [0; 0],
        "its own members have had theirs"
    );
    assert_eq!(marks(&mut end), [2]);
}

/// A caller that changes the burst between two calls says which of it are new: these are looked at, and only these.
fn what_was_offered_before_is_told(pool: &Arc<Mempool>) {
    let (mut parts, mut end) = parts_of_short_link(pool);
    let mut burst = Burst::new();
    for (to, qpn, mark) in [(OTHER, 0x10, 1), (OTHER, 0x10, 2), (GROUP, 0xff_ffff, 3)] {
        burst.push(frame(pool, to, qpn, mark)).unwrap();
    }
    assert_eq!(parts[0].tx_burst(&mut burst), 2);
    assert_eq!(marks(&mut parts[1]), [3], "the copy");
    assert_eq!(marks(&mut end), [1, 2]);
    // Another burst goes first.
    send(&mut parts[0], vec![frame(pool, OTHER, 0x10, 4)]);
    assert_eq!(marks(&mut end), [4]);
    burst.push(frame(pool, OWN, 0x11, 5)).unwrap();
    parts[0].offered_before(1);
    assert_eq!(parts[0].tx_burst(&mut burst), 2);
    assert_eq!(marks(&mut parts[1]), [5], "and no second copy");
    assert_eq!(marks(&mut end), [3]);
    // What is left is put aside.
    for mark in 6..9 {
        burst.push(frame(pool, OTHER, 0x10, mark)).unwrap();
    }
    assert_eq!(parts[0].tx_burst(&mut burst), 2);
    burst.clear();
    assert_eq!(marks(&mut end), [6, 7]);
    burst.push(frame(pool, OWN, 0x11, 9)).unwrap();
    parts[0].offered_before(0);
    assert_eq!(parts[0].tx_burst(&mut burst), 1);
    assert_eq!(marks(&mut parts[1]), [9]);
    assert_eq!(marks(&mut end), [0; 0]);
}

fn a_part_that_does_not_look_holds_up_nobody(pool: &Arc<Mempool>) {
    let (mut parts, mut end) = parts(pool, 2);
    let mut got = 0;
    for round in 0..100u8 {
        let mbufs = (0..16).map(|n| frame(pool, OWN, n, round));
        send_end(&mut end, mbufs.collect());
        got += marks(&mut parts[0]).len();
    }
    assert_eq!(got, 800);
    let (crossed, lost) = ("lcore_crossed", "lcore_lost");
    let [crossed, lost] = [crossed, lost].map(|name| counter(&parts[0], name));
    assert_eq!(crossed + lost, 800);
    assert!(crossed >= 256 && lost > 0, "{crossed} {lost}");
}

/// Priority 3, by DSCP 26.
fn lossless(parts: &mut [Port]) {
    let settings = PfcSettings {
        mode: PauseMode::Pfc,
        ..PfcSettings::default()
    };
    let none = Threshold { xoff: 0, xon: 0 };
    for part in parts {
        assert!(!part.set_pause(&settings, none), "it is done by the parts");
    }
}

fn pause_frame(pool: &Mempool) -> Mbuf {
    let mut mbuf = pool.alloc().unwrap();
    let bytes = mbuf.set_len(pause::LEN).unwrap().first_chunk_mut().unwrap();
    PauseFrame::Global { quanta: 9 }.emit(&OTHER, bytes);
    mbuf
}

fn with_pauses_a_part_that_does_not_look_loses_nothing(pool: &Arc<Mempool>) {
    let (mut parts, mut end) = parts(pool, 2);
    lossless(&mut parts);
    let mut sent = 0;
    // Until all is full, from the part that does not look to the other end of the link.
    loop {
        let mut burst = Burst::new();
        for _ in 0..16 {
            burst.push(frame(pool, OWN, 1, 0)).unwrap();
        }
        sent += end.tx_burst(&mut burst);
        assert_eq!(marks(&mut parts[0]), [0; 0]);
        if !burst.is_empty() {
            break;
        }
    }
    assert_eq!(counter(&parts[0], "lcore_lost"), 0);
    // Pauses are heard all the same.
    send_end(&mut end, vec![pause_frame(pool)]);
    let mut burst = Burst::new();
    parts[0].rx_burst(&mut burst);
    let heard = burst.iter().any(|mbuf| pause::is_mac_control(mbuf.data()));
    assert!(heard && burst.len() == 1, "{}", burst.len());
    burst.clear();
    let mut got = 0;
    for _ in 0..sent {
        got += marks(&mut parts[1]).len();
        marks(&mut parts[0]);
    }
    assert_eq!((got, counter(&parts[0], "lcore_lost")), (sent, 0));
}

fn of_priority(pool: &Mempool, priority: u8, mark: u8) -> Mbuf {
    let mut mbuf = frame(pool, OTHER, 1, mark);
    mbuf.data_mut()[15] = priority << 5;
    mbuf
}

fn what_is_paused_stays_with_the_first(pool: &Arc<Mempool>) {
    let (mut parts, end) = parts(pool, 3);
    let mut end = Port::new(end);
    lossless(&mut parts);
    let first = parts[0].pause_part().unwrap();
    let other = parts[1].pause_part().unwrap();
    first.tell(PauseState {
        paused: 1 << 3,
        ..PauseState::default()
    });
    assert_eq!(other.state().paused, 1 << 3);
    let of_priority = |priority, mark| of_priority(pool, priority, mark);
    send(
        &mut parts[1],
        vec![of_priority(0, 1), of_priority(3, 2), of_priority(0, 3)],
    );
    send(&mut parts[2], vec![of_priority(6, 4)]);
    for _ in 0..3 {
        marks(&mut parts[0]);
    }
    assert_eq!(
        marks(&mut end),
        [1, 4],
        "what is behind one that waits, waits"
    );
    first.tell(PauseState::default());
    marks(&mut parts[0]);
    assert_eq!(marks(&mut end), [2, 3]);
}

/// The first part may sleep until the pause ends, also where more waits behind what the port did not take.
fn what_is_behind_a_pause_is_no_work(pool: &Arc<Mempool>) {
    let (mut parts, mut end) = parts_of_short_link(pool);
    if !parts[0].has_rx_interrupt() {
        println!("skipped: membarrier(2) is not available here");
        return;
    }
    lossless(&mut parts);
    let mbufs = (1..4).map(|mark| of_priority(pool, 3, mark)).collect();
    send(&mut parts[1], mbufs);
    marks(&mut parts[0]);
    send(&mut parts[1], vec![of_priority(pool, 3, 4)]);
    let first = parts[0].pause_part().unwrap();
    first.tell(PauseState {
        paused: 1 << 3,
        ..PauseState::default()
    });
    marks(&mut parts[0]);
    assert_eq!(marks(&mut end), [1, 2]);
    assert!(parts[0].arm_rx());
    parts[0].disarm_rx();
    first.tell(PauseState::default());
    assert!(!parts[0].arm_rx(), "now it is work");
    marks(&mut parts[0]);
    assert_eq!(marks(&mut end), [3, 4]);
}

fn the_link_is_that_of_the_first(pool: &Arc<Mempool>) {
    let (mut parts, end) = parts(pool, 2);
    assert!(parts.iter().all(|part| part.link().up));
    drop(end);
    assert!(!parts[0].link().up);
    assert!(!parts[1].link().up);
    parts[1].set_link(false);
    send(&mut parts[1], vec![frame(pool, OTHER, 1, 1)]);
    assert_eq!(counter(&parts[1], "tx_link_down"), 1);
}

/// Both parts sleep on their descriptors whenever they may; a wake-up that is lost ends in the time-out.
fn a_sleeping_part_is_woken(eal: &Eal, pool: &Arc<Mempool>) {
    const FRAMES: u32 = 2000;
    // Fewer than any ring on the way has room for: none is lost, however late a thread gets its turn.
    const UNDERWAY: u32 = 256;
    let (mut all, mut end) = parts(pool, 2);
    if !all[0].has_rx_interrupt() {
        println!("skipped: membarrier(2) is not available here");
        return;
    }
    assert!(all.iter().all(|part| !part.is_polled()));
    let zero = || Arc::new(AtomicU32::new(0));
    let (taken, asleep) = (zero(), zero());
    let threads: Vec<_> = all
        .drain(..)
        .enumerate()
        .map(|(number, mut part)| {
            let eal = eal.clone();
            let (taken, asleep) = (Arc::clone(&taken), Arc::clone(&asleep));
            thread::spawn(move || {
                let _thread = eal.register_thread().unwrap();
                let (mut burst, mut received, mut slept) = (Burst::new(), 0, 0);
                // The first goes on until the other has all: it polls for both. The last frame of all is its own.
                while received < FRAMES / 2 {
                    let got = part.rx_burst(&mut burst);
                    received += got as u32;
                    taken.fetch_add(got as u32, Ordering::Release);
                    burst.clear();
                    if got == 0 && part.arm_rx() {
                        let fd = part.rx_event().unwrap().as_raw_fd();
                        let mut poll = libc::pollfd {
                            fd,
                            events: libc::POLLIN,
                            revents: 0,
                        };
                        asleep.fetch_or(1 << number, Ordering::Release);
                        // SAFETY: one valid pollfd.
                        let ready = unsafe { libc::poll(&mut poll, 1, 60_000) };
                        assert_eq!(ready, 1, "part {number}: a wake-up was lost at {received}");
                        slept += 1;
                        part.disarm_rx();
                    }
                }
                (slept, part)
            })
        })
        .collect();
    let wait_while = |what: &str, waits: &dyn Fn() -> bool| {
        let patience = Instant::now() + Duration::from_secs(120);
        while waits() {
            assert!(Instant::now() < patience, "{what}");
            thread::yield_now();
        }
    };
    wait_while("not both sleep", &|| asleep.load(Ordering::Acquire) != 0b11);
    for n in 0..FRAMES {
        wait_while("nobody takes what comes", &|| {
            n - taken.load(Ordering::Acquire) > UNDERWAY
        });
        send_end(&mut end, vec![frame(pool, OWN, (n + 1) % 2, 0)]);
        // Long and short gaps, so that arrivals hit every moment of falling asleep.
        (0..n % 50).for_each(|_| thread::yield_now());
    }
    let ends: Vec<_> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    assert!(ends.iter().all(|(slept, _)| *slept > 0), "one never slept");
}
