//! The 40 bytes in front of a datagram's payload in its receive buffer (IBTA annex A17, the "GRH
//! area" of RoCE v2): the IPv6 header as it was received, or 20 zeros and the IPv4 header. `ibv_init_ah_from_wc` reads the
//! sender's address out of them; it tells the two apart by the version in the first byte, so the zeros matter.

use super::{ethernet, ipv4, ipv6};

/// Bytes of the area.
pub const LEN: usize = ipv6::LEN;

/// The area of a received frame; `None` if it is no IP packet, which one that was parsed always is.
pub fn area(frame: &[u8]) -> Option<[u8; LEN]> {
    let eth = ethernet::Repr::parse(frame)?;
    let l3 = frame.get(eth.header_len()..)?;
    let mut area = [0; LEN];
    match eth.ether_type {
        ethernet::TYPE_IPV6 => area = *l3.first_chunk()?,
        ethernet::TYPE_IPV4 => {
            let header: &[u8; ipv4::LEN] = l3.first_chunk()?;
            area[LEN - ipv4::LEN..].copy_from_slice(header);
        }
        _ => return None,
    }
    Some(area)
}

/// Writes the area into the frame itself, over the headers in front of the payload at `payload_offset`, so that the two
/// are one piece. Gives the offset at which it begins; `None`, with nothing written, if there is no IP header.
pub fn put_before(frame: &mut [u8], payload_offset: usize) -> Option<usize> {
    let area = area(frame)?;
    let start = payload_offset.checked_sub(LEN)?;
    frame.get_mut(start..payload_offset)?.copy_from_slice(&area);
    Some(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::TxDesc;
    use crate::verbs::Path;
    use crate::wire::{Gid, HeaderTemplate, Opcode, icrc, parse};

    fn frame(src: &str, dst: &str) -> Vec<u8> {
        let path = Path {
            sgid: Gid::from_ip(src.parse().expect("address")),
            dgid: Gid::from_ip(dst.parse().expect("address")),
            traffic_class: 0x20,
            flow_label: 0x12345,
            hop_limit: 7,
            ..Path::default()
        };
        let desc = TxDesc {
            opcode: Opcode::UD_SEND_ONLY_IMM,
            len: 5,
            ..TxDesc::default()
        };
        let template = HeaderTemplate::new(&path, 0xc000, 0x11, 0xffff);
        let mut frame = vec![0; template.frame_len(desc.opcode, desc.len)];
        let at = template.write(&desc, 77, &mut frame).expect("room");
        frame[at..at + 5].copy_from_slice(b"hello");
        assert!(icrc::seal(&mut frame, HeaderTemplate::L3_OFFSET));
        frame
    }

    #[test]
    fn ipv4_headers_fill_the_last_20_bytes_and_have_their_checksum() {
        let mut frame = frame("10.0.0.1", "10.0.0.2");
        let header = frame[14..34].to_vec();
        // also behind a tag
        for _ in 0..2 {
            let area = area(&frame).expect("an IP packet");
            assert_eq!(area[..20], [0; 20]);
            assert_eq!(area[20..], header);
            let view = ipv4::Header::new_checked(&area[20..]).expect("20 bytes");
            assert!(view.checksum_ok() && view.version() == 4);
            frame.splice(12..12, [0x81, 0, 0, 5]);
        }
    }

    #[test]
    fn ipv6_headers_are_all_of_it() {
        let frame = frame("fd00::1", "ff0e::7");
        assert_eq!(area(&frame).expect("an IP packet"), frame[14..54]);
    }

    #[test]
    fn area_and_payload_become_one_piece() {
        for (src, dst) in [("10.0.0.1", "239.1.2.3"), ("fd00::1", "fd00::2")] {
            let mut frame = frame(src, dst);
            let want = [&area(&frame).expect("an IP packet")[..], b"hello"].concat();
            let payload = parse(&frame).expect("well formed").packet.payload_offset as usize;
            let start = put_before(&mut frame, payload).expect("room");
            assert_eq!(frame[start..start + 45], want);
        }
    }

    #[test]
    fn what_is_no_ip_packet_has_none() {
        let mut other = frame("10.0.0.1", "10.0.0.2");
        assert_eq!(put_before(&mut other, 39), None);
        other[12] = 0x88;
        assert_eq!((area(&other), area(&[])), (None, None));
        assert_eq!(area(&frame("fd00::1", "fd00::2")[..53]), None);
    }
}
