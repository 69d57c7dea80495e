//! First-in-first-out lists of QP slots, without allocation: a slot is in a list once or not at all.
//! Taking from the front and putting back at the end is the round robin of the engine.

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
    fn new() -> SlotList {
        SlotList {
            next: Vec::new(),
            head: LAST,
            tail: LAST,
            len: 0,
        }
    }

    fn grow(&mut self, slots: usize) {
        if slots > self.next.len() {
            self.next.resize(slots, ABSENT);
        }
    }

    /// Slots in the list.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is none.
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

/// The lists of an engine. Entries of destroyed QPs are skipped when their turn comes.
pub(crate) struct Lists {
    /// QPs that may have packets to send.
    pub ready: SlotList,
    /// QPs that owe a coalesced ACK.
    pub acks: SlotList,
    /// QPs with completions or flushes left over from an earlier call.
    pub work: SlotList,
    /// QPs in ERR, whose receive queues are looked at in turn.
    pub errored: SlotList,
}

impl Lists {
    pub fn new() -> Lists {
        Lists {
            ready: SlotList::new(),
            acks: SlotList::new(),
            work: SlotList::new(),
            errored: SlotList::new(),
        }
    }

    /// Makes room for slots 0 to `slots - 1`.
    pub fn grow(&mut self, slots: usize) {
        for list in [
            &mut self.ready,
            &mut self.acks,
            &mut self.work,
            &mut self.errored,
        ] {
            list.grow(slots);
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
}
