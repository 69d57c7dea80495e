//! What a packet takes of an Ethernet link, in bytes of link time.

use super::{Opcode, bth, ethernet, icrc, ipv4, ipv6, udp};

/// FCS, preamble with start delimiter, and inter-packet gap (IEEE 802.3, 3.1.1 and 4.4.2), beside the bytes of the frame.
pub const LINK_OVERHEAD: u32 = 24;

/// Bytes of link time of a packet without 802.1Q tag and with `payload_len` bytes of payload before the pad: everything from
/// preamble to inter-packet gap. Frames are never padded to Ethernet's least of 64 bytes but where two bytes are missing (an
/// IPv4 packet without extended headers or payload); that is left out.
#[inline]
pub const fn link_bytes(ipv6: bool, opcode: Opcode, payload_len: u32) -> u32 {
    let ip = if ipv6 { ipv6::LEN } else { ipv4::LEN };
    let headers = ethernet::LEN + ip + udp::LEN + bth::LEN + icrc::LEN;
    let ext = opcode.info().ext_len as u32;
    let padded = (payload_len + 3) & !3;
    LINK_OVERHEAD + headers as u32 + ext + padded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::Path;
    use crate::wire::{Gid, HeaderTemplate};

    #[test]
    fn a_packet_takes_its_frame_and_24_bytes() {
        let v6 = Gid([1; 16]);
        for (dgid, ipv6) in [(Gid::from_ip([10, 0, 0, 1].into()), false), (v6, true)] {
            let path = Path {
                sgid: dgid,
                dgid,
                ..Path::default()
            };
            let template = HeaderTemplate::new(&path, 0, 0, 0xffff);
            for &opcode in Opcode::ALL {
                let lens: &[u32] = if opcode.info().payload {
                    &[0, 1, 4, 1023, 4096]
                } else {
                    &[0]
                };
                for &len in lens {
                    let frame = template.frame_len(opcode, len) as u32;
                    assert_eq!(link_bytes(ipv6, opcode, len), frame + 24, "{opcode:?}");
                }
            }
        }
    }
}
