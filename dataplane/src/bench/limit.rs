//! What a payload costs at least on this machine: copying it behind headers and summing it, from and to the second-level cache, without
//! state, queues or memory management. Figures of the whole datapath are given as a share of it.

use roceline_engine::wire::icrc::{BATCH, LEN, Seal, seal_burst};

use super::stats::Spread;
use crate::lcore::probe::tsc;

/// Runs; the median counts.
const RUNS: usize = 21;
/// Bytes of frames that are written in turns.
const SET: usize = 256 << 10;
/// Bytes of a run.
const BYTES: usize = 4 << 20;
/// Packets of a run at most.
const PACKETS: usize = 20_000;
/// Ethernet, IPv4, UDP, BTH and RETH.
const HEADERS: usize = 14 + 20 + 8 + 12 + 16;
/// Where the IP header begins.
const L3: usize = 14;
/// First byte of an IPv4 header without options.
const IPV4: u8 = 0x45;

/// Frames of one size, written in turns.
struct Frames {
    bytes: Vec<u8>,
    payload: Vec<u8>,
    /// Of a frame.
    len: usize,
    stride: usize,
    rounds: usize,
}

impl Frames {
    fn new(piece: usize) -> Frames {
        let len = HEADERS + piece.next_multiple_of(4) + LEN;
        let stride = len.next_multiple_of(64);
        let batches = (SET / (BATCH * stride)).max(1);
        let mut bytes = vec![0u8; batches * BATCH * stride];
        let frames = bytes.chunks_exact_mut(stride);
        frames.for_each(|frame| frame[L3] = IPV4);
        Frames {
            bytes,
            payload: vec![0x5a; piece],
            len,
            stride,
            rounds: ((BYTES / piece).min(PACKETS) / (batches * BATCH)).max(1),
        }
    }

    /// Cycles of a frame, if `batch` writes as many as a batch has, given their places.
    fn cycles(&mut self, mut batch: impl FnMut(&mut [u8], &[u8])) -> Spread {
        let frames = self.rounds * self.bytes.len() / self.stride;
        let run = |_| {
            let start = tsc();
            for _ in 0..self.rounds {
                for places in self.bytes.chunks_exact_mut(BATCH * self.stride) {
                    batch(places, &self.payload);
                }
            }
            (tsc() - start) as f64 / frames as f64
        };
        Spread::of((0..RUNS).map(run).collect::<Vec<_>>())
    }

    fn fused(&mut self) -> Spread {
        let (len, stride) = (self.len, self.stride);
        self.cycles(|places, payload| {
            let mut places = places.chunks_exact_mut(stride);
            let mut seals: [Seal<'_>; BATCH] = std::array::from_fn(|_| {
                let place = places.next().expect("a batch has as many places");
                Seal::copy(&mut place[..len], HEADERS, payload).expect("the frame has this length")
            });
            seal_burst(&mut seals);
        })
    }
}

/// Cycles for copying `len` bytes and their ICRC, in packets of at most `mtu`.
pub fn copy_and_icrc(len: u32, mtu: u32) -> f64 {
    let piece = len.clamp(1, mtu);
    let packets = len.max(1).div_ceil(piece);
    Frames::new(piece as usize).fused().median * f64::from(packets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_the_payload() {
        let mut frames = Frames::new(61);
        frames.rounds = 1;
        frames.fused();
        assert_eq!(frames.bytes[HEADERS..HEADERS + 61], [0x5a; 61]);
    }
}
