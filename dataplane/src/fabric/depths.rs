//! How deep a queue was, as the frames that came to it found it: counts by depth, from which percentiles over any time are
//! the difference of two looks.

/// Parts of a power of two: the width of a class is 1/16 of its depth at most.
const PARTS_LOG2: u32 = 4;
/// Classes: up to 2^32 bytes.
const CLASSES: usize = ((32 - PARTS_LOG2 + 1) << PARTS_LOG2) as usize;

/// Counts by depth for the priorities of a port that are watched.
#[derive(Debug)]
pub struct Depths {
    counts: [Option<Box<[u64; CLASSES]>>; 8],
}

/// The class of a depth.
fn class(depth: u64) -> usize {
    let depth = depth.min(u64::from(u32::MAX)) as u32;
    if depth < 1 << PARTS_LOG2 {
        return depth as usize;
    }
    let shift = 31 - depth.leading_zeros() - PARTS_LOG2;
    (((shift + 1) << PARTS_LOG2) + (depth >> shift) - (1 << PARTS_LOG2)) as usize
}

/// The largest depth of a class.
fn top(class: usize) -> u64 {
    let class = class as u64;
    if class < 1 << PARTS_LOG2 {
        return class;
    }
    let shift = (class >> PARTS_LOG2) - 1;
    let part = (class & ((1 << PARTS_LOG2) - 1)) + (1 << PARTS_LOG2);
    ((part + 1) << shift) - 1
}

impl Depths {
    /// Of the priorities in `watched`, a bit each.
    pub fn new(watched: u8) -> Depths {
        Depths {
            counts: std::array::from_fn(|p| {
                (watched >> p & 1 == 1).then(|| Box::new([0; CLASSES]))
            }),
        }
    }

    /// A frame found `depth` bytes.
    #[inline]
    pub fn note(&mut self, priority: u8, depth: u64) {
        if let Some(counts) = &mut self.counts[usize::from(priority & 7)] {
            counts[class(depth)] += 1;
        }
    }

    /// The largest depth of each class that was met, and how often.
    pub fn counts(&self, priority: u8) -> Vec<(u64, u64)> {
        let counts = self.counts[usize::from(priority & 7)].iter();
        let counts = counts.flat_map(|c| c.iter().enumerate());
        counts
            .filter(|(_, n)| **n > 0)
            .map(|(c, n)| (top(c), *n))
            .collect()
    }
}

/// The depth that a share of all frames found at most, by the counts of [`Depths::counts`].
pub fn quantile(counts: &[(u64, u64)], share: f64) -> Option<u64> {
    let all: u64 = counts.iter().map(|c| c.1).sum();
    let wanted = ((all as f64 * share).ceil() as u64).max(1);
    let mut seen = 0;
    counts.iter().find_map(|&(depth, n)| {
        seen += n;
        (seen >= wanted).then_some(depth)
    })
}

/// What was counted between two looks.
pub fn since(later: &[(u64, u64)], earlier: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let before = |depth| earlier.iter().find(|e| e.0 == depth).map_or(0, |e| e.1);
    let counts = later
        .iter()
        .map(|&(depth, n)| (depth, n.saturating_sub(before(depth))));
    counts.filter(|c| c.1 > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_narrow_and_follow_each_other() {
        let mut last = None;
        for depth in (0..100_000u64).chain([1 << 31, u64::from(u32::MAX), u64::MAX]) {
            let c = class(depth);
            assert!(c < CLASSES);
            if last.is_some_and(|l| l != c) {
                assert!(depth > 100_000 || last == Some(c - 1), "{depth}");
            }
            last = Some(c);
            let within = depth.min(u32::MAX.into());
            assert!(
                top(c) >= within && top(c) <= within + within / 16,
                "{depth} {}",
                top(c)
            );
        }
    }

    #[test]
    fn percentiles_of_what_came_between_two_looks() {
        let mut depths = Depths::new(1 << 3);
        depths.note(3, 1 << 20);
        depths.note(2, 5);
        let before = depths.counts(3);
        for depth in 0..100 {
            depths.note(3, depth * 1_000);
        }
        let counts = since(&depths.counts(3), &before);
        let p = |share| quantile(&counts, share).unwrap();
        assert!((49_000..53_000).contains(&p(0.5)), "{}", p(0.5));
        assert!((98_000..105_000).contains(&p(0.99)), "{}", p(0.99));
        assert_eq!(quantile(&[], 0.5), None);
        assert!(depths.counts(2).is_empty(), "nobody watches it");
    }
}
