//! Headers of a QP's packets, rendered once when its path is known; per packet only what differs is
//! filled in.
//!
//! The caller lays out a frame of [`HeaderTemplate::frame_len`] bytes: [`HeaderTemplate::write`] fills its
//! headers, and [`super::icrc::seal_burst`] puts payload, pad and ICRC behind the headers of a whole burst.

use crate::descriptor::TxDesc;
use crate::verbs::Path;

use super::{ExtHeaders, Gid, Opcode, bth, ethernet, icrc, ipv4, ipv6, udp};

const ETH_IP_V4: usize = ethernet::LEN + ipv4::LEN;
const ETH_IP_V6: usize = ethernet::LEN + ipv6::LEN;
const BASE_V4: usize = ETH_IP_V4 + udp::LEN + bth::LEN;
const BASE_V6: usize = ETH_IP_V6 + udp::LEN + bth::LEN;

/// TTL or hop limit where the path says 0, as soft-RoCE has it.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// Ethernet, IP, UDP and BTH of the packets to one peer QP.
#[derive(Clone, Debug)]
pub struct HeaderTemplate(Kind);

#[derive(Clone, Debug)]
enum Kind {
    /// With the sum of the IPv4 header's words while length, id and checksum are zero.
    V4([u8; BASE_V4], u32),
    V6([u8; BASE_V6]),
}

impl HeaderTemplate {
    /// Offset of the IP header in every frame.
    pub const L3_OFFSET: usize = ethernet::LEN;

    /// Renders the headers. IPv4 is used when both GIDs are IPv4 addresses.
    pub fn new(path: &Path, src_udp_port: u16, dest_qpn: u32, pkey: u16) -> HeaderTemplate {
        let hop_limit = match path.hop_limit {
            0 => DEFAULT_HOP_LIMIT,
            n => n,
        };
        let mut eth = ethernet::Repr {
            dst: path.dmac,
            src: path.smac,
            tci: None,
            ether_type: ethernet::TYPE_IPV6,
        };
        let mut udp = [0; udp::LEN];
        udp::emit(&mut udp, src_udp_port);
        let mut bth = [0; bth::LEN];
        bth::emit(&mut bth, pkey, dest_qpn);
        if let (Some(src), Some(dst)) = (path.sgid.ipv4(), path.dgid.ipv4()) {
            eth.ether_type = ethernet::TYPE_IPV4;
            let mut ip = [0; ipv4::LEN];
            ipv4::Repr {
                src,
                dst,
                tos: path.traffic_class,
                ttl: hop_limit,
            }
            .emit(&mut ip);
            HeaderTemplate(Kind::V4(join(&eth, &ip, &udp, &bth), ipv4::sum(&ip)))
        } else {
            let mut ip = [0; ipv6::LEN];
            let repr = ipv6::Repr {
                src: ipv6_of(path.sgid),
                dst: ipv6_of(path.dgid),
                traffic_class: path.traffic_class,
                flow_label: path.flow_label,
                hop_limit,
            };
            repr.emit(&mut ip);
            HeaderTemplate(Kind::V6(join(&eth, &ip, &udp, &bth)))
        }
    }

    /// Puts the destination of a datagram into headers that [`HeaderTemplate::write`] wrote with the template of its
    /// address handle, which has none. Nothing happens if `out` is shorter than they are.
    #[inline]
    pub fn set_dest_qpn(&self, out: &mut [u8], dest_qpn: u32) {
        let at = match self.0 {
            Kind::V4(..) => ETH_IP_V4 + udp::LEN,
            Kind::V6(..) => ETH_IP_V6 + udp::LEN,
        };
        if let Some(bth) = out.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
            bth::set_dest_qpn(bth, dest_qpn);
        }
    }

    /// The headers of CNPs to the same QP: with `traffic_class` and the source port that CNPs have.
    pub fn for_cnp(&self, traffic_class: u8) -> HeaderTemplate {
        let mut cnp = self.clone();
        match &mut cnp.0 {
            Kind::V4(bytes, sum) => {
                *sum = ipv4::set_tos(bytes, ethernet::LEN, traffic_class);
                udp::set_src_port(bytes, ETH_IP_V4, udp::CNP_SRC_PORT);
            }
            Kind::V6(bytes) => {
                ipv6::set_traffic_class(bytes, ethernet::LEN, traffic_class);
                udp::set_src_port(bytes, ETH_IP_V6, udp::CNP_SRC_PORT);
            }
        }
        cnp
    }

    /// Gives a written packet another DSCP; its ECN field stays. The ICRC is not about either.
    #[cold]
    pub fn set_dscp(&self, out: &mut [u8], dscp: u8) {
        let Some(l3) = out.get_mut(ethernet::LEN..) else {
            return;
        };
        match &self.0 {
            Kind::V4(..) => {
                if let [_, tos, ..] = l3 {
                    *tos = dscp << 2 | *tos & 3;
                }
                ipv4::set_checksum(l3);
            }
            Kind::V6(..) => {
                if let Some(first) = l3.first_chunk_mut::<2>() {
                    let ecn = first[1] >> 4 & 3;
                    ipv6::set_traffic_class(first, 0, dscp << 2 | ecn);
                }
            }
        }
    }

    /// Bytes of all headers of a packet with this opcode: the offset of its payload.
    #[inline]
    pub fn header_len(&self, opcode: Opcode) -> usize {
        let base = match self.0 {
            Kind::V4(..) => BASE_V4,
            Kind::V6(..) => BASE_V6,
        };
        base + usize::from(opcode.info().ext_len)
    }

    /// Bytes of the whole frame, from the Ethernet header to the ICRC: 58 at least. Padding to the 60 bytes of the
    /// smallest Ethernet frame is the port's affair.
    #[inline]
    pub fn frame_len(&self, opcode: Opcode, payload_len: u32) -> usize {
        let payload_len = payload_len as usize;
        self.header_len(opcode) + payload_len + pad_len(payload_len) + icrc::LEN
    }

    /// Writes all headers of the packet that `desc` describes, `desc.len` bytes of payload included in the
    /// lengths, and returns how many bytes they take. `None` if `out` is shorter than that or the packet longer
    /// than IP allows; `out` then holds nothing of use.
    #[inline]
    pub fn write(&self, desc: &TxDesc, ip_id: u16, out: &mut [u8]) -> Option<usize> {
        let info = desc.opcode.info();
        let payload_len = desc.len as usize;
        let pad = pad_len(payload_len);
        let ext_len = usize::from(info.ext_len);
        let udp_len = udp::LEN + bth::LEN + ext_len + payload_len + pad + icrc::LEN;
        let bth = bth::Variable {
            opcode: desc.opcode.raw(),
            solicited: desc.solicited,
            pad: pad as u8,
            becn: desc.opcode == Opcode::CNP,
            ack_req: desc.ack_req,
            psn: desc.psn,
        };
        let (base_len, ext) = match &self.0 {
            Kind::V4(template, sum) => {
                let total_len = u16::try_from(ipv4::LEN + udp_len).ok()?;
                let (head, ext) = out.split_first_chunk_mut::<BASE_V4>()?;
                *head = *template;
                ipv4::set_variable(head, ethernet::LEN, total_len, ip_id, *sum);
                udp::set_variable(head, ETH_IP_V4, udp_len as u16);
                bth::set_variable(head, ETH_IP_V4 + udp::LEN, &bth);
                (BASE_V4, ext)
            }
            Kind::V6(template) => {
                let payload_len = u16::try_from(udp_len).ok()?;
                let (head, ext) = out.split_first_chunk_mut::<BASE_V6>()?;
                *head = *template;
                ipv6::set_variable(head, ethernet::LEN, payload_len);
                udp::set_variable(head, ETH_IP_V6, payload_len);
                bth::set_variable(head, ETH_IP_V6 + udp::LEN, &bth);
                (BASE_V6, ext)
            }
        };
        ExtHeaders::emit(&desc.ext, info.headers, ext)?;
        Some(base_len + ext_len)
    }
}

impl HeaderTemplate {
    /// Writes the headers and says where the payload is: [`icrc::seal_burst`] does the rest. `frame` has the length that
    /// [`HeaderTemplate::frame_len`] says; `None` if it or `payload` has not that of `desc`.
    #[inline]
    pub fn build<'a>(
        &self,
        desc: &TxDesc,
        ip_id: u16,
        frame: &'a mut [u8],
        payload: &'a [u8],
    ) -> Option<icrc::Seal<'a>> {
        if payload.len() != desc.len as usize {
            return None;
        }
        let header_len = self.write(desc, ip_id, frame)?;
        icrc::Seal::copy(frame, header_len, payload)
    }
}

/// Bytes of zeros that bring a payload to a multiple of four (IBTA section 9.2.4).
#[inline]
pub const fn pad_len(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

fn ipv6_of(gid: Gid) -> core::net::Ipv6Addr {
    gid.0.into()
}

fn join<const N: usize>(eth: &ethernet::Repr, ip: &[u8], udp: &[u8], bth: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let mut l2 = [0; ethernet::LEN];
    eth.emit(&mut l2);
    let parts = l2.iter().chain(ip).chain(udp).chain(bth);
    for (to, from) in out.iter_mut().zip(parts) {
        *to = *from;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::{Payload, Side};
    use crate::verbs::QpId;
    use crate::wire::{Psn, parse, udp_sport};

    fn path(src: &str, dst: &str) -> Path {
        Path {
            sgid: Gid::from_ip(src.parse().expect("address")),
            dgid: Gid::from_ip(dst.parse().expect("address")),
            smac: [2, 0, 0, 0, 0, 1],
            dmac: [2, 0, 0, 0, 0, 2],
            ..Path::default()
        }
    }

    fn desc(opcode: Opcode, len: u32) -> TxDesc {
        TxDesc {
            qp: QpId(1),
            epoch: 0,
            side: Side::Requester,
            opcode,
            ack_req: true,
            solicited: true,
            psn: Psn::new(0xabcdef),
            ext: ExtHeaders::default(),
            len,
            payload: Payload::None,
            ..TxDesc::default()
        }
    }

    fn frame(template: &HeaderTemplate, desc: &TxDesc) -> Vec<u8> {
        let mut out = vec![0; template.frame_len(desc.opcode, desc.len)];
        let len = template.write(desc, 7, &mut out).expect("room");
        assert_eq!(len, template.header_len(desc.opcode));
        assert!(icrc::seal(&mut out, HeaderTemplate::L3_OFFSET));
        out
    }

    #[test]
    fn another_dscp_leaves_ecn_and_both_checksums_right() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let path = Path {
                traffic_class: 26 << 2 | 2,
                flow_label: 0xabcde,
                ..path(src, dst)
            };
            let template = HeaderTemplate::new(&path, 0xc001, 0x12_3456, 0xffff);
            let mut bytes = frame(&template, &desc(Opcode::RC_ACK, 0));
            let before = bytes.clone();
            template.set_dscp(&mut bytes, 48);
            let parsed = parse(&bytes).expect("well formed, its checksum right");
            assert_eq!(parsed.packet.traffic_class, 48 << 2 | 2);
            assert!(icrc::verify(&bytes, &parsed));
            template.set_dscp(&mut bytes, 26);
            assert_eq!(bytes, before);
        }
    }

    /// Every opcode, every pad, both address families: what is written parses to the same and verifies.
    #[test]
    fn every_opcode_parses_back() {
        let ext = ExtHeaders {
            va: 1 << 40,
            rkey: 2,
            dma_len: 3,
            aeth: 4,
            ..ExtHeaders::default()
        };
        for path in [path("10.0.0.1", "10.0.0.2"), path("fd00::1", "fd00::2")] {
            let template = HeaderTemplate::new(&path, 0xc001, 0x12_3456, 0xffff);
            for &opcode in Opcode::ALL {
                let set = opcode.info().headers;
                for len in if opcode.info().payload { 0..6 } else { 0..1 } {
                    let mut desc = desc(opcode, len);
                    // only what this opcode carries comes back
                    let mut bytes = [0; 32];
                    ext.emit(set, &mut bytes).expect("room");
                    desc.ext = ExtHeaders::parse(set, &bytes).expect("room");
                    let frame = frame(&template, &desc);
                    assert!(frame.len() >= 58, "{opcode:?}");
                    let parsed = parse(&frame).expect("well formed");
                    let p = parsed.packet;
                    assert!(icrc::verify(&frame, &parsed));
                    assert_eq!((p.opcode, p.payload_len, p.ext), (opcode, len, desc.ext));
                    assert_eq!((p.src, p.dst), (path.sgid, path.dgid));
                    assert_eq!((p.dest_qpn, p.psn, p.pkey), (0x12_3456, desc.psn, 0xffff));
                    assert!(p.ack_req && p.solicited && p.becn == (opcode == Opcode::CNP));
                    assert_eq!((parsed.eth_src, parsed.eth_dst), (path.smac, path.dmac));
                }
            }
        }
    }

    /// The notification packet captured from a ConnectX-4 Lx (see `icrc`), by way of the template.
    #[test]
    fn congestion_notification_of_a_real_nic() {
        let mut path = path("10.0.17.1", "10.0.18.1");
        path.traffic_class = 26 << 2;
        path.smac = [0x7c, 0xfe, 0x90, 0x64, 0x3b, 0x32];
        path.dmac = [0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2];
        let mut cnp = desc(Opcode::CNP, 0);
        (cnp.ack_req, cnp.solicited, cnp.psn) = (false, false, Psn::new(0));
        // That of the queue pair's other packets, which have a class and a source port of their own.
        let template = HeaderTemplate::new(&path, 0xc123, 0x118, 0xffff).for_cnp(0xc2);
        let mut out = vec![0xee; template.frame_len(Opcode::CNP, 0)];
        template.write(&cnp, 0x718c, &mut out).expect("room");
        assert!(icrc::seal(&mut out, HeaderTemplate::L3_OFFSET));
        assert_eq!(out, icrc::tests::CAPTURED_CNP);
    }

    #[test]
    fn a_notification_over_ipv6_has_its_class_and_port() {
        let mut path = path("fd00::1", "fd00::2");
        (path.flow_label, path.traffic_class) = (0x1_2345, 26 << 2);
        let template = HeaderTemplate::new(&path, 0xc123, 0x118, 0xffff).for_cnp(0xba);
        let bytes = frame(&template, &desc(Opcode::CNP, 0));
        let parsed = parse(&bytes).expect("well formed");
        assert_eq!((parsed.packet.traffic_class, parsed.udp_sport), (0xba, 0));
        let ip = ipv6::Header::new_checked(&bytes[14..]).expect("40 bytes");
        assert_eq!((ip.flow_label(), ip.version()), (0x1_2345, 6));
    }

    #[test]
    fn path_fields_reach_the_ip_header() {
        let mut path = path("fd00::1", "fd00::2");
        (path.flow_label, path.traffic_class, path.hop_limit) = (0x1_2345, 0x6a, 3);
        let sport = udp_sport(path.flow_label, 1, 2);
        let bytes = frame(
            &HeaderTemplate::new(&path, sport, 1, 0xffff),
            &desc(Opcode::RC_ACK, 0),
        );
        let ip = ipv6::Header::new_checked(&bytes[14..]).expect("40 bytes");
        assert_eq!(
            (ip.flow_label(), ip.traffic_class(), ip.hop_limit()),
            (0x1_2345, 0x6a, 3)
        );
        assert_eq!(parse(&bytes).expect("well formed").udp_sport, 0xe341);
    }

    #[test]
    fn no_room_and_too_long() {
        for path in [path("10.0.0.1", "10.0.0.2"), path("fd00::1", "fd00::2")] {
            let template = HeaderTemplate::new(&path, 0xc000, 1, 0xffff);
            let len = template.header_len(Opcode::RC_CMP_SWAP);
            let atomic = desc(Opcode::RC_CMP_SWAP, 0);
            for short in 0..len {
                assert_eq!(template.write(&atomic, 0, &mut vec![0; short]), None);
            }
            assert_eq!(template.write(&atomic, 0, &mut vec![0; len]), Some(len));
            let mut out = [0; 128];
            for long in [65_536, u32::MAX] {
                assert_eq!(
                    template.write(&desc(Opcode::RC_SEND_ONLY, long), 0, &mut out),
                    None
                );
            }
        }
    }

    #[test]
    fn built_with_its_payload() {
        for path in [path("10.0.0.1", "10.0.0.2"), path("fd00::1", "fd00::2")] {
            let template = HeaderTemplate::new(&path, 0xc000, 1, 0xffff);
            let desc = desc(Opcode::RC_WRITE_ONLY, 5);
            let mut out = vec![0xee; template.frame_len(desc.opcode, desc.len)];
            for wrong in [&[1; 4][..], &[1; 6]] {
                assert!(template.build(&desc, 7, &mut out, wrong).is_none());
            }
            let seal = template.build(&desc, 7, &mut out, &[1, 2, 3, 4, 5]);
            icrc::seal_burst(&mut [seal.expect("lengths that add up")]);
            let parsed = parse(&out).expect("well formed");
            assert!(icrc::verify(&out, &parsed));
            let payload = &out[parsed.packet.payload_offset as usize..];
            assert_eq!(payload[..8], [1, 2, 3, 4, 5, 0, 0, 0]);
        }
    }

    #[test]
    fn pads() {
        assert_eq!([0, 1, 2, 3, 4, 5].map(pad_len), [0, 3, 2, 1, 0, 3]);
    }
}
