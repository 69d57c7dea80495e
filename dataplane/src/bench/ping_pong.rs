//! Half round trips as `ib_write_lat` measures them: a program writes into the other's memory, the other one waits for the last
//! byte of it and writes back.

use std::io;

use hdrhistogram::Histogram;
use roceline_engine::verbs::{Sge, WrOpcode};
use serde::Serialize;

use super::end::{End, Introduction};
use super::producer::SIGNALED;
use crate::lcore::probe::{NoProbe, tsc};

/// Of the writes one in so many is signalled.
const SIGNAL_EVERY: u64 = 64;
/// Polls without an answer after which the other half is taken to be gone.
const STUCK: u64 = 50_000_000;

/// The half that writes back.
#[derive(Debug, Default)]
pub struct Echo {
    peer: Option<Introduction>,
    len: u32,
    seen: u64,
}

impl Echo {
    /// One that is off.
    pub fn new(peer: Introduction) -> Echo {
        Echo {
            peer: Some(peer),
            len: 0,
            seen: 0,
        }
    }

    /// Whether it writes back.
    pub fn is_on(&self) -> bool {
        self.len > 0
    }

    /// Writes back messages of `len` bytes from now on; 0: none.
    pub fn switch(&mut self, len: u32, end: &End) {
        self.len = len;
        self.seen = last_word(end, len.max(8));
    }

    /// Writes back if something has come.
    pub fn step(&mut self, end: &mut End) {
        let word = last_word(end, self.len);
        if word != self.seen {
            self.seen = word;
            if let Some(peer) = &self.peer {
                write(end, peer, self.len, word);
            }
        }
        while end.producer.poll_cq().is_some() {}
    }
}

/// Where a half receives; where it sends from begins behind it.
const fn half(len: u32) -> u64 {
    (len as u64).next_multiple_of(64)
}

/// Bytes that a buffer needs for messages of `len` bytes.
pub const fn buffer(len: u32) -> usize {
    2 * half(len) as usize
}

fn word_at(end: &End, offset: u64) -> *mut u64 {
    assert!(offset % 8 == 0 && offset + 8 <= end.buffer.len() as u64);
    (end.buffer.addr() + offset) as *mut u64
}

fn last_word(end: &End, len: u32) -> u64 {
    let at = word_at(end, u64::from(len) - 8);
    // SAFETY: aligned and inside the buffer, checked above; the lcore writes it by raw copies.
    unsafe { at.read_volatile() }
}

/// Writes `word` with `len - 8` bytes before it into the peer's memory.
fn write(end: &mut End, peer: &Introduction, len: u32, word: u64) {
    let from = half(len);
    let at = word_at(end, from + u64::from(len) - 8);
    // SAFETY: as in `last_word`.
    unsafe { at.write_volatile(word) };
    let sge = Sge {
        addr: end.buffer.addr() + from,
        length: len,
        lkey: end.key,
    };
    let flags = match word % SIGNAL_EVERY {
        0 => SIGNALED,
        _ => 0,
    };
    let qp = &mut end.qps[0];
    let remote = (peer.addr, peer.key);
    end.producer
        .post_send(qp, WrOpcode::Write, flags, sge, remote, None);
    end.producer.ring(qp);
}

/// Half round trips in nanoseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th.
    pub p99: f64,
    /// 99.9th.
    pub p999: f64,
    /// 99.99th.
    pub p9999: f64,
    /// Most.
    pub max: f64,
    /// Rounds.
    pub rounds: u64,
}

/// Exchanges `rounds` messages of `len` bytes (a multiple of 8) with an [`Echo`] that is on. `other` polls the other half if
/// this thread has to.
///
/// # Errors
/// When no answer comes.
pub fn ping_pong(
    end: &mut End,
    peer: &Introduction,
    len: u32,
    rounds: u64,
    tsc_hz: f64,
    mut other: impl FnMut(),
) -> io::Result<Latency> {
    // A nanosecond to ten seconds, three digits.
    let histogram = Histogram::<u64>::new_with_bounds(1, 10_000_000_000, 3);
    let mut histogram = histogram.map_err(io::Error::other)?;
    let warm_up = rounds / 10;
    let first = last_word(end, len).max(last_word(end, half(len) as u32 + len));
    for round in 0..warm_up + rounds {
        let word = first + 1 + round;
        let begin = tsc();
        write(end, peer, len, word);
        let mut polls = 0;
        while last_word(end, len) != word {
            end.lcore.turn(&mut NoProbe);
            other();
            polls += 1;
            if polls > STUCK {
                return Err(io::Error::other("no answer came"));
            }
        }
        let half_trip = (tsc() - begin) as f64 / 2.0 / tsc_hz * 1e9;
        while end.producer.poll_cq().is_some() {}
        if round >= warm_up {
            histogram.saturating_record(half_trip as u64);
        }
    }
    let at = |quantile| histogram.value_at_quantile(quantile) as f64;
    Ok(Latency {
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        p999: at(0.999),
        p9999: at(0.9999),
        max: histogram.max() as f64,
        rounds,
    })
}
