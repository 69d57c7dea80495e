//! Changes to the bytes of a frame. An [`Edit`] was made for a packet's layout, but is safe on any bytes: what lies
//! beyond the end of the frame is not changed.

use crate::wire::{ethernet, icrc, ipv4, ipv6};

use super::action::{Change, Corruption, Region, Where};
use super::field::{Field, FieldChange, Span};
use super::{Direction, PacketView, Random};

/// One change to a frame, without any chance left in it. Sixteen bytes: every verdict carries room for several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Of a field: its new value, what is added, or the bits to flip.
    value: u64,
    /// A bit of the frame, a byte, or its new length.
    at: u32,
    /// Width of a field.
    bits: u8,
    what: What,
    /// Set checksum and ICRC anew afterwards.
    reseal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Nothing,
    /// `value` has the bits to flip of the byte `at`.
    FlipByte,
    /// The field of `bits` bits from bit `at` on.
    Set,
    Add,
    Flip,
    /// To `at` bytes.
    Truncate,
    MarkCe,
}

const _: () = assert!(size_of::<Edit>() == 16);

impl Edit {
    pub(super) const NOTHING: Edit = Edit {
        value: 0,
        at: 0,
        bits: 0,
        what: What::Nothing,
        reseal: false,
    };

    fn flip_byte(at: u32, mask: u8) -> Edit {
        Edit {
            value: mask.into(),
            at,
            what: What::FlipByte,
            ..Edit::NOTHING
        }
    }

    fn field(span: Span, change: FieldChange) -> Edit {
        let (what, value) = match change {
            FieldChange::Set(v) => (What::Set, v),
            FieldChange::Add(v) => (What::Add, v),
            FieldChange::Flip(v) => (What::Flip, v),
            FieldChange::Random => (What::Nothing, 0),
        };
        Edit {
            value,
            at: span.bit,
            bits: span.bits,
            what,
            reseal: false,
        }
    }

    /// What a corruption does to this packet; `None` if the packet does not have what it changes.
    pub(super) fn corrupt(c: &Corruption, view: &PacketView, random: &mut Random) -> Option<Edit> {
        let edit = match c.change {
            Change::Bit(place) => {
                let bit = place.pick(view, 8, random)?;
                Edit::flip_byte(bit / 8, 0x80 >> (bit % 8))
            }
            Change::Byte(place) => {
                let at = place.pick(view, 1, random)?;
                Edit::flip_byte(at, 1 + random.below(255) as u8)
            }
            Change::Icrc => {
                view.roce?;
                let bit = random.below(32) as u32;
                let first = view.layout.end.checked_sub(icrc::LEN as u32)?;
                let first = (first >= view.layout.payload).then_some(first)?;
                Edit::flip_byte(first + bit / 8, 1 << (bit % 8))
            }
            Change::Field(field, change) => {
                Edit::field(field.span(view)?, change.settled(field, random))
            }
        };
        Some(Edit {
            reseal: c.reseal,
            ..edit
        })
    }

    /// What truncating does to this packet; `None` if it is as short already.
    pub(super) fn truncate(len: u32, reseal: bool, view: &PacketView) -> Option<Edit> {
        let len = len.max(ethernet::LEN as u32);
        let shortens = match reseal {
            true => view.roce.is_some() && view.payload_len() > 0 && len < view.layout.end,
            false => len < view.len,
        };
        shortens.then_some(Edit {
            at: len,
            what: What::Truncate,
            reseal,
            ..Edit::NOTHING
        })
    }

    /// What marking does to this packet; `None` if it is not IP.
    pub(super) fn mark_ce(view: &PacketView) -> Option<Edit> {
        Field::Ecn.span(view)?;
        Some(Edit {
            what: What::MarkCe,
            ..Edit::NOTHING
        })
    }

    /// Changes a frame (Ethernet header to ICRC, and what padding follows) and returns its new length, which
    /// is at most the old one.
    pub fn apply(&self, frame: &mut [u8]) -> usize {
        let at = self.at as usize;
        match self.what {
            What::Nothing => {}
            What::FlipByte => {
                if let Some(byte) = frame.get_mut(at) {
                    *byte ^= self.value as u8;
                }
            }
            What::Set => self.change_field(frame, |_| self.value),
            What::Add => self.change_field(frame, |old| old.wrapping_add(self.value)),
            What::Flip => self.change_field(frame, |old| old ^ self.value),
            What::MarkCe => mark_ce(frame),
            What::Truncate if self.reseal => return shorten(frame, at),
            What::Truncate => return frame.len().min(at),
        }
        if self.reseal {
            reseal(frame);
        }
        frame.len()
    }

    fn change_field(&self, frame: &mut [u8], new: impl FnOnce(u64) -> u64) {
        let span = Span {
            bit: self.at,
            bits: self.bits,
        };
        if let Some(old) = span.get(frame) {
            span.set(frame, new(old));
        }
    }

    /// Whether the edit marks and changes nothing else.
    pub(super) fn only_marks(&self) -> bool {
        self.what == What::MarkCe
    }
}

impl Where {
    /// The place in this packet, in bits (`unit` 8) or bytes (`unit` 1) from the start of the frame.
    fn pick(&self, view: &PacketView, unit: u32, random: &mut Random) -> Option<u32> {
        let l = &view.layout;
        let icrc_at = l.end.saturating_sub(icrc::LEN as u32);
        let (start, end) = match self.region {
            Region::Frame => (0, view.len),
            Region::Packet => (l.l3, l.end),
            Region::Transport if view.roce.is_some() => (l.bth, l.end),
            Region::Payload if view.roce.is_some() => match l.payload < icrc_at {
                true => (l.payload, icrc_at),
                false => (icrc_at, l.end),
            },
            _ => return None,
        };
        let (start, len) = (start * unit, end.checked_sub(start)? * unit);
        let offset = match self.offset {
            Some(offset) => offset,
            None => random.below(len.into()) as u32,
        };
        (offset < len).then(|| start + offset)
    }
}

/// Sets the ECN field of an IP packet to CE and updates the IPv4 checksum, so that it stays right, or as wrong as it was
/// (RFC 1624). Any other frame stays as it is.
pub fn mark_ce(frame: &mut [u8]) {
    let view = PacketView::parse(Direction::Tx, frame);
    let Some(span) = Field::Ecn.span(&view) else {
        return;
    };
    let l3 = view.layout.l3 as usize;
    let word = |frame: &[u8]| Span::get(first_word(l3), frame).unwrap_or(0) as u16;
    let before = word(frame);
    span.set(frame, 3);
    if !view.layout.ipv6 {
        let after = word(frame);
        ipv4::update_checksum(&mut frame[l3..], before, after);
    }
}

fn first_word(l3: usize) -> Span {
    Span {
        bit: l3 as u32 * 8,
        bits: 16,
    }
}

/// IPv4 checksum and ICRC as they belong to what the frame now says.
fn reseal(frame: &mut [u8]) {
    let view = PacketView::parse(Direction::Tx, frame);
    let l = view.layout;
    if !l.ipv6 {
        if let Some(l3) = frame.get_mut(l.l3 as usize..) {
            ipv4::set_checksum(l3);
        }
    }
    if view.roce.is_some() && l.payload + icrc::LEN as u32 <= l.end {
        icrc::seal(&mut frame[..l.end as usize], l.l3 as usize);
    }
}

/// Makes a well-formed packet of about `len` bytes by taking payload away, down to none; its length.
fn shorten(frame: &mut [u8], len: usize) -> usize {
    let view = PacketView::parse(Direction::Tx, frame);
    let l = view.layout;
    let (payload, old_end) = (l.payload as usize, l.end as usize);
    if view.roce.is_none() || old_end < payload + icrc::LEN || len >= old_end {
        return frame.len();
    }
    let keep = len.saturating_sub(payload + icrc::LEN) & !3;
    let end = payload + keep + icrc::LEN;
    let udp_len = (end - l.udp as usize) as u64;
    let ip_len = match l.ipv6 {
        true => (end - l.l3 as usize - ipv6::LEN) as u64,
        false => (end - l.l3 as usize) as u64,
    };
    for (field, value) in [
        (Field::IpLength, ip_len),
        (Field::UdpLength, udp_len),
        (Field::Pad, 0),
    ] {
        if let Some(span) = field.span(&view) {
            span.set(frame, value);
        }
    }
    reseal(&mut frame[..end]);
    end
}
