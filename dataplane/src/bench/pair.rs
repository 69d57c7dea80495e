//! Two NICs on one lcore, joined by a fabric link, with a [`Producer`] on each and a QP between them: the shortest
//! way of a message that is still the whole datapath.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::sync_channel;

use roceline_engine::congestion::CongestionConfig;
use roceline_engine::fabric::impair::Rule;
use roceline_engine::verbs::Mtu;
use roceline_engine::{AckPolicy, EngineConfig, Retransmission};

use super::producer::{ACK_TIMEOUT, Producer, ProducerQp, eventfd};
use crate::config::{Config, Preset};
use crate::control::LcorePort;
use crate::impair::Place;
use crate::lcore::message::{Command, ContextId, ImpairCommand, Reply, Request};
use crate::lcore::probe::NoProbe;
use crate::lcore::{IdlePolicy, Lcore, LcoreConfig, Mailbox, NicConfig};
use crate::memory::helper::{HelperCpus, LcoreWake};
use crate::nic::NicInfo;
use crate::port::{Eal, EalConfig, FabricLink, FabricLinkConfig, Mempool, MempoolConfig, Port};

/// One end: a program with a QP.
#[derive(Debug)]
pub struct Side {
    /// The program.
    pub producer: Producer,
    /// Its QP, connected.
    pub qp: ProducerQp,
    /// Its NIC.
    pub info: NicInfo,
}

/// The lcore and both ends. The lcore runs on the thread that polls it.
pub struct Pair {
    /// Polls both NICs.
    pub lcore: Lcore,
    /// The end on `roce0`.
    pub a: Side,
    /// The end on `roce1`.
    pub b: Side,
    /// The packets of all.
    pub pool: Arc<Mempool>,
    infos: Vec<NicInfo>,
    mailbox: Arc<Mailbox>,
    programs: u64,
}

impl Pair {
    /// Builds it. Initialises EAL, so once in a process. `ack_policy` holds for both.
    ///
    /// # Errors
    /// When EAL, memory or the lcore refuses; the error says why.
    pub fn new(ack_policy: AckPolicy, mtu: Mtu, log2_depth: u32) -> io::Result<Pair> {
        let config = Config::preset(Preset::Pair).map_err(io::Error::other)?;
        let infos = config.nic_infos();
        let eal = Eal::init(&EalConfig::default()).map_err(io::Error::other)?;
        let pool = Mempool::new(&eal, &MempoolConfig::default()).map_err(io::Error::other)?;
        let (end_a, end_b) = FabricLink::pair(&FabricLinkConfig {
            mtu: infos[0].port_mtu,
            ..FabricLinkConfig::default()
        })
        .map_err(io::Error::other)?;
        let nics = [end_a, end_b]
            .into_iter()
            .zip(&infos)
            .map(|(end, info)| nic_of(info, Port::new(end), engine(ack_policy)))
            .collect();
        let (mut lcore, mailbox) = lcore_of(nics, Arc::clone(&pool))?;
        let mut programs = 0;
        let (a, b) = ends(
            &mut lcore,
            &mailbox,
            &infos,
            &mut programs,
            mtu,
            log2_depth,
            ACK_TIMEOUT,
        )?;
        Ok(Pair {
            lcore,
            a,
            b,
            pool,
            infos,
            mailbox,
            programs,
        })
    }

    /// Where the lcore takes requests from.
    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Two more programs with a connected QP each.
    ///
    /// # Errors
    /// When memory or the lcore refuses; the error says why.
    pub fn more(&mut self, mtu: Mtu, log2_depth: u32) -> io::Result<(Side, Side)> {
        self.more_with_timeout(mtu, log2_depth, ACK_TIMEOUT)
    }

    /// The same with another ACK timeout, as verbs codes it (4.096 us times two to this).
    ///
    /// # Errors
    /// When memory or the lcore refuses; the error says why.
    pub fn more_with_timeout(
        &mut self,
        mtu: Mtu,
        log2_depth: u32,
        ack_timeout: u8,
    ) -> io::Result<(Side, Side)> {
        let programs = &mut self.programs;
        ends(
            &mut self.lcore,
            &self.mailbox,
            &self.infos,
            programs,
            mtu,
            log2_depth,
            ack_timeout,
        )
    }
}

impl Pair {
    /// Puts a rule that impairs packets at a place, behind those that it has.
    ///
    /// # Errors
    /// When the lcore refuses it; the error says why.
    pub fn impair(&mut self, place: Place, rule: Rule) -> io::Result<()> {
        let (reply, answer) = sync_channel(1);
        let rule = Box::new(rule);
        let request = Request {
            context: ContextId(0),
            command: Command::Impair(ImpairCommand::Add { place, rule }),
            reply,
        };
        self.mailbox
            .send(place.nic, request)
            .map_err(io::Error::other)?;
        self.lcore.turn(&mut NoProbe);
        match answer.try_recv() {
            Ok(Reply::Done) => Ok(()),
            Ok(Reply::Failed { reason, .. }) => Err(io::Error::other(reason)),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }
}

/// A transport with settings like a daemon's, and room for what tests need.
pub(crate) fn engine(ack_policy: AckPolicy) -> EngineConfig {
    EngineConfig {
        max_qps: 1024,
        max_mrs: 1024,
        window: 256,
        ack_policy,
        retransmission: Retransmission::Spec,
        owner: 0,
        owner_bits: 0,
        congestion: CongestionConfig::default(),
        seed: 1,
    }
}

/// A NIC.
pub(crate) fn nic_of(info: &NicInfo, port: Port, engine: EngineConfig) -> NicConfig {
    NicConfig {
        info: Arc::new(info.clone()),
        port,
        polled: false,
        engine,
    }
}

/// An lcore that never sleeps, on the thread that calls, and where it takes requests from.
pub(crate) fn lcore_of(
    nics: Vec<NicConfig>,
    pool: Arc<Mempool>,
) -> io::Result<(Lcore, Arc<Mailbox>)> {
    let config = LcoreConfig {
        cpu: None,
        helper_cpus: Arc::new([]),
        cpus: crate::config::allowed_cpus().len(),
        idle: IdlePolicy::Spin,
        requests_per_poll: 64,
    };
    let (lcore, mailbox, _) = lcore_with(config, nics, pool)?;
    Ok((lcore, mailbox))
}

/// An lcore on the thread that calls, where it takes requests from, and what wakes it.
pub(crate) fn lcore_with(
    config: LcoreConfig,
    nics: Vec<NicConfig>,
    pool: Arc<Mempool>,
) -> io::Result<(Lcore, Arc<Mailbox>, Arc<LcoreWake>)> {
    let wake = Arc::new(LcoreWake {
        sleeping: AtomicU32::new(0),
        eventfd: eventfd()?,
    });
    let helpers = HelperCpus {
        cpus: Arc::new([]),
        shared: true,
    };
    let mailbox = Arc::new(Mailbox::new(Arc::clone(&wake), helpers));
    let lcore = Lcore::new(config, nics, pool, Arc::clone(&mailbox), Arc::clone(&wake))?;
    Ok((lcore, mailbox, wake))
}

/// A program on each of two NICs of an lcore, with a connected QP.
pub(crate) fn ends(
    lcore: &mut Lcore,
    mailbox: &Arc<Mailbox>,
    infos: &[NicInfo],
    programs: &mut u64,
    mtu: Mtu,
    log2_depth: u32,
    ack_timeout: u8,
) -> io::Result<(Side, Side)> {
    let mut poll = || {
        lcore.turn(&mut NoProbe);
    };
    let mut open = |nic: u32| -> io::Result<Side> {
        *programs += 1;
        let mut producer = Producer::open(Arc::clone(mailbox), *programs, nic, 12, &mut poll)?;
        producer.ack_timeout = ack_timeout;
        let qp = producer.create_qp(log2_depth, &mut poll)?;
        Ok(Side {
            producer,
            qp,
            info: infos[nic as usize].clone(),
        })
    };
    let (a, b) = (open(0)?, open(1)?);
    a.producer
        .connect(&a.qp, &a.info, &b.info, b.qp.qpn, mtu, &mut poll)?;
    b.producer
        .connect(&b.qp, &b.info, &a.info, a.qp.qpn, mtu, &mut poll)?;
    Ok((a, b))
}
