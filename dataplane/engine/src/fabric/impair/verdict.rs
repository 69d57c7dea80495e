//! What the rules of a place together want done with a packet.

use crate::Nanos;

use super::apply::Edit;
use super::{ActionKind, RuleId};

/// The most extra copies of one packet, of all rules together.
pub const MAX_COPIES: u8 = 16;
/// The most changes to one packet; a rule that would make one more does not match it.
pub const MAX_EDITS: usize = 8;
/// The most rules that a verdict names.
pub const MAX_NOTES: usize = 4;

/// A rule that hit the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// Which.
    pub rule: RuleId,
    /// What it did.
    pub action: ActionKind,
}

/// Held back until others have gone by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Packets of the flow that must go by first.
    pub packets: u16,
    /// Longest time.
    pub within: Nanos,
}

/// What is to be done with a packet.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// It is lost; nothing else counts.
    pub drop: bool,
    /// Extra copies to send, each delayed and changed as the packet is.
    pub copies: u8,
    /// Copies go on so much later than the packet ([`Verdict::of_copy`]).
    pub copy_delay: Nanos,
    /// It goes on so much later.
    pub delay: Nanos,
    /// It goes on after others.
    pub hold: Option<Hold>,
    pub(super) flow: u64,
    edits: [Edit; MAX_EDITS],
    edit_count: u8,
    notes: [Note; MAX_NOTES],
    note_count: u8,
    /// Rules that hit, named or not.
    pub hits: u16,
}

impl Verdict {
    /// Leave the packet of this flow ([`super::PacketView::flow`]) as it is.
    #[inline]
    pub fn pass(flow: u64) -> Verdict {
        Verdict {
            drop: false,
            copies: 0,
            copy_delay: Nanos::ZERO,
            delay: Nanos::ZERO,
            hold: None,
            flow,
            edits: [Edit::NOTHING; MAX_EDITS],
            edit_count: 0,
            notes: [Note {
                rule: RuleId(0),
                action: ActionKind::Count,
            }; MAX_NOTES],
            note_count: 0,
            hits: 0,
        }
    }

    /// Whether the packet goes on at once, once, as it is.
    #[inline]
    pub fn is_pass(&self) -> bool {
        !self.drop
            && self.copies == 0
            && self.delay == Nanos::ZERO
            && self.hold.is_none()
            && self.edit_count == 0
    }

    /// The verdict on each of its copies.
    #[must_use]
    pub fn of_copy(&self) -> Verdict {
        Verdict {
            delay: self.delay + self.copy_delay,
            copies: 0,
            ..*self
        }
    }

    /// The first rules that hit it, in their order, [`MAX_NOTES`] at most. The last one is the rule that drops it, if one does.
    pub fn notes(&self) -> &[Note] {
        &self.notes[..usize::from(self.note_count)]
    }

    /// Changes to its bytes, in their order.
    pub fn edits(&self) -> &[Edit] {
        &self.edits[..usize::from(self.edit_count)]
    }

    /// Whether its bytes change, so that [`Verdict::apply`] has something to do.
    #[inline]
    pub fn changes(&self) -> bool {
        self.edit_count > 0
    }

    /// Whether its bytes change in other ways than by a CE mark. Where there are no bytes such a packet
    /// counts as lost: its ICRC is wrong, or its receiver must refuse it.
    pub fn spoils(&self) -> bool {
        self.edits().iter().any(|e| !e.only_marks())
    }

    /// Whether it is marked CE.
    pub fn marks_ce(&self) -> bool {
        self.edits().iter().any(Edit::only_marks)
    }

    /// Makes the changes to a frame (Ethernet header to ICRC) and returns its new length, at most the old one.
    pub fn apply(&self, frame: &mut [u8]) -> usize {
        let mut len = frame.len();
        for edit in self.edits() {
            len = edit.apply(&mut frame[..len]);
        }
        len
    }

    pub(super) fn has_edit_room(&self) -> bool {
        usize::from(self.edit_count) < MAX_EDITS
    }

    pub(super) fn edit(&mut self, edit: Edit) {
        if let Some(free) = self.edits.get_mut(usize::from(self.edit_count)) {
            *free = edit;
            self.edit_count += 1;
        }
    }

    #[inline]
    pub(super) fn note(&mut self, rule: RuleId, action: ActionKind) {
        self.hits += 1;
        if let Some(free) = self.notes.get_mut(usize::from(self.note_count)) {
            *free = Note { rule, action };
            self.note_count += 1;
        } else if self.drop {
            // The one that people ask for.
            self.notes[MAX_NOTES - 1] = Note { rule, action };
        }
    }
}
