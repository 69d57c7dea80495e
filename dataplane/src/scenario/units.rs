//! Quantities of a scenario as people write them, and as reports write them again.

use roceline_engine::Nanos;

use crate::impair::units;

/// A time with its unit.
pub(super) fn time(text: &str) -> Result<Nanos, String> {
    units::time(text)
}

/// A time that is not zero.
pub(super) fn span(text: &str) -> Result<Nanos, String> {
    match time(text)? {
        Nanos::ZERO => Err("must be longer than nothing, such as 10us".into()),
        time => Ok(time),
    }
}

/// A rate in bits per second.
pub(super) fn rate(text: &str) -> Result<u64, String> {
    units::rate(text)
}

/// A number of bytes, decimal (`100KB`, `1.5MB`) or binary (`64KiB`), or without a unit.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    units::large_bytes(&text.replace('_', ""))
        .filter(|bytes| (1..=1 << 50).contains(bytes))
        .ok_or_else(|| {
            "must be a number of bytes from 1, such as 4096, 100KB (decimal), 64KiB or 1.5MB".into()
        })
}

/// A number of bytes that fits a message.
pub(super) fn message(text: &str) -> Result<u32, String> {
    let bytes = bytes(text)?;
    u32::try_from(bytes)
        .ok()
        .filter(|&bytes| bytes <= 1 << 31)
        .ok_or_else(|| "must be at most 2GiB, the longest message (IBTA 9.7.2)".into())
}

/// A whole number within bounds.
pub(super) fn whole(least: u64, most: u64) -> impl Fn(&str) -> Result<u64, String> {
    move |text| crate::impair::number_in(&text.replace('_', ""), least..=most)
}

/// A number with or without a point within bounds; `1/2` and `30%` are numbers, too.
pub(super) fn fraction(least: f64, most: f64) -> impl Fn(&str) -> Result<f64, String> {
    move |text| {
        let number = match text.split_once('/') {
            Some((over, under)) => {
                let part = |text: &str| text.trim().parse::<f64>().ok();
                part(over)
                    .zip(part(under))
                    .map(|(over, under)| over / under)
            }
            None => match text.strip_suffix('%') {
                Some(percent) => percent
                    .trim_end()
                    .parse::<f64>()
                    .ok()
                    .map(|part| part / 100.0),
                None => text.parse().ok(),
            },
        };
        number
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| {
                format!("must be a number from {least} to {most}, such as 0.3, 1/2 or 30%")
            })
    }
}

/// A time for people: three digits or so, in the unit that suits it.
pub(super) fn written_time(ns: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "us")];
    let (size, unit) = units
        .into_iter()
        .find(|&(size, _)| ns >= size)
        .unwrap_or((1.0, "ns"));
    format!("{} {unit}", digits(ns / size))
}

/// A number of bytes for people, decimal, as the field writes thresholds.
pub(super) fn written_bytes(bytes: f64) -> String {
    let units = [(1e9, "GB"), (1e6, "MB"), (1e3, "KB")];
    let (size, unit) = units
        .into_iter()
        .find(|&(size, _)| bytes >= size)
        .unwrap_or((1.0, "B"));
    format!("{} {unit}", digits(bytes / size))
}

/// A number in about four digits, without an exponent.
pub(super) fn digits(number: f64) -> String {
    let magnitude = number.abs();
    let text = if number == number.trunc() && magnitude < 1e15 {
        return format!("{number:.0}");
    } else if magnitude >= 1000.0 {
        format!("{number:.0}")
    } else if magnitude >= 100.0 {
        format!("{number:.1}")
    } else if magnitude >= 10.0 {
        format!("{number:.2}")
    } else {
        format!("{number:.3}")
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').into(),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_decimal_or_binary() {
        for (text, number) in [
            ("4096", 4096),
            ("100KB", 100_000),
            ("1.5 MB", 1_500_000),
            ("64KiB", 65536),
            ("10_000", 10_000),
            ("1GB", 1_000_000_000),
        ] {
            assert_eq!(bytes(text), Ok(number), "{text}");
        }
        for text in ["", "0", "-1", "1PB", "KB", "1.5"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert!(message("3GB").is_err());
    }

    #[test]
    fn fractions() {
        let read = fraction(0.0, 1.0);
        assert_eq!(read("0.3"), Ok(0.3));
        assert_eq!(read("1/2"), Ok(0.5));
        assert_eq!(read("30%"), Ok(0.3));
        for text in ["", "2", "1/0", "x", "NaN", "-1"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_for_people() {
        for (number, text) in [
            (0.0, "0"),
            (3.0, "3"),
            (39.123, "39.12"),
            (0.98765, "0.988"),
            (123.46, "123.5"),
            (12345.6, "12346"),
            (2.5, "2.5"),
        ] {
            assert_eq!(digits(number), text);
        }
        assert_eq!(written_time(1500.0), "1.5 us");
        assert_eq!(written_bytes(162_900.0), "162.9 KB");
    }
}
