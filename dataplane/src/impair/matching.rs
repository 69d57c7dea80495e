//! Which packets a rule or a filter is about: from keys to a [`Matcher`].

use roceline_engine::fabric::impair::{Class, ClassSet, Matcher, Modulo, Range};
use roceline_engine::wire::{Opcode, Psn};

use super::spec::{Spec, SpecError};
use super::units;

/// The largest 24-bit number.
const MAX_24: u64 = 0xff_ffff;

impl Spec {
    /// What the keys of [`super::MatchArgs`] ask for.
    ///
    /// # Errors
    /// When a value is none; names the key.
    pub fn matcher(&self) -> Result<Matcher, SpecError> {
        let byte = |text: &str, most| units::number_to(text, most).map(|n| n as u8);
        Ok(Matcher {
            classes: self.parse("class", classes)?.unwrap_or(ClassSet::NONE),
            opcode: self.parse("opcode", opcode)?,
            qpn: self.parse("qpn", |text| {
                units::number_to(text, MAX_24).map(|n| n as u32)
            })?,
            psn: self.parse("psn", |text| {
                let (first, last) = units::range(text, MAX_24)?;
                Ok(Range {
                    first: Psn::new(first as u32),
                    last: Psn::new(last as u32),
                })
            })?,
            psn_modulo: self.parse("psn_modulo", |text| {
                let (divisor, remainder) = units::modulo(text)?;
                Ok(Modulo { divisor, remainder })
            })?,
            message: self.parse("message", |text| match counted(text)? {
                Range { first: 0, .. } => Err("messages are counted from 1".into()),
                range => Ok(range),
            })?,
            ack_req: self.parse("ack_req", |text| match text {
                "true" => Ok(true),
                "false" => Ok(false),
                _ => Err("must be true (the packet asks for an acknowledgement) or false".into()),
            })?,
            syndrome: self.parse("syndrome", |text| byte(text, 0xff))?,
            dscp: self.parse("dscp", |text| byte(text, 63))?,
            ecn: self.parse("ecn", ecn)?,
            priority: self.parse("priority", |text| byte(text, 7))?,
            udp_sport: self.parse("sport", |text| {
                units::number_to(text, 0xffff).map(|n| n as u16)
            })?,
            len: self.parse("length", counted)?,
        })
    }
}

fn counted(text: &str) -> Result<Range<u32>, String> {
    let (first, last) = units::ascending(text, u64::from(u32::MAX))?;
    Ok(Range::new(first as u32, last as u32))
}

/// `write,middle`: a packet has to be of all of them.
fn classes(text: &str) -> Result<ClassSet, String> {
    if text == "any" {
        return Ok(ClassSet::NONE);
    }
    text.split(',')
        .map(|name| name.trim().parse::<Class>())
        .collect::<Result<ClassSet, _>>()
        .map_err(|_| {
            let names: Vec<&str> = Class::ALL.iter().map(|class| class.name()).collect();
            format!(
                "must be `any` or one or more of {}, with commas",
                names.join(", ")
            )
        })
}

/// `0x07` or `rc-write-middle`.
fn opcode(text: &str) -> Result<u8, String> {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return units::number_to(text, 0xff).map(|n| n as u8);
    }
    let name = text.to_ascii_uppercase().replace('-', "_");
    let found = Opcode::ALL.iter().find(|opcode| opcode.info().name == name);
    found.map(|opcode| opcode.raw()).ok_or_else(|| {
        let names: Vec<String> = Opcode::ALL
            .iter()
            .map(|opcode| opcode.info().name.to_ascii_lowercase().replace('_', "-"))
            .collect();
        format!("must be a number up to 0xff or one of {}", names.join(", "))
    })
}

/// RFC 3168, section 5.
fn ecn(text: &str) -> Result<u8, String> {
    match text {
        "not-ect" | "0" => Ok(0),
        "ect1" | "1" => Ok(1),
        "ect0" | "2" => Ok(2),
        "ce" | "3" => Ok(3),
        _ => Err("must be not-ect, ect0, ect1 or ce".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(text: &str) -> Result<Matcher, String> {
        let spec: Spec = toml::from_str(text).unwrap();
        spec.matcher().map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_asked_fits_everything() {
        assert_eq!(matcher(""), Ok(Matcher::default()));
        assert_eq!(matcher("class = 'any'"), Ok(Matcher::default()));
    }

    #[test]
    fn every_key_asks_for_its_field() {
        let all = "class = 'write, middle'\nopcode = 'rc-write-middle'\nqpn = 0x11\npsn = '0xfffff0..16'\n\
                   psn_modulo = '100:7'\nmessage = 3\nack_req = true\nsyndrome = 0x60\ndscp = 26\necn = 'ce'\n\
                   priority = 3\nsport = 49152\nlength = '100..200'";
        assert_eq!(
            matcher(all).unwrap(),
            Matcher {
                classes: [Class::Write, Class::Middle].into_iter().collect(),
                opcode: Some(7),
                qpn: Some(17),
                psn: Some(Range {
                    first: Psn::new(0xff_fff0),
                    last: Psn::new(16)
                }),
                psn_modulo: Some(Modulo {
                    divisor: 100,
                    remainder: 7
                }),
                message: Some(Range::one(3)),
                ack_req: Some(true),
                syndrome: Some(0x60),
                dscp: Some(26),
                ecn: Some(3),
                priority: Some(3),
                udp_sport: Some(49152),
                len: Some(Range::new(100, 200)),
            }
        );
    }

    #[test]
    fn what_is_no_value_is_said_with_those_that_are() {
        for (text, said) in [
            (
                "class = 'midle'",
                "class = \"midle\": must be `any` or one or more of first, middle",
            ),
            ("opcode = 'rc-midle'", "rc-write-middle"),
            ("opcode = 0x100", "from 0 to 255"),
            ("qpn = 0x1000000", "from 0 to 16777215"),
            ("psn = '1..x'", "17..20"),
            ("message = 0", "from 1"),
            ("message = '5..3'", "3..5"),
            ("dscp = 64", "from 0 to 63"),
            ("ecn = 'yes'", "not-ect"),
            ("ack_req = 1", "true"),
            ("length = '-1'", "length"),
        ] {
            let error = matcher(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
