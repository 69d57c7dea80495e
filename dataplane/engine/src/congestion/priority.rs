//! Which of the eight priorities of a link a frame has.
//!
//! In: a frame, or what was parsed of it. Out: 0 to 7. A [`PriorityMap`] is plain data: each NIC and switch has its own copy.

use crate::wire::ethernet::{TYPE_IPV4, TYPE_IPV6, TYPE_VLAN};
use crate::wire::pause::PRIORITIES;

/// EtherType of a service tag (IEEE 802.1ad), which has its priority where an 802.1Q tag has it.
const TYPE_SERVICE_VLAN: u16 = 0x88a8;

/// What says which priority a frame has; the field's word for it is trust.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// DSCP of the IP header, tagged or not; a frame that is not IP has the PCP of its tag, or else 0.
    #[default]
    Dscp,
    /// PCP of the 802.1Q tag; a frame without one has priority 0.
    Pcp,
}

/// Priorities by DSCP or by PCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityMap {
    trust: Trust,
    by_dscp: [u8; 64],
}

impl Default for PriorityMap {
    /// By DSCP: its upper three bits, the class selector of RFC 2474 4.2.2.
    fn default() -> PriorityMap {
        PriorityMap::new(Trust::Dscp)
    }
}

impl PriorityMap {
    /// The usual map: the upper three bits of DSCP, or the PCP itself.
    pub const fn new(trust: Trust) -> PriorityMap {
        let mut by_dscp = [0; 64];
        let mut dscp = 0;
        while dscp < 64 {
            by_dscp[dscp] = dscp as u8 >> 3;
            dscp += 1;
        }
        PriorityMap { trust, by_dscp }
    }

    /// What it goes by.
    pub const fn trust(&self) -> Trust {
        self.trust
    }

    /// Gives packets of `dscp` (0 to 63; higher bits are not looked at) priority `priority` (0 to 7, likewise).
    pub fn set_dscp(&mut self, dscp: u8, priority: u8) {
        self.by_dscp[usize::from(dscp & 63)] = priority & 7;
    }

    /// The priority that `dscp` (0 to 63) has where DSCP is trusted.
    pub const fn of_dscp(&self, dscp: u8) -> u8 {
        self.by_dscp[dscp as usize & 63]
    }

    /// The priority of an IP packet with this `dscp` in a frame with this `pcp`, if it has a tag.
    #[inline]
    pub fn of_ip(&self, dscp: u8, pcp: Option<u8>) -> u8 {
        match self.trust {
            Trust::Dscp => self.by_dscp[usize::from(dscp & 63)],
            Trust::Pcp => pcp.unwrap_or(0) & 7,
        }
    }

    /// The priority of a frame; 0 if it is too short to tell.
    #[inline]
    pub fn of_frame(&self, frame: &[u8]) -> u8 {
        let word = |at: usize| {
            let bytes = frame.get(at..)?.first_chunk::<4>()?;
            Some((u16::from_be_bytes([bytes[0], bytes[1]]), bytes[2], bytes[3]))
        };
        let Some((mut ether_type, mut b0, mut b1)) = word(12) else {
            return 0;
        };
        let mut pcp = None;
        if ether_type == TYPE_VLAN || ether_type == TYPE_SERVICE_VLAN {
            pcp = Some(b0 >> 5);
            (ether_type, b0, b1) = word(16).unwrap_or_default();
        }
        let dscp = match ether_type {
            TYPE_IPV4 => b1 >> 2,
            // The traffic class lies across the nibbles of the first two bytes.
            TYPE_IPV6 => (b0 << 4 | b1 >> 4) >> 2,
            _ => return pcp.unwrap_or(0),
        };
        self.of_ip(dscp, pcp)
    }
}

/// A set of priorities: bit n for priority n.
pub type PriorityMask = u8;

/// The priorities of a mask, from 0 upwards.
#[inline]
pub fn each(mask: PriorityMask) -> impl Iterator<Item = usize> {
    (0..PRIORITIES).filter(move |p| mask >> p & 1 == 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(tag: Option<u8>, rest: [u8; 4]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        if let Some(pcp) = tag {
            frame.extend([0x81, 0x00, pcp << 5, 1]);
        }
        frame.extend(rest);
        frame
    }

    #[test]
    fn dscp_counts_whatever_the_tag_says() {
        let map = PriorityMap::default();
        let v4 = |dscp: u8| [0x08, 0x00, 0x45, dscp << 2];
        assert_eq!(map.of_frame(&frame(None, v4(26))), 3, "AF31 is class 3");
        assert_eq!(map.of_frame(&frame(None, v4(48))), 6, "CS6 is class 6");
        assert_eq!(map.of_frame(&frame(Some(5), v4(26))), 3);
        // IPv6, traffic class 0xc2 (CS6 with ECT(0)): 6 c2 0 0 0 00
        let v6 = [0x86, 0xdd, 0x6c, 0x20];
        assert_eq!(map.of_frame(&frame(None, v6)), 6);
        let arp = [0x08, 0x06, 0x00, 0xff];
        assert_eq!(map.of_frame(&frame(None, arp)), 0);
        assert_eq!(map.of_frame(&frame(Some(5), arp)), 5);
    }

    #[test]
    fn pcp_counts_where_it_is_trusted() {
        let map = PriorityMap::new(Trust::Pcp);
        let v4 = [0x08, 0x00, 0x45, 26 << 2];
        assert_eq!(map.of_frame(&frame(Some(5), v4)), 5);
        assert_eq!(map.of_frame(&frame(None, v4)), 0);
    }

    #[test]
    fn single_dscps_can_be_moved() {
        let mut map = PriorityMap::default();
        map.set_dscp(46, 3);
        assert_eq!((map.of_ip(46, None), map.of_ip(47, None)), (3, 5));
    }

    proptest! {
        #[test]
        fn any_frame_has_one_of_eight(bytes in prop::collection::vec(any::<u8>(), 0..40), pcp: bool) {
            let trust = if pcp { Trust::Pcp } else { Trust::Dscp };
            prop_assert!(PriorityMap::new(trust).of_frame(&bytes) < 8);
        }
    }

    #[test]
    fn masks_are_walked_in_order() {
        assert_eq!(each(0b1000_1010).collect::<Vec<_>>(), [1, 3, 7]);
    }
}
