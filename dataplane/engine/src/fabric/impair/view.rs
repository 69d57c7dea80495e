//! What a rule may look at of a packet. Made from the bytes of a frame, which need not be well formed or have
//! a right ICRC, or from a descriptor where there are no bytes.

use crate::TxDesc;
use crate::wire::{ExtHeaders, Gid, HeaderSet, Opcode, Psn};
use crate::wire::{bth, ethernet, icrc, ipv4, ipv6, udp};

use super::{Class, ClassSet};

/// Which way a packet goes, as seen from the owner of the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Out of the NIC, or from a link's first end to its second.
    #[default]
    Tx,
    /// Into the NIC, or from a link's second end to its first.
    Rx,
}

/// Where the parts of a frame begin, in bytes from its start. What a frame does not have begins at `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// IP header.
    pub l3: u32,
    /// UDP header.
    pub udp: u32,
    /// Base transport header.
    pub bth: u32,
    /// What follows the extended headers: payload, pad and ICRC. Behind an unknown opcode it follows the BTH.
    pub payload: u32,
    /// End of the datagram, or of the frame if that is shorter or holds none: the ICRC is the four bytes before.
    pub end: u32,
    /// The IP header is one of IPv6.
    pub ipv6: bool,
}

/// Transport fields of a RoCE packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoceView {
    /// BTH opcode, which may be one that this NIC does not know.
    pub opcode: u8,
    /// Destination QPN.
    pub dest_qpn: u32,
    /// Packet sequence number.
    pub psn: Psn,
    /// The sender asks for an acknowledgement.
    pub ack_req: bool,
    /// AETH syndrome, where there is an AETH.
    pub syndrome: Option<u8>,
    /// Last four bytes of the destination address: tells peers with equal QPNs apart.
    pub dst: u32,
}

/// What a rule may look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketView {
    /// Which way it goes.
    pub direction: Direction,
    /// Bytes of the frame, without FCS.
    pub len: u32,
    /// DSCP of the IP header; 0 without one.
    pub dscp: u8,
    /// ECN field of the IP header: 0 not capable, 1 and 2 capable, 3 congestion experienced.
    pub ecn: u8,
    /// Priority of the 802.1Q tag; without a tag the high three bits of the DSCP, its class selector.
    pub priority: u8,
    /// UDP source port; 0 where there is no UDP header.
    pub udp_sport: u16,
    /// All kinds that it is of.
    pub classes: ClassSet,
    /// Transport fields, if it is RoCE v2 and long enough to have a BTH.
    pub roce: Option<RoceView>,
    /// Where its parts begin.
    pub layout: Layout,
}

/// What all packets of a QP share, for views of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathView {
    /// Which way its packets go.
    pub direction: Direction,
    /// Destination address; the packets are IPv4 if it is an IPv4 address.
    pub dst: Gid,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// UDP source port.
    pub udp_sport: u16,
    /// Destination QPN.
    pub dest_qpn: u32,
}

impl PacketView {
    /// Reads a frame, however broken.
    #[inline]
    pub fn parse(direction: Direction, frame: &[u8]) -> PacketView {
        let mut view = PacketView::unknown(direction, frame.len());
        // Whatever is missing or does not fit ends the reading; what was read until then stays.
        let _ = view.read(frame);
        view
    }

    /// The packet that a descriptor will become. Its frame has no tag.
    pub fn of_desc(desc: &TxDesc, path: &PathView) -> PacketView {
        let info = desc.opcode.info();
        let is_v6 = path.dst.ipv4().is_none();
        let l3 = ethernet::LEN;
        let udp = l3 + if is_v6 { ipv6::LEN } else { ipv4::LEN };
        let bth = udp + udp::LEN;
        let payload = bth + bth::LEN + usize::from(info.ext_len);
        let end = payload + (desc.len as usize).next_multiple_of(4) + icrc::LEN;
        let has_aeth = info.headers.has(HeaderSet::AETH);
        let syndrome = has_aeth.then_some((desc.ext.aeth >> 24) as u8);
        let dscp = path.traffic_class >> 2;
        let [.., a, b, c, d] = path.dst.0;
        PacketView {
            direction: path.direction,
            len: end as u32,
            dscp,
            ecn: path.traffic_class & 3,
            priority: dscp >> 3,
            udp_sport: path.udp_sport,
            classes: ClassSet::of_packet(Some(desc.opcode), syndrome),
            roce: Some(RoceView {
                opcode: desc.opcode.raw(),
                dest_qpn: path.dest_qpn,
                psn: desc.psn,
                ack_req: desc.ack_req,
                syndrome,
                dst: u32::from_be_bytes([a, b, c, d]),
            }),
            layout: Layout {
                l3: l3 as u32,
                udp: udp as u32,
                bth: bth as u32,
                payload: payload as u32,
                end: end as u32,
                ipv6: is_v6,
            },
        }
    }

    fn unknown(direction: Direction, len: usize) -> PacketView {
        let len = len as u32;
        PacketView {
            direction,
            len,
            dscp: 0,
            ecn: 0,
            priority: 0,
            udp_sport: 0,
            classes: ClassSet::of(Class::Other),
            roce: None,
            layout: Layout {
                l3: len,
                udp: len,
                bth: len,
                payload: len,
                end: len,
                ipv6: false,
            },
        }
    }

    #[inline]
    fn read(&mut self, frame: &[u8]) -> Option<()> {
        let eth = ethernet::Repr::parse(frame)?;
        let l3_at = eth.header_len();
        let l3 = frame.get(l3_at..)?;
        let tagged = eth.tci.map(|tci| (tci >> 13) as u8);
        self.priority = tagged.unwrap_or(0);
        let (traffic_class, ip_len, l4_at, dst) = match eth.ether_type {
            ethernet::TYPE_IPV4 => {
                let ip = ipv4::Header::new_checked(l3)?;
                let udp = ip.protocol() == ipv4::PROTOCOL_UDP && !ip.is_later_fragment();
                let l4 = (udp && ip.header_len() >= ipv4::LEN).then(|| ip.header_len());
                (ip.tos(), ip.total_len(), l4, u32::from(ip.dst()))
            }
            ethernet::TYPE_IPV6 => {
                let ip = ipv6::Header::new_checked(l3)?;
                let udp = ip.next_header() == ipv4::PROTOCOL_UDP;
                let [.., a, b, c, d] = ip.dst();
                let dst = u32::from_be_bytes([a, b, c, d]);
                let ip_len = ipv6::LEN + ip.payload_len();
                (ip.traffic_class(), ip_len, udp.then_some(ipv6::LEN), dst)
            }
            _ => return None,
        };
        self.dscp = traffic_class >> 2;
        self.ecn = traffic_class & 3;
        self.priority = tagged.unwrap_or(self.dscp >> 3);
        self.layout.l3 = l3_at as u32;
        self.layout.ipv6 = eth.ether_type == ethernet::TYPE_IPV6;

        let udp_at = l3_at + l4_at?;
        let datagram = frame.get(udp_at..)?;
        let udp = udp::Header::new_checked(datagram)?;
        self.udp_sport = udp.src_port();
        self.layout.udp = udp_at as u32;
        if udp.dst_port() != udp::PORT_ROCE {
            return None;
        }
        let bth_at = udp_at + udp::LEN;
        let roce = frame.get(bth_at..)?;
        let bth = bth::Header::new_checked(roce)?;
        let opcode = Opcode::from_raw(bth.opcode());
        let headers = opcode.map_or(HeaderSet::NONE, |o| o.info().headers);
        let ext = roce.get(bth::LEN..)?;
        let syndrome = match headers.has(HeaderSet::AETH) {
            true => ExtHeaders::parse(headers, ext).map(|e| (e.aeth >> 24) as u8),
            false => None,
        };
        // An IP length that reaches into the headers or beyond the frame is not to be believed.
        let payload = (bth_at + bth::LEN + headers.len()).min(frame.len());
        let end = match l3_at + ip_len {
            end if end >= payload && end <= frame.len() => end,
            _ => frame.len(),
        };
        self.layout.bth = bth_at as u32;
        self.layout.payload = payload as u32;
        self.layout.end = end as u32;
        self.classes = ClassSet::of_packet(opcode, syndrome);
        self.roce = Some(RoceView {
            opcode: bth.opcode(),
            dest_qpn: bth.dest_qpn(),
            psn: bth.psn(),
            ack_req: bth.ack_req(),
            syndrome,
            dst,
        });
        Some(())
    }

    /// Names the flow of the packet: direction, destination address and QPN. Packets that are not RoCE are one flow.
    #[inline]
    pub fn flow(&self) -> u64 {
        match &self.roce {
            Some(r) => {
                let direction = self.direction as u64;
                1 << 63 | direction << 62 | u64::from(r.dst) << 24 | u64::from(r.dest_qpn)
            }
            None => self.direction as u64,
        }
    }

    /// The opcode, if the table knows it.
    #[inline]
    pub fn opcode(&self) -> Option<Opcode> {
        self.roce.and_then(|r| Opcode::from_raw(r.opcode))
    }

    /// Bytes between the extended headers and the ICRC: payload and pad.
    pub fn payload_len(&self) -> u32 {
        let l = &self.layout;
        l.end.saturating_sub(l.payload + icrc::LEN as u32)
    }
}
