//! What a packet costs below the engine: mbufs, fabric links and burst calls over two drivers that do nothing, in
//! cycles of the time stamp counter per packet. One thread; the best and the median of several runs.
//!
//! `cargo bench --bench port`

use std::hint::black_box;
use std::sync::Arc;

use roceline::port::{
    Burst, Eal, EalConfig, Ethdev, EthdevConfig, FabricLink, FabricLinkConfig, Mempool,
    MempoolConfig, Port,
};

const RUNS: usize = 15;
/// Packets in a run.
const PACKETS: usize = 200_000;
const BURSTS: [usize; 3] = [1, 8, 32];

fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has a time stamp counter.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Runs `work`, which handles one burst, and prints cycles per packet of a run.
fn measure(name: &str, burst: usize, mut work: impl FnMut()) {
    let bursts = PACKETS / burst;
    let mut per_packet: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = cycles();
            (0..bursts).for_each(|_| work());
            (cycles() - start) as f64 / (bursts * burst) as f64
        })
        .collect();
    per_packet.sort_by(f64::total_cmp);
    println!(
        "{name:<34} {burst:>3}   {:>7.1} ({:.1})",
        per_packet[0],
        per_packet[RUNS / 2]
    );
}

fn fill(pool: &Mempool, burst: &mut Burst, count: usize) {
    assert!(pool.alloc_bulk(burst, count));
    for mbuf in burst.iter_mut() {
        assert!(mbuf.set_len(64).is_some());
    }
}

fn memory(pool: &Mempool) {
    let mut burst = Burst::new();
    for count in BURSTS {
        measure("mbuf alloc_bulk + clear (bulk)", count, || {
            pool.alloc_bulk(&mut burst, count);
            black_box(&mut burst).clear();
        });
    }
    for count in BURSTS {
        measure("mbuf alloc_bulk + free one by one", count, || {
            pool.alloc_bulk(&mut burst, count);
            black_box(&mut burst).drain().for_each(drop);
        });
    }
    measure("mbuf alloc + free", 1, || drop(black_box(pool.alloc())));
}

/// Sends the same packets round and round.
fn round_trip(name: &str, pool: &Mempool, tx: &mut Port, mut rx: Option<&mut Port>) {
    for count in BURSTS {
        let mut burst = Burst::new();
        fill(pool, &mut burst, count);
        measure(name, count, || {
            tx.tx_burst(&mut burst);
            match &mut rx {
                Some(rx) => rx.rx_burst(&mut burst),
                None => tx.rx_burst(&mut burst),
            };
            black_box(&mut burst);
        });
        assert_eq!(burst.len(), count);
    }
}

fn empty_polls(name: &str, port: &mut Port) {
    let mut burst = Burst::new();
    measure(name, 1, || {
        black_box(port.rx_burst(&mut burst));
    });
    burst.clear();
}

fn main() {
    let eal = Eal::init(&EalConfig {
        mem_mb: 64,
        ..EalConfig::default()
    })
    .expect("EAL");
    let config = MempoolConfig {
        count: 2048,
        ..MempoolConfig::default()
    };
    let pool: Arc<Mempool> = Mempool::new(&eal, &config).expect("mempool");
    let open = |device: &str| -> Port {
        let config = EthdevConfig {
            device: device.into(),
            ..EthdevConfig::default()
        };
        Ethdev::open(&eal, &pool, &config).expect("port").into()
    };
    println!(
        "{}, {} hugepages",
        Eal::version(),
        if eal.has_hugepages() {
            "with"
        } else {
            "without"
        }
    );
    println!(
        "{:<34} burst  TSC cycles per packet: best (median) of {RUNS} runs",
        ""
    );

    memory(&pool);

    let (a, b) = FabricLink::pair(&FabricLinkConfig::default()).expect("link");
    let (mut a, mut b) = (Port::new(a), Port::new(b));
    round_trip("fabric link tx + rx", &pool, &mut a, Some(&mut b));
    empty_polls("fabric link empty poll", &mut a);

    let mut ring = open("net_ring0");
    round_trip("net_ring loop tx + rx", &pool, &mut ring, None);
    empty_polls("net_ring empty poll", &mut ring);

    let mut null = open("net_null0,size=64,copy=0");
    for count in BURSTS {
        measure("net_null alloc + tx", count, || {
            let mut burst = Burst::new();
            pool.alloc_bulk(&mut burst, count);
            null.tx_burst(&mut burst);
        });
    }
    let mut burst = Burst::new();
    measure("net_null rx + clear", 32, || {
        null.rx_burst(&mut burst);
        burst.clear();
    });
}
