//! Sets of address ranges.

use super::list::List;

/// Addresses from `start` up to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first.
    pub start: usize,
    /// The first behind.
    pub end: usize,
}

impl Span {
    /// The common part, if there is one.
    pub fn common(self, other: Span) -> Option<Span> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Span { start, end })
    }

    /// Bytes.
    pub fn len(self) -> usize {
        self.end - self.start
    }
}

/// A set of addresses, kept as ranges that are ascending and apart.
#[derive(Debug)]
pub struct Spans(List<Span>);

impl Spans {
    /// The empty set.
    pub const fn new() -> Spans {
        Spans(List::new())
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.0.as_slice().is_empty()
    }

    /// The ranges.
    pub fn as_slice(&self) -> &[Span] {
        self.0.as_slice()
    }

    /// The first of the ranges that reach beyond `address`.
    fn beyond(&self, address: usize) -> usize {
        self.0.as_slice().partition_point(|s| s.end <= address)
    }

    /// The first part of `span` that is in the set.
    pub fn first_in(&self, span: Span) -> Option<Span> {
        self.0.as_slice().get(self.beyond(span.start))?.common(span)
    }

    /// The first part of `span` that is not in the set.
    pub fn first_not_in(&self, span: Span) -> Option<Span> {
        let mut start = span.start;
        loop {
            if start >= span.end {
                return None;
            }
            match self.first_in(Span { start, ..span }) {
                None => return Some(Span { start, ..span }),
                Some(part) if part.start > start => {
                    let end = part.start;
                    return Some(Span { start, end });
                }
                Some(part) => start = part.end,
            }
        }
    }

    /// Adds a range. False if there is no memory for it.
    pub fn add(&mut self, span: Span) -> bool {
        // Neighbours are joined.
        let at = self.0.as_slice().partition_point(|s| s.end < span.start);
        let mut joined = span;
        while let Some(&next) = self.0.as_slice().get(at).filter(|s| s.start <= span.end) {
            joined.start = joined.start.min(next.start);
            joined.end = joined.end.max(next.end);
            self.0.remove(at);
        }
        self.0.insert(at, joined)
    }

    /// Takes a range out. False if there is no memory for what is left.
    pub fn remove(&mut self, span: Span) -> bool {
        loop {
            let at = self.beyond(span.start);
            let Some(&old) = self.0.as_slice().get(at).filter(|s| s.start < span.end) else {
                return true;
            };
            self.0.remove(at);
            let (behind, before) = (
                Span {
                    start: span.end,
                    ..old
                },
                Span {
                    end: span.start,
                    ..old
                },
            );
            if old.end > span.end && !self.0.insert(at, behind) {
                return false;
            }
            // This one ends where the range begins, so it is not met again.
            if old.start < span.start && !self.0.insert(at, before) {
                return false;
            }
        }
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}
