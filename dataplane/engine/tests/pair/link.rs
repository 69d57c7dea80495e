//! The wire between two nodes: frames take time, and may be lost, doubled, delayed past others or spoilt.

use roceline_engine::Nanos;
use roceline_engine::wire::{ExtHeaders, Gid, Opcode, Packet, Psn};

use crate::rng::Rng;

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
            becn: false,
            ce: false,
            pkey: 0xffff,
            dest_qpn: self.dest_qpn,
            psn: self.psn,
            ext: self.ext,
            payload_len: self.payload.len() as u32,
            payload_offset: 0,
            traffic_class: 0,
        }
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
    /// Spoilt frames fail their ICRC and are dropped by the receiver: the engine never sees them.
    pub corrupt: u32,
}

/// What a test does to a frame by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    Drop,
    /// Later by so much.
    Delay(Nanos),
}

/// The link.
pub struct Link {
    pub faults: Faults,
    /// Propagation delay.
    pub delay: Nanos,
    /// Time a frame occupies the sender's end.
    pub frame_time: Nanos,
    free_at: [Nanos; 2],
    rng: Rng,
}

impl Link {
    pub fn new(faults: Faults, seed: u64) -> Link {
        Link {
            faults,
            delay: Nanos(2_000),
            frame_time: Nanos(100),
            free_at: [Nanos::ZERO; 2],
            rng: Rng::new(seed ^ 0x11aa),
        }
    }

    /// When copies of a frame from node `from` arrive at the other.
    pub fn send(&mut self, from: usize, now: Nanos, verdict: Verdict) -> Vec<Nanos> {
        let start = self.free_at[from].max(now);
        self.free_at[from] = start + self.frame_time;
        let mut at = start + self.frame_time + self.delay;
        let f = self.faults;
        let lost = self.rng.permille(f.loss) | self.rng.permille(f.corrupt);
        if self.rng.permille(f.reorder) {
            at = at + Nanos(self.rng.below(20 * self.frame_time.0));
        }
        let doubled = self.rng.permille(f.duplicate);
        match verdict {
            Verdict::Drop => vec![],
            Verdict::Delay(by) => vec![at + by],
            _ if lost => vec![],
            Verdict::Pass if doubled => vec![at, at + Nanos(self.rng.below(5_000))],
            Verdict::Pass => vec![at],
        }
    }
}
