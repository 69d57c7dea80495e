//! Frames that are not RoCE: counted by kind, and those of ARP, ICMP and ICMPv6 handed to the thread that answers them
//! ([`crate::neighbour`]); and frames of that thread, on their way out.
//!
//! In flow frames that the parser did not take, out they go by a bounded queue per NIC; the thread is woken once at the end of
//! a poll in which there were some. What it sends comes by message and joins the packets of the NIC, so rules
//! impair it and captures show it as they do any packet.

use std::sync::Arc;
use std::thread::Thread;

use roceline_engine::wire::ethernet;
use roceline_engine::wire::{arp, icmp, icmpv6, ipv4, ipv6, pause};

use super::message::Reply;
use super::nic::{NicCounts, TX_LIMIT};
use super::notes;
use super::{Lcore, of_index};
use crate::neighbour::pipe::Pipe;
use crate::neighbour::{Moved, Network, NextHop};

/// The way of a NIC's frames to the thread.
#[derive(Debug, Default)]
pub struct Others {
    pipe: Option<Arc<Pipe>>,
    /// Frames were handed over since the thread was woken.
    given: bool,
}

impl Others {
    /// Takes a frame that is not RoCE.
    #[cold]
    pub fn take(&mut self, frame: &[u8], counts: &mut NicCounts) {
        let counter = match kind(frame) {
            Kind::Arp => &mut counts.rx_arp,
            Kind::Icmp => &mut counts.rx_icmp,
            Kind::Icmpv6 => &mut counts.rx_icmpv6,
            Kind::MacControl => {
                counts.rx_mac_control += 1;
                return;
            }
            Kind::Other => {
                counts.rx_not_roce += 1;
                return;
            }
        };
        *counter += 1;
        if let Some(pipe) = &self.pipe {
            match pipe.put(frame) {
                true => self.given = true,
                false => counts.rx_others_dropped += 1,
            }
        }
    }
}

enum Kind {
    Arp,
    Icmp,
    Icmpv6,
    /// For the port, which has no use for it.
    MacControl,
    Other,
}

fn kind(frame: &[u8]) -> Kind {
    let Some(eth) = ethernet::Repr::parse(frame) else {
        return Kind::Other;
    };
    let l3 = &frame[eth.header_len()..];
    match eth.ether_type {
        arp::ETHER_TYPE => Kind::Arp,
        pause::ETHER_TYPE => Kind::MacControl,
        ethernet::TYPE_IPV4 => match ipv4::Header::new_checked(l3).map(|ip| ip.protocol()) {
            Some(icmp::PROTOCOL) => Kind::Icmp,
            _ => Kind::Other,
        },
        ethernet::TYPE_IPV6 => match ipv6::Header::new_checked(l3).map(|ip| ip.next_header()) {
            Some(icmpv6::NEXT_HEADER) => Kind::Icmpv6,
            _ => Kind::Other,
        },
        _ => Kind::Other,
    }
}

impl Lcore {
    /// Hands frames of ARP, ICMP and ICMPv6 over: those of NICs by index to `pipes`, whose `thread` is woken.
    pub fn hand_over_others(&mut self, pipes: &[Arc<Pipe>], thread: Option<Thread>) {
        // They come to the first part of a NIC.
        for nic in self.nics.iter_mut().filter(|nic| nic.part.number == 0) {
            nic.others.pipe = pipes.get(nic.info.index as usize).cloned();
        }
        self.others_thread = thread;
    }

    /// The end of a poll: the thread is woken if there is something for it.
    #[inline]
    pub(super) fn wake_others(&mut self) {
        let mut given = false;
        for nic in &mut self.nics {
            given |= std::mem::take(&mut nic.others.given);
        }
        if given {
            if let Some(thread) = &self.others_thread {
                thread.unpark();
            }
        }
    }
}

/// Serves [`super::message::Command::Transmit`].
pub fn transmit(lcore: &mut Lcore, nic: u32, frames: &[Vec<u8>]) -> Result<Reply, (i32, String)> {
    let Some(nic) = of_index(&mut lcore.nics, nic) else {
        return Err((libc::ENODEV, format!("NIC {nic} does not exist")));
    };
    for frame in frames {
        if nic.tx.len() + nic.impair.staged.len() >= TX_LIMIT {
            nic.counts.tx_queue_full += 1;
            continue;
        }
        let Some(mut mbuf) = lcore.shared.pool.alloc() else {
            nic.counts.tx_no_mbuf += 1;
            continue;
        };
        match mbuf.set_len(frame.len()) {
            Some(room) => room.copy_from_slice(frame),
            // Longer than anything that was received.
            None => continue,
        }
        notes::clear(&mut mbuf);
        match nic.impair.sending {
            true => nic.impair.staged.push_back(mbuf),
            false => nic.tx.push_back(mbuf),
        }
    }
    Ok(Reply::Done)
}

/// Serves [`super::message::Command::PeerMoved`]: queue pairs and address handles that sent to the old MAC address go on to the new one. What
/// was built for the old one and is lost is sent again by the transport.
pub fn peer_moved(
    lcore: &mut Lcore,
    nic: u32,
    moved: Moved,
    network: &Network,
) -> Result<Reply, (i32, String)> {
    let Some(nic) = lcore.nic(nic) else {
        return Err((libc::ENODEV, format!("NIC {nic} does not exist")));
    };
    let ids: Vec<_> = nic.qps.iter().map(|qp| qp.id).collect();
    for id in ids {
        let Ok((attr, _)) = nic.engine.query_qp(id) else {
            continue;
        };
        let hop = network.next_hop(attr.path.dgid.to_ip());
        if attr.path.dmac != moved.old || hop != NextHop::Ask(moved.address) {
            continue;
        }
        nic.engine.set_dmac(id, moved.new);
        nic.render_qp(id);
    }
    for index in 0..nic.ahs.len() {
        let Some(ah) = &mut nic.ahs[index] else {
            continue;
        };
        let hop = network.next_hop(ah.path.dgid.to_ip());
        if ah.path.dmac == moved.old && hop == NextHop::Ask(moved.address) {
            ah.path.dmac = moved.new;
            nic.render_ah(index);
        }
    }
    Ok(Reply::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_by_kind_and_handed_over() {
        let mut others = Others {
            pipe: Some(Arc::new(Pipe::new(64))),
            given: false,
        };
        let mut counts = NicCounts::default();
        let mut frame = vec![0; 64];
        let mut take = |ether_type: [u8; 2], at: usize, protocol: u8| {
            frame[12..14].copy_from_slice(&ether_type);
            frame[at] = protocol;
            others.take(&frame, &mut counts);
        };
        take([0x08, 0x06], 20, 0);
        take([0x08, 0x00], 23, 1);
        take([0x08, 0x00], 23, 6);
        take([0x86, 0xdd], 20, 58);
        take([0x86, 0xdd], 20, 17);
        take([0x88, 0xcc], 20, 0);
        take([0x88, 0x08], 20, 0);
        others.take(&[0; 13], &mut counts);
        // A frame that fits no buffer.
        let mut long = vec![0; 65];
        long[12..14].copy_from_slice(&[0x08, 0x06]);
        others.take(&long, &mut counts);
        let by_kind = (counts.rx_arp, counts.rx_icmp, counts.rx_icmpv6);
        assert_eq!(by_kind, (2, 1, 1));
        assert_eq!((counts.rx_not_roce, counts.rx_others_dropped), (4, 1));
        assert_eq!(counts.rx_mac_control, 1);
        let pipe = others.pipe.as_ref().unwrap();
        let mut handed = 0;
        while pipe.take(|frame| assert_eq!(frame.len(), 64)) {
            handed += 1;
        }
        assert!(others.given && handed == 3);
    }
}
