//! Values of a rule that have a form of their own: chances, delays, orders, corruptions. Each function gives what the engine
//! understands, or a sentence that says what would be right.

use std::sync::Arc;

use roceline_engine::Nanos;
use roceline_engine::fabric::impair::{
    Action, Change, Delay, Field, FieldChange, GilbertElliott, MAX_COPIES, Probability,
    ProbabilityError, Region, Reorder, Where,
};

use super::{trace, units};

/// A packet that waits to be overtaken goes on after this time even if nothing overtakes it. Shorter than the ACK
/// timeouts that programs use, longer than a pause of the scheduler.
pub const OVERTAKEN_WITHIN: Nanos = Nanos::from_millis(5);

/// A probability.
pub fn probability(text: &str) -> Result<Probability, String> {
    text.parse().map_err(|error| match error {
        ProbabilityError::TooSmall(_) => {
            "is so small that it would never hit: the least is 1/4294967296, about 2.4e-10 (0 for never)".into()
        }
        ProbabilityError::None(_) => {
            "must be a probability from 0 to 1, such as 1%, 0.01, 1e-6 or 1/256".into()
        }
    })
}

/// `p=1%,r=30%,bad=100%,good=0`.
pub fn bursts(text: &str) -> Result<GilbertElliott, String> {
    let form = || {
        String::from(
            "must be p=…,r=… with probabilities: p to turn bad, r to turn good again after each packet; and, if not \
             all are hit in a bad phase and none in a good one, bad=… and good=…",
        )
    };
    let (mut p, mut r, mut bad, mut good) = (None, None, None, None);
    for part in text.split(',') {
        let (key, value) = part.split_once('=').ok_or_else(form)?;
        let slot = match key.trim() {
            "p" => &mut p,
            "r" => &mut r,
            "bad" => &mut bad,
            "good" => &mut good,
            _ => return Err(form()),
        };
        if slot.replace(probability(value.trim())?).is_some() {
            return Err(form());
        }
    }
    let (Some(p), Some(r)) = (p, r) else {
        return Err(form());
    };
    Ok(GilbertElliott {
        hit_in_bad: bad.unwrap_or(Probability::ALWAYS),
        hit_in_good: good.unwrap_or(Probability::NEVER),
        ..GilbertElliott::simple(p, r)
    })
}

/// `2`, or `2,20us`: a number of copies, and how much later than the packet they come.
pub fn duplicate(text: &str) -> Result<Action, String> {
    let wrong = || {
        format!(
            "must be a number of copies from 1 to {MAX_COPIES}, or that and how much later they come (2,20us)"
        )
    };
    let (copies, after) = match text.split_once(',') {
        Some((copies, after)) => (copies.trim(), Some(delay(after.trim())?)),
        None => (text, None),
    };
    let copies = copies
        .parse()
        .ok()
        .filter(|copies| (1..=MAX_COPIES).contains(copies))
        .ok_or_else(wrong)?;
    Ok(Action::Duplicate { copies, after })
}

/// `3`, `3,2ms`, or a delay.
pub fn reorder(text: &str) -> Result<Reorder, String> {
    let (count, within) = match text.split_once(',') {
        Some((count, within)) => (count.trim(), Some(within.trim())),
        None => (text, None),
    };
    if units::looks_whole(count) {
        let most = u64::from(u16::MAX);
        let count = units::number_in(count, 1..=most)
            .map_err(|_| format!("must be from 1 to {most} packets"))? as u16;
        let within = match within {
            None => OVERTAKEN_WITHIN,
            Some(time) => units::time(time).map_err(|problem| {
                format!("what is behind the comma is the longest wait and {problem}")
            })?,
        };
        return Ok(Reorder::Packets { count, within });
    }
    delay(text).map(Reorder::Delay).map_err(|problem| match is_delay(text) {
        true => problem,
        false => format!(
            "must be a number of packets (3), with the longest wait (3,2ms), or a delay, which {problem}"
        ),
    })
}

/// Whether a text has one of the forms of a delay, if perhaps wrong values.
fn is_delay(text: &str) -> bool {
    let forms = ["normal:", "pareto:", "list:", "trace:"];
    let first = text.split("..").next().unwrap_or_default().trim();
    forms.iter().any(|form| text.starts_with(form)) || units::looks_like_time(first)
}

/// A delay in any of its forms.
pub fn delay(text: &str) -> Result<Delay, String> {
    let two = |rest: &str, form: &str| -> Result<(Nanos, String), String> {
        let (first, second) = rest
            .split_once(',')
            .ok_or_else(|| format!("must be {form}"))?;
        Ok((units::time(first.trim())?, second.trim().into()))
    };
    if let Some(rest) = text.strip_prefix("normal:") {
        let (mean, std_dev) = two(rest, "normal:MEAN,DEVIATION, such as normal:50us,10us")?;
        let std_dev = units::time(&std_dev)?;
        return Ok(Delay::Normal { mean, std_dev });
    }
    if let Some(rest) = text.strip_prefix("pareto:") {
        return pareto(rest);
    }
    if let Some(rest) = text.strip_prefix("list:") {
        return trace::list(rest).map(|delays| Delay::Trace(Arc::from(delays)));
    }
    let form = "must be a time (20us), a range (10us..50us), normal:MEAN,DEVIATION, pareto:LEAST,SHAPE,MOST, \
                list:TIME,TIME,… or trace:FILE; times have a unit and are 60s at most";
    let time = |text: &str| {
        let text = text.trim();
        units::time(text).map_err(|problem| match units::looks_like_time(text) {
            true => problem,
            false => form.into(),
        })
    };
    match text.split_once("..") {
        None => Ok(Delay::Constant(time(text)?)),
        Some((min, max)) => {
            let (min, max) = (time(min)?, time(max)?);
            if min > max {
                return Err("is an empty range: write the shorter time first".into());
            }
            Ok(Delay::Uniform { min, max })
        }
    }
}

/// `pareto:10us,1.5,10ms`; without the last, a thousand times the first.
fn pareto(text: &str) -> Result<Delay, String> {
    let form = || {
        String::from(
            "must be pareto:LEAST,SHAPE,MOST, such as pareto:10us,1.5,10ms; the shape from 0.001 to 1000",
        )
    };
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    let (min, shape, max) = match parts[..] {
        [min, shape] => (min, shape, None),
        [min, shape, max] => (min, shape, Some(max)),
        _ => return Err(form()),
    };
    let min = units::time(min)?;
    let max = match max {
        Some(max) => units::time(max)?,
        None => Nanos(min.0.saturating_mul(1000)).min(units::LONGEST),
    };
    let shape_milli = units::thousandths(shape)
        .and_then(|shape| u32::try_from(shape).ok())
        .filter(|shape| (1..=1_000_000).contains(shape))
        .ok_or_else(form)?;
    if min == Nanos::ZERO || min > max {
        return Err("the least delay must be above 0 and not above the greatest".into());
    }
    Ok(Delay::Pareto {
        min,
        shape_milli,
        max,
    })
}

/// `icrc`, `bit`, `payload.byte:7`, `psn`, `psn+1`, `dest-qpn=0x12`, `opcode^0x01`.
pub fn change(text: &str) -> Result<Change, String> {
    if text == "icrc" {
        return Ok(Change::Icrc);
    }
    let (region, place) = match text.split_once('.') {
        Some((region, place)) => (region_of(region)?, place),
        None => (Region::Transport, text),
    };
    let (what, offset) = place.split_once(':').unwrap_or((place, ""));
    let offset = match offset {
        "" => None,
        offset => Some(units::number_to(offset, 1 << 20)? as u32),
    };
    match what {
        "bit" => Ok(Change::Bit(Where { region, offset })),
        "byte" => Ok(Change::Byte(Where { region, offset })),
        _ => field(text),
    }
}

fn region_of(name: &str) -> Result<Region, String> {
    match name {
        "frame" => Ok(Region::Frame),
        "packet" => Ok(Region::Packet),
        "transport" => Ok(Region::Transport),
        "payload" => Ok(Region::Payload),
        _ => {
            Err("the part in front of the point must be frame, packet, transport or payload".into())
        }
    }
}

fn field(text: &str) -> Result<Change, String> {
    let end = text.find(['=', '+', '^']).unwrap_or(text.len());
    let (name, change) = text.split_at(end);
    let field: Field = name.trim().parse().map_err(|_| {
        let names: Vec<&str> = Field::ALL.iter().map(|field| field.name()).collect();
        format!(
            "must be icrc, bit, byte, or a field with what becomes of it (psn, psn+1, psn=5, psn^0xff): {}",
            names.join(", ")
        )
    })?;
    let Some((sign, value)) = change.split_at_checked(1) else {
        return Ok(Change::Field(field, FieldChange::Random));
    };
    // Nothing added, or no bit flipped, would be no change.
    let (least, made): (u64, fn(u64) -> FieldChange) = match sign {
        "=" => (0, FieldChange::Set),
        "+" => (1, FieldChange::Add),
        _ => (1, FieldChange::Flip),
    };
    let value = units::number_in(value.trim(), least..=field.max())
        .map_err(|problem| format!("what is behind `{sign}` {problem}"))?;
    Ok(Change::Field(field, made(value)))
}
