//! The table of memory regions and windows: keys in, checked slices out.
//!
//! A key is `index << 8 | variant`. A freed index rests in a FIFO quarantine and comes back with another
//! variant, so a stale key names nothing for a long time. The engine owns the table; registration
//! happens between bursts, [`MrTable::check`] and [`MrTable::check_remote`] are the calls of the hot loop.

use std::collections::VecDeque;

use super::owners::Owners;
use super::{Access, AccessError, MrAttr, MrInfo, WindowType};
use crate::descriptor::MemSlice;
use crate::transport::prefetch;
use crate::verbs::QpId;

/// Freed indices that wait, at least, before the oldest of them is used again.
const QUARANTINE: usize = 1024;
/// Indices for which a table sets address space aside at once, so that it grows without being copied: for 2^20 regions and
/// as many windows. What is not used is not touched.
const AT_ONCE: usize = (1 << 21) + QUARANTINE;
/// Index 0 is not used, so that no key is 0.
const FIRST_INDEX: u32 = 1;

/// The QP of what every QP may use: no QP has this number.
pub(super) const ANY_QP: u32 = u32::MAX;

/// A region, or a window into one.
#[derive(Clone, Copy)]
pub(super) struct Region {
    /// Names it in local requests. 0, which no key is, while the place is free, and for windows.
    pub lkey: u32,
    /// Names it in requests of peers. 0 while the place is free, and for windows that are not bound.
    pub rkey: u32,
    pub pd: u32,
    /// The only QP whose peer may use it, or [`ANY_QP`].
    pub qp: u32,
    pub iova: u64,
    pub len: u64,
    /// Program address minus iova.
    pub delta: u64,
    pub access: Access,
    /// Index of the region whose memory it is: its own, or of the one that a window is bound to.
    pub mr: u32,
    /// Its key, bound or not; 0 while the place is free.
    pub key: u32,
    /// Windows that are bound to it. For a window see `owners`.
    pub windows: u32,
    /// For a window see `owners`.
    pub prev: u32,
    /// Set for a window.
    pub window: Option<WindowType>,
    pub variant: u8,
}

/// Memory regions and windows of one engine.
pub struct MrTable {
    pub(super) regions: Vec<Region>,
    quarantine: VecDeque<u32>,
    max: u32,
    live: u32,
    pub(super) live_windows: u32,
    pub(super) seed: u64,
    /// The windows that each QP has bound.
    pub(super) owners: Owners,
}

impl MrTable {
    /// A table for `max` regions and as many windows. `seed` decides the variants of the keys.
    pub fn new(max: u32, seed: u64) -> MrTable {
        // 24 bits of index, of which one is not used and QUARANTINE are kept in reserve.
        let max = max.min(((1 << 24) - FIRST_INDEX - QUARANTINE as u32) / 2);
        let places = (2 * max as usize + QUARANTINE).min(AT_ONCE);
        MrTable {
            regions: Vec::with_capacity(places),
            quarantine: VecDeque::with_capacity(places),
            owners: Owners::default(),
            max,
            live: 0,
            live_windows: 0,
            seed,
        }
    }

    /// Regions, and windows, at most.
    pub(super) fn max(&self) -> u32 {
        self.max
    }

    /// Regions registered now.
    pub fn len(&self) -> u32 {
        self.live
    }

    /// Whether none is registered.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Registers a region.
    pub fn register(&mut self, attr: MrAttr) -> Result<MrInfo, AccessError> {
        if self.live == self.max {
            return Err(AccessError::Full(self.live));
        }
        // The last byte must have an address both ways; a region may end at the very top.
        let last = attr.len.saturating_sub(1);
        if attr.addr.checked_add(last).is_none() || attr.iova.checked_add(last).is_none() {
            return Err(AccessError::Range {
                addr: attr.addr,
                len: attr.len,
            });
        }
        let (index, key) = self.take_place();
        let region = self.at_mut(index);
        *region = Region {
            lkey: key,
            rkey: key,
            pd: attr.pd,
            qp: ANY_QP,
            iova: attr.iova,
            len: attr.len,
            delta: attr.addr.wrapping_sub(attr.iova),
            access: attr.access,
            mr: index,
            key,
            windows: 0,
            prev: 0,
            window: None,
            variant: region.variant,
        };
        self.live += 1;
        Ok(MrInfo {
            index,
            lkey: key,
            rkey: key,
        })
    }

    /// Takes a region out; its key names nothing from now on. Refused while windows are bound to it.
    pub fn deregister(&mut self, key: u32) -> Result<MrInfo, AccessError> {
        let region = match self.regions.get(slot_of(key)) {
            Some(r) if r.lkey == key && key != 0 => r,
            _ => return Err(AccessError::UnknownKey(key)),
        };
        if region.windows > 0 {
            return Err(AccessError::WindowsBound(region.windows));
        }
        let index = key >> 8;
        self.give_back(index);
        self.live -= 1;
        Ok(MrInfo {
            index,
            lkey: key,
            rkey: key,
        })
    }

    /// Asks for the cache line of what a key names.
    #[inline]
    pub(crate) fn prefetch(&self, key: u32) {
        prefetch::line(self.regions.as_ptr().wrapping_add(slot_of(key)));
    }

    /// The memory behind `len` bytes at `addr` (an iova), if `key` names a region of `pd` for local requests and allows
    /// `access`.
    #[inline]
    pub fn check(
        &self,
        key: u32,
        pd: u32,
        addr: u64,
        len: u32,
        access: Access,
    ) -> Result<MemSlice, AccessError> {
        match self.regions.get(slot_of(key)) {
            Some(r) if r.lkey == key && key != 0 => r.slice(key, pd, addr, len, access),
            _ => Err(AccessError::UnknownKey(key)),
        }
    }

    /// The same for a request of the peer of QP `qp`: the key may also be a window's.
    #[inline]
    pub fn check_remote(
        &self,
        key: u32,
        (pd, qp): (u32, QpId),
        addr: u64,
        len: u32,
        access: Access,
    ) -> Result<MemSlice, AccessError> {
        let region = self.remote(key, qp)?;
        region.slice(key, pd, addr, len, access)
    }

    /// Whether the peer of QP `qp` may do `access` in all of what `key` names.
    pub fn check_whole(
        &self,
        key: u32,
        (pd, qp): (u32, QpId),
        access: Access,
    ) -> Result<(), AccessError> {
        let region = self.remote(key, qp)?;
        region.slice(key, pd, region.iova, 0, access).map(drop)
    }

    #[inline]
    fn remote(&self, key: u32, qp: QpId) -> Result<&Region, AccessError> {
        match self.regions.get(slot_of(key)) {
            Some(r) if r.rkey == key && key != 0 => {
                if r.qp == ANY_QP || r.qp == qp.0 {
                    Ok(r)
                } else {
                    Err(AccessError::WrongQp(key))
                }
            }
            _ => Err(AccessError::UnknownKey(key)),
        }
    }

    /// The object at an index that was given out.
    pub(super) fn at_mut(&mut self, index: u32) -> &mut Region {
        &mut self.regions[(index - FIRST_INDEX) as usize]
    }

    /// Index and key of a new object, whose place keeps its variant.
    pub(super) fn take_place(&mut self) -> (u32, u32) {
        let slot = self.take_slot();
        let index = slot + FIRST_INDEX;
        let region = &mut self.regions[slot as usize];
        region.variant = region.variant.wrapping_add(1);
        (index, index << 8 | u32::from(region.variant))
    }

    /// The object at `index` is no more.
    pub(super) fn give_back(&mut self, index: u32) {
        let region = self.at_mut(index);
        // A window's bindings may have brought its key to any variant: the next object here must not get its last key.
        region.variant = region.key as u8;
        region.key = 0;
        region.lkey = 0;
        region.rkey = 0;
        region.window = None;
        self.quarantine.push_back(index - FIRST_INDEX);
    }

    /// Fresh indices first, until enough freed ones have rested.
    fn take_slot(&mut self) -> u32 {
        let fresh_left = self.regions.len() < 2 * self.max as usize + QUARANTINE;
        if self.quarantine.len() > QUARANTINE || !fresh_left {
            if let Some(slot) = self.quarantine.pop_front() {
                return slot;
            }
        }
        let slot = self.regions.len() as u32;
        self.regions.push(Region {
            lkey: 0,
            rkey: 0,
            pd: 0,
            qp: ANY_QP,
            iova: 0,
            len: 0,
            delta: 0,
            access: Access(0),
            mr: 0,
            key: 0,
            windows: 0,
            prev: 0,
            window: None,
            variant: first_variant(self.seed, slot),
        });
        slot
    }
}

impl Region {
    /// Protection domain, rights and range; the key was found.
    #[inline]
    fn slice(
        &self,
        key: u32,
        pd: u32,
        addr: u64,
        len: u32,
        access: Access,
    ) -> Result<MemSlice, AccessError> {
        if self.pd != pd {
            return Err(AccessError::WrongPd(key));
        }
        if !self.access.allows(access) {
            return Err(AccessError::Denied(access.0));
        }
        // An address below the region wraps to an offset above its length.
        let offset = addr.wrapping_sub(self.iova);
        if offset > self.len || u64::from(len) > self.len - offset {
            return Err(AccessError::Range {
                addr,
                len: u64::from(len),
            });
        }
        Ok(MemSlice {
            mr: self.mr,
            len,
            addr: addr.wrapping_add(self.delta),
        })
    }
}

#[inline]
pub(super) fn slot_of(key: u32) -> usize {
    (key >> 8).wrapping_sub(FIRST_INDEX) as usize
}

/// Where the variants of an index begin.
fn first_variant(seed: u64, slot: u32) -> u8 {
    mix(seed, slot) as u8
}

/// A number mixed with the seed (the finaliser of splitmix64).
pub(super) fn mix(seed: u64, number: u32) -> u64 {
    let mut z = seed ^ (u64::from(number) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(addr: u64, len: u64) -> MrAttr {
        MrAttr {
            pd: 1,
            addr,
            iova: addr,
            len,
            access: Access(7),
        }
    }

    #[test]
    fn a_slice_is_the_program_address_of_an_iova_range() {
        let mut t = MrTable::new(4, 0);
        let a = MrAttr {
            pd: 1,
            addr: 0x7000,
            iova: 0x100,
            len: 0x1000,
            access: Access(1),
        };
        let mr = t.register(a).unwrap();
        assert_eq!(mr.lkey, mr.rkey);
        let s = t.check(mr.lkey, 1, 0x110, 16, Access::LOCAL_WRITE).unwrap();
        assert_eq!(
            s,
            MemSlice {
                mr: mr.index,
                len: 16,
                addr: 0x7010
            }
        );
    }

    #[test]
    fn key_pd_range_and_rights_are_checked() {
        let mut t = MrTable::new(4, 7);
        let a = MrAttr {
            pd: 1,
            addr: 0x1000,
            iova: 0x1000,
            len: 0x100,
            access: Access(1),
        };
        let k = t.register(a).unwrap().lkey;
        let check = |addr, len| t.check(k, 1, addr, len, Access::LOCAL_READ);
        assert!(check(0x1000, 0x100).is_ok());
        assert!(check(0x10ff, 1).is_ok());
        assert!(check(0x1100, 0).is_ok());
        for (addr, len) in [
            (0xfff, 1),
            (0x1100, 1),
            (0x1001, 0x100),
            (u64::MAX, 2),
            (0, u32::MAX),
        ] {
            assert_eq!(
                check(addr, len),
                Err(AccessError::Range {
                    addr,
                    len: u64::from(len)
                })
            );
        }
        assert_eq!(
            t.check(k, 2, 0x1000, 1, Access(0)),
            Err(AccessError::WrongPd(k))
        );
        assert_eq!(
            t.check(k ^ 1, 1, 0x1000, 1, Access(0)),
            Err(AccessError::UnknownKey(k ^ 1))
        );
        assert_eq!(
            t.check(0, 1, 0, 0, Access(0)),
            Err(AccessError::UnknownKey(0))
        );
        assert_eq!(
            t.check(u32::MAX, 1, 0, 0, Access(0)),
            Err(AccessError::UnknownKey(u32::MAX))
        );
        let denied = t.check(k, 1, 0x1000, 1, Access::REMOTE_WRITE);
        assert_eq!(denied, Err(AccessError::Denied(2)));
    }

    #[test]
    fn a_region_may_end_at_the_top_of_the_address_space_but_not_beyond() {
        let mut t = MrTable::new(4, 0);
        let k = t.register(attr(u64::MAX - 0xff, 0x100)).unwrap().lkey;
        assert!(t.check(k, 1, u64::MAX, 1, Access(0)).is_ok());
        assert!(t.check(k, 1, u64::MAX, 2, Access(0)).is_err());
        assert!(t.register(attr(u64::MAX - 0xff, 0x101)).is_err());
    }

    #[test]
    fn a_freed_key_is_dead_and_its_index_rests() {
        let mut t = MrTable::new(8, 3);
        let old = t.register(attr(0x1000, 16)).unwrap();
        assert_eq!(t.deregister(old.lkey), Ok(old));
        assert_eq!(
            t.deregister(old.lkey),
            Err(AccessError::UnknownKey(old.lkey))
        );
        assert!(t.check(old.lkey, 1, 0x1000, 1, Access(0)).is_err());
        for _ in 0..QUARANTINE {
            let mr = t.register(attr(0x1000, 16)).unwrap();
            assert_ne!(mr.index, old.index);
            t.deregister(mr.lkey).unwrap();
        }
        // It comes back in its turn, with another variant.
        let back = (0..=QUARANTINE)
            .map(|_| {
                let mr = t.register(attr(0x1000, 16)).unwrap();
                t.deregister(mr.lkey).unwrap();
                mr
            })
            .find(|mr| mr.index == old.index)
            .expect("the index comes back");
        assert_ne!(back.lkey, old.lkey);
    }

    #[test]
    fn full_says_how_many() {
        let mut t = MrTable::new(2, 0);
        t.register(attr(0, 1)).unwrap();
        let b = t.register(attr(0, 1)).unwrap();
        assert_eq!(t.register(attr(0, 1)), Err(AccessError::Full(2)));
        t.deregister(b.lkey).unwrap();
        assert!(t.register(attr(0, 1)).is_ok());
    }
}
