//! Frames of neighbour resolution: from their parts to bytes. What is received is parsed by the engine's `wire`.

use std::net::{Ipv4Addr, Ipv6Addr};

use roceline_engine::wire::ethernet::{self, Mac};
use roceline_engine::wire::{arp, icmp, icmpv6, ipv4, ipv6};

/// To everybody on the link.
pub const BROADCAST: Mac = [0xff; 6];

/// What a NIC writes behind its ARP and ND packets, as Ethernet padding, which nobody reads: a random number by which it
/// knows its own frames when a port or a switch sends them back (the purpose of RFC 7527's nonce, for both families).
/// Without it they would look like those of a station with the same addresses.
pub type Mark = [u8; 8];

/// Bytes of the shortest Ethernet frame without FCS; virtual drivers do not pad.
const SHORTEST: usize = 60;
/// Offsets in an IPv6 header (RFC 8200).
const IPV6_PAYLOAD_LEN: usize = 4;
const IPV6_NEXT_HEADER: usize = 6;
const IPV6_HOP_LIMIT: usize = 7;
const IPV6_SRC: usize = 8;
const IPV6_DST: usize = 24;
/// Offsets in an IPv4 header (RFC 791).
const IPV4_TTL: usize = 8;
const IPV4_SRC: usize = 12;
const IPV4_DST: usize = 16;
/// TTL and hop limit of echo replies.
const HOPS: u8 = 64;

fn with_ethernet(dst: Mac, src: Mac, ether_type: u16, body: &[u8]) -> Vec<u8> {
    let mut header = [0; ethernet::LEN];
    ethernet::Repr {
        dst,
        src,
        tci: None,
        ether_type,
    }
    .emit(&mut header);
    [&header[..], body].concat()
}

/// Brings a frame to the shortest length.
fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    if frame.len() < SHORTEST {
        frame.resize(SHORTEST, 0);
    }
    frame
}

fn marked(mut frame: Vec<u8>, mark: Mark) -> Vec<u8> {
    // The shortest frame has room for it.
    let at = frame.len().max(SHORTEST - mark.len());
    frame.resize(at, 0);
    frame.extend_from_slice(&mark);
    frame
}

/// An ARP packet.
pub fn arp(dst: Mac, packet: &arp::Repr, mark: Mark) -> Vec<u8> {
    let mut body = [0; arp::LEN];
    packet.emit(&mut body);
    marked(
        with_ethernet(dst, packet.sender_mac, arp::ETHER_TYPE, &body),
        mark,
    )
}

/// A neighbour solicitation or advertisement from `src` to `dst`.
pub fn nd(
    (src_mac, src): (Mac, Ipv6Addr),
    (dst_mac, dst): (Mac, Ipv6Addr),
    message: &icmpv6::Repr,
    mark: Mark,
) -> Vec<u8> {
    let mut body = [0; icmpv6::LEN];
    let len = message.emit(src, dst, &mut body);
    let mut header = [0; ipv6::LEN];
    ipv6::Repr {
        src,
        dst,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: icmpv6::HOP_LIMIT,
    }
    .emit(&mut header);
    header[IPV6_PAYLOAD_LEN..IPV6_NEXT_HEADER].copy_from_slice(&(len as u16).to_be_bytes());
    header[IPV6_NEXT_HEADER] = icmpv6::NEXT_HEADER;
    let packet = [&header[..], &body[..len]].concat();
    marked(
        with_ethernet(dst_mac, src_mac, ethernet::TYPE_IPV6, &packet),
        mark,
    )
}

/// The reply to an ICMP echo request that was sent to `own`; `None` if the frame is none, or is not in order.
pub fn echo_reply(frame: &[u8], own: Mac, is_own: impl Fn(Ipv4Addr) -> bool) -> Option<Vec<u8>> {
    let eth = ethernet::Repr::parse(frame).filter(|eth| eth.dst == own && eth.tci.is_none())?;
    let l3 = frame.get(ethernet::LEN..)?;
    let ip = ipv4::Header::new_checked(l3)?;
    let in_order = ip.version() == 4
        && ip.header_len() == ipv4::LEN
        && ip.protocol() == icmp::PROTOCOL
        && !ip.is_fragment()
        && ip.checksum_ok()
        && is_own(ip.dst())
        && is_host(ip.src());
    if !in_order {
        return None;
    }
    let mut packet = l3.get(..ip.total_len())?.to_vec();
    if !icmp::answer_echo(packet.get_mut(ipv4::LEN..)?) {
        return None;
    }
    packet[IPV4_SRC..IPV4_DST].copy_from_slice(&ip.dst().octets());
    packet[IPV4_DST..ipv4::LEN].copy_from_slice(&ip.src().octets());
    packet[IPV4_TTL] = HOPS;
    ipv4::set_checksum(&mut packet);
    Some(padded(with_ethernet(
        eth.src,
        own,
        ethernet::TYPE_IPV4,
        &packet,
    )))
}

/// The same for ICMPv6.
pub fn echo_reply_v6(frame: &[u8], own: Mac, is_own: impl Fn(Ipv6Addr) -> bool) -> Option<Vec<u8>> {
    let eth = ethernet::Repr::parse(frame).filter(|eth| eth.dst == own && eth.tci.is_none())?;
    let l3 = frame.get(ethernet::LEN..)?;
    let ip = ipv6::Header::new_checked(l3)?;
    let (src, dst) = (Ipv6Addr::from(ip.src()), Ipv6Addr::from(ip.dst()));
    let in_order = ip.version() == 6
        && ip.next_header() == icmpv6::NEXT_HEADER
        && is_own(dst)
        && !src.is_unspecified()
        && !src.is_multicast();
    if !in_order {
        return None;
    }
    let mut packet = l3.get(..ipv6::LEN + ip.payload_len())?.to_vec();
    if !icmp::answer_echo_v6(packet.get_mut(ipv6::LEN..)?, src, dst) {
        return None;
    }
    packet[IPV6_SRC..IPV6_DST].copy_from_slice(&dst.octets());
    packet[IPV6_DST..ipv6::LEN].copy_from_slice(&src.octets());
    packet[IPV6_HOP_LIMIT] = HOPS;
    Some(padded(with_ethernet(
        eth.src,
        own,
        ethernet::TYPE_IPV6,
        &packet,
    )))
}

/// Whether an address can be that of one host.
pub fn is_host(ip: Ipv4Addr) -> bool {
    !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast() || ip.is_loopback())
}
