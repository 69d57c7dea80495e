//! Two engines joined directly: no link, no memory, no bytes. What is left is the cost of the engine.
//!
//! Both ends make their QPs in the same order from the same seed, so the two QPs of a connection have the same number.
#![allow(dead_code)] // no user needs all of it

use roceline_engine::congestion::CongestionConfig;
use roceline_engine::memory::{Access, MrAttr, WindowType};
use roceline_engine::verbs::*;
use roceline_engine::wire::{Gid, Packet, Psn};
use roceline_engine::{
    AckPolicy, Engine, EngineConfig, Nanos, Outcome, Outputs, Place, PlaceKind, Retransmission,
};

const BASE: u64 = 1 << 32;

/// Receives without end, all of one buffer.
pub struct Endless(RecvWr);

impl RecvQueues for Endless {
    #[inline]
    fn take(&mut self, _: QpId, wr: &mut RecvWr) -> bool {
        wr.wr_id = self.0.wr_id;
        wr.num_sge = 1;
        wr.sges[0] = self.0.sges[0];
        true
    }
}

/// What a pair is to be like.
#[derive(Clone, Copy)]
pub struct Setup {
    pub qp_type: QpType,
    pub mtu: Mtu,
    pub ack_policy: AckPolicy,
    /// Connections.
    pub qps: u32,
    /// Requests that each QP may have open.
    pub send_wr: u32,
}

/// One end.
pub struct End {
    pub engine: Engine,
    /// The first of its QPs.
    pub qp: QpId,
    pub qps: Vec<QpId>,
    pub key: u32,
    pub out: Outputs,
    pub queues: Endless,
    gid: Gid,
}

/// The pair: requests go from the first end to the second.
pub struct Ideal {
    pub ends: [End; 2],
    pub now: Nanos,
    /// Packets on their way to each end.
    pub wire: [Vec<Packet>; 2],
    pub completions: u64,
    /// UC: nobody acknowledges.
    unreliable: bool,
}

impl Ideal {
    /// A reliably connected pair.
    pub fn new(mtu: Mtu, ack_policy: AckPolicy) -> Ideal {
        Ideal::of(QpType::Rc, mtu, ack_policy)
    }

    /// A connected pair of RC or UC.
    pub fn of(qp_type: QpType, mtu: Mtu, ack_policy: AckPolicy) -> Ideal {
        Ideal::with(&Setup {
            qp_type,
            mtu,
            ack_policy,
            qps: 1,
            send_wr: 256,
        })
    }

    /// As many connected pairs as the setup says.
    pub fn with(setup: &Setup) -> Ideal {
        let qp_type = setup.qp_type;
        let mut ends = [1, 2].map(|n| End::new(n, setup));
        assert_eq!(ends[0].qps, ends[1].qps);
        for n in 0..2 {
            let dgid = ends[1 - n].gid;
            ends[n].connect(dgid, setup.mtu);
        }
        let wire = [Vec::with_capacity(1024), Vec::with_capacity(1024)];
        Ideal {
            ends,
            now: Nanos::from_micros(1),
            wire,
            completions: 0,
            unreliable: qp_type == QpType::Uc,
        }
    }

    /// Posts a request at the first end, if there is room.
    #[inline]
    pub fn post(&mut self, op: WrOpcode, len: u32) -> bool {
        self.post_on(0, op, len)
    }

    /// The same on a QP of any number.
    #[inline]
    pub fn post_on(&mut self, qp: usize, op: WrOpcode, len: u32) -> bool {
        let rkey = self.ends[1].key;
        let end = &mut self.ends[0];
        let wr = SendWr {
            opcode: Some(op),
            signaled: true,
            num_sge: 1,
            length: len.into(),
            rkey,
            remote_addr: BASE,
            // The FETH of a FLUSH.
            imm_or_rkey: 1,
            ..SendWr::default()
        };
        let sge = Sge {
            addr: BASE,
            length: len,
            lkey: end.key,
        };
        end.engine.post_send(end.qps[qp], &wr, &[sge]).is_ok()
    }

    /// Makes a window of type 1 at the first end; its key.
    pub fn window(&mut self) -> u32 {
        let made = self.ends[0].engine.alloc_window(1, WindowType::One);
        made.expect("an empty table").rkey
    }

    /// Posts a request that binds it to a page, if there is room; its new key.
    pub fn bind(&mut self, window: u32) -> Option<u32> {
        let end = &mut self.ends[0];
        let key = window & !0xff | (window.wrapping_add(1) & 0xff);
        let wr = SendWr {
            opcode: Some(WrOpcode::BindMw),
            signaled: true,
            imm_or_rkey: window,
            rkey: key,
            remote_addr: BASE,
            compare_add: 4096,
            swap: u64::from(end.key) | 6 << 32,
            ..SendWr::default()
        };
        end.engine.post_send(end.qp, &wr, &[]).ok().map(|()| key)
    }

    /// Lets an end emit up to `budget` packets; true if there is more. [`Ideal::collect`] must follow.
    #[inline]
    pub fn emit(&mut self, n: usize, budget: usize) -> bool {
        let end = &mut self.ends[n];
        end.engine.tx(budget, self.now, &mut end.out)
    }

    /// Lets an end emit up to `budget` packets; true if there is more.
    #[inline]
    pub fn tx(&mut self, n: usize, budget: usize) -> bool {
        let more = self.emit(n, budget);
        let emitted = self.ends[n].out.tx.len();
        self.collect(n);
        // All payload is there at once.
        for _ in 0..emitted * usize::from(self.unreliable) {
            let end = &mut self.ends[n];
            end.engine.fetched(end.qp, 0, self.now, &mut end.out);
            self.collect(n);
        }
        more
    }

    /// Gives an end all packets on their way to it, as bursts of 32.
    #[inline]
    pub fn rx(&mut self, n: usize) {
        let mut packets = core::mem::take(&mut self.wire[n]);
        for burst in packets.chunks(32) {
            for packet in burst {
                let end = &mut self.ends[n];
                end.engine
                    .rx(packet, 0, self.now, &mut end.queues, &mut end.out);
                self.place(n);
                if !self.ends[n].out.has_room() {
                    self.collect(n);
                }
            }
            let end = &mut self.ends[n];
            end.engine.rx_end(self.now, &mut end.out);
            self.collect(n);
        }
        packets.clear();
        // What was answered meanwhile went to the other end only.
        self.wire[n] = packets;
    }

    /// Gives an end one burst, as a poll loop does: all packets, then what came of their placements, then the end of the
    /// burst. [`Ideal::collect`] must follow.
    #[inline]
    pub fn burst(&mut self, n: usize, packets: &[Packet], prefetch: bool) {
        let (now, end) = (self.now, &mut self.ends[n]);
        let (engine, queues, out) = (&mut end.engine, &mut end.queues, &mut end.out);
        // How far ahead of a packet its two steps of prefetching are.
        let (far, near) = if prefetch { (12, 6) } else { (0, 0) };
        for packet in &packets[..far.min(packets.len())] {
            engine.prefetch_rx(packet);
        }
        for packet in &packets[..near.min(packets.len())] {
            engine.prefetch_rx_behind(packet);
        }
        for (tag, packet) in (0..).zip(packets) {
            if prefetch {
                if let Some(packet) = packets.get(tag as usize + far) {
                    engine.prefetch_rx(packet);
                }
                if let Some(packet) = packets.get(tag as usize + near) {
                    engine.prefetch_rx_behind(packet);
                }
            }
            engine.rx(packet, tag, now, queues, out);
        }
        self.place(n);
        let end = &mut self.ends[n];
        end.engine.rx_end(now, &mut end.out);
    }

    /// All placements are done at once, and told by runs of a QP.
    #[inline]
    fn place(&mut self, n: usize) {
        let (now, end) = (self.now, &mut self.ends[n]);
        let (engine, queues, out) = (&mut end.engine, &mut end.queues, &mut end.out);
        let mut from = 0;
        while let Some(&p) = out.place.get(from) {
            if p.kind == PlaceKind::Atomic {
                let was = Outcome::Value(0);
                engine.placed(p.qp, p.epoch, p.side, was, now, queues, out);
                from += 1;
                continue;
            }
            let like = |q: &&Place| {
                q.qp == p.qp
                    && q.epoch == p.epoch
                    && q.side == p.side
                    && q.kind != PlaceKind::Atomic
            };
            let run = out.place[from..].iter().take_while(like).count();
            engine.all_placed(p.qp, p.epoch, p.side, run as u32, now, out);
            from += run;
        }
        out.place.clear();
    }

    /// Descriptors become packets on their way to the other end; completions are counted.
    #[inline]
    pub fn collect(&mut self, n: usize) {
        let (src, dst) = (self.ends[n].gid, self.ends[1 - n].gid);
        let out = &mut self.ends[n].out;
        for d in &out.tx {
            self.wire[1 - n].push(Packet {
                src,
                dst,
                opcode: d.opcode,
                solicited: d.solicited,
                ack_req: d.ack_req,
                becn: false,
                ce: false,
                pkey: 0xffff,
                dest_qpn: d.qp.0,
                psn: d.psn,
                ext: d.ext,
                payload_len: d.len,
                payload_offset: 0,
                traffic_class: 0,
            });
        }
        for event in &out.events {
            match event {
                Event::Completion(c) => {
                    assert_eq!(c.status, WcStatus::Success);
                    self.completions += u64::from(!c.recv);
                }
                Event::Retired { .. } => {}
                Event::Async { qp, kind } => panic!("{qp:?}: {kind:?}"),
            }
        }
        out.clear();
    }
}

impl End {
    fn new(number: u8, setup: &Setup) -> End {
        let mut engine = Engine::new(EngineConfig {
            max_qps: setup.qps.max(64),
            max_mrs: 64,
            window: 256,
            ack_policy: setup.ack_policy,
            retransmission: Retransmission::Spec,
            owner: 0,
            owner_bits: 0,
            congestion: CongestionConfig::default(),
            seed: 1,
        });
        let attr = MrAttr {
            pd: 1,
            addr: BASE,
            iova: BASE,
            len: 1 << 30,
            access: Access(0xf | Access::MW_BIND.0 | Access::FLUSH_GLOBAL.0),
        };
        let key = engine.register(attr).expect("an empty table").lkey;
        let init = QpInit {
            qp_type: setup.qp_type,
            pd: 1,
            send_cq: 1,
            recv_cq: 2,
            sq_sig_all: true,
            max_send_wr: setup.send_wr,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 64,
            srq: None,
        };
        let make = |_| engine.create_qp(&init).expect("an empty table");
        let qps: Vec<QpId> = (0..setup.qps).map(make).collect();
        let mut wr = RecvWr {
            num_sge: 1,
            ..RecvWr::empty()
        };
        wr.sges[0] = Sge {
            addr: BASE,
            length: 1 << 24,
            lkey: key,
        };
        let gid = Gid::from_ip([10, 0, 0, number].into());
        End {
            engine,
            qp: qps[0],
            qps,
            key,
            out: Outputs::new(),
            queues: Endless(wr),
            gid,
        }
    }

    fn connect(&mut self, dgid: Gid, mtu: Mtu) {
        let mut attr = QpAttr {
            access: Access(0xe | Access::FLUSH_GLOBAL.0),
            path_mtu: mtu,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            sq_psn: Psn::new(0),
            rq_psn: Psn::new(0),
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            ..QpAttr::default()
        };
        attr.path.sgid = self.gid;
        attr.path.dgid = dgid;
        for &qp in &self.qps {
            attr.dest_qpn = qp.0;
            let (_, init) = self.engine.query_qp(qp).expect("it exists");
            for &(state, given) in init.qp_type.steps() {
                attr.state = state;
                let given = given | mask::STATE;
                self.engine
                    .modify_qp(qp, &attr, given, Nanos::ZERO, &mut self.out)
                    .expect("the usual way up");
            }
        }
    }
}
