//! One NIC's part in ARP and neighbour discovery, and its answers to ping. Frames and time go in, frames come out; nothing is
//! believed before it was checked, and nothing that strangers send takes more than a fixed amount of memory.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use roceline_engine::Nanos;
use roceline_engine::wire::ethernet::{self, Mac};
use roceline_engine::wire::{arp, icmp, icmpv6, ipv4, ipv6};

use super::cache::{Cache, Heard, Learned, State};
use super::frame::{self, Mark};
use super::network::Network;
use super::own::{Claim, OwnAddresses, Say};
use super::rate::{Bucket, Rate};

pub use super::cache::Lookup;

/// Echo replies of a NIC: 1000 in a second, 100 at once. `ping` is for people, and a flood of requests shall not be
/// doubled.
const ECHOES: Rate = Rate {
    interval: Nanos::from_millis(1),
    burst: 100,
};
/// MAC addresses that change: for each the lcore looks at all queue pairs, and a forger may claim a thousand peers' in turn.
const MOVES: Rate = Rate {
    interval: Nanos::from_millis(100),
    burst: 10,
};

/// What a NIC counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// ARP requests, probes and announcements sent; neighbour solicitations.
    pub tx_requests: u64,
    /// ARP replies and neighbour advertisements sent.
    pub tx_replies: u64,
    /// ARP and neighbour discovery received that broke a rule; dropped.
    pub malformed: u64,
    /// Not learned, or not asked for, since the cache was full of what is being asked for.
    pub full: u64,
    /// MAC addresses of peers that changed.
    pub moved: u64,
    /// Packets of others with an address of ours.
    pub conflicts: u64,
    /// Echo replies sent.
    pub echo_replies: u64,
    /// Echo requests not answered, being too many.
    pub echo_limited: u64,
}

impl Counts {
    /// Names of the counts among those of a port.
    pub const NAMES: [&'static str; 8] = [
        "neigh_tx_requests",
        "neigh_tx_replies",
        "neigh_malformed",
        "neigh_full",
        "neigh_moved",
        "neigh_conflicts",
        "echo_replies",
        "echo_limited",
    ];

    /// The counts in the order of their names.
    pub fn values(&self) -> [u64; 8] {
        [
            self.tx_requests,
            self.tx_replies,
            self.malformed,
            self.full,
            self.moved,
            self.conflicts,
            self.echo_replies,
            self.echo_limited,
        ]
    }
}

/// A peer's MAC address changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Its address.
    pub address: IpAddr,
    /// Before.
    pub old: Mac,
    /// Now.
    pub new: Mac,
}

/// What comes of frames and timers.
#[derive(Debug, Default)]
pub struct Outbox {
    /// To be sent.
    pub frames: Vec<Vec<u8>>,
    /// Queue pairs that send to these have to be changed.
    pub moved: Vec<Moved>,
    /// Addresses of ours that others have, to be said.
    pub conflicts: Vec<(IpAddr, Mac)>,
    /// Somebody may be waiting for what was learned, or for its failure.
    pub changed: bool,
}

impl Outbox {
    /// Whether nothing came of it.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
            && self.moved.is_empty()
            && self.conflicts.is_empty()
            && !self.changed
    }
}

/// A NIC on a real port.
#[derive(Debug)]
pub struct Node {
    net: Arc<Network>,
    cache: Cache,
    own: OwnAddresses,
    /// By which it knows its own frames.
    mark: Mark,
    up: bool,
    echoes: Bucket,
    moves: Bucket,
    counts: Counts,
}

impl Node {
    /// A NIC whose port has no link yet.
    pub fn new(net: Arc<Network>) -> Node {
        Node {
            own: OwnAddresses::new(net.addrs.iter().map(|&(ip, _)| ip)),
            net,
            cache: Cache::default(),
            // The standard library's hasher is keyed with random numbers.
            mark: RandomState::new().build_hasher().finish().to_ne_bytes(),
            up: false,
            echoes: Bucket::default(),
            moves: Bucket::default(),
            counts: Counts::default(),
        }
    }

    /// What the NIC knows without asking.
    pub fn network(&self) -> &Arc<Network> {
        &self.net
    }

    /// What it counted.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Knows this without asking from now on: its own addresses may be others. True if somebody who waits has to be told that what he
    /// asks for has become our own.
    pub fn set_network(&mut self, net: Arc<Network>, now: Nanos) -> bool {
        let addresses = net.addrs.iter().map(|&(ip, _)| ip);
        let told = addresses.clone().filter(|&ip| self.cache.forget(ip));
        let told = told.count() > 0;
        self.own.replace(addresses, self.up, now);
        self.net = net;
        told
    }

    /// Whether its port has a link.
    pub fn link(&mut self, up: bool, now: Nanos) {
        if self.up != up {
            self.up = up;
            self.own.link(up, now);
        }
    }

    /// See [`Cache::ask`].
    pub fn ask(&mut self, target: IpAddr, now: Nanos) -> Lookup {
        let found = self.cache.ask(target, now);
        self.counts.full += u64::from(found == Lookup::Full);
        found
    }

    /// See [`Cache::peek`].
    pub fn peek(&self, target: IpAddr) -> Lookup {
        self.cache.peek(target)
    }

    /// See [`Cache::entries`].
    pub fn entries(
        &self,
        now: Nanos,
    ) -> impl Iterator<Item = (IpAddr, Option<Mac>, State, Nanos)> + '_ {
        self.cache.entries(now)
    }

    /// Addresses of ours that others have too.
    pub fn claims(&self) -> impl Iterator<Item = (IpAddr, Claim)> + '_ {
        self.own.claims()
    }

    /// When a timer fires next.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let deadlines = [self.cache.next_deadline(), self.own.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Fires timers.
    pub fn timers(&mut self, now: Nanos, out: &mut Outbox) {
        let Node {
            net,
            cache,
            own,
            counts,
            mark,
            ..
        } = self;
        out.changed |= cache.timers(now, |probe| {
            if let Some(frame) = frame::request(net, probe, *mark) {
                counts.tx_requests += 1;
                out.frames.push(frame);
            }
        });
        own.timers(now, |say| {
            counts.tx_requests += 1;
            out.frames.push(match say {
                Say::Probe(ip) => frame::look_for(net.mac, ip, *mark),
                Say::Announce(ip) => frame::announce(net.mac, ip, *mark),
            });
        });
    }

    /// Takes in a frame that is not RoCE.
    pub fn frame(&mut self, bytes: &[u8], now: Nanos, out: &mut Outbox) {
        let Some(eth) = ethernet::Repr::parse(bytes) else {
            return;
        };
        let for_us = eth.dst == self.net.mac || is_group(eth.dst);
        let reflected = bytes.ends_with(&self.mark);
        // Tagged frames belong to a VLAN, which this NIC is not on.
        if !for_us || reflected || eth.tci.is_some() || is_group(eth.src) {
            return;
        }
        let payload = &bytes[ethernet::LEN..];
        match eth.ether_type {
            arp::ETHER_TYPE => match arp::Repr::parse(payload) {
                Some(packet) => self.arp(&packet, now, out),
                None => self.counts.malformed += 1,
            },
            ethernet::TYPE_IPV4 => {
                let is_icmp = |ip: ipv4::Header<'_>| ip.protocol() == icmp::PROTOCOL;
                if ipv4::Header::new_checked(payload).is_some_and(is_icmp) {
                    let own = |ip: Ipv4Addr| self.net.is_own(ip.into());
                    let reply = frame::echo_reply(bytes, self.net.mac, own);
                    self.echo(reply, now, out);
                }
            }
            ethernet::TYPE_IPV6 => self.ipv6(bytes, &eth, payload, now, out),
            _ => {}
        }
    }

    fn echo(&mut self, reply: Option<Vec<u8>>, now: Nanos, out: &mut Outbox) {
        let Some(reply) = reply else { return };
        if !self.echoes.allows(now) {
            self.counts.echo_limited += 1;
            return;
        }
        self.echoes.take(&ECHOES, now);
        self.counts.echo_replies += 1;
        out.frames.push(reply);
    }

    fn arp(&mut self, packet: &arp::Repr, now: Nanos, out: &mut Outbox) {
        let (sender, target) = (IpAddr::V4(packet.sender_ip), IpAddr::V4(packet.target_ip));
        let is_probe = packet.sender_ip.is_unspecified();
        if !is_station(packet.sender_mac) || !(is_probe || frame::is_host(packet.sender_ip)) {
            self.counts.malformed += 1;
            return;
        }
        if self.net.is_own(sender) {
            self.claimed(sender, packet.sender_mac, now, out);
            return;
        }
        let is_request = packet.operation == arp::Operation::Request;
        let to_us = self.net.is_own(target);
        if is_probe && to_us && is_request {
            // Two that look for one address at once both may not have it (RFC 5227 section 2.1.1).
            if self.own.is_tentative(target) || packet.sender_mac == self.net.mac {
                self.claimed(target, packet.sender_mac, now, out);
            }
        } else if !is_probe {
            let heard = Heard {
                mac: packet.sender_mac,
                confirms: to_us && !is_request,
                overrides: true,
                creates: to_us && is_request && self.net.is_on_link(sender),
            };
            self.learn(sender, heard, now, out);
        }
        if to_us && is_request {
            let reply = arp::Repr {
                operation: arp::Operation::Reply,
                sender_mac: self.net.mac,
                sender_ip: packet.target_ip,
                target_mac: packet.sender_mac,
                target_ip: packet.sender_ip,
            };
            self.counts.tx_replies += 1;
            out.frames
                .push(frame::arp(packet.sender_mac, &reply, self.mark));
        }
    }

    fn ipv6(
        &mut self,
        bytes: &[u8],
        eth: &ethernet::Repr,
        payload: &[u8],
        now: Nanos,
        out: &mut Outbox,
    ) {
        let Some(ip) = ipv6::Header::new_checked(payload) else {
            return;
        };
        if ip.version() != 6 || ip.next_header() != icmpv6::NEXT_HEADER {
            return;
        }
        let end = ipv6::LEN + ip.payload_len();
        let Some(message) = payload.get(ipv6::LEN..end) else {
            self.counts.malformed += 1;
            return;
        };
        match icmpv6::Repr::parse(&ip, message) {
            Ok(icmpv6::Repr::Solicitation { target, source_mac }) => {
                let src = Ipv6Addr::from(ip.src());
                self.solicitation(src, target, source_mac, eth.src, now, out);
            }
            Ok(icmpv6::Repr::Advertisement {
                target,
                target_mac,
                solicited,
                overrides,
                ..
            }) => {
                let mac = target_mac.unwrap_or(eth.src);
                let target = IpAddr::V6(target);
                if !is_station(mac) {
                    self.counts.malformed += 1;
                } else if self.net.is_own(target) {
                    self.claimed(target, mac, now, out);
                } else {
                    let heard = Heard {
                        mac,
                        confirms: solicited,
                        overrides,
                        creates: false,
                    };
                    self.learn(target, heard, now, out);
                }
            }
            Err(icmpv6::Refused::OtherType(icmpv6::ECHO_REQUEST)) => {
                let own = |ip: Ipv6Addr| self.net.is_own(ip.into());
                let reply = frame::echo_reply_v6(bytes, self.net.mac, own);
                self.echo(reply, now, out);
            }
            Err(icmpv6::Refused::OtherType(_)) => {}
            Err(icmpv6::Refused::Malformed(_)) => self.counts.malformed += 1,
        }
    }

    fn solicitation(
        &mut self,
        src: Ipv6Addr,
        target: Ipv6Addr,
        source_mac: Option<Mac>,
        eth_src: Mac,
        now: Nanos,
        out: &mut Outbox,
    ) {
        let (sender, wanted) = (IpAddr::V6(src), IpAddr::V6(target));
        let mac = source_mac.unwrap_or(eth_src);
        if src.is_multicast() || !is_station(mac) {
            self.counts.malformed += 1;
            return;
        }
        if self.net.is_own(sender) {
            self.claimed(sender, mac, now, out);
            return;
        }
        if !self.net.is_own(wanted) {
            return;
        }
        let tries = src.is_unspecified();
        if tries && (self.own.is_tentative(wanted) || eth_src == self.net.mac) {
            self.claimed(wanted, eth_src, now, out);
        }
        if let Some(mac) = source_mac {
            let heard = Heard {
                mac,
                confirms: false,
                overrides: true,
                creates: self.net.is_on_link(sender),
            };
            self.learn(sender, heard, now, out);
        }
        // Who has no address yet listens to all nodes (RFC 4861 section 7.2.4).
        let (to_mac, to) = match tries {
            true => (icmpv6::multicast_mac(frame::ALL_NODES), frame::ALL_NODES),
            false => (mac, src),
        };
        let reply = icmpv6::Repr::Advertisement {
            target,
            target_mac: Some(self.net.mac),
            router: false,
            solicited: !tries,
            overrides: true,
        };
        self.counts.tx_replies += 1;
        out.frames.push(frame::nd(
            (self.net.mac, target),
            (to_mac, to),
            &reply,
            self.mark,
        ));
    }

    fn learn(&mut self, address: IpAddr, mut heard: Heard, now: Nanos, out: &mut Outbox) {
        // The configuration knows better.
        if self.net.known.contains_key(&address) {
            return;
        }
        // Beyond the rate a change only casts doubt: whoever uses the entry asks the peer.
        heard.overrides &= self.moves.allows(now);
        match self.cache.hear(address, heard, now) {
            Learned::Nothing => {}
            Learned::Found => out.changed = true,
            Learned::Full => self.counts.full += 1,
            Learned::Moved(old) => {
                self.counts.moved += 1;
                self.moves.take(&MOVES, now);
                let new = heard.mac;
                out.moved.push(Moved { address, old, new });
            }
        }
    }

    fn claimed(&mut self, ip: IpAddr, mac: Mac, now: Nanos, out: &mut Outbox) {
        self.counts.conflicts += 1;
        if self.own.claimed(ip, mac, now) {
            out.conflicts.push((ip, mac));
            // What it says is no news to others: only a station that was misled listens.
            self.counts.tx_requests += 1;
            out.frames
                .push(frame::announce(self.net.mac, ip, self.mark));
        }
    }
}

fn is_group(mac: Mac) -> bool {
    mac[0] & 1 == 1
}

fn is_station(mac: Mac) -> bool {
    !is_group(mac) && mac != [0; 6]
}

#[cfg(test)]
mod tests;
