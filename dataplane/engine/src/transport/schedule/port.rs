//! Turns of a port's priorities where transmission selection is set ([`Ets`]): priorities come before programs then, as they do at
//! the port of a NIC.
//!
//! Strict ones go first, the highest before others. Those that are not share what is left by deficit round robin, and in each the programs
//! that have something of it take turns.

use super::super::lists::SlotList;
use super::renewed;
use crate::congestion::ets::Ets;
use crate::wire::pause::PRIORITIES;

/// Bytes of link time of a turn of the smallest share: more than the longest packet.
const QUANTUM: i32 = 6 << 10;

/// The round of a port.
pub(super) struct PortRound {
    strict: u8,
    quantum: [i32; PRIORITIES],
    credit: [i32; PRIORITIES],
    /// Bit p: a program has something of priority p.
    waiting: u8,
    /// Whose turn it is of those that are not strict.
    at: u8,
    /// Programs, by priority.
    programs: [SlotList; PRIORITIES],
}

impl PortRound {
    pub fn new(ets: &Ets) -> PortRound {
        let quantum = ets.weights().map(|weight| QUANTUM * i32::from(weight));
        PortRound {
            strict: ets.strict,
            quantum,
            credit: quantum,
            waiting: 0,
            at: 0,
            programs: std::array::from_fn(|_| SlotList::new()),
        }
    }

    pub fn grow(&mut self, programs: usize) {
        for list in &mut self.programs {
            list.grow(programs);
        }
    }

    #[inline]
    pub fn is_empty(&self, paused: u8) -> bool {
        self.waiting & !paused == 0
    }

    /// A program has something of a priority.
    #[inline]
    pub fn push(&mut self, program: u32, priority: u8) {
        let p = usize::from(priority);
        if self.waiting >> p & 1 == 0 {
            self.waiting |= 1 << p;
            // Who was away has saved nothing, and owes nothing that is worth a wait.
            self.credit[p] = self.quantum[p];
        }
        self.programs[p].push(program);
    }

    /// Program and priority whose turn it is, and the bytes that the priority has for it.
    #[inline]
    pub fn front(&mut self, paused: u8) -> Option<(u32, u8, i32)> {
        let open = self.waiting & !paused;
        if open == 0 {
            return None;
        }
        let strict = open & self.strict;
        let priority = if strict != 0 {
            7 - strict.leading_zeros() as u8
        } else {
            let ahead = open.rotate_right(self.at.into()).trailing_zeros() as u8;
            (self.at + ahead) % PRIORITIES as u8
        };
        let p = usize::from(priority);
        let program = self.programs[p].front()?;
        let credit = match strict {
            0 => {
                self.at = priority;
                self.credit[p]
            }
            _ => i32::MAX,
        };
        Some((program, priority, credit))
    }

    /// The turn has ended: the priority has used so many bytes, and its program is `over` with its own, or has nothing more of it.
    #[inline]
    pub fn end(&mut self, priority: u8, spent: i32, over: bool, empty: bool) {
        let p = usize::from(priority);
        if self.strict >> p & 1 == 0 {
            self.credit[p] -= spent;
            if self.credit[p] <= 0 {
                self.credit[p] = renewed(self.credit[p], self.quantum[p]);
                self.at = (priority + 1) % PRIORITIES as u8;
            }
        }
        if over || empty {
            if let Some(program) = self.programs[p].pop() {
                if !empty {
                    self.programs[p].push(program);
                }
            }
        }
        if self.programs[p].is_empty() {
            self.waiting &= !(1 << p);
        }
    }
}
