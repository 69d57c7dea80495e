//! Congestion notification packets, and the ECN field of all others.
//!
//! In flow descriptors of CNPs, and marked datagrams, by which the way back to their senders is known; out flow packets. A CNP
//! overtakes what waits for its payload: it has none, and is worth less the later it comes.

use roceline_engine::TxDesc;
use roceline_engine::verbs::{Path, QpId};
use roceline_engine::wire::udp::CNP_SRC_PORT;
use roceline_engine::wire::{Gid, HeaderTemplate, ParsedFrame, udp_sport};

use super::build::finish;
use super::nic::{Nic, Shared};
use super::pause::PCP_SHIFT;

/// P_Key of the default partition, as a full member.
const PKEY: u16 = 0xffff;
/// Senders of marked datagrams that are remembered: a power of two. A CNP follows its mark closely, so that few are enough; those of
/// one place drive each other out, so that places are many.
const SENDERS: usize = 1024;

/// Where marked datagrams came from: the way back, without a look at routes and neighbours.
#[derive(Debug)]
pub struct Senders(Box<[Option<Sender>; SENDERS]>);

#[derive(Clone, Copy, Debug)]
struct Sender {
    gid: Gid,
    /// The address of ours that it sent to.
    own: Gid,
    /// The MAC address that the frame came from: the sender's, or the router's.
    mac: [u8; 6],
}

impl Default for Senders {
    fn default() -> Senders {
        Senders(Box::new([None; SENDERS]))
    }
}

impl Senders {
    /// A marked datagram arrived.
    #[cold]
    pub fn learn(&mut self, frame: &ParsedFrame) {
        let gid = frame.packet.src;
        self.0[place(gid)] = Some(Sender {
            gid,
            own: frame.packet.dst,
            mac: frame.eth_src,
        });
    }

    /// Forgets those that sent to another address than these of ours.
    pub fn keep(&mut self, ours: impl Fn(Gid) -> bool) {
        for sender in self.0.iter_mut() {
            if sender.is_some_and(|sender| !ours(sender.own)) {
                *sender = None;
            }
        }
    }

    /// The way to a sender.
    fn path_to(&self, gid: Gid, smac: [u8; 6], traffic_class: u8) -> Option<Path> {
        let found = self.0[place(gid)].filter(|sender| sender.gid == gid)?;
        Some(Path {
            sgid: found.own,
            dgid: gid,
            smac,
            dmac: found.mac,
            traffic_class,
            ..Path::default()
        })
    }
}

/// Where a sender is noted: addresses differ in their last bytes, or in their prefixes.
fn place(gid: Gid) -> usize {
    (gid.mix(0) >> 5) as usize & (SENDERS - 1)
}

/// Builds a CNP and queues it for the port.
#[cold]
pub fn build(nic: &mut Nic, shared: &mut Shared, desc: &TxDesc) {
    let traffic_class = nic.engine.np_params().traffic_class();
    let Some(qp) = nic.qps.get_mut(desc.qp) else {
        return;
    };
    let template = match desc.cnp_address() {
        Some((gid, qpn)) => {
            let path = nic.senders.path_to(gid, nic.info.mac, traffic_class);
            path.map(|path| HeaderTemplate::new(&path, CNP_SRC_PORT, qpn, PKEY))
        }
        None => qp.template.as_ref().map(|t| t.for_cnp(traffic_class)),
    };
    let Some(template) = template else {
        nic.counts.tx_no_way += 1;
        return;
    };
    let Some(mut mbuf) = shared.pool.alloc() else {
        nic.counts.tx_no_mbuf += 1;
        return;
    };
    let total = template.frame_len(desc.opcode, 0);
    let written = mbuf
        .set_len(total)
        .and_then(|frame| template.write(desc, qp.ip_id, frame));
    if written.is_none() {
        nic.counts.tx_no_mbuf += 1;
        return;
    }
    qp.ip_id = qp.ip_id.wrapping_add(1);
    if nic.tags {
        let np = nic.engine.np_params();
        let priority = match np.cnp_prio_of_qp {
            true => nic.engine.priority(desc.qp).unwrap_or(np.cnp_802p_prio),
            false => np.cnp_802p_prio,
        };
        mbuf.set_tci(u16::from(priority) << PCP_SHIFT);
    }
    finish(nic, &shared.pool, desc.qp, mbuf);
}

impl Nic {
    /// The headers of a QP's packets, which say that they can be marked where the QP's congestion control heeds that.
    pub fn headers(&self, id: QpId, path: &Path, dest_qpn: u32) -> HeaderTemplate {
        let sport = udp_sport(path.flow_label, id.0, dest_qpn);
        HeaderTemplate::new(&self.ecn_path(path), sport, dest_qpn, PKEY)
    }

    /// A path with the ECN field that its packets have.
    pub fn ecn_path(&self, path: &Path) -> Path {
        Path {
            traffic_class: self.engine.ecn_of(path.traffic_class, path.sl),
            ..*path
        }
    }

    /// Renders all headers anew, after congestion control was switched on or off.
    pub fn render_headers(&mut self) {
        let ids: Vec<_> = self.qps.iter().map(|qp| qp.id).collect();
        for id in ids {
            self.render_qp(id);
        }
        for index in 0..self.ahs.len() {
            self.render_ah(index);
        }
    }

    /// Renders the headers of a QP anew, if it has any.
    pub fn render_qp(&mut self, id: QpId) {
        let Ok((attr, _)) = self.engine.query_qp(id) else {
            return;
        };
        let headers = self.headers(id, &attr.path, attr.dest_qpn);
        if let Some(template) = self.qps.get_mut(id).and_then(|qp| qp.template.as_mut()) {
            *template = headers;
        }
    }

    /// Renders the headers of an address handle anew, if there is one.
    pub fn render_ah(&mut self, index: usize) {
        let ah = self.ahs.get(index).and_then(Option::as_ref);
        let Some(path) = ah.map(|ah| self.ecn_path(&ah.path)) else {
            return;
        };
        if let Some(ah) = &mut self.ahs[index] {
            ah.render(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use roceline_engine::wire::{Opcode, Psn};
    use roceline_engine::wire::{icrc, parse};

    use super::*;

    /// A marked datagram from 10.0.0.9, through a router.
    fn datagram() -> Vec<u8> {
        let path = Path {
            sgid: Gid::from_ip([10, 0, 0, 9].into()),
            dgid: Gid::from_ip([10, 0, 0, 1].into()),
            smac: [2, 0, 0, 0, 0, 0xfe],
            dmac: [2, 0, 0, 0, 0, 1],
            traffic_class: 3,
            ..Path::default()
        };
        let template = HeaderTemplate::new(&path, 0xc000, 0x11, PKEY);
        let desc = TxDesc {
            opcode: Opcode::UD_SEND_ONLY,
            psn: Psn::new(1),
            ..TxDesc::default()
        };
        let mut frame = vec![0; template.frame_len(desc.opcode, 0)];
        template.write(&desc, 0, &mut frame).expect("room");
        assert!(icrc::seal(&mut frame, HeaderTemplate::L3_OFFSET));
        frame
    }

    #[test]
    fn the_way_back_to_a_datagrams_sender_is_the_one_it_came_by() {
        let mut senders = Senders::default();
        let frame = datagram();
        let parsed = parse(&frame).expect("well formed");
        let gid = parsed.packet.src;
        let mac = [2, 0, 0, 0, 0, 1];
        assert!(senders.path_to(gid, mac, 0xc2).is_none());
        senders.learn(&parsed);
        let path = senders.path_to(gid, mac, 0xc2).expect("it was learnt");
        assert_eq!((path.sgid, path.dgid), (parsed.packet.dst, gid));
        assert_eq!((path.smac, path.dmac), (mac, [2, 0, 0, 0, 0, 0xfe]));
        assert_eq!(path.traffic_class, 0xc2);
        // The address that it sent to stays, then goes.
        senders.keep(|own| own == parsed.packet.dst);
        assert!(senders.path_to(gid, mac, 0xc2).is_some());
        let mut left = Senders::default();
        left.learn(&parsed);
        left.keep(|own| own != parsed.packet.dst);
        assert!(left.path_to(gid, mac, 0xc2).is_none());
        // Another that has the same place.
        let same = |other: &Gid| *other != gid && place(*other) == place(gid);
        let mut others = (0..u16::MAX).map(|n| {
            let [a, b] = n.to_be_bytes();
            Gid::from_ip([10, 0, a, b].into())
        });
        let other = others.find(same).expect("more addresses than places");
        assert!(senders.path_to(other, mac, 0xc2).is_none());
    }

    /// Else they would forget each other's way within a burst, and CNPs would be lost.
    #[test]
    fn neighbours_have_places_of_their_own() {
        let of = |address: [u8; 4]| place(Gid::from_ip(address.into()));
        assert_ne!(of([10, 0, 0, 1]), of([10, 0, 0, 65]));
        let mut taken: Vec<usize> = (0..=255).map(|n| of([10, 0, 0, n])).collect();
        taken.extend((0..64).map(|n| of([10, 0, 1, n])));
        taken.sort_unstable();
        taken.dedup();
        assert!(taken.len() > 260, "{} places", taken.len());
        // Interfaces with the same number in networks of their own.
        let v6 = |net: u16| {
            let address = std::net::Ipv6Addr::new(0x2001, 0xdb8, 0, net, 0, 0, 0, 1);
            place(Gid::from_ip(address.into()))
        };
        let mut taken: Vec<usize> = (0..64).map(v6).collect();
        taken.sort_unstable();
        taken.dedup();
        assert!(taken.len() > 50, "{} places", taken.len());
    }
}
