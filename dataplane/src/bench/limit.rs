//! What a payload costs at least on this machine: copying it behind headers and summing it, from and to the second-level cache, without
//! state, queues or memory management. Figures of the whole datapath are given as a share of it.

use roceline_engine::wire::icrc::{BATCH, LEN, Seal, seal_burst};

use super::stats::median;
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
/// First byte of an IPv4 header without options.
const IPV4: u8 = 0x45;

/// Cycles for copying `len` bytes and their ICRC, in packets of at most `mtu`.
pub fn copy_and_icrc(len: u32, mtu: u32) -> f64 {
    let (len, piece) = (len.max(1) as usize, len.clamp(1, mtu) as usize);
    let frame = HEADERS + piece.next_multiple_of(4) + LEN;
    let stride = frame.next_multiple_of(64);
    let batches = (SET / (BATCH * stride)).max(1);
    let mut frames = vec![0u8; batches * BATCH * stride];
    frames
        .chunks_exact_mut(stride)
        .for_each(|frame| frame[14] = IPV4);
    let payload = vec![0x5au8; piece];
    let rounds = ((BYTES / piece).min(PACKETS) / (batches * BATCH)).max(1);
    let mut runs: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = tsc();
            for _ in 0..rounds {
                for batch in frames.chunks_exact_mut(BATCH * stride) {
                    let mut places = batch.chunks_exact_mut(stride);
                    let mut seals: [Seal<'_>; BATCH] = std::array::from_fn(|_| {
                        let place = places.next().expect("a batch has as many places");
                        Seal::copy(&mut place[..frame], HEADERS, &payload)
                            .expect("the frame has this length")
                    });
                    seal_burst(&mut seals);
                }
            }
            (tsc() - start) as f64 / (rounds * batches * BATCH) as f64
        })
        .collect();
    median(&mut runs) * len.div_ceil(piece) as f64
}
