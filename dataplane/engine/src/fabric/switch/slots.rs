//! Where frames lie while they wait: a fixed number of slots, in chains from the head of a queue to its tail. Nothing is
//! allocated once it is made.

/// No slot.
const NIL: u32 = u32::MAX;

struct Slot<F> {
    frame: Option<F>,
    next: u32,
    waiting: Waiting,
}

/// What a queue knows of a frame besides the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waiting {
    pub bytes: u32,
    /// Bytes of whole cells.
    pub charge: u32,
    /// Port it came from.
    pub ingress: u16,
    pub ecn_capable: bool,
}

/// All slots, and those that are free.
pub(super) struct Slots<F> {
    slots: Vec<Slot<F>>,
    free: u32,
}

/// The frames of one queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    head: u32,
    tail: u32,
}

impl Chain {
    pub(super) const EMPTY: Chain = Chain {
        head: NIL,
        tail: NIL,
    };

    pub(super) fn is_empty(&self) -> bool {
        self.head == NIL
    }
}

impl<F> Slots<F> {
    pub(super) fn new(count: usize) -> Slots<F> {
        let slots = (0..count).map(|at| Slot {
            frame: None,
            next: if at + 1 < count { at as u32 + 1 } else { NIL },
            waiting: Waiting::default(),
        });
        Slots {
            slots: slots.collect(),
            free: if count > 0 { 0 } else { NIL },
        }
    }

    /// Puts a frame at the tail of a queue, or hands it back if no slot is free.
    #[inline]
    pub(super) fn push(&mut self, chain: &mut Chain, frame: F, waiting: Waiting) -> Result<(), F> {
        let at = self.free;
        let Some(slot) = self.slots.get_mut(at as usize) else {
            return Err(frame);
        };
        self.free = slot.next;
        slot.frame = Some(frame);
        slot.waiting = waiting;
        slot.next = NIL;
        match self.slots.get_mut(chain.tail as usize) {
            Some(tail) => tail.next = at,
            None => chain.head = at,
        }
        chain.tail = at;
        Ok(())
    }

    /// The frame at the head of a queue.
    #[inline]
    pub(super) fn head(&self, chain: &Chain) -> Option<Waiting> {
        self.slots.get(chain.head as usize).map(|s| s.waiting)
    }

    /// Takes the frame at the head of a queue.
    #[inline]
    pub(super) fn pop(&mut self, chain: &mut Chain) -> Option<(F, Waiting)> {
        let at = chain.head;
        let slot = self.slots.get_mut(at as usize)?;
        let frame = slot.frame.take()?;
        chain.head = slot.next;
        if chain.head == NIL {
            chain.tail = NIL;
        }
        slot.next = self.free;
        self.free = at;
        Some((frame, slot.waiting))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_first_in_first_out_and_share_the_slots() {
        let mut slots = Slots::new(3);
        let mut queues = [Chain::EMPTY; 2];
        let w = |bytes| Waiting {
            bytes,
            ..Waiting::default()
        };
        for round in 0..4u32 {
            slots.push(&mut queues[0], 'a', w(round)).unwrap();
            slots.push(&mut queues[1], 'b', w(2)).unwrap();
            slots.push(&mut queues[0], 'c', w(3)).unwrap();
            assert_eq!(slots.push(&mut queues[1], 'd', w(4)), Err('d'));
            assert_eq!(slots.head(&queues[0]), Some(w(round)));
            assert_eq!(slots.pop(&mut queues[0]), Some(('a', w(round))));
            assert_eq!(slots.pop(&mut queues[0]), Some(('c', w(3))));
            assert_eq!(slots.pop(&mut queues[0]), None);
            assert!(queues[0].is_empty() && !queues[1].is_empty());
            assert_eq!(slots.pop(&mut queues[1]), Some(('b', w(2))));
        }
        assert_eq!(slots.head(&queues[1]), None);
    }
}
