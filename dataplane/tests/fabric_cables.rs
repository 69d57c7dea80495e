//! Cables between switches, without a rate or from one lcore to another, with real mbufs and times of our own: what is lossless loses
//! nothing. EAL starts once per process, so this file is one test.

use std::sync::Arc;

use roceline::config::Config;
use roceline::fabric::Fabric;
use roceline::fabric::report::QueueReport;
use roceline::lcore::tap::Taps;
use roceline::port::{Burst, Eal, EalConfig, Huge, Mbuf, Mempool, MempoolConfig, Port};
use roceline_engine::Nanos;
use roceline_engine::fabric::impair::Random;
use roceline_engine::wire::PauseFrame;
use roceline_engine::wire::ipv4;

/// Ethernet header and a packet of 4096 bytes of payload, as `mtu` has it.
const FRAME: usize = 14 + 4_096;
/// Frames of a NIC between two polls.
const BURST: u32 = 32;
/// Of the class that is lossless by default.
const PRIORITY: u8 = 3;

#[test]
fn a_cable_without_a_rate_or_between_lcores_loses_nothing_of_a_lossless_priority() {
    let one = "";
    let lcores = "[[lcore]]\n[[lcore]]\n[[lcore]]\n";
    let cables = [
        (one, ""),
        (one, "delay = \"3us\"\n"),
        (lcores, ""),
        (lcores, "delay = \"3us\"\nrate = \"10Gb/s\"\n"),
    ];
    let rated = cables.map(|(_, links)| links.contains("rate"));
    let cables = cables.map(|(lcores, links)| {
        let nics: String = (0..4).map(nic).collect();
        let text = format!(
            "{nics}{lcores}[fabric]\n{links}\
             [[fabric.switch]]\nname = [\"leaf0\", \"leaf1\"]\nuplinks = \"spine\"\n\
             [[fabric.switch]]\nname = \"spine\"\n"
        );
        Config::parse("test", &text).unwrap().fabric
    });
    let most = cables.iter().map(Fabric::mbufs).max().unwrap();
    let config = EalConfig {
        huge: Huge::Never,
        mem_mb: cables.iter().map(Fabric::memory_mb).max().unwrap() + 50,
        ..EalConfig::default()
    };
    let eal = Eal::init(&config).unwrap();
    let settings = MempoolConfig {
        count: most as u32 + 4_096,
        ..MempoolConfig::default()
    };
    let pool = Mempool::new(&eal, &settings).unwrap();
    for (plan, rated) in cables.iter().zip(rated) {
        // A receiver that keeps up, and one that is behind.
        for reads in [u32::MAX, 40] {
            let (fabrics, ends) = Fabric::split(plan, |_| Arc::clone(&pool)).unwrap();
            let world = World {
                fabrics: fabrics.into_values().collect(),
                taps: Taps::new(),
                nics: ends.into_iter().map(Port::new).collect(),
                pool: Arc::clone(&pool),
                burst: Burst::new(),
                now: Nanos(1_000_000),
                rated,
            };
            world.three_into_one(reads);
        }
    }
    assert_eq!(pool.available(), settings.count, "all came home");
}

/// The first one is alone on its leaf, three share the other one.
fn nic(n: u32) -> String {
    format!(
        "[[nic]]\nname = \"roce{n}\"\nmac = \"02:00:00:00:00:0{n}\"\naddresses = [\"10.0.0.{}/24\"]\n\
         port = \"fabric:leaf{}\"\nmtu = 4096\n",
        n + 1,
        u32::from(n > 0)
    )
}

struct World {
    /// One for each lcore.
    fabrics: Vec<Fabric>,
    taps: Taps,
    nics: Vec<Port>,
    pool: Arc<Mempool>,
    burst: Burst,
    now: Nanos,
    /// Cables have a rate.
    rated: bool,
}

impl World {
    /// NICs send in bursts, as ours do between two looks at what comes, and obey pauses.
    fn three_into_one(mut self, reads: u32) {
        let mut random = Random::new(7);
        let mut paused = [false; 4];
        let (mut sent, mut got, mut pauses) = (0u32, 0u32, 0u32);
        for round in 0..1_000 {
            for (from, &paused) in paused.iter().enumerate().skip(1) {
                if round < 200 && !paused {
                    sent += (0..BURST).take_while(|_| self.send(from)).count() as u32;
                }
            }
            // Shorter than a pause lasts: what a poll that is later than that does is another matter.
            self.now = self.now + Nanos(random.below(20_000));
            for (n, fabric) in self.fabrics.iter_mut().enumerate() {
                // Each thread has a clock of its own, and they began at different times.
                fabric.poll(self.now + Nanos(n as u64 * 777_777), &mut self.taps);
            }
            for (nic, paused) in paused.iter_mut().enumerate() {
                for _ in 0..reads {
                    let Some(mbuf) = self.receive(nic) else {
                        break;
                    };
                    match PauseFrame::parse(mbuf.data(), &[2; 6]) {
                        Some(PauseFrame::Priority { quanta, .. }) => {
                            *paused = quanta[usize::from(PRIORITY)] > 0;
                            pauses += 1;
                        }
                        Some(pause) => panic!("{pause:?}"),
                        None => got += 1,
                    }
                }
            }
        }
        let reports = self.fabrics.iter();
        let reports = reports.map(|fabric| fabric.report(self.now + Nanos(10_000_000)));
        let report: Vec<_> = reports.flat_map(|report| report.switches).collect();
        let ports = report.iter().flat_map(|s| &s.ports);
        let queues: Vec<&QueueReport> = ports.flat_map(|port| &port.queues).collect();
        for queue in &queues {
            assert_eq!((queue.rx_dropped, queue.dropped), (0, 0), "{report:#?}");
        }
        let cables = queues.iter().filter(|q| q.pause_rx.frames > 0).count();
        // Only a receiver that is behind holds the senders up for sure. A cable of the ports' rate carries no more than the next takes: then
        // the first switch is where it stops.
        let held_up = pauses > 0 && (cables > 0 || self.rated);
        assert!(
            held_up || reads == u32::MAX,
            "{pauses} {cables} {report:#?}"
        );
        assert!(sent == got && got > 500, "{sent} {got} {report:#?}");
    }

    /// Whether its link has taken a frame.
    fn send(&mut self, from: usize) -> bool {
        let Some(mut mbuf) = self.pool.alloc() else {
            return false;
        };
        let frame = mbuf.append(FRAME).unwrap();
        frame.fill(0);
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 0]);
        frame[12..16].copy_from_slice(&[0x08, 0, 0x45, 26 << 2 | 2]);
        frame[16..18].copy_from_slice(&(FRAME as u16 - 14).to_be_bytes());
        ipv4::set_checksum(&mut frame[14..]);
        self.burst.push(mbuf).unwrap();
        let taken = self.nics[from].tx_burst(&mut self.burst) > 0;
        self.burst.clear();
        taken
    }

    fn receive(&mut self, nic: usize) -> Option<Mbuf> {
        if self.burst.is_empty() {
            self.nics[nic].rx_burst(&mut self.burst);
        }
        self.burst.take(0)
    }
}
