//! MAC control frames that stop a link's sender for a while: PAUSE (IEEE 802.3 Annex 31B, once 802.3x), which stops all, and
//! PFC (IEEE 802.3 Annex 31D, once 802.1Qbb), which stops priorities.
//!
//! They concern the two ends of one link: no bridge forwards them, and they carry no tag.

use super::be::{put_u16, u16_at};
use super::ethernet::{self, Mac};

mod field {
    pub const OPCODE: usize = 14;
    /// Of PAUSE.
    pub const QUANTA: usize = 16;
    /// Of PFC: the high byte is reserved, bit n of the low one says that the time of priority n counts.
    pub const ENABLED: usize = 16;
    /// Of PFC: eight times.
    pub const TIMES: usize = 18;
}

/// EtherType of MAC control.
pub const ETHER_TYPE: u16 = 0x8808;
/// Where they are sent: a group address that bridges do not forward.
pub const DST: Mac = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x01];
/// Bytes of a frame without its FCS: the shortest that Ethernet allows.
pub const LEN: usize = 60;
/// Priorities of a link.
pub const PRIORITIES: usize = 8;

const OPCODE_PAUSE: u16 = 0x0001;
const OPCODE_PFC: u16 = 0x0101;
/// Bytes of each that mean something.
const PAUSE_USED: usize = field::QUANTA + 2;
const PFC_USED: usize = field::TIMES + 2 * PRIORITIES;

/// What a frame asks of whoever receives it. Times are in quanta, of 512 bit times of the link each; 0 says go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseFrame {
    /// PAUSE: send nothing for so long.
    Global {
        /// How long.
        quanta: u16,
    },
    /// PFC: send nothing of these priorities for so long.
    Priority {
        /// Bit n: the time of priority n counts.
        enabled: u8,
        /// How long, by priority; 0 where `enabled` has no bit.
        quanta: [u16; PRIORITIES],
    },
}

impl PauseFrame {
    /// The frame, if it is one of the two and its fields are all there. PAUSE may also be addressed to the station itself, whose
    /// MAC address is `own` (31B.1).
    pub fn parse(frame: &[u8], own: &Mac) -> Option<PauseFrame> {
        let header = frame.first_chunk::<PAUSE_USED>()?;
        if u16_at(header, ethernet::LEN - 2) != ETHER_TYPE {
            return None;
        }
        let dst = &header[..6];
        match u16_at(header, field::OPCODE) {
            OPCODE_PAUSE if dst == DST || dst == own => Some(PauseFrame::Global {
                quanta: u16_at(header, field::QUANTA),
            }),
            OPCODE_PFC if dst == DST => {
                let all = frame.first_chunk::<PFC_USED>()?;
                let enabled = all[field::ENABLED + 1];
                let quanta = core::array::from_fn(|p| match enabled >> p & 1 {
                    0 => 0,
                    _ => u16_at(all, field::TIMES + 2 * p),
                });
                Some(PauseFrame::Priority { enabled, quanta })
            }
            _ => None,
        }
    }

    /// Writes the frame as station `src` sends it; what is not used is zero.
    pub fn emit(&self, src: &Mac, out: &mut [u8; LEN]) {
        out.fill(0);
        out[..6].copy_from_slice(&DST);
        out[6..12].copy_from_slice(src);
        put_u16(out, ethernet::LEN - 2, ETHER_TYPE);
        match self {
            PauseFrame::Global { quanta } => {
                put_u16(out, field::OPCODE, OPCODE_PAUSE);
                put_u16(out, field::QUANTA, *quanta);
            }
            PauseFrame::Priority { enabled, quanta } => {
                put_u16(out, field::OPCODE, OPCODE_PFC);
                out[field::ENABLED + 1] = *enabled;
                for (p, time) in quanta.iter().enumerate() {
                    if enabled >> p & 1 == 1 {
                        put_u16(out, field::TIMES + 2 * p, *time);
                    }
                }
            }
        }
    }
}

/// Whether a frame is MAC control: for this link only, whatever it says.
#[inline]
pub fn is_mac_control(frame: &[u8]) -> bool {
    frame.get(ethernet::LEN - 2..ethernet::LEN) == Some(&ETHER_TYPE.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWN: Mac = [2, 0, 0, 0, 0, 1];

    /// Priority 3 stops for the longest time, byte by byte.
    #[test]
    fn a_pfc_frame_is_read_and_written() {
        let mut bytes = [0u8; LEN];
        bytes[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 1]);
        bytes[6..12].copy_from_slice(&OWN);
        bytes[12..18].copy_from_slice(&[0x88, 0x08, 0x01, 0x01, 0x00, 0x08]);
        bytes[24..26].copy_from_slice(&[0xff, 0xff]);
        let mut quanta = [0; 8];
        quanta[3] = 0xffff;
        let frame = PauseFrame::Priority { enabled: 8, quanta };
        assert_eq!(PauseFrame::parse(&bytes, &OWN), Some(frame));
        let mut out = [0xaa; LEN];
        frame.emit(&OWN, &mut out);
        assert_eq!(out, bytes);
        // A time without its bit means nothing.
        bytes[17] = 0;
        let none = PauseFrame::Priority {
            enabled: 0,
            quanta: [0; 8],
        };
        assert_eq!(PauseFrame::parse(&bytes, &OWN), Some(none));
    }

    #[test]
    fn a_pause_frame_may_be_for_the_group_or_the_station() {
        let frame = PauseFrame::Global { quanta: 0x1234 };
        let mut out = [0; LEN];
        frame.emit(&[2; 6], &mut out);
        assert_eq!(out[12..18], [0x88, 0x08, 0x00, 0x01, 0x12, 0x34]);
        assert!(is_mac_control(&out));
        assert_eq!(PauseFrame::parse(&out, &OWN), Some(frame));
        out[..6].copy_from_slice(&OWN);
        assert_eq!(PauseFrame::parse(&out, &OWN), Some(frame));
        assert_eq!(PauseFrame::parse(&out, &[2; 6]), None);
        // PFC is for the group only.
        out[14] = 1;
        assert_eq!(PauseFrame::parse(&out, &OWN), None);
    }

    #[test]
    fn what_is_short_or_about_something_else_is_refused() {
        let mut out = [0; LEN];
        let quanta = [7; 8];
        let pfc = PauseFrame::Priority {
            enabled: 0xff,
            quanta,
        };
        pfc.emit(&OWN, &mut out);
        assert_eq!(PauseFrame::parse(&out[..PFC_USED], &OWN), Some(pfc));
        for short in 0..PFC_USED {
            assert_eq!(PauseFrame::parse(&out[..short], &OWN), None, "{short}");
        }
        for at in [0, 5, 12, 13, 14, 15] {
            let mut bad = out;
            bad[at] ^= 0x40;
            assert_eq!(PauseFrame::parse(&bad, &OWN), None, "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn any_frame_comes_back(enabled: u8, times: [u16; 8], global: bool) {
            let quanta = core::array::from_fn(|p| if enabled >> p & 1 == 1 { times[p] } else { 0 });
            let frame = match global {
                true => PauseFrame::Global { quanta: times[0] },
                false => PauseFrame::Priority { enabled, quanta },
            };
            let mut out = [0; LEN];
            frame.emit(&OWN, &mut out);
            prop_assert_eq!(PauseFrame::parse(&out, &OWN), Some(frame));
        }

        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = PauseFrame::parse(&bytes, &OWN);
            let _ = is_mac_control(&bytes);
        }
    }
}
