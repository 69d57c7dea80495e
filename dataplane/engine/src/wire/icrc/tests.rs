//! The vectors of the standard and of real NICs, and the ICRC as a whole. Kernels one by one: [`kernels`].

mod emulated;
mod kernels;
mod proof;

use super::*;

const HEADERS_V4: usize = ipv4::LEN + udp::LEN + bth::LEN;
use crate::wire::{Opcode, ipv4, parse};
use proptest::prelude::*;

/// CRC-32 bit by bit: the definition, and nothing else.
fn crc32_bitwise(register: u32, bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(register, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            if crc & 1 == 1 {
                crc >> 1 ^ 0xedb8_8320
            } else {
                crc >> 1
            }
        })
    })
}

/// The ICRC by its definition, from a packet that starts with its IP header and ends before its ICRC.
fn icrc_bitwise(l3: &[u8]) -> [u8; LEN] {
    let (ip_len, variant): (usize, &[usize]) = if l3[0] >> 4 == 6 {
        (40, &[1, 2, 3, 7])
    } else {
        (20, &[1, 8, 10, 11])
    };
    let mut bytes = l3.to_vec();
    for at in variant
        .iter()
        .copied()
        .chain([ip_len + 6, ip_len + 7, ip_len + 12])
    {
        bytes[at] = 0xff;
    }
    if ip_len == 40 {
        bytes[0] |= 0x0f;
    }
    (!crc32_bitwise(!0, [0xff; 8].into_iter().chain(bytes))).to_le_bytes()
}

/// The sample packet of IBTA volume 1 (table of section 7.8.1), already masked: a local InfiniBand packet, so
/// with its LRH instead of the prefix. It fixes polynomial, bit order and byte order.
#[test]
fn vector_1_sample_packet_of_the_standard() {
    const MASKED: [u8; 52] = [
        0xf0, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2, 0x0a, 0x20, 0x24, 0x87, 0xff, 0x87, 0xb1,
        0xb3, 0x00, 0x0d, 0xec, 0x2a, 0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2,
        0x7a, 0x05, 0x00, 0x00, 0x00, 0x0e, 0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72,
        0x8b, 0xc0, 0x69, 0x0e, 0xd4, 0x00, 0x00,
    ];
    let mut state = IcrcState::crc32();
    state.update(&MASKED);
    assert_eq!(state.finish(), [0x96, 0x25, 0xb7, 0x5a]);
    assert_eq!(!crc32_bitwise(!0, MASKED), 0x5ab7_2596);
}

/// The UC packet of scapy's RoCE tests, built from its description.
#[test]
fn vector_2_uc_send_only() {
    let mut frame = vec![
        0x24, 0x8a, 0x07, 0xa8, 0xfa, 0x22, 0x24, 0x8a, 0x07, 0xa8, 0xfa, 0x22,
    ];
    frame.extend([0x08, 0x00]);
    // length 64, id 1144, DF, TTL 64, UDP, checksum, 192.168.0.7 to itself
    frame.extend([0x45, 1, 0, 64, 0x04, 0x78, 0x40, 0, 64, 17, 0xb4, 0xd5]);
    frame.extend([192, 168, 0, 7, 192, 168, 0, 7]);
    // 49152 to 4791, length 44, checksum
    frame.extend([0xc0, 0x00, 0x12, 0xb7, 0, 44, 0xac, 0xa2]);
    // UC SEND only, M, pad 2, P_Key ffff, QP 211, PSN 13571856
    frame.extend([0x24, 0x60, 0xff, 0xff, 0, 0, 0, 211, 0, 0xcf, 0x17, 0x10]);
    frame.extend(*b"F0\x81\x8b\xe2\x895\xd9\x0e\x9a\x95PT\x01\xbe\x88^P\x00\x00");
    frame.extend([0x78, 0xf3, 0x53, 0xf3]);

    let parsed = parse(&frame).expect("well formed");
    assert_eq!(parsed.packet.opcode, Opcode::UC_SEND_ONLY);
    assert_eq!(
        (parsed.packet.dest_qpn, parsed.packet.psn.get()),
        (211, 13_571_856)
    );
    assert_eq!(parsed.packet.payload_len, 18);
    assert_eq!(
        icrc_of_frame(&frame, 14, frame.len() - 4),
        [0x78, 0xf3, 0x53, 0xf3]
    );
    assert!(verify(&frame, &parsed));
}

/// A congestion notification captured from a ConnectX-4 Lx (scapy's RoCE tests).
#[rustfmt::skip]
pub const CAPTURED_CNP: [u8; 74] = [
    0xe4, 0x1d, 0x2d, 0xab, 0x2b, 0xc2, 0x7c, 0xfe, 0x90, 0x64, 0x3b, 0x32, 0x08, 0x00,
    0x45, 0xc2, 0x00, 0x3c, 0x71, 0x8c, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61,
    0x0a, 0x00, 0x11, 0x01, 0x0a, 0x00, 0x12, 0x01,
    0x00, 0x00, 0x12, 0xb7, 0x00, 0x28, 0x00, 0x00,
    0x81, 0x00, 0xff, 0xff, 0x40, 0x00, 0x01, 0x18, 0x00, 0x00, 0x00, 0x00,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0x82, 0xfd, 0x00, 0x2a,
];

#[test]
fn vector_3_congestion_notification() {
    const FRAME: [u8; 74] = CAPTURED_CNP;
    let parsed = parse(&FRAME).expect("well formed");
    assert_eq!(parsed.packet.opcode, Opcode::CNP);
    assert!(parsed.packet.becn && !parsed.packet.ce);
    assert_eq!(
        (parsed.packet.dest_qpn, parsed.packet.payload_len),
        (0x118, 0)
    );
    assert!(verify(&FRAME, &parsed));

    let mut resealed = FRAME;
    resealed[70..].fill(0);
    assert!(seal(&mut resealed, 14));
    assert_eq!(resealed, FRAME);
}

#[test]
fn offsets_outside_the_frame_fail_and_do_not_panic() {
    let frame = [0x45; 60];
    let bare = IcrcState::new(&[]).finish();
    for (l3, icrc) in [(61, 70), (14, 61), (40, 14), (usize::MAX, 0)] {
        assert_eq!(icrc_of_frame(&frame, l3, icrc), bare);
    }
    assert!(!seal(&mut [0; 3], 0));
    assert!(!seal(&mut [0; 20], 17));
}

/// Lengths and alignments that matter to vector code, each once: all of 0 to 600 bytes after the BTH, at
/// every alignment within 64 bytes.
#[test]
fn equals_the_definition_for_all_short_lengths() {
    let bytes: Vec<u8> = (0..1024u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    for len in 0..600 {
        let start = len % 64;
        for (first, head) in [(0x45, HEADERS_V4), (0x60, HEADERS_V6)] {
            let mut l3 = bytes[start..start + head + len].to_vec();
            l3[0] = first;
            let mut placed = vec![0; start];
            placed.extend_from_slice(&l3);
            let got = IcrcState::new(&placed[start..]).finish();
            assert_eq!(got, icrc_bitwise(&l3), "length {len}, version {first:#x}");
        }
    }
}

proptest! {
    #[test]
    fn equals_the_definition(
        mut l3 in proptest::collection::vec(any::<u8>(), HEADERS_V6..4400),
        is_v6: bool,
        align in 0usize..64,
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        l3[0] = if is_v6 { 0x60 } else { 0x45 };
        let want = icrc_bitwise(&l3);
        let mut placed = vec![0; align];
        placed.extend_from_slice(&l3);
        let l3 = &placed[align..];
        prop_assert_eq!(IcrcState::new(l3).finish(), want);

        // the same in pieces: headers, then payload cut anywhere
        let head = if is_v6 { HEADERS_V6 } else { HEADERS_V4 };
        let (headers, payload) = l3.split_at(head);
        let mut at: Vec<usize> = cuts.iter().map(|c| c.index(payload.len() + 1)).collect();
        at.extend([0, payload.len()]);
        at.sort_unstable();
        let mut state = IcrcState::new(headers);
        for piece in at.windows(2) {
            state.update(&payload[piece[0]..piece[1]]);
        }
        prop_assert_eq!(state.finish(), want);
    }
}
