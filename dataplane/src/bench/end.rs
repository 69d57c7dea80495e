//! One NIC on an lcore of its own, and a program with any number of QPs to a peer: half of a benchmark. Both halves may be
//! polled by one thread in turns, by two threads, or by two processes; what each must know of the other is an
//! [`Introduction`].

use std::io;
use std::sync::Arc;

use roceline_engine::congestion::{AlgorithmKind, Rate};
use roceline_engine::verbs::Mtu;
use roceline_engine::{AckPolicy, EngineConfig};
use serde::{Deserialize, Serialize};

use super::memory::Buffer;
use super::pair::{engine, lcore_of, nic_of};
use super::producer::{Producer, ProducerQp};
use crate::config::{Config, Preset};
use crate::control::limits::DeviceLimits;
use crate::lcore::probe::NoProbe;
use crate::lcore::{Lcore, Tuning};
use crate::memory::Reach;
use crate::nic::NicInfo;
use crate::port::{Mempool, Port};

/// log2 of the completions that a queue holds.
const CQ_LOG2: u32 = 14;

/// Path MTUs.
pub const MTUS: [Mtu; 5] = [Mtu::M256, Mtu::M512, Mtu::M1024, Mtu::M2048, Mtu::M4096];

/// Rate of a line that no core fills.
const FASTEST: Rate = Rate::from_gbps(1000);

/// What an end is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EndConfig {
    /// Which NIC of the preset: 0 or 1. The peer is the other.
    pub side: usize,
    /// QPs.
    pub qps: usize,
    /// log2 of the slots of their queues.
    pub log2_depth: u32,
    /// Bytes of its buffer.
    pub bytes: usize,
    /// The buffer is mapped, as programs' memory is; otherwise it is reached through the kernel.
    pub mapped: bool,
    /// Path MTU, in bytes.
    pub mtu: u32,
    /// An ACK for each message, or as few as the rules allow.
    pub ack_per_message: bool,
    /// Congestion control as in the preset, for a line of 1 Tb/s; otherwise none.
    pub congestion_control: bool,
    /// How much its lcore takes at once, and how far it looks ahead.
    pub tuning: Tuning,
    /// Packets that its direction of an emulated link holds.
    pub ring: u32,
}

/// What the peer must know of an end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Introduction {
    /// Numbers of its QPs.
    pub qpns: Vec<u32>,
    /// Address of its buffer.
    pub addr: u64,
    /// Key of it.
    pub key: u32,
    /// More keys of it, which requests name at random.
    pub more_keys: Vec<u32>,
}

/// One NIC with a program.
pub struct End {
    /// Polls the NIC.
    pub lcore: Lcore,
    /// The program.
    pub producer: Producer,
    /// Its QPs.
    pub qps: Vec<ProducerQp>,
    /// Its memory.
    pub buffer: Buffer,
    /// Key of its memory.
    pub key: u32,
    more_keys: Vec<u32>,
    mapped: bool,
    own: NicInfo,
    peer: NicInfo,
    mtu: Mtu,
}

impl End {
    /// Builds it, on the thread that is to poll it.
    ///
    /// # Errors
    /// When memory or the lcore refuses; the error says why.
    pub fn new(config: &EndConfig, port: Port, pool: Arc<Mempool>) -> io::Result<End> {
        let preset = Config::preset(Preset::Pair).map_err(io::Error::other)?;
        let mut infos = preset.nic_infos();
        let mut peer = infos.swap_remove(1 - config.side);
        let mut own = infos.swap_remove(0);
        // It is the only one on its lcore.
        (own.index, peer.index) = (0, 0);
        let mtu = MTUS.into_iter().find(|mtu| mtu.bytes() == config.mtu);
        let mtu =
            mtu.ok_or_else(|| io::Error::other(format!("there is no path MTU {}", config.mtu)))?;
        let ack_policy = match config.ack_per_message {
            true => AckPolicy::PerMessage,
            false => AckPolicy::Coalesced,
        };
        let mut congestion = own.congestion.now().congestion;
        // What the preset says of the line would pace a core that is faster.
        congestion.line_rate = FASTEST;
        if !config.congestion_control {
            congestion.algorithm = AlgorithmKind::None;
        }
        let engine = EngineConfig {
            max_qps: 1 << 16,
            max_mrs: DeviceLimits::default().all_mrs,
            congestion,
            ..engine(ack_policy)
        };
        let nic = nic_of(&own, port, engine);
        let (mut lcore, mailbox) = lcore_of(vec![nic], pool)?;
        lcore.tune(config.tuning);
        let mut poll = || {
            lcore.turn(&mut NoProbe);
        };
        let mut producer = Producer::open(mailbox, 1, 0, CQ_LOG2, &mut poll)?;
        let mut buffer = Buffer::new(config.bytes)?;
        let reach = match config.mapped {
            true => buffer.reach()?,
            false => Reach::kernel(),
        };
        let (addr, len) = (buffer.addr(), buffer.len() as u64);
        let key = producer.register_reached(addr, len, reach, &mut poll)?;
        let qps = (0..config.qps)
            .map(|_| producer.create_qp(config.log2_depth, &mut poll))
            .collect::<io::Result<_>>()?;
        Ok(End {
            lcore,
            producer,
            qps,
            buffer,
            key,
            more_keys: Vec::new(),
            mapped: config.mapped,
            own,
            peer,
            mtu,
        })
    }

    /// What its peer must know.
    pub fn introduction(&self) -> Introduction {
        Introduction {
            qpns: self.qps.iter().map(|qp| qp.qpn).collect(),
            addr: self.buffer.addr(),
            key: self.key,
            more_keys: self.more_keys.clone(),
        }
    }

    /// Registers the memory so many times more.
    ///
    /// # Errors
    /// When the lcore refuses.
    pub fn register_more(&mut self, count: usize) -> io::Result<()> {
        let (addr, len) = (self.buffer.addr(), self.buffer.len() as u64);
        for _ in 0..count {
            let reach = match self.mapped {
                true => self.buffer.reach()?,
                false => Reach::kernel(),
            };
            let lcore = &mut self.lcore;
            let mut poll = || {
                lcore.turn(&mut NoProbe);
            };
            let key = self
                .producer
                .register_reached(addr, len, reach, &mut poll)?;
            self.more_keys.push(key);
        }
        Ok(())
    }

    /// Connects each QP with the peer's QP of the same position.
    ///
    /// # Errors
    /// When the lcore refuses; the error says why.
    pub fn connect(&mut self, peer: &Introduction) -> io::Result<()> {
        let lcore = &mut self.lcore;
        let mut poll = || {
            lcore.turn(&mut NoProbe);
        };
        for (qp, &qpn) in self.qps.iter().zip(&peer.qpns) {
            self.producer
                .connect(qp, &self.own, &self.peer, qpn, self.mtu, &mut poll)?;
        }
        Ok(())
    }

    /// RoCE packets received so far.
    pub fn packets(&self) -> u64 {
        self.lcore.counters(0).rdma_rx_packets
    }

    /// RoCE packets sent and received so far.
    pub fn all_packets(&self) -> u64 {
        let counters = self.lcore.counters(0);
        counters.rdma_tx_packets + counters.rdma_rx_packets
    }

    /// Times that its requesters had to send again, so far.
    pub fn retries(&self) -> u64 {
        let counters = self.lcore.counters(0);
        counters.local_ack_timeout_err + counters.packet_seq_err + counters.rnr_nak_retry_err
    }
}
