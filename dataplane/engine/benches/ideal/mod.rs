//! Two engines joined directly: no link, no memory, no bytes. What is left is the cost of the engine.

use roceline_engine::congestion::CongestionConfig;
use roceline_engine::memory::{Access, MrAttr, WindowType};
use roceline_engine::verbs::*;
use roceline_engine::wire::{Gid, Packet, Psn};
use roceline_engine::{AckPolicy, Engine, EngineConfig, Nanos, Outcome, Outputs, Retransmission};

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

/// One end.
pub struct End {
    pub engine: Engine,
    pub qp: QpId,
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
        let mut ends = [1, 2].map(|n| End::new(n, qp_type, ack_policy));
        for n in 0..2 {
            let (peer, dgid) = (ends[1 - n].qp.0, ends[1 - n].gid);
            ends[n].connect(peer, dgid, mtu);
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
        end.engine.post_send(end.qp, &wr, &[sge]).is_ok()
    }

    /// Makes a window of type 1 at the first end; its key.
    #[allow(dead_code)] // not every user binds
    pub fn window(&mut self) -> u32 {
        let made = self.ends[0].engine.alloc_window(1, WindowType::One);
        made.expect("an empty table").rkey
    }

    /// Posts a request that binds it to a page, if there is room; its new key.
    #[allow(dead_code)]
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

    /// Lets an end emit up to `budget` packets; true if there is more.
    #[inline]
    pub fn tx(&mut self, n: usize, budget: usize) -> bool {
        let end = &mut self.ends[n];
        let more = end.engine.tx(budget, self.now, &mut end.out);
        let emitted = end.out.tx.len();
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

    /// All placements are done at once.
    #[inline]
    fn place(&mut self, n: usize) {
        let end = &mut self.ends[n];
        let mut i = 0;
        while i < end.out.place.len() {
            let p = end.out.place[i];
            let (queues, out) = (&mut end.queues, &mut end.out);
            end.engine
                .placed(p.qp, p.epoch, p.side, Outcome::Done, self.now, queues, out);
            i += 1;
        }
        end.out.place.clear();
    }

    /// Descriptors become packets on their way to the other end; completions are counted.
    #[inline]
    fn collect(&mut self, n: usize) {
        let (src, dst) = (self.ends[n].gid, self.ends[1 - n].gid);
        let dest_qpn = self.ends[1 - n].qp.0;
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
                dest_qpn,
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
    fn new(number: u8, qp_type: QpType, ack_policy: AckPolicy) -> End {
        let mut engine = Engine::new(EngineConfig {
            max_qps: 64,
            max_mrs: 64,
            window: 256,
            ack_policy,
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
            qp_type,
            pd: 1,
            send_cq: 1,
            recv_cq: 2,
            sq_sig_all: true,
            max_send_wr: 256,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 64,
            srq: None,
        };
        let qp = engine.create_qp(&init).expect("an empty table");
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
            qp,
            key,
            out: Outputs::new(),
            queues: Endless(wr),
            gid,
        }
    }

    fn connect(&mut self, peer: u32, dgid: Gid, mtu: Mtu) {
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
            dest_qpn: peer,
            ..QpAttr::default()
        };
        attr.path.sgid = self.gid;
        attr.path.dgid = dgid;
        let (_, init) = self.engine.query_qp(self.qp).expect("it exists");
        for &(state, given) in init.qp_type.steps() {
            attr.state = state;
            let given = given | mask::STATE;
            self.engine
                .modify_qp(self.qp, &attr, given, Nanos::ZERO, &mut self.out)
                .expect("the usual way up");
        }
    }
}
