//! What of the headers is under the ICRC: eight bytes of ones in place of an LRH, then IP, UDP and BTH with
//! all that routers may change set to ones (IBTA section 7.8.1 and annex A17).
//!
//! In a frame the eight bytes before the IP header are Ethernet's, and all that is masked becomes ones. So the headers under the
//! ICRC are those of the frame, from eight bytes before the IP header on, with one constant in a bitwise or.

use crate::wire::{bth, ipv4, ipv6, udp};

/// Bytes of ones in place of an LRH.
const PREFIX: usize = 8;

const LEN_V4: usize = PREFIX + ipv4::LEN + udp::LEN + bth::LEN;
/// Without the first four bytes of ones: with those that the register starts with they are zeros at the start, which change nothing.
pub(super) const LEN_V6: usize = PREFIX / 2 + ipv6::LEN + udp::LEN + bth::LEN;

/// The ones of a header over IPv4.
pub(super) static MASK_V4: [u8; LEN_V4] = {
    let mut mask = [0; LEN_V4];
    fill(&mut mask, PREFIX);
    ipv4::mask_for_icrc(&mut mask, PREFIX);
    udp::mask_for_icrc(&mut mask, PREFIX + ipv4::LEN);
    bth::mask_for_icrc(&mut mask, PREFIX + ipv4::LEN + udp::LEN);
    mask
};

/// The ones of a header over IPv6, with only four bytes before the IP header.
pub(super) static MASK_V6: [u8; LEN_V6] = {
    let mut mask = [0; LEN_V6];
    fill(&mut mask, PREFIX / 2);
    ipv6::mask_for_icrc(&mut mask, PREFIX / 2);
    udp::mask_for_icrc(&mut mask, PREFIX / 2 + ipv6::LEN);
    bth::mask_for_icrc(&mut mask, PREFIX / 2 + ipv6::LEN + udp::LEN);
    mask
};

/// What the register starts with.
pub(super) static CANCEL: [u8; 64] = {
    let mut ones = [0; 64];
    fill(&mut ones, 4);
    ones
};

const fn fill<const N: usize>(bytes: &mut [u8; N], len: usize) {
    let mut i = 0;
    while i < len {
        bytes[i] = 0xff;
        i += 1;
    }
}

/// IP version of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    /// By the first byte of the IP header.
    #[inline(always)]
    pub fn of(first: u8) -> Family {
        if first >> 4 == 6 {
            Family::V6
        } else {
            Family::V4
        }
    }

    /// Bytes from [`PREFIX`] before the IP header to behind the BTH.
    #[inline(always)]
    pub const fn span(self) -> usize {
        match self {
            Family::V4 => LEN_V4,
            Family::V6 => LEN_V6 + 4,
        }
    }

    /// The headers as they are under the ICRC, at the end of 64 bytes; their beginning is zeros, which change nothing. `start` are the
    /// bytes from [`PREFIX`] before the IP header on, [`Family::span`] at least.
    pub fn masked(self, start: &[u8]) -> [u8; 64] {
        let mut out = [0; 64];
        let (mask, from): (&[u8], _) = match self {
            Family::V4 => (&MASK_V4, 0),
            Family::V6 => (&MASK_V6, 4),
        };
        let begin = out.len() - mask.len();
        let headers = start.iter().skip(from).zip(mask);
        for (out, (byte, mask)) in out[begin..].iter_mut().zip(headers) {
            *out = byte | mask;
        }
        if self == Family::V4 {
            out[begin..begin + 4].fill(0);
        }
        out
    }
}
