//! Whose a frame is: the part's with the number that is in the low bits of the destination QPN.

/// Destination QPN of packets to a group (IBTA 10.5).
const MULTICAST_QPN: u32 = 0xff_ffff;

/// Which part of a NIC this is, by the low bits of its queue pairs' numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartOf {
    /// Its number.
    pub number: u32,
    /// How many bits; 0: there is no other part.
    pub bits: u32,
}

impl PartOf {
    /// Part `number` of so many.
    pub fn new(number: usize, parts: usize) -> PartOf {
        PartOf {
            number: number as u32,
            bits: parts.max(1).next_power_of_two().trailing_zeros(),
        }
    }

    /// Whether a frame of RoCE is for a queue pair of this part.
    #[inline]
    pub fn is_own(self, frame: &[u8]) -> bool {
        self.bits == 0 || self.owner(frame) == Owner::Part(self.number)
    }

    /// Whose a frame is; there may be no such part.
    #[inline]
    pub fn owner(self, frame: &[u8]) -> Owner {
        match dest_qpn(frame) {
            None => Owner::Part(0),
            Some(MULTICAST_QPN) => Owner::All,
            Some(qpn) => Owner::Part(qpn & ((1 << self.bits) - 1)),
        }
    }
}

/// Whose a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// That of a part.
    Part(u32),
    /// Of each, as members of a group may be anywhere.
    All,
}

/// The destination QPN of a frame of RoCE v2, with no more of it looked at than is needed.
#[inline]
fn dest_qpn(frame: &[u8]) -> Option<u32> {
    const UDP: u8 = 17;
    const ROCE: [u8; 2] = 4791u16.to_be_bytes();
    let l3 = match frame.get(12..14)? {
        [0x81, 0x00] => 18,
        _ => 14,
    };
    let (protocol, l4) = match frame.get(l3 - 2..l3)? {
        [0x08, 0x00] => (
            frame.get(l3 + 9)?,
            l3 + 4 * usize::from(frame.get(l3)? & 0xf),
        ),
        [0x86, 0xdd] => (frame.get(l3 + 6)?, l3 + 40),
        _ => return None,
    };
    // UDP, and BTH up to the QPN.
    let head = frame.get(l4..l4 + 16)?;
    if *protocol != UDP || head[2..4] != ROCE {
        return None;
    }
    Some(u32::from_be_bytes([0, head[13], head[14], head[15]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(l3: usize, version: u8, port: u16, qpn: u32) -> Vec<u8> {
        let mut frame = vec![0; 120];
        if l3 == 18 {
            frame[12..14].copy_from_slice(&[0x81, 0x00]);
        }
        let (ether_type, l4) = match version {
            4 => ([0x08, 0x00], l3 + 20),
            _ => ([0x86, 0xdd], l3 + 40),
        };
        frame[l3 - 2..l3].copy_from_slice(&ether_type);
        match version {
            4 => (frame[l3], frame[l3 + 9]) = (0x45, 17),
            _ => (frame[l3], frame[l3 + 6]) = (0x60, 17),
        }
        frame[l4 + 2..l4 + 4].copy_from_slice(&port.to_be_bytes());
        frame[l4 + 12..l4 + 16].copy_from_slice(&qpn.to_be_bytes());
        frame
    }

    #[test]
    fn the_low_bits_of_a_queue_pair_name_its_part() {
        let part = PartOf::new(2, 3);
        assert_eq!((part.number, part.bits), (2, 2));
        assert_eq!(
            [1, 2, 4, 5, 8].map(|n| PartOf::new(0, n).bits),
            [0, 1, 2, 3, 3]
        );
        for (l3, version) in [(14, 4), (18, 4), (14, 6), (18, 6)] {
            let owner = |port, qpn| part.owner(&frame(l3, version, port, qpn));
            assert_eq!(owner(4791, 0x1236), Owner::Part(2));
            assert_eq!(owner(4791, 0x1235), Owner::Part(1));
            assert_eq!(owner(4791, 0xff_ffff), Owner::All);
            assert_eq!(owner(4790, 0x1236), Owner::Part(0));
            let whole = frame(l3, version, 4791, 0x1236);
            assert!(part.is_own(&whole) && !PartOf::new(1, 3).is_own(&whole));
            assert!(PartOf::new(0, 1).is_own(&whole));
            for len in 0..whole.len() {
                // Cut short it is nobody's in particular, and no harm.
                let is = part.owner(&whole[..len]);
                assert!(is == Owner::Part(0) || is == Owner::Part(2));
            }
        }
    }
}
