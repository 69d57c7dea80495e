//! What is to happen, earliest first, and in the order of planning within a moment: a radix heap (Ahuja, Mehlhorn, Orlin and
//! Tarjan, JACM 1990). Time does not go back in a simulation, so an event only ever moves towards the front, a few times in
//! its life, and by plain copies; nothing is compared or sifted, and the number of events does not matter.

use roceline_engine::Nanos;

/// A bucket for each highest bit in which a time can differ from the present, and one for the present itself.
const BUCKETS: usize = 65;

/// The queue.
pub(super) struct EventQueue<E> {
    /// The time of the newest event that came out: bucket `b` holds those whose time differs from it in bit `b - 1` at most.
    last: u64,
    /// Each in the order of planning. The lower of two that are not empty holds the earlier events.
    buckets: [Vec<(u64, E)>; BUCKETS],
    /// Events of the first bucket that are out already.
    out: usize,
    /// Bit `b - 1`: bucket `b` is not empty.
    occupied: u64,
    len: usize,
}

impl<E> Default for EventQueue<E> {
    fn default() -> EventQueue<E> {
        EventQueue {
            last: 0,
            buckets: std::array::from_fn(|_| Vec::new()),
            out: 0,
            occupied: 0,
            len: 0,
        }
    }
}

impl<E: Copy> EventQueue<E> {
    /// Events that are to come.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Plans an event. What should have happened before the last event that came out happens next to it.
    pub fn push(&mut self, at: Nanos, event: E) {
        self.len += 1;
        self.put(at.0.max(self.last), event);
    }

    /// The next event, if it is not after `limit`.
    pub fn pop(&mut self, limit: Nanos) -> Option<(Nanos, E)> {
        if let Some(&(at, event)) = self.buckets[0].get(self.out) {
            if at > limit.0 {
                return None;
            }
            self.out += 1;
            self.len -= 1;
            return Some((Nanos(at), event));
        }
        self.refill(limit)?;
        self.pop(limit)
    }

    /// Moves the events of the next moment to the first bucket, and those near to it closer.
    fn refill(&mut self, limit: Nanos) -> Option<()> {
        if self.occupied == 0 {
            return None;
        }
        let from = self.occupied.trailing_zeros() as usize + 1;
        let next = self.buckets[from].iter().map(|&(at, _)| at).min()?;
        if next > limit.0 {
            return None;
        }
        self.buckets[0].clear();
        self.out = 0;
        self.last = next;
        self.occupied &= self.occupied - 1;
        // All buckets below are empty, so what is in order stays in order.
        let mut moved = std::mem::take(&mut self.buckets[from]);
        for (at, event) in moved.drain(..) {
            self.put(at, event);
        }
        self.buckets[from] = moved;
        Some(())
    }

    fn put(&mut self, at: u64, event: E) {
        let bucket = 64 - (at ^ self.last).leading_zeros() as usize;
        self.buckets[bucket].push((at, event));
        if bucket > 0 {
            self.occupied |= 1 << (bucket - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a sorted map by time and serial number.
        #[test]
        fn events_come_by_time_and_then_as_planned(steps in prop::collection::vec((0..5u32, 0..40u32, any::<u64>()), 1..400)) {
            let mut queue = EventQueue::default();
            let mut model = BTreeMap::new();
            let mut now = 0u64;
            for (serial, (what, bits, number)) in (0u32..).zip(steps) {
                let span = number & ((1 << bits) - 1);
                if what < 3 {
                    queue.push(Nanos(now + span), serial);
                    model.insert((now + span, serial), ());
                } else {
                    let limit = now + span;
                    let expected = model.first_key_value().map(|(&key, ())| key).filter(|&(at, _)| at <= limit);
                    let got = queue.pop(Nanos(limit)).map(|(at, serial)| (at.0, serial));
                    prop_assert_eq!(got, expected);
                    if let Some(key) = expected {
                        model.remove(&key);
                        now = key.0;
                    }
                }
                prop_assert_eq!(queue.len(), model.len());
            }
            let rest: Vec<_> = std::iter::from_fn(|| queue.pop(Nanos(u64::MAX))).map(|(at, serial)| (at.0, serial)).collect();
            prop_assert_eq!(rest, model.into_keys().collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_is_late_happens_now() {
        let mut queue = EventQueue::default();
        queue.push(Nanos(100), 1);
        assert_eq!(queue.pop(Nanos(99)), None);
        queue.push(Nanos(50), 2);
        assert_eq!(queue.pop(Nanos(200)), Some((Nanos(50), 2)));
        assert_eq!(queue.pop(Nanos(200)), Some((Nanos(100), 1)));
        queue.push(Nanos(10), 3);
        assert_eq!(queue.pop(Nanos(200)), Some((Nanos(100), 3)));
        assert_eq!(queue.pop(Nanos(200)), None);
    }
}
