//! Whose turn it is to send. In flow slots of QPs that may have packets; out flow turns, each for so many bytes of link time.
//!
//! Three levels, each a deficit round robin by bytes (Shreedhar and Varghese, SIGCOMM 1995): groups (one for each program that
//! the caller knows), in a group the eight priorities, in a priority the QPs. So a program with a thousand QPs, or with eight
//! priorities, gets as much of the link as one with a single QP, and a QP of large packets as much as one of small ones.
//!
//! Priorities of a group have equal shares and not strict precedence, as the transmission selection of a ConnectX has it
//! unless it is told otherwise: a program chooses its priority by the DSCP it writes, and must not starve its other connections
//! by it. What a priority decides is which pause frames hold it back: those of a paused one have no turns
//! ([`Schedule::set_paused`]). Who sets a selection ([`Schedule::select`], IEEE 802.1Qaz) wants it of the port, so priorities then come before
//! groups ([`port`]).
//!
//! What is in a list has credit; a turn may use the least of its QP's, its priority's and its group's, and overdraw it by
//! one packet. Who has used up its credit goes to the end and is given the next quantum there.

mod port;

use super::lists::SlotList;
use crate::congestion::ets::Ets;
use crate::wire::pause::PRIORITIES;
use port::PortRound;

const ABSENT: u32 = u32::MAX;
const LAST: u32 = u32::MAX - 1;
/// Bytes of a turn: more than the longest packet, so that whoever overdrew its credit has some after the next.
const QUANTUM: i32 = 16 << 10;

/// A QP's place.
#[derive(Clone, Copy)]
struct Entry {
    /// The next one of its class, `LAST`, or `ABSENT`.
    next: u32,
    /// Where it goes when it is put in. One that is in stays where it is.
    group: u32,
    priority: u8,
    credit: i32,
}

impl Entry {
    const ABSENT: Entry = Entry {
        next: ABSENT,
        group: 0,
        priority: 0,
        credit: 0,
    };
}

/// QPs of one group and priority.
#[derive(Clone, Copy)]
struct Class {
    head: u32,
    tail: u32,
    credit: i32,
}

/// QPs of one program.
#[derive(Clone, Copy)]
struct Group {
    classes: [Class; PRIORITIES],
    /// Bit p: `classes[p]` is not empty.
    waiting: u8,
    /// The priority whose turn it is.
    at: u8,
    credit: i32,
}

impl Group {
    const EMPTY: Group = Group {
        classes: [Class {
            head: LAST,
            tail: LAST,
            credit: 0,
        }; PRIORITIES],
        waiting: 0,
        at: 0,
        credit: 0,
    };
}

/// A turn that was given and has not ended yet: see [`Schedule::end`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub slot: u32,
    /// Bytes of link time that it may take, and one packet more; `None` if nobody else waits.
    pub credit: Option<i32>,
    group: u32,
    priority: u8,
}

/// All that wait for their turn.
pub(crate) struct Schedule {
    entries: Vec<Entry>,
    groups: Vec<Group>,
    /// Groups that have QPs of priorities that are not paused.
    turns: SlotList,
    /// Instead of `turns`, where transmission selection is set.
    port: Option<Box<PortRound>>,
    /// Bit p: priority p is paused.
    paused: u8,
    len: u32,
}

impl Schedule {
    pub fn new() -> Schedule {
        let mut schedule = Schedule {
            entries: Vec::new(),
            groups: Vec::new(),
            turns: SlotList::new(),
            port: None,
            paused: 0,
            len: 0,
        };
        schedule.grow_groups(1);
        schedule
    }

    /// Makes room for slots 0 to `slots - 1`.
    pub fn grow(&mut self, slots: usize) {
        if slots > self.entries.len() {
            self.entries.resize(slots, Entry::ABSENT);
        }
    }

    fn grow_groups(&mut self, groups: usize) {
        if groups > self.groups.len() {
            self.groups.resize(groups, Group::EMPTY);
            self.turns.grow(groups);
            if let Some(port) = &mut self.port {
                port.grow(groups);
            }
        }
    }

    /// Gives turns by this selection from now on.
    pub fn select(&mut self, ets: &Ets) {
        while self.turns.pop().is_some() {}
        self.port = ets.is_on().then(|| Box::new(PortRound::new(ets)));
        if let Some(port) = &mut self.port {
            port.grow(self.groups.len());
        }
        for number in 0..self.groups.len() as u32 {
            let waiting = self.groups[number as usize].waiting;
            match &mut self.port {
                None if waiting & !self.paused != 0 => self.turns.push(number),
                None => {}
                Some(port) => {
                    let waiting = (0..PRIORITIES as u8).filter(|p| waiting >> p & 1 == 1);
                    waiting.for_each(|p| port.push(number, p));
                }
            }
        }
    }

    /// From its next entry on `slot` is of `group`.
    pub fn assign(&mut self, slot: u32, group: u32) {
        self.grow_groups(group as usize + 1);
        self.entries[slot as usize].group = group;
    }

    /// From its next entry on `slot` has this priority (its three low bits).
    pub fn set_priority(&mut self, slot: u32, priority: u8) {
        self.entries[slot as usize].priority = priority & (PRIORITIES as u8 - 1);
    }

    /// Bit p: QPs of priority p have no turns until another call says otherwise.
    pub fn set_paused(&mut self, paused: u8) {
        if paused == self.paused {
            return;
        }
        self.paused = paused;
        if self.port.is_some() {
            return;
        }
        // Those that had a turn before keep their order.
        for _ in 0..self.turns.len() {
            if let Some(group) = self.turns.pop() {
                if self.groups[group as usize].waiting & !paused != 0 {
                    self.turns.push(group);
                }
            }
        }
        for (number, group) in (0..).zip(&self.groups) {
            if group.waiting & !paused != 0 {
                self.turns.push(number);
            }
        }
    }

    /// Bit p: priority p is paused.
    #[inline]
    pub fn paused(&self) -> u8 {
        self.paused
    }

    /// Whether nobody could have a turn now.
    #[inline]
    pub fn is_empty(&self) -> bool {
        match &self.port {
            None => self.turns.is_empty(),
            Some(port) => port.is_empty(self.paused),
        }
    }

    /// Whether `slot` waits for its turn.
    pub fn has(&self, slot: u32) -> bool {
        let entry = self.entries.get(slot as usize);
        entry.is_some_and(|entry| entry.next != ABSENT)
    }

    /// Puts `slot` at the end of its class, unless it waits already.
    #[inline]
    pub fn push(&mut self, slot: u32) {
        let entry = &mut self.entries[slot as usize];
        if entry.next == ABSENT {
            entry.credit = QUANTUM;
            self.insert(slot, false);
        }
    }

    /// Puts a slot that is absent at one end of its class.
    #[inline]
    fn insert(&mut self, slot: u32, front: bool) {
        let entry = &mut self.entries[slot as usize];
        let (number, priority) = (entry.group, entry.priority);
        let group = &mut self.groups[number as usize];
        let class = &mut group.classes[usize::from(priority)];
        if class.head == LAST {
            if group.waiting == 0 {
                group.credit = QUANTUM;
            }
            class.credit = QUANTUM;
            class.head = slot;
            class.tail = slot;
            entry.next = LAST;
            group.waiting |= 1 << priority;
            if let Some(port) = &mut self.port {
                port.push(number, priority);
            } else if self.paused & 1 << priority == 0 {
                self.turns.push(number);
            }
        } else if front {
            entry.next = class.head;
            class.head = slot;
        } else {
            entry.next = LAST;
            self.entries[class.tail as usize].next = slot;
            class.tail = slot;
        }
        self.len += 1;
    }

    /// Gives the next turn; [`Schedule::end`] must follow.
    #[inline]
    pub fn next(&mut self) -> Option<Turn> {
        let (number, priority, above) = match &mut self.port {
            None => {
                let number = self.turns.front()?;
                let group = &mut self.groups[number as usize];
                let open = group.waiting & !self.paused;
                // From the priority whose turn it is upwards, and round.
                let ahead = open.rotate_right(group.at.into()).trailing_zeros() as u8;
                group.at = (group.at + ahead) % PRIORITIES as u8;
                (number, group.at, group.credit)
            }
            Some(port) => port.front(self.paused)?,
        };
        let group = &mut self.groups[number as usize];
        let class = &mut group.classes[usize::from(priority)];
        let slot = class.head;
        let entry = &mut self.entries[slot as usize];
        class.head = entry.next;
        entry.next = ABSENT;
        let least = entry.credit.min(class.credit).min(above);
        if class.head == LAST {
            group.waiting &= !(1 << priority);
        }
        self.len -= 1;
        Some(Turn {
            slot,
            credit: (self.len > 0).then_some(least),
            group: number,
            priority,
        })
    }

    /// Slots that have the next turns, as far as they are of the class whose turn it is, and their number: for
    /// [`super::prefetch`].
    #[inline]
    pub fn coming(&self, slots: &mut [u32]) -> usize {
        let Some(number) = self.turns.front() else {
            return 0;
        };
        let group = &self.groups[number as usize];
        let mut next = group.classes[usize::from(group.at)].head;
        let mut count = 0;
        for place in slots {
            let Some(entry) = self.entries.get(next as usize) else {
                break;
            };
            *place = next;
            count += 1;
            next = entry.next;
        }
        count
    }

    /// A turn has ended after so many bytes; if there is `more` to send, it goes on later.
    #[inline]
    pub fn end(&mut self, turn: Turn, bytes: i32, more: bool) {
        let spent = if turn.credit.is_some() { bytes } else { 0 };
        let (slot, number) = (turn.slot, turn.group);
        let entry = &mut self.entries[slot as usize];
        entry.credit -= spent;
        let used_up = entry.credit <= 0;
        if used_up {
            entry.credit = renewed(entry.credit, QUANTUM);
        }
        let group = &mut self.groups[number as usize];
        let class = &mut group.classes[usize::from(turn.priority)];
        class.credit -= spent;
        let (class_credit, group_credit) = (class.credit, group.credit - spent);
        if more && entry.next == ABSENT {
            self.insert(slot, !used_up);
        }
        let group = &mut self.groups[number as usize];
        let class = &mut group.classes[usize::from(turn.priority)];
        class.credit = class_credit;
        let class_over = class_credit <= 0;
        if class_over {
            class.credit = renewed(class_credit, QUANTUM);
        }
        if let Some(port) = &mut self.port {
            let empty = class.head == LAST;
            port.end(turn.priority, spent, class_over, empty);
            return;
        }
        group.credit = group_credit;
        if class_over {
            group.at = (turn.priority + 1) % PRIORITIES as u8;
        }
        let over = group_credit <= 0;
        if over {
            group.credit = renewed(group_credit, QUANTUM);
        }
        let open = group.waiting & !self.paused != 0;
        if over || !open {
            self.turns.pop();
            if open {
                self.turns.push(number);
            }
        }
    }
}

/// The credit of who has used it up, with the next quantum.
fn renewed(credit: i32, quantum: i32) -> i32 {
    (credit + quantum).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets everybody who comes take turns of packets of these sizes, and come back at once; bytes by slot.
    fn share(s: &mut Schedule, sizes: &[i32], turns: usize, per_turn: usize) -> Vec<i64> {
        let mut sent = vec![0; sizes.len()];
        for _ in 0..turns {
            let Some(turn) = s.next() else { break };
            let size = sizes[turn.slot as usize];
            let mut left = turn.credit.unwrap_or(i32::MAX);
            let mut bytes = 0;
            for _ in 0..per_turn {
                if left <= 0 {
                    break;
                }
                left -= size;
                bytes += size;
            }
            sent[turn.slot as usize] += i64::from(bytes);
            s.end(turn, bytes, true);
        }
        sent
    }

    fn assert_shares(sent: &[i64], wanted: &[f64]) {
        let all: i64 = sent.iter().sum();
        for (slot, (&sent, &wanted)) in sent.iter().zip(wanted).enumerate() {
            let got = sent as f64 / all as f64;
            assert!((got / wanted - 1.0).abs() < 0.02, "{slot}: {got}, {wanted}");
        }
    }

    #[test]
    fn bytes_are_shared_whatever_the_packets_and_however_turns_are_cut() {
        for per_turn in [1, 3, 16] {
            let mut s = Schedule::new();
            s.grow(3);
            for slot in 0..3 {
                s.push(slot);
            }
            let sent = share(&mut s, &[4178, 1106, 2130], 50_000, per_turn);
            assert_shares(&sent, &[1.0 / 3.0; 3]);
        }
    }

    #[test]
    fn programs_share_alike_then_priorities_then_queue_pairs() {
        let mut s = Schedule::new();
        s.grow(8);
        // Five QPs of one program, in two priorities; one of another; two of a third, one priority each.
        for slot in 0..5 {
            s.assign(slot, 1);
            s.set_priority(slot, if slot < 4 { 3 } else { 0 });
        }
        s.assign(5, 2);
        s.assign(6, 7);
        s.assign(7, 7);
        s.set_priority(7, 6);
        for slot in 0..8 {
            s.push(slot);
        }
        let sizes = [1106, 4178, 1106, 338, 4178, 1106, 2130, 1106];
        let sent = share(&mut s, &sizes, 200_000, 2);
        let third = 1.0 / 3.0;
        let of_four = third / 8.0;
        assert_shares(
            &sent,
            &[
                of_four,
                of_four,
                of_four,
                of_four,
                third / 2.0,
                third,
                third / 2.0,
                third / 2.0,
            ],
        );
    }

    #[test]
    fn paused_priorities_have_no_turns_and_lose_nothing() {
        let mut s = Schedule::new();
        s.grow(4);
        for slot in 0..4 {
            s.set_priority(slot, slot as u8);
            s.assign(slot, slot % 2);
            s.push(slot);
        }
        s.set_paused(0b0101);
        assert_eq!(s.paused(), 0b0101);
        let sent = share(&mut s, &[1106; 4], 1000, 16);
        assert_eq!((sent[0], sent[2]), (0, 0));
        assert_shares(&[sent[1], sent[3]], &[0.5, 0.5]);
        s.set_paused(0xff);
        assert!(s.is_empty() && s.next().is_none());
        // One that comes while its priority is paused waits with the others.
        s.grow(5);
        s.set_priority(4, 1);
        s.push(4);
        assert!(s.is_empty());
        s.set_paused(0b1000);
        let sent = share(&mut s, &[1106; 5], 50_000, 16);
        assert_eq!(sent[3], 0);
        // 0 and 2 are one program, in two priorities; 1 and 4 the two others'.
        assert_shares(&[sent[0], sent[2]], &[0.5, 0.5]);
        assert_eq!(sent[1..].iter().filter(|&&b| b > 0).count(), 3);
    }

    fn strict(priorities: u8) -> Ets {
        Ets {
            strict: priorities,
            ..Ets::default()
        }
    }

    #[test]
    fn a_selection_shares_the_port_by_priority_whoever_sends() {
        let mut s = Schedule::new();
        s.grow(5);
        // One program with a QP in priority 3, another with three in 0 and one in 3.
        s.assign(0, 1);
        s.set_priority(0, 3);
        for slot in 1..5 {
            s.assign(slot, 2);
        }
        s.set_priority(4, 3);
        for slot in 0..4 {
            s.push(slot);
        }
        let mut ets = strict(1 << 6);
        ets.bandwidth[3] = 60;
        ets.bandwidth[0] = 20;
        s.select(&ets);
        s.push(4);
        let sizes = [4178, 1106, 338, 4178, 1106];
        for per_turn in [1, 16] {
            let sent = share(&mut s, &sizes, 200_000, per_turn);
            let twelfth = 0.25 / 3.0;
            assert_shares(&sent, &[0.375, twelfth, twelfth, twelfth, 0.375]);
        }
        // A pause leaves the others what there is, and its end brings back what it was.
        s.set_paused(1 << 3);
        let sent = share(&mut s, &sizes, 50_000, 16);
        assert_eq!((sent[0], sent[4]), (0, 0));
        s.set_paused(0xff);
        assert!(s.is_empty() && s.next().is_none());
        s.set_paused(0);
        let sent = share(&mut s, &sizes, 200_000, 4);
        assert_shares(&[sent[0], sent[4]], &[0.5; 2]);
        // Without a selection programs share alike again.
        s.select(&Ets::default());
        let sent = share(&mut s, &sizes, 200_000, 4);
        let sixth = 0.25 / 3.0;
        assert_shares(&sent, &[0.5, sixth, sixth, sixth, 0.25]);
    }

    #[test]
    fn the_strict_go_before_all_others_of_the_port() {
        let mut s = Schedule::new();
        s.grow(4);
        for slot in 0..4 {
            s.assign(slot, slot);
            s.set_priority(slot, [0, 5, 6, 5][slot as usize]);
        }
        s.select(&strict(0b0110_0000));
        for slot in [0, 1, 3] {
            s.push(slot);
        }
        let sent = share(&mut s, &[1106; 4], 20_000, 4);
        assert_shares(&[sent[1], sent[3]], &[0.5; 2]);
        assert_eq!(sent[0], 0);
        // One that comes has the next turn.
        s.push(2);
        let turn = s.next().expect("four wait");
        assert_eq!(turn.slot, 2);
        s.end(turn, 1106, false);
        s.set_paused(1 << 5);
        let turn = s.next().expect("one is not paused");
        assert_eq!((turn.slot, turn.credit.is_some()), (0, true));
        s.end(turn, 1106, false);
        assert!(s.is_empty());
    }

    #[test]
    fn a_slot_waits_once_and_leaves_when_it_has_nothing_to_say() {
        let mut s = Schedule::new();
        s.grow(3);
        s.push(1);
        s.push(1);
        let turn = s.next().expect("one waits");
        assert_eq!((turn.slot, turn.credit), (1, None), "nobody else waits");
        // It found more to do during its own turn: it is in already.
        s.push(1);
        s.end(turn, 100, false);
        let turn = s.next().expect("it came again");
        assert_eq!(turn.slot, 1);
        s.end(turn, 100, false);
        assert!(s.is_empty() && s.next().is_none());
        // While one has its turn, another of its program comes, and has the next.
        s.push(0);
        let turn = s.next().expect("one waits");
        s.push(2);
        s.end(turn, QUANTUM, true);
        assert_eq!(s.next().map(|t| t.slot), Some(0), "uncharged: it was alone");
    }

    #[test]
    fn another_group_or_priority_counts_from_the_next_entry_on() {
        let mut s = Schedule::new();
        s.grow(2);
        s.push(0);
        s.push(1);
        s.assign(0, 3);
        s.set_priority(0, 5);
        let turn = s.next().expect("two wait");
        assert_eq!((turn.slot, turn.group, turn.priority), (0, 0, 0));
        s.end(turn, 100, true);
        s.set_paused(1 << 5);
        let turn = s.next().expect("one waits");
        assert_eq!((turn.slot, turn.group), (1, 0));
        s.end(turn, 100, false);
        assert!(s.next().is_none());
    }
}
