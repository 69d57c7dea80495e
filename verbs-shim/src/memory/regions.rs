//! The regions of this process. A program may have a million of them, so none of what happens at each registration
//! goes over all.

use super::cover::Cover;
use super::list::List;
use super::spans::Span;

/// A region, registered or about to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// [`crate::context::Context::serial`] of its context.
    pub serial: u64,
    /// The daemon's number for it; means nothing before it is registered.
    pub handle: u32,
    /// Whole pages.
    pub span: Span,
    /// Part of it was passed to the daemon.
    pub mapped: bool,
}

/// All regions.
#[derive(Debug)]
pub struct Regions {
    /// Of each context at most one, since its lock is held meanwhile.
    pending: List<Region>,
    /// By context and handle: open addressing, a power of two of places of which more than half are free.
    places: List<Option<Region>>,
    len: usize,
    /// Those of both.
    cover: Cover,
}

impl Regions {
    /// None.
    pub const fn new() -> Regions {
        Regions {
            pending: List::new(),
            places: List::new(),
            len: 0,
            cover: Cover::new(),
        }
    }

    /// A registration begins. False if there is no memory to note it: then nothing may be done to its addresses.
    pub fn begin(&mut self, serial: u64, span: Span) -> bool {
        let region = Region {
            serial,
            handle: 0,
            span,
            mapped: false,
        };
        if !self.make_room() || !self.pending.reserve(1) || !self.cover.add(span) {
            return false;
        }
        self.pending.push(region)
    }

    /// The registration that is under way in a context.
    pub fn pending(&mut self, serial: u64) -> Option<&mut Region> {
        let mut all = self.pending.as_mut_slice().iter_mut();
        all.find(|r| r.serial == serial)
    }

    /// The registration has ended well.
    pub fn registered(&mut self, serial: u64, handle: u32) {
        let all = self.pending.as_slice();
        let Some(at) = all.iter().position(|r| r.serial == serial) else {
            return;
        };
        let region = Region { handle, ..all[at] };
        self.pending.remove(at);
        let at = self.place(serial, handle);
        if let Some(place) = at.and_then(|at| self.places.as_mut_slice().get_mut(at)) {
            self.len += usize::from(place.is_none());
            *place = Some(region);
        }
    }

    /// The registration has failed. Its addresses.
    pub fn failed(&mut self, serial: u64) -> Option<Span> {
        let mut all = self.pending.as_slice().iter();
        let at = all.position(|r| r.serial == serial)?;
        let span = self.pending.as_slice()[at].span;
        self.pending.remove(at);
        self.cover.remove(span);
        Some(span)
    }

    /// A region is gone. Its addresses.
    pub fn remove(&mut self, serial: u64, handle: u32) -> Option<Span> {
        let at = self.place(serial, handle)?;
        let span = self.places.as_slice().get(at)?.as_ref()?.span;
        self.vacate(at);
        self.cover.remove(span);
        Some(span)
    }

    /// All of a context are gone.
    pub fn remove_all(&mut self, serial: u64) {
        while self.failed(serial).is_some() {}
        let mut at = 0;
        while let Some(place) = self.places.as_slice().get(at) {
            match place.filter(|r| r.serial == serial) {
                // What was behind it may have moved here; only what was passed already moves to places behind.
                Some(region) => {
                    self.vacate(at);
                    self.cover.remove(region.span);
                }
                None => at += 1,
            }
        }
    }

    /// No region any more.
    pub fn clear(&mut self) {
        self.pending.clear();
        self.places = List::new();
        self.len = 0;
        self.cover.clear();
    }

    /// Places: [`Regions::at`] is asked for those below.
    pub fn places(&self) -> usize {
        self.places.as_slice().len()
    }

    /// The registered region at a place, if there is one.
    pub fn at(&self, place: usize) -> Option<Region> {
        *self.places.as_slice().get(place)?
    }

    /// Whether a part of `span` is in a region other than the one under way for `serial`.
    pub fn is_registered(&mut self, span: Span, except: u64) -> bool {
        let own = self.pending(except).map(|r| r.span);
        match own.and_then(|own| own.common(span)) {
            Some(common) if common == span => self.cover.reaches(span, 2),
            Some(common) => {
                let (before, behind) = (
                    Span {
                        end: common.start,
                        ..span
                    },
                    Span {
                        start: common.end,
                        ..span
                    },
                );
                let rest = [before, behind];
                let rest = rest.iter().filter(|part| part.start < part.end);
                self.cover.reaches(common, 2) || rest.into_iter().any(|p| self.cover.reaches(*p, 1))
            }
            None => self.cover.reaches(span, 1),
        }
    }

    /// The first part of `span` in no region.
    pub fn first_idle(&self, span: Span) -> Option<Span> {
        self.cover.first_idle(span)
    }

    fn home(&self, serial: u64, handle: u32) -> usize {
        // Multiplication by 2^64 divided by the golden ratio spreads numbers that follow one another (Knuth, volume 3, 6.4).
        let key = serial << 32 ^ u64::from(handle);
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        hash as usize & (self.places() - 1)
    }

    /// The place of that region, or a free one where it goes; none if there are no places.
    fn place(&self, serial: u64, handle: u32) -> Option<usize> {
        let mask = self.places().checked_sub(1)?;
        let mut at = self.home(serial, handle);
        while let Some(region) = self.at(at) {
            if (region.serial, region.handle) == (serial, handle) {
                break;
            }
            at = (at + 1) & mask;
        }
        Some(at)
    }

    /// Takes out what is at a place, and closes the gap in the row of those that had to go on from their home.
    fn vacate(&mut self, place: usize) {
        let mask = self.places() - 1;
        let (mut gap, mut at) = (place, place);
        loop {
            at = (at + 1) & mask;
            let Some(region) = self.at(at) else { break };
            // It may go to the gap unless its home lies behind that.
            let home = self.home(region.serial, region.handle);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(gap) & mask {
                self.places.as_mut_slice()[gap] = Some(region);
                gap = at;
            }
        }
        self.places.as_mut_slice()[gap] = None;
        self.len -= 1;
    }

    /// Room for those that are there, those that are pending, and one more.
    fn make_room(&mut self) -> bool {
        let wanted = self.len + self.pending.as_slice().len() + 1;
        if 2 * wanted < self.places() {
            return true;
        }
        let mut places = List::new();
        let count = (4 * wanted).next_power_of_two().max(64);
        if !places.reserve(count) {
            return false;
        }
        for _ in 0..count {
            places.push(None);
        }
        let old = std::mem::replace(&mut self.places, places);
        for region in old.as_slice().iter().flatten() {
            if let Some(at) = self.place(region.serial, region.handle) {
                self.places.as_mut_slice()[at] = Some(*region);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn span(start: usize, end: usize) -> Span {
        Span { start, end }
    }

    fn register(regions: &mut Regions, serial: u64, handle: u32, at: Span) {
        assert!(regions.begin(serial, at));
        regions.registered(serial, handle);
    }

    #[test]
    fn a_region_under_way_does_not_count_for_itself() {
        let mut regions = Regions::new();
        assert!(regions.begin(1, span(10, 20)));
        assert!(!regions.is_registered(span(10, 20), 1));
        assert!(regions.is_registered(span(10, 20), 2));
        assert!(regions.begin(2, span(15, 30)));
        assert!(regions.is_registered(span(10, 20), 1));
        assert!(!regions.is_registered(span(10, 15), 1));
        assert!(regions.is_registered(span(5, 25), 1));
        assert!(!regions.is_registered(span(5, 15), 1));
        assert_eq!(regions.failed(2), Some(span(15, 30)));
        regions.registered(1, 7);
        assert!(regions.is_registered(span(10, 20), 1));
        assert_eq!(regions.first_idle(span(0, 40)), Some(span(0, 10)));
        assert_eq!(regions.remove(1, 7), Some(span(10, 20)));
        assert_eq!(regions.remove(1, 7), None);
        assert_eq!(regions.first_idle(span(0, 40)), Some(span(0, 40)));
    }

    #[test]
    fn each_is_found_however_many_come_and_go() {
        let mut random = 1u64;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let (mut regions, mut model) = (Regions::new(), BTreeMap::new());
        for step in 0..30_000 {
            let (serial, handle) = (1 + next(3), next(400) as u32);
            let at = span(handle as usize, handle as usize + 1);
            // Mostly more at first, mostly fewer at the end.
            if next(30_000) > step {
                if let std::collections::btree_map::Entry::Vacant(place) =
                    model.entry((serial, handle))
                {
                    place.insert(at);
                    register(&mut regions, serial, handle, at);
                }
            } else {
                let expected = model.remove(&(serial, handle));
                assert_eq!(regions.remove(serial, handle), expected);
            }
            if step % 10_000 == 9_999 {
                model.retain(|&(of, _), _| of != serial);
                regions.remove_all(serial);
            }
            assert_eq!(regions.len, model.len());
        }
        let mut all: Vec<_> = (0..regions.places())
            .filter_map(|p| regions.at(p))
            .map(|r| ((r.serial, r.handle), r.span))
            .collect();
        all.sort_by_key(|(key, _)| *key);
        assert_eq!(all, model.into_iter().collect::<Vec<_>>());
        regions.clear();
        assert_eq!(regions.first_idle(span(0, 500)), Some(span(0, 500)));
        assert_eq!(regions.places(), 0);
        register(&mut regions, 1, 1, span(1, 2));
        assert_eq!(regions.remove(1, 1), Some(span(1, 2)));
    }
}
