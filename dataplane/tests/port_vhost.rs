//! The two ends of a virtio queue, net_vhost and net_virtio_user, in one process: jumbo frames both ways. EAL starts
//! once per process, so this file is one test.

use std::thread;
use std::time::{Duration, Instant};

use roceline::port::{
    Burst, Eal, EalConfig, Ethdev, EthdevConfig, Huge, Mempool, MempoolConfig, Port,
};

const FRAME: usize = 4200;
const PATIENCE: Duration = Duration::from_secs(60);

fn transfer(pool: &Mempool, from: &mut Port, to: &mut Port, frames: u8) {
    let deadline = Instant::now() + PATIENCE;
    let (mut tx, mut rx) = (Burst::new(), Burst::new());
    let (mut made, mut received) = (0, 0);
    while received < frames {
        assert!(
            Instant::now() < deadline,
            "{made} sent, {received} of {frames} arrived"
        );
        if tx.is_empty() && made < frames {
            let mut mbuf = pool.alloc().unwrap();
            mbuf.append(FRAME).unwrap().fill(made);
            assert!(tx.push(mbuf).is_ok());
            made += 1;
        }
        if from.tx_burst(&mut tx) + to.rx_burst(&mut rx) == 0 {
            thread::yield_now();
        }
        for mbuf in rx.iter() {
            assert!(mbuf.len() == FRAME && mbuf.data().iter().all(|&b| b == received));
            received += 1;
        }
        rx.clear();
    }
}

#[test]
fn virtio() {
    let config = EalConfig {
        huge: Huge::Never,
        mem_mb: 64,
        single_file_segments: true,
        ..EalConfig::default()
    };
    let eal = Eal::init(&config).unwrap();
    let pool = Mempool::new(
        &eal,
        &MempoolConfig {
            count: 2048,
            ..MempoolConfig::default()
        },
    )
    .unwrap();
    let socket = std::env::temp_dir().join(format!("roceline-vhost-{}", std::process::id()));
    let open = |device: String| -> Port {
        let config = EthdevConfig {
            device,
            ..EthdevConfig::default()
        };
        Ethdev::open(&eal, &pool, &config).unwrap().into()
    };
    let path = socket.display();
    let mut host = open(format!("net_vhost0,iface={path}"));
    let mac = "mac=02:00:00:00:00:01";
    let guest = format!("net_virtio_user0,path={path},queue_size=256,packed_vq=1,in_order=1,{mac}");
    let mut guest = open(guest);
    assert!(
        !guest.has_rx_interrupt(),
        "its interrupts are not safe to use"
    );
    assert_eq!(guest.mac(), Some([2, 0, 0, 0, 0, 1]));

    transfer(&pool, &mut guest, &mut host, 250);
    transfer(&pool, &mut host, &mut guest, 250);

    drop(guest);
    drop(host);
    assert_eq!(pool.available(), 2048);
}
