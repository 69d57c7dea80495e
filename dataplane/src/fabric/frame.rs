//! What a switch reads of a frame: where it goes, which flow it belongs to, whether it may be marked. Any bytes will do.

use roceline_engine::congestion::priority::PriorityMap;
use roceline_engine::wire::{LINK_OVERHEAD, ethernet, pause};

/// The shortest frame with all of that.
const SHORTEST: u32 = 84;

/// What is beside a frame's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// Its destination address, in the lower 48 bits.
    pub dst: u64,
    pub kind: Kind,
    pub priority: u8,
    pub ecn_capable: bool,
    pub flow_hash: u32,
}

/// Whom a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One station.
    Station,
    /// A group, or everybody.
    Group,
    /// The other end of the link, and nobody else.
    Link,
}

/// A MAC address as a number.
pub(super) fn mac_number(mac: &[u8; 6]) -> u64 {
    mac.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// Bytes of link time of a frame of `len` bytes.
#[inline]
pub(super) fn link_bytes(len: usize) -> u32 {
    (len as u32).saturating_add(LINK_OVERHEAD).max(SHORTEST)
}

/// Reads a frame.
#[inline]
pub(super) fn look(frame: &[u8], map: &PriorityMap) -> Look {
    let dst = match frame.first_chunk::<6>() {
        Some(mac) => mac_number(mac),
        None => 0,
    };
    let kind = if pause::is_mac_control(frame) {
        Kind::Link
    } else if dst >> 40 & 1 == 1 {
        Kind::Group
    } else {
        Kind::Station
    };
    let mut look = Look {
        dst,
        kind,
        priority: map.of_frame(frame),
        ecn_capable: false,
        flow_hash: 0,
    };
    let Some(eth) = ethernet::Repr::parse(frame) else {
        return look;
    };
    let ip = frame.get(eth.header_len()..).unwrap_or_default();
    // Addresses, then the ports of UDP behind them, whatever they are there: the same for all frames of a flow.
    let (ecn, addresses, ports) = match (eth.ether_type, ip) {
        (ethernet::TYPE_IPV4, [first, tos, ..]) => {
            let header = usize::from(first & 15) * 4;
            (tos & 3, ip.get(12..20), ip.get(header..header + 4))
        }
        (ethernet::TYPE_IPV6, [_, second, ..]) => (second >> 4 & 3, ip.get(8..40), ip.get(40..44)),
        _ => return look,
    };
    look.ecn_capable = ecn != 0;
    let mut hash = 0x9e37_79b9_7f4a_7c15u64;
    for part in [addresses, ports].into_iter().flatten() {
        for word in part.chunks_exact(4) {
            let word = word.iter().fold(0, |w, b| w << 8 | u64::from(*b));
            hash = (hash.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
    }
    look.flow_hash = (hash >> 32) as u32;
    look
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(tos: u8, sport: u16) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];
        frame.extend([0x45, tos, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0]);
        frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend(sport.to_be_bytes());
        frame.extend([0x12, 0xb7, 0, 8, 0, 0]);
        frame
    }

    #[test]
    fn destination_priority_and_ecn() {
        let map = PriorityMap::default();
        let seen = look(&v4(26 << 2 | 2, 0xc000), &map);
        assert_eq!((seen.dst, seen.kind), (0x0200_0000_0001, Kind::Station));
        assert_eq!((seen.priority, seen.ecn_capable), (3, true));
        assert!(!look(&v4(26 << 2, 0xc000), &map).ecn_capable);
        let mut group = v4(0, 0xc000);
        group[0] = 3;
        assert_eq!(look(&group, &map).kind, Kind::Group);
    }

    #[test]
    fn a_flow_has_one_hash_and_others_have_others() {
        let map = PriorityMap::default();
        let hash = |tos, sport| look(&v4(tos, sport), &map).flow_hash;
        assert_eq!(hash(0, 0xc000), hash(3, 0xc000));
        let mut hashes: Vec<u32> = (0xc000..0xc100).map(|sport| hash(0, sport)).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert!(hashes.len() > 250, "{}", hashes.len());
    }

    #[test]
    fn pause_frames_are_for_the_link_only() {
        let mut bytes = [0; pause::LEN];
        pause::PauseFrame::Global { quanta: 7 }.emit(&[2; 6], &mut bytes);
        assert_eq!(look(&bytes, &PriorityMap::default()).kind, Kind::Link);
    }

    #[test]
    fn any_bytes_are_read_without_harm() {
        let map = PriorityMap::default();
        let whole = v4(3, 1);
        for len in 0..whole.len() {
            look(&whole[..len], &map);
        }
        for ether_type in [0x0800u16, 0x86dd, 0x8100] {
            let mut frame = [0xff; 64];
            frame[12..14].copy_from_slice(&ether_type.to_be_bytes());
            for len in 0..64 {
                look(&frame[..len], &map);
            }
        }
        assert_eq!(
            (link_bytes(0), link_bytes(60), link_bytes(100)),
            (84, 84, 124)
        );
    }
}
