//! The simulated memory of a program: one array, addressed like a process, with an allocator that never
//! gives a byte back and leaves guard bytes between allocations.

use roceline_engine::verbs::Sge;
use roceline_engine::wire::{ExtHeaders, Opcode};
use roceline_engine::{MemSlice, Outcome, PlaceKind};

use crate::rng::Rng;

/// First program address.
const BASE: u64 = 0x7000_0000_0000;
/// Registered regions name a byte by its address plus this.
pub const IOVA_SHIFT: u64 = 0x1234_5000;
const GUARD: u8 = 0xa5;

/// Memory of one program.
pub struct Memory {
    bytes: Vec<u8>,
    next: usize,
}

impl Memory {
    pub fn new(size: usize) -> Memory {
        Memory {
            bytes: vec![GUARD; size],
            next: 64,
        }
    }

    /// First address and length of all of it.
    pub fn extent(&self) -> (u64, u64) {
        (BASE, self.bytes.len() as u64)
    }

    /// `len` bytes, with guards around.
    pub fn alloc(&mut self, len: u32) -> u64 {
        let at = self.next;
        self.next += len as usize + 16;
        assert!(self.next <= self.bytes.len(), "the test needs more memory");
        BASE + at as u64
    }

    /// 8 bytes whose address is a multiple of 8, with this value.
    pub fn alloc_word(&mut self, value: u64) -> u64 {
        self.next = self.next.next_multiple_of(8);
        let at = self.alloc(8);
        self.write(at, &value.to_ne_bytes());
        at
    }

    /// `len` bytes in up to `max` pieces, some of which may be empty.
    pub fn alloc_pieces(&mut self, len: u32, max: usize, rng: &mut Rng) -> Vec<(u64, u32)> {
        let count = 1 + rng.below(max as u64) as usize;
        let mut left = len;
        let mut pieces = Vec::new();
        for i in 0..count {
            let n = match i + 1 == count {
                true => left,
                false => rng.below(u64::from(left) * 2 / (count - i) as u64 + 1) as u32,
            };
            let n = n.min(left);
            left -= n;
            pieces.push((self.alloc(n), n));
        }
        pieces
    }

    fn range(&self, addr: u64, len: u32) -> core::ops::Range<usize> {
        let at = (addr - BASE) as usize;
        at..at + len as usize
    }

    pub fn read(&self, addr: u64, len: u32) -> &[u8] {
        &self.bytes[self.range(addr, len)]
    }

    pub fn write(&mut self, addr: u64, data: &[u8]) {
        let range = self.range(addr, data.len() as u32);
        self.bytes[range].copy_from_slice(data);
    }

    /// What the pieces hold, one after the other.
    pub fn gather(&self, pieces: &[(u64, u32)]) -> Vec<u8> {
        pieces
            .iter()
            .flat_map(|&(addr, len)| self.read(addr, len).iter().copied())
            .collect()
    }

    pub fn scatter(&mut self, pieces: &[(u64, u32)], data: &[u8]) {
        let mut at = 0;
        for &(addr, len) in pieces {
            self.write(addr, &data[at..at + len as usize]);
            at += len as usize;
        }
    }

    pub fn fill(&mut self, pieces: &[(u64, u32)], byte: u8) {
        for &(addr, len) in pieces {
            let range = self.range(addr, len);
            self.bytes[range].fill(byte);
        }
    }

    /// Payload of a packet.
    pub fn fetch(&self, slices: &[MemSlice]) -> Vec<u8> {
        slices
            .iter()
            .flat_map(|s| self.read(s.addr, s.len).iter().copied())
            .collect()
    }

    /// Payload of a packet into its place.
    pub fn place(&mut self, slices: &[MemSlice], data: &[u8]) {
        let mut at = 0;
        for s in slices {
            self.write(s.addr, &data[at..at + s.len as usize]);
            at += s.len as usize;
        }
        assert_eq!(at, data.len(), "slices hold exactly the payload");
    }

    /// The 8 bytes at `addr` as a number.
    pub fn word(&self, addr: u64) -> u64 {
        let bytes = self.read(addr, 8);
        u64::from_ne_bytes(bytes.try_into().expect("8 bytes"))
    }

    /// Does what a placement asks for.
    pub fn carry_out(
        &mut self,
        kind: PlaceKind,
        opcode: Opcode,
        ext: &ExtHeaders,
        slices: &[MemSlice],
        payload: &[u8],
    ) -> Outcome {
        match kind {
            PlaceKind::Payload | PlaceKind::Datagram => self.place(slices, payload),
            PlaceKind::AtomicAck => self.place(slices, &ext.compare.to_ne_bytes()),
            PlaceKind::AtomicWrite | PlaceKind::Atomic => {
                let [slice] = slices else {
                    panic!("one slice, not {slices:?}");
                };
                assert_eq!((slice.len, slice.addr % 8), (8, 0));
                if kind == PlaceKind::AtomicWrite {
                    assert_eq!(payload.len(), 8);
                    self.write(slice.addr, payload);
                    return Outcome::Done;
                }
                let before = self.word(slice.addr);
                let after = match opcode {
                    Opcode::RC_FETCH_ADD => before.wrapping_add(ext.swap_add),
                    Opcode::RC_CMP_SWAP if before == ext.compare => ext.swap_add,
                    Opcode::RC_CMP_SWAP => before,
                    other => panic!("{other:?} is no atomic"),
                };
                self.write(slice.addr, &after.to_ne_bytes());
                return Outcome::Value(before);
            }
        }
        Outcome::Done
    }

    /// Whether every byte outside the given pieces is as it was at the start.
    pub fn guards_intact(&self, used: &[(u64, u32)]) -> bool {
        const CLEAN: [u8; 4096] = [GUARD; 4096];
        let clean = |bytes: &[u8]| bytes.chunks(4096).all(|c| *c == CLEAN[..c.len()]);
        let ranges = used.iter().map(|&(addr, len)| self.range(addr, len));
        let mut ranges: Vec<_> = ranges.map(|r| (r.start, r.end)).collect();
        ranges.sort_unstable();
        let mut at = 0;
        for (start, end) in ranges {
            if !clean(&self.bytes[at.min(start)..start]) {
                return false;
            }
            at = at.max(end);
        }
        clean(&self.bytes[at..])
    }
}

/// Scatter/gather entries for pieces.
pub fn sges(pieces: &[(u64, u32)], lkey: u32) -> Vec<Sge> {
    pieces
        .iter()
        .map(|&(addr, length)| Sge {
            addr: addr + IOVA_SHIFT,
            length,
            lkey,
        })
        .collect()
}
