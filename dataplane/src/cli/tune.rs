//! `roceline tune`: the best setting of a configuration for workloads on this machine, what it gains, how sure that is, and the
//! configuration with it. No daemon is needed.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use roceline_engine::wire::icrc::Kernel;
use serde_json::{Value as Json, json};

use super::bench::{look_again, moved, unwritable};
use super::capture::interruption;
use super::table::Table;
use super::{CliError, number_in};
use crate::bench::machine::Machine;
use crate::config::{Config, Preset, allowed_cpus};
use crate::tune::gain::{CONFIDENCE, Gain};
use crate::tune::measure::{Place, Rig};
use crate::tune::search::{Found, Plan, Tried, search};
use crate::tune::space::{Key, Space};
use crate::tune::workload::Workload;
use crate::tune::write;

const EXAMPLES: &str = "\
Examples:
  roceline tune                                              # write:64 and write:64K, with the preset pair
  roceline tune --workload write:64:1000 --time 2m
  roceline tune --workload send-lat:64 --config my.toml --output tuned.toml
  roceline tune --workload read:1M,send:4K --config my.toml --write

A workload is OP, OP:BYTES or OP:BYTES:QPS. Rates: write, write-inline, send, read, fetch-add, compare-swap; latencies: write-lat, send-lat.
NICs and programs run in this process, on an emulated link: stop daemons and whatever else is busy before.
docs/tuning.md says how it is measured and what the figures mean.";

/// What is tuned for if nothing is named.
const USUAL: [&str; 2] = ["write:64", "write:64K"];

/// Find the settings with which a workload runs fastest on this machine
#[derive(Debug, Parser)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// What to tune for; of several their mean counts [default: write:64,write:64K]
    #[arg(long, value_delimiter = ',', value_name = "WORKLOAD")]
    workload: Vec<Workload>,

    /// Configuration to begin with [default: the preset pair]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// How long it may take, from 1s to 24h, such as 90s, 5m or 2h
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = time)]
    time: Duration,

    /// Only these keys
    #[arg(long, value_enum, value_delimiter = ',', value_name = "KEY")]
    only: Vec<Key>,

    /// Write the configuration with the best setting to a new file
    #[arg(long, value_name = "FILE", conflicts_with = "write")]
    output: Option<PathBuf>,

    /// Write the best setting into the file of --config
    #[arg(long, requires = "config")]
    write: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Of the order in which settings are measured
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = number_in(0..=u64::MAX))]
    seed: u64,
}

/// How long a search may take. Below a second not even the noise is known; a rule's times end where these are usual, so they are
/// read here.
fn time(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.'));
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let unit = match unit {
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        "m" | "min" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    };
    let seconds = unit.zip(number.parse::<f64>().ok());
    let seconds = seconds.map(|(unit, number)| unit * number);
    match seconds.filter(|seconds| (1.0..=86_400.0).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => Err("must be from 1s to 24h, such as 90s, 5m or 1.5h".into()),
    }
}

pub(super) fn run(args: Args) -> Result<(), CliError> {
    // What a daemon would refuse is not tuned with other ICRCs instead.
    Kernel::choose()?.kernel.make_current();
    let workloads: Vec<Workload> = match &*args.workload {
        [] => USUAL
            .iter()
            .filter_map(|text| text.parse::<Workload>().ok())
            .collect(),
        named => named.to_vec(),
    };
    let (config, text, name) = match &args.config {
        Some(path) => {
            let (config, text) = Config::load(path)?;
            (config, text, path.display().to_string())
        }
        None => {
            let preset = Preset::Pair;
            let text = preset.text().to_owned();
            (Config::preset(preset)?, text, preset.label())
        }
    };
    if let Some(path) = args.output.as_ref().filter(|path| path.exists()) {
        // Said now, not after a minute.
        return Err(exists(path));
    }
    if let Some(path) = &args.output {
        create(path)?;
        // It is made again when there is something to write.
        fs::remove_file(path).map_err(|source| in_file(path, source))?;
    }
    if let (Some(path), true) = (&args.config, args.write) {
        beside(path)
            .and_then(|(_, new)| fs::remove_file(new).map_err(|source| in_file(path, source)))?;
    }
    let place = Place::of(&config);
    if place.programs.is_none() && workloads.iter().any(Workload::is_latency) {
        let problem = "a latency takes two CPUs: one for the programs, one for the polling thread";
        return Err(CliError::Usage(problem.into()));
    }
    let space = Space::of(&config, &workloads, &args.only, allowed_cpus().len());
    // A second one ends it at once.
    let interrupted = interruption().map_err(CliError::Bench)?;
    let rig = Rig::new(&space, &workloads, place, interrupted);
    let mut rig = rig.map_err(CliError::Bench)?;
    let machine = Machine::look(Some(rig.has_hugepages()));
    let mut out = io::stdout().lock();
    if !args.json {
        begin(&mut out, &machine, &name, &workloads, place, &space)?;
    }
    let plan = Plan {
        budget: args.time,
        seed: args.seed,
        ..Plan::default()
    };
    let bar = bar(args.time);
    let mut told = |spent: Duration| bar.set_position(spent.as_millis() as u64);
    let found = search(&mut rig, &space.sizes(), &space.default(), &plan, &mut told);
    bar.finish_and_clear();
    let found = found.map_err(CliError::Bench)?;
    drop(rig);
    let after = look_again(&machine);
    let changes = space.changes(&found.best);
    let tuned = write::with(&text, &config, &changes);
    let tuned = tuned.map_err(|problem| CliError::Usage(format!("{name}: {problem}")))?;
    if args.json {
        let figures = json!({
            "tune": name,
            "machine": machine,
            "distance_after": after,
            "workloads": workloads.iter().map(Workload::to_string).collect::<Vec<_>>(),
            "confidence": CONFIDENCE,
            "plan": plan,
            "knobs": space.knobs,
            "left": space.left,
            "found": shown(&found, &space),
        });
        writeln!(out, "{figures:#}")?;
    } else {
        report(&mut out, &found, &space, &workloads)?;
        undecided(&mut out, &found, &space)?;
        if let Some(text) = moved(&machine.distance, &after) {
            if workloads.iter().any(Workload::is_latency) {
                writeln!(out, "{text}")?;
            }
        }
    }
    if found.interrupted {
        let problem = "interrupted: there is no last comparison, and nothing is written";
        return Err(CliError::Usage(problem.into()));
    }
    if let Some(path) = &args.output {
        let mut file = create(path)?;
        let written = file.write_all(tuned.as_bytes());
        let written = written.map_err(|source| in_file(path, source));
        // Files that it names are named from another place now.
        let loads = written.and_then(|()| Ok(Config::load(path).map(drop)?));
        or_remove(path, loads)?;
        said(
            &mut out,
            args.json,
            format_args!("written: {}", path.display()),
        )?;
    }
    if let (Some(path), true) = (&args.config, args.write) {
        match changes.is_empty() {
            true => said(&mut out, args.json, format_args!("{name} stays as it is"))?,
            false => {
                replace(path, &text, &tuned)?;
                said(&mut out, args.json, format_args!("written: {name}"))?;
            }
        }
    }
    Ok(())
}

/// For people only.
fn said(out: &mut impl Write, json: bool, what: std::fmt::Arguments<'_>) -> io::Result<()> {
    match json {
        true => Ok(()),
        false => writeln!(out, "{what}"),
    }
}

fn in_file(path: &Path, source: io::Error) -> CliError {
    CliError::File {
        path: path.to_owned(),
        source,
    }
}

fn exists(path: &Path) -> CliError {
    let problem = "exists, and is not overwritten; name another file, or use --config with --write";
    in_file(path, io::Error::new(io::ErrorKind::AlreadyExists, problem))
}

fn create(path: &Path) -> Result<fs::File, CliError> {
    let made = OpenOptions::new().write(true).create_new(true).open(path);
    made.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => exists(path),
        _ => unwritable(path, &source),
    })
}

/// A new file beside another one, or beside the one behind a link, that may take its place: owner, group and permissions are its.
fn beside(path: &Path) -> Result<(fs::File, PathBuf), CliError> {
    let failed = |source: io::Error| {
        let problem = format!(
            "cannot be replaced by a new file in its directory: {source}; use --output with a file elsewhere"
        );
        in_file(path, io::Error::new(source.kind(), problem))
    };
    let real = path.canonicalize().map_err(failed)?;
    let mut name = real.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = real.with_file_name(name);
    let made = OpenOptions::new().write(true).create_new(true).open(&new);
    let file = made.map_err(failed)?;
    let alike = fs::metadata(&real).and_then(|old| belong_like(&file, &old));
    or_remove(&new, alike).map_err(failed)?;
    Ok((file, new))
}

/// After an error nothing is left of a file that was made for it.
fn or_remove<E>(path: &Path, result: Result<(), E>) -> Result<(), E> {
    // What went wrong counts more than what becomes of it.
    result.inspect_err(|_| drop(fs::remove_file(path)))
}

/// Gives `file` the owner, group and permissions of another.
fn belong_like(file: &fs::File, other: &fs::Metadata) -> io::Result<()> {
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (other.uid(), other.gid()) {
        fchown(file, Some(other.uid()), Some(other.gid())).map_err(|error| {
            let problem = format!("its owner and group cannot be kept: {error}");
            io::Error::new(error.kind(), problem)
        })?;
    }
    // Behind that, which takes set-ID bits away.
    file.set_permissions(other.permissions())
}

/// Puts another text in the place of a file's, all at once, if it still has the one that was read.
fn replace(path: &Path, read: &str, text: &str) -> Result<(), CliError> {
    // Of a link it is the file behind it that changes.
    let failed = |source| in_file(path, source);
    let real = path.canonicalize().map_err(failed)?;
    if fs::read_to_string(&real).map_err(failed)? != read {
        let problem = "has changed since it was read, and is left alone";
        return Err(failed(io::Error::other(problem)));
    }
    let (mut file, new) = beside(path)?;
    let replaced = file
        .write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&new, &real));
    or_remove(&new, replaced).map_err(failed)
}

/// A bar on a terminal; elsewhere nothing.
fn bar(time: Duration) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {percent:>3} % of the time, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(time.as_millis() as u64).with_style(style)
}

fn begin(
    out: &mut impl Write,
    machine: &Machine,
    name: &str,
    workloads: &[Workload],
    place: Place,
    space: &Space,
) -> io::Result<()> {
    writeln!(out, "{machine}")?;
    let names: Vec<String> = workloads.iter().map(Workload::to_string).collect();
    let cpu = |cpu: Option<usize>| cpu.map_or("any CPU".into(), |cpu| format!("CPU {cpu}"));
    write!(
        out,
        "{name}, tuned for {}; an emulated link; polling thread on {}",
        names.join(", "),
        cpu(place.lcore)
    )?;
    if workloads.iter().any(Workload::is_latency) {
        write!(out, ", programs on {}", cpu(place.programs))?;
    }
    writeln!(out)?;
    for (key, reason) in &space.left {
        writeln!(out, "not tried: {} ({reason})", key.name())?;
    }
    Ok(())
}

/// A ratio as what it is more than nothing.
fn percent(ratio: f64) -> String {
    match ratio.is_finite() {
        true => format!("{:+.1} %", (ratio - 1.0) * 100.0),
        false => "?".into(),
    }
}

/// A gain with its bounds.
fn bounds(gain: &Gain) -> String {
    match gain.low > 0.0 {
        true => format!("{} to {}", percent(gain.low), percent(gain.high)),
        false => "too few turns".into(),
    }
}

fn report(
    out: &mut impl Write,
    found: &Found,
    space: &Space,
    workloads: &[Workload],
) -> io::Result<()> {
    let (key, value) = (
        |knob: usize| space.knobs[knob].key.name().to_owned(),
        |knob: usize, value: usize| space.knobs[knob].values[value].to_string(),
    );
    let confidence = CONFIDENCE * 100.0;
    writeln!(out)?;
    let mut table = Table::new(&["tried", ">value", ">against the best by then", ">turns"]);
    for tried in &found.tried {
        table.row(vec![
            key(tried.knob),
            value(tried.knob, tried.value),
            percent(tried.ratio),
            tried.turns.to_string(),
        ]);
    }
    table.write(
        out,
        match space.knobs.is_empty() {
            true => "nothing was tried: no key is left to try for these workloads",
            false => "nothing was tried: the time ended before; give more --time",
        },
    )?;
    if !found.steps.is_empty() {
        writeln!(out)?;
        let interval = format!(">{confidence:.0} % sure");
        let mut table = Table::new(&[
            "measured anew",
            ">value",
            ">gain",
            interval.as_str(),
            ">turns",
            "",
        ]);
        for step in &found.steps {
            table.row(vec![
                key(step.knob),
                value(step.knob, step.value),
                percent(step.gain.ratio),
                bounds(&step.gain),
                step.gain.turns.to_string(),
                if step.adopted { "adopted" } else { "left" }.into(),
            ]);
        }
        table.write(out, "")?;
    }
    writeln!(
        out,
        "\nThe default against itself: {} ({}, {} turns)",
        percent(found.noise.ratio),
        bounds(&found.noise),
        found.noise.turns
    )?;
    let mut table = Table::new(&["workload", "default", ">gain", ">sure", ">turns"]);
    for (n, workload) in workloads.iter().enumerate() {
        let mut row = vec![workload.to_string(), workload.figure(found.figures[n])];
        if let Some(gain) = found.workloads.get(n) {
            row.extend([percent(gain.ratio), bounds(gain), gain.turns.to_string()]);
        }
        table.row(row);
    }
    if let Some(gain) = found.gain.filter(|_| workloads.len() > 1) {
        let all = [
            String::from("all"),
            String::new(),
            percent(gain.ratio),
            bounds(&gain),
            gain.turns.to_string(),
        ];
        table.row(all.into());
    }
    table.write(out, "")?;
    writeln!(out)?;
    if found.interrupted {
        return writeln!(out, "interrupted");
    }
    if !found.better {
        return writeln!(
            out,
            "No setting is better than the default with confidence {confidence:.0} %."
        );
    }
    writeln!(
        out,
        "Better than the default, with confidence {confidence:.0} %:"
    )?;
    for (key, value) in space.changes(&found.best) {
        let was = space.start.get(key);
        writeln!(
            out,
            "  [[{}]] {} = {value}    (was {was})",
            key.section(),
            key.name()
        )?;
    }
    for (workload, gain) in workloads.iter().zip(&found.workloads) {
        if gain.is_loss() {
            writeln!(out, "{workload} is slower with it: {}", bounds(gain))?;
        }
    }
    Ok(())
}

/// What looked better when the time was over.
fn undecided(out: &mut impl Write, found: &Found, space: &Space) -> io::Result<()> {
    if found.undecided.is_empty() || found.interrupted {
        return Ok(());
    }
    let looked = found.undecided.iter().map(|tried| {
        let knob = &space.knobs[tried.knob];
        let (key, value) = (knob.key.name(), knob.values[tried.value]);
        format!("{key} {value} looked better ({})", percent(tried.ratio))
    });
    let looked: Vec<String> = looked.collect();
    let was = if looked.len() == 1 { "was" } else { "were" };
    writeln!(
        out,
        "Stopped by the time: {} and {was} not decided; give more --time.",
        looked.join(", ")
    )
}

/// As JSON, with names instead of numbers.
fn shown(found: &Found, space: &Space) -> Json {
    let named = |knob: usize, value: usize| {
        let knob = &space.knobs[knob];
        (knob.key.name(), knob.values[value])
    };
    let tried = |tried: &Tried| {
        let (key, value) = named(tried.knob, tried.value);
        json!({ "key": key, "value": value, "after": tried.after, "ratio": tried.ratio, "turns": tried.turns })
    };
    let steps = found.steps.iter().map(|step| {
        let (key, value) = named(step.knob, step.value);
        json!({ "key": key, "value": value, "gain": step.gain, "adopted": step.adopted })
    });
    let changes = space.changes(&found.best).into_iter().map(|(key, value)| {
        json!({ "section": key.section(), "key": key.name(), "value": value, "was": space.start.get(key) })
    });
    json!({
        "better": found.better,
        "changes": changes.collect::<Vec<_>>(),
        "gain": found.gain,
        "workloads": found.workloads,
        "figures": found.figures,
        "noise": found.noise,
        "steps": steps.collect::<Vec<_>>(),
        "tried": found.tried.iter().map(tried).collect::<Vec<_>>(),
        "undecided": found.undecided.iter().map(tried).collect::<Vec<_>>(),
        "interrupted": found.interrupted,
        "seconds": found.spent.as_secs_f64(),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    /// A directory that goes with the value.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let name = format!("roceline-tune-{name}-{}", std::process::id());
            let dir = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir(&dir).expect("a directory");
            Scratch(dir)
        }
        fn entries(&self) -> usize {
            fs::read_dir(&self.0).expect("it is there").count()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_file_with_another_text_belongs_to_whom_it_did() {
        let scratch = Scratch::new("owner");
        let path = scratch.0.join("my.toml");
        fs::write(&path, "old").expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("it is ours");
        // Without root it stays ours.
        let _ = chown(&path, Some(65_534), Some(65_533));
        let before = fs::metadata(&path).expect("a file");
        replace(&path, "old", "new").expect("replaced");
        let after = fs::metadata(&path).expect("a file");
        let whose = |file: &fs::Metadata| (file.uid(), file.gid(), file.mode());
        assert_eq!(whose(&after), whose(&before));
        assert_ne!(after.ino(), before.ino());
        assert_eq!(fs::read_to_string(&path).expect("a file"), "new");
        assert_eq!(scratch.entries(), 1);
        assert!(replace(&path, "old", "newer").is_err(), "it has changed");
    }

    #[test]
    fn a_search_may_take_seconds_minutes_or_hours() {
        for (text, seconds) in [
            ("1s", 1.0),
            ("1500ms", 1.5),
            ("61s", 61.0),
            ("5m", 300.0),
            ("2min", 120.0),
            ("1.5h", 5400.0),
            ("24h", 86_400.0),
            ("86400s", 86_400.0),
        ] {
            assert_eq!(time(text), Ok(Duration::from_secs_f64(seconds)), "{text}");
        }
        let wrong = [
            "", "s", "60", "0s", "999ms", "25h", "1441m", "1d", "-5s", "1..5s", "1e9s", "inf",
            "5 m",
        ];
        for text in wrong {
            let problem = time(text).unwrap_err();
            assert!(problem.contains("from 1s to 24h"), "{text}: {problem}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_replaced_is_named_itself() {
        let error = beside(Path::new("/proc/version")).map(drop).unwrap_err();
        let said = error.to_string();
        assert!(
            said.starts_with("/proc/version: cannot be replaced") && said.contains("--output"),
            "{said}"
        );
        assert!(!said.contains("version."), "{said}");
    }

    #[test]
    fn of_what_failed_no_file_is_left() {
        let scratch = Scratch::new("failed");
        let path = scratch.0.join("tuned.toml");
        let full = || Err(io::Error::from_raw_os_error(libc::ENOSPC));
        drop(create(&path).expect("a new file"));
        assert!(create(&path).is_err(), "it exists");
        assert!(or_remove(&path, full()).is_err());
        drop(create(&path).expect("a new file again"));
        assert!(or_remove::<io::Error>(&path, Ok(())).is_ok());
        assert_eq!(scratch.entries(), 1);
    }
}
