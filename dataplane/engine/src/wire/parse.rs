//! From a frame to a [`Packet`]: every length is checked before it is used, nothing is allocated, and
//! nothing but header fields is copied. The ICRC is not checked here ([`super::icrc::verify`]), so nothing
//! that was parsed may be believed before it is.

use super::{ExtHeaders, Gid, Opcode, Packet, Psn};
use super::{bth, ethernet, icrc, ipv4, ipv6, plain, udp};

/// A parsed frame: the packet, and what of the frame is not the transport's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedFrame {
    /// The packet.
    pub packet: Packet,
    /// Destination MAC.
    pub eth_dst: ethernet::Mac,
    /// Source MAC.
    pub eth_src: ethernet::Mac,
    /// 802.1Q tag control information, if there was a tag.
    pub tci: Option<u16>,
    /// Offset of the IP header.
    pub l3_offset: u32,
    /// Offset of the ICRC: the end of the UDP datagram less 4. Ethernet padding may follow the ICRC.
    pub icrc_offset: u32,
    /// UDP source port.
    pub udp_sport: u16,
}

/// Why a frame is not a RoCE packet for the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Other traffic: another EtherType, protocol or port. Not an error of the peer.
    #[error("not RoCE v2")]
    NotRoce,
    /// Drop and count it.
    #[error("malformed: {0}")]
    Malformed(#[from] Malformed),
}

/// What is wrong with a frame that claims to be RoCE v2, or that is cut before one can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The packet ends within its headers.
    #[error("the packet in a frame of {0} bytes ends within its headers")]
    Truncated(usize),
    /// IP version does not fit the EtherType.
    #[error("IP version {0} does not fit the EtherType")]
    IpVersion(u8),
    /// IPv4 options, or a header length below 20.
    #[error("IPv4 header of {0} bytes: only 20, without options, is RoCE")]
    IpHeaderLen(usize),
    /// RoCE packets are never fragmented.
    #[error("IPv4 fragment")]
    Fragment,
    /// IPv4 header checksum.
    #[error("wrong IPv4 header checksum")]
    IpChecksum,
    /// IP length longer than the frame, or shorter than the headers.
    #[error("IP length {ip} does not fit a frame with {frame} bytes from the IP header on")]
    IpLen {
        /// Bytes from the IP header on, by that header.
        ip: usize,
        /// Bytes from the IP header on, in the frame.
        frame: usize,
    },
    /// UDP length other than the IP payload.
    #[error("UDP length {udp} in an IP payload of {ip} bytes")]
    UdpLen {
        /// By the UDP header.
        udp: usize,
        /// By the IP header.
        ip: usize,
    },
    /// Transport header version.
    #[error("transport header version {0}: only 0 exists")]
    TransportVersion(u8),
    /// An opcode that the table does not know.
    #[error("unknown opcode {0:#04x}")]
    Opcode(u8),
    /// Shorter than the headers of its opcode, its pad and the ICRC.
    #[error("{opcode:?} in a UDP payload of {len} bytes: too short for headers, pad and ICRC")]
    TooShort {
        /// Opcode.
        opcode: Opcode,
        /// UDP payload.
        len: usize,
    },
    /// The opcode carries no payload.
    #[error("{opcode:?} with {len} bytes of payload and pad: it has none")]
    Payload {
        /// Opcode.
        opcode: Opcode,
        /// Payload and pad.
        len: usize,
    },
    /// Payload and pad together are no multiple of four; a pad without payload never is.
    #[error("{payload} bytes of payload with {pad} bytes of pad")]
    Pad {
        /// Without pad.
        payload: usize,
        /// Pad count.
        pad: usize,
    },
}

/// What the IP header says.
struct Network {
    src: Gid,
    dst: Gid,
    traffic_class: u8,
    header_len: usize,
    payload_len: usize,
}

impl ParsedFrame {
    /// One to be written over by [`parse_into`].
    pub fn blank() -> ParsedFrame {
        ParsedFrame {
            packet: Packet {
                src: Gid::default(),
                dst: Gid::default(),
                opcode: Opcode::RC_ACK,
                solicited: false,
                ack_req: false,
                becn: false,
                ce: false,
                pkey: 0,
                dest_qpn: 0,
                psn: Psn::new(0),
                ext: ExtHeaders::default(),
                payload_len: 0,
                payload_offset: 0,
                traffic_class: 0,
            },
            eth_dst: [0; 6],
            eth_src: [0; 6],
            tci: None,
            l3_offset: 0,
            icrc_offset: 0,
            udp_sport: 0,
        }
    }
}

/// Parses a frame without FCS, which may be longer than the packet in it.
#[inline]
pub fn parse(frame: &[u8]) -> Result<ParsedFrame, ParseError> {
    let mut parsed = ParsedFrame::blank();
    parse_into(frame, &mut parsed)?;
    Ok(parsed)
}

/// The same for whoever has a place for what is found. After an error what is there means nothing.
#[inline]
pub fn parse_into(frame: &[u8], parsed: &mut ParsedFrame) -> Result<(), ParseError> {
    if plain::parse_into(frame, parsed).is_none() {
        *parsed = parse_any(frame)?;
    }
    Ok(())
}

/// Says the same of any frame, and what is wrong with it.
pub(super) fn parse_any(frame: &[u8]) -> Result<ParsedFrame, ParseError> {
    let truncated = Malformed::Truncated(frame.len());
    let Some(eth) = ethernet::Repr::parse(frame) else {
        return Err(ParseError::NotRoce);
    };
    let l3_offset = eth.header_len();
    let l3 = &frame[l3_offset..];
    let network = match eth.ether_type {
        ethernet::TYPE_IPV4 => parse_ipv4(l3, truncated)?,
        ethernet::TYPE_IPV6 => parse_ipv6(l3, truncated)?,
        _ => return Err(ParseError::NotRoce),
    };

    // Only here is it known that the packet claims to be RoCE; parse_ip* let through what they could not judge.
    let datagram = l3.get(network.header_len..).ok_or(truncated)?;
    let udp = udp::Header::new_checked(datagram).ok_or(truncated)?;
    if udp.dst_port() != udp::PORT_ROCE {
        return Err(ParseError::NotRoce);
    }
    if eth.ether_type == ethernet::TYPE_IPV4 {
        check_ipv4(l3, truncated)?;
    }
    if network.payload_len < udp::LEN || network.payload_len > datagram.len() {
        let ip = network.header_len + network.payload_len;
        return Err(Malformed::IpLen {
            ip,
            frame: l3.len(),
        }
        .into());
    }
    if udp.datagram_len() != network.payload_len {
        return Err(Malformed::UdpLen {
            udp: udp.datagram_len(),
            ip: network.payload_len,
        }
        .into());
    }

    let roce = &datagram[udp::LEN..network.payload_len];
    let roce_offset = l3_offset + network.header_len + udp::LEN;
    let bth = bth::Header::new_checked(roce).ok_or(truncated)?;
    if bth.tver() != 0 {
        return Err(Malformed::TransportVersion(bth.tver()).into());
    }
    let opcode = Opcode::from_raw(bth.opcode()).ok_or(Malformed::Opcode(bth.opcode()))?;
    let info = opcode.info();
    let header_len = bth::LEN + usize::from(info.ext_len);
    let pad = bth.pad();
    let too_short = Malformed::TooShort {
        opcode,
        len: roce.len(),
    };
    let payload_len = roce
        .len()
        .checked_sub(header_len + pad + icrc::LEN)
        .ok_or(too_short)?;
    if !info.payload && payload_len + pad != 0 {
        return Err(Malformed::Payload {
            opcode,
            len: payload_len + pad,
        }
        .into());
    }
    if (payload_len + pad) % 4 != 0 {
        return Err(Malformed::Pad {
            payload: payload_len,
            pad,
        }
        .into());
    }
    let ext = ExtHeaders::parse(info.headers, &roce[bth::LEN..]).ok_or(too_short)?;

    Ok(ParsedFrame {
        packet: Packet {
            src: network.src,
            dst: network.dst,
            opcode,
            solicited: bth.solicited(),
            ack_req: bth.ack_req(),
            becn: bth.becn(),
            ce: network.traffic_class & 3 == 3,
            pkey: bth.pkey(),
            dest_qpn: bth.dest_qpn(),
            psn: bth.psn(),
            ext,
            payload_len: payload_len as u32,
            payload_offset: (roce_offset + header_len) as u32,
            traffic_class: network.traffic_class,
        },
        eth_dst: eth.dst,
        eth_src: eth.src,
        tci: eth.tci,
        l3_offset: l3_offset as u32,
        icrc_offset: (roce_offset + roce.len() - icrc::LEN) as u32,
        udp_sport: udp.src_port(),
    })
}

/// Reads the IPv4 header as far as is needed to find the UDP header.
#[inline]
fn parse_ipv4(l3: &[u8], truncated: Malformed) -> Result<Network, ParseError> {
    let ip = ipv4::Header::new_checked(l3).ok_or(truncated)?;
    if ip.version() != 4 {
        return Err(Malformed::IpVersion(ip.version()).into());
    }
    if ip.protocol() != ipv4::PROTOCOL_UDP || ip.is_later_fragment() {
        return Err(ParseError::NotRoce);
    }
    Ok(Network {
        src: Gid::from_ip(ip.src().into()),
        dst: Gid::from_ip(ip.dst().into()),
        traffic_class: ip.tos(),
        header_len: ip.header_len(),
        payload_len: ip.total_len().saturating_sub(ip.header_len()),
    })
}

/// What else RoCE asks of an IPv4 header.
#[inline]
fn check_ipv4(l3: &[u8], truncated: Malformed) -> Result<(), Malformed> {
    let ip = ipv4::Header::new_checked(l3).ok_or(truncated)?;
    if ip.header_len() != ipv4::LEN {
        return Err(Malformed::IpHeaderLen(ip.header_len()));
    }
    if ip.is_fragment() {
        return Err(Malformed::Fragment);
    }
    if !ip.checksum_ok() {
        return Err(Malformed::IpChecksum);
    }
    Ok(())
}

#[inline]
fn parse_ipv6(l3: &[u8], truncated: Malformed) -> Result<Network, ParseError> {
    let ip = ipv6::Header::new_checked(l3).ok_or(truncated)?;
    if ip.version() != 6 {
        return Err(Malformed::IpVersion(ip.version()).into());
    }
    if ip.next_header() != ipv4::PROTOCOL_UDP {
        return Err(ParseError::NotRoce);
    }
    Ok(Network {
        src: Gid(ip.src()),
        dst: Gid(ip.dst()),
        traffic_class: ip.traffic_class(),
        header_len: ipv6::LEN,
        payload_len: ip.payload_len(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Psn;

    /// RC SEND only of 5 bytes with 3 of pad; its ICRC is not right.
    fn send_only() -> Vec<u8> {
        let mut f = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        f.extend([
            0x45, 0, 0, 52, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        f.extend([0xc0, 0, 0x12, 0xb7, 0, 32, 0, 0]);
        f.extend([4, 0xb0, 0xff, 0xff, 0, 0, 0, 7, 0x80, 0, 1, 0]);
        f.extend([1, 2, 3, 4, 5, 0, 0, 0]);
        f.extend([0; 4]);
        fixed(f)
    }

    /// The same with a right IPv4 checksum.
    fn fixed(mut frame: Vec<u8>) -> Vec<u8> {
        let mut header: [u8; ipv4::LEN] = frame[14..34].try_into().expect("20 bytes");
        header[10..12].fill(0);
        let (len, id) = ([header[2], header[3]], [header[4], header[5]]);
        header[2..6].fill(0);
        let base = ipv4::sum(&header);
        ipv4::set_variable(
            &mut header,
            0,
            u16::from_be_bytes(len),
            u16::from_be_bytes(id),
            base,
        );
        frame[14..34].copy_from_slice(&header);
        frame
    }

    #[test]
    fn well_formed() {
        let frame = send_only();
        let parsed = parse(&frame).expect("well formed");
        let p = parsed.packet;
        assert_eq!(
            (p.opcode, p.dest_qpn, p.psn),
            (Opcode::RC_SEND_ONLY, 7, Psn::new(0x100))
        );
        assert!(p.solicited && p.ack_req && !p.ce && !p.becn);
        assert_eq!(
            (p.payload_offset, p.payload_len, parsed.icrc_offset),
            (54, 5, 62)
        );
        assert_eq!(
            (parsed.l3_offset, parsed.tci, parsed.udp_sport),
            (14, None, 0xc000)
        );
        assert_eq!(frame.len(), 66);
    }

    #[test]
    fn tag_and_ethernet_padding_move_nothing_else() {
        let mut frame = send_only();
        frame.splice(12..12, [0x81, 0, 0x60, 5]);
        frame.extend([0xee; 9]);
        let parsed = parse(&frame).expect("well formed");
        assert_eq!((parsed.tci, parsed.l3_offset), (Some(0x6005), 18));
        assert_eq!((parsed.packet.payload_offset, parsed.icrc_offset), (58, 66));
    }

    #[test]
    fn congestion_experienced() {
        let mut frame = send_only();
        for (tos, ce) in [(0x68, false), (0x69, false), (0x6a, false), (0x6b, true)] {
            frame[15] = tos;
            let p = parse(&fixed(frame.clone())).expect("well formed").packet;
            assert_eq!((p.ce, p.traffic_class), (ce, tos));
        }
    }

    /// Sets all lengths for `len` bytes of UDP payload and cuts the frame there.
    fn resize(frame: &mut Vec<u8>, len: u8) {
        frame[17] = 28 + len;
        frame[39] = 8 + len;
        frame.truncate(42 + usize::from(len));
    }

    /// Each change makes the frame malformed for its own reason.
    #[test]
    fn malformed() {
        use Malformed::{
            Fragment, IpHeaderLen, IpLen, IpVersion, Pad, Payload, TooShort, TransportVersion,
            Truncated, UdpLen,
        };
        type Change = fn(&mut Vec<u8>);
        let cases: [(Change, Malformed); 17] = [
            (|f| f.truncate(30), Truncated(30)),
            (|f| f.truncate(41), Truncated(41)),
            (|f| f.truncate(65), IpLen { ip: 52, frame: 51 }),
            (|f| f[14] = 0x65, IpVersion(6)),
            (|f| f[20] = 0x20, Fragment),
            (|f| f[17] = 53, IpLen { ip: 53, frame: 52 }),
            (|f| f[17] = 27, IpLen { ip: 27, frame: 52 }),
            (|f| f[17] = 51, UdpLen { udp: 32, ip: 31 }),
            (|f| f[39] = 33, UdpLen { udp: 33, ip: 32 }),
            (|f| f[43] = 0xb1, TransportVersion(1)),
            (|f| f[42] = 0x15, Malformed::Opcode(0x15)),
            (|f| resize(f, 23), Pad { payload: 4, pad: 3 }),
            (|f| resize(f, 19), Pad { payload: 0, pad: 3 }),
            (
                |f| f[42] = 0x11,
                Payload {
                    opcode: Opcode::RC_ACK,
                    len: 4,
                },
            ),
            (
                |f| f[42] = 0x0a,
                TooShort {
                    opcode: Opcode::RC_WRITE_ONLY,
                    len: 24,
                },
            ),
            (
                |f| resize(f, 18),
                TooShort {
                    opcode: Opcode::RC_SEND_ONLY,
                    len: 18,
                },
            ),
            (|f| resize(f, 11), Truncated(53)),
        ];
        for (i, (change, want)) in cases.into_iter().enumerate() {
            let mut frame = send_only();
            change(&mut frame);
            if frame.len() >= 34 {
                frame = fixed(frame);
            }
            assert_eq!(
                parse(&frame).expect_err("malformed"),
                want.into(),
                "case {i}"
            );
        }

        let mut frame = send_only();
        frame[22] ^= 1;
        assert_eq!(
            parse(&frame).expect_err("TTL changed"),
            Malformed::IpChecksum.into()
        );

        // four bytes of options: the UDP header is found behind them, and then the options are refused
        let mut frame = send_only();
        frame.splice(34..34, [1; 4]);
        frame[14] = 0x46;
        assert_eq!(parse(&frame).expect_err("options"), IpHeaderLen(24).into());
    }

    /// The quick way is the slow one, for what it takes, and it takes what is right.
    #[test]
    fn plain_frames_parse_to_the_same() {
        let frame = send_only();
        assert!(plain::parse(&frame).is_some());
        for len in 0..=frame.len() {
            let cut = &frame[..len];
            assert_eq!(
                plain::parse(cut).is_some(),
                parse_any(cut).is_ok(),
                "{len} bytes"
            );
        }
        for at in 0..frame.len() {
            for change in 1..=255 {
                let mut frame = frame.clone();
                frame[at] ^= change;
                for frame in [frame.clone(), fixed(frame)] {
                    let slow = parse_any(&frame).ok();
                    if let Some(quick) = plain::parse(&frame) {
                        assert_eq!(Some(quick), slow, "byte {at} ^ {change:#x}");
                    } else if let Some(slow) = slow {
                        panic!("byte {at} ^ {change:#x} is as good as {slow:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn other_traffic_is_not_roce() {
        type Change = fn(&mut Vec<u8>);
        let cases: [Change; 6] = [
            |f| f.truncate(13),
            |f| f[13] = 0x06, // ARP
            |f| f[23] = 6,    // TCP
            |f| f[37] = 53,   // another port
            |f| f[21] = 1,    // a later fragment
            |f| f[14] = 0x40, // no header length: no port to be found
        ];
        for (i, change) in cases.into_iter().enumerate() {
            let mut frame = send_only();
            change(&mut frame);
            assert_eq!(
                parse(&frame).expect_err("not RoCE"),
                ParseError::NotRoce,
                "case {i}"
            );
        }
    }
}
