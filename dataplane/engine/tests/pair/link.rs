//! The wire between two nodes: frames take time, and impairment rules of either direction lose, double, delay
//! or spoil them. A frame becomes bytes only where a rule changes bytes.

use roceline_engine::fabric::impair::{
    Action, Chance, Change, Corruption, Delay, Direction, Line, Matcher, PacketView, PathView,
    Probability, Pushed, Region, Reorder, Rule, RuleId, RuleSet, When, Where,
};
use roceline_engine::verbs::{Path, QpId};
use roceline_engine::wire::{ExtHeaders, Gid, HeaderTemplate, Opcode, Packet, Psn, icrc, parse};
use roceline_engine::{Nanos, Payload, Side, TxDesc};

/// UDP source port of all frames.
const SPORT: u16 = 0xc0de;

/// A RoCE packet on the wire.
#[derive(Clone, Debug)]
pub struct Frame {
    pub src: Gid,
    pub dst: Gid,
    pub dest_qpn: u32,
    pub opcode: Opcode,
    pub psn: Psn,
    pub ack_req: bool,
    pub solicited: bool,
    pub ext: ExtHeaders,
    pub traffic_class: u8,
    pub payload: Vec<u8>,
}

impl Frame {
    /// As `wire::parse` would give it.
    pub fn packet(&self) -> Packet {
        Packet {
            src: self.src,
            dst: self.dst,
            opcode: self.opcode,
            solicited: self.solicited,
            ack_req: self.ack_req,
            becn: self.opcode == Opcode::CNP,
            ce: self.traffic_class & 3 == 3,
            pkey: 0xffff,
            dest_qpn: self.dest_qpn,
            psn: self.psn,
            ext: self.ext,
            payload_len: self.payload.len() as u32,
            payload_offset: 0,
            traffic_class: self.traffic_class,
        }
    }

    /// What lies in front of a datagram in its buffer; here both addresses, so that they can be looked at.
    pub fn grh(&self) -> [u8; 40] {
        let mut area = [0; 40];
        area[8..24].copy_from_slice(&self.src.0);
        area[24..].copy_from_slice(&self.dst.0);
        area
    }

    fn desc(&self) -> TxDesc {
        TxDesc {
            qp: QpId(0),
            epoch: 0,
            side: Side::Requester,
            opcode: self.opcode,
            ack_req: self.ack_req,
            solicited: self.solicited,
            psn: self.psn,
            ext: self.ext,
            len: self.payload.len() as u32,
            payload: Payload::None,
            ..TxDesc::default()
        }
    }

    fn view(&self, from: usize) -> PacketView {
        let path = PathView {
            direction: [Direction::Tx, Direction::Rx][from],
            dst: self.dst,
            traffic_class: self.traffic_class,
            udp_sport: SPORT,
            dest_qpn: self.dest_qpn,
        };
        PacketView::of_desc(&self.desc(), &path)
    }

    fn bytes(&self) -> Vec<u8> {
        let path = Path {
            sgid: self.src,
            dgid: self.dst,
            traffic_class: self.traffic_class,
            ..Path::default()
        };
        let template = HeaderTemplate::new(&path, SPORT, self.dest_qpn, 0xffff);
        let mut bytes = vec![0; template.frame_len(self.opcode, self.payload.len() as u32)];
        let at = template
            .write(&self.desc(), 0, &mut bytes)
            .expect("room for the headers");
        bytes[at..at + self.payload.len()].copy_from_slice(&self.payload);
        assert!(icrc::seal(&mut bytes, HeaderTemplate::L3_OFFSET));
        bytes
    }

    /// What a receiver makes of bytes, if it does not drop them.
    fn received(bytes: &[u8]) -> Option<Frame> {
        let parsed = parse(bytes).ok()?;
        if !icrc::verify(bytes, &parsed) {
            return None;
        }
        let p = parsed.packet;
        let at = p.payload_offset as usize;
        Some(Frame {
            src: p.src,
            dst: p.dst,
            dest_qpn: p.dest_qpn,
            opcode: p.opcode,
            psn: p.psn,
            ack_req: p.ack_req,
            solicited: p.solicited,
            ext: p.ext,
            traffic_class: p.traffic_class,
            payload: bytes[at..at + p.payload_len as usize].to_vec(),
        })
    }

    /// The line that `captures/` and the rule tests print: opcode, PSN, A bit, payload, AETH.
    pub fn line(&self) -> String {
        let mut s = format!("{:?} psn={:x}", self.opcode, self.psn.get());
        if self.ack_req {
            s += " A";
        }
        if self.solicited {
            s += " SE";
        }
        s += &format!(" pay={}", self.payload.len());
        use roceline_engine::wire::HeaderSet;
        let headers = self.opcode.info().headers;
        if headers.has(HeaderSet::RETH) {
            s += &format!(" dmalen={}", self.ext.dma_len);
        }
        if headers.has(HeaderSet::IMM) {
            s += &format!(" imm={:08x}", self.ext.imm_or_rkey);
        }
        if headers.has(HeaderSet::AETH) {
            s += &format!(
                " syn={:02x} msn={}",
                self.ext.aeth >> 24,
                self.ext.aeth & 0xff_ffff
            );
        }
        s
    }
}

/// How badly the link behaves; probabilities in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub loss: u32,
    pub duplicate: u32,
    pub reorder: u32,
    /// Spoilt frames fail their ICRC, or do not even parse, and are dropped by the receiver.
    pub corrupt: u32,
}

impl Faults {
    /// The rules that do it.
    pub fn rules(&self, seed: u64) -> Vec<Rule> {
        let up_to = |ns| Delay::Uniform {
            min: Nanos::ZERO,
            max: Nanos(ns),
        };
        let spoil = Corruption {
            change: Change::Bit(Where {
                region: Region::Packet,
                offset: None,
            }),
            reseal: false,
        };
        let twice = Action::Duplicate {
            copies: 1,
            after: Some(up_to(5_000)),
        };
        let all = [
            (self.loss, Action::Drop),
            (self.corrupt, Action::Corrupt(spoil)),
            (self.reorder, Action::Reorder(Reorder::Delay(up_to(2_000)))),
            (self.duplicate, twice),
        ];
        let wanted = all.into_iter().filter(|(permille, _)| *permille > 0);
        wanted
            .zip(FIRST_FAULT..)
            .map(|((permille, action), id)| Rule {
                id: RuleId(id),
                name: String::new(),
                matcher: Matcher::default(),
                when: When {
                    chance: Chance::Each(Probability::ratio(permille, 1000)),
                    ..When::default()
                },
                action,
                seed: seed ^ u64::from(id) << 40,
            })
            .collect()
    }
}

/// Number of the first rule that comes from [`Faults`]; those that tests add are below.
const FIRST_FAULT: u32 = 1_000;

/// What a test does to a frame by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    Drop,
    /// Later by so much.
    Delay(Nanos),
}

/// One direction of the link.
pub struct Way {
    pub rules: RuleSet,
    line: Line<Frame>,
    free_at: Nanos,
    from: usize,
}

/// The link: by the node that frames come from.
pub struct Link {
    /// Propagation delay.
    pub delay: Nanos,
    /// Time a frame occupies the sender's end.
    pub frame_time: Nanos,
    pub ways: [Way; 2],
}

impl Link {
    pub fn new(faults: Faults, seed: u64) -> Link {
        let way = |from: usize| {
            let mut rules = RuleSet::new();
            for rule in faults.rules(seed ^ (0x11aa + from as u64)) {
                rules.add(rule).expect("a good rule");
            }
            Way {
                rules,
                line: Line::new(1_024),
                free_at: Nanos::ZERO,
                from,
            }
        };
        Link {
            delay: Nanos(2_000),
            frame_time: Nanos(100),
            ways: [way(0), way(1)],
        }
    }

    /// When a frame that leaves node `from` arrives at the other.
    pub fn arrival(&mut self, from: usize, now: Nanos) -> Nanos {
        let way = &mut self.ways[from];
        way.free_at = way.free_at.max(now) + self.frame_time;
        way.free_at + self.delay
    }

    /// When a frame comes out of the rules that has been kept back.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.ways
            .iter()
            .filter_map(|w| w.line.next_deadline())
            .min()
    }

    /// Whether some rule has lost, spoilt or delayed a frame.
    pub fn has_disturbed(&self) -> bool {
        let harmless =
            |a: &Action| matches!(a, Action::Count | Action::MarkCe | Action::Duplicate { .. });
        let mut rules = self.ways.iter().flat_map(|w| w.rules.rules());
        rules.any(|(rule, counts)| counts.hit > 0 && !harmless(&rule.action))
    }

    /// Whether no frame is kept back.
    pub fn is_empty(&self) -> bool {
        self.ways.iter().all(|w| w.line.is_empty())
    }
}

impl Way {
    /// A frame goes through the rules: what comes out at once, and how many copies come out in all.
    pub fn pass(&mut self, frame: &Frame, now: Nanos) -> (Vec<Frame>, usize) {
        if self.rules.is_empty() {
            return (vec![frame.clone()], 1);
        }
        let mut out = Vec::new();
        let verdict = self.rules.offer(&frame.view(self.from), now);
        if verdict.drop {
            return (out, 0);
        }
        let frame = match verdict.changes() {
            false => Some(frame.clone()),
            true => {
                let mut bytes = frame.bytes();
                let len = verdict.apply(&mut bytes);
                Frame::received(&bytes[..len])
            }
        };
        let Some(frame) = frame else {
            return (out, 0);
        };
        let mut copies = 0;
        for copy in 0..=verdict.copies {
            let verdict = if copy == 0 {
                verdict
            } else {
                verdict.of_copy()
            };
            match self.line.push(frame.clone(), &verdict, now) {
                Pushed::Pass(frame) => out.push(frame),
                Pushed::Kept => {}
                Pushed::Full(_) => continue,
            }
            copies += 1;
            out.extend(std::iter::from_fn(|| self.line.release(now)));
        }
        (out, copies)
    }

    /// The next frame that was kept back and goes on now.
    pub fn release(&mut self, now: Nanos) -> Option<Frame> {
        self.line.release(now)
    }
}
