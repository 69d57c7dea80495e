//! A NIC in a loop that the test turns, a program on it with a queue pair, and the other end of its link.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use roceline::bench::{Producer, ProducerQp};
use roceline::config::{Config, Preset};
use roceline::lcore::{IdlePolicy, Lcore, LcoreConfig, Mailbox, NicConfig};
use roceline::memory::helper::{HelperCpus, LcoreWake};
use roceline::port::{
    Eal, EalConfig, FabricEnd, FabricLink, FabricLinkConfig, Mempool, MempoolConfig, Port,
};
use roceline_engine::congestion::CongestionConfig;
use roceline_engine::verbs::Mtu;
use roceline_engine::{AckPolicy, EngineConfig, Retransmission};

/// All of it.
pub struct OneNic {
    pub lcore: Lcore,
    pub wire: FabricEnd,
    pub pool: Arc<Mempool>,
    pub program: Producer,
    /// Connected to QP 0x77 of the second NIC, which does not exist.
    pub qp: ProducerQp,
}

impl OneNic {
    /// `port` makes the NIC's port of its end of the link, which holds so many packets; queues have 2^`log2` slots; `poll` turns
    /// the loop while the program is set up.
    pub fn new(
        packets: usize,
        port: impl FnOnce(FabricEnd) -> Port,
        log2: u32,
        prepare: impl FnOnce(&mut Lcore),
        poll: impl Fn(&mut Lcore),
    ) -> OneNic {
        let infos = Config::preset(Preset::Pair).unwrap().nic_infos();
        // A process starts EAL once; the tests share it.
        static EAL: OnceLock<Eal> = OnceLock::new();
        let eal = EAL.get_or_init(|| Eal::init(&EalConfig::default()).unwrap());
        static NICS: AtomicU32 = AtomicU32::new(0);
        let pool_config = MempoolConfig {
            name: format!("mbufs{}", NICS.fetch_add(1, Ordering::Relaxed)),
            ..MempoolConfig::default()
        };
        let pool = Mempool::new(eal, &pool_config).unwrap();
        let (nic_end, wire) = FabricLink::pair(&FabricLinkConfig {
            mtu: infos[0].port_mtu,
            capacity_packets: packets,
            ..FabricLinkConfig::default()
        })
        .unwrap();
        let nic = NicConfig {
            info: Arc::new(infos[0].clone()),
            port: port(nic_end),
            polled: false,
            engine: EngineConfig {
                max_qps: 64,
                max_mrs: 64,
                window: 256,
                ack_policy: AckPolicy::PerMessage,
                retransmission: Retransmission::Spec,
                owner: 0,
                owner_bits: 0,
                congestion: CongestionConfig::default(),
                seed: 1,
            },
        };
        // SAFETY: a new descriptor that becomes ours.
        let eventfd = unsafe {
            use std::os::fd::{FromRawFd, OwnedFd};
            OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK))
        };
        let wake = Arc::new(LcoreWake {
            sleeping: AtomicU32::new(0),
            eventfd,
        });
        let helpers = HelperCpus {
            cpus: Arc::new([]),
            shared: true,
        };
        let mailbox = Arc::new(Mailbox::new(Arc::clone(&wake), helpers));
        let config = LcoreConfig {
            cpu: None,
            helper_cpus: Arc::new([]),
            cpus: 1,
            idle: IdlePolicy::Spin,
            requests_per_poll: 64,
        };
        let (boxes, buffers) = (Arc::clone(&mailbox), Arc::clone(&pool));
        let mut lcore = Lcore::new(config, vec![nic], buffers, boxes, wake).unwrap();
        prepare(&mut lcore);
        let mut poll = || poll(&mut lcore);
        let mut program = Producer::open(mailbox, 1, 0, log2, &mut poll).unwrap();
        let qp = program.create_qp(log2, &mut poll).unwrap();
        program
            .connect(&qp, &infos[0], &infos[1], 0x77, Mtu::M1024, &mut poll)
            .unwrap();
        OneNic {
            lcore,
            wire,
            pool,
            program,
            qp,
        }
    }
}
