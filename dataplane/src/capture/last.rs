//! The last packets: a ring of slots of one length, of which the newest record takes the place of the oldest.

use std::fmt;

use super::record::{HEADER, Record};

/// A ring of records. All its memory is allocated, and touched, when it is made.
pub struct LastPackets {
    bytes: Box<[u8]>,
    used: Box<[u32]>,
    slot: usize,
    next: usize,
    count: usize,
}

impl fmt::Debug for LastPackets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LastPackets({} of {})", self.count, self.used.len())
    }
}

impl LastPackets {
    /// Room for `count` records (one at least) with frames of up to `snaplen` bytes.
    pub fn new(count: usize, snaplen: usize) -> LastPackets {
        let count = count.max(1);
        let slot = HEADER + snaplen;
        LastPackets {
            // Not zeros: those would be mapped on the lcore's first write, by a page fault each.
            bytes: vec![0xff; count * slot].into_boxed_slice(),
            used: vec![0; count].into_boxed_slice(),
            slot,
            next: 0,
            count: 0,
        }
    }

    /// Bytes that such a ring takes.
    pub fn memory(count: usize, snaplen: usize) -> usize {
        count
            .max(1)
            .saturating_mul(HEADER.saturating_add(snaplen).saturating_add(4))
    }

    /// Records that it holds.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a record in place of the oldest; false if its frame is longer than a slot.
    #[inline]
    pub fn write(&mut self, record: &Record<'_>) -> bool {
        let at = self.next * self.slot;
        let Some(len) = record.encode(&mut self.bytes[at..at + self.slot]) else {
            return false;
        };
        self.used[self.next] = len as u32;
        self.next = (self.next + 1) % self.used.len();
        self.count = (self.count + 1).min(self.used.len());
        true
    }

    /// Takes out the oldest records, as many as fit into `limit` bytes and one at least, and appends them to `out`;
    /// false if there is none.
    pub fn read(&mut self, out: &mut Vec<u8>, limit: usize) -> bool {
        let before = out.len();
        while self.count > 0 {
            let slots = self.used.len();
            let oldest = (self.next + slots - self.count) % slots;
            let len = self.used[oldest] as usize;
            let taken = out.len() - before;
            if taken > 0 && taken + len > limit {
                break;
            }
            let at = oldest * self.slot;
            out.extend_from_slice(&self.bytes[at..at + len]);
            self.count -= 1;
        }
        out.len() > before
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::decode;
    use super::*;

    fn write(ring: &mut LastPackets, stamp: u64, data: &[u8]) -> bool {
        ring.write(&Record {
            stamp,
            nic: 0,
            outbound: true,
            original_len: data.len() as u32,
            notes: &[],
            dropped_by: None,
            data,
        })
    }

    fn read(ring: &mut LastPackets, limit: usize) -> Vec<Vec<u64>> {
        let mut batches = Vec::new();
        let mut out = Vec::new();
        while ring.read(&mut out, limit) {
            let mut rest = out.as_slice();
            let mut batch = Vec::new();
            while let Some(record) = decode(&mut rest) {
                batch.push(record.stamp);
            }
            batches.push(batch);
            out.clear();
        }
        batches
    }

    #[test]
    fn the_newest_stay_in_their_order() {
        for written in 0..12u64 {
            let mut ring = LastPackets::new(5, 10);
            for stamp in 0..written {
                assert!(write(&mut ring, stamp, &[1; 10]));
            }
            assert!(!write(&mut ring, 99, &[1; 11]), "longer than a slot");
            let want: Vec<u64> = (written.saturating_sub(5)..written).collect();
            assert_eq!(ring.len(), want.len());
            let all = read(&mut ring, usize::MAX).concat();
            assert_eq!(all, want);
            assert!(ring.is_empty());
        }
    }

    #[test]
    fn batches_keep_to_the_limit_but_never_stand_still() {
        let mut ring = LastPackets::new(6, 100);
        for stamp in 0..6 {
            assert!(write(&mut ring, stamp, &[0; 100]));
        }
        let two = 2 * (HEADER + 100);
        assert_eq!(read(&mut ring, two), [vec![0, 1], vec![2, 3], vec![4, 5]]);
        assert!(write(&mut ring, 6, &[0; 100]));
        assert_eq!(read(&mut ring, 1), [vec![6]]);
    }
}
