//! NICs at the ends of a fabric, and its clock.

use std::sync::Arc;

use roceline::config::Config;
use roceline::fabric::Fabric;
use roceline::fabric::report::{FabricReport, QueueReport};
use roceline::lcore::tap::Taps;
use roceline::port::{Burst, FabricEnd, Mbuf, Mempool, Port};
use roceline_engine::Nanos;
use roceline_engine::wire::{PauseFrame, ipv4, pause};

/// Bytes of most frames.
pub const MTU: usize = 4096;

/// NICs at the ends of a fabric, and its clock.
pub struct World {
    pub fabric: Fabric,
    pub taps: Taps,
    pub nics: Vec<Port>,
    pub pool: Arc<Mempool>,
    pub burst: Burst,
    pub now: Nanos,
}

pub fn world(pool: &Arc<Mempool>, ports: &[&str], fabric: &str) -> World {
    let nic = |(n, port): (usize, &&str)| {
        format!(
            "[[nic]]\nname = \"roce{n}\"\nmac = \"02:00:00:00:00:0{n}\"\naddresses = [\"10.0.0.{}/24\"]\nport = \"fabric:{port}\"\n",
            n + 1
        )
    };
    let nics: String = ports.iter().enumerate().map(nic).collect();
    let config = Config::parse("test", &(nics + fabric)).unwrap();
    let (fabric, ends) = Fabric::new(&config.fabric, Arc::clone(pool)).unwrap();
    World {
        fabric,
        taps: Taps::new(),
        nics: ends
            .into_iter()
            .map(|end: FabricEnd| Port::new(end))
            .collect(),
        pool: Arc::clone(pool),
        burst: Burst::new(),
        now: Nanos(1_000_000),
    }
}

impl World {
    pub fn pass(&mut self, time: Nanos) {
        self.now = self.now + time;
        self.fabric.poll(self.now, &mut self.taps);
    }

    /// Offers frames of `len` bytes, ECN-capable and of priority 3, from a NIC until its link is full or there are `count`.
    pub fn send(&mut self, from: usize, to: u8, len: usize, first: u32, count: u32) -> u32 {
        for n in 0..count {
            let Some(mut mbuf) = self.pool.alloc() else {
                return n;
            };
            let frame = mbuf.append(len).unwrap();
            frame.fill(0);
            frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, to]);
            frame[12..16].copy_from_slice(&[0x08, 0, 0x45, 26 << 2 | 2]);
            frame[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
            ipv4::set_checksum(&mut frame[14..]);
            frame[40..44].copy_from_slice(&(first + n).to_be_bytes());
            frame[44] = from as u8;
            self.burst.push(mbuf).unwrap();
            if self.nics[from].tx_burst(&mut self.burst) == 0 {
                self.burst.clear();
                return n;
            }
        }
        count
    }

    pub fn receive(&mut self, nic: usize) -> Option<Mbuf> {
        if self.burst.is_empty() {
            self.nics[nic].rx_burst(&mut self.burst);
        }
        self.burst.take(0)
    }

    /// Offers a pause frame of a NIC.
    pub fn pause(&mut self, from: usize, frame: &PauseFrame) {
        let mut mbuf = self.pool.alloc().unwrap();
        let bytes = mbuf.set_len(pause::LEN).unwrap().first_chunk_mut().unwrap();
        frame.emit(&[2, 0, 0, 0, 0, from as u8], bytes);
        self.burst.push(mbuf).unwrap();
        assert_eq!(self.nics[from].tx_burst(&mut self.burst), 1);
    }

    /// Reads a burst at a NIC and drops it; gives how many there were.
    pub fn take(&mut self, nic: usize) -> u32 {
        let mut burst = Burst::new();
        self.nics[nic].rx_burst(&mut burst) as u32
    }

    /// Pause frames that have come to a NIC, for which they are read alone.
    pub fn told(&mut self, nic: usize) -> Vec<PauseFrame> {
        let mut burst = Burst::new();
        self.nics[nic].rx_control(&mut burst);
        let frames = burst.drain();
        frames
            .map(|mbuf| PauseFrame::parse(mbuf.data(), &[2; 6]).unwrap())
            .collect()
    }

    pub fn queue(&self, peer: &str) -> QueueReport {
        let report: FabricReport = self.fabric.report(self.now);
        let ports = report.switches.iter().flat_map(|s| &s.ports);
        let port = ports.into_iter().find(|p| p.peer == peer).unwrap();
        port.queues
            .iter()
            .find(|q| q.priority == 3)
            .cloned()
            .unwrap_or_default()
    }
}

/// Lets everything arrive.
pub fn drain(mut world: World) {
    for _ in 0..20_000 {
        world.pass(Nanos(1_000_000));
        let mut came = false;
        for nic in 0..world.nics.len() {
            while world.receive(nic).is_some() {
                came = true;
            }
        }
        // The slowest link takes 3.4 ms for a frame.
        if !came && world.fabric.next_deadline().is_none() {
            break;
        }
    }
    assert_eq!(world.queue("roce0").depth, 0);
}

pub fn stop(priority: u8, time: u16) -> PauseFrame {
    PauseFrame::Priority {
        enabled: 1 << priority,
        quanta: std::array::from_fn(|p| if p == usize::from(priority) { time } else { 0 }),
    }
}
