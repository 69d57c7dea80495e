//! QP numbers and the QPs behind them.
//!
//! A number is, from its low bits up: the owner's lcore, an index into the table, and a generation that
//! steps each time the index is used again. A freed index rests in a FIFO quarantine first, so that packets and
//! work of a dead QP do not meet a new one (IBTA 12.9.8, TimeWait).

use std::collections::VecDeque;

use super::qp::Qp;
use crate::verbs::{QpError, QpId, QpInit};

/// Freed slots that wait, at least, while unused ones are left.
const QUARANTINE: usize = 256;
/// Index fields begin here: numbers 0 and 1 are the special QPs.
const FIRST_INDEX: u32 = 2;

const _: () = assert!(size_of::<Option<Qp>>() == size_of::<Qp>());

/// The number of a slot without a QP.
const NOBODY: QpId = QpId(0);

/// The QPs of an engine.
pub(crate) struct QpTable {
    slots: Vec<Option<Qp>>,
    /// By slot, side by side: what an `Option` says lies anywhere in a QP, in a line that the packet may have no use for.
    numbers: Vec<QpId>,
    /// By slot.
    generations: Vec<u32>,
    quarantine: VecDeque<u32>,
    max: u32,
    live: u32,
    owner: u32,
    owner_bits: u32,
    index_bits: u32,
    /// The bits of the index where they are.
    index_mask: u32,
    seed: u64,
}

impl QpTable {
    /// A table for `max` QPs; fewer if 24 bits do not hold as many.
    pub fn new(max: u32, owner: u32, owner_bits: u32, seed: u64) -> QpTable {
        let owner_bits = owner_bits.min(12);
        let reserve = QUARANTINE as u32 + FIRST_INDEX;
        // The all-ones index stays free too: 0xffffff is the multicast QPN.
        let max = max.min((1 << (24 - owner_bits)) - 1 - reserve);
        let index_bits = 32 - (max + reserve).leading_zeros();
        QpTable {
            slots: Vec::new(),
            numbers: Vec::new(),
            generations: Vec::new(),
            quarantine: VecDeque::new(),
            max,
            live: 0,
            owner: owner & ((1 << owner_bits) - 1),
            owner_bits,
            index_bits,
            index_mask: ((1 << index_bits) - 1) << owner_bits,
            seed,
        }
    }

    /// Bits of the owner and of the index in a QPN.
    pub fn layout(&self) -> (u32, u32) {
        (self.owner_bits, self.index_bits)
    }

    /// Slots that were ever used.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Makes a QP in RESET.
    pub fn create(&mut self, init: &QpInit) -> Result<QpId, QpError> {
        if self.live >= self.max {
            return Err(QpError::Full(self.live));
        }
        let fresh_left = self.slots.len() < self.max as usize + QUARANTINE;
        let rested = self.quarantine.len() > QUARANTINE || !fresh_left;
        let slot = match if rested {
            self.quarantine.pop_front()
        } else {
            None
        } {
            Some(slot) => slot,
            None => {
                let slot = self.slots.len() as u32;
                // The seed decides where generations begin.
                let generation = (self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u32;
                self.slots.push(None);
                self.numbers.push(NOBODY);
                self.generations.push(generation);
                slot
            }
        };
        let generation = &mut self.generations[slot as usize];
        *generation = generation.wrapping_add(1);
        let number =
            (*generation << self.index_bits | (slot + FIRST_INDEX)) << self.owner_bits | self.owner;
        let id = QpId(number & 0xff_ffff);
        self.slots[slot as usize] = Some(Qp::new(id, slot, init));
        self.numbers[slot as usize] = id;
        self.live += 1;
        Ok(id)
    }

    /// Drops a QP; its slot number.
    pub fn destroy(&mut self, id: QpId) -> Option<u32> {
        let slot = self.get(id)?.slot;
        self.numbers[slot as usize] = NOBODY;
        self.slots[slot as usize] = None;
        self.quarantine.push_back(slot);
        self.live -= 1;
        Some(slot)
    }

    #[inline]
    fn slot_of(&self, id: QpId) -> usize {
        let index = (id.0 & self.index_mask) >> self.owner_bits;
        index.wrapping_sub(FIRST_INDEX) as usize
    }

    /// Where the QP with this number would be.
    #[inline]
    pub fn address(&self, id: QpId) -> Option<*const Qp> {
        let slot = self.slots.get(self.slot_of(id))?;
        // Its niche holds whether there is one, so both begin at one address.
        Some(core::ptr::from_ref(slot).cast())
    }

    /// Where the QP in a slot would be.
    #[inline]
    pub fn address_at(&self, slot: u32) -> Option<*const Qp> {
        let slot = self.slots.get(slot as usize)?;
        Some(core::ptr::from_ref(slot).cast())
    }

    /// The QP in a slot, if it exists.
    #[inline]
    pub fn at(&self, slot: u32) -> Option<&Qp> {
        let slot = slot as usize;
        if *self.numbers.get(slot)? == NOBODY {
            return None;
        }
        // SAFETY: both arrays are equally long, and a slot has a number as long as there is a QP in it.
        Some(unsafe { self.slots.get_unchecked(slot).as_ref().unwrap_unchecked() })
    }

    /// The QP with this number.
    #[inline]
    pub fn get(&self, id: QpId) -> Option<&Qp> {
        // No slot is that of the number of nobody.
        let slot = self.slot_of(id);
        match *self.numbers.get(slot)? == id {
            true => self.at(slot as u32),
            false => None,
        }
    }

    /// The QP with this number.
    #[inline]
    pub fn get_mut(&mut self, id: QpId) -> Option<&mut Qp> {
        let slot = self.slot_of(id);
        match *self.numbers.get(slot)? == id {
            true => self.at_mut(slot as u32),
            false => None,
        }
    }

    /// QPs in at most `slots` slots around that of `id`: those created about the same time.
    pub fn near(&self, id: QpId, slots: usize) -> impl Iterator<Item = &Qp> {
        let first = self.slot_of(id).saturating_sub(slots / 2);
        let near = self.slots.iter().skip(first).take(slots);
        near.filter_map(Option::as_ref)
    }

    /// All QPs.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Qp> {
        self.slots.iter_mut().flatten()
    }

    /// The QP in a slot, if it still exists.
    #[inline]
    pub fn at_mut(&mut self, slot: u32) -> Option<&mut Qp> {
        let slot = slot as usize;
        if *self.numbers.get(slot)? == NOBODY {
            return None;
        }
        // SAFETY: as in `at`.
        Some(unsafe {
            self.slots
                .get_unchecked_mut(slot)
                .as_mut()
                .unwrap_unchecked()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::QpType;

    fn init() -> QpInit {
        QpInit {
            qp_type: QpType::Rc,
            pd: 0,
            send_cq: 0,
            recv_cq: 0,
            sq_sig_all: false,
            max_send_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            srq: None,
        }
    }

    #[test]
    fn numbers_hold_the_owner_and_are_never_special() {
        for (owner, bits, seed) in [(0, 0, 0), (5, 3, 9), (1, 1, u64::MAX), (0, 8, 77)] {
            let mut t = QpTable::new(2000, owner, bits, seed);
            let mut seen = std::collections::BTreeSet::new();
            for _ in 0..2000 {
                let id = t.create(&init()).unwrap();
                assert_eq!(id.0 & ((1 << bits) - 1), owner);
                assert!(id.0 > 1 && id.0 < 0xff_ffff, "{id:?}");
                assert!(seen.insert(id));
                assert!(t.get(id).is_some());
            }
            assert_eq!(t.create(&init()), Err(QpError::Full(2000)));
        }
    }

    #[test]
    fn a_number_rests_before_its_index_is_used_again_with_another_generation() {
        let mut t = QpTable::new(1, 0, 0, 0);
        let old = t.create(&init()).unwrap();
        let slot = t.destroy(old).unwrap();
        assert!(t.destroy(old).is_none());
        for _ in 0..QUARANTINE {
            let id = t.create(&init()).unwrap();
            assert_ne!(t.get(id).unwrap().slot, slot);
            t.destroy(id);
        }
        let id = t.create(&init()).unwrap();
        assert_eq!(t.get(id).unwrap().slot, slot);
        assert_ne!(id, old);
        assert!(t.get(old).is_none());
    }

    #[test]
    fn numbers_nobody_has_find_nothing() {
        let mut t = QpTable::new(4, 1, 2, 0);
        let id = t.create(&init()).unwrap();
        for n in [0, 1, id.0 ^ 1, id.0 ^ 0x80_0000, 0xff_ffff, u32::MAX] {
            assert!(t.get(QpId(n)).is_none(), "{n:#x}");
        }
    }
}
