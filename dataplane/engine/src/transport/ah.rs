//! Address handles: which numbers exist, and in which protection domain. What they stand for, packet headers, is with the
//! caller, who finds it by [`AhInfo::index`].
//!
//! A number is `variant << 20 | index + 1`: never 0, which tells an old rxe provider that there are none. A freed index
//! rests, and comes back with another variant, so that a stale number in a send request names nothing for a long time.

use std::collections::VecDeque;

/// Bits of the index in a number.
const INDEX_BITS: u32 = 20;
/// Freed places that wait, at least, while unused ones are left.
const QUARANTINE: usize = 256;

/// A new address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AhInfo {
    /// What send requests name it by; not 0.
    pub number: u32,
    /// Its place: [`crate::TxDesc::ah`].
    pub index: u32,
}

/// Why an address handle could not be made or freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AhError {
    /// All places are in use.
    #[error("no address handle left: {0} exist")]
    Full(u32),
    /// No such handle.
    #[error("address handle {0:#x} does not exist")]
    Unknown(u32),
}

#[derive(Clone, Copy)]
struct Slot {
    pd: u32,
    variant: u32,
    live: bool,
}

/// The address handles of one engine.
pub(crate) struct AhTable {
    slots: Vec<Slot>,
    freed: VecDeque<u32>,
    live: u32,
}

impl AhTable {
    /// Handles at once.
    pub const MAX: u32 = 1 << 18;

    pub fn new() -> AhTable {
        AhTable {
            slots: Vec::new(),
            freed: VecDeque::new(),
            live: 0,
        }
    }

    pub fn create(&mut self, pd: u32) -> Result<AhInfo, AhError> {
        if self.live >= Self::MAX {
            return Err(AhError::Full(self.live));
        }
        let fresh_left = self.slots.len() < Self::MAX as usize + QUARANTINE;
        let rested = self.freed.len() > QUARANTINE || !fresh_left;
        let index = match if rested { self.freed.pop_front() } else { None } {
            Some(index) => index,
            None => {
                self.slots.push(Slot {
                    pd,
                    variant: 0,
                    live: false,
                });
                self.slots.len() as u32 - 1
            }
        };
        let slot = &mut self.slots[index as usize];
        *slot = Slot {
            pd,
            variant: slot.variant.wrapping_add(1) & ((1 << (32 - INDEX_BITS)) - 1),
            live: true,
        };
        self.live += 1;
        Ok(AhInfo {
            number: slot.variant << INDEX_BITS | (index + 1),
            index,
        })
    }

    /// Frees a handle; its index.
    pub fn destroy(&mut self, number: u32) -> Result<u32, AhError> {
        let index = self.index(number).ok_or(AhError::Unknown(number))?;
        self.slots[index as usize].live = false;
        self.freed.push_back(index);
        self.live -= 1;
        Ok(index)
    }

    #[inline]
    pub fn index(&self, number: u32) -> Option<u32> {
        let index = (number & ((1 << INDEX_BITS) - 1)).wrapping_sub(1);
        let slot = self.slots.get(index as usize)?;
        (slot.live && slot.variant == number >> INDEX_BITS).then_some(index)
    }

    /// The index of a handle that a QP in this protection domain may use.
    #[inline]
    pub fn find(&self, number: u32, pd: u32) -> Option<u32> {
        let index = self.index(number)?;
        (self.slots[index as usize].pd == pd).then_some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_never_zero_and_belong_to_their_protection_domain() {
        let mut t = AhTable::new();
        let a = t.create(7).unwrap();
        let b = t.create(8).unwrap();
        assert!(a.number != 0 && a.number != b.number);
        assert_eq!(t.find(a.number, 7), Some(a.index));
        assert_eq!(t.find(a.number, 8), None);
        for stranger in [0, 1, a.number ^ 1 << INDEX_BITS, u32::MAX] {
            assert_eq!(t.find(stranger, 7), None, "{stranger:#x}");
        }
    }

    #[test]
    fn a_freed_place_rests_and_comes_back_under_another_number() {
        let mut t = AhTable::new();
        let old = t.create(1).unwrap();
        assert_eq!(t.destroy(old.number), Ok(old.index));
        assert_eq!(t.destroy(old.number), Err(AhError::Unknown(old.number)));
        for _ in 0..QUARANTINE {
            let other = t.create(1).unwrap();
            assert_ne!(other.index, old.index);
            t.destroy(other.number).unwrap();
        }
        let new = t.create(1).unwrap();
        assert_eq!(new.index, old.index);
        assert_eq!(t.find(old.number, 1), None);
    }

    #[test]
    fn the_table_has_an_end() {
        let mut t = AhTable::new();
        let all: Vec<AhInfo> = (0..AhTable::MAX).map(|_| t.create(0).unwrap()).collect();
        assert_eq!(t.create(0), Err(AhError::Full(AhTable::MAX)));
        t.destroy(all[5].number).unwrap();
        assert!(t.create(0).is_ok());
    }
}
