//! How many regions each address is in.
//!
//! A step function over addresses, kept as the places where it changes. Regions that lie side by side or over one another
//! make few steps, however many they are.

use super::list::List;
use super::spans::Span;

/// From `at` up to the next step, each address is in `count` regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    at: usize,
    count: u32,
}

/// The function. Below the first step and from the last one on it is 0; no step has the count of the one before.
#[derive(Debug)]
pub struct Cover(List<Step>);

impl Cover {
    /// No region anywhere.
    pub const fn new() -> Cover {
        Cover(List::new())
    }

    /// The first step beyond `address`; the one before it holds there.
    fn beyond(&self, address: usize) -> usize {
        self.0.as_slice().partition_point(|s| s.at <= address)
    }

    /// What holds between the steps before and at `index`.
    fn before(&self, index: usize) -> u32 {
        match index {
            0 => 0,
            _ => self.0.as_slice()[index - 1].count,
        }
    }

    /// The step at this address, made if there is none. There is room for it.
    fn step_at(&mut self, at: usize) -> usize {
        let index = self.0.as_slice().partition_point(|s| s.at < at);
        if self.0.as_slice().get(index).is_none_or(|s| s.at != at) {
            let count = self.before(index);
            self.0.insert(index, Step { at, count });
        }
        index
    }

    fn drop_if_flat(&mut self, index: usize) {
        let step = self.0.as_slice().get(index);
        if step.is_some_and(|s| s.count == self.before(index)) {
            self.0.remove(index);
        }
    }

    fn change(&mut self, span: Span, by: impl Fn(u32) -> u32) -> bool {
        if !self.0.reserve(2) {
            return false;
        }
        let (from, to) = (self.step_at(span.start), self.step_at(span.end));
        for step in &mut self.0.as_mut_slice()[from..to] {
            step.count = by(step.count);
        }
        self.drop_if_flat(to);
        self.drop_if_flat(from);
        true
    }

    /// A region more. False if there is no memory to note it.
    pub fn add(&mut self, span: Span) -> bool {
        self.change(span, |count| count.saturating_add(1))
    }

    /// A region that was added is gone. False if there is no memory to note it: then its addresses stay covered.
    pub fn remove(&mut self, span: Span) -> bool {
        self.change(span, |count| count.saturating_sub(1))
    }

    /// Whether any address of `span` is in so many regions, or more.
    pub fn reaches(&self, span: Span, count: u32) -> bool {
        let mut index = self.beyond(span.start);
        if self.before(index) >= count {
            return true;
        }
        while let Some(step) = self.0.as_slice().get(index).filter(|s| s.at < span.end) {
            if step.count >= count {
                return true;
            }
            index += 1;
        }
        false
    }

    /// The first part of `span` that is in no region.
    pub fn first_idle(&self, span: Span) -> Option<Span> {
        let mut start = span.start;
        let mut index = self.beyond(start);
        while start < span.end {
            let count = self.before(index);
            let next = self.0.as_slice().get(index).map_or(usize::MAX, |s| s.at);
            let end = next.min(span.end);
            if count == 0 {
                return Some(Span { start, end });
            }
            start = end;
            index += 1;
        }
        None
    }

    /// No region anywhere.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(start: usize, end: usize) -> Span {
        Span { start, end }
    }

    fn steps(cover: &Cover) -> Vec<(usize, u32)> {
        cover.0.as_slice().iter().map(|s| (s.at, s.count)).collect()
    }

    #[test]
    fn neighbours_and_repetitions_are_few_steps() {
        let mut cover = Cover::new();
        for i in 0..1000 {
            assert!(cover.add(span(i, i + 1)));
        }
        assert_eq!(steps(&cover), [(0, 1), (1000, 0)]);
        for _ in 0..1000 {
            assert!(cover.add(span(10, 20)));
        }
        assert_eq!(steps(&cover), [(0, 1), (10, 1001), (20, 1), (1000, 0)]);
        assert!(cover.reaches(span(0, 11), 2) && !cover.reaches(span(0, 10), 2));
        assert!(cover.reaches(span(19, 30), 1001) && !cover.reaches(span(20, 30), 2));
    }

    #[test]
    fn what_is_left_when_a_region_goes() {
        let mut cover = Cover::new();
        cover.add(span(10, 30));
        cover.add(span(20, 40));
        assert_eq!(cover.first_idle(span(0, 50)), Some(span(0, 10)));
        assert_eq!(cover.first_idle(span(10, 50)), Some(span(40, 50)));
        assert_eq!(cover.first_idle(span(15, 40)), None);
        cover.remove(span(10, 30));
        assert_eq!(cover.first_idle(span(10, 30)), Some(span(10, 20)));
        cover.remove(span(20, 40));
        assert!(steps(&cover).is_empty());
    }

    /// Against an array with a count for each address.
    #[test]
    fn it_counts_as_an_array_does() {
        const ADDRESSES: usize = 64;
        let mut random = 1u64;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random as usize % below
        };
        let (mut cover, mut counts, mut live) = (Cover::new(), [0u32; ADDRESSES], Vec::new());
        for _ in 0..20_000 {
            let region = if next(2) == 0 || live.is_empty() {
                let start = next(ADDRESSES);
                let region = span(start, start + 1 + next(ADDRESSES - start));
                live.push(region);
                assert!(cover.add(region));
                counts[region.start..region.end]
                    .iter_mut()
                    .for_each(|c| *c += 1);
                region
            } else {
                let region = live.swap_remove(next(live.len()));
                assert!(cover.remove(region));
                counts[region.start..region.end]
                    .iter_mut()
                    .for_each(|c| *c -= 1);
                region
            };
            let most = *counts[region.start..region.end].iter().max().unwrap_or(&0);
            assert!(cover.reaches(region, most) && !cover.reaches(region, most + 1));
            let idle = (region.start..region.end).find(|&a| counts[a] == 0);
            let found = cover.first_idle(region);
            assert_eq!(found.map(|s| s.start), idle, "{region:?} {counts:?}");
            if let Some(part) = found {
                assert!(counts[part.start..part.end].iter().all(|&c| c == 0));
                assert!(part.end == region.end || counts[part.end] > 0);
            }
        }
        assert!(steps(&cover).windows(2).all(|s| s[0].1 != s[1].1));
    }
}
