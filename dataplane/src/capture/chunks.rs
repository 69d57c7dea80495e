//! A stream of records from an lcore to a session: chunks of memory that circulate between the two over a pair of
//! [`spsc`](crate::port::spsc) queues. All are allocated, and touched, before the lcore sees the first.

use std::fmt;

use roceline_abi::control::MAX_PAYLOAD;

use super::record::{HEADER, Record};
use crate::port::spsc::{self, Consumer, Producer};

/// Bytes of a chunk: one packet of the control socket.
pub const CHUNK_BYTES: usize = MAX_PAYLOAD;
/// Bytes of a frame that a record can hold.
pub const MAX_DATA: usize = CHUNK_BYTES - HEADER;

/// Memory for records.
struct Chunk {
    bytes: Box<[u8]>,
    used: usize,
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({} of {} bytes)", self.used, self.bytes.len())
    }
}

/// The lcore's end.
#[derive(Debug)]
pub struct Filler {
    free: Consumer<Chunk>,
    full: Producer<Chunk>,
    current: Option<Chunk>,
}

/// The session's end.
#[derive(Debug)]
pub struct Drainer {
    full: Consumer<Chunk>,
    free: Producer<Chunk>,
}

/// Both ends of a stream that buffers about `bytes`.
pub fn stream(bytes: usize) -> (Filler, Drainer) {
    let chunks = bytes.div_ceil(CHUNK_BYTES).max(2);
    let (mut free, free_end) = spsc::channel(chunks);
    let (full_end, full) = spsc::channel(chunks);
    for _ in 0..chunks {
        let chunk = Chunk {
            // Not zeros: those would be mapped on the lcore's first write, by a page fault each.
            bytes: vec![0xff; CHUNK_BYTES].into_boxed_slice(),
            used: 0,
        };
        // There is room for all.
        let _ = free.push(chunk);
    }
    free.flush();
    let filler = Filler {
        free: free_end,
        full: full_end,
        current: None,
    };
    (filler, Drainer { full, free })
}

impl Filler {
    /// Adds a record; false if the reader is so far behind that there is no room.
    #[inline]
    pub fn write(&mut self, record: &Record<'_>) -> bool {
        loop {
            if self.current.is_none() {
                self.current = self.free.pop();
                self.free.flush();
            }
            let Some(chunk) = &mut self.current else {
                return false;
            };
            if let Some(len) = record.encode(&mut chunk.bytes[chunk.used..]) {
                chunk.used += len;
                return true;
            }
            if chunk.used == 0 {
                // Longer than a chunk: the tap's snap length prevents it.
                return false;
            }
            self.pass_on();
        }
    }

    /// Passes on a chunk that is not full yet if the reader has nothing else. While it has, the chunk goes on filling, so
    /// that a reader that stands still is owed full ones.
    #[inline]
    pub fn settle(&mut self) {
        if self.current.as_ref().is_some_and(|chunk| chunk.used > 0) && self.full.is_drained() {
            self.pass_on();
        }
    }

    /// Passes on what there is.
    pub fn finish(&mut self) {
        if self.current.as_ref().is_some_and(|chunk| chunk.used > 0) {
            self.pass_on();
        }
    }

    fn pass_on(&mut self) {
        if let Some(chunk) = self.current.take() {
            // Never full: it has room for all chunks that exist.
            let _ = self.full.push(chunk);
            self.full.flush();
        }
    }
}

impl Drainer {
    /// Appends the records of the oldest chunk to `out`; false if there is none.
    pub fn read(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(mut chunk) = self.full.pop() else {
            return false;
        };
        self.full.flush();
        out.extend_from_slice(&chunk.bytes[..chunk.used]);
        chunk.used = 0;
        // Never full: as above.
        let _ = self.free.push(chunk);
        self.free.flush();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::decode;
    use super::*;

    fn record(stamp: u64, data: &[u8]) -> Record<'_> {
        Record {
            stamp,
            nic: 0,
            outbound: false,
            original_len: data.len() as u32,
            notes: &[],
            dropped_by: None,
            data,
        }
    }

    fn stamps(bytes: &[u8]) -> Vec<u64> {
        let mut rest = bytes;
        let mut all = Vec::new();
        while let Some(record) = decode(&mut rest) {
            all.push(record.stamp);
        }
        assert!(rest.is_empty());
        all
    }

    #[test]
    fn a_reader_that_stands_still_gets_all_that_fitted_and_no_more() {
        let (mut filler, mut drainer) = stream(3 * CHUNK_BYTES);
        let data = [7; 4096];
        let mut taken = 0;
        // settle after each: chunks that are not full must not use up the buffer.
        while filler.write(&record(taken, &data)) {
            filler.settle();
            taken += 1;
        }
        let per_chunk = (CHUNK_BYTES / (HEADER + data.len())) as u64;
        // The first record went on alone.
        assert_eq!(taken, 1 + 2 * per_chunk);
        let mut out = Vec::new();
        while drainer.read(&mut out) {}
        assert!(filler.write(&record(taken, &data)), "there is room again");
        filler.finish();
        while drainer.read(&mut out) {}
        assert_eq!(stamps(&out), (0..=taken).collect::<Vec<_>>());
    }

    #[test]
    fn a_waiting_reader_gets_single_records() {
        let (mut filler, mut drainer) = stream(CHUNK_BYTES);
        let mut out = Vec::new();
        for stamp in 0..10 {
            assert!(filler.write(&record(stamp, &[1, 2, 3])));
            assert!(!drainer.read(&mut out));
            filler.settle();
            assert!(drainer.read(&mut out));
        }
        assert_eq!(stamps(&out).len(), 10);
        filler.settle();
        filler.finish();
        assert!(!drainer.read(&mut out), "empty chunks do not travel");
    }

    #[test]
    fn a_record_as_long_as_a_chunk_fits_and_a_longer_one_is_refused() {
        let (mut filler, mut drainer) = stream(CHUNK_BYTES);
        assert!(filler.write(&record(1, &[0; MAX_DATA])));
        assert!(!filler.write(&record(2, &vec![0; MAX_DATA + 1])));
        filler.finish();
        let mut out = Vec::new();
        while drainer.read(&mut out) {}
        assert_eq!(stamps(&out), [1]);
    }

    #[test]
    fn threads_exchange_every_record_in_order() {
        const RECORDS: u64 = 5_000;
        let (mut filler, mut drainer) = stream(4 * CHUNK_BYTES);
        let writer = std::thread::spawn(move || {
            for stamp in 0..RECORDS {
                while !filler.write(&record(stamp, &[9; 300])) {
                    std::thread::yield_now();
                }
                filler.settle();
            }
            filler.finish();
        });
        let mut out = Vec::new();
        let want = RECORDS as usize * (HEADER + 300);
        while out.len() < want {
            if !drainer.read(&mut out) {
                std::thread::yield_now();
            }
        }
        writer.join().unwrap();
        assert_eq!(stamps(&out), (0..RECORDS).collect::<Vec<_>>());
    }
}
