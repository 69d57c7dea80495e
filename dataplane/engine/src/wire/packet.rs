//! From a frame to a [`Packet`]: every length is checked before it is used, nothing is allocated, and
//! nothing but header fields is copied. The ICRC is not checked here ([`super::icrc::verify`]), so nothing
//! that was parsed may be believed before it is.

use super::be::{put_u64, u64_at};
use super::{Gid, HeaderSet, Opcode, Psn};
use super::{aeth, atomic_eth, bth, deth, ethernet, icrc, ieth, imm_dt, ipv4, ipv6, reth, udp};

/// Fields of the extended headers. Which of them are on the wire follows from the opcode
/// ([`super::OpcodeInfo::headers`]); the others are zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtHeaders {
    /// RETH or AtomicETH: remote virtual address.
    pub va: u64,
    /// RETH or AtomicETH: remote key.
    pub rkey: u32,
    /// RETH: length of the message.
    pub dma_len: u32,
    /// AETH: syndrome in the high byte, MSN in the low 24 bits.
    pub aeth: u32,
    /// ImmDt (wire bytes in memory order), or IETH rkey.
    pub imm_or_rkey: u32,
    /// DETH: Q_Key.
    pub qkey: u32,
    /// DETH: source QPN.
    pub src_qpn: u32,
    /// AtomicETH: swap value or number to add.
    pub swap_add: u64,
    /// AtomicETH: compare value. AtomicAckETH: original value.
    pub compare: u64,
}

/// A received packet after `wire::parse`: every field was length-checked; the payload itself stays where it was.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// Operation and transport.
    pub opcode: Opcode,
    /// BTH SE bit.
    pub solicited: bool,
    /// BTH A bit.
    pub ack_req: bool,
    /// BTH BECN bit.
    pub becn: bool,
    /// IP ECN field was CE.
    pub ce: bool,
    /// P_Key.
    pub pkey: u16,
    /// Destination QPN.
    pub dest_qpn: u32,
    /// Packet sequence number.
    pub psn: Psn,
    /// Extended headers.
    pub ext: ExtHeaders,
    /// Payload bytes, without pad.
    pub payload_len: u32,
    /// Offset of the payload in the frame.
    pub payload_offset: u32,
    /// DSCP and ECN as received.
    pub traffic_class: u8,
}

/// A parsed frame: the packet, and what of the frame is not the transport's business.
#[derive(Clone, Copy, Debug)]
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
    /// The frame ends within its headers.
    #[error("the frame of {0} bytes ends within its headers")]
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
    /// Payload and pad together are no multiple of four, or there is pad without payload.
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

/// Parses a frame without FCS, which may be longer than the packet in it.
#[inline]
pub fn parse(frame: &[u8]) -> Result<ParsedFrame, ParseError> {
    let truncated = Malformed::Truncated(frame.len());
    let Some(eth) = ethernet::Repr::parse(frame) else {
        return Err(ParseError::NotRoce);
    };
    let l3_offset = eth.len();
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
    if udp.len() != network.payload_len {
        return Err(Malformed::UdpLen {
            udp: udp.len(),
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
    if (payload_len + pad) % 4 != 0 || payload_len == 0 && pad != 0 {
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

impl ExtHeaders {
    /// Reads the headers in `set` from the start of `bytes`; `None` if they are cut short.
    #[inline]
    pub fn parse(set: HeaderSet, bytes: &[u8]) -> Option<ExtHeaders> {
        let mut ext = ExtHeaders::default();
        let mut rest = bytes;
        if set.is_empty() {
            return Some(ext);
        }
        if set.has(HeaderSet::DETH) {
            let deth = deth::Repr::parse(take(&mut rest)?);
            ext.qkey = deth.qkey;
            ext.src_qpn = deth.src_qpn;
        }
        if set.has(HeaderSet::RETH) {
            let reth = reth::Repr::parse(take(&mut rest)?);
            ext.va = reth.va;
            ext.rkey = reth.rkey;
            ext.dma_len = reth.dma_len;
        }
        if set.has(HeaderSet::AETH) {
            ext.aeth = aeth::parse(take(&mut rest)?);
        }
        if set.has(HeaderSet::ATOMIC_ETH) {
            let atomic = atomic_eth::Repr::parse(take(&mut rest)?);
            ext.va = atomic.va;
            ext.rkey = atomic.rkey;
            ext.swap_add = atomic.swap_add;
            ext.compare = atomic.compare;
        }
        if set.has(HeaderSet::ATOMIC_ACK_ETH) {
            ext.compare = u64_at(take::<{ atomic_eth::ACK_LEN }>(&mut rest)?, 0);
        }
        if set.has(HeaderSet::IMM) {
            ext.imm_or_rkey = imm_dt::parse(take(&mut rest)?);
        }
        if set.has(HeaderSet::IETH) {
            ext.imm_or_rkey = ieth::parse(take(&mut rest)?);
        }
        Some(ext)
    }

    /// Writes the headers in `set` to the start of `out`; `None`, with part of them written, if there is no room.
    #[inline]
    pub fn emit(&self, set: HeaderSet, out: &mut [u8]) -> Option<()> {
        let mut rest = out;
        if set.is_empty() {
            return Some(());
        }
        if set.has(HeaderSet::DETH) {
            let deth = deth::Repr {
                qkey: self.qkey,
                src_qpn: self.src_qpn,
            };
            deth.emit(take_mut(&mut rest)?);
        }
        if set.has(HeaderSet::RETH) {
            let reth = reth::Repr {
                va: self.va,
                rkey: self.rkey,
                dma_len: self.dma_len,
            };
            reth.emit(take_mut(&mut rest)?);
        }
        if set.has(HeaderSet::AETH) {
            aeth::emit(self.aeth, take_mut(&mut rest)?);
        }
        if set.has(HeaderSet::ATOMIC_ETH) {
            let atomic = atomic_eth::Repr {
                va: self.va,
                rkey: self.rkey,
                swap_add: self.swap_add,
                compare: self.compare,
            };
            atomic.emit(take_mut(&mut rest)?);
        }
        if set.has(HeaderSet::ATOMIC_ACK_ETH) {
            put_u64(
                take_mut::<{ atomic_eth::ACK_LEN }>(&mut rest)?,
                0,
                self.compare,
            );
        }
        if set.has(HeaderSet::IMM) {
            imm_dt::emit(self.imm_or_rkey, take_mut(&mut rest)?);
        }
        if set.has(HeaderSet::IETH) {
            ieth::emit(self.imm_or_rkey, take_mut(&mut rest)?);
        }
        if set.has(HeaderSet::CNP_RESERVED) {
            *take_mut::<16>(&mut rest)? = [0; 16];
        }
        Some(())
    }
}

#[inline(always)]
fn take<'a, const N: usize>(rest: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(head)
}

#[inline(always)]
fn take_mut<'a, const N: usize>(rest: &mut &'a mut [u8]) -> Option<&'a mut [u8; N]> {
    let (head, tail) = core::mem::take(rest).split_first_chunk_mut::<N>()?;
    *rest = tail;
    Some(head)
}
