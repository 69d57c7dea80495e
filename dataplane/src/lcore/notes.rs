//! Which rules hit a packet on its way out, written into the packet's own buffer until a capture reads it.
//!
//! Only packets that pass rules are written on, so what is there means something only on a NIC that has rules for what it
//! sends: [`super::impair`] clears the notes of each packet before its rules.

use roceline_engine::fabric::impair::{ActionKind, MAX_NOTES, Note, RuleId};

use crate::port::Mbuf;

/// Bytes of a note: the rule's number and the action's.
const NOTE: usize = 5;
const _: () = assert!(MAX_NOTES * NOTE < Mbuf::SCRATCH);

/// Notes of a packet.
#[derive(Clone, Copy, Debug)]
pub struct Notes {
    notes: [Note; MAX_NOTES],
    count: usize,
}

impl Notes {
    /// None.
    pub const NONE: Notes = Notes {
        notes: [Note {
            rule: RuleId(0),
            action: ActionKind::Count,
        }; MAX_NOTES],
        count: 0,
    };

    /// What is written on a packet.
    #[inline]
    pub fn of(mbuf: &Mbuf) -> Notes {
        let mut all = Notes::NONE;
        let Some([count, rest @ ..]) = mbuf.scratch() else {
            return all;
        };
        for bytes in rest.chunks_exact(NOTE).take(usize::from(*count)) {
            let (Some(slot), &[a, b, c, d, action]) = (all.notes.get_mut(all.count), bytes) else {
                break;
            };
            let kind = ActionKind::ALL.iter().find(|kind| **kind as u8 == action);
            let Some(&action) = kind else { break };
            let rule = RuleId(u32::from_ne_bytes([a, b, c, d]));
            *slot = Note { rule, action };
            all.count += 1;
        }
        all
    }

    /// As a list.
    pub fn as_slice(&self) -> &[Note] {
        &self.notes[..self.count]
    }
}

/// Takes all notes off a packet.
#[inline]
pub fn clear(mbuf: &mut Mbuf) {
    if let Some([count, ..]) = mbuf.scratch_mut() {
        *count = 0;
    }
}

/// Writes notes behind those that a packet has, as far as there is room.
#[inline]
pub fn append(mbuf: &mut Mbuf, notes: &[Note]) {
    let Some([count, rest @ ..]) = mbuf.scratch_mut() else {
        return;
    };
    let free = rest.chunks_exact_mut(NOTE).take(MAX_NOTES);
    for (slot, note) in free.skip(usize::from(*count)).zip(notes) {
        let (rule, action) = slot.split_at_mut(4);
        rule.copy_from_slice(&note.rule.0.to_ne_bytes());
        action.fill(note.action as u8);
        *count += 1;
    }
}

/// Copies the notes of one packet onto its copy.
#[inline]
pub fn copy(from: &Mbuf, to: &mut Mbuf) {
    if let (Some(from), Some(to)) = (from.scratch(), to.scratch_mut()) {
        *to = *from;
    }
}
