//! The captures of a real peer against `wire`: every packet decodes, its ICRC agrees, and what is
//! encoded from the decoded form is the same bytes. And the captures mutated: nothing panics, and no change
//! under the ICRC goes unseen.

mod captures;

use std::sync::LazyLock;

use proptest::prelude::*;
use roceline_engine::descriptor::{Payload, Side, TxDesc};
use roceline_engine::verbs::{Path, QpId};
use roceline_engine::wire::{
    Aeth, HeaderTemplate, Opcode, ParseError, ParsedFrame, Syndrome, bth, fuzz, icrc, ipv4, ipv6,
    parse,
};

/// All frames that are RoCE, and how many are not.
static FRAMES: LazyLock<(Vec<Vec<u8>>, usize)> = LazyLock::new(|| {
    let mut roce = Vec::new();
    let mut other = 0;
    for name in captures::names() {
        for packet in captures::read(&name) {
            match parse(&packet.frame) {
                Ok(_) => roce.push(packet.frame),
                Err(ParseError::NotRoce) => other += 1,
                Err(e) => panic!("{name}, packet {}: {e}", packet.number),
            }
        }
    }
    (roce, other)
});

#[test]
fn every_packet_decodes_and_its_icrc_agrees() {
    assert_eq!(captures::names().len(), 45);
    assert_eq!(FRAMES.0.len(), 278);
    for (i, frame) in FRAMES.0.iter().enumerate() {
        let parsed = parse(frame).expect("parsed before");
        assert!(
            icrc::verify(frame, &parsed),
            "RoCE packet {i}: {:?}",
            parsed.packet
        );
    }
}

/// IPv4 identification, TTL, traffic class and flow label: what the template takes from its caller.
fn path_and_id(frame: &[u8], parsed: &ParsedFrame) -> (Path, u16) {
    let l3 = &frame[parsed.l3_offset as usize..];
    let mut path = Path {
        sgid: parsed.packet.src,
        dgid: parsed.packet.dst,
        smac: parsed.eth_src,
        dmac: parsed.eth_dst,
        traffic_class: parsed.packet.traffic_class,
        ..Path::default()
    };
    if parsed.packet.src.ipv4().is_some() {
        let ip = ipv4::Header::new_checked(l3).expect("parsed before");
        path.hop_limit = ip.ttl();
        (path, ip.id())
    } else {
        let ip = ipv6::Header::new_checked(l3).expect("parsed before");
        path.hop_limit = ip.hop_limit();
        path.flow_label = ip.flow_label();
        (path, 0)
    }
}

fn desc_of(parsed: &ParsedFrame) -> TxDesc {
    let p = &parsed.packet;
    TxDesc {
        qp: QpId(0),
        epoch: 0,
        side: Side::Requester,
        opcode: p.opcode,
        ack_req: p.ack_req,
        solicited: p.solicited,
        psn: p.psn,
        ext: p.ext,
        len: p.payload_len,
        payload: Payload::None,
        ..TxDesc::default()
    }
}

/// Lays out a frame from what was parsed of `frame` and the payload in it.
fn encode(frame: &[u8], parsed: &ParsedFrame) -> Vec<u8> {
    let p = &parsed.packet;
    let (path, id) = path_and_id(frame, parsed);
    let template = HeaderTemplate::new(&path, parsed.udp_sport, p.dest_qpn, p.pkey);
    let mut out = vec![0; template.frame_len(p.opcode, p.payload_len)];
    let header_len = template
        .write(&desc_of(parsed), id, &mut out)
        .expect("room for the headers");
    assert_eq!(header_len, template.header_len(p.opcode));
    let payload = &frame[p.payload_offset as usize..][..p.payload_len as usize];
    out[header_len..][..payload.len()].copy_from_slice(payload);
    assert!(icrc::seal(&mut out, HeaderTemplate::L3_OFFSET));
    out
}

#[test]
fn every_packet_encodes_to_the_same_bytes() {
    for (i, frame) in FRAMES.0.iter().enumerate() {
        let parsed = parse(frame).expect("parsed before");
        assert_eq!(
            &encode(frame, &parsed),
            frame,
            "RoCE packet {i}: {:?}",
            parsed.packet
        );
    }
}

/// The habits of the peer that the template follows where a path leaves them open.
#[test]
fn the_peer_sends_what_the_template_defaults_to() {
    for frame in &FRAMES.0 {
        let parsed = parse(frame).expect("parsed before");
        let (mut path, id) = path_and_id(frame, &parsed);
        assert_eq!(path.hop_limit, 64);
        path.hop_limit = 0;
        let p = &parsed.packet;
        let template = HeaderTemplate::new(&path, parsed.udp_sport, p.dest_qpn, p.pkey);
        let mut out = [0; 128];
        let len = template
            .write(&desc_of(&parsed), id, &mut out)
            .expect("room");
        assert_eq!(out[..len], frame[..len]);
        let bth = bth::Header::new_checked(&frame[len - bth_and_ext(p.opcode)..]).expect("room");
        assert!(!bth.mig_req() && p.pkey == 0xffff);
    }
}

fn bth_and_ext(opcode: Opcode) -> usize {
    bth::LEN + usize::from(opcode.info().ext_len)
}

#[test]
fn fields_of_known_packets() {
    let frames = captures::read("rc_read_multi");
    let roce: Vec<ParsedFrame> = frames.iter().filter_map(|c| parse(&c.frame).ok()).collect();
    let request = &roce[0].packet;
    assert_eq!(request.opcode, Opcode::RC_READ_REQUEST);
    assert_eq!(
        (request.dest_qpn, request.psn.get(), request.ack_req),
        (0x23, 0x100, true)
    );
    assert_eq!(
        (request.ext.va, request.ext.rkey),
        (0x55d2_13a2_2000, 0x1444)
    );
    assert_eq!((request.ext.dma_len, request.payload_len), (5001, 0));
    assert_eq!(request.src.to_ip().to_string(), "10.0.0.1");
    assert_eq!(request.dst.to_ip().to_string(), "10.0.0.2");
    assert_eq!(roce[0].udp_sport, 0xc4c9);
    let first = &roce[1].packet;
    assert_eq!(
        (first.opcode, first.payload_len),
        (Opcode::RC_READ_RESP_FIRST, 1024)
    );
    let aeth = Aeth::from_raw(first.ext.aeth).expect("no reserved code");
    assert_eq!(
        aeth,
        Aeth {
            syndrome: Syndrome::ACK,
            msn: 1
        }
    );
    let last = &roce[5].packet;
    assert_eq!(
        (last.opcode, last.payload_len),
        (Opcode::RC_READ_RESP_LAST, 905)
    );

    let frames = captures::read("ud_send_imm");
    let ud = frames
        .iter()
        .find_map(|c| parse(&c.frame).ok())
        .expect("one RoCE packet")
        .packet;
    assert_eq!((ud.opcode, ud.payload_len), (Opcode::UD_SEND_ONLY_IMM, 201));
    assert_eq!((ud.ext.qkey, ud.ext.src_qpn), (0x1111_1111, 0x2d));
    assert_eq!(ud.ext.imm_or_rkey.to_ne_bytes(), [0xca, 0xfe, 0x00, 0x01]);
}

/// What the ICRC vouches for, by the definition: everything from the IP header to the ICRC, with the
/// variant fields set to ones.
fn covered(frame: &[u8], parsed: &ParsedFrame) -> Vec<u8> {
    let l3 = parsed.l3_offset as usize;
    let mut bytes = frame[l3..parsed.icrc_offset as usize + 4].to_vec();
    let udp = if bytes[0] >> 4 == 6 {
        bytes[0] |= 0x0f;
        bytes[1..4].fill(0xff);
        bytes[7] = 0xff;
        40
    } else {
        bytes[1] = 0xff;
        bytes[8] = 0xff;
        bytes[10..12].fill(0xff);
        20
    };
    bytes[udp + 6..udp + 8].fill(0xff);
    bytes[udp + 12] = 0xff;
    bytes
}

/// Makes the IPv4 header checksum right again, so that mutated headers get beyond it.
fn fix_ip_checksum(frame: &mut [u8]) {
    if frame.len() >= 34 && frame[12..14] == [8, 0] {
        frame[24..26].fill(0);
        let words = frame[14..34]
            .chunks(2)
            .map(|w| u32::from(w[0]) << 8 | u32::from(w[1]));
        let sum: u32 = words.sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// A change to a frame.
#[derive(Clone, Debug)]
enum Mutation {
    Flip(prop::sample::Index, u8),
    Set(prop::sample::Index, u8),
    /// The same within the headers, where most of the meaning is.
    SetHeader(usize, u8),
    Truncate(prop::sample::Index),
    Extend(Vec<u8>),
    Tag(u16),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        (index(), 0..8u8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        (index(), any::<u8>()).prop_map(|(at, v)| Mutation::Set(at, v)),
        (0..74usize, any::<u8>()).prop_map(|(at, v)| Mutation::SetHeader(at, v)),
        index().prop_map(Mutation::Truncate),
        prop::collection::vec(any::<u8>(), 0..64).prop_map(Mutation::Extend),
        any::<u16>().prop_map(Mutation::Tag),
    ]
}

fn apply(frame: &mut Vec<u8>, mutation: &Mutation) {
    match mutation {
        _ if frame.is_empty() => {}
        Mutation::Flip(at, bit) => *at.get_mut(frame) ^= 1 << bit,
        Mutation::Set(at, v) => *at.get_mut(frame) = *v,
        Mutation::SetHeader(at, v) => {
            if let Some(byte) = frame.get_mut(*at) {
                *byte = *v;
            }
        }
        Mutation::Truncate(at) => frame.truncate(at.index(frame.len())),
        Mutation::Extend(bytes) => frame.extend(bytes),
        Mutation::Tag(tci) if frame.len() >= 12 => {
            let tci = tci.to_be_bytes();
            frame.splice(12..12, [0x81, 0x00, tci[0], tci[1]]);
        }
        Mutation::Tag(_) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        fuzz::frame(&bytes);
    }

    /// Arbitrary bytes behind headers that lead the parser to the transport.
    #[test]
    fn arbitrary_transport_bytes_never_panic(
        roce in prop::collection::vec(any::<u8>(), 0..160),
        opcode in 0..0x18u8,
        v6: bool,
        lie in -4i32..5,
    ) {
        let mut roce = roce;
        if let [op, flags, ..] = &mut roce[..] {
            *op = opcode;
            *flags &= 0xf0;
        }
        let udp_len = (roce.len() as i32 + 8 + lie).max(0) as u16;
        let [hi, lo] = udp_len.to_be_bytes();
        let mut bytes = vec![0; 12];
        if v6 {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0, hi, lo, 17, 64]);
            bytes.extend([0; 32]);
        } else {
            let [hi, lo] = (udp_len + 20).to_be_bytes();
            bytes.extend([8, 0, 0x45, 0, hi, lo, 0, 0, 0x40, 0, 64, 17]);
            bytes.extend([0; 10]);
        }
        bytes.extend([0xc0, 0, 0x12, 0xb7, hi, lo, 0, 0]);
        bytes.extend(roce);
        fix_ip_checksum(&mut bytes);
        fuzz::frame(&bytes);
    }

    /// A mutated packet that still parses is believed exactly if nothing under the ICRC changed.
    #[test]
    fn mutated_captures_never_panic_nor_deceive(
        which in any::<prop::sample::Index>(),
        mutations in prop::collection::vec(mutation(), 1..4),
        fix: bool,
    ) {
        let original = which.get(&FRAMES.0);
        let mut mutated = original.clone();
        for m in &mutations {
            apply(&mut mutated, m);
        }
        if fix {
            fix_ip_checksum(&mut mutated);
        }
        fuzz::frame(&mutated);
        if let Ok(parsed) = parse(&mutated) {
            let before = covered(original, &parse(original).expect("parsed before"));
            let after = covered(&mutated, &parsed);
            prop_assert_eq!(icrc::verify(&mutated, &parsed), before == after);
        }
    }
}
