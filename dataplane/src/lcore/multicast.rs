//! Multicast groups of a NIC: which queue pairs are attached to which address, a copy for each of what arrives for it, and the
//! way back to the NIC's own members of what it sends (IBTA 10.5: a sender that is attached receives its own message).
//!
//! In flow parsed packets for the multicast QPN, which the receive stage found to be for none of the NIC's addresses, and
//! finished packets for a multicast MAC; out flow packets, one for each member, each with a buffer of its own since its headers
//! and payload become one piece when it is placed. Members are changed between bursts, by messages; only that allocates.

use std::collections::{HashMap, VecDeque};
use std::net::Ipv6Addr;

use roceline_engine::verbs::QpId;
use roceline_engine::wire::{Gid, ParsedFrame, ethernet, ipv4, ipv6};
use roceline_engine::{Counters, Nanos};

use super::drain::drain;
use super::nic::{LOOPBACK_LIMIT, Nic, Shared};
use crate::port::{Mbuf, Mempool};

/// Destination QPN of packets to a group (IBTA 10.5).
pub const MULTICAST_QPN: u32 = 0xff_ffff;
/// Copies of one burst that may wait; beyond it members miss messages, as on a NIC whose queues are full.
const COPIES_LIMIT: usize = 1024;

/// The groups of a NIC.
#[derive(Debug, Default)]
pub struct Groups {
    /// Members by group, none without.
    groups: HashMap<Gid, Vec<QpId>>,
    /// Members of all groups.
    members: usize,
    /// Packets for members, each with its own buffer.
    copies: VecDeque<(ParsedFrame, Mbuf)>,
}

/// A group is full, or there are too many groups.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

/// The name of a group. An IPv4 group is known by two GIDs: the address mapped into IPv6 (`::ffff:239.1.1.1`), as RoCE v2
/// has it, and the multicast GID with the address at its end (`ff0e::ffff:239.1.1.1`), as InfiniBand's IPv4-over-IB and the
/// connection manager's RoCE v1 write it. Both are the first here.
pub fn canonical(gid: Gid) -> Gid {
    let octets = gid.0;
    let tail = [octets[12], octets[13], octets[14], octets[15]];
    let names_ipv4 = octets[0] == 0xff && octets[2..10] == [0; 8] && octets[10..12] == [0xff; 2];
    match names_ipv4 && tail[0] & 0xf0 == 0xe0 {
        true => Gid::from_ip(tail.into()),
        false => gid,
    }
}

/// Whether a GID names a group: an IPv6 multicast address, or an IPv4 one mapped into IPv6.
pub fn is_group(gid: Gid) -> bool {
    gid.to_ip().is_multicast()
}

/// The MAC to which packets for a group go: RFC 1112 section 6.4 for IPv4, RFC 2464 section 7 for IPv6.
pub fn mac_of(group: Gid) -> [u8; 6] {
    match group.ipv4() {
        Some(v4) => {
            let [_, b, c, d] = v4.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        None => {
            let [.., a, b, c, d] = Ipv6Addr::from(group.0).octets();
            [0x33, 0x33, a, b, c, d]
        }
    }
}

impl Groups {
    /// Attaches a queue pair, which notes the groups that it is in, by their canonical names, in `of_qp`; nothing happens if it
    /// is attached.
    pub fn attach(
        &mut self,
        gid: Gid,
        qp: QpId,
        of_qp: &mut Vec<Gid>,
        max_groups: usize,
        max_members: usize,
    ) -> Result<(), Full> {
        let gid = canonical(gid);
        let is_new = !self.groups.contains_key(&gid);
        if is_new && self.groups.len() >= max_groups {
            return Err(Full);
        }
        let members = self.groups.entry(gid).or_default();
        if !members.contains(&qp) {
            if members.len() >= max_members {
                return Err(Full);
            }
            members.push(qp);
            of_qp.push(gid);
            self.members += 1;
        }
        // What the loop needs from now on.
        self.copies.reserve(COPIES_LIMIT);
        Ok(())
    }

    /// Detaches a queue pair; false if it was not attached.
    pub fn detach(&mut self, gid: Gid, qp: QpId, of_qp: &mut Vec<Gid>) -> bool {
        let gid = canonical(gid);
        let Some(at) = of_qp.iter().position(|&of| of == gid) else {
            return false;
        };
        of_qp.swap_remove(at);
        self.leave(gid, qp);
        true
    }

    /// Detaches a queue pair from all groups that it is in.
    #[inline]
    pub fn leave_all(&mut self, qp: QpId, of_qp: &[Gid]) {
        for &gid in of_qp {
            self.leave(gid, qp);
        }
    }

    fn leave(&mut self, gid: Gid, qp: QpId) {
        let Some(members) = self.groups.get_mut(&gid) else {
            return;
        };
        if let Some(at) = members.iter().position(|&member| member == qp) {
            members.remove(at);
            self.members -= 1;
        }
        if members.is_empty() {
            self.groups.remove(&gid);
        }
    }

    /// Groups with members, and members of all together.
    pub fn count(&self) -> (usize, usize) {
        (self.groups.len(), self.members)
    }

    fn members(&self, destination: Gid) -> &[QpId] {
        let members = self.groups.get(&canonical(destination));
        members.map_or(&[], Vec::as_slice)
    }

    /// Whether copies wait for [`deliver`].
    #[inline]
    pub fn has_copies(&self) -> bool {
        !self.copies.is_empty()
    }
}

/// Whether a frame goes to a multicast MAC: the lowest bit of its first byte.
#[inline]
pub fn is_for_group(mbuf: &Mbuf) -> bool {
    mbuf.data().first().is_some_and(|first| first & 1 != 0)
}

/// A packet for none of the NIC's addresses arrived. True if it was for a group with members here.
#[cold]
pub fn arrived(
    groups: &mut Groups,
    counters: &mut Counters,
    pool: &Mempool,
    frame: &ParsedFrame,
    mbuf: Mbuf,
) -> bool {
    let packet = &frame.packet;
    if packet.dest_qpn != MULTICAST_QPN || !is_group(packet.dst) {
        return false;
    }
    let Groups { groups, copies, .. } = groups;
    let Some(members) = groups.get(&canonical(packet.dst)) else {
        return false;
    };
    counters.rdma_rx_packets += 1;
    counters.rdma_rx_bytes += mbuf.len() as u64;
    let mut original = Some(mbuf);
    for (i, member) in members.iter().enumerate() {
        let buffer = match i + 1 == members.len() {
            true => original.take(),
            false => original.as_ref().and_then(|mbuf| copy(mbuf, pool)),
        };
        match buffer.filter(|_| copies.len() < COPIES_LIMIT) {
            Some(buffer) => {
                let mut copy = *frame;
                copy.packet.dest_qpn = member.0;
                copies.push_back((copy, buffer));
            }
            None => counters.rx_dropped += 1,
        }
    }
    true
}

/// Gives the members their copies.
#[cold]
pub fn deliver(nic: &mut Nic, shared: &mut Shared, now: Nanos) {
    while let Some((frame, mbuf)) = nic.groups.copies.pop_front() {
        if let Some(qp) = nic.qps.get_mut(QpId(frame.packet.dest_qpn)) {
            if !shared.contexts[qp.context].has_room() {
                nic.counts.rx_memory_overrun += 1;
                continue;
            }
            qp.packets.rx += 1;
            qp.packets.rx_bytes += mbuf.len() as u64;
        }
        // A burst of its own.
        let packet = frame.packet;
        nic.received.push_parsed(mbuf, frame);
        let (qps, out) = (&mut nic.qps, &mut shared.out);
        nic.engine.rx(&packet, 0, now, qps, out);
        drain(nic, shared);
        nic.received.clear();
    }
}

/// A copy for the NIC's own members of a packet that it sends to a group, if there are some.
#[cold]
pub fn loop_back(groups: &Groups, loopback: &mut VecDeque<Mbuf>, pool: &Mempool, mbuf: &Mbuf) {
    let group = destination(mbuf.data()).map(|gid| groups.members(gid));
    if group.is_none_or(<[QpId]>::is_empty) || loopback.len() >= LOOPBACK_LIMIT {
        return;
    }
    // Without a buffer they miss it: a datagram may get lost anywhere.
    if let Some(copy) = copy(mbuf, pool) {
        loopback.push_back(copy);
    }
}

/// The IP destination of a frame that we built.
fn destination(frame: &[u8]) -> Option<Gid> {
    let eth = ethernet::Repr::parse(frame)?;
    let l3 = frame.get(eth.header_len()..)?;
    match eth.ether_type {
        ethernet::TYPE_IPV4 => {
            let header = ipv4::Header::new_checked(l3)?;
            Some(Gid::from_ip(header.dst().into()))
        }
        ethernet::TYPE_IPV6 => Some(Gid(ipv6::Header::new_checked(l3)?.dst())),
        _ => None,
    }
}

/// Another packet of the same bytes.
fn copy(mbuf: &Mbuf, pool: &Mempool) -> Option<Mbuf> {
    let mut copy = pool.alloc()?;
    copy.set_len(mbuf.len())?.copy_from_slice(mbuf.data());
    Some(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(ip: &str) -> Gid {
        Gid(ip.parse::<Ipv6Addr>().unwrap().octets())
    }

    #[test]
    fn an_ipv4_group_has_two_names_and_one_mac() {
        let mapped = gid("::ffff:239.129.2.3");
        assert_eq!(canonical(gid("ff0e::ffff:239.129.2.3")), mapped);
        assert_eq!(canonical(mapped), mapped);
        assert_eq!(mac_of(mapped), [1, 0, 0x5e, 1, 2, 3]);
        // Not an IPv4 multicast address, or not in that form: IPv6's own.
        for other in ["ff0e::ffff:10.1.2.3", "ff0e::1:ffff:239.1.2.3", "ff02::1"] {
            assert_eq!(canonical(gid(other)), gid(other), "{other}");
        }
        assert_eq!(
            mac_of(gid("ff0e::1234:5678")),
            [0x33, 0x33, 0x12, 0x34, 0x56, 0x78]
        );
    }

    #[test]
    fn groups_are_multicast_addresses() {
        for (ip, is) in [
            ("ff0e::1", true),
            ("::ffff:224.0.0.1", true),
            ("::ffff:10.0.0.1", false),
            ("fd00::1", false),
            ("::", false),
        ] {
            assert_eq!(is_group(gid(ip)), is, "{ip}");
        }
    }

    #[test]
    fn members_come_and_go() {
        let mut g = Groups::default();
        let (a, b) = (gid("ff0e::a"), gid("ff0e::ffff:239.0.0.1"));
        let mapped = gid("::ffff:239.0.0.1");
        // What each of the queue pairs notes.
        let mut of: [Vec<Gid>; 4] = Default::default();
        let mut attach = |group, qp: usize| {
            let got = g.attach(group, QpId(qp as u32), &mut of[qp], 2, 2);
            (got, of[qp].len())
        };
        assert_eq!(attach(a, 1), (Ok(()), 1));
        assert_eq!(attach(a, 1), (Ok(()), 1), "again");
        assert_eq!(attach(b, 1), (Ok(()), 2));
        assert_eq!(attach(mapped, 1), (Ok(()), 2), "the other name");
        assert_eq!(attach(b, 2), (Ok(()), 1));
        // Both kinds of too many.
        assert_eq!(attach(b, 3), (Err(Full), 0));
        assert_eq!(attach(gid("ff0e::c"), 3), (Err(Full), 0));
        assert_eq!(g.count(), (2, 3));
        assert_eq!(g.members(mapped), [QpId(1), QpId(2)]);
        assert!(g.detach(mapped, QpId(2), &mut of[2]) && of[2].is_empty());
        assert!(!g.detach(b, QpId(2), &mut of[2]));
        assert!(!g.detach(gid("ff0e::c"), QpId(1), &mut of[1]));
        assert_eq!(g.members(b), [QpId(1)]);
        // Only its own groups are looked at.
        g.leave_all(QpId(1), &[]);
        assert_eq!(g.count(), (2, 2));
        g.leave_all(QpId(1), &of[1]);
        assert_eq!(g.count(), (0, 0));
        assert!(g.members(a).is_empty());
    }
}
