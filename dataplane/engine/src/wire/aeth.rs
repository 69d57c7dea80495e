//! ACK extended transport header (IBTA section 9.3.5, table "AETH syndrome field") with the tables
//! that its codes point into: end-to-end credits and RNR timers (section 9.7.5.2.8), and the local
//! ACK timeout that counts in a similar code (section 9.7.6.1).

use crate::time::Nanos;

use super::be::{put_u32, u32_at};

/// Bytes of the header.
pub const LEN: usize = 4;

/// Credit code of a responder that does not count credits; with a shared receive queue it must not.
pub const NO_CREDITS: u8 = 0x1f;

/// Why a responder refuses a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NakCode {
    /// A PSN is missing.
    PsnSequence = 0,
    /// The request is not allowed on this QP, or malformed.
    InvalidRequest = 1,
    /// Key, range, protection domain or rights.
    RemoteAccess = 2,
    /// The responder could not do it.
    RemoteOperational = 3,
    /// Reliable datagram only.
    InvalidRd = 4,
}

impl NakCode {
    /// As people name it.
    pub const fn name(self) -> &'static str {
        match self {
            NakCode::PsnSequence => "PSN sequence error",
            NakCode::InvalidRequest => "invalid request",
            NakCode::RemoteAccess => "remote access error",
            NakCode::RemoteOperational => "remote operational error",
            NakCode::InvalidRd => "invalid RD request",
        }
    }
}

/// What an acknowledgement says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Syndrome {
    /// All is well up to the PSN.
    Ack {
        /// Credit code: [`credits`].
        credit: u8,
    },
    /// No receive request was posted: try again later.
    Rnr {
        /// Timer code: [`rnr_timer`].
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
}

impl Syndrome {
    /// The meaning of a syndrome byte; `None` for reserved codes.
    #[inline]
    pub const fn from_raw(raw: u8) -> Option<Syndrome> {
        let value = raw & 0x1f;
        match raw >> 5 {
            0b000 => Some(Syndrome::Ack { credit: value }),
            0b001 => Some(Syndrome::Rnr { timer: value }),
            0b011 => Some(Syndrome::Nak(match value {
                0 => NakCode::PsnSequence,
                1 => NakCode::InvalidRequest,
                2 => NakCode::RemoteAccess,
                3 => NakCode::RemoteOperational,
                4 => NakCode::InvalidRd,
                _ => return None,
            })),
            _ => None,
        }
    }

    /// The syndrome byte.
    #[inline]
    pub const fn raw(self) -> u8 {
        match self {
            Syndrome::Ack { credit } => credit & 0x1f,
            Syndrome::Rnr { timer } => 0x20 | timer & 0x1f,
            Syndrome::Nak(code) => 0x60 | code as u8,
        }
    }

    /// A plain ACK without credits.
    pub const ACK: Syndrome = Syndrome::Ack { credit: NO_CREDITS };
}

/// The header's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// What it says.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed, 24 bits.
    pub msn: u32,
}

impl Aeth {
    /// From [`super::ExtHeaders::aeth`]; `None` for reserved syndromes.
    #[inline]
    pub const fn from_raw(raw: u32) -> Option<Aeth> {
        match Syndrome::from_raw((raw >> 24) as u8) {
            Some(syndrome) => Some(Aeth {
                syndrome,
                msn: raw & 0xff_ffff,
            }),
            None => None,
        }
    }

    /// For [`super::ExtHeaders::aeth`].
    #[inline]
    pub const fn raw(self) -> u32 {
        (self.syndrome.raw() as u32) << 24 | self.msn & 0xff_ffff
    }
}

/// Reads the header as [`super::ExtHeaders::aeth`] has it.
#[inline]
pub fn parse(b: &[u8; LEN]) -> u32 {
    u32_at(b, 0)
}

/// Writes it.
#[inline]
pub fn emit(raw: u32, out: &mut [u8; LEN]) {
    put_u32(out, 0, raw);
}

const CREDITS: [u16; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

/// Messages that the requester may have beyond the MSN; `None` for [`NO_CREDITS`]: as many as it likes.
pub const fn credits(code: u8) -> Option<u32> {
    let code = (code & 0x1f) as usize;
    if code < CREDITS.len() {
        Some(CREDITS[code] as u32)
    } else {
        None
    }
}

/// The code of the most credits that are not more than `n`.
pub fn credit_code(n: u32) -> u8 {
    (CREDITS.partition_point(|&c| u32::from(c) <= n) - 1) as u8
}

/// In units of 10 us.
const RNR_TIMERS: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// How long a requester must wait at least after an RNR NAK with this timer code.
#[inline]
pub const fn rnr_timer(code: u8) -> Nanos {
    Nanos(RNR_TIMERS[(code & 0x1f) as usize] as u64 * 10_000)
}

/// Local ACK timeout of a QP, 4.096 us times 2^`code`; `None` for 0: wait for ever.
#[inline]
pub const fn ack_timeout(code: u8) -> Option<Nanos> {
    match code & 0x1f {
        0 => None,
        t => Some(Nanos(4096 << t)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_round_trip_and_reserved_ones_are_none() {
        let mut known = 0;
        for raw in 0..=255u8 {
            if let Some(s) = Syndrome::from_raw(raw) {
                known += 1;
                assert_eq!(s.raw(), raw);
            }
        }
        assert_eq!(known, 32 + 32 + 5);
        for reserved in [0x40, 0x5f, 0x65, 0x7f, 0x80, 0xff] {
            assert_eq!(Syndrome::from_raw(reserved), None, "{reserved:#x}");
        }
        assert_eq!(Syndrome::ACK.raw(), 0x1f);
        assert_eq!(Syndrome::Rnr { timer: 17 }.raw(), 0x31);
        assert_eq!(Syndrome::Nak(NakCode::RemoteAccess).raw(), 0x62);
    }

    #[test]
    fn header_holds_syndrome_and_msn() {
        let aeth = Aeth {
            syndrome: Syndrome::Nak(NakCode::PsnSequence),
            msn: 0x01_0203,
        };
        let mut out = [0; LEN];
        emit(aeth.raw(), &mut out);
        assert_eq!(out, [0x60, 1, 2, 3]);
        assert_eq!(Aeth::from_raw(parse(&out)), Some(aeth));
    }

    /// From code 2 on the values double every second step, 1 to 32768, with three quarters of the next between.
    #[test]
    fn credits_double_every_second_code() {
        assert_eq!(credits(0), Some(0));
        assert_eq!(credits(NO_CREDITS), None);
        for code in 2..29u8 {
            let n = credits(code).expect("below 31");
            assert_eq!(
                credits(code + 2),
                Some(if n == 3 { 6 } else { 2 * n }),
                "{code}"
            );
        }
        assert_eq!(credits(30), Some(32768));
    }

    #[test]
    fn credit_code_rounds_down() {
        for code in 0..31 {
            assert_eq!(credit_code(credits(code).expect("below 31")), code);
        }
        assert_eq!(
            (credit_code(5), credit_code(47), credit_code(u32::MAX)),
            (4, 10, 30)
        );
    }

    /// Milliseconds as the standard's table prints them.
    #[test]
    fn rnr_timers_match_the_table() {
        let ms = [
            655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96,
            1.28, 1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92,
            122.88, 163.84, 245.76, 327.68, 491.52,
        ];
        for (code, ms) in ms.into_iter().enumerate() {
            assert_eq!(
                rnr_timer(code as u8).0,
                (ms * 1e6_f64).round() as u64,
                "code {code}"
            );
        }
    }

    #[test]
    fn ack_timeouts() {
        assert_eq!(ack_timeout(0), None);
        assert_eq!(ack_timeout(1), Some(Nanos(8192)));
        assert_eq!(ack_timeout(14), Some(Nanos(67_108_864)));
        assert_eq!(ack_timeout(31), Some(Nanos(4096 << 31)));
    }
}
