//! What a payload costs at least on this machine: copying it and computing its ICRC, from and to the second-level cache, without
//! headers, state or memory management. Figures of the whole datapath are given as a share of it.

use roceline_engine::wire::icrc::IcrcState;

use super::stats::median;
use crate::lcore::probe::tsc;

/// Runs; the median counts.
const RUNS: usize = 21;
/// Bytes that are copied from and to, together.
const SET: usize = 256 << 10;
/// Bytes of a run.
const BYTES: usize = 4 << 20;

/// Cycles for copying `len` bytes and their ICRC, in packets of at most `mtu`.
pub fn copy_and_icrc(len: u32, mtu: u32) -> f64 {
    let (len, piece) = (len.max(1) as usize, len.clamp(1, mtu) as usize);
    let stride = piece.next_multiple_of(64);
    let places = (SET / 2 / stride).max(1);
    let from = vec![0x5au8; places * stride];
    let mut to = vec![0u8; places * stride];
    // Masked headers of an RC WRITE: they count.
    let headers = [0xffu8; 64];
    let packets = (BYTES / piece).min(20_000);
    let mut runs: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = tsc();
            for i in 0..packets {
                let at = i % places * stride;
                to[at..at + piece].copy_from_slice(&from[at..at + piece]);
                let mut state = IcrcState::new(&headers);
                state.update(&to[at..at + piece]);
                std::hint::black_box(state.finish());
            }
            (tsc() - start) as f64 / packets as f64
        })
        .collect();
    median(&mut runs) * len.div_ceil(piece) as f64
}
