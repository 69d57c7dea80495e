//! Keys of congestion control: the parameters of the engine's table by their names, and the few that are no numbers.

use std::sync::LazyLock;

use roceline_engine::congestion::{AlgorithmKind, Group, PROFILES, Param, Rate};

use super::{Settings, Value, profile_named};
use crate::impair::{SpecError, shortened, units};

/// Keys of `[nic.dcqcn]`.
pub static RP_KEYS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    ["profile"]
        .into_iter()
        .chain(of(Group::Rp, "rp_enable"))
        .collect()
});
/// Keys of `[nic.np]`.
pub static NP_KEYS: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| of(Group::Np, "np_enable").collect());

/// Keys of `[nic.dctcp]`, `[nic.timely]` or `[nic.swift]`: those that begin with the algorithm's name.
pub fn keys_of(algorithm: &str) -> Vec<&'static str> {
    let all = Param::all().iter().map(|param| param.name);
    all.filter(|name| {
        name.strip_prefix(algorithm)
            .is_some_and(|rest| rest.starts_with('_'))
    })
    .collect()
}

/// What is said of a parameter that is given by both of its names.
pub fn given_twice(name: &str, other: &str) -> String {
    format!("is given twice (`{other}` is another name of `{name}`)")
}

/// Names of the parameters of a group, and one more.
fn of(group: Group, more: &'static str) -> impl Iterator<Item = &'static str> {
    let all = Param::all()
        .iter()
        .filter(move |param| param.group == group);
    all.map(|param| param.name).chain([more])
}

/// Keys that are no parameters.
const WORDS: [&str; 4] = ["algorithm", "profile", "line_rate", "fixed_rate"];

/// Sets what `key` names.
pub fn set(settings: &mut Settings, key: &str, text: &str) -> Result<(), SpecError> {
    let bad = |key: &'static str, problem: String| SpecError::Value {
        key,
        value: format!("{:?}", shortened(text)),
        problem,
    };
    if let Some(word) = WORDS.into_iter().find(|word| *word == key) {
        return set_word(settings, word, text).map_err(|problem| bad(word, problem));
    }
    let Some(param) = Param::find(key) else {
        return Err(SpecError::Unknown { key: key.into() });
    };
    let value = read(param, text).map_err(|problem| bad(param.name, problem))?;
    param
        .set(&mut settings.congestion, value)
        .map_err(|_| bad(param.name, range_problem(param)))?;
    settings.given.add(param);
    Ok(())
}

fn set_word(settings: &mut Settings, key: &str, text: &str) -> Result<(), String> {
    let config = &mut settings.congestion;
    match key {
        "algorithm" => config.algorithm = algorithm_named(text)?,
        "profile" => settings.take_profile(profile_named(text)?),
        "line_rate" => config.line_rate = Rate(units::rate(text)?),
        _ if text == "line" || text == "0" => config.fixed_rate = Rate(0),
        _ => config.fixed_rate = Rate(units::rate(text)?),
    }
    Ok(())
}

fn algorithm_named(text: &str) -> Result<AlgorithmKind, String> {
    text.parse().map_err(|_| {
        let known = AlgorithmKind::ALL.map(AlgorithmKind::name).join(", ");
        format!("must be one of {known}")
    })
}

fn range_problem(param: &Param) -> String {
    let unit = match param.unit {
        "" => String::new(),
        unit => format!(", in {unit}"),
    };
    format!("must be from {} to {}{unit}", param.min, param.max)
}

/// Words for the values of a parameter, from 0 on.
fn words(param: &Param) -> Option<[&'static str; 2]> {
    match (param.name, param.max) {
        ("cnp_moderation", _) => Some(["per-qp", "per-ip"]),
        (_, 1) => Some(["false", "true"]),
        _ => None,
    }
}

/// A value in the parameter's unit: a number, or a rate or a time with its own unit, or a word.
fn read(param: &Param, text: &str) -> Result<u64, String> {
    if let Some(words) = words(param) {
        let named = words.iter().position(|word| *word == text);
        return match (named, text) {
            (Some(value), _) => Ok(value as u64),
            (None, "0" | "off") => Ok(0),
            (None, "1" | "on") => Ok(1),
            _ => Err(format!("must be {} (0) or {} (1)", words[0], words[1])),
        };
    }
    let plain = units::number(text);
    // What is wrong with a value that should have a unit; the plain number comes first, as it is what files show.
    let or_plain = |problem: String| match problem.strip_prefix("must be ") {
        Some(with_unit) => format!("{}, or {with_unit}", range_problem(param)),
        None => problem,
    };
    let (value, step) = match (plain, param.unit) {
        (Ok(value), _) => (value, 1),
        (Err(_), "Mb/s") => (units::rate(text).map_err(or_plain)?, 1_000_000),
        (Err(_), "us") => (units::time(text).map_err(or_plain)?.0, 1_000),
        (Err(_), "ns") => (units::time(text).map_err(or_plain)?.0, 1),
        _ => return Err(range_problem(param)),
    };
    match value % step {
        0 => Ok(value / step),
        _ => Err(format!("must be a whole number of {}", param.unit)),
    }
}

/// A value as it is read.
pub fn written(param: &Param, value: u64) -> String {
    match words(param) {
        Some(words) if param.name == "cnp_moderation" => words[usize::from(value != 0)].into(),
        _ => value.to_string(),
    }
}

/// All keys with their values.
pub fn values(settings: &Settings) -> Vec<Value> {
    let config = &settings.congestion;
    let word = |key: &str, value: String, range: String, doc| Value {
        key: key.into(),
        value,
        unit: "",
        range,
        doc,
    };
    let fixed = match config.fixed_rate {
        Rate(0) => "line".into(),
        rate => units::written_rate(rate.0),
    };
    let rates = || "1kb/s to 1Tb/s".to_string();
    let mut all = vec![
        word(
            "algorithm",
            config.algorithm.name().into(),
            AlgorithmKind::ALL.map(AlgorithmKind::name).join(", "),
            "What queue pairs run.",
        ),
        word(
            "profile",
            settings.profile.into(),
            PROFILES.join(", "),
            "Where parameters have their values from that nobody set.",
        ),
        word(
            "line_rate",
            units::written_rate(config.line_rate.0),
            rates(),
            "The port's rate: where every queue pair starts, and what none exceeds.",
        ),
        word(
            "fixed_rate",
            fixed,
            format!("line, or {}", rates()),
            "Rate of each queue pair with the algorithm fixed-rate.",
        ),
    ];
    let params = Param::all()
        .iter()
        .filter(|param| !WORDS.contains(&param.name));
    all.extend(params.map(|param| Value {
        key: param.name.into(),
        value: written(param, param.get(config)),
        unit: param.unit,
        range: match param.name {
            "cnp_moderation" => "per-qp, per-ip".into(),
            _ => format!("{} to {}", param.min, param.max),
        },
        doc: param.doc,
    }));
    all
}
