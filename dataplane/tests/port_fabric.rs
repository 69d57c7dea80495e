//! Fabric links with real mbufs: order, MTU, bounds in packets and bytes, occupancy per priority, an end that goes,
//! a sleeping receiver, two lcores. EAL starts once per process, so this file is one test whose parts run in order.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;

use roceline::port::{
    Burst, Driver, Eal, FabricEnd, FabricLink, FabricLinkConfig, Mbuf, Mempool, Port, RX_BURST,
};

#[path = "support/small_pool.rs"]
mod small_pool;

#[test]
fn fabric_links() {
    let (eal, pool) = small_pool::start();

    frames_arrive_in_order_at_the_other_end(&pool);
    a_loop_returns_them(&pool);
    a_burst_takes_what_it_wants_at_once(&pool);
    a_full_link_pushes_back(&pool);
    pause_frames_pass_a_full_link(&pool);
    bytes_are_bounded_and_counted_by_priority(&pool);
    oversize_is_counted_and_dropped(&pool);
    frames_for_an_end_that_is_gone_are_dropped(&pool);
    a_link_that_is_down_by_order_loses_what_comes_and_goes(&pool);
    assert_eq!(pool.available(), 4096);

    two_lcores(&eal, &pool);
    assert_eq!(pool.available(), 4096);
    a_sleeping_receiver_is_woken(&eal, &pool);
    assert_eq!(pool.available(), 4096);
}

fn config() -> FabricLinkConfig {
    FabricLinkConfig {
        mtu: 4200,
        capacity_packets: 256,
        capacity_bytes: 1 << 20,
    }
}

fn mbuf(pool: &Mempool, len: usize, fill: impl FnOnce(&mut [u8])) -> Mbuf {
    let mut mbuf = pool.alloc().unwrap();
    let data = mbuf.append(len).unwrap();
    data.fill(0);
    fill(data);
    mbuf
}

fn numbered(pool: &Mempool, number: u32, len: usize) -> Mbuf {
    mbuf(pool, len, |data| {
        data[..4].copy_from_slice(&number.to_be_bytes())
    })
}

fn number(mbuf: &Mbuf) -> u32 {
    u32::from_be_bytes(mbuf.data()[..4].try_into().unwrap())
}

fn counter(counters: &[(&'static str, u64)], name: &str) -> u64 {
    counters
        .iter()
        .find(|(n, _)| *n == name)
        .unwrap_or_else(|| panic!("no {name}"))
        .1
}

fn a_burst_takes_what_it_wants_at_once(pool: &Mempool) {
    let (a, b) = FabricLink::pair(&config()).unwrap();
    let (mut a, mut b) = (Port::new(a), Port::new(b));
    let mut burst = Burst::new();
    for i in 0..20 {
        assert!(burst.push(numbered(pool, i, 64)).is_ok());
    }
    assert_eq!(a.tx_burst(&mut burst), 20);
    let mut few = Burst::of(8);
    let came = [(); 4].map(|()| {
        let came = b.rx_burst(&mut few);
        // How far ahead of the one at hand there is another.
        let mut all = few.drain();
        while let Some(mbuf) = all.next() {
            let next = all.ahead(0).map(number);
            assert_eq!(next, (all.len() > 0).then(|| number(&mbuf) + 1));
            let last = number(&mbuf) + all.len() as u32;
            let farthest = all.len().checked_sub(1).and_then(|n| all.ahead(n));
            assert_eq!(farthest.map(number), (all.len() > 0).then_some(last));
            assert!(all.ahead(all.len()).is_none());
        }
        came
    });
    assert_eq!(came, [8, 8, 4, 0]);
    let mut queue = (0..20).map(|i| numbered(pool, i, 64)).collect();
    few.refill(&mut queue);
    assert_eq!((few.len(), queue.len()), (8, 12));
}

fn frames_arrive_in_order_at_the_other_end(pool: &Mempool) {
    let (a, b) = FabricLink::pair(&config()).unwrap();
    let (mut a, mut b) = (Port::new(a), Port::new(b));
    let mut burst = Burst::new();
    for round in 0..100 {
        for i in 0..50 {
            assert!(
                burst
                    .push(numbered(pool, round * 50 + i, 64 + i as usize))
                    .is_ok()
            );
        }
        assert_eq!(a.tx_burst(&mut burst), 50);
        assert_eq!(b.rx_burst(&mut burst), RX_BURST);
        assert_eq!(b.rx_burst(&mut burst), 50 - RX_BURST);
        for (i, mbuf) in burst.iter().enumerate() {
            assert_eq!((number(mbuf), mbuf.len()), (round * 50 + i as u32, 64 + i));
        }
        // And the other way.
        assert_eq!(b.tx_burst(&mut burst), 50);
        assert_eq!(a.rx_burst(&mut burst), RX_BURST);
        burst.clear();
        assert_eq!(a.rx_burst(&mut burst), 50 - RX_BURST);
        burst.clear();
    }
    let (a, b) = (a.counters(), b.counters());
    assert_eq!(
        (counter(&a, "tx_packets"), counter(&b, "rx_packets")),
        (5000, 5000)
    );
    assert_eq!(counter(&a, "tx_bytes"), counter(&b, "rx_bytes"));
    assert_eq!(counter(&b, "tx_bytes"), counter(&a, "rx_bytes"));
}

fn a_loop_returns_them(pool: &Mempool) {
    let mut port = Port::new(FabricLink::looped(&config()).unwrap());
    let mut burst = Burst::new();
    assert!(burst.push(numbered(pool, 7, 100)).is_ok());
    assert_eq!(port.tx_burst(&mut burst), 1);
    assert!(port.link().up);
    assert_eq!(port.rx_burst(&mut burst), 1);
    assert_eq!(number(burst.get(0).unwrap()), 7);
    assert!(port.describe().contains("loop"));
}

/// A link that holds 16 frames and is full of them, and those that did not fit.
fn full_link(pool: &Mempool) -> (FabricEnd, FabricEnd, Burst) {
    let config = FabricLinkConfig {
        capacity_packets: 16,
        ..config()
    };
    let (mut a, b) = FabricLink::pair(&config).unwrap();
    let mut burst = Burst::new();
    for i in 0..20 {
        assert!(burst.push(numbered(pool, i, 64)).is_ok());
    }
    assert_eq!(a.tx_burst(&mut burst), 16);
    (a, b, burst)
}

fn a_full_link_pushes_back(pool: &Mempool) {
    let (mut a, mut b, mut burst) = full_link(pool);
    assert_eq!(
        burst.iter().map(number).collect::<Vec<_>>(),
        [16, 17, 18, 19]
    );
    assert_eq!(a.tx_burst(&mut burst), 0);
    assert_eq!(counter(&a.counters(), "tx_backpressure"), 2);
    let mut rx = Burst::new();
    assert_eq!(b.rx_burst(&mut rx), 16);
    assert_eq!(a.tx_burst(&mut burst), 4);
    assert_eq!(b.rx_burst(&mut rx), 4);
    assert!(rx.iter().map(number).eq(0..20));
}

/// They go in front, and whoever has no room for more frames hears them all the same.
fn pause_frames_pass_a_full_link(pool: &Mempool) {
    let (mut a, mut b, _left) = full_link(pool);
    let pause = |pool| mbuf(pool, 60, |data| data[12..14].copy_from_slice(&[0x88, 0x08]));
    let mut control = Burst::new();
    assert!(control.push(pause(pool)).is_ok());
    assert_eq!(a.tx_burst(&mut control), 1);
    assert_eq!(a.tx_occupancy(), [16 * 64, 0, 0, 0, 0, 0, 0, 0]);
    let mut rx = Burst::new();
    assert_eq!(b.rx_control(&mut rx), 1);
    assert_eq!(rx.get(0).unwrap().data()[12..14], [0x88, 0x08]);
    assert_eq!(b.rx_control(&mut rx), 0);
    rx.clear();
    // Who reads all has them first.
    assert!(control.push(pause(pool)).is_ok());
    assert_eq!(a.tx_burst(&mut control), 1);
    assert_eq!(b.rx_burst(&mut rx), 17);
    assert_eq!(rx.get(0).unwrap().data()[12..14], [0x88, 0x08]);
    assert!(rx.iter().skip(1).map(number).eq(0..16));
    assert_eq!(counter(&a.counters(), "tx_packets"), 18);
    assert_eq!(counter(&b.counters(), "rx_packets"), 18);
    assert_eq!(
        counter(&a.counters(), "tx_bytes"),
        counter(&b.counters(), "rx_bytes")
    );
    // They are bounded, too.
    let mut taken = 0;
    loop {
        assert!(control.push(pause(pool)).is_ok());
        match a.tx_burst(&mut control) {
            0 => break,
            n => taken += n,
        }
    }
    assert_eq!(taken, 64);
}

fn bytes_are_bounded_and_counted_by_priority(pool: &Mempool) {
    let config = FabricLinkConfig {
        capacity_bytes: 10_000,
        ..config()
    };
    let (mut a, mut b) = FabricLink::pair(&config).unwrap();
    let mut burst = Burst::new();
    for dscp in [26, 26, 48, 0] {
        let frame = mbuf(pool, 3000, |data| {
            data[12..16].copy_from_slice(&[0x08, 0x00, 0x45, dscp << 2]);
        });
        assert!(burst.push(frame).is_ok());
    }
    assert_eq!(a.tx_burst(&mut burst), 3, "9000 of 10000 bytes are taken");
    assert_eq!(a.tx_occupancy(), [0, 0, 0, 6000, 0, 0, 3000, 0]);
    assert_eq!(b.rx_occupancy(), a.tx_occupancy());
    let mut rx = Burst::new();
    assert_eq!(b.rx_burst(&mut rx), 3);
    assert_eq!(a.tx_occupancy(), [0; 8]);
    assert_eq!(a.tx_burst(&mut burst), 1);
    assert_eq!(a.tx_occupancy(), [3000, 0, 0, 0, 0, 0, 0, 0]);
}

fn oversize_is_counted_and_dropped(pool: &Mempool) {
    let (mut a, mut b) = FabricLink::pair(&config()).unwrap();
    let mut burst = Burst::new();
    let tagged = |len| {
        mbuf(pool, len, |data| {
            data[12..14].copy_from_slice(&[0x81, 0x00])
        })
    };
    for frame in [
        numbered(pool, 0, 4214),
        numbered(pool, 1, 4215),
        tagged(4218),
        tagged(4219),
        numbered(pool, 4, 60),
    ] {
        assert!(burst.push(frame).is_ok());
    }
    assert_eq!(a.tx_burst(&mut burst), 5, "dropped frames are taken, too");
    assert_eq!(counter(&a.counters(), "tx_oversize"), 2);
    let mut rx = Burst::new();
    assert_eq!(b.rx_burst(&mut rx), 3);
    assert!(rx.iter().map(Mbuf::len).eq([4214, 4218, 60]));
}

fn frames_for_an_end_that_is_gone_are_dropped(pool: &Mempool) {
    let (mut a, b) = FabricLink::pair(&config()).unwrap();
    let mut burst = Burst::new();
    assert!(burst.push(numbered(pool, 0, 64)).is_ok());
    assert_eq!(a.tx_burst(&mut burst), 1);
    assert!(a.link().up);
    drop(b);
    assert!(!a.link().up);
    assert!(burst.push(numbered(pool, 1, 64)).is_ok());
    assert_eq!(a.tx_burst(&mut burst), 1);
    assert_eq!(counter(&a.counters(), "tx_link_down"), 1);
}

/// Echoes what comes until it has seen `count` frames.
/// Down at one end, a link is down at both, and nothing of the time comes out when it is up again.
fn a_link_that_is_down_by_order_loses_what_comes_and_goes(pool: &Mempool) {
    let (a, b) = FabricLink::pair(&config()).unwrap();
    let (mut a, mut b) = (Port::new(a), Port::new(b));
    let mut burst = Burst::new();
    let send = |port: &mut Port, burst: &mut Burst| {
        assert!(burst.push(numbered(pool, 7, 64)).is_ok());
        assert_eq!(port.tx_burst(burst), 1);
    };
    // Under way when the plug is pulled.
    send(&mut b, &mut burst);
    a.set_link(false);
    assert!(!a.link().up && !b.link().up);
    assert_eq!(a.rx_burst(&mut burst), 0);
    assert!(burst.is_empty());
    send(&mut a, &mut burst);
    send(&mut b, &mut burst);
    let lost = |port: &Port| {
        let all = port.counters();
        (counter(&all, "tx_link_down"), counter(&all, "rx_link_down"))
    };
    assert_eq!((lost(&a), lost(&b)), ((1, 1), (1, 0)));
    a.set_link(true);
    assert!(a.link().up && b.link().up);
    assert_eq!(a.rx_burst(&mut burst) + b.rx_burst(&mut burst), 0);
    send(&mut a, &mut burst);
    assert_eq!(b.rx_burst(&mut burst), 1);
}

fn echo(mut end: FabricEnd, count: u32) {
    let mut burst = Burst::new();
    let mut seen = 0;
    while seen < count || !burst.is_empty() {
        if burst.room() >= RX_BURST {
            seen += end.rx_burst(&mut burst) as u32;
        }
        if end.tx_burst(&mut burst) == 0 {
            thread::yield_now();
        }
    }
    // The other side has everything before this end goes.
    while end.tx_occupancy() != [0; 8] {
        thread::yield_now();
    }
}

fn two_lcores(eal: &Eal, pool: &Arc<Mempool>) {
    const FRAMES: u32 = 20_000;
    let (mut a, b) = FabricLink::pair(&FabricLinkConfig {
        capacity_packets: 64,
        ..config()
    })
    .unwrap();
    let eal = eal.clone();
    let echo = thread::spawn(move || {
        let _thread = eal.register_thread().unwrap();
        echo(b, FRAMES);
    });
    let (mut tx, mut rx) = (Burst::new(), Burst::new());
    let (mut sent, mut received) = (0, 0);
    while received < FRAMES {
        while tx.room() > 0 && sent < FRAMES && sent - received < 512 {
            assert!(
                tx.push(numbered(pool, sent, 64 + (sent % 1000) as usize))
                    .is_ok()
            );
            sent += 1;
        }
        let moved = a.tx_burst(&mut tx) + a.rx_burst(&mut rx);
        for mbuf in rx.iter() {
            assert_eq!(
                (number(mbuf), mbuf.len()),
                (received, 64 + (received % 1000) as usize)
            );
            received += 1;
        }
        rx.clear();
        if moved == 0 {
            thread::yield_now();
        }
    }
    echo.join().unwrap();
}

/// Sleeps on the port's descriptor whenever it may; a wake-up that is lost ends in the time-out.
fn a_sleeping_receiver_is_woken(eal: &Eal, pool: &Arc<Mempool>) {
    const FRAMES: u32 = 2000;
    let (mut a, b) = FabricLink::pair(&config()).unwrap();
    let mut b = Port::new(b);
    if !b.has_rx_interrupt() {
        println!("skipped: membarrier(2) is not available here");
        return;
    }
    let eal = eal.clone();
    let receiver = thread::spawn(move || {
        let _thread = eal.register_thread().unwrap();
        let (mut burst, mut received, mut slept) = (Burst::new(), 0, 0);
        while received < FRAMES {
            let got = b.rx_burst(&mut burst);
            received += got as u32;
            burst.clear();
            if got == 0 && b.arm_rx() {
                let fd = b.rx_event().unwrap().as_raw_fd();
                let mut poll = libc::pollfd {
                    fd,
                    events: libc::POLLIN,
                    revents: 0,
                };
                // SAFETY: one valid pollfd.
                let ready = unsafe { libc::poll(&mut poll, 1, 60_000) };
                assert_eq!(ready, 1, "a wake-up was lost at {received}");
                slept += 1;
                b.disarm_rx();
            }
        }
        slept
    });
    let mut burst = Burst::new();
    for i in 0..FRAMES {
        assert!(burst.push(numbered(pool, i, 64)).is_ok());
        while a.tx_burst(&mut burst) == 0 {
            thread::yield_now();
        }
        // Long and short gaps, so that arrivals hit every moment of falling asleep.
        (0..i % 50).for_each(|_| thread::yield_now());
    }
    assert!(receiver.join().unwrap() > 0, "it never slept");
}
