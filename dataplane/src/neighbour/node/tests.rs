use super::super::cache::Probe;
use super::frame::{ALL_NODES, BROADCAST, announce, look_for, request};
use super::*;

const OWN: Mac = [2, 0x52, 0x4c, 0, 0, 1];
const PEER: Mac = [2, 0, 0, 0, 0, 9];

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn v4(text: &str) -> Ipv4Addr {
    text.parse().expect("an address")
}

fn v6(text: &str) -> Ipv6Addr {
    text.parse().expect("an address")
}

fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

fn network(mac: Mac, last: u8) -> Network {
    let addrs = [
        (format!("10.0.0.{last}"), 24),
        (format!("fd00::{last}"), 64),
        (format!("fe80::{last}"), 64),
    ];
    Network {
        name: "roce0".into(),
        mac,
        addrs: addrs.map(|(text, bits)| (ip(&text), bits)).to_vec(),
        gateways: vec![],
        wired: true,
        known: Default::default(),
        peers: vec![],
    }
}

/// A NIC that has had its addresses for long.
fn settled() -> Node {
    let mut node = Node::new(Arc::new(network(OWN, 1)));
    node.link(true, ms(0));
    for at in 0..100 {
        node.timers(ms(at * 100), &mut Outbox::default());
    }
    node
}

/// After `settled`.
const NOW: Nanos = Nanos::from_millis(20_000);

fn hear(node: &mut Node, frame: &[u8], now: Nanos) -> Outbox {
    let mut out = Outbox::default();
    node.frame(frame, now, &mut out);
    out
}

fn arp_of(operation: arp::Operation, mac: Mac, sender: &str, target: &str) -> Vec<u8> {
    let packet = arp::Repr {
        operation,
        sender_mac: mac,
        sender_ip: v4(sender),
        target_mac: [0; 6],
        target_ip: v4(target),
    };
    frame::arp(BROADCAST, &packet, [0; 8])
}

fn request_of(mac: Mac, sender: &str, target: &str) -> Vec<u8> {
    arp_of(arp::Operation::Request, mac, sender, target)
}

fn reply_of(mac: Mac, sender: &str, target: &str) -> Vec<u8> {
    arp_of(arp::Operation::Reply, mac, sender, target)
}

/// Two NICs on one wire: frames go to and fro until there are none.
fn exchange(a: &mut Node, b: &mut Node, now: Nanos) -> usize {
    let mut count = 0;
    let (mut from_a, mut from_b) = (Outbox::default(), Outbox::default());
    a.timers(now, &mut from_a);
    b.timers(now, &mut from_b);
    while !from_a.frames.is_empty() || !from_b.frames.is_empty() {
        let (to_b, to_a) = (
            std::mem::take(&mut from_a.frames),
            std::mem::take(&mut from_b.frames),
        );
        count += to_a.len() + to_b.len();
        to_b.iter().for_each(|f| b.frame(f, now, &mut from_b));
        to_a.iter().for_each(|f| a.frame(f, now, &mut from_a));
    }
    count
}

#[test]
fn two_nics_find_each_other_by_every_kind_of_address() {
    let mut a = settled();
    let mut b = Node::new(Arc::new(network(PEER, 9)));
    b.link(true, ms(0));
    (0..100).for_each(|at| b.timers(ms(at * 100), &mut Outbox::default()));
    for text in ["10.0.0.9", "fd00::9", "fe80::9"] {
        assert_eq!(a.ask(ip(text), NOW), Lookup::Pending);
    }
    // A request and a reply each; the reply's end knows the other from then on.
    assert_eq!(exchange(&mut a, &mut b, NOW), 6);
    for text in ["10.0.0.9", "fd00::9", "fe80::9"] {
        assert_eq!(a.ask(ip(text), NOW), Lookup::Known(PEER), "{text}");
    }
    for text in ["10.0.0.1", "fd00::1", "fe80::1"] {
        assert_eq!(b.ask(ip(text), NOW), Lookup::Known(OWN), "{text}");
    }
    // It is not confirmed, so it is probed by whoever uses it: unicast, and answered.
    assert_eq!(exchange(&mut a, &mut b, NOW + ms(1)), 6);
    let states: Vec<State> = b.entries(NOW).map(|(_, _, state, _)| state).collect();
    assert_eq!(states, [State::Reachable; 3]);
    assert_eq!(a.counts().conflicts + b.counts().conflicts, 0);
}

#[test]
fn requests_for_us_are_answered_and_others_are_not() {
    let mut node = settled();
    let out = hear(&mut node, &request_of(PEER, "10.0.0.9", "10.0.0.1"), NOW);
    assert_eq!(out.frames.len(), 1);
    let frame = &out.frames[0];
    assert_eq!((&frame[..6], &frame[6..12]), (&PEER[..], &OWN[..]));
    assert_eq!(frame.len(), 60, "the shortest Ethernet frame");
    let reply = arp::Repr::parse(&frame[14..]).unwrap();
    assert_eq!(reply.operation, arp::Operation::Reply);
    assert_eq!((reply.sender_mac, reply.sender_ip), (OWN, v4("10.0.0.1")));
    for other in [
        request_of(PEER, "10.0.0.9", "10.0.0.2"),
        reply_of(PEER, "10.0.0.9", "10.0.0.1"),
    ] {
        assert!(hear(&mut node, &other, NOW).frames.is_empty());
    }
    // To another station: a switch that floods.
    let mut elsewhere = request_of(PEER, "10.0.0.9", "10.0.0.1");
    elsewhere[..6].copy_from_slice(&[2, 0, 0, 0, 0, 7]);
    assert!(hear(&mut node, &elsewhere, NOW).frames.is_empty());
}

#[test]
fn addresses_that_come_are_answered_for_and_those_that_go_are_not() {
    let mut node = settled();
    let answers = |node: &mut Node, target: &str| {
        let asked = hear(node, &request_of(PEER, "10.0.0.9", target), NOW);
        asked.frames.len()
    };
    // Somebody is asked for, and turns out to be us.
    assert_eq!(node.ask(ip("10.0.0.5"), NOW), Lookup::Pending);
    assert_eq!(answers(&mut node, "10.0.0.5"), 0);
    let mut net = Network::clone(node.network());
    net.addrs.retain(|&(own, _)| own != ip("10.0.0.1"));
    net.addrs
        .extend([(ip("10.0.0.5"), 24), (ip("fd00::5"), 64)]);
    assert!(
        node.set_network(Arc::new(net.clone()), NOW),
        "who waits is told"
    );
    assert_eq!(answers(&mut node, "10.0.0.1"), 0);
    assert_eq!(answers(&mut node, "10.0.0.5"), 1);
    assert_eq!(node.peek(ip("10.0.0.5")), Lookup::Unknown);
    // Both that are new are looked for, as at the start; from one that is ours already nobody hears anything.
    let mut out = Outbox::default();
    node.timers(NOW, &mut out);
    assert_eq!(out.frames.len(), 2);
    for (frame, target) in [
        (&out.frames[0], look_for(OWN, ip("10.0.0.5"), node.mark)),
        (&out.frames[1], look_for(OWN, ip("fd00::5"), node.mark)),
    ] {
        assert_eq!(*frame, target);
    }
    // Another one says that it has it.
    let claim = request_of([2, 0, 0, 0, 0, 0xb], "10.0.0.5", "10.0.0.5");
    assert_eq!(hear(&mut node, &claim, NOW).conflicts.len(), 1);
    assert_eq!(node.claims().count(), 1);
    net.addrs.retain(|&(own, _)| own != ip("10.0.0.5"));
    assert!(!node.set_network(Arc::new(net), NOW));
    assert_eq!(
        (node.claims().count(), answers(&mut node, "10.0.0.5")),
        (0, 0)
    );
}

#[test]
fn only_peers_of_our_subnet_that_ask_us_are_remembered() {
    let mut node = settled();
    for frame in [
        request_of(PEER, "192.168.7.1", "10.0.0.1"),
        request_of(PEER, "10.0.0.8", "10.0.0.2"),
        reply_of(PEER, "10.0.0.8", "10.0.0.1"),
        request_of(PEER, "10.0.0.8", "10.0.0.8"),
    ] {
        hear(&mut node, &frame, NOW);
        assert_eq!(node.entries(NOW).count(), 0);
    }
    hear(&mut node, &request_of(PEER, "10.0.0.8", "10.0.0.1"), NOW);
    assert_eq!(node.entries(NOW).count(), 1);
}

#[test]
fn a_gratuitous_arp_moves_a_peer_and_static_neighbours_stay() {
    let mut net = network(OWN, 1);
    let fixed = super::super::Known {
        mac: [2, 0, 0, 0, 0, 7],
        configured: true,
    };
    net.known.insert(ip("10.0.0.7"), fixed);
    let mut node = Node::new(Arc::new(net));
    for last in [7, 9] {
        let text = format!("10.0.0.{last}");
        hear(&mut node, &request_of(PEER, &text, "10.0.0.1"), NOW);
    }
    let other: Mac = [2, 0, 0, 0, 0, 0xb];
    let later = NOW + ms(1500);
    for last in [7, 9] {
        let text = format!("10.0.0.{last}");
        let out = hear(&mut node, &request_of(other, &text, &text), later);
        let moved = Moved {
            address: ip(&text),
            old: PEER,
            new: other,
        };
        assert_eq!(out.moved, if last == 9 { vec![moved] } else { vec![] });
    }
    assert_eq!(node.entries(NOW).count(), 1);
}

#[test]
fn a_forger_moves_no_more_than_ten_peers_at_once() {
    let mut node = settled();
    let address = |last: u32| format!("10.0.0.{last}");
    for last in 2..202 {
        let frame = request_of(PEER, &address(last), "10.0.0.1");
        hear(&mut node, &frame, NOW);
    }
    let mut forge = |mac: u8, now| -> usize {
        let forged =
            (2..202).map(|last| request_of([2, 0, 0, 0, 9, mac], &address(last), &address(last)));
        forged
            .map(|frame| hear(&mut node, &frame, now).moved.len())
            .sum()
    };
    assert_eq!(forge(1, NOW + ms(2000)), 10);
    assert_eq!(forge(2, NOW + ms(2000)), 0);
    assert_eq!(forge(3, NOW + ms(2300)), 3);
}

#[test]
fn duplicates_are_noticed_when_they_are_looked_for_and_later() {
    // While we look: somebody answers, or looks for the same, in both families.
    let target = v6("fd00::1");
    let group = icmpv6::solicited_node(target);
    let looks = frame::nd(
        (PEER, Ipv6Addr::UNSPECIFIED),
        (icmpv6::multicast_mac(group), group),
        &icmpv6::Repr::Solicitation {
            target,
            source_mac: None,
        },
        [0; 8],
    );
    let has = frame::nd(
        (PEER, target),
        (icmpv6::multicast_mac(ALL_NODES), ALL_NODES),
        &icmpv6::Repr::Advertisement {
            target,
            target_mac: Some(PEER),
            router: false,
            solicited: false,
            overrides: true,
        },
        [0; 8],
    );
    let cases = [
        (reply_of(PEER, "10.0.0.1", "10.0.0.1"), "10.0.0.1", true),
        (request_of(PEER, "0.0.0.0", "10.0.0.1"), "10.0.0.1", false),
        (request_of(PEER, "10.0.0.1", "10.0.0.5"), "10.0.0.1", true),
        (looks, "fd00::1", false),
        (has, "fd00::1", true),
    ];
    for (frame, address, also_later) in &cases {
        let mut node = Node::new(Arc::new(network(OWN, 1)));
        node.link(true, NOW);
        let out = hear(&mut node, frame, NOW);
        assert_eq!(out.conflicts, [(ip(address), PEER)], "{address}");
        let claim = Claim {
            mac: PEER,
            at: NOW,
            seen: 1,
        };
        let claims: Vec<_> = node.claims().collect();
        assert_eq!(claims, [(ip(address), claim)]);
        // Somebody who asks whether it is free when we have long had it is told that it is not, and is no news.
        let mut node = settled();
        let out = hear(&mut node, frame, NOW);
        assert_eq!(out.conflicts.is_empty(), !also_later, "{address}");
        assert!(!out.frames.is_empty(), "{address}: not defended");
        // Once in ten seconds.
        assert!(hear(&mut node, frame, NOW + ms(5)).conflicts.is_empty());
    }
}

#[test]
fn a_station_with_our_mac_address_too_is_a_duplicate_and_our_own_reflection_is_none() {
    let twin = || {
        let mut node = Node::new(Arc::new(network(OWN, 1)));
        node.link(true, NOW);
        node
    };
    let (mut a, mut b) = (twin(), twin());
    let mut out = Outbox::default();
    a.timers(NOW, &mut out);
    assert_eq!(out.frames.len(), 3, "one for each address");
    for frame in std::mem::take(&mut out.frames) {
        a.frame(&frame, NOW, &mut out);
        assert!(out.is_empty(), "a port that reflects");
        let seen = hear(&mut b, &frame, NOW);
        assert_eq!(seen.conflicts.len(), 1);
        assert_eq!(seen.conflicts[0].1, OWN);
    }
}

#[test]
fn echo_requests_are_answered_up_to_a_rate() {
    let mut node = settled();
    let mut packet = vec![0; 14 + 20 + 8 + 3];
    packet[..6].copy_from_slice(&OWN);
    packet[6..12].copy_from_slice(&PEER);
    packet[12..14].copy_from_slice(&[8, 0]);
    packet[14] = 0x45;
    packet[17] = 31;
    (packet[22], packet[23]) = (1, 1);
    packet[26..30].copy_from_slice(&[10, 0, 0, 9]);
    packet[30..34].copy_from_slice(&[10, 0, 0, 1]);
    ipv4::set_checksum(&mut packet[14..]);
    packet[34] = 8;
    let sum = roceline_engine::wire::checksum::add(0, &packet[34..]);
    let sum = roceline_engine::wire::checksum::finish(sum).to_be_bytes();
    packet[36..38].copy_from_slice(&sum);
    // Ethernet padding is no part of it.
    packet.resize(60, 0xee);
    let out = hear(&mut node, &packet, NOW);
    assert_eq!(out.frames.len(), 1);
    let reply = &out.frames[0];
    assert_eq!((&reply[..6], &reply[6..12]), (&PEER[..], &OWN[..]));
    assert_eq!(&reply[26..34], [10, 0, 0, 1, 10, 0, 0, 9]);
    assert_eq!((reply[22], reply[34]), (64, 0));
    assert!(
        ipv4::Header::new_checked(&reply[14..])
            .unwrap()
            .checksum_ok()
    );
    let answered = (0..500)
        .filter(|_| !hear(&mut node, &packet, NOW).is_empty())
        .count();
    assert_eq!(answered, 99);
    assert_eq!(node.counts().echo_limited, 401);
    assert!(!hear(&mut node, &packet, NOW + ms(1)).is_empty());
    for at in [17, 23, 33, 38] {
        let mut bad = packet.clone();
        bad[at] ^= 0x10;
        assert!(hear(&mut node, &bad, NOW + ms(500)).is_empty(), "byte {at}");
    }
}

#[test]
fn no_frame_whatever_its_bytes_does_harm() {
    // splitmix64
    let mut seed = 7u64;
    let mut next = move || {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    };
    let mut node = settled();
    let net = network(PEER, 9);
    let mark = [1; 8];
    let good: Vec<Vec<u8>> = ["10.0.0.1", "fd00::1", "fe80::1"]
        .map(|text| {
            let target = ip(text);
            let probe = Probe { target, mac: None };
            request(&net, probe, mark).unwrap()
        })
        .into_iter()
        .chain([look_for(PEER, ip("fd00::1"), mark)])
        .chain([announce(PEER, ip("fd00::1"), mark)])
        .collect();
    for case in 0..20_000u64 {
        let mut frame = good[next() as usize % good.len()].clone();
        for _ in 0..next() % 6 {
            let at = next() as usize % frame.len();
            frame[at] = next() as u8;
        }
        // One in four is cut.
        let cut = (next() % 40).saturating_sub(30) as usize * 8;
        frame.truncate(frame.len().saturating_sub(cut));
        let out = hear(&mut node, &frame, NOW + ms(case));
        assert!(out.frames.len() <= 2, "case {case}");
        assert!(node.entries(NOW).count() <= super::super::cache::LIMIT);
    }
    // It still does its work.
    let late = NOW + ms(40_000);
    let out = hear(&mut node, &request_of(PEER, "10.0.0.9", "10.0.0.1"), late);
    assert_eq!(out.frames.len(), 1);
}
