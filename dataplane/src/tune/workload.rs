//! What a setting is tuned for: `write:64`, `read:1M:8`, `send-lat:64`.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

use crate::bench::load::{Load, MAX_INLINE, Op};

/// QPs at most, as of `roceline bench datapath`.
const MAX_QPS: u64 = 20_000;
/// Bytes of a message at most.
const MAX_BYTES: u64 = 1 << 30;
/// Bytes of a message whose latency is measured at most: longer ones are a matter of bandwidth.
const MAX_LATENCY_BYTES: u64 = 1 << 20;

/// What of a workload counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Messages in a second of a polling thread that serves both NICs.
    Rate(Load),
    /// Half round trips between two programs on one CPU, the polling thread on another.
    Latency(Ping),
}

/// How a message goes there and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ping {
    /// By SEND; else by WRITE, which the other one sees in its memory.
    pub send: bool,
    /// Bytes.
    pub len: u32,
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Workload {
    /// What is done and what counts.
    pub kind: Kind,
    /// QPs that take turns.
    pub qps: usize,
}

impl Workload {
    /// Bytes of a message.
    pub fn bytes(&self) -> u32 {
        match self.kind {
            Kind::Rate(load) => load.len,
            Kind::Latency(ping) => ping.len,
        }
    }

    /// Whether it is latency that counts.
    pub fn is_latency(&self) -> bool {
        matches!(self.kind, Kind::Latency(_))
    }

    /// A figure of it, in words: what counts is more the better, so that of a latency is its reciprocal, per nanosecond.
    pub fn figure(&self, figure: f64) -> String {
        match self.kind {
            Kind::Latency(_) => format!("{:.2} us", 1.0 / figure / 1e3),
            Kind::Rate(load) => {
                let gbps = figure * f64::from(load.len) * 8.0 / 1e9;
                format!("{:.3} M/s, {gbps:.1} Gb/s", figure / 1e6)
            }
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.kind {
            Kind::Rate(load) => match load.op {
                Op::Write => "write",
                Op::WriteInline => "write-inline",
                Op::Send => "send",
                Op::Read => "read",
                Op::FetchAdd => "fetch-add",
                Op::CompareSwap => "compare-swap",
            },
            Kind::Latency(Ping { send: true, .. }) => "send-lat",
            Kind::Latency(_) => "write-lat",
        };
        let text = match self.bytes() {
            n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{op}:{}M", n >> 20),
            n if n >= 1 << 10 && n % (1 << 10) == 0 => format!("{op}:{}K", n >> 10),
            n => format!("{op}:{n}"),
        };
        match self.qps {
            1 => f.pad(&text),
            qps => f.pad(&format!("{text}:{qps}")),
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Workload, String> {
        let mut parts = text.split(':');
        let op = parts.next().unwrap_or_default();
        let bytes = parts.next();
        let qps = parts.next();
        if parts.next().is_some() {
            return Err(
                "must be OP, OP:BYTES or OP:BYTES:QPS, such as write:64 or read:1M:8".into(),
            );
        }
        let bytes = |usual, most| match bytes {
            None => Ok(usual),
            Some(text) => number(text)
                .filter(|n| (1..=most).contains(n))
                .map(|n| n as u32)
                .ok_or_else(|| {
                    let such = match most < 4096 {
                        true => "8 or 32",
                        false => "64, 4K or 1M",
                    };
                    format!("`{text}`: must be bytes from 1 to {most}, such as {such}")
                }),
        };
        let rate = |op, usual, most| -> Result<Kind, String> {
            let len = bytes(usual, most)?;
            Ok(Kind::Rate(Load { op, len }))
        };
        let latency = |send| -> Result<Kind, String> {
            let len = bytes(64, MAX_LATENCY_BYTES)?;
            match send || len % 8 == 0 {
                true => Ok(Kind::Latency(Ping { send, len })),
                false => Err(format!("write-lat:{len}: must be a multiple of 8 bytes")),
            }
        };
        let atomic = |kind| match bytes(8, MAX_BYTES)? {
            8 => rate(kind, 8, 8),
            other => Err(format!("{op}:{other}: an atomic operation has 8 bytes")),
        };
        let kind = match op {
            "write" => rate(Op::Write, 64, MAX_BYTES)?,
            "write-inline" => rate(Op::WriteInline, MAX_INLINE, MAX_INLINE.into())?,
            "send" => rate(Op::Send, 64, MAX_BYTES)?,
            "read" => rate(Op::Read, 64, MAX_BYTES)?,
            "fetch-add" => atomic(Op::FetchAdd)?,
            "compare-swap" => atomic(Op::CompareSwap)?,
            "write-lat" => latency(false)?,
            "send-lat" => latency(true)?,
            other => {
                let known =
                    "write, write-inline, send, read, fetch-add, compare-swap, write-lat, send-lat";
                return Err(format!("`{other}`: known are {known}"));
            }
        };
        let qps = match qps {
            None => 1,
            Some(text) => number(text)
                .filter(|n| (1..=MAX_QPS).contains(n))
                .ok_or_else(|| format!("`{text}`: must be a number of QPs from 1 to {MAX_QPS}"))?,
        };
        if qps > 1 && matches!(kind, Kind::Latency(_)) {
            return Err("a latency is that of one QP: leave the number of QPs out".into());
        }
        let qps = qps as usize;
        Ok(Workload { kind, qps })
    }
}

/// A whole number, perhaps with `K` or `M` for 2^10 or 2^20.
pub(crate) fn number(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 10),
        b'M' | b'm' => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    let plain = digits.bytes().all(|b| b.is_ascii_digit());
    let number: u64 = digits.parse().ok().filter(|_| plain)?;
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for (text, as_shown) in [
            ("write", "write:64"),
            ("write:64", "write:64"),
            ("write:1M", "write:1M"),
            ("write:4096", "write:4K"),
            ("read:65536:8", "read:64K:8"),
            ("send:8:1", "send:8"),
            ("write-inline", "write-inline:48"),
            ("fetch-add", "fetch-add:8"),
            ("compare-swap:8:3", "compare-swap:8:3"),
            ("send-lat:64", "send-lat:64"),
            ("write-lat:1k", "write-lat:1K"),
        ] {
            let workload: Workload = text.parse().unwrap();
            assert_eq!(workload.to_string(), as_shown);
            assert_eq!(as_shown.parse::<Workload>().unwrap(), workload);
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (text, says) in [
            ("wriet:64", "known are write,"),
            ("write:", "must be bytes"),
            ("write:0", "from 1 to"),
            ("write:2048M", "from 1 to"),
            ("write:-1", "must be bytes"),
            ("write:64:0", "must be a number of QPs"),
            ("write:64:1:1", "OP:BYTES:QPS"),
            ("write-inline:49", "from 1 to 48, such as 8 or 32"),
            ("compare-swap:16", "compare-swap:16: an atomic"),
            ("fetch-add:16", "has 8 bytes"),
            ("write-lat:12", "a multiple of 8"),
            ("send-lat:64:2", "one QP"),
            ("write:99999999999999999999M", "must be bytes"),
        ] {
            let error = text.parse::<Workload>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn figures_are_in_units_of_what_counts() {
        let write: Workload = "write:1M".parse().unwrap();
        assert_eq!(write.figure(10_000.0), "0.010 M/s, 83.9 Gb/s");
        let latency: Workload = "send-lat".parse().unwrap();
        assert_eq!(latency.figure(1.0 / 1500.0), "1.50 us");
    }
}
