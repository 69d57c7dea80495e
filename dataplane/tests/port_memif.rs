//! net_memif between two processes: frames of 4200 bytes arrive whole and in order, and whichever side is killed in
//! full flight, the other lives on and connects again.
//!
//! The test runs itself as its peer: with `ROCELINE_MEMIF_PEER` set, `peer` is that process.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use roceline::port::{
    Burst, Eal, EalConfig, Ethdev, EthdevConfig, Huge, Mempool, MempoolConfig, Port,
};

const FRAME: usize = 4200;
const PEER: &str = "ROCELINE_MEMIF_PEER";
/// For one step on a loaded machine; it takes well under a second on an idle one.
const PATIENCE: Duration = Duration::from_secs(60);

struct Nic {
    port: Port,
    pool: std::sync::Arc<Mempool>,
    maintained: Instant,
}

fn open(role: &str, socket: &Path) -> Nic {
    let eal = Eal::init(&EalConfig {
        huge: Huge::Never,
        mem_mb: 64,
        ..EalConfig::default()
    })
    .unwrap();
    let config = MempoolConfig {
        count: 2048,
        cache: 64,
        ..MempoolConfig::default()
    };
    let pool = Mempool::new(&eal, &config).unwrap();
    Nic {
        port: open_port(&eal, &pool, role, socket),
        pool,
        maintained: Instant::now(),
    }
}

fn open_port(eal: &Eal, pool: &std::sync::Arc<Mempool>, role: &str, socket: &Path) -> Port {
    let device = format!(
        "net_memif0,role={role},socket={},socket-abstract=no,bsize=4352",
        socket.display()
    );
    Ethdev::open(
        eal,
        pool,
        &EthdevConfig {
            device,
            ..EthdevConfig::default()
        },
    )
    .unwrap()
    .into()
}

impl Nic {
    /// One turn of a poll loop; it gives the core away when there is nothing to do, as there may be one only.
    fn poll(&mut self, burst: &mut Burst) -> usize {
        let got = self.port.rx_burst(burst);
        if got == 0 {
            thread::yield_now();
        }
        if self.maintained.elapsed() > Duration::from_millis(50) {
            self.port.maintain();
            self.maintained = Instant::now();
        }
        got
    }

    fn counter(&self, name: &str) -> u64 {
        self.port
            .counters()
            .iter()
            .find(|(n, _)| *n == name)
            .unwrap()
            .1
    }

    /// Sends back all that comes until `done`.
    fn echo_until(&mut self, what: &str, mut done: impl FnMut(&Nic) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        let mut burst = Burst::new();
        while !done(self) {
            assert!(
                Instant::now() < deadline,
                "waited in vain: {what}; {:?}",
                self.port.counters()
            );
            if burst.room() >= 32 {
                self.poll(&mut burst);
            }
            self.port.tx_burst(&mut burst);
        }
    }

    /// Sends `count` frames to a peer that echoes and checks each that comes back.
    fn check(&mut self, count: u32) {
        let deadline = Instant::now() + PATIENCE;
        let (mut tx, mut rx) = (Burst::new(), Burst::new());
        let (mut sent, mut received) = (0, 0);
        while received < count {
            assert!(
                Instant::now() < deadline,
                "{sent} sent, {received} of {count} returned"
            );
            self.poll(&mut rx);
            for mbuf in rx.iter() {
                assert_eq!(mbuf.len(), FRAME);
                assert!(
                    mbuf.data() == frame(received),
                    "frame {received} arrived damaged"
                );
                received += 1;
            }
            rx.clear();
            if !self.port.link().up {
                continue;
            }
            while tx.room() > 0 && sent < count && sent - received < 200 {
                let Some(mut mbuf) = self.pool.alloc() else {
                    break;
                };
                mbuf.append(FRAME).unwrap().copy_from_slice(&frame(sent));
                assert!(tx.push(mbuf).is_ok());
                sent += 1;
            }
            self.port.tx_burst(&mut tx);
        }
    }

    /// Sends and receives as fast as it can until `done`.
    fn blast_until(&mut self, what: &str, mut done: impl FnMut(&Nic) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        let (mut tx, mut rx) = (Burst::new(), Burst::new());
        while !done(self) {
            assert!(
                Instant::now() < deadline,
                "waited in vain: {what}; {:?}",
                self.port.counters()
            );
            self.poll(&mut rx);
            rx.clear();
            let wanted = tx.room().min(32);
            self.pool.alloc_bulk(&mut tx, wanted);
            for mbuf in tx.iter_mut() {
                assert!(mbuf.set_len(FRAME).is_some());
            }
            self.port.tx_burst(&mut tx);
        }
    }
}

/// Frame `number`: every byte depends on it.
fn frame(number: u32) -> Vec<u8> {
    (0..FRAME as u32)
        .map(|i| (number.wrapping_mul(31).wrapping_add(i * 7) >> 3) as u8)
        .collect()
}

/// The other process, killed when dropped.
struct Peer(Child);

impl Peer {
    fn start(role: &str, work: &str, socket: &Path) -> Peer {
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "peer", "--nocapture"])
            .env(PEER, format!("{role},{work},{}", socket.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Peer(child)
    }

    fn ended(&mut self) -> bool {
        match self.0.try_wait().unwrap() {
            Some(status) => {
                assert!(status.success(), "the peer failed: {status}");
                true
            }
            None => false,
        }
    }

    /// As suddenly as can be.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The peer process; a test without effect in the first one.
#[test]
fn peer() {
    let Ok(order) = env::var(PEER) else { return };
    let [role, work, socket] = order.splitn(3, ',').collect::<Vec<_>>()[..] else {
        panic!()
    };
    let mut nic = open(role, Path::new(socket));
    match work {
        "check" => nic.check(2000),
        "echo" => nic.echo_until("being killed", |_| false),
        "blast" => nic.blast_until("being killed", |_| false),
        other => panic!("{other}"),
    }
}

/// The driver unmaps the rings of a peer that went on another thread: not while a burst is in progress.
fn the_connection_is_torn_down_between_bursts(nic: &mut Nic, socket: &Path) {
    // Ports that do not exist stand for others that are polled at the same time.
    const IN_A_BURST: u16 = 30;
    const NEXT_BURST: u16 = 31;
    let peer = Peer::start("client", "echo", socket);
    nic.echo_until("link up", |nic| nic.port.link().up);
    // The hand-shake's last message may still be on its way: enter once the gate stays open.
    // SAFETY: both numbers are below RTE_MAX_ETHPORTS.
    unsafe {
        while dpdk_sys::rl_memif_enter(IN_A_BURST) == 0 {
            thread::yield_now();
        }
    }
    peer.kill();
    let deadline = Instant::now() + PATIENCE;
    // SAFETY: as above.
    while unsafe { dpdk_sys::rl_memif_enter(NEXT_BURST) } != 0 {
        assert!(Instant::now() < deadline, "the handler did not come");
        // SAFETY: as above; entered just now.
        unsafe { dpdk_sys::rl_memif_leave(NEXT_BURST) };
        thread::yield_now();
    }
    assert!(
        nic.port.link().up,
        "the handler did not wait for the burst to end"
    );
    assert_eq!(
        nic.port.rx_burst(&mut Burst::new()),
        0,
        "no burst begins while it waits"
    );
    // SAFETY: as above; entered before.
    unsafe { dpdk_sys::rl_memif_leave(IN_A_BURST) };
    nic.echo_until("link down", |nic| !nic.port.link().up);
}

struct TempDir(PathBuf);

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn memif() {
    if env::var(PEER).is_ok() {
        return;
    }
    let dir = TempDir(env::temp_dir().join(format!("roceline-memif-{}", std::process::id())));
    std::fs::create_dir_all(&dir.0).unwrap();
    let socket = dir.0.join("server.sock");

    // The server stays, clients come and go.
    let mut nic = open("server", &socket);
    let mut peer = Peer::start("client", "check", &socket);
    nic.echo_until("the client's check", |_| peer.ended());
    assert_eq!(nic.counter("rx_packets"), 2000);
    assert_eq!(nic.counter("rx_bytes"), 2000 * FRAME as u64);
    nic.echo_until("link down", |nic| !nic.port.link().up);
    for _ in 0..4 {
        let peer = Peer::start("client", "blast", &socket);
        let seen = nic.counter("rx_packets") + 1000;
        nic.blast_until("traffic", |nic| nic.counter("rx_packets") > seen);
        let killer = thread::spawn(move || peer.kill());
        nic.blast_until("link down", |nic| !nic.port.link().up);
        killer.join().unwrap();
        let lost = nic.counter("tx_link_down");
        nic.blast_until("frames for nobody", |nic| {
            nic.counter("tx_link_down") > lost + 100
        });
    }
    if dpdk_sys::MEMIF_GUARDED {
        the_connection_is_torn_down_between_bursts(&mut nic, &socket);
    }
    let mut peer = Peer::start("client", "check", &socket);
    nic.echo_until("the last client's check", |_| peer.ended());

    // The client stays, servers come and go, the first after it; each is killed and leaves its socket behind.
    let Nic { port, pool, .. } = nic;
    let eal = pool.eal().clone();
    drop(port);
    assert!(!socket.exists(), "a server that closes removes its socket");
    let port = open_port(&eal, &pool, "client", &socket);
    let mut nic = Nic {
        port,
        pool,
        maintained: Instant::now(),
    };
    assert!(!nic.port.link().up);
    for _ in 0..2 {
        let peer = Peer::start("server", "blast", &socket);
        let seen = nic.counter("rx_packets") + 1000;
        nic.blast_until("traffic", |nic| nic.counter("rx_packets") > seen);
        let killer = thread::spawn(move || peer.kill());
        nic.blast_until("link down", |nic| !nic.port.link().up);
        killer.join().unwrap();
        assert!(socket.exists());
    }
    let peer = Peer::start("server", "echo", &socket);
    nic.check(2000);
    peer.kill();
    assert_eq!(nic.counter("reconnects"), 3);

    // Everything comes home, also what was in the rings.
    let Nic { port, pool, .. } = nic;
    drop(port);
    assert_eq!(pool.available(), 2048);
}
