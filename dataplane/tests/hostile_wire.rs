//! What comes from the wire malformed is counted, dropped, and nothing else: no completion, no answer, no change of
//! the QP. The frames reach the NIC through its port, as a peer's would.

#[path = "support/one_nic.rs"]
mod one_nic;

use std::sync::Arc;
use std::time::{Duration, Instant};

use one_nic::OneNic;
use roceline::bench::{Producer, ProducerQp};
use roceline::config::{Config, Preset};
use roceline::lcore::Lcore;
use roceline::lcore::message::{Command, Reply};
use roceline::lcore::probe::NoProbe;
use roceline::neighbour::Moved;
use roceline::port::{Burst, Driver, FabricEnd, Mempool, Port, RX_BURST};
use roceline_engine::descriptor::{Payload, Side, TxDesc};
use roceline_engine::verbs::{Mtu, Path, QpId, Sge, WrOpcode};
use roceline_engine::wire::{ExtHeaders, HeaderTemplate, Opcode, Psn, icrc};

const PAYLOAD: usize = 61;

struct World {
    lcore: Lcore,
    wire: FabricEnd,
    pool: Arc<Mempool>,
    program: Producer,
    qp: ProducerQp,
    template: HeaderTemplate,
}

impl World {
    fn new() -> World {
        let poll = |lcore: &mut Lcore| {
            lcore.turn(&mut NoProbe);
        };
        let OneNic {
            lcore,
            wire,
            pool,
            program,
            qp,
        } = OneNic::new(1024, Port::new, 6, |_| (), poll);
        let infos = Config::preset(Preset::Pair).unwrap().nic_infos();
        let path = Path {
            sgid: infos[1].addresses.now().gid(0).unwrap(),
            dgid: infos[0].addresses.now().gid(0).unwrap(),
            smac: infos[1].mac,
            dmac: infos[0].mac,
            hop_limit: 64,
            ..Path::default()
        };
        let template = HeaderTemplate::new(&path, 0xc123, qp.qpn, 0xffff);
        World {
            lcore,
            wire,
            pool,
            program,
            qp,
            template,
        }
    }

    /// A good SEND_ONLY with the PSN that the QP expects.
    fn good(&self) -> Vec<u8> {
        let desc = TxDesc {
            qp: QpId(self.qp.qpn),
            epoch: 0,
            side: Side::Requester,
            opcode: Opcode::RC_SEND_ONLY,
            ack_req: true,
            solicited: false,
            psn: Psn::new(0),
            ext: ExtHeaders::default(),
            len: PAYLOAD as u32,
            payload: Payload::None,
            ..TxDesc::default()
        };
        let mut frame = vec![0; self.template.frame_len(desc.opcode, desc.len)];
        let at = self.template.write(&desc, 1, &mut frame).unwrap();
        frame[at..at + PAYLOAD].fill(0x5a);
        assert!(icrc::seal(&mut frame, 14));
        frame
    }

    /// Puts a frame on the wire and lets the NIC deal with it.
    fn deliver(&mut self, frame: &[u8]) {
        let mut mbuf = self.pool.alloc().unwrap();
        mbuf.set_len(frame.len()).unwrap().copy_from_slice(frame);
        let mut burst = Burst::new();
        assert!(burst.push(mbuf).is_ok());
        assert_eq!(self.wire.tx_burst(&mut burst), 1);
        self.lcore.turn(&mut NoProbe);
        self.lcore.turn(&mut NoProbe);
    }

    /// (malformed, bad ICRC, other traffic or not ours, believed)
    fn counts(&self) -> (u64, u64, u64, u64) {
        let c = self.lcore.counters(0);
        let n = self.lcore.nic_counts(0);
        (
            c.rx_malformed,
            c.rx_icrc_encapsulated,
            n.rx_not_roce + n.rx_not_ours,
            c.rdma_rx_packets,
        )
    }

    /// Nothing came of it: no completion, no packet.
    fn assert_silent(&mut self, what: &str) {
        assert_eq!(self.program.poll_cq(), None, "{what}: a completion");
        let mut burst = Burst::new();
        assert_eq!(self.wire.rx_burst(&mut burst), 0, "{what}: an answer");
    }
}

/// Seals a frame again after a change that the ICRC covers; also the IPv4 header checksum.
fn reseal(frame: &mut [u8]) {
    frame[24..26].fill(0);
    let sum: u32 = frame[14..34]
        .chunks(2)
        .map(|b| u32::from(u16::from_be_bytes([b[0], b[1]])))
        .sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    assert!(icrc::seal(frame, 14));
}

#[test]
fn malformed_packets_are_counted_and_dropped_and_nothing_else() {
    const IP: usize = 14;
    const UDP: usize = IP + 20;
    const BTH: usize = UDP + 8;
    let mut world = World::new();
    let mut buffer = [0u8; 128];
    let key = {
        let lcore = &mut world.lcore;
        let mut poll = || {
            lcore.turn(&mut NoProbe);
        };
        world
            .program
            .register(buffer.as_mut_ptr() as u64, 128, &mut poll)
            .unwrap()
    };
    let sge = Sge {
        addr: buffer.as_ptr() as u64,
        length: 128,
        lkey: key,
    };
    world.program.post_recv(&mut world.qp, sge);
    let good = world.good();

    // Every length short of the whole.
    for len in 0..good.len() {
        let before = world.counts();
        world.deliver(&good[..len]);
        let after = world.counts();
        let dropped = (after.0 - before.0) + (after.1 - before.1) + (after.2 - before.2);
        assert_eq!((dropped, after.3 - before.3), (1, 0), "cut to {len} bytes");
        world.assert_silent("short packet");
    }

    // Changes with a good ICRC and IP checksum: only the parser stands in their way.
    type Change = fn(&mut Vec<u8>);
    let malformed: [(&str, Change); 8] = [
        ("unknown opcode", |f| f[BTH] = 0x1f),
        ("reserved transport", |f| f[BTH] = 0xe0),
        ("pad on an ACK", |f| f[BTH] = 0x11),
        ("BTH version", |f| f[BTH + 1] |= 0x0f),
        ("IP length beyond the frame", |f| {
            f[IP + 2..IP + 4].copy_from_slice(&0xffffu16.to_be_bytes())
        }),
        ("IP length within the headers", |f| {
            f[IP + 2..IP + 4].copy_from_slice(&30u16.to_be_bytes())
        }),
        ("UDP length beyond IP", |f| {
            f[UDP + 4..UDP + 6].copy_from_slice(&0xffffu16.to_be_bytes())
        }),
        ("UDP length within the BTH", |f| {
            f[UDP + 4..UDP + 6].copy_from_slice(&12u16.to_be_bytes())
        }),
    ];
    for (what, change) in malformed {
        let before = world.counts();
        let mut frame = good.clone();
        change(&mut frame);
        reseal(&mut frame);
        world.deliver(&frame);
        let after = world.counts();
        assert_eq!((after.0 - before.0, after.3 - before.3), (1, 0), "{what}");
        world.assert_silent(what);
    }

    // One bit wrong anywhere under the ICRC.
    for byte in (BTH..good.len()).filter(|&b| b != BTH + 4) {
        let before = world.counts();
        let mut frame = good.clone();
        frame[byte] ^= 0x10;
        world.deliver(&frame);
        let after = world.counts();
        let dropped = (after.0 - before.0) + (after.1 - before.1);
        assert_eq!(
            (dropped, after.3 - before.3),
            (1, 0),
            "bit flipped in byte {byte}"
        );
        world.assert_silent("bad ICRC");
    }

    // Not for us.
    let before = world.counts();
    let mut frame = good.clone();
    frame[IP + 19] ^= 0x40;
    reseal(&mut frame);
    world.deliver(&frame);
    assert_eq!(world.counts().2 - before.2, 1);
    world.assert_silent("another address");
    let unknown = world.lcore.counters(0).rx_unknown_qp;
    let mut frame = good.clone();
    frame[BTH + 7] ^= 0x1;
    reseal(&mut frame);
    world.deliver(&frame);
    assert_eq!(world.lcore.counters(0).rx_unknown_qp - unknown, 1);
    world.assert_silent("another QP");

    // The QP has not changed: the good packet is the one that it expects.
    world.deliver(&good);
    let end = Instant::now() + Duration::from_secs(60);
    let cqe = loop {
        world.lcore.turn(&mut NoProbe);
        if let Some(cqe) = world.program.poll_cq() {
            break cqe;
        }
        assert!(Instant::now() < end, "the good packet never arrived");
        std::thread::yield_now();
    };
    assert_eq!((cqe.status, cqe.byte_len), (0, PAYLOAD as u32));
    assert!(
        buffer[..PAYLOAD].iter().all(|&b| b == 0x5a) && buffer[PAYLOAD..].iter().all(|&b| b == 0)
    );
}

/// The frames that the NIC sent.
fn sent(world: &mut World) -> Vec<Vec<u8>> {
    let mut burst = Burst::new();
    world.wire.rx_burst(&mut burst);
    burst.drain().map(|mbuf| mbuf.data().to_vec()).collect()
}

/// What neighbour resolution tells the loop: frames to send, and a peer that changed its MAC address.
#[test]
fn queue_pairs_follow_a_peer_that_says_that_it_moved() {
    let mut world = World::new();
    let config = Config::preset(Preset::Pair).unwrap();
    let infos = config.nic_infos();
    let mut network = config.networks(&infos).swap_remove(0);
    // As behind a real port: the peer was asked for.
    network.wired = true;
    network
        .known
        .retain(|ip, _| network.addrs.iter().any(|(own, _)| own == ip));
    let network = Arc::new(network);
    let good = world.good();
    // No receive is posted: each time the answer is an RNR NAK to the peer.
    let answered_to = |world: &mut World| {
        world.deliver(&good);
        let frames = sent(world);
        assert_eq!(frames.len(), 1);
        <[u8; 6]>::try_from(&frames[0][..6]).unwrap()
    };
    assert_eq!(answered_to(&mut world), infos[1].mac);
    let new = [2, 0, 0, 0, 0, 0x63];
    let moved = |address: &str, old| Moved {
        address: address.parse().unwrap(),
        old,
        new,
    };
    let tell = |world: &mut World, moved| {
        let World { lcore, program, .. } = world;
        let network = Arc::clone(&network);
        let command = Command::PeerMoved {
            nic: 0,
            moved,
            network,
        };
        let mut poll = || {
            lcore.turn(&mut NoProbe);
        };
        let reply = program.command(command, &mut poll).unwrap();
        assert!(matches!(reply, Reply::Done), "{reply:?}");
    };
    // Another peer, and one that was elsewhere.
    tell(&mut world, moved("10.77.0.3", infos[1].mac));
    tell(&mut world, moved("10.77.0.2", [2, 0, 0, 0, 0, 9]));
    assert_eq!(answered_to(&mut world), infos[1].mac);
    tell(&mut world, moved("10.77.0.2", infos[1].mac));
    assert_eq!(answered_to(&mut world), new);

    let frames = vec![vec![7; 60], vec![8; 1000]];
    let command = Command::Transmit {
        nic: 0,
        frames: frames.clone(),
    };
    let World { lcore, program, .. } = &mut world;
    let mut poll = || {
        lcore.turn(&mut NoProbe);
    };
    program.command(command, &mut poll).unwrap();
    world.lcore.turn(&mut NoProbe);
    assert_eq!(sent(&mut world), frames);
}

#[test]
fn an_address_that_goes_is_as_foreign_as_any_and_its_index_is_held() {
    let mut world = World::new();
    let ask = |world: &mut World, command| {
        let World { lcore, program, .. } = world;
        let mut poll = || {
            lcore.turn(&mut NoProbe);
        };
        program.command(command, &mut poll).unwrap()
    };
    let good = world.good();
    // No receive is posted: the answer is an RNR NAK.
    world.deliver(&good);
    assert_eq!(sent(&mut world).len(), 1);
    let table = Config::preset(Preset::Pair).unwrap().nic_infos()[0]
        .addresses
        .now();
    let gids = |keep: fn(usize) -> bool| {
        let kept = table.gids().filter(|&(index, _)| keep(index));
        Command::SetGids {
            nic: 0,
            gids: kept.map(|(_, gid)| gid).collect(),
        }
    };
    ask(&mut world, gids(|index| index != 0));
    let foreign = world.lcore.nic_counts(0).rx_not_ours;
    world.deliver(&good);
    assert!(sent(&mut world).is_empty());
    assert_eq!(world.lcore.nic_counts(0).rx_not_ours, foreign + 1);
    let held = ask(&mut world, Command::GidsHeld { nic: 0 });
    assert!(matches!(held, Reply::GidsHeld(0b1)), "{held:?}");
    // And it comes back.
    ask(&mut world, gids(|_| true));
    world.deliver(&good);
    assert_eq!(sent(&mut world).len(), 1);
    let World { lcore, program, .. } = &mut world;
    let mut poll = || {
        lcore.turn(&mut NoProbe);
    };
    for command in [
        Command::GidsChanged { nic: 7 },
        Command::GidsHeld { nic: 7 },
    ] {
        assert!(program.command(command, &mut poll).is_err(), "no such NIC");
    }
}

/// A port by which more comes than a poll takes keeps what the NIC sends to itself waiting, but not for ever.
#[test]
fn a_wire_without_end_does_not_starve_what_a_nic_sends_to_itself() {
    const INLINE: u32 = roceline::bench::producer::INLINE;
    let mut w = World::new();
    let own = &Config::preset(Preset::Pair).unwrap().nic_infos()[0];
    let World { lcore, program, .. } = &mut w;
    let mut poll = || {
        lcore.turn(&mut NoProbe);
    };
    let mut qp = program.create_qp(6, &mut poll).unwrap();
    program
        .connect(&qp, own, own, 0x77, Mtu::M1024, &mut poll)
        .unwrap();
    let payload = [7; 16];
    let sge = Sge {
        addr: payload.as_ptr() as u64,
        length: 16,
        lkey: 0,
    };
    program.post_send(&mut qp, WrOpcode::Send, INLINE, sge, (0, 0), Some(&payload));
    program.ring(&qp);
    let mut frames = Burst::new();
    for round in 0..20 {
        // A burst more than is taken, always.
        for _ in 0..if round == 0 { 2 } else { 1 } {
            for _ in 0..RX_BURST {
                let mut mbuf = w.pool.alloc().unwrap();
                mbuf.set_len(60).unwrap().fill(0);
                frames.push(mbuf).unwrap();
            }
            assert_eq!(w.wire.tx_burst(&mut frames), RX_BURST);
        }
        w.lcore.turn(&mut NoProbe);
    }
    let (_, _, others, own) = w.counts();
    assert!(own > 0, "of {others} frames of others");
    assert!(others >= 10 * RX_BURST as u64, "half of the polls at least");
}
