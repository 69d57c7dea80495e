//! Values as people write them, with their units: `10us`, `1Gb/s`, `100..200`, `0x11`. Each function gives an integer
//! that means the same on every machine, or a sentence that says what would be right.

use std::ops::RangeInclusive;

use roceline_engine::Nanos;

/// The sentence that says what would be right.
pub type Problem = String;

/// A whole number, decimal or `0x` hexadecimal.
pub fn number(text: &str) -> Result<u64, Problem> {
    number_in(text, 0..=u64::MAX)
}

/// A whole number of at most `most`.
pub fn number_to(text: &str, most: u64) -> Result<u64, Problem> {
    number_in(text, 0..=most)
}

/// A whole number within bounds.
pub fn number_in(text: &str, bounds: RangeInclusive<u64>) -> Result<u64, Problem> {
    whole(text)
        .filter(|number| bounds.contains(number))
        .ok_or_else(|| {
            let (least, most) = bounds.into_inner();
            match most {
                0..=9 => format!("must be a whole number from {least} to {most}"),
                _ => format!("must be a whole number from {least} to {most} ({most:#x})"),
            }
        })
}

fn whole(text: &str) -> Option<u64> {
    // `parse` would take a sign.
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
    u64::from_str_radix(digits, radix).ok().filter(|_| plain)
}

/// Whether it is written as a whole number, of any size.
pub fn looks_whole(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) || text.starts_with("0x")
}

/// `17`, or `17..20`, which includes both ends; each at most `most`. The first may be the greater one: what that means
/// is up to the caller.
pub fn range(text: &str, most: u64) -> Result<(u64, u64), Problem> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let end = |text: &str| number_to(text.trim(), most);
    match (end(first), end(last)) {
        (Ok(first), Ok(last)) => Ok((first, last)),
        _ => Err(format!(
            "must be a number or a range such as 17..20 (both ends included), from 0 to {most} ({most:#x})"
        )),
    }
}

/// As [`range`], but the first end is the smaller one.
pub fn ascending(text: &str, most: u64) -> Result<(u64, u64), Problem> {
    let (first, last) = range(text, most)?;
    if first > last {
        return Err(format!("is an empty range: write {last}..{first}"));
    }
    Ok((first, last))
}

/// `MODULUS:REMAINDER`, or `MODULUS` alone for remainder 0.
pub fn modulo(text: &str) -> Result<(u32, u32), Problem> {
    let (modulus, remainder) = text.split_once(':').unwrap_or((text, "0"));
    let part = |text: &str| number_to(text, 0x00ff_ffff).map(|n| n as u32);
    match (part(modulus), part(remainder)) {
        (Ok(modulus), Ok(remainder)) if remainder < modulus => Ok((modulus, remainder)),
        _ => Err(
            "must be MODULUS:REMAINDER, such as 100:7 (100 alone is 100:0): a modulus from 1 to 16777215 and a \
             remainder below it"
                .into(),
        ),
    }
}

/// A decimal number without sign and exponent as an integer number of `10^-digits`: `1.5` with 3 digits is 1500. What is
/// too large for an integer is the largest.
fn decimal(text: &str, digits: usize) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() && fraction.is_empty() || !plain(whole) || !plain(fraction) {
        return None;
    }
    if fraction.len() > digits && fraction[digits..].bytes().any(|b| b != b'0') {
        return None;
    }
    let kept = &fraction[..fraction.len().min(digits)];
    let scale = 10u64.checked_pow(u32::try_from(digits).ok()?)?;
    let whole: u64 = if whole.is_empty() {
        0
    } else {
        // Nothing but digits: too many of them.
        whole.parse().unwrap_or(u64::MAX)
    };
    let part: u64 = if kept.is_empty() {
        0
    } else {
        kept.parse().ok()?
    };
    let part = part * 10u64.pow((digits - kept.len()) as u32);
    Some(whole.saturating_mul(scale).saturating_add(part))
}

/// The number in front of a unit, and the unit.
fn split_unit(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

/// The longest time that a rule may name.
pub const LONGEST: Nanos = Nanos(60_000_000_000);

/// Digits behind the point of a time with this unit that are worth a nanosecond at least.
fn digits_of(unit: &str) -> Option<usize> {
    match unit {
        "ns" => Some(0),
        "us" | "µs" | "μs" => Some(3),
        "ms" => Some(6),
        "s" => Some(9),
        _ => None,
    }
}

/// Whether it is written as a time, if perhaps one that no rule may name.
pub fn looks_like_time(text: &str) -> bool {
    let (number, unit) = split_unit(text);
    !number.is_empty() && digits_of(unit).is_some()
}

/// A time with its unit: `250ns`, `10us`, `1.5ms`, `2s`. 60 s at most.
pub fn time(text: &str) -> Result<Nanos, Problem> {
    let (number, unit) = split_unit(text);
    let Some(digits) = digits_of(unit) else {
        return Err(
            "must be a time with its unit, such as 250ns, 10us, 1.5ms or 2s; 60s at most".into(),
        );
    };
    match decimal(number, digits).map(Nanos) {
        Some(time) if time <= LONGEST => Ok(time),
        Some(_) => Err(format!(
            "a time of {} is too long: 60s at most",
            super::shortened(text)
        )),
        None => Err(
            "must be a time in whole nanoseconds, such as 250ns, 10us or 1.5ms; 60s at most".into(),
        ),
    }
}

/// A time as people write it: in the largest unit that needs no fraction.
pub fn written(time: Nanos) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us")];
    let fits = |(size, _): &(u64, &str)| time.0 > 0 && time.0 % size == 0;
    let (size, unit) = units.into_iter().find(fits).unwrap_or((1, "ns"));
    format!("{}{unit}", time.0 / size)
}

/// A decimal number in thousandths: `1.5` is 1500.
pub fn thousandths(text: &str) -> Option<u64> {
    decimal(text, 3)
}

/// The highest rate that a rule may name.
const FASTEST: u64 = 1_000_000_000_000;

/// A rate in bits per second: `800b/s`, `100Mb/s`, `1.5Gb/s`, also `…bit` as tc(8) writes them.
pub fn rate(text: &str) -> Result<u64, Problem> {
    let (number, unit) = split_unit(text);
    let prefix = unit
        .strip_suffix("b/s")
        .or_else(|| unit.strip_suffix("bps"))
        .or_else(|| unit.strip_suffix("bit"));
    let digits = match prefix.map(str::to_ascii_lowercase).as_deref() {
        Some("") => 0,
        Some("k") => 3,
        Some("m") => 6,
        Some("g") => 9,
        Some("t") => 12,
        _ => {
            return Err("must be a rate with its unit, such as 800kb/s, 100Mb/s or 1.5Gb/s".into());
        }
    };
    match decimal(number, digits) {
        Some(rate) if (1_000..=FASTEST).contains(&rate) => Ok(rate),
        _ => Err("must be a rate from 1kb/s to 1Tb/s, such as 100Mb/s or 1.5Gb/s".into()),
    }
}

/// A rate with the largest unit of which it is a whole number, as [`rate`] reads it.
pub fn written_rate(rate: u64) -> String {
    let units = [
        (1_000_000_000, "Gb/s"),
        (1_000_000, "Mb/s"),
        (1_000, "kb/s"),
    ];
    let fits = |(size, _): &(u64, &str)| rate > 0 && rate % size == 0;
    match units.into_iter().find(fits) {
        Some((size, unit)) => format!("{}{unit}", rate / size),
        None => format!("{rate}b/s"),
    }
}

/// A rate for people: three digits at least, `9.35Gb/s`.
pub fn rounded_rate(rate: u64) -> String {
    let units = [
        (1_000_000_000, "Gb/s"),
        (1_000_000, "Mb/s"),
        (1_000, "kb/s"),
    ];
    let fits = |(size, _): &(u64, &str)| rate >= *size;
    let Some((size, unit)) = units.into_iter().find(fits) else {
        return format!("{rate}b/s");
    };
    let hundredths = rate / (size / 100);
    match (hundredths / 100, hundredths % 100) {
        (whole, 0) => format!("{whole}{unit}"),
        (whole, _) if whole >= 100 => format!("{whole}{unit}"),
        (whole, part) if whole >= 10 => format!("{whole}.{}{unit}", part / 10),
        (whole, part) => format!("{whole}.{part:02}{unit}"),
    }
}

/// A number of bytes, `least` at least: `65536`, `64KiB`, `1MiB`, `1GiB`, or in decimal units, `64KB`.
pub fn bytes(text: &str, least: u32) -> Result<u32, Problem> {
    large_bytes(text)
        .and_then(|bytes| u32::try_from(bytes).ok())
        .filter(|&bytes| bytes >= least)
        .ok_or_else(|| {
            format!(
                "must be a number of bytes from {least} to {}, such as 65536, 64KiB, 1MiB, 1GiB or 100KB (decimal)",
                u32::MAX
            )
        })
}

/// A number of bytes of any size: `64GiB`, `2TiB`; decimal `100KB`, `1.5MB`.
pub fn large_bytes(text: &str) -> Option<u64> {
    let (digits, unit) = split_unit(text);
    let decimals = [("KB", 3), ("MB", 6), ("GB", 9), ("TB", 12)];
    if let Some((_, places)) = decimals.into_iter().find(|(known, _)| *known == unit) {
        // Too many digits are the largest number, which nothing takes.
        return decimal(digits, places).filter(|bytes| *bytes < u64::MAX);
    }
    let factor: u64 = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    decimal(digits, 0)?.checked_mul(factor)
}

/// Bytes in the largest unit that needs no fraction.
pub fn written_bytes(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let fits = |(shift, _): &(u32, &str)| bytes > 0 && bytes % (1 << shift) == 0;
    match units.into_iter().find(fits) {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_rounded_for_people() {
        for (rate, text) in [
            (0, "0b/s"),
            (999, "999b/s"),
            (1_000_000, "1Mb/s"),
            (9_357_000_000, "9.35Gb/s"),
            (12_345_678, "12.3Mb/s"),
            (99_999_999_999, "99.9Gb/s"),
            (100_000_000_000, "100Gb/s"),
            (123_456_789_012, "123Gb/s"),
        ] {
            assert_eq!(rounded_rate(rate), text);
        }
    }

    #[test]
    fn times_have_units_and_are_whole_nanoseconds() {
        for (text, nanos) in [
            ("0ns", 0),
            ("250ns", 250),
            ("10us", 10_000),
            ("10 us", 10_000),
            ("1.5ms", 1_500_000),
            ("1.000001ms", 1_000_001),
            ("0.5us", 500),
            (".5us", 500),
            ("60s", 60_000_000_000),
        ] {
            assert_eq!(time(text), Ok(Nanos(nanos)), "{text}");
        }
        for text in [
            "",
            "10",
            "us",
            "1.5ns",
            "-1us",
            "61s",
            "10 m",
            "1e3us",
            "1..2us",
            "99999999999999999999s",
        ] {
            assert!(time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn rates_and_bytes() {
        assert_eq!(rate("1Gb/s"), Ok(1_000_000_000));
        assert_eq!(rate("1.5gbit"), Ok(1_500_000_000));
        assert_eq!(rate("100 Mbps"), Ok(100_000_000));
        assert_eq!(rate("800000b/s"), Ok(800_000));
        for text in ["1G", "1GB/s", "0Gb/s", "2Tb/s", "fast", "1"] {
            assert!(rate(text).is_err(), "{text}");
        }
        assert_eq!(thousandths("1.5"), Some(1500));
        assert_eq!(thousandths("1.5001"), None);
        assert_eq!(bytes("64KiB", 1), Ok(65536));
        assert_eq!(bytes("100", 1), Ok(100));
        assert_eq!((bytes("0", 0), bytes("1GiB", 0)), (Ok(0), Ok(1 << 30)));
        assert_eq!(large_bytes("2 TiB"), Some(2 << 40));
        assert_eq!(large_bytes("99999999TiB"), None);
        assert_eq!(written_bytes(3 << 30), "3 GiB");
        assert_eq!(written_bytes((1 << 20) + 1), "1048577 B");
        assert_eq!(bytes("64KB", 0), Ok(64_000));
        assert_eq!(large_bytes("1.5 MB"), Some(1_500_000));
        assert_eq!(large_bytes("1TB"), Some(1_000_000_000_000));
        assert_eq!(large_bytes("99999999999999999999TB"), None);
        assert_eq!((large_bytes("KB"), large_bytes("1.0001KB")), (None, None));
        for (text, least) in [("64kB", 0), ("0", 1), ("4GiB", 0), ("-1", 0), ("", 0)] {
            let problem = bytes(text, least).unwrap_err();
            let bounds = format!("from {least} to 4294967295");
            assert!(problem.contains(&bounds), "{text}: {problem}");
        }
    }

    #[test]
    fn ranges_include_their_ends() {
        assert_eq!(number("0x11"), Ok(17));
        for text in [
            "-1",
            "+1",
            "0x+1",
            "",
            "0x",
            "1.5",
            "101",
            "99999999999999999999999",
        ] {
            let problem = number_to(text, 100).unwrap_err();
            assert!(
                problem.contains("from 0 to 100 (0x64)"),
                "{text}: {problem}"
            );
        }
        assert_eq!(range("17", 100), Ok((17, 17)));
        assert_eq!(range("0x10..32", 100), Ok((16, 32)));
        assert_eq!(range("90..10", 100), Ok((90, 10)));
        assert!(ascending("90..10", 100).unwrap_err().contains("10..90"));
        assert!(range("1..101", 100).is_err() && range("a", 9).is_err() && range("..", 9).is_err());
        assert_eq!(modulo("100:7"), Ok((100, 7)));
        assert_eq!(modulo("100"), Ok((100, 0)));
        assert!(modulo("7:7").is_err() && modulo("0").is_err() && modulo("x:1").is_err());
    }
}
