//! Ports over real poll-mode drivers in one process, without hugepages. EAL starts once per process, so this file
//! is one test whose parts run in order.

use std::sync::Arc;

use roceline::port::{
    Burst, Eal, EalConfig, Ethdev, EthdevConfig, Huge, Mempool, MempoolConfig, Port, PortError,
    RX_BURST,
};
use roceline_engine::congestion::pfc::{PauseMode, PfcSettings};

fn eal() -> Eal {
    Eal::init(&EalConfig {
        huge: Huge::Never,
        mem_mb: 64,
        ..EalConfig::default()
    })
    .unwrap()
}

fn pool(eal: &Eal, name: &str, count: u32, data_room: u32) -> Arc<Mempool> {
    let config = MempoolConfig {
        name: name.into(),
        count,
        data_room,
        cache: 0,
        ..MempoolConfig::default()
    };
    Mempool::new(eal, &config).unwrap()
}

fn device(device: &str) -> EthdevConfig {
    EthdevConfig {
        device: device.into(),
        ..EthdevConfig::default()
    }
}

fn counter(port: &Port, name: &str) -> u64 {
    port.counters()
        .iter()
        .find(|(n, _)| *n == name)
        .unwrap_or_else(|| panic!("no {name}"))
        .1
}

fn affinity() -> Vec<usize> {
    // SAFETY: a plain bit array filled by the kernel.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(
            libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set),
            0
        );
        (0..libc::CPU_SETSIZE as usize)
            .filter(|&cpu| libc::CPU_ISSET(cpu, &set))
            .collect()
    }
}

#[test]
fn ethdevs() {
    let before = affinity();
    let eal = eal();
    assert_eq!(
        affinity(),
        before,
        "EAL must not pin the thread that starts it"
    );
    assert!(!eal.has_hugepages());
    assert!(matches!(
        Eal::init(&EalConfig::default()),
        Err(PortError::EalAlreadyStarted)
    ));
    let _thread = eal.register_thread().unwrap();

    mbufs_grow_up_to_their_room(&eal);
    payload_begins_at_a_cache_line(&eal);
    exhaustion_is_counted_and_survived(&eal);
    null_sends_and_receives(&eal);
    ring_returns_frames_in_order(&eal);
    what_does_not_fit_stays_in_front(&eal);
    mtu_rules(&eal);
    errors_name_the_device(&eal);
    owners_may_go_in_any_order(eal);
}

fn mbufs_grow_up_to_their_room(eal: &Eal) {
    let pool = pool(eal, "room", 64, 256);
    let mut mbuf = pool.alloc().unwrap();
    assert_eq!((mbuf.len(), mbuf.capacity()), (0, 256));
    mbuf.append(100).unwrap().fill(0xaa);
    mbuf.append(156).unwrap().fill(0xbb);
    assert!(mbuf.append(1).is_none());
    assert_eq!(mbuf.len(), 256);
    assert!(mbuf.data()[..100].iter().all(|&b| b == 0xaa));
    assert!(mbuf.data()[100..].iter().all(|&b| b == 0xbb));
    assert!(mbuf.set_len(257).is_none());
    assert_eq!(mbuf.set_len(40).unwrap().len(), 40);
    let raw = mbuf.into_raw();
    assert_eq!(pool.available(), 63, "a raw mbuf is still in use");
    // SAFETY: it came from `into_raw` just above.
    drop(unsafe { roceline::port::Mbuf::from_raw(raw) });
    assert_eq!(pool.available(), 64);
}

/// Behind headers of any length, as long as the frame fits there; the room that it had before is not lost.
fn payload_begins_at_a_cache_line(eal: &Eal) {
    let room = 2048;
    let pool = pool(eal, "lines", 4, room as u32);
    for ahead in [54, 58, 70, 74, 90, 128] {
        let mut mbuf = pool.alloc().unwrap();
        mbuf.align_behind(ahead, room - 64);
        let frame = mbuf.set_len(room - 64).unwrap();
        assert_eq!(frame[ahead..].as_ptr() as usize % 64, 0, "{ahead}");
        // One with bytes stays where it is.
        let before = mbuf.data().as_ptr();
        mbuf.align_behind(ahead + 1, room - 64);
        assert_eq!(mbuf.data().as_ptr(), before);

        let mut full = pool.alloc().unwrap();
        full.align_behind(ahead, room);
        assert_eq!(full.set_len(room).map(|frame| frame.len()), Some(room));
    }
    // And the next to have the buffer has all of it.
    let mbufs: Vec<_> = (0..4).map(|_| pool.alloc().unwrap()).collect();
    assert!(mbufs.iter().all(|mbuf| mbuf.capacity() == room));
}

fn exhaustion_is_counted_and_survived(eal: &Eal) {
    let pool = pool(eal, "small", 100, 128);
    let mut bursts = [Burst::new(), Burst::new()];
    assert!(pool.alloc_bulk(&mut bursts[0], 64));
    assert!(!pool.alloc_bulk(&mut bursts[1], 64), "36 are left");
    assert_eq!((pool.exhausted(), bursts[1].len()), (1, 0));
    assert!(pool.alloc_bulk(&mut bursts[1], 36));
    assert!(pool.alloc().is_none());
    assert_eq!(pool.exhausted(), 2);
    assert!(
        !pool.alloc_bulk(&mut bursts[0], 1),
        "the burst is full: nothing to count"
    );
    assert_eq!(pool.exhausted(), 2);
    bursts[1].clear();
    assert_eq!(pool.available(), 36);
    assert!(pool.alloc().is_some());

    let first = bursts[0].take(0).unwrap();
    assert!(bursts[0].push(first).is_ok());
    assert_eq!(bursts[0].drain().take(10).count(), 10);
    assert_eq!(pool.available(), 100, "what is not drained is freed");

    // A driver that finds the pool empty says so in its counters, and goes on when there are mbufs again.
    let mut port: Port = Ethdev::open(eal, &pool, &device("net_null9,size=64"))
        .unwrap()
        .into();
    let mut held = Burst::new();
    while pool.alloc_bulk(&mut held, 50) && held.room() >= 50 {}
    let mut rest = Burst::new();
    while let Some(mbuf) = pool.alloc() {
        assert!(rest.push(mbuf).is_ok());
    }
    let mut rx = Burst::new();
    assert_eq!(port.rx_burst(&mut rx), 0);
    held.clear();
    assert_eq!(port.rx_burst(&mut rx), RX_BURST);
    rx.clear();
}

fn null_sends_and_receives(eal: &Eal) {
    let pool = pool(eal, "null", 512, Mempool::JUMBO_DATA_ROOM);
    let mut port: Port = Ethdev::open(eal, &pool, &device("net_null0,size=4200"))
        .unwrap()
        .into();
    let mut burst = Burst::new();
    assert_eq!(port.tx_burst(&mut burst), 0);
    assert_eq!(port.rx_burst(&mut burst), RX_BURST);
    assert_eq!(port.rx_burst(&mut burst), RX_BURST);
    assert_eq!(port.rx_burst(&mut burst), 0, "a full burst takes no more");
    assert!(burst.iter().all(|m| m.len() == 4200));
    assert_eq!(port.tx_burst(&mut burst), 64);
    assert!(burst.is_empty());
    assert_eq!(
        (counter(&port, "rx_packets"), counter(&port, "tx_packets")),
        (64, 64)
    );
    assert_eq!(
        (counter(&port, "rx_bytes"), counter(&port, "tx_bytes")),
        (64 * 4200, 64 * 4200)
    );
    assert!(!port.has_rx_interrupt());
    assert!(port.link().up);
    assert!(port.describe().contains("net_null"), "{}", port.describe());
    // No virtual driver pauses by itself, so Roceline does.
    for mode in [PauseMode::Pfc, PauseMode::Global, PauseMode::Off] {
        let settings = PfcSettings {
            mode,
            ..PfcSettings::default()
        };
        let threshold = settings.threshold(10_000_000_000, 1500).unwrap();
        assert!(!port.set_pause(&settings, threshold), "{mode:?}");
    }
    drop(port);
    assert_eq!(pool.available(), 512);

    // A port has one owner, whom a second one does not disturb.
    let mut first: Port = Ethdev::open(eal, &pool, &device("net_null0,size=64"))
        .unwrap()
        .into();
    let error = Ethdev::open(eal, &pool, &device("net_null0")).unwrap_err();
    assert!(matches!(error, PortError::InUse { .. }), "{error}");
    assert_eq!(first.rx_burst(&mut burst), RX_BURST);
    burst.clear();
    drop(first);

    // The same name again: closing the port removed the device.
    drop(Ethdev::open(eal, &pool, &device("net_null0,size=64")).unwrap());
}

/// `net_ring` loops a port to itself.
fn ring_returns_frames_in_order(eal: &Eal) {
    let pool = pool(eal, "ring", 512, Mempool::JUMBO_DATA_ROOM);
    let mut port: Port = Ethdev::open(eal, &pool, &device("net_ring0"))
        .unwrap()
        .into();
    let mut burst = Burst::new();
    for size in [1usize, 64, 4200] {
        assert!(pool.alloc_bulk(&mut burst, 40));
        for (i, mbuf) in burst.iter_mut().enumerate() {
            mbuf.append(size).unwrap().fill(i as u8);
        }
        assert_eq!(port.tx_burst(&mut burst), 40);
        assert_eq!(port.rx_burst(&mut burst), RX_BURST);
        assert_eq!(port.rx_burst(&mut burst), 8);
        for (i, mbuf) in burst.iter().enumerate() {
            assert!(mbuf.len() == size && mbuf.data().iter().all(|&b| b == i as u8));
        }
        burst.clear();
    }
    drop(port);
    assert_eq!(pool.available(), 512);
}

fn what_does_not_fit_stays_in_front(eal: &Eal) {
    let pool = pool(eal, "full", 2048, 128);
    let mut port: Port = Ethdev::open(eal, &pool, &device("net_ring1"))
        .unwrap()
        .into();
    let mut burst = Burst::new();
    let mut next = 0u32;
    let mut sent = 0;
    loop {
        while burst.room() > 0 {
            let mut mbuf = pool.alloc().unwrap();
            mbuf.append(4).unwrap().copy_from_slice(&next.to_be_bytes());
            next += 1;
            assert!(burst.push(mbuf).is_ok());
        }
        let taken = port.tx_burst(&mut burst);
        sent += taken as u32;
        assert_eq!(burst.len(), Burst::CAPACITY - taken);
        if taken < Burst::CAPACITY {
            break;
        }
    }
    assert_eq!(counter(&port, "tx_backpressure"), 1);
    assert_eq!(burst.get(0).unwrap().data(), sent.to_be_bytes());
    let mut rx = Burst::new();
    for expected in 0..sent {
        if rx.is_empty() {
            assert!(port.rx_burst(&mut rx) > 0);
        }
        assert_eq!(rx.take(0).unwrap().data(), expected.to_be_bytes());
    }
    assert!(port.tx_burst(&mut burst) > 0, "there is room again");
}

fn mtu_rules(eal: &Eal) {
    let jumbo = pool(eal, "jumbo", 256, Mempool::JUMBO_DATA_ROOM);
    let small = pool(eal, "tiny", 256, 2048);

    // A driver that takes it: longer frames are counted and dropped, the others pass in order.
    let config = EthdevConfig {
        mtu: 4200,
        ..device("net_null2")
    };
    let mut port: Port = Ethdev::open(eal, &jumbo, &config).unwrap().into();
    let mut burst = Burst::new();
    for size in [64usize, 4219, 4218, 4300] {
        let mut mbuf = jumbo.alloc().unwrap();
        mbuf.append(size).unwrap().fill(0);
        assert!(burst.push(mbuf).is_ok());
    }
    assert_eq!(port.tx_burst(&mut burst), 4);
    assert_eq!(
        (counter(&port, "tx_oversize"), counter(&port, "tx_packets")),
        (2, 2)
    );
    drop(port);

    let error = Ethdev::open(eal, &small, &config).unwrap_err();
    assert!(
        matches!(
            error,
            PortError::DataRoom {
                frame: 4218,
                data_room: 2048,
                ..
            }
        ),
        "{error}"
    );

    // One that does not: the error says what to do instead, and doing that works.
    let memif = "net_memif7,role=server,socket=roceline-mtu,bsize=4352";
    let error = Ethdev::open(
        eal,
        &jumbo,
        &EthdevConfig {
            mtu: 4200,
            ..device(memif)
        },
    )
    .unwrap_err();
    assert!(
        matches!(
            error,
            PortError::Mtu {
                mtu: 4200,
                max: 1500,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("bsize=4352"), "{error}");
    let af_packet = EthdevConfig {
        mtu: u32::MAX,
        ..device("net_af_packet0,iface=lo")
    };
    let error = Ethdev::open(eal, &jumbo, &af_packet).unwrap_err();
    assert!(error.to_string().contains("framesz=4352"), "{error}");
    let port: Port = Ethdev::open(eal, &jumbo, &device(memif)).unwrap().into();
    assert!(!port.link().up, "no client yet");

    // Polling threads register after their ports were opened, and ports may be opened after that.
    std::thread::scope(|scope| {
        scope.spawn(|| drop(eal.register_thread().unwrap()));
    });

    // The driver alone would go on listening, with a handler whose memory is freed.
    let listens = || {
        std::fs::read_to_string("/proc/net/unix")
            .unwrap()
            .contains("@roceline-mtu")
    };
    assert!(listens());
    drop(port);
    assert!(!listens() || !dpdk_sys::MEMIF_GUARDED);
}

fn errors_name_the_device(eal: &Eal) {
    let pool = pool(eal, "errors", 256, 2048);
    let error = Ethdev::open(eal, &pool, &device("net_nosuch0")).unwrap_err();
    assert!(error.to_string().contains("`net_nosuch0`"), "{error}");
    let error = Ethdev::open(eal, &pool, &device("net\0null")).unwrap_err();
    assert!(matches!(error, PortError::Nul { .. }), "{error}");
    for (config, setting) in [
        (
            MempoolConfig {
                name: "x".repeat(26),
                ..MempoolConfig::default()
            },
            "length of name",
        ),
        (
            MempoolConfig {
                count: 0,
                ..MempoolConfig::default()
            },
            "count",
        ),
        (
            MempoolConfig {
                data_room: 65408,
                ..MempoolConfig::default()
            },
            "data_room",
        ),
        (
            MempoolConfig {
                count: 300,
                cache: 256,
                ..MempoolConfig::default()
            },
            "cache",
        ),
    ] {
        let error = Mempool::new(eal, &config).unwrap_err();
        assert!(error.to_string().contains(setting), "{error}");
    }
    let huge = MempoolConfig {
        name: "huge".into(),
        count: 1 << 20,
        ..MempoolConfig::default()
    };
    let error = Mempool::new(eal, &huge).unwrap_err();
    assert!(error.to_string().contains("memory_mb"), "{error}");
    // The failure left nothing behind.
    drop(self::pool(eal, "huge", 64, 2048));
}

/// Handles dropped from the bottom up: each thing stays until what stands on it is gone.
fn owners_may_go_in_any_order(eal: Eal) {
    let pool = pool(&eal, "last", 512, 2048);
    let mut port: Port = Ethdev::open(&eal, &pool, &device("net_null3,size=64"))
        .unwrap()
        .into();
    let mut burst = Burst::new();
    assert_eq!(port.rx_burst(&mut burst), RX_BURST);
    drop(eal);
    drop(pool);
    assert_eq!(port.tx_burst(&mut burst), RX_BURST);
    assert_eq!(port.rx_burst(&mut burst), RX_BURST);
    drop(port);
    // The pool's handles are gone, yet its mbufs are whole.
    assert!(burst.iter_mut().all(|m| m.set_len(2048).is_some()));
    burst.clear();
}
