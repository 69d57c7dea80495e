//! Frames of neighbour resolution: from their parts to bytes. What is received is parsed by the engine's `wire`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use roceline_engine::wire::ethernet::{self, Mac};
use roceline_engine::wire::{arp, icmp, icmpv6, ipv4, ipv6};

use super::cache::Probe;
use super::network::Network;

/// All nodes on the link (RFC 4291 section 2.7.1).
pub const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// To everybody on the link.
pub const BROADCAST: Mac = [0xff; 6];

/// What a NIC writes behind its ARP and ND packets, as Ethernet padding, which nobody reads: a random number by which it
/// knows its own frames when a port or a switch sends them back (the purpose of RFC 7527's nonce, for both families).
/// Without it they would look like those of a station with the same addresses.
pub type Mark = [u8; 8];

/// Bytes of the shortest Ethernet frame without FCS; virtual drivers do not pad.
const SHORTEST: usize = 60;
/// Offsets in an IPv6 header (RFC 8200).
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
    let mut packet = [0; ipv6::LEN + icmpv6::LEN];
    let len = message.emit_packet(src, dst, &mut packet);
    let frame = with_ethernet(dst_mac, src_mac, ethernet::TYPE_IPV6, &packet[..len]);
    marked(frame, mark)
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

/// A request for a peer's MAC address.
pub fn request(net: &Network, probe: Probe, mark: Mark) -> Option<Vec<u8>> {
    match (net.source_for(probe.target)?, probe.target) {
        (IpAddr::V4(own), IpAddr::V4(target)) => {
            let packet = arp::Repr {
                operation: arp::Operation::Request,
                sender_mac: net.mac,
                sender_ip: own,
                target_mac: [0; 6],
                target_ip: target,
            };
            Some(arp(probe.mac.unwrap_or(BROADCAST), &packet, mark))
        }
        (IpAddr::V6(own), IpAddr::V6(target)) => {
            let message = icmpv6::Repr::Solicitation {
                target,
                source_mac: Some(net.mac),
            };
            let group = icmpv6::solicited_node(target);
            let to = match probe.mac {
                Some(mac) => (mac, target),
                None => (icmpv6::multicast_mac(group), group),
            };
            Some(nd((net.mac, own), to, &message, mark))
        }
        _ => None,
    }
}

/// Does anybody have our address? (RFC 5227 section 2.1.1, RFC 4862 section 5.4.2)
pub fn look_for(mac: Mac, ip: IpAddr, mark: Mark) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => {
            let probe = arp::Repr {
                operation: arp::Operation::Request,
                sender_mac: mac,
                sender_ip: Ipv4Addr::UNSPECIFIED,
                target_mac: [0; 6],
                target_ip: ip,
            };
            arp(BROADCAST, &probe, mark)
        }
        IpAddr::V6(ip) => {
            let group = icmpv6::solicited_node(ip);
            let probe = icmpv6::Repr::Solicitation {
                target: ip,
                source_mac: None,
            };
            let to = (icmpv6::multicast_mac(group), group);
            nd((mac, Ipv6Addr::UNSPECIFIED), to, &probe, mark)
        }
    }
}

/// We have this address: a gratuitous ARP request (RFC 5227 section 2.3), an unsolicited advertisement (RFC 4861 section
/// 7.2.6).
pub fn announce(mac: Mac, ip: IpAddr, mark: Mark) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => {
            let packet = arp::Repr {
                operation: arp::Operation::Request,
                sender_mac: mac,
                sender_ip: ip,
                target_mac: [0; 6],
                target_ip: ip,
            };
            arp(BROADCAST, &packet, mark)
        }
        IpAddr::V6(ip) => {
            let message = icmpv6::Repr::Advertisement {
                target: ip,
                target_mac: Some(mac),
                router: false,
                solicited: false,
                overrides: true,
            };
            let to = (icmpv6::multicast_mac(ALL_NODES), ALL_NODES);
            nd((mac, ip), to, &message, mark)
        }
    }
}

/// Whether an address can be that of one host.
pub fn is_host(ip: Ipv4Addr) -> bool {
    !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast() || ip.is_loopback())
}
