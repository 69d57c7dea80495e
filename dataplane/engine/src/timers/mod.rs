//! A hierarchical timing wheel in integer nanoseconds.
//!
//! In flow timer numbers (the caller's, dense from 0) with deadlines; out flow those that are due, and
//! the next time at which there is something to do. All memory is taken when the wheel is made or grown
//! between bursts; `arm` and `cancel` are O(1).
//!
//! Time is cut into ticks of [`TICK`] nanoseconds. A timer lies on the level of the highest group of six bits in
//! which its tick differs from the wheel's present tick, so every timer of a lower level is due before every
//! timer of a higher one, and a slot of a higher level is spread over lower ones when its time comes.
//! A timer fires never early and at most one tick late.

use crate::time::Nanos;

/// Nanoseconds of a tick.
pub const TICK: u64 = 1 << TICK_SHIFT;
const TICK_SHIFT: u32 = 8;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// Enough levels for all ticks of 64-bit nanoseconds.
const LEVELS: usize = (64 - TICK_SHIFT).div_ceil(SLOT_BITS) as usize;

const NIL: u32 = u32::MAX;
const IDLE: u16 = u16::MAX;

#[derive(Clone, Copy)]
struct Node {
    next: u32,
    prev: u32,
    tick: u64,
    /// `level * SLOTS + slot`, or `IDLE`.
    place: u16,
}

/// The wheel.
pub struct TimerWheel {
    nodes: Vec<Node>,
    heads: [u32; LEVELS * SLOTS],
    /// Bit s of entry l: slot s of level l holds something.
    occupied: [u64; LEVELS],
    /// Bit l: level l holds something.
    levels: u16,
    /// The present tick: everything before it has fired.
    now: u64,
    armed: u32,
}

impl TimerWheel {
    /// A wheel for timers 0 to `timers - 1`.
    pub fn new(timers: u32) -> TimerWheel {
        let mut wheel = TimerWheel {
            nodes: Vec::new(),
            heads: [NIL; LEVELS * SLOTS],
            occupied: [0; LEVELS],
            levels: 0,
            now: 0,
            armed: 0,
        };
        wheel.grow(timers);
        wheel
    }

    /// Makes room for timers 0 to `timers - 1`.
    pub fn grow(&mut self, timers: u32) {
        if timers as usize > self.nodes.len() {
            let idle = Node {
                next: NIL,
                prev: NIL,
                tick: 0,
                place: IDLE,
            };
            self.nodes.resize(timers as usize, idle);
        }
    }

    /// Timers that are armed.
    pub fn armed(&self) -> u32 {
        self.armed
    }

    /// When `timer` fires (rounded up to a tick), if it is armed.
    pub fn deadline(&self, timer: u32) -> Option<Nanos> {
        let node = self.nodes.get(timer as usize)?;
        (node.place != IDLE).then(|| tick_start(node.tick))
    }

    /// Arms `timer` to fire at `deadline` or up to a tick later; an armed timer moves.
    pub fn arm(&mut self, timer: u32, deadline: Nanos) {
        self.cancel(timer);
        // A deadline in the past fires at the next `pop_due`.
        let tick = deadline.0.div_ceil(TICK).max(self.now);
        self.insert(timer, tick);
        self.armed += 1;
    }

    /// Disarms `timer` if it is armed.
    pub fn cancel(&mut self, timer: u32) {
        if self.nodes[timer as usize].place != IDLE {
            self.unlink(timer);
            self.armed -= 1;
        }
    }

    /// A timer that is due at `now`, disarmed. Call it until it says `None`.
    pub fn pop_due(&mut self, now: Nanos) -> Option<u32> {
        let now_tick = now.0 >> TICK_SHIFT;
        loop {
            let (level, slot, start) = match self.next_slot() {
                Some(next) if next.2 <= now_tick => next,
                _ => {
                    // Nothing lies between, so the levels of all timers stay as they are.
                    self.now = self.now.max(now_tick);
                    return None;
                }
            };
            self.now = self.now.max(start);
            let place = level * SLOTS + slot;
            if level == 0 {
                let timer = self.heads[place];
                self.unlink(timer);
                self.armed -= 1;
                return Some(timer);
            }
            let mut timer = self.heads[place];
            while timer != NIL {
                let Node { next, tick, .. } = self.nodes[timer as usize];
                self.unlink(timer);
                self.insert(timer, tick);
                timer = next;
            }
        }
    }

    /// A time at which `pop_due` has something to do: the next deadline, or an earlier time at which
    /// timers move to a finer level. `None` when no timer is armed.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.next_slot().map(|(_, _, start)| tick_start(start))
    }

    /// The earliest slot in use, and the tick at which it starts.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        if self.levels == 0 {
            return None;
        }
        let level = self.levels.trailing_zeros() as usize;
        // Slots before the present one are empty on every level: their bit group differs from the present
        // tick's upwards, or they would lie on a higher level.
        let slot = self.occupied[level].trailing_zeros() as usize;
        let shift = level as u32 * SLOT_BITS;
        let upper = self.now >> shift >> SLOT_BITS << SLOT_BITS;
        Some((level, slot, (upper | slot as u64) << shift))
    }

    fn insert(&mut self, timer: u32, tick: u64) {
        let differing = (tick ^ self.now) | 1;
        let level = ((63 - differing.leading_zeros()) / SLOT_BITS) as usize;
        let slot = (tick >> (level as u32 * SLOT_BITS)) as usize & (SLOTS - 1);
        let place = level * SLOTS + slot;
        let head = self.heads[place];
        self.nodes[timer as usize] = Node {
            next: head,
            prev: NIL,
            tick,
            place: place as u16,
        };
        if head != NIL {
            self.nodes[head as usize].prev = timer;
        }
        self.heads[place] = timer;
        self.occupied[level] |= 1 << slot;
        self.levels |= 1 << level;
    }

    fn unlink(&mut self, timer: u32) {
        let Node {
            next, prev, place, ..
        } = self.nodes[timer as usize];
        if next != NIL {
            self.nodes[next as usize].prev = prev;
        }
        if prev != NIL {
            self.nodes[prev as usize].next = next;
        } else {
            self.heads[place as usize] = next;
            if next == NIL {
                let level = place as usize / SLOTS;
                self.occupied[level] &= !(1 << (place as usize % SLOTS));
                if self.occupied[level] == 0 {
                    self.levels &= !(1 << level);
                }
            }
        }
        self.nodes[timer as usize].place = IDLE;
    }
}

fn tick_start(tick: u64) -> Nanos {
    Nanos(tick.saturating_mul(TICK))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fires_at_its_deadline_and_not_before() {
        let mut w = TimerWheel::new(1);
        w.arm(0, Nanos(10_000));
        assert_eq!(w.pop_due(Nanos(9_999)), None);
        let at = w.deadline(0).unwrap();
        assert!(at.0 >= 10_000 && at.0 < 10_000 + TICK);
        assert_eq!(w.pop_due(at), Some(0));
        assert_eq!(w.pop_due(at), None);
        assert_eq!(w.next_deadline(), None);
    }

    #[test]
    fn cancelled_and_moved_timers_do_not_fire() {
        let mut w = TimerWheel::new(2);
        w.arm(0, Nanos(1_000));
        w.arm(1, Nanos(1_000));
        w.cancel(0);
        w.arm(1, Nanos(1_000_000));
        assert_eq!(w.pop_due(Nanos(999_000)), None);
        assert_eq!(w.armed(), 1);
        assert_eq!(w.pop_due(Nanos(1_001_000)), Some(1));
    }

    #[test]
    fn a_clock_that_starts_late_and_a_deadline_in_the_past_work() {
        let mut w = TimerWheel::new(2);
        let start = 1_700_000_000_000_000_000;
        assert_eq!(w.pop_due(Nanos(start)), None);
        w.arm(0, Nanos(5));
        assert_eq!(w.pop_due(Nanos(start)), Some(0));
        w.arm(1, Nanos(u64::MAX));
        assert_eq!(w.pop_due(Nanos(start + (1 << 50))), None);
        assert_eq!(w.armed(), 1);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Arm(u32, u64),
        Cancel(u32),
        /// Go on by so many nanoseconds.
        Pass(u64),
        /// Go to `next_deadline`.
        Jump,
    }

    fn step() -> impl Strategy<Value = Step> {
        let span = || prop_oneof![0..2_000u64, 0..1_000_000u64, 0..20_000_000_000_000u64];
        prop_oneof![
            (0..16u32, span()).prop_map(|(t, d)| Step::Arm(t, d)),
            (0..16u32).prop_map(Step::Cancel),
            span().prop_map(Step::Pass),
            Just(Step::Jump),
        ]
    }

    proptest! {
        /// Against a sorted map of deadlines: everything due fires once, nothing fires early, and following
        /// `next_deadline` reaches every timer in few steps.
        #[test]
        fn agrees_with_a_sorted_map(start in 0..u64::MAX / 4, steps in prop::collection::vec(step(), 1..200)) {
            let mut wheel = TimerWheel::new(16);
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            let mut now = start;
            for s in steps {
                match s {
                    Step::Arm(t, d) => {
                        wheel.arm(t, Nanos(now + d));
                        model.insert(t, (now + d).div_ceil(TICK) * TICK);
                    }
                    Step::Cancel(t) => {
                        wheel.cancel(t);
                        model.remove(&t);
                    }
                    Step::Pass(d) => now += d,
                    Step::Jump => now = now.max(wheel.next_deadline().map_or(now, |t| t.0)),
                }
                let mut fired = Vec::new();
                while let Some(t) = wheel.pop_due(Nanos(now)) {
                    fired.push(t);
                }
                let mut due: Vec<u32> = model.iter().filter(|(_, d)| **d <= now).map(|(t, _)| *t).collect();
                model.retain(|_, d| *d > now);
                fired.sort_unstable();
                due.sort_unstable();
                prop_assert_eq!(fired, due);
                prop_assert_eq!(wheel.armed() as usize, model.len());
                let first = model.values().min().copied();
                match (wheel.next_deadline(), first) {
                    (None, None) => {}
                    (Some(next), Some(first)) => prop_assert!(next.0 > now && next.0 <= first),
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            let mut jumps = 0;
            while let Some(next) = wheel.next_deadline() {
                while let Some(t) = wheel.pop_due(next) {
                    prop_assert!(model.remove(&t).is_some_and(|d| d <= next.0));
                }
                jumps += 1;
                prop_assert!(jumps <= 16 * LEVELS);
            }
            prop_assert!(model.is_empty());
        }
    }
}
