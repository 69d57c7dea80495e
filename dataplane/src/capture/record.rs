//! A captured packet as it travels from the lcore to the command line: a header of fixed length in native byte order (both
//! ends are on one machine), then the bytes of the frame.

use roceline_engine::fabric::impair::{ActionKind, MAX_NOTES, Note, RuleId};

/// Bytes in front of the frame.
pub const HEADER: usize = 24 + 8 * MAX_NOTES;

/// An impairment rule that hit a packet, read back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hit {
    /// The rule's number, as `roceline impair list` shows it.
    pub rule: u32,
    /// What it did: the number of an [`ActionKind`].
    action: u8,
}

impl Hit {
    /// What it did, in a word.
    pub fn action(&self) -> &'static str {
        let found = ActionKind::ALL
            .iter()
            .find(|kind| **kind as u8 == self.action);
        found.map_or("unknown", |kind| kind.name())
    }
}

/// A captured packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Nanoseconds since 1970-01-01 UTC.
    pub stamp: u64,
    /// The NIC that sent or received it.
    pub nic: u16,
    /// Sent by the NIC; otherwise received.
    pub outbound: bool,
    /// Bytes of the frame on the wire, FCS excluded; `data` may have fewer.
    pub original_len: u32,
    /// Impairments that hit it, at most [`MAX_NOTES`].
    pub notes: &'a [Note],
    /// The rule that dropped it, here and now.
    pub dropped_by: Option<RuleId>,
    /// The frame from its Ethernet header on.
    pub data: &'a [u8],
}

impl Record<'_> {
    /// Bytes that it takes.
    pub fn encoded_len(&self) -> usize {
        HEADER + self.data.len()
    }

    /// Writes it to the start of `out`; `None`, with nothing written, if there is no room.
    #[inline]
    pub fn encode(&self, out: &mut [u8]) -> Option<usize> {
        let len = self.encoded_len();
        let (head, rest) = out.get_mut(..len)?.split_first_chunk_mut::<HEADER>()?;
        let notes = &self.notes[..self.notes.len().min(MAX_NOTES)];
        head[..8].copy_from_slice(&self.stamp.to_ne_bytes());
        head[8..12].copy_from_slice(&self.original_len.to_ne_bytes());
        head[12..16].copy_from_slice(&(self.data.len() as u32).to_ne_bytes());
        head[16..18].copy_from_slice(&self.nic.to_ne_bytes());
        head[18] = u8::from(self.outbound);
        head[19] = notes.len() as u8;
        // Rules count from 1.
        let dropped_by = self.dropped_by.map_or(0, |rule| rule.0);
        head[20..24].copy_from_slice(&dropped_by.to_ne_bytes());
        for (to, note) in head[24..].chunks_exact_mut(8).zip(notes) {
            to[..4].copy_from_slice(&note.rule.0.to_ne_bytes());
            to[4] = note.action as u8;
            to[5..].fill(0);
        }
        rest.copy_from_slice(self.data);
        Some(len)
    }
}

/// A record read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoded<'a> {
    /// See [`Record::stamp`].
    pub stamp: u64,
    /// See [`Record::nic`].
    pub nic: u16,
    /// See [`Record::outbound`].
    pub outbound: bool,
    /// See [`Record::original_len`].
    pub original_len: u32,
    hits: [Hit; MAX_NOTES],
    hit_count: usize,
    /// Number of the rule that dropped it: see [`Record::dropped_by`].
    pub dropped_by: Option<u32>,
    /// See [`Record::data`].
    pub data: &'a [u8],
}

impl<'a> Decoded<'a> {
    /// A record of a packet that nothing happened to.
    pub fn untouched(
        stamp: u64,
        nic: u16,
        outbound: bool,
        len: u32,
        data: &'a [u8],
    ) -> Decoded<'a> {
        Decoded {
            stamp,
            nic,
            outbound,
            original_len: len,
            hits: [Hit::default(); MAX_NOTES],
            hit_count: 0,
            dropped_by: None,
            data,
        }
    }

    /// Impairments that hit the packet.
    pub fn hits(&self) -> &[Hit] {
        &self.hits[..self.hit_count]
    }
}

/// Takes the first record from `bytes`; `None` if they hold no whole one.
pub fn decode<'a>(bytes: &mut &'a [u8]) -> Option<Decoded<'a>> {
    let (head, rest) = bytes.split_first_chunk::<HEADER>()?;
    let word = |at: usize| u32::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let (stamp, _) = head.split_first_chunk::<8>()?;
    let data = rest.get(..word(12) as usize)?;
    let hit_count = usize::from(head[19]).min(MAX_NOTES);
    let mut hits = [Hit::default(); MAX_NOTES];
    for (i, hit) in hits.iter_mut().enumerate().take(hit_count) {
        *hit = Hit {
            rule: word(24 + 8 * i),
            action: head[28 + 8 * i],
        };
    }
    *bytes = &rest[data.len()..];
    Some(Decoded {
        stamp: u64::from_ne_bytes(*stamp),
        nic: u16::from_ne_bytes([head[16], head[17]]),
        outbound: head[18] != 0,
        original_len: word(8),
        hits,
        hit_count,
        dropped_by: Some(word(20)).filter(|&rule| rule != 0),
        data,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use roceline_engine::fabric::impair::RuleId;

    fn note(rule: u32, action: ActionKind) -> Note {
        Note {
            rule: RuleId(rule),
            action,
        }
    }

    #[test]
    fn what_goes_in_comes_out_and_cut_records_are_none() {
        let notes = [note(7, ActionKind::Delay), note(9, ActionKind::MarkCe)];
        let record = Record {
            stamp: 1_700_000_000_123_456_789,
            nic: 2,
            outbound: true,
            original_len: 4200,
            notes: &notes,
            dropped_by: Some(RuleId(9)),
            data: b"a frame",
        };
        let mut out = [0xee; 2 * HEADER + 14];
        let len = record.encode(&mut out).unwrap();
        assert_eq!(record.encode(&mut out[len..]), Some(len));
        assert_eq!(record.encode(&mut out[..len - 1]), None);
        let mut bytes = &out[..2 * len];
        for _ in 0..2 {
            let back = decode(&mut bytes).unwrap();
            assert_eq!((back.stamp, back.nic), (record.stamp, 2));
            assert!(back.outbound);
            assert_eq!((back.original_len, back.data), (4200, record.data));
            let hits: Vec<_> = back.hits().iter().map(|h| (h.rule, h.action())).collect();
            assert_eq!(back.dropped_by, Some(9));
            assert_eq!(hits, [(7, "delay"), (9, ActionKind::MarkCe.name())]);
        }
        assert_eq!(decode(&mut bytes), None);
        for cut in 0..len {
            assert_eq!(decode(&mut &out[..cut]), None);
        }
    }

    #[test]
    fn notes_beyond_the_limit_are_left_out() {
        let notes = [note(1, ActionKind::Drop); MAX_NOTES + 2];
        let record = Record {
            stamp: 0,
            nic: 0,
            outbound: false,
            original_len: 0,
            notes: &notes,
            dropped_by: None,
            data: &[],
        };
        let mut out = [0; HEADER];
        record.encode(&mut out).unwrap();
        let back = decode(&mut &out[..]).unwrap();
        assert_eq!((back.hits().len(), back.dropped_by), (MAX_NOTES, None));
    }
}
