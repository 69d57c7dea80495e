//! The quick way from a frame to a packet, for nearly all frames that a NIC gets: untagged, IPv4 without options, nothing
//! wrong. All that is constant in the headers of such a frame is compared at once. What it does not take,
//! [`super::parse`] looks at field by field, and says why it is refused; of what it takes, both say the same.

use super::be::{u16_at, u32_at};
use super::{ExtHeaders, Gid, HeaderSet, Opcode, ParsedFrame};
use super::{aeth, bth, ethernet, icrc, ipv4, reth, udp};

const L3: usize = ethernet::LEN;
const UDP: usize = L3 + ipv4::LEN;
const BTH: usize = UDP + udp::LEN;
const EXT: usize = BTH + bth::LEN;

/// What is constant, in three words: where they begin, what they hold, and which bits of that count.
const CONSTANT: [(usize, u64, u64); 3] = [
    // IPv4, version 4 and header of five words
    word(
        8,
        [0, 0, 0, 0, 0x08, 0x00, 0x45, 0],
        [0, 0, 0, 0, 0xff, 0xff, 0xff, 0],
    ),
    // no fragment, UDP
    word(
        16,
        [0, 0, 0, 0, 0, 0, 0, 17],
        [0, 0, 0, 0, 0x3f, 0xff, 0, 0xff],
    ),
    // port 4791, transport version 0
    word(
        36,
        [0x12, 0xb7, 0, 0, 0, 0, 0, 0],
        [0xff, 0xff, 0, 0, 0, 0, 0, 0x0f],
    ),
];

const fn word(at: usize, value: [u8; 8], mask: [u8; 8]) -> (usize, u64, u64) {
    (at, u64::from_ne_bytes(value), u64::from_ne_bytes(mask))
}

#[inline(always)]
fn ne_u64_at(head: &[u8; EXT], at: usize) -> u64 {
    let b = |i: usize| head[at + i];
    u64::from_ne_bytes([b(0), b(1), b(2), b(3), b(4), b(5), b(6), b(7)])
}

#[inline(always)]
fn is_plain(head: &[u8; EXT]) -> bool {
    let wrong = CONSTANT.iter().fold(0, |wrong, &(at, value, mask)| {
        wrong | (ne_u64_at(head, at) ^ value) & mask
    });
    wrong == 0
}

/// Whether the IPv4 header checksum is right: the sum in words of 32 bits, folded (RFC 1071, section 2, where the order of bytes does
/// not matter either).
#[inline(always)]
fn checksum_ok(head: &[u8; EXT]) -> bool {
    let sum: u64 = (0..ipv4::LEN)
        .step_by(4)
        .map(|at| u64::from(u32_at(head, L3 + at)))
        .sum();
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    let sum = (sum >> 16) + (sum & 0xffff);
    (sum >> 16) + (sum & 0xffff) == 0xffff
}

/// `None` of what has to be looked at closer.
pub(super) fn parse(frame: &[u8]) -> Option<ParsedFrame> {
    let mut parsed = ParsedFrame::blank();
    parse_into(frame, &mut parsed)?;
    Some(parsed)
}

/// Writes over `parsed` what the frame says. `None` of what has to be looked at closer: then what is there means nothing.
///
/// Where it is to be, and not a copy of it: what is written in pieces and copied in large ones right away waits for each piece.
#[inline]
pub(super) fn parse_into(frame: &[u8], parsed: &mut ParsedFrame) -> Option<()> {
    let head = frame.first_chunk::<EXT>()?;
    let len = usize::from(u16_at(head, UDP + 4));
    let total_len = usize::from(u16_at(head, L3 + 2));
    if !is_plain(head) || !checksum_ok(head) || total_len != ipv4::LEN + len {
        return None;
    }
    let end = UDP + len;
    let opcode = Opcode::from_raw(head[BTH])?;
    let info = opcode.info();
    let bth = bth::Header::new_checked(&head[BTH..])?;
    let pad = bth.pad();
    let payload_offset = EXT + usize::from(info.ext_len);
    let payload_and_pad = end.checked_sub(payload_offset + icrc::LEN)?;
    let payload_len = payload_and_pad.checked_sub(pad)?;
    let wrong = end > frame.len() || payload_and_pad % 4 != 0;
    if wrong || !info.payload && payload_and_pad != 0 {
        return None;
    }
    let ext = &mut parsed.packet.ext;
    match info.headers {
        HeaderSet::NONE => *ext = ExtHeaders::default(),
        HeaderSet::RETH => {
            let reth = reth::Repr::parse(frame.get(EXT..)?.first_chunk()?);
            *ext = ExtHeaders::default();
            ext.va = reth.va;
            ext.rkey = reth.rkey;
            ext.dma_len = reth.dma_len;
        }
        HeaderSet::AETH => {
            let aeth = aeth::parse(frame.get(EXT..)?.first_chunk()?);
            *ext = ExtHeaders::default();
            ext.aeth = aeth;
        }
        set => *ext = ExtHeaders::parse(set, frame.get(EXT..)?)?,
    }
    let traffic_class = head[L3 + 1];
    let packet = &mut parsed.packet;
    packet.src = gid_at(head, L3 + 12);
    packet.dst = gid_at(head, L3 + 16);
    packet.opcode = opcode;
    packet.solicited = bth.solicited();
    packet.ack_req = bth.ack_req();
    packet.becn = bth.becn();
    packet.ce = traffic_class & 3 == 3;
    packet.pkey = bth.pkey();
    packet.dest_qpn = bth.dest_qpn();
    packet.psn = bth.psn();
    packet.payload_len = payload_len as u32;
    packet.payload_offset = payload_offset as u32;
    packet.traffic_class = traffic_class;
    parsed.eth_dst = mac_at(head, 0);
    parsed.eth_src = mac_at(head, 6);
    parsed.tci = None;
    parsed.l3_offset = L3 as u32;
    parsed.icrc_offset = (end - icrc::LEN) as u32;
    parsed.udp_sport = u16_at(head, UDP);
    Some(())
}

/// The IPv4 address there, mapped.
#[inline(always)]
fn gid_at(head: &[u8; EXT], at: usize) -> Gid {
    let (a, b, c, d) = (head[at], head[at + 1], head[at + 2], head[at + 3]);
    Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
}

#[inline(always)]
fn mac_at(head: &[u8; EXT], at: usize) -> ethernet::Mac {
    let b = |i: usize| head[at + i];
    [b(0), b(1), b(2), b(3), b(4), b(5)]
}
