//! First-in-first-out lists of QP slots, without allocation: a slot is in a list once or not at all.
//! Taking from the front and putting back at the end is the round robin of the engine.
//!
//! Who may send is told by a [`Schedule`], which counts bytes. Where else a turn costs time that others wait for, the list is a
//! [`FairList`]: slots belong to groups (one for each program
//! that the caller knows), groups take turns, and within a group its slots do. A group of a thousand gets as many turns as
//! a group of one.

use super::schedule::Schedule;

const ABSENT: u32 = u32::MAX;
const LAST: u32 = u32::MAX - 1;

/// A list of slots.
pub(crate) struct SlotList {
    /// Per slot: the next one, `LAST`, or `ABSENT`.
    next: Vec<u32>,
    head: u32,
    tail: u32,
    len: u32,
}

impl SlotList {
    pub fn new() -> SlotList {
        SlotList {
            next: Vec::new(),
            head: LAST,
            tail: LAST,
            len: 0,
        }
    }

    /// Makes room for slots 0 to `slots - 1`.
    pub fn grow(&mut self, slots: usize) {
        if slots > self.next.len() {
            self.next.resize(slots, ABSENT);
        }
    }

    /// Slots in the list.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// The first slot.
    #[inline]
    pub fn front(&self) -> Option<u32> {
        (self.len > 0).then_some(self.head)
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts `slot` at the end, unless it is in the list already.
    #[inline]
    pub fn push(&mut self, slot: u32) {
        if self.next[slot as usize] != ABSENT {
            return;
        }
        self.next[slot as usize] = LAST;
        if self.len == 0 {
            self.head = slot;
        } else {
            self.next[self.tail as usize] = slot;
        }
        self.tail = slot;
        self.len += 1;
    }

    /// Takes the first slot.
    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let slot = self.head;
        self.head = self.next[slot as usize];
        self.next[slot as usize] = ABSENT;
        self.len -= 1;
        Some(slot)
    }
}

/// The slots of one group.
#[derive(Clone, Copy)]
struct Group {
    head: u32,
    tail: u32,
}

/// A list in which groups take turns.
pub(crate) struct FairList {
    /// Per slot: the next one of its group, `LAST`, or `ABSENT`.
    next: Vec<u32>,
    /// Per slot: where it goes when it is put in. One that is in stays where it is.
    group: Vec<u32>,
    groups: Vec<Group>,
    /// Groups that have slots.
    turns: SlotList,
    len: u32,
}

impl FairList {
    fn new() -> FairList {
        let mut list = FairList {
            next: Vec::new(),
            group: Vec::new(),
            groups: Vec::new(),
            turns: SlotList::new(),
            len: 0,
        };
        list.grow_groups(1);
        list
    }

    fn grow(&mut self, slots: usize) {
        if slots > self.next.len() {
            self.next.resize(slots, ABSENT);
            self.group.resize(slots, 0);
        }
    }

    fn grow_groups(&mut self, groups: usize) {
        if groups > self.groups.len() {
            let empty = Group {
                head: LAST,
                tail: LAST,
            };
            self.groups.resize(groups, empty);
            self.turns.grow(groups);
        }
    }

    /// From its next entry on `slot` is of `group`.
    fn assign(&mut self, slot: u32, group: u32) {
        self.grow_groups(group as usize + 1);
        self.group[slot as usize] = group;
    }

    /// Slots in the list.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts `slot` at the end of its group, unless it is in the list already.
    #[inline]
    pub fn push(&mut self, slot: u32) {
        if self.next[slot as usize] != ABSENT {
            return;
        }
        self.next[slot as usize] = LAST;
        let number = self.group[slot as usize];
        let group = &mut self.groups[number as usize];
        if group.head == LAST {
            group.head = slot;
            self.turns.push(number);
        } else {
            self.next[group.tail as usize] = slot;
        }
        group.tail = slot;
        self.len += 1;
    }

    /// Takes the first slot of the group whose turn it is.
    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        let number = self.turns.pop()?;
        let group = &mut self.groups[number as usize];
        let slot = group.head;
        group.head = self.next[slot as usize];
        self.next[slot as usize] = ABSENT;
        self.len -= 1;
        if group.head != LAST {
            self.turns.push(number);
        }
        Some(slot)
    }
}

/// The lists of an engine. Entries of destroyed QPs are skipped when their turn comes.
pub(crate) struct Lists {
    /// QPs that may have packets to send.
    pub ready: Schedule,
    /// QPs that owe a coalesced ACK.
    pub acks: SlotList,
    /// QPs with completions or flushes left over from an earlier call.
    pub work: FairList,
    /// QPs in ERR, whose receive queues are looked at in turn.
    pub errored: FairList,
}

impl Lists {
    pub fn new() -> Lists {
        Lists {
            ready: Schedule::new(),
            acks: SlotList::new(),
            work: FairList::new(),
            errored: FairList::new(),
        }
    }

    /// Makes room for slots 0 to `slots - 1`.
    pub fn grow(&mut self, slots: usize) {
        self.acks.grow(slots);
        self.ready.grow(slots);
        for list in [&mut self.work, &mut self.errored] {
            list.grow(slots);
        }
    }

    /// Says which group a slot is of.
    pub fn assign(&mut self, slot: u32, group: u32) {
        self.ready.assign(slot, group);
        for list in [&mut self.work, &mut self.errored] {
            list.assign(slot, group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_and_each_slot_once() {
        let mut l = SlotList::new();
        l.grow(4);
        for s in [2, 0, 2, 3] {
            l.push(s);
        }
        assert_eq!(l.len(), 3);
        assert_eq!(l.pop(), Some(2));
        l.push(2);
        assert_eq!(
            [l.pop(), l.pop(), l.pop(), l.pop()],
            [Some(0), Some(3), Some(2), None]
        );
        assert!(l.is_empty());
        l.push(1);
        assert_eq!(l.pop(), Some(1));
    }
    #[test]
    fn groups_take_turns_however_many_slots_they_have() {
        let mut l = FairList::new();
        l.grow(8);
        for slot in 0..6 {
            l.assign(slot, 0);
        }
        l.assign(6, 3);
        l.assign(7, 3);
        for slot in 0..8 {
            l.push(slot);
        }
        l.push(6);
        assert_eq!(l.len(), 8);
        // Whoever has more to say comes back at once.
        let mut turns = Vec::new();
        for _ in 0..8 {
            let slot = l.pop().unwrap();
            turns.push(slot);
            l.push(slot);
        }
        assert_eq!(turns, [0, 6, 1, 7, 2, 6, 3, 7]);
        // A group that is silent takes no turns.
        let rest: Vec<u32> = std::iter::from_fn(|| l.pop()).collect();
        assert_eq!(rest, [4, 6, 5, 7, 0, 1, 2, 3]);
        assert!(l.is_empty());
    }

    #[test]
    fn a_slot_that_changes_its_group_while_it_waits_keeps_its_place() {
        let mut l = FairList::new();
        l.grow(3);
        for slot in 0..3 {
            l.push(slot);
        }
        l.assign(1, 2);
        let next: Vec<u32> = (0..3).map_while(|_| l.pop()).collect();
        assert_eq!(next, [0, 1, 2]);
        l.push(1);
        l.push(0);
        l.push(2);
        let next: Vec<u32> = (0..3).map_while(|_| l.pop()).collect();
        assert_eq!(next, [1, 0, 2]);
    }
}
