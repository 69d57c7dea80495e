//! Where packets wait that a verdict keeps back: late ones by their time, held ones until enough others of
//! their flow have gone by. It holds packets of any type, and has a bound; what does not fit comes back to be
//! counted and freed by the caller.
//!
//! The caller gives each packet that is not dropped to [`Line::push`] with its verdict, and each copy with
//! [`Verdict::of_copy`], sends what passes, and then, and when [`Line::next_deadline`] comes, sends what [`Line::release`] returns until there is no more.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

use crate::Nanos;

use super::Verdict;

/// What became of a packet.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Pushed<T> {
    /// It goes on now.
    Pass(T),
    /// It waits in the line.
    Kept,
    /// The line is full: it is lost, and counted in [`Line::overflows`].
    Full(T),
}

struct Late<T> {
    due: Nanos,
    /// In the order of their coming where times are equal.
    serial: u64,
    item: T,
}

impl<T> Late<T> {
    fn key(&self) -> (Nanos, u64) {
        (self.due, self.serial)
    }
}

impl<T> PartialEq for Late<T> {
    fn eq(&self, other: &Late<T>) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Late<T> {}

impl<T> PartialOrd for Late<T> {
    fn partial_cmp(&self, other: &Late<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The earliest is the greatest, as the heap wants it.
impl<T> Ord for Late<T> {
    fn cmp(&self, other: &Late<T>) -> Ordering {
        other.key().cmp(&self.key())
    }
}

struct Held<T> {
    flow: u64,
    /// Packets that must still go by.
    left: u16,
    /// Not before.
    due: Nanos,
    /// Not after.
    until: Nanos,
    item: T,
}

/// The line.
pub struct Line<T> {
    late: BinaryHeap<Late<T>>,
    held: VecDeque<Held<T>>,
    /// Earliest `until` of those held.
    held_until: Option<Nanos>,
    capacity: usize,
    serial: u64,
    overflows: u64,
}

impl<T> Line<T> {
    /// With room for `capacity` packets, which is allocated here.
    pub fn new(capacity: usize) -> Line<T> {
        Line {
            late: BinaryHeap::with_capacity(capacity),
            held: VecDeque::with_capacity(capacity),
            held_until: None,
            capacity,
            serial: 0,
            overflows: 0,
        }
    }

    /// A packet with its verdict.
    #[inline]
    pub fn push(&mut self, item: T, verdict: &Verdict, now: Nanos) -> Pushed<T> {
        if let Some(hold) = verdict.hold {
            if self.len() >= self.capacity {
                self.overflows += 1;
                return Pushed::Full(item);
            }
            let due = now + verdict.delay;
            let until = due + hold.within;
            self.held_until = Some(self.held_until.map_or(until, |u| u.min(until)));
            self.held.push_back(Held {
                flow: verdict.flow,
                left: hold.packets,
                due,
                until,
                item,
            });
            return Pushed::Kept;
        }
        let due = now + verdict.delay;
        // What is due already goes first.
        let waits = due > now || self.late.peek().is_some_and(|l| l.due <= now);
        let pushed = match waits {
            false => Pushed::Pass(item),
            true if self.len() >= self.capacity => {
                self.overflows += 1;
                return Pushed::Full(item);
            }
            true => {
                self.keep(due, item);
                Pushed::Kept
            }
        };
        if !self.held.is_empty() {
            self.gone_by(verdict.flow, due);
        }
        pushed
    }

    /// The next packet whose time has come; `None`: no more for now.
    #[inline]
    pub fn release(&mut self, now: Nanos) -> Option<T> {
        if self.held_until.is_some_and(|until| until <= now) {
            self.let_go(|h| h.until <= now, Nanos::ZERO);
        }
        if self.late.peek()?.due > now {
            return None;
        }
        self.late.pop().map(|l| l.item)
    }

    /// When [`Line::release`] has something to return, if nothing more is pushed.
    #[inline]
    pub fn next_deadline(&self) -> Option<Nanos> {
        let late = self.late.peek().map(|l| l.due);
        late.into_iter().chain(self.held_until).min()
    }

    /// Takes any packet out, to take the line down.
    pub fn take_any(&mut self) -> Option<T> {
        self.held_until = None;
        let late = self.late.pop().map(|l| l.item);
        late.or_else(|| self.held.pop_back().map(|h| h.item))
    }

    /// Packets that wait.
    #[inline]
    pub fn len(&self) -> usize {
        self.late.len() + self.held.len()
    }

    /// Whether none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Packets for which there was no room.
    pub fn overflows(&self) -> u64 {
        self.overflows
    }

    fn keep(&mut self, due: Nanos, item: T) {
        self.serial += 1;
        let serial = self.serial;
        self.late.push(Late { due, serial, item });
    }

    /// A packet of the flow goes by, or will at `due`.
    fn gone_by(&mut self, flow: u64, due: Nanos) {
        let mut enough = false;
        for h in self.held.iter_mut().filter(|h| h.flow == flow) {
            h.left = h.left.saturating_sub(1);
            enough |= h.left == 0;
        }
        if enough {
            self.let_go(|h| h.left == 0, due);
        }
    }

    /// Those held for which `which` is true go on, in their order, at `due` or later.
    fn let_go(&mut self, which: impl Fn(&Held<T>) -> bool, due: Nanos) {
        // Once around, so that many at a time cost no more than few.
        for _ in 0..self.held.len() {
            let Some(h) = self.held.pop_front() else {
                break;
            };
            if which(&h) {
                self.keep(h.due.max(due), h.item);
            } else {
                self.held.push_back(h);
            }
        }
        self.held_until = self.held.iter().map(|h| h.until).min();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::impair::Hold;

    fn verdict(delay: u64) -> Verdict {
        let mut v = Verdict::pass(1);
        v.delay = Nanos(delay);
        v
    }

    fn hold(packets: u16, within: u64) -> Verdict {
        let mut v = Verdict::pass(1);
        v.hold = Some(Hold {
            packets,
            within: Nanos(within),
        });
        v
    }

    /// Pushes and takes what comes out, in order.
    fn go(line: &mut Line<u32>, item: u32, v: &Verdict, now: u64, out: &mut Vec<u32>) {
        match line.push(item, v, Nanos(now)) {
            Pushed::Pass(i) => out.push(i),
            Pushed::Kept => {}
            Pushed::Full(i) => panic!("no room for {i}"),
        }
        out.extend(std::iter::from_fn(|| line.release(Nanos(now))));
    }

    #[test]
    fn late_packets_come_at_their_time_and_in_order() {
        let mut line = Line::new(8);
        let mut out = vec![];
        for (item, delay) in [(1, 50), (2, 30), (3, 0), (4, 30)] {
            go(&mut line, item, &verdict(delay), 100, &mut out);
        }
        assert_eq!((out.as_slice(), line.len()), (&[3][..], 3));
        assert_eq!(line.next_deadline(), Some(Nanos(130)));
        assert_eq!(line.release(Nanos(129)), None);
        assert_eq!(line.release(Nanos(140)), Some(2));
        assert_eq!(line.release(Nanos(140)), Some(4));
        assert_eq!(line.release(Nanos(140)), None);
        assert_eq!(line.next_deadline(), Some(Nanos(150)));
        assert_eq!(line.release(Nanos(150)), Some(1));
        assert_eq!(line.next_deadline(), None);
    }

    #[test]
    fn a_packet_does_not_overtake_one_that_is_due() {
        let mut line = Line::new(8);
        let mut out = vec![];
        go(&mut line, 1, &verdict(10), 0, &mut out);
        // At 20, before anyone released what was due at 10.
        assert_eq!(line.push(2, &verdict(0), Nanos(20)), Pushed::Kept);
        out.extend(std::iter::from_fn(|| line.release(Nanos(20))));
        assert_eq!(out, [1, 2]);
    }

    #[test]
    fn held_packets_come_after_so_many_others() {
        let mut line = Line::new(8);
        let mut out = vec![];
        go(&mut line, 1, &hold(2, 1_000), 0, &mut out);
        // Another one held does not count, nor does another flow.
        go(&mut line, 2, &hold(2, 1_000), 0, &mut out);
        go(&mut line, 90, &Verdict::pass(2), 0, &mut out);
        for i in 3..6 {
            go(&mut line, i, &verdict(0), 0, &mut out);
        }
        assert_eq!(out, [90, 3, 4, 1, 2, 5]);
    }

    #[test]
    fn held_packets_come_when_their_time_is_over() {
        let mut line = Line::new(8);
        let mut out = vec![];
        go(&mut line, 1, &hold(5, 100), 0, &mut out);
        go(&mut line, 2, &hold(5, 50), 0, &mut out);
        assert_eq!(line.next_deadline(), Some(Nanos(50)));
        assert_eq!(line.release(Nanos(49)), None);
        assert_eq!(line.release(Nanos(50)), Some(2));
        assert_eq!(line.next_deadline(), Some(Nanos(100)));
        assert_eq!(line.release(Nanos(500)), Some(1));
        assert!(line.is_empty());
    }

    /// What goes by late makes those held late too.
    #[test]
    fn held_behind_late_ones() {
        let mut line = Line::new(8);
        let mut out = vec![];
        go(&mut line, 1, &hold(1, 1_000), 0, &mut out);
        go(&mut line, 2, &verdict(40), 0, &mut out);
        assert_eq!(out, []);
        assert_eq!(line.release(Nanos(40)), Some(2));
        assert_eq!(line.release(Nanos(40)), Some(1));
    }

    #[test]
    fn a_full_line_hands_back_and_counts() {
        let mut line = Line::new(2);
        assert_eq!(line.push(1, &verdict(10), Nanos(0)), Pushed::Kept);
        assert_eq!(line.push(2, &hold(1, 10), Nanos(0)), Pushed::Kept);
        assert_eq!(line.push(3, &verdict(10), Nanos(0)), Pushed::Full(3));
        assert_eq!(line.push(4, &hold(1, 10), Nanos(0)), Pushed::Full(4));
        assert_eq!(line.overflows(), 2);
        // What need not wait passes a full line.
        assert_eq!(line.push(5, &verdict(0), Nanos(0)), Pushed::Pass(5));
        assert!(line.take_any().is_some() && line.take_any().is_some());
        assert!(line.is_empty() && line.next_deadline().is_none());
        assert_eq!(line.take_any(), None);
    }
}
