//! Ethernet II header with an optional 802.1Q tag.

use super::be::u16_at;

mod field {
    pub const DST: usize = 0;
    pub const SRC: usize = 6;
    pub const TYPE: usize = 12;
    /// Within the four bytes that a tag adds after the first EtherType.
    pub const TCI: usize = 0;
    pub const INNER_TYPE: usize = 2;
}

/// Bytes of an untagged header.
pub const LEN: usize = 14;
/// Bytes that an 802.1Q tag adds.
pub const TAG_LEN: usize = 4;

/// EtherType of IPv4.
pub const TYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const TYPE_IPV6: u16 = 0x86dd;
/// EtherType of an 802.1Q tag.
pub const TYPE_VLAN: u16 = 0x8100;

/// A MAC address.
pub type Mac = [u8; 6];

/// An Ethernet header and its tag, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Destination.
    pub dst: Mac,
    /// Source.
    pub src: Mac,
    /// 802.1Q tag control information: priority (3 bits), drop eligible, VLAN (12 bits).
    pub tci: Option<u16>,
    /// EtherType of what follows.
    pub ether_type: u16,
}

impl Repr {
    /// The header at the start of `frame`; `None` if the frame is too short. A second tag stays in `ether_type`.
    #[inline]
    pub fn parse(frame: &[u8]) -> Option<Repr> {
        let h = frame.first_chunk::<LEN>()?;
        let mut repr = Repr {
            dst: mac_at(h, field::DST),
            src: mac_at(h, field::SRC),
            tci: None,
            ether_type: u16_at(h, field::TYPE),
        };
        if repr.ether_type == TYPE_VLAN {
            let tag = frame[LEN..].first_chunk::<TAG_LEN>()?;
            repr.tci = Some(u16_at(tag, field::TCI));
            repr.ether_type = u16_at(tag, field::INNER_TYPE);
        }
        Some(repr)
    }

    /// Bytes that the header takes, and so the offset of what follows.
    #[inline]
    pub const fn header_len(&self) -> usize {
        match self.tci {
            Some(_) => LEN + TAG_LEN,
            None => LEN,
        }
    }

    /// Writes an untagged header; `tci` is not looked at.
    pub fn emit(&self, out: &mut [u8; LEN]) {
        out[field::DST..field::SRC].copy_from_slice(&self.dst);
        out[field::SRC..field::TYPE].copy_from_slice(&self.src);
        out[field::TYPE..].copy_from_slice(&self.ether_type.to_be_bytes());
    }
}

#[inline(always)]
fn mac_at(h: &[u8; LEN], at: usize) -> Mac {
    [h[at], h[at + 1], h[at + 2], h[at + 3], h[at + 4], h[at + 5]]
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: [u8; LEN] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00];

    #[test]
    fn untagged_round_trip() {
        let repr = Repr::parse(&PLAIN).expect("14 bytes");
        assert_eq!(
            (repr.tci, repr.ether_type, repr.header_len()),
            (None, TYPE_IPV4, 14)
        );
        let mut out = [0; LEN];
        repr.emit(&mut out);
        assert_eq!(out, PLAIN);
    }

    #[test]
    fn tag_is_read_and_its_length_counted() {
        let mut frame = PLAIN[..12].to_vec();
        frame.extend([0x81, 0x00, 0x60, 0x0a, 0x86, 0xdd]);
        let repr = Repr::parse(&frame).expect("18 bytes");
        assert_eq!(
            (repr.tci, repr.ether_type, repr.header_len()),
            (Some(0x600a), TYPE_IPV6, 18)
        );
        assert_eq!(Repr::parse(&frame[..17]), None);
        assert_eq!(Repr::parse(&PLAIN[..13]), None);
    }
}
